"""How a model's probabilities become a decision, and when an answer counts as valid. One rule for everyone.

The functions take numpy arrays and torch tensors alike, and are themselves the standard library and numpy alone.
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
    """From probabilities to a decision.

    Attributes:
        threshold: Probability of the second of two classes from which the decision is for it; None: the likeliest.
    """

    threshold: float | None = None

    def __post_init__(self) -> None:
        if self.threshold is not None and not 0 < self.threshold < 1:
            raise SettingError(f"The 'threshold' of a decision must be in (0, 1). Got {self.threshold!r} instead.")

    def check_classes(self, count: int) -> None:
        """Refuse a threshold where there are more than two classes.

        Raises:
            SettingError: With the number of classes.
        """
        if self.threshold is not None and count != 2:
            raise SettingError(f"A 'threshold' is for two classes. This model has {count}; leave it out.")

    def decide(self, probabilities: Any) -> Any:
        """(..., C) probabilities to (...) class positions."""
        if self.threshold is None:
            return probabilities.argmax(-1)
        return (probabilities[..., 1] >= self.threshold) * 1

    def accepts(self, probabilities: Any, target: Any) -> Any:
        """(..., N, C) probabilities and (N,) class positions to (..., N) whether the decision is for the target."""
        return self.decide(probabilities) == target

    def valid(self, probabilities: Any, target: Any, min_prob: float | None = None) -> Any:
        """(N,) whether the decision is for the target, with at least ``min_prob`` where that is asked."""
        reached = self.accepts(probabilities, target)
        if min_prob is None:
            return reached
        return reached & (of_target(probabilities, target) >= min_prob)

    def log_odds(self, target: Any) -> Any:
        """(N,) log-odds of the target at which the decision turns to it; 0 where the likeliest class decides."""
        turn = 0.0 if self.threshold is None else math.log(self.threshold / (1.0 - self.threshold))
        return (2.0 * (target == 1) - 1.0) * turn

    def lead(self, probabilities: NDArray[Any], target: NDArray[Any]) -> NDArray[np.float64]:
        """(N,) how far the target's probability lies beyond the turning point; half the lead over the next class."""
        mine = of_target(probabilities, target)
        if self.threshold is None:
            others = probabilities.copy()
            others[np.arange(len(others)), target] = -np.inf
            return np.asarray((mine - others.max(axis=1)) / 2)
        beyond = probabilities[:, 1] - self.threshold
        return np.where(target == 1, beyond, -beyond)


def of_target(probabilities: Any, target: Any) -> Any:
    """(..., N, C) probabilities and (N,) class positions to (..., N) the target's probability."""
    if isinstance(probabilities, np.ndarray):
        return probabilities[..., np.arange(len(target)), target]
    return probabilities.gather(-1, target.expand(probabilities.shape[:-1])[..., None])[..., 0]
