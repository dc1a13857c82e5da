"""A per-row robust search: gradient descent on each answer until every teacher is convinced."""

from __future__ import annotations

import torch
from torch import Tensor

from avcg.baselines.gradient import Descent, GradientSearch, start_of
from avcg.method.objective import target_log_probs
from avcg.method.query import Query
from avcg.method.risk import log_odds

# Searches run side by side for each row, by what their hypotheses weigh at first; weights then adapt.
_WEIGHTS = (0.3, 3.0)
_EVERY = 5  # steps between two looks at what has been found
_WEAKER, _STRONGER = 0.9, 1.25


class RobustSearch(GradientSearch):
    """Adam on the codes of each answer, all rows at once, snapped to feasible values; the cheapest that does is kept.

    It goes on until every teacher gives the target the ``probability`` of its `Descent`, and then looks for something
    cheaper until the steps run out. Close to the limit of what can be had, and slow: it has no training, and starts
    over for every row.
    """

    usual = Descent(steps=200, step=0.05, probability=0.7, proximity=1.0)

    def _candidates(self, query: Query) -> Tensor:
        x, space, target = query.x, query.space, query.target
        effort, needed = self.effort, self._needed(query)
        raw = start_of(query).expand(len(_WEIGHTS), *x.shape).clone().requires_grad_()
        optimizer = torch.optim.Adam([raw], lr=effort.step)
        weight = torch.tensor(_WEIGHTS)[:, None].expand(-1, len(x)).clone()
        best, cost = x.clone(), torch.full((len(x),), torch.inf)
        for step in range(1, effort.steps + 1):
            moved = space.relax(raw, x)
            short = torch.relu(needed - log_odds(target_log_probs(self.judges_, moved, target)))
            near = effort.proximity * space.distance(moved, x)
            loss = (weight * (short.mean(dim=0) + 0.5 * short.amax(dim=0)) + near).sum()
            raw.grad = torch.autograd.grad(loss, raw)[0]
            optimizer.step()
            if step % _EVERY == 0:
                reached = self._look(query, raw.detach(), needed, best, cost)
                weight = (weight * torch.where(reached, _WEAKER, _STRONGER)).clamp(0.02, 100.0)
        return best.expand(query.n, *x.shape)

    @torch.no_grad()
    def _look(self, query: Query, raw: Tensor, needed: Tensor, best: Tensor, cost: Tensor) -> Tensor:
        """Snap, keep what will do and is cheaper than before (in place), and say which searches got there, (R, B)."""
        x, space = query.x, query.space
        moved = space.relax(raw, x)
        # Adam never stands still: what moved no further than its steps has not moved.
        moved = torch.where(~space.is_logit & ((moved - x).abs() < 2 * self.effort.step), x, moved)
        snapped = space.project(moved, x)
        reached = (log_odds(target_log_probs(self.judges_, snapped, query.target)) >= needed).all(dim=0)
        price = torch.where(reached, space.distance(snapped, x), torch.inf)
        lowest, which = price.min(dim=0)
        better = lowest < cost
        best[better], cost[better] = snapped[which, torch.arange(len(x))][better], lowest[better]
        return reached
