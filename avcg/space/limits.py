"""Families of limits on single columns, composed: how far a number may go, and which categories may be entered.

A family is one file: a dataclass of arrays (numpy or torch) and what they allow. It is listed here in `Limits`, and
everything else follows from that: taking rows, storing, tensors, inputs of graphs, constraint features, projection,
relaxation and the check of answers. Links and the cap on changes bind several columns at once; they are resolved in
`avcg.space.constraints` and `avcg.space.project`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from avcg.space.categories import Categories
from avcg.space.directions import Directions
from avcg.space.encoding import Encoding, Flags, Positions
from avcg.space.family import Family
from avcg.space.ranges import NumberRanges
from avcg.space.special import SpecialCodes


@dataclass(frozen=True, eq=False)
class Limits:
    """What may be done to each column by itself.

    Attributes:
        ranges: Where numbers may be.
        directions: Which way numbers may move.
        special: Which numbers are codes, and whether they may be left.
        categories: Which categories may be entered.
    """

    ranges: NumberRanges
    directions: Directions
    special: SpecialCodes
    categories: Categories

    @classmethod
    def of(cls, encoding: Encoding, change: NDArray[Any]) -> Self:
        """The limits of a schema.

        Args:
            encoding: With the schema.
            change: (features,) which way each feature may move, linked features alike where one of them is frozen.
        """
        return cls(
            ranges=NumberRanges.of(encoding),
            directions=Directions.of(encoding, change),
            special=SpecialCodes.of(encoding),
            categories=Categories.of(encoding, change),
        )

    @cached_property
    def families(self) -> tuple[Family, ...]:
        """Every family, in order."""
        return tuple(getattr(self, field.name) for field in fields(self))

    def interval(self, xp: Any, current: Any, missing: Any) -> tuple[Any, Any]:
        """How low and how high each number may go from where it is, in the units of the arrays.

        A special code that may be left is like a missing value: its row may be given any number of the range.

        Args:
            xp: numpy or torch; the arrays are of its kind.
            current: (B, n) the numbers.
            missing: (B, n) where there is none; None: there is always one.
        """
        left = self.special.left(xp, current)
        if left is not None:
            missing = left if missing is None else missing | left
        low, high = self.ranges.around(xp, current, missing)
        for family in self.families:
            low, high = family.narrow(xp, current, missing, low, high)
        return low, high

    def arrays(self) -> dict[str, Any]:
        """The arrays (R, ...) of all families by name, R being 1 or the number of rows."""
        return {name: array for family in self.families for name, array in family.arrays().items()}

    def with_arrays(self, arrays: Mapping[str, Any]) -> Self:
        """The same limits with some of these arrays replaced."""
        return self._each(lambda family: family.with_arrays(arrays))

    def mapped(self, change: Callable[[Any], Any]) -> Self:
        """The same limits with every array changed alike, e.g. to a tensor."""
        return self._each(lambda family: family.mapped(change))

    def coded(self, encoding: Encoding) -> Self:
        """The same limits in units of codes."""
        return self._each(lambda family: family.coded(encoding))

    def locked(self, numbers: Flags, slots: Flags) -> Self:
        """Less: some numbers (R, n) and the slots of some categories (R, M) may not change."""
        return self._each(lambda family: family.locked(numbers, slots))

    def randomly_narrowed(self, rows: Flags, rng: np.random.Generator) -> Self:
        """Less for some of the rows (B, 1), by random requests."""
        return self._each(lambda family: family.randomly_narrowed(rows, rng))

    def movable(self, encoding: Encoding) -> Flags:
        """(R, features) whether a feature may change at all, whatever its value."""
        numbers, categories = ~self.directions.frozen, self.categories.movable(encoding)
        free = np.empty((len(numbers), len(encoding.schema)), bool)
        free[:, encoding.numeric_columns], free[:, encoding.categorical_columns] = numbers, categories
        return free

    def take(self, rows: Positions) -> Self:
        """The limits of some rows, where each row has its own."""
        return self.with_arrays({name: array[rows] for name, array in self.arrays().items()})

    def _each(self, change: Callable[[Any], Any]) -> Self:
        return type(self)(*(change(family) for family in self.families))
