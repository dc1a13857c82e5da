"""The paper's two networks: the encoder q_ψ(z | x, y') and the decoder g_φ(x, y', z)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  its usual name

from avcg.errors import SettingError
from avcg.models.networks import cnn, conv_painter, conv_translator, mlp
from avcg.space.base import Space
from avcg.space.constraints import REACH

Decoder = Literal["latent", "full", "residual"]


@dataclass(frozen=True, eq=False)
class DiagonalNormal:
    """A normal distribution with a diagonal covariance, for each of B rows.

    Attributes:
        mean: (B, L) means.
        log_variance: (B, L) logarithms of the variances.

    >>> DiagonalNormal(torch.zeros(1, 3), torch.zeros(1, 3)).kl()
    tensor([0.])
    """

    mean: Tensor
    log_variance: Tensor

    def sample(self, noise: Tensor) -> Tensor:
        """The reparameterised z = mean + exp(log_variance / 2) * noise, differentiable in mean and log variance.

        Args:
            noise: The paper's κ, standard normal, (K, B, L) or broadcastable to it.
        """
        return self.mean + (0.5 * self.log_variance).exp() * noise

    def kl(self) -> Tensor:
        """(B,) the KL divergence from the standard normal prior."""
        return 0.5 * (self.mean.square() + self.log_variance.exp() - 1.0 - self.log_variance).sum(dim=-1)


@dataclass(frozen=True, eq=False)
class Condition:
    """The input of a generator, for B rows.

    Attributes:
        x: (B, *event) the factuals.
        target: (B,) positions of the target classes.
        constraint_features: (B, ...) what each row may change, by `Space.constraint_features`.
        margin: (B,) log-odds of the target to reach.
        typicality: (B,) how typical answers are to be, from 0, the nearest, to 1, like the people who were accepted.
    """

    x: Tensor
    target: Tensor
    constraint_features: Tensor
    margin: Tensor
    typicality: Tensor


@dataclass(frozen=True, eq=False)
class Proposal:
    """The output of a decoder, before constraints.

    Attributes:
        raw: (K, B, *event) output as `Space.relax` takes it.
        gates: (K, B, n) log-odds that each number moves at all; None: there are no gates, and every number may move.
    """

    raw: Tensor
    gates: Tensor | None


class Generator(nn.Module):
    """The encoder and the decoder over one space.

    Args:
        space: The space of the rows it answers.
        n_classes: C, the number of classes.
        decoder: Kind of decoder. ``"latent"`` reads only z and y', as the paper's tables imply. ``"full"`` reads x
            too. ``"residual"`` adds a change to x, with a gate for every number, and starts from the categories of x.
        n_latent: L, the size of z.
        encoder: Units of the encoder's hidden layers; for images, channels of its convolutions.
        layers: Units of the decoder's hidden layers; for images, channels of its convolutions.
        smooth: Whether perceptrons use layer normalisation and SiLU instead of ReLU.
        stay_log_odds: Log-odds by which an untrained residual decoder prefers the category that a row has.
        margin_scale: Factor on the margins that the networks read, which makes them about as large as codes.
        reach: Largest room for a number, in codes, that the networks can tell from unlimited room.
        rng: Random numbers for the first weights; None: a generator seeded with 0.
    """

    def __init__(
        self,
        space: Space,
        n_classes: int,
        *,
        decoder: Decoder = "residual",
        n_latent: int = 8,
        encoder: Sequence[int] = (128,),
        layers: Sequence[int] = (256, 256, 256),
        smooth: bool = True,
        stay_log_odds: float = 2.0,
        margin_scale: float = 0.3,
        reach: float = REACH,
        rng: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if decoder not in ("latent", "full", "residual"):
            raise SettingError(f"The 'decoder' must be 'latent', 'full' or 'residual'. Got {decoder!r} instead.")
        self.kind, self.n_classes, self.n_latent = decoder, n_classes, n_latent
        self.margin_scale, self.reach = margin_scale, reach
        self.event_shape = tuple(space.event_shape)
        self.n_gates = space.n_gates if decoder == "residual" else 0
        self.anchor: Tensor
        self.register_buffer("anchor", torch.where(space.is_logit, stay_log_odds, 1.0))
        n_features = 0
        if decoder != "latent":  # the constraint features, the margin and the typicality
            n_features = space.constraint_features(torch.zeros(1, *space.event_shape), reach).shape[1] + 2
        if len(self.event_shape) == 3:
            self.encoder, self.decoder = self._convolutions(n_features, encoder, layers, rng)
        else:
            self.encoder, self.decoder = self._perceptrons(n_features, encoder, layers, smooth, rng)

    def _perceptrons(
        self,
        n_features: int,
        encoder: Sequence[int],
        layers: Sequence[int],
        smooth: bool,
        rng: torch.Generator | None,
    ) -> tuple[nn.Module, nn.Module]:
        width = math.prod(self.event_shape)
        n_inputs = width + self.n_classes + n_features
        into = self.n_latent + (self.n_classes if self.kind == "latent" else n_inputs)
        head = mlp(into, width + self.n_gates, layers, smooth=smooth, rng=rng)
        with torch.no_grad():  # an untrained gate is open with probability 0.5, for increases and decreases alike
            list(head.parameters())[-1].zero_()
        return mlp(n_inputs, 2 * self.n_latent, encoder, smooth=smooth, rng=rng), head

    def _convolutions(
        self, n_features: int, encoder: Sequence[int], layers: Sequence[int], rng: torch.Generator | None
    ) -> tuple[nn.Module, nn.Module]:
        depth, height, width = self.event_shape
        shape = (depth + self.n_classes + n_features, height, width)
        encoding = cnn(shape, 2 * self.n_latent, encoder, rng=rng)
        if self.kind == "latent":
            size = (depth, height, width)
            return encoding, conv_painter(self.n_latent + self.n_classes, size, layers, rng=rng)
        return encoding, conv_translator((shape[0] + self.n_latent, height, width), depth, layers, rng=rng)

    def posterior(self, condition: Condition) -> DiagonalNormal:
        """The posterior q_ψ(z | x, y')."""
        mean, log_variance = self.encoder(self._inputs(condition)).chunk(2, dim=-1)
        return DiagonalNormal(mean, log_variance.clamp(-10.0, 5.0))

    def forward(self, condition: Condition, z: Tensor) -> Proposal:
        """The decoder's proposal g_φ(x, y', z).

        Args:
            condition: B rows.
            z: (K, B, L) latents.
        """
        x, count = condition.x, len(z)
        target = F.one_hot(condition.target, self.n_classes).to(x.dtype)
        if self.kind == "latent":
            inputs = torch.cat([z, target.expand(count, -1, -1)], dim=-1).flatten(0, 1)
        else:
            inputs = self._inputs(condition)
            maps = z[(..., *[None] * (x.dim() - 2))].expand(*z.shape, *x.shape[2:])
            inputs = torch.cat([inputs.expand(count, *inputs.shape), maps], dim=2).flatten(0, 1)
        return self._proposal(x, self.decoder(inputs).unflatten(0, (count, x.shape[0])))

    def propose(self, condition: Condition, noise: Tensor) -> Proposal:
        """One proposal for each row, like `posterior`, `sample` and `forward` with K = 1, for export as one graph.

        Args:
            condition: B rows.
            noise: (B, L) standard normal noise.

        Returns:
            A proposal whose tensors have no axis K.
        """
        inputs = self._inputs(condition)
        mean, log_variance = self.encoder(inputs).chunk(2, dim=-1)
        z = DiagonalNormal(mean, log_variance.clamp(-10.0, 5.0)).sample(noise)
        if self.kind == "latent":
            inputs, z = z, F.one_hot(condition.target, self.n_classes).to(z.dtype)
        elif condition.x.dim() == 4:
            z = z[..., None, None].expand(*z.shape, *condition.x.shape[2:])
        return self._proposal(condition.x, self.decoder(torch.cat([inputs, z], dim=1)))

    def _proposal(self, x: Tensor, out: Tensor) -> Proposal:
        if not self.n_gates:
            return Proposal(out if self.kind != "residual" else self.anchor * x + out, None)
        change, gates = out.split([out.shape[-1] - self.n_gates, self.n_gates], dim=-1)
        return Proposal(self.anchor * x + change, gates)

    def _inputs(self, condition: Condition) -> Tensor:
        """(B, codes) or (B, maps, H, W): the input of both networks, except z."""
        x = condition.x
        parts = [F.one_hot(condition.target, self.n_classes).to(x.dtype)]
        if self.kind != "latent":
            parts += [
                self.margin_scale * condition.margin.to(x.dtype)[:, None],
                condition.typicality.to(x.dtype)[:, None],
            ]
        if x.dim() == 4:
            parts = [part[..., None, None].expand(*part.shape, *x.shape[2:]) for part in parts]
        features = [] if self.kind == "latent" else [condition.constraint_features.to(x.dtype)]
        return torch.cat([x, *parts, *features], dim=1)
