"""What can be seen of a generator that has stopped listening to the rows it answers."""

from __future__ import annotations

import math
import warnings

import pandas as pd
import torch
from torch import Tensor

from avcg.method.generator import DiagonalNormal
from avcg.method.query import Query
from avcg.space.encoding import Codes

# Below this, people hardly differ in what they are told; a latent unit below that variance says nothing.
COLLAPSED, _ACTIVE = 0.1, 0.01


def look(query: Query, posterior: DiagonalNormal, answers: Codes) -> dict[str, float]:
    """KL, latent units in use, how much people's answers differ, how much is changed.

    Args:
        query: Rows that were not trained on.
        posterior: Theirs.
        answers: (B, *event) to them.
    """
    x, target, given = (torch.from_numpy(part) for part in (query.x, query.target, answers))
    return {
        "kl": float(posterior.kl().mean()),
        "active_units": int((posterior.mean.var(dim=0, correction=min(1, len(query.x) - 1)) > _ACTIVE).sum()),
        "personalisation": personalisation(given, x, target),
        "changes": float(query.space.tensors.count_changes(given, x).mean()),
    }


def warn_of_collapse(seen: pd.DataFrame) -> None:
    """Warn where the last look shows that everyone is told nearly the same."""
    found = collapse(seen)
    if found is not None:
        warnings.warn(f"AVCG: {found}", stacklevel=5)


def collapse(seen: pd.DataFrame) -> str | None:
    """What the last look shows of a generator that tells everyone nearly the same; None where it does not.

    Args:
        seen: One line for each look, as `look` gives them.

    >>> collapse(pd.DataFrame({"personalisation": [0.05, 0.6]}))
    >>> collapse(pd.DataFrame({"personalisation": [0.6, 0.05]}))[:58]
    'the generator sends everyone to nearly one profile: answer'
    """
    share = seen["personalisation"].iloc[-1]
    if not share < COLLAPSED:
        return None
    return (
        f"the generator sends everyone to nearly one profile: answers differ {share:.0%} as much as the rows they"
        " answer. Use decoder='residual', or raise the weight of proximity."
    )


def personalisation(answers: Tensor, x: Tensor, target: Tensor) -> float:
    """The spread of answers over the spread of the rows they answer, among rows with one target: 0 for one profile.

    Args:
        answers: (B, *event).
        x: (B, *event).
        target: (B,).
    """
    shares, total = 0.0, 0
    for label in target.unique().tolist():
        mine = target == label
        if int(mine.sum()) > 1:
            spread = answers[mine].flatten(1).std(dim=0).sum() / x[mine].flatten(1).std(dim=0).sum().clamp(min=1e-9)
            shares, total = shares + float(spread) * int(mine.sum()), total + int(mine.sum())
    return shares / total if total else math.nan
