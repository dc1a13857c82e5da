"""Fitted preprocessing as one linear layer on codes, found by asking it and then checked on real rows.

Whatever treats each column by itself, affine in numbers and as it likes with categories and gaps, is exactly linear in
the codes of a space: a scaled number, a flag for a gap, one code per category. So a few rows that differ in one cell
each tell the whole layer, whatever the preprocessing is made of, and the rows at hand tell whether that was all.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
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
from avcg.schema.features import Continuous, Feature
from avcg.schema.schema import Schema
from avcg.space.encoding import Encoding, Flags, Floats, Positions, Values
from avcg.space.frames import Frame, open_frame, read_values, take_rows, write_values
from avcg.space.tabular import TabularSpace

# From rows of the kind that was given to (N, F) features: an array, a sparse matrix, a frame or a tensor.
Transform = Callable[[Any], Any]

INSTEAD = "Use the model as a black box instead: avcg.BlackBox(model, X)."
# Rows that are checked, and how many numbers of features they may have together.
_CHECKED_ROWS, _CHECKED_NUMBERS = 20_000, 20_000_000
# How far features may be off, by their spread and by their size: some preprocessing computes in float32.
_OF_SPREAD, _OF_SIZE = 1e-4, 1e-6
# Values of a column that are tried to find the one that is not affine; rows that are tried to find one that is taken.
_TRIED_VALUES, _TRIED_ROWS = 100, 50
_GAP = "a gap"


def schema_with_gaps(X: Any) -> Schema:
    """The schema of some rows, with gaps read in the columns that have any.

    Args:
        X: A frame, or a table of numbers.

    >>> [feature.missing for feature in schema_with_gaps(pd.DataFrame({"a": [1.0, None], "b": [1, 2]})).features]
    ['indicator', 'error']
    """
    rows = as_rows(X)
    schema = Schema.infer(rows)
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
    """A network that reads codes and predicts what the model it was made from predicts.

    Attributes:
        network_: From codes to logits, one per class.
        space_: What the codes mean.
        classes_: The labels in the order of the logits.
    """

    network_: nn.Module
    space_: TabularSpace
    classes_: NDArray[Any]

    def predict_proba(self, X: Any) -> NDArray[np.float32]:
        """(N, C) probabilities, classes in the order of ``classes_``."""
        return probabilities(self.network_, self.space_.encode(as_rows(X)))

    def predict(self, X: Any) -> NDArray[Any]:
        """(N,) the likeliest label."""
        return self.classes_[self.predict_proba(X).argmax(axis=1)]


def probabilities(network: nn.Module, x: Tensor) -> NDArray[np.float32]:
    """(N, C) probabilities of a network, without gradients.

    Args:
        network: From inputs to logits.
        x: (N, D).
    """
    with torch.no_grad():
        return torch.softmax(torch.cat([network(part) for part in x.split(8192)]), dim=-1).numpy()


@dataclass(frozen=True, eq=False)
class Affine:
    """x to weight @ x + bias, in float64.

    Attributes:
        weight: (F, D).
        bias: (F,).
    """

    weight: Floats
    bias: Floats

    def __call__(self, x: Floats) -> Floats:
        """(N, D) to (N, F)."""
        return x @ self.weight.T + self.bias

    def then(self, after: Affine) -> Affine:
        """This map and another one after it, as one."""
        return Affine(after.weight @ self.weight, after.weight @ self.bias + after.bias)

    def layer(self) -> nn.Linear:
        """The map as a layer, in float32."""
        made: nn.Linear = skip_init(nn.Linear, self.weight.shape[1], self.weight.shape[0])
        made.weight.data.copy_(torch.from_numpy(self.weight))
        made.bias.data.copy_(torch.from_numpy(self.bias))
        return made


@dataclass(frozen=True)
class _Cell:
    """One value of one column, and the code whose weight it tells."""

    column: int
    value: float
    code: int


class Probe:
    """Rows put together from the cells of X, to see what a function makes of each column.

    Rows are kept as tables of float64, (N, features of the schema): numbers, NaN where missing, and positions of
    categories, one past the last where missing.

    Args:
        X: Rows as the function takes them.
        schema: What the columns are; None: inferred, with gaps read where there are any.
        space: What to read codes of; None: fitted to X.

    Attributes:
        space: What the codes mean.
        rows: X as functions are asked with it, float32 as float64.
        codes: (N, D) those of X.
    """

    def __init__(self, X: Any, schema: Schema | None = None, space: TabularSpace | None = None) -> None:
        if schema is not None and space is not None:
            raise SettingError("A space has a schema already. Give either 'schema' or 'space', not both.")
        frame = as_rows(X)
        self.space = space or TabularSpace.fit(schema or schema_with_gaps(frame), frame)
        self._as_array = isinstance(X, np.ndarray)
        # Some estimators compute in float32 if they are given it, and are then further from themselves than we are.
        self._frame = open_frame(frame).with_columns(nw.selectors.by_dtype(nw.Float32).cast(nw.Float64))
        self.rows = self._native(self._frame.to_native())
        values = read_values(frame, self.space.schema)
        self.codes = torch.from_numpy(self._encoding.encode(values))
        self._table = self._table_of(values)
        # The different values of each column, and where each is first found.
        self._found = [np.unique(column, return_index=True) for column in self._table.T]
        self._base, self._cells = self._plan()

    def affine(self, transform: Transform) -> Affine:
        """What a function does to codes.

        Raises:
            SettingError: If it refuses a value, or is not linear in codes. The message names the column.
        """
        found = self._solve(transform)
        count = max(1000, _CHECKED_NUMBERS // max(len(found.bias), 1))
        place = np.unique(np.linspace(0, len(self._table) - 1, min(count, _CHECKED_ROWS)).astype(np.intp))
        table = self._table[place]
        features = dense(transform(self._native(take_rows(self._frame.to_native(), place))), len(place))
        size, spread = np.abs(features).max(axis=0, initial=0.0), np.ptp(features, axis=0)
        allowed = _OF_SPREAD * spread + _OF_SIZE * size + np.finfo(np.float64).tiny
        off = np.abs(features - found(self._codes(table))) / allowed
        if not (off <= 1).all():
            row, feature = np.unravel_index(np.where(np.isnan(off), np.inf, off).argmax(), off.shape)
            self._explain(transform, found, allowed, table[row], int(feature))
        return found

    @property
    def _encoding(self) -> Encoding:
        return self.space.encoding

    @property
    def _features(self) -> tuple[Feature, ...]:
        return self.space.schema.features

    def _native(self, frame: Frame) -> Any:
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
        """(N, D) the codes of rows in float64, which the encoding rounds to float32."""
        values, encoding = self._values(table), self._encoding
        codes = encoding.encode(values).astype(np.float64)
        scaled = (values.numbers - encoding.center) / encoding.scale
        codes[:, encoding.number_at] = np.where(np.isnan(scaled), 0.0, scaled)
        return codes

    def _plan(self) -> tuple[Floats, list[_Cell]]:
        """A base row, and the cells that make up the rows that differ from it."""
        base, cells = self._table[0].copy(), []
        for j, (feature, codes) in enumerate(zip(self._features, self._encoding.slices, strict=True)):
            known = self._found[j][0]
            base[j] = known[0]
            if isinstance(feature, Continuous):
                if np.isnan(known[0]):
                    raise DataError(f"Column {feature.name!r} has no value in any row. Give rows that have some.")
                # As far apart as the data: rounding then counts least. A constant moves to where any dtype can hold it.
                far = known[~np.isnan(known)][-1]
                far = far if far > known[0] else float(known[0] == 0)
                cells.append(_Cell(j, float(far), codes.start))
                if feature.missing == "indicator":
                    cells.append(_Cell(j, np.nan, codes.start + 1))
            else:
                others = (slot for slot in range(codes.stop - codes.start) if slot != known[0])
                cells += [_Cell(j, slot, codes.start + slot) for slot in others]
        return base, cells

    def _solve(self, transform: Transform) -> Affine:
        table = np.tile(self._base, (len(self._cells) + 1, 1))
        for row, cell in zip(table[1:], self._cells, strict=True):
            row[cell.column] = cell.value
        try:
            features = self._ask(transform, table)
        except AvcgError:
            raise
        except Exception as error:  # whatever somebody else's code raises
            self._blame(transform, error)
        odd = ~np.isfinite(features).all(axis=1)
        if odd.any():
            self._refuse_odd(int(odd.argmax()), features)
        codes = self._codes(table)
        weight = np.zeros((features.shape[1], codes.shape[1]))
        for p, cell in enumerate(self._cells, start=1):
            moved = codes[p] - codes[0]
            # A gap also takes away the number, whose weight is known by then; the base's category has weight 0.
            rest = np.flatnonzero(moved)
            change = features[p] - features[0] - weight[:, rest] @ moved[rest]
            weight[:, cell.code] = change / moved[cell.code]
        return Affine(weight, features[0] - weight @ codes[0])

    def _ask(self, transform: Transform, table: Floats) -> Floats:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about rows that nobody has
            return dense(transform(self._native(self._rows_with(table))), len(table))

    def _rows_with(self, table: Floats) -> Frame:
        """Rows of the kind of X: cells of its own where it has such a value, written where it has not."""
        columns, absent = {}, np.zeros(table.shape, bool)
        for j, (feature, (known, first)) in enumerate(zip(self._features, self._found, strict=True)):
            at = np.minimum(np.searchsorted(known, table[:, j]), len(known) - 1)
            absent[:, j] = (known[at] != table[:, j]) & ~(np.isnan(known[at]) & np.isnan(table[:, j]))
            columns[feature.name] = self._frame[feature.name][first[at]]
        frame = _side_by_side([columns[name] for name in self._frame.columns])
        if not absent.any():
            return frame
        values = self._values(table)
        gaps = self._encoding.missing(values)
        frame = write_values(frame, self._encoding, values, absent & ~gaps, values.numbers)
        for j in np.flatnonzero((absent & gaps).any(axis=0)).tolist():
            frame = _with_gaps(frame, self._features[j].name, absent[:, j] & gaps[:, j])
        return frame

    def _said(self, column: int, value: float) -> str:
        """A cell as people write it."""
        feature = self._features[column]
        if isinstance(feature, Continuous):
            return _GAP if np.isnan(value) else f"{value:.10g}"
        return _GAP if value == len(feature.categories) else repr(feature.categories[int(value)])

    def _blame(self, transform: Transform, error: Exception) -> NoReturn:
        """Say which cell a function refuses, by putting each into a row that it takes."""

        def refused(row: Floats) -> Exception | None:
            try:
                self._ask(transform, row[None])
            except Exception as found:  # whatever somebody else's code raises
                return found
            return None

        taken = next((row for row in self._table[:_TRIED_ROWS] if refused(row) is None), None)
        if taken is not None:
            own = [_Cell(j, value, 0) for j, value in enumerate(self._base)]
            for cell in [*own, *self._cells]:
                row = taken.copy()
                row[cell.column] = cell.value
                found = refused(row)
                if found is not None:
                    self._refuse_cell(cell, found)
        raise not_taken(error) from error

    def _refuse_cell(self, cell: _Cell, error: Exception) -> NoReturn:
        name, said = self._features[cell.column].name, self._said(cell.column, cell.value)
        fix = (
            f"Refit the model with an imputer, or give a schema without allow_missing({name!r})."
            if said == _GAP
            else "Refit the model so that it takes it, e.g. with OneHotEncoder(handle_unknown='ignore'), or leave it"
            f" out of the schema, e.g. X[{name!r}].cat.remove_unused_categories()."
        )
        raise SettingError(
            f"The model refuses {said} in column {name!r}, which the schema has: {_first_line(error)} {fix}"
        ) from error

    def _refuse_odd(self, row: int, features: Floats) -> NoReturn:
        value = features[row][~np.isfinite(features[row])][0]
        if row == 0:
            raise SettingError(f"The model's preprocessing makes {value} of the rows of X. Fit it on such rows.")
        cell = self._cells[row - 1]
        raise SettingError(
            f"The model's preprocessing makes {value} of {self._said(cell.column, cell.value)} in column"
            f" {self._features[cell.column].name!r}. Give the model an imputer, or a schema that refuses such values."
        )

    def _explain(self, transform: Transform, found: Affine, allowed: Floats, worst: Floats, feature: int) -> NoReturn:
        """Say which column is not affine by itself, or else which ones act together."""
        table, column = [], []
        for j, (known, _) in enumerate(self._found):
            if isinstance(self._features[j], Continuous):
                present = known[~np.isnan(known)]
                place = np.unique(np.linspace(0, len(present) - 1, _TRIED_VALUES).astype(np.intp))
                for value in (*present[place], worst[j]):
                    table.append(np.where(np.arange(len(worst)) == j, value, self._base))
                    column.append(j)
        if table:
            off = np.abs(self._ask(transform, np.array(table)) - found(self._codes(np.array(table))))
            share = np.where(np.isfinite(off), off / allowed, np.inf)
            row, at = np.unravel_index(share.argmax(), share.shape)
            if share[row, at] > 1:
                name, value = self._features[column[row]].name, table[row][column[row]]
                raise SettingError(
                    f"Column {name!r} goes through something that is not affine (off by {off[row, at]:.3g} at"
                    f" {value:.10g}). {INSTEAD} Or, if its numbers stand for categories, give a schema that says so:"
                    f" Schema.infer(X, kinds={{{name!r}: 'categorical'}})."
                )
        self._refuse_together(transform, found, allowed, worst, feature)

    def _refuse_together(
        self, transform: Transform, found: Affine, allowed: Floats, worst: Floats, feature: int
    ) -> NoReturn:
        """Columns act together where setting any of them back to the base changes what the others explain."""
        table = np.vstack([worst, np.where(np.eye(len(worst), dtype=bool), self._base, worst)])
        off = (self._ask(transform, table) - found(self._codes(table)))[:, feature]
        part = np.abs(off[1:] - off[0]) > 0.01 * abs(off[0])
        if abs(off[0]) <= allowed[feature] or not part.any():
            self._refuse_unlike(worst)
        names = [self._features[j].name for j in np.flatnonzero(part)]
        raise SettingError(
            f"The columns {enumerate_some(names)} act together in the model's preprocessing (off by {abs(off[0]):.3g}"
            f" from the sum of what each does alone), so it is not linear. {INSTEAD}"
        )

    def _refuse_unlike(self, row: Floats) -> NoReturn:
        """A row of X fares otherwise than one with the same values."""
        gaps = self._encoding.missing(self._values(row[None]))[0]
        if gaps.any():
            names = [feature.name for feature, gap in zip(self._features, gaps, strict=True) if gap]
            raise SettingError(
                f"The model tells gaps of one column apart, such as None and nan. Look at {enumerate_some(names)}, and"
                " make all its gaps the same before the model is fitted."
            )
        raise SettingError(f"What the preprocessing makes of a row depends on the rows it comes with. {INSTEAD}")


def dense(features: Any, n_rows: int) -> Floats:
    """What a transformer returned as (N, F) float64.

    Raises:
        SettingError: If it has another shape.
    """
    if isinstance(features, Tensor):
        found = features.detach().cpu().numpy()
    elif isinstance(features, pd.DataFrame):
        found = features.to_numpy(np.float64, na_value=np.nan)
    else:
        found = features.toarray() if hasattr(features, "toarray") else features
    array = np.asarray(found, np.float64)
    if array.ndim != 2 or len(array) != n_rows:
        raise SettingError(f"Preprocessing must return one row of features for each of {n_rows}. Got {array.shape}.")
    return array


def _side_by_side(columns: list[nw.Series[Any]]) -> Frame:
    if columns[0].implementation.is_pandas():
        return pd.DataFrame({column.name: column.to_native().reset_index(drop=True) for column in columns})
    return nw.concat([column.to_frame() for column in columns], how="horizontal").to_native()


def _with_gaps(frame: Frame, name: str, gaps: Flags) -> Frame:
    """A frame with some cells of a column emptied, in a wider dtype where its own knows no gaps."""
    if isinstance(frame, pd.DataFrame):
        return frame.assign(**{name: frame[name].mask(gaps)})
    opened = open_frame(frame)
    at: Positions = np.flatnonzero(gaps)
    nothing = nw.new_series(name, [None] * len(at), opened[name].dtype, backend=opened.implementation)
    return opened.with_columns(opened[name].scatter(at.tolist(), nothing)).to_native()


def not_taken(error: Exception) -> SettingError:
    """What to say of a model that fails on the rows it was given with."""
    return SettingError(f"The model does not take the rows of X: {_first_line(error)} Give rows as it was fitted on.")


def _first_line(error: Exception) -> str:
    line = str(error).strip().split("\n")[0]
    return f"{line.rstrip('.:')}." if line else f"{type(error).__name__}."
