"""Multiples of a step, as people write them. numpy alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from avcg.schema.features import Continuous

Floats = NDArray[np.float64]

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
