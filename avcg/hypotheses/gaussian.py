"""Distributions over the weights of a network: Gaussians, and posteriors from other libraries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from avcg.errors import SettingError
from avcg.hypotheses.base import check_count, seeded
from avcg.hypotheses.predictors import Stacked
from avcg.models.adapter import model_spec
from avcg.models.dropout_masks import output_layer
from avcg.space.base import Space


@dataclass(frozen=True, eq=False)
class Factor:
    """A root of the covariance of P parameters: a matrix, or a scaled Kronecker product of two small ones.

    Attributes:
        root: (P, R) root; with ``inner``, (C, C) eigenvectors over the outputs of a layer.
        inner: (W, W) eigenvectors over the inputs and the bias of the layer; None: ``root`` is the whole factor.
        scale: (C, W) standard deviations of the pairs of eigenvectors, with ``inner``.
        n_inputs: Number of inputs of the layer, with ``inner``; the rest of W is the bias.
    """

    root: Tensor
    inner: Tensor | None = None
    scale: Tensor | None = None
    n_inputs: int = 0

    @property
    def rank(self) -> int:
        """R, the number of standard normal numbers that a draw needs."""
        return self.root.shape[1] if self.scale is None else self.scale.numel()

    def spread(self, noise: Tensor) -> Tensor:
        """(n, P) deviations from the mean for (n, R) standard normal noise."""
        if self.inner is None or self.scale is None:
            return noise @ self.root.T
        deviations = self.root @ (noise.view(-1, *self.scale.shape) * self.scale) @ self.inner.T
        # All weights, then all biases: the order of the layer's parameters.
        weights, biases = deviations[..., : self.n_inputs], deviations[..., self.n_inputs :]
        return torch.cat([weights.flatten(1), biases.flatten(1)], dim=1)

    def covariance(self) -> Tensor:
        """The dense covariance matrix, (P, P). It needs memory for P² numbers."""
        root = self.spread(torch.eye(self.rank))
        return root.T @ root


@dataclass(frozen=True, eq=False)
class GaussianPosterior:
    """A Gaussian over some parameters of a network: mean + diagonal * noise + factor @ noise.

    Diagonal and full Laplace approximations, mean-field variational inference and SWAG all have this form.

    Attributes:
        network: The architecture, and the values of the parameters that do not vary.
        mean: Means of the parameters that vary, by name.
        diagonal: (P,) standard deviations of the parameters of ``mean``, flattened in order; None: zero.
        factor: (P, R) root of the rest of the covariance; None: zero.
        space: Space of the rows that the network reads; None: unknown.
        classes: Labels in the order of the predicted probabilities; None: unknown.
    """

    network: nn.Module
    mean: Mapping[str, Tensor]
    diagonal: Tensor | None = None
    factor: Factor | None = None
    space: Space | None = None
    classes: NDArray[Any] | None = None

    def sample(self, n: int, *, rng: torch.Generator | None = None) -> Stacked:
        """Draw n networks."""
        n = check_count(n, "sample")
        rng = seeded(rng)
        flat = torch.cat([value.flatten() for value in self.mean.values()]).cpu()
        drawn = flat.expand(n, -1)
        if self.diagonal is not None:
            drawn = drawn + torch.randn(n, len(flat), generator=rng) * self.diagonal
        if self.factor is not None:
            drawn = drawn + self.factor.spread(torch.randn(n, self.factor.rank, generator=rng))
        return Stacked(self.network, unflatten(drawn, self.mean))

    def deterministic(self) -> Stacked:
        """The network with the mean weights, as one hypothesis."""
        return Stacked(self.network, {name: value[None] for name, value in self.mean.items()})


def unflatten(vectors: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Parameters by name, (n, *shape), from (n, P) vectors.

    Args:
        vectors: (n, P) flattened parameters in the order of ``like``.
        like: Parameters whose names and shapes are used.
    """
    sizes = [value.numel() for value in like.values()]
    if sum(sizes) != vectors.shape[1]:
        raise SettingError(f"Each vector must have {sum(sizes)} numbers, one per parameter. Got {vectors.shape[1]}.")
    parts = vectors.split(sizes, dim=1)
    return {name: part.reshape(-1, *value.shape) for (name, value), part in zip(like.items(), parts, strict=True)}


@dataclass(frozen=True, eq=False)
class SampledWeights:
    """A posterior from another library: an object whose ``sample(n)`` returns n vectors of parameters.

    The objects of laplace-torch are examples. The vectors hold all parameters or those of the last layer. PyTorch's
    global random stream is seeded from ``rng`` for the draw and restored afterwards.

    Attributes:
        network: The architecture that the parameters belong to.
        source: The object with ``sample(n)``.
        space: Space of the rows that the network reads; None: unknown.
        classes: Labels in the order of the predicted probabilities; None: unknown.
    """

    network: nn.Module
    source: Any
    space: Space | None = None
    classes: NDArray[Any] | None = None

    @property
    def around_one_network(self) -> bool:
        """A posterior lies around one network."""
        return True

    def sample(self, n: int, *, rng: torch.Generator | None = None) -> Stacked:
        """Draw n networks."""
        check_count(n, "sample")
        if not callable(getattr(self.source, "sample", None)):
            raise SettingError(
                "The 'source' of SampledWeights must have a method sample(n). Got"
                f" {type(self.source).__name__} instead."
            )
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(torch.randint(2**31, (), generator=seeded(rng))))
            vectors = torch.as_tensor(self.source.sample(n)).detach()
        parameters: dict[str, Tensor] = dict(self.network.named_parameters())
        if sum(value.numel() for value in parameters.values()) != vectors.shape[1]:
            shape = model_spec(self.network, self.space).event_shape()
            prefix = f"{output_layer(self.network, torch.zeros(2, *shape))[0]}."
            parameters = {name: value for name, value in parameters.items() if name.startswith(prefix)}
        return Stacked(self.network, unflatten(vectors.cpu(), parameters))
