"""What answers say about all who asked: which columns carry recourse, what it costs whom, and what models make of it.

Everyone counts once, by the first answer; a page with several answers each would else count the same person twice.
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
from avcg.space.serialize import to_json

_MOVES = 3  # of a category that are named
_ROWS_AT_ONCE = 4096  # that models are asked about


@dataclass(frozen=True)
class Share:
    """A count of some, and what it says of others.

    Attributes:
        count: How many.
        n: Of how many.
        share: The one over the other; not a number where there are none.
        low: Of its interval.
        high: Likewise.
    """

    count: int
    n: int
    share: float
    low: float
    high: float

    @classmethod
    def of(cls, count: int, n: int, confidence: float) -> Share:
        """With its interval (Clopper-Pearson)."""
        return cls(count, n, *share_of(count, n, confidence))


@dataclass(frozen=True)
class NumberMoves:
    """How a number moves, among those whose answer changes it and who had a number before.

    Attributes:
        up: How many it rises for.
        down: How many it falls for.
        by: The change, with its sign.
        before: Where it was.
        after: Where it goes.
        span: The lowest and the highest of all rows and answers.
    """

    up: int
    down: int
    by: Quartiles
    before: Quartiles
    after: Quartiles
    span: tuple[float, float]


@dataclass(frozen=True)
class Column:
    """What answers do to a column.

    Attributes:
        name: Of the column.
        changed: By how many of those who were told something.
        number: How it moves; None for categories, and where only gaps are filled.
        moves: The most common ones, from, to and how often; empty for numbers.
        other_moves: How often something else.
        filled: Gaps that get a value.
    """

    name: str
    changed: Share
    number: NumberMoves | None
    moves: tuple[tuple[Any, Any, int], ...]
    other_moves: int
    filled: int


@dataclass(frozen=True)
class Group:
    """Those with the same value in a column, or in the same quarter of it.

    Attributes:
        label: The value or the quarter; None: everyone.
        rows: How many there are.
        statuses: By status, how many.
        coverage: Of those who lack the decision, who has a change that flips it.
        kept: Of these, who has one that the promised share of set-aside models agrees with; None without such models.
        agreement: Of these, the mean share of set-aside models that agree.
        distance: Of these; None where there are none.
        changes: Of these, the mean number of columns; None for images.
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
    """What set-aside models say of those who were told something, before and after the change.

    Attributes:
        models: How many were asked.
        before: (N,) how many decide for the target about the row.
        after: (N,) the same about the answer.
        measures: By name, before and after, the mean over rows.
    """

    models: int
    before: NDArray[np.int64]
    after: NDArray[np.int64]
    measures: Mapping[str, tuple[float, float]]


def check_columns(answers: Counterfactuals) -> None:
    """Refuse answers of tables whose parts do not speak of the same columns.

    Raises:
        DataError: With the column.
    """
    if answers.changed is None:
        return
    rows, stood = (nw.from_native(part, eager_only=True).columns for part in (answers.factuals, answers.answers))
    for alone, others, where in ((rows, stood, "factuals"), (stood, rows, "answers")):
        strange = [name for name in alone if name not in others]
        if strange:
            raise DataError(f"The column {strange[0]!r} is in the {where} alone. Give both the same columns.")
    if answers.changed.shape[1] != len(rows):
        count = answers.changed.shape[1]
        raise DataError(f"'changed' speaks of {count} of {len(rows)} columns. Give answers as they were generated.")


def delivered(answers: Counterfactuals) -> Flags:
    """(N,) whose decision flips."""
    return np.isin(answers.statuses, TOLD)


def quartiles(values: Floats) -> Quartiles:
    """Of one value or more."""
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
    return Quartiles(low, middle, high)


def number_columns(answers: Counterfactuals, explainer: Explainer | None) -> frozenset[str]:
    """The columns that hold numbers.

    Args:
        answers: Any; images have none.
        explainer: Knows which numbers stand for categories; None: numbers are numbers.
    """
    if answers.changed is None:
        return frozenset()
    if explainer is not None and explainer.space_.schema is not None:
        return frozenset(feature.name for feature in explainer.space_.schema.numeric)
    rows = nw.from_native(answers.factuals, eager_only=True)
    return frozenset(name for name in rows.columns if rows[name].dtype.is_numeric())


def by_column(first: Counterfactuals, numbers: frozenset[str], confidence: float) -> list[Column]:
    """What answers do to each column, the one changed most first; columns that nobody changes come last.

    Args:
        first: One answer a row, of tables.
        numbers: Columns that hold numbers.
        confidence: Of intervals.
    """
    assert first.changed is not None
    some = delivered(first)
    rows, stood = (nw.from_native(part, eager_only=True) for part in (first.factuals, first.answers))
    found = []
    for place, name in enumerate(rows.columns):
        where = np.flatnonzero(first.changed[:, place] & some)
        share = Share.of(len(where), int(some.sum()), confidence)
        before, after = ([to_json(value) for value in part[name].to_list()] for part in (rows, stood))
        pairs = [(before[i], after[i]) for i in where]
        if name in numbers:
            filled = sum(old is None for old, _ in pairs)
            found.append(Column(name, share, _moves(pairs, [*before, *after]), (), 0, filled))
        else:
            counted = Counter(pairs)
            common = sorted(counted.items(), key=lambda item: (-item[1], str(item[0])))[:_MOVES]
            rest = len(pairs) - sum(count for _, count in common)
            found.append(Column(name, share, None, tuple((*pair, count) for pair, count in common), rest, 0))
    return sorted(found, key=lambda column: -column.changed.count)


def _moves(pairs: Sequence[tuple[Any, Any]], everything: Sequence[Any]) -> NumberMoves | None:
    known = np.array([pair for pair in pairs if None not in pair], np.float64).reshape(-1, 2)
    if not len(known):
        return None
    change = known[:, 1] - known[:, 0]
    there = [float(value) for value in everything if value is not None]
    return NumberMoves(
        up=int((change > 0).sum()),
        down=int((change < 0).sum()),
        by=quartiles(change),
        before=quartiles(known[:, 0]),
        after=quartiles(known[:, 1]),
        span=(min(there), max(there)),
    )


def combinations(first: Counterfactuals, most: int) -> list[tuple[tuple[str, ...], int]]:
    """The sets of columns that are changed together most often, and by how many."""
    assert first.changed is not None
    names = [str(name) for name in nw.from_native(first.factuals, eager_only=True).columns]
    sets = Counter(tuple(names[j] for j in np.flatnonzero(row)) for row in first.changed[delivered(first)])
    return sorted(sets.items(), key=lambda item: (-item[1], len(item[0]), item[0]))[:most]


def by_group(first: Counterfactuals, by: str | None, confidence: float) -> list[Group]:
    """What recourse costs and whom it serves: everyone, or group by group in their order.

    Args:
        first: One answer a row.
        by: A column of the factuals, numbers in quarters; None: everyone.
        confidence: Of intervals.
    """
    if by is None:
        return [_group(None, first, np.ones(len(first), bool), confidence)]
    labels, order = groups_of(first.factuals, by)
    return [_group(label, first, labels == label, confidence) for label in order]


def _group(label: Any, first: Counterfactuals, mine: Flags, confidence: float) -> Group:
    counts = Counter(first.statuses[mine].tolist())
    served, sure = mine & delivered(first), first.certificate
    n = int(served.sum())
    return Group(
        label=label,
        rows=int(mine.sum()),
        statuses={status: counts[status] for status in MEANING},
        coverage=Share.of(n, int(mine.sum()) - counts["already_target"], confidence),
        kept=None if sure is None else Share.of(counts["ok"], n, confidence),
        agreement=float("nan") if sure is None or not n else float(sure.share[served].mean()),
        distance=quartiles(first.distance[served]) if n else None,
        changes=None if first.changed is None or not n else float(first.changed[served].sum(axis=1).mean()),
    )


def opinions(first: Counterfactuals, explainer: Explainer) -> Opinions | None:
    """Ask the models that were set aside about rows and answers; None where nobody was told anything.

    Args:
        first: One answer a row.
        explainer: Fitted, with models set aside.
    """
    fresh, deployed = explainer.split_.test, explainer.deployed_
    places = np.flatnonzero(delivered(first))
    if fresh is None or not len(places):
        return None
    targets = class_positions(first.target, explainer.classes_)
    votes: dict[str, list[NDArray[np.int64]]] = {"before": [], "after": []}
    sums: dict[str, dict[str, float]] = {"before": {}, "after": {}}
    for part in np.split(places, range(_ROWS_AT_ONCE, len(places), _ROWS_AT_ONCE)):
        target = targets[torch.from_numpy(part)]
        for side, table in (("before", first.factuals), ("after", first.answers)):
            rows = take_rows(table, part)
            x = explainer.space_.encode(rows)
            with torch.no_grad():
                said = fresh.bind_rows(rows).probabilities(x).cpu()
            # By the rule of the model in force, which may have a threshold: measures take the likeliest class.
            decided = torch.stack([deployed.decide(one) for one in said])
            votes[side].append((decided == target).sum(dim=0).numpy())
            each = {
                "disagreement": disagreement(torch.nn.functional.one_hot(decided, said.shape[-1]).float()),
                "range": viable_prediction_range(said, target),
            }
            for name, values in each.items():
                sums[side][name] = sums[side].get(name, 0.0) + float(values.double().sum())
    means = {name: (sums["before"][name] / len(places), sums["after"][name] / len(places)) for name in sums["before"]}
    return Opinions(len(fresh), np.concatenate(votes["before"]), np.concatenate(votes["after"]), means)
