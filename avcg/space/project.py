"""The nearest point that breaks no constraint, exactly. `avcg.space.check` looks whether one was broken.

numpy alone and in float64 where it matters: this is what people receive, on any machine.
"""

from __future__ import annotations

import numpy as np

from avcg.errors import DataError
from avcg.schema.features import Continuous
from avcg.space.categories import own_slots
from avcg.space.constraints import FeasibleSet
from avcg.space.encoding import Codes, Encoding, Flags, Floats, Values
from avcg.space.links import enterable_by_leader, follow
from avcg.space.nearest import at_special, missing_numbers, moved_numbers, nearest_numbers, number_limits
from avcg.space.rules import Bounds, Rules


def project(encoding: Encoding, feasible: FeasibleSet, x_cf: Codes, x: Codes) -> Codes:
    """The allowed point nearest to each candidate.

    Args:
        encoding: The codes.
        feasible: What is allowed.
        x_cf: (K, B, D) any finite codes.
        x: (B, D) the factuals.

    Returns:
        (K, B, D). Features that end where they began have the factual's own codes, bit for bit.
    """
    if np.isnan(x_cf).any():
        raise DataError(f"{int(np.isnan(x_cf).sum())} codes to project are NaN: the generator has diverged.")
    result = np.broadcast_to(x, x_cf.shape).copy()
    _project_numbers(encoding, feasible, x_cf, x, result)
    if len(encoding.blocks):
        result[..., encoding.slot_at] = _project_choices(encoding, feasible, x_cf, x)
    for link in feasible.links:
        follow(encoding, link, result, x)
    if feasible.rules is not None:
        result = _obeyed(encoding, feasible, feasible.rules, result, x, np.ones((), bool))
    if feasible.max_changes is None:
        return result
    kept = _keep_dearest(encoding, feasible, result, x)
    if feasible.rules is not None and kept is not result:  # to undo one change may break a rule
        units = np.take(_changed_features(encoding, kept, x) @ members(feasible) > 0, feasible.unit, axis=-1)
        kept = _obeyed(encoding, feasible, feasible.rules, kept, x, units)
    return kept


def _obeyed(encoding: Encoding, feasible: FeasibleSet, rules: Rules, result: Codes, x: Codes, free: Flags) -> Codes:
    """Candidates (K, B, D) that obey the rules between columns, by changing the columns that are free (K, B, features).

    What repair finds in exact numbers becomes codes, and is then checked as the codes have it, so that projecting once
    more changes nothing.
    """
    k, b = np.nonzero((_changed_features(encoding, result, x) > 0)[..., rules.bound].any(axis=-1))
    if not len(k):
        return result
    codes, own = result[k, b], x[b]
    allowed = feasible if feasible.rows == 1 else feasible.take(b)
    factual, point = _values(encoding, own), _values(encoding, codes)
    bounds = rule_bounds(encoding, allowed, rules, own, factual)
    may_move = np.broadcast_to(free, (*result.shape[:2], len(encoding.schema)))[k, b]
    settled = rules.approach(point, factual, bounds, may_move, rules.code_blur(point))
    computed = rules.derived.targets  # once more below, from numbers as the codes have them
    settled.numbers[:, computed] = point.numbers[:, computed]
    moved, stays = moved_numbers(
        encoding, allowed, encoding.scaled(_filled(encoding, settled.numbers)), own[:, encoding.number_at],
        np.isnan(factual.numbers),
    )  # fmt: skip
    codes = _written(encoding, codes, point, settled, np.where(stays, own[:, encoding.number_at], moved))
    nearly = _values(encoding, codes)
    final = rules.finish(nearly, factual, bounds, rules.code_blur(nearly))
    codes = _written(encoding, codes, nearly, final, encoding.scaled(_filled(encoding, final.numbers)))
    spans = [block.stop - block.start for block in encoding.slices]
    back = np.repeat(~rules.changed(final, factual), spans, axis=-1)
    result = result.copy()
    result[k, b] = np.where(back, own, codes)
    return result


def _written(encoding: Encoding, codes: Codes, before: Values, after: Values, numbers: Codes) -> Codes:
    """(N, D) codes in which the values that differ are replaced; ``numbers`` (N, n) are the codes of those after."""
    result, at, can_miss = codes.copy(), encoding.number_at, encoding.missing_at >= 0
    gap = np.isnan(after.numbers)
    same = (before.numbers == after.numbers) | (np.isnan(before.numbers) & gap)
    result[:, at] = np.where(same, codes[:, at], np.where(gap, np.float32(0.0), numbers))
    result[:, encoding.missing_at[can_miss]] = gap[:, can_miss]
    if len(encoding.blocks):
        result[:, encoding.slot_at] = 0.0
        result[np.arange(len(codes))[:, None], encoding.first_codes + after.choices] = 1.0
    return result


def _filled(encoding: Encoding, numbers: Floats) -> Floats:
    return np.where(np.isfinite(numbers), numbers, encoding.center)


def _values(encoding: Encoding, codes: Codes) -> Values:
    """The values that (N, D) codes stand for."""
    numbers = np.where(missing_numbers(encoding, codes), np.nan, encoding.unscaled(codes[:, encoding.number_at]))
    return Values(numbers, encoding.decode_choices(codes))


def rule_bounds(encoding: Encoding, feasible: FeasibleSet, rules: Rules, x: Codes, factual: Values) -> Bounds:
    """What the rows (N, D) may do, derived columns included."""
    low, high = (bound.copy() for bound in number_limits(feasible, factual.numbers))
    missing, at = np.isnan(factual.numbers), rules.derived.targets
    lowest, highest = feasible.limits.ranges.around(np, factual.numbers, missing if missing.any() else None)
    low[:, at], high[:, at] = lowest[:, at], highest[:, at]
    return Bounds(low, high, allowed_entries(encoding, feasible, x))


def gated(encoding: Encoding, raw: Codes, x: Codes, gates: Flags) -> Codes:
    """Decoder output with the factual's number, present or missing, wherever a gate is shut.

    Args:
        encoding: Layout of the codes.
        raw: (K, B, D) decoder output.
        x: (B, D) the factuals.
        gates: (K, B, n) whether each number moves, and whether a missing one is filled.
    """
    at, missing_at, can_miss = encoding.number_at, encoding.missing_at, encoding.missing_at >= 0
    missing, wanted = missing_numbers(encoding, x), raw.copy()
    wanted[..., at] = np.where(gates | missing, raw[..., at], x[:, at])
    wanted[..., missing_at[can_miss]] = (missing & ~gates)[..., can_miss]
    return wanted


def _project_choices(encoding: Encoding, feasible: FeasibleSet, x_cf: Codes, x: Codes) -> Codes:
    """(K, B, M) 1 at the category with the largest code of those that may be entered; at the present one in a tie.

    Candidates and rows are flattened to one table and its cells are indexed: that is fastest for one row and for many.
    """
    slots = len(encoding.slot_at)
    allowed = allowed_entries(encoding, feasible, x)
    codes = np.where(allowed, x_cf[..., encoding.slot_at], np.float32(-np.inf)).reshape(-1, slots)
    largest = np.empty((len(codes), len(encoding.slots)), np.intp)
    for j, block in enumerate(encoding.slots):
        largest[:, j] = codes[:, block].argmax(axis=-1)
    largest += encoding.first_slots
    own = own_slots(np, x[:, encoding.slot_at], encoding.first_slots, encoding.within)
    if len(codes) > len(own):
        own = np.tile(own, (len(codes) // len(own), 1))
    rows = np.arange(len(codes))[:, None]
    stays = codes[rows, own] >= codes[rows, largest]
    result = np.zeros(codes.shape, np.float32)
    result[rows, np.where(stays, own, largest)] = 1.0
    return result.reshape(*x_cf.shape[:-1], slots)


def _project_numbers(encoding: Encoding, feasible: FeasibleSet, x_cf: Codes, x: Codes, result: Codes) -> None:
    at, missing_at, can_miss = encoding.number_at, encoding.missing_at, encoding.missing_at >= 0
    missing = missing_numbers(encoding, x)
    moved, stays = moved_numbers(encoding, feasible, x_cf[..., at], x[:, at], missing)
    stays[..., can_miss] |= missing[:, can_miss] & (x_cf[..., missing_at[can_miss]] > 0.5)
    result[..., at] = np.where(stays, x[:, at], moved)
    result[..., missing_at[can_miss]] = stays[..., can_miss] & missing[:, can_miss]


def immovable(encoding: Encoding, feasible: FeasibleSet, x: Codes) -> Flags:
    """(B,) rows that no projection changes, whatever the candidate.

    Args:
        encoding: The codes.
        feasible: What is allowed.
        x: (B, D) the factuals.
    """
    leads = feasible.unit == np.arange(len(feasible.unit))  # a follower moves with its leader, and not by itself
    slots = np.repeat(leads[encoding.categorical_columns], [block.stop - block.start for block in encoding.slots])
    entered = allowed_entries(encoding, feasible, x) & (x[:, encoding.slot_at] < 0.5)
    moves = np.asarray(entered[:, slots].any(axis=1))
    if not moves.all():
        own, missing = x[:, encoding.number_at], missing_numbers(encoding, x)
        ends = np.stack(number_limits(feasible, np.where(missing, np.nan, encoding.unscaled(own))))
        _, stays = moved_numbers(encoding, feasible, encoding.scaled(ends), own, missing)
        moves |= ~np.asarray(stays.all(axis=0))[:, leads[encoding.numeric_columns]].all(axis=1)
    return ~moves if feasible.max_changes is None else ~(moves & (feasible.max_changes > 0))


def allowed_entries(encoding: Encoding, feasible: FeasibleSet, x: Codes) -> Flags:
    """(B, M) the categories each row may be in, with the limits of followers."""
    entries = enterable(encoding, feasible, x)
    if any(link.knots is None for link in feasible.links):
        missing = missing_numbers(encoding, x)
        low, high = feasible.limits.coded(encoding).interval(np, x[:, encoding.number_at], missing)
        for link in feasible.links:
            if link.knots is None:
                span, block = encoding.slots[encoding.kind_index[link.leader]], encoding.slices[link.leader]
                barred = np.zeros_like(x)
                barred[:, encoding.slot_at] = ~entries
                entries[:, span] &= enterable_by_leader(
                    link, link.table, link.known, x[:, block], low, high, barred, encoding
                )
    return entries


def enterable(encoding: Encoding, feasible: FeasibleSet, x: Codes) -> Flags:
    """(B, M) the categories each row may be in, whatever follows from them."""
    current, (_, back) = x[:, encoding.slot_at], encoding.padded
    entries: Flags = feasible.limits.categories.enterable(np, current, encoding.first_slots, encoding.within, back)
    return entries


def _keep_dearest(encoding: Encoding, feasible: FeasibleSet, result: Codes, x: Codes) -> Codes:
    """Undo the cheapest changes until the allowed number is left."""
    assert feasible.max_changes is not None
    worth = unit_charges(encoding, feasible, result, x)
    order = np.argsort(-worth, axis=-1, kind="stable")
    rank = np.argsort(order, axis=-1, kind="stable")
    kept = np.take(rank < feasible.max_changes[:, None], feasible.unit, axis=-1)
    return np.where(np.repeat(kept, [s.stop - s.start for s in encoding.slices], axis=-1), result, x)


def unit_charges(encoding: Encoding, feasible: FeasibleSet, x_cf: Codes, x: Codes) -> Codes:
    """(..., B, features) cost of each unit of change, at the position of its leader; above 0 if it changed."""
    starts = [s.start for s in encoding.slices]
    worth = np.add.reduceat(charges(encoding, x_cf, x), starts, axis=-1)
    of_unit = members(feasible)
    # A change without a price is still a change.
    return worth @ of_unit + 1e-6 * (_changed_features(encoding, x_cf, x) @ of_unit > 0)


def _changed_features(encoding: Encoding, x_cf: Codes, x: Codes) -> Codes:
    """(..., B, features) 1 for each feature whose codes differ."""
    starts = [s.start for s in encoding.slices]
    return np.logical_or.reduceat(x_cf != x, starts, axis=-1).astype(np.float32)


def members(feasible: FeasibleSet) -> Codes:
    """(features, features) 1 where a feature counts as a change of the unit at that position."""
    members = feasible.unit[:, None] == np.arange(len(feasible.unit))
    if feasible.rules is not None:
        members[feasible.rules.computed] = False  # what is computed from others does not count
    return members.astype(np.float32)


def lock_change(encoding: Encoding, feasible: FeasibleSet, x_cf: Codes, x: Codes, rank: int) -> FeasibleSet | None:
    """Constraints with one change of each answer locked; see `TabularSpace.lock_change`."""
    worth = unit_charges(encoding, feasible, x_cf, x)
    if rank >= worth.shape[1]:
        return None
    order, rows = np.argsort(-worth, axis=1, kind="stable")[:, rank], np.arange(len(x))
    free = np.ones(worth.shape, bool)
    free[rows, order] = worth[rows, order] <= 0
    return feasible.narrow(encoding, vary=free[:, feasible.unit])


def charges(encoding: Encoding, x_cf: Codes, x: Codes) -> Codes:
    """(..., B, D) contribution of each code to the distance; see `TabularSpace.distance`."""
    difference = np.abs(x_cf - x)
    at, missing_at, can_miss = encoding.number_at, encoding.missing_at, encoding.missing_at >= 0
    moved = difference[..., at] > 0
    # Where a number is missing before or after, only the flag and the price of a change are charged.
    gaps = missing_at[can_miss]
    difference[..., at[can_miss]] *= (1 - x_cf[..., gaps]) * (1 - x[..., gaps])
    moved[..., can_miss] |= difference[..., gaps] > 0
    cost = difference * encoding.prices
    if encoding.special[0].shape[1]:
        # Between a code and a number there is no distance, only a change.
        special = at_special(encoding, x) | at_special(encoding, x_cf)
        cost[..., at] = np.where(special, moved * encoding.special_prices, cost[..., at])
    cost[..., at] += moved * encoding.change_prices
    return cost


def pairwise_distance(encoding: Encoding, x: Codes, rows: Codes) -> Codes:
    """(N, m) distances between encoded rows, without prices per change of numbers.

    Codes other than numbers are 0 or 1, so their absolute differences are sums and products.

    Args:
        encoding: The prices.
        x: (N, D) encoded rows.
        rows: (m, D) other encoded rows.
    """
    flags = np.ones(encoding.width, bool)
    flags[encoding.number_at] = False
    prices, mine, theirs = encoding.prices[flags], x[:, flags], rows[:, flags]
    result = np.asarray((mine @ prices)[:, None] + theirs @ prices - (mine * (2 * prices)) @ theirs.T, np.float32)
    special = [at_special(encoding, codes) for codes in (x, rows)]
    for i, j in enumerate(encoding.number_at):
        part = np.abs(encoding.prices[j] * x[:, j, None] - encoding.prices[j] * rows[:, j])
        if special[0][:, i].any() or special[1][:, i].any():
            either = special[0][:, None, i] | special[1][:, i]
            part = np.where(either, (x[:, j, None] != rows[:, j]) * encoding.special_prices[i], part)
        result += part
    return result


def restore(encoding: Encoding, feasible: FeasibleSet, codes: Codes, factuals: Values) -> Values:
    """Projected codes to exact values.

    A number is decoded only if its code changed, and is then rounded within the limits of the exact factual. Any other
    number is the factual's own, exactly. Followers of a categorical leader are those of the training rows.

    Args:
        encoding: The codes.
        feasible: What is allowed.
        codes: (B, D).
        factuals: B rows.
    """
    current, at, choices = factuals.numbers, encoding.number_at, encoding.decode_choices(codes)
    gap, still_gap = np.isnan(current), missing_numbers(encoding, codes)
    same = (codes[:, at] == encoding.scaled(np.where(gap, encoding.center, current))) & (gap == still_gap)
    near = nearest_numbers(encoding, feasible, encoding.unscaled(codes[:, at]), current)
    numbers = np.where(same, current, np.where(still_gap, np.nan, near))
    for link in feasible.links:
        if link.knots is None:
            lead = encoding.kind_index[link.leader]
            moved = choices[:, lead] != factuals.choices[:, lead]
            for position in link.followers:
                if isinstance(encoding.schema.features[position], Continuous):
                    j = encoding.kind_index[position]
                    numbers[moved, j] = link.exact.numbers[choices[moved, lead], j]
    answers = Values(numbers, choices)
    return answers if feasible.rules is None else _exactly(encoding, feasible, feasible.rules, answers, factuals)


def _exactly(encoding: Encoding, feasible: FeasibleSet, rules: Rules, answers: Values, factuals: Values) -> Values:
    """Answers that obey the rules in exact numbers, by changing no other columns than they changed already."""
    changed = changes(encoding, answers, factuals)
    rows = np.flatnonzero(changed[:, rules.bound].any(axis=1))
    if not len(rows):
        return answers
    point, factual = answers.take(rows), factuals.take(rows)
    allowed = feasible if feasible.rows == 1 else feasible.take(rows)
    bounds, exact = (
        rule_bounds(encoding, allowed, rules, encoding.encode(factual), factual),
        np.zeros(point.numbers.shape),
    )
    settled = rules.settle(point, factual, bounds, changed[rows], exact)
    # The rules know of no gaps and special codes.
    moved = (settled.numbers != point.numbers) & np.isin(np.arange(settled.numbers.shape[1]), list(encoding.pieces))
    near = nearest_numbers(encoding, allowed, settled.numbers, factual.numbers)
    settled = rules.finish(Values(np.where(moved, near, settled.numbers), settled.choices), factual, bounds, exact)
    result = Values(answers.numbers.copy(), answers.choices.copy())
    result.numbers[rows], result.choices[rows] = settled.numbers, settled.choices
    return result


def changes(encoding: Encoding, answers: Values, factuals: Values) -> Flags:
    """(N, features) which cells differ."""
    changed = np.zeros((len(answers), len(encoding.schema)), bool)
    both_missing = np.isnan(answers.numbers) & np.isnan(factuals.numbers)
    changed[:, encoding.numeric_columns] = (answers.numbers != factuals.numbers) & ~both_missing
    changed[:, encoding.categorical_columns] = answers.choices != factuals.choices
    return changed
