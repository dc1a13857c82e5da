"""One reading of rows: a frame, its dictionaries, its CSV text and its Arrow table mean the same."""

import contextlib
import csv
import io
import json
import time

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import cells, tables

from avcg import Categorical, Continuous, Schema, TabularSpace
from avcg.batch.chunks import ArrowChunk, TextChunk, cell_types_of, read_frame
from avcg.errors import DataError
from avcg.space.frames import read_values
from avcg.space.reading import read_rows

EXAMPLES = settings(max_examples=60)


def widened(frame):
    """The frame without float32 columns, of which a text holds fewer digits than a float64 has."""
    for name in frame.columns:
        if isinstance(frame, pl.DataFrame) and frame[name].dtype == pl.Float32:
            frame = frame.with_columns(frame[name].cast(pl.Float64))
        elif str(frame[name].dtype) == "float32":
            frame = frame.assign(**{name: frame[name].astype("float64")})
    return frame


def dictionaries(frame):
    columns = {name: cells(frame, name) for name in frame.columns}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def as_csv(rows):
    """Rows as a CSV file has them, and as a batch opens it."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    header, *lines = csv.reader(io.StringIO(text.getvalue()))
    columns = {name: [line[j] for line in lines] for j, name in enumerate(header)}
    return TextChunk(0, columns, list(range(2, len(lines) + 2)), "rows.csv")


def as_arrow(rows):
    return ArrowChunk(0, pa.Table.from_pylist(rows, names_schema(rows)), "rows.parquet")


def names_schema(rows):
    """The types of pyarrow for columns, a column of nothing but nulls as one of texts."""
    inferred = pa.Table.from_pylist(rows).schema
    return pa.schema([(f.name, pa.string() if pa.types.is_null(f.type) else f.type) for f in inferred])


def read_chunk(chunk, schema, frame):
    dtypes = {name: str(frame[name].dtype) for name in frame.columns}
    return read_values(read_frame(chunk, schema, cell_types_of(schema, dtypes)), schema)


def same(values, others):
    return np.array_equal(values.numbers, others.numbers, equal_nan=True) and np.array_equal(
        values.choices, others.choices
    )


@EXAMPLES
@given(tables(constrained=False))
def test_all_sources_hold_the_same_values(table):
    frame, schema = widened(table.frame), table.schema
    expected, rows = read_values(frame, schema), dictionaries(frame)
    assert same(read_rows(schema, rows), expected)
    assert same(read_rows(schema, json.loads(json.dumps(rows))), expected)
    for i, row in enumerate(rows):
        assert same(read_rows(schema, [row]), expected.take(np.array([i])))
    assert same(read_values(pd.DataFrame(rows, dtype=object), schema), expected)
    assert same(read_chunk(as_csv(rows), schema, frame), expected)
    arrow = frame.to_arrow() if isinstance(frame, pl.DataFrame) else pa.Table.from_pandas(frame, preserve_index=False)
    assert same(read_chunk(ArrowChunk(0, arrow, "rows.parquet"), schema, frame), expected)


def wrong_cells(feature):
    """Values that do not fit a column."""
    gap = [None] if feature.missing == "error" else []
    if isinstance(feature, Continuous):
        return [*gap, "many", float("inf"), True, [1]]
    other = 17 if isinstance(feature.categories[0], str) else "nothing of the kind"
    return [*gap, other, "no such", ["a"]]


@EXAMPLES
@given(tables(constrained=False), st.data())
def test_all_sources_refuse_the_same_rows(table, data):
    frame, schema = widened(table.frame), table.schema
    rows = dictionaries(frame)
    feature = data.draw(st.sampled_from(schema.features))
    wrong = data.draw(st.sampled_from(wrong_cells(feature)))
    places = sorted(data.draw(st.sets(st.sampled_from(range(len(rows))), min_size=1)))
    for i in places:
        rows[i] = rows[i] | {feature.name: wrong}
    with pytest.raises(DataError) as of_rows:
        read_rows(schema, rows)
    with pytest.raises(DataError) as of_frame:
        read_values(
            pd.DataFrame({name: pd.Series([row[name] for row in rows], dtype=object) for name in schema}), schema
        )
    assert str(of_rows.value) == str(of_frame.value)
    assert f"Column {feature.name!r} has {len(places)} " in str(of_rows.value)
    sources = [as_csv(rows)]
    with contextlib.suppress(pa.ArrowInvalid, pa.ArrowTypeError):  # a column of Arrow holds values of one type
        sources.append(as_arrow(rows))
    readable = isinstance(wrong, bool) and isinstance(feature, Continuous)
    for chunk in sources if not readable else ():
        if wrong == 17 and isinstance(chunk, ArrowChunk):
            continue  # all numbers, where names are numbers
        with pytest.raises(DataError, match=f"column {feature.name!r}") as of_chunk:
            read_chunk(chunk, schema, frame)
        whole_column = isinstance(chunk, ArrowChunk) and "is of type" in str(of_chunk.value)
        assert whole_column or chunk.location(places[0]) in str(of_chunk.value)


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        ("3", "Column 'n' has 2 values not a number: '3'"),
        (True, "Column 'n' has 2 values not a number: True. The schema has it as a number"),
        (np.True_, "Column 'n' has 2 values not a number: True. The schema has it as a number"),
        (-float("inf"), "Column 'n' has 2 values infinite: -inf"),
        (np.float32("inf"), "Column 'n' has 2 values infinite: inf"),
        (None, r"Column 'n' has 2 missing values. Fill or drop them, or say schema.allow_missing\('n'\)"),
        (pd.NA, "Column 'n' has 2 missing values"),
        (pd.NaT, "Column 'n' has 2 missing values"),
        (np.nan, "Column 'n' has 2 missing values"),
        (10**400, "Column 'n' has a value too far from the training rows"),
        ([1.0], r"Column 'n' has 2 values not a number: \[1.0\]"),
    ],
)
def test_numbers_that_are_none(cell, says):
    schema = Schema((Continuous("n"), Categorical("c", ("x", "y"))))
    rows = [{"n": cell, "c": "x"}, {"n": 1, "c": "y"}, {"n": cell, "c": "x"}]
    with pytest.raises(DataError, match=says):
        read_rows(schema, rows)
    with pytest.raises(DataError, match=says):
        read_values(pd.DataFrame({name: pd.Series([r[name] for r in rows], dtype=object) for name in schema}), schema)


@pytest.mark.parametrize(
    ("categories", "cells", "positions"),
    [
        ((3, 6, 7), [3.0, np.int8(7), 6], [0, 2, 1]),
        ((False, True), [np.True_, False], [1, 0]),
        ((0, 1), [1.0, np.float32(0)], [1, 0]),
        (("a", 1, False), [False, 1, "a"], [2, 1, 0]),
        (("NA", "b"), ["NA", np.str_("b")], [0, 1]),
    ],
)
def test_categories_of_every_type(categories, cells, positions):
    schema = Schema((Categorical("c", categories),))
    assert read_rows(schema, [{"c": cell} for cell in cells]).choices[:, 0].tolist() == positions
    frame = pd.DataFrame({"c": pd.Series(cells, dtype=object)})
    assert read_values(frame, schema).choices[:, 0].tolist() == positions


@pytest.mark.parametrize(("categories", "cell"), [((False, True), 1), ((0, 1), True), ((False, True), 0.0)])
def test_zero_and_one_are_not_no_and_yes(categories, cell):
    schema = Schema((Categorical("c", categories),))
    for column in (pd.Series([cell, cell]), pd.Series([cell, cell], dtype=object)):
        with pytest.raises(DataError, match="Column 'c' has 2 values that are no category of it"):
            read_values(pd.DataFrame({"c": column}), schema)
    with pytest.raises(DataError, match="Column 'c' has 2 values that are no category of it"):
        read_rows(schema, [{"c": cell}, {"c": cell}])


def test_one_row_is_read_in_microseconds():
    frame = pd.DataFrame({f"n{j}": [0.5, 1.5] for j in range(7)} | {f"c{j}": ["a", "b"] for j in range(7)})
    space = TabularSpace.fit(Schema.infer(frame), frame)
    row = frame.iloc[0].to_dict()
    times = []
    for _ in range(50):
        started = time.perf_counter()
        space.encoding.encode(read_rows(space.schema, [row]))
        times.append(time.perf_counter() - started)
    assert min(times) < 3e-4, "a row of 14 columns takes 25 microseconds on a quiet machine"
