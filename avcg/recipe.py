"""How a generator is trained: every choice in one place, and the loop that follows them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor

from avcg.decisions import Decider
from avcg.errors import SettingError, whole
from avcg.generator import Decoder, Generator, Request
from avcg.hypotheses.distributions import FiniteSet, HypothesisDistribution
from avcg.hypotheses.predictors import Joined, Predictors
from avcg.objective import Distance, Draws, Plausibility, Weights, objective
from avcg.risk import Hinge, Risk, expected_log_likelihood
from avcg.space import Space
from avcg.training import Epoch, Training, train

# An epoch has at least so many rows: few rows are gone through several times.
_ROWS_AN_EPOCH = 4096


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
        weights: What each term counts.
        risk: How hypotheses are summed up; None: a hinge at a margin that the generator is told, drawn for each row
            out of ``margins``, so that it can be chosen after training.
        margins: Lowest and highest margin beyond the decision's line, in log-odds.
        worst: Of the hinge, beside the mean over hypotheses.
        warm_up: Share of the steps over which the weight of the hypotheses grows from a tenth to its own.
        distance: d; None: the space's own.
        temperature: Of straight-through answers, first and last; None: the relaxation is judged, as in the paper.
        n_hypotheses: Drawn for each step, at most; a finite set of no more is used whole.
        n_latents: K for each row and step.
        apart: The distance from which two answers of a row count as different.
        requests: Share of rows that ask for restrictions of their own.
        bank: Rows of each class to stay near to.
        targets: ``"other"``: a class that the row does not have; ``"all"``: any.
        teach_in_force: Whether the model in force is one of the hypotheses at every step.
        steps: Of Adam.
        batch_size: Rows a step.
        learning_rate: The highest of one cycle.
        clip: Largest norm of a gradient.
    """

    decoder: Decoder = "residual"
    n_latent: int = 8
    encoder: tuple[int, ...] = (128,)
    layers: tuple[int, ...] = (256, 256, 256)
    weights: Weights = field(
        default_factory=lambda: Weights(nll=2.0, kl=0.01, proximity=1.0, changes=0.1, plausibility=0.5, sameness=0.0)
    )
    risk: Risk | None = None
    margins: tuple[float, float] = (0.2, 5.0)
    worst: float = 0.5
    warm_up: float = 0.2
    distance: Distance | None = None
    temperature: tuple[float, float] | None = (1.0, 0.3)
    n_hypotheses: int = 20
    n_latents: int = 1
    apart: float = 1.0
    requests: float = 0.4
    bank: int = 1500
    targets: Literal["other", "all"] = "other"
    teach_in_force: bool = True
    steps: int = 3000
    batch_size: int = 256
    learning_rate: float = 2e-3
    clip: float = 5.0

    def __post_init__(self) -> None:
        for name in ("n_latent", "n_hypotheses", "n_latents", "bank", "steps", "batch_size"):
            whole(getattr(self, name), f"'{name}' of Recipe", 1)
        if not 0 <= self.requests <= 1:
            raise SettingError(f"The 'requests' of Recipe must be a share in [0, 1]. Got {self.requests!r} instead.")
        if self.temperature is not None and not min(self.temperature) > 0:
            raise SettingError(f"The 'temperature' of Recipe must be > 0. Got {self.temperature!r} instead.")
        if not self.margins[0] <= self.margins[1]:
            raise SettingError(f"The 'margins' of Recipe must be (low, high). Got {self.margins!r} instead.")
        if self.targets not in ("other", "all"):
            raise SettingError(f"The 'targets' of Recipe must be 'other' or 'all'. Got {self.targets!r} instead.")

    @classmethod
    def paper(cls, proximity: float = 5.0) -> Self:
        """The paper's configuration: expected log-likelihood of 50 hypotheses, 5 latents, a decoder on (z, y').

        What the paper leaves open is set as its tables imply: mean-squared distance, λ = 5, widths 128 and 64, latent
        size of half the codes and at most 16.

        Args:
            proximity: λ.
        """
        return cls(
            decoder="latent",
            n_latent=16,
            encoder=(128, 64),
            layers=(64, 128),
            weights=Weights(proximity=proximity),
            risk=expected_log_likelihood,
            distance=mean_squared,
            temperature=None,
            warm_up=0.0,
            n_hypotheses=50,
            n_latents=5,
            requests=0.0,
            targets="all",
            teach_in_force=False,
            batch_size=128,
            learning_rate=1e-3,
        )


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
    teachers: HypothesisDistribution,
    decider: Decider,
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
        teachers: What to train against; drawn anew at every step unless it is a finite set.
        decider: The model in force.
        recipe: How.
        plausibility: The term of that name.
        rng: Of everything.
        on_epoch: Called after each pass.
        label: Shown beside the bar on a terminal.
    """
    current = decider.decide(decider.probabilities(x))
    chance = np.random.default_rng(int(torch.randint(2**31, (), generator=rng)))
    n_rows = len(x) * -(-_ROWS_AN_EPOCH // len(x))
    batch = min(recipe.batch_size, n_rows)
    epochs = max(1, round(recipe.steps / math.ceil(n_rows / batch)))
    total, done = epochs * math.ceil(n_rows / batch), 0
    fixed = _draw(teachers, decider, recipe, x.device, rng) if isinstance(teachers, FiniteSet) else None

    def loss(chosen: Tensor) -> Tensor:
        nonlocal done
        progress, done = done / total, done + 1
        rows = chosen.to(x.device) % len(x)
        predictors = fixed or _draw(teachers, decider, recipe, x.device, rng)
        target = draw_targets(current[rows], generator.n_classes, recipe.targets, rng)
        asked = space.random_requests(len(rows), recipe.requests, chance) if recipe.requests else space
        low, high = recipe.margins
        margin = (low + (high - low) * torch.rand(len(rows), generator=rng)).to(x.device)
        request = Request(x[rows], target, asked.leeway(x[rows]), decider.log_odds_at_line(target) + margin)
        terms = objective(
            generator,
            asked,
            request,
            generator.posterior(request),
            predictors,
            Draws.draw(generator, space, recipe.n_latents, x[rows], rng, hard=recipe.temperature is not None),
            recipe.risk or Hinge(request.margin, recipe.worst),
            temperature=_cooled(recipe.temperature, progress),
            distance=recipe.distance,
            plausibility=plausibility,
            apart=recipe.apart,
        )
        warmth = min(1.0, 0.1 + progress / recipe.warm_up) if recipe.warm_up else 1.0
        return terms.total(replace(recipe.weights, nll=warmth * recipe.weights.nll)).mean()

    settings = Training(epochs, batch, recipe.learning_rate, patience=None, clip=recipe.clip, schedule="one_cycle")
    return train(list(generator.parameters()), loss, n_rows, settings, generator=rng, on_epoch=on_epoch, label=label)


def _cooled(temperature: tuple[float, float] | None, progress: float) -> float | None:
    return None if temperature is None else temperature[0] + (temperature[1] - temperature[0]) * progress


def _draw(
    teachers: HypothesisDistribution, decider: Decider, recipe: Recipe, device: torch.device, rng: torch.Generator
) -> Predictors:
    drawn = teachers.sample(recipe.n_hypotheses, generator=rng)
    if recipe.teach_in_force:
        drawn = Joined([decider.predictors, drawn])
    return drawn.to(device)
