"""The decision rule: how a model's probabilities become a decision, and when an answer is valid.

All functions accept numpy arrays and torch tensors. The module itself needs only the standard library and numpy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avcg.errors import SettingError


@dataclass(frozen=True)
class DecisionRule:
    """The rule that turns probabilities into decisions.

    Attributes:
        threshold: Probability of the second of two classes from which it is decided for, in (0, 1); None: the most
            probable class is decided for.
    """

    threshold: float | None = None

    def __post_init__(self) -> None:
        if self.threshold is not None and not 0 < self.threshold < 1:
            raise SettingError(f"The 'threshold' of a decision must be in (0, 1). Got {self.threshold!r} instead.")

    def check_classes(self, count: int) -> None:
        """Check that a threshold is only used with two classes.

        Raises:
            SettingError: If there is a threshold and not exactly two classes.
        """
        if self.threshold is not None and count != 2:
            raise SettingError(f"A 'threshold' needs a model with two classes. This model has {count}; leave it out.")

    def decide(self, probabilities: Any) -> Any:
        """(...) class positions decided for, from (..., C) probabilities."""
        if self.threshold is None:
            return probabilities.argmax(-1)
        return (probabilities[..., 1] >= self.threshold) * 1

    def accepts(self, probabilities: Any, target: Any) -> Any:
        """(..., N) whether the decision is for the target, from (..., N, C) probabilities and (N,) class positions."""
        return self.decide(probabilities) == target

    def valid(self, probabilities: Any, target: Any, min_prob: float | None = None) -> Any:
        """(N,) whether the decision is for the target, with at least the probability ``min_prob`` if that is given."""
        accepted = self.accepts(probabilities, target)
        if min_prob is None:
            return accepted
        return accepted & (of_target(probabilities, target) >= min_prob)

    def log_odds(self, target: Any) -> Any:
        """(N,) log-odds of the target from which it is decided for; 0 without a threshold."""
        boundary = 0.0 if self.threshold is None else math.log(self.threshold / (1.0 - self.threshold))
        return (2.0 * (target == 1) - 1.0) * boundary

    def lead(self, probabilities: NDArray[Any], target: NDArray[Any]) -> NDArray[np.float64]:
        """(N,) the target's probability beyond the threshold; without one, half its lead over the next class."""
        own = of_target(probabilities, target)
        if self.threshold is None:
            others = probabilities.copy()
            others[np.arange(len(others)), target] = -np.inf
            return np.asarray((own - others.max(axis=1)) / 2)
        beyond = probabilities[:, 1] - self.threshold
        return np.where(target == 1, beyond, -beyond)


def of_target(probabilities: Any, target: Any) -> Any:
    """(..., N) the target's probability, from (..., N, C) probabilities and (N,) class positions."""
    if isinstance(probabilities, np.ndarray):
        return probabilities[..., np.arange(len(target)), target]
    return probabilities.gather(-1, target.expand(probabilities.shape[:-1])[..., None])[..., 0]
