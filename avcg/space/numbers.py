"""What the values of a numeric column suggest: its step, its special codes and the gaps between its values.

Steps are found in whole numbers, so that no remainder of floats decides: a value with d decimals is the float nearest
to k / 10**d for a whole number k, and steps are common divisors of these k. numpy alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from avcg.space.grids import EXACT, Floats
from avcg.space.stretches import find_gaps

_BLUR = 0.1  # of a step, that rounding to the column's type may take
_MOST_DECIMALS = 6
_MIN_DISTINCT = 8  # values from which a common divisor is taken for a step, and not for a coincidence
_MOST_CODES = 6
_MIN_REPEATED = 3  # rows of a code, on average
_MIN_BODY = 10  # different values of a number; with fewer, no value is isolated from the others
# A code below stands apart from the body by this many median distances, or is so much more frequent than its values.
_APART, _FREQUENT, _MIN_SHARE = 5.0, 5.0, 0.01
_TIMES_MEDIAN, _SHARE_OF_RANGE = 10.0, 0.25  # by how much a code above the body must stand apart
_BELOW = re.compile(r"-([1-9]|9+[5-9]|6{2,}|7{2,}|8{2,})")
_ABOVE = re.compile(r"9+[5-9]|6{3,}|7{2,}|8{2,}")


@dataclass(frozen=True, eq=False)
class NumberFindings:
    """What was found in a numeric column.

    Attributes:
        decimals: Most decimals that a value has; None: more than 6.
        step: What all values but codes are multiples of; None: there is no such step.
        codes: Values that seem to be codes.
        gaps: (m, 2) gaps between the other values.
        constant: The only value; None: there are several.
    """

    decimals: int | None
    step: float | None
    codes: tuple[float, ...]
    gaps: Floats
    constant: float | None


def look_at_numbers(numbers: Floats, dtype: np.dtype[np.floating]) -> NumberFindings:
    """What the values of a column suggest.

    Args:
        numbers: (N,) values, NaN where missing.
        dtype: Type that the column has itself; a float32 column has the decimals that its own values print with.
    """
    present = numbers[np.isfinite(numbers)]
    values, counts = np.unique(present, return_counts=True)
    codes = find_codes(values, counts)
    body = ~np.isin(values, codes)
    decimals, step = find_step(values[body], dtype)
    return NumberFindings(
        decimals=decimals,
        step=step,
        codes=codes,
        gaps=find_gaps(present[~np.isin(present, codes)]),
        constant=float(values[0]) if len(values) == 1 else None,
    )


def find_step(values: Floats, dtype: np.dtype[np.floating]) -> tuple[int | None, float | None]:
    """The most decimals that any value has, and the step that all values are multiples of.

    The step is the greatest common divisor of at least 8 values if that is 1, 2, 2.5 or 5 times a power of ten, else
    the largest power of ten that divides them. With fewer values it is the power of ten of the last decimal.

    Args:
        values: (m,) different finite values.
        dtype: Type of the column.

    >>> find_step(np.array([0.1, 0.25]), np.dtype(float))
    (2, 0.01)
    >>> find_step(100.0 * np.array([3, 5, 8, 9, 11, 12, 20, 31]), np.dtype(float))
    (0, 100)
    """
    for decimals in range(_MOST_DECIMALS + 1):
        counts = np.rint(values * 10.0**decimals)
        if decimals and (np.spacing(np.abs(values).max(initial=0.0).astype(dtype)) * 10.0**decimals > _BLUR).any():
            return None, None  # the column's type could not tell two steps apart
        if (np.abs(counts) >= EXACT).any():
            return (0, 1) if decimals == 0 and (values == counts).all() else (None, None)
        if ((counts / 10.0**decimals).astype(dtype) == values.astype(dtype)).all():
            return decimals, _step(counts.astype(np.int64), decimals)
    return None, None


def _step(counts: NDArray[np.int64], decimals: int) -> float:
    """The step of values that are whole numbers of 10**-decimals."""
    divisor = int(np.gcd.reduce(counts)) if len(counts) >= _MIN_DISTINCT else 1
    power = 1
    while divisor and divisor % (10 * power) == 0:
        power *= 10
    rest = divisor // power
    # 25 tens are 2.5 hundreds; a divisor of 0 is that of zeros alone.
    units = power * rest if rest in (1, 2, 5, 25) else max(power, 1)
    return units // 10**decimals if units % 10**decimals == 0 else float(f"{units}e-{decimals}")


def find_codes(values: Floats, counts: NDArray[np.intp]) -> tuple[float, ...]:
    """Values that seem to be codes and no numbers: few, repeated, and apart from the others.

    Below zero, they are all the negative values of a column: whole numbers such as -1, -9 or -999, that stand apart
    from the others or are far more frequent. Above the others, they are 97, 99, 888, 9999 and the like, far apart.

    Args:
        values: (m,) different finite values, ascending.
        counts: (m,) number of rows with each.

    >>> find_codes(np.array([-9, *range(50)]), np.array([40] + [10] * 50))
    (-9,)
    """
    negative = values < 0
    low = negative if _are_codes_below(values, counts, negative) else np.zeros(len(values), bool)
    rest = ~low
    high = np.zeros(len(values), bool)
    for count in range(min(_MOST_CODES, int(rest.sum())), 0, -1):
        tried = np.zeros(len(values), bool)
        tried[-count:] = True
        if _are_codes_above(values, counts, rest & ~tried, tried):
            high = tried
            break
    return tuple(int(value) for value in values[low | high])


def _are_codes_below(values: Floats, counts: NDArray[np.intp], codes: NDArray[np.bool_]) -> bool:
    """Whether the negative values of a column are codes."""
    body = values[~codes]
    if not _look_like_codes(values, counts, codes, _BELOW) or len(body) < _MIN_BODY:
        return False
    apart = body[0] - values[codes][-1] >= _APART * np.median(np.diff(body))
    typical = np.median(counts[~codes])
    frequent = counts[codes].min() >= max(_FREQUENT * typical, _MIN_SHARE * counts.sum())
    return bool(apart or frequent)


def _are_codes_above(
    values: Floats, counts: NDArray[np.intp], body: NDArray[np.bool_], codes: NDArray[np.bool_]
) -> bool:
    """Whether the highest values of a column are codes, and those marked as its body are numbers."""
    numbers = values[body]
    if not _look_like_codes(values, counts, codes, _ABOVE) or len(numbers) < _MIN_BODY:
        return False
    rows = np.cumsum(counts[body])
    first, last = numbers[np.searchsorted(rows, np.array([0.01, 0.99]) * rows[-1])]
    distance = values[codes][0] - numbers[-1]
    return bool(distance > _TIMES_MEDIAN * np.median(np.diff(numbers)) and distance > _SHARE_OF_RANGE * (last - first))


def _look_like_codes(
    values: Floats, counts: NDArray[np.intp], codes: NDArray[np.bool_], pattern: re.Pattern[str]
) -> bool:
    """Whether some values are few, repeated, whole, and written like codes."""
    if not 1 <= codes.sum() <= _MOST_CODES or counts[codes].sum() < _MIN_REPEATED * codes.sum():
        return False
    written = [f"{value:.0f}" for value in values[codes]]
    return bool((values[codes] == np.rint(values[codes])).all()) and all(map(pattern.fullmatch, written))
