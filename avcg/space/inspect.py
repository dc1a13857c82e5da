"""What the columns of a frame seem to be: the inference behind `Schema.infer`, with a reason for each finding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd

from avcg.errors import DataError, SchemaError, did_you_mean, enumerate_some
from avcg.schema.features import Categorical, Continuous, Feature, Scalar, is_unchangeable, listed
from avcg.schema.findings import Finding, Inspection
from avcg.schema.schema import Kind, Schema
from avcg.space.frames import Frame, category_column, float_dtype, number_column, open_frame
from avcg.space.grouping import MOST_CATEGORIES, find_groups, find_kept, grouped_feature
from avcg.space.numbers import look_at_numbers

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
    feature: Feature
    if kind is None and _is_numeric(series):
        feature, findings = _inspect_numbers(series)
    else:
        feature = _feature(series, kind)
        findings = []
        if isinstance(feature, Categorical) and len(feature.categories) == 1:
            findings.append(_constant(series.name, feature.categories[0]))
    if is_unchangeable(series.name):
        why = f"Its name says so: schema.freeze({series.name!r})."
        findings.append(Finding(series.name, "people cannot change this; freeze it?", why))
    return feature, findings


def _inspect_numbers(series: nw.Series[Any]) -> tuple[Continuous, list[Finding]]:
    """A numeric column with the step, the codes and the gaps that its values suggest."""
    name, values = series.name, number_column(series, Continuous(series.name, missing="indicator"))
    seen = look_at_numbers(values, float_dtype(series))
    feature = Continuous(name, step=seen.step, codes=seen.codes, observed=bool(len(seen.gaps)))
    findings = []
    if seen.constant is not None:
        findings.append(_constant(name, f"{seen.constant:.10g}"))
    if seen.codes:
        rows = int(np.isin(values, seen.codes).sum())
        why = (
            f"{_plural(rows, 'row has', 'rows have')} one, apart from all other values. No answer enters a code, and"
            f" rows keep theirs. schema.leave({name!r}) if answers may leave them, schema.codes({name!r}) if they are"
            " numbers."
        )
        findings.append(Finding(name, f"code{'s' * (len(seen.codes) > 1)} {listed(seen.codes, limit=6)}", why))
    if len(seen.gaps):
        gaps = listed([f"{low:.6g} and {high:.6g}" for low, high in seen.gaps.tolist()], " or ", 3)
        why = f"Answers stay out. schema.free({name!r}) if they may enter."
        findings.append(Finding(name, f"no row between {gaps}", why))
    if seen.constant is None and seen.step is not None and seen.step != 1:
        if seen.decimals:
            reason = f"Its values have {_plural(seen.decimals, 'decimal')}"
        else:
            reason = "All values are multiples of it"
        kind = "continuous" if seen.decimals else "integer"
        why = f"{reason}. kinds={{{name!r}: {kind!r}}} if answers may have others."
        findings.append(Finding(name, f"steps of {seen.step:.10g}", why))
    return feature, findings


def _plural(count: int, one: str, several: str | None = None) -> str:
    return f"{count} {one if count == 1 else several or one + 's'}"


def _constant(name: str, value: object) -> Finding:
    return Finding(name, f"always {value}", "No answer changes it, and no model learns from it. Drop it if you like.")


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


def _is_numeric(series: nw.Series[Any]) -> bool:
    """Whether a column that nobody said anything about holds numbers."""
    if series.dtype == nw.Object:
        return pd.api.types.infer_dtype(series.to_numpy(), skipna=True) in _NUMBERS
    return bool(series.dtype.is_numeric())


def _likely_kind(series: nw.Series[Any]) -> Kind:
    dtype = series.dtype
    if dtype == nw.Boolean:
        return "boolean"
    if dtype in (nw.String, nw.Categorical, nw.Enum):
        return "categorical"
    if dtype == nw.Object:
        found = series.to_numpy()
        kind = pd.api.types.infer_dtype(found, skipna=True)
        if kind == "boolean":
            return "boolean"
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
