"""Which way numbers may move: up, down, both or not at all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from avcg.space.encoding import Encoding, Flags
from avcg.space.family import Family


@dataclass(frozen=True, eq=False)
class Directions(Family):
    """Which numbers may not fall, and which may not rise.

    Attributes:
        no_fall: (R, n) whether the number may not fall.
        no_rise: (R, n) whether the number may not rise; with ``no_fall`` it is frozen, and a missing one stays missing.
    """

    no_fall: Any
    no_rise: Any

    @classmethod
    def of(cls, encoding: Encoding, change: NDArray[Any]) -> Self:
        """The directions of the schema; ``change`` (features,) is "any", "up", "down" or "none"."""
        numbers = change[encoding.numeric_columns]
        return cls(np.isin(numbers, ("up", "none"))[None], np.isin(numbers, ("down", "none"))[None])

    @property
    def frozen(self) -> Any:
        """(R, n) whether the number may not move at all."""
        return self.no_fall & self.no_rise

    def narrow(self, xp: Any, current: Any, missing: Any, low: Any, high: Any) -> tuple[Any, Any]:
        """Numbers stay at or above, or at or below, their present value. A missing one may be filled unless frozen."""
        no_fall, no_rise = self.no_fall, self.no_rise
        if missing is not None:
            stays = ~missing | self.frozen
            no_fall, no_rise = no_fall & stays, no_rise & stays
        return xp.where(no_fall, current, low), xp.where(no_rise, current, high)

    def locked(self, numbers: Flags, slots: Flags) -> Self:  # noqa: ARG002
        """Some numbers (R, n) are frozen."""
        return replace(self, no_fall=self.no_fall | numbers, no_rise=self.no_rise | numbers)

    def randomly_narrowed(self, rows: Flags, rng: np.random.Generator) -> Self:
        """Nearly a third of the numbers of these rows (B, 1) may move one way only."""
        shape = (len(rows), self.no_fall.shape[1])
        one_way = rows & (rng.random(shape) < 0.3)
        falls = rng.random(shape) < 0.5
        return replace(self, no_fall=self.no_fall | (one_way & falls), no_rise=self.no_rise | (one_way & ~falls))
