"""Which candidates are accepted, how nearly the others are, and what each costs; numpy alone.

The judges are the deployed models, whose decision must change, and hypotheses that were trained against. They are
asked through the port `Judge`, and no library behind it is known here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avcg.method.config import SearchConfig
from avcg.method.query import Query, choose, quantise
from avcg.models.decision import DecisionRule, of_target
from avcg.space.encoding import Codes, Flags, Floats, Positions

# From (N, *event) codes to (S, N, C) probabilities, the deployed models first.
Judge = Callable[[Codes], NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Judgement:
    """What the judges say of N candidates.

    Attributes:
        valid: (N,) whether the deployed model decides for the target, with the probability that was asked for.
        accepted: (N,) whether a candidate is valid, and the share of judges that must accept it does.
        share: (N,) share of judges that accept it.
        lower: (N,) log-odds of the target: the judges' mean less some standard deviations.
        short: (N,) log-odds by which the deployed model falls short of the decision; 0 where it does not.
    """

    valid: Flags
    accepted: Flags
    share: Floats
    lower: Floats
    short: Floats


@dataclass(frozen=True, eq=False)
class Acceptance:
    """Which candidates are accepted, and what each costs.

    Attributes:
        judge: The port that gives the judges' probabilities.
        weights: (S,) weights of all judges, the deployed models first.
        deployed_weights: (I,) weights of the deployed models in the probability that decides.
        rule: How probabilities become a decision.
        survival: Share of judges that must accept a candidate.
        spread: Standard deviations over judges by which log-odds must stay clear of a margin.
        config: Penalties and tolerances.
    """

    judge: Judge
    weights: Floats
    deployed_weights: Floats
    rule: DecisionRule
    survival: float
    spread: float
    config: SearchConfig = field(default_factory=SearchConfig)

    def deployed_probability(self, judged: NDArray[Any]) -> NDArray[Any]:
        """From the (S, N, C) probabilities of all judges to the (N, C) probabilities of the deployed model."""
        if len(self.deployed_weights) == 1:
            return np.asarray(judged[0])
        shares = self.deployed_weights.astype(judged.dtype)
        return np.asarray(np.tensordot(shares, judged[: len(shares)], axes=1))

    def judged(self, candidates: Codes, target: Positions, min_prob: float | None) -> Judgement:
        """What the judges say of (N, *event) candidates for (N,) targets."""
        probabilities = self.judge(candidates)
        deployed = self.deployed_probability(probabilities)
        valid = self.rule.valid(deployed, target, min_prob)
        share = self.weights @ self.rule.accepts(probabilities, target).astype(np.float64)
        odds = log_odds(of_target(probabilities, target), self.config.most_log_odds)
        mean = self.weights @ odds
        lower = mean - self.spread * np.sqrt(self.weights @ (odds - mean) ** 2)
        accepted = valid & (share >= self.survival - self.config.tolerance)
        return Judgement(valid, accepted, share, lower, np.where(valid, 0.0, self._short(deployed, target, min_prob)))

    def _short(self, deployed: NDArray[Any], target: Positions, min_prob: float | None) -> Floats:
        """(N,) log-odds by which (N, C) probabilities fall short of the decision for the target."""
        most = self.config.most_log_odds
        own = log_odds(of_target(deployed, target), most)
        if self.rule.threshold is None:
            others = deployed.astype(np.float64)
            others[np.arange(len(others)), target] = 0.0
            least = _probability(-most)
            short = np.log(np.maximum(others.max(axis=1), least)) - np.log(
                np.maximum(of_target(deployed, target), least)
            )
        else:
            short = self.rule.log_odds(target) - own
        if min_prob is not None:
            short = np.maximum(short, math.log(min_prob / (1 - min_prob)) - own)
        return np.maximum(short, 0.0)

    def costs(self, query: Query, candidates: Codes) -> Floats:
        """(K, B) costs of (K, B, *event) candidates: their price, and a penalty for the rejected ones."""
        count, rows = candidates.shape[:2]
        flat = candidates.reshape(count * rows, *candidates.shape[2:])
        target = query.target if count == 1 else np.tile(query.target, count)
        said = self.judged(flat, target, query.min_prob)
        penalty = np.where(said.accepted, 0.0, np.where(said.valid, 2.0 - said.share, 3.0 + squash(said.short)))
        unchanged = (candidates == query.x).reshape(count, rows, -1).all(axis=-1)
        penalty = self.config.rejection_penalty * (penalty.reshape(count, rows) + 5.0 * unchanged)
        return price(query, candidates) + penalty

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


def price(query: Query, candidates: Codes) -> Floats:
    """(K, B) what (K, B, *event) candidates cost: distance from the row, and from people who were accepted.

    A typicality t weighs the two by 1 - t and t. The second is the mean Euclidean distance, in codes, to the nearest of
    the reference rows that the query carries.
    """
    distance = query.space.distance(candidates, query.x).astype(np.float64)
    if query.typical is None or not query.typicality:
        return distance
    rows, count = len(query.x), len(candidates)
    # In float64, so that the last digits do not depend on how many candidates are compared.
    points = np.moveaxis(candidates, 0, 1).reshape(rows, count, -1).astype(np.float64)
    reference = query.typical.reshape(rows, query.typical.shape[1], -1).astype(np.float64)
    squares = (points**2).sum(axis=-1)[..., None] + (reference**2).sum(axis=-1)[:, None]
    squares -= 2.0 * (points @ np.swapaxes(reference, 1, 2))
    near = min(query.n_typical, squares.shape[-1])
    nearest = np.partition(np.sqrt(np.maximum(squares, 0.0)), near - 1, axis=-1)[..., :near]
    return (1.0 - query.typicality) * distance + query.typicality * nearest.mean(axis=-1).T


def log_odds(probability: NDArray[Any], most: float) -> Floats:
    """The log-odds of probabilities, cut off at ``most`` and its negative."""
    p = np.clip(probability.astype(np.float64), _probability(-most), _probability(most))
    return np.asarray(np.log(p) - np.log1p(-p))


def _probability(log_odds: float) -> float:
    """The probability with these log-odds."""
    return 1.0 / (1.0 + math.exp(-log_odds))


def squash(shortfall: Floats) -> Floats:
    """Numbers >= 0 brought into [0, 1), in the same order."""
    return shortfall / (1.0 + shortfall)


def any_class(
    acceptance: Acceptance, query: Query, n_classes: int, answer: Callable[[Query], Codes]
) -> tuple[Codes, Positions]:
    """Answers where any other class will do: the class whose first answer is the cheapest.

    Args:
        acceptance: What each answer costs.
        query: B rows, aimed at the class after their present one.
        n_classes: C.
        answer: Function from a query to (n, B, *event) answers.

    Returns:
        The (n, B, *event) answers and the (B,) classes they aim at.
    """
    aimed, lowest = query.target.copy(), np.full(len(query.x), np.inf)
    best = np.broadcast_to(query.x, (1, *query.x.shape)).copy()
    for step in range(n_classes - 1):
        other = replace(query, target=(query.target + step) % n_classes, n=1)
        first = answer(other)
        cost = quantise(acceptance.costs(other, first)[0], acceptance.config.cost_quantum)
        better = cost < lowest
        best[:, better], aimed[better] = first[:, better], other.target[better]
        lowest = np.minimum(cost, lowest)
    return (best if query.n == 1 else answer(replace(query, target=aimed))), aimed
