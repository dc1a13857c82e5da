"""Answers that are closer to the row: smaller margins, and changes taken back while the judges accept; numpy alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from avcg.method.config import SearchConfig
from avcg.method.query import Query
from avcg.method.search import Acceptance, Search
from avcg.space.codes import CodeSpace
from avcg.space.encoding import Codes, Flags, Floats, Positions

# From (M, *event) candidates and (M,) positions of their rows to (M,) whether each candidate is accepted.
Accept = Callable[[Codes, Positions], Flags]


@dataclass(frozen=True)
class Deadline:
    """A moment after which no further step is begun.

    Attributes:
        at: Seconds on the clock of `time.monotonic`; infinity: there is no deadline.
    """

    at: float = float("inf")

    @classmethod
    def after(cls, seconds: float | None) -> Deadline:
        """A deadline so many seconds from now.

        Args:
            seconds: A number > 0; None: there is no deadline.
        """
        return cls() if seconds is None else cls(time.monotonic() + seconds)

    @property
    def passed(self) -> bool:
        """Whether the moment has come."""
        return time.monotonic() >= self.at


def prune(space: CodeSpace, x: Codes, x_cf: Codes, accept: Accept, deadline: Deadline, config: SearchConfig) -> Codes:
    """Take changes back, the greatest saving first, while answers stay accepted; all rows at once, in rounds.

    Args:
        space: What each of the B rows may change.
        x: (B, *event) the factuals.
        x_cf: (B, *event) feasible, accepted answers.
        accept: Which candidates are accepted.
        deadline: When it has passed, the best answers so far are returned.
        config: Largest number of rounds, and the smallest saving that counts.

    Returns:
        (B, *event) feasible answers, none dearer than before.
    """
    best, cost = x_cf.copy(), space.distance(x_cf, x).copy()
    active = np.arange(len(x))
    for _ in range(config.refine_rounds):
        if not len(active) or deadline.passed:
            break
        of_active, candidates = space.take(active).smaller(best[active], x[active])
        rows = active[of_active]
        price = space.distance(candidates, x[rows])
        cheaper = price < cost[rows] - config.tolerance
        rows, candidates, price = rows[cheaper], candidates[cheaper], price[cheaper]
        if not len(rows):
            break
        accepted = accept(candidates, rows)
        rows, candidates, price = rows[accepted], candidates[accepted], price[accepted]
        # The dearest first, so that the cheapest candidate of each row is written last and stays.
        order = np.argsort(-price, kind="stable")
        winner = np.full(len(x), -1)
        winner[rows[order]] = order
        active = np.flatnonzero(winner >= 0)
        best[active], cost[active] = candidates[winner[active]], price[winner[active]]
    return best


@dataclass(frozen=True, eq=False)
class Refiner:
    """The steps that bring accepted answers closer to their rows.

    Attributes:
        acceptance: The judges, the decision rule, and the settings of the search.
        margin: (C,) log-odds beyond the decision that an answer keeps, by target class.
        spread: Standard deviations over judges by which log-odds must stay clear of the margin.
        search: The search, for answers at smaller margins; None: changes are only taken back.
    """

    acceptance: Acceptance
    margin: Codes
    spread: float
    search: Search | None = None

    def refined(self, query: Query, answers: Codes, deadline: Deadline) -> Codes:
        """(n, B, *event) the answers without changes they do not need; answers that differ stay different.

        Args:
            query: B rows.
            answers: (n, B, *event) encoded answers.
            deadline: When it has passed, the best answers so far are returned.
        """
        if self.search is not None and query.n == 1 and not deadline.passed:
            answers = self._cheapest(query, answers, _smaller_margins(self.search, query))
        result, space, config = answers.copy(), query.space, self.acceptance.config
        for k in range(len(answers)):
            rows = np.flatnonzero(self.accepts(query, answers[k], np.arange(len(query.x))))
            if not len(rows):
                continue
            part, before = query.take(rows), answers[k][rows]
            shorter = prune(part.space, part.x, before, partial(self.accepts, part), deadline, config)
            others = np.concatenate([result[:k], answers[k + 1 :]])[:, rows]
            repeated = (space.distance(others, shorter) <= config.tolerance).any(axis=0)
            result[k, rows] = np.where(repeated.reshape(-1, *[1] * (shorter.ndim - 1)), before, shorter)
        return result

    def accepts(self, query: Query, candidates: Codes, rows: Positions) -> Flags:
        """(M,) whether each candidate is valid, and beyond the decision by the margin for most judges.

        Args:
            query: B rows.
            candidates: (M, *event) encoded candidates.
            rows: (M,) position in the query of the row that each candidate answers.
        """
        target, rule = query.target[rows], self.acceptance.rule
        judged = self.acceptance.judge(candidates)
        needed = rule.log_odds(target) + self.margin[target]
        valid = rule.valid(self.acceptance.deployed_probability(judged), target, query.min_prob)
        probability = np.take_along_axis(judged, target[None, :, None], axis=-1)[..., 0]
        return np.asarray((lower_log_odds(probability, self.acceptance.weights, self.spread) >= needed) & valid)

    def _cheapest(self, query: Query, answers: Codes, candidates: Codes) -> Codes:
        """(1, B, *event) the answers, or the cheapest accepted candidates of (K, B, *event) where they are nearer."""
        rows, everything = np.arange(len(query.x)), np.concatenate([answers, candidates])
        accepted = np.stack([self.accepts(query, candidate, rows) for candidate in everything])
        distances = query.space.distance(everything, query.x)
        prices = np.where(accepted, distances, np.inf)
        cheapest = prices.argmin(axis=0)
        cheaper = prices[cheapest, rows] < distances[0]
        result = answers.copy()
        result[0, cheaper] = everything[cheapest, rows][cheaper]
        return result


def lower_log_odds(probability: Floats, weights: Floats, spread: float) -> Floats:
    """(N,) the mean log-odds of (S, N) probabilities less some standard deviations; see `avcg.method.risk`.

    Args:
        probability: (S, N) probability of the target under each judge.
        weights: (S,) weights that sum to 1.
        spread: Number of standard deviations.
    """
    # Bounds as in torch, so that the log-odds of a certain decision are finite.
    log_p = np.log(np.maximum(probability.astype(np.float64), 1e-30)).clip(max=-1e-7)
    odds = log_p - np.log(-np.expm1(log_p))
    mean = weights @ odds
    return np.asarray(mean - spread * np.sqrt(weights @ (odds - mean) ** 2))


def _smaller_margins(search: Search, query: Query) -> Codes:
    """(K, B, *event) answers at smaller margins, and answers with a change of the first one locked."""
    margin, config = search.margins(query), search.config
    candidates = [search.propose(query, margin - np.array(config.refine_margins, np.float32)[:, None])]
    for rank in range(config.refine_locks):
        space = query.space.lock_change(candidates[0][0], query.x, rank)
        if space is not None:
            candidates.append(search.propose(replace(query, space=space), margin))
    return np.concatenate(candidates)
