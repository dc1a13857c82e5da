"""Calibration: the least margin that keeps a promise of survival, on rows and hypotheses not trained on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor

from avcg.hypotheses.predictors import Predictors
from avcg.method.deployed import DeployedModel
from avcg.method.query import Query


@dataclass(frozen=True, eq=False)
class Calibration:
    """The margin that was chosen, and what it was chosen by.

    Attributes:
        margin: Log-odds beyond the decision that the generator is asked for.
        promise: Share of hypotheses that must agree with an answer.
        met: Whether the promise is kept at that margin.
        survival: Share of (row, hypothesis) pairs that agree at that margin.
        frontier: By margin: survival with its standard error over hypotheses, validity, distance and changes.
        n_rows: Number of rows it was measured on.
        n_hypotheses: Number of hypotheses it was measured by.
        standard_errors: Number of standard errors over hypotheses by which the promise must be kept clear.
    """

    margin: float
    promise: float
    met: bool
    survival: float
    frontier: pd.DataFrame
    n_rows: int
    n_hypotheses: int
    standard_errors: float

    @property
    def best(self) -> float:
        """The highest survival that some margin keeps, less the standard errors."""
        return float((self.frontier["survival"] - self.standard_errors * self.frontier["error"]).max())

    def __str__(self) -> str:
        basis = f"{self.n_hypotheses} hypotheses agree on {self.n_rows} rows that were not trained on"
        error = float(self.frontier["error"].loc[self.margin])
        if self.met:
            return f"survival={self.promise} is met: {self.survival:.3f} (standard error {error:.3f}) of {basis}."
        return (
            f"survival={self.promise} could not be met: at best {self.survival:.3f} (standard error {error:.3f}) of"
            f" {basis}. See calibration_.frontier; train longer, let more features change, or lower the promise."
        )


def survival_of(
    deployed: DeployedModel, hypotheses: Predictors, answers: Tensor, target: Tensor
) -> tuple[float, float]:
    """The share of (answer, hypothesis) pairs that agree, and its standard error over hypotheses.

    Args:
        deployed: The deployed model, for its decision rule.
        hypotheses: θ_1..θ_S.
        answers: (N, *event) encoded answers.
        target: (N,) class positions.
    """
    shares = deployed.agree(hypotheses, answers, target).float().mean(dim=1)
    deviation = float(shares.std(correction=min(1, len(shares) - 1)))
    return float(shares @ hypotheses.weights), deviation / len(shares) ** 0.5


def calibrate(
    margins: Sequence[float],
    answer: Callable[[float], Tensor],
    query: Query,
    deployed: DeployedModel,
    hypotheses: Predictors,
    promise: float,
    standard_errors: float,
) -> Calibration:
    """Choose the least margin that keeps a promise; where none does, the one with the highest survival.

    The promise is about the next model and not about these few, so it must hold with standard errors to spare.

    Args:
        margins: Log-odds to choose from, ascending.
        answer: Function from a margin to (B, *event) answers.
        query: B rows that were not trained on.
        deployed: The deployed model.
        hypotheses: Hypotheses that were not trained against.
        promise: Share of hypotheses that must agree with an answer.
        standard_errors: Number of standard errors over hypotheses by which the promise must be kept clear.
    """
    x, target, space = torch.from_numpy(query.x), torch.from_numpy(query.target), query.space.tensors
    rows = []
    for margin in margins:
        answers = answer(margin)
        survival, error = survival_of(deployed, hypotheses, answers, target)
        valid = deployed.valid(deployed.probabilities(answers), target)
        rows.append(
            {
                "margin": margin,
                "survival": survival,
                "error": error,
                "validity": float(valid.float().mean()),
                "distance": float(space.distance(answers, x).mean()),
                "changes": float(space.count_changes(answers, x).mean()),
            }
        )
    keeps = [min(row["survival"] - standard_errors * row["error"], row["validity"]) >= promise for row in rows]
    survivals = [row["survival"] for row in rows]
    chosen = keeps.index(True) if any(keeps) else survivals.index(max(survivals))
    return Calibration(
        margin=margins[chosen],
        promise=promise,
        met=any(keeps),
        survival=survivals[chosen],
        frontier=pd.DataFrame(rows).set_index("margin"),
        n_rows=len(query.x),
        n_hypotheses=len(hypotheses),
        standard_errors=standard_errors,
    )
