"""Mixtures of hypothesis distributions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray

from avcg.errors import SettingError
from avcg.hypotheses.base import (
    HypothesisDistribution,
    check_count,
    check_same_reading,
    deployed_model,
    is_around_one_network,
    seeded,
)
from avcg.hypotheses.predictors import Joined, Predictors
from avcg.space.base import Space


@dataclass(frozen=True, eq=False)
class Mixture:
    """A mixture of hypothesis distributions.

    Attributes:
        components: Distributions of any kind, over the same inputs and classes.
        shares: Positive weight of each component, scaled to sum to 1 when drawing; None: equal weights.
    """

    components: Sequence[HypothesisDistribution]
    shares: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if not self.components:
            raise SettingError("A Mixture needs at least one component. Got none.")
        shares = [1.0] * len(self.components) if self.shares is None else [float(share) for share in self.shares]
        if len(shares) != len(self.components) or not all(0 < share < float("inf") for share in shares):
            raise SettingError(f"A Mixture needs one positive share per component. Got {self.shares!r} instead.")
        object.__setattr__(self, "shares", shares)
        for part in self.components[1:]:
            check_same_reading(self.components[0].space, part.space, self.components[0].classes, part.classes)

    @property
    def space(self) -> Space | None:
        """Space of the rows that the components read; None: unknown."""
        return next((part.space for part in self.components if part.space is not None), None)

    @property
    def classes(self) -> NDArray[Any] | None:
        """Labels in the order of the predicted probabilities; None: unknown."""
        return next((part.classes for part in self.components if part.classes is not None), None)

    @property
    def base(self) -> Predictors | None:
        """The deployed model of the first component that has one; None: there is none."""
        return next((base for part in self.components if (base := deployed_model(part)) is not None), None)

    @property
    def around_one_network(self) -> bool:
        """Whether any component is made of draws around one network."""
        return any(map(is_around_one_network, self.components))

    def sample(self, n: int, *, rng: torch.Generator | None = None) -> Predictors:
        """Draw from every component in proportion to its share.

        Weights correct for the rounding of the numbers of draws. If n is smaller than the number of components, the
        components are drawn at random as well.
        """
        n = check_count(n, "sample")
        rng = seeded(rng)
        shares = torch.tensor(self.shares)
        shares = shares / shares.sum()
        if n < len(self.components):
            counts = torch.bincount(
                torch.multinomial(shares, n, replacement=True, generator=rng), minlength=len(shares)
            )
            shares = counts / counts.sum()
        else:
            counts = (shares * n).floor().long().clamp(min=1)
            # Add or remove draws one at a time where the number of draws is furthest from its share.
            while int(counts.sum()) != n:
                deficit = shares * n - counts
                step = 1 if int(counts.sum()) < n else -1
                candidates = torch.where(counts + step >= 1, step * deficit, -torch.inf)
                counts[int(candidates.argmax())] += step
        drawn = [
            (part.sample(int(count), rng=rng), float(share))
            for part, count, share in zip(self.components, counts, shares, strict=True)
            if count
        ]
        return Joined([part for part, _ in drawn], [share for _, share in drawn])
