"""What an answer may do to a row, as arrays: the limits of single columns, and what binds several of them.

A `FeasibleSet` is the schema's constraints and a request's (`vary`, `ranges`, `at_most`) resolved together. Its arrays
have a leading axis R, 1 where all rows are alike or B where each row has its own. Staying is always allowed, so the
only questions are how far a number may go and which category may be entered. numpy alone, like `encoding`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from avcg.errors import SchemaError, enumerate_some
from avcg.schema.features import Categorical, Continuous
from avcg.space.categories import flags
from avcg.space.encoding import Codes, Encoding, Flags, Positions
from avcg.space.limits import Limits
from avcg.space.links import Link
from avcg.space.rules import Rules

# Default of `Recipe.reach`: codes beyond which more room to move makes no difference to a decoder.
REACH = 3.0

Vary = Sequence[str] | Sequence[Sequence[str]] | Flags
Ranges = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class FeasibleSet:
    """Constraints as arrays.

    Attributes:
        limits: What may be done to each column by itself.
        max_changes: (R,) at most so many units of change, or None.
        unit: (features,) the unit of change each feature belongs to; linked features share one.
        links: How linked columns follow their leaders.
        rules: Rules between columns, or None.
    """

    limits: Limits
    max_changes: Positions | None
    unit: Positions
    links: tuple[Link, ...]
    rules: Rules | None = None

    @classmethod
    def of(cls, encoding: Encoding, links: tuple[Link, ...]) -> Self:
        """The constraints of the schema alone.

        Raises:
            SchemaError: If a limit leaves nothing, or a follower has one that its leader cannot honour.
        """
        schema = encoding.schema
        change = np.array([feature.change for feature in schema.features], object)  # texts would be cut to the longest
        unit = np.arange(len(schema))
        for link in links:
            members = [link.leader, *link.followers]
            unit[members] = link.leader
            if "none" in change[members]:  # one fact: where a part of it is frozen, all of it is
                change[members] = "none"
            _check_followers(encoding, link)
        cap = None if schema.max_changes is None else np.array([schema.max_changes])
        rules = Rules.of(encoding, unit)
        if rules is not None:
            change[rules.computed] = "none"  # not by themselves
        return cls(Limits.of(encoding, change), cap, unit, links, rules)

    @property
    def rows(self) -> int:
        """R: 1, or the number of rows this was narrowed for."""
        return len(self.limits.ranges.low)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Every array (R, ...) by name."""
        cap = {} if self.max_changes is None else {"max_changes": self.max_changes}
        return self.limits.arrays() | cap

    def with_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """The same constraints with some of these arrays replaced."""
        cap = arrays.get("max_changes", self.max_changes)
        return replace(self, limits=self.limits.with_arrays(arrays), max_changes=cap)

    def take(self, rows: Positions) -> Self:
        """The constraints of some rows, where each has its own."""
        return self.with_arrays({name: array[rows] for name, array in self.arrays().items()})

    def narrow(
        self,
        encoding: Encoding,
        vary: Vary | None = None,
        ranges: Ranges | None = None,
        at_most: int | Sequence[int] | None = None,
    ) -> Self:
        """What is left under a request; see `TabularSpace.restrict`."""
        narrower = self if vary is None else self._vary(encoding, vary)
        for name, wanted in (ranges or {}).items():
            narrower = narrower._limit(encoding, name, wanted)
        if at_most is not None:
            cap = np.atleast_1d(np.asarray(at_most))
            if cap.dtype.kind not in "iu" or cap.ndim > 1 or (cap < 0).any():
                raise SchemaError(f"at_most must be a whole number >= 0, or one per row. Got {at_most!r} instead.")
            old = narrower.max_changes
            narrower = replace(narrower, max_changes=cap if old is None else np.minimum(old, cap))
        return narrower._aligned()

    def _aligned(self) -> Self:
        """All arrays with the same leading axis."""
        arrays = self.arrays()
        sizes = {len(array) for array in arrays.values()} - {1}
        if len(sizes) > 1:
            raise SchemaError(f"The request speaks of different numbers of rows: {enumerate_some(sorted(sizes))}.")
        if not sizes:
            return self
        (rows,) = sizes
        return self.with_arrays({name: np.broadcast_to(a, (rows, *a.shape[1:])) for name, a in arrays.items()})

    def _vary(self, encoding: Encoding, vary: Vary) -> Self:
        """Freeze what a request does not name. Naming one of a link names the link."""
        names = encoding.schema.names
        if isinstance(vary, str):
            raise SchemaError(f"'vary' must be a list of columns. Write [{vary!r}].")
        alike = self.unit[:, None] == self.unit[None, :]
        if isinstance(vary, np.ndarray) and vary.dtype == bool:
            if vary.ndim != 2 or vary.shape[1] != len(names):
                raise SchemaError(
                    f"As an array, 'vary' must have one row per row and one column per feature, (rows, {len(names)})."
                    f" Got {vary.shape} instead."
                )
            free = vary
        else:
            if not isinstance(vary, Iterable):
                raise SchemaError(f"'vary' must be a list of columns. Got {vary!r} instead.")
            listed = list(vary)
            one = not all(isinstance(entry, Iterable) and not isinstance(entry, str) for entry in listed) or not listed
            free = flags(_named([listed] if one else listed, encoding), names, "the schema", "column")
            immovable = free.any(axis=0) & ~(self.movable(encoding).any(axis=0) @ alike)
            for name in np.array(names)[free.any(axis=0)].tolist():
                if name in encoding.schema.derivations:
                    inputs = enumerate_some(encoding.schema.derivations[name].inputs, 12)
                    raise SchemaError(f"'vary' names column {name!r}, which is computed from {inputs}. Name these.")
            if immovable.any():
                raise SchemaError(
                    f"'vary' names column {names[int(immovable.argmax())]!r}, which the schema does not let change."
                    " Free it in the schema, or leave it out."
                )
        return self._locked(encoding, ~(free @ alike))

    def _locked(self, encoding: Encoding, locked: Flags) -> Self:
        """Less: some features (R, features) may not change."""
        sizes = [slots.stop - slots.start for slots in encoding.slots]
        slots = np.repeat(locked[:, encoding.categorical_columns], sizes, axis=1)
        return replace(self, limits=self.limits.locked(locked[:, encoding.numeric_columns], slots))

    def _limit(self, encoding: Encoding, name: str, wanted: Any) -> Self:
        """Narrow one column to a range of numbers or a list of categories, the same for all rows or one for each."""
        feature = encoding.schema[name]
        name = feature.name  # one column of a group names the group
        position = encoding.schema.names.index(name)
        for link in self.links:
            leader = encoding.schema.features[link.leader]
            if position in link.followers and isinstance(leader, Continuous):
                raise SchemaError(
                    f"Column {name!r} follows the number {leader.name!r}. Give the range for {leader.name!r}."
                )
        limits = self.limits
        if isinstance(feature, Categorical):
            categories = limits.categories.requested(encoding, feature, wanted)
            return replace(self, limits=replace(limits, categories=categories))
        ranges = limits.ranges.requested(name, encoding.kind_index[position], wanted)
        return replace(self, limits=replace(limits, ranges=ranges))

    def cap(self, encoding: Encoding) -> Codes:
        """(R,) how tight the limit on changes is: 1 where a single change is allowed, 0 where there is no limit."""
        limit = np.full(self.rows, np.inf) if self.max_changes is None else self.max_changes
        return np.where(limit < len(encoding.schema), 1.0 / np.maximum(limit, 1), 0.0).astype(np.float32)

    def movable(self, encoding: Encoding) -> Flags:
        """(R, features) whether a feature may change at all, whatever its value."""
        return self.limits.movable(encoding)


def _named(per_row: Sequence[Iterable[Any]], encoding: Encoding) -> list[list[Any]]:
    """Names of features by row, in which one column of a group names the group."""
    owner = {column: feature.name for feature in encoding.schema.grouped for column in feature.columns or ()}
    return [[owner.get(name, name) if isinstance(name, str) else name for name in entry] for entry in per_row]


def random_requests(
    encoding: Encoding, feasible: FeasibleSet, rows: int, share: float, rng: np.random.Generator
) -> FeasibleSet:
    """What is left under requests of every kind, drawn at random for a share of rows.

    Such a row locks a random part of its features. Half of these rows are also narrowed by every family of limits, e.g.
    some numbers may not rise or some categories may not be entered, or may change only so many features.

    Args:
        encoding: The codes.
        feasible: What is allowed to all.
        rows: B.
        share: Of rows with a request of their own.
        rng: For the draws.
    """
    asking = rng.random((rows, 1)) < share
    more = asking & (rng.random((rows, 1)) < 0.5)
    locked = asking & (rng.random((rows, len(encoding.schema))) < 0.6 * rng.random((rows, 1)))[:, feasible.unit]
    narrower = feasible._locked(encoding, locked)
    narrower = replace(narrower, limits=narrower.limits.randomly_narrowed(more, rng))
    caps = np.where((more & (rng.random((rows, 1)) < 0.3))[:, 0], rng.integers(1, 5, rows), len(encoding.schema))
    return replace(
        narrower, max_changes=caps if feasible.max_changes is None else np.minimum(feasible.max_changes, caps)
    )._aligned()


def _check_followers(encoding: Encoding, link: Link) -> None:
    """Refuse what a follower says for itself and its leader cannot honour."""
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
