"""Columns of 0 and 1 of pandas and polars frames: read as flags, and written in their own dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd

from avcg.schema.features import Categorical, columns_of
from avcg.space.dummies import flags_of, flags_of_positions, like_flag
from avcg.space.encoding import Floats, Positions

Column: TypeAlias = "pd.Series[Any] | nw.Series[Any]"
# From a frame, one of its columns, positions and new cells to the frame with these cells replaced.
WriteCells = Callable[[Any, Any, Positions, np.ndarray[Any, Any]], Any]


def flag_column(column: Column) -> Floats:
    """A column of booleans or numbers as 0, 1 and NaN where missing; see `avcg.space.dummies.flags_of`."""
    native = column if isinstance(column, pd.Series) else column.to_native()
    if isinstance(native, pd.Series) and isinstance(native.dtype, np.dtype) and native.dtype.kind in "biuf":
        flags = native.to_numpy(np.float64)
        if ((flags == 0) | (flags == 1) | np.isnan(flags)).all():
            return flags
    series = nw.from_native(native, series_only=True)
    return flags_of(str(series.name), series.to_list())


def with_flags(frame: Any, feature: Categorical, at: Positions, positions: Positions, write: WriteCells) -> Any:
    """A frame in which some rows have other categories of a feature that is several columns.

    Args:
        frame: A frame of pandas, or of narwhals.
        feature: The feature.
        at: (M,) positions of the rows.
        positions: (M,) positions of their new categories.
        write: Function that replaces cells of one column. Only cells that differ are replaced.
    """
    for name, flags in zip(columns_of(feature), flags_of_positions(feature, positions).T, strict=True):
        column = frame[name]
        differs = np.flatnonzero(flag_column(column)[at] != flags)  # also where the cell is missing
        if len(differs):
            frame = write(frame, column, at[differs], _cells_like(column, flags[differs]))
    return frame


def _cells_like(column: Column, flags: Floats) -> np.ndarray[Any, Any]:
    """Flags as the cells of a column are written: booleans or numbers."""
    series = nw.from_native(column, series_only=True, pass_through=True)
    if series.dtype == nw.Boolean:
        return flags.astype(bool)
    if series.dtype != nw.Object:
        return flags
    present = series.drop_nulls().to_list()[:1] or [0]
    cells = np.empty(len(flags), object)
    cells[:] = [like_flag(bool(flag), present[0]) for flag in flags.tolist()]
    return cells
