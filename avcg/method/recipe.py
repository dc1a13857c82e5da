"""How a generator is trained: every choice in one place, and the loop that follows them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor

from avcg.errors import SettingError, check_int
from avcg.hypotheses.base import HypothesisDistribution
from avcg.hypotheses.finite import FiniteSet
from avcg.hypotheses.predictors import Joined, Predictors
from avcg.method.config import CalibrationConfig, DistillationConfig, SearchConfig
from avcg.method.cuda_graphs import GraphedLoss
from avcg.method.deployed import DeployedModel
from avcg.method.generator import Condition, Decoder, Generator
from avcg.method.objective import Distance, Draws, Plausibility, Weights, objective
from avcg.method.risk import Hinge, Risk, expected_log_likelihood
from avcg.models.precision import lower_precision
from avcg.models.training import Epoch, Training, train
from avcg.space.base import Space


def mean_squared(x_cf: Tensor, x: Tensor) -> Tensor:
    """The distance that the paper's tables imply: squared differences of codes, averaged over them."""
    return (x_cf - x).square().flatten(x_cf.dim() - x.dim() + 1).mean(dim=-1)


@dataclass(frozen=True)
class Recipe:
    """Everything about a generator and its training that is not a promise to the user.

    Attributes:
        decoder: As in `Generator`.
        n_latent: Size of z; for ``"latent"`` decoders at most half the codes.
        encoder: Hidden units of the encoder; channels for images.
        layers: Hidden units of the decoder; channels for images.
        smooth: Whether hidden layers are normalised and smooth (SiLU) instead of ReLU.
        weights: What each term counts; those of changes and plausibility for a table of fourteen columns, and less in
            proportion where there are more. See `scaled_to`.
        risk: How hypotheses are summed up; None: a hinge at a margin that the generator is told, drawn for each row
            out of ``margins``, so that it can be chosen after training.
        margins: Lowest and highest margin beyond the decision's line, in log-odds.
        spread: Of the hinge: standard deviations over hypotheses to stay clear by.
        warm_up: Share of the steps over which the weight of the hypotheses grows from a tenth to its own.
        distance: d; None: the space's own.
        temperature: Of straight-through answers, first and last; None: the relaxation is judged, as in the paper.
        noise: Scale of the chance in gates and categories, first and last.
        n_hypotheses: Drawn for each step, at most; a finite set of no more is used whole.
        n_latents: K for each row and step.
        min_separation: The distance from which two answers of a row count as different.
        requests: Share of rows that ask for restrictions of their own.
        crossed: Where there are fewer training rows than 5,000, the share that are crossed with another row: each
            feature is taken from either.
        n_reference: Rows of each class to stay near to.
        targets: ``"other"``: a class that the row does not have; ``"all"``: any.
        single_pass: Whether an answer is what one pass gives, and n answers are n latents, as in the paper. Otherwise
            what the teachers refuse is tried again, and the best of more candidates are handed out.
        train_on_deployed: Whether the model in force is one of the hypotheses at every step.
        steps: Of Adam.
        batch_size: Rows a step.
        learning_rate: The highest of one cycle.
        clip: Largest norm of a gradient.
        search: What is tried beyond one pass, and how candidates are compared.
        calibration: How the margin behind a promise is chosen.
        distillation: How students learn from models that can only be asked.
        rows_per_epoch: Rows of an epoch, at least: few rows are gone through several times.
        usual_columns: The number of columns that the weights are for.
        many_rows: From so many training rows on, none are crossed.
        bfloat16: Whether networks on a GPU are trained in bfloat16, which is a little quicker for images; answers
            are computed in float32 all the same.
    """

    decoder: Decoder = "residual"
    n_latent: int = 8
    encoder: tuple[int, ...] = (128,)
    layers: tuple[int, ...] = (256, 256, 256)
    smooth: bool = True
    weights: Weights = field(default_factory=lambda: Weights(4.5, 0.01, 1.0, changes=1.2, plausibility=3.2))
    risk: Risk | None = None
    margins: tuple[float, float] = (-1.5, 6.0)
    spread: float = 2.0
    warm_up: float = 0.2
    distance: Distance | None = None
    temperature: tuple[float, float] | None = (1.0, 0.3)
    noise: tuple[float, float] = (1.0, 0.3)
    n_hypotheses: int = 20
    n_latents: int = 1
    min_separation: float = 1.0
    requests: float = 0.4
    crossed: float = 0.5
    n_reference: int = 1500
    targets: Literal["other", "all"] = "other"
    single_pass: bool = False
    train_on_deployed: bool = True
    steps: int = 3000
    batch_size: int = 256
    learning_rate: float = 2e-3
    clip: float = 5.0
    bfloat16: bool = False
    search: SearchConfig = field(default_factory=SearchConfig)
    calibration: CalibrationConfig = field(default_factory=CalibrationConfig)
    distillation: DistillationConfig = field(default_factory=DistillationConfig)
    rows_per_epoch: int = 4096
    usual_columns: int = 14
    many_rows: int = 5000

    def __post_init__(self) -> None:
        counts = "n_latent n_hypotheses n_latents n_reference steps batch_size rows_per_epoch usual_columns many_rows"
        for name in counts.split():
            check_int(getattr(self, name), f"'{name}' of Recipe", 1)
        if not 0 <= self.requests <= 1:
            raise SettingError(f"The 'requests' of Recipe must be a share in [0, 1]. Got {self.requests!r} instead.")
        if self.temperature is not None and not min(self.temperature) > 0:
            raise SettingError(f"The 'temperature' of Recipe must be > 0. Got {self.temperature!r} instead.")
        if not self.margins[0] <= self.margins[1]:
            raise SettingError(f"The 'margins' of Recipe must be (low, high). Got {self.margins!r} instead.")
        if self.targets not in ("other", "all"):
            raise SettingError(f"The 'targets' of Recipe must be 'other' or 'all'. Got {self.targets!r} instead.")

    def scaled_to(self, space: Space) -> Self:
        """The same with its weights for a space: of many columns, or pixels, each single one says less."""
        scale = self.usual_columns / space.n_features
        weights = self.weights
        scaled = replace(weights, changes=scale * weights.changes, plausibility=scale * weights.plausibility)
        if space.averages_distance and self.distance is None:
            scaled = replace(scaled, proximity=self.usual_columns * weights.proximity)
        return replace(self, weights=scaled)

    def parted(self, rounds: int) -> list[Self]:
        """The same in several rounds, half of the steps in the first; only the first warms up."""
        later = replace(self, steps=max(1, self.steps // (2 * (rounds - 1))), warm_up=0.0)
        return [replace(self, steps=max(1, self.steps // 2)), *[later] * (rounds - 1)]

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
    """(B,) a class to aim at for each row."""
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
) -> list[Epoch]:
    """Train a generator in place.

    Args:
        generator: Where to start from.
        space: What all rows may change.
        x: (N, *event) training rows, on the device to train on.
        hypotheses: What to train against; drawn anew at every step unless it is a finite set.
        deployed: The model in force.
        recipe: How.
        plausibility: The term of that name.
        rng: Of everything.
        on_epoch: Called after each pass.
        label: Shown beside the bar on a terminal.
    """
    n_rows = len(x) * -(-recipe.rows_per_epoch // len(x))
    batch = min(recipe.batch_size, n_rows)
    epochs = max(1, round(recipe.steps / math.ceil(n_rows / batch)))
    loss = GeneratorLoss(generator, space, x, hypotheses, deployed, recipe, plausibility, rng)
    loss.total = epochs * math.ceil(n_rows / batch)
    settings = Training(epochs, batch, recipe.learning_rate, patience=None, clip=recipe.clip, schedule="one_cycle")
    return train(list(generator.parameters()), loss, n_rows, settings, rng=rng, on_epoch=on_epoch, label=label)


class GeneratorLoss:
    """The loss of one step: rows, targets, requests, margins, hypotheses and chance drawn anew."""

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
    ) -> None:
        self.generator, self.space, self.x, self.hypotheses = generator, space, x, hypotheses
        self.deployed, self.recipe, self.plausibility, self.rng = deployed, recipe, plausibility, rng
        self.current = deployed.decide(deployed.probabilities(x))
        self.chance = np.random.default_rng(int(torch.randint(2**31, (), generator=rng)))
        whole_set = isinstance(hypotheses, FiniteSet) and len(hypotheses) <= recipe.n_hypotheses
        self.fixed = self._draw() if whole_set else None
        self.done, self.total = 0, 1
        alike = recipe.temperature is None and not recipe.requests and not recipe.warm_up and plausibility is None
        self.steady = None
        if alike:
            choices = (recipe.weights, recipe.risk, recipe.spread, recipe.distance, recipe.min_separation)
            self.steady = GraphedLoss(generator, space, *choices, self.fixed)

    def __call__(self, chosen: Tensor) -> Tensor:
        """The mean loss of (B,) rows."""
        with lower_precision(self.x.device, enabled=self.recipe.bfloat16):
            return self._loss(chosen)

    def _loss(self, chosen: Tensor) -> Tensor:
        recipe, progress = self.recipe, self.done / self.total
        self.done += 1
        x, current = self._rows(chosen.to(self.x.device) % len(self.x))
        if self.steady is not None:
            request, predictors = self._condition(x, current, self.space), self.fixed or self._draw()
            draws = Draws.draw(self.generator, self.space, recipe.n_latents, x, self.rng, hard=0.0)
            return self.steady(request, draws.latent, predictors)
        space = self.space.random_requests(len(x), recipe.requests, self.chance) if recipe.requests else self.space
        request = self._condition(x, current, space)
        terms = objective(
            self.generator,
            space,
            request,
            self.generator.posterior(request),
            self.fixed or self._draw(),
            Draws.draw(self.generator, space, recipe.n_latents, x, self.rng, hard=self._hard(progress)),
            recipe.risk or Hinge(request.margin, recipe.spread),
            temperature=None if recipe.temperature is None else _between(recipe.temperature, progress),
            distance=recipe.distance,
            plausibility=self.plausibility,
            min_separation=recipe.min_separation,
        )
        warmth = min(1.0, 0.1 + progress / recipe.warm_up) if recipe.warm_up else 1.0
        return terms.total(replace(recipe.weights, nll=warmth * recipe.weights.nll)).mean()

    def _rows(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(B, *event) factuals and (B,) their decisions; few rows are made more by crossing."""
        x = self.x[rows]
        if not self.recipe.crossed or len(self.x) >= self.recipe.many_rows:
            return x, self.current[rows]
        others = self.x[torch.randint(len(self.x), rows.shape, generator=self.rng).to(x.device)]
        alone = torch.rand(len(x), generator=self.rng) >= self.recipe.crossed
        crossed = self.space.cross(x, others, self.rng)
        x = torch.where(alone.view(-1, *[1] * (x.dim() - 1)).to(x.device), x, crossed)
        return x, self.deployed.decide(self.deployed.probabilities(x))

    def _condition(self, x: Tensor, current: Tensor, space: Space) -> Condition:
        low, high = self.recipe.margins
        target = draw_targets(current, self.generator.n_classes, self.recipe.targets, self.rng)
        margin = low + (high - low) * torch.rand(len(x), generator=self.rng).to(x.device)
        return Condition(x, target, space.constraint_features(x), self.deployed.log_odds(target) + margin)

    def _hard(self, progress: float) -> float:
        return 0.0 if self.recipe.temperature is None else _between(self.recipe.noise, progress)

    def _draw(self) -> Predictors:
        drawn = self.hypotheses.sample(self.recipe.n_hypotheses, rng=self.rng)
        if self.recipe.train_on_deployed:
            drawn = Joined([self.deployed.predictors, drawn])
        return drawn.to(self.x.device)


def _between(ends: tuple[float, float], progress: float) -> float:
    return ends[0] + (ends[1] - ends[0]) * progress
