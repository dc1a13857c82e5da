"""Distributions over predictors: anything that can be sampled. A generator never learns how one holds its doubt."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from avcg.errors import SettingError, check_int, enumerate_some
from avcg.hypotheses.predictors import Predictors
from avcg.space.base import Space


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

    def sample(self, n: int, *, rng: torch.Generator | None = None) -> Predictors:
        """Draw hypotheses.

        Args:
            n: How many, at most: a finite set has no more than it has.
            rng: Random numbers, on the CPU; None: a generator seeded with 0.
        """


def check_count(n: int, what: str) -> int:
    """A number of draws, if it can be one."""
    return check_int(n, f"'n' of {what}", 1)


def seeded(rng: torch.Generator | None) -> torch.Generator:
    """The random numbers given, or a generator seeded with 0."""
    return torch.Generator().manual_seed(0) if rng is None else rng


def deployed_model(distribution: object) -> Predictors | None:
    """The model whose decisions people face: what hypotheses were made around, or a posterior's own centre."""
    base = getattr(distribution, "base", None)
    centre = getattr(distribution, "deterministic", None)
    return base if base is not None or centre is None else centre()


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
    if one is not None and other is not None and one is not other:
        difference = one.difference(other)
        if difference is not None:
            raise SettingError(
                f"Hypotheses must read one encoding, and these differ in {difference}. Give them one space"
                " (of from_models, BlackBox, from_sklearn), fit them with the same schema on the same rows, or use"
                " retrains."
            )
