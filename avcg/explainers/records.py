"""Answers as plain Python values, for letters, pages and programs; this module needs only the standard library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from avcg.guarantees.statement import agreement, proof

MOST_ANSWERS = 10  # answers to one row; a light scorer stores noise for as many, and a service gives no more

Status = Literal["ok", "already_target", "immovable", "infeasible", "not_found", "not_robust"]

MEANING: Mapping[str, str] = {
    "ok": "the decision flips, and enough of the models held back from training accept the answer, if there are any",
    "already_target": "the decision is already the target; nothing is changed",
    "immovable": "the row may not change in any way; nothing is changed",
    "infeasible": "it is proven that no allowed change flips the decision; the change shown comes close",
    "not_found": "no change that flips the decision was found; the change shown comes closest",
    "not_robust": "the decision flips, but too few of the models held back from training accept the answer",
}


# Columns of results that `votes_in_words` takes, in its order.
VOTES = ("status", "agreeing", "n_models", "accepting_unchanged", "harmed")
UNCHANGED = ("already_target", "immovable")  # statuses of answers that change nothing


@dataclass(frozen=True)
class Option:
    """One answer to one row.

    Attributes:
        status: Status, a key of `MEANING`.
        changes: Values before and after the change, by column; only columns that change.
        probability: Probability of the target for the answer, by the deployed model.
        distance: Cost of the change.
        agreeing: Number of models held back from training that accept the answer; None if there are none.
        lower_bound: Lower bound on the share of all models that would, proven by the test models among them; None
            likewise.
        repeated: Whether the answer is the same as an earlier one to its row, because no other was found.
        row: All values of the answer, by column; empty for images.
        agreeing_test: Number of the test models that accept it; None if no models are held back from training.
        accepting_unchanged: Number of models held back from training that accept the row as it is; None likewise.
        harmed: Number of these that refuse the answer; None likewise.
    """

    status: str
    changes: Mapping[str, tuple[Any, Any]]
    probability: float
    distance: float
    agreeing: int | None
    lower_bound: float | None
    repeated: bool = False
    row: Mapping[str, Any] = field(default_factory=dict)
    agreeing_test: int | None = None
    accepting_unchanged: int | None = None
    harmed: int | None = None

    def agreement(self, n_models: int) -> str | None:
        """What the models held back from training say of it, in words; None without models or changes.

        Args:
            n_models: Number of these models.
        """
        return votes_in_words(self.status, self.agreeing, n_models, self.accepting_unchanged, self.harmed)

    def proof(self, n_test: int, confidence: float) -> str | None:
        """What the test models prove of it, in words; None without models held back, or without changes.

        Args:
            n_test: Number of test models.
            confidence: Confidence of the lower bound.
        """
        if self.agreeing_test is None or self.lower_bound is None or self.status in UNCHANGED:
            return None
        return proof(self.agreeing_test, n_test, self.lower_bound, confidence)


@dataclass(frozen=True)
class Row:
    """One row and the answers to it.

    Attributes:
        index: Label of the row in the user's frame, or its position.
        target: The decision to reach.
        options: One or more answers, the best first.
        probability_before: Probability of the target for the unchanged row, by the deployed model.
        decision: Decision for the unchanged row; None if it was not recorded.
    """

    index: Any
    target: Any
    options: tuple[Option, ...]
    probability_before: float = float("nan")
    decision: Any = None

    @property
    def status(self) -> str:
        """The status of the best answer."""
        return self.options[0].status

    @property
    def changes(self) -> Mapping[str, tuple[Any, Any]]:
        """The changes of the best answer, as values before and after by column."""
        return self.options[0].changes


def votes_in_words(
    status: str,
    agreeing: int | None,
    n_models: int | None,
    accepting_unchanged: int | None = None,
    harmed: int | None = None,
) -> str | None:
    """What the models held back from training say of an answer; None without models, or where nothing changes.

    Args:
        status: Status of the answer, a key of `MEANING`.
        agreeing: Number of models that accept it; None: there are none.
        n_models: Number of models.
        accepting_unchanged: Number of these that accept the row as it is; None: it is not known.
        harmed: Number of these that refuse the answer; None likewise.
    """
    if agreeing is None or not n_models or status in UNCHANGED:
        return None
    return agreement(agreeing, n_models, accepting_unchanged or 0, harmed or 0)
