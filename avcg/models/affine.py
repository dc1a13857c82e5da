"""Fitted preprocessing as one linear layer on codes, identified by probing it and then checked on real rows.

Preprocessing that treats each column separately, affine in numbers and arbitrary in categories and missing values, is
exactly linear in the codes of a space: a scaled number, a flag for a missing value, one code per category. So a few
rows that differ in one cell each determine the layer, however the preprocessing is built, and real rows show whether it
is linear at all.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils import skip_init

from avcg.errors import AvcgError, DataError, SettingError, enumerate_some
from avcg.models.adapter import as_rows
from avcg.schema.features import Continuous, Feature, columns_of
from avcg.schema.schema import Kind, Schema
from avcg.space.encoding import Encoding, Flags, Floats, Positions, Values
from avcg.space.frames import Frame, open_frame, read_values, take_rows, write_values
from avcg.space.tabular import TabularSpace

# From rows of the user's kind to (N, F) features: an array, a sparse matrix, a frame or a tensor.
Transform = Callable[[Any], Any]

INSTEAD = "Use the model as a black box instead: avcg.BlackBox(model, X)."
# Largest number of rows that are checked, and of features of these rows together.
_CHECKED_ROWS, _CHECKED_NUMBERS = 20_000, 20_000_000
# Tolerances of features relative to their range and their size, since some preprocessing computes in float32.
_RANGE_TOLERANCE, _SIZE_TOLERANCE = 1e-4, 1e-6
# Values tried in each column to find one that is not affine, and rows tried to find one that the model accepts.
_TRIED_VALUES, _TRIED_ROWS = 100, 50
_MISSING = "a missing value"


def schema_with_gaps(X: Any, kinds: Mapping[str, Kind] | None = None, *, reads_ids: bool = True) -> Schema:
    """The schema inferred from rows that a model reads, allowing missing values in the columns that have any.

    Args:
        X: Rows as a frame or a 2-dimensional array.
        kinds: Kinds of columns to use instead of the inferred ones; see `Schema.infer`.
        reads_ids: Whether the model may read identifiers that are numbers. They are frozen features then.

    >>> [feature.missing for feature in schema_with_gaps(pd.DataFrame({"a": [1.0, None], "b": [1, 2]})).features]
    ['indicator', 'error']
    """
    rows = as_rows(X)
    schema, opened = Schema.infer(rows, kinds), open_frame(rows)
    numbered = [name for name in schema.kept if reads_ids and opened[name].dtype.is_numeric()]
    if numbered:
        schema = Schema.infer(rows, {**(kinds or {}), **dict.fromkeys(numbered, "integer")}).freeze(*numbered)
    values = read_values(rows, schema.allow_missing(*schema))
    numbers = [f.name for f, column in zip(schema.numeric, values.numbers.T, strict=True) if np.isnan(column).any()]
    choices = [
        f.name
        for f, column in zip(schema.categorical, values.choices.T, strict=True)
        if (column == len(f.categories)).any()
    ]
    return schema.allow_missing(*numbers, *choices)


@dataclass(frozen=True, eq=False)
class Converted:
    """A network on codes with the same predictions as the model it was converted from.

    Attributes:
        network_: Network from codes to logits, one per class.
        space_: Space that gives the codes their meaning.
        classes_: Labels in the order of the logits.
    """

    network_: nn.Module
    space_: TabularSpace
    classes_: NDArray[Any]

    def predict_proba(self, X: Any) -> NDArray[np.float32]:
        """(N, C) probabilities, classes in the order of ``classes_``."""
        return probabilities(self.network_, self.space_.encode(as_rows(X)))

    def predict(self, X: Any) -> NDArray[Any]:
        """(N,) most probable label of each row."""
        return self.classes_[self.predict_proba(X).argmax(axis=1)]


def probabilities(network: nn.Module, x: Tensor) -> NDArray[np.float32]:
    """(N, C) probabilities of a network, without gradients.

    Args:
        network: Network from inputs to logits.
        x: (N, *event) inputs.
    """
    with torch.no_grad():
        return torch.softmax(torch.cat([network(part) for part in x.split(8192)]), dim=-1).numpy()


@dataclass(frozen=True, eq=False)
class Affine:
    """The affine map from x to weight @ x + bias, in float64.

    Attributes:
        weight: (F, D) matrix.
        bias: (F,) offset.
    """

    weight: Floats
    bias: Floats

    def __call__(self, x: Floats) -> Floats:
        """(N, F) values of the map for (N, D) rows."""
        return x @ self.weight.T + self.bias

    def then(self, after: Affine) -> Affine:
        """The composition of this map and one applied after it."""
        return Affine(after.weight @ self.weight, after.weight @ self.bias + after.bias)

    def layer(self) -> nn.Linear:
        """The map as a linear layer in float32."""
        layer: nn.Linear = skip_init(nn.Linear, self.weight.shape[1], self.weight.shape[0])
        layer.weight.data.copy_(torch.from_numpy(self.weight))
        layer.bias.data.copy_(torch.from_numpy(self.bias))
        return layer


@dataclass(frozen=True)
class _Cell:
    """A value of a column, and the code whose weight it determines."""

    column: int
    value: float
    code: int


class Probe:
    """Rows composed from the cells of X, to identify how a function transforms each column.

    Rows are kept as float64 tables with one column per feature of the schema. They hold numbers, NaN where missing, and
    positions of categories, one past the last where missing.

    Args:
        X: Rows as the function takes them.
        schema: Schema of the columns; None: inferred from X, allowing missing values in the columns that have any.
        space: Fitted space of the codes, instead of a schema; None: fitted to X.

    Attributes:
        space: Space that gives the codes their meaning.
        rows: X as functions receive it, with float32 columns converted to float64.
        codes: (N, D) codes of X.
    """

    def __init__(self, X: Any, schema: Schema | None = None, space: TabularSpace | None = None) -> None:
        if schema is not None and space is not None:
            raise SettingError("A space has a schema already. Pass either 'schema' or 'space', not both.")
        frame = as_rows(X)
        self.space = space or TabularSpace.fit(schema or schema_with_gaps(frame), frame)
        self._as_array = isinstance(X, np.ndarray)
        # Some estimators compute in float32 on float32 rows, with rounding errors larger than the tolerance.
        self._frame = open_frame(frame).with_columns(nw.selectors.by_dtype(nw.Float32).cast(nw.Float64))
        self.rows = self._native(self._frame.to_native())
        values = read_values(frame, self.space.schema)
        self.codes = torch.from_numpy(self._encoding.encode(values))
        self._table = self._table_of(values)
        # The distinct values of each column, and the row of each value's first occurrence.
        self._distinct = [np.unique(column, return_index=True) for column in self._table.T]
        self._base, self._cells = self._plan()

    def affine(self, transform: Transform) -> Affine:
        """The affine map on codes that equals a function of rows.

        Raises:
            SettingError: If the function rejects a value or is not linear in codes. The message names the column.
        """
        affine = self._solve(transform)
        count = max(1000, _CHECKED_NUMBERS // max(len(affine.bias), 1))
        positions = np.unique(np.linspace(0, len(self._table) - 1, min(count, _CHECKED_ROWS)).astype(np.intp))
        table = self._table[positions]
        features = dense(transform(self._native(take_rows(self._frame.to_native(), positions))), len(positions))
        size, spread = np.abs(features).max(axis=0, initial=0.0), np.ptp(features, axis=0)
        allowed = _RANGE_TOLERANCE * spread + _SIZE_TOLERANCE * size + np.finfo(np.float64).tiny
        error = np.abs(features - affine(self._codes(table))) / allowed
        if not (error <= 1).all():
            row, feature = np.unravel_index(np.where(np.isnan(error), np.inf, error).argmax(), error.shape)
            self._explain(transform, affine, allowed, table[row], int(feature))
        return affine

    @property
    def _encoding(self) -> Encoding:
        return self.space.encoding

    @property
    def _features(self) -> tuple[Feature, ...]:
        return self.space.schema.features

    def _native(self, frame: Frame) -> Any:
        """A frame as the kind of rows that X is."""
        return frame.to_numpy() if self._as_array else frame

    def _table_of(self, values: Values) -> Floats:
        numeric = [isinstance(feature, Continuous) for feature in self._features]
        table = np.empty((len(values), len(numeric)))
        table[:, numeric] = values.numbers
        table[:, np.logical_not(numeric)] = values.choices
        return table

    def _values(self, table: Floats) -> Values:
        numeric = np.array([isinstance(feature, Continuous) for feature in self._features])
        return Values(table[:, numeric], table[:, ~numeric].astype(np.intp))

    def _codes(self, table: Floats) -> Floats:
        """(N, D) codes of rows in float64, without the encoding's rounding to float32."""
        values, encoding = self._values(table), self._encoding
        codes = encoding.encode(values).astype(np.float64)
        scaled = (values.numbers - encoding.center) / encoding.scale
        codes[:, encoding.number_at] = np.where(np.isnan(scaled), 0.0, scaled)
        return codes

    def _plan(self) -> tuple[Floats, list[_Cell]]:
        """A base row, and the cells by which the other probing rows differ from it."""
        base, cells = self._table[0].copy(), []
        for j, (feature, codes) in enumerate(zip(self._features, self._encoding.slices, strict=True)):
            values = self._distinct[j][0]
            base[j] = values[0]
            if isinstance(feature, Continuous):
                if np.isnan(values[0]):
                    raise DataError(f"Column {feature.name!r} has no value in any row. Pass rows that have some.")
                # The extremes of the data keep rounding errors small. A constant moves to 0 or 1.
                other = values[~np.isnan(values)][-1]
                other = other if other > values[0] else float(values[0] == 0)
                cells.append(_Cell(j, float(other), codes.start))
                if feature.missing == "indicator":
                    cells.append(_Cell(j, np.nan, codes.start + 1))
            else:
                others = (slot for slot in range(codes.stop - codes.start) if slot != values[0])
                cells += [_Cell(j, slot, codes.start + slot) for slot in others]
        return base, cells

    def _solve(self, transform: Transform) -> Affine:
        """The affine map that agrees with a function on the probing rows."""
        table = np.tile(self._base, (len(self._cells) + 1, 1))
        for row, cell in zip(table[1:], self._cells, strict=True):
            row[cell.column] = cell.value
        try:
            features = self._features_of(transform, table)
        except AvcgError:
            raise
        except Exception as error:  # another library's code may raise anything
            self._blame(transform, error)
        not_finite = ~np.isfinite(features).all(axis=1)
        if not_finite.any():
            self._refuse_not_finite(int(not_finite.argmax()), features)
        codes = self._codes(table)
        weight = np.zeros((features.shape[1], codes.shape[1]))
        for p, cell in enumerate(self._cells, start=1):
            moved = codes[p] - codes[0]
            # A missing value also removes the number, whose weight is known by then. The base's category has weight 0.
            changed = np.flatnonzero(moved)
            change = features[p] - features[0] - weight[:, changed] @ moved[changed]
            weight[:, cell.code] = change / moved[cell.code]
        return Affine(weight, features[0] - weight @ codes[0])

    def _features_of(self, transform: Transform, table: Floats) -> Floats:
        """(N, F) features that a function makes of rows."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about artificial rows
            return dense(transform(self._native(self._rows_with(table))), len(table))

    def _rows_with(self, table: Floats) -> Frame:
        """Rows of the kind of X: its own cells for values that it has, written cells for all others."""
        columns: dict[str, nw.Series[Any]] = {}
        absent = np.zeros(table.shape, bool)
        for j, (feature, (distinct, first)) in enumerate(zip(self._features, self._distinct, strict=True)):
            at = np.minimum(np.searchsorted(distinct, table[:, j]), len(distinct) - 1)
            absent[:, j] = (distinct[at] != table[:, j]) & ~(np.isnan(distinct[at]) & np.isnan(table[:, j]))
            columns |= {name: self._frame[name][first[at]] for name in columns_of(feature)}
        kept = [name for name in self.space.schema.kept if name in self._frame.columns]
        columns |= {name: self._frame[name][[0] * len(table)] for name in kept}
        frame = _side_by_side([columns[name] for name in self._frame.columns])
        if not absent.any():
            return frame
        values = self._values(table)
        missing = self._encoding.missing(values)
        frame = write_values(frame, self._encoding, values, absent & ~missing, values.numbers)
        for j in np.flatnonzero((absent & missing).any(axis=0)).tolist():
            for name in columns_of(self._features[j]):
                frame = _with_missing(frame, name, absent[:, j] & missing[:, j])
        return frame

    def _describe(self, column: int, value: float) -> str:
        """A cell as text for messages."""
        feature = self._features[column]
        if isinstance(feature, Continuous):
            return _MISSING if np.isnan(value) else f"{value:.10g}"
        return _MISSING if value == len(feature.categories) else repr(feature.categories[int(value)])

    def _blame(self, transform: Transform, error: Exception) -> NoReturn:
        """Raise an error that names the cell that a function rejects, found by putting each into an accepted row."""

        def rejection(row: Floats) -> Exception | None:
            try:
                self._features_of(transform, row[None])
            except Exception as raised:  # another library's code may raise anything
                return raised
            return None

        accepted = next((row for row in self._table[:_TRIED_ROWS] if rejection(row) is None), None)
        if accepted is not None:
            base_cells = [_Cell(j, value, 0) for j, value in enumerate(self._base)]
            for cell in [*base_cells, *self._cells]:
                row = accepted.copy()
                row[cell.column] = cell.value
                raised = rejection(row)
                if raised is not None:
                    self._refuse_cell(cell, raised)
        raise rejected_rows(error) from error

    def _refuse_cell(self, cell: _Cell, error: Exception) -> NoReturn:
        name, text = self._features[cell.column].name, self._describe(cell.column, cell.value)
        fix = (
            f"Refit the model with an imputer, or pass a schema without allow_missing({name!r})."
            if text == _MISSING
            else "Refit the model so that it accepts the value, e.g. with OneHotEncoder(handle_unknown='ignore'), or"
            f" leave it out of the schema, e.g. X[{name!r}].cat.remove_unused_categories()."
        )
        raise SettingError(
            f"The model rejects {text} in column {name!r}, which the schema allows: {_first_line(error)} {fix}"
        ) from error

    def _refuse_not_finite(self, row: int, features: Floats) -> NoReturn:
        value = features[row][~np.isfinite(features[row])][0]
        if row == 0:
            raise SettingError(f"The model's preprocessing turns rows of X into {value}. Fit it on such rows.")
        cell = self._cells[row - 1]
        raise SettingError(
            f"The model's preprocessing turns {self._describe(cell.column, cell.value)} in column"
            f" {self._features[cell.column].name!r} into {value}. Add an imputer to the model, or pass a schema that"
            " does not allow such values."
        )

    def _explain(self, transform: Transform, affine: Affine, allowed: Floats, worst: Floats, feature: int) -> NoReturn:
        """Raise an error that names the column that is not affine, or else the columns that interact."""
        table, column = [], []
        for j, (distinct, _) in enumerate(self._distinct):
            if isinstance(self._features[j], Continuous):
                present = distinct[~np.isnan(distinct)]
                positions = np.unique(np.linspace(0, len(present) - 1, _TRIED_VALUES).astype(np.intp))
                for value in (*present[positions], worst[j]):
                    table.append(np.where(np.arange(len(worst)) == j, value, self._base))
                    column.append(j)
        if table:
            error = np.abs(self._features_of(transform, np.array(table)) - affine(self._codes(np.array(table))))
            excess = np.where(np.isfinite(error), error / allowed, np.inf)
            row, at = np.unravel_index(excess.argmax(), excess.shape)
            if excess[row, at] > 1:
                name, value = self._features[column[row]].name, table[row][column[row]]
                raise SettingError(
                    f"The preprocessing of column {name!r} must be affine. It is not (off by {error[row, at]:.3g} at"
                    f" {value:.10g}). {INSTEAD} Or, if its numbers stand for categories, pass a schema that says so:"
                    f" Schema.infer(X, kinds={{{name!r}: 'categorical'}})."
                )
        self._refuse_interaction(transform, affine, allowed, worst, feature)

    def _refuse_interaction(
        self, transform: Transform, affine: Affine, allowed: Floats, worst: Floats, feature: int
    ) -> NoReturn:
        """Raise an error that names interacting columns: resetting one to the base changes the error of the rest."""
        table = np.vstack([worst, np.where(np.eye(len(worst), dtype=bool), self._base, worst)])
        error = (self._features_of(transform, table) - affine(self._codes(table)))[:, feature]
        interacting = np.abs(error[1:] - error[0]) > 0.01 * abs(error[0])
        if abs(error[0]) <= allowed[feature] or not interacting.any():
            self._refuse_inconsistent(worst)
        names = [self._features[j].name for j in np.flatnonzero(interacting)]
        raise SettingError(
            f"The model's preprocessing must treat each column separately. It combines {enumerate_some(names)} (off by"
            f" {abs(error[0]):.3g} from the sum of their separate effects). {INSTEAD}"
        )

    def _refuse_inconsistent(self, row: Floats) -> NoReturn:
        """Raise an error about a row of X whose features differ from those of a probing row with the same values."""
        missing = self._encoding.missing(self._values(row[None]))[0]
        if missing.any():
            names = [feature.name for feature, flag in zip(self._features, missing, strict=True) if flag]
            raise SettingError(
                "The model must treat all missing values of a column alike. It distinguishes some, such as None and"
                f" nan, in {enumerate_some(names)}. Replace them by one kind before fitting the model."
            )
        kept = [name for name in self.space.schema.kept if name in self._frame.columns]
        if kept:
            raise SettingError(
                f"The model seems to read {enumerate_some(kept)}, which the schema keeps as no feature. Train it"
                " without them, or make each a feature: Schema.infer(X, kinds=...)."
            )
        raise SettingError(
            f"The preprocessing must treat each row separately. Its output depends on other rows. {INSTEAD}"
        )


def dense(features: Any, n_rows: int) -> Floats:
    """The output of a transformer as a dense (N, F) array of float64.

    Raises:
        SettingError: If the output has another shape.
    """
    if isinstance(features, Tensor):
        values = features.detach().cpu().numpy()
    elif isinstance(features, pd.DataFrame):
        values = features.to_numpy(np.float64, na_value=np.nan)
    else:
        values = features.toarray() if hasattr(features, "toarray") else features
    array = np.asarray(values, np.float64)
    if array.ndim != 2 or len(array) != n_rows:
        raise SettingError(
            f"Preprocessing must return (N, F) features for the {n_rows} rows it was given. Got shape {array.shape}."
        )
    return array


def _side_by_side(columns: list[nw.Series[Any]]) -> Frame:
    if columns[0].implementation.is_pandas():
        return pd.DataFrame({column.name: column.to_native().reset_index(drop=True) for column in columns})
    return nw.concat([column.to_frame() for column in columns], how="horizontal").to_native()


def _with_missing(frame: Frame, name: str, missing: Flags) -> Frame:
    """A frame with some cells of a column set to missing, in a wider dtype if the column needs one."""
    if isinstance(frame, pd.DataFrame):
        return frame.assign(**{name: frame[name].mask(missing)})
    table = open_frame(frame)
    positions: Positions = np.flatnonzero(missing)
    nulls = nw.new_series(name, [None] * len(positions), table[name].dtype, backend=table.implementation)
    return table.with_columns(table[name].scatter(positions.tolist(), nulls)).to_native()


def rejected_rows(error: Exception) -> SettingError:
    """The error for a model that fails on the rows of X."""
    return SettingError(
        f"The model failed on the rows of X: {_first_line(error)} Pass rows like those it was fitted on."
    )


def _first_line(error: Exception) -> str:
    line = str(error).strip().split("\n")[0]
    return f"{line.rstrip('.:')}." if line else f"{type(error).__name__}."
