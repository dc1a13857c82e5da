"""Who teaches, who tunes and who certifies: hypotheses are parted before anything is trained."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from avcg.errors import SettingError
from avcg.hypotheses.distributions import (
    FiniteSet,
    HypothesisDistribution,
    Mixture,
    model_in_force,
    seeded,
)
from avcg.hypotheses.predictors import Joined, Predictors

# Of a finite set, one member in so many is set aside for certificates, and as many for tuning.
_ONE_IN = 4
# Draws from a distribution that never runs out.
_FRESH_DRAWS = 50


@dataclass(frozen=True, eq=False)
class Roles:
    """Hypotheses by what they are for; no two parts share a member of a finite set.

    Attributes:
        teachers: What is trained against.
        tuning: What a margin is chosen by, on rows that were not trained on. Of a set of fewer than four, the teachers.
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
        n_fresh: int | None = None,
        n_teachers: int = 50,
    ) -> Roles:
        """Part a distribution.

        Args:
            hypotheses: Of any kind. A finite set is split; anything else is drawn from anew for each part.
            generator: None: seed 0.
            n_fresh: Hypotheses for certificates; None: a quarter of a finite set, or 50 draws.
            n_teachers: Draws that stand for the teachers' mean where there is no model in force.
        """
        generator = seeded(generator)
        if isinstance(hypotheses, Mixture):
            return _mixed(hypotheses, generator, n_fresh, n_teachers)
        teachers: HypothesisDistribution
        if isinstance(hypotheses, FiniteSet):
            teachers, tuning, fresh = _split(hypotheses, generator, n_fresh)
        else:
            teachers, tuning = hypotheses, hypotheses.sample(_FRESH_DRAWS, generator=generator)
            fresh = hypotheses.sample(n_fresh or _FRESH_DRAWS, generator=generator)
        in_force = model_in_force(hypotheses) or teachers.sample(n_teachers, generator=generator)
        return cls(teachers, tuning, fresh, in_force)


def _split(
    whole: FiniteSet, generator: torch.Generator, n_fresh: int | None
) -> tuple[FiniteSet, Predictors, Predictors | None]:
    count = len(whole)
    if n_fresh is not None and n_fresh >= count:
        raise SettingError(
            f"Setting 'n_fresh' {n_fresh} of {count} hypotheses aside leaves none to train on. Lower it, or make more."
        )
    aside = -(-count // _ONE_IN) if n_fresh is None else n_fresh
    if count == 1 or aside == 0:
        return whole, whole.predictors, None
    rest, fresh = whole.split(aside, generator=generator)
    fresh.predictors.weights = torch.full((aside,), 1.0 / aside)  # a certificate counts heads
    if count < _ONE_IN:
        return rest, rest.predictors, fresh.predictors
    teachers, tuning = rest.split(max(1, min(count // _ONE_IN, len(rest) - 1)), generator=generator)
    return teachers, tuning.predictors, fresh.predictors


def _mixed(mixture: Mixture, generator: torch.Generator, n_fresh: int | None, n_teachers: int) -> Roles:
    """Each component is parted by itself, and the parts are mixed again."""
    parts = [Roles.of(part, generator, n_fresh=n_fresh, n_teachers=n_teachers) for part in mixture.components]
    teachers = Mixture([part.teachers for part in parts], mixture.shares)
    fresh = [part.fresh for part in parts if part.fresh is not None]
    base = mixture.base
    return Roles(
        teachers,
        Joined([part.tuning for part in parts], mixture.shares),
        Joined(fresh) if fresh else None,
        teachers.sample(n_teachers, generator=generator) if base is None else base,
    )
