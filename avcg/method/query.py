"""What is asked of a method, and how its candidates are chosen among; numpy alone."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avcg.errors import DataError, SettingError, check_int, did_you_mean, enumerate_some
from avcg.method.config import SearchConfig
from avcg.schema.features import to_python
from avcg.space.codes import CodeSpace
from avcg.space.encoding import Codes, Flags, Floats, Positions

# Differences of codes that are none.
_SAME = 1e-6


@dataclass(frozen=True)
class QueryOptions:
    """What is asked for beside the rows and the target, on every surface: Python, commands, service, batches.

    Attributes:
        n: Answers for each row.
        vary: What may change in this query, as `TabularSpace.restrict` takes it; None: all that the schema lets.
        ranges: Where values may go in this query, likewise.
        min_prob: Probability of the target that the deployed model must give; None: enough for its decision.
        max_changes: How many features may change at once; one number, or one for each row.
        refine: Whether to take back what an answer does not need, or a `Refinement` that says how; slower and closer.
        time_budget: Seconds after which refining stops, with the best so far; None: no limit.
    """

    n: int = 1
    vary: Any = None
    ranges: Any = None
    min_prob: float | None = None
    max_changes: int | Sequence[int] | None = None
    refine: Any = False
    time_budget: float | None = None

    def __post_init__(self) -> None:
        check_int(self.n, "'n' of a query", 1)
        low_enough = isinstance(self.min_prob, numbers.Real) and not isinstance(self.min_prob, bool)
        if self.min_prob is not None and not (low_enough and 0 < self.min_prob < 1):
            raise SettingError(f"The 'min_prob' of a query must be in (0, 1). Got {self.min_prob!r} instead.")
        if self.time_budget is not None and self.refine is False:
            raise SettingError("A 'time_budget' bounds refining. Say refine=True too.")

    @property
    def restricts(self) -> bool:
        """Whether less may change than the schema lets."""
        return not (self.vary is None and self.ranges is None and self.max_changes is None)

    @property
    def is_default(self) -> bool:
        """Whether nothing is asked for but one answer for each row."""
        return self.n == 1 and not self.refine and self.min_prob is None and not self.restricts


@dataclass(frozen=True, eq=False)
class Query:
    """B encoded rows as a method is asked about them.

    Arrays and a `CodeSpace` for the search; tensors and a `Space` for methods written in torch.

    Attributes:
        x: (B, *event) the factuals.
        target: (B,) class positions.
        space: What each row may change.
        n: Answers wanted.
        min_prob: Probability of the target that the deployed model must give; None: enough for its decision.
    """

    x: Any
    target: Any
    space: Any
    n: int = 1
    min_prob: float | None = None

    def take(self, rows: Any) -> Query:
        """Some of the rows."""
        if len(rows) == len(self.x) == 1:
            return self
        return replace(self, x=self.x[rows], target=self.target[rows], space=self.space.take(rows))


def target_positions(target: Any, current: Positions, classes: Sequence[Any]) -> tuple[Positions, bool]:
    """(B,) the classes asked for, and whether any other than the present one will do.

    Args:
        target: A label for all rows, one per row, or None for any other than the present one.
        current: (B,) positions of the present decisions.
        classes: All labels.

    Raises:
        DataError: If a label is not a class of the model, or there is not one per row.
    """
    if target is None:
        return (current + 1) % len(classes), True
    alone = isinstance(target, (str, numbers.Number, np.generic))
    wanted = [to_python(target)] if alone else [to_python(label) for label in np.asarray(target, object).ravel()]
    if not alone and len(wanted) != len(current):
        raise DataError(f"'target' must be one label, or one per row ({len(current)}). Got {len(wanted)}.")
    positions = {label: i for i, label in enumerate(classes)}
    for label in dict.fromkeys(wanted):
        if not isinstance(label, (str, int, float)) or label not in positions:
            known = enumerate_some([str(each) for each in classes], 12)
            hint = did_you_mean(label, classes)
            raise DataError(f"The target {label!r} is not a class of the model, which has {known}. {hint}".strip())
    found = np.array([positions[label] for label in wanted], np.intp)
    return (np.repeat(found, len(current)) if alone else found), False


def quantise(costs: Floats, quantum: float) -> Floats:
    """Costs rounded to a grid, so that what differs in the last digits of a float32 is a tie."""
    return np.rint(costs / quantum) * quantum


def choose(space: CodeSpace, candidates: Codes, costs: Floats, n: int, config: SearchConfig) -> Codes:
    """(n, B, *event) for each row the cheapest candidates that differ, by 1 or more where that is not much dearer.

    Of candidates with the same cost the one proposed first is taken. A candidate is taken twice only where there are
    no others.

    Args:
        space: For distances.
        candidates: (K, B, *event).
        costs: (K, B).
        n: At most K.
        config: Prices of being alike, and how many are compared at once.
    """
    pick = _cheapest if n <= config.diversity_group else _in_groups
    chosen = pick(space, candidates, costs, n, config)
    return candidates[chosen, np.arange(costs.shape[1])]


def _cheapest(space: CodeSpace, candidates: Codes, costs: Floats, n: int, config: SearchConfig) -> Positions:
    """(n, B) positions, one after the other, each making those near to it dearer."""
    everyone, chosen = np.arange(costs.shape[1]), []
    for _ in range(n):
        best = quantise(costs, config.cost_quantum).argmin(axis=0)
        chosen.append(best)
        if len(chosen) < n:
            far = space.distance(candidates, candidates[best, everyone])
            costs = costs + config.diversity_penalty * np.maximum(1.0 - far, 0.0)
            costs = costs + np.where(far <= _SAME, config.duplicate_penalty, 0.0)
    return np.stack(chosen)


def _in_groups(space: CodeSpace, candidates: Codes, costs: Floats, n: int, config: SearchConfig) -> Positions:
    """(n, B) positions of many, without a look at every pair of them.

    Candidates are dealt out like cards, dear and cheap alike to each group, and only those of a group are kept apart.
    """
    (count, rows), size = costs.shape, config.diversity_group
    groups = -(-n // size)
    again = repeated_answers(np.swapaxes(candidates, 0, 1).reshape(count * rows, -1), count)
    costs = costs + config.duplicate_penalty * again.reshape(rows, count).T
    order = np.argsort(quantise(costs, config.cost_quantum), axis=0, kind="stable")
    short = -count % groups  # the last is dealt again, at a price that nobody pays
    order = np.concatenate([order, np.repeat(order[-1:], short, axis=0)])
    prices = np.take_along_axis(costs, order, axis=0)
    prices[count:] = np.inf
    dealt, priced = order.reshape(-1, groups * rows), prices.reshape(-1, groups * rows)
    everyone = np.tile(np.arange(rows), groups)
    picked = _cheapest(space.take(everyone), candidates[dealt, everyone], priced, min(size, len(dealt)), config)
    places = np.take_along_axis(dealt, picked, axis=0).reshape(-1, rows)
    final = np.argsort(np.take_along_axis(costs, places, axis=0), axis=0, kind="stable")
    return np.take_along_axis(places, final, axis=0)[:n]


def repeated_answers(received: NDArray[Any], n: int) -> Flags:
    """(N,) answers that are the same as an earlier one of their row.

    Args:
        received: (N, *event) codes, the n answers of a row one after the other.
        n: Answers a row.
    """
    again = np.zeros(len(received), bool)
    if n == 1:
        return again
    codes = received.reshape(len(received), -1) + np.float32(0.0)  # there is one zero
    # Marks that only the same codes share, but for one chance in 2**64: pairs of many answers are too many to compare.
    odd = np.random.default_rng(0).integers(-(2**62), 2**62, codes.shape[1]) | 1
    marks = codes.view(np.int32).astype(np.int64) @ odd
    order = np.lexsort((marks, np.arange(len(codes)) // n))
    again[order[1:]] = (np.diff(marks[order]) == 0) & (np.diff(order // n) == 0)
    return again
