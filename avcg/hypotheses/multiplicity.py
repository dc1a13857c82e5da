"""How much a set of models disagrees, on any rows: factuals or counterfactuals.

All functions take probabilities (S, N, C); one value per row unless said otherwise.
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
        raise DataError("Probabilities must sum to one over the classes. Take exp of log-probabilities first.")


def _decisions(probabilities: Tensor) -> Tensor:
    _check(probabilities)
    return probabilities.argmax(dim=-1)


def ambiguity(probabilities: Tensor, base: Tensor) -> Tensor:
    """(N,) 1 where some model decides otherwise than the base model; its mean is the ambiguity of the set.

    Args:
        probabilities: (S, N, C).
        base: (N,) the base model's decisions.

    >>> p = torch.tensor([[[0.9, 0.1], [0.4, 0.6]], [[0.8, 0.2], [0.6, 0.4]]])
    >>> ambiguity(p, torch.tensor([0, 0]))
    tensor([0., 1.])
    """
    return (_decisions(probabilities) != base).any(dim=0).float()


def discrepancy(probabilities: Tensor, base: Tensor) -> Tensor:
    """The largest share of rows on which a single model decides otherwise than the base model, a scalar."""
    return (_decisions(probabilities) != base).float().mean(dim=1).max()


def disagreement(probabilities: Tensor) -> Tensor:
    """(N,) the chance that two models drawn at random decide differently, scaled to 1 for an even split.

    For two classes this is 4 m (1 - m), with m the share of models that decide for one of them.
    """
    decisions = _decisions(probabilities)
    classes = probabilities.shape[-1]
    shares = torch.nn.functional.one_hot(decisions, classes).float().mean(dim=0)
    return (1 - shares.square().sum(dim=-1)) / (1 - 1 / classes)


def viable_prediction_range(probabilities: Tensor, target: Tensor) -> Tensor:
    """(N,) highest minus lowest probability any model gives the target class.

    Args:
        probabilities: (S, N, C).
        target: (N,).
    """
    scores = _scores(probabilities, target)
    return scores.amax(dim=0) - scores.amin(dim=0)


def score_variance(probabilities: Tensor, target: Tensor) -> Tensor:
    """(N,) variance over models of the probability of the target class."""
    return _scores(probabilities, target).var(dim=0, correction=0)


def _scores(probabilities: Tensor, target: Tensor) -> Tensor:
    _check(probabilities)
    return probabilities.gather(-1, target.expand(len(probabilities), -1)[..., None])[..., 0]


def rashomon_capacity(probabilities: Tensor, tolerance: float = 1e-9, max_steps: int = 2000) -> Tensor:
    """(N,) 2 to the channel capacity from models to scores, in [1, C]: how many different answers the set can give.

    Blahut-Arimoto in logarithms, all rows at once, until upper and lower bound on the capacity meet.

    Args:
        probabilities: (S, N, C).
        tolerance: In nats.
        max_steps: At most.
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
    """All of them, averaged over rows.

    Args:
        probabilities: (S, N, C).
        base: (N,) decisions to compare with; None: those of the mean prediction.
        target: (N,) the class whose score is looked at; None: ``base``.
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
