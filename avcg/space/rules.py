"""Families of rules between columns, composed: points are repaired, computed and checked against all of them.

A row may always stay as it is. A rule binds an answer as soon as one of its columns changes. Where no repair is found,
the columns of the rule, and of every rule connected to it, go back to the factual.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from avcg.space.conditional import Conditionals
from avcg.space.derived import FLOAT32, Derivations
from avcg.space.encoding import Encoding, Flags, Floats, Positions, Values
from avcg.space.linear import LinearRules, differs

_SHARES = (0.5, 0.25, 0.1)  # of the way to a point that breaks a rule, which are tried instead of it
_ROUNDS = 4  # how often all rules are repaired one after the other
_EPS = float(np.finfo(np.float32).eps)


@dataclass(frozen=True, eq=False)
class Bounds:
    """What N rows may do.

    Attributes:
        low: (N, n) lowest numbers; of a derived column, the lowest that it may be computed to be.
        high: (N, n) highest numbers.
        entries: (N, M) categories that may be entered.
    """

    low: Floats
    high: Floats
    entries: Flags

    def take(self, rows: Positions) -> Bounds:
        """What some of the rows may do."""
        return Bounds(self.low[rows], self.high[rows], self.entries[rows])


@dataclass(frozen=True, eq=False)
class Rules:
    """The rules of a schema.

    Attributes:
        encoding: The columns and their grids.
        linear: Sums of numbers.
        derived: Columns that are computed.
        conditional: What follows from categories.
        linked: (features,) columns of links, which repair leaves alone.
        columns: (R, features) columns that each rule binds.
        connected: (R, features) columns that go back to the factual where a rule stays broken.
    """

    encoding: Encoding
    linear: LinearRules
    derived: Derivations
    conditional: Conditionals
    linked: Flags
    columns: Flags
    connected: Flags

    @classmethod
    def of(cls, encoding: Encoding, unit: Positions) -> Self | None:
        """The rules of a schema; None if it has none.

        Args:
            encoding: With the schema.
            unit: (features,) the unit of change that each column belongs to.
        """
        if not encoding.schema.rules:
            return None
        linear, derived, conditional = LinearRules.of(encoding), Derivations.of(encoding), Conditionals.of(encoding)
        numbers = np.concatenate([linear.columns, derived.columns])
        columns = np.zeros((len(numbers), len(encoding.schema)), bool)
        columns[:, encoding.numeric_columns] = numbers
        columns = np.concatenate([columns, conditional.columns])
        alike = unit[:, None] == unit[None, :]
        return cls(encoding, linear, derived, conditional, alike.sum(axis=1) > 1, columns, _connected(columns, alike))

    @cached_property
    def computed(self) -> Positions:
        """Positions in the schema of the derived columns."""
        return self.encoding.numeric_columns[self.derived.targets]

    @cached_property
    def bound(self) -> Flags:
        """(features,) columns that some rule binds."""
        return np.asarray(self.columns.any(axis=0))

    def code_blur(self, point: Values) -> Floats:
        """(N, n) how exactly numbers are known that were read off float32 codes."""
        encoding, numbers = self.encoding, np.nan_to_num(point.numbers)
        on_grid = (encoding.steps > 0) & (encoding.on_grid(numbers) == numbers)
        codes = np.abs(numbers - encoding.center) / encoding.scale
        return np.where(on_grid, 0.0, 4 * _EPS * (codes + 1.0) * encoding.scale)

    def settle(self, point: Values, factual: Values, bounds: Bounds, free: Flags, blur: Floats) -> Values:
        """The rows with rules repaired, as far as that is possible.

        Args:
            point: N rows that keep the limits of single columns.
            factual: Their factuals.
            bounds: What the rows may do.
            free: (N, features) columns that may be changed here.
            blur: (N, n) how exactly the numbers are known.
        """
        result = Values(point.numbers.copy(), point.choices.copy())
        movable = free & ~self.linked
        movable[:, self.computed] = False
        fixed = ~movable[:, self.encoding.numeric_columns]
        self.derived.recompute(self.encoding, result.numbers, factual.numbers)
        for _ in range(_ROUNDS):
            before = Values(result.numbers.copy(), result.choices.copy())
            self.conditional.repair(self.encoding, result, factual, bounds, movable, blur)
            if len(self.linear.bounds):
                self._repair_sums(result, factual, bounds, fixed, blur)
            self.derived.recompute(self.encoding, result.numbers, factual.numbers)
            if _same(before, result):
                break
        return result

    def approach(self, point: Values, factual: Values, bounds: Bounds, free: Flags, blur: Floats) -> Values:
        """As `settle`, and where a rule stays broken, with numbers only a part of their way if that is better.

        A computed column is often within its range a part of the way, but not all the way.
        """
        result = self.settle(point, factual, bounds, free, blur)
        movable = (free & ~self.linked)[:, self.encoding.numeric_columns]
        movable = movable & ~np.isnan(point.numbers) & ~np.isnan(factual.numbers)
        for share in _SHARES:
            rows = np.flatnonzero(self.broken(result, factual, bounds, blur).any(axis=1))
            if not len(rows):
                break
            before, wanted, own = factual.take(rows), point.numbers[rows], factual.numbers[rows]
            part = self.encoding.on_grid(own + share * (wanted - own))
            numbers = np.where(movable[rows] & (wanted != own), part, wanted)
            limits, nearly = bounds.take(rows), Values(numbers, point.choices[rows])
            nearly = self.settle(nearly, before, limits, free[rows], blur[rows])
            kept = ~self.broken(nearly, before, limits, blur[rows]).any(axis=1)
            result.numbers[rows[kept]], result.choices[rows[kept]] = nearly.numbers[kept], nearly.choices[kept]
        return result

    def _repair_sums(self, result: Values, factual: Values, bounds: Bounds, fixed: Flags, blur: Floats) -> None:
        low = np.where(fixed, result.numbers, bounds.low)
        high = np.where(fixed, result.numbers, bounds.high)
        self.conditional.narrow(result, low, high, blur)
        self.linear.repair(self.encoding, result.numbers, factual.numbers, low, high, blur)

    def finish(self, point: Values, factual: Values, bounds: Bounds, blur: Floats) -> Values:
        """The rows with derived columns computed, and factual values in the columns of rules that are still broken."""
        result = Values(point.numbers.copy(), point.choices.copy())
        self.derived.recompute(self.encoding, result.numbers, factual.numbers)
        broken = self.broken(result, factual, bounds, blur)
        back = (broken.astype(np.float32) @ self.connected.astype(np.float32)) > 0
        numbers, choices = back[:, self.encoding.numeric_columns], back[:, self.encoding.categorical_columns]
        return Values(
            np.where(numbers, factual.numbers, result.numbers), np.where(choices, factual.choices, result.choices)
        )

    def broken(self, point: Values, factual: Values, bounds: Bounds, blur: Floats) -> Flags:
        """(N, R) where a rule is broken of which a column changed; derived columns count as given, not as computed."""
        broken = np.concatenate(
            [
                self.linear.broken(point.numbers, blur),
                self.derived.broken(self.encoding, point.numbers, factual.numbers, bounds.low, bounds.high, blur),
                self.conditional.broken(point, blur),
            ],
            axis=1,
        )
        return broken & self._touched(point, factual)

    def violations(self, answers: Values, factual: Values, bounds: Bounds) -> Flags:
        """(N, features) the changed columns of broken rules, on numbers as a column of float32 may hold them."""
        answers, factual = self._delivered(answers), self._delivered(factual)
        blur = np.where(self.encoding.steps > 0, 0.0, FLOAT32 * np.abs(np.nan_to_num(answers.numbers)))
        broken = self.broken(answers, factual, bounds, blur)
        columns = (broken.astype(np.float32) @ self.columns.astype(np.float32)) > 0
        return np.asarray(columns & self.changed(answers, factual))

    def _delivered(self, values: Values) -> Values:
        """Numbers on the grids that they were rounded off by a narrow column."""
        near, steps = self.encoding.on_grid(values.numbers), self.encoding.steps
        with np.errstate(invalid="ignore"):
            rounded = np.abs(near - values.numbers) <= 1e-6 * np.maximum(steps, np.abs(values.numbers))
            rounded &= np.abs(near - values.numbers) <= 0.01 * steps
        return Values(np.where(rounded & (steps > 0), near, values.numbers), values.choices)

    def _touched(self, point: Values, factual: Values) -> Flags:
        """(N, R) whether any column of each rule changed."""
        return self.changed(point, factual).astype(np.float32) @ self.columns.T.astype(np.float32) > 0

    def changed(self, point: Values, factual: Values) -> Flags:
        """(N, features) which values differ."""
        changed = np.zeros((len(point), len(self.encoding.schema)), bool)
        changed[:, self.encoding.numeric_columns] = differs(point.numbers, factual.numbers)
        changed[:, self.encoding.categorical_columns] = point.choices != factual.choices
        return changed


def _same(left: Values, right: Values) -> bool:
    return np.array_equal(left.numbers, right.numbers, equal_nan=True) and np.array_equal(left.choices, right.choices)


def _connected(columns: Flags, alike: Flags) -> Flags:
    """(R, features) columns of each rule, and of every rule that shares a column, or a link, with one of them."""
    reach = columns.astype(np.float32)
    for _ in range(len(columns) + 1):
        joined = (reach @ alike.astype(np.float32) > 0).astype(np.float32)
        reach = ((joined @ columns.T.astype(np.float32) > 0) @ columns.astype(np.float32) + joined > 0).astype(
            np.float32
        )
    return reach > 0
