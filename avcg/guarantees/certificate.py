"""Certificates: bounds on the probability that an answer stays valid under the next model. Each states its assumption.

The bounds of the paper (Markov, Chebyshev, and Cantelli's one-sided form of it) need the true mean and variance of the
target's probability. `clopper_pearson` does not: it uses the number of n held-out hypotheses that agree, and holds for
any n.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from avcg.errors import DataError, SettingError
from avcg.guarantees.bounds import Floats, _check_confidence, cantelli, clopper_pearson, markov
from avcg.hypotheses.predictors import Predictors
from avcg.models.decision import DecisionRule, of_target

# Largest number of answers times hypotheses evaluated at once.
_ASKED = 2**24


@dataclass(frozen=True, eq=False)
class Certificate:
    """The agreement of n held-out hypotheses with each answer, and bounds on that of the next model.

    Attributes:
        n: Number of hypotheses.
        agreeing: (N,) number of hypotheses that decide for the target.
        lower_bound: (N,) lower confidence bound on the share of all models that decide for it (Clopper-Pearson).
        confidence: Confidence of that bound, for each answer separately.
        mean: (N,) sample mean of the target's probability.
        variance: (N,) sample variance of the target's probability.
        markov: (N,) bound of Proposition 1, with the sample mean in place of the true one.
        cantelli: (N,) one-sided bound of Corollary 1, with the sample mean and variance in place of the true ones.
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
        "The next model is drawn like the held-out hypotheses, which are independent draws that neither the answer nor"
        " the generator has seen. lower_bound holds for every n; markov and cantelli take the sample's mean and"
        " variance for the true ones."
    )

    @property
    def share(self) -> Floats:
        """(N,) share of the hypotheses that agree, which a promised survival is compared with."""
        return self.agreeing / self.n

    def take(self, answers: NDArray[np.intp]) -> Certificate:
        """The certificate of some of the answers, in the order given.

        Args:
            answers: Positions of the answers.
        """
        parts: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(self)}
        some = {name: part[answers] for name, part in parts.items() if isinstance(part, np.ndarray)}
        return Certificate(**parts | some)

    def to_frame(self, index: Any = None) -> pd.DataFrame:
        """The certificate as a frame with one row per answer."""
        names = ("share", "lower_bound", "mean", "variance", "markov", "cantelli")
        return pd.DataFrame({name: getattr(self, name) for name in names}, index=index)


def certify(
    hypotheses: Predictors, x: Tensor, target: Tensor, *, confidence: float = 0.95, threshold: float | None = None
) -> Certificate:
    """Certify encoded answers with held-out hypotheses.

    Args:
        hypotheses: Held-out hypotheses, drawn independently, with equal weights.
        x: (N, *event) codes of the answers as they are delivered.
        target: (N,) class positions of the targets.
        confidence: Confidence of the lower bound, in (0, 1).
        threshold: Probability of the second of two classes from which it is decided for; None: the most probable class
            is decided for.

    Raises:
        SettingError: If the hypotheses have weights, or a parameter is out of range.
        DataError: If there is not one target per answer.
    """
    _check_confidence(confidence)
    rule, weights = DecisionRule(threshold), hypotheses.weights
    if not torch.allclose(weights, torch.full_like(weights, 1.0 / len(weights)), atol=1e-6):
        raise SettingError(
            "A certificate counts draws, so hypotheses must have equal weights. Draw them by weight first."
        )
    if target.shape != x.shape[:1]:
        raise DataError(f"There must be one target per answer, {len(x)}. Got targets of shape {tuple(target.shape)}.")
    # Black boxes evaluate all their rows at once, models on codes a chunk at a time, which bounds memory.
    at_once = max(1, len(x) if hypotheses.boxes else _ASKED // len(weights))
    parts = [
        _ask(hypotheses, x[some], target[some].to(x.device), rule)
        for some in (slice(start, start + at_once) for start in range(0, len(x), at_once))
    ]
    agreeing, mean, variance = (np.concatenate(part) for part in zip(*parts, strict=True))
    # With more than two classes a target may win below one half, but one half always suffices.
    line = 0.5 if threshold is None else np.where(target.cpu().numpy() == 1, threshold, 1.0 - threshold)
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
    hypotheses: Predictors, x: Tensor, target: Tensor, rule: DecisionRule
) -> tuple[NDArray[np.int64], Floats, Floats]:
    """(N,) number of agreeing hypotheses, and mean and variance of the target's probability."""
    with torch.no_grad():
        probabilities = hypotheses.probabilities(x)
    rule.check_classes(probabilities.shape[-1])
    exact = of_target(probabilities, target).double()
    return (
        rule.accepts(probabilities, target).sum(dim=0).cpu().numpy(),
        exact.mean(dim=0).cpu().numpy().clip(0.0, 1.0),
        exact.var(dim=0, correction=0).cpu().numpy(),
    )
