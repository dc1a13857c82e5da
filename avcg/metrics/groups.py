"""Groups of rows by the values of a column, and shares with confidence intervals."""

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
    """The group of each row by the values of a column; more than four different numbers are grouped by quartile.

    Missing values are a group of their own.

    Args:
        frame: B rows, as a pandas or polars frame.
        name: Name of the column.

    Returns:
        The (B,) labels of the rows, and the labels that occur, in order.

    Raises:
        DataError: If there is no such column, or the rows are images.

    >>> import pandas as pd
    >>> groups_of(pd.DataFrame({"age": [20, 30, 40, 50, 60, None]}), "age")[1]
    ['up to 30', 'over 30 to 40', 'over 40 to 50', 'over 50', 'missing']
    """
    if isinstance(frame, np.ndarray):
        raise DataError("Images have no columns to group by.")
    columns = nw.from_native(frame, eager_only=True)
    if name not in columns.columns:
        raise DataError(f"There is no column {name!r} to group by. {did_you_mean(name, columns.columns)}")
    values = [to_json(value) for value in columns[name].to_list()]
    distinct = [value for value in dict.fromkeys(values) if value is not None]
    if len(distinct) > _BANDS and all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in distinct):
        numbers = [value for value in values if value is not None]
        edges = np.unique(np.quantile(numbers, [0.25, 0.5, 0.75], method="inverted_cdf"))
        ends = [f"{edge:.10g}" for edge in edges]
        order = [f"up to {ends[0]}", *(f"over {a} to {b}" for a, b in pairwise(ends)), f"over {ends[-1]}"]
        labels = [None if v is None else order[int(np.searchsorted(edges, v))] for v in values]
    else:
        dtype = columns[name].dtype
        ranked = list(dtype.categories) if isinstance(dtype, nw.Enum) else None
        order, labels = ranked or sorted(distinct, key=lambda v: (isinstance(v, str), v)), values
    groups = np.empty(len(labels), object)
    groups[:] = [MISSING if label is None else label for label in labels]
    present = set(groups.tolist())
    return groups, [label for label in dict.fromkeys([*order, *groups]) if label in present]


def share_of(count: int, n: int, confidence: float) -> tuple[float, float, float]:
    """A share with its two-sided Clopper-Pearson interval; NaN with the interval from 0 to 1 if ``n`` is 0.

    Args:
        count: Number of cases that count.
        n: Number of all cases.
        confidence: Confidence of the interval, in (0, 1).

    Returns:
        The share, and the lower and the upper end of the interval.

    >>> [round(value, 3) for value in share_of(412, 450, 0.95)]
    [0.916, 0.886, 0.94]
    """
    if not n:
        return float("nan"), 0.0, 1.0
    side = (1.0 + confidence) / 2
    return count / n, float(clopper_pearson(count, n, side)), 1.0 - float(clopper_pearson(n - count, n, side))
