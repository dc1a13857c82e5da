"""Columns that are computed from others."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from avcg.errors import DataError, enumerate_some
from avcg.schema.expressions import Column, Extreme, Node, Number, Sum, evaluate
from avcg.schema.rules import Derivation, ordered
from avcg.space.encoding import Encoding, Flags, Floats, Positions, Values
from avcg.space.grids import multiple
from avcg.space.linear import ROUNDING, differs

FLOAT32 = 2.5e-7  # relative difference that a column of float32 makes
_TRAINING = 1e-6  # relative difference from the expression that training rows may have


@dataclass(frozen=True, eq=False)
class Derivations:
    """Derived columns and their expressions.

    Attributes:
        rules: The expressions, each after those it takes as input.
        nodes: The same, parsed.
        targets: (T,) position of each derived column among the numbers.
        inputs: (T, n) the numbers that each is computed from.
    """

    rules: tuple[Derivation, ...]
    nodes: tuple[Node, ...]
    targets: Positions
    inputs: Flags
    index: dict[str, int]

    @classmethod
    def of(cls, encoding: Encoding) -> Self:
        """The derived columns of a schema."""
        rules = ordered(encoding.schema)
        index = {feature.name: j for j, feature in enumerate(encoding.numeric)}
        inputs = np.zeros((len(rules), len(index)), bool)
        for i, rule in enumerate(rules):
            inputs[i, [index[name] for name in rule.inputs]] = True
        targets = np.array([index[rule.column] for rule in rules], np.intp)
        return cls(rules, tuple(rule.parsed for rule in rules), targets, inputs, index)

    @cached_property
    def columns(self) -> Flags:
        """(T, n) the numbers that each rule binds."""
        bound = self.inputs.copy()
        bound[np.arange(len(self.targets)), self.targets] = True
        return bound

    def computed(self, encoding: Encoding, numbers: Floats, i: int) -> Floats:
        """(N,) the i-th derived column, on its grid; infinite or NaN where it has no value."""
        with np.errstate(all="ignore"):
            value = evaluate(self.nodes[i], lambda name: numbers[:, self.index[name]], np)
            value = np.broadcast_to(np.asarray(value, np.float64), (len(numbers),))
            step, decimals = encoding.steps[self.targets[i]], encoding.decimals[self.targets[i]]
            return multiple(np.rint(value / step), step, decimals) if step else value

    def recompute(self, encoding: Encoding, numbers: Floats, factuals: Floats) -> None:
        """Compute every derived column of which an input changed; the others take the factual's own value.

        Args:
            encoding: The grids.
            numbers: (N, n), changed in place.
            factuals: (N, n) numbers of the factuals.
        """
        for i, target in enumerate(self.targets):
            moved = self._moved(numbers, factuals, i)
            numbers[:, target] = np.where(moved, self.computed(encoding, numbers, i), factuals[:, target])

    def _moved(self, numbers: Floats, factuals: Floats, i: int) -> Flags:
        used = self.inputs[i]
        return np.asarray(differs(numbers[:, used], factuals[:, used]).any(axis=1))

    def broken(
        self, encoding: Encoding, numbers: Floats, factuals: Floats, low: Floats, high: Floats, blur: Floats
    ) -> Flags:
        """(N, T) where a derived column is not what its expression says, is out of its range, or has no value.

        Args:
            encoding: The grids.
            numbers: (N, n).
            factuals: (N, n) numbers of the factuals.
            low: (N, n) lowest numbers that derived columns may have.
            high: (N, n) highest numbers.
            blur: (N, n) how exactly the numbers are known.
        """
        result = np.zeros((len(numbers), len(self.targets)), bool)
        for i, target in enumerate(self.targets):
            value, own = numbers[:, target], factuals[:, target]
            moved = self._moved(numbers, factuals, i)
            missing = np.isnan(numbers[:, self.inputs[i]]).any(axis=1) & np.isnan(value) & np.isnan(own)
            with np.errstate(all="ignore"):
                exact, error = _with_error(self.nodes[i], self.index, numbers, blur + ROUNDING * np.abs(numbers))
                slack = error + ROUNDING * np.abs(value) + blur[:, target]
                off = ~self._agrees(encoding, target, value, exact, slack)
                off |= (value < low[:, target] - slack) | (value > high[:, target] + slack)
            result[:, i] = np.where(moved, off & ~missing, differs(value, own))
        return result

    def _agrees(self, encoding: Encoding, target: int, value: Floats, exact: Any, slack: Any) -> Flags:
        """(N,) whether a number is what was computed, or the nearest multiple of its step."""
        step = encoding.steps[target]
        agrees = np.abs(value - exact) <= slack + 0.5 * step
        if step:
            count = value / step
            agrees &= np.abs(count - np.rint(count)) <= 1e-6 * np.maximum(1.0, np.abs(count))
        return np.asarray(agrees & np.isfinite(exact))

    def check(self, encoding: Encoding, values: Values) -> None:
        """Refuse training rows that do not obey the expressions.

        Raises:
            DataError: If there are any. The message says in how many rows, and shows one.
        """
        for i, (rule, target) in enumerate(zip(self.rules, self.targets, strict=True)):
            numbers = values.numbers
            value, exact = numbers[:, target], self.computed(encoding, numbers, i)
            with np.errstate(all="ignore"):
                _, size = _with_error(self.nodes[i], self.index, numbers, np.abs(numbers))
                allowed = _TRAINING * np.maximum(size, np.abs(value)) + encoding.steps[target]
                wrong = ~(np.abs(value - exact) <= allowed) & ~np.isnan(value)
            wrong &= ~np.isnan(numbers[:, self.inputs[i]]).any(axis=1)
            if wrong.any():
                row = int(wrong.argmax())
                used = ", ".join(f"{name!r} = {numbers[row, self.index[name]]:.10g}" for name in rule.inputs)
                raise DataError(
                    f"Column {rule.column!r} is not {rule.text!r} in {int(wrong.sum())} of {len(numbers)} training"
                    f" rows, e.g. in the row at position {row}: {used} gives {exact[row]:.10g}, but {rule.column!r} ="
                    f" {value[row]:.10g}. Correct the rows or the expression, e.g. if another unit or more columns"
                    f" than {enumerate_some(rule.inputs)} are meant."
                )


def _with_error(node: Node, index: dict[str, int], numbers: Floats, errors: Floats) -> tuple[Any, Any]:
    """The value of an expression, and how far it may be off where each number may be off by (N, n) errors."""
    if isinstance(node, Number):
        return node.value, 0.0
    if isinstance(node, Column):
        return numbers[:, index[node.name]], errors[:, index[node.name]]
    if isinstance(node, Extreme):
        parts = [_with_error(part, index, numbers, errors) for part in node.values]
        value, error = parts[0]
        for other, wrong in parts[1:]:
            value = np.maximum(value, other) if node.largest else np.minimum(value, other)
            error = np.maximum(error, wrong)
        return value, error
    if isinstance(node, Sum):
        parts = [_with_error(part, index, numbers, errors) for _, part in node.terms]
        signs = [1.0 if added else -1.0 for added, _ in node.terms]
        return sum(s * p[0] for s, p in zip(signs, parts, strict=True)), sum(p[1] for p in parts)
    value, error = np.ones(()), np.zeros(())
    for multiplied, part, _ in node.factors:
        other, wrong = _with_error(part, index, numbers, errors)
        if multiplied:
            value, error = value * other, error * np.abs(other) + np.abs(value) * wrong
        else:
            other = np.asarray(other, np.float64)
            value, error = value / other, error / np.abs(other) + np.abs(value) * wrong / other**2
    return value, error
