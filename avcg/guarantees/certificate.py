"""Certificates: what the models held out from training say of each answer.

All held-out models are counted. A bound on the share of all models is proven by the test models alone, which have
neither trained nor calibrated: the number of them that agree bounds it by `clopper_pearson`, for any number of models.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.stats import binom, false_discovery_control
from torch import Tensor

from avcg.errors import DataError, SettingError
from avcg.guarantees.bounds import Floats, _check_confidence, clopper_pearson
from avcg.hypotheses.predictors import Predictors
from avcg.models.decision import DecisionRule

Votes = NDArray[np.bool_]

# Largest number of answers times hypotheses evaluated at once.
_ASKED = 2**24


@dataclass(frozen=True, eq=False)
class Certificate:
    """The agreement of held-out hypotheses with each answer, and what the test hypotheses among them prove.

    Attributes:
        n: Number of hypotheses held out from training: those that calibrated, and those that test.
        agreeing: (N,) number of these that decide for the target.
        n_test: Number of test hypotheses, which were used for nothing else.
        agreeing_test: (N,) number of test hypotheses that decide for the target.
        lower_bound: (N,) lower confidence bound on the share of all models that decide for it (Clopper-Pearson), by the
            test hypotheses; 0 without any.
        confidence: Confidence of that bound, for each answer separately.
        accepting_unchanged: (N,) number of held-out hypotheses that decide for the target without any change; None:
            they were not asked.
        harmed: (N,) number of these that no longer do so after the change; None likewise.
    """

    n: int
    agreeing: NDArray[np.int64]
    n_test: int
    agreeing_test: NDArray[np.int64]
    lower_bound: Floats
    confidence: float
    accepting_unchanged: NDArray[np.int64] | None = None
    harmed: NDArray[np.int64] | None = None

    ASSUMPTION = (
        "The next model is drawn like the held-out hypotheses, which are independent draws that the generator has not"
        " seen. The lower bound counts the test hypotheses alone, and holds for any number of them."
    )

    @classmethod
    def of(
        cls, agrees: NDArray[np.bool_], n_test: int, confidence: float, before: NDArray[np.bool_] | None = None
    ) -> Certificate:
        """Count the agreeing hypotheses.

        Args:
            agrees: (S, N) whether each held-out hypothesis agrees with each answer, the test hypotheses last.
            n_test: Number of test hypotheses.
            confidence: Confidence of the lower bound, in (0, 1).
            before: (S, N) whether each of them decides for the target without any change; None: they were not asked.
        """
        count = len(agrees)
        tested = agrees[count - n_test :].sum(axis=0).astype(np.int64)
        bound = clopper_pearson(tested, n_test, confidence) if n_test else np.zeros(agrees.shape[1])
        unchanged = None if before is None else before.sum(axis=0).astype(np.int64)
        harmed = None if before is None else (before & ~agrees).sum(axis=0).astype(np.int64)
        agreeing = agrees.sum(axis=0).astype(np.int64)
        return cls(count, agreeing, n_test, tested, np.asarray(bound), confidence, unchanged, harmed)

    @property
    def share(self) -> Floats:
        """(N,) share of the held-out hypotheses that agree, which a promised survival is compared with."""
        return self.agreeing / self.n

    def false_discovery_rate(self, survival: float) -> Floats:
        """(N,) by answer, the lowest false discovery rate at which it is among those that keep a survival.

        Of all answers whose value is at most q, at most a share q is expected to be accepted by no more than a share
        ``survival`` of all models. The rule is that of Benjamini and Yekutieli: the same test hypotheses judge all
        answers, so that the answers depend on each other, which it allows. It needs many test hypotheses: with m of
        them no value is below ``survival ** m``.

        Args:
            survival: Share of all models that an answer is to be accepted by, in (0, 1).
        """
        _check_confidence(survival, "survival")
        if not self.n_test or not len(self.agreeing_test):
            return np.ones(len(self.agreeing_test))
        p_values = binom.sf(self.agreeing_test - 1, self.n_test, survival)
        return np.asarray(false_discovery_control(p_values, method="by"), np.float64)

    def take(self, answers: NDArray[np.intp]) -> Certificate:
        """The certificate of some of the answers, in the order given.

        Args:
            answers: Positions of the answers.
        """
        parts: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(self)}
        chosen = {name: part[answers] for name, part in parts.items() if isinstance(part, np.ndarray)}
        return Certificate(**parts | chosen)

    def to_frame(self, index: Any = None, *, survival: float | None = None) -> pd.DataFrame:
        """The certificate as a frame with one row per answer.

        Args:
            index: Index of the frame; None: positions.
            survival: Survival for a column ``false_discovery_rate``; None: there is no such column.
        """
        names = ("agreeing", "share", "agreeing_test", "lower_bound")
        columns = {name: getattr(self, name) for name in names}
        if self.harmed is not None:
            columns |= {"accepting_unchanged": self.accepting_unchanged, "harmed": self.harmed}
        if survival is not None:
            columns["false_discovery_rate"] = self.false_discovery_rate(survival)
        return pd.DataFrame(columns, index=index)


def certify(
    hypotheses: Predictors,
    x: Tensor,
    target: Tensor,
    *,
    n_test: int | None = None,
    confidence: float = 0.95,
    threshold: float | None = None,
) -> Certificate:
    """Certify encoded answers with held-out hypotheses.

    Args:
        hypotheses: Held-out hypotheses, drawn independently, with equal weights; the test hypotheses last.
        x: (N, *event) codes of the answers as they are delivered.
        target: (N,) class positions of the targets.
        n_test: Number of test hypotheses, which were not used to calibrate; None: all.
        confidence: Confidence of the lower bound, in (0, 1).
        threshold: Probability of the second of two classes from which it is decided for; None: the most probable class
            is decided for.

    Raises:
        SettingError: If the hypotheses have weights, or a parameter is out of range.
        DataError: If there is not one target per answer.
    """
    _check_confidence(confidence)
    agrees = accepted_by(hypotheses, x, target, threshold)
    return Certificate.of(agrees, len(agrees) if n_test is None else n_test, confidence)


def accepted_by(hypotheses: Predictors, x: Tensor, target: Tensor, threshold: float | None = None) -> Votes:
    """(S, N) whether each of S hypotheses of equal weight decides for the targets of N encoded rows.

    Args:
        hypotheses: The hypotheses.
        x: (N, *event) codes of the rows.
        target: (N,) class positions of the targets.
        threshold: Probability of the second of two classes from which it is decided for; None: the most probable class.
    """
    rule, weights = DecisionRule(threshold), hypotheses.weights
    if not torch.allclose(weights, torch.full_like(weights, 1.0 / len(weights)), atol=1e-6):
        raise SettingError(
            "A certificate counts draws, so hypotheses must have equal weights. Draw them by weight first."
        )
    if target.shape != x.shape[:1]:
        raise DataError(f"There must be one target per answer, {len(x)}. Got targets of shape {tuple(target.shape)}.")
    # Black boxes evaluate all their rows at once, models on codes a chunk at a time, which bounds memory.
    at_once = max(1, len(x) if hypotheses.boxes else _ASKED // len(weights))
    parts = []
    for start in range(0, len(x), at_once):
        chunk = slice(start, start + at_once)
        with torch.no_grad():
            probabilities = hypotheses.probabilities(x[chunk])
        rule.check_classes(probabilities.shape[-1])
        parts.append(rule.accepts(probabilities, target[chunk].to(x.device)).cpu().numpy())
    return np.concatenate(parts, axis=1) if parts else np.zeros((len(weights), 0), bool)
