"""Rows as plain values that JSON can hold, and back: dtypes, categories, gaps and index kept."""

from __future__ import annotations

from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd

from avcg.schema.features import to_python
from avcg.space.validation import is_missing


def to_json(value: Any) -> Any:
    """A value as JSON has it: Python's own, and None where it is missing."""
    value = to_python(value)
    return None if is_missing(value) else value


def pack_rows(rows: Any) -> dict[str, Any]:
    """A frame by columns, or an array, as plain values."""
    if isinstance(rows, np.ndarray):
        return {"dtype": str(rows.dtype), "shape": list(rows.shape), "values": rows.ravel().tolist()}
    frame = rows if isinstance(rows, pd.DataFrame) else nw.from_native(rows, eager_only=True).to_pandas()
    levels = [frame.index.get_level_values(level).to_series() for level in range(frame.index.nlevels)]
    return {
        "columns": {str(name): _column(column) for name, column in frame.items()},
        "index": [_column(level) for level in levels],
        "index_names": list(frame.index.names),
    }


def _column(column: pd.Series[Any]) -> dict[str, Any]:
    kind: Any = column.dtype
    categorical = isinstance(kind, pd.CategoricalDtype)
    values = column.astype(str) if pd.api.types.is_datetime64_any_dtype(kind) else column
    return {
        "dtype": str(kind),
        "categories": kind.categories.tolist() if categorical else None,
        "ordered": bool(kind.ordered) if categorical else None,
        "values": [_plain(value) for value in values.tolist()],
    }


def _plain(value: Any) -> Any:
    """A value as JSON has it; dates, which may stand in columns that no model reads, as texts."""
    value = to_json(value)
    return value.isoformat() if hasattr(value, "isoformat") else value


def unpack_rows(packed: dict[str, Any]) -> Any:
    """What `pack_rows` packed; frames come back as pandas."""
    if "shape" in packed:
        return np.array(packed["values"], dtype=packed["dtype"]).reshape(packed["shape"])
    frame = pd.DataFrame({name: _series(column) for name, column in packed["columns"].items()})
    levels = [pd.Index(_series(level)) for level in packed["index"]]
    names = packed["index_names"]
    index = levels[0].rename(names[0]) if len(levels) == 1 else pd.MultiIndex.from_arrays(levels, names=names)
    return frame.set_axis(index)


def _series(column: dict[str, Any]) -> pd.Series[Any]:
    if column["categories"] is not None:
        kind = pd.CategoricalDtype(column["categories"], ordered=column["ordered"])
        return pd.Series(pd.Categorical(column["values"], dtype=kind))
    return pd.Series(column["values"], dtype=object).astype(column["dtype"])
