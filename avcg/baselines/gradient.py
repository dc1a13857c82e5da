"""Searches by gradients, each row until it is done: the methods of others as losses of one loop."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from avcg.baselines.cfvae import fit_vae, vae_terms
from avcg.console import progress
from avcg.errors import SettingError, check_int
from avcg.explainers.base import Explainer
from avcg.hypotheses.base import HypothesisDistribution
from avcg.hypotheses.predictors import Predictors
from avcg.method.generator import STAY
from avcg.method.objective import target_log_probs
from avcg.method.query import Query
from avcg.method.risk import log_odds
from avcg.models.adapter import Model
from avcg.schema.schema import Schema

# Of Adam, as is usual.
_FIRST, _SECOND, _TINY = 0.9, 0.999, 1e-8


@dataclass(frozen=True)
class Descent:
    """How a search goes.

    Attributes:
        steps: At most, for each row.
        step: Of Adam: its learning rate, in standard deviations of a column; of Schut's method: how far a column moves.
        probability: Of the target from which a row is done.
        proximity: What distance counts.
    """

    steps: int = 500
    step: float = 0.05
    probability: float = 0.5
    proximity: float = 0.1

    def __post_init__(self) -> None:
        check_int(self.steps, "'steps' of Descent", 1)
        if not 0 < self.probability < 1:
            raise SettingError(f"The 'probability' of Descent must be in (0, 1). Got {self.probability!r} instead.")
        if not 0 < self.step < math.inf:
            raise SettingError(f"The 'step' of Descent must be > 0 and finite. Got {self.step!r} instead.")
        if not 0 <= self.proximity < math.inf:
            raise SettingError(f"The 'proximity' of Descent must be >= 0 and finite. Got {self.proximity!r} instead.")


class GradientSearch(Explainer):
    """What searches have in common: a start, a step, a row that is done is left alone.

    Rows do not see each other, so that a row is answered the same alone and in a batch. A row that is not done when the
    steps run out has its last try.

    Args:
        hypotheses: As in `Explainer`, like all that is not named here.
        schema: What may change.
        descent: How the search goes; None: as is usual for the method.
        model: The model whose decision counts.
        threshold: Of the decision.
        survival: The share of models that is promised.
        n_test: Hypotheses set aside for certificates.
        device: Where hypotheses are asked.
        random_state: Seed.
    """

    usual = Descent()

    def __init__(
        self,
        hypotheses: HypothesisDistribution,
        schema: Schema | None = None,
        *,
        descent: Descent | None = None,
        model: Model | None = None,
        threshold: float | None = None,
        survival: float = 0.99,
        n_test: int | None = None,
        device: str = "cpu",
        random_state: int = 0,
    ) -> None:
        super().__init__(
            hypotheses, schema, model=model, threshold=threshold, survival=survival, n_test=n_test,
            device=device, random_state=random_state,
        )  # fmt: skip
        self.descent = descent

    @classmethod
    def default_settings(cls) -> dict[str, Any]:
        """The descent that is usual for the method; see `Explainer.default_settings`."""
        return {"descent": cls.usual}

    @property
    def effort(self) -> Descent:
        """How the search goes."""
        return self.descent or self.usual

    def _fit(self, x: Tensor, y: Tensor | None, rng: torch.Generator) -> None:  # noqa: ARG002
        if not self.judges_.differentiable:
            raise SettingError(
                f"{type(self).__name__} searches by gradients, and these 'hypotheses' can only be asked. Use avcg.AVCG,"
                " which learns from students of them, or a method that only looks at rows:"
                " avcg.baselines.nearest.RobustNeighbour."
            )

    def _candidates(self, query: Query) -> Tensor:
        found = self._search(query, start_of(query))
        return settled(query, found).expand(query.n, *query.x.shape)

    def _search(self, query: Query, raw: Tensor) -> Tensor:
        """(B, *event) what relaxes to answers, each row moved until it is done."""
        raw, memory = raw.clone(), torch.zeros(2, *raw.shape)
        alive = torch.nonzero(~self._done(query, settled(query, raw))).flatten()
        some = query.take(alive)
        with progress(f"Searching ({type(self).__name__})", self.effort.steps) as advance:
            for step in range(1, self.effort.steps + 1):
                if not len(alive):
                    break
                slope = self._slope(some, raw[alive], step)
                raw[alive], memory[:, alive] = self._move(some, raw[alive], slope, memory[:, alive], step)
                advance(step)
                done = self._done(some, settled(some, raw[alive])) | (slope == 0).flatten(1).all(dim=1)
                if bool(done.any()):
                    alive = alive[~done]
                    some = query.take(alive)
        return raw

    def _move(
        self,
        query: Query,  # noqa: ARG002  others look at it
        raw: Tensor,
        slope: Tensor,
        memory: Tensor,
        step: int,
    ) -> tuple[Tensor, Tensor]:
        """A step of Adam, and the running means of the slope and of its square, (2, B, *event)."""
        first = _FIRST * memory[0] + (1 - _FIRST) * slope
        second = _SECOND * memory[1] + (1 - _SECOND) * slope.square()
        mean, square = first / (1 - _FIRST**step), second / (1 - _SECOND**step)
        return raw - self.effort.step * mean / (square.sqrt() + _TINY), torch.stack([first, second])

    def _slope(self, query: Query, raw: Tensor, step: int) -> Tensor:
        """The gradient of the loss in what the search moves."""
        raw = raw.requires_grad_()
        moved = query.space.relax(raw, query.x)
        loss = self._loss(query, moved, step).sum()
        (slope,) = torch.autograd.grad(loss, raw)
        return slope

    def _loss(self, query: Query, x_cf: Tensor, step: int) -> Tensor:
        """(B,) what is minimised."""
        raise NotImplementedError

    @torch.no_grad()
    def _done(self, query: Query, x_cf: Tensor) -> Tensor:
        """(B,) whether the target is likely enough, beyond the line of the decision."""
        return log_odds(mean_log_prob(self._asked(), x_cf, query.target)) >= self._needed(query)

    def _needed(self, query: Query) -> Tensor:
        """(B,) the log-odds from which a row is done."""
        level = math.log(self.effort.probability / (1 - self.effort.probability))
        needed = self.deployed_.log_odds(query.target) + level
        asked = query.min_prob
        return needed if asked is None else needed.clamp(min=math.log(asked / (1 - asked)))

    def _asked(self) -> Predictors:
        """The hypotheses that the method looks at: the teachers, unless it trusts one model."""
        return self.judges_


class Wachter(GradientSearch):
    """Wachter et al. 2018: the loss of the model in force and distance, to the first point across the line.

    The logarithmic loss, as later implementations have it: the original square's slope vanishes far from the line.
    Distance counts half as much after every 50 steps without success, which is how the original finds its multiplier.
    """

    usual = Descent(steps=500, step=0.01, probability=0.5, proximity=0.1)

    def _loss(self, query: Query, x_cf: Tensor, step: int) -> Tensor:
        weight = self.effort.proximity * 0.5 ** (step // 50)
        shortfall = -mean_log_prob(self._asked(), x_cf, query.target)
        return shortfall + weight * query.space.distance(x_cf, query.x)

    def _asked(self) -> Predictors:
        return self.deployed_.predictors


class Batten(GradientSearch):
    """Batten et al. 2025: the loss of the mean prediction of a Bayesian network's draws, and distance.

    A reconstruction: the text was not at hand. Projected descent stops shortly after the mean crosses the line.
    """

    usual = Descent(steps=500, step=0.05, probability=0.52, proximity=0.1)

    def _loss(self, query: Query, x_cf: Tensor, step: int) -> Tensor:  # noqa: ARG002
        shortfall = -mean_log_prob(self._asked(), x_cf, query.target)
        return shortfall + self.effort.proximity * query.space.distance(x_cf, query.x)


class QUCE(GradientSearch):
    """Duell et al. 2024, repaired: a likely target, near, and well explained by an autoencoder of the training rows.

    As published in words: (p - 0.95)^2, distance, and the loss of a variational autoencoder (squared error averaged
    over columns, divergence summed), over the expected prediction. The published notebook applies a sigmoid twice,
    cuts the gradient of the distance, leaves the autoencoder untrained and compares its output with the factual; none
    of that is kept. With gradients that work, its weights (0.7 for distance, 1 for the autoencoder) leave hardly any
    answer valid; those here, 0.05 and 0.3, give about the validity and implausibility that the AVCG paper reports. A
    row is done when the target has the ``probability``, or after 300 steps (1,000 in the notebook, none stopped early).
    """

    usual = Descent(steps=300, step=0.03, probability=0.9, proximity=0.05)
    _aim, _strangeness = 0.95, 0.3

    def _fit(self, x: Tensor, y: Tensor | None, rng: torch.Generator) -> None:
        super()._fit(x, y, rng)
        self.vae_ = fit_vae(self.space_, x, torch.zeros(len(x), dtype=torch.long), 1, rng, self._torch_device())

    def _loss(self, query: Query, x_cf: Tensor, step: int) -> Tensor:  # noqa: ARG002
        likely = mean_log_prob(self._asked(), x_cf, query.target).exp()
        near = ((x_cf - query.x).flatten(1).square().sum(dim=1) + 1e-12).sqrt()
        error, divergence = vae_terms(self.vae_, query.space, x_cf, torch.zeros_like(query.target), None)
        strange = error / x_cf[0].numel() + divergence
        return (likely - self._aim).square() + self.effort.proximity * near + self._strangeness * strange


class EntropicSearch(GradientSearch):
    """Noorani et al. 2025: from Wachter's answer on, until the entropic risk of 1 - p over hypotheses is low.

    The risk is (1/t) log mean exp(t (1 - p)): the mean for small t, the worst hypothesis for large. ``probability`` of
    its `Descent` is one less the risk at which it is content.
    """

    usual = Descent(steps=500, step=0.02, probability=0.5, proximity=0.0)
    _temper = 10.0

    def _candidates(self, query: Query) -> Tensor:
        wachter = Wachter(self.hypotheses)  # as usual; the descent is of what comes after
        wachter.deployed_ = self.deployed_
        found = self._search(query, wachter._search(query, start_of(query)))
        return settled(query, found).expand(query.n, *query.x.shape)

    def _risk(self, query: Query, x_cf: Tensor) -> Tensor:
        log_p = target_log_probs(self.judges_, x_cf[None], query.target)[:, 0]
        shares = self.judges_.weights.log().to(x_cf)[:, None]
        return torch.logsumexp(self._temper * (1.0 - log_p.exp()) + shares, dim=0) / self._temper

    def _loss(self, query: Query, x_cf: Tensor, step: int) -> Tensor:  # noqa: ARG002
        near = self.effort.proximity * query.space.distance(x_cf, query.x)
        return self._risk(query, x_cf) + near

    @torch.no_grad()
    def _done(self, query: Query, x_cf: Tensor) -> Tensor:
        content = self._risk(query, x_cf) <= 1.0 - self.effort.probability
        deployed = self.deployed_.probabilities(x_cf)
        return content & self.deployed_.valid(deployed, query.target, query.min_prob)


class Schut(GradientSearch):
    """Schut et al. 2021: one column at a time, the one that most raises the ensemble's mean probability of the target.

    Each step moves one column by ``step`` standard deviations (a category by one unit of its log-odds), until the
    target has the ``probability``: 0.95 here, 0.99 in the original, whose columns run from 0 to 1. As there, a column
    moves only so many times, so that none goes to and fro for ever. There is no distance: few columns move because one
    moves at a time.
    """

    usual = Descent(steps=500, step=0.2, probability=0.95, proximity=0.0)
    _times = 25  # that a column may move

    def _move(
        self,
        query: Query,
        raw: Tensor,
        slope: Tensor,
        memory: Tensor,
        step: int,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        space = query.space
        step_of = -torch.where(space.is_logit, 1.0, self.effort.step) * slope.sign()
        inside = torch.where(space.is_logit, raw + step_of, space.relax(raw + step_of, query.x))
        # A column at its bound has nowhere to go, however steep.
        able = ((inside - raw).abs() > _TINY) & (memory[0] < self._times)
        steep = torch.where(able, slope.abs(), 0.0).flatten(1)
        chosen = torch.zeros_like(steep).scatter(1, steep.argmax(dim=1, keepdim=True), 1.0).view_as(raw)
        moved = torch.where((chosen > 0) & able, inside, raw)
        return moved, torch.stack([memory[0] + chosen, memory[1]])

    def _loss(self, query: Query, x_cf: Tensor, step: int) -> Tensor:  # noqa: ARG002
        return -mean_log_prob(self._asked(), x_cf, query.target)


def start_of(query: Query) -> Tensor:
    """(B, *event) what relaxes to the factual: its numbers as they are, its categories likelier than others."""
    return torch.where(query.space.is_logit, STAY * query.x, query.x)


@torch.no_grad()
def settled(query: Query, raw: Tensor) -> Tensor:
    """(B, *event) feasible answers."""
    return query.space.finalize(raw, query.x)


def mean_log_prob(predictors: Predictors, x_cf: Tensor, target: Tensor) -> Tensor:
    """(B,) the log of the mean probability that hypotheses give the target."""
    log_p = target_log_probs(predictors, x_cf[None], target)[:, 0]
    return torch.logsumexp(log_p + predictors.weights.log().to(x_cf)[:, None], dim=0)
