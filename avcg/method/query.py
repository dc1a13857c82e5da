"""What a method is asked, and how its candidates are chosen among."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from avcg.method.tries import NEAR, SAME
from avcg.space.base import Space
from avcg.space.encoding import Flags

# Answers of a row that are all kept apart from each other; of more, so many at a time.
_TOGETHER = 16


@dataclass(frozen=True, eq=False)
class Query:
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

    def take(self, rows: Tensor) -> Query:
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
    everyone = torch.arange(costs.shape[1], device=costs.device)
    places = _cheapest(space, candidates, costs, n) if n <= _TOGETHER else _in_groups(space, candidates, costs, n)
    return candidates[places, everyone]


def _cheapest(space: Space, candidates: Tensor, costs: Tensor, n: int) -> Tensor:
    """(n, B) positions, one after the other, each making those near to it dearer."""
    costs, everyone = costs.clone(), torch.arange(costs.shape[1], device=costs.device)
    chosen = []
    for _ in range(n):
        best = costs.argmin(dim=0)
        chosen.append(best)
        apart = space.distance(candidates, candidates[best, everyone])
        costs = costs + NEAR * torch.relu(1.0 - apart) + torch.where(apart <= 1e-6, SAME, 0.0)
    return torch.stack(chosen)


def _in_groups(space: Space, candidates: Tensor, costs: Tensor, n: int) -> Tensor:
    """(n, B) positions of many, without a look at every pair of them.

    Candidates are dealt out like cards, dear and cheap alike to each group, and only those of a group are kept apart.
    """
    count, rows = costs.shape
    groups = -(-n // _TOGETHER)
    again = torch.from_numpy(repeated_answers(candidates.transpose(0, 1).flatten(0, 1), count))
    costs = costs + SAME * again.view(rows, count).T
    order = costs.argsort(dim=0, stable=True)
    short = -count % groups  # the last is dealt again, at a price that nobody pays
    order = torch.cat([order, order[-1:].expand(short, -1)])
    prices = costs.gather(0, order)
    prices[count:] = torch.inf
    dealt, priced = (part.unflatten(0, (-1, groups)).flatten(1, 2) for part in (order, prices))
    everyone = torch.arange(rows).repeat(groups)
    picked = _cheapest(space.take(everyone), candidates[dealt, everyone], priced, min(_TOGETHER, len(dealt)))
    places = dealt.gather(0, picked).unflatten(1, (groups, rows)).flatten(0, 1)
    return places.gather(0, costs.gather(0, places).argsort(dim=0, stable=True))[:n]


def repeated_answers(received: Tensor, n: int) -> Flags:
    """(N,) answers that are the same as an earlier one of their row.

    Args:
        received: (N, *event) codes, the n answers of a row one after the other.
        n: Answers a row.
    """
    codes = received.flatten(1).cpu().numpy() + np.float32(0.0)  # there is one zero
    # Marks that only the same codes share, but for one chance in 2**64: pairs of many answers are too many to compare.
    odd = np.random.default_rng(0).integers(-(2**62), 2**62, codes.shape[1]) | 1
    marks = codes.view(np.int32).astype(np.int64) @ odd
    order = np.lexsort((marks, np.arange(len(codes)) // n))
    again = np.zeros(len(codes), bool)
    again[order[1:]] = (np.diff(marks[order]) == 0) & (np.diff(order // n) == 0)
    return again
