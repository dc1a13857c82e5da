"""Linear inequalities and equalities between numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from avcg.errors import SchemaError
from avcg.schema.expressions import Linear
from avcg.schema.expressions import linear as linear_form
from avcg.schema.rules import Derivation, Requirement, ordered
from avcg.space.encoding import Encoding, Flags, Floats
from avcg.space.grids import multiple, multiples

# Sums of float64 in another order differ by less than this, relative to the size of their terms.
ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class LinearRules:
    """Sums of numbers that are at most a bound, or equal to it.

    Attributes:
        weights: (L, n) of each number in each sum.
        moving: (L, n) the same with derived columns that are sums replaced by what they are sums of.
        bounds: (L,) what each sum may be at most.
        constants: (L,) what the columns of ``moving`` add to the sum without a number.
        equal: (L,) whether the sum must equal its bound.
        prices: (n,) of moving each number by one unit.
    """

    weights: Floats
    moving: Floats
    bounds: Floats
    constants: Floats
    equal: Flags
    prices: Floats

    @classmethod
    def of(cls, encoding: Encoding) -> Self:
        """The linear rules of a schema, with ``>=`` turned around."""
        schema = encoding.schema
        rules = [rule for rule in schema.rules if isinstance(rule, Requirement)]
        sums = _sums(ordered(schema))
        weights, moving = (np.zeros((len(rules), len(encoding.numeric))) for _ in range(2))
        bounds, constants, equal = np.zeros(len(rules)), np.zeros(len(rules)), np.zeros(len(rules), bool)
        index = {feature.name: j for j, feature in enumerate(encoding.numeric)}
        for i, rule in enumerate(rules):
            sign, difference = -1.0 if rule.parsed.sign == ">=" else 1.0, rule.difference
            expanded = _expanded(difference, sums)
            for table, form in ((weights, difference), (moving, expanded)):
                for name, weight in form.weights.items():
                    table[i, index[name]] = sign * weight
            bounds[i], constants[i] = -sign * difference.constant, sign * (expanded.constant - difference.constant)
            equal[i] = rule.parsed.sign == "=="
        prices = encoding.prices[encoding.number_at] / encoding.scale
        return cls(weights, moving, bounds, constants, equal, prices)

    @property
    def columns(self) -> Flags:
        """(L, n) the numbers that each rule binds."""
        return (self.weights != 0) | (self.moving != 0)

    def broken(self, numbers: Floats, blur: Floats) -> Flags:
        """(N, L) where a sum is above its bound, or differs from it; False while one of its numbers is missing.

        Args:
            numbers: (N, n).
            blur: (N, n) how exactly the numbers are known.
        """
        result = np.zeros((len(numbers), len(self.bounds)), bool)
        for i, (weights, bound) in enumerate(zip(self.weights, self.bounds, strict=True)):
            excess, slack = _excess(weights, bound, numbers, blur)
            result[:, i] = (np.abs(excess) if self.equal[i] else excess) > slack
        return result

    def repair(
        self, encoding: Encoding, numbers: Floats, factuals: Floats, low: Floats, high: Floats, blur: Floats
    ) -> None:
        """Move numbers to the nearest that obey one rule after the other, as far as limits and grids let them.

        A rule of which no column changed is left alone.

        Args:
            encoding: The grids.
            numbers: (N, n), changed in place.
            factuals: (N, n) numbers of the factuals.
            low: (N, n) how low each may go; its present value if it may not be moved.
            high: (N, n) how high each may go.
            blur: (N, n) how exactly the numbers are known.
        """
        for i, weights in enumerate(self.moving):
            bound = self.bounds[i] - self.constants[i]
            excess, slack = _excess(weights, bound, numbers, blur)
            broken = (np.abs(excess) if self.equal[i] else excess) > slack
            rows = np.flatnonzero(broken & differs(numbers, factuals)[:, self.columns[i]].any(axis=1))
            if len(rows):
                moved = numbers[rows]
                self._repair(encoding, i, bound, moved, low[rows], high[rows])
                numbers[rows] = moved

    def _repair(self, encoding: Encoding, i: int, bound: float, numbers: Floats, low: Floats, high: Floats) -> None:
        """Bring one sum to its bound, by the columns that do it at the least price first (a fractional knapsack)."""
        weights = self.moving[i]
        used = np.flatnonzero(weights)
        order = used[np.argsort(self.prices[used] / np.abs(weights[used]), kind="stable")]
        # For an equality, columns without a grid take up what those on grids leave; a second pass repairs what a bound
        # stopped. An inequality may be overshot by a part of a step.
        for column in order if not self.equal[i] else [*order, *order]:
            terms, present = numbers[:, used] * weights[used], numbers[:, column]
            excess = terms.sum(axis=1) - bound
            # What rounding makes of a sum that was repaired already moves no further number.
            slack = 0.1 * ROUNDING * (np.abs(terms).sum(axis=1) + abs(bound))
            done = (np.abs(excess) <= slack) | (excess < 0) & ~self.equal[i]
            wanted = np.where(done, present, present - excess / weights[column])
            target = np.clip(wanted, low[:, column], high[:, column])
            step, decimals = encoding.steps[column], encoding.decimals[column]
            if step:
                first, last = multiples(low[:, column], high[:, column], step, decimals)
                floor = target > present if self.equal[i] else np.full(len(target), weights[column] > 0)
                count = _steps(target / step, slack / abs(weights[column]) / step, floor)
                moved = multiple(np.clip(count, first, np.maximum(first, last)), step, decimals)
                onward = np.where(target > present, moved > present, moved < present) & (target != present)
                target = np.where((first <= last) & onward, moved, present)
            numbers[:, column] = target


def differs(left: Floats, right: Floats) -> Flags:
    """(N, n) whether numbers differ, a missing one from any other than a missing one."""
    return (left != right) & ~(np.isnan(left) & np.isnan(right))


def _steps(count: Floats, slack: Floats, floor: Flags) -> Floats:
    """Whole numbers of steps: the last that does not overshoot an equality, or the first that satisfies a bound."""
    whole = np.rint(count)
    return np.where(np.abs(count - whole) <= slack, whole, np.where(floor, np.floor(count), np.ceil(count)))


def _excess(weights: Floats, bound: float, numbers: Floats, blur: Floats) -> tuple[Floats, Floats]:
    """(N,) by how much a sum is above its bound, and how much of that may be rounding."""
    used = np.flatnonzero(weights)
    terms, size = numbers[:, used] * weights[used], np.abs(weights[used])
    slack = ROUNDING * (np.abs(terms).sum(axis=1) + abs(bound)) + blur[:, used] @ size
    return terms.sum(axis=1) - bound, slack


def _sums(derivations: tuple[Derivation, ...]) -> dict[str, Linear]:
    """Derived columns that are sums of other columns, as sums of columns that are not derived in this way."""
    sums: dict[str, Linear] = {}
    for rule in derivations:
        try:
            sums[rule.column] = _expanded(linear_form(rule.parsed, rule.text), sums)
        except SchemaError:
            continue  # a product or ratio of columns: its inputs are not moved for the sake of a sum
    return sums


def _expanded(form: Linear, sums: Mapping[str, Linear]) -> Linear:
    result = Linear({}, form.constant)
    for name, weight in form.weights.items():
        result = result.plus(sums.get(name, Linear({name: 1.0}, 0.0)), weight)
    return result
