"""Arrays in one file, in the safetensors format; reading takes numpy alone."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avcg.errors import ArtefactError
from avcg.io.folder import validate

_DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1",
    "BOOL": "?",
}  # fmt: skip
_LENGTH = 8  # bytes that say how long the header is
_ENTRY = {"dtype": str, "shape": [int], "data_offsets": [int, int]}


def write_tensors(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The bytes of a file.

    Args:
        arrays: By name.
    """
    from safetensors.numpy import save

    return save({name: np.asarray(array, order="C") for name, array in arrays.items()})


def read_tensors(data: bytes) -> dict[str, NDArray[Any]]:
    """Arrays by name, each a copy of its own.

    Raises:
        ArtefactError: If the bytes are something else: every byte must belong to the header or to one array.

    >>> read_tensors(write_tensors({"a": np.arange(3.0)}))
    {'a': array([0., 1., 2.])}
    """
    start = _LENGTH + int.from_bytes(data[:_LENGTH], "little")
    try:
        if len(data) < start:
            raise ValueError("they end before their header does")
        header = json.loads(data[_LENGTH:start])
        wrong = validate(header, {"__metadata__?": {...: str}, ...: _ENTRY})
        if wrong is not None:
            raise ValueError(wrong)
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        arrays, end = {}, 0
        for name, entry in sorted(entries.items(), key=lambda one: one[1]["data_offsets"]):
            first, last = entry["data_offsets"]
            kind, count = np.dtype(_DTYPES[entry["dtype"]]), math.prod(entry["shape"])
            if first != end or last - first != kind.itemsize * count or min(entry["shape"], default=0) < 0:
                raise ValueError(f"{name!r} does not follow on what is before it, or is of another size")
            flat = np.frombuffer(data, np.uint8)[start + first : start + last]
            if kind.kind == "b" and flat.max(initial=0) > 1:
                raise ValueError(f"{name!r} has truths that are neither true nor false")
            arrays[name], end = flat.view(kind).reshape(entry["shape"]).copy(), last
        if start + end != len(data):
            raise ValueError("there are bytes that belong to no array")
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ArtefactError(f"These are no tensors: {error}.") from None
    return {name: arrays[name] for name in entries}
