"""Reference rows: training rows whose class all hypotheses agree on; answers stay near them and fall back on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from avcg.errors import DataError, check_int
from avcg.hypotheses.predictors import Predictors
from avcg.method.config import ReferenceConfig
from avcg.space.base import Space

_PAIRS = 2**24  # distances held at once; it bounds memory and changes no result


@dataclass(frozen=True, eq=False)
class ReferenceSet:
    """Reference rows of each class; calling it measures how far answers lie from them.

    Attributes:
        rows: (m, *event) reference rows of each class.
        k: Number of nearest rows that the distance is averaged over.
    """

    rows: Sequence[Tensor]
    k: int = 5

    def __post_init__(self) -> None:
        check_int(self.k, "'k' of ReferenceSet", 1)

    @classmethod
    def robust(
        cls, predictors: Predictors, x: Tensor, y: Tensor | None, config: ReferenceConfig, rng: torch.Generator
    ) -> ReferenceSet:
        """The training rows to whose class every hypothesis gives a high probability.

        A class with too few of them takes the rows with the highest lowest probability.

        Args:
            predictors: θ_1..θ_S.
            x: (N, *event) training rows.
            y: (N,) class positions of these rows; None: each row may serve for any class.
            config: Least and largest number of rows, and the probability that every hypothesis must give.
            rng: Random numbers, which choose the rows where there are more than are needed.
        """
        with torch.no_grad():
            lowest = predictors.log_probs(x).amin(dim=0).exp()
        classes = []
        for label in range(lowest.shape[1]):
            agreed = lowest[:, label].clone()
            if y is not None:
                agreed[y != label] = -1.0
            chosen = torch.nonzero(agreed >= config.min_prob).flatten()
            if len(chosen) < config.min_rows:
                available = max(1, int((agreed >= 0).sum()))
                chosen = agreed.topk(min(config.min_rows, available)).indices
            order = torch.randperm(len(chosen), generator=rng)[: config.max_rows]
            classes.append(x[chosen[order.to(chosen.device)]])
        return cls(tuple(classes), config.n_neighbours)

    def to(self, device: torch.device | str) -> ReferenceSet:
        """This set on another device."""
        return ReferenceSet(tuple(rows.to(device) for rows in self.rows), self.k)

    def neighbours(self, space: Space, x: Tensor, target: Tensor, count: int) -> Tensor:
        """The reference rows of the target that are nearest to each factual, projected to its feasible set.

        Args:
            space: What each row may change.
            x: (B, *event) the factuals.
            target: (B,) class positions.
            count: Number of rows for each factual.

        Returns:
            (count, B, *event) rows, the nearest first; where there are fewer, the rest are the factual itself.
        """
        result = x.expand(count, *x.shape).clone()
        for label, rows in enumerate(self.rows):
            members = torch.nonzero(target == label).flatten()
            if len(members) and len(rows):
                near = nearest(x[members], rows, count, space.pairwise_distance)
                feasible = space.take(members).project(rows[near.T], x[members])
                result[: len(feasible), members] = feasible
        return result

    def __call__(self, x_cf: Tensor, target: Tensor) -> Tensor:
        """The mean Euclidean distance, in codes, to the k nearest rows of the target.

        Args:
            x_cf: (N, *event) answers.
            target: (N,) class positions.

        Returns:
            (N,) distances, differentiable in the answers.
        """
        flat = x_cf.flatten(1)
        result = flat.new_zeros(len(flat))
        for label, rows in enumerate(self.rows):
            members = torch.nonzero(target == label).flatten()
            if not len(members):
                continue
            if not len(rows):
                raise DataError(
                    f"No training row of class {label} can serve as a reference. Give training rows of every class"
                    " that is aimed at, or set the weight of plausibility to 0."
                )
            reference = rows.flatten(1)
            near = nearest(flat[members].detach(), reference, self.k, _same_order)
            difference = flat[members][:, None] - reference[near]
            distances = (difference.square().sum(dim=-1) + 1e-12).sqrt()
            result = result.index_copy(0, members, distances.mean(dim=1))
        return result


def _same_order(x: Tensor, rows: Tensor) -> Tensor:
    """(N, m) values that order the rows like their Euclidean distance from each x, but are faster to compute."""
    return torch.addmm(rows.square().sum(dim=1), x, rows.T, alpha=-2.0)


@torch.no_grad()
def nearest(x: Tensor, rows: Tensor, k: int, distance: Callable[[Tensor, Tensor], Tensor] = torch.cdist) -> Tensor:
    """(N, min(k, m)) positions of the rows nearest to each x, the nearest first, in bounded memory.

    Args:
        x: (N, ...) points.
        rows: (m, ...) rows to choose from.
        k: Number of rows for each point.
        distance: Function from (n, ...) and (m, ...) to (n, m) distances; Euclidean by default.
    """
    at_once = max(1, _PAIRS // len(rows))
    parts = [distance(part, rows).topk(min(k, len(rows)), largest=False).indices for part in x.split(at_once)]
    return torch.cat(parts)
