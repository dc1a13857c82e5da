"""A loss whose steps are all alike, recorded once on a GPU and replayed.

A step of training on a table is hundreds of small kernels: launching them one by one takes many times as long as
running them. Recorded as a CUDA graph, forward and backward are one launch each.
"""

from __future__ import annotations

import copy
import warnings

import torch
from torch import Tensor, nn

from avcg.hypotheses.predictors import Predictors, Stacked
from avcg.method.generator import Condition, Generator
from avcg.method.objective import Distance, Draws, Weights, objective
from avcg.method.risk import Hinge, Risk
from avcg.space.base import Space


class GraphedLoss:
    """The objective where nothing but tensors of the same shapes differs from step to step.

    Args:
        generator: What is trained.
        space: What all rows may change.
        weights: Of the terms.
        risk: How hypotheses are summed up; None: the hinge of each request's margin, with the spread given.
        spread: Of that hinge.
        distance: d; None: the space's own.
        apart: The distance from which two answers of a row count as different.
        predictors: θ_1..θ_S, the same at every step; None: others at each.
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

    def __call__(self, request: Condition, latent: Tensor, predictors: Predictors) -> Tensor:
        """The mean loss of a batch: replayed on a GPU, computed anywhere else.

        Args:
            request: What is asked, for B rows.
            latent: (K, B, L) standard normal.
            predictors: θ_1..θ_S.
        """
        own: dict[str, Tensor] = {}
        if predictors is not self.predictors:
            if not isinstance(predictors, Stacked):
                return self.computed(request, latent, predictors)
            own = predictors.overrides
        if not request.x.is_cuda:
            return self.computed(request, latent, predictors)
        given = (request.x, request.target, request.constraint_features, request.margin, latent, *own.values())
        if self._replay is None:
            self._replay = _Recorded(self, predictors, tuple(own), given)
        if not self._replay.fits(given):  # the last batch of a pass may be shorter
            return self.computed(request, latent, predictors)
        loss: Tensor = self._replay(*given)
        return loss

    def computed(self, request: Condition, latent: Tensor, predictors: Predictors) -> Tensor:
        """The mean loss, one operation after the other."""
        terms = objective(
            self.generator,
            self.space,
            request,
            self.generator.posterior(request),
            predictors,
            Draws(latent),
            self.risk or Hinge(request.margin, self.spread),
            distance=self.distance,
            min_separation=self.min_separation,
        )
        return terms.total(self.weights).mean()


class _Recorded(nn.Module):
    """A loss as a function of tensors alone, recorded for those it is given first."""

    def __init__(
        self, loss: GraphedLoss, predictors: Predictors, names: tuple[str, ...], given: tuple[Tensor, ...]
    ) -> None:
        super().__init__()
        self.generator = loss.generator  # whose gradients are recorded
        self._loss, self._predictors, self._names = loss, predictors, names
        self._shapes = [one.shape for one in given]
        with warnings.catch_warnings():  # recording is done on a stream of its own, of which torch warns
            warnings.filterwarnings("ignore", "The AccumulateGrad node's stream", UserWarning)
            own = tuple(one.contiguous() for one in given)  # memory that later ones are written to
            torch.cuda.make_graphed_callables(self, own)  # puts the replay in place of `forward`

    def fits(self, given: tuple[Tensor, ...]) -> bool:
        """Whether tensors have the shapes that were recorded."""
        return [one.shape for one in given] == self._shapes

    def forward(
        self, x: Tensor, target: Tensor, constraint_features: Tensor, margin: Tensor, latent: Tensor, *own: Tensor
    ) -> Tensor:
        predictors = self._predictors
        if own:
            predictors = copy.copy(predictors)
            predictors.overrides = dict(zip(self._names, own, strict=True))  # type: ignore[attr-defined]
        return self._loss.computed(Condition(x, target, constraint_features, margin), latent, predictors)
