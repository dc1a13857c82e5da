"""The nearest point that breaks no constraint, exactly, and an independent look at whether one was broken.

numpy alone and in float64 where it matters: this is what people receive, on any machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from avcg.encoding import Codes, Encoding, Flags, Floats, Link, Values
from avcg.errors import DataError
from avcg.features import Categorical, Continuous
from avcg.freedom import Freedom, enterable, interval, leadable

# Room for the rounding of a division such as 0.3 / 0.1, far below any step people use.
_ROUNDING = 1e-12


def project(encoding: Encoding, freedom: Freedom, x_cf: Codes, x: Codes) -> Codes:
    """The allowed point nearest to each candidate.

    Args:
        encoding: The codes.
        freedom: What is allowed.
        x_cf: (K, B, D) any finite codes.
        x: (B, D) the factuals.

    Returns:
        (K, B, D). Features that end where they began have the factual's own codes, bit for bit.
    """
    if np.isnan(x_cf).any():
        raise DataError(f"{int(np.isnan(x_cf).sum())} codes to project are NaN: the generator has diverged.")
    result = np.broadcast_to(x, x_cf.shape).copy()
    at, gap_at = encoding.number_at, encoding.gap_at
    here, missing = _numbers(encoding, x)
    wanted = encoding.unscaled(x_cf[..., at])
    numbers = nearest_numbers(encoding, freedom, wanted, here)
    with_gaps = gap_at >= 0
    stays = np.zeros(numbers.shape, bool)
    stays[..., with_gaps] = missing[:, with_gaps] & (x_cf[..., gap_at[with_gaps]] > 0.5)
    stays |= np.isnan(numbers) | (numbers == here)
    moved = np.where(numbers == wanted, x_cf[..., at], encoding.scaled(np.where(stays, 0.0, numbers)))
    result[..., at] = np.where(stays, x[:, at], moved)
    result[..., gap_at[with_gaps]] = stays[..., with_gaps] & missing[:, with_gaps]

    slots = encoding.slot_at
    entries = allowed_entries(encoding, freedom, x)
    codes = np.where(entries, x_cf[..., slots], -np.inf)
    for block, span in zip(encoding.blocks, encoding.slots, strict=True):
        own = x[:, block].argmax(axis=1)
        stay = np.take_along_axis(codes[..., span], np.broadcast_to(own, codes.shape[:-1])[..., None], -1)[..., 0]
        best = np.where(stay >= codes[..., span].max(axis=-1), own, codes[..., span].argmax(axis=-1))
        result[..., block] = np.eye(block.stop - block.start, dtype=np.float32)[best]
    for link in encoding.links:
        _follow(encoding, link, result, x)
    return result if freedom.max_changes is None else _keep_dearest(encoding, freedom, result, x)


def nearest_numbers(encoding: Encoding, freedom: Freedom, wanted: Floats, here: Floats) -> Floats:
    """The allowed number nearest to each wanted one, in the user's units.

    Args:
        encoding: For the grids.
        freedom: What is allowed.
        wanted: (..., B, n).
        here: (B, n) the factuals, NaN where missing.

    Returns:
        (..., B, n), NaN where a gap may not be filled.
    """
    low, high = _room(freedom, here)
    value = np.clip(wanted, low, high)
    for j, (step, decimals) in enumerate(zip(encoding.steps, encoding.decimals, strict=True)):
        if step:
            first, last = _multiples(low[:, j], high[:, j], step)
            nearest = np.clip(np.rint(wanted[..., j] / step), first, last)
            value[..., j] = np.where(first <= last, np.round(nearest * step, decimals), here[:, j])
    return np.where(np.abs(wanted - here) <= np.abs(wanted - value), here, value)


def allowed_entries(encoding: Encoding, freedom: Freedom, x: Codes) -> Flags:
    """(B, M) the categories each row may be in, links heeded."""
    here = x[:, encoding.slot_at]
    entries: Flags = enterable(np, here, freedom.moves.astype(np.float32), freedom.may_enter)
    low, high = interval(
        np,
        x[:, encoding.number_at],
        _numbers(encoding, x)[1],
        encoding.scaled(freedom.low),
        encoding.scaled(freedom.high),
        freedom.no_fall,
        freedom.no_rise,
    )
    for link in encoding.links:
        if link.knots is None:
            span = leader_slots(encoding, link)
            entries[:, span] &= leadable(np, here[:, span], low, high, entries, link_parts(encoding, link))
    return entries


def leader_slots(encoding: Encoding, link: Link) -> slice:
    """Where the slots of a categorical leader lie among all slots."""
    leader = encoding.schema.features[link.leader]
    assert isinstance(leader, Categorical)
    return encoding.slots[encoding.categorical.index(leader)]


def link_parts(encoding: Encoding, link: Link) -> Mapping[str, Any]:
    """A link's table, with its columns sorted into numbers and category slots."""
    place = {int(at): i for i, at in enumerate(encoding.number_at)}
    slot = {int(at): i for i, at in enumerate(encoding.slot_at)}
    numbers = [(i, place[int(at)]) for i, at in enumerate(link.columns) if int(at) in place]
    choices = [(i, slot[int(at)]) for i, at in enumerate(link.columns) if int(at) in slot]
    return {
        "table": link.table,
        "known": link.known,
        "numbers": ([i for i, _ in numbers], [j for _, j in numbers]),
        "choices": ([i for i, _ in choices], [j for _, j in choices]),
    }


def leader_knots(encoding: Encoding, link: Link) -> Floats:
    """(m,) the knots of a numeric leader as codes."""
    assert link.knots is not None
    j = _number(encoding, link.leader)
    return (link.knots - encoding.center[j]) / encoding.scale[j]


def between_knots(xp: Any, knots: Any, table: Any, value: Any) -> Any:
    """The followers of a numeric leader: their codes at its knots, on straight lines in between.

    Args:
        xp: numpy or torch.
        knots: (m,) ascending.
        table: (m, W).
        value: (...) of the leader.

    Returns:
        (..., W).
    """
    left = xp.clip(xp.searchsorted(knots, value) - 1, 0, max(len(knots) - 2, 0))
    right = xp.clip(left + 1, 0, len(knots) - 1)
    span = knots[right] - knots[left]
    share = xp.clip((value - knots[left]) / xp.where(span > 0, span, 1.0), 0.0, 1.0)[..., None]
    return table[left] * (1.0 - share) + table[right] * share


def _follow(encoding: Encoding, link: Link, result: Codes, x: Codes) -> None:
    """Write the followers' codes into the result: the table's where the leader moved, the factual's where not."""
    span = encoding.slices[link.leader]
    moved = (result[..., span] != x[:, span]).any(axis=-1)
    if link.knots is None:
        codes = link.table[result[..., span].argmax(axis=-1)]
    else:
        leading = result[..., span.start].astype(np.float64)
        codes = between_knots(np, leader_knots(encoding, link), link.table, leading).astype(np.float32)
    target = np.zeros_like(result)
    target[..., link.columns] = codes
    for position in link.followers:
        block = encoding.slices[position]
        if isinstance(encoding.schema.features[position], Categorical):
            target[..., block] = np.eye(block.stop - block.start, dtype=np.float32)[target[..., block].argmax(axis=-1)]
        else:
            numbers = encoding.on_grid(encoding.unscaled(target[..., encoding.number_at]))
            j = _number(encoding, position)
            target[..., block.start] = encoding.scaled(numbers)[..., j]
        result[..., block] = np.where(moved[..., None], target[..., block], x[:, block])


def _number(encoding: Encoding, position: int) -> int:
    feature = encoding.schema.features[position]
    assert isinstance(feature, Continuous)
    return encoding.numeric.index(feature)


def _keep_dearest(encoding: Encoding, freedom: Freedom, result: Codes, x: Codes) -> Codes:
    """Undo all but the allowed number of changes: those that undoing would move the answer least."""
    assert freedom.max_changes is not None
    unit_of_code = np.repeat(freedom.unit, [s.stop - s.start for s in encoding.slices])
    to_unit = unit_of_code[:, None] == np.arange(len(encoding.schema))[None, :]
    difference = np.abs(result - x)
    worth = (difference * encoding.prices) @ to_unit.astype(np.float32)
    numeric_unit = unit_of_code[encoding.number_at][:, None] == np.arange(len(encoding.schema))[None, :]
    worth += (difference[..., encoding.number_at] > 0) * encoding.change_prices @ numeric_unit.astype(np.float32)
    changed = (difference > 0) @ to_unit
    # Unchanged units go last, so that a change that happens to be free is not undone in their favour.
    order = np.argsort(np.where(changed, -worth, np.inf), axis=-1, kind="stable")
    rank = np.argsort(order, axis=-1, kind="stable")
    kept = rank < freedom.max_changes[:, None]
    return np.where(np.take(kept, unit_of_code, axis=-1), result, x)


def _numbers(encoding: Encoding, x: Codes) -> tuple[Floats, Flags]:
    """(B, n) the factuals' numbers, NaN where missing, and where that is."""
    missing = np.zeros((len(x), len(encoding.numeric)), bool)
    with_gaps = encoding.gap_at >= 0
    missing[:, with_gaps] = x[:, encoding.gap_at[with_gaps]] > 0.5
    return np.where(missing, np.nan, encoding.unscaled(x[:, encoding.number_at])), missing


def _room(freedom: Freedom, here: Floats) -> tuple[Floats, Floats]:
    return interval(np, here, np.isnan(here), freedom.low, freedom.high, freedom.no_fall, freedom.no_rise)


def _multiples(low: Floats, high: Floats, step: float) -> tuple[Floats, Floats]:
    """The first and the last multiple of a step within bounds; crossed where there is none."""
    first, last = low / step, high / step
    return np.ceil(first - _ROUNDING * np.abs(first)), np.floor(last + _ROUNDING * np.abs(last))


def violations(encoding: Encoding, freedom: Freedom, answers: Values, factuals: Values) -> Flags:
    """(N, features) where an answer breaks a constraint, judged on exact values and not by how they were made."""
    broken = np.zeros((len(answers), len(encoding.schema)), bool)
    changed = changes(encoding, answers, factuals)
    low, high = _room(freedom, factuals.numbers)
    x = encoding.encode(factuals)
    entries = enterable(np, x[:, encoding.slot_at], freedom.moves.astype(np.float32), freedom.may_enter)
    frozen = np.broadcast_to(freedom.no_fall & freedom.no_rise, low.shape)
    for j, feature in enumerate(encoding.schema.features):
        if isinstance(feature, Continuous):
            i = encoding.numeric.index(feature)
            value, first, last = answers.numbers[:, i], low[:, i], high[:, i]
            if feature.step is not None:  # on a grid, by counting steps: a float32 column holds 0.3 only nearly
                value = value / feature.step
                first, last = _multiples(first, last, feature.step)
                broken[:, j] |= np.abs(value - np.rint(value)) > 1e-6 * np.maximum(1.0, np.abs(value))
                value = np.rint(value)
            broken[:, j] |= np.isnan(value) | (value < first) | (value > last) | frozen[:, i]
        else:
            i = encoding.categorical.index(feature)
            block = entries[:, encoding.slots[i]]
            broken[:, j] = ~np.take_along_axis(block, answers.choices[:, i, None], axis=1)[:, 0]
    broken &= changed
    for link in encoding.links:
        expected, found = x.copy(), encoding.encode(answers)
        expected[:, encoding.slices[link.leader]] = found[:, encoding.slices[link.leader]]
        _follow(encoding, link, expected, x)
        for position in link.followers:
            block = encoding.slices[position]
            broken[:, position] |= (np.abs(found[:, block] - expected[:, block]) > 1e-4).any(axis=1)
    if freedom.max_changes is not None:
        units = changed @ (freedom.unit[:, None] == np.arange(len(encoding.schema))[None, :])
        broken |= changed & (units.sum(axis=1) > freedom.max_changes)[:, None]
    return broken


def changes(encoding: Encoding, answers: Values, factuals: Values) -> Flags:
    """(N, features) which cells differ."""
    changed = np.zeros((len(answers), len(encoding.schema)), bool)
    both_missing = np.isnan(answers.numbers) & np.isnan(factuals.numbers)
    numeric = [isinstance(feature, Continuous) for feature in encoding.schema.features]
    changed[:, numeric] = (answers.numbers != factuals.numbers) & ~both_missing
    changed[:, np.logical_not(numeric)] = answers.choices != factuals.choices
    return changed
