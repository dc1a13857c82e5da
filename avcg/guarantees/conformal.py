"""The promise: the least margin at which the next model keeps accepting the advice, with a chance that can be proven.

Split conformal prediction over models. Calibration models judge the answers to calibration rows at every margin of a
ladder. If the next model is exchangeable with the calibration models, the promise holds for any number of models and
any distribution they come from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from avcg.errors import SettingError
from avcg.guarantees.bounds import clopper_pearson
from avcg.guarantees.statement import as_fraction

Counts = NDArray[np.int64]
Guarantee = Literal["next_model", "most_models", "expected"]
Reason = Literal["", "models", "rows", "weights", "margin", "moments", "target", "query"]


@dataclass(frozen=True)
class Promise:
    """What is promised to people who follow the advice.

    Attributes:
        survival: Share of these people that a model must accept, in (0, 1).
        reliability: Chance that the next model does, in (0, 1).
        guarantee: What the chance is about:

            - ``"next_model"``: there is at most a 1 - ``reliability`` chance that the next model accepts fewer than
              ``survival`` of them. The chance is over the calibration models and the next model together. They are the
              people of the calibration; `for_everyone` says what follows for all others.
            - ``"most_models"``: at least ``reliability`` of all further models accept ``survival`` of them, except with
              a chance of 1 - ``confidence`` over the calibration models.
            - ``"expected"``: there is at most a 1 - ``survival`` chance that the next person gets an answer which the
              next model refuses. A person without an answer counts as not refused.
        confidence: Confidence of ``"most_models"``, in (0, 1).
    """

    survival: float = 0.95
    reliability: float = 0.9
    guarantee: Guarantee = "next_model"
    confidence: float = 0.9

    def __post_init__(self) -> None:
        for name in ("survival", "reliability", "confidence"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1:
                raise SettingError(f"The '{name}' of a promise must be a number in (0, 1). Got {value!r} instead.")
        if self.guarantee not in ("next_model", "most_models", "expected"):
            raise SettingError(
                "The 'guarantee' of a promise must be 'next_model', 'most_models' or 'expected'. Got"
                f" {self.guarantee!r} instead."
            )

    @property
    def needed_models(self) -> int:
        """The least number of calibration models that can carry the promise, with as many rows as it takes."""
        if self.guarantee == "most_models":
            return math.ceil(math.log1p(-self.confidence) / math.log(self.reliability) - 1e-9)
        if self.guarantee == "expected":
            return _least_expected(as_fraction(self.survival))
        return _least(as_fraction(self.reliability))

    @property
    def needed_rows(self) -> int:
        """The least number of calibration rows of a direction that can carry the promise, with as many models."""
        return (_least_expected if self.guarantee == "expected" else _least)(as_fraction(self.survival))

    def needed_models_for(self, n_rows: int) -> int:
        """The least number of calibration models that can carry the promise with so many calibration rows.

        Rows matter for ``"expected"`` alone, where an unseen row and an unseen model are both counted as refused. With
        fewer than ``needed_rows`` rows no number of models is enough, and the number is that for any number of rows.

        Args:
            n_rows: Number of calibration rows of a direction.

        >>> expected = Promise(survival=0.95, guarantee="expected")
        >>> expected.needed_models, expected.needed_models_for(60), expected.needed_models_for(400)
        (20, 29, 20)
        """
        if self.guarantee != "expected" or n_rows < self.needed_rows:
            return self.needed_models
        return _least(as_fraction(self.survival) * (n_rows + 1) / n_rows)

    def for_everyone(self, n_rows: int, error: float = 0.05) -> float:
        """The survival that follows for all people whom the calibration rows stand for.

        The chance of ``"next_model"`` is about the calibration rows. A model that keeps the promised share of them from
        some margin on accepts at least this share of all people that the rows were drawn from, except with a chance of
        ``error`` over the rows. So the chance that the next model does not is at most 1 - ``reliability`` + ``error``.
        It is the bound of Clopper and Pearson; the number of margins needs no correction, because they are looked at
        from the largest down.

        Args:
            n_rows: Number of calibration rows of a direction that have an answer. Where it differs between margins, the
                least of the results holds.
            error: Chance that is added to that of breaking the promise, in (0, 1).

        >>> promise = Promise(survival=0.95, reliability=0.9)
        >>> [round(promise.for_everyone(n), 3) for n in (60, 200, 800)]
        [0.899, 0.923, 0.937]
        """
        if isinstance(n_rows, bool) or n_rows < 1:
            raise SettingError(f"The 'n_rows' of a promise must be an integer >= 1. Got {n_rows!r} instead.")
        if self.guarantee == "expected":
            return self.survival
        needed = _needed(as_fraction(self.survival), n_rows)
        return float(clopper_pearson(needed, n_rows, 1.0 - error)) if needed <= n_rows else 0.0

    def carried_by(self, moments: int) -> Promise:
        """This promise with no more reliability than so many past moments can carry, which is T / (T + 1).

        >>> Promise(reliability=0.95).carried_by(9).reliability, Promise(reliability=0.8).carried_by(9).reliability
        (0.9, 0.8)
        """
        if self.guarantee != "next_model":
            return self
        return replace(self, reliability=min(self.reliability, moments / (moments + 1)))

    def rank(self, n_models: int) -> int | None:
        """The rank k of the critical margin to take among those of m models, from 1; None: m models are too few.

        >>> Promise(reliability=0.9).rank(9), Promise(reliability=0.9).rank(8)
        (9, None)
        >>> Promise(reliability=0.9, guarantee="most_models").rank(22)
        22
        """
        if self.guarantee == "most_models":
            return confident_rank(n_models, self.reliability, self.confidence)
        rank = math.ceil(as_fraction(self.reliability) * (n_models + 1))
        return rank if rank <= n_models else None


@dataclass(frozen=True, eq=False)
class SurvivalTable:
    """What calibration models said about the answers to calibration rows of one direction, at each margin.

    Attributes:
        margins: (L,) the ladder of margins, ascending.
        answered: (L,) number of rows with an answer that the deployed model accepts. Only these are judged.
        accepted: (L, m) number of answers that each calibration model accepts.
        ever_refused: (L, m) number of rows whose answer each model refuses at this margin or at a larger one.
        refusals: (n,) number of calibration models that refuse each row's answer at the largest margin.
        distance: (L,) mean cost of the answers.
        changes: (L,) mean number of changes.
    """

    margins: NDArray[np.float64]
    answered: Counts
    accepted: Counts
    ever_refused: Counts
    refusals: Counts
    distance: NDArray[np.float64]
    changes: NDArray[np.float64]

    @classmethod
    def of(
        cls,
        margins: NDArray[np.float64],
        accepts: NDArray[np.bool_],
        valid: NDArray[np.bool_],
        distance: NDArray[np.float64],
        changes: NDArray[np.float64],
    ) -> SurvivalTable:
        """Count what was said.

        Args:
            margins: (L,) the ladder of margins, ascending.
            accepts: (L, m, n) whether each calibration model accepts each row's answer.
            valid: (L, n) whether the deployed model accepts it.
            distance: (L, n) cost of each answer.
            changes: (L, n) number of changes of each answer.
        """
        refuses = ~accepts & valid[:, None]
        later = np.logical_or.accumulate(refuses[::-1], axis=0)[::-1]
        n_answers = np.maximum(valid.sum(axis=1), 1)
        return cls(
            margins=np.asarray(margins, np.float64),
            answered=valid.sum(axis=1).astype(np.int64),
            accepted=(accepts & valid[:, None]).sum(axis=2).astype(np.int64),
            ever_refused=later.sum(axis=2).astype(np.int64),
            refusals=refuses[-1].sum(axis=0).astype(np.int64),
            distance=(distance * valid).sum(axis=1) / n_answers,
            changes=(changes * valid).sum(axis=1) / n_answers,
        )

    @property
    def n_models(self) -> int:
        """Number of calibration models, m."""
        return self.accepted.shape[1]

    @property
    def n_rows(self) -> int:
        """Number of calibration rows, n."""
        return len(self.refusals)

    @property
    def shares(self) -> NDArray[np.float64]:
        """(L, m) share of the answers that each model accepts."""
        return self.accepted / np.maximum(self.answered, 1)[:, None]

    @property
    def survival(self) -> NDArray[np.float64]:
        """(L,) share of (answer, model) pairs that agree."""
        return self.shares.mean(axis=1)

    def kept(self, survival: float) -> NDArray[np.bool_]:
        """(L, m) whether a model accepts the promised share of the answers, a row not seen counted as refused."""
        exact = as_fraction(survival)
        needed = np.array([_needed(exact, int(count)) for count in self.answered])
        return np.asarray(self.accepted >= needed[:, None])

    def critical(self, survival: float) -> NDArray[np.intp]:
        """(m,) position of each model's critical margin: the least from which on it keeps the promise; L: none."""
        return kept_from(self.kept(survival))

    def expected_bound(self) -> NDArray[np.float64]:
        """(L,) upper bound of the chance that the next model refuses the next person's answer, falling with the margin.

        Conformal risk control over rows and models: each (row, model) cell is made monotone in the margin, and the row
        and the column not seen are counted as refused.
        """
        n, m = self.n_rows, self.n_models
        refused = self.ever_refused.sum(axis=1)
        return np.asarray((refused + n + m + 1) / ((n + 1) * (m + 1)))


@dataclass(frozen=True)
class Verdict:
    """Whether a promise is made for one direction, at which margin, and if not, why.

    Attributes:
        made: Whether the promise is made.
        position: Position of the chosen margin in the ladder.
        reason: Why no promise is made: ``"models"``, too few calibration models; ``"rows"``, too few calibration rows;
            ``"weights"``, models whose weights differ; ``"margin"``, no margin is enough; ``"moments"``, too few past
            moments; ``"target"``, the past moments aimed at another class; ``"query"``, it was calibrated for other
            queries. Empty where it is made.
        reachable: The largest survival that could be promised with these models and rows, in [0, 1).
    """

    made: bool
    position: int
    reason: Reason
    reachable: float


def decide(table: SurvivalTable, promise: Promise) -> Verdict:
    """Choose the margin for a promise, or say why there is none.

    Where no promise is made, the margin is the least of those that come closest to keeping it.

    Args:
        table: What the calibration models said.
        promise: What is to be promised.
    """
    expected = promise.guarantee == "expected"
    rank = table.n_models if expected else promise.rank(table.n_models)
    reason: Reason = ""
    if table.n_models < promise.needed_models or rank is None:
        reason, rank = "models", max(1, table.n_models)
    elif table.n_rows < promise.needed_rows:
        reason = "rows"
    elif table.n_models < promise.needed_models_for(table.n_rows):
        reason = "models"
    if expected:
        keeps = table.expected_bound() <= float(1 - as_fraction(promise.survival)) + 1e-12
        closeness = -table.expected_bound()
        reachable = max(0.0, 1.0 - float(table.expected_bound()[-1]))
    else:
        positions = np.sort(table.critical(promise.survival))
        keeps = np.arange(len(table.margins)) >= positions[rank - 1] if len(positions) else np.zeros(0, bool)
        # The share that all but the worst m - k models accept, with the row not seen counted as refused.
        closeness = np.sort(table.accepted / (table.answered + 1)[:, None], axis=1)[:, table.n_models - rank]
        reachable = float(closeness[-1]) if not reason else 0.0
    return verdict(reason, keeps, closeness, reachable)


def verdict(reason: Reason, keeps: NDArray[np.bool_], closeness: NDArray[np.float64], reachable: float) -> Verdict:
    """The verdict with the least margin that keeps a promise, or else the least of those that come closest.

    Args:
        reason: Why no promise can be made whatever the margin; empty if there is no such reason.
        keeps: (L,) whether each margin keeps the promise.
        closeness: (L,) how close each margin comes to keeping it.
        reachable: The largest survival that could be promised.
    """
    if not keeps.any() and not reason:
        reason = "margin"
    position = int(np.argmax(keeps)) if keeps.any() else int(np.argmax(closeness))
    return Verdict(not reason, position, reason, reachable)


def kept_from(kept: NDArray[np.bool_]) -> NDArray[np.intp]:
    """(m,) position of the least margin from which on a promise is kept; L: there is none.

    Args:
        kept: (L, m) whether each of m models keeps it at each margin.
    """
    kept_from_here = np.logical_and.accumulate(kept[::-1], axis=0)[::-1]
    return np.asarray(len(kept) - kept_from_here.sum(axis=0), np.intp)


def confident_rank(n_models: int, reliability: float, confidence: float) -> int | None:
    """The least k for which the k-th of m exchangeable values exceeds a share ``reliability`` of all with confidence.

    That is the least k with P(Binomial(m, reliability) >= k) <= 1 - confidence; None: m values are too few.

    Args:
        n_models: m.
        reliability: Share of all values, in (0, 1).
        confidence: Chance that the k-th value exceeds that share, in (0, 1).
    """
    tail, at_most = 0.0, 1.0 - confidence + 1e-12
    for k in range(n_models, -1, -1):
        tail += math.comb(n_models, k) * reliability**k * (1.0 - reliability) ** (n_models - k)
        if tail > at_most:
            return k + 1 if k < n_models else None
    return 0


def _least(exact: Fraction) -> int:
    """The least count that reaches a share when one more, not seen, is counted as refused: count / (count + 1)."""
    return math.ceil(exact / (1 - exact))


def _least_expected(exact: Fraction) -> int:
    """The least count that exceeds a share in this way, so that something is left for the other of rows and models."""
    return math.floor(exact / (1 - exact)) + 1


def _needed(exact: Fraction, answered: int) -> int:
    """How many of the answers a model must accept, one that was not seen counted as refused."""
    return math.ceil(exact * (answered + 1))
