"""The paper's two networks: an encoder q_ψ(z | x, y') and a decoder g_φ(x, y', z)."""

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

Decoder = Literal["latent", "full", "residual"]

# A residual decoder starts near the factual: this is how much likelier its own category is than another at first.
STAY = 2.0


# Margins are told in units like those of the other codes.
_MARGIN_SCALE = 0.3


@dataclass(frozen=True, eq=False)
class DiagonalNormal:
    """A normal distribution without correlations.

    Attributes:
        mean: (B, L).
        log_variance: (B, L).

    >>> DiagonalNormal(torch.zeros(1, 3), torch.zeros(1, 3)).kl()
    tensor([0.])
    """

    mean: Tensor
    log_variance: Tensor

    def sample(self, noise: Tensor) -> Tensor:
        """The reparameterised z = mean + exp(log_variance / 2) * noise, differentiable in both.

        Args:
            noise: The paper's κ, standard normal, (K, B, L) or broadcastable to it.
        """
        return self.mean + (0.5 * self.log_variance).exp() * noise

    def kl(self) -> Tensor:
        """(B,) the divergence from the standard normal prior, per row."""
        return 0.5 * (self.mean.square() + self.log_variance.exp() - 1.0 - self.log_variance).sum(dim=-1)


@dataclass(frozen=True, eq=False)
class Condition:
    """What a generator is asked, for B rows.

    Attributes:
        x: (B, *event) the factuals.
        target: (B,) the wanted class positions.
        leeway: (B, ...) what each row may change, by `Space.leeway`.
        margin: (B,) log-odds to reach beyond the line of the decision.
    """

    x: Tensor
    target: Tensor
    constraint_features: Tensor
    margin: Tensor


@dataclass(frozen=True, eq=False)
class Proposal:
    """What a decoder puts out, before constraints.

    Attributes:
        raw: (K, B, *event) as `Space.relax` takes it.
        gates: (K, B, n) log-odds that each number moves at all; None: all may.
    """

    raw: Tensor
    gates: Tensor | None


class Generator(nn.Module):
    """Encoder and decoder over one space.

    Args:
        space: Whose rows it answers.
        n_classes: C.
        decoder: ``"latent"`` sees z and y' only, as the paper's tables imply; ``"full"`` sees x too; ``"residual"``
            adds a change to x, with a gate for every number and categories that start where they are.
        n_latent: L.
        encoder: Units of the encoder's hidden layers; channels of its convolutions for images.
        layers: Likewise of the decoder.
        smooth: Whether perceptrons have normalised, smooth hidden layers instead of ReLU.
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
        rng: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if decoder not in ("latent", "full", "residual"):
            raise SettingError(f"The 'decoder' must be 'latent', 'full' or 'residual'. Got {decoder!r} instead.")
        self.kind, self.n_classes, self.n_latent = decoder, n_classes, n_latent
        self.event_shape = tuple(space.event_shape)
        self.n_gates = space.n_gates if decoder == "residual" else 0
        self.anchor: Tensor
        self.register_buffer("anchor", torch.where(space.is_logit, STAY, 1.0))
        constraint_features = (
            0 if decoder == "latent" else space.constraint_features(torch.zeros(1, *space.event_shape)).shape[1] + 1
        )
        if len(self.event_shape) == 3:
            self.encoder, self.decoder = self._convolutions(constraint_features, encoder, layers, rng)
        else:
            self.encoder, self.decoder = self._perceptrons(constraint_features, encoder, layers, smooth, rng)

    def _perceptrons(
        self,
        constraint_features: int,
        encoder: Sequence[int],
        layers: Sequence[int],
        smooth: bool,
        rng: torch.Generator | None,
    ) -> tuple[nn.Module, nn.Module]:
        width = math.prod(self.event_shape)
        seen = width + self.n_classes + constraint_features
        into = self.n_latent + (self.n_classes if self.kind == "latent" else seen)
        head = mlp(into, width + self.n_gates, layers, smooth=smooth, rng=rng)
        with torch.no_grad():  # at first every number moves in one answer of two, as often up as down
            list(head.parameters())[-1].zero_()
        return mlp(seen, 2 * self.n_latent, encoder, smooth=smooth, rng=rng), head

    def _convolutions(
        self, constraint_features: int, encoder: Sequence[int], layers: Sequence[int], rng: torch.Generator | None
    ) -> tuple[nn.Module, nn.Module]:
        depth, height, width = self.event_shape
        seen = (depth + self.n_classes + constraint_features, height, width)
        first = cnn(seen, 2 * self.n_latent, encoder, rng=rng)
        if self.kind == "latent":
            size = (depth, height, width)
            return first, conv_painter(self.n_latent + self.n_classes, size, layers, rng=rng)
        return first, conv_translator((seen[0] + self.n_latent, height, width), depth, layers, rng=rng)

    def posterior(self, request: Condition) -> DiagonalNormal:
        """q_ψ(z | x, y')."""
        mean, log_variance = self.encoder(self._conditions(request)).chunk(2, dim=-1)
        return DiagonalNormal(mean, log_variance.clamp(-10.0, 5.0))

    def forward(self, request: Condition, z: Tensor) -> Proposal:
        """g_φ(x, y', z).

        Args:
            request: Of B rows.
            z: (K, B, L).
        """
        x, count = request.x, len(z)
        wanted = F.one_hot(request.target, self.n_classes).to(x.dtype)
        if self.kind == "latent":
            seen = torch.cat([z, wanted.expand(count, -1, -1)], dim=-1).flatten(0, 1)
        else:
            conditions = self._conditions(request)
            maps = z[(..., *[None] * (x.dim() - 2))].expand(*z.shape, *x.shape[2:])
            seen = torch.cat([conditions.expand(count, *conditions.shape), maps], dim=2).flatten(0, 1)
        return self._proposal(x, self.decoder(seen).unflatten(0, (count, x.shape[0])))

    def propose(self, request: Condition, noise: Tensor) -> Proposal:
        """One answer a row, encoder and decoder in one go; the same as `posterior`, `sample` and `forward` with K = 1.

        Args:
            request: Of B rows.
            noise: (B, L).

        Returns:
            Without the axis K.
        """
        conditions = self._conditions(request)
        mean, log_variance = self.encoder(conditions).chunk(2, dim=-1)
        z = DiagonalNormal(mean, log_variance.clamp(-10.0, 5.0)).sample(noise)
        if self.kind == "latent":
            conditions, z = z, F.one_hot(request.target, self.n_classes).to(z.dtype)
        elif request.x.dim() == 4:
            z = z[..., None, None].expand(*z.shape, *request.x.shape[2:])
        return self._proposal(request.x, self.decoder(torch.cat([conditions, z], dim=1)))

    def _proposal(self, x: Tensor, out: Tensor) -> Proposal:
        if not self.n_gates:
            return Proposal(out if self.kind != "residual" else self.anchor * x + out, None)
        change, gates = out.split([out.shape[-1] - self.n_gates, self.n_gates], dim=-1)
        return Proposal(self.anchor * x + change, gates)

    def _conditions(self, request: Condition) -> Tensor:
        """All that is known before z, (B, codes) or (B, maps, H, W)."""
        x = request.x
        parts = [F.one_hot(request.target, self.n_classes).to(x.dtype)]
        if self.kind != "latent":
            parts += [_MARGIN_SCALE * request.margin.to(x.dtype)[:, None]]
        if x.dim() == 4:
            parts = [part[..., None, None].expand(*part.shape, *x.shape[2:]) for part in parts]
        constraint_features = [] if self.kind == "latent" else [request.constraint_features.to(x.dtype)]
        return torch.cat([x, *parts, *constraint_features], dim=1)
