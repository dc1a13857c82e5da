"""What follows for one column from the category of another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from avcg.schema.features import Categorical
from avcg.schema.rules import Implication
from avcg.space.encoding import Encoding, Flags, Floats, Positions, Values
from avcg.space.grids import multiple, multiples
from avcg.space.linear import differs


@dataclass(frozen=True, eq=False)
class _Rule:
    """One rule as positions.

    Attributes:
        condition: Position of the column of the condition among the categorical ones.
        categories: (c,) positions of its categories.
        target: Position of the column of the consequence among those of its kind.
        low: Lowest number; -inf if there is no bound.
        high: Highest number; inf if there is no bound.
        entries: (e,) positions of the categories of the target; None: it is a number.
    """

    condition: int
    categories: Positions
    target: int
    low: float
    high: float
    entries: Positions | None


@dataclass(frozen=True, eq=False)
class Conditionals:
    """The rules of the form "when a column has a category, another one has certain values".

    Attributes:
        rules: The rules.
        columns: (C, features) the columns that each rule binds.
    """

    rules: tuple[_Rule, ...]
    columns: Flags

    @classmethod
    def of(cls, encoding: Encoding) -> Self:
        """The conditional rules of a schema."""
        schema = encoding.schema
        implications = [rule for rule in schema.rules if isinstance(rule, Implication)]
        columns, rules = np.zeros((len(implications), len(schema)), bool), []
        for i, rule in enumerate(implications):
            condition, target = (schema.names.index(name) for name in rule.columns)
            columns[i, [condition, target]] = True
            positions = schema.features[condition].position  # type: ignore[union-attr]
            feature, entries = schema.features[target], None
            if isinstance(feature, Categorical):
                entries = np.array([feature.position(value) for value in rule.one_of or ()], np.intp)
            rules.append(
                _Rule(
                    encoding.kind_index[condition],
                    np.array([positions(value) for value in rule.categories], np.intp),
                    encoding.kind_index[target],
                    -np.inf if rule.low is None else float(rule.low),
                    np.inf if rule.high is None else float(rule.high),
                    entries,
                )
            )
        return cls(tuple(rules), columns)

    def broken(self, point: Values, blur: Floats) -> Flags:
        """(N, C) where a condition holds and its consequence does not, a missing value included."""
        result = np.zeros((len(point), len(self.rules)), bool)
        for i, rule in enumerate(self.rules):
            result[:, i] = _holds(rule, point) & ~_obeyed(rule, point, blur)
        return result

    def repair(
        self, encoding: Encoding, point: Values, factual: Values, bounds: Any, movable: Flags, blur: Floats
    ) -> None:
        """Set what follows from the categories where limits allow it, else take the condition back.

        Args:
            encoding: The grids.
            point: N rows, changed in place.
            factual: Their factuals.
            bounds: What the rows may do.
            movable: (N, features) columns that may be changed here.
            blur: (N, n) how exactly the numbers are known.
        """
        for rule, columns in zip(self.rules, self.columns, strict=True):
            rows = np.flatnonzero(_holds(rule, point) & ~_obeyed(rule, point, blur))
            rows = rows[_touched(encoding, point, factual, columns, rows)]
            if not len(rows):
                continue
            if rule.entries is None:
                done = _set_number(encoding, rule, point, bounds, movable, rows)
            else:
                done = _set_category(encoding, rule, rule.entries, point, bounds, movable, rows)
            undone = rows[~done]
            undone = undone[movable[undone, encoding.categorical_columns[rule.condition]]]
            point.choices[undone, rule.condition] = factual.choices[undone, rule.condition]

    def narrow(self, point: Values, low: Floats, high: Floats, blur: Floats) -> None:
        """Narrow (N, n) limits of numbers in place, so that what obeys a consequence goes on doing so.

        A number that does not obey may stay where it is, and is not moved.
        """
        for rule in self.rules:
            if rule.entries is None:
                number, holds = point.numbers[:, rule.target], _holds(rule, point)
                obeys = _obeyed(rule, point, blur)
                for limits, bound, tighter in ((low, rule.low, np.maximum), (high, rule.high, np.minimum)):
                    inside = np.where(obeys, tighter(limits[:, rule.target], bound), number)
                    limits[:, rule.target] = np.where(holds, inside, limits[:, rule.target])


def _holds(rule: _Rule, point: Values) -> Flags:
    return np.isin(point.choices[:, rule.condition], rule.categories)


def _obeyed(rule: _Rule, point: Values, blur: Floats) -> Flags:
    if rule.entries is not None:
        return np.isin(point.choices[:, rule.target], rule.entries)
    number, slack = point.numbers[:, rule.target], blur[:, rule.target]
    return np.asarray((number >= rule.low - slack) & (number <= rule.high + slack))


def _touched(encoding: Encoding, point: Values, factual: Values, columns: Flags, rows: Positions) -> Flags:
    numbers = np.flatnonzero(columns[encoding.numeric_columns])
    choices = np.flatnonzero(columns[encoding.categorical_columns])
    moved = differs(point.numbers[np.ix_(rows, numbers)], factual.numbers[np.ix_(rows, numbers)]).any(axis=1)
    return np.asarray(moved | (point.choices[np.ix_(rows, choices)] != factual.choices[np.ix_(rows, choices)]).any(1))


def _set_number(encoding: Encoding, rule: _Rule, point: Values, bounds: Any, movable: Flags, rows: Positions) -> Flags:
    """Move the number of these rows to the nearest that obeys the rule; (rows,) whether there is one."""
    j = rule.target
    low, high = np.maximum(bounds.low[rows, j], rule.low), np.minimum(bounds.high[rows, j], rule.high)
    number = np.nan_to_num(point.numbers[rows, j])
    step, decimals = encoding.steps[j], encoding.decimals[j]
    with np.errstate(invalid="ignore"):
        if step:
            first, last = multiples(low, high, step, decimals)
            there = first <= last
            target = multiple(np.clip(np.rint(number / step), first, np.maximum(first, last)), step, decimals)
        else:
            there, target = low <= high, np.clip(number, low, np.maximum(low, high))
    there = there & movable[rows, encoding.numeric_columns[j]]
    point.numbers[rows[there], j] = target[there]
    return np.asarray(there)


def _set_category(
    encoding: Encoding, rule: _Rule, entries: Positions, point: Values, bounds: Any, movable: Flags, rows: Positions
) -> Flags:
    """Move the category of these rows to the first that the rule and the limits allow; (rows,) whether there is one."""
    enterable = bounds.entries[rows[:, None], encoding.first_slots[rule.target] + entries]
    there = enterable.any(axis=1) & movable[rows, encoding.categorical_columns[rule.target]]
    point.choices[rows[there], rule.target] = entries[enterable.argmax(axis=1)[there]]
    return np.asarray(there)
