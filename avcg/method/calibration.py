"""Keeping a promise of survival: the least margin for which it holds, on rows and hypotheses not trained on."""

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
    """How the margin was chosen.

    Attributes:
        margin: Log-odds beyond the decision's line that the generator is asked for.
        promise: The share of models that is to agree.
        met: Whether it held at that margin.
        survival: The share of (row, hypothesis) pairs that agreed at it.
        frontier: By margin: survival with its standard error over hypotheses, validity, distance and changes.
        standard_errors: Standard errors over hypotheses by which the promise was to be kept clear.
        n_rows: Rows it was measured on.
        n_hypotheses: Hypotheses it was measured by.
    """

    margin: float
    promise: float
    met: bool
    survival: float
    frontier: pd.DataFrame
    n_rows: int
    n_hypotheses: int
    standard_errors: float = 2.0

    @property
    def best(self) -> float:
        """The highest survival that any margin keeps clear of its error."""
        return float((self.frontier["survival"] - self.standard_errors * self.frontier["error"]).max())

    def __str__(self) -> str:
        where = f"{self.n_hypotheses} hypotheses agree on {self.n_rows} rows that were not trained on"
        error = float(self.frontier["error"].loc[self.margin])
        if self.met:
            return f"survival={self.promise} is met: {self.survival:.3f} (standard error {error:.3f}) of {where}."
        return (
            f"survival={self.promise} could not be met: at best {self.survival:.3f} (standard error {error:.3f}) of"
            f" {where}. See calibration_.frontier; train longer, let more features change, or lower the promise."
        )


def survival_of(
    deployed: DeployedModel, hypotheses: Predictors, answers: Tensor, target: Tensor
) -> tuple[float, float]:
    """The share of (answer, hypothesis) pairs that agree, and its standard error over hypotheses."""
    shares = deployed.agree(hypotheses, answers, target).float().mean(dim=1)
    return float(shares @ hypotheses.weights), float(shares.std(correction=min(1, len(shares) - 1))) / len(
        shares
    ) ** 0.5


def calibrate(
    margins: Sequence[float],
    answer: Callable[[float], Tensor],
    query: Query,
    deployed: DeployedModel,
    hypotheses: Predictors,
    promise: float,
    standard_errors: float = 2.0,
) -> Calibration:
    """Choose the least margin that keeps a promise; where none does, the one that comes closest.

    The promise is about the next model, not about these few, so it must hold with two standard errors to spare.

    Args:
        margins: Ascending.
        answer: From a margin to (B, *event) answers.
        query: The B rows, not trained on.
        deployed: The model in force.
        hypotheses: Not trained on either.
        promise: The share of models that is to agree.
        standard_errors: Standard errors over hypotheses by which the promise must be kept clear.
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
    holds = [min(row["survival"] - standard_errors * row["error"], row["validity"]) >= promise for row in rows]
    survivals = [row["survival"] for row in rows]
    chosen = holds.index(True) if any(holds) else survivals.index(max(survivals))
    return Calibration(
        margin=margins[chosen],
        promise=promise,
        met=any(holds),
        survival=survivals[chosen],
        frontier=pd.DataFrame(rows).set_index("margin"),
        n_rows=len(query.x),
        n_hypotheses=len(hypotheses),
        standard_errors=standard_errors,
    )
