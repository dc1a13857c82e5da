"""Rashomon sets: the candidates whose loss is close to that of a reference model."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from avcg.errors import DataError, SettingError
from avcg.hypotheses.base import HypothesisDistribution, check_count, deployed_model, is_around_one_network
from avcg.hypotheses.finite import FiniteSet
from avcg.hypotheses.predictors import Loss, Predictors
from avcg.models.adapter import ModelSpec

Reference = Literal["deterministic", "best"] | float


@dataclass(frozen=True, eq=False, kw_only=True)
class RashomonSet(FiniteSet):
    """The candidates with L(θ) <= L* + ε, with equal weights, and a record of how they were chosen.

    Attributes:
        losses: (N,) losses of all candidates.
        kept: (K,) positions of the candidates that were kept.
        reference_loss: Reference loss L*.
        epsilon: Largest excess loss ε.
        rule: Description of the rule by which candidates were kept.
        around_one_network: Whether the candidates were draws around one network.
    """

    losses: Tensor
    kept: Tensor
    reference_loss: float
    epsilon: float
    rule: str
    around_one_network: bool = False

    def __str__(self) -> str:
        return f"{len(self.kept)} of {len(self.losses)} candidates kept: {self.rule}"


def rashomon_set(
    candidates: HypothesisDistribution | Predictors,
    X: Any,
    y: Any,
    epsilon: float,
    *,
    loss: Loss = "cross_entropy",
    reference: Reference = "deterministic",
    n: int = 50,
    on_empty: Literal["keep_best", "raise"] = "keep_best",
    device: torch.device | str = "cpu",
    rng: torch.Generator | None = None,
) -> RashomonSet:
    """The candidates whose validation loss is within epsilon of a reference loss.

    Mind the scale: on a binary task a coin flip has a cross-entropy of ln 2 = 0.69, so ε = 0.8 excludes almost nothing.

    Args:
        candidates: A distribution to draw from, or hypotheses that are already drawn.
        X: Validation rows: encoded, or a frame if the space of the candidates is known.
        y: Labels of the validation rows.
        epsilon: Largest excess loss, >= 0.
        loss: ``"cross_entropy"`` or ``"zero_one"``.
        reference: Reference loss L*: that of the ``"deterministic"`` network, of the ``"best"`` candidate, or a number.
        n: Number of candidates to draw.
        on_empty: Behaviour if no candidate qualifies: ``"keep_best"`` with a warning, or ``"raise"``.
        device: Device on which losses are computed.
        rng: Random numbers; None: a generator seeded with 0.
    """
    if not epsilon >= 0:
        raise SettingError(f"The 'epsilon' parameter of rashomon_set must be >= 0. Got {epsilon!r} instead.")
    check_count(n, "rashomon_set")
    if on_empty not in ("keep_best", "raise"):
        raise SettingError(f"The 'on_empty' of rashomon_set must be 'keep_best' or 'raise'. Got {on_empty!r} instead.")
    space, classes = getattr(candidates, "space", None), getattr(candidates, "classes", None)
    x, labels = (part.to(device) for part in ModelSpec(torch.nn.Identity(), space, classes).pair(X, y))
    drawn = candidates if isinstance(candidates, Predictors) else candidates.sample(n, rng=rng)
    losses = drawn.to(device).losses(x, labels, loss).cpu()
    _check_finite(losses)
    reference_loss, description = _reference_loss(candidates, losses, x, labels, loss, reference)
    kept = torch.nonzero(losses <= reference_loss + epsilon).flatten()
    rule, lowest = f"{loss} <= {reference_loss:.4f} ({description}) + {epsilon:g}", float(losses.min())
    if not len(kept):
        if on_empty == "raise":
            raise SettingError(f"No candidate qualifies: {rule}. The best has {lowest:.4f}. Increase epsilon.")
        kept, rule = losses.argmin()[None], f"{rule}; none qualified, so the best ({lowest:.4f}) was kept"
        warnings.warn(f"rashomon_set: {rule}", stacklevel=2)
    members = drawn.subset(kept)
    members.weights = torch.full_like(members.weights, 1.0 / len(kept))
    around = is_around_one_network(candidates)
    return RashomonSet(
        members, space, classes, deployed_model(candidates), losses=losses, kept=kept, reference_loss=reference_loss,
        epsilon=epsilon, rule=rule, around_one_network=around,
    )  # fmt: skip


def _check_finite(losses: Tensor) -> None:
    if not torch.isfinite(losses).all():
        count = int((~torch.isfinite(losses)).sum())
        raise DataError(
            f"{count} of {len(losses)} candidates have a loss that is not a number. Check rows and networks for NaN."
        )


def _reference_loss(
    candidates: object, losses: Tensor, x: Tensor, y: Tensor, loss: Loss, reference: Reference
) -> tuple[float, str]:
    """The reference loss L* and its description."""
    if reference == "best":
        return float(losses.min()), "the best candidate"
    if reference == "deterministic":
        base = getattr(candidates, "deterministic", None)
        if base is None:
            raise SettingError(
                "These candidates have no deterministic network as a reference. Use reference='best' or a number."
            )
        return float(base().to(x.device).losses(x, y, loss)[0]), "the deterministic network"
    if isinstance(reference, (int, float)) and math.isfinite(reference):
        return float(reference), "as given"
    raise SettingError(
        f"The 'reference' of rashomon_set must be 'deterministic', 'best' or a number. Got {reference!r} instead."
    )
