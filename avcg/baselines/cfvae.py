"""Variational autoencoders of rows: CF-VAE, which decodes another label, and what QUCE judges strangeness by."""

from __future__ import annotations

import torch
from torch import Tensor

from avcg.explainers.base import Explainer
from avcg.method.generator import Condition, Generator
from avcg.method.query import Query
from avcg.models.training import Training, train
from avcg.space.base import Space

_STEPS, _ROWS = 2000, 128
_NOISE = 0.25


def fit_vae(
    space: Space, x: Tensor, labels: Tensor, n_classes: int, rng: torch.Generator, device: torch.device
) -> Generator:
    """A conditional variational autoencoder q(z | x, y), p(x | z, y) with noise of variance 0.25.

    Args:
        space: Of the rows.
        x: (N, *event).
        labels: (N,) class positions; with one class it is a plain autoencoder.
        n_classes: C.
        rng: Of everything.
        device: Where it is trained, and stays.
    """
    pictures = x.dim() == 4
    generator = Generator(
        space,
        n_classes,
        decoder="latent",
        n_latent=min(16, max(1, x[0].numel() // 2)),
        encoder=(32, 64) if pictures else (128, 64),
        layers=(32, 64) if pictures else (64, 128),
        smooth=False,
        rng=rng,
    ).to(device)
    x, labels = x.to(device), labels.to(device)

    def loss(rows: Tensor) -> Tensor:
        rows = rows.to(device)
        error, divergence = vae_terms(generator, space, x[rows], labels[rows], rng)
        return (error / (2 * _NOISE) + divergence).mean()  # minus the evidence bound, but for a constant

    epochs = max(1, round(_STEPS * _ROWS / len(x)))
    settings = Training(epochs, min(_ROWS, len(x)), 1e-3, patience=None, clip=5.0)
    train(list(generator.parameters()), loss, len(x), settings, rng=rng, label="Training an autoencoder")
    return generator.requires_grad_(False).eval()


def vae_terms(
    generator: Generator, space: Space, x: Tensor, labels: Tensor, rng: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """(B,) the squared error of rows, summed over codes, and the divergence from the prior.

    Args:
        generator: As `fit_vae` makes it.
        space: What the rows may be.
        x: (B, *event).
        labels: (B,).
        rng: Of z; None: z is its mean.
    """
    device = next(generator.parameters()).device
    here = x.to(device)
    request = _condition(here, labels.to(device))
    posterior = generator.posterior(request)
    shape = (1, len(x), generator.n_latent)
    noise = torch.zeros(shape) if rng is None else torch.randn(shape, generator=rng)
    # A category is read as the shares that its logits stand for; nothing is held to the bounds of a request.
    back = space.relax(generator(request, posterior.sample(noise.to(device))).raw[0], here.detach())
    return (back - here).square().flatten(1).sum(dim=1).to(x.device), posterior.kl().to(x.device)


def _condition(x: Tensor, labels: Tensor) -> Condition:
    none = x.new_zeros(len(x))
    return Condition(x, labels, none, none)


class CFVAE(Explainer):
    """A conditional autoencoder (Sohn et al. 2015), asked for a row as if it had the other label.

    It never asks the predictor: the paper's CF-VAE. The paper does not say which label the encoder gets. Both networks
    are told the target, as in the paper's own generator: then z makes up for the wrong label, answers stay near the row
    and few are valid, which is what its tables show. Told the row's own label, the encoder would leave the class to the
    decoder, and nearly all would be: see `OwnLabelCFVAE`.
    """

    _own_label = False

    def _fit(self, x: Tensor, y: Tensor | None, rng: torch.Generator) -> None:
        labels = self.deployed_.decide(self.deployed_.probabilities(x)) if y is None else y
        self.vae_ = fit_vae(self.space_, x, labels, len(self.classes_), rng, self._torch_device())

    @torch.no_grad()
    def _candidates(self, query: Query) -> Tensor:
        device = self._torch_device()
        x, target = query.x.to(device), query.target.to(device)
        request = _condition(x, target)
        present = self.deployed_.decide(self.deployed_.probabilities(query.x)).to(device)
        posterior = self.vae_.posterior(_condition(x, present) if self._own_label else request)
        rng = torch.Generator().manual_seed(self.random_state)
        noise = torch.randn(query.n, 1, self.vae_.n_latent, generator=rng)
        noise[0] = 0.0
        raw = self.vae_(request, posterior.sample(noise.to(device))).raw.cpu()
        return query.space.finalize(raw, query.x)


class OwnLabelCFVAE(CFVAE):
    """The same with an encoder that is told the row's own label, and a decoder that is told the target."""

    _own_label = True
