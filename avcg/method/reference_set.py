"""How usual an answer is for its target: its distance from rows that all hypotheses give that target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from avcg.errors import DataError, SettingError
from avcg.hypotheses.predictors import Predictors
from avcg.space.base import Space

# Distances of so many pairs at a time are held at once.
_PAIRS = 2**24


@dataclass(frozen=True, eq=False)
class ReferenceSet:
    """Rows of each class to stay near to.

    Attributes:
        rows: For each class, (m, *event).
        k: How many neighbours count.
    """

    rows: Sequence[Tensor]
    k: int = 5

    def __post_init__(self) -> None:
        if self.k < 1:
            raise SettingError(f"The 'k' of Bank must be >= 1. Got {self.k!r} instead.")

    @classmethod
    def robust(
        cls, predictors: Predictors, x: Tensor, y: Tensor | None, size: int, rng: torch.Generator, *, least: float = 0.6
    ) -> ReferenceSet:
        """Rows on which the hypotheses agree, as many as ``size`` for each class.

        Where fewer than five rows of a class reach ``least`` under every hypothesis, those that come closest are taken.

        Args:
            predictors: θ_1..θ_S.
            x: (N, *event) training rows.
            y: (N,) their class positions; None: as the hypotheses see them.
            size: Rows a class, at most.
            rng: Which, where there are more.
            least: Probability that every hypothesis must give the row's class.
        """
        with torch.no_grad():
            probabilities = predictors.log_probs(x).amin(dim=0).exp()
        banks = []
        for label in range(probabilities.shape[1]):
            sure = probabilities[:, label].clone()
            if y is not None:
                sure[y != label] = -1.0
            chosen = torch.nonzero(sure >= least).flatten()
            if len(chosen) < 5:
                chosen = sure.topk(min(5, max(1, int((sure >= 0).sum())))).indices
            order = torch.randperm(len(chosen), generator=rng)[:size]
            banks.append(x[chosen[order.to(chosen.device)]])
        return cls(tuple(banks))

    def to(self, device: torch.device | str) -> ReferenceSet:
        """The same on another device."""
        return ReferenceSet(tuple(rows.to(device) for rows in self.rows), self.k)

    def neighbours(self, space: Space, x: Tensor, target: Tensor, count: int) -> Tensor:
        """The rows of the target that cost least to become, with what may not change put back.

        Args:
            space: What each row may change.
            x: (B, *event) the factuals.
            target: (B,) class positions.
            count: How many.

        Returns:
            (count, B, *event) the cheapest first; the factual itself where there are not so many.
        """
        result = x.expand(count, *x.shape).clone()
        for label, rows in enumerate(self.rows):
            mine = torch.nonzero(target == label).flatten()
            if len(mine) and len(rows):
                near = nearest(x[mine], rows, count, space.pairwise_distance)
                found = space.take(mine).project(rows[near.T], x[mine])
                result[: len(found), mine] = found
        return result

    def __call__(self, x_cf: Tensor, target: Tensor) -> Tensor:
        """The mean Euclidean distance, in codes, to the nearest rows of the target.

        Args:
            x_cf: (N, *event).
            target: (N,) class positions.

        Returns:
            (N,), differentiable in the answers.
        """
        flat = x_cf.flatten(1)
        result = flat.new_zeros(len(flat))
        for label, rows in enumerate(self.rows):
            mine = torch.nonzero(target == label).flatten()
            if not len(mine):
                continue
            if not len(rows):
                raise DataError(f"There is no row of class {label} to stay near to.")
            reference = rows.flatten(1)
            near = nearest(flat[mine].detach(), reference, self.k, _in_order)
            apart = flat[mine][:, None] - reference[near]
            result = result.index_copy(0, mine, (apart.square().sum(dim=-1) + 1e-12).sqrt().mean(dim=1))
        return result


def _in_order(x: Tensor, rows: Tensor) -> Tensor:
    """(N, m) for each x what orders rows as their distance from it does, and takes less to compute."""
    return torch.addmm(rows.square().sum(dim=1), x, rows.T, alpha=-2.0)


@torch.no_grad()
def nearest(x: Tensor, rows: Tensor, k: int, apart: Callable[[Tensor, Tensor], Tensor] = torch.cdist) -> Tensor:
    """(N, min(k, m)) positions of the rows nearest to each x, nearest first, in bounded memory.

    Args:
        x: (N, ...).
        rows: (m, ...).
        k: How many.
        apart: From some of x and all rows to all distances between them; Euclid's.
    """
    at_once = max(1, _PAIRS // len(rows))
    parts = [apart(part, rows).topk(min(k, len(rows)), largest=False).indices for part in x.split(at_once)]
    return torch.cat(parts)
