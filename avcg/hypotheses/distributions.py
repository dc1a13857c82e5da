"""Distributions over predictors: anything that can be sampled. A generator never learns how one holds its doubt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from avcg.errors import SettingError, enumerate_some, whole
from avcg.hypotheses.asked import Asked
from avcg.hypotheses.predictors import Joined, Predictors, Stacked
from avcg.models.adapter import Model, open_model
from avcg.models.black_box import BlackBox
from avcg.models.dropout_masks import output_layer
from avcg.space.base import Space
from avcg.space.tabular import TabularSpace


@runtime_checkable
class HypothesisDistribution(Protocol):
    """P(θ), a distribution over plausible predictors.

    Attributes:
        space: What the predictors read, or None if that is not known.
        classes: The labels in the order of their probabilities, or None.
    """

    @property
    def space(self) -> Space | None:
        """What the predictors read."""

    @property
    def classes(self) -> NDArray[Any] | None:
        """The labels."""

    def sample(self, n: int, *, generator: torch.Generator | None = None) -> Predictors:
        """Draw hypotheses.

        Args:
            n: How many, at most: a finite set has no more than it has.
            generator: On the CPU; None: seed 0.
        """


def check_count(n: int, what: str) -> int:
    """A number of draws, if it can be one."""
    return whole(n, f"'n' of {what}", 1)


def seeded(generator: torch.Generator | None) -> torch.Generator:
    """The generator given, or one with seed 0."""
    return torch.Generator().manual_seed(0) if generator is None else generator


def model_in_force(distribution: object) -> Predictors | None:
    """The model whose decisions people face: what hypotheses were made around, or a posterior's own centre."""
    base = getattr(distribution, "base", None)
    centre = getattr(distribution, "deterministic", None)
    return base if base is not None or centre is None else centre()


@dataclass(frozen=True, eq=False)
class FiniteSet:
    """A finite set of hypotheses with weights: retrains, ensembles, Rashomon sets.

    Attributes:
        predictors: All of them.
        space: What they read.
        classes: The labels in the order of their probabilities.
        base: The model in force, around which they were made; None: there is no one such.
    """

    predictors: Predictors
    space: Space | None = None
    classes: NDArray[Any] | None = None
    base: Predictors | None = None

    def __len__(self) -> int:
        return len(self.predictors)

    def sample(self, n: int, *, generator: torch.Generator | None = None) -> Predictors:
        """The whole set where n reaches it, else n different members, drawn by their weights and then alike."""
        n = check_count(n, "sample")
        weights = self.predictors.weights.cpu()
        if n >= int((weights > 0).sum()):
            return self.predictors
        chosen = torch.multinomial(weights, n, generator=seeded(generator))
        drawn = self.predictors.subset(chosen)
        drawn.weights = torch.full_like(drawn.weights, 1.0 / n)
        return drawn

    def split(self, n: int, *, generator: torch.Generator | None = None) -> tuple[FiniteSet, FiniteSet]:
        """Set n members aside, for a certificate that no training has seen.

        Returns:
            The rest, and the n set aside; both keep the members' weights.
        """
        n = check_count(n, "split")
        if n >= len(self):
            raise SettingError(f"Setting {n} of {len(self)} hypotheses aside leaves none to train on.")
        order = torch.randperm(len(self), generator=seeded(generator))
        apart, rest = order[:n].sort().values, order[n:].sort().values
        first, second = (
            FiniteSet(self.predictors.subset(part), self.space, self.classes, self.base) for part in (rest, apart)
        )
        return first, second


class PointMass(FiniteSet):
    """One predictor and no doubt: what most explainers assume.

    Args:
        model: A network from encoded rows to logits, a fitted `Classifier`, or a `BlackBox`.
        space: What a bare network reads.
    """

    def __init__(self, model: Model | BlackBox, space: Space | None = None) -> None:
        if isinstance(model, BlackBox):
            super().__init__(Asked([model]), model.space_, model.classes_, Asked([model]))
            return
        opened = open_model(model, space)
        alone = Stacked(opened.network, {})
        super().__init__(alone, opened.space, opened.classes, alone)


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
        for other in opened[1:]:
            check_same_reading(opened[0].space, other.space, opened[0].classes, other.classes)
        groups: dict[object, list[int]] = {}
        for i, each in enumerate(opened):
            groups.setdefault(repr(each.network) if _is_its_layers(each.network) else i, []).append(i)
        stacks = []
        for alike in groups.values():
            networks = [opened[i].network for i in alike]
            states = [{**dict(one.named_parameters()), **dict(one.named_buffers())} for one in networks]
            together = {name: torch.stack([state[name].detach() for state in states]) for name in states[0]}
            stacks.append(Stacked(networks[0], together))
        predictors: Predictors = stacks[0]
        if len(stacks) > 1:
            where = torch.tensor([i for alike in groups.values() for i in alike])
            predictors = Joined(stacks).subset(where.argsort())
        super().__init__(predictors, opened[0].space, opened[0].classes)


def _is_its_layers(network: nn.Module) -> bool:
    """Whether a network is made of PyTorch's own layers alone: then its text says all but its numbers."""
    return all(
        type(layer).__module__.startswith("torch.nn.modules") and not layer._forward_hooks
        for layer in network.modules()
    )


def check_same_reading(
    one: Space | None, other: Space | None, classes: NDArray[Any] | None, others: NDArray[Any] | None
) -> None:
    """Refuse predictors that read rows differently or speak of other classes.

    Raises:
        SettingError: With the column or the classes that differ.
    """
    if classes is not None and others is not None and not np.array_equal(classes, others):
        raise SettingError(
            f"Hypotheses must speak of the same classes. Got {enumerate_some(classes.tolist())} and"
            f" {enumerate_some(others.tolist())}."
        )
    if isinstance(one, TabularSpace) and isinstance(other, TabularSpace) and one is not other:
        difference = one.encoding.difference(other.encoding)
        if difference is not None:
            raise SettingError(
                f"Hypotheses must read one encoding, and these differ in column {difference!r}. Give them one space (of"
                " given, BlackBox, from_sklearn), fit them with the same schema on the same rows, or use retrains."
            )


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

    def sample(self, n: int, *, generator: torch.Generator | None = None) -> Stacked:
        """N networks."""
        n = check_count(n, "sample")
        generator = seeded(generator)
        flat = torch.cat([value.flatten() for value in self.mean.values()]).cpu()
        drawn = flat.expand(n, -1)
        if self.diagonal is not None:
            drawn = drawn + torch.randn(n, len(flat), generator=generator) * self.diagonal
        if self.factor is not None:
            drawn = drawn + self.factor.spread(torch.randn(n, self.factor.rank, generator=generator))
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
        parameters: dict[str, Tensor] = dict(self.network.named_parameters())
        if sum(value.numel() for value in parameters.values()) != vectors.shape[1]:
            shape = open_model(self.network, self.space).event_shape()
            prefix = f"{output_layer(self.network, torch.zeros(2, *shape))[0]}."
            parameters = {name: value for name, value in parameters.items() if name.startswith(prefix)}
        return Stacked(self.network, unflatten(vectors.cpu(), parameters))


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
        shares = [1.0] * len(self.components) if self.shares is None else [float(share) for share in self.shares]
        if len(shares) != len(self.components) or not all(0 < share < float("inf") for share in shares):
            raise SettingError(f"A mixture needs one positive share per component. Got {self.shares!r} instead.")
        object.__setattr__(self, "shares", shares)
        for part in self.components[1:]:
            check_same_reading(self.components[0].space, part.space, self.components[0].classes, part.classes)

    @property
    def space(self) -> Space | None:
        """What the components read."""
        return next((part.space for part in self.components if part.space is not None), None)

    @property
    def classes(self) -> NDArray[Any] | None:
        """The labels in the order of their probabilities."""
        return next((part.classes for part in self.components if part.classes is not None), None)

    @property
    def base(self) -> Predictors | None:
        """The model in force, of the first component that knows one."""
        return next((base for part in self.components if (base := model_in_force(part)) is not None), None)

    def sample(self, n: int, *, generator: torch.Generator | None = None) -> Predictors:
        """Draws of every component in proportion to its share, with weights that make up for rounding.

        With fewer draws than components, components are drawn too.
        """
        n = check_count(n, "sample")
        generator = seeded(generator)
        shares = torch.tensor(self.shares)
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
