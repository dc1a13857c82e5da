"""Statistics of answers over all rows: which columns change, what changes cost each group, and how models decide.

Every row counts once, with its first answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import torch
from numpy.typing import NDArray

from avcg.auditing.audit import TOLD
from avcg.errors import DataError
from avcg.explainers.base import Explainer
from avcg.explainers.counterfactuals import Counterfactuals
from avcg.explainers.records import MEANING
from avcg.guarantees.bounds import Floats
from avcg.hypotheses.multiplicity import disagreement, viable_prediction_range
from avcg.metrics.groups import groups_of, share_of
from avcg.models.adapter import class_positions
from avcg.report.svg import Quartiles
from avcg.space.encoding import Flags
from avcg.space.frames import take_rows

_MAX_MOVES = 3  # most common changes of a category that are listed
_CHUNK_SIZE = 4096  # rows that models judge at a time


@dataclass(frozen=True)
class Share:
    """A share with its confidence interval.

    Attributes:
        count: Numerator.
        n: Denominator.
        share: Numerator over denominator; NaN if the denominator is 0.
        low: Lower end of the interval.
        high: Upper end of the interval.
    """

    count: int
    n: int
    share: float
    low: float
    high: float

    @classmethod
    def of(cls, count: int, n: int, confidence: float) -> Share:
        """The share of ``count`` in ``n``, with its Clopper-Pearson interval."""
        return cls(count, n, *share_of(count, n, confidence))


@dataclass(frozen=True)
class NumberMoves:
    """Changes of a numeric column, over the answers that change it from one number to another.

    Attributes:
        up: Number of answers that raise it.
        down: Number of answers that lower it.
        by: Quartiles of the change, with its sign.
        before: Quartiles of the old values.
        after: Quartiles of the new values.
        span: Lowest and highest value of all rows and answers.
    """

    up: int
    down: int
    by: Quartiles
    before: Quartiles
    after: Quartiles
    span: tuple[float, float]


@dataclass(frozen=True)
class Column:
    """Changes of a column over all valid answers.

    Attributes:
        name: Name of the column.
        changed: Share of the answers that change it.
        number: Changes of a numeric column; None for categories, and if only missing values are filled.
        moves: The most common changes of a category: old value, new value, count; empty for numbers.
        other_moves: Number of all other changes of a category.
        filled: Number of missing values that are filled.
    """

    name: str
    changed: Share
    number: NumberMoves | None
    moves: tuple[tuple[Any, Any, int], ...]
    other_moves: int
    filled: int


@dataclass(frozen=True)
class Group:
    """Rows with the same value in a column, or in the same quarter of it.

    Attributes:
        label: The value or quarter; None: all rows.
        rows: Number of rows.
        statuses: Number of rows by status.
        coverage: Share with a valid answer, of the rows that lack the decision.
        kept: Share of the valid answers that the promised share of held-out models agrees with; None without such
            models.
        agreement: Mean share of held-out models that agree with a valid answer.
        distance: Quartiles of the distance of valid answers; None if there are none.
        changes: Mean number of columns that a valid answer changes; None for images.
    """

    label: Any
    rows: int
    statuses: Mapping[str, int]
    coverage: Share
    kept: Share | None
    agreement: float
    distance: Quartiles | None
    changes: float | None


@dataclass(frozen=True, eq=False)
class Opinions:
    """Decisions of held-out models about rows with a valid answer, before and after the change.

    Attributes:
        models: Number of models.
        before: (N,) number of models that decide for the target, given the row.
        after: (N,) number of models that decide for the target, given the answer.
        measures: Means over rows before and after, by name of the measure.
    """

    models: int
    before: NDArray[np.int64]
    after: NDArray[np.int64]
    measures: Mapping[str, tuple[float, float]]


def check_columns(answers: Counterfactuals) -> None:
    """Refuse answers of tables whose rows, answers and changes do not have the same columns.

    Raises:
        DataError: If a column is in one of them alone. The message names it.
    """
    if answers.changed is None:
        return
    rows, answered = (nw.from_native(part, eager_only=True).columns for part in (answers.factuals, answers.answers))
    for names, others, table in ((rows, answered, "factuals"), (answered, rows, "answers")):
        unmatched = [name for name in names if name not in others]
        if unmatched:
            raise DataError(f"The column {unmatched[0]!r} is in the {table} alone. Give both the same columns.")
    if answers.changed.shape[1] != len(answers.entries):
        count = answers.changed.shape[1]
        raise DataError(
            f"'changed' has {count} columns, not {len(answers.entries)}. Give the answers as they were generated."
        )


def delivered(answers: Counterfactuals) -> Flags:
    """(N,) which answers flip the decision."""
    return np.isin(answers.statuses, TOLD)


def quartiles(values: Floats) -> Quartiles:
    """The quartiles of at least one value."""
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
    return Quartiles(low, middle, high)


def number_columns(answers: Counterfactuals, explainer: Explainer | None) -> frozenset[str]:
    """Names of the numeric columns.

    Args:
        answers: Answers; those of images have no columns.
        explainer: The fitted method, whose schema says which numbers are categories; None: the dtypes decide.
    """
    if answers.changed is None:
        return frozenset()
    if explainer is not None and explainer.space_.schema is not None:
        return frozenset(feature.name for feature in explainer.space_.schema.numeric)
    rows = nw.from_native(answers.factuals, eager_only=True)
    return frozenset(name for name in rows.columns if rows[name].dtype.is_numeric())


def by_column(first: Counterfactuals, numbers: frozenset[str], confidence: float) -> list[Column]:
    """Changes of each column, the column that is changed most often first.

    Args:
        first: The first answer of each row of a table.
        numbers: Names of the numeric columns.
        confidence: Confidence of intervals.
    """
    assert first.changed is not None
    valid = delivered(first)
    rows, answers = first.cells(first.factuals), first.cells(first.answers)
    result = []
    for j, name in enumerate(first.entries):
        changed = np.flatnonzero(first.changed[:, j] & valid)
        share = Share.of(len(changed), int(valid.sum()), confidence)
        before, after = rows[name], answers[name]
        pairs = [(before[i], after[i]) for i in changed]
        if name in numbers:
            filled = sum(old is None for old, _ in pairs)
            result.append(Column(name, share, _moves(pairs, [*before, *after]), (), 0, filled))
        else:
            counted = Counter(pairs)
            common = sorted(counted.items(), key=lambda item: (-item[1], str(item[0])))[:_MAX_MOVES]
            rest = len(pairs) - sum(count for _, count in common)
            result.append(Column(name, share, None, tuple((*pair, count) for pair, count in common), rest, 0))
    return sorted(result, key=lambda column: -column.changed.count)


def _moves(pairs: Sequence[tuple[Any, Any]], cells: Sequence[Any]) -> NumberMoves | None:
    moves = np.array([pair for pair in pairs if None not in pair], np.float64).reshape(-1, 2)
    if not len(moves):
        return None
    change = moves[:, 1] - moves[:, 0]
    present = [float(value) for value in cells if value is not None]
    return NumberMoves(
        up=int((change > 0).sum()),
        down=int((change < 0).sum()),
        by=quartiles(change),
        before=quartiles(moves[:, 0]),
        after=quartiles(moves[:, 1]),
        span=(min(present), max(present)),
    )


def combinations(first: Counterfactuals, most: int) -> list[tuple[tuple[str, ...], int]]:
    """The sets of columns that are changed together most often, with their counts.

    Args:
        first: The first answer of each row of a table.
        most: Largest number of sets.
    """
    assert first.changed is not None
    names = first.entries
    sets = Counter(tuple(names[j] for j in np.flatnonzero(row)) for row in first.changed[delivered(first)])
    return sorted(sets.items(), key=lambda item: (-item[1], len(item[0]), item[0]))[:most]


def by_group(first: Counterfactuals, by: str | None, confidence: float) -> list[Group]:
    """Coverage and cost of recourse over all rows, or by group in their order.

    Args:
        first: The first answer of each row.
        by: Column of the rows to group by, numbers in quarters; None: one group of all rows.
        confidence: Confidence of intervals.
    """
    if by is None:
        return [_group(None, first, np.ones(len(first), bool), confidence)]
    labels, order = groups_of(first.factuals, by)
    return [_group(label, first, labels == label, confidence) for label in order]


def _group(label: Any, first: Counterfactuals, members: Flags, confidence: float) -> Group:
    counts = Counter(first.statuses[members].tolist())
    served, sure = members & delivered(first), first.certificate
    n = int(served.sum())
    return Group(
        label=label,
        rows=int(members.sum()),
        statuses={status: counts[status] for status in MEANING},
        coverage=Share.of(n, int(members.sum()) - counts["already_target"], confidence),
        kept=None if sure is None else Share.of(counts["ok"], n, confidence),
        agreement=float("nan") if sure is None or not n else float(sure.share[served].mean()),
        distance=quartiles(first.distance[served]) if n else None,
        changes=None if first.changed is None or not n else float(first.changed[served].sum(axis=1).mean()),
    )


def opinions(first: Counterfactuals, explainer: Explainer) -> Opinions | None:
    """Let the held-out models decide about rows and valid answers; None if there are none.

    Args:
        first: The first answer of each row.
        explainer: The fitted method.
    """
    held_out, deployed = explainer.split_.held_out, explainer.deployed_
    positions = np.flatnonzero(delivered(first))
    if held_out is None or not len(positions):
        return None
    targets = class_positions(first.target, explainer.classes_)
    votes: dict[str, list[NDArray[np.int64]]] = {"before": [], "after": []}
    sums: dict[str, dict[str, float]] = {"before": {}, "after": {}}
    for part in np.split(positions, range(_CHUNK_SIZE, len(positions), _CHUNK_SIZE)):
        target = targets[torch.from_numpy(part)]
        for side, table in (("before", first.factuals), ("after", first.answers)):
            rows = take_rows(table, part)
            x = explainer.space_.encode(rows)
            with torch.no_grad():
                probabilities = held_out.bind_rows(rows).probabilities(x).cpu()
            # Decisions by the rule of the deployed model, which may have a threshold.
            decided = torch.stack([deployed.decide(each) for each in probabilities])
            votes[side].append((decided == target).sum(dim=0).numpy())
            measures = {
                "disagreement": disagreement(torch.nn.functional.one_hot(decided, probabilities.shape[-1]).float()),
                "range": viable_prediction_range(probabilities, target),
            }
            for name, values in measures.items():
                sums[side][name] = sums[side].get(name, 0.0) + float(values.double().sum())
    n = len(positions)
    means = {name: (total / n, sums["after"][name] / n) for name, total in sums["before"].items()}
    return Opinions(len(held_out), np.concatenate(votes["before"]), np.concatenate(votes["after"]), means)
