"""Arrays in the safetensors format, and bytes that are not."""

import json

import numpy as np
import pytest
from hypothesis import given as over
from hypothesis import settings
from hypothesis import strategies as st
from safetensors.numpy import load as their_reader
from stored_explainers import entry

from avcg.errors import ArtifactError
from avcg.io.tensors import read_tensors, write_tensors


def file_of(header, body=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + body


ARRAYS = {
    "float64": np.linspace(0, 1, 6).reshape(2, 3),
    "float32": np.arange(4, dtype=np.float32),
    "float16": np.arange(3, dtype=np.float16),
    "int64": np.array([[-(2**62)]]),
    "int32": np.array([-5, 2**31 - 1], np.int32),
    "uint8": np.arange(3, dtype=np.uint8),
    "bool": np.array([True, False]),
    "of no axes": np.array(3, np.int64),
    "of no axes, true": np.array(True),
    "of no elements": np.zeros((2, 0, 3)),
    "of no elements, true": np.zeros(0, bool),
    "of another order": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "of every second": np.arange(9.0)[::2],
    "not numbers": np.array([np.nan, np.inf, -np.inf, -0.0]),
}


class TestTensors:
    def test_there_and_back_and_as_safetensors_reads_them(self):
        data = write_tensors(ARRAYS)
        mine, theirs = read_tensors(data), their_reader(data)
        assert set(mine) == set(theirs) == set(ARRAYS)
        for name, array in ARRAYS.items():
            for found in (mine[name], theirs[name]):
                assert (found.dtype, found.shape) == (array.dtype, array.shape), name
                assert found.tobytes() == array.tobytes(), name
            assert mine[name].flags.writeable

    @settings(max_examples=60)
    @over(
        st.dictionaries(
            st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__"),
            st.tuples(
                st.sampled_from(["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u1", "?"]),
                st.lists(st.integers(0, 4), max_size=3),
                st.integers(0, 2**32 - 1),
            ),
            max_size=6,
        )
    )
    def test_any_arrays(self, wanted):
        arrays = {
            name: (np.random.default_rng(seed).random(shape) * 100).astype(kind)
            for name, (kind, shape, seed) in wanted.items()
        }
        found = read_tensors(write_tensors(arrays))
        assert set(found) == set(arrays)
        assert all(
            found[name].tobytes() == array.tobytes() and found[name].shape == array.shape
            for name, array in arrays.items()
        )

    @pytest.mark.parametrize(
        "data",
        {
            "nothing": b"",
            "too short": b"1234567",
            "a header as long as the disk": file_of({}, length=2**63),
            "a header that ends after the file": file_of({}, length=3),
            "no JSON": file_of(b"hello"),
            "no text": file_of(b"\xff\xfe\xfd"),
            "deep": file_of(b"[" * 100_000),
            "a list": file_of([]),
            "an entry that is none": file_of({"a": 3}, b"1234"),
            "an entry that lacks something": file_of({"a": {"dtype": "F32", "shape": [1]}}, b"1234"),
            "a dtype that numpy does not have": file_of({"a": entry("BF16", (2,))}, b"1234"),
            "a dtype that is none": file_of({"a": entry("BF17")}, b"1234"),
            "a dtype that is no text": file_of({"a": entry([])}, b"1234"),
            "a shape with nothing": file_of({"a": entry(shape=[-1])}, b"1234"),
            "a shape with two of nothing": file_of({"a": entry(shape=[-1, -1])}, b"1234"),
            "a shape of parts": file_of({"a": entry(shape=[1.0])}, b"1234"),
            "a shape that is true": file_of({"a": entry(shape=[True])}, b"1234"),
            "a shape that is too large": file_of({"a": entry(shape=[2**62, 4])}, b"1234"),
            "an empty shape that is too large": file_of({"a": entry(shape=[0, 10**30], offsets=(0, 0))}),
            "too few bytes": file_of({"a": entry(shape=[2])}, b"1234"),
            "too many bytes": file_of({"a": entry()}, b"12345"),
            "past the end": file_of({"a": entry(offsets=(0, 8), shape=[2])}, b"1234"),
            "before the beginning": file_of({"a": entry(offsets=(-4, 0))}, b"1234"),
            "backwards": file_of({"a": entry(offsets=(4, 0))}, b"1234"),
            "one over another": file_of({"a": entry(), "b": entry()}, b"1234"),
            "one half over another": file_of({"a": entry(), "b": entry(offsets=(2, 6))}, b"123456"),
            "a hole": file_of({"a": entry(), "b": entry(offsets=(8, 12))}, b"1" * 12),
            "twice": file_of(b'{"a": %s, "a": %s}' % ((json.dumps(entry()).encode(),) * 2), b"12345678"),
            "three offsets": file_of({"a": entry(offsets=(0, 4, 4))}, b"1234"),
            "a truth that is two": file_of({"a": entry("BOOL", (1,), (0, 1))}, b"\2"),
            "metadata that is none": file_of({"__metadata__": 3}),
        }.values(),
    )
    def test_bytes_that_are_none(self, data):
        with pytest.raises(ArtifactError, match="not in the safetensors format"):
            read_tensors(data)

    def test_metadata_is_left_alone(self):
        assert read_tensors(file_of({"__metadata__": {"by": "someone"}, "a": entry()}, b"\0\0\x80\x3f")) == {"a": 1.0}
