"""How probabilities become a decision, and when an answer counts as valid."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from avcg.errors import SettingError
from avcg.hypotheses.predictors import Predictors


@dataclass(frozen=True, eq=False)
class Decider:
    """The model in force with its rule.

    Attributes:
        predictors: One model, or several whose mean decides.
        threshold: Probability of the second of two classes from which the decision is for it; None: the likeliest.
    """

    predictors: Predictors
    threshold: float | None = None

    def __post_init__(self) -> None:
        if self.threshold is not None and not 0 < self.threshold < 1:
            raise SettingError(f"The 'threshold' of a decision must be in (0, 1). Got {self.threshold!r} instead.")

    def bind_rows(self, rows: Any) -> Decider:
        """The same, asked about these very rows; see `Predictors.seeing`."""
        return replace(self, predictors=self.predictors.bind_rows(rows))

    @torch.no_grad()
    def probabilities(self, x: Tensor) -> Tensor:
        """(N, *event) to (N, C)."""
        found = self.predictors.predictive(x)
        if self.threshold is not None and found.shape[1] != 2:
            raise SettingError(f"A 'threshold' is for two classes. This model has {found.shape[1]}; leave it out.")
        return found

    def decide(self, probabilities: Tensor) -> Tensor:
        """(N, C) to (N,) class positions."""
        if self.threshold is None:
            return probabilities.argmax(dim=1)
        return (probabilities[:, 1] >= self.threshold).long()

    def line(self, target: Tensor, dtype: torch.dtype = torch.float32) -> Tensor | None:
        """(N,) the probability from which the decision is for the target; None: from when it is the likeliest.

        Args:
            target: (N,) class positions.
            dtype: Of the probabilities that are to be compared with it.
        """
        if self.threshold is None:
            return None
        # Exactly at the threshold the decision is for the second class, so the first needs a little more.
        yes = torch.tensor(self.threshold, dtype=dtype)
        no = torch.nextafter(1.0 - yes, torch.ones_like(yes))
        return torch.where(target == 1, yes.to(target.device), no.to(target.device))

    def valid(self, probabilities: Tensor, target: Tensor, min_prob: float | None = None) -> Tensor:
        """(N,) whether the decision is for the target, with at least ``min_prob`` where that is asked."""
        reached = self.decide(probabilities) == target
        if min_prob is None:
            return reached
        return reached & (probabilities.gather(1, target[:, None])[:, 0] >= min_prob)

    def agree(self, predictors: Predictors, x: Tensor, target: Tensor) -> Tensor:
        """(S, N) whether each hypothesis decides for the target by the same rule."""
        with torch.no_grad():
            probabilities = predictors.probabilities(x)
        line = self.line(target, probabilities.dtype)
        if line is None:
            return probabilities.argmax(dim=-1) == target
        return probabilities.gather(-1, target.expand(len(predictors), -1)[..., None])[..., 0] >= line

    def agreement(self, predictors: Predictors, x: Tensor, target: Tensor) -> Tensor:
        """(N,) the weighted share of hypotheses that decide for the target."""
        agree = self.agree(predictors, x, target).to(x.dtype)
        return torch.einsum("s,sn->n", predictors.weights.to(x.device), agree)

    def log_odds_at_line(self, target: Tensor) -> Tensor:
        """(N,) where the line lies in log-odds of the target; one half where there is no threshold."""
        line = self.line(target)
        return torch.zeros(target.shape, device=target.device) if line is None else torch.logit(line)
