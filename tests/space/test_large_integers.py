"""Whole numbers up to the limits of their dtype: no answer wraps, leaves its bounds, or touches what it did not change.

The checker compares Python integers, cell by cell; it shares no code with what it checks.
"""

import json

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from avcg import Schema, TabularSpace
from avcg.batch.chunks import TextChunk, parse_integer
from avcg.batch.columns import AnsweredRows
from avcg.errors import DataError, SchemaError
from avcg.explainers.counterfactuals import Counterfactuals
from avcg.space.project import changes, project, restore
from avcg.space.reading import read_rows
from avcg.space.records import answer_as_dict

LIMITS = {f"{sign}int{bits}": bits for sign in ("", "u") for bits in (8, 16, 32, 64)}
DTYPES = {
    **{name: name for name in LIMITS},
    **{f"nullable {name}": name.replace("i", "I", 1).replace("u", "U") for name in LIMITS},
    "arrow int64": "int64[pyarrow]",
    "arrow uint64": "uint64[pyarrow]",
}


def limits(name):
    bits = LIMITS[name]
    return (0, 2**bits - 1) if name.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


@st.composite
def large_tables(draw):
    """A frame with a free, a rising, a falling and a frozen column of one dtype, near a place of its range."""
    form = draw(st.sampled_from([*DTYPES, *(f"polars {name}" for name in LIMITS)]))
    least, most = limits(form.split()[-1])
    powers = [p for p in (2**24, 2**31, 2**53, 2**60) if p < most]
    spots = [least, 0, most, *powers, *(-p for p in powers if -p > least)]
    spread = draw(st.sampled_from([100, 2**12, most - least]))
    count = draw(st.integers(2, 6))
    columns = {}
    for name in ("free", "rising", "falling", "frozen"):
        spot = draw(st.sampled_from(spots))
        near = st.integers(max(least, spot - spread), min(most, spot + spread))
        columns[name] = draw(st.lists(near, min_size=count, max_size=count))
    gaps = form.startswith(("nullable", "polars")) and draw(st.booleans())
    if gaps:
        columns["free"][0] = None
    if form.startswith("polars"):
        dtype = getattr(pl, form.split()[1].replace("i", "I", 1).replace("u", "U"))
        frame = pl.DataFrame({name: pl.Series(name, values, dtype=dtype) for name, values in columns.items()})
    else:
        frame = pd.DataFrame({name: pd.Series(values, dtype=DTYPES[form]) for name, values in columns.items()})
    schema = Schema.infer(frame).only_up("rising").only_down("falling").freeze("frozen")
    schema = schema.allow_missing("free") if gaps else schema
    bounded = draw(st.booleans())
    if bounded:
        low = draw(st.sampled_from(columns["rising"]))
        schema = schema.between("rising", low, most)
    step = draw(st.sampled_from([1, 2, 7]))
    for name in ("free", "rising", "falling", "frozen") if step != 1 and not bounded else ():
        schema = schema.step(name, step)
    return frame, columns, schema


def problems(columns, schema, answers):
    """What is wrong with answers, compared as Python integers."""
    found = []
    for name, before in columns.items():
        feature, present = schema[name], [value for value in before if value is not None]
        low = min(present) if feature.low is None else feature.low
        high = max(present) if feature.high is None else feature.high
        for old, new in zip(before, answers[name].to_list(), strict=True):
            if new is None or new is pd.NA:
                found += [f"{name}: {old} -> nothing"] if old is not None else []
                continue
            if old == int(new):
                continue
            if old is not None:
                low_here, high_here = min(low, old), max(high, old)
                wrong_way = (feature.change == "up" and new < old) or (feature.change == "down" and new > old)
            else:
                low_here, high_here, wrong_way = low, high, False
            if wrong_way or feature.change == "none" or not low_here <= int(new) <= high_here:
                found.append(f"{name}: {old} -> {new}, from {low_here} to {high_here}")
            if int(new) % feature.step:
                found.append(f"{name}: {new} is no multiple of {feature.step}")
    return found


@settings(max_examples=120)
@given(large_tables(), st.sampled_from(["standard", "minmax"]), st.integers(0, 2**32 - 1))
def test_whole_numbers_of_any_size_obey(table, scaling, seed):
    frame, columns, schema = table
    space = TabularSpace.fit(schema, frame, scaling)
    x = space.encode(frame)
    noise = torch.from_numpy(np.random.default_rng(seed).normal(0, 3, (4, *x.shape)).astype(np.float32))
    for wish in (*(x + noise), x + 100, x - 100):
        answers = space.decode(space.project(wish, x), like=frame)
        assert problems(columns, schema, answers) == []
        assert not space.violations(answers, frame).any()
        assert answers["frozen"].equals(frame["frozen"])
        assert list(answers.dtypes) == list(frame.dtypes)
    assert space.decode(x, like=frame).equals(frame)


@settings(max_examples=60)
@given(large_tables(), st.integers(0, 2**32 - 1))
def test_dictionaries_of_any_size_obey(table, seed):
    frame, columns, schema = table
    space = TabularSpace.fit(schema, frame)
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    here = read_rows(schema, rows)
    x = space.encoding.encode(here)
    assert np.array_equal(x, space.encode(frame).numpy())
    for wish in (x + np.random.default_rng(seed).normal(0, 3, x.shape).astype(np.float32), x + 100, x - 100):
        codes = project(space.encoding, space.feasible, wish[None], x)[0]
        values = restore(space.encoding, space.feasible, codes, here)
        differs = changes(space.encoding, values, here)
        answers = [answer_as_dict(space.encoding, row, values, differs[i], i)[0] for i, row in enumerate(rows)]
        assert all(value is None or type(value) is int for row in answers for value in row.values())
        assert problems(columns, schema, pd.DataFrame(answers, dtype=object)) == []


def test_a_rising_column_does_not_wrap():
    """The case of the report: 0 -> -9223372036854775808."""
    top = 2**63 - 1
    frame = pd.DataFrame({"total": [0, 5, top - 3, top]})
    space = TabularSpace.fit(Schema.infer(frame).only_up("total"), frame)
    x = space.encode(frame)
    assert space.decode(space.project(x + 3, x), like=frame)["total"].tolist() == [top - 1023, top - 1023, top - 3, top]


def test_a_coarse_grid_beyond_exact_numbers_moves_nothing():
    """The case of the report: of 800 frozen cells on a step of 7, 158 moved."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"frozen": rng.integers(2**60, 2**62, 800), "free": rng.integers(-(2**62), 2**62, 800)})
    space = TabularSpace.fit(Schema.infer(frame).step("frozen", 7).step("free", 7).freeze("frozen"), frame)
    x = space.encode(frame)
    answers = space.decode(
        space.project(x + torch.randn(x.shape, generator=torch.Generator().manual_seed(0)), x), frame
    )
    assert answers["frozen"].equals(frame["frozen"])
    moved = answers["free"] != frame["free"]
    assert (answers["free"][moved] % 7 == 0).all()
    assert not space.violations(answers, frame).any()


def test_an_answer_that_the_dtype_cannot_hold_is_an_error():
    frame = pd.DataFrame({"a": [0, 1, 2]})
    space = TabularSpace.fit(Schema.infer(frame).between("a", 0, 2**64), frame)
    x = space.encode(frame)
    with pytest.raises(DataError, match="int64, which cannot hold the answer"):
        space.decode(space.project(x + 1e20, x), like=frame)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_narrow_float_column_keeps_its_own_where_it_would_round(dtype):
    exact = 2 ** (np.finfo(dtype).nmant + 1)
    frame = pd.DataFrame({"a": np.array([0, exact], dtype)})
    space = TabularSpace.fit(Schema.infer(frame).only_up("a").between("a", 0, exact + 3), frame)
    x = space.encode(frame)
    assert space.decode(space.project(x + 9, x), like=frame)["a"].tolist() == [0, exact]
    far = TabularSpace.fit(Schema.infer(frame).between("a", 0, 2**130), frame)
    assert far.decode(far.project(x + 1e32, x), like=frame)["a"].equals(frame["a"])


def test_codes_alone_do_not_wrap():
    frame = pd.DataFrame({"a": pd.Series([0, 2**64 - 1], dtype="uint64"), "b": [0, 2**63 - 1]})
    space = TabularSpace.fit(Schema.infer(frame), frame)
    back = space.decode(space.encode(frame))
    assert (back >= 0).all().all()
    assert back["a"].iloc[1] == 2.0**64


def test_a_follower_too_large_to_be_exact_is_refused():
    frame = pd.DataFrame({"plan": ["a", "b"], "id": [2**60 + 1, 2**61 + 1]})
    with pytest.raises(DataError, match="'id' has values too close together"):
        TabularSpace.fit(Schema.infer(frame, {"id": "integer"}).link("plan", "id"), frame)


def test_bounds_of_any_size_are_read_exactly():
    schema = Schema.infer(pd.DataFrame({"a": [1, 2]}))
    assert schema.step("a", 7).between("a", 2**62, 2**62 + 6)["a"].low == 2**62
    with pytest.raises(SchemaError, match="No multiple of the step 7"):
        schema.step("a", 7).between("a", 2**62 - 1, 2**62 + 2)
    with pytest.raises(SchemaError, match="must be a finite number"):
        schema.between("a", 0, 10**400)


def test_cells_of_a_csv_are_read_to_the_last_digit():
    assert [parse_integer(text) for text in ("-9223372036854775808", "9223372036854775807", "9007199254740993")] == [
        -(2**63), 2**63 - 1, 2**53 + 1,
    ]  # fmt: skip
    assert parse_integer("9223372036854775808") is None
    assert parse_integer("-9223372036854775809") is None


def answered(chunk, frame, answers):
    """Answers to two rows, of which the first changes."""
    changed = np.array([[True], [False]])
    nothing = np.zeros(2)
    found = Counterfactuals(
        factuals=frame, answers=answers, n=1, target=np.array([1, 1]), statuses=np.array(["ok", "ok"]),
        probability=nothing, probability_before=nothing, distance=nothing, changed=changed,
        repeated=np.zeros(2, bool), certificate=None, survival=0.9,
    )  # fmt: skip
    return AnsweredRows(chunk, np.arange(len(frame)), found)


def test_a_csv_column_with_gaps_keeps_its_cells_in_parquet():
    """A gap makes floats of a column of whole numbers; what no answer changes is still written to the last digit."""
    pytest.importorskip("pyarrow")
    chunk = TextChunk(0, {"a": ["", "9007199254740993"]}, [2, 3], "x.csv")
    frame = pd.DataFrame({"a": chunk.column("a", "integer")})
    block = answered(chunk, frame, pd.DataFrame({"a": [4.0, frame["a"][1]]}))
    assert block.arrow_columns({"a": "integer"})["a"].to_pylist() == [4, 2**53 + 1]
    assert block.texts()["a"] == ["4", "9007199254740993"]


@pytest.mark.parametrize("gap", [False, True])
@pytest.mark.parametrize(("kind", "new"), [("uint64", 2**64 - 2048), ("int64", -(2**63)), ("int8", 4)])
def test_parquet_columns_take_answers_of_any_size(kind, new, gap):
    pa = pytest.importorskip("pyarrow")
    from avcg.batch.chunks import ArrowChunk

    last = int(np.iinfo(kind).max)
    table = pa.table({"a": pa.array([None if gap else 1, last], type=getattr(pa, kind)())})
    chunk = ArrowChunk(0, table, "x.parquet")
    frame = pd.DataFrame({"a": chunk.column("a", "integer")})
    answers = frame.copy()
    answers.loc[0, "a"] = new
    block = answered(chunk, frame, answers)
    assert block.arrow_columns(None)["a"].to_pylist() == [new, last]
    assert block.arrow_columns(None)["a"].type == table.column("a").type


def test_answers_of_any_size_go_to_json_and_back():
    frame = pd.DataFrame({"a": pd.Series([2**64 - 1, 2**63 + 1], dtype="uint64"), "b": [2**53 + 1, -(2**63)]})
    block = answered(None, frame, frame).answers
    back = Counterfactuals.from_json(block.to_json())
    pd.testing.assert_frame_equal(back.answers, frame)
    assert json.loads(block.to_json())["answers"]["columns"]["b"]["values"] == [2**53 + 1, -(2**63)]
