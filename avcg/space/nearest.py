"""The allowed number nearest to a wanted one: within limits, on grids, outside gaps and special codes.

numpy alone and in float64, in the user's units.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from avcg.space.constraints import FeasibleSet
from avcg.space.encoding import Codes, Encoding, Flags, Floats
from avcg.space.grids import multiple, multiples

# What a float32 code near 1 cannot tell apart, in units of the scale.
_BLUR = 1e-7


def moved_numbers(
    encoding: Encoding, feasible: FeasibleSet, codes: Codes, own: Codes, missing: Flags
) -> tuple[Codes, Flags]:
    """(..., B, n) codes of the allowed numbers nearest to ``codes``, and which numbers stay at their own (B, n)."""
    current = np.where(missing, np.nan, encoding.unscaled(own))
    wanted = encoding.unscaled(codes)
    numbers = nearest_numbers(encoding, feasible, wanted, current)
    stays = np.isnan(numbers) | (numbers == current)
    moved = np.where(numbers == wanted, codes, encoding.scaled(np.where(stays, encoding.center, numbers)))
    # A move too small for its code to change is not a move.
    slight = ~stays & (np.abs(numbers - current) <= 4 * _BLUR * (1.0 + np.abs(own)) * encoding.scale)
    if slight.any():
        stays |= slight & (encoding.unscaled(moved) == current)
    return moved, stays


def nearest_numbers(encoding: Encoding, feasible: FeasibleSet, wanted: Floats, current: Floats) -> Floats:
    """The allowed number nearest to each wanted one, in the user's units.

    Args:
        encoding: The grids.
        feasible: What is allowed.
        wanted: (..., B, n) any numbers.
        current: (B, n) numbers of the factuals, NaN where missing.

    Returns:
        (..., B, n), NaN where a missing number may not be filled.
    """
    low, high = number_limits(feasible, current)
    value = _clipped(wanted, low, high, encoding.scale)
    for step, decimals, at in encoding.grids:
        on_grid = _nearest_multiple(wanted[..., at], low[:, at], high[:, at], step, decimals)
        value[..., at] = np.where(np.isnan(on_grid), current[:, at], on_grid)
    for j in encoding.pieces:
        nearest = _nearest_in_pieces(encoding, j, wanted[..., j], low[:, j], high[:, j])
        value[..., j] = np.where(np.isnan(nearest), current[:, j], nearest)
    return np.where(np.abs(wanted - current) <= np.abs(wanted - value), current, value)


def _clipped(wanted: Floats, low: Floats, high: Floats, scale: Any) -> Floats:
    """The nearest number within bounds, where the low bound is at most the high one."""
    value: Floats = np.minimum(np.maximum(wanted, low), high)
    # The float32 code of a bound decodes to nearly the bound, e.g. 0 to 2e-09: the bound itself is meant.
    for bound in (low, high):
        value = np.where(np.abs(value - bound) <= _BLUR * scale, bound, value)
    return value


def _nearest_multiple(wanted: Floats, low: Floats, high: Floats, step: float, decimals: int) -> Floats:
    """The nearest multiple of a step within bounds, NaN where there is none."""
    first, last = multiples(low, high, step, decimals)
    nearest = np.minimum(np.maximum(np.rint(wanted / step), first), last)
    return np.where(first <= last, multiple(nearest, step, decimals), np.nan)


def _nearest_in_pieces(encoding: Encoding, j: int, wanted: Floats, low: Floats, high: Floats) -> Floats:
    """The number of one column that is nearest to each wanted one, within bounds and outside gaps and special codes.

    Args:
        encoding: The pieces that gaps and special codes leave, and the grid.
        j: Position of the column among the numbers.
        wanted: (..., B) any numbers.
        low: (B,) lowest allowed numbers.
        high: (B,) highest allowed numbers.

    Returns:
        (..., B), NaN where there is none.
    """
    step, best = float(encoding.steps[j]), np.full(wanted.shape, np.nan)
    for bottom, top in encoding.pieces[j].tolist():
        floor, ceiling = np.maximum(low, bottom), np.minimum(high, top)
        if step:
            value = _nearest_multiple(wanted, floor, ceiling, step, encoding.decimals[j])
        else:
            inside = _clipped(wanted, floor, ceiling, encoding.scale[j])
            value = np.where(floor <= ceiling, inside, np.nan)
        best = np.where(np.isnan(best) | (np.abs(wanted - value) < np.abs(wanted - best)), value, best)
    return best


def movable_ends(encoding: Encoding, feasible: FeasibleSet, current: Floats) -> tuple[Floats, Floats]:
    """(B, n) lowest and highest numbers that each number may be moved to, in the user's units.

    The ends are on the grid of the column. They are NaN where the number may not be moved to any value, and both the
    present number where that is the only one.

    Args:
        encoding: The grids, gaps and special codes.
        feasible: What is allowed.
        current: (B, n) numbers of the factuals, NaN where missing.
    """
    low, high = (bound.copy() for bound in number_limits(feasible, current))
    for step, decimals, at in encoding.grids:
        first, last = multiples(low[:, at], high[:, at], step, decimals)
        there = first <= last
        low[:, at] = np.where(there, multiple(first, step, decimals), np.nan)
        high[:, at] = np.where(there, multiple(last, step, decimals), np.nan)
    for j in encoding.pieces:
        ends = low[:, j], high[:, j]
        low[:, j], high[:, j] = (_nearest_in_pieces(encoding, j, end, *ends) for end in ends)
    return low, high


def number_limits(feasible: FeasibleSet, current: Floats) -> tuple[Floats, Floats]:
    """(B, n) lowest and highest allowed numbers, in the user's units."""
    missing = np.isnan(current)
    return feasible.limits.interval(np, current, missing if missing.any() else None)


def missing_numbers(encoding: Encoding, x: Codes) -> Flags:
    """(..., B, n) where a number is missing in encoded rows."""
    missing = np.zeros((*x.shape[:-1], len(encoding.numeric)), bool)
    can_miss = encoding.missing_at >= 0
    missing[..., can_miss] = x[..., encoding.missing_at[can_miss]] > 0.5
    return missing


def at_special(encoding: Encoding, x: Codes) -> Flags:
    """(..., B, n) where a number is a special code."""
    if not encoding.special[0].shape[1]:
        return np.zeros((*x.shape[:-1], len(encoding.numeric)), bool)
    return encoding.at_special(encoding.unscaled(x[..., encoding.number_at])) & ~missing_numbers(encoding, x)
