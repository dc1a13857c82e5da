"""What rows of a table mean, stored and read again."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given as over
from hypothesis import settings
from hypothesis import strategies as st
from stored_explainers import LINKED, X
from strategies import tables

from avcg import Schema, TabularSpace
from avcg.errors import ArtifactError
from avcg.io.spaces import pack_encoding, pack_limits, unpack_encoding
from avcg.io.tensors import read_tensors, write_tensors


class TestSpaces:
    @settings(max_examples=60)
    @over(tables(), st.sampled_from(["standard", "minmax"]))
    def test_any_table_comes_back(self, table, scaling):
        space = TabularSpace.fit(table.schema, table.frame, scaling)
        said, arrays = pack_encoding(space.encoding, space.feasible.links)
        assert pack_limits(space.encoding, space.feasible) == {}
        encoding, feasible = unpack_encoding(json.loads(json.dumps(said)), read_tensors(write_tensors(arrays)))
        again = TabularSpace(encoding, feasible)
        assert again.schema == space.schema
        assert same(again.encoding, space.encoding)
        assert same(again.feasible, space.feasible)
        x = space.encode(table.frame)
        assert torch.equal(again.encode(table.frame), x)
        wish = torch.from_numpy(np.random.default_rng(0).normal(size=x.shape).astype(np.float32))
        assert torch.equal(again.project(wish, x), space.project(wish, x))

    @settings(max_examples=30)
    @over(tables(), st.data())
    def test_a_narrower_space_stays_narrow(self, table, data):
        space = TabularSpace.fit(table.schema, table.frame)
        movable = space.feasible.movable(space.encoding)[0]
        free = [name for name, moves in zip(table.schema.names, movable, strict=True) if moves]
        vary = data.draw(st.lists(st.sampled_from(free), unique=True)) if free else None
        narrow = space.restrict(vary, at_most=data.draw(st.none() | st.integers(0, 2)))
        said, arrays = pack_encoding(narrow.encoding, narrow.feasible.links)
        arrays |= pack_limits(narrow.encoding, narrow.feasible)
        again = TabularSpace(*unpack_encoding(said, read_tensors(write_tensors(arrays))))
        assert same(again.feasible, narrow.feasible)

    def test_arrays_of_other_columns_are_refused(self):
        rows = LINKED.assign(years=X["months"] // 12)
        schema = Schema.infer(rows).link("housing", "deposit").link("months", "years")
        space = TabularSpace.fit(schema, rows).restrict(["income"], at_most=1)
        said, arrays = pack_encoding(space.encoding, space.feasible.links)
        arrays |= pack_limits(space.encoding, space.feasible)
        unpack_encoding(said, arrays)
        for name, array in arrays.items():
            for other in (array[..., None], array.astype(np.uint8), np.concatenate([array, array]), None):
                changed = {key: value for key, value in arrays.items() if key != name}
                changed |= {} if other is None else {name: other}
                if other is None and name.startswith("limits."):
                    continue
                with pytest.raises(ArtifactError, match="is missing, or its shape or dtype does not fit"):
                    unpack_encoding(said, changed)
        for wrong in ({}, {**said, "scaling": "log"}, {**said, "schema": 3}, {**said, "kind": "images"}):
            with pytest.raises(ArtifactError, match="The stored columns are invalid"):
                unpack_encoding(wrong, arrays)


def same(one, other):
    """Whether two records hold the same, arrays and records within them too."""
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, "__dataclass_fields__") and not isinstance(one, Schema):
        return all(same(getattr(one, name), getattr(other, name)) for name in one.__dataclass_fields__)
    return one == other
