"""Semi-amortised inference: gradient steps on the latent posterior of each row, which the amortization gap measures."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from avcg.method.generator import DiagonalNormal

# From a posterior over B rows to the (B,) values to be minimised.
Score = Callable[[DiagonalNormal], Tensor]


def descend(posterior: DiagonalNormal, score: Score, steps: int, learning_rate: float) -> DiagonalNormal:
    """Semi-amortised inference: gradient steps on (mean, log variance) of each row, from the encoder's posterior on.

    Args:
        posterior: The posterior to start from.
        score: The values to be minimised, with the noise held fixed.
        steps: Number of steps of Adam.
        learning_rate: Learning rate of Adam.

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
        if step == steps:
            break
        mean.grad, log_variance.grad = torch.autograd.grad(values.sum(), (mean, log_variance))
        optimizer.step()
    return best
