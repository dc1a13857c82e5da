"""The one search for answers, over two ports: `propose` makes candidates, `judge` gives the models' probabilities.

It works on numpy codes. torch, ONNX graphs and models that can only be asked are implementations of the ports; this
module knows none of them.

1. One pass of the generator at the calibrated margin, at the posterior mean.
2. Where the judges reject it: more margin, step by step, and the nearest reference rows.
3. Where all of that is rejected: other latents at larger margins, and more reference rows.
4. For several answers: other latents, larger margins, reference rows, and answers with changes of the first locked.
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

# Neither changes a result:
_BATCHED_STEPS = 512  # candidates up to which several margin steps are tried in one call, which is quicker
_PAIRS = 2**24  # distances held at once, which bounds memory

# From (N, *event) codes to (S, N, C) probabilities, the deployed models first.
Judge = Callable[[Codes], NDArray[Any]]


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
class Acceptance:
    """Which candidates are accepted, and what each costs.

    The judges are the deployed models, whose decision must change, and hypotheses that were trained against.

    Attributes:
        judge: The port that gives the judges' probabilities.
        weights: (S,) weights of all judges, the deployed models first.
        deployed_weights: (I,) weights of the deployed models in the probability that decides.
        rule: How probabilities become a decision.
        survival: Share of judges that must accept a candidate.
        config: Penalties and tolerances.
    """

    judge: Judge
    weights: Floats
    deployed_weights: Floats
    rule: DecisionRule
    survival: float
    config: SearchConfig = field(default_factory=SearchConfig)

    def deployed_probability(self, judged: NDArray[Any]) -> NDArray[Any]:
        """From the (S, N, C) probabilities of all judges to the (N, C) probabilities of the deployed model."""
        if len(self.deployed_weights) == 1:
            return np.asarray(judged[0])
        shares = self.deployed_weights.astype(judged.dtype)
        return np.asarray(np.tensordot(shares, judged[: len(shares)], axes=1))

    def penalties(self, candidates: Codes, target: Positions, min_prob: float | None) -> Floats:
        """(N,) 0 for an accepted candidate; for a rejected one a penalty that grows as fewer judges accept it."""
        judged = self.judge(candidates)
        valid = self.rule.valid(self.deployed_probability(judged), target, min_prob)
        share = self.weights @ self.rule.accepts(judged, target).astype(np.float64)
        accepted = valid & (share >= self.survival - self.config.tolerance)
        return np.where(accepted, 0.0, self.config.rejection_penalty * np.where(valid, 2.0 - share, 3.0))

    def costs(self, query: Query, candidates: Codes) -> Floats:
        """(K, B) costs of (K, B, *event) candidates: distance, and a penalty for the rejected ones."""
        count, rows = candidates.shape[:2]
        flat = candidates.reshape(count * rows, *candidates.shape[2:])
        target = query.target if count == 1 else np.tile(query.target, count)
        penalty = self.penalties(flat, target, query.min_prob).reshape(count, rows)
        return query.space.distance(candidates, query.x).astype(np.float64) + penalty

    def rejected(self, costs: Floats) -> Any:
        """Whether each cost is that of a rejected candidate."""
        return costs >= self.config.rejection_penalty

    def best(self, query: Query, candidates: Codes) -> Codes:
        """(n, B, *event) the cheapest of (K, B, *event) candidates, K >= n, different where there are enough."""
        if len(candidates) == query.n:
            return candidates
        return choose(query.space, candidates, self.costs(query, candidates), query.n, self.config)

    def ranked(self, query: Query, answers: Codes) -> Codes:
        """(n, B, *event) the answers to each row, the cheapest first."""
        if query.n == 1:
            return answers
        costs = quantise(self.costs(query, answers), self.config.cost_quantum)
        order = np.argsort(costs, axis=0, kind="stable")
        return answers[order, np.arange(len(query.x))]


def any_class(
    acceptance: Acceptance, query: Query, n_classes: int, answer: Callable[[Query], Codes]
) -> tuple[Codes, Positions]:
    """Answers where any other class will do: each class is aimed at in turn, and the cheapest answers are kept.

    Args:
        acceptance: What each answer costs.
        query: B rows, aimed at the class after their present one.
        n_classes: C.
        answer: Function from a query to (n, B, *event) answers.

    Returns:
        The (n, B, *event) answers and the (B,) classes they aim at.
    """
    best, aimed = answer(query).copy(), query.target.copy()
    lowest = quantise(acceptance.costs(query, best).max(axis=0), acceptance.config.cost_quantum)
    for step in range(1, n_classes - 1):
        other = replace(query, target=(query.target + step) % n_classes)
        answers = answer(other)
        cost = quantise(acceptance.costs(other, answers).max(axis=0), acceptance.config.cost_quantum)
        better = cost < lowest
        best[:, better], aimed[better] = answers[:, better], other.target[better]
        lowest = np.minimum(cost, lowest)
    return best, aimed


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
        shorten: Function from a query, (B, *event) answers and (R, B) margins to candidates with fewer changes; None:
            there is no such step.
    """

    acceptance: Acceptance
    propose: Propose
    references: Sequence[Codes]
    latents: Callable[[int], Codes]
    margin: Codes
    single_pass: bool = False
    shorten: Callable[[Query, Codes, Codes], Codes] | None = None

    @property
    def config(self) -> SearchConfig:
        """What is tried, and how candidates are compared."""
        return self.acceptance.config

    def margins(self, query: Query) -> Codes:
        """(B,) log-odds to aim at: enough for the promise, and for the query's ``min_prob``."""
        margin = (self.acceptance.rule.log_odds(query.target) + self.margin[query.target]).astype(np.float32)
        if query.min_prob is None:
            return margin
        log_odds = math.log(query.min_prob / (1 - query.min_prob))
        return np.maximum(margin, np.float32(log_odds + self.config.margin_slack))

    def answers(self, query: Query) -> Codes:
        """(n, B, *event) the cheapest answers to each row."""
        margin, n = self.margins(query), query.n
        first = self.first(query, margin)
        if n == 1:
            return first[None]
        if self.single_pass:
            return np.concatenate([first[None], self.propose(query, margin, self.latents(n - 1))])
        return self.acceptance.best(query, np.concatenate([first[None], *self._others(query, margin, first)]))

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
                if space is None:
                    break
                narrower, rank = replace(narrower, space=space), 0
                answer = self.first(narrower, margin)
                candidates.append(answer[None])
        return candidates

    def first(self, query: Query, margin: Codes) -> Codes:
        """(B, *event) one answer for each row; where the judges reject the first pass, the cheapest of more."""
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
