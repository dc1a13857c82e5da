"""The one search for answers, over two ports: `propose` makes candidates, `judge` gives the models' probabilities.

It works on numpy codes. torch, ONNX graphs and models that can only be asked are implementations of the ports; this
module knows none of them.

1. One pass of the generator at the calibrated margin, at the posterior mean.
2. Where the judges reject it: more margin, step by step, and the nearest reference rows.
3. Where all of that is rejected: other latents at larger margins, more reference rows, and then a search for each
   row, from the best of these.
4. With standard and thorough effort, every answer is brought closer to its row; see `avcg.method.refine`.
5. For several answers: other latents, larger margins, reference rows, and answers with changes of the first locked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from avcg.method.acceptance import Acceptance
from avcg.method.config import SearchConfig
from avcg.method.query import EFFORTS, Query, choose, quantise
from avcg.method.refine import Refiner, toward_typical
from avcg.space.encoding import Codes, Floats, Positions

# None changes a result:
_CODES_AT_ONCE = 2**24  # numbers of the reference rows that measure typicality, which bounds memory
_BATCHED_STEPS = 512  # candidates up to which several margin steps are tried in one call, which is quicker
_PAIRS = 2**24  # distances held at once, which bounds memory


class Propose(Protocol):
    """The port that makes candidates."""

    def __call__(self, query: Query, margin: Codes, latent: Codes | None = None) -> Codes:
        """Feasible candidates.

        Args:
            query: B rows.
            margin: (B,) or (K, B) log-odds to aim at.
            latent: (K, L) standard normal noise; None: the posterior mean, with one candidate for each margin.

        Returns:
            (K, B, *event).
        """


@dataclass(frozen=True, eq=False)
class Search:
    """The search for answers with a trained generator.

    Attributes:
        acceptance: Which candidates are accepted, and what each costs.
        propose: The port that makes candidates.
        references: For each class, (m, *event) reference rows.
        latents: Function from a count K to (K, L) standard normal noise. It is the same for every row and call, so that
            an answer does not depend on its neighbours, and K latents are the first K of any larger number.
        margin: (C,) calibrated log-odds beyond the decision, by target class.
        single_pass: Whether an answer is what one pass gives, and n answers are n latents, as in the paper.
        n_typical: Number of nearest reference rows from which typicality is measured.
        cuts: The numbers that judges compare with, by column, if they are trees.
    """

    acceptance: Acceptance
    propose: Propose
    references: Sequence[Codes]
    latents: Callable[[int], Codes]
    margin: Codes
    single_pass: bool = False
    n_typical: int = 5
    cuts: Mapping[str, Floats] = field(default_factory=dict)

    @property
    def config(self) -> SearchConfig:
        """What is tried, and how candidates are compared."""
        return self.acceptance.config

    @property
    def refiner(self) -> Refiner:
        """The steps that bring answers closer to their rows."""
        return Refiner(self.acceptance, self.cuts)

    def margins(self, query: Query) -> Codes:
        """(B,) log-odds to aim at: enough for the promise, and for the query's ``min_prob``."""
        margin = (self.acceptance.rule.log_odds(query.target) + self.margin[query.target]).astype(np.float32)
        if query.min_prob is None:
            return margin
        log_odds = math.log(query.min_prob / (1 - query.min_prob))
        return np.maximum(margin, np.float32(log_odds + self.config.margin_slack))

    def answers(self, query: Query) -> Codes:
        """(n, B, *event) the answers to each row: the first is the cheapest, the others make other changes.

        The first is the same whatever n is.
        """
        at_once = max(16, _CODES_AT_ONCE // (self.config.n_typical * int(np.prod(query.x.shape[1:])) * query.n))
        if len(query.x) > at_once:
            parts = np.array_split(np.arange(len(query.x)), -(-len(query.x) // at_once))
            return np.concatenate([self.answers(query.take(part)) for part in parts], axis=1)
        margin = self.margins(query)
        first, query = self._first(query, margin)
        if query.n == 1:
            return first[None]
        if self.single_pass:
            return np.concatenate([first[None], self.propose(query, margin, self.latents(query.n - 1))])
        candidates = np.concatenate([first[None], *self._others(query, margin, first)])
        costs = self.acceptance.costs(query, candidates)
        # What is nearer than the first answer is less typical; it is handed out only where there is nothing else.
        nearer = (
            query.space.distance(candidates, query.x) < query.space.distance(first, query.x) - self.config.tolerance
        )
        costs += 0.5 * self.config.rejection_penalty * nearer
        costs[0] = -10.0 * self.config.rejection_penalty
        return choose(query.space, candidates, costs, query.n, self.config)

    def _others(self, query: Query, margin: Codes, first: Codes) -> list[Codes]:
        """Candidates for further answers: latents, margins, reference rows, and changes of the first answer locked."""
        config, count = self.config, self.config.latents_per_answer * query.n
        more = np.array(config.retry_margins[1:], np.float32)[:, None]
        candidates = [self.propose(query, margin, self.latents(count))]
        if len(more):
            candidates.append(self.propose(query, margin + more))
        candidates.append(self.neighbours(query, count))
        for first_rank in range(query.n):
            narrower, answer, rank = query, first, first_rank
            for _ in range(config.lock_depth):  # locks one change, then also the dearest of those made instead
                space = narrower.space.lock_change(answer, query.x, rank)
                if space is None or query.deadline.passed:
                    break
                narrower, rank = replace(narrower, space=space), 0
                answer = self._first(narrower, margin)[0]
                candidates.append(answer[None])
        return candidates

    def _first(self, query: Query, margin: Codes) -> tuple[Codes, Query]:
        """(B, *event) one answer for each row, and the query with the reference rows that measure its typicality."""
        answers = self.propose(query, margin)[0]
        if self.single_pass and query.effort != "thorough":
            return answers, query
        if query.typical is None:
            query = toward_typical(query, answers, self.references, self.config, self.n_typical)
        costs = self.acceptance.costs(query, answers[None])[0]
        rejected = np.flatnonzero(self.acceptance.rejected(costs))
        if len(rejected):
            part = query.take(rejected)
            found = self._retry(part, margin[rejected], answers[rejected], costs[rejected])
            answers[rejected] = self._rescued(part, margin[rejected], found)
        if query.effort == "fast" or query.deadline.passed:
            return answers, query
        steps = self.config.steps + (self.config.thorough_steps if query.effort == "thorough" else ())
        return self.refiner.refined(query, answers, margin, steps, self._starts(query, margin, answers)), query

    def _starts(self, query: Query, margin: Codes, first: Codes) -> Codes:
        """(K, B, *event) points to start from: smaller margins, changes of the first answer locked, reference rows."""
        config = self.config
        less = np.array(config.smaller_margins, np.float32)[:, None]
        starts = [self.propose(query, margin - less)] if len(less) else []
        for rank in range(config.start_locks):
            space = query.space.lock_change(first, query.x, rank)
            if space is not None:
                starts.append(self.propose(replace(query, space=space), margin))
        return np.concatenate([*starts, self.neighbours(query, config.first_neighbours)])

    def _rescued(self, query: Query, margin: Codes, answers: Codes) -> Codes:
        """(B, *event) the answers, those that are still rejected after a search for each row from where they are.

        It takes the rounds of less effort first, and ends for a row once the judges accept its answer, so that more
        effort starts from the answer of less.
        """
        config, before = self.config, 0
        for rounds in config.rescue_rounds[: EFFORTS.index(query.effort) + 1]:
            rejected = np.flatnonzero(self.acceptance.rejected(self.acceptance.costs(query, answers[None])[0]))
            if not len(rejected) or query.deadline.passed:
                break
            part, margins = query.take(rejected), margin[rejected]
            steps = (config.rescue_steps * (rounds // len(config.rescue_steps) + 1))[before:rounds]
            found = self.refiner.refined(part, answers[rejected], margins, steps)
            if not before and not query.deadline.passed:
                found = self.refiner.exhausted(part, found, margins)
            answers[rejected], before = found, rounds
        return answers

    def _retry(self, query: Query, margin: Codes, answers: Codes, costs: Floats) -> Codes:
        """(B, *event) the first accepted answer of growing margins, or a reference row where that is cheaper.

        Rows for which all of these are rejected are tried again with other latents and more reference rows.
        """
        best = _Best(self.acceptance, query, answers, costs)
        steps = np.array(self.config.margin_steps, np.float32)
        while len(steps):
            rejected = best.rejected()
            if not len(rejected):
                break
            batched = steps[: max(1, _BATCHED_STEPS // len(rejected))]
            part = query.take(rejected)
            best.keep_first(rejected, part, self.propose(part, margin[rejected] + batched[:, None]))
            steps = steps[len(batched) :]
        best.keep(np.arange(len(query.x)), query, self.neighbours(query, self.config.first_neighbours))
        rejected = best.rejected()
        if len(rejected):
            part, latents = query.take(rejected), self.latents(self.config.retry_latents)
            for more in self.config.retry_margins:
                best.keep(rejected, part, self.propose(part, margin[rejected] + np.float32(more), latents))
            best.keep(rejected, part, self.neighbours(part, self.config.retry_neighbours))
        return best.answers

    def neighbours(self, query: Query, count: int) -> Codes:
        """(count, B, *event) the reference rows of the target that cost least to become, made feasible.

        The cheapest comes first; where there are fewer rows, the rest are the factual itself.
        """
        result = np.broadcast_to(query.x, (count, *query.x.shape)).copy()
        for label, rows in enumerate(self.references):
            members = np.flatnonzero(query.target == label)
            if len(members) and len(rows):
                part = query.take(members)
                near = nearest_rows(part, rows, count)
                result[: near.shape[1], members] = part.space.project(rows[near.T], part.x)
        return result


@dataclass(frozen=True, eq=False)
class _Best:
    """The cheapest candidate of each row so far, replaced in place by cheaper ones."""

    acceptance: Acceptance
    query: Query
    answers: Codes
    costs: Floats

    def rejected(self) -> Positions:
        """Positions of the rows that have no accepted answer yet."""
        return np.flatnonzero(self.acceptance.rejected(self.costs))

    def keep(self, rows: Positions, query: Query, candidates: Codes, costs: Floats | None = None) -> None:
        """Keep the cheapest candidate of each row where it is cheaper than the one so far.

        Args:
            rows: (b,) positions of the rows.
            query: These rows.
            candidates: (K, b, *event).
            costs: (K, b); None: computed here.
        """
        costs = self.acceptance.costs(query, candidates) if costs is None else costs
        quantised = quantise(costs, self.acceptance.config.cost_quantum)
        cheapest, columns = quantised.argmin(axis=0), np.arange(len(rows))
        better = quantised[cheapest, columns] < quantise(self.costs[rows], self.acceptance.config.cost_quantum)
        of, at, column = rows[better], cheapest[better], columns[better]
        self.answers[of], self.costs[of] = candidates[at, column], costs[at, column]

    def keep_first(self, rows: Positions, query: Query, candidates: Codes) -> None:
        """Keep the cheapest of (K, b, *event) candidates of growing margin, none after the first that is accepted."""
        costs = self.acceptance.costs(query, candidates)
        accepted = ~self.acceptance.rejected(costs)
        costs[np.cumsum(accepted, axis=0) > accepted] = np.inf
        self.keep(rows, query, candidates, costs)


def nearest_rows(query: Query, rows: Codes, count: int) -> Positions:
    """(B, min(count, m)) positions of the rows that each factual costs least to become, the cheapest first.

    Args:
        query: B factuals, and the space that prices changes.
        rows: (m, *event) rows to choose from.
        count: Number of rows for each factual.
    """
    at_once = max(1, _PAIRS // len(rows))
    parts = [
        _least(query.space.pairwise_distance(query.x[i : i + at_once], rows), count)
        for i in range(0, len(query.x), at_once)
    ]
    return np.concatenate(parts)


def _least(values: NDArray[Any], count: int) -> Positions:
    """(B, min(count, m)) positions of the least of (B, m) values, the least first."""
    if values.shape[1] <= count:
        return np.argsort(values, axis=1, kind="stable")
    least = np.argpartition(values, count - 1, axis=1)[:, :count]
    order = np.argsort(np.take_along_axis(values, least, axis=1), axis=1, kind="stable")
    return np.take_along_axis(least, order, axis=1)
