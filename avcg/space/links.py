"""Linked columns, which state the same fact: followers are looked up from their leader as in the training rows.

Answers need numpy alone. `between_knots` and `enterable_by_leader` also work on torch tensors, for training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from avcg.errors import DataError, enumerate_some
from avcg.schema.features import Categorical, Continuous
from avcg.space.encoding import Codes, Encoding, Flags, Floats, Positions, Values
from avcg.space.grids import EXACT, tidied


@dataclass(frozen=True, eq=False)
class Link:
    """How the followers of a link depend on their leader.

    Attributes:
        leader: Position of the leading feature in the schema.
        followers: Positions of the following features.
        columns: (W,) indices of the followers' codes.
        knots: (m,) codes of a numeric leader's values, ascending; None if the leader is categorical.
        table: (m, W) codes of the followers for each knot, or for each slot of a categorical leader.
        exact: The same as m rows of values, of which only the followers' columns are used.
        known: (m,) whether the training rows have this value of the leader, with followers on their grids.
    """

    leader: int
    followers: tuple[int, ...]
    columns: Positions
    knots: Floats | None
    table: Codes
    exact: Values
    known: Flags


def learn_links(encoding: Encoding, values: Values) -> tuple[Link, ...]:
    """The links of the schema, from training rows.

    Raises:
        DataError: If a leader does not determine its followers, or nothing can be learnt about them.
    """
    return tuple(_learn(encoding, group, values) for group in encoding.schema.links)


def _learn(encoding: Encoding, group: Sequence[str], values: Values) -> Link:
    names = " -> ".join(map(repr, group))
    leader, *followers = (encoding.schema.names.index(name) for name in group)
    lead = encoding.schema.features[leader]
    index = encoding.kind_index
    numeric = [index[f] for f in followers if isinstance(encoding.schema.features[f], Continuous)]
    categorical = [index[f] for f in followers if isinstance(encoding.schema.features[f], Categorical)]
    # A row with a missing value in any of the columns is left out.
    complete = ~encoding.missing(values)[:, [leader, *followers]].any(axis=1)
    if not complete.any():
        raise DataError(f"The link {names} cannot be learnt: no training row has a value in all of its columns.")
    rows = Values(values.numbers[complete], values.choices[complete])
    leading = rows.numbers[:, index[leader]] if isinstance(lead, Continuous) else rows.choices[:, index[leader]]
    values_seen, first, inverse = np.unique(leading, return_index=True, return_inverse=True)
    wrong = (rows.numbers[:, numeric] != rows.numbers[first][inverse][:, numeric]).any(axis=1)
    wrong |= (rows.choices[:, categorical] != rows.choices[first][inverse][:, categorical]).any(axis=1)
    if wrong.any():
        example = leading[wrong][0]
        shown = lead.categories[int(example)] if isinstance(lead, Categorical) else float(example)
        raise DataError(
            f"The link {names} does not hold: {int(wrong.sum())} rows give {group[0]!r} = {shown!r} other values of"
            f" {enumerate_some(group[1:])} than earlier rows do. The first column of a link must determine the others."
        )
    exact = Values(rows.numbers[first], rows.choices[first])
    _refuse_blurred(encoding, numeric, exact, names)
    columns = np.concatenate([np.arange(s.start, s.stop) for s in (encoding.slices[f] for f in followers)])
    table = encoding.encode(exact)[:, columns]
    tidy = exact.numbers.copy()
    for j in numeric:
        tidy[:, j] = tidied(encoding.numeric[j], tidy[:, j])
    known = ((encoding.on_grid(tidy) == tidy) & ~encoding.at_special(tidy))[:, numeric].all(axis=1)
    if isinstance(lead, Continuous):
        at = index[leader]
        knots = (values_seen - encoding.center[at]) / encoding.scale[at]
        return Link(leader, tuple(followers), columns, knots, table, exact, np.ones(len(values_seen), bool))
    # One row per slot of the leader. Categories that no training row has cannot be entered.
    slots = np.zeros(encoding.slices[leader].stop - encoding.slices[leader].start, np.intp)
    slots[values_seen.astype(np.intp)] = np.arange(len(values_seen))
    enterable = np.zeros(len(slots), bool)
    enterable[values_seen.astype(np.intp)] = known
    by_slot = Values(exact.numbers[slots], exact.choices[slots])
    return Link(leader, tuple(followers), columns, None, table[slots], by_slot, enterable)


def _refuse_blurred(encoding: Encoding, numeric: Sequence[int], exact: Values, names: str) -> None:
    codes = encoding.scaled(exact.numbers)
    for j in numeric:
        rounded = encoding.steps[j] > 0 and bool((np.abs(exact.numbers[:, j]) >= EXACT).any())
        if rounded or len(np.unique(codes[:, j])) < len(np.unique(exact.numbers[:, j])):
            raise DataError(
                f"The link {names} cannot be kept: column {encoding.numeric[j].name!r} has values too close"
                " together, for its range, to be told apart. Read it as a category with kinds=, or leave it out of the"
                " link."
            )


def between_knots(xp: Any, knots: Any, table: Any, value: Any) -> Any:
    """Codes of the followers of a numeric leader: as in the table at its knots, on straight lines in between.

    Args:
        xp: numpy or torch.
        knots: (m,) ascending.
        table: (m, W).
        value: (...) codes of the leader.

    Returns:
        (..., W).
    """
    left = xp.clip(xp.searchsorted(knots, value) - 1, 0, max(len(knots) - 2, 0))
    right = xp.clip(left + 1, 0, len(knots) - 1)
    span = knots[right] - knots[left]
    share = xp.clip((value - knots[left]) / xp.where(span > 0, span, 1.0), 0.0, 1.0)[..., None]
    return table[left] * (1.0 - share) + table[right] * share


def enterable_by_leader(
    link: Link, table: Any, known: Any, current: Any, low: Any, high: Any, barred: Any, encoding: Encoding
) -> Any:
    """(B, m) the categories of a leader that its followers' limits allow, staying included.

    Args:
        link: The link.
        table: (m, W) the table of the link, as an array of numpy or torch.
        known: (m,) which of its rows are known, likewise.
        current: (B, m) 1 at the leader's category.
        low: (B, n) lowest codes of numbers.
        high: (B, n) highest codes of numbers.
        barred: (B, D) 1 where a category may not be entered.
        encoding: Layout of the codes.
    """
    allowed = known[None, :] & (current == current)
    for position in link.followers:
        start = int(np.flatnonzero(link.columns == encoding.slices[position].start)[0])
        if isinstance(encoding.schema.features[position], Continuous):
            target, j = table[None, :, start], encoding.kind_index[position]
            allowed = allowed & (target >= low[:, j, None]) & (target <= high[:, j, None])
        else:
            block = encoding.slices[position]
            # A follower's one-hot code times what is barred: 1 where the leader would push it somewhere forbidden.
            width = block.stop - block.start
            allowed = allowed & (barred[:, block] @ table[:, start : start + width].T < 0.5)
    return allowed | (current > 0.5)


def follow(encoding: Encoding, link: Link, result: Codes, x: Codes) -> None:
    """Write the followers' codes into the result: from the table if the leader changed, else those of the factual.

    Args:
        encoding: The codes.
        link: The link.
        result: (..., B, D), changed in place; the leader's codes are final.
        x: (B, D) the factuals.
    """
    lead = encoding.slices[link.leader]
    moved = (result[..., lead] != x[:, lead]).any(axis=-1)
    if not moved.any():
        result[..., link.columns] = x[:, link.columns]
        return
    if link.knots is None:
        codes = link.table[result[..., lead].argmax(axis=-1)]
    else:
        codes = between_knots(np, link.knots, link.table, result[..., lead.start].astype(np.float64)).astype(np.float32)
    start = 0
    for position in link.followers:
        block = encoding.slices[position]
        target = codes[..., start : start + block.stop - block.start]
        start += block.stop - block.start
        if isinstance(encoding.schema.features[position], Categorical):
            target = np.eye(target.shape[-1], dtype=np.float32)[target.argmax(axis=-1)]
        elif link.knots is not None:
            target = _gridded(encoding, encoding.kind_index[position], target)
        result[..., block] = np.where(moved[..., None], target, x[:, block])


def _gridded(encoding: Encoding, j: int, codes: Codes) -> Codes:
    """Codes of a numeric follower between knots, on its grid and within the range of the training rows."""
    step = encoding.steps[j]
    if not step:
        return codes
    first, last = np.ceil(encoding.low[j] / step), np.floor(encoding.high[j] / step)
    number = codes[..., 0].astype(np.float64) * encoding.scale[j] + encoding.center[j]
    number = np.round(np.clip(np.rint(number / step), first, max(first, last)) * step, encoding.decimals[j])
    result = codes.copy()
    result[..., 0] = (number - encoding.center[j]) / encoding.scale[j]
    return result
