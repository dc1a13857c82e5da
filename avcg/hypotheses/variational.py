"""Posteriors obtained by training: mean-field variational inference and SWAG."""

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
    """An independent Gaussian for every weight, trained on the evidence lower bound (Bayes by Backprop, Blundell 2015).

    Attributes:
        history: One entry per epoch. The loss is the negative evidence lower bound per row.
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
        """Train the means and standard deviations, starting from the weights of the model.

        Args:
            model: A network or a fitted `Classifier`.
            X: Training rows.
            y: Labels of the training rows, or a float tensor of targets for ``loss``.
            prior_std: Standard deviation of the Gaussian prior around zero, > 0.
            n_draws: Number of networks drawn per step.
            training: Training settings; None: 200 epochs with learning rate 1e-2.
            loss: Function from stacked logits and labels to the mean negative log-likelihood of each draw.
            space: Space of the rows that a bare network reads.
            rng: Random numbers; None: a generator seeded with 0.
        """
        if not 0 < prior_std < math.inf:
            raise SettingError(f"The 'prior_std' of MeanFieldVI must be > 0. Got {prior_std!r} instead.")
        spec, rng = model_spec(model, space), seeded(rng)
        x = spec.rows(X).cpu()
        targets = y.cpu() if isinstance(y, Tensor) and y.is_floating_point() else spec.labels(y).cpu()
        if targets.shape != x.shape[:1]:
            raise DataError(f"There must be one label per row, {len(x)}. Got labels of shape {tuple(targets.shape)}.")
        network = copy.deepcopy(spec.network).eval().cpu().float()
        mean = {name: value.detach().clone() for name, value in network.named_parameters()}
        forward = stacked_forward(network, x.dim() - 1)
        center = torch.cat([value.flatten() for value in mean.values()]).requires_grad_()
        # softplus(-5) = 0.007: so narrow that the first draws are close to the trained network.
        raw_std = torch.full_like(center, -5.0).detach().requires_grad_()

        def negative_bound(batch: Tensor) -> Tensor:
            std = F.softplus(raw_std)
            drawn = center + std * torch.randn(n_draws, len(center), generator=rng)
            logits = forward(x[batch], unflatten(drawn, mean), n_draws)
            nll = loss(logits, targets[batch].expand(n_draws, *targets[batch].shape)).mean()
            ratio = (std.square() + center.square()) / prior_std**2
            kl = 0.5 * (ratio - 1 - 2 * (std / prior_std).log()).sum()
            return nll + kl / len(x)

        settings = training or Training(epochs=200, learning_rate=1e-2, patience=None)
        history = train([center, raw_std], negative_bound, len(x), settings, rng=rng, label="Variational inference")
        trained = {name: value[0] for name, value in unflatten(center.detach()[None], mean).items()}
        return cls(network, trained, F.softplus(raw_std).detach(), None, spec.space, spec.classes, tuple(history))


@dataclass(frozen=True, eq=False)
class SWAG(GaussianPosterior):
    """A Gaussian fitted to snapshots of the weights during further training (SWAG, Maddox et al. 2019)."""

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
        """Continue training from the weights of the model and take a snapshot after every epoch.

        Args:
            model: A trained network or a fitted `Classifier`.
            X: Training rows.
            y: Labels of the training rows.
            n_snapshots: Number of snapshots, >= 2; also the rank of the low-rank part of the covariance.
            training: Training settings, whose number of epochs is replaced by ``n_snapshots``; None: batches of 128
                rows with learning rate 1e-3.
            space: Space of the rows that a bare network reads.
            rng: Random numbers; None: a generator seeded with 0.
        """
        n_snapshots = check_int(n_snapshots, "'n_snapshots' of SWAG", 2)
        spec = model_spec(model, space)
        network = copy.deepcopy(spec.network).cpu().float()
        x, labels = (part.cpu() for part in spec.pair(X, y))
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
        weights = torch.stack(snapshots)
        center = weights.mean(dim=0)
        deviations = weights - center
        mean = {name: value[0] for name, value in unflatten(center[None], dict(network.named_parameters())).items()}
        # Half of the covariance is the diagonal, half the low-rank part, as in the paper.
        diagonal = (deviations.square().mean(dim=0) / 2).sqrt()
        factor = Factor(deviations.T / math.sqrt(2 * (n_snapshots - 1)))
        return cls(network, mean, diagonal, factor, spec.space, spec.classes)
