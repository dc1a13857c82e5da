"""A per-row robust search: gradient descent on each answer until every teacher is convinced."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from avcg.errors import SettingError, whole
from avcg.explainer import Explainer, Question
from avcg.generator import STAY
from avcg.objective import target_log_probs
from avcg.risk import log_odds

# Searches run side by side for each row, by what their hypotheses weigh at first; weights then adapt.
_WEIGHTS = (0.3, 3.0)
_EVERY = 5  # steps between two looks at what has been found
_WEAKER, _STRONGER = 0.9, 1.25


class RobustSearch(Explainer):
    """Adam on the codes of each answer, all rows at once, snapped to feasible values; the cheapest that does is kept.

    Close to the limit of what can be had, and slow: it has no training, and starts over for every row.

    Args:
        hypotheses: As in `Explainer`, like all that is not named here.
        schema: What may change.
        probability: That every teacher must give the target.
        steps: Of Adam.
        learning_rate: Of Adam.
        model: The model whose decision counts.
        threshold: Of the decision.
        survival: The share of models that is promised.
        n_fresh: Hypotheses set aside for certificates.
        random_state: Seed.
    """

    def __init__(
        self,
        hypotheses: Any,
        schema: Any = None,
        *,
        probability: float = 0.7,
        steps: int = 200,
        learning_rate: float = 0.05,
        model: Any = None,
        threshold: float | None = None,
        survival: float = 0.99,
        n_fresh: int | None = None,
        random_state: int = 0,
    ) -> None:
        super().__init__(
            hypotheses, schema, model=model, threshold=threshold, survival=survival, n_fresh=n_fresh,
            random_state=random_state,
        )  # fmt: skip
        self.probability = probability
        self.steps = steps
        self.learning_rate = learning_rate

    def _fit(self, x: Tensor, y: Tensor | None, rng: torch.Generator) -> None:  # noqa: ARG002
        if not 0 < self.probability < 1:
            raise SettingError(f"The 'probability' of RobustSearch must be in (0, 1). Got {self.probability!r}.")
        whole(self.steps, "'steps' of RobustSearch", 1)
        self._need_gradients()

    def _candidates(self, question: Question) -> Tensor:
        x, space, target = question.x, question.space, question.target
        level = math.log(self.probability / (1 - self.probability))
        needed = self.decider_.log_odds_at_line(target) + level
        if question.min_prob is not None:
            needed = needed.clamp(min=math.log(question.min_prob / (1 - question.min_prob)))
        raw = torch.where(space.is_logit, STAY * x, x).expand(len(_WEIGHTS), *x.shape).clone().requires_grad_()
        optimizer = torch.optim.Adam([raw], lr=self.learning_rate)
        weight = torch.tensor(_WEIGHTS)[:, None].expand(-1, len(x)).clone()
        best, cost = x.clone(), torch.full((len(x),), torch.inf)
        for step in range(1, self.steps + 1):
            moved = space.relax(raw, x)
            short = torch.relu(needed - log_odds(target_log_probs(self.teachers_, moved, target)))
            loss = (weight * (short.mean(dim=0) + 0.5 * short.amax(dim=0))).sum() + space.distance(moved, x).sum()
            raw.grad = torch.autograd.grad(loss, raw)[0]
            optimizer.step()
            if step % _EVERY == 0:
                reached = self._look(question, raw.detach(), needed, best, cost)
                weight = (weight * torch.where(reached, _WEAKER, _STRONGER)).clamp(0.02, 100.0)
        return best.expand(question.n, *x.shape)

    @torch.no_grad()
    def _look(self, question: Question, raw: Tensor, needed: Tensor, best: Tensor, cost: Tensor) -> Tensor:
        """Snap, keep what will do and is cheaper than before (in place), and say which searches got there, (R, B)."""
        x, space = question.x, question.space
        moved = space.relax(raw, x)
        # Adam never stands still: what moved no further than its steps has not moved.
        moved = torch.where(~space.is_logit & ((moved - x).abs() < 2 * self.learning_rate), x, moved)
        snapped = space.project(moved, x)
        reached = (log_odds(target_log_probs(self.teachers_, snapped, question.target)) >= needed).all(dim=0)
        price = torch.where(reached, space.distance(snapped, x), torch.inf)
        lowest, which = price.min(dim=0)
        better = lowest < cost
        best[better], cost[better] = snapped[which, torch.arange(len(x))][better], lowest[better]
        return reached
