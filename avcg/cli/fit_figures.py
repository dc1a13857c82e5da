"""The figures of ``avcg fit``: an explainer measured on rows that were held out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from avcg.auditing.audit import TOLD
from avcg.explainers.avcg import AVCG
from avcg.space.tabular import table_of

_MAX_MEASURED = 2000  # denied rows that the figures are measured on


def measure(explainer: AVCG, held_out: pd.DataFrame, outcomes: NDArray[Any], positive: Any) -> dict[str, Any]:
    """Measure an explainer on rows that it was not fitted to.

    Args:
        explainer: A fitted explainer.
        held_out: Rows to measure it on.
        outcomes: (N,) their outcomes.
        positive: The outcome that people want.

    Returns:
        The figures, as values of JSON.
    """
    space = table_of(explainer.space_)
    assert space is not None
    decisions = explainer.decide(held_out)
    denied = held_out[decisions != positive]
    counts = np.unique(outcomes, return_counts=True)[1]
    figures: dict[str, Any] = {
        "held_out": len(held_out),
        "accuracy": float((decisions == outcomes).mean()),
        "most_frequent": float(counts.max() / counts.sum()),
        "denied": len(denied),
        "promise": str(explainer.calibration_),
        "statements": [statement.to_dict() for statement in explainer.statements()],
    }
    names = ("measured", "statuses", "coverage", "survival", "n_models", "distance", "changes", "violations")
    figures |= dict.fromkeys(names)
    if not len(denied):
        return figures
    answers = explainer.generate(denied.head(_MAX_MEASURED), positive)
    delivered = np.isin(answers.statuses, TOLD)
    certificate = answers.certificate
    assert answers.changed is not None
    figures |= {
        "measured": len(answers),
        "statuses": {str(name): int(count) for name, count in answers.summary().items()},
        "coverage": float((answers.statuses == "ok").mean()),
        "violations": int(space.violations(answers.answers, answers.factuals).sum()),
        "n_models": None if certificate is None else certificate.n,
    }
    if delivered.any():
        figures |= {
            "survival": None if certificate is None else float(certificate.share[delivered].mean()),
            "distance": float(answers.distance[delivered].mean()),
            "changes": float(answers.changed[delivered].sum(axis=1).mean()),
        }
    return figures
