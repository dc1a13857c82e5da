"""Queries to a method, and the choice of answers among its candidates; numpy alone."""

from __future__ import annotations

import math
import numbers
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from avcg.errors import DataError, SettingError, check_int, did_you_mean, enumerate_some
from avcg.method.config import SearchConfig
from avcg.schema.features import to_python
from avcg.space.codes import CodeSpace
from avcg.space.encoding import Codes, Flags, Floats, Positions

# How much work goes into answers that are closer to the row.
Effort = Literal["fast", "standard", "thorough"]
EFFORTS: tuple[Effort, ...] = get_args(Effort)


@dataclass(frozen=True)
class QueryOptions:
    """What is asked for beside the rows and the target, on every surface: Python, commands, service, batches.

    Attributes:
        n: Answers for each row.
        vary: What may change in this query, as `TabularSpace.restrict` takes it; None: all that the schema lets.
        ranges: Where values may go in this query, as `TabularSpace.restrict` takes it; None: as the schema says.
        min_prob: Probability of the target that the deployed model must give; None: enough for its decision.
        max_changes: Largest number of features that may change at once; one number, or one for each row.
        effort: Work spent on closer answers: ``"fast"``, one pass, ``"standard"`` or ``"thorough"``.
        typicality: How typical answers are, from 0, the nearest to the row, to 1, like the people who were accepted;
            None: the recipe's default.
        time_budget: Seconds after which no further step is begun, and the best answers so far are given; None: no
            limit.
    """

    n: int = 1
    vary: Any = None
    ranges: Any = None
    min_prob: float | None = None
    max_changes: int | Sequence[int] | None = None
    effort: Effort = "standard"
    typicality: float | None = None
    time_budget: float | None = None

    def __post_init__(self) -> None:
        check_int(self.n, "'n' of a query", 1)
        if self.min_prob is not None and not (_is_number(self.min_prob) and 0 < self.min_prob < 1):
            raise SettingError(f"The 'min_prob' of a query must be in (0, 1). Got {self.min_prob!r} instead.")
        check_effort(self.effort)
        if self.typicality is not None and not (_is_number(self.typicality) and 0 <= self.typicality <= 1):
            raise SettingError(
                "The 'typicality' of a query must be a number in [0, 1], or None for the recipe's default. Got"
                f" {self.typicality!r} instead."
            )
        in_time = self.time_budget is None or (_is_number(self.time_budget) and self.time_budget > 0)
        if not in_time:
            raise SettingError(
                "The 'time_budget' of a query must be a number of seconds > 0, or None for no limit. Got"
                f" {self.time_budget!r} instead."
            )

    @property
    def restricts(self) -> bool:
        """Whether less may change than the schema lets."""
        return not (self.vary is None and self.ranges is None and self.max_changes is None)

    def is_calibrated(self, typicality: float) -> bool:
        """Whether this is asked for what a promise is calibrated by: single answers without restrictions.

        Args:
            typicality: The typicality that answers were calibrated with, the recipe's default.
        """
        plain = self.n == 1 and self.min_prob is None and self.time_budget is None
        return plain and not self.restricts and self.typicality in (None, typicality)

    @property
    def is_default(self) -> bool:
        """Whether nothing is asked for but one answer for each row, with the usual effort."""
        plain = self.n == 1 and self.min_prob is None and self.effort == "standard" and self.typicality is None
        return plain and not self.restricts

    def query(self, x: Any, target: Any, space: Any, typicality: float) -> Query:
        """The query for encoded rows with these options.

        Args:
            x: (B, *event) the factuals.
            target: (B,) class positions.
            space: What each row may change.
            typicality: The recipe's default, which stands for None.
        """
        asked = typicality if self.typicality is None else float(self.typicality)
        deadline = Deadline.after(self.time_budget)
        return Query(x, target, space, self.n, self.min_prob, self.effort, asked, deadline)


def check_effort(effort: Any) -> None:
    """Check that a value is the name of an effort.

    Raises:
        SettingError: If it is not.
    """
    if not isinstance(effort, str) or effort not in EFFORTS:
        raise SettingError(f"The 'effort' of a query must be 'fast', 'standard' or 'thorough'. Got {effort!r} instead.")


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True)
class Deadline:
    """A moment after which no further step is begun.

    Attributes:
        at: Seconds on the clock of `time.monotonic`; infinity: there is no deadline.
    """

    at: float = float("inf")

    @classmethod
    def after(cls, seconds: float | None) -> Deadline:
        """A deadline so many seconds from now.

        Args:
            seconds: A number > 0; None: there is no deadline.
        """
        return cls() if seconds is None else cls(time.monotonic() + seconds)

    @property
    def passed(self) -> bool:
        """Whether the moment has come."""
        return time.monotonic() >= self.at


@dataclass(frozen=True, eq=False)
class Query:
    """B encoded rows with a target each, and what they may change.

    The search takes arrays and a `CodeSpace`, methods written in torch take tensors and a `Space`.

    Attributes:
        x: (B, *event) the factuals.
        target: (B,) class positions.
        space: What each row may change.
        n: Number of answers for each row.
        min_prob: Probability of the target that the deployed model must give; None: enough for its decision.
        effort: Work spent on closer answers.
        typicality: How typical answers are, from 0, the nearest, to 1, like the people who were accepted.
        deadline: When no further step is begun.
        typical: (B, m, *event) reference rows of the target, from which typicality is measured; None: it is 0.
        n_typical: Number of these, the nearest to a candidate, whose mean distance is its own.
    """

    x: Any
    target: Any
    space: Any
    n: int = 1
    min_prob: float | None = None
    effort: Effort = "standard"
    typicality: float = 0.0
    deadline: Deadline = field(default_factory=Deadline)
    typical: Any = None
    n_typical: int = 5

    def take(self, rows: Any) -> Query:
        """The query for the rows at these positions."""
        if len(rows) == len(self.x) == 1:
            return self
        typical = None if self.typical is None else self.typical[rows]
        return replace(self, x=self.x[rows], target=self.target[rows], space=self.space.take(rows), typical=typical)

    def per_answer(self) -> tuple[Query, Positions]:
        """The query with each row repeated for its n answers, N = B n rows, and the (N,) positions of these rows."""
        rows = np.arange(len(self.x))
        if self.n == 1:
            return self, rows
        rows = np.repeat(rows, self.n)
        return self.take(rows), rows


def target_positions(target: Any, current: Positions, classes: Sequence[Any]) -> tuple[Positions, bool]:
    """(B,) positions of the target classes, and whether any class other than the present one will do.

    Args:
        target: One label for all rows, one label for each row, or None for any class other than the present one.
        current: (B,) positions of the present decisions.
        classes: The labels of all classes.

    Raises:
        DataError: If a label is not a class of the model, or there is not one for each row.
    """
    if target is None:
        return (current + 1) % len(classes), True
    one_for_all = isinstance(target, (str, numbers.Number, np.generic))
    labels = [to_python(label) for label in ([target] if one_for_all else np.asarray(target, object).ravel())]
    if not one_for_all and len(labels) != len(current):
        raise DataError(f"'target' must be one label, or one per row ({len(current)}). Got {len(labels)}.")
    positions = {label: i for i, label in enumerate(classes)}
    for label in dict.fromkeys(labels):
        if not isinstance(label, (str, int, float)) or label not in positions:
            listed = enumerate_some([str(name) for name in classes], 12)
            hint = did_you_mean(label, classes)
            raise DataError(f"The target {label!r} is not a class of the model, which has {listed}. {hint}".strip())
    targets = np.array([positions[label] for label in labels], np.intp)
    return (np.repeat(targets, len(current)) if one_for_all else targets), False


def quantise(costs: Floats, quantum: float) -> Floats:
    """Costs rounded to multiples of a quantum, so that a difference in the last digits of a float32 is a tie."""
    return np.rint(costs / quantum) * quantum


def choose(space: CodeSpace, candidates: Codes, costs: Floats, n: int, config: SearchConfig) -> Codes:
    """(n, B, *event) the cheapest candidates of each row that differ, by 1 or more where that is not much dearer.

    Of candidates with the same cost the one proposed first is taken. A candidate is taken twice only where there are
    no others.

    Args:
        space: The space that measures distances.
        candidates: (K, B, *event).
        costs: (K, B).
        n: Number of candidates to choose, at most K.
        config: Penalties for candidates that are alike, and how many are compared at once.
    """
    pick = _cheapest if n <= config.diversity_group else _in_groups
    chosen = pick(space, candidates, costs, n, config)
    return candidates[chosen, np.arange(costs.shape[1])]


def _cheapest(space: CodeSpace, candidates: Codes, costs: Floats, n: int, config: SearchConfig) -> Positions:
    """(n, B) positions chosen one after the other; each choice makes the candidates near to it dearer."""
    rows, chosen = np.arange(costs.shape[1]), []
    for _ in range(n):
        best = quantise(costs, config.cost_quantum).argmin(axis=0)
        chosen.append(best)
        if len(chosen) < n:
            distance = space.distance(candidates, candidates[best, rows])
            costs = costs + config.diversity_penalty * np.maximum(1.0 - distance, 0.0)
            costs = costs + np.where(distance <= config.tolerance, config.duplicate_penalty, 0.0)
    return np.stack(chosen)


def _in_groups(space: CodeSpace, candidates: Codes, costs: Floats, n: int, config: SearchConfig) -> Positions:
    """(n, B) positions of many candidates, chosen without comparing every pair of them.

    Candidates are dealt to groups in the order of their cost, and only the candidates of a group are compared.
    """
    (count, rows), size = costs.shape, config.diversity_group
    groups = -(-n // size)
    repeated = repeated_answers(np.swapaxes(candidates, 0, 1).reshape(count * rows, -1), count)
    costs = costs + config.duplicate_penalty * repeated.reshape(rows, count).T
    order = np.argsort(quantise(costs, config.cost_quantum), axis=0, kind="stable")
    missing = -count % groups  # the last candidate fills up the groups, at an infinite price
    order = np.concatenate([order, np.repeat(order[-1:], missing, axis=0)])
    prices = np.take_along_axis(costs, order, axis=0)
    prices[count:] = np.inf
    dealt, priced = order.reshape(-1, groups * rows), prices.reshape(-1, groups * rows)
    tiled = np.tile(np.arange(rows), groups)
    picked = _cheapest(space.take(tiled), candidates[dealt, tiled], priced, min(size, len(dealt)), config)
    positions = np.take_along_axis(dealt, picked, axis=0).reshape(-1, rows)
    final = np.argsort(np.take_along_axis(costs, positions, axis=0), axis=0, kind="stable")
    return np.take_along_axis(positions, final, axis=0)[:n]


def repeated_answers(received: NDArray[Any], n: int) -> Flags:
    """(N,) whether each answer is the same as an earlier one of its row.

    Args:
        received: (N, *event) codes, the n answers of a row one after the other.
        n: Number of answers for each row.
    """
    repeated = np.zeros(len(received), bool)
    if n == 1:
        return repeated
    codes = received.reshape(len(received), -1) + np.float32(0.0)  # makes -0.0 and 0.0 the same bits
    # Many answers have too many pairs to compare; different codes share a hash with a probability of 2**-64.
    odd = np.random.default_rng(0).integers(-(2**62), 2**62, codes.shape[1]) | 1
    hashes = codes.view(np.int32).astype(np.int64) @ odd
    order = np.lexsort((hashes, np.arange(len(codes)) // n))
    repeated[order[1:]] = (np.diff(hashes[order]) == 0) & (np.diff(order // n) == 0)
    return repeated
