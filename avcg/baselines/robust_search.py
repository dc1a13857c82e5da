"""Robust search: gradient descent on the answer to each row until every judge accepts it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from avcg.baselines.gradient import Descent, GradientSearch
from avcg.errors import check_int, check_setting
from avcg.method.objective import target_log_probs
from avcg.method.query import Query
from avcg.method.risk import log_odds


@dataclass(frozen=True)
class RobustDescent(Descent):
    """Settings of the robust search.

    Attributes:
        start_weights: Initial weights of the hypotheses; one search is run for each of them.
        weight_range: Lowest and highest weight of the hypotheses.
        check_every: Number of steps between two checks; the weights are adapted after each check.
        decrease: Factor on the weight of a search that every judge accepts.
        increase: Factor on the weight of a search that some judge rejects.
        worst_weight: Weight of the worst judge's shortfall, which is added to the mean shortfall.
        still_steps: Number of steps; a number that is closer to the factual is set back to it, because Adam moves
            every number.
    """

    start_weights: tuple[float, ...] = (0.3, 3.0)
    weight_range: tuple[float, float] = (0.02, 100.0)
    check_every: int = 5
    decrease: float = 0.9
    increase: float = 1.25
    worst_weight: float = 0.5
    still_steps: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int(self.check_every, "'check_every' of RobustDescent", 1)
        check_setting(self, "start_weights", len(self.start_weights) > 0, "at least one number")
        check_setting(self, "weight_range", 0 < self.weight_range[0] <= self.weight_range[1], "(low, high), both > 0")
        check_setting(self, "decrease", 0 < self.decrease <= 1, "in (0, 1]")
        check_setting(self, "increase", self.increase >= 1, ">= 1")
        for name in ("worst_weight", "still_steps"):
            check_setting(self, name, getattr(self, name) >= 0, ">= 0")


class RobustSearch(GradientSearch[RobustDescent]):
    """Gradient search by Adam on the codes of answers, which keeps the cheapest answer that every judge accepts.

    A judge accepts an answer if it gives the target the ``probability`` of the descent. The search uses all its steps,
    since a later answer may be cheaper. Its answers are close to the best possible ones, but it is slow: nothing is
    trained, and it starts from scratch for every row.
    """

    usual = RobustDescent(steps=200, step=0.05, probability=0.7, proximity=1.0)

    def _candidates(self, query: Query) -> Tensor:
        x, space, target = query.x, query.space, query.target
        effort, needed = self.effort, self._needed(query)
        raw = self._start(query).expand(len(effort.start_weights), *x.shape).clone().requires_grad_()
        optimizer = torch.optim.Adam([raw], lr=effort.step, betas=effort.betas, eps=effort.epsilon)
        weight = torch.tensor(effort.start_weights)[:, None].expand(-1, len(x)).clone()
        best, cost = x.clone(), torch.full((len(x),), torch.inf)
        for step in range(1, effort.steps + 1):
            relaxed = space.relax(raw, x)
            shortfall = torch.relu(needed - log_odds(target_log_probs(self.judges_, relaxed, target)))
            distance = effort.proximity * space.distance(relaxed, x)
            loss = (weight * (shortfall.mean(dim=0) + effort.worst_weight * shortfall.amax(dim=0)) + distance).sum()
            raw.grad = torch.autograd.grad(loss, raw)[0]
            optimizer.step()
            if step % effort.check_every == 0:
                accepted = self._check(query, raw.detach(), needed, best, cost)
                weight = (weight * torch.where(accepted, effort.decrease, effort.increase)).clamp(*effort.weight_range)
        return best.expand(query.n, *x.shape)

    @torch.no_grad()
    def _check(self, query: Query, raw: Tensor, needed: Tensor, best: Tensor, cost: Tensor) -> Tensor:
        """(R, B) whether every judge accepts the current answer of each search, made feasible.

        Args:
            query: B rows.
            raw: (R, B, *event) current points of R searches, before relaxation.
            needed: (B,) log-odds of the target from which a judge accepts an answer.
            best: (B, *event) the cheapest accepted answers so far; replaced in place by cheaper ones.
            cost: (B,) the costs of ``best``; replaced in place.
        """
        x, space = query.x, query.space
        relaxed = space.relax(raw, x)
        still = ~space.is_logit & ((relaxed - x).abs() < self.effort.still_steps * self.effort.step)
        feasible = space.project(torch.where(still, x, relaxed), x)
        accepted = (log_odds(target_log_probs(self.judges_, feasible, query.target)) >= needed).all(dim=0)
        price = torch.where(accepted, space.distance(feasible, x), torch.inf)
        lowest, cheapest = price.min(dim=0)
        better = lowest < cost
        best[better], cost[better] = feasible[cheapest, torch.arange(len(x))][better], lowest[better]
        return accepted
