"""Finite sets of hypotheses with weights: point masses, ensembles, retrains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from avcg.errors import SettingError
from avcg.hypotheses.base import check_count, check_same_reading, seeded
from avcg.hypotheses.black_box import BlackBoxPredictors
from avcg.hypotheses.predictors import Joined, Predictors, Stacked
from avcg.models.adapter import Model, model_spec
from avcg.models.black_box import BlackBox
from avcg.space.base import Space


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

    def sample(self, n: int, *, rng: torch.Generator | None = None) -> Predictors:
        """The whole set where n reaches it, else n different members, drawn by their weights and then alike."""
        n = check_count(n, "sample")
        weights = self.predictors.weights.cpu()
        if n >= int((weights > 0).sum()):
            return self.predictors
        chosen = torch.multinomial(weights, n, generator=seeded(rng))
        drawn = self.predictors.subset(chosen)
        drawn.weights = torch.full_like(drawn.weights, 1.0 / n)
        return drawn

    def split(self, n: int, *, rng: torch.Generator | None = None) -> tuple[FiniteSet, FiniteSet]:
        """Set n members aside, for a certificate that no training has seen.

        Returns:
            The rest, and the n set aside; both keep the members' weights.
        """
        n = check_count(n, "split")
        if n >= len(self):
            raise SettingError(f"Setting {n} of {len(self)} hypotheses aside leaves none to train on.")
        order = torch.randperm(len(self), generator=seeded(rng))
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
            super().__init__(BlackBoxPredictors([model]), model.space_, model.classes_, BlackBoxPredictors([model]))
            return
        opened = model_spec(model, space)
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
        opened = [model_spec(member, space) for member in members]
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
