"""The recipe, which holds every choice that changes results, and the training of a generator by it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor

from avcg.errors import check_int, check_setting
from avcg.hypotheses.base import HypothesisDistribution
from avcg.hypotheses.finite import FiniteSet
from avcg.hypotheses.predictors import Joined, Predictors
from avcg.hypotheses.split import SplitConfig
from avcg.method.config import CalibrationConfig, DiagnosticsConfig, DistillationConfig, ReferenceConfig, SearchConfig
from avcg.method.cuda_graphs import GraphedLoss
from avcg.method.deployed import DeployedModel
from avcg.method.generator import Condition, Decoder, Generator
from avcg.method.multipliers import ConstraintConfig, Multipliers
from avcg.method.objective import Distance, Draws, Plausibility, Terms, Weights, objective
from avcg.method.risk import Hinge, Risk, expected_log_likelihood
from avcg.models.precision import lower_precision
from avcg.models.training import Epoch, Training, train
from avcg.space.base import Space
from avcg.space.constraints import REACH


def mean_squared(x_cf: Tensor, x: Tensor) -> Tensor:
    """The distance that the paper's tables imply: squared differences of codes, averaged over them."""
    return (x_cf - x).square().flatten(x_cf.dim() - x.dim() + 1).mean(dim=-1)


@dataclass(frozen=True)
class Recipe:
    """Every choice that changes results, beside what an explainer is told about models, schema and promise.

    Attributes:
        decoder: What the decoder sees and makes; see `Generator`.
        n_latent: Size of z. ``"latent"`` decoders have at most half as many as codes.
        encoder: Hidden units of each layer of the encoder; channels for images.
        layers: Hidden units of each layer of the decoder; channels for images.
        smooth: Whether hidden layers are normalised and smooth (SiLU) instead of ReLU.
        stay_log_odds: Log-odds by which an untrained residual decoder prefers the category that a row has.
        margin_scale: Factor on margins before the networks read them, so that they are of the size of codes.
        reach: Codes (standard deviations) beyond which the networks are not told how much further a number may go.
        weights: Weight of each term of the objective. Those of changes and plausibility are for a table of
            ``usual_columns`` columns, and less in proportion where there are more; see `scaled_to`.
        risk: How log-probabilities are summarised over hypotheses; None: a hinge at a margin that the generator is
            told, drawn for each row from ``margins``, so that it can be chosen after training.
        constraint: How the weight of that hinge is raised and lowered at each level of margin, so that the margin is a
            constraint; None: it keeps the weight of ``weights``.
        margins: Lowest and highest margin beyond the decision, in log-odds.
        typicality: How typical answers are where a query does not say, from 0, the nearest to the row, to 1, like the
            people who were accepted.
        spread: Standard deviations over hypotheses by which log-odds must stay clear of a margin: in the hinge, when
            changes of an answer are taken back, by judges or by students.
        warm_up: Share of the steps over which the weight of the hypotheses grows to its own.
        warm_up_start: Share of its own that this weight starts from.
        distance: d, the cost of an answer; None: the space's own.
        expected_share: Share of the space's own distance that is taken in expectation over gates and categories, in
            [0, 1]; the rest is taken of the sampled answer.
        temperature: First and last temperature of straight-through answers; None: the relaxation itself is judged, as
            in the paper.
        noise: First and last scale of the noise in gates and categories.
        n_hypotheses: Largest number of hypotheses drawn at each step. A finite set of no more is used whole.
        n_latents: K, latents for each row and step.
        min_separation: Distance from which two answers to a row count as different.
        requests: Share of rows that come with restrictions of their own, in [0, 1].
        crossed: Share of rows that are crossed with another row, each feature taken from either, where there are fewer
            training rows than ``many_rows``.
        many_rows: Number of training rows from which none are crossed.
        targets: Classes that rows aim at: ``"other"``, one that the row does not have, or ``"all"``, any.
        single_pass: Whether an answer is what one pass gives, and n answers are n latents, as in the paper. Otherwise
            the search tries again what the judges reject, and hands out the best of more candidates.
        train_on_deployed: Whether the deployed model is one of the hypotheses at every step.
        steps: Number of steps of Adam.
        batch_size: Rows of a step.
        learning_rate: Highest learning rate of the one cycle.
        clip: Largest norm of a gradient.
        rows_per_epoch: Smallest number of rows of an epoch: few rows are gone through several times.
        usual_columns: Number of columns that the weights are for.
        refresh_share: Share of the training rows, those with the largest amortization gap, on which
            ``AVCG.refit(only_encoder=True)`` trains.
        refresh_steps: Gradient steps on each row's posterior by which that gap is measured.
        bfloat16: Whether networks on a GPU are trained in bfloat16, which is a little quicker for images. Answers are
            computed in float32 all the same.
        split: How many hypotheses train, calibrate and test.
        reference: Which training rows answers stay near to and fall back on.
        search: What is tried beyond one pass, and how candidates are compared.
        calibration: How the margin behind a promise is chosen.
        diagnostics: What is measured after each epoch.
        distillation: How students learn from models that can only be asked.
    """

    decoder: Decoder = "residual"
    n_latent: int = 8
    encoder: tuple[int, ...] = (128,)
    layers: tuple[int, ...] = (256, 256, 256)
    smooth: bool = True
    stay_log_odds: float = 2.0
    margin_scale: float = 0.3
    reach: float = REACH
    weights: Weights = field(default_factory=lambda: Weights(4.5, 0.01, 1.0, changes=1.2, plausibility=1.0))
    risk: Risk | None = None
    constraint: ConstraintConfig | None = field(default_factory=ConstraintConfig)
    margins: tuple[float, float] = (-1.5, 6.0)
    typicality: float = 0.5
    spread: float = 2.0
    warm_up: float = 0.2
    warm_up_start: float = 0.1
    distance: Distance | None = None
    expected_share: float = 0.5
    temperature: tuple[float, float] | None = (1.0, 0.3)
    noise: tuple[float, float] = (1.0, 0.3)
    n_hypotheses: int = 20
    n_latents: int = 1
    min_separation: float = 1.0
    requests: float = 0.4
    crossed: float = 0.5
    many_rows: int = 5000
    targets: Literal["other", "all"] = "other"
    single_pass: bool = False
    train_on_deployed: bool = True
    steps: int = 3000
    batch_size: int = 128
    learning_rate: float = 2e-3
    clip: float = 5.0
    rows_per_epoch: int = 4096
    usual_columns: int = 14
    refresh_share: float = 0.5
    refresh_steps: int = 20
    bfloat16: bool = False
    split: SplitConfig = field(default_factory=SplitConfig)
    reference: ReferenceConfig = field(default_factory=ReferenceConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    calibration: CalibrationConfig = field(default_factory=CalibrationConfig)
    diagnostics: DiagnosticsConfig = field(default_factory=DiagnosticsConfig)
    distillation: DistillationConfig = field(default_factory=DistillationConfig)

    def __post_init__(self) -> None:
        counts = "n_latent n_hypotheses n_latents steps batch_size rows_per_epoch usual_columns many_rows"
        for name in counts.split():
            check_int(getattr(self, name), f"'{name}' of Recipe", 1)
        check_int(self.refresh_steps, "'refresh_steps' of Recipe", 0)
        for name in ("warm_up", "warm_up_start", "expected_share", "requests", "crossed", "typicality"):
            check_setting(self, name, 0 <= getattr(self, name) <= 1, "a share in [0, 1]")
        for name in ("spread", "stay_log_odds"):
            check_setting(self, name, getattr(self, name) >= 0, "a number >= 0")
        for name in ("margin_scale", "reach", "min_separation", "learning_rate", "clip"):
            check_setting(self, name, getattr(self, name) > 0, "a number > 0")
        check_setting(self, "refresh_share", 0 < self.refresh_share <= 1, "a share in (0, 1]")
        check_setting(self, "temperature", self.temperature is None or min(self.temperature) > 0, "> 0")
        check_setting(self, "margins", self.margins[0] <= self.margins[1], "(low, high)")
        check_setting(self, "targets", self.targets in ("other", "all"), "'other' or 'all'")

    @property
    def has_margins(self) -> bool:
        """Whether the generator is told a margin, which can then be chosen after training."""
        return self.risk is None and self.margins[0] < self.margins[1]

    def scaled_to(self, space: Space) -> Self:
        """This recipe with its weights scaled to a space: each of many columns, or pixels, says less."""
        scale, weights = self.usual_columns / space.n_features, self.weights
        scaled = replace(weights, changes=scale * weights.changes)
        if space.averages_distance:
            scaled = replace(scaled, plausibility=scale * weights.plausibility)
            if self.distance is None:
                scaled = replace(scaled, proximity=self.usual_columns * weights.proximity)
        return replace(self, weights=scaled)

    def build_generator(
        self, space: Space, n_classes: int, *, n_latent: int | None = None, rng: torch.Generator | None = None
    ) -> Generator:
        """An untrained generator of this recipe.

        Args:
            space: The space of its rows.
            n_classes: C.
            n_latent: Size of z; None: the recipe's, for ``"latent"`` decoders at most half the number of codes.
            rng: Random numbers for the first weights; None: seed 0.
        """
        if n_latent is None:
            largest = max(1, math.prod(space.event_shape) // 2) if self.decoder == "latent" else self.n_latent
            n_latent = min(self.n_latent, largest)
        return Generator(
            space,
            n_classes,
            decoder=self.decoder,
            n_latent=n_latent,
            encoder=self.encoder,
            layers=self.layers,
            smooth=self.smooth,
            stay_log_odds=self.stay_log_odds,
            margin_scale=self.margin_scale,
            reach=self.reach,
            rng=rng,
        )

    def in_rounds(self) -> list[Self]:
        """This recipe as one for each round of distillation, the steps shared out; only the first round warms up."""
        config = self.distillation
        later = int(self.steps * (1.0 - config.first_share) / (config.rounds - 1))
        first = replace(self, steps=max(1, int(self.steps * config.first_share)))
        return [first, *[replace(self, steps=max(1, later), warm_up=0.0)] * (config.rounds - 1)]

    @classmethod
    def paper(cls, proximity: float = 3.0) -> Self:
        """The paper's configuration: expected log-likelihood of 50 hypotheses, 5 latents, a decoder on (z, y').

        What the paper leaves open is set as its tables imply: mean-squared distance, λ = 3, widths 128 and 64, latent
        size of half the codes and at most 16.

        Args:
            proximity: λ.
        """
        return cls(
            decoder="latent",
            n_latent=16,
            encoder=(128, 64),
            layers=(64, 128),
            smooth=False,
            weights=Weights(proximity=proximity),
            risk=expected_log_likelihood,
            distance=mean_squared,
            temperature=None,
            warm_up=0.0,
            n_hypotheses=50,
            n_latents=5,
            requests=0.0,
            crossed=0.0,
            targets="all",
            single_pass=True,
            train_on_deployed=False,
            steps=1500,
            batch_size=128,
            learning_rate=1e-3,
        )

    @classmethod
    def mahajan(cls) -> Self:
        """The CF-VAE of Mahajan, Tan and Sharma (2019), the paper's uncited ancestor; for `PointMass` hypotheses.

        The same two networks as the paper's, with absolute distance and a hinge on the one model where the paper has
        an expected log-likelihood. Theirs is on a difference of probabilities of 0.165, with weight 42: here at the
        probability where that difference is reached, and in log-odds, which move twice as fast there. Distance is in
        standard deviations, where theirs is in ranges.
        """
        return replace(cls.paper(), weights=Weights(nll=20.0, proximity=1.0), risk=Hinge.at(0.5825, 0.0), distance=None)


def draw_targets(current: Tensor, n_classes: int, kind: str, rng: torch.Generator) -> Tensor:
    """(B,) random target classes.

    Args:
        current: (B,) positions of the present decisions.
        n_classes: C.
        kind: ``"other"``: a class other than the present one; ``"all"``: any class.
        rng: Random numbers.
    """
    if kind == "all":
        return torch.randint(n_classes, current.shape, generator=rng).to(current.device)
    step = torch.randint(1, n_classes, current.shape, generator=rng).to(current.device)
    return (current + step) % n_classes


def fit_generator(
    generator: Generator,
    space: Space,
    x: Tensor,
    hypotheses: HypothesisDistribution,
    deployed: DeployedModel,
    recipe: Recipe,
    plausibility: Plausibility | None,
    rng: torch.Generator,
    on_epoch: Callable[[Epoch], None] | None = None,
    label: str = "Training the generator",
    multipliers: Multipliers | None = None,
) -> list[Epoch]:
    """Train a generator in place.

    Args:
        generator: The generator, trained from its present weights.
        space: What every row may change.
        x: (N, *event) training rows, on the device to train on.
        hypotheses: The hypotheses to train against. A finite set of at most ``recipe.n_hypotheses`` is used whole;
            otherwise new ones are drawn at every step.
        deployed: The deployed model.
        recipe: The training configuration.
        plausibility: Function that measures how far answers lie from usual rows; None: the term is 0.
        rng: All random numbers of the training.
        on_epoch: Function called after each epoch; None: none.
        label: Text beside the progress bar on a terminal.
        multipliers: Multipliers of the hinge, updated in place; None: the hinge has the weight of the recipe.

    Returns:
        The record of each epoch.
    """
    n_rows = len(x) * -(-recipe.rows_per_epoch // len(x))
    batch = min(recipe.batch_size, n_rows)
    epochs = max(1, round(recipe.steps / math.ceil(n_rows / batch)))
    loss = GeneratorLoss(generator, space, x, hypotheses, deployed, recipe, plausibility, rng, multipliers)
    loss.total = epochs * math.ceil(n_rows / batch)
    settings = Training(epochs, batch, recipe.learning_rate, patience=None, clip=recipe.clip, schedule="one_cycle")
    return train(list(generator.parameters()), loss, n_rows, settings, rng=rng, on_epoch=on_epoch, label=label)


class GeneratorLoss:
    """The loss of one training step, with newly drawn targets, restrictions, margins, hypotheses and noise.

    Args:
        generator: The generator that is trained.
        space: What every row may change.
        x: (N, *event) training rows, on the device to train on.
        hypotheses: The hypotheses to train against.
        deployed: The deployed model.
        recipe: The training configuration.
        plausibility: Function that measures how far answers lie from usual rows; None: the term is 0.
        rng: Random numbers.

    Attributes:
        fixed: The hypotheses, if they are the same at every step; None: new ones are drawn at each step.
        steady: The loss as a CUDA graph, if all steps run the same operations; None otherwise.
        done: Number of steps so far.
        total: Number of steps of the whole training, which schedules refer to.
    """

    def __init__(
        self,
        generator: Generator,
        space: Space,
        x: Tensor,
        hypotheses: HypothesisDistribution,
        deployed: DeployedModel,
        recipe: Recipe,
        plausibility: Plausibility | None,
        rng: torch.Generator,
        multipliers: Multipliers | None = None,
    ) -> None:
        self.generator, self.space, self.x, self.hypotheses = generator, space, x, hypotheses
        self.deployed, self.recipe, self.plausibility, self.rng = deployed, recipe, plausibility, rng
        self.current = deployed.decide(deployed.probabilities(x))
        self.rng_numpy = np.random.default_rng(int(torch.randint(2**31, (), generator=rng)))
        whole_set = isinstance(hypotheses, FiniteSet) and len(hypotheses) <= recipe.n_hypotheses
        self.fixed = self._draw() if whole_set else None
        self.done, self.total = 0, 1
        self.multipliers = multipliers
        steps_differ = recipe.temperature is not None or recipe.requests or recipe.warm_up
        graphable = not steps_differ and plausibility is None and multipliers is None
        self.steady = None
        if graphable:
            choices = (recipe.weights, recipe.risk, recipe.spread, recipe.distance, recipe.min_separation)
            self.steady = GraphedLoss(generator, space, *choices, self.fixed)

    def __call__(self, positions: Tensor) -> Tensor:
        """The mean loss of the training rows at (B,) positions, which are taken modulo N."""
        with lower_precision(self.x.device, enabled=self.recipe.bfloat16):
            return self._loss(positions)

    def _loss(self, positions: Tensor) -> Tensor:
        recipe, progress = self.recipe, self.done / self.total
        self.done += 1
        x, current = self._rows(positions.to(self.x.device) % len(self.x))
        if self.steady is not None:
            condition, predictors = self._condition(x, current, self.space), self.fixed or self._draw()
            draws = Draws.draw(self.generator, self.space, recipe.n_latents, x, self.rng, hard=0.0)
            return self.steady(condition, draws.latent, predictors)
        space = self.space.random_requests(len(x), recipe.requests, self.rng_numpy) if recipe.requests else self.space
        condition = self._condition(x, current, space)
        terms = objective(
            self.generator,
            space,
            condition,
            self.generator.posterior(condition),
            self.fixed or self._draw(),
            Draws.draw(self.generator, space, recipe.n_latents, x, self.rng, hard=self._hard(progress)),
            recipe.risk or Hinge(condition.margin, recipe.spread),
            temperature=None if recipe.temperature is None else _interpolate(recipe.temperature, progress),
            distance=recipe.distance,
            expected_share=recipe.expected_share,
            plausibility=self.plausibility,
            min_separation=recipe.min_separation,
        )
        ramp = min(1.0, recipe.warm_up_start + progress / recipe.warm_up) if recipe.warm_up else 1.0
        if self.multipliers is None:
            return terms.total(replace(recipe.weights, nll=ramp * recipe.weights.nll), condition.typicality).mean()
        return self._constrained(terms, condition, ramp).mean()

    def _constrained(self, terms: Terms, condition: Condition, ramp: float) -> Tensor:
        """(B,) losses with the multiplier of each row's margin as the weight of its hinge; the multipliers are updated.

        Rows with restrictions of their own may be unable to reach their margin, so they change no multiplier.
        """
        assert self.multipliers is not None
        level = self.multipliers.level(condition.margin - self.deployed.log_odds(condition.target))
        weights = ramp * self.multipliers.values[level]
        if ramp == 1.0:
            unrestricted = self.space.constraint_features(condition.x, self.recipe.reach)
            free = (condition.constraint_features == unrestricted).flatten(1).all(dim=1)
            self.multipliers.update(level[free], terms.nll.detach()[free])
        return terms.total(replace(self.recipe.weights, nll=0.0), condition.typicality) + weights * terms.nll

    def _rows(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(B, *event) factuals and their (B,) decisions; if there are few training rows, some are crossings of two."""
        x = self.x[rows]
        if not self.recipe.crossed or len(self.x) >= self.recipe.many_rows:
            return x, self.current[rows]
        others = self.x[torch.randint(len(self.x), rows.shape, generator=self.rng).to(x.device)]
        kept = torch.rand(len(x), generator=self.rng) >= self.recipe.crossed
        crossed = self.space.cross(x, others, self.rng)
        x = torch.where(kept.view(-1, *[1] * (x.dim() - 1)).to(x.device), x, crossed)
        return x, self.deployed.decide(self.deployed.probabilities(x))

    def _condition(self, x: Tensor, current: Tensor, space: Space) -> Condition:
        """The generator's input for B factuals with (B,) decisions: a random target, margin and typicality for each."""
        low, high = self.recipe.margins
        target = draw_targets(current, self.generator.n_classes, self.recipe.targets, self.rng)
        margin = low + (high - low) * torch.rand(len(x), generator=self.rng).to(x.device)
        typicality = torch.rand(len(x), generator=self.rng).to(x.device)
        features = space.constraint_features(x, self.recipe.reach)
        return Condition(x, target, features, self.deployed.log_odds(target) + margin, typicality)

    def _hard(self, progress: float) -> float:
        """The scale of the noise in gates and categories."""
        return 0.0 if self.recipe.temperature is None else _interpolate(self.recipe.noise, progress)

    def _draw(self) -> Predictors:
        """Hypotheses to train against, after the deployed model if the recipe trains on that too."""
        drawn = self.hypotheses.sample(self.recipe.n_hypotheses, rng=self.rng)
        if self.recipe.train_on_deployed:
            drawn = Joined([self.deployed.predictors, drawn])
        return drawn.to(self.x.device)


def _interpolate(ends: tuple[float, float], progress: float) -> float:
    """The value between the first and the last one at a progress in [0, 1]."""
    return ends[0] + (ends[1] - ends[0]) * progress
