"""Distributions over predictors: anything that can be sampled. A generator never learns how one holds its doubt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from avcg.errors import SettingError
from avcg.hypotheses.predictors import Joined, Predictors, Stacked
from avcg.models.opened import Model, open_model
from avcg.space import Space


@runtime_checkable
class HypothesisDistribution(Protocol):
    """P(θ), a distribution over plausible predictors.

    Attributes:
        space: What the predictors read, or None if that is not known.
    """

    space: Space | None

    def sample(self, n: int, *, generator: torch.Generator | None = None) -> Predictors:
        """Draw hypotheses.

        Args:
            n: How many, at most: a finite set has no more than it has.
            generator: On the CPU; None: seed 0.
        """


def check_count(n: int, what: str) -> None:
    """Refuse a number of draws that cannot be."""
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise SettingError(f"The 'n' of {what} must be a whole number >= 1. Got {n!r} instead.")


def seeded(generator: torch.Generator | None) -> torch.Generator:
    """The generator given, or one with seed 0."""
    return torch.Generator().manual_seed(0) if generator is None else generator


@dataclass(frozen=True, eq=False)
class FiniteSet:
    """A finite set of hypotheses with weights: retrains, ensembles, Rashomon sets.

    Attributes:
        predictors: All of them.
        space: What they read.
    """

    predictors: Predictors
    space: Space | None = None

    def __len__(self) -> int:
        return len(self.predictors)

    def sample(self, n: int, *, generator: torch.Generator | None = None) -> Predictors:
        """The whole set where n reaches it, else n different members at random."""
        check_count(n, "sample")
        if n >= len(self):
            return self.predictors
        return self.predictors.subset(torch.randperm(len(self), generator=seeded(generator))[:n])

    def split(self, n: int, *, generator: torch.Generator | None = None) -> tuple[FiniteSet, FiniteSet]:
        """Set n members aside, for a certificate that no training has seen.

        Returns:
            The rest, and the n set aside.
        """
        check_count(n, "split")
        if n >= len(self):
            raise SettingError(f"Setting {n} of {len(self)} hypotheses aside leaves none to train on.")
        order = torch.randperm(len(self), generator=seeded(generator))
        apart, rest = order[:n].sort().values, order[n:].sort().values
        return FiniteSet(self.predictors.subset(rest), self.space), FiniteSet(self.predictors.subset(apart), self.space)


class PointMass(FiniteSet):
    """One predictor and no doubt: what most explainers assume.

    Args:
        model: A network from encoded rows to logits, or a fitted `Classifier`.
        space: What a bare network reads.
    """

    def __init__(self, model: Model, space: Space | None = None) -> None:
        opened = open_model(model, space)
        super().__init__(Stacked(opened.network, {}), opened.space)


class DeepEnsemble(FiniteSet):
    """Networks trained apart, of one architecture or several.

    Args:
        members: Networks or fitted classifiers over the same inputs and classes.
        space: What bare networks read.
    """

    def __init__(self, members: Sequence[Model], space: Space | None = None) -> None:
        if not members:
            raise SettingError("An ensemble needs at least one member. Got none.")
        opened = [open_model(member, space) for member in members]
        groups: dict[str, list[nn.Module]] = {}
        for each in opened:
            groups.setdefault(_architecture(each.network), []).append(each.network)
        stacks = []
        for alike in groups.values():
            states = [dict(member.state_dict()) for member in alike]
            stacks.append(Stacked(alike[0], {name: torch.stack([s[name] for s in states]) for name in states[0]}))
        super().__init__(stacks[0] if len(stacks) == 1 else Joined(stacks), opened[0].space)


def _architecture(network: nn.Module) -> str:
    """Two networks with the same text differ in their numbers alone."""
    shapes = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    return f"{network!r} {shapes}"


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
    """

    network: nn.Module
    mean: Mapping[str, Tensor]
    diagonal: Tensor | None = None
    factor: Tensor | None = None
    space: Space | None = None

    def sample(self, n: int, *, generator: torch.Generator | None = None) -> Stacked:
        """N networks."""
        check_count(n, "sample")
        generator = seeded(generator)
        flat = torch.cat([value.flatten() for value in self.mean.values()]).cpu()
        drawn = flat.expand(n, -1)
        if self.diagonal is not None:
            drawn = drawn + torch.randn(n, len(flat), generator=generator) * self.diagonal
        if self.factor is not None:
            drawn = drawn + torch.randn(n, self.factor.shape[1], generator=generator) @ self.factor.T
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
    """

    network: nn.Module
    source: Any
    space: Space | None = None

    def sample(self, n: int, *, generator: torch.Generator | None = None) -> Stacked:
        """N networks."""
        check_count(n, "sample")
        if not callable(getattr(self.source, "sample", None)):
            raise SettingError(
                f"A source of weights needs a method sample(n). Got {type(self.source).__name__} instead."
            )
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(torch.randint(2**31, (), generator=seeded(generator))))
            vectors = torch.as_tensor(self.source.sample(n)).detach()
        parameters = dict(self.network.named_parameters())
        last = {name: value for name, value in parameters.items() if name.startswith(last_linear(self.network)[0])}
        whole = sum(value.numel() for value in parameters.values()) == vectors.shape[1]
        return Stacked(self.network, unflatten(vectors, parameters if whole else last))


def last_linear(network: nn.Module) -> tuple[str, nn.Linear]:
    """The last linear layer and the prefix of its parameters."""
    found = [(name, layer) for name, layer in network.named_modules() if isinstance(layer, nn.Linear)]
    if not found:
        raise SettingError("The network has no linear layer, so it has no last one.")
    name, layer = found[-1]
    return f"{name}." if name else "", layer


@dataclass(frozen=True, eq=False)
class Mixture:
    """Several distributions at once, each with a share.

    Attributes:
        components: Of any kind, over the same inputs and classes.
        shares: Positive; None: all alike.
    """

    components: Sequence[HypothesisDistribution]
    shares: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if not self.components:
            raise SettingError("A mixture needs at least one component. Got none.")
        if self.shares is not None and (
            len(self.shares) != len(self.components) or not all(0 < share < float("inf") for share in self.shares)
        ):
            raise SettingError(f"A mixture needs one positive share per component. Got {self.shares!r} instead.")

    @property
    def space(self) -> Space | None:
        """What the components read."""
        return next((part.space for part in self.components if part.space is not None), None)

    def sample(self, n: int, *, generator: torch.Generator | None = None) -> Predictors:
        """Draws of every component in proportion to its share, with weights that make up for rounding.

        With fewer draws than components, components are drawn too.
        """
        check_count(n, "sample")
        generator = seeded(generator)
        shares = torch.tensor(self.shares or [1.0] * len(self.components))
        shares = shares / shares.sum()
        if n < len(self.components):
            counts = torch.bincount(
                torch.multinomial(shares, n, replacement=True, generator=generator), minlength=len(shares)
            )
            shares = counts / counts.sum()
        else:
            counts = (shares * n).floor().long().clamp(min=1)
            # What rounding left over goes to those it took most from, and comes from those it gave most to.
            while int(counts.sum()) != n:
                lacking = shares * n - counts
                step = 1 if int(counts.sum()) < n else -1
                candidates = torch.where(counts + step >= 1, step * lacking, -torch.inf)
                counts[int(candidates.argmax())] += step
        drawn = [
            (part.sample(int(count), generator=generator), float(share))
            for part, count, share in zip(self.components, counts, shares, strict=True)
            if count
        ]
        return Joined([part for part, _ in drawn], [share for _, share in drawn])
