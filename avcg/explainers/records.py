"""One answer to one row, as plain values: what a letter, a page or a program needs. Python alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

MOST_ANSWERS = 10  # to one row, that a scorer has noise for and a service gives

Status = Literal["ok", "already_target", "infeasible", "not_valid", "not_robust"]

MEANING: Mapping[str, str] = {
    "ok": "the decision flips, and the promised share of set-aside models agrees, where any were set aside",
    "already_target": "the decision is already the one asked for; nothing is changed",
    "infeasible": "nothing that may change is left; nothing is changed",
    "not_valid": "the best change found does not flip the decision",
    "not_robust": "the decision flips, but fewer set-aside models agree than promised",
}


def at_least(bound: Any) -> str:
    """A lower bound with two decimals, never rounded up: it would claim what was not proven.

    >>> at_least(0.5493)
    '0.54'
    """
    return f"{math.floor(100 * float(bound) + 1e-9) / 100:.2f}"


@dataclass(frozen=True)
class Option:
    """One answer to one row.

    Attributes:
        status: One of `MEANING`.
        changes: By column, what it was and what it becomes.
        probability: Of the target under the model in force, if the change is made.
        distance: What the change costs.
        agreeing: Of the set-aside models; None where there are none.
        lower_bound: On the share of all models that would agree; None likewise.
        repeated: Whether it is the same as an earlier option of its row, for want of another.
        row: The whole answer by column; empty for images.
    """

    status: str
    changes: Mapping[str, tuple[Any, Any]]
    probability: float
    distance: float
    agreeing: int | None
    lower_bound: float | None
    repeated: bool = False
    row: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """The answers to one row.

    Attributes:
        index: Its label in the user's frame, or its position.
        target: The decision asked for.
        options: One or more, the best first.
        probability_before: Of the target under the model in force, as things are.
        decision: As things are; None where it was not recorded.
    """

    index: Any
    target: Any
    options: tuple[Option, ...]
    probability_before: float = float("nan")
    decision: Any = None

    @property
    def status(self) -> str:
        """Of the best answer."""
        return self.options[0].status

    @property
    def changes(self) -> Mapping[str, tuple[Any, Any]]:
        """Of the best answer."""
        return self.options[0].changes
