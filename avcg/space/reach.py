"""What a row may become: every point of a small feasible set, and the largest value of a linear function on any.

A *unit of change* is a column, or a leader with its followers. Units are independent of each other but for the limit on
changes, so the feasible set of a row is a product of the values of its units. numpy alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from avcg.space.constraints import FeasibleSet
from avcg.space.encoding import Codes, Encoding, Floats, Positions
from avcg.space.grids import multiple
from avcg.space.links import Link, between_knots
from avcg.space.nearest import missing_numbers, movable_ends, number_limits
from avcg.space.project import allowed_entries, project

# A float32 code is known up to so much, relative to 1 plus its size.
_BLUR = 8 * float(np.finfo(np.float32).eps)


def unit_columns(encoding: Encoding, feasible: FeasibleSet) -> dict[int, Positions]:
    """The codes (W,) of each unit of change, by the position of its leader in the schema."""
    spans = [np.arange(span.start, span.stop) for span in encoding.slices]
    return {
        int(leader): np.concatenate([spans[position] for position in np.flatnonzero(feasible.unit == leader)])
        for leader in np.unique(feasible.unit)
    }


def number_ends(encoding: Encoding, feasible: FeasibleSet, x: Codes) -> tuple[Floats, Floats]:
    """(B, n) lowest and highest numbers that each number of encoded rows may be moved to; see `movable_ends`."""
    current = np.where(missing_numbers(encoding, x), np.nan, encoding.unscaled(x[:, encoding.number_at]))
    return movable_ends(encoding, feasible, current)


def each_value(encoding: Encoding, feasible: FeasibleSet, x: Codes, first: Floats, count: Floats) -> Codes:
    """Each row with the k-th value of every unit at once, whatever the limit on changes.

    Args:
        encoding: The codes.
        feasible: What is allowed.
        x: (B, D) the factuals.
        first: (B, n) the number to begin with, in the user's units; see `grid_values`.
        count: (B, n) how many numbers there are, each a step above the one before; 0: the number stays.

    Returns:
        (K, B, D), K being the largest number of values. Followers follow. A unit stays where it has fewer values, or
        the k-th category may not be entered.
    """
    widest = max((block.stop - block.start for block in encoding.blocks), default=1)
    wanted = np.repeat(x[None], max(widest, int(count.max(initial=0))), axis=0)
    _want_categories(encoding, wanted)
    rank = np.arange(len(wanted))[:, None, None]
    numbers = np.where(rank < count, first, encoding.center)
    for step, decimals, at in encoding.grids:
        lowest = np.rint(np.nan_to_num(first[:, at]) / step)
        on_grid = multiple(lowest + rank, step, decimals)
        numbers[..., at] = np.where(rank < count[:, at], on_grid, numbers[..., at])
    at, missing_at = encoding.number_at, encoding.missing_at
    wanted[..., at] = np.where(rank < count, encoding.scaled(numbers), x[:, at])
    can_miss = missing_at >= 0
    stays_missing = (rank >= count) & missing_numbers(encoding, x)
    wanted[..., missing_at[can_miss]] = stays_missing[..., can_miss]
    return project(encoding, replace(feasible, max_changes=None), wanted, x)


def _want_categories(encoding: Encoding, wanted: Codes) -> None:
    for block in encoding.blocks:
        width = min(block.stop - block.start, len(wanted))
        wanted[:width, :, block] = np.eye(block.stop - block.start, dtype=np.float32)[:width, None]


def small_sets(
    encoding: Encoding, feasible: FeasibleSet, x: Codes, most: int, at_once: int = 2**16
) -> Iterator[tuple[Positions, Codes]]:
    """Every point of the feasible sets that have few, those of some rows at a time.

    A row has infinitely many points if a number without a step has room to move, or one with so small a step that its
    codes do not tell the multiples apart.

    Args:
        encoding: The codes.
        feasible: What is allowed.
        x: (B, D) the factuals.
        most: Number of points; rows that may become more are left out.
        at_once: Number of points in a pair, up to those of a single row, which bounds memory.

    Yields:
        The (P,) positions in x of the rows, ascending, and the (P, D) points that they may become, themselves among
        them; some more than once if there are rules between columns. All points of a row are in one pair.
    """
    first, count, values = grid_values(encoding, feasible, x)
    caps = np.full(len(x), len(feasible.unit))
    if feasible.max_changes is not None:
        caps = np.minimum(caps, feasible.max_changes)
    points = _points(values, caps)
    count[caps == 0] = 0.0
    count[:, (feasible.unit != np.arange(len(feasible.unit)))[encoding.numeric_columns]] = 0.0  # they follow
    small = np.flatnonzero(points <= most)
    # Rows with as many points up to a factor of 2 go together, as each takes the room of the largest.
    sizes = np.ceil(np.log2(points[small])).astype(int)
    widest = max((block.stop - block.start for block in encoding.blocks), default=1)
    for size in np.unique(sizes):
        members, count_at_once = small[sizes == size], max(1, at_once // max(2**size, widest))
        for start in range(0, len(members), count_at_once):
            rows = members[start : start + count_at_once]
            part = feasible if feasible.rows == 1 else feasible.take(rows)
            apart = replace(part, rules=None)  # units are independent only without rules between them
            each = each_value(encoding, apart, x[rows], first[rows], count[rows])
            owner, reached = _product(encoding, apart, each, x[rows], caps[rows])
            if feasible.rules is not None:  # every point that obeys them is its own projection
                reached = project(
                    encoding, part if part.rows == 1 else part.take(owner), reached[None], x[rows][owner]
                )[0]
            yield rows[owner], reached


def grid_values(encoding: Encoding, feasible: FeasibleSet, x: Codes) -> tuple[Floats, Floats, Floats]:
    """(B, n) lowest numbers and how many there are from there on, and (B, U) how many values each unit may take."""
    low, high = number_ends(encoding, feasible, x)
    missing, steps = missing_numbers(encoding, x), encoding.steps
    current = np.where(missing, np.nan, encoding.unscaled(x[:, encoding.number_at]))
    extent = 1.0 + np.maximum(np.abs(low - encoding.center), np.abs(high - encoding.center)) / encoding.scale
    count = np.where(np.isnan(low), 0.0, np.where(low == high, 1.0, np.inf))
    told_apart = (steps > 2 * _BLUR * extent * encoding.scale) & (low < high)
    count[told_apart] = (np.rint((high - low) / np.where(steps > 0, steps, 1.0)) + 1)[told_apart]
    on_grid = (current >= low) & (current <= high)
    on_grid &= (steps == 0) | (encoding.on_grid(current) == current)
    features = np.ones((len(x), len(encoding.schema)))
    features[:, encoding.numeric_columns] = count + 1 - on_grid
    entries = allowed_entries(encoding, feasible, x)
    for position, slots in zip(encoding.categorical_columns, encoding.slots, strict=True):
        features[:, position] = entries[:, slots].sum(axis=1)
    return low, count, features[:, np.unique(feasible.unit)]


def _points(values: Floats, caps: Positions) -> Floats:
    """(B,) number of points with at most ``caps`` units changed, of units with (B, U) values."""
    others = np.minimum(values - 1, 1e12)  # infinitely many are as good as very many, and 0 times them is 0
    exactly = np.zeros((len(values), values.shape[1] + 1))
    exactly[:, 0] = 1.0
    for unit in range(values.shape[1]):
        exactly[:, 1:] = np.minimum(exactly[:, 1:] + exactly[:, :-1] * others[:, unit, None], 1e12)
    return np.where(np.arange(exactly.shape[1]) <= caps[:, None], exactly, 0.0).sum(axis=1)


def _product(
    encoding: Encoding, feasible: FeasibleSet, each: Codes, x: Codes, caps: Positions
) -> tuple[Positions, Codes]:
    """The (P,) rows and (P, D) points of all combinations of values with at most ``caps`` units changed."""
    owner, points, changes = np.arange(len(x)), x, np.zeros(len(x), np.intp)
    for columns in unit_columns(encoding, feasible).values():
        values = each[..., columns]
        new = (values != x[:, columns]).any(axis=-1)  # (K, B)
        new[1:] &= (values[1:] != values[:-1]).any(axis=-1)  # numbers in a hole are projected to its ends
        order = np.argsort(~new, axis=0, kind="stable")
        copies = 1 + np.where(changes < caps[owner], new.sum(axis=0)[owner], 0)
        source = np.repeat(np.arange(len(owner)), copies)
        rank = np.arange(len(source)) - np.repeat(np.cumsum(copies) - copies, copies)  # 0: the unit stays
        owner, points, changes = owner[source], points[source], changes[source] + (rank > 0)
        moved = np.flatnonzero(rank)
        value = order[rank[moved] - 1, owner[moved]]
        points[moved[:, None], columns] = each[value[:, None], owner[moved, None], columns]
    return owner, points


def largest_scores(encoding: Encoding, feasible: FeasibleSet, x: Codes, weights: Floats) -> Floats:
    """(B,) the largest value of a linear function of the codes on any point that each row may become.

    Never too small: infinite if a column is derived, and other rules between columns are left out. Without rules it is
    the largest value up to rounding, except where columns follow a number: between two values of the training rows,
    categories that follow are taken at whichever is better, and numbers on a grid a step better.

    Args:
        encoding: The codes.
        feasible: What is allowed.
        x: (B, D) the factuals.
        weights: (D,) of the linear function.
    """
    if feasible.rules is not None and len(feasible.rules.computed):
        return np.full(len(x), np.inf)  # a computed column is not bounded by the limits of its own moves
    low, high = number_ends(encoding, feasible, x)
    stays = (low == high) & (low == encoding.unscaled(x[:, encoding.number_at])) & ~missing_numbers(encoding, x)
    ends = (np.where(stays, np.nan, np.stack([low, high])) - encoding.center) / encoding.scale  # (2, B, n)
    apart = replace(feasible, rules=None)  # rules only take points away
    categories = each_value(encoding, apart, x, low, np.zeros(low.shape)).astype(np.float64) - x
    led = {link.leader: link for link in feasible.links if link.knots is not None}
    gains = []
    for leader, columns in unit_columns(encoding, feasible).items():
        j = encoding.kind_index[leader]
        if leader in led:
            gain = _led_gain(encoding, led[leader], x, ends[..., j], weights)
        elif leader in encoding.numeric_columns:
            gain = (weights[encoding.number_at[j]] * ends[..., j]).max(axis=0) - x[:, columns] @ weights[columns]
        else:
            gain = (categories[..., columns] @ weights[columns]).max(axis=0)
        gains.append(np.maximum(np.nan_to_num(gain), 0.0))
    best = -np.sort(-np.stack(gains, axis=1), axis=1)
    if feasible.max_changes is not None:
        best = np.where(np.arange(best.shape[1]) < feasible.max_changes[:, None], best, 0.0)
    size = np.abs(x).astype(np.float64)
    reach = np.nan_to_num(np.abs(np.stack(number_limits(feasible, encoding.unscaled(x[:, encoding.number_at])))))
    size[:, encoding.number_at] += (reach.max(axis=0) + np.abs(encoding.center)) / encoding.scale
    return x @ weights + best.sum(axis=1) + _BLUR * (1.0 + size) @ np.abs(weights)


def _led_gain(encoding: Encoding, link: Link, x: Codes, ends: Floats, weights: Floats) -> Floats:
    """(B,) the most that a number with followers adds to a linear function if it moves; NaN where it may not.

    Args:
        encoding: The codes.
        link: The link, which the number leads.
        x: (B, D) the factuals.
        ends: (2, B) lowest and highest codes of the leader.
        weights: (D,) of the linear function.
    """
    assert link.knots is not None
    knots, table = link.knots, link.table.astype(np.float64)
    at = encoding.slices[link.leader].start
    turns = np.concatenate([ends, np.clip(knots[:, None], ends[0], ends[1])])  # (m + 2, B): linear in between
    value = weights[at] * turns
    near = (knots[:, None] >= knots[_left(knots, ends[0])]) & (knots[:, None] <= knots[_right(knots, ends[1])])
    start = 0
    for position in link.followers:
        span = encoding.slices[position]
        part, start = table[:, start : start + span.stop - span.start], start + span.stop - span.start
        if position in encoding.categorical_columns:
            value = value + np.where(near, (part @ weights[span])[:, None], -np.inf).max(axis=0)
        else:
            j = encoding.kind_index[position]
            value = value + between_knots(np, knots, part, turns) @ weights[span]
            value = value + np.abs(weights[span.start]) * encoding.steps[j] / encoding.scale[j]
    columns = np.concatenate([[at], link.columns])
    return value.max(axis=0) - x[:, columns] @ weights[columns]


def _left(knots: Floats, codes: Floats) -> Positions:
    """The last knot at or below each code, the first where there is none."""
    return np.maximum(np.searchsorted(knots, codes, side="right") - 1, 0)


def _right(knots: Floats, codes: Floats) -> Positions:
    """The first knot at or above each code, the last where there is none."""
    return np.minimum(np.searchsorted(knots, codes), len(knots) - 1)
