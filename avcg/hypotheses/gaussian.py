"""Distributions over the weights of a network: Gaussians, and posteriors of other libraries."""

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
    """A root of a covariance over P parameters: a matrix, or the product of a small one and a smaller one.

    Attributes:
        root: (P, R); with ``inner`` it is (C, C) over the outputs of a layer.
        inner: (W, W) over its inputs and bias; None: there is none.
        scale: (C, W) of each pair, with ``inner``.
        n_inputs: Of the layer, with ``inner``; the rest of W is the bias.
    """

    root: Tensor
    inner: Tensor | None = None
    scale: Tensor | None = None
    n_inputs: int = 0

    @property
    def rank(self) -> int:
        """R, how much noise a draw takes."""
        return self.root.shape[1] if self.scale is None else self.scale.numel()

    def spread(self, noise: Tensor) -> Tensor:
        """(n, R) standard normal noise to (n, P) deviations."""
        if self.inner is None or self.scale is None:
            return noise @ self.root.T
        both = self.root @ (noise.view(-1, *self.scale.shape) * self.scale) @ self.inner.T
        # All weights, then all biases: the order of the layer's own parameters.
        return torch.cat([both[..., : self.n_inputs].flatten(1), both[..., self.n_inputs :].flatten(1)], dim=1)

    def covariance(self) -> Tensor:
        """(P, P), for those who can afford it."""
        root = self.spread(torch.eye(self.rank))
        return root.T @ root


@dataclass(frozen=True, eq=False)
class GaussianPosterior:
    """Weights around a mean: mean + diagonal * noise + factor @ noise, over some parameters of a network.

    The form of a diagonal or full Laplace approximation, of mean-field variational inference and of SWAG alike.

    Attributes:
        network: The architecture, and the values of parameters not named.
        mean: By name, the parameters that vary.
        diagonal: (P,) standard deviations over all of ``mean``, flattened in order; None: none.
        factor: (P, R) a root of the rest of the covariance; None: none.
        space: What the predictors read.
        classes: The labels in the order of their probabilities.
    """

    network: nn.Module
    mean: Mapping[str, Tensor]
    diagonal: Tensor | None = None
    factor: Factor | None = None
    space: Space | None = None
    classes: NDArray[Any] | None = None

    def sample(self, n: int, *, rng: torch.Generator | None = None) -> Stacked:
        """N networks."""
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
        """The network at the mean."""
        return Stacked(self.network, {name: value[None] for name, value in self.mean.items()})


def unflatten(vectors: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """(n, P) vectors to parameters by name, (n, *shape).

    Args:
        vectors: In the order of ``like``.
        like: Whose names and shapes to follow.
    """
    sizes = [value.numel() for value in like.values()]
    if sum(sizes) != vectors.shape[1]:
        raise SettingError(f"Vectors of {vectors.shape[1]} numbers do not fill parameters of {sum(sizes)}.")
    parts = vectors.split(sizes, dim=1)
    return {name: part.reshape(-1, *value.shape) for (name, value), part in zip(like.items(), parts, strict=True)}


@dataclass(frozen=True, eq=False)
class SampledWeights:
    """A posterior of another library: anything whose ``sample(n)`` returns n vectors of parameters.

    laplace-torch's objects do: vectors of all parameters, or of the last layer. Their draws come from PyTorch's global
    stream, which is put back where it was.

    Attributes:
        network: The architecture they belong to.
        source: The object with ``sample(n)``.
        space: What the predictors read.
        classes: The labels in the order of their probabilities.
    """

    network: nn.Module
    source: Any
    space: Space | None = None
    classes: NDArray[Any] | None = None

    def sample(self, n: int, *, rng: torch.Generator | None = None) -> Stacked:
        """N networks."""
        check_count(n, "sample")
        if not callable(getattr(self.source, "sample", None)):
            raise SettingError(
                f"A source of weights needs a method sample(n). Got {type(self.source).__name__} instead."
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
