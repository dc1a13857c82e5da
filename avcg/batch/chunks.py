"""Pieces of tables as they lie in files, and their columns read as those of the training rows were.

Of CSV every cell is kept as it was written, so that what an answer leaves alone can be handed back to the letter; of
parquet the columns are kept in their own types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, NoReturn, Protocol, Self

import numpy as np
import pandas as pd

from avcg.errors import DataError, MissingExtraError, did_you_mean
from avcg.schema.features import Categorical, Feature
from avcg.schema.schema import Schema

Reading = Literal["whole", "decimal", "flag", "text"]
# What pandas reads as nothing, so that models trained on its frames see the same gaps.
GAPS = frozenset(
    "|#N/A|#N/A N/A|#NA|-1.#IND|-1.#QNAN|-NaN|-nan|1.#IND|1.#QNAN|<NA>|N/A|NA|NULL|NaN|None|n/a|nan|null".split("|")
)
_FLAGS = {word: word.lower() == "true" for word in ("True", "TRUE", "true", "False", "FALSE", "false")}
_WHOLE = re.compile(r"\s*[+-]?\d+\s*")
_WHOLE_RANGE = range(-(2**63), 2**63)
_WANTED = {
    "whole": "a whole number, as in the training rows",
    "decimal": "a number",
    "flag": "true or false",
    "text": "a text",
}


class Chunk(Protocol):
    """Some rows of a file, one after the other.

    Attributes:
        start: The position of the first of them in the file.
    """

    @property
    def start(self) -> int:
        """The position of the first row in the file."""

    def __len__(self) -> int: ...

    def part(self, start: int, stop: int) -> Self:
        """Some of its rows."""

    def column(self, name: str, reading: Reading, known: Collection[object] = ()) -> pd.Series[Any]:
        """A column as values, None or NaN where there is nothing.

        Args:
            name: Of the column.
            reading: What its cells are.
            known: Values that it can have, so that a text such as NA or None is no gap where it is one of them.

        Raises:
            DataError: If a cell cannot be read so, with its place.
        """

    def where(self, i: int) -> str:
        """How people find a row in the file."""


@dataclass(frozen=True, eq=False)
class TextPiece:
    """Rows of a CSV file, every cell as it is written there.

    Attributes:
        start: The position of the first row in the file.
        cells: By column.
        lines: On which each row begins.
        name: Of the file.
    """

    start: int
    cells: dict[str, list[str]]
    lines: list[int]
    name: str

    def __len__(self) -> int:
        return len(self.lines)

    def part(self, start: int, stop: int) -> TextPiece:
        """Some of its rows."""
        cells = {name: texts[start:stop] for name, texts in self.cells.items()}
        return TextPiece(self.start + start, cells, self.lines[start:stop], self.name)

    def where(self, i: int) -> str:
        """How people find a row in the file."""
        return f"{self.name}, line {self.lines[i]}"

    def column(self, name: str, reading: Reading, known: Collection[object] = ()) -> pd.Series[Any]:
        """A column as values; see `Piece.column`."""
        read, gaps, values = _READERS[reading], GAPS.difference(known), []
        for i, text in enumerate(self.cells[name]):
            value = None if text in gaps else read(text)
            if value is None and text not in gaps:
                _refuse(self, i, name, reading, text)
            values.append(value)
        return _series(values, reading)


@dataclass(frozen=True, eq=False)
class ArrowPiece:
    """Rows of a parquet file, every column of its own type.

    Attributes:
        start: The position of the first row in the file.
        table: Of pyarrow.
        name: Of the file.
    """

    start: int
    table: Any
    name: str

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def part(self, start: int, stop: int) -> ArrowPiece:
        """Some of its rows."""
        return ArrowPiece(self.start + start, self.table.slice(start, stop - start), self.name)

    def where(self, i: int) -> str:
        """How people find a row in the file."""
        return f"{self.name}, row {self.start + i} (the first is row 0)"

    def column(self, name: str, reading: Reading, known: Collection[object] = ()) -> pd.Series[Any]:  # noqa: ARG002
        """A column as values; see `Piece.column`. What is missing is told apart from texts by the file itself."""
        found = plain_array(self.table.column(name))
        kind, types = found.type, arrow().types
        if types.is_null(kind):
            return _series([None] * len(self), reading)
        if reading == "text" and types.is_integer(kind):  # numbers that are read as names
            found, kind = found.cast(arrow().string()), arrow().string()
        if reading in ("whole", "decimal") and types.is_decimal(kind):
            found, kind = found.cast(arrow().float64()), arrow().float64()
        numbers: tuple[Reading, ...] = ("whole", "decimal")
        if _arrow_reading(kind) not in (numbers if reading in numbers else (reading,)):
            raise DataError(
                f"{self.name}: column {name!r} is of type {kind}. It should hold {_WANTED[reading]} in every row."
            )
        return found.to_pandas() if reading in numbers else _series(found.to_pylist(), reading)


def arrow() -> Any:
    """The package pyarrow, with all that parquet files need.

    Raises:
        MissingExtraError: If it is not installed.
    """
    try:
        for part in ("compute", "parquet"):
            import_module(f"pyarrow.{part}")
        return import_module("pyarrow")
    except ImportError:
        raise MissingExtraError("pyarrow", "batch", "A parquet file") from None


def plain_array(array: Any) -> Any:
    """A column without a dictionary of its values, in one chunk."""
    keyed = arrow().types.is_dictionary(array.type)
    return (array.cast(array.type.value_type) if keyed else array).combine_chunks()


def _arrow_reading(kind: Any) -> Reading | None:
    types = arrow().types
    if types.is_boolean(kind):
        return "flag"
    if types.is_integer(kind):
        return "whole"
    if types.is_floating(kind) or types.is_decimal(kind):
        return "decimal"
    return "text" if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind) else None


def whole_number(text: str) -> int | None:
    """The whole number that a text is, to the last digit; None where it is none, or no int64 holds it."""
    number = _decimal(text)
    if number is None or not number.is_integer():
        return None
    value = int(text) if _WHOLE.fullmatch(text) else int(number)
    return value if value in _WHOLE_RANGE else None


def _decimal(text: str) -> float | None:
    """As Python reads it, without its underscores: they are in names, not in numbers."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if "_" not in text and abs(value) != float("inf") else None


_READERS: Mapping[Reading, Callable[[str], Any]] = {
    "whole": whole_number,
    "decimal": _decimal,
    "flag": _FLAGS.get,
    "text": str,
}


def _series(values: list[Any], reading: Reading) -> pd.Series[Any]:
    """Values in the dtype that their reading has, with room for gaps where there are any."""
    gaps = any(value is None for value in values)
    if reading in ("whole", "decimal"):
        exact = reading == "whole" and not gaps
        return pd.Series(
            [np.nan if value is None else value for value in values], dtype="int64" if exact else "float64"
        )
    return pd.Series(values, dtype="bool" if reading == "flag" and not gaps else object)


def _refuse(piece: Chunk, i: int, name: str, reading: Reading, text: object) -> NoReturn:
    raise DataError(f"{piece.where(i)}: column {name!r} should be {_WANTED[reading]}. Got {text!r}.")


def inferred(piece: TextPiece | ArrowPiece, name: str) -> Reading | None:
    """What a column is, by all of its cells; None where it is neither a number, a flag nor a text."""
    if isinstance(piece, ArrowPiece):
        kind = plain_array(piece.table.column(name)).type
        return "text" if arrow().types.is_null(kind) else _arrow_reading(kind)
    there = [text for text in piece.cells[name] if text not in GAPS]
    # 1.0 is not written as a whole number, even where it is one.
    tests: Mapping[Reading, Callable[[str], Any]] = {"flag": _FLAGS.get, "whole": _WHOLE.fullmatch, "decimal": _decimal}
    fits = (name for name, test in tests.items() if there and all(test(text) is not None for text in there))
    return next(fits, "text")


def readings_of(schema: Schema, dtypes: Mapping[str, str]) -> dict[str, Reading]:
    """How each column of the schema is read.

    Args:
        schema: What the columns are.
        dtypes: Of the training rows, as far as they are known.
    """
    return {feature.name: _reading(feature, dtypes.get(feature.name, "")) for feature in schema.features}


def _reading(feature: Feature, dtype: str) -> Reading:
    if not isinstance(feature, Categorical):
        return "whole" if dtype.startswith(("int", "uint")) else "decimal"
    if isinstance(feature.categories[0], bool):
        return "flag"
    if isinstance(feature.categories[0], str):
        return "text"
    return "whole" if all(isinstance(value, int) for value in feature.categories) else "decimal"


def typed(piece: Chunk, schema: Schema, readings: Mapping[str, Reading]) -> pd.DataFrame:
    """The columns of a schema as values, under the positions of the rows in the file.

    Raises:
        DataError: If a cell does not fit, with its place and the fix.
    """
    index = pd.RangeIndex(piece.start, piece.start + len(piece))
    columns = {}
    for feature in schema.features:
        known = feature.categories if isinstance(feature, Categorical) else ()
        column = piece.column(feature.name, readings[feature.name], known)
        _check(piece, feature, column)
        columns[feature.name] = column.set_axis(index)
    return pd.DataFrame(columns)


def _check(piece: Chunk, feature: Feature, column: pd.Series[Any]) -> None:
    gaps = column.isna().to_numpy()
    if feature.missing == "error" and gaps.any():
        raise DataError(
            f"{piece.where(int(gaps.argmax()))}: column {feature.name!r} is empty, and no training row was empty there."
            " Fill it, or leave the row out."
        )
    if isinstance(feature, Categorical):
        strange = ~gaps & ~column.isin(feature.categories).to_numpy()
        if strange.any():
            i = int(strange.argmax())
            value = column.iloc[i]
            raise DataError(
                f"{piece.where(i)}: column {feature.name!r} is {value!r}, which no training row was."
                f" {did_you_mean(value, feature.categories)}"
            )
    else:
        infinite = np.isinf(column.to_numpy(np.float64, na_value=np.nan))
        if infinite.any():
            _refuse(piece, int(infinite.argmax()), feature.name, "decimal", float("inf"))
