"""Variational autoencoders of rows, for CF-VAE, which decodes with another label, and the plausibility term of QUCE."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from avcg.errors import check_int, check_setting
from avcg.explainers.base import Explainer
from avcg.hypotheses.base import HypothesisDistribution
from avcg.method.generator import Condition, Generator
from avcg.method.query import Query
from avcg.models.adapter import Model
from avcg.models.training import Training, train
from avcg.schema.schema import Schema
from avcg.space.base import Space


@dataclass(frozen=True)
class AutoencoderConfig:
    """How a variational autoencoder of rows is built and trained.

    Attributes:
        n_latent: Largest size of z, which is at most half the number of codes.
        encoder: Hidden units of each layer of the encoder, for tables.
        decoder: Hidden units of each layer of the decoder, for tables.
        channels: Channels of both networks' convolutions, for images.
        noise_variance: Variance of the Gaussian likelihood of codes.
        steps: Number of training steps.
        batch_size: Number of rows in each step.
        learning_rate: Learning rate of Adam.
        clip: Largest norm of the gradient.
    """

    n_latent: int = 16
    encoder: tuple[int, ...] = (128, 64)
    decoder: tuple[int, ...] = (64, 128)
    channels: tuple[int, ...] = (32, 64)
    noise_variance: float = 0.25
    steps: int = 2000
    batch_size: int = 128
    learning_rate: float = 1e-3
    clip: float = 5.0

    def __post_init__(self) -> None:
        for name in ("n_latent", "steps", "batch_size"):
            check_int(getattr(self, name), f"'{name}' of AutoencoderConfig", 1)
        for name in ("noise_variance", "learning_rate", "clip"):
            check_setting(self, name, getattr(self, name) > 0, "> 0")


def fit_vae(
    space: Space,
    x: Tensor,
    labels: Tensor,
    n_classes: int,
    config: AutoencoderConfig,
    rng: torch.Generator,
    device: torch.device,
) -> Generator:
    """Train a conditional variational autoencoder q(z | x, y), p(x | z, y).

    Args:
        space: The space of the rows.
        x: (N, *event) encoded rows.
        labels: (N,) class positions.
        n_classes: C; with one class the autoencoder is unconditional.
        config: How the autoencoder is built and trained.
        rng: Random numbers.
        device: The device on which the autoencoder is trained and stays.

    Returns:
        A generator with a ``"latent"`` decoder, whose weights no longer have gradients.
    """
    images = x.dim() == 4
    generator = Generator(
        space,
        n_classes,
        decoder="latent",
        n_latent=min(config.n_latent, max(1, x[0].numel() // 2)),
        encoder=config.channels if images else config.encoder,
        layers=config.channels if images else config.decoder,
        smooth=False,
        rng=rng,
    ).to(device)
    x, labels = x.to(device), labels.to(device)

    def loss(rows: Tensor) -> Tensor:
        rows = rows.to(device)
        error, divergence = vae_terms(generator, space, x[rows], labels[rows], rng)
        return (error / (2 * config.noise_variance) + divergence).mean()  # the negative ELBO, up to a constant

    epochs = max(1, round(config.steps * config.batch_size / len(x)))
    batch = min(config.batch_size, len(x))
    training = Training(epochs, batch, config.learning_rate, patience=None, clip=config.clip)
    train(list(generator.parameters()), loss, len(x), training, rng=rng, label="Training an autoencoder")
    return generator.requires_grad_(False).eval()


def vae_terms(
    generator: Generator, space: Space, x: Tensor, labels: Tensor, rng: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """(B,) the squared error of decoded rows, summed over codes, and (B,) the KL divergence of z from the prior.

    Args:
        generator: An autoencoder trained by `fit_vae`.
        space: The space of the rows.
        x: (B, *event) encoded rows.
        labels: (B,) class positions.
        rng: Random numbers for z; None: z is its mean.
    """
    device = next(generator.parameters()).device
    on_device = x.to(device)
    condition = _condition(on_device, labels.to(device))
    posterior = generator.posterior(condition)
    shape = (1, len(x), generator.n_latent)
    noise = torch.zeros(shape) if rng is None else torch.randn(shape, generator=rng)
    # `relax` turns the logits of categories into probabilities, like the codes they are compared with.
    decoded = space.relax(generator(condition, posterior.sample(noise.to(device))).raw[0], on_device.detach())
    return (decoded - on_device).square().flatten(1).sum(dim=1).to(x.device), posterior.kl().to(x.device)


def _condition(x: Tensor, labels: Tensor) -> Condition:
    """The input of an autoencoder: (B, *event) rows and (B,) class positions."""
    zeros = x.new_zeros(len(x))  # a "latent" decoder reads neither constraints nor margins
    return Condition(x, labels, zeros, zeros, zeros)


class CFVAE(Explainer):
    """CF-VAE (Sohn et al. 2015): a conditional autoencoder that decodes a row with the target as its label.

    It does not use the predictor. The AVCG paper does not say which label the encoder gets. Here both networks get the
    target, as in the paper's own generator. Then z compensates for the wrong label, so that answers stay near the row
    and few are valid, as in the paper's tables. With the row's own label in the encoder, nearly all answers are valid;
    see `OwnLabelCFVAE`.

    Args:
        hypotheses: The distribution over plausible models.
        schema: What may change; None: the hypotheses' own schema.
        autoencoder: How the autoencoder is built and trained; None: the defaults.
        model: The deployed model; None: the one the hypotheses were made around, or their mean.
        threshold: Probability of the second of two classes from which the decision is for it; None: that by which the
            deployed model itself decides (`BlackBox.threshold`), or the most probable class.
        survival: Share of models that is promised to agree with an answer, in (0, 1).
        n_test: Number of hypotheses held out for certificates; None: an eighth of a finite set, or 50 draws.
        device: PyTorch device on which the autoencoder is trained.
        random_state: Seed of all random numbers.

    Attributes:
        vae_: The trained autoencoder.
    """

    _own_label = False

    def __init__(
        self,
        hypotheses: HypothesisDistribution,
        schema: Schema | None = None,
        *,
        autoencoder: AutoencoderConfig | None = None,
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
        self.autoencoder = autoencoder

    def _fit(self, x: Tensor, y: Tensor | None, rng: torch.Generator) -> None:
        labels = self.deployed_.decide(self.deployed_.probabilities(x)) if y is None else y
        config = self.autoencoder or AutoencoderConfig()
        self.vae_ = fit_vae(self.space_, x, labels, len(self.classes_), config, rng, self._torch_device())

    @torch.no_grad()
    def _candidates(self, query: Query) -> Tensor:
        device = self._torch_device()
        x = query.x.to(device)
        decoded_as = _condition(x, query.target.to(device))
        encoded_as = decoded_as
        if self._own_label:
            encoded_as = _condition(x, self.deployed_.decide(self.deployed_.probabilities(query.x)).to(device))
        rng = torch.Generator().manual_seed(self.random_state)
        noise = torch.randn(query.n, 1, self.vae_.n_latent, generator=rng)
        noise[0] = 0.0
        z = self.vae_.posterior(encoded_as).sample(noise.to(device))
        return query.space.finalize(self.vae_(decoded_as, z).raw.cpu(), query.x)


class OwnLabelCFVAE(CFVAE):
    """CF-VAE whose encoder gets the row's own label and whose decoder gets the target."""

    _own_label = True
