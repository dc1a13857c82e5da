"""What becomes of an answer: how many votes keep a promise, and the status people read. numpy alone."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from avcg.errors import InternalError
from avcg.space.encoding import Flags


def needed_votes(models: int, survival: float) -> int:
    """The least number of models that keeps a promise of survival.

    >>> needed_votes(20, 0.95)
    19
    """
    return math.ceil(models * survival - 1e-9)


def statuses(already: Flags, immovable: Flags, valid: Flags, robust: Flags) -> NDArray[np.str_]:
    """(N,) the status of each answer; see `avcg.explainers.records.MEANING`.

    Args:
        already: Rows that have the decision as they are.
        immovable: Rows that may change nothing.
        valid: Answers for which the deployed model decides as asked.
        robust: Answers that the promised share of held-out models accepts.
    """
    judged = np.where(~valid, "not_valid", np.where(robust, "ok", "not_robust"))
    return np.where(already, "already_target", np.where(immovable, "infeasible", judged))


def check_delivery(broken: Flags) -> None:
    """The last look before answers are handed out.

    Args:
        broken: (N,) whether an answer breaks a constraint.

    Raises:
        InternalError: If any does. That is a defect of avcg, and no answer is given.
    """
    if broken.any():
        raise InternalError(
            f"{int(broken.sum())} of {len(broken)} answers break a constraint, the first at position"
            f" {int(broken.argmax())}. This is a defect in avcg, and none of them is handed out. Please report it with"
            " the schema."
        )
