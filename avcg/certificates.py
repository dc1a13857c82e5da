"""How sure is it that an answer stays valid under a model nobody has seen yet? Each bound states what it assumes.

The paper's bounds (Markov, Chebyshev, and Chebyshev's one-sided form by Cantelli) take mean and variance of the
target's probability as known. `clopper_pearson` does not: it counts how many of n fresh hypotheses agree, and holds for
any n. All take numpy arrays or numbers and return values in [0, 1].
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv
from torch import Tensor

from avcg.errors import DataError, SettingError
from avcg.hypotheses.predictors import Predictors

# Answers times hypotheses that are asked at once.
_ASKED = 2**24

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


@dataclass(frozen=True, eq=False)
class Certificate:
    """What n fresh hypotheses say about each answer.

    Attributes:
        n: Hypotheses asked.
        agreeing: (N,) how many give the target.
        lower_bound: (N,) on the share of all models that would, at ``confidence`` (Clopper-Pearson).
        confidence: Of that bound, for each answer by itself.
        mean: (N,) of the target's probability.
        variance: (N,) of the same.
        markov: (N,) Proposition 1 with these for the true mean.
        cantelli: (N,) Corollary 1, one-sided, with these for the true mean and variance.
    """

    n: int
    agreeing: NDArray[np.int64]
    lower_bound: Floats
    confidence: float
    mean: Floats
    variance: Floats
    markov: Floats
    cantelli: Floats

    ASSUMPTION = (
        "The next model is drawn like the hypotheses asked, which are independent draws that neither the answer nor the"
        " generator has seen. lower_bound holds for every n; markov and cantelli take the sample's mean and variance"
        " for the true ones."
    )

    @property
    def share(self) -> Floats:
        """(N,) the observed share that agrees: what a promise of survival is judged by."""
        return self.agreeing / self.n

    def take(self, answers: NDArray[np.intp]) -> Certificate:
        """What was said of some answers, in the order given.

        Args:
            answers: Their positions.
        """
        parts: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(self)}
        some = {name: part[answers] for name, part in parts.items() if isinstance(part, np.ndarray)}
        return Certificate(**parts | some)

    def to_frame(self, index: Any = None) -> pd.DataFrame:
        """One row per answer."""
        names = ("share", "lower_bound", "mean", "variance", "markov", "cantelli")
        return pd.DataFrame({name: getattr(self, name) for name in names}, index=index)


def certify(
    hypotheses: Predictors,
    x: Tensor,
    target: Tensor,
    *,
    confidence: float = 0.95,
    threshold: float | Tensor | None = None,
) -> Certificate:
    """Ask fresh hypotheses about encoded answers.

    Args:
        hypotheses: Drawn independently, never trained against, all with the same weight.
        x: (N, *event) the answers, as people receive them.
        target: (N,) the wanted class positions.
        confidence: Of the lower bound, in (0, 1).
        threshold: Probability of the target from which the decision is for it, one for all or (N,) for each; None: it
            must be the likeliest class.

    Raises:
        SettingError: If the hypotheses have weights, or a parameter cannot be.
        DataError: If there is not one target per answer.
    """
    _check_confidence(confidence)
    weights = hypotheses.weights
    if not torch.allclose(weights, torch.full_like(weights, 1.0 / len(weights)), atol=1e-6):
        raise SettingError(
            "A certificate counts draws, so hypotheses must have equal weights. Draw them by weight first."
        )
    needed = None if threshold is None else torch.as_tensor(threshold, dtype=torch.float64, device=x.device)
    if needed is not None and not bool(((needed > 0) & (needed < 1)).all()):
        raise SettingError(f"The 'threshold' of certify must be in (0, 1). Got {threshold!r} instead.")
    if target.shape != x.shape[:1]:
        raise DataError(f"There must be one target per answer, {len(x)}. Got targets of shape {tuple(target.shape)}.")
    if needed is not None:
        needed = needed.expand(len(x))
    # Models of frames are asked about all their rows at once; of codes, about so many that memory is bounded.
    at_once = max(1, len(x) if hypotheses.boxes else _ASKED // len(weights))
    parts = [
        _ask(hypotheses, x[some], target[some].to(x.device), None if needed is None else needed[some])
        for some in (slice(start, start + at_once) for start in range(0, len(x), at_once))
    ]
    agreeing, mean, variance = (np.concatenate(part) for part in zip(*parts, strict=True))
    # For more than two classes a target can win below one half; one half is enough for it to win.
    line = 0.5 if needed is None else needed.double().cpu().numpy()
    return Certificate(
        n=len(weights),
        agreeing=agreeing,
        lower_bound=clopper_pearson(agreeing, len(weights), confidence),
        confidence=confidence,
        mean=mean,
        variance=variance,
        markov=markov(mean, line),
        cantelli=cantelli(variance, mean - line),
    )


def _ask(
    hypotheses: Predictors, x: Tensor, target: Tensor, needed: Tensor | None
) -> tuple[NDArray[np.int64], Floats, Floats]:
    """For each answer how many agree, and the mean and the variance of the target's probability."""
    with torch.no_grad():
        probabilities = hypotheses.probabilities(x)
    of_target = probabilities.gather(-1, target.expand(len(probabilities), -1)[..., None])[..., 0]
    valid = probabilities.argmax(dim=-1) == target if needed is None else of_target >= needed.to(of_target.dtype)
    exact = of_target.double()
    return (
        valid.sum(dim=0).cpu().numpy(),
        exact.mean(dim=0).cpu().numpy().clip(0.0, 1.0),
        exact.var(dim=0, correction=0).cpu().numpy(),
    )


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
