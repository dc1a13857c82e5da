"""Signs that a generator ignores the rows it answers: KL, active latent units, personalisation."""

from __future__ import annotations

import math
import warnings

import pandas as pd
import torch
from torch import Tensor

from avcg.method.config import DiagnosticsConfig
from avcg.method.generator import DiagonalNormal
from avcg.method.query import Query
from avcg.space.encoding import Codes


def measure(query: Query, posterior: DiagonalNormal, answers: Codes, config: DiagnosticsConfig) -> dict[str, float]:
    """The KL divergence, active latent units, personalisation, and mean number of changes of answers.

    Args:
        query: B rows that were not trained on.
        posterior: The posterior of each row.
        answers: (B, *event) the answers to them.
        config: When a latent unit counts as active.
    """
    x, target, x_cf = (torch.from_numpy(part) for part in (query.x, query.target, answers))
    variance = posterior.mean.var(dim=0, correction=min(1, len(query.x) - 1))
    return {
        "kl": float(posterior.kl().mean()),
        "active_units": int((variance > config.active_variance).sum()),
        "personalisation": personalisation(x_cf, x, target),
        "changes": float(query.space.tensors.count_changes(x_cf, x).mean()),
    }


def warn_of_collapse(epochs: pd.DataFrame, config: DiagnosticsConfig) -> None:
    """Warn if, after the last epoch, nearly everyone is sent to one profile."""
    message = collapse(epochs, config)
    if message is not None:
        warnings.warn(f"AVCG: {message}", stacklevel=5)


def collapse(epochs: pd.DataFrame, config: DiagnosticsConfig) -> str | None:
    """A sentence that says the answers have collapsed to nearly one profile; None if they have not.

    Args:
        epochs: One line for each epoch, with the columns that `measure` returns.
        config: The personalisation below which answers have collapsed.

    >>> collapse(pd.DataFrame({"personalisation": [0.05, 0.6]}), DiagnosticsConfig())
    >>> collapse(pd.DataFrame({"personalisation": [0.6, 0.05]}), DiagnosticsConfig())[:58]
    'the generator sends everyone to nearly one profile: answer'
    """
    share = epochs["personalisation"].iloc[-1]
    if not share < config.collapsed:
        return None
    return (
        f"the generator sends everyone to nearly one profile: answers differ {share:.0%} as much as the rows they"
        " answer. Use decoder='residual', or raise the weight of proximity."
    )


def personalisation(answers: Tensor, x: Tensor, target: Tensor) -> float:
    """The spread of answers over the spread of the rows they answer, among rows with one target: 0 for one profile.

    Args:
        answers: (B, *event) encoded answers.
        x: (B, *event) encoded rows.
        target: (B,) class positions.
    """
    weighted, total = 0.0, 0
    for label in target.unique().tolist():
        members = target == label
        count = int(members.sum())
        if count > 1:
            answer_spread = answers[members].flatten(1).std(dim=0).sum()
            ratio = answer_spread / x[members].flatten(1).std(dim=0).sum().clamp(min=1e-9)
            weighted, total = weighted + float(ratio) * count, total + count
    return weighted / total if total else math.nan
