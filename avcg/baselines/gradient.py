"""Gradient-based search for each row: published methods that differ in their loss and share one loop."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor

from avcg.baselines.cfvae import AutoencoderConfig, fit_vae, vae_terms
from avcg.console import progress
from avcg.errors import SettingError, check_int, check_setting
from avcg.explainers.base import Explainer
from avcg.hypotheses.base import HypothesisDistribution
from avcg.hypotheses.predictors import Predictors
from avcg.method.objective import target_log_probs
from avcg.method.query import Query
from avcg.method.risk import log_odds
from avcg.models.adapter import Model
from avcg.schema.schema import Schema


@dataclass(frozen=True)
class Descent:
    """Settings of a gradient-based search.

    Attributes:
        steps: Largest number of steps for each row.
        step: Size of a step: Adam's learning rate, in standard deviations of a column.
        probability: Probability of the target at which the search for a row stops, in (0, 1).
        proximity: Weight of the distance.
        betas: Adam's decay rates of the running means of the gradient and of its square, in [0, 1).
        epsilon: Adam's addition to the denominator, > 0. Schut's search counts smaller changes as none.
        start_log_odds: Log-odds of the category that a row has, at the start of a search.
    """

    steps: int = 500
    step: float = 0.05
    probability: float = 0.5
    proximity: float = 0.1
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    start_log_odds: float = 2.0

    def __post_init__(self) -> None:
        check_int(self.steps, f"'steps' of {type(self).__name__}", 1)
        check_setting(self, "probability", 0 < self.probability < 1, "in (0, 1)")
        for name in ("step", "epsilon"):
            check_setting(self, name, 0 < getattr(self, name) < math.inf, "> 0 and finite")
        for name in ("proximity", "start_log_odds"):
            check_setting(self, name, 0 <= getattr(self, name) < math.inf, ">= 0 and finite")
        check_setting(self, "betas", all(0 <= beta < 1 for beta in self.betas), "two numbers in [0, 1)")


SomeDescent = TypeVar("SomeDescent", bound=Descent)


class GradientSearch(Explainer, Generic[SomeDescent]):
    """Base class of gradient-based searches: a start, and steps for each row until it reaches its target.

    Rows do not affect each other, so a row has the same answer alone and in a batch. A row that does not reach its
    target gets the answer of the last step.

    Args:
        hypotheses: The distribution over plausible models.
        schema: What may change; None: the hypotheses' own schema.
        descent: Settings of the search; the fields of a plain `Descent` replace those of ``usual``. None: ``usual``.
        model: The deployed model; None: the one the hypotheses were made around, or their mean.
        threshold: Probability of the second of two classes from which the decision is for it; None: that by which the
            deployed model itself decides (`BlackBox.threshold`), or the most probable class.
        survival: Share of models that is promised to agree with an answer, in (0, 1).
        n_test: Number of hypotheses held out for certificates; None: an eighth of a finite set, or 50 draws.
        device: PyTorch device on which models are evaluated.
        random_state: Seed of all random numbers.

    Attributes:
        usual: The method's default settings.
    """

    usual: Any = Descent()  # a SomeDescent, but the type of a class attribute cannot be a type variable

    def __init__(
        self,
        hypotheses: HypothesisDistribution,
        schema: Schema | None = None,
        *,
        descent: Descent | None = None,
        model: Model | None = None,
        threshold: float | None = None,
        survival: float = 0.95,
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
        """The method's default descent; see `Explainer.default_settings`."""
        return {"descent": cls.usual}

    @property
    def effort(self) -> SomeDescent:
        """The settings of the search: the method's defaults, replaced by those that were given."""
        usual = cast(SomeDescent, self.usual)
        return usual if self.descent is None else replace(usual, **vars(self.descent))

    def _fit(self, x: Tensor, y: Tensor | None, rng: torch.Generator) -> None:  # noqa: ARG002
        if not self.judges_.differentiable:
            raise SettingError(
                f"{type(self).__name__} needs 'hypotheses' with gradients. Got black-box models, which have none. Use"
                " avcg.AVCG, which trains against students of them, or avcg.baselines.nearest.RobustNeighbour, which"
                " needs no gradients."
            )

    def _candidates(self, query: Query) -> Tensor:
        raw = self._search(query, self._start(query))
        return finalized(query, raw).expand(query.n, *query.x.shape)

    def _start(self, query: Query) -> Tensor:
        """(B, *event) starting points before relaxation: the factual's numbers, and log-odds for its categories."""
        return torch.where(query.space.is_logit, self.effort.start_log_odds * query.x, query.x)

    def _search(self, query: Query, raw: Tensor) -> Tensor:
        """(B, *event) final points before relaxation; each row is moved until it reaches its target.

        Args:
            query: B rows.
            raw: (B, *event) points to start from, before relaxation.
        """
        raw, memory, effort = raw.clone(), torch.zeros(2, *raw.shape), self.effort
        active = torch.nonzero(~self._done(query, finalized(query, raw))).flatten()
        part = query.take(active)
        with progress(f"Searching ({type(self).__name__})", effort.steps) as advance:
            for step in range(1, effort.steps + 1):
                if not len(active):
                    break
                slope = self._slope(part, raw[active], step)
                raw[active], memory[:, active] = self._move(part, raw[active], slope, memory[:, active], step)
                advance(step)
                done = self._done(part, finalized(part, raw[active])) | (slope == 0).flatten(1).all(dim=1)
                if bool(done.any()):
                    active = active[~done]
                    part = query.take(active)
        return raw

    def _move(
        self,
        query: Query,  # noqa: ARG002  used by Schut, whose steps depend on the space
        raw: Tensor,
        slope: Tensor,
        memory: Tensor,
        step: int,
    ) -> tuple[Tensor, Tensor]:
        """One step of Adam.

        Args:
            query: B rows.
            raw: (B, *event) points before relaxation.
            slope: (B, *event) gradient of the loss.
            memory: (2, B, *event) running means of the gradient and of its square.
            step: Number of this step, from 1.

        Returns:
            The (B, *event) new points, and the (2, B, *event) new memory.
        """
        effort = self.effort
        first_beta, second_beta = effort.betas
        first = first_beta * memory[0] + (1 - first_beta) * slope
        second = second_beta * memory[1] + (1 - second_beta) * slope.square()
        mean, square = first / (1 - first_beta**step), second / (1 - second_beta**step)
        return raw - effort.step * mean / (square.sqrt() + effort.epsilon), torch.stack([first, second])

    def _slope(self, query: Query, raw: Tensor, step: int) -> Tensor:
        """(B, *event) the gradient of the loss with respect to points before relaxation."""
        raw = raw.requires_grad_()
        relaxed = query.space.relax(raw, query.x)
        loss = self._loss(query, relaxed, step).sum()
        (slope,) = torch.autograd.grad(loss, raw)
        return slope

    def _loss(self, query: Query, x_cf: Tensor, step: int) -> Tensor:
        """(B,) the loss to be minimised."""
        raise NotImplementedError

    @torch.no_grad()
    def _done(self, query: Query, x_cf: Tensor) -> Tensor:
        """(B,) whether the log-odds of the target are far enough beyond the decision."""
        return log_odds(mean_log_prob(self._searched(), x_cf, query.target)) >= self._needed(query)

    def _needed(self, query: Query) -> Tensor:
        """(B,) the log-odds of the target at which the search for a row stops."""
        beyond = math.log(self.effort.probability / (1 - self.effort.probability))
        needed = self.deployed_.log_odds(query.target) + beyond
        if query.min_prob is None:
            return needed
        return needed.clamp(min=math.log(query.min_prob / (1 - query.min_prob)))

    def _searched(self) -> Predictors:
        """The models whose predictions the search uses: the judges, unless a method relies on the deployed model."""
        return self.judges_


@dataclass(frozen=True)
class WachterDescent(Descent):
    """Settings of the search of Wachter et al.

    Attributes:
        halving_steps: Number of steps without success after which the weight of the distance is halved.
    """

    halving_steps: int = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int(self.halving_steps, "'halving_steps' of WachterDescent", 1)


@dataclass(frozen=True)
class QUCEDescent(Descent):
    """Settings of QUCE.

    Attributes:
        aim: Probability of the target at which the loss is least, in (0, 1).
        autoencoder_weight: Weight of the autoencoder's loss.
        autoencoder: How the autoencoder is built and trained.
    """

    aim: float = 0.95
    autoencoder_weight: float = 0.3
    autoencoder: AutoencoderConfig = field(default_factory=AutoencoderConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_setting(self, "aim", 0 < self.aim < 1, "in (0, 1)")
        check_setting(self, "autoencoder_weight", 0 <= self.autoencoder_weight < math.inf, ">= 0 and finite")


@dataclass(frozen=True)
class SchutDescent(Descent):
    """Settings of the search of Schut et al., where ``step`` is the distance that a column moves in one step.

    Attributes:
        moves_per_column: Largest number of times that a column may move.
    """

    moves_per_column: int = 25

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int(self.moves_per_column, "'moves_per_column' of SchutDescent", 1)


class Wachter(GradientSearch[WachterDescent]):
    """Wachter et al. 2018: descent on the deployed model's loss plus distance, until the decision changes.

    The loss is logarithmic, as in later implementations, because the gradient of the original squared loss vanishes far
    from the boundary. The weight of the distance is halved after every ``halving_steps`` steps without success, as in
    the original.
    """

    usual = WachterDescent(steps=500, step=0.01, probability=0.5, proximity=0.1)

    def _loss(self, query: Query, x_cf: Tensor, step: int) -> Tensor:
        weight = self.effort.proximity * 0.5 ** (step // self.effort.halving_steps)
        shortfall = -mean_log_prob(self._searched(), x_cf, query.target)
        return shortfall + weight * query.space.distance(x_cf, query.x)

    def _searched(self) -> Predictors:
        return self.deployed_.predictors


class Batten(GradientSearch[Descent]):
    """Batten et al. 2025: descent on the loss of a Bayesian network's mean prediction, plus distance.

    This is a reconstruction, because the text was not available. The descent stops shortly after the mean crosses the
    decision boundary.
    """

    usual = Descent(steps=500, step=0.05, probability=0.52, proximity=0.1)

    def _loss(self, query: Query, x_cf: Tensor, step: int) -> Tensor:  # noqa: ARG002
        shortfall = -mean_log_prob(self._searched(), x_cf, query.target)
        return shortfall + self.effort.proximity * query.space.distance(x_cf, query.x)


class QUCE(GradientSearch[QUCEDescent]):
    """Duell et al. 2024, corrected: descent on a target loss, plus distance, plus the loss of an autoencoder of rows.

    The loss follows the text of the paper: (p - 0.95)^2 for the expected prediction p, plus distance, plus the loss of
    a variational autoencoder (squared error averaged over columns, divergence summed). The published notebook applies a
    sigmoid twice, detaches the gradient of the distance, does not train the autoencoder and compares its output with
    the factual; none of that is reproduced. With correct gradients, the notebook's weights (0.7 for distance, 1 for the
    autoencoder) leave hardly any answer valid. The weights used here, 0.05 and 0.3, give about the validity and
    implausibility that the AVCG paper reports. The search for a row stops when the target has the ``probability``, or
    after 300 steps; the notebook always runs 1,000.
    """

    usual = QUCEDescent(steps=300, step=0.03, probability=0.9, proximity=0.05)

    def _fit(self, x: Tensor, y: Tensor | None, rng: torch.Generator) -> None:
        super()._fit(x, y, rng)
        labels, config = torch.zeros(len(x), dtype=torch.long), self.effort.autoencoder
        self.vae_ = fit_vae(self.space_, x, labels, 1, config, rng, self._torch_device())

    def _loss(self, query: Query, x_cf: Tensor, step: int) -> Tensor:  # noqa: ARG002
        effort = self.effort
        probability = mean_log_prob(self._searched(), x_cf, query.target).exp()
        distance = ((x_cf - query.x).flatten(1).square().sum(dim=1) + 1e-12).sqrt()
        error, divergence = vae_terms(self.vae_, query.space, x_cf, torch.zeros_like(query.target), None)
        autoencoder_loss = error / x_cf[0].numel() + divergence
        shortfall = (probability - effort.aim).square()
        return shortfall + effort.proximity * distance + effort.autoencoder_weight * autoencoder_loss


@dataclass(frozen=True)
class EntropicDescent(Descent):
    """Settings of the entropic search, which stops at a risk of 1 - ``probability``.

    Attributes:
        temper: t of the entropic risk, > 0; a larger one gives more weight to the worst hypothesis.
        first: Settings of the search of Wachter et al., whose answer is the starting point.
    """

    temper: float = 10.0
    first: WachterDescent = Wachter.usual

    def __post_init__(self) -> None:
        super().__post_init__()
        check_setting(self, "temper", 0 < self.temper < math.inf, "> 0 and finite")


class EntropicSearch(GradientSearch[EntropicDescent]):
    """Noorani et al. 2025: descent from Wachter's answer until the entropic risk of 1 - p over hypotheses is low.

    The risk is (1/t) log mean exp(t (1 - p)), which is the mean for small t and the worst hypothesis for large t. The
    search for a row stops at a risk of 1 - ``probability``.
    """

    usual = EntropicDescent(steps=500, step=0.02, probability=0.5, proximity=0.0)

    def _candidates(self, query: Query) -> Tensor:
        wachter = Wachter(self.hypotheses, descent=self.effort.first)
        wachter.deployed_ = self.deployed_
        raw = self._search(query, wachter._search(query, wachter._start(query)))
        return finalized(query, raw).expand(query.n, *query.x.shape)

    def _risk(self, query: Query, x_cf: Tensor) -> Tensor:
        """(B,) the entropic risk over the judges."""
        log_p = target_log_probs(self.judges_, x_cf[None], query.target)[:, 0]
        log_weights = self.judges_.weights.log().to(x_cf)[:, None]
        temper = self.effort.temper
        return torch.logsumexp(temper * (1.0 - log_p.exp()) + log_weights, dim=0) / temper

    def _loss(self, query: Query, x_cf: Tensor, step: int) -> Tensor:  # noqa: ARG002
        return self._risk(query, x_cf) + self.effort.proximity * query.space.distance(x_cf, query.x)

    @torch.no_grad()
    def _done(self, query: Query, x_cf: Tensor) -> Tensor:
        low_risk = self._risk(query, x_cf) <= 1.0 - self.effort.probability
        probabilities = self.deployed_.probabilities(x_cf)
        return low_risk & self.deployed_.valid(probabilities, query.target, query.min_prob)


class Schut(GradientSearch[SchutDescent]):
    """Schut et al. 2021: each step moves the column that most raises the ensemble's mean probability of the target.

    A step moves one column by ``step`` standard deviations (a category by one unit of its log-odds), until the target
    has the ``probability``. That is 0.95 here and 0.99 in the original, whose columns range from 0 to 1. As in the
    original, the number of moves of each column is limited, so that none moves back and forth forever. The loss has no
    distance term: few columns change because only one moves at a time.
    """

    usual = SchutDescent(steps=500, step=0.2, probability=0.95, proximity=0.0)

    def _move(
        self,
        query: Query,
        raw: Tensor,
        slope: Tensor,
        memory: Tensor,
        step: int,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        space, effort = query.space, self.effort
        move = -torch.where(space.is_logit, 1.0, effort.step) * slope.sign()
        inside = torch.where(space.is_logit, raw + move, space.relax(raw + move, query.x))
        # A column at its bound cannot move, however large its gradient.
        movable = ((inside - raw).abs() > effort.epsilon) & (memory[0] < effort.moves_per_column)
        steepness = torch.where(movable, slope.abs(), 0.0).flatten(1)
        chosen = torch.zeros_like(steepness).scatter(1, steepness.argmax(dim=1, keepdim=True), 1.0).view_as(raw)
        moved = torch.where((chosen > 0) & movable, inside, raw)
        return moved, torch.stack([memory[0] + chosen, memory[1]])

    def _loss(self, query: Query, x_cf: Tensor, step: int) -> Tensor:  # noqa: ARG002
        return -mean_log_prob(self._searched(), x_cf, query.target)


@torch.no_grad()
def finalized(query: Query, raw: Tensor) -> Tensor:
    """(B, *event) feasible answers from points before relaxation."""
    return query.space.finalize(raw, query.x)


def mean_log_prob(predictors: Predictors, x_cf: Tensor, target: Tensor) -> Tensor:
    """(B,) the logarithm of the mean probability of the target over hypotheses."""
    log_p = target_log_probs(predictors, x_cf[None], target)[:, 0]
    return torch.logsumexp(log_p + predictors.weights.log().to(x_cf)[:, None], dim=0)
