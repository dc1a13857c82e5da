"""Features that are several columns of 0 and 1: from flags to positions of categories and back.

With one column for each category exactly one is set. A thermometer has one column less: its category is the number of
columns set, and each set column implies the one before. numpy alone, for the light scorer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from avcg.errors import DataError, enumerate_some
from avcg.schema.features import Categorical, columns_of, to_python
from avcg.schema.schema import Schema
from avcg.space.encoding import Flags, Floats, Positions
from avcg.space.validation import is_missing, refuse_missing


def flags_of(name: str, cells: Sequence[object]) -> Floats:
    """Raw cells of a column as 0, 1 and NaN where missing.

    Args:
        name: Name of the column.
        cells: Booleans or numbers of any type.

    Raises:
        DataError: If a cell is neither 0, 1, false, true nor missing.
    """
    values = [to_python(cell) for cell in cells]
    wrong = [v for v in values if not (is_missing(v) or (isinstance(v, (bool, int, float)) and v in (0, 1)))]
    if wrong:
        refuse_flags(name, wrong)
    return np.array([np.nan if is_missing(value) else float(value) for value in values])


def refuse_flags(name: str, wrong: Sequence[object]) -> NoReturn:
    """Raise: a column of a group has cells that are neither 0 nor 1."""
    count = len(wrong)
    raise DataError(
        f"Column {name!r} has {count} value{'s' * (count != 1)} that {'is' if count == 1 else 'are'} neither 0 nor 1:"
        f" {enumerate_some(dict.fromkeys(map(to_python, wrong)))}. It is one of several columns that hold a category."
        " Set it to 0 or 1."
    )


def positions_of_flags(feature: Categorical, flags: Floats) -> Positions:
    """(N,) positions of categories, one past the last where missing.

    Args:
        feature: The feature.
        flags: (N, columns) 0, 1 or NaN.

    Raises:
        DataError: If the flags of a row are no category, or missing where the feature refuses that.
    """
    gaps: Flags = np.isnan(flags)
    n_set: Positions = np.nansum(flags, axis=1).astype(np.intp)
    missing, partly = gaps.all(axis=1), gaps.any(axis=1)
    if feature.is_thermometer:
        broken: Flags = np.asarray((flags[:, 1:] > flags[:, :-1]).any(axis=1))
        positions = n_set
    else:
        missing |= (n_set == 0) & (feature.missing != "error")
        broken = np.asarray(n_set != 1)
        positions = np.where(gaps, 0.0, flags).argmax(axis=1)
    broken = np.asarray((broken | partly) & ~missing)
    if broken.any():
        _refuse_rows(feature, broken, n_set)
    if missing.any() and feature.missing == "error":
        refuse_missing(feature.name, int(missing.sum()))
    return np.where(missing, len(feature.categories), positions)


def _refuse_rows(feature: Categorical, broken: Flags, n_set: Positions) -> NoReturn:
    """Raise: rows do not have exactly one column set, or a column without the one before."""
    columns, first, count = columns_of(feature), int(broken.argmax()), int(broken.sum())
    rule = "each set column implies the one before" if feature.is_thermometer else "exactly one is set"
    kinds = ", ".join(f"{name!r}: 'boolean'" for name in columns[:2]) + (", ..." if len(columns) > 2 else "")
    hint = "" if feature.is_thermometer else f" If none may be set, say schema.allow_missing({feature.name!r})."
    where = f" in {count} row{'s' * (count != 1)}; the first is row {first}, with {int(n_set[first])} set"
    where = where if len(n_set) > 1 else f": {int(n_set[0])} are set"
    raise DataError(
        f"Columns {enumerate_some(columns)} hold the feature {feature.name!r}, of which {rule}. That does not"
        f" hold{where}. Correct them.{hint} Or read the columns one by one: Schema.infer(X, kinds={{{kinds}}})."
    )


def flags_of_positions(feature: Categorical, positions: Positions) -> Floats:
    """(N, columns) the flags of categories; for a missing category none is set, and NaN in a thermometer.

    Args:
        feature: The feature.
        positions: (N,) positions of categories, one past the last where missing.
    """
    columns = np.arange(len(columns_of(feature)))
    if not feature.is_thermometer:
        return (positions[:, None] == columns).astype(np.float64)
    flags = (positions[:, None] > columns).astype(np.float64)
    flags[positions == len(feature.categories)] = np.nan
    return flags


def like_flag(flag: bool, cell: object) -> Any:
    """A flag of the type of a cell: a boolean beside booleans, else a whole number or a float."""
    value = to_python(cell)
    return bool(flag) if isinstance(value, bool) else float(flag) if isinstance(value, float) else int(flag)


def entries_of(schema_groups: Sequence[Categorical], columns: Sequence[str]) -> list[str]:
    """What the columns of rows say, in their order: names of columns, and of a group once, where its first column is.

    Args:
        schema_groups: The features that are several columns.
        columns: Names of the columns of the rows.

    >>> home = Categorical("home", ("own", "rent"), columns=("home_own", "home_rent"))
    >>> entries_of([home], ["home_rent", "age", "home_own"])
    ['home', 'age']
    """
    owner = {column: feature.name for feature in schema_groups for column in columns_of(feature)}
    return list(dict.fromkeys(owner.get(name, name) for name in columns))


def entry_positions(schema: Schema, columns: Sequence[str]) -> Positions:
    """The position in the schema of each entry of rows (see `entries_of`); -1 for a kept column."""
    positions = {name: j for j, name in enumerate(schema.names)}
    return np.array([positions.get(name, -1) for name in entries_of(schema.grouped, columns)], np.intp)


def in_entries(schema: Schema, columns: Sequence[str], changed: Flags) -> Flags:
    """(N, entries) which entries of rows differ, from (N, features) flags in the order of the schema; kept ones never.

    Args:
        schema: What the columns are.
        columns: Names of the columns of the rows.
        changed: Flags by feature.
    """
    positions = entry_positions(schema, columns)
    return changed[:, positions] & (positions >= 0)
