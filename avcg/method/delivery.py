"""Delivery: the last check of answers, their status, and all that is said about them; numpy alone.

Explainers in torch and the light scorer both deliver by these functions, so that they say the same of an answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avcg.errors import InternalError
from avcg.method.query import Query, repeated_answers
from avcg.models.decision import DecisionRule, of_target
from avcg.space.encoding import Codes, Flags


@dataclass(frozen=True, eq=False)
class Assessment:
    """What is said about N = B n answers, all answers to a row one after the other.

    Attributes:
        statuses: (N,) one of `avcg.explainers.records.MEANING`.
        probability: (N,) probability of the target for the answer, by the deployed model.
        probability_before: (B,) probability of the target for the factual, by the deployed model.
        distance: (N,) cost of the change.
        repeated: (N,) whether the answer is the same as an earlier one of its row.
    """

    statuses: NDArray[np.str_]
    probability: NDArray[np.float64]
    probability_before: NDArray[np.float64]
    distance: NDArray[np.float64]
    repeated: Flags


def assess(
    query: Query,
    received: Codes,
    before: NDArray[Any],
    after: NDArray[Any],
    robust: Flags,
    rule: DecisionRule,
    unreachable: Callable[[Query], Flags],
) -> Assessment:
    """Status, probabilities, distance and repeats of answers as people receive them.

    Args:
        query: B rows, n answers each.
        received: (N, *event) codes of the decoded answers.
        before: (B, C) probabilities of the factuals, by the deployed model.
        after: (N, C) probabilities of the answers, by the deployed model.
        robust: (N,) whether the promised share of held-out models accepts each answer.
        rule: How probabilities become a decision.
        unreachable: Function from a query to whether it is proven of each row that no feasible point is valid.
    """
    per_answer, rows = query.per_answer()
    already = rule.valid(before, query.target, query.min_prob)
    valid = rule.valid(after, per_answer.target, query.min_prob)
    immovable, proven = np.zeros(len(already), bool), np.zeros(len(already), bool)
    failed = np.flatnonzero(~already & ~valid.reshape(len(already), -1).any(axis=1))
    if len(failed):  # a valid answer has moved, so that its row need not be looked at
        immovable[failed] = query.take(failed).space.immovable(query.x[failed])
        failed = failed[~immovable[failed]]
        proven[failed] = unreachable(query.take(failed)) if len(failed) else False
    return Assessment(
        statuses=statuses(already[rows], immovable[rows], proven[rows], valid, robust),
        probability=of_target(after, per_answer.target).astype(np.float64),
        probability_before=of_target(before, query.target).astype(np.float64),
        distance=per_answer.space.distance(received, per_answer.x).astype(np.float64),
        repeated=repeated_answers(received, query.n),
    )


def needed_votes(n_models: int, survival: float) -> int:
    """The least number of models that keeps a promise of survival.

    >>> needed_votes(20, 0.95)
    19
    """
    return math.ceil(n_models * survival - 1e-9)  # a float product may lie just above a whole number


def statuses(already: Flags, immovable: Flags, proven: Flags, valid: Flags, robust: Flags) -> NDArray[np.str_]:
    """(N,) the status of each answer; see `avcg.explainers.records.MEANING`.

    Args:
        already: Whether the row has the target decision as it is.
        immovable: Whether the row may change nothing.
        proven: Whether it is proven that no allowed change flips the decision.
        valid: Whether the deployed model decides for the target.
        robust: Whether the promised share of held-out models accepts the answer.
    """
    judged = np.where(~valid, np.where(proven, "infeasible", "not_found"), np.where(robust, "ok", "not_robust"))
    return np.where(already, "already_target", np.where(immovable, "immovable", judged))


def check_delivery(violated: Flags) -> None:
    """Refuse to hand out answers if any of them breaks a constraint.

    Args:
        violated: (N,) whether each answer breaks a constraint.

    Raises:
        InternalError: If any does. That is a defect of avcg, and no answer is handed out.
    """
    if violated.any():
        raise InternalError(
            f"{int(violated.sum())} of {len(violated)} answers break a constraint, the first at position"
            f" {int(violated.argmax())}. This is a defect in avcg, and none of them is handed out. Please report it"
            " with the schema."
        )
