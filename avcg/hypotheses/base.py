"""The protocol of a hypothesis distribution, and the checks that all distributions share.

Methods only draw samples, so they do not depend on how a distribution represents uncertainty.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from avcg.errors import SettingError, check_int, enumerate_some
from avcg.hypotheses.predictors import Predictors
from avcg.schema.schema import Schema
from avcg.space.base import Space


@runtime_checkable
class HypothesisDistribution(Protocol):
    """A hypothesis distribution P(θ) over plausible predictors.

    Attributes:
        space: Space of the rows that the predictors read; None: unknown.
        classes: Labels in the order of the predicted probabilities; None: unknown.
    """

    @property
    def space(self) -> Space | None:
        """Space of the rows that the predictors read; None: unknown."""

    @property
    def classes(self) -> NDArray[Any] | None:
        """Labels in the order of the predicted probabilities; None: unknown."""

    def sample(self, n: int, *, rng: torch.Generator | None = None) -> Predictors:
        """Draw hypotheses.

        Args:
            n: Largest number of hypotheses. A finite set with fewer members returns all of them.
            rng: Random numbers, on the CPU; None: a generator seeded with 0.
        """


def check_count(n: int, what: str) -> int:
    """The number of draws as an integer, checked to be at least 1."""
    return check_int(n, f"'n' of {what}", 1)


def seeded(rng: torch.Generator | None) -> torch.Generator:
    """The given random number generator, or a new one seeded with 0."""
    return torch.Generator().manual_seed(0) if rng is None else rng


def deployed_model(distribution: object) -> Predictors | None:
    """The deployed model of a distribution: the one it was built around, or the network at a posterior's centre."""
    base = getattr(distribution, "base", None)
    centre = getattr(distribution, "deterministic", None)
    return base if base is not None or centre is None else centre()


def narrowed_space(space: Space | None, schema: Schema | None, rows: Any) -> Space:
    """The space of hypotheses, narrowed to a schema.

    Args:
        space: The space of the hypotheses.
        schema: What may change; None: what the space lets.
        rows: Rows in user units.

    Raises:
        SettingError: If there is no space to encode rows by.
    """
    if space is None:
        raise SettingError(
            "These hypotheses have no space, so rows cannot be encoded for them. Give them one, e.g."
            " DeepEnsemble(networks, space=TabularSpace.fit(schema, X))."
        )
    return space if schema is None else space.narrowed(schema, rows)


def check_same_reading(
    space: Space | None, other_space: Space | None, classes: NDArray[Any] | None, other_classes: NDArray[Any] | None
) -> None:
    """Check that two groups of predictors share their encoding of rows and their classes.

    Raises:
        SettingError: If they do not. The message names the column or the classes that differ.
    """
    if classes is not None and other_classes is not None and not np.array_equal(classes, other_classes):
        raise SettingError(
            f"Hypotheses must have the same classes. Got {enumerate_some(classes.tolist())} and"
            f" {enumerate_some(other_classes.tolist())}."
        )
    if space is not None and other_space is not None and space is not other_space:
        difference = space.difference(other_space)
        if difference is not None:
            raise SettingError(
                f"Hypotheses must share one encoding of rows, and these differ in {difference}. Pass the same space to"
                " from_models, BlackBox or from_sklearn, fit the models with the same schema on the same rows, or use"
                " retrains."
            )


def is_around_one_network(distribution: object) -> bool:
    """Whether hypotheses are draws around the weights of one trained network, which is no retrained model.

    Args:
        distribution: A hypothesis distribution.
    """
    return hasattr(distribution, "deterministic") or bool(getattr(distribution, "around_one_network", False))
