"""Bringing answers closer to their rows, and finding answers where there are none, without gradients; numpy alone.

Each round asks the judges about every alternative to an answer: one change taken back, one number moved, one other
category. What each alternative costs and gains in log-odds is added up over units of change, and for a range of prices
of a log-odd the best combination is formed (Lagrange relaxation of a knapsack problem). The judges are asked about the
combinations too, since gains do not add up exactly. The cheapest accepted point is the next answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from avcg.method.acceptance import Acceptance, price, squash
from avcg.method.config import SearchConfig
from avcg.method.query import Query, quantise
from avcg.space.alternatives import Alternatives
from avcg.space.encoding import Codes, Flags, Floats, Positions

_CANDIDATES = 2**15  # alternatives held at once, about; it bounds memory and changes no result


@dataclass(frozen=True, eq=False)
class Refiner:
    """The steps that bring answers closer to their rows.

    Attributes:
        acceptance: The judges, the decision rule, and the settings of the search.
        cuts: The numbers that judges compare with, by column, if they are trees; empty: they are not.
    """

    acceptance: Acceptance
    cuts: Mapping[str, Floats] = field(default_factory=dict)

    @property
    def config(self) -> SearchConfig:
        """The settings of the search."""
        return self.acceptance.config

    def refined(
        self, query: Query, answers: Codes, margin: Codes, steps: Sequence[float], starts: Codes | None = None
    ) -> Codes:
        """(B, *event) answers that cost no more than before.

        An accepted answer is replaced by accepted ones alone, and keeps its log-odds or the margin, whichever is less.
        A rejected one is replaced by what comes closer to being accepted.

        Args:
            query: B rows.
            answers: (B, *event) feasible answers.
            margin: (B,) log-odds of the target, by the judges' mean less some standard deviations.
            steps: Codes by which numbers are moved, one for each round.
            starts: (K, B, *event) further feasible points to start from; None: there are none.
        """
        result = answers.copy()
        at_once = max(1, _CANDIDATES // (4 + 2 * int(np.prod(answers.shape[1:]))))
        for first in range(0, len(answers), at_once):
            rows = np.arange(first, min(first + at_once, len(answers)))
            state = _State.of(self.acceptance, query.take(rows), answers[rows], margin[rows])
            if starts is not None:
                state.consider_all(starts[:, rows])
            for step, before in zip(steps, [0.0, *steps], strict=False):
                if 0.0 < before < step:  # a new cycle goes on from where less effort ends
                    state.shave(self.cuts)
                state.round(step, everything=step > before, nearby=before == 0.0 and starts is not None)
            state.shave(self.cuts)
            result[rows] = state.answers
        return result

    def exhausted(self, query: Query, answers: Codes, margin: Codes) -> Codes:
        """(B, *event) the answers, or the best of all points that a row may become where these are few.

        Args:
            query: B rows.
            answers: (B, *event) feasible answers.
            margin: (B,) log-odds of the target, as in `refined`.
        """
        state = _State.of(self.acceptance, query, answers, margin)
        for owner, points in query.space.small_sets(query.x, self.config.most_points, _CANDIDATES):
            changed = (points != query.x[owner]).reshape(len(owner), -1).any(axis=1)
            state.consider(points[changed], owner[changed], _prices_of_points(query, owner, points)[changed])
        return state.answers


@dataclass(eq=False)
class _State:
    """The best answers so far, replaced in place by better ones.

    Attributes:
        acceptance: The judges.
        query: B rows.
        answers: (B, *event) the best answers.
        floor: (B,) log-odds that an answer keeps.
        costs: (B,) prices, with a penalty for what falls short of the floor.
        prices: (B,) prices alone.
        odds: (B,) the judges' log-odds.
        promising: (B, units) units that are tried in the next round.
        active: (B,) whether a round with smaller steps may gain anything.
    """

    acceptance: Acceptance
    query: Query
    answers: Codes
    floor: Floats
    costs: Floats
    prices: Floats
    odds: Floats
    promising: Flags | None
    active: Flags

    @classmethod
    def of(cls, acceptance: Acceptance, query: Query, answers: Codes, margin: Codes) -> _State:
        """The state at the start."""
        said = acceptance.judged(answers, query.target, query.min_prob)
        floor = np.where(said.accepted, np.minimum(margin, said.lower), margin.astype(np.float64))
        prices, everything = price(query, answers[None])[0], np.ones(len(answers), bool)
        state = cls(acceptance, query, answers.copy(), floor, prices, prices, said.lower, None, everything)
        unchanged = (answers == query.x).reshape(len(answers), -1).all(axis=1)
        state.costs = prices + acceptance.config.rejection_penalty * (
            state._penalty(said.accepted, said.valid, said.lower, said.short, np.arange(len(answers))) + 5.0 * unchanged
        )
        return state

    def _penalty(self, accepted: Flags, valid: Flags, lower: Floats, short: Floats, rows: Positions) -> Floats:
        """(M,) 0 for an accepted candidate beyond the floor; else a number that grows with what it falls short by."""
        below = np.maximum(self.floor[rows] - lower, 0.0)
        tier = np.where(valid, np.where(accepted, 1.0, 2.0) + squash(below), 3.0 + squash(short))
        return np.where(accepted & (below <= 0.0), 0.0, tier)

    def consider(self, candidates: Codes, rows: Positions, prices: Floats) -> Floats:
        """Ask the judges about candidates, and keep the cheapest of each row where it is cheaper than the answer.

        Args:
            candidates: (M, *event) feasible points.
            rows: (M,) position of the row that each answers.
            prices: (M,) their prices.

        Returns:
            (M,) the judges' log-odds.
        """
        if not len(rows):
            return np.zeros(0)
        config = self.acceptance.config
        said = self.acceptance.judged(candidates, self.query.target[rows], self.query.min_prob)
        penalty = self._penalty(said.accepted, said.valid, said.lower, said.short, rows)
        unchanged = (candidates == self.query.x[rows]).reshape(len(rows), -1).all(axis=1)
        costs = prices + config.rejection_penalty * (penalty + 5.0 * unchanged)
        quantised = quantise(costs, config.cost_quantum)
        order = np.lexsort((np.arange(len(rows)), quantised, rows))  # of equal costs the first
        first = order[np.diff(rows[order], prepend=-1) != 0]
        better = first[quantised[first] < quantise(self.costs[rows[first]], config.cost_quantum)]
        at = rows[better]
        self.answers[at], self.costs[at] = candidates[better], costs[better]
        self.prices[at], self.odds[at] = prices[better], said.lower[better]
        return said.lower

    def consider_all(self, candidates: Codes) -> None:
        """Consider (K, B, *event) candidates, of accepted rows those alone that would be cheaper."""
        prices = price(self.query, candidates)
        changed = (candidates != self.query.x).reshape(*prices.shape, -1).any(axis=-1)
        which, rows = np.nonzero(changed & (prices < self.costs))
        self.consider(candidates[which, rows], rows, prices[which, rows])

    def round(self, step: float, *, everything: bool, nearby: bool) -> None:
        """One round.

        Args:
            step: Codes by which numbers are moved.
            everything: Whether every unit of every row is tried. Otherwise promising ones are, of rows that the last
                round gained something for.
            nearby: Whether numbers are only moved toward the nearest people who were accepted, and categories are
                those that one of them has.
        """
        rows = np.arange(len(self.active)) if everything else np.flatnonzero(self.active)
        if not len(rows) or self.query.deadline.passed:
            return
        query, answers, before = self.query.take(rows), self.answers[rows], self.costs[rows].copy()
        units = None if everything or self.promising is None else self.promising[rows]
        moves = query.space.alternatives(answers, query.x, step, units, query.typical if nearby else None)
        if len(moves):
            prices, odds = self.prices[rows].copy(), self.odds[rows].copy()
            cost = _prices_of(query, moves)
            gained = self.consider(moves.codes, rows[moves.rows], cost) - odds[moves.rows]
            ledger = _Ledger.of(moves, cost - prices[moves.rows], gained, len(rows))
            self._combine(query, answers, moves, ledger, rows, self.floor[rows] - odds)
            if everything:
                self.promising = np.zeros((len(self.active), moves.n_units), bool)
                self.promising[rows] = ledger.promising(self.acceptance.config.n_units)
        quantum = self.acceptance.config.cost_quantum
        self.active[rows] = everything | (quantise(self.costs[rows], quantum) < quantise(before, quantum))

    def shave(self, cuts: Mapping[str, Floats]) -> None:
        """Take small shares of every number's change back, and move numbers back to the cuts of trees."""
        if self.query.deadline.passed:
            return
        space, x = self.query.space, self.query.x
        self.consider_all(space.nearer(self.answers, x, self.acceptance.config.shaved))
        if cuts:
            self.consider_all(space.at_cuts(self.answers, x, cuts)[None])

    def _combine(
        self, query: Query, answers: Codes, moves: Alternatives, ledger: _Ledger, rows: Positions, needed: Floats
    ) -> None:
        """Consider combinations of alternatives that should gain the log-odds needed, and some more."""
        config = self.acceptance.config
        chosen = ledger.combinations(needed, config)
        if not len(chosen):
            return
        candidates = query.space.combine(answers, query.x, moves, chosen)
        prices = price(query, candidates)
        cheaper = (prices < self.costs[rows] - config.tolerance) & (chosen >= 0).any(axis=-1)
        which, of = np.nonzero(cheaper)
        self.consider(candidates[which, of], rows[of], prices[which, of])


@dataclass(frozen=True, eq=False)
class _Ledger:
    """What each alternative of each unit costs and gains, as padded arrays; the first entry is that the unit stays.

    Attributes:
        cost: (B, units, L) what it costs more than the answer; infinite where there is no such alternative.
        gain: (B, units, L) log-odds that it gains.
        position: (B, units, L) its position among the alternatives; -1: the unit stays.
    """

    cost: Floats
    gain: Floats
    position: Positions

    @classmethod
    def of(cls, moves: Alternatives, cost: Floats, gain: Floats, count: int) -> _Ledger:
        """The ledger of B rows.

        Args:
            moves: M alternatives.
            cost: (M,) what each costs more than the answer.
            gain: (M,) log-odds that each gains.
            count: B.
        """
        key = moves.rows * moves.n_units + moves.units
        order = np.argsort(key, kind="stable")
        starts = np.diff(key[order], prepend=-1) != 0
        entry = np.arange(len(order)) - np.maximum.accumulate(np.where(starts, np.arange(len(order)), 0))
        shape = (count, moves.n_units, int(entry.max()) + 2)
        costs, gains, positions = np.full(shape, np.inf), np.zeros(shape), np.full(shape, -1, np.intp)
        costs[..., 0] = 0.0
        at = (moves.rows[order], moves.units[order], entry + 1)
        costs[at], gains[at], positions[at] = cost[order], gain[order], order
        return cls(costs, gains, positions)

    def promising(self, count: int) -> Flags:
        """(B, units) so many units of each row that gain most for their price, and those that may become cheaper."""
        ratio = np.where(self.gain > 0, self.gain / np.maximum(self.cost, 1e-3), 0.0).max(axis=-1)
        ranked = np.argsort(np.argsort(-ratio, axis=1, kind="stable"), axis=1, kind="stable")
        return ((ranked < count) & (ratio > 0)) | (self.cost.min(axis=-1) < 0)

    def combinations(self, needed: Floats, config: SearchConfig) -> Positions:
        """(K, B, units) positions of alternatives whose gains should add up to what is needed, at least cost.

        Args:
            needed: (B,) log-odds to gain; below 0: log-odds that may be lost.
            config: The prices and slacks that are tried.
        """
        wanted = needed + np.array(config.slacks)[:, None]
        low, high = (np.full(wanted.shape, end) for end in config.price_range)
        for _ in range(config.price_halvings):
            middle = np.sqrt(low * high)
            enough = self._gain_of(self._entries(middle)) >= wanted
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        entries = self._entries(high)
        for later in range(1, len(entries)):  # what was chosen for less slack need not be tried again
            repeated = (entries[later] == entries[:later]).all(axis=-1).any(axis=0)
            entries[later, repeated] = 0
        return np.take_along_axis(self.position[None], entries[..., None], axis=-1)[..., 0]

    def _entries(self, log_odd: Floats) -> Positions:
        """(K, B, units) the best entry of each unit where a log-odd is worth (K, B)."""
        return (self.cost - log_odd[..., None, None] * self.gain).argmin(axis=-1)

    def _gain_of(self, entries: Positions) -> Floats:
        """(K, B) the log-odds that (K, B, units) entries gain together, as if gains added up."""
        return np.take_along_axis(self.gain[None], entries[..., None], axis=-1)[..., 0].sum(axis=-1)


def _prices_of(query: Query, moves: Alternatives) -> Floats:
    """(M,) the prices of alternatives, as a table with a column for each row of the query."""
    order = np.argsort(moves.rows, kind="stable")
    counts = np.bincount(moves.rows, minlength=len(query.x))
    slot = np.empty(len(order), np.intp)
    slot[order] = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    table = np.broadcast_to(query.x, (int(counts.max()), *query.x.shape)).copy()
    table[slot, moves.rows] = moves.codes
    return price(query, table)[slot, moves.rows]


def _prices_of_points(query: Query, owner: Positions, points: Codes) -> Floats:
    """(M,) the prices of points, where some rows have thousands and others a few.

    Rows that share a table have numbers of points that differ by less than a factor of two, which bounds memory.
    """
    prices, size = np.empty(len(owner)), np.frexp(np.bincount(owner)[owner])[1]
    for each in np.unique(size):
        at = np.flatnonzero(size == each)
        rows, own = np.unique(owner[at], return_inverse=True)
        prices[at] = _prices_of(query.take(rows), Alternatives(own, np.zeros(len(at), np.intp), points[at], 1))
    return prices


def toward_typical(query: Query, answers: Codes, references: Sequence[Codes], config: SearchConfig, near: int) -> Query:
    """The query with the reference rows from which the typicality of its candidates is measured.

    Args:
        query: B rows.
        answers: (B, *event) first answers, around which the reference rows lie.
        references: For each class, (m, *event) reference rows.
        config: Number of reference rows.
        near: Number of nearest rows that the distance is averaged over.
    """
    smallest = min((len(rows) for rows in references), default=0)
    if not smallest:
        return query
    count = min(config.n_typical, smallest)
    typical = np.empty((len(answers), count, *answers.shape[1:]), np.float32)
    flat = answers.reshape(len(answers), -1).astype(np.float64)
    for label, rows in enumerate(references):
        members = np.flatnonzero(query.target == label)
        if len(members):
            reference = rows.reshape(len(rows), -1).astype(np.float64)
            order = (reference**2).sum(axis=1) - 2.0 * flat[members] @ reference.T
            typical[members] = rows[np.argpartition(order, count - 1, axis=1)[:, :count]]
    return replace(query, typical=typical, n_typical=near)
