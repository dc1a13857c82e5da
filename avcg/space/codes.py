"""Encoded rows and their constraints in numpy, as a search uses them.

`CodeSpace` is the protocol. `TableCodes` implements it for tables with numpy alone, so that a stored explainer answers
without torch. `avcg.space.base.TorchCodes` implements it for spaces written in torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, Self

import numpy as np

from avcg.space.alternatives import Alternatives, alternatives, at_cuts, combine, nearer
from avcg.space.check import violations
from avcg.space.constraints import REACH, FeasibleSet, Ranges, Vary
from avcg.space.encoding import Codes, Encoding, Flags, Floats, Positions, Values
from avcg.space.limits import Limits
from avcg.space.nearest import missing_numbers
from avcg.space.project import (
    allowed_entries,
    changes,
    charges,
    gated,
    immovable,
    lock_change,
    pairwise_distance,
    project,
    restore,
)
from avcg.space.reach import largest_scores, small_sets

_COARSE = 2**24  # steps from which on float32 is no finer than the steps


class CodeSpace(Protocol):
    """Encoded rows under constraints: B rows, K candidates a row, ``*event`` one encoded row, all float32 arrays."""

    def take(self, rows: Positions) -> Self:
        """This space for some of the rows it was restricted for, in the order given."""

    def finalize(self, raw: Codes, x: Codes, gates: Flags | None, quantum: float) -> Codes:
        """Decoder output to feasible candidates.

        Args:
            raw: (K, B, *event).
            x: (B, *event) the factuals.
            gates: (K, B, n) whether each number moves; None: all that differ do.
            quantum: Numbers inside their limits are rounded to multiples of this, where a space has numbers.
        """

    def project(self, x_cf: Codes, x: Codes) -> Codes:
        """The nearest feasible point of (K, B, *event) candidates."""

    def distance(self, x_cf: Codes, x: Codes) -> Codes:
        """(..., B) cost of the changes."""

    def pairwise_distance(self, x: Codes, rows: Codes) -> Codes:
        """(N, m) distances of each row of x from each of the rows, without prices per change of numbers."""

    def constraint_features(self, x: Codes, reach: float = REACH) -> Codes:
        """(B, ...) what each row may change, as input of a decoder; see `avcg.space.base.Space`."""

    def immovable(self, x: Codes) -> Flags:
        """(B,) rows that may change nothing at all."""

    def lock_change(self, x_cf: Codes, x: Codes, rank: int) -> Self | None:
        """This space with one change of each answer locked, the dearest for rank 0; None where that has no meaning."""

    def alternatives(
        self, x_cf: Codes, x: Codes, step: float, units: Flags | None = None, around: Codes | None = None
    ) -> Alternatives:
        """Feasible points that differ from one of (B, *event) answers in one unit; see `avcg.space.alternatives`."""

    def combine(self, x_cf: Codes, x: Codes, moves: Alternatives, chosen: Positions) -> Codes:
        """(K, B, *event) answers with several units replaced; ``chosen`` (K, B, n_units) says by which alternative."""

    def nearer(self, x_cf: Codes, x: Codes, shares: Sequence[float]) -> Codes:
        """(K, B, *event) answers with the same changes, every number a share of its way back."""

    def at_cuts(self, x_cf: Codes, x: Codes, cuts: Mapping[str, Floats]) -> Codes:
        """(B, *event) answers with every number moved back to the last cut that it has passed."""

    def small_sets(self, x: Codes, most: int, at_once: int) -> Iterator[tuple[Positions, Codes]]:
        """Every point of the feasible sets that have at most ``most``; see `avcg.space.reach.small_sets`."""

    def largest_scores(self, x: Codes, weights: Floats) -> Floats:
        """(B,) the largest value of a linear function of the codes on any feasible point; see `avcg.space.reach`."""

    @property
    def tensors(self) -> Any:
        """The same space for torch; see `avcg.space.base.Space`."""


@dataclass(frozen=True, eq=False)
class TableCodes:
    """The codes of a table under constraints.

    Attributes:
        encoding: Scaling and layout of the codes.
        feasible: Constraints.
    """

    encoding: Encoding
    feasible: FeasibleSet

    def restrict(self, vary: Vary | None, ranges: Ranges | None, max_changes: Any) -> TableCodes:
        """A narrower space for one query; see `TabularSpace.restrict`."""
        return replace(self, feasible=self.feasible.narrow(self.encoding, vary, ranges, max_changes))

    def take(self, rows: Positions) -> TableCodes:
        """This space for some of the rows it was restricted for."""
        return self if self.feasible.rows == 1 else replace(self, feasible=self.feasible.take(rows))

    def finalize(self, raw: Codes, x: Codes, gates: Flags | None, quantum: float) -> Codes:
        """Decoder output (K, B, D) to feasible candidates, numbers inside their limits rounded to a grid of codes."""
        wanted = raw.copy() if gates is None else gated(self.encoding, raw, x, gates)
        current, low, high = self._interval(x)
        numbers = np.minimum(np.maximum(wanted[..., self.encoding.number_at], low), high)
        step, coarse = np.float32(quantum), np.float32(quantum * _COARSE)
        inside = (numbers > low) & (numbers < high) & (numbers != current) & (np.abs(numbers) < coarse)
        rounded = np.rint(np.clip(numbers, -coarse, coarse) / step) * step
        # A special code lies outside its limits, and stays where no number inside them is nearer.
        proposed = wanted[..., self.encoding.number_at]
        stays = np.abs(proposed - current) <= np.abs(proposed - numbers)
        wanted[..., self.encoding.number_at] = np.where(inside, rounded, np.where(stays, current, numbers))
        return self.project(wanted, x)

    def project(self, x_cf: Codes, x: Codes) -> Codes:
        """The nearest feasible point of (K, B, D) candidates."""
        return project(self.encoding, self.feasible, x_cf, x)

    def distance(self, x_cf: Codes, x: Codes) -> Codes:
        """(..., B) cost of the changes at the schema's prices."""
        return np.asarray(charges(self.encoding, x_cf, x).sum(axis=-1))

    def pairwise_distance(self, x: Codes, rows: Codes) -> Codes:
        """(N, m) distances of each row of x from each of the rows."""
        return pairwise_distance(self.encoding, x, rows)

    @cached_property
    def limits(self) -> Limits:
        """The limits of single columns in units of codes."""
        return self.feasible.limits.coded(self.encoding)

    @cached_property
    def coded(self) -> dict[str, np.ndarray[Any, Any]]:
        """Arrays that differ from query to query, as inputs of a decoder.

        Returns:
            The arrays (R, ...) of `limits` by name; and (R,) ``cap``, 1 where a single change is allowed and 0 where
            there is no limit on changes.
        """
        return {**self.limits.arrays(), "cap": self.feasible.cap(self.encoding)}

    def _interval(self, x: Codes) -> tuple[Codes, Codes, Codes]:
        """(B, n) codes of the numbers, and how low and how high each may go."""
        current, missing = x[:, self.encoding.number_at], missing_numbers(self.encoding, x)
        return current, *self.limits.interval(np, current, missing if missing.any() else None)

    def constraint_features(self, x: Codes, reach: float = REACH) -> Codes:
        """(B, 2 n + M + 1); see `TabularSpace.constraint_features`."""
        current, low, high = self._interval(x)
        sides = np.clip(np.concatenate([current - low, high - current], axis=1), 0.0, reach) / np.float32(reach)
        entries = allowed_entries(self.encoding, self.feasible, x)
        cap = np.broadcast_to(self.coded["cap"], len(x))[:, None]
        return np.concatenate([sides, entries, cap], axis=1).astype(np.float32)

    def immovable(self, x: Codes) -> Flags:
        """(B,) rows that may change nothing at all."""
        return immovable(self.encoding, self.feasible, x)

    def lock_change(self, x_cf: Codes, x: Codes, rank: int) -> TableCodes | None:
        """This space with one change of each answer locked, to search for other answers."""
        narrower = lock_change(self.encoding, self.feasible, x_cf, x, rank)
        return None if narrower is None else replace(self, feasible=narrower)

    def alternatives(
        self, x_cf: Codes, x: Codes, step: float, units: Flags | None = None, around: Codes | None = None
    ) -> Alternatives:
        """Feasible points that differ from one of (B, D) answers in one unit of change."""
        return alternatives(self.encoding, self.feasible, x_cf, x, step, units, around)

    def combine(self, x_cf: Codes, x: Codes, moves: Alternatives, chosen: Positions) -> Codes:
        """(K, B, D) answers with several units replaced at once."""
        return combine(self.encoding, self.feasible, x_cf, x, moves, chosen)

    def nearer(self, x_cf: Codes, x: Codes, shares: Sequence[float]) -> Codes:
        """(K, B, D) answers with the same changes, every number a share of its way back."""
        return nearer(self.encoding, self.feasible, x_cf, x, shares)

    def at_cuts(self, x_cf: Codes, x: Codes, cuts: Mapping[str, Floats]) -> Codes:
        """(B, D) answers with every number moved back to the last cut that it has passed."""
        return at_cuts(self.encoding, self.feasible, x_cf, x, cuts)

    def small_sets(self, x: Codes, most: int, at_once: int) -> Iterator[tuple[Positions, Codes]]:
        """Every point of the feasible sets that have few; see `avcg.space.reach.small_sets`."""
        return small_sets(self.encoding, self.feasible, x, most, at_once)

    def largest_scores(self, x: Codes, weights: Floats) -> Floats:
        """(B,) the largest value of a linear function of the codes; see `avcg.space.reach.largest_scores`."""
        return largest_scores(self.encoding, self.feasible, x, weights)

    def restore(self, codes: Codes, factuals: Values) -> Values:
        """Feasible codes (B, D) to exact values; unchanged cells are the factuals' own."""
        return restore(self.encoding, self.feasible, codes, factuals)

    def changes(self, answers: Values, factuals: Values) -> Flags:
        """(B, features) which cells differ."""
        return changes(self.encoding, answers, factuals)

    def violations(self, answers: Values, factuals: Values) -> Flags:
        """(B, features) where an answer breaks a constraint, checked on exact values."""
        return violations(self.encoding, self.feasible, answers, factuals)

    @property
    def tensors(self) -> Any:
        """The same space for torch."""
        from avcg.space.tabular import TabularSpace

        return TabularSpace(self.encoding, self.feasible)
