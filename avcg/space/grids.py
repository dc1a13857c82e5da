"""Multiples of a step, as people write them. numpy alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from avcg.schema.features import Continuous

Floats = NDArray[np.float64]

# From here on float64 no longer holds every whole number: 2**53 may stand for 2**53 + 1.
EXACT = 2.0**53
_NARROW = float(np.finfo(np.float32).eps) / 2  # relative rounding of a float32 column


def tidied(feature: Continuous, numbers: Floats) -> Floats:
    """Numbers of a column on its grid where they are off it by the rounding of a float32 column: 0.3 for 0.30000001."""
    if not feature.step:
        return numbers
    on_grid = multiple(np.rint(numbers / feature.step), feature.step, feature.decimals)
    rounded = np.round(numbers, feature.decimals) != numbers
    return np.where(rounded & (np.abs(on_grid - numbers) <= _NARROW * np.abs(numbers)), on_grid, numbers)


def multiple(count: Floats, step: float, decimals: int) -> Floats:
    """A multiple of a step, rounded to its decimals: 3 * 0.1 as 0.3."""
    return count * step if decimals == 0 else np.round(count * step, decimals)


def multiples(low: Floats, high: Floats, step: float, decimals: int) -> tuple[Floats, Floats]:
    """The first and the last multiple of a step within bounds, in steps; the first is above the last if there is none.

    The multiples themselves are compared, since a quotient may be rounded across a whole number: 0.3 / 0.1 is below 3.

    A number that moves ends on a multiple that float64 holds exactly. From 2**53 on, every float64 is a whole number,
    but a bound may have been rounded outward when it was read: the next float64 inward is within it. Multiples of any
    other step can be counted exactly up to there only.
    """
    first, last = np.ceil(low / step), np.floor(high / step)
    if step == 1:
        first = np.where(np.abs(low) >= EXACT, np.nextafter(low, np.inf), first)
        return first, np.where(np.abs(high) >= EXACT, np.nextafter(high, -np.inf), last)
    first = np.where(multiple(first - 1, step, decimals) >= low, first - 1, first)
    last = np.where(multiple(last + 1, step, decimals) <= high, last + 1, last)
    first = np.where(multiple(first, step, decimals) < low, first + 1, first)
    last = np.where(multiple(last, step, decimals) > high, last - 1, last)
    most = np.floor((EXACT - 1) / max(step, 1.0))
    return np.maximum(first, -most), np.minimum(last, most)
