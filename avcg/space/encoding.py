"""Raw values to float32 codes and back, with numpy alone.

A number takes one code, scaled (float32 tells a few million steps apart, and no more); a column that may have gaps
takes one more, 1 where it is missing. A category takes one code per category, 1 at its own. Between the user's frame
and the codes stand `Values`: float64 numbers and category positions, exact. Nothing here imports torch or pandas, so
that a light scorer can encode rows too.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from avcg.errors import DataError
from avcg.schema.features import Categorical, Continuous
from avcg.schema.schema import Schema
from avcg.space.grids import multiple, tidied
from avcg.space.stretches import find_gaps, pieces_between
from avcg.space.validation import refuse_far

Floats = NDArray[np.float64]
Codes = NDArray[np.float32]
Positions = NDArray[np.intp]
Flags = NDArray[np.bool_]
Scaling = Literal["standard", "minmax"]

_EPS = float(np.finfo(np.float32).eps)
_CLEAR = 1e-3  # standard deviations that a number without a step stays clear of a special code
_SIDES = np.array([-1.0, 1.0])


@dataclass(frozen=True, eq=False)
class Values:
    """Rows as exact values: numeric and categorical columns separately, each in the order of the schema.

    Attributes:
        numbers: (N, numeric columns), NaN where missing.
        choices: (N, categorical columns), position of the category; one past the last where missing.
    """

    numbers: Floats
    choices: Positions

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, rows: Positions) -> Values:
        """Some of the rows, in the order given."""
        return Values(self.numbers[rows], self.choices[rows])


@dataclass(frozen=True, eq=False)
class Encoding:
    """A schema with the scaling of the training rows, which is all that encoding and decoding need.

    Attributes:
        schema: The columns.
        scaling: ``"standard"`` (mean 0, standard deviation 1) or ``"minmax"`` (0 to 1 over the training rows).
        center: (n,) what is subtracted from each number.
        scale: (n,) what the difference is divided by; 1 for a constant column.
        low: (n,) lowest numbers in the training rows.
        high: (n,) highest numbers in the training rows.
        gaps: (T, 3) gaps in the values of the training rows: which number, and the values at the two ends.
    """

    schema: Schema
    scaling: Scaling
    center: Floats
    scale: Floats
    low: Floats
    high: Floats
    gaps: Floats = field(default_factory=lambda: np.zeros((0, 3)))

    @classmethod
    def fit(cls, schema: Schema, values: Values, scaling: Scaling = "standard") -> Self:
        """Learn scaling, ranges and gaps from training rows. Special codes have no part in it.

        Raises:
            DataError: If a numeric column has no value at all, or values beyond scaling.
        """
        numbers = body(schema, values)
        names = [feature.name for feature in schema.numeric]
        empty = np.isnan(numbers).all(axis=0)
        if empty.any():
            raise DataError(f"Column {names[int(empty.argmax())]!r} has no value in any row. Drop it.")
        low, high = np.nanmin(numbers, axis=0), np.nanmax(numbers, axis=0)
        with np.errstate(over="ignore", invalid="ignore"):
            if scaling == "standard":
                center, scale = np.nanmean(numbers, axis=0), np.nanstd(numbers, axis=0)
            else:
                center, scale = low, high - low
        unscalable = ~(np.isfinite(center) & np.isfinite(scale))
        if unscalable.any():
            raise DataError(f"Column {names[int(unscalable.argmax())]!r} holds numbers too large to scale. Rescale it.")
        # A constant column has nothing to scale by. Rounding in the mean can hide that in the standard deviation.
        constant = (low == high) | (scale == 0)
        center, scale = np.where(constant, low, center), np.where(constant, 1.0, scale)
        return cls(schema, scaling, center, scale, low, high).with_support(schema, numbers)

    def with_support(self, schema: Schema, numbers: Floats, columns: Positions | None = None) -> Self:
        """The same scaling under a schema, with ranges and gaps learnt from numbers.

        Args:
            schema: The columns.
            numbers: (N, n) without special codes.
            columns: Positions of the numbers that are learnt anew; None: all.
        """
        low, high, gaps = self.low.copy(), self.high.copy(), [tuple(gap) for gap in self.gaps]
        for j in range(len(schema.numeric)) if columns is None else columns.tolist():
            ends = np.array([np.nanmin(numbers[:, j]), np.nanmax(numbers[:, j])])
            low[j], high[j] = tidied(schema.numeric[j], ends)
            found = tidied(schema.numeric[j], find_gaps(numbers[:, j]))
            gaps = [gap for gap in gaps if gap[0] != j] + [(j, *ends) for ends in found.tolist()]
        return replace(self, schema=schema, low=low, high=high, gaps=np.array(gaps, np.float64).reshape(-1, 3))

    @cached_property
    def numeric(self) -> tuple[Continuous, ...]:
        """The numeric features, in the order of `Values.numbers`."""
        return self.schema.numeric

    @cached_property
    def categorical(self) -> tuple[Categorical, ...]:
        """The categorical features, in the order of `Values.choices`."""
        return self.schema.categorical

    def difference(self, other: Encoding) -> str | None:
        """Name of the first column that another encoding reads differently; None if there is none."""
        for mine, theirs in zip_longest(self.schema.features, other.schema.features):
            if mine is None or theirs is None:
                return str((mine or theirs).name)
            if (mine.name, mine.missing) != (theirs.name, theirs.missing) or type(mine) is not type(theirs):
                return mine.name
            if any(getattr(mine, name, None) != getattr(theirs, name, None) for name in ("categories", "columns")):
                return mine.name
        for j, feature in enumerate(self.numeric):
            if (self.center[j], self.scale[j]) != (other.center[j], other.scale[j]):
                return feature.name
        return None

    @cached_property
    def kind_index(self) -> tuple[int, ...]:
        """Index of each feature of the schema among the numeric or among the categorical ones."""
        numeric = [isinstance(feature, Continuous) for feature in self.schema.features]
        counts = np.where(numeric, np.cumsum(numeric), np.cumsum(np.logical_not(numeric)))
        return tuple((counts - 1).tolist())

    @cached_property
    def numeric_columns(self) -> Positions:
        """(n,) the position in the schema of each numeric feature."""
        return np.flatnonzero([isinstance(feature, Continuous) for feature in self.schema.features])

    @cached_property
    def categorical_columns(self) -> Positions:
        """(G,) the position in the schema of each categorical feature."""
        return np.flatnonzero([isinstance(feature, Categorical) for feature in self.schema.features])

    @cached_property
    def slices(self) -> tuple[slice, ...]:
        """Codes of each feature of the schema."""
        stops = np.cumsum([_width(feature) for feature in self.schema.features]).tolist()
        return tuple(slice(start, stop) for start, stop in zip([0, *stops[:-1]], stops, strict=True))

    @property
    def width(self) -> int:
        """D, the number of codes of a row."""
        return self.slices[-1].stop

    @cached_property
    def number_at(self) -> Positions:
        """(n,) the code that holds each number."""
        return np.array([s.start for f, s in self._placed if isinstance(f, Continuous)], np.intp)

    @cached_property
    def missing_at(self) -> Positions:
        """(n,) the code that is 1 where the number is missing; -1 where the column refuses gaps."""
        numeric = [(f, s) for f, s in self._placed if isinstance(f, Continuous)]
        return np.array([s.stop - 1 if f.missing == "indicator" else -1 for f, s in numeric], np.intp)

    @cached_property
    def blocks(self) -> tuple[slice, ...]:
        """Codes of each categorical feature."""
        return tuple(s for f, s in self._placed if isinstance(f, Categorical))

    @cached_property
    def slot_at(self) -> Positions:
        """(M,) the codes of all categories, block after block."""
        return np.concatenate([np.arange(0), *(np.arange(s.start, s.stop) for s in self.blocks)]).astype(np.intp)

    @cached_property
    def slots(self) -> tuple[slice, ...]:
        """Where each block lies within `slot_at`."""
        stops = np.cumsum([s.stop - s.start for s in self.blocks], dtype=int).tolist()
        return tuple(slice(start, stop) for start, stop in zip([0, *stops[:-1]], stops, strict=False))

    @cached_property
    def first_slots(self) -> Positions:
        """(G,) where the block of each categorical feature begins among the slots."""
        return np.array([slots.start for slots in self.slots], np.intp)

    @cached_property
    def first_codes(self) -> Positions:
        """(G,) where the block of each categorical feature begins among the codes."""
        return np.array([block.start for block in self.blocks], np.intp)

    @cached_property
    def within(self) -> Codes:
        """(M, G) position of each slot in its block; codes times this are the positions of the categories of a row."""
        table = np.zeros((len(self.slot_at), len(self.slots)), np.float32)
        for block, slots in enumerate(self.slots):
            table[slots, block] = np.arange(slots.stop - slots.start)
        return table

    @cached_property
    def padded(self) -> tuple[Positions, Positions]:
        """(G, widest) slots of each block, M where a block has no more; and (M,) where each slot is in that table."""
        size = len(self.slot_at)
        widest = max((slots.stop - slots.start for slots in self.slots), default=1)
        table = np.full((len(self.slots), widest), size)
        for row, slots in zip(table, self.slots, strict=True):
            row[: slots.stop - slots.start] = np.arange(slots.start, slots.stop)
        return table, np.flatnonzero(table.ravel() < size)

    @cached_property
    def steps(self) -> Floats:
        """(n,) the step of each number, 0 where there is none."""
        return np.array([feature.step or 0.0 for feature in self.numeric])

    @cached_property
    def special(self) -> tuple[Floats, Floats]:
        """(n, m) special codes of each number, and how near to a code a number is that code.

        The tolerance is negative where a column has fewer codes. A number that follows another number has none: it is
        what its leader says.
        """
        codes = [() if feature.name in self._led_by_number else feature.codes for feature in self.numeric]
        values = np.zeros((len(codes), max(map(len, codes), default=0)))
        tolerance = np.full(values.shape, -1.0)
        for j, column in enumerate(codes):
            values[j, : len(column)] = column
            far = np.abs(values[j, : len(column)] - self.center[j]) / self.scale[j]
            tolerance[j, : len(column)] = 4 * _EPS * (1.0 + far) * self.scale[j]
        return values, tolerance

    def at_special(self, numbers: Floats) -> Flags:
        """(..., n) whether a number is a special code of its column; False where it is missing."""
        values, tolerance = self.special
        return np.asarray((np.abs(numbers[..., None] - values) <= tolerance).any(axis=-1))

    @cached_property
    def special_prices(self) -> Codes:
        """(n,) price of leaving a special code, without that of any change: 1, or 0 for followers of a link."""
        followers = {name for group in self.schema.links for name in group[1:]}
        return np.array([feature.name not in followers for feature in self.numeric], np.float32)

    @cached_property
    def pieces(self) -> dict[int, Floats]:
        """By position of a number, the (m, 2) intervals that gaps and special codes leave; without whole columns."""
        pieces = {}
        for j, feature in enumerate(self.numeric):
            if feature.name in self._led_by_number:
                continue
            holes = [(low, high) for i, low, high in self.gaps.tolist() if i == j and feature.observed]
            for code in feature.codes:
                # Without a grid, what a float32 code cannot tell from the special code must be kept free too.
                ends = np.nextafter(code, (-np.inf, np.inf)) if feature.step else code + _CLEAR * self.scale[j] * _SIDES
                holes.append((float(ends[0]), float(ends[1])))
            if holes:
                pieces[j] = pieces_between(holes)
        return pieces

    @cached_property
    def _led_by_number(self) -> set[str]:
        """Names of the columns that follow a number."""
        groups = [group for group in self.schema.links if isinstance(self.schema[group[0]], Continuous)]
        return {name for group in groups for name in group[1:]}

    @cached_property
    def prices(self) -> Codes:
        """(D,) what a unit of each code costs: a category counts half where it goes and half where it comes from.

        Followers of a link cost nothing: the leader's price is the link's. Derived columns cost nothing either.
        """
        prices = np.zeros(self.width, np.float32)
        for j, feature in enumerate(self.numeric):
            if self.missing_at[j] >= 0:
                prices[self.missing_at[j]] = 1.0
            unit = feature.cost_per_unit
            prices[self.number_at[j]] = 1.0 if unit is None else unit * self.scale[j]
        for choice, block in zip(self.categorical, self.blocks, strict=True):
            prices[block] = 0.5 * choice.cost_per_change
        for group in self.schema.links:
            for name in group[1:]:
                prices[self.slices[self.schema.names.index(name)]] = 0.0
        for name in self.schema.derivations:
            prices[self.slices[self.schema.names.index(name)]] = 0.0
        return prices

    @cached_property
    def change_prices(self) -> Codes:
        """(n,) price of any change of a number."""
        return np.array([feature.cost_per_change for feature in self.numeric], np.float32)

    @cached_property
    def decimals(self) -> list[int]:
        """(n,) number of decimals of the multiples of each step."""
        return [feature.decimals for feature in self.numeric]

    @cached_property
    def _placed(self) -> list[tuple[Continuous | Categorical, slice]]:
        return list(zip(self.schema.features, self.slices, strict=True))

    def encode(self, values: Values) -> Codes:
        """Values to codes.

        Returns:
            (N, D).
        """
        x = np.zeros((len(values), self.width), np.float32)
        codes, missing = self.scaled(values.numbers), np.isnan(values.numbers)
        if missing.any():
            codes[missing] = 0.0
            can_miss = self.missing_at >= 0
            x[:, self.missing_at[can_miss]] = missing[:, can_miss]
        x[:, self.number_at] = codes
        if len(self.blocks):
            x[np.arange(len(values))[:, None], self.first_codes + values.choices] = 1.0
        return x

    def checked(self, x: Codes) -> Codes:
        """The codes themselves.

        Raises:
            DataError: If they do not have shape (N, D).
        """
        if x.ndim != 2 or x.shape[1] != self.width:
            raise DataError(f"decode takes codes of shape (rows, {self.width}). Got {x.shape} instead.")
        return x

    def decode(self, x: Codes) -> Values:
        """Codes to values: numbers on their grid, the category with the largest code.

        Args:
            x: (N, D).
        """
        numbers = self.on_grid(self.unscaled(x[:, self.number_at]))
        can_miss = self.missing_at >= 0
        numbers[:, can_miss] = np.where(x[:, self.missing_at[can_miss]] > 0.5, np.nan, numbers[:, can_miss])
        return Values(numbers, self.decode_choices(x))

    def decode_choices(self, x: Codes) -> Positions:
        """(N, G) the category with the largest code, for each categorical feature.

        Args:
            x: (N, D).
        """
        choices = np.empty((len(x), len(self.blocks)), np.intp)
        for j, block in enumerate(self.blocks):
            choices[:, j] = x[:, block].argmax(axis=1)
        return choices

    def missing(self, values: Values) -> Flags:
        """(N, features) where a value is missing."""
        gaps = np.zeros((len(values), len(self.schema)), bool)
        for j, feature in enumerate(self.schema.features):
            i = self.kind_index[j]
            if isinstance(feature, Continuous):
                gaps[:, j] = np.isnan(values.numbers[:, i])
            else:
                gaps[:, j] = values.choices[:, i] == len(feature.categories)
        return gaps

    def scaled(self, numbers: Floats) -> Codes:
        """Numbers to their codes, (..., n).

        Raises:
            DataError: If a number lies too far from the training rows for a code.
        """
        with np.errstate(over="ignore"):
            codes = ((numbers - self.center) / self.scale).astype(np.float32)
        if np.isinf(codes).any():
            refuse_far(self.numeric[int(np.isinf(codes).reshape(-1, codes.shape[-1]).any(axis=0).argmax())].name)
        return codes

    def unscaled(self, codes: Codes) -> Floats:
        """Codes of numbers back to units, (..., n), without the digits that a code does not hold.

        Numbers within rounding of their grid are put on it. Other numbers are shortened as people write them: 20, not
        19.9999998.
        """
        numbers = codes.astype(np.float64) * self.scale + self.center
        # What a float32 code cannot tell apart: half a unit in its last place, and a little for the way back.
        blur = _EPS * (np.abs(codes) + 1.0) * self.scale
        shortened = self.on_grid(numbers)
        for digits, columns in self._digits:
            shortened[..., columns] = np.round(numbers[..., columns], digits)
        return np.where(np.abs(shortened - numbers) <= blur, shortened, numbers)

    def on_grid(self, numbers: Floats) -> Floats:
        """The nearest multiple of each column's step, (..., n); unchanged where there is no step."""
        result = numbers.copy()
        for step, decimals, columns in self.grids:
            result[..., columns] = multiple(np.rint(numbers[..., columns] / step), step, decimals)
        return result

    @cached_property
    def _digits(self) -> list[tuple[int, Positions]]:
        """Columns without a grid, by the number of decimals that their codes can tell apart."""
        # Half a unit of the last digit kept is below what the code of a typical value can tell apart.
        digits = np.clip(np.ceil(-np.log10(_EPS * self.scale)), -15, 22).astype(int)
        free = (self.steps == 0) & (self.low < self.high)
        return [(int(one), np.flatnonzero(free & (digits == one))) for one in np.unique(digits[free])]

    @cached_property
    def grids(self) -> list[tuple[float, int, Positions | slice]]:
        """Step, decimals and columns of each grid; a slice if all columns are on it."""
        steps, decimals = np.asarray(self.steps), np.asarray(self.decimals)
        if len(steps) and steps[0] > 0 and (steps == steps[0]).all():
            return [(float(steps[0]), int(decimals[0]), slice(None))]
        return [
            (float(one), int(decimals[steps == one][0]), np.flatnonzero(steps == one))
            for one in np.unique(steps[steps > 0])
        ]


def body(schema: Schema, values: Values) -> Floats:
    """(N, n) the numbers of rows, NaN where they are missing or special codes."""
    numbers = values.numbers.copy()
    for j, feature in enumerate(schema.numeric):
        if feature.codes:
            numbers[np.isin(numbers[:, j], feature.codes), j] = np.nan
    return numbers


def _width(feature: Continuous | Categorical) -> int:
    gap = feature.missing != "error"
    return (len(feature.categories) if isinstance(feature, Categorical) else 1) + gap
