"""The deployed model with its decision rule, in torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from avcg.hypotheses.linear import linear_logits
from avcg.hypotheses.predictors import Predictors
from avcg.method.query import Query
from avcg.method.reachability import proven_unreachable
from avcg.models.decision import DecisionRule
from avcg.space.encoding import Flags


@dataclass(frozen=True, eq=False)
class DeployedModel:
    """The deployed model with its decision rule.

    Attributes:
        predictors: One model, or several whose mean probability decides.
        threshold: Probability of the second of two classes from which the decision is for it; None: that of the model
            itself if it has one, otherwise the most probable class.
    """

    predictors: Predictors
    threshold: float | None = None

    def __post_init__(self) -> None:
        if self.threshold is None and len(self.predictors) == 1:
            own = next((box.threshold for box in self.predictors.boxes), None)
            object.__setattr__(self, "threshold", own)
        DecisionRule(self.threshold)  # raises an error if the threshold is out of range

    @cached_property
    def rule(self) -> DecisionRule:
        """The rule by which probabilities become a decision."""
        return DecisionRule(self.threshold)

    def bind_rows(self, rows: Any) -> DeployedModel:
        """This model evaluated on the given rows instead of their codes; see `Predictors.bind_rows`."""
        return replace(self, predictors=self.predictors.bind_rows(rows))

    @torch.no_grad()
    def probabilities(self, x: Tensor) -> Tensor:
        """(N, C) probabilities of (N, *event) encoded rows."""
        probabilities = self.predictors.predictive(x)
        self.rule.check_classes(probabilities.shape[1])
        return probabilities

    def unreachable(self, query: Query) -> Flags:
        """(B,) whether it is proven that no feasible point of a row makes the decision the target."""
        linear = linear_logits(self.predictors) if len(self.predictors) == 1 else None
        return proven_unreachable(
            query,
            lambda x: self.probabilities(torch.from_numpy(x)).cpu().numpy(),
            self.rule,
            linear=None if linear is None else (linear[0][0], linear[1][0]),
        )

    def decide(self, probabilities: Tensor) -> Tensor:
        """(N,) class positions that the rule decides for, given (N, C) probabilities."""
        return self.rule.decide(probabilities)

    def valid(self, probabilities: Tensor, target: Tensor, min_prob: float | None = None) -> Tensor:
        """(N,) whether the decision is for the target, with a probability of at least ``min_prob`` if that is set."""
        return self.rule.valid(probabilities, target, min_prob)

    def agree(self, predictors: Predictors, x: Tensor, target: Tensor) -> Tensor:
        """(S, N) whether each hypothesis decides for the target, by the rule of the deployed model."""
        with torch.no_grad():
            return self.rule.accepts(predictors.probabilities(x), target)

    def agreement(self, predictors: Predictors, x: Tensor, target: Tensor) -> Tensor:
        """(N,) the weighted share of hypotheses that decide for the target."""
        agree = self.agree(predictors, x, target).to(x.dtype)
        return torch.einsum("s,sn->n", predictors.weights.to(x.device), agree)

    def log_odds(self, target: Tensor) -> Tensor:
        """(N,) log-odds of the target from which the decision is for it."""
        return self.rule.log_odds(target)
