"""What an answer may do to a row, as arrays.

A `Freedom` is the schema's constraints and a request's (`vary`, `ranges`, `at_most`) resolved together. Its arrays have
a leading axis R, 1 where all rows are alike or B where each row has its own. Staying is always allowed, so the only
questions are how far a number may go and which category may be entered. numpy alone, like `encoding`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from avcg.errors import SchemaError, did_you_mean, enumerate_some
from avcg.schema.features import Categorical, Continuous, Scalar, to_python
from avcg.space.encoding import Encoding, Flags, Floats, Positions
from avcg.space.links import Link

Vary = Sequence[str] | Sequence[Sequence[str]] | Flags
Ranges = Mapping[str, Any]


def interval(xp: Any, here: Any, missing: Any, low: Any, high: Any, no_fall: Any, no_rise: Any) -> tuple[Any, Any]:
    """How low and how high each number may go, from where it is.

    A value outside its range may stay or move toward the range: the range is stretched to hold it. A gap that may be
    filled has the whole range.

    Args:
        xp: numpy or torch; the arrays are of its kind.
        here: (B, n) the numbers, in any units.
        missing: (B, n) where there is none; None: there is always one.
        low: (R, n) the lowest, in the same units.
        high: (R, n) the highest.
        no_fall: (R, n).
        no_rise: (R, n).
    """
    lowest = xp.where(no_fall, here, xp.minimum(low, here))
    highest = xp.where(no_rise, here, xp.maximum(high, here))
    if missing is None:
        return lowest, highest
    filled = missing & ~(no_fall & no_rise)
    return xp.where(filled, low, lowest), xp.where(filled, high, highest)


@dataclass(frozen=True, eq=False)
class FeasibleSet:
    """Constraints as arrays.

    Attributes:
        low: (R, n) lowest number an answer may take, in the user's units.
        high: (R, n) highest number.
        no_fall: (R, n) whether the number may not fall.
        no_rise: (R, n) whether the number may not rise; with ``no_fall`` it is frozen, and a gap stays a gap.
        may_enter: (R, M) whether the request allows to move into this category.
        moves: (M, widest block) whether the schema allows to move from a slot to each slot of its block.
        max_changes: (R,) at most so many units of change, or None.
        unit: (features,) the unit of change each feature belongs to; linked features share one.
        links: How linked columns follow their leaders.
    """

    low: Floats
    high: Floats
    no_fall: Flags
    no_rise: Flags
    may_enter: Flags
    moves: Flags
    max_changes: Positions | None
    unit: Positions
    links: tuple[Link, ...]

    @classmethod
    def of(cls, encoding: Encoding, links: tuple[Link, ...]) -> Self:
        """The constraints of the schema alone.

        Raises:
            SchemaError: If a limit leaves nothing, or a follower has one that its leader cannot honour.
        """
        schema = encoding.schema
        change = np.array([feature.change for feature in schema.features])
        unit = np.arange(len(schema))
        for link in links:
            members = [link.leader, *link.followers]
            unit[members] = link.leader
            if "none" in change[members]:  # one fact: where a part of it is frozen, all of it is
                change[members] = "none"
            _check_followers(encoding, link)
        numeric = np.array([isinstance(feature, Continuous) for feature in schema.features], bool)
        low, high = _ranges(encoding)
        widest = max((slots.stop - slots.start for slots in encoding.slots), default=1)
        moves = np.zeros((len(encoding.slot_at), widest), bool)
        for feature, slots, how in zip(encoding.categorical, encoding.slots, change[~numeric], strict=True):
            moves[slots, : slots.stop - slots.start] = _moves(feature, slots.stop - slots.start, how)
        return cls(
            low=low[None],
            high=high[None],
            no_fall=np.isin(change[numeric], ("up", "none"))[None],
            no_rise=np.isin(change[numeric], ("down", "none"))[None],
            may_enter=np.ones((1, len(encoding.slot_at)), bool),
            moves=moves,
            max_changes=None if schema.max_changes is None else np.array([schema.max_changes]),
            unit=unit,
            links=links,
        )

    @property
    def rows(self) -> int:
        """R: 1, or the number of rows this was narrowed for."""
        return len(self.low)

    def narrow(
        self,
        encoding: Encoding,
        vary: Vary | None = None,
        ranges: Ranges | None = None,
        at_most: int | Sequence[int] | None = None,
    ) -> FeasibleSet:
        """What is left under a request; see `TabularSpace.restrict`."""
        narrower = self if vary is None else _vary(self, encoding, vary)
        for name, wanted in (ranges or {}).items():
            narrower = _limit(narrower, encoding, name, wanted)
        if at_most is not None:
            cap = np.atleast_1d(np.asarray(at_most))
            if cap.dtype.kind not in "iu" or cap.ndim > 1 or (cap < 0).any():
                raise SchemaError(f"at_most must be a whole number >= 0, or one per row. Got {at_most!r} instead.")
            old = narrower.max_changes
            narrower = replace(narrower, max_changes=cap if old is None else np.minimum(old, cap))
        return narrower._aligned()

    def _aligned(self) -> FeasibleSet:
        """All arrays with the same leading axis."""
        arrays = [self.low, self.high, self.no_fall, self.no_rise, self.may_enter]
        sizes = {len(array) for array in (*arrays, self.max_changes) if array is not None} - {1}
        if len(sizes) > 1:
            raise SchemaError(f"The request speaks of different numbers of rows: {enumerate_some(sorted(sizes))}.")
        rows = max(sizes, default=1)
        low, high, no_fall, no_rise, may_enter = (np.broadcast_to(a, (rows, a.shape[1])) for a in arrays)
        cap = None if self.max_changes is None else np.broadcast_to(self.max_changes, rows)
        return replace(self, low=low, high=high, no_fall=no_fall, no_rise=no_rise, may_enter=may_enter, max_changes=cap)

    def coded(self, encoding: Encoding) -> dict[str, NDArray[Any]]:
        """What differs from request to request, as a decoder is told it: numbers in codes, limits between 0 and 1.

        Returns:
            (R, n) each ``low``, ``high``, ``no_fall``, ``no_rise``; (R, M) ``may_enter``; and (R,) ``cap``, 1 where a
            single change is allowed and 0 where there is no limit.
        """
        limit = np.full(self.rows, np.inf) if self.max_changes is None else self.max_changes
        cap = np.where(limit < len(encoding.schema), 1.0 / np.maximum(limit, 1), 0.0).astype(np.float32)
        return {
            "low": encoding.scaled(self.low),
            "high": encoding.scaled(self.high),
            "no_fall": self.no_fall,
            "no_rise": self.no_rise,
            "may_enter": self.may_enter,
            "cap": cap,
        }

    def take(self, rows: Positions) -> FeasibleSet:
        """The arrays of some rows, where each has its own."""
        cap = None if self.max_changes is None else self.max_changes[rows]
        names = ("low", "high", "no_fall", "no_rise", "may_enter")
        return replace(self, max_changes=cap, **{name: getattr(self, name)[rows] for name in names})

    def movable(self, encoding: Encoding) -> Flags:
        """(R, features) whether a feature may change at all, whatever its value."""
        free = np.empty((self.rows, len(encoding.schema)), bool)
        for j, feature in enumerate(encoding.schema.features):
            i = encoding.place[j]
            if isinstance(feature, Continuous):
                free[:, j] = ~(self.no_fall & self.no_rise)[:, i]
            else:
                slots = encoding.slots[i]
                size = slots.stop - slots.start
                elsewhere = self.moves[slots, :size] & ~np.eye(size, dtype=bool)
                free[:, j] = (self.may_enter[:, slots] & elsewhere.any(axis=0)).any(axis=1)
        return free


def own_slots(xp: Any, here: Any, first_slots: Any, within: Any) -> Any:
    """(B, G) the slot of the category that each row is in, block by block. Works on numpy and torch alike.

    Args:
        xp: numpy or torch.
        here: (B, M) 1 at the categories the row is in, 0 elsewhere.
        first_slots: (G,) of each block.
        within: (M, G) the place of each slot in its block.
    """
    place = here @ within
    return first_slots + (place.astype(np.intp) if xp is np else place.long())


def enterable(xp: Any, here: Any, moves: Any, may_enter: Any, first_slots: Any, within: Any, unpadding: Any) -> Any:
    """(B, M) the categories a row may be in, staying included. Works on numpy arrays and torch tensors alike.

    Args:
        xp: numpy or torch.
        here: (B, M) 1 at the categories the row is in, 0 elsewhere.
        moves: (M, widest) the schema's moves.
        may_enter: (R, M) the request's.
        first_slots: (G,) of each block.
        within: (M, G) the place of each slot in its block.
        unpadding: (M,) the way back from (G * widest,).
    """
    if not len(first_slots):
        return here > 0.5
    own = own_slots(xp, here, first_slots, within)
    allowed = _taken(xp, moves, own.reshape(-1), 0).reshape(here.shape[0], len(first_slots) * moves.shape[1])
    allowed = _taken(xp, allowed, unpadding, 1)
    return (allowed & may_enter) | (here > 0.5)


def _taken(xp: Any, array: Any, at: Any, axis: int) -> Any:
    """Some of an array along an axis, as both libraries do it fastest."""
    return array.take(at, axis) if xp is np else xp.index_select(array, axis, at)


def random_requests(
    encoding: Encoding, feasible: FeasibleSet, rows: int, share: float, rng: np.random.Generator
) -> FeasibleSet:
    """What is left under requests of every kind, drawn at random for a share of rows.

    Such a row locks a random part of its features, and half of them also keep some numbers from rising or falling, bar
    some categories, or limit how many features may change.

    Args:
        encoding: The codes.
        feasible: What is allowed to all.
        rows: B.
        share: Of rows with a request of their own.
        rng: Of the draws.
    """
    asking = rng.random((rows, 1)) < share
    more = asking & (rng.random((rows, 1)) < 0.5)
    n, slots = feasible.low.shape[1], feasible.may_enter.shape[1]
    locked = asking & (rng.random((rows, len(encoding.schema))) < 0.6 * rng.random((rows, 1)))[:, feasible.unit]
    numeric = np.array([isinstance(feature, Continuous) for feature in encoding.schema.features], bool)
    sizes = [slot.stop - slot.start for slot in encoding.slots]
    one_way = more & (rng.random((rows, n)) < 0.3)
    falls = rng.random((rows, n)) < 0.5
    barred = more & (rng.random((rows, slots)) < 0.3 * rng.random((rows, 1)))
    caps = np.where((more & (rng.random((rows, 1)) < 0.3))[:, 0], rng.integers(1, 5, rows), len(encoding.schema))
    return replace(
        feasible,
        low=np.repeat(feasible.low, rows, axis=0),
        high=np.repeat(feasible.high, rows, axis=0),
        no_fall=feasible.no_fall | locked[:, numeric] | (one_way & falls),
        no_rise=feasible.no_rise | locked[:, numeric] | (one_way & ~falls),
        may_enter=feasible.may_enter & ~np.repeat(locked[:, ~numeric], sizes, axis=1) & ~barred,
        max_changes=caps if feasible.max_changes is None else np.minimum(feasible.max_changes, caps),
    )


def _ranges(encoding: Encoding) -> tuple[Floats, Floats]:
    """(n,) lowest and highest number: the schema's, else the training rows'."""
    pairs = []
    for feature, low, high in zip(encoding.numeric, encoding.low, encoding.high, strict=True):
        bounds = (low if feature.low is None else feature.low, high if feature.high is None else feature.high)
        if bounds[0] > bounds[1]:
            given, end, other = ("low", high, "high") if feature.high is None else ("high", low, "low")
            raise SchemaError(
                f"between sets {getattr(feature, given)!r} as the {given} bound of column {feature.name!r}, but the"
                f" training rows end at {end:.10g}. Give a {other} bound too."
            )
        pairs.append(bounds)
    both = np.array(pairs, np.float64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _moves(feature: Categorical, size: int, change: str) -> Flags:
    """(size, size) allowed transitions of one feature; the last slot is the gap, if it may have one."""
    n = len(feature.categories)
    moves = np.zeros((size, size), bool)
    if change != "none":
        moves[:, :n] = True  # never into a gap
        if feature.allowed is not None:
            barred = [i for i, value in enumerate(feature.categories) if value not in feature.allowed]
            moves[:, barred] = False
        for before, after in feature.forbidden:
            moves[feature.position(before), feature.position(after)] = False
        rank = np.arange(n)
        if change == "up":
            moves[:n, :n] &= rank[None, :] >= rank[:, None]
        if change == "down":
            moves[:n, :n] &= rank[None, :] <= rank[:, None]
    np.fill_diagonal(moves, True)
    return moves


def _check_followers(encoding: Encoding, link: Link) -> None:
    """What a follower says for itself must be something its leader can honour."""
    leader = encoding.schema.features[link.leader]
    for position in link.followers:
        feature = encoding.schema.features[position]
        default = Continuous("") if isinstance(feature, Continuous) else Categorical("", ("",))
        priced = feature.cost_per_change != default.cost_per_change or (
            isinstance(feature, Continuous) and feature.cost_per_unit is not None
        )
        if priced:
            raise SchemaError(
                f"Column {feature.name!r} follows {leader.name!r} and costs nothing of its own. Price {leader.name!r}."
            )
        limited = feature.change in ("up", "down") or (
            (isinstance(feature, Continuous) and (feature.low is not None or feature.high is not None))
            or (isinstance(feature, Categorical) and (feature.allowed is not None or bool(feature.forbidden)))
        )
        if limited and isinstance(leader, Continuous):
            raise SchemaError(
                f"Column {feature.name!r} follows the number {leader.name!r}, so its limits must be put on"
                f" {leader.name!r}. Free {feature.name!r} and limit {leader.name!r}."
            )


def _limit(feasible: FeasibleSet, encoding: Encoding, name: str, wanted: Any) -> FeasibleSet:
    """Narrow one column to a range of numbers or a list of categories, the same for all rows or one for each."""
    feature = encoding.schema[name]
    position = encoding.schema.names.index(name)
    for link in feasible.links:
        leader = encoding.schema.features[link.leader]
        if position in link.followers and isinstance(leader, Continuous):
            raise SchemaError(
                f"Column {name!r} follows the number {leader.name!r}. Give the range for {leader.name!r}."
            )
    if isinstance(feature, Categorical):
        return _limit_categories(feasible, encoding, feature, wanted)
    try:
        low, high = wanted
        low = np.atleast_1d(np.asarray(-np.inf if low is None else low, np.float64))
        high = np.atleast_1d(np.asarray(np.inf if high is None else high, np.float64))
        rows = len(np.broadcast_arrays(low, high, feasible.low[:, 0])[0])
    except (TypeError, ValueError):
        raise SchemaError(
            f"The range of column {name!r} must be a pair (low, high) of numbers, None for an open side, or of one"
            f" number per row. Got {wanted!r} instead."
        ) from None
    if np.isnan(low).any() or np.isnan(high).any():
        raise SchemaError(f"The range of column {name!r} holds a bound that is not a number.")
    j = encoding.place[position]
    lows, highs = (np.repeat(a, rows, axis=0) if len(a) < rows else a.copy() for a in (feasible.low, feasible.high))
    lows[:, j], highs[:, j] = np.maximum(lows[:, j], low), np.minimum(highs[:, j], high)
    crossed = lows[:, j] > highs[:, j]
    if crossed.any():
        where = "" if rows == 1 else f" in {int(crossed.sum())} rows"
        raise SchemaError(
            f"The range of column {name!r} leaves nothing{where}: asked for {low[0]:.10g} to {high[0]:.10g}, but it may"
            f" only be {feasible.low[0, j]:.10g} to {feasible.high[0, j]:.10g}."
        )
    return replace(feasible, low=lows, high=highs)


def _limit_categories(feasible: FeasibleSet, encoding: Encoding, feature: Categorical, wanted: Any) -> FeasibleSet:
    if isinstance(wanted, str) or not isinstance(wanted, Iterable):
        raise SchemaError(
            f"The range of column {feature.name!r} must be a list of its categories. Got {wanted!r} instead."
        )
    wanted = [to_python(value) for value in wanted]
    per_row = [wanted] if all(isinstance(value, Scalar) for value in wanted) else wanted
    if not wanted:
        raise SchemaError(
            f"The range of column {feature.name!r} is empty. Leave it out of 'vary' if it may not change."
        )
    entered = _flags(per_row, feature.categories, f"column {feature.name!r}", "category")
    slots = encoding.slots[encoding.place[encoding.schema.names.index(feature.name)]]
    mask = np.zeros((len(entered), slots.stop - slots.start), bool)
    mask[:, : len(feature.categories)] = entered
    rows = max(len(feasible.may_enter), len(mask))
    may_enter = (
        np.repeat(feasible.may_enter, rows, axis=0) if len(feasible.may_enter) < rows else feasible.may_enter.copy()
    )
    may_enter[:, slots] &= mask
    return replace(feasible, may_enter=may_enter)


def _vary(feasible: FeasibleSet, encoding: Encoding, vary: Vary) -> FeasibleSet:
    """Freeze what a request does not name. Naming one of a link names the link."""
    names = encoding.schema.names
    if isinstance(vary, str):
        raise SchemaError(f"'vary' must be a list of columns. Write [{vary!r}].")
    if isinstance(vary, np.ndarray) and vary.dtype == bool:
        if vary.ndim != 2 or vary.shape[1] != len(names):
            raise SchemaError(
                f"As an array, 'vary' must have one row per row and one column per feature, (rows, {len(names)}). Got"
                f" {vary.shape} instead."
            )
        free = vary
    else:
        if not isinstance(vary, Iterable):
            raise SchemaError(f"'vary' must be a list of columns. Got {vary!r} instead.")
        listed = list(vary)
        one = not all(isinstance(entry, Iterable) and not isinstance(entry, str) for entry in listed) or not listed
        free = _flags([listed] if one else listed, names, "the schema", "column")
        alike = feasible.unit[:, None] == feasible.unit[None, :]
        immovable = free.any(axis=0) & ~(feasible.movable(encoding).any(axis=0) @ alike)
        if immovable.any():
            raise SchemaError(
                f"'vary' names column {names[int(immovable.argmax())]!r}, which the schema does not let change. Free it"
                " in the schema, or leave it out."
            )
    free = free @ (feasible.unit[:, None] == feasible.unit[None, :])
    numeric = np.array([isinstance(feature, Continuous) for feature in encoding.schema.features], bool)
    sizes = [slots.stop - slots.start for slots in encoding.slots]
    return replace(
        feasible,
        no_fall=feasible.no_fall | ~free[:, numeric],
        no_rise=feasible.no_rise | ~free[:, numeric],
        may_enter=feasible.may_enter & np.repeat(free[:, ~numeric], sizes, axis=1),
    )


def _flags(lists: Sequence[Sequence[Scalar]], known: Sequence[Scalar], where: str, what: str) -> Flags:
    """(rows, known) which of the known values each list names."""
    place = {value: i for i, value in enumerate(known)}
    named = [to_python(value) for value in chain.from_iterable(lists)]
    strange = [value for value in named if not isinstance(value, Scalar) or value not in place]
    if strange:
        raise SchemaError(f"There is no {what} {strange[0]!r} in {where}. {did_you_mean(strange[0], known)}")
    flags = np.zeros((len(lists), len(known)), bool)
    rows = np.repeat(np.arange(len(lists)), [len(entry) for entry in lists])
    flags[rows, np.fromiter((place[value] for value in named), np.intp, len(named))] = True
    return flags
