"""Everything that knows about pandas and polars: read the values of a frame, and write answers back into a copy.

A frame is never rebuilt from values: answers are written into copies of the columns they change, so that dtypes, index,
column order and every untouched cell stay the user's own.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeAlias

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd

from avcg.errors import DataError
from avcg.schema.features import Categorical, Continuous
from avcg.schema.schema import Schema
from avcg.space.dummies import flags_of_positions, positions_of_flags
from avcg.space.encoding import Encoding, Flags, Floats, Positions, Values, body
from avcg.space.flag_columns import flag_column, with_flags
from avcg.space.reading import position_of, read_choices, read_numbers
from avcg.space.validation import check_names

# Any eager frame that narwhals reads; pandas and polars are the tested ones.
Frame: TypeAlias = Any
Column: TypeAlias = "pd.Series[Any] | nw.Series[Any]"


def open_frame(frame: Frame) -> nw.DataFrame[Any]:
    """A frame behind one interface.

    Raises:
        DataError: If it is no frame, has no rows, or has a column twice or with a name that is no text.
    """
    if isinstance(frame, pd.DataFrame):
        check_names(list(frame.columns), list(frame.columns))
    try:
        opened = nw.from_native(frame, eager_only=True)
    except TypeError:
        raise DataError(
            f"Rows must come as a pandas or polars DataFrame. Got {type(frame).__name__} instead; wrap it, e.g."
            " pandas.DataFrame(rows, columns=list(schema))."
        ) from None
    if opened.shape[0] == 0:
        raise DataError("The frame has no rows.")
    return opened


def read_values(frame: Frame, schema: Schema) -> Values:
    """The exact values of a frame, columns matched by name in any order.

    Raises:
        DataError: If the rows do not fit the schema; the message names the column, how many rows, values and the fix.
    """
    # pandas is read without an interface around it, which would cost more than a single row does.
    columns = frame if isinstance(frame, pd.DataFrame) and len(frame) else open_frame(frame)
    check_names(list(columns.columns), schema.columns, schema.kept)
    values = Values(
        np.empty((columns.shape[0], len(schema.numeric))),
        np.empty((columns.shape[0], len(schema.categorical)), np.intp),
    )
    _read_columns(columns, schema, schema.names, values)
    return values


def read_changed(frame: Frame, schema: Schema, factuals: Values, changed: Flags) -> Values:
    """The exact values of answers, read off the frame wherever a cell of the column was replaced.

    Args:
        frame: From `write_values`; the other columns are copies of the factuals' own.
        schema: What the columns are.
        factuals: Their values.
        changed: (N, features) the cells that were replaced.
    """
    values = Values(factuals.numbers.copy(), factuals.choices.copy())
    written = [schema.names[j] for j in np.flatnonzero(changed.any(axis=0))]
    _read_columns(frame if isinstance(frame, pd.DataFrame) else open_frame(frame), schema, written, values)
    return values


def _read_columns(columns: Any, schema: Schema, names: Collection[str], values: Values) -> None:
    """Read the columns named into their places."""
    for j, number in enumerate(schema.numeric):
        if number.name in names:
            values.numbers[:, j] = number_column(columns[number.name], number)
    for j, choice in enumerate(schema.categorical):
        if choice.name in names:
            values.choices[:, j] = category_positions(columns, choice)


def number_ranges(frame: Frame, schema: Schema) -> dict[str, tuple[float, float]]:
    """The lowest and the highest number of each numeric column, special codes left out."""
    values = body(schema, read_values(frame, schema))
    lows, highs = np.nanmin(values, axis=0).tolist(), np.nanmax(values, axis=0).tolist()
    return {f.name: (low, high) for f, low, high in zip(schema.numeric, lows, highs, strict=True)}


def number_column(column: Column, feature: Continuous) -> Floats:
    """A numeric column as float64, NaN where missing; see `avcg.space.reading.read_numbers`."""
    native = column if isinstance(column, pd.Series) else column.to_native()
    if isinstance(native, pd.Series) and native.dtype.kind in "iuf":
        # Arrow would refuse to round whole numbers beyond 2**53. A dtype of numpy has no other missing value than NaN.
        if isinstance(native.dtype, np.dtype):
            numbers = native.to_numpy(np.float64)
        else:
            numbers = native.to_numpy(np.float64, na_value=np.nan)
    else:
        series = nw.from_native(native, series_only=True)
        if not series.dtype.is_numeric():
            return np.array(read_numbers(feature, series.to_list()))
        numbers = series.cast(nw.Float64).to_numpy().astype(np.float64, copy=False)
    if np.isinf(numbers).any() or (feature.missing == "error" and np.isnan(numbers).any()):
        read_numbers(feature, numbers.tolist())  # which says what is wrong
    return numbers


def category_positions(columns: Any, feature: Categorical) -> Positions:
    """A categorical feature of a frame as positions in its list of categories, from its column or columns."""
    if feature.columns is None:
        return category_column(columns[feature.name], feature)
    flags = np.stack([flag_column(columns[name]) for name in feature.columns], axis=1)
    return positions_of_flags(feature, flags)


def category_column(column: Column, feature: Categorical) -> Positions:
    """A column as positions in the list of categories; see `avcg.space.reading.read_choices`."""
    native = column if isinstance(column, pd.Series) else column.to_native()
    if native.dtype == object:  # of any types: some have no hash, and 1 has that of True
        return np.array(read_choices(feature, native.to_list()), np.intp)
    distinct, which = _distinct(native)
    gap = len(feature.categories)
    positions = np.array([*(position_of(feature, value) for value in distinct.tolist()), gap], np.intp)[which]
    if (positions < 0).any() or (feature.missing == "error" and (positions == gap).any()):
        read_choices(feature, native.to_list())  # which says what is wrong
    return positions


def _distinct(native: Any) -> tuple[np.ndarray[Any, Any], Positions]:
    """The different values of a column, and for each row which of them it has; -1 where it has none."""
    if isinstance(native, pd.Series) and isinstance(native.dtype, pd.CategoricalDtype):
        return native.dtype.categories.to_numpy(), np.asarray(native.cat.codes, np.intp)
    which, distinct = pd.factorize(native.to_numpy())
    return distinct, which


def write_values(frame: Frame, encoding: Encoding, values: Values, changed: Flags, toward: Floats) -> Frame:
    """A copy of the frame with the changed cells replaced.

    Args:
        frame: The factuals.
        encoding: What the columns are.
        values: The answers.
        changed: (N, features) the cells to replace; every other cell stays the frame's own.
        toward: (N, n) an allowed number for each, to round toward where the column is narrower than float64.

    Returns:
        A frame of the same type, with the same columns, dtypes and index.
    """
    answers: Any = frame.copy() if isinstance(frame, pd.DataFrame) else open_frame(frame)
    for j, feature in enumerate(encoding.schema.features):
        at = np.flatnonzero(changed[:, j])
        if not len(at):
            continue
        i = encoding.kind_index[j]
        if isinstance(feature, Categorical) and feature.columns is not None:
            answers = with_flags(answers, feature, at, values.choices[at, i], _with_cells)
            continue
        column = answers[feature.name]
        if isinstance(feature, Continuous):
            new = _fit_numbers(column, values.numbers[at, i], toward[at, i], on_grid=feature.step is not None)
            if feature.step is not None and feature.decimals == 0:
                # A narrow float column that would round a whole number keeps its own: the change is not made.
                held = new == values.numbers[at, i]
                at, new = at[held], new[held]
                if not len(at):
                    continue
        else:
            column = _with_categories(column, feature)
            new = _labels(feature)[values.choices[at, i]]
        answers = _with_cells(answers, column, at, new)
    return answers if isinstance(answers, pd.DataFrame) else answers.to_native()


def _with_cells(frame: Any, column: Column, at: Positions, new: np.ndarray[Any, Any]) -> Any:
    """A frame with some cells of a column replaced; a frame of pandas is written into."""
    if isinstance(column, pd.Series):
        frame[column.name] = _replaced(column, at, new)
        return frame
    return frame.with_columns(_scattered(column, at, new))


def new_frame(encoding: Encoding, values: Values) -> pd.DataFrame:
    """Values as a pandas frame of their own, for rows that have no frame to go back to."""
    columns: dict[str, Any] = {}
    for j, feature in enumerate(encoding.schema.features):
        i = encoding.kind_index[j]
        if isinstance(feature, Continuous):
            column = values.numbers[:, i]
            whole = feature.step is not None and float(feature.step).is_integer() and not np.isnan(column).any()
            whole &= bool((np.abs(column) < 2.0**63).all())
            columns[feature.name] = column.astype(np.int64) if whole else column
        elif feature.columns is not None:
            flags = flags_of_positions(feature, values.choices[:, i])
            missing = np.isnan(flags).any()
            columns |= dict(zip(feature.columns, flags.T if missing else flags.T.astype(np.int64), strict=True))
        else:
            gaps = values.choices[:, i] == len(feature.categories)
            labels = _labels(feature)
            found = labels[np.where(gaps, 0, values.choices[:, i])]
            if gaps.any():
                found = found.astype(object)
                found[gaps] = None
            columns[feature.name] = found
    return pd.DataFrame(columns)


def _labels(feature: Categorical) -> np.ndarray[Any, Any]:
    """The categories as an array of their own type, texts and mixed ones as objects."""
    kinds = {type(value) for value in feature.categories}
    labels = np.empty(len(feature.categories), kinds.pop() if len(kinds) == 1 and str not in kinds else object)
    labels[:] = feature.categories
    return labels


def _with_categories(column: Column, feature: Categorical) -> Column:
    """A column of a categorical dtype that has room for every category of the schema, in the schema's order."""
    if isinstance(column, pd.Series):
        if isinstance(column.dtype, pd.CategoricalDtype):
            known = column.dtype.categories.tolist()
            if not set(feature.categories) <= set(known):
                more = [value for value in known if value not in feature.categories]
                return column.cat.set_categories([*feature.categories, *more])
    elif isinstance(column.dtype, nw.Enum):
        known = list(column.dtype.categories)
        if not set(feature.categories) <= set(known):
            more = [value for value in known if value not in feature.categories]
            return column.cast(nw.Enum([*map(str, feature.categories), *more]))
    return column


def _replaced(column: pd.Series[Any], at: Positions, new: np.ndarray[Any, Any]) -> pd.Series[Any]:
    """A column of pandas with some cells replaced, in its own dtype."""
    cells = column.array.copy()
    if isinstance(column.dtype, pd.CategoricalDtype):  # by codes: by labels, pandas would index its categories anew
        labels, which = np.unique(new, return_inverse=True)
        codes = cells.codes.copy()
        codes[at] = np.array([column.dtype.categories.tolist().index(label) for label in labels.tolist()])[which]
        return pd.Series(pd.Categorical.from_codes(codes, dtype=column.dtype), index=column.index, name=column.name)
    cells[at] = new
    return pd.Series(cells, index=column.index, name=column.name, dtype=column.dtype, copy=False)


def _scattered(series: nw.Series[Any], at: Positions, new: np.ndarray[Any, Any]) -> nw.Series[Any]:
    """The same for other frames."""
    cells = nw.new_series(series.name, new.tolist(), backend=series.implementation)
    if series.dtype == nw.Unknown:  # polars has no type for a column of nothing but nulls
        series = series.cast(cells.dtype)
    return series.scatter(at.tolist(), cells.cast(series.dtype))


def _number_dtype(column: Column) -> np.dtype[Any]:
    """The dtype of numpy that holds the numbers of a column."""
    if isinstance(column.dtype, np.dtype):
        return column.dtype
    dtype = nw.from_native(column, series_only=True, pass_through=True).dtype
    name = str(dtype).lower()
    if dtype == nw.Object:
        return np.dtype(object)
    if dtype.is_integer():
        return np.dtype(name if name in np.sctypeDict else np.int64)  # polars has wider integers than numpy
    return np.dtype(name if dtype.is_float() else np.float64)


def float_dtype(column: Column) -> np.dtype[Any]:
    """The floating type whose values print as those of a column of numbers."""
    dtype = _number_dtype(column.to_native() if isinstance(column, nw.Series) else column)
    return dtype if dtype.kind == "f" else np.dtype(np.float64)


def _fit_numbers(column: Column, new: Floats, toward: Floats, *, on_grid: bool) -> np.ndarray[Any, Any]:
    """The numbers as the column can hold them."""
    dtype = _number_dtype(column)
    if dtype.kind in "iu":
        return _fit_integers(str(column.name), dtype, new)
    if dtype.kind == "O":
        whole = on_grid and bool((new == np.rint(new)).all())
        return np.array([int(value) if whole else value for value in new.tolist()], object)
    if dtype == np.float64:
        return new
    with np.errstate(over="ignore"):
        rounded = new.astype(dtype)
    if on_grid:
        return rounded
    # Rounded toward an allowed number, it cannot leave what is allowed.
    over = np.abs(rounded.astype(np.float64) - toward) > np.abs(new - toward)
    return np.where(over, np.nextafter(rounded, toward.astype(dtype)), rounded)


def _fit_integers(name: str, dtype: np.dtype[Any], new: Floats) -> np.ndarray[Any, Any]:
    """The numbers as an integer column can hold them."""
    whole, limits = np.rint(new), np.iinfo(dtype)
    if (whole != new).any():
        raise DataError(
            f"Column {name!r} holds whole numbers but its answers do not, e.g. {new[whole != new][0]!r}. Give the"
            f" schema a step, schema.step({name!r}, 1), or convert the column with .astype(float)."
        )
    # One more than the largest is a power of two, which float64 holds; the largest itself it may round up to that.
    outside = (whole < limits.min) | (whole >= float(limits.max + 1))
    if outside.any():
        raise DataError(
            f"Column {name!r} is {dtype}, which cannot hold the answer {whole[outside][0]:.0f}. Convert it to a wider"
            " type, or narrow its range with between."
        )
    return whole.astype(dtype)


def take_rows(rows: Any, place: Any) -> Any:
    """Some rows of a frame or of images, in the order given.

    Args:
        rows: A frame, an array, or values that were read off a frame.
        place: (b,) positions, as a tensor or an array.
    """
    positions = np.asarray(place)
    if isinstance(rows, Values):
        return rows.take(positions)
    return (
        rows[positions]
        if isinstance(rows, np.ndarray)
        else nw.from_native(rows, eager_only=True)[positions].to_native()
    )
