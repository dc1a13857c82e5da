"""Making an answer better than one pass can: take back what is not needed, and move the latent posterior itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from avcg.errors import SettingError, check_int
from avcg.method.generator import DiagonalNormal
from avcg.space.base import Space

# From (M, *event) candidates and (M,) which row each is for, to (M,) whether it will do.
Accept = Callable[[Tensor, Tensor], Tensor]
# From a posterior to (B,) what is to be minimised.
Score = Callable[[DiagonalNormal], Tensor]


@dataclass(frozen=True)
class Refinement:
    """What to spend on an answer after the first pass.

    Attributes:
        prune: Whether to take back changes while the answer stays valid and robust.
        steps: Of gradient descent on each row's latent posterior, before that.
        learning_rate: Of these steps.
    """

    prune: bool = True
    steps: int = 0
    learning_rate: float = 0.1

    def __post_init__(self) -> None:
        check_int(self.steps, "'steps' of Refinement", 0)
        if not self.learning_rate > 0:
            raise SettingError(f"The 'learning_rate' of Refinement must be > 0. Got {self.learning_rate!r} instead.")


@dataclass(frozen=True)
class Deadline:
    """A moment after which nothing new is begun.

    Attributes:
        at: By `time.monotonic`; infinity: never.
    """

    at: float = float("inf")

    @classmethod
    def after(cls, seconds: float | None) -> Deadline:
        """So many seconds from now; None: never.

        Raises:
            SettingError: If it is no time.
        """
        if seconds is None:
            return cls()
        if not seconds > 0:
            raise SettingError(f"The 'time_budget' must be > 0 seconds. Got {seconds!r} instead.")
        return cls(time.monotonic() + seconds)

    @property
    def passed(self) -> bool:
        """Whether it is over."""
        return time.monotonic() >= self.at


@torch.no_grad()
def prune(space: Space, x: Tensor, x_cf: Tensor, accept: Accept, deadline: Deadline, rounds: int) -> Tensor:
    """Take back changes, greatest saving first, while the answers are accepted: all rows at once, round by round.

    Args:
        space: Of the B rows.
        x: (B, *event) the factuals.
        x_cf: (B, *event) feasible answers that are accepted.
        accept: Which candidates will do.
        deadline: The best so far is returned when it has passed.
        rounds: Rounds of taking changes back, at most.

    Returns:
        (B, *event) feasible answers, none dearer than before.
    """
    best, cost = x_cf.clone(), space.distance(x_cf, x)
    alive = torch.arange(len(x), device=x.device)
    for _ in range(rounds):
        if not len(alive) or deadline.passed:
            break
        mine = space.take(alive)
        which, candidates = mine.smaller(best[alive], x[alive])
        rows = alive[which]
        price = space.distance(candidates, x[rows])
        cheaper = price < cost[rows] - 1e-6
        rows, candidates, price = rows[cheaper], candidates[cheaper], price[cheaper]
        will_do = accept(candidates, rows)
        rows, candidates, price = rows[will_do], candidates[will_do], price[will_do]
        # The cheapest of each row: dearest first, so that the cheapest is written last.
        order = price.argsort(descending=True, stable=True)
        winner = torch.full((len(x),), -1, dtype=torch.long, device=x.device)
        winner[rows[order]] = order
        alive = torch.nonzero(winner >= 0).flatten()
        best[alive], cost[alive] = candidates[winner[alive]], price[winner[alive]]
    return best


def descend(
    posterior: DiagonalNormal, score: Score, steps: int, learning_rate: float, deadline: Deadline
) -> DiagonalNormal:
    """Semi-amortised inference: gradient steps on (mean, log variance) of each row, from the encoder's own.

    Args:
        posterior: Where to start.
        score: What is to be minimised, with its noise held fixed.
        steps: Of Adam.
        learning_rate: Of Adam.
        deadline: The best so far is returned when it has passed.

    Returns:
        For each row the best seen, the start included.
    """
    mean, spread = (value.detach().clone().requires_grad_() for value in (posterior.mean, posterior.log_variance))
    optimizer = torch.optim.Adam([mean, spread], lr=learning_rate)
    best = [value.detach().clone() for value in (mean, spread)]
    lowest = torch.full((len(mean),), torch.inf, device=mean.device)
    for step in range(steps + 1):
        values = score(DiagonalNormal(mean, spread))
        better = values.detach() < lowest
        lowest = torch.where(better, values.detach(), lowest)
        best = [
            torch.where(better[:, None], now.detach(), kept) for now, kept in zip((mean, spread), best, strict=True)
        ]
        if step == steps or deadline.passed:
            break
        gradients = torch.autograd.grad(values.sum(), (mean, spread))
        mean.grad, spread.grad = gradients
        optimizer.step()
    return DiagonalNormal(*best)
