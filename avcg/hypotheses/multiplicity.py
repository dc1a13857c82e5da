"""Measures of predictive multiplicity: how much a set of models disagrees on rows, factual or counterfactual.

All functions take (S, N, C) probabilities and return one value per row unless their docstring says otherwise.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from avcg.errors import DataError


def _check(probabilities: Tensor) -> None:
    if probabilities.dim() != 3 or not torch.isfinite(probabilities).all():
        raise DataError(f"Probabilities must be finite and of shape (S, N, C). Got {tuple(probabilities.shape)}.")
    if not torch.allclose(probabilities.sum(dim=-1), torch.ones_like(probabilities[..., 0]), atol=1e-3):
        raise DataError(
            "Probabilities must sum to one over the classes. If these are log-probabilities, take their exp first."
        )


def _decisions(probabilities: Tensor) -> Tensor:
    _check(probabilities)
    return probabilities.argmax(dim=-1)


def ambiguity(probabilities: Tensor, base: Tensor) -> Tensor:
    """(N,) 1 where any model decides differently from the base model, else 0. Its mean is the ambiguity of the set.

    Args:
        probabilities: (S, N, C) probabilities of the models.
        base: (N,) decisions of the base model.

    >>> p = torch.tensor([[[0.9, 0.1], [0.4, 0.6]], [[0.8, 0.2], [0.6, 0.4]]])
    >>> ambiguity(p, torch.tensor([0, 0]))
    tensor([0., 1.])
    """
    return (_decisions(probabilities) != base).any(dim=0).float()


def discrepancy(probabilities: Tensor, base: Tensor) -> Tensor:
    """The largest share of rows, a scalar, on which a single model decides differently from the base model."""
    return (_decisions(probabilities) != base).float().mean(dim=1).max()


def disagreement(probabilities: Tensor) -> Tensor:
    """(N,) probability that two models drawn at random decide differently, scaled to 1 for an even split.

    For two classes this is 4 m (1 - m), where m is the share of models that decide for one of them.
    """
    decisions = _decisions(probabilities)
    classes = probabilities.shape[-1]
    shares = torch.nn.functional.one_hot(decisions, classes).float().mean(dim=0)
    return (1 - shares.square().sum(dim=-1)) / (1 - 1 / classes)


def viable_prediction_range(probabilities: Tensor, target: Tensor) -> Tensor:
    """(N,) highest minus lowest probability that a model gives to the target class.

    Args:
        probabilities: (S, N, C) probabilities of the models.
        target: (N,) class positions.
    """
    scores = _scores(probabilities, target)
    return scores.amax(dim=0) - scores.amin(dim=0)


def score_variance(probabilities: Tensor, target: Tensor) -> Tensor:
    """(N,) variance of the target class's probability over the models."""
    return _scores(probabilities, target).var(dim=0, correction=0)


def _scores(probabilities: Tensor, target: Tensor) -> Tensor:
    _check(probabilities)
    return probabilities.gather(-1, target.expand(len(probabilities), -1)[..., None])[..., 0]


def rashomon_capacity(probabilities: Tensor, tolerance: float = 1e-9, max_steps: int = 2000) -> Tensor:
    """(N,) Rashomon capacity in [1, C]: 2 to the channel capacity, in bits, from models to scores.

    It is computed by the Blahut-Arimoto algorithm in logarithms, for all rows at once, until the upper and lower bounds
    on the capacity meet.

    Args:
        probabilities: (S, N, C) probabilities of the models.
        tolerance: Largest difference of the two bounds at which to stop, in nats.
        max_steps: Largest number of steps.
    """
    _check(probabilities)
    p = probabilities.double().clamp(min=1e-300)
    log_p = p.log()
    log_r = torch.full_like(p[..., 0], -math.log(len(p)))
    lower = torch.zeros_like(p[0, :, 0])
    for _ in range(max_steps):
        mixture = torch.logsumexp(log_r[..., None] + log_p, dim=0)
        divergence = (p * (log_p - mixture)).sum(dim=-1)
        lower, upper = torch.logsumexp(log_r + divergence, dim=0), divergence.amax(dim=0)
        if bool((upper - lower).max() < tolerance):
            break
        log_r = log_r + divergence
        log_r = log_r - torch.logsumexp(log_r, dim=0)
    return lower.exp().clamp(min=1.0, max=float(p.shape[-1])).to(probabilities.dtype)


def summary(probabilities: Tensor, base: Tensor | None = None, target: Tensor | None = None) -> dict[str, float]:
    """All measures of this module by name, averaged over rows.

    Args:
        probabilities: (S, N, C) probabilities of the models.
        base: (N,) decisions of the base model; None: decisions of the mean prediction.
        target: (N,) class positions whose scores are compared; None: ``base``.
    """
    base = probabilities.mean(dim=0).argmax(dim=-1) if base is None else base
    target = base if target is None else target
    return {
        "ambiguity": float(ambiguity(probabilities, base).mean()),
        "discrepancy": float(discrepancy(probabilities, base)),
        "disagreement": float(disagreement(probabilities).mean()),
        "viable_prediction_range": float(viable_prediction_range(probabilities, target).mean()),
        "score_variance": float(score_variance(probabilities, target).mean()),
        "rashomon_capacity": float(rashomon_capacity(probabilities).mean()),
    }
