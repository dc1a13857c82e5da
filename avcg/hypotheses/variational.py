"""Posteriors found by training: mean-field variational inference, and the weights a training run passes through."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  its usual name

from avcg.errors import DataError, SettingError, check_int
from avcg.hypotheses.base import seeded
from avcg.hypotheses.gaussian import Factor, GaussianPosterior, unflatten
from avcg.models.adapter import Model, model_spec
from avcg.models.batched import stacked_forward
from avcg.models.stacked_fit import StackedLoss, fit_stacked, mean_cross_entropy
from avcg.models.training import Epoch, Training, train
from avcg.space.base import Space


@dataclass(frozen=True, eq=False)
class MeanFieldVI(GaussianPosterior):
    """An independent Gaussian for every weight, trained on the evidence bound (Bayes by backprop, Blundell 2015).

    Attributes:
        history: One entry per epoch; the loss is the negative bound per row.
    """

    history: tuple[Epoch, ...] = ()

    @classmethod
    def fit(
        cls,
        model: Model,
        X: Any,
        y: Any,
        *,
        prior_std: float = 1.0,
        n_draws: int = 8,
        training: Training | None = None,
        loss: StackedLoss = mean_cross_entropy,
        space: Space | None = None,
        rng: torch.Generator | None = None,
    ) -> Self:
        """Train the means and widths, starting from the model's own weights.

        Args:
            model: A network or a fitted `Classifier`.
            X: Training rows.
            y: Their labels, or targets where ``loss`` says so.
            prior_std: Of the Gaussian prior around zero.
            n_draws: Networks per step.
            training: How long and how fast; None: 200 epochs at 1e-2.
            loss: Mean negative log-likelihood per draw.
            space: What a bare network reads.
            rng: Random numbers; None: a generator seeded with 0.
        """
        if not 0 < prior_std < math.inf:
            raise SettingError(f"The 'prior_std' of MeanFieldVI must be > 0. Got {prior_std!r} instead.")
        opened, rng = model_spec(model, space), seeded(rng)
        x = opened.rows(X).cpu()
        targets = y.cpu() if isinstance(y, Tensor) and y.is_floating_point() else opened.labels(y).cpu()
        if targets.shape != x.shape[:1]:
            raise DataError(f"There must be one label per row, {len(x)}. Got labels of shape {tuple(targets.shape)}.")
        network = copy.deepcopy(opened.network).eval().cpu().float()
        mean = {name: value.detach().clone() for name, value in network.named_parameters()}
        forward = stacked_forward(network, x.dim() - 1)
        center = torch.cat([value.flatten() for value in mean.values()]).requires_grad_()
        # softplus(-5) = 0.007: narrow enough that the first steps see the trained network.
        raw = torch.full_like(center, -5.0).detach().requires_grad_()

        def bound(batch: Tensor) -> Tensor:
            std = F.softplus(raw)
            drawn = center + std * torch.randn(n_draws, len(center), generator=rng)
            logits = forward(x[batch], unflatten(drawn, mean), n_draws)
            fit = loss(logits, targets[batch].expand(n_draws, *targets[batch].shape)).mean()
            ratio = (std.square() + center.square()) / prior_std**2
            kl = 0.5 * (ratio - 1 - 2 * (std / prior_std).log()).sum()
            return fit + kl / len(x)

        settings = training or Training(epochs=200, learning_rate=1e-2, patience=None)
        history = train([center, raw], bound, len(x), settings, rng=rng, label="Variational inference")
        found = {name: value[0] for name, value in unflatten(center.detach()[None], mean).items()}
        return cls(network, found, F.softplus(raw).detach(), None, opened.space, opened.classes, tuple(history))


@dataclass(frozen=True, eq=False)
class SWAG(GaussianPosterior):
    """A Gaussian fitted to the weights that further training passes through (Maddox et al. 2019)."""

    @classmethod
    def fit(
        cls,
        model: Model,
        X: Any,
        y: Any,
        *,
        n_snapshots: int = 20,
        training: Training | None = None,
        space: Space | None = None,
        rng: torch.Generator | None = None,
    ) -> Self:
        """Train on from the model's weights and take a snapshot after every epoch.

        Args:
            model: A trained network or a fitted `Classifier`.
            X: Training rows.
            y: Their labels.
            n_snapshots: How many, at least 2; also the rank of the covariance.
            training: How fast; its number of epochs is ``n_snapshots``. None: batches of 128 at 1e-3.
            space: What a bare network reads.
            rng: Random numbers; None: a generator seeded with 0.
        """
        n_snapshots = check_int(n_snapshots, "'n_snapshots' of SWAG", 2)
        opened = model_spec(model, space)
        network = copy.deepcopy(opened.network).cpu().float()
        x, labels = (part.cpu() for part in opened.pair(X, y))
        base = training or Training()
        settings = replace(base, epochs=n_snapshots, patience=None)
        snapshots: list[Tensor] = []
        fit_stacked(
            network,
            x,
            labels,
            torch.arange(len(x))[None],
            settings,
            rng=seeded(rng),
            start={name: value.detach()[None] for name, value in network.named_parameters()},
            on_epoch=lambda _, state: snapshots.append(torch.cat([v.detach().flatten() for v in state.values()])),
            label="Collecting weights",
        )
        passed = torch.stack(snapshots)
        center = passed.mean(dim=0)
        away = passed - center
        mean = {name: value[0] for name, value in unflatten(center[None], dict(network.named_parameters())).items()}
        # Half of the covariance from the diagonal, half from the snapshots, as in the paper.
        diagonal = (away.square().mean(dim=0) / 2).sqrt()
        factor = Factor(away.T / math.sqrt(2 * (n_snapshots - 1)))
        return cls(network, mean, diagonal, factor, opened.space, opened.classes)
