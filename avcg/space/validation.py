"""Errors about rows that do not fit a schema: the column, how many values, a few of them, and the fix. numpy alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from avcg.errors import DataError, did_you_mean, enumerate_some
from avcg.schema.features import Categorical, to_python

# By name, since pandas itself is not loaded here.
_PANDAS_GAPS = ("NAType", "NaTType")


def is_missing(value: object) -> bool:
    """Whether a value means "missing": None, NaN, or NA and NaT of pandas."""
    return value is None or (isinstance(value, float) and value != value) or type(value).__name__ in _PANDAS_GAPS


def check_names(names: Sequence[object], wanted: Sequence[str], kept: Sequence[str] = ()) -> None:
    """Refuse rows that lack a column of the schema, have another one, or have one twice.

    Args:
        names: Names of the columns of the rows.
        wanted: Columns that rows must have.
        kept: Columns that rows may have.

    Raises:
        DataError: With the column and the fix.
    """
    unnamed = [name for name in names if not isinstance(name, str)]
    if unnamed:
        raise DataError(f"Column names must be texts. Got {unnamed[0]!r}; rename, e.g. X.columns.astype(str).")
    repeated = sorted(str(name) for name, count in Counter(names).items() if count > 1)
    if repeated:
        raise DataError(f"The rows have column {enumerate_some(repeated)} twice. Rename or drop one of them.")
    present, expected = set(names), {*wanted, *kept}
    missing = [name for name in wanted if name not in present]
    extra = [name for name in names if name not in expected]
    if missing:
        raise DataError(f"The rows lack column {enumerate_some(missing)}. {did_you_mean(missing[0], names)}")
    if extra:
        raise DataError(
            f"The rows have column {enumerate_some(extra)}, which the schema does not know. Drop it, e.g."
            " X[list(schema.columns)], or make a schema that has it."
        )


def refuse_missing(name: str, count: int) -> NoReturn:
    """Raise: a column has missing values, and its schema refuses them."""
    raise DataError(
        f"Column {name!r} has {count} missing value{'s' * (count != 1)}. Fill or drop them, or say"
        f" schema.allow_missing({name!r})."
    )


def refuse_far(name: str) -> NoReturn:
    """Raise: a number is too far from the training rows for a float32 code."""
    raise DataError(
        f"Column {name!r} has a value too far from the training rows to be encoded. Check it for typing errors."
    )


def refuse_numbers(name: str, values: Sequence[object]) -> NoReturn:
    """Raise: a numeric column holds values that are not finite numbers."""
    infinite = all(isinstance(value, float) and value in (np.inf, -np.inf) for value in values)
    boolean = all(isinstance(value, (bool, np.bool_)) for value in values)
    fix = (
        "Replace them with finite numbers."
        if infinite
        else "The schema has it as a number: convert it with .astype(int), or infer a schema that has it as boolean."
        if boolean
        else f"Convert it, e.g. with pandas.to_numeric, or infer a schema with kinds={{{name!r}: 'categorical'}}."
    )
    what = "infinite" if infinite else "not a number"
    count = len(values)
    raise DataError(
        f"Column {name!r} has {count} value{'s' * (count != 1)} {what}: {enumerate_some(_distinct(values))}. {fix}"
    )


def refuse_categories(feature: Categorical, count: int, values: Sequence[object]) -> NoReturn:
    """Raise: a categorical column holds values that are not categories of it."""
    if feature.kind == "yes or no":
        fix = "The schema has it as boolean: convert it with .astype(bool), or infer a schema that has it as a number."
    else:
        fix = (
            f"It knows: {enumerate_some(feature.categories, 12)}. Map the new value to one of these, or infer the"
            " schema from rows that have it."
        )
    raise DataError(
        f"Column {feature.name!r} has {count} value{'s' * (count != 1)} that {'is' if count == 1 else 'are'} no"
        f" category of it: {enumerate_some(_distinct(values))}. {fix}"
    )


def _distinct(values: Sequence[object]) -> list[object]:
    """Different values as Python objects, in order of first appearance."""
    return list({repr(value): to_python(value) for value in values}.values())
