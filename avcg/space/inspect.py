"""What the columns of a frame seem to be: the inference behind `Schema.infer`, with a reason for each finding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd

from avcg.errors import DataError, SchemaError, did_you_mean, enumerate_some
from avcg.schema.features import Categorical, Continuous, Feature, Scalar
from avcg.schema.findings import Finding, Inspection
from avcg.schema.schema import Kind, Schema
from avcg.space.encoding import Floats
from avcg.space.frames import Frame, category_column, number_column, open_frame
from avcg.space.grouping import MOST_CATEGORIES, find_groups, find_kept, grouped_feature

# What pandas calls a column of objects that are all numbers, or gaps.
_NUMBERS = ("integer", "integer-na", "floating", "mixed-integer-float", "empty")


def inspect(X: Frame, kinds: Mapping[str, Kind | Sequence[Scalar]] | None = None) -> Inspection:
    """Look at the rows of a table: the schema they suggest, and what was found that a user should know.

    Args:
        X: Rows in the user's own units, as a pandas or polars frame.
        kinds: Kinds of columns to use instead of the inferred ones; see `Schema.infer`.

    Returns:
        The schema and the findings, which print as a table.
    """
    opened, kinds = open_frame(X), kinds or {}
    for name in kinds:
        if name not in opened.columns:
            raise SchemaError(f"'kinds' names column {name!r}. {did_you_mean(name, opened.columns)}")
    kept, groups, findings = _columns(opened, kinds)
    features: dict[Feature, None] = {}
    for name in opened.columns:
        if name in groups:
            features[groups[name]] = None
        elif name not in kept:
            feature, found = _inspect_column(opened[name], kinds.get(name))
            features[feature] = None
            findings[name] = [*findings.get(name, []), *found]
    ordered = [finding for name in opened.columns for finding in findings.get(name, [])]
    return Inspection(Schema(tuple(features), kept=kept), tuple(ordered))


def _columns(
    opened: nw.DataFrame[Any], kinds: Mapping[str, Kind | Sequence[Scalar]]
) -> tuple[tuple[str, ...], dict[str, Categorical], dict[str, list[Finding]]]:
    """The columns that are no features, the feature of each column that is one of several, and findings by column."""
    findings: dict[str, list[Finding]] = {}
    groups: dict[str, Categorical] = {}
    dated = find_kept(opened, kinds)
    kept = tuple(columns[0] for columns, _, _ in dated)
    if len(kept) == len(opened.columns):
        raise DataError(
            f"All columns are dates, identifiers or free texts, which never change: {enumerate_some(kept)}. Say what"
            " one of them is with kinds=, or add a column."
        )
    for (name,), found, why in dated:
        text = f"{why}. It is kept and never changed; overrule with kinds={{{name!r}: ...}}"
        findings[name] = [Finding(name, found, text)]
    for columns, found, why in find_groups(opened, kinds):
        if found == "dropped category":
            findings[columns[0]] = [Finding(enumerate_some(columns), "dummies without one category", why)]
            continue
        feature = grouped_feature(columns, found, (*opened.columns, *(group.name for group in groups.values())))
        groups |= dict.fromkeys(columns, feature)
        text = (
            f"{why}. They are the one category {feature.name!r}; overrule with kinds={{{columns[0]!r}: 'boolean', ...}}"
        )
        findings[columns[0]] = [Finding(enumerate_some(columns), found, text)]
    return kept, groups, findings


def _inspect_column(series: nw.Series[Any], kind: Kind | Sequence[Scalar] | None) -> tuple[Feature, list[Finding]]:
    """What one column is, and what was found about it."""
    return _feature(series, kind), []


def _feature(series: nw.Series[Any], kind: Kind | Sequence[Scalar] | None) -> Feature:
    name = series.name
    if kind is None:
        kind = _likely_kind(series)
    feature: Feature
    if not isinstance(kind, str):
        if not isinstance(kind, Iterable):
            _refuse_kind(name, kind)
        feature = Categorical(name, tuple(kind), ordered=True)
    elif kind in ("continuous", "integer"):
        number = Continuous(name, step=1 if kind == "integer" else None)
        number_column(series, number.with_missing())  # what is not a number is refused now and not when rows are read
        return number
    elif kind == "boolean":
        # A column of 0 and 1 keeps its numbers: answers are written back as it holds them.
        numeric = series.dtype.is_numeric()
        feature = Categorical(name, (0, 1) if numeric else (False, True), ordered=True)
    elif kind == "categorical":
        feature = _infer_categories(series)
    else:
        _refuse_kind(name, kind)
    category_column(series, feature.with_missing())
    return feature


def _refuse_kind(name: str, kind: object) -> NoReturn:
    raise SchemaError(
        f"The kind of column {name!r} must be 'continuous', 'integer', 'boolean', 'categorical' or a list of its"
        f" categories from lowest to highest. Got {kind!r} instead."
    )


def _likely_kind(series: nw.Series[Any]) -> Kind:
    dtype = series.dtype
    if dtype == nw.Boolean:
        return "boolean"
    if dtype.is_integer():
        return "integer"
    if dtype.is_numeric():
        return _number_kind(number_column(series, Continuous(series.name, missing="indicator")))
    if dtype in (nw.String, nw.Categorical, nw.Enum):
        return "categorical"
    if dtype == nw.Object:
        found = series.to_numpy()
        kind = pd.api.types.infer_dtype(found, skipna=True)
        if kind == "boolean":
            return "boolean"
        if kind in _NUMBERS:
            return _number_kind(number_column(series, Continuous(series.name, missing="indicator")))
        if kind in ("string", "empty"):
            return "categorical"
        types = sorted({type(value).__name__ for value in series.drop_nulls().to_numpy()})
        raise DataError(
            f"Column {series.name!r} holds values of type {', '.join(types)}, not texts, numbers or booleans alone."
            " Convert it, e.g. with .astype(str)."
        )
    raise DataError(
        f"Column {series.name!r} is of type {dtype}, which is neither a number, a text nor a boolean. Convert it"
        " (dates to days since a day that matters), or drop it."
    )


def _number_kind(values: Floats) -> Kind:
    present = values[np.isfinite(values)]
    return "integer" if len(present) and (present == np.rint(present)).all() else "continuous"


def _infer_categories(series: nw.Series[Any]) -> Categorical:
    native = series.to_native()
    if isinstance(native, pd.Series) and isinstance(native.dtype, pd.CategoricalDtype):
        categories, ordered = native.dtype.categories.tolist(), bool(native.dtype.ordered)
    elif series.dtype == nw.Enum:
        categories, ordered = list(series.cat.get_categories()), True
    else:
        values = [value for value in series.drop_nulls().unique().to_numpy().tolist() if value == value]
        try:
            categories, ordered = sorted(values), False
        except TypeError:
            raise DataError(
                f"Column {series.name!r} mixes values that have no common order, e.g. {enumerate_some(values, 3)}."
                " Convert it to one type, e.g. .astype(str)."
            ) from None
    if not categories:
        raise DataError(f"Column {series.name!r} has no value in any row. Drop it, or say what it is with kinds=.")
    if len(categories) > MOST_CATEGORIES:
        raise DataError(
            f"Column {series.name!r} has {len(categories)} different values, e.g. {enumerate_some(categories, 3)}: it"
            f" names rows rather than sorting them (at most {MOST_CATEGORIES} categories are read). Drop it, or group"
            " its rare values."
        )
    return Categorical(series.name, tuple(categories), ordered=ordered)
