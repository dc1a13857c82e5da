"""Raw cells to exact values: the one place that says what a number, a category and a missing value is.

Frames, dictionaries, CSV files and Arrow tables are all read by these rules and refused with the same messages. numpy
alone, so that a light scorer can read rows given as dictionaries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from avcg.schema.features import Categorical, Continuous, Feature, to_python
from avcg.schema.schema import Schema
from avcg.space.dummies import flags_of, positions_of_flags
from avcg.space.encoding import Positions, Values
from avcg.space.validation import (
    check_names,
    is_missing,
    refuse_categories,
    refuse_far,
    refuse_missing,
    refuse_numbers,
)


def read_rows(schema: Schema, rows: Sequence[Mapping[str, Any]]) -> Values:
    """The exact values of rows given as dictionaries, in microseconds for one.

    Args:
        schema: What the columns are.
        rows: Each with every column of the schema, kept ones or not, and no other; None or NaN where a value is
            missing.

    Raises:
        DataError: If the rows do not fit the schema; the message names the column, how many rows, values and the fix.
    """
    names = set(schema.columns)
    for row in rows:
        if row.keys() != names:
            check_names(list(row), schema.columns, schema.kept)
    numbers = [read_numbers(feature, [row[feature.name] for row in rows]) for feature in schema.numeric]
    choices = [_choices(feature, rows) for feature in schema.categorical]
    return Values(
        np.array(numbers, np.float64).reshape(-1, len(rows)).T, np.array(choices, np.intp).reshape(-1, len(rows)).T
    )


def _choices(feature: Categorical, rows: Sequence[Mapping[str, Any]]) -> Positions | list[int]:
    """A categorical feature of rows as positions of categories; see `read_choices`."""
    if feature.columns is None:
        return read_choices(feature, [row[feature.name] for row in rows])
    flags = [flags_of(name, [row[name] for row in rows]) for name in feature.columns]
    return positions_of_flags(feature, np.stack(flags, axis=1))


def entry_of_rows(feature: Feature, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The values of a feature in rows given as dictionaries; of several columns, the categories they hold."""
    if not isinstance(feature, Categorical) or feature.columns is None:
        return [row[feature.name] for row in rows]
    labels = [*feature.categories, None]
    return [labels[i] for i in _choices(feature, rows)] if rows else []


def read_numbers(feature: Continuous, cells: Sequence[object]) -> list[float]:
    """A numeric column as float64, NaN where missing.

    Args:
        feature: The column.
        cells: Raw values of any type.

    Raises:
        DataError: If a cell is neither a finite number nor missing, or missing where the column refuses that.
    """
    numbers: list[float] = []
    wrong: list[object] = []
    for cell in cells:
        kind = type(cell)
        if kind is float or kind is int:
            numbers.append(cell)  # type: ignore[arg-type]
            continue
        value = to_python(cell)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            numbers.append(value)
        elif is_missing(value):
            numbers.append(np.nan)
        else:
            wrong.append(value)
    if wrong:
        refuse_numbers(feature.name, wrong)
    try:
        total = float(sum(numbers))
    except OverflowError:  # a whole number that no float can hold
        refuse_far(feature.name)
    if total - total != 0:  # NaN or infinite, as one of the numbers is, or their sum
        infinite = [number for number in numbers if number in (np.inf, -np.inf)]
        if infinite:
            refuse_numbers(feature.name, infinite)
        if feature.missing == "error" and total != total:
            refuse_missing(feature.name, sum(number != number for number in numbers))
    return numbers


def read_choices(feature: Categorical, cells: Sequence[object]) -> list[int]:
    """A categorical column as positions in its list of categories, one past the last where missing.

    Args:
        feature: The column.
        cells: Raw values of any type.

    Raises:
        DataError: If a cell is neither a category nor missing, or missing where the column refuses that.
    """
    known = feature.positions
    positions = [known.get(cell, -1) if type(cell) is str else position_of(feature, cell) for cell in cells]
    if -1 in positions:
        unknown = [cell for cell, position in zip(cells, positions, strict=True) if position < 0]
        refuse_categories(feature, len(unknown), unknown[:1000])
    if feature.missing == "error" and len(feature.categories) in positions:
        refuse_missing(feature.name, positions.count(len(feature.categories)))
    return positions


def position_of(feature: Categorical, cell: object) -> int:
    """The position of a cell's category, one past the last where it is missing, -1 where it is neither."""
    value = to_python(cell)
    if isinstance(value, (str, int, float)):
        position = feature.positions.get(value)
        # 0 and 1 equal no and yes, but are not what the schema says the column holds.
        if position is not None and isinstance(value, bool) is isinstance(feature.categories[position], bool):
            return position
    return len(feature.categories) if is_missing(value) else -1
