"""A training loss that is captured once as a CUDA graph and replayed at every step.

A training step on a table consists of hundreds of small kernels, and launching them one by one takes many times as
long as running them. As CUDA graphs, the forward and the backward pass are one launch each.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import fields

import torch
from torch import Tensor, nn

from avcg.hypotheses.predictors import Predictors, Stacked
from avcg.method.generator import Condition, Generator
from avcg.method.objective import Distance, Draws, Weights, objective
from avcg.method.risk import Hinge, Risk
from avcg.space.base import Space

_PARTS = len(fields(Condition))


class GraphedLoss:
    """The objective as a CUDA graph, for recipes whose steps differ only in the values of tensors.

    Args:
        generator: The generator that is trained.
        space: What every row may change.
        weights: Weights of the terms.
        risk: How log-probabilities are summarised over hypotheses; None: a hinge at each row's margin.
        spread: Standard deviations over hypotheses by which that hinge stays clear.
        distance: d, the cost of an answer; None: the space's own.
        min_separation: Distance from which two answers to a row count as different.
        predictors: θ_1..θ_S if they are the same at every step; None: new ones are drawn at each step.
    """

    def __init__(
        self,
        generator: Generator,
        space: Space,
        weights: Weights,
        risk: Risk | None,
        spread: float,
        distance: Distance | None,
        min_separation: float,
        predictors: Predictors | None,
    ) -> None:
        self.generator, self.space, self.weights, self.risk, self.spread = generator, space, weights, risk, spread
        self.distance, self.min_separation, self.predictors = distance, min_separation, predictors
        self._replay: _Recorded | None = None

    def __call__(self, condition: Condition, latent: Tensor, predictors: Predictors) -> Tensor:
        """The mean loss of a batch: replayed on a GPU, computed without a graph elsewhere.

        Args:
            condition: B rows.
            latent: (K, B, L) standard normal noise.
            predictors: θ_1..θ_S.
        """
        overrides: dict[str, Tensor] = {}
        if predictors is not self.predictors:
            if not isinstance(predictors, Stacked):
                return self.computed(condition, latent, predictors)
            overrides = predictors.overrides
        if not condition.x.is_cuda:
            return self.computed(condition, latent, predictors)
        inputs = (*(getattr(condition, part.name) for part in fields(condition)), latent, *overrides.values())
        if self._replay is None:
            self._replay = _Recorded(self, predictors, tuple(overrides), inputs)
        if not self._replay.fits(inputs):  # the last batch of an epoch may be shorter
            return self.computed(condition, latent, predictors)
        loss: Tensor = self._replay(*inputs)
        return loss

    def computed(self, condition: Condition, latent: Tensor, predictors: Predictors) -> Tensor:
        """The mean loss of a batch, computed without a graph."""
        terms = objective(
            self.generator,
            self.space,
            condition,
            self.generator.posterior(condition),
            predictors,
            Draws(latent),
            self.risk or Hinge(condition.margin, self.spread),
            distance=self.distance,
            min_separation=self.min_separation,
        )
        return terms.total(self.weights).mean()


class _Recorded(nn.Module):
    """The loss as a function of tensors only, captured with the shapes of the first batch."""

    def __init__(
        self, loss: GraphedLoss, predictors: Predictors, names: tuple[str, ...], inputs: tuple[Tensor, ...]
    ) -> None:
        super().__init__()
        self.generator = loss.generator  # a submodule, so that the gradients of its parameters are captured
        self._loss, self._predictors, self._names = loss, predictors, names
        self._shapes = [tensor.shape for tensor in inputs]
        with warnings.catch_warnings():  # torch warns that capturing uses a stream of its own
            warnings.filterwarnings("ignore", "The AccumulateGrad node's stream", UserWarning)
            static = tuple(tensor.contiguous() for tensor in inputs)  # the memory that later inputs are copied to
            torch.cuda.make_graphed_callables(self, static)  # replaces `forward` by the replay

    def fits(self, inputs: tuple[Tensor, ...]) -> bool:
        """Whether tensors have the captured shapes."""
        return [tensor.shape for tensor in inputs] == self._shapes

    def forward(self, *inputs: Tensor) -> Tensor:
        condition, (latent, *overrides) = Condition(*inputs[:_PARTS]), inputs[_PARTS:]
        predictors = self._predictors
        if overrides:
            predictors = copy.copy(predictors)
            predictors.overrides = dict(zip(self._names, overrides, strict=True))  # type: ignore[attr-defined]
        return self._loss.computed(condition, latent, predictors)
