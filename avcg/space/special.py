"""Special codes of numbers, such as -9 for "not applicable": rows keep them, or leave them for a number.

A code stays a number in the encoding, so that every model sees it as it is in the data.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from avcg.space.encoding import Encoding
from avcg.space.family import CONSTANT, Family


@dataclass(frozen=True, eq=False)
class SpecialCodes(Family):
    """Which numbers are codes, and which of these an answer may leave.

    Attributes:
        values: (n, m) the codes of each column.
        tolerance: (n, m) how near a number is to a code if it is the code; negative where a column has fewer codes.
        leavable: (n, m) whether an answer may leave the code.
    """

    values: Any = field(metadata=CONSTANT)
    tolerance: Any = field(metadata=CONSTANT)
    leavable: Any = field(metadata=CONSTANT)

    @classmethod
    def of(cls, encoding: Encoding) -> Self:
        """The codes of the schema."""
        values, tolerance = encoding.special
        leavable = np.zeros(values.shape, bool)
        for j, feature in enumerate(encoding.numeric):
            leavable[j, : len(feature.codes)] = np.isin(feature.codes, feature.left_codes)
        return cls(values, tolerance, leavable)

    def held(self, xp: Any, current: Any) -> Any:
        """(..., n) whether a number is a code of its column; None: no column has codes."""
        return self._equal(xp, current).any(-1) if self.values.shape[1] else None

    def left(self, xp: Any, current: Any) -> Any:
        """(B, n) whether a row has a code that it may leave; None: no column has such a code."""
        if not self.values.shape[1]:
            return None
        return (self._equal(xp, current) & self.leavable).any(-1)

    def narrow(self, xp: Any, current: Any, missing: Any, low: Any, high: Any) -> tuple[Any, Any]:
        """A code that may not be left stays."""
        if not self.values.shape[1]:
            return low, high
        kept = (self._equal(xp, current) & ~self.leavable).any(-1)
        kept = kept if missing is None else kept & ~missing
        return xp.where(kept, current, low), xp.where(kept, current, high)

    def coded(self, encoding: Encoding) -> Self:
        """The same codes in units of encoded rows."""
        return replace(
            self, values=encoding.scaled(self.values.T).T, tolerance=self.tolerance / encoding.scale[:, None]
        )

    def _equal(self, xp: Any, current: Any) -> Any:
        """(B, n, m) which codes a row has."""
        return xp.abs(current[..., None] - self.values) <= self.tolerance
