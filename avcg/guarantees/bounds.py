"""The bounds of the paper and the exact binomial one, as functions of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv

from avcg.errors import SettingError

Floats = NDArray[np.float64]


def markov(mean: ArrayLike, gamma: ArrayLike = 0.5) -> Floats:
    """Proposition 1: P(f(x') >= gamma) >= 1 - (1 - E f(x')) / (1 - gamma).

    Assumes that the next model is drawn from the distribution whose mean this is, and nothing else.

    Args:
        mean: Of the target's probability over hypotheses.
        gamma: The probability that counts as valid, in (0, 1).

    >>> round(float(markov(0.95)), 6)
    0.9
    """
    values, line = _share(mean, "mean"), np.asarray(gamma, np.float64)
    if not ((line > 0) & (line < 1)).all():
        raise SettingError(f"The 'gamma' of markov must be in (0, 1). Got {gamma!r} instead.")
    return _clip(1.0 - (1.0 - values) / (1.0 - line))


def chebyshev(variance: ArrayLike, beta: ArrayLike) -> Floats:
    """Corollary 1: P(f(x') > E f(x') - beta) >= 1 - variance / beta².

    Assumes that the next model is drawn from the distribution whose variance this is.

    Args:
        variance: Of the target's probability over hypotheses.
        beta: How far below its mean the probability may fall; no promise where it is not positive.

    >>> round(float(chebyshev(0.002, 0.45)), 4)  # the paper's example: mean 0.95, still above 0.5
    0.9901
    """
    squared, room = _variance(variance), np.asarray(beta, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(room > 0, _clip(1.0 - squared / np.square(room)), 0.0)


def cantelli(variance: ArrayLike, beta: ArrayLike) -> Floats:
    """The one-sided form of Corollary 1, never below it: 1 - variance / (variance + beta²).

    >>> round(float(cantelli(0.002, 0.45)), 4)
    0.9902
    """
    squared, room = _variance(variance), np.asarray(beta, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(room > 0, _clip(np.square(room) / (squared + np.square(room))), 0.0)


def clopper_pearson(agreeing: ArrayLike, n: int, confidence: float = 0.95) -> Floats:
    """Lower confidence bound on the share of all models that agree, from n fresh ones of which some did.

    Exact for every n: over repeated draws it lies above the true share at most 1 - confidence of the time. Assumes that
    the n hypotheses are independent draws that neither training nor selection has seen.

    Args:
        agreeing: How many of the n agree.
        n: Hypotheses asked.
        confidence: In (0, 1).

    >>> round(float(clopper_pearson(10, 10)), 2)  # ten of ten prove no more than this
    0.74
    """
    counts = np.asarray(agreeing, np.float64)
    if isinstance(n, bool) or n < 1 or (counts < 0).any() or (counts > n).any():
        raise SettingError(f"There must be 0 to n agreeing of n >= 1 hypotheses. Got n = {n!r} and {agreeing!r}.")
    _check_confidence(confidence)
    return np.where(counts > 0, betaincinv(np.maximum(counts, 1), n - counts + 1, 1.0 - confidence), 0.0)


def stability_bound(log_prob_bound: float, divergence: float) -> float:
    """Theorem 1: objectives under two hypothesis distributions differ by at most sqrt(2) M sqrt(KL).

    Assumes |log P(y' | x')| <= M for all hypotheses of both; without clamped log-probabilities there is no such M.

    Args:
        log_prob_bound: M.
        divergence: KL divergence of the one from the other, in nats.

    >>> round(stability_bound(10.0, 0.02), 3)
    2.0
    """
    if not (log_prob_bound > 0 and divergence >= 0):
        raise SettingError(f"M must be > 0 and the divergence >= 0. Got {log_prob_bound!r} and {divergence!r}.")
    return float(np.sqrt(2.0) * log_prob_bound * np.sqrt(divergence))


def stability_bound_of_subset(log_prob_bound: float, kept: int, n: int) -> float:
    """The same for K of N equally likely hypotheses, exactly: 2 M (1 - K / N), their total variation.

    Never above `stability_bound` at the divergence log(N / K), which only loosens it.

    >>> stability_bound_of_subset(10.0, 45, 50)
    2.0
    """
    if not (log_prob_bound > 0 and 1 <= kept <= n):
        raise SettingError(f"M must be > 0 and 1 <= kept <= n. Got {log_prob_bound!r}, {kept!r} and {n!r}.")
    return 2.0 * log_prob_bound * (n - kept) / n


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise SettingError(f"The 'confidence' must be in (0, 1). Got {confidence!r} instead.")


def _share(value: ArrayLike, what: str) -> Floats:
    values = np.asarray(value, np.float64)
    if not ((values >= 0) & (values <= 1)).all():
        raise SettingError(f"The {what} of probabilities must be in [0, 1]. Got {value!r} instead.")
    return values


def _variance(value: ArrayLike) -> Floats:
    values = np.asarray(value, np.float64)
    if not (values >= 0).all():
        raise SettingError(f"A variance must be >= 0. Got {value!r} instead.")
    return values


def _clip(values: Any) -> Floats:
    return np.clip(values, 0.0, 1.0)
