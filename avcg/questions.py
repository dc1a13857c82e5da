"""What a method is asked, and how its candidates are chosen among."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from avcg.space import Space
from avcg.tries import NEAR, SAME


@dataclass(frozen=True, eq=False)
class Question:
    """B rows as a method sees them.

    Attributes:
        x: (B, *event) the factuals.
        target: (B,) class positions.
        space: What each may change.
        n: Answers wanted.
        min_prob: Of the target that the model in force must give; None: enough for its decision.
    """

    x: Tensor
    target: Tensor
    space: Space
    n: int
    min_prob: float | None = None

    def take(self, rows: Tensor) -> Question:
        """Some of the rows."""
        return replace(self, x=self.x[rows], target=self.target[rows], space=self.space.take(rows))


def choose(space: Space, candidates: Tensor, costs: Tensor, n: int) -> Tensor:
    """(n, B, *event) for each row the cheapest candidates that differ, by 1 or more where that is not much dearer.

    A candidate is taken twice only where there are no others.

    Args:
        space: For distances.
        candidates: (K, B, *event).
        costs: (K, B).
        n: At most K.
    """
    costs, everyone = costs.clone(), torch.arange(costs.shape[1], device=costs.device)
    chosen = []
    for _ in range(n):
        best = costs.argmin(dim=0)
        found = candidates[best, everyone]
        chosen.append(found)
        apart = space.distance(candidates, found)
        costs = costs + NEAR * torch.relu(1.0 - apart) + torch.where(apart <= 1e-6, SAME, 0.0)
    return torch.stack(chosen)
