"""Answers read off the training rows: class mean, nearest unlike row, nearest row that every hypothesis accepts."""

from __future__ import annotations

import torch
from torch import Tensor

from avcg.explainers.base import Explainer
from avcg.method.query import Query
from avcg.method.reference_set import ReferenceSet

# Nearest rows looked at before a search is given up.
_LOOKED_AT = 50
# What every teacher must give a row's class for it to be a robust one.
_SURE = 0.6


class ClassMean(Explainer):
    """Everyone to the mean of the target's training rows, as far as the constraints let them."""

    def _fit(self, x: Tensor, y: Tensor | None, rng: torch.Generator) -> None:  # noqa: ARG002
        labels = self.deployed_.decide(self.deployed_.probabilities(x)) if y is None else y
        none = torch.zeros_like(x[0])
        self.means_ = torch.stack(
            [x[labels == label].mean(dim=0) if (labels == label).any() else none for label in range(len(self.classes_))]
        )

    def _candidates(self, query: Query) -> Tensor:
        wanted = self.means_[query.target]
        return query.space.project(wanted, query.x).expand(query.n, *query.x.shape)


class NearestUnlike(Explainer):
    """The nearest training row that the model in force gives the target, with what may not change put back."""

    _robust = False

    def _fit(self, x: Tensor, y: Tensor | None, rng: torch.Generator) -> None:  # noqa: ARG002
        decided = self.deployed_.decide(self.deployed_.probabilities(x))
        least = self._least(x)
        rows = []
        for label in range(len(self.classes_)):
            mine = (decided == label) & (least[:, label] > _SURE if self._robust else True)
            rows.append(x[mine & (y == label) if y is not None else mine])
        self.reference_set_ = ReferenceSet(rows)

    def _least(self, x: Tensor) -> Tensor:
        """(N, C) the lowest probability that any teacher gives."""
        with torch.no_grad():
            return self.judges_.log_probs(x).amin(dim=0).exp()

    def _candidates(self, query: Query) -> Tensor:
        count = max(query.n, _LOOKED_AT if self._robust else 1)
        result = self.reference_set_.neighbours(query.space, query.x, query.target, count)
        return self._first_sure(query, result) if self._robust else result

    def _first_sure(self, query: Query, candidates: Tensor) -> Tensor:
        """(n, B, *event) the nearest that are still sure with frozen values put back; the factual where none is."""
        least = self._least(candidates.flatten(0, 1)).unflatten(0, candidates.shape[:2])
        wanted = query.target.expand(len(candidates), -1)[..., None]
        sure = least.gather(-1, wanted)[..., 0] > _SURE
        order = sure.to(torch.int8).argsort(dim=0, descending=True, stable=True)[: query.n]
        everyone = torch.arange(len(query.x))
        kept = sure[order, everyone].view(*order.shape, *[1] * (query.x.dim() - 1))
        return torch.where(kept, candidates[order, everyone], query.x)


class RobustNeighbour(NearestUnlike):
    """The nearest training row of the target to which every teacher gives more than 0.6, frozen values put back.

    It is checked again with them put back, and the next nearest is tried; a row for which none of the 50 nearest will
    do has no answer. A strong trivial method: what amortized ones must beat.
    """

    _robust = True
