"""The one search for answers, over two ports: `propose` makes candidates and `judge` says what models think of them.

It works on numpy codes. torch, ONNX graphs and models that can only be asked are implementations of the ports; this
module knows none of them.

1. One pass of the generator at the calibrated margin, at the posterior mean.
2. Where the judges refuse it: more margin, step by step, and the nearest reference rows.
3. Where all of that is refused: other latents at larger margins, and more reference rows.
4. For several answers: other latents, larger margins, reference rows, and answers without each change of the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from avcg.method.config import SearchConfig
from avcg.method.query import Query, choose, quantise
from avcg.models.decision import DecisionRule
from avcg.space.encoding import Codes, Floats, Positions

# Slack in comparing shares of judges, which are sums of float weights.
_SLACK = 1e-6
# Up to so many candidates, all margin steps are tried together; beyond, only for the rows that still need one.
_FEW = 512
# Distances of pairs held at once.
_PAIRS = 2**24

# From (N, *event) codes to (S, N, C) probabilities; the deployed models first.
Judge = Callable[[Codes], NDArray[Any]]


class Propose(Protocol):
    """The port that makes candidates."""

    def __call__(self, query: Query, margin: Codes, latent: Codes | None = None) -> Codes:
        """Feasible candidates.

        Args:
            query: B rows.
            margin: (B,) or (K, B) log-odds to aim at.
            latent: (K, L) standard normal noise; None: one candidate at the posterior mean, or one for each margin.

        Returns:
            (K, B, *event).
        """


@dataclass(frozen=True, eq=False)
class Acceptance:
    """The judges of candidates: deployed models, whose decision must turn, and hypotheses that were trained against.

    Attributes:
        judge: The port that asks them.
        weights: (S,) of all judges, deployed ones first.
        deployed: (I,) weights of the deployed models in the probability that decides.
        rule: How probabilities become a decision.
        survival: The share of judges that must accept a candidate.
        config: Prices of candidates.
    """

    judge: Judge
    weights: Floats
    deployed: Floats
    rule: DecisionRule
    survival: float
    config: SearchConfig = field(default_factory=SearchConfig)

    def deployed_probability(self, judged: NDArray[Any]) -> NDArray[Any]:
        """(S, N, C) what all judges say to (N, C) the probabilities that decide."""
        if len(self.deployed) == 1:
            return np.asarray(judged[0])
        shares = self.deployed.astype(judged.dtype)
        return np.asarray(np.tensordot(shares, judged[: len(shares)], axes=1))

    def penalties(self, candidates: Codes, target: Positions, min_prob: float | None) -> Floats:
        """(N,) 0 for an accepted candidate; for a rejected one more than any distance, the more the worse it is."""
        judged = self.judge(candidates)
        valid = self.rule.valid(self.deployed_probability(judged), target, min_prob)
        share = self.weights @ self.rule.accepts(judged, target).astype(np.float64)
        accepted = valid & (share >= self.survival - _SLACK)
        return np.where(accepted, 0.0, self.config.rejection_penalty * np.where(valid, 2.0 - share, 3.0))

    def costs(self, query: Query, candidates: Codes) -> Floats:
        """(K, B) what (K, B, *event) candidates cost: their distance, and a penalty where they are rejected."""
        count, rows = candidates.shape[:2]
        flat = candidates.reshape(count * rows, *candidates.shape[2:])
        target = query.target if count == 1 else np.tile(query.target, count)
        penalty = self.penalties(flat, target, query.min_prob).reshape(count, rows)
        return query.space.distance(candidates, query.x).astype(np.float64) + penalty

    def rejected(self, costs: Floats) -> Any:
        """Which costs are those of rejected candidates."""
        return costs >= self.config.rejection_penalty

    def best(self, query: Query, candidates: Codes) -> Codes:
        """(n, B, *event) the best of (K, B, *event) candidates, K >= n, different where there are enough."""
        if len(candidates) == query.n:
            return candidates
        return choose(query.space, candidates, self.costs(query, candidates), query.n, self.config)

    def ranked(self, query: Query, answers: Codes) -> Codes:
        """(n, B, *event) the answers of each row, the best first."""
        if query.n == 1:
            return answers
        costs = quantise(self.costs(query, answers), self.config.cost_quantum)
        order = np.argsort(costs, axis=0, kind="stable")
        return answers[order, np.arange(len(query.x))]


def any_class(
    acceptance: Acceptance, query: Query, n_classes: int, answer: Callable[[Query], Codes]
) -> tuple[Codes, Positions]:
    """Answers where any other class will do: each is aimed at in turn, and the cheapest accepted one is kept.

    Args:
        acceptance: Who judges.
        query: Aims at the class after the present one.
        n_classes: C.
        answer: From a query to (n, B, *event) answers.

    Returns:
        (n, B, *event) answers and (B,) the classes they aim at.
    """
    found, aimed = answer(query).copy(), query.target.copy()
    lowest = quantise(acceptance.costs(query, found).max(axis=0), acceptance.config.cost_quantum)
    for step in range(1, n_classes - 1):
        other = replace(query, target=(query.target + step) % n_classes)
        answers = answer(other)
        cost = quantise(acceptance.costs(other, answers).max(axis=0), acceptance.config.cost_quantum)
        better = cost < lowest
        found[:, better], aimed[better] = answers[:, better], other.target[better]
        lowest = np.minimum(cost, lowest)
    return found, aimed


@dataclass(frozen=True, eq=False)
class Search:
    """Answers from a trained generator.

    Attributes:
        acceptance: Who judges candidates.
        propose: The port that makes them.
        references: For each class, (m, *event) rows that all judges accept.
        latents: From a count K to (K, L) standard normal noise, the same for every row and call, so that an answer does
            not depend on its neighbours; fewer are the first of more.
        margin: Calibrated log-odds beyond the decision.
        single_pass: Whether an answer is what one pass gives, and n answers are n latents, as in the paper.
        shorten: From a query, (B, *event) answers and (R, B) margins to more candidates with fewer changes; None:
            there is no such step.
    """

    acceptance: Acceptance
    propose: Propose
    references: Sequence[Codes]
    latents: Callable[[int], Codes]
    margin: float
    single_pass: bool = False
    shorten: Callable[[Query, Codes, Codes], Codes] | None = None

    @property
    def config(self) -> SearchConfig:
        """What is tried."""
        return self.acceptance.config

    def margins(self, query: Query) -> Codes:
        """(B,) log-odds to aim at: enough for the promise, and for what the query asks."""
        margin = (self.acceptance.rule.log_odds(query.target) + self.margin).astype(np.float32)
        wanted = query.min_prob
        if wanted is None:
            return margin
        return np.maximum(margin, np.float32(math.log(wanted / (1 - wanted)) + self.config.margin_slack))

    def answers(self, query: Query) -> Codes:
        """(n, B, *event) the best answers to each row."""
        margin, n = self.margins(query), query.n
        first = self.first(query, margin)
        if n == 1:
            return first[None]
        if self.single_pass:
            return np.concatenate([first[None], self.propose(query, margin, self.latents(n - 1))])
        return self.acceptance.best(query, np.concatenate([first[None], *self._others(query, margin, first)]))

    def _others(self, query: Query, margin: Codes, first: Codes) -> list[Codes]:
        """Candidates for further answers: latents, margins, reference rows, and doing without the first's changes."""
        count, config = self.config.latents_per_answer * query.n, self.config
        more = np.array(config.retry_margins[1:], np.float32)[:, None]
        found = [self.propose(query, margin, self.latents(count))]
        if len(more):
            found.append(self.propose(query, margin + more))
        found.append(self.neighbours(query, count))
        for rank in range(query.n):
            narrower, answer, place = query, first, rank
            for _ in range(config.lock_depth):  # without one change, and then also without what took its place
                space = narrower.space.lock_change(answer, query.x, place)
                if space is None:
                    break
                narrower, place = replace(narrower, space=space), 0
                answer = self.first(narrower, margin)
                found.append(answer[None])
        return found

    def first(self, query: Query, margin: Codes) -> Codes:
        """(B, *event) one answer a row; where the judges reject the first pass, the cheapest of more candidates."""
        answers = self.propose(query, margin)[0]
        if self.single_pass:
            return answers
        costs = self.acceptance.costs(query, answers[None])[0]
        rejected = np.flatnonzero(self.acceptance.rejected(costs))
        if len(rejected):
            answers[rejected] = self._retry(query.take(rejected), margin[rejected], answers[rejected], costs[rejected])
        if self.shorten is not None:
            retry = np.array(self.config.retry_margins, np.float32)[:, None]
            shorter = self.shorten(query, answers, margin + retry)
            answers = self.acceptance.best(replace(query, n=1), shorter)[0]
        return answers

    def _retry(self, query: Query, margin: Codes, answers: Codes, costs: Floats) -> Codes:
        """(B, *event) the first accepted of growing margins, a reference row if that is closer, else all there is."""
        best = _Best(self.acceptance, query, answers, costs)
        steps = np.array(self.config.margin_steps, np.float32)
        while len(steps):
            left = best.rejected()
            if not len(left):
                break
            together = steps[: max(1, _FEW // len(left))]
            rest = query.take(left)
            best.keep_first(left, rest, self.propose(rest, margin[left] + together[:, None]))
            steps = steps[len(together) :]
        best.keep(np.arange(len(query.x)), query, self.neighbours(query, self.config.first_neighbours))
        left = best.rejected()
        if len(left):
            rest, latents = query.take(left), self.latents(self.config.retry_latents)
            for more in self.config.retry_margins:
                best.keep(left, rest, self.propose(rest, margin[left] + np.float32(more), latents))
            best.keep(left, rest, self.neighbours(rest, self.config.retry_neighbours))
        return best.answers

    def neighbours(self, query: Query, count: int) -> Codes:
        """(count, B, *event) reference rows of the target that cost least to become, made feasible.

        The cheapest first; the factual itself where there are not so many.
        """
        result = np.broadcast_to(query.x, (count, *query.x.shape)).copy()
        for label, rows in enumerate(self.references):
            mine = np.flatnonzero(query.target == label)
            if len(mine) and len(rows):
                part = query.take(mine)
                near = nearest_rows(part, rows, count)
                result[: near.shape[1], mine] = part.space.project(rows[near.T], part.x)
        return result


@dataclass(frozen=True, eq=False)
class _Best:
    """The cheapest candidate of each row so far; overwritten by cheaper ones."""

    acceptance: Acceptance
    query: Query
    answers: Codes
    costs: Floats

    def rejected(self) -> Positions:
        """Positions of rows that are still without an accepted answer."""
        return np.flatnonzero(self.acceptance.rejected(self.costs))

    def keep(self, rows: Positions, query: Query, candidates: Codes, costs: Floats | None = None) -> None:
        """Keep for some rows the cheapest of (K, b, *event) candidates, where it is cheaper than what there was."""
        costs = self.acceptance.costs(query, candidates) if costs is None else costs
        quantised = quantise(costs, self.acceptance.config.cost_quantum)
        which, everyone = quantised.argmin(axis=0), np.arange(len(rows))
        better = quantised[which, everyone] < quantise(self.costs[rows], self.acceptance.config.cost_quantum)
        some, of = rows[better], which[better]
        self.answers[some], self.costs[some] = candidates[of, everyone[better]], costs[of, everyone[better]]

    def keep_first(self, rows: Positions, query: Query, candidates: Codes) -> None:
        """The same for steps of growing margin, none beyond the first that is accepted."""
        costs = self.acceptance.costs(query, candidates)
        accepted = ~self.acceptance.rejected(costs)
        costs[np.cumsum(accepted, axis=0) > accepted] = np.inf
        self.keep(rows, query, candidates, costs)


def nearest_rows(query: Query, rows: Codes, count: int) -> Positions:
    """(B, min(count, m)) positions of the rows that each factual costs least to become, the cheapest first.

    Args:
        query: For factuals and prices.
        rows: (m, *event).
        count: How many.
    """
    at_once = max(1, _PAIRS // len(rows))
    parts = [
        _least(query.space.pairwise_distance(query.x[i : i + at_once], rows), count)
        for i in range(0, len(query.x), at_once)
    ]
    return np.concatenate(parts)


def _least(values: NDArray[Any], count: int) -> Positions:
    """(B, count) positions of the least of each line, the least first; all where there are not so many."""
    if values.shape[1] <= count:
        return np.argsort(values, axis=1, kind="stable")
    some = np.argpartition(values, count - 1, axis=1)[:, :count]
    order = np.argsort(np.take_along_axis(values, some, axis=1), axis=1, kind="stable")
    return np.take_along_axis(some, order, axis=1)
