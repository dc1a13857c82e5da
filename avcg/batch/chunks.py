"""Consecutive rows of a CSV or parquet file, and their columns read in the types of the training rows.

Cells of a CSV file are kept as they were written, so that an answer can return the ones it leaves alone unchanged.
Columns of a parquet file keep their own types.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, NoReturn

import numpy as np
import pandas as pd

from avcg.errors import DataError, MissingExtraError, did_you_mean, enumerate_some
from avcg.schema.features import Categorical, Feature, columns_of
from avcg.schema.schema import Schema

CellType = Literal["integer", "number", "boolean", "text", "flag"]
# The texts that pandas reads as missing, so that models trained on its frames see the same missing values.
MISSING_TEXTS = frozenset(
    "|#N/A|#N/A N/A|#NA|-1.#IND|-1.#QNAN|-NaN|-nan|1.#IND|1.#QNAN|<NA>|N/A|NA|NULL|NaN|None|n/a|nan|null".split("|")
)
_BOOLEANS = {word: word.lower() == "true" for word in ("True", "TRUE", "true", "False", "FALSE", "false")}
_FLAGS: Mapping[float | None, int] = {0.0: 0, 1.0: 1}
_INTEGER = re.compile(r"\s*[+-]?\d+\s*")
_INT64 = range(-(2**63), 2**63)
_EXPECTED = {
    "integer": "a whole number, as in the training rows",
    "number": "a number",
    "boolean": "true or false",
    "text": "a text",
    "flag": "0 or 1",
}


@dataclass(frozen=True, eq=False)
class TextChunk:
    """Consecutive rows of a CSV file, with every cell as text.

    Attributes:
        start: Position of the first row in the file, counted from 0.
        cells: Texts of each column, by column name.
        lines: Line of the file on which each row begins, counted from 1.
        name: Name of the file, for error messages.
    """

    start: int
    cells: dict[str, list[str]]
    lines: list[int]
    name: str

    def __len__(self) -> int:
        return len(self.lines)

    def location(self, i: int) -> str:
        """The file and line of a row, for error messages."""
        return f"{self.name}, line {self.lines[i]}"

    def column(self, name: str, cell_type: CellType, categories: Collection[object] = ()) -> pd.Series[Any]:
        """The values of a column, with None or NaN where a value is missing.

        Args:
            name: Name of the column.
            cell_type: Type that its cells are read as.
            categories: Values the column can have. A text such as NA or None is not missing if it is one of them.

        Raises:
            DataError: If a cell cannot be read as that type. The message says where it is.
        """
        parse, missing, values = _PARSERS[cell_type], MISSING_TEXTS.difference(categories), []
        for i, text in enumerate(self.cells[name]):
            value = None if text in missing else parse(text)
            if value is None and text not in missing:
                _raise_bad_cell(self, i, name, cell_type, text)
            values.append(value)
        return _series(values, cell_type)


@dataclass(frozen=True, eq=False)
class ArrowChunk:
    """Consecutive rows of a parquet file, with every column in its own type.

    Attributes:
        start: Position of the first row in the file, counted from 0.
        table: The rows, a `pyarrow.Table`.
        name: Name of the file, for error messages.
    """

    start: int
    table: Any
    name: str

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def location(self, i: int) -> str:
        """The file and position of a row, for error messages."""
        return f"{self.name}, row {self.start + i} (the first is row 0)"

    def column(self, name: str, cell_type: CellType, categories: Collection[object] = ()) -> pd.Series[Any]:  # noqa: ARG002
        """The values of a column, as in `TextChunk.column`. The file itself says which values are missing."""
        values = decoded_array(self.table.column(name))
        kind, types = values.type, load_pyarrow().types
        if types.is_null(kind):
            return _series([None] * len(self), cell_type)
        if cell_type == "text" and types.is_integer(kind):  # numbers that are names of categories
            values, kind = values.cast(load_pyarrow().string()), load_pyarrow().string()
        if cell_type in ("integer", "number") and types.is_decimal(kind):
            values, kind = values.cast(load_pyarrow().float64()), load_pyarrow().float64()
        numeric: tuple[CellType, ...] = ("integer", "number")
        flags: tuple[CellType, ...] = (*numeric, "boolean")
        if _arrow_cell_type(kind) not in (
            flags if cell_type == "flag" else numeric if cell_type in numeric else (cell_type,)
        ):
            raise DataError(
                f"{self.name}: column {name!r} is of type {kind}. It should hold {_EXPECTED[cell_type]} in every row."
            )
        return values.to_pandas() if cell_type in (*numeric, "flag") else _series(values.to_pylist(), cell_type)


Chunk = TextChunk | ArrowChunk


def load_pyarrow() -> Any:
    """The package pyarrow, with its modules for parquet files and computation.

    Raises:
        MissingExtraError: If pyarrow is not installed.
    """
    try:
        for module in ("compute", "parquet"):
            import_module(f"pyarrow.{module}")
        return import_module("pyarrow")
    except ImportError:
        raise MissingExtraError("pyarrow", "batch", "A parquet file") from None


def check_unique(names: Sequence[str], table: str) -> None:
    """Refuse a table in which two columns have the same name.

    Args:
        names: Names of the columns.
        table: Name of the table, for the error message.

    Raises:
        DataError: If a name is repeated.
    """
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if repeated:
        raise DataError(f"{table} has column {enumerate_some(repeated)} twice. Rename or drop one of them.")


def decoded_array(column: Any) -> Any:
    """A column of pyarrow as one array of plain values, without dictionary encoding."""
    encoded = load_pyarrow().types.is_dictionary(column.type)
    return (column.cast(column.type.value_type) if encoded else column).combine_chunks()


def _arrow_cell_type(kind: Any) -> CellType | None:
    types = load_pyarrow().types
    if types.is_boolean(kind):
        return "boolean"
    if types.is_integer(kind):
        return "integer"
    if types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    return "text" if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind) else None


def parse_integer(text: str) -> int | None:
    """The integer that a text stands for, exact to the last digit; None if it is not an integer or exceeds int64."""
    number = _parse_number(text)
    if number is None or not number.is_integer():
        return None
    value = int(text) if _INTEGER.fullmatch(text) else int(number)
    return value if value in _INT64 else None


def _parse_number(text: str) -> float | None:
    """The finite float that a text stands for. Underscores, which Python allows in numbers, are not accepted."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if "_" not in text and abs(value) != float("inf") else None


_PARSERS: Mapping[CellType, Callable[[str], Any]] = {
    "integer": parse_integer,
    "number": _parse_number,
    "boolean": _BOOLEANS.get,
    "text": str,
    "flag": lambda text: _BOOLEANS[text] if text in _BOOLEANS else _FLAGS.get(_parse_number(text)),
}


def _series(values: list[Any], cell_type: CellType) -> pd.Series[Any]:
    """Values in the dtype of their cell type, or in one that can hold missing values where there are any."""
    missing = any(value is None for value in values)
    if cell_type in ("integer", "number"):
        exact = cell_type == "integer" and not missing
        return pd.Series(
            [np.nan if value is None else value for value in values], dtype="int64" if exact else "float64"
        )
    if cell_type == "flag" and not missing:  # as they are written, 0 and 1 or false and true
        return pd.Series(values, dtype=bool if all(isinstance(value, bool) for value in values) else "int64")
    return pd.Series(values, dtype="bool" if cell_type == "boolean" and not missing else object)


def _raise_bad_cell(chunk: Chunk, i: int, name: str, cell_type: CellType, value: object) -> NoReturn:
    raise DataError(f"{chunk.location(i)}: column {name!r} should be {_EXPECTED[cell_type]}. Got {value!r}.")


def infer_cell_type(chunk: Chunk, name: str) -> CellType | None:
    """The type that all cells of a column have; None for types such as dates, which cannot be learned from."""
    if isinstance(chunk, ArrowChunk):
        kind = decoded_array(chunk.table.column(name)).type
        return "text" if load_pyarrow().types.is_null(kind) else _arrow_cell_type(kind)
    texts = [text for text in chunk.cells[name] if text not in MISSING_TEXTS]
    # A column that is written as 1.0 holds numbers, even if all of them are whole.
    tests: Mapping[CellType, Callable[[str], Any]] = {
        "boolean": _BOOLEANS.get, "integer": _INTEGER.fullmatch, "number": _parse_number,
    }  # fmt: skip
    matches = (kind for kind, test in tests.items() if texts and all(test(text) is not None for text in texts))
    return next(matches, "text")


def cell_types_of(schema: Schema, dtypes: Mapping[str, str]) -> dict[str, CellType]:
    """The type in which each column of a schema is read; kept columns are not.

    Args:
        schema: Schema of the columns.
        dtypes: Dtypes of the training rows by column name, as far as they were stored.
    """
    flags = {name for feature in schema.grouped for name in columns_of(feature)}
    types: dict[str, CellType] = {name: "boolean" if dtypes.get(name) == "bool" else "flag" for name in flags}
    own = (feature for feature in schema.features if feature not in schema.grouped)
    return types | {feature.name: _cell_type(feature, dtypes.get(feature.name, "")) for feature in own}


def _cell_type(feature: Feature, dtype: str) -> CellType:
    if not isinstance(feature, Categorical):
        return "integer" if dtype.startswith(("int", "uint")) else "number"
    if isinstance(feature.categories[0], bool):
        return "boolean"
    if isinstance(feature.categories[0], str):
        return "text"
    return "integer" if all(isinstance(value, int) for value in feature.categories) else "number"


def read_frame(chunk: Chunk, schema: Schema, cell_types: Mapping[str, CellType]) -> pd.DataFrame:
    """The columns of a schema as a frame, indexed by the positions of the rows in the file.

    Args:
        chunk: Rows to read.
        schema: Schema of the columns; other columns are ignored.
        cell_types: Type of each column, as `cell_types_of` gives them.

    Raises:
        DataError: If a cell does not fit the schema. The message says where it is and what to do.
    """
    index = pd.RangeIndex(chunk.start, chunk.start + len(chunk))
    columns: dict[str, pd.Series[Any]] = {}
    for feature in schema.features:
        if isinstance(feature, Categorical) and feature.columns is not None:
            columns |= {name: chunk.column(name, cell_types[name]).set_axis(index) for name in feature.columns}
            continue
        categories = feature.categories if isinstance(feature, Categorical) else ()
        column = chunk.column(feature.name, cell_types[feature.name], categories)
        _check(chunk, feature, column)
        columns[feature.name] = column.set_axis(index)
    return pd.DataFrame(columns)


def _check(chunk: Chunk, feature: Feature, column: pd.Series[Any]) -> None:
    missing = column.isna().to_numpy()
    if feature.missing == "error" and missing.any():
        raise DataError(
            f"{chunk.location(int(missing.argmax()))}: column {feature.name!r} is empty, and no training row was empty"
            " there. Fill it, or leave the row out."
        )
    if isinstance(feature, Categorical):
        unseen = ~missing & ~column.isin(feature.categories).to_numpy()
        if unseen.any():
            i = int(unseen.argmax())
            value = column.iloc[i]
            raise DataError(
                f"{chunk.location(i)}: column {feature.name!r} is {value!r}, which is not among the training values."
                f" {did_you_mean(value, feature.categories)}"
            )
    else:
        infinite = np.isinf(column.to_numpy(np.float64, na_value=np.nan))
        if infinite.any():
            _raise_bad_cell(chunk, int(infinite.argmax()), feature.name, "number", float("inf"))
