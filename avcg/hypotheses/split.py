"""Who teaches, who tunes and who certifies: hypotheses are parted before anything is trained."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from avcg.errors import SettingError, whole
from avcg.hypotheses.base import HypothesisDistribution, model_in_force, seeded
from avcg.hypotheses.black_box import Asked
from avcg.hypotheses.finite import FiniteSet
from avcg.hypotheses.mixture import Mixture
from avcg.hypotheses.predictors import Joined, Predictors, Remote
from avcg.space.tabular import TabularSpace

# Of a finite set, one member in so many is set aside for certificates, and as many for tuning.
_ONE_IN = 4
# Draws from a distribution that never runs out.
_FRESH_DRAWS = 50


@dataclass(frozen=True, eq=False)
class Roles:
    """Hypotheses by what they are for; no two parts share a member of a finite set.

    Attributes:
        teachers: What is trained against.
        tuning: What a margin is chosen by, on rows that were not trained on. Of a set of fewer than four, or where
            nothing is tuned, the teachers.
        fresh: What certificates ask, and nothing else does; None where the set has a single member.
        in_force: The model whose decision counts; the teachers' mean where there is no such model.
    """

    teachers: HypothesisDistribution
    tuning: Predictors
    fresh: Predictors | None
    in_force: Predictors

    @classmethod
    def of(
        cls,
        hypotheses: HypothesisDistribution,
        generator: torch.Generator | None = None,
        *,
        in_force: Predictors | None = None,
        n_fresh: int | None = None,
        n_teachers: int = 50,
        tune: bool = True,
    ) -> Roles:
        """Part a distribution.

        Args:
            hypotheses: Of any kind. A finite set is split; anything else is drawn from anew for each part.
            generator: None: seed 0.
            in_force: The model whose decision counts; None: the one the hypotheses were made around, if any.
            n_fresh: Hypotheses for certificates; None: a quarter of a finite set, or 50 draws.
            n_teachers: Draws that stand for the teachers' mean where there is no model in force.
            tune: Whether some of a finite set are kept from the teachers to tune by; else all but the fresh teach.
        """
        generator = seeded(generator)
        if n_fresh is not None:
            n_fresh = whole(n_fresh, "'n_fresh'", 0)
        in_force = model_in_force(hypotheses) if in_force is None else in_force
        if isinstance(hypotheses, Mixture):
            return _mixed(hypotheses, generator, in_force, n_fresh, n_teachers, tune)
        teachers: HypothesisDistribution
        if isinstance(hypotheses, FiniteSet):
            teachers, tuning, fresh = _split(hypotheses, in_force, generator, n_fresh, tune)
        else:
            teachers, tuning = hypotheses, hypotheses.sample(_FRESH_DRAWS, generator=generator)
            count = _FRESH_DRAWS if n_fresh is None else n_fresh
            fresh = hypotheses.sample(count, generator=generator) if count else None
        mean = teachers.sample(n_teachers, generator=generator) if in_force is None else in_force
        return cls(teachers, tuning, fresh, mean)

    def on(self, device: torch.device) -> Roles:
        """The same, with all that is asked again and again living on a device."""
        return replace(
            self,
            tuning=Remote(self.tuning, device),
            fresh=None if self.fresh is None else Remote(self.fresh, device),
            in_force=Remote(self.in_force, device),
        )


def _split(
    everyone: FiniteSet, in_force: Predictors | None, generator: torch.Generator, n_fresh: int | None, tune: bool
) -> tuple[FiniteSet, Predictors, Predictors | None]:
    count = len(everyone)
    if n_fresh is not None and n_fresh > max(0, count - 2):
        raise SettingError(
            f"Setting 'n_fresh' {n_fresh} of {count} hypotheses aside leaves too few to train on. Lower it, or make"
            " more."
        )
    aside = -(-count // _ONE_IN) if n_fresh is None else n_fresh
    if count == 1 or aside == 0:
        return everyone, everyone.predictors, None
    rest, fresh = _set_aside(everyone, in_force, aside, generator)
    if count < _ONE_IN or not tune:
        return rest, rest.predictors, fresh
    teachers, tuning = rest.split(max(1, min(count // _ONE_IN, len(rest) - 1)), generator=generator)
    return teachers, tuning.predictors, fresh


def _set_aside(
    members: FiniteSet, in_force: Predictors | None, count: int, generator: torch.Generator
) -> tuple[FiniteSet, Predictors | None]:
    """The rest, and members drawn by their weights to be counted by head; never one that is the model in force."""
    weights = members.predictors.weights.cpu().clone()
    if in_force is not None and len(in_force) == 1 and isinstance(members.space, TabularSpace):
        weights[_same(members.predictors, in_force, members.space)] = 0.0
    count = min(count, int((weights > 0).sum()))
    if not count:
        return members, None
    chosen = torch.multinomial(weights, count, generator=generator).sort().values
    left = torch.ones(len(weights), dtype=torch.bool).index_fill(0, chosen, False)
    fresh = members.predictors.subset(chosen)
    fresh.weights = torch.full((count,), 1.0 / count)
    rest = FiniteSet(
        members.predictors.subset(torch.nonzero(left).flatten()), members.space, members.classes, members.base
    )
    return rest, fresh


def _same(members: Predictors, in_force: Predictors, space: TabularSpace) -> Tensor:
    """(S,) which hypotheses are the model in force."""
    if isinstance(members, Asked):  # trees that differ may well agree on a few points
        known = {id(box.model) for box in in_force.boxes}
        return torch.tensor([id(box.model) in known for box in members.members])
    probe = torch.zeros(3, *space.event_shape) + torch.tensor([[-1.0], [0.0], [1.0]])
    with torch.no_grad():
        return (members.log_probs(probe) - in_force.log_probs(probe)).abs().amax(dim=(1, 2)) < 1e-6


def _mixed(
    mixture: Mixture,
    generator: torch.Generator,
    in_force: Predictors | None,
    n_fresh: int | None,
    n_teachers: int,
    tune: bool,
) -> Roles:
    """Each component is parted by itself, and the parts are mixed again."""
    parts = [
        Roles.of(part, generator, in_force=in_force, n_fresh=n_fresh, n_teachers=n_teachers, tune=tune)
        for part in mixture.components
    ]
    teachers = Mixture([part.teachers for part in parts], mixture.shares)
    missing = [i for i, part in enumerate(parts) if part.fresh is None]
    if missing and n_fresh != 0:
        raise SettingError(
            f"Component {missing[0]} of the mixture has a single hypothesis, so none of it can be set aside for a"
            " certificate. Give it more, or set n_fresh=0 and do without certificates."
        )
    fresh = None if missing else _by_share([part.fresh for part in parts if part.fresh is not None], mixture, generator)
    return Roles(
        teachers,
        Joined([part.tuning for part in parts], mixture.shares),
        fresh,
        teachers.sample(n_teachers, generator=generator) if in_force is None else in_force,
    )


def _by_share(parts: list[Predictors], mixture: Mixture, generator: torch.Generator) -> Predictors:
    """Heads to count, of each component in proportion to its share: as many as the scarcest component allows."""
    shares = torch.tensor([float(share) for share in mixture.shares or ()])
    shares = shares / shares.sum()
    total = min(len(part) / float(share) for part, share in zip(parts, shares, strict=True))
    kept = []
    for part, share in zip(parts, shares, strict=True):
        count = max(1, min(len(part), round(total * float(share))))
        kept.append(part.subset(torch.randperm(len(part), generator=generator)[:count].sort().values))
    return Joined(kept)
