"""Where numbers may be: the range of the schema, or else of the training rows, narrowed by requests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from avcg.errors import SchemaError
from avcg.space.encoding import Encoding, Floats
from avcg.space.family import Family


@dataclass(frozen=True, eq=False)
class NumberRanges(Family):
    """Lowest and highest numbers.

    Attributes:
        low: (R, n) lowest number an answer may take, in the user's units.
        high: (R, n) highest number.
    """

    low: Any
    high: Any

    @classmethod
    def of(cls, encoding: Encoding) -> Self:
        """The ranges of the schema, and of the training rows where the schema has none.

        Raises:
            SchemaError: If a bound of the schema lies beyond the training rows, and the other one is theirs.
        """
        pairs = []
        for feature, low, high in zip(encoding.numeric, encoding.low, encoding.high, strict=True):
            bounds = (low if feature.low is None else feature.low, high if feature.high is None else feature.high)
            if bounds[0] > bounds[1]:
                given, end, other = ("low", high, "high") if feature.high is None else ("high", low, "low")
                raise SchemaError(
                    f"between sets {getattr(feature, given)!r} as the {given} bound of column {feature.name!r}, but the"
                    f" training rows end at {end:.10g}. Give a {other} bound too."
                )
            pairs.append(bounds)
        both = np.array(pairs, np.float64).reshape(-1, 2)
        return cls(both[None, :, 0], both[None, :, 1])

    def around(self, xp: Any, current: Any, missing: Any) -> tuple[Any, Any]:
        """(B, n) the ranges, extended to the numbers there are: a number outside may stay or move toward its range.

        Args:
            xp: numpy or torch; the arrays are of its kind.
            current: (B, n) the numbers, in the units of the arrays.
            missing: (B, n) where there is none; None: there is always one.
        """
        low, high = xp.minimum(self.low, current), xp.maximum(self.high, current)
        return (
            (low, high) if missing is None else (xp.where(missing, self.low, low), xp.where(missing, self.high, high))
        )

    def coded(self, encoding: Encoding) -> Self:
        """The same ranges in units of codes."""
        return type(self)(encoding.scaled(self.low), encoding.scaled(self.high))

    def requested(self, name: str, j: int, bounds: Any) -> Self:
        """What a request leaves of the range of one column.

        Args:
            name: Of the column.
            j: Its position among the numbers.
            bounds: (low, high), None for an open side, a number for all rows or one for each.

        Raises:
            SchemaError: If this is no range, or nothing is left.
        """
        try:
            low, high = bounds
            low = np.atleast_1d(np.asarray(-np.inf if low is None else low, np.float64))
            high = np.atleast_1d(np.asarray(np.inf if high is None else high, np.float64))
            rows = len(np.broadcast_arrays(low, high, self.low[:, 0])[0])
        except (TypeError, ValueError):
            raise SchemaError(
                f"The range of column {name!r} must be a pair (low, high) of numbers, None for an open side, or of one"
                f" number per row. Got {bounds!r} instead."
            ) from None
        if np.isnan(low).any() or np.isnan(high).any():
            raise SchemaError(f"The range of column {name!r} holds a bound that is not a number.")
        lows, highs = _copied(self.low, rows), _copied(self.high, rows)
        lows[:, j], highs[:, j] = np.maximum(lows[:, j], low), np.minimum(highs[:, j], high)
        crossed = lows[:, j] > highs[:, j]
        if crossed.any():
            where = "" if rows == 1 else f" in {int(crossed.sum())} rows"
            raise SchemaError(
                f"The range of column {name!r} leaves nothing{where}: asked for {low[0]:.10g} to {high[0]:.10g}, but it"
                f" may only be {self.low[0, j]:.10g} to {self.high[0, j]:.10g}."
            )
        return replace(self, low=lows, high=highs)


def _copied(array: Floats, rows: int) -> Floats:
    """A copy with one entry for each of so many rows."""
    return np.repeat(array, rows, axis=0) if len(array) < rows else array.copy()
