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
from numpy.typing import NDArray
from torch import Tensor

from avcg.errors import DataError, SettingError
from avcg.guarantees.bounds import Floats, _check_confidence, cantelli, clopper_pearson, markov
from avcg.hypotheses.predictors import Predictors
from avcg.models.decision import DecisionRule, of_target

# Answers times hypotheses that are asked at once.
_ASKED = 2**24


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
    hypotheses: Predictors, x: Tensor, target: Tensor, *, confidence: float = 0.95, threshold: float | None = None
) -> Certificate:
    """Ask held-out hypotheses about encoded answers.

    Args:
        hypotheses: Drawn independently, never trained against, all with the same weight.
        x: (N, *event) the answers, as people receive them.
        target: (N,) the class positions asked for.
        confidence: Confidence of the lower bound, in (0, 1).
        threshold: Probability of the second of two classes from which the decision is for it; None: the likeliest.

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
    # Models of frames are asked about all their rows at once; of codes, about so many that memory is bounded.
    at_once = max(1, len(x) if hypotheses.boxes else _ASKED // len(weights))
    parts = [
        _ask(hypotheses, x[some], target[some].to(x.device), rule)
        for some in (slice(start, start + at_once) for start in range(0, len(x), at_once))
    ]
    agreeing, mean, variance = (np.concatenate(part) for part in zip(*parts, strict=True))
    # For more than two classes a target can win below one half; one half is enough for it to win.
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
    """For each answer how many hypotheses agree, and the mean and the variance of the target's probability."""
    with torch.no_grad():
        probabilities = hypotheses.probabilities(x)
    rule.check_classes(probabilities.shape[-1])
    exact = of_target(probabilities, target).double()
    return (
        rule.accepts(probabilities, target).sum(dim=0).cpu().numpy(),
        exact.mean(dim=0).cpu().numpy().clip(0.0, 1.0),
        exact.var(dim=0, correction=0).cpu().numpy(),
    )
