"""Finite sets of weighted hypotheses: point masses and ensembles."""

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
    """A finite set of weighted hypotheses, such as retrains, an ensemble or a Rashomon set.

    Attributes:
        predictors: All hypotheses with their weights.
        space: Space of the rows that the hypotheses read; None: unknown.
        classes: Labels in the order of the predicted probabilities; None: unknown.
        base: The deployed model, which the hypotheses were built around; None: there is no such model.
    """

    predictors: Predictors
    space: Space | None = None
    classes: NDArray[Any] | None = None
    base: Predictors | None = None

    def __len__(self) -> int:
        return len(self.predictors)

    def sample(self, n: int, *, rng: torch.Generator | None = None) -> Predictors:
        """All members if there are at most n, otherwise n of them.

        The n members are drawn by weight without replacement, and then weigh the same.
        """
        n = check_count(n, "sample")
        weights = self.predictors.weights.cpu()
        if n >= int((weights > 0).sum()):
            return self.predictors
        chosen = torch.multinomial(weights, n, generator=seeded(rng))
        drawn = self.predictors.subset(chosen)
        drawn.weights = torch.full_like(drawn.weights, 1.0 / n)
        return drawn

    def split(self, n: int, *, rng: torch.Generator | None = None) -> tuple[FiniteSet, FiniteSet]:
        """Hold out n members at random, for a certificate from hypotheses that were not trained on.

        Returns:
            The remaining members, and the n held-out members. Weights keep their proportions within each part.
        """
        n = check_count(n, "split")
        if n >= len(self):
            raise SettingError(f"Holding out {n} of {len(self)} hypotheses leaves none to train on. Lower n.")
        order = torch.randperm(len(self), generator=seeded(rng))
        held_out, kept = order[:n].sort().values, order[n:].sort().values
        rest, test = (
            FiniteSet(self.predictors.subset(part), self.space, self.classes, self.base) for part in (kept, held_out)
        )
        return rest, test


class PointMass(FiniteSet):
    """A single predictor with probability one, which is what most explainers assume.

    Args:
        model: A network from encoded rows to logits, a fitted `Classifier`, or a `BlackBox`.
        space: Space of the rows that a bare network reads.
    """

    def __init__(self, model: Model | BlackBox, space: Space | None = None) -> None:
        if isinstance(model, BlackBox):
            super().__init__(BlackBoxPredictors([model]), model.space_, model.classes_, BlackBoxPredictors([model]))
            return
        spec = model_spec(model, space)
        predictor = Stacked(spec.network, {})
        super().__init__(predictor, spec.space, spec.classes, predictor)


class DeepEnsemble(FiniteSet):
    """Independently trained networks, of one or several architectures.

    Args:
        members: Networks or fitted classifiers over the same inputs and classes.
        space: Space of the rows that bare networks read.
    """

    def __init__(self, members: Sequence[Model], space: Space | None = None) -> None:
        if not members:
            raise SettingError("An ensemble needs at least one member. Got none.")
        specs = [model_spec(member, space) for member in members]
        for other in specs[1:]:
            check_same_reading(specs[0].space, other.space, specs[0].classes, other.classes)
        groups: dict[object, list[int]] = {}
        for i, spec in enumerate(specs):
            groups.setdefault(repr(spec.network) if _has_plain_layers(spec.network) else i, []).append(i)
        stacks = []
        for group in groups.values():
            networks = [specs[i].network for i in group]
            states = [{**dict(network.named_parameters()), **dict(network.named_buffers())} for network in networks]
            overrides = {name: torch.stack([state[name].detach() for state in states]) for name in states[0]}
            stacks.append(Stacked(networks[0], overrides))
        predictors: Predictors = stacks[0]
        if len(stacks) > 1:
            positions = torch.tensor([i for group in groups.values() for i in group])
            predictors = Joined(stacks).subset(positions.argsort())
        super().__init__(predictors, specs[0].space, specs[0].classes)


def _has_plain_layers(network: nn.Module) -> bool:
    """Whether a network consists of PyTorch's own layers only, so that its ``repr`` determines its architecture."""
    return all(
        type(layer).__module__.startswith("torch.nn.modules") and not layer._forward_hooks
        for layer in network.modules()
    )
