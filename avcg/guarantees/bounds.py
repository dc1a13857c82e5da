"""The bounds of the paper and the Clopper-Pearson bound, as functions of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv

from avcg.errors import SettingError

Floats = NDArray[np.float64]


def markov(mean: ArrayLike, gamma: ArrayLike = 0.5) -> Floats:
    """Markov bound of Proposition 1: P(f(x') >= gamma) >= 1 - (1 - E f(x')) / (1 - gamma).

    The only assumption is that the next model is drawn from the distribution that has this mean.

    Args:
        mean: Mean of the target's probability over hypotheses, in [0, 1].
        gamma: Probability of the target from which an answer is valid, in (0, 1).

    >>> round(float(markov(0.95)), 6)
    0.9
    """
    means, thresholds = _check_mean(mean), np.asarray(gamma, np.float64)
    if not ((thresholds > 0) & (thresholds < 1)).all():
        raise SettingError(f"The 'gamma' of markov must be in (0, 1). Got {gamma!r} instead.")
    return _clip(1.0 - (1.0 - means) / (1.0 - thresholds))


def chebyshev(variance: ArrayLike, beta: ArrayLike) -> Floats:
    """Chebyshev bound of Corollary 1: P(f(x') > E f(x') - beta) >= 1 - variance / beta².

    The only assumption is that the next model is drawn from the distribution that has this variance.

    Args:
        variance: Variance of the target's probability over hypotheses, >= 0.
        beta: Largest fall of the probability below its mean. Where it is not positive, the bound is 0.

    >>> round(float(chebyshev(0.002, 0.45)), 4)  # the paper's example: mean 0.95, still above 0.5
    0.9901
    """
    variances, falls = _check_variance(variance), np.asarray(beta, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(falls > 0, _clip(1.0 - variances / np.square(falls)), 0.0)


def cantelli(variance: ArrayLike, beta: ArrayLike) -> Floats:
    """Cantelli bound, the one-sided form of Corollary 1: 1 - variance / (variance + beta²).

    It is never smaller than the Chebyshev bound.

    Args:
        variance: Variance of the target's probability over hypotheses, >= 0.
        beta: Largest fall of the probability below its mean. Where it is not positive, the bound is 0.

    >>> round(float(cantelli(0.002, 0.45)), 4)
    0.9902
    """
    variances, falls = _check_variance(variance), np.asarray(beta, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(falls > 0, _clip(np.square(falls) / (variances + np.square(falls))), 0.0)


def clopper_pearson(agreeing: ArrayLike, n: int, confidence: float = 0.95) -> Floats:
    """Clopper-Pearson lower confidence bound on the share of all models that agree, from a sample of n hypotheses.

    The bound is exact for every n: over repeated samples it exceeds the true share with probability at most
    1 - confidence. It assumes that the n hypotheses are independent draws, used neither for training nor for selection.

    Args:
        agreeing: Number of hypotheses that agree, 0 to n.
        n: Number of hypotheses, >= 1.
        confidence: Confidence of the bound, in (0, 1).

    >>> round(float(clopper_pearson(10, 10)), 2)  # ten of ten hypotheses agree
    0.74
    """
    counts = np.asarray(agreeing, np.float64)
    if isinstance(n, bool) or n < 1 or (counts < 0).any() or (counts > n).any():
        raise SettingError(
            f"There must be 0 to n agreeing of n >= 1 hypotheses. Got n = {n!r} and {agreeing!r} agreeing."
        )
    _check_confidence(confidence)
    return np.where(counts > 0, betaincinv(np.maximum(counts, 1), n - counts + 1, 1.0 - confidence), 0.0)


def stability_bound(log_prob_bound: float, divergence: float) -> float:
    """Stability bound of Theorem 1: objectives under two distributions differ by at most sqrt(2) M sqrt(KL).

    It assumes |log P(y' | x')| <= M for all hypotheses of both distributions. Such an M exists only if
    log-probabilities are clamped.

    Args:
        log_prob_bound: Bound M on the absolute log-probabilities, > 0.
        divergence: KL divergence between the two distributions, in nats, >= 0.

    >>> round(stability_bound(10.0, 0.02), 3)
    2.0
    """
    if not (log_prob_bound > 0 and divergence >= 0):
        raise SettingError(
            f"The 'log_prob_bound' must be > 0 and the 'divergence' >= 0. Got {log_prob_bound!r} and {divergence!r}."
        )
    return float(np.sqrt(2.0) * log_prob_bound * np.sqrt(divergence))


def stability_bound_of_subset(log_prob_bound: float, kept: int, n: int) -> float:
    """Stability bound for a subset of K of N equally likely hypotheses: 2 M (1 - K / N), by total variation.

    It never exceeds `stability_bound` at the divergence log(N / K) of the subset from the whole set.

    Args:
        log_prob_bound: Bound M on the absolute log-probabilities, > 0.
        kept: Number K of hypotheses in the subset, 1 to n.
        n: Number N of all hypotheses.

    >>> stability_bound_of_subset(10.0, 45, 50)
    2.0
    """
    if not (log_prob_bound > 0 and 1 <= kept <= n):
        raise SettingError(
            f"The 'log_prob_bound' must be > 0 and 1 <= kept <= n. Got {log_prob_bound!r}, {kept!r} and {n!r}."
        )
    return 2.0 * log_prob_bound * (n - kept) / n


def _check_confidence(confidence: float, name: str = "confidence") -> None:
    if not 0 < confidence < 1:
        raise SettingError(f"The {name!r} must be in (0, 1). Got {confidence!r} instead.")


def _check_mean(value: ArrayLike) -> Floats:
    values = np.asarray(value, np.float64)
    if not ((values >= 0) & (values <= 1)).all():
        raise SettingError(f"The mean of probabilities must be in [0, 1]. Got {value!r} instead.")
    return values


def _check_variance(value: ArrayLike) -> Floats:
    values = np.asarray(value, np.float64)
    if not (values >= 0).all():
        raise SettingError(f"A variance must be >= 0. Got {value!r} instead.")
    return values


def _clip(values: Any) -> Floats:
    return np.clip(values, 0.0, 1.0)
