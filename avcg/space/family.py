"""What a family of limits on single columns is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np

from avcg.space.encoding import Encoding, Flags

# Marks an array that is the same for every row and every request, and has no axis R.
CONSTANT = {"constant": True}


@dataclass(frozen=True, eq=False)
class Family:
    """Arrays of one family of limits, of numpy or torch, and what they mean.

    Every field is an array (R, ...), where R is 1 or the number of rows, unless its metadata is `CONSTANT`. A subclass
    overrides what its limits have a part in; by default a family limits nothing.
    """

    def narrow(self, xp: Any, current: Any, missing: Any, low: Any, high: Any) -> tuple[Any, Any]:  # noqa: ARG002
        """How low and how high numbers may go, given what other families allow.

        Args:
            xp: numpy or torch; the arrays are of its kind.
            current: (B, n) the numbers, in the units of the arrays.
            missing: (B, n) where there is none; None: there is always one.
            low: (B, n) the lowest so far, at most ``current`` where there is a number.
            high: (B, n) the highest so far, at least ``current`` where there is a number.
        """
        return low, high

    def coded(self, encoding: Encoding) -> Self:  # noqa: ARG002
        """The same limits in units of codes."""
        return self

    def locked(self, numbers: Flags, slots: Flags) -> Self:  # noqa: ARG002
        """Less: some numbers (R, n) and the slots of some categories (R, M) may not change."""
        return self

    def randomly_narrowed(self, rows: Flags, rng: np.random.Generator) -> Self:  # noqa: ARG002
        """Less for some of the rows (B, 1), as requests that are drawn at random for training."""
        return self

    def arrays(self) -> dict[str, Any]:
        """The arrays (R, ...) by name."""
        return {field.name: getattr(self, field.name) for field in fields(self) if not field.metadata}

    def with_arrays(self, arrays: Mapping[str, Any]) -> Self:
        """The same limits with those of these arrays that belong to this family."""
        return replace(self, **{name: arrays[name] for name in self.arrays() if name in arrays})

    def mapped(self, change: Callable[[Any], Any]) -> Self:
        """The same limits with every array changed alike, constant ones too."""
        return replace(self, **{field.name: change(getattr(self, field.name)) for field in fields(self)})
