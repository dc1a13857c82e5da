"""Refining an answer after the first pass: taking changes back, and gradient steps on the latent posterior."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from avcg.errors import SettingError, check_int, check_setting
from avcg.method.config import SearchConfig
from avcg.method.generator import DiagonalNormal
from avcg.space.base import Space

# From (M, *event) candidates and (M,) positions of their rows to (M,) whether each candidate is accepted.
Accept = Callable[[Tensor, Tensor], Tensor]
# From a posterior over B rows to the (B,) values to be minimised.
Score = Callable[[DiagonalNormal], Tensor]


@dataclass(frozen=True)
class Refinement:
    """How an answer is refined after the first pass.

    Attributes:
        prune: Whether to take back changes while the answer stays valid and robust.
        steps: Number of gradient steps on each row's latent posterior, before changes are taken back.
        learning_rate: Learning rate of these steps.
    """

    prune: bool = True
    steps: int = 0
    learning_rate: float = 0.1

    def __post_init__(self) -> None:
        check_int(self.steps, "'steps' of Refinement", 0)
        check_setting(self, "learning_rate", self.learning_rate > 0, "> 0")


@dataclass(frozen=True)
class Deadline:
    """A moment after which no further step is begun.

    Attributes:
        at: Seconds on the clock of `time.monotonic`; infinity: there is no deadline.
    """

    at: float = float("inf")

    @classmethod
    def after(cls, seconds: float | None) -> Deadline:
        """A deadline so many seconds from now.

        Args:
            seconds: A number > 0; None: there is no deadline.

        Raises:
            SettingError: If the number is not positive.
        """
        if seconds is None:
            return cls()
        if not seconds > 0:
            raise SettingError(f"The 'time_budget' must be > 0 seconds. Got {seconds!r} instead.")
        return cls(time.monotonic() + seconds)

    @property
    def passed(self) -> bool:
        """Whether the moment has come."""
        return time.monotonic() >= self.at


@torch.no_grad()
def prune(space: Space, x: Tensor, x_cf: Tensor, accept: Accept, deadline: Deadline, config: SearchConfig) -> Tensor:
    """Take changes back, the greatest saving first, while answers stay accepted; all rows at once, in rounds.

    Args:
        space: What each of the B rows may change.
        x: (B, *event) the factuals.
        x_cf: (B, *event) feasible, accepted answers.
        accept: Which candidates are accepted.
        deadline: When it has passed, the best answers so far are returned.
        config: Largest number of rounds, and the smallest saving that counts.

    Returns:
        (B, *event) feasible answers, none dearer than before.
    """
    best, cost = x_cf.clone(), space.distance(x_cf, x)
    active = torch.arange(len(x), device=x.device)
    for _ in range(config.refine_rounds):
        if not len(active) or deadline.passed:
            break
        of_active, candidates = space.take(active).smaller(best[active], x[active])
        rows = active[of_active]
        price = space.distance(candidates, x[rows])
        cheaper = price < cost[rows] - config.tolerance
        rows, candidates, price = rows[cheaper], candidates[cheaper], price[cheaper]
        accepted = accept(candidates, rows)
        rows, candidates, price = rows[accepted], candidates[accepted], price[accepted]
        # The dearest first, so that the cheapest candidate of each row is written last and stays.
        order = price.argsort(descending=True, stable=True)
        winner = torch.full((len(x),), -1, dtype=torch.long, device=x.device)
        winner[rows[order]] = order
        active = torch.nonzero(winner >= 0).flatten()
        best[active], cost[active] = candidates[winner[active]], price[winner[active]]
    return best


def descend(
    posterior: DiagonalNormal, score: Score, steps: int, learning_rate: float, deadline: Deadline
) -> DiagonalNormal:
    """Semi-amortised inference: gradient steps on (mean, log variance) of each row, from the encoder's posterior on.

    Args:
        posterior: The posterior to start from.
        score: The values to be minimised, with the noise held fixed.
        steps: Number of steps of Adam.
        learning_rate: Learning rate of Adam.
        deadline: When it has passed, the best posterior so far is returned.

    Returns:
        The best posterior of each row, the start included.
    """
    mean, log_variance = (value.detach().clone().requires_grad_() for value in (posterior.mean, posterior.log_variance))
    optimizer = torch.optim.Adam([mean, log_variance], lr=learning_rate)
    best = DiagonalNormal(mean.detach().clone(), log_variance.detach().clone())
    lowest = torch.full((len(mean),), torch.inf, device=mean.device)
    for step in range(steps + 1):
        values = score(DiagonalNormal(mean, log_variance))
        better = values.detach() < lowest
        lowest = torch.where(better, values.detach(), lowest)
        best = DiagonalNormal(
            torch.where(better[:, None], mean.detach(), best.mean),
            torch.where(better[:, None], log_variance.detach(), best.log_variance),
        )
        if step == steps or deadline.passed:
            break
        mean.grad, log_variance.grad = torch.autograd.grad(values.sum(), (mean, log_variance))
        optimizer.step()
    return best
