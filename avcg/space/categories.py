"""Which categories may be entered from which, by the schema and by requests.

Every rule of a schema about one categorical column is a part of its table of moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from avcg.errors import SchemaError, did_you_mean
from avcg.schema.features import Categorical, Scalar, to_python
from avcg.space.encoding import Encoding, Flags
from avcg.space.family import CONSTANT, Family


@dataclass(frozen=True, eq=False)
class Categories(Family):
    """Moves between categories.

    Attributes:
        may_enter: (R, M) whether the request allows to move into this category.
        moves: (M, widest block) whether the schema allows to move from a slot to each slot of its block.
    """

    may_enter: Any
    moves: Any = field(metadata=CONSTANT)

    @classmethod
    def of(cls, encoding: Encoding, change: NDArray[Any]) -> Self:
        """The moves of the schema; ``change`` (features,) is "any", "up", "down" or "none"."""
        widest = max((slots.stop - slots.start for slots in encoding.slots), default=1)
        moves = np.zeros((len(encoding.slot_at), widest), bool)
        directions = change[encoding.categorical_columns]
        for feature, slots, direction in zip(encoding.categorical, encoding.slots, directions, strict=True):
            moves[slots, : slots.stop - slots.start] = _moves(feature, slots.stop - slots.start, direction)
        return cls(np.ones((1, len(encoding.slot_at)), bool), moves)

    def enterable(self, xp: Any, current: Any, first_slots: Any, within: Any, unpadding: Any) -> Any:
        """(B, M) the categories a row may be in, staying included.

        Args:
            xp: numpy or torch; the arrays are of its kind.
            current: (B, M) 1 at the categories the row is in, 0 elsewhere.
            first_slots: (G,) of each block.
            within: (M, G) the place of each slot in its block.
            unpadding: (M,) the way back from (G * widest,).
        """
        if not len(first_slots):
            return current > 0.5
        own = own_slots(xp, current, first_slots, within)
        allowed = _taken(xp, self.moves, own.reshape(-1), 0)
        allowed = allowed.reshape(current.shape[0], len(first_slots) * self.moves.shape[1])
        allowed = _taken(xp, allowed, unpadding, 1)
        return (allowed & self.may_enter) | (current > 0.5)

    def movable(self, encoding: Encoding) -> Flags:
        """(R, categorical features) whether a category may be left for another at all."""
        free = np.empty((len(self.may_enter), len(encoding.slots)), bool)
        for j, slots in enumerate(encoding.slots):
            size = slots.stop - slots.start
            elsewhere = self.moves[slots, :size] & ~np.eye(size, dtype=bool)
            free[:, j] = (self.may_enter[:, slots] & elsewhere.any(axis=0)).any(axis=1)
        return free

    def requested(self, encoding: Encoding, feature: Categorical, categories: Any) -> Self:
        """What a request leaves of the categories of one column.

        Args:
            encoding: The codes.
            feature: The column.
            categories: A list of categories for all rows, or one such list for each.

        Raises:
            SchemaError: If this is no list of categories of the column.
        """
        if isinstance(categories, str) or not isinstance(categories, Iterable):
            raise SchemaError(
                f"The range of column {feature.name!r} must be a list of its categories. Got {categories!r} instead."
            )
        categories = [to_python(value) for value in categories]
        per_row = [categories] if all(isinstance(value, Scalar) for value in categories) else categories
        if not categories:
            raise SchemaError(
                f"The range of column {feature.name!r} is empty. Leave it out of 'vary' if it may not change."
            )
        entered = flags(per_row, feature.categories, f"column {feature.name!r}", "category")
        slots = encoding.slots[encoding.kind_index[encoding.schema.names.index(feature.name)]]
        mask = np.zeros((len(entered), slots.stop - slots.start), bool)
        mask[:, : len(feature.categories)] = entered
        may_enter = np.repeat(self.may_enter, max(len(self.may_enter), len(mask)) // len(self.may_enter), axis=0)
        may_enter[:, slots] &= mask
        return replace(self, may_enter=may_enter)

    def locked(self, numbers: Flags, slots: Flags) -> Self:  # noqa: ARG002
        """Some slots (R, M) may not be entered."""
        return replace(self, may_enter=self.may_enter & ~slots)

    def randomly_narrowed(self, rows: Flags, rng: np.random.Generator) -> Self:
        """Up to a third of the categories may not be entered by these rows (B, 1)."""
        shape = (len(rows), self.may_enter.shape[1])
        barred = rows & (rng.random(shape) < 0.3 * rng.random((len(rows), 1)))
        return replace(self, may_enter=self.may_enter & ~barred)


def own_slots(xp: Any, current: Any, first_slots: Any, within: Any) -> Any:
    """(B, G) the slot of the category that each row is in, block by block. Works on numpy and torch alike.

    Args:
        xp: numpy or torch.
        current: (B, M) 1 at the categories the row is in, 0 elsewhere.
        first_slots: (G,) of each block.
        within: (M, G) the place of each slot in its block.
    """
    position = current @ within
    return first_slots + (position.astype(np.intp) if xp is np else position.long())


def flags(lists: Sequence[Sequence[Scalar]], values: Sequence[Scalar], where: str, what: str) -> Flags:
    """(rows, values) which of the values each list names.

    Args:
        lists: One for each row.
        values: All there are.
        where: What they are values of, for messages.
        what: What one of them is called, for messages.
    """
    position = {value: i for i, value in enumerate(values)}
    named = [to_python(value) for value in chain.from_iterable(lists)]
    unknown = [value for value in named if not isinstance(value, Scalar) or value not in position]
    if unknown:
        raise SchemaError(f"There is no {what} {unknown[0]!r} in {where}. {did_you_mean(unknown[0], values)}")
    result = np.zeros((len(lists), len(values)), bool)
    rows = np.repeat(np.arange(len(lists)), [len(entry) for entry in lists])
    result[rows, np.fromiter((position[value] for value in named), np.intp, len(named))] = True
    return result


def _moves(feature: Categorical, size: int, change: str) -> Flags:
    """(size, size) allowed transitions of one feature; the last slot is for missing values, if it may have them."""
    n = len(feature.categories)
    moves = np.zeros((size, size), bool)
    if change != "none":
        moves[:, :n] = True  # no value ever becomes missing
        if feature.allowed is not None:
            barred = [i for i, value in enumerate(feature.categories) if value not in feature.allowed]
            moves[:, barred] = False
        for before, after in feature.forbidden:
            moves[feature.position(before), feature.position(after)] = False
        rank = np.arange(n)
        if change == "up":
            moves[:n, :n] &= rank[None, :] >= rank[:, None]
        if change == "down":
            moves[:n, :n] &= rank[None, :] <= rank[:, None]
    np.fill_diagonal(moves, True)
    return moves


def _taken(xp: Any, array: Any, at: Any, axis: int) -> Any:
    """Some of an array along an axis, as both libraries do it fastest."""
    return array.take(at, axis) if xp is np else xp.index_select(array, axis, at)
