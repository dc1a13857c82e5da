"""Stretches of numbers: where training rows lie, the holes between them, and the nearest number outside all holes.

A hole is an open interval that no answer may enter: a gap between two stretches of training rows, or the close
neighbourhood of a special code. numpy alone, and no knowledge of schemas.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# A gap is this many times the median distance of neighbouring values, and this share of the range of nearly all rows.
_TIMES_MEDIAN, _SHARE_OF_RANGE = 10.0, 0.15
_NEARLY_ALL = (0.01, 0.99)
# Fewer rows than this beyond a gap are outliers, such as the tail of incomes, and not a stretch of their own.
_MIN_ROWS, _MIN_SHARE = 10, 0.01


def find_gaps(numbers: Floats) -> Floats:
    """The (m, 2) gaps in the values of a column, each as the numbers at its two ends.

    A gap lies between two neighbouring values. It is more than 10 times as wide as the median distance of neighbours,
    and wider than 15% of the range from the 1st to the 99th percentile. On each side of it lie at least 10 rows and 1%
    of the rows, so that the sparse tail of a skewed column is not a sequence of gaps.

    Args:
        numbers: (N,) values, NaN where missing.

    >>> find_gaps(np.concatenate([np.arange(50.0), np.arange(200.0, 250.0)]))
    array([[ 49., 200.]])
    """
    values, counts = np.unique(numbers[~np.isnan(numbers)], return_counts=True)
    if len(values) < 3:
        return np.zeros((0, 2))
    with np.errstate(over="ignore"):
        widths = np.diff(values)
    below = np.cumsum(counts)
    total = int(below[-1])
    first, last = values[np.searchsorted(below, np.array(_NEARLY_ALL) * total).clip(0, len(values) - 1)]
    least = max(_MIN_ROWS, _MIN_SHARE * total)
    populated = np.minimum(below[:-1], total - below[:-1]) >= least
    with np.errstate(over="ignore", invalid="ignore"):
        wide = (widths > _TIMES_MEDIAN * np.median(widths)) & (widths > _SHARE_OF_RANGE * (last - first))
    at = np.flatnonzero(populated & wide & np.isfinite(widths))
    return np.stack([values[at], values[at + 1]], axis=1)


def pieces_between(holes: Sequence[tuple[float, float]]) -> Floats:
    """The (m, 2) closed intervals that open holes leave of all numbers, ascending.

    >>> pieces_between([(5.0, 7.0), (1.0, 2.0), (6.0, 9.0)]).tolist()
    [[-inf, 1.0], [2.0, 5.0], [9.0, inf]]
    """
    ends = [-np.inf]
    for low, high in sorted(holes):
        if len(ends) > 1 and low < ends[-1]:  # overlaps the hole before
            ends[-1] = max(ends[-1], high)
        else:
            ends += [low, high]
    return np.array([*ends, np.inf]).reshape(-1, 2)
