"""People by what a column says of them, and shares of them with what is known about others."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
from numpy.typing import NDArray

from avcg.errors import DataError, did_you_mean
from avcg.guarantees.bounds import clopper_pearson
from avcg.space.serialize import to_json

_BANDS, MISSING = 4, "missing"


def groups_of(frame: Any, name: str) -> tuple[NDArray[Any], list[Any]]:
    """The group of each row by a column, more than a few numbers by quartile; gaps are a group of their own.

    Args:
        frame: Of pandas or polars.
        name: The column.

    Returns:
        (B,) the label of each row, and the labels there are, in order.

    Raises:
        DataError: If there is no such column.

    >>> import pandas as pd
    >>> groups_of(pd.DataFrame({"age": [20, 30, 40, 50, 60, None]}), "age")[1]
    ['up to 30', 'over 30 to 40', 'over 40 to 50', 'over 50', 'missing']
    """
    if isinstance(frame, np.ndarray):
        raise DataError("Images have no columns to group by.")
    opened = nw.from_native(frame, eager_only=True)
    if name not in opened.columns:
        raise DataError(f"There is no column {name!r} to group by. {did_you_mean(name, opened.columns)}")
    values = [to_json(value) for value in opened[name].to_list()]
    known = [value for value in dict.fromkeys(values) if value is not None]
    if len(known) > _BANDS and all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in known):
        there = [value for value in values if value is not None]
        edges = np.unique(np.quantile(there, [0.25, 0.5, 0.75], method="inverted_cdf"))
        ends = [f"{edge:.10g}" for edge in edges]
        order = [f"up to {ends[0]}", *(f"over {a} to {b}" for a, b in pairwise(ends)), f"over {ends[-1]}"]
        labels = [None if v is None else order[int(np.searchsorted(edges, v))] for v in values]
    else:
        dtype = opened[name].dtype
        ranked = list(dtype.categories) if isinstance(dtype, nw.Enum) else None
        order, labels = ranked or sorted(known, key=lambda v: (isinstance(v, str), v)), values
    found = np.empty(len(labels), object)
    found[:] = [MISSING if label is None else label for label in labels]
    present = set(found.tolist())
    return found, [label for label in dict.fromkeys([*order, *found]) if label in present]


def share_of(count: int, n: int, confidence: float) -> tuple[float, float, float]:
    """A share with its two-sided interval (Clopper-Pearson); of none, nothing is known.

    >>> [round(value, 3) for value in share_of(412, 450, 0.95)]
    [0.916, 0.886, 0.94]
    """
    if not n:
        return float("nan"), 0.0, 1.0
    side = (1.0 + confidence) / 2
    return count / n, float(clopper_pearson(count, n, side)), 1.0 - float(clopper_pearson(n - count, n, side))
