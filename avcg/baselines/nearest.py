"""Baselines that answer with training rows: class mean, nearest unlike row, nearest row that every judge accepts."""

from __future__ import annotations

import torch
from torch import Tensor

from avcg.errors import SettingError, check_int
from avcg.explainers.base import Explainer
from avcg.hypotheses.base import HypothesisDistribution
from avcg.method.query import Query
from avcg.method.reference_set import ReferenceSet
from avcg.models.adapter import Model
from avcg.schema.schema import Schema


class ClassMean(Explainer):
    """The mean of the target's training rows, made feasible for each row."""

    def _fit(self, x: Tensor, y: Tensor | None, rng: torch.Generator) -> None:  # noqa: ARG002
        labels = self.deployed_.decide(self.deployed_.probabilities(x)) if y is None else y
        zeros = torch.zeros_like(x[0])
        self.means_ = torch.stack(
            [x[labels == c].mean(dim=0) if (labels == c).any() else zeros for c in range(len(self.classes_))]
        )

    def _candidates(self, query: Query) -> Tensor:
        means = self.means_[query.target]
        return query.space.project(means, query.x).expand(query.n, *query.x.shape)


class NearestUnlike(Explainer):
    """The nearest training row for which the deployed model decides for the target, made feasible."""

    def _fit(self, x: Tensor, y: Tensor | None, rng: torch.Generator) -> None:  # noqa: ARG002
        decided = self.deployed_.decide(self.deployed_.probabilities(x))
        usable = self._usable(x)
        rows = []
        for label in range(len(self.classes_)):
            chosen = (decided == label) & usable[:, label]
            rows.append(x[chosen & (y == label) if y is not None else chosen])
        self.reference_set_ = ReferenceSet(rows)

    def _usable(self, x: Tensor) -> Tensor:
        """(N, C) whether each row may be an answer for each class, if the deployed model decides for that class."""
        return torch.ones(len(x), len(self.classes_), dtype=torch.bool)

    def _candidates(self, query: Query) -> Tensor:
        return self.reference_set_.neighbours(query.space, query.x, query.target, query.n)


class RobustNeighbour(NearestUnlike):
    """The nearest training row of the target to which every judge gives a high probability, made feasible.

    The probabilities are checked again after the row is made feasible; if a judge rejects it, the next nearest row is
    tried. A factual for which all these rows are rejected has no answer. This method is trivial but strong, and
    amortized methods must beat it.

    Args:
        hypotheses: The distribution over plausible models.
        schema: What may change; None: the hypotheses' own schema.
        min_prob: Probability of the target that every judge must give, in (0, 1).
        n_neighbours: Number of nearest rows that are tried.
        model: The deployed model; None: the one the hypotheses were made around, or their mean.
        threshold: Probability of the second of two classes from which the decision is for it; None: that by which the
            deployed model itself decides (`BlackBox.threshold`), or the most probable class.
        survival: Share of models that is promised to agree with an answer, in (0, 1).
        n_test: Number of hypotheses held out for certificates; None: an eighth of a finite set, or 50 draws.
        device: PyTorch device on which models are evaluated.
        random_state: Seed of all random numbers.
    """

    def __init__(
        self,
        hypotheses: HypothesisDistribution,
        schema: Schema | None = None,
        *,
        min_prob: float = 0.6,
        n_neighbours: int = 50,
        model: Model | None = None,
        threshold: float | None = None,
        survival: float = 0.95,
        n_test: int | None = None,
        device: str = "cpu",
        random_state: int = 0,
    ) -> None:
        super().__init__(
            hypotheses, schema, model=model, threshold=threshold, survival=survival, n_test=n_test,
            device=device, random_state=random_state,
        )  # fmt: skip
        self.min_prob = min_prob
        self.n_neighbours = n_neighbours

    def _fit(self, x: Tensor, y: Tensor | None, rng: torch.Generator) -> None:
        check_int(self.n_neighbours, "'n_neighbours' of RobustNeighbour", 1)
        if not 0 < self.min_prob < 1:
            raise SettingError(f"The 'min_prob' of RobustNeighbour must be in (0, 1). Got {self.min_prob!r} instead.")
        super()._fit(x, y, rng)

    @torch.no_grad()
    def _usable(self, x: Tensor) -> Tensor:
        return self.judges_.log_probs(x).amin(dim=0).exp() > self.min_prob

    def _candidates(self, query: Query) -> Tensor:
        """(n, B, *event) the nearest rows that all judges accept after they are made feasible, else the factual."""
        count = max(query.n, self.n_neighbours)
        candidates = self.reference_set_.neighbours(query.space, query.x, query.target, count)
        usable = self._usable(candidates.flatten(0, 1)).unflatten(0, candidates.shape[:2])
        accepted = usable.gather(-1, query.target.expand(count, -1)[..., None])[..., 0]
        order = accepted.to(torch.int8).argsort(dim=0, descending=True, stable=True)[: query.n]
        rows = torch.arange(len(query.x))
        kept = accepted[order, rows].view(*order.shape, *[1] * (query.x.dim() - 1))
        return torch.where(kept, candidates[order, rows], query.x)
