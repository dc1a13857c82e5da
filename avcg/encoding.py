"""Raw values to float32 codes and back, with numpy alone.

A number takes one code, scaled; a column that may have gaps takes one more, 1 where it is missing. A category takes one
code per category, 1 at its own. Between the user's frame and the codes stand `Values`: float64 numbers and category
positions, exact. Nothing here imports torch or pandas, so that a light scorer can encode a row given as a dict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any, Literal, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from avcg.errors import DataError, did_you_mean, enumerate_some
from avcg.features import Categorical, Continuous, Scalar
from avcg.schema import Schema

Floats = NDArray[np.float64]
Codes = NDArray[np.float32]
Positions = NDArray[np.intp]
Flags = NDArray[np.bool_]
Scaling = Literal["standard", "minmax"]


@dataclass(frozen=True, eq=False)
class Values:
    """Rows as exact values, numeric and categorical columns apart, each in the order of the schema.

    Attributes:
        numbers: (N, numeric columns), NaN where missing.
        choices: (N, categorical columns), position of the category; one past the last where missing.
    """

    numbers: Floats
    choices: Positions

    def __len__(self) -> int:
        return len(self.numbers)


@dataclass(frozen=True, eq=False)
class Link:
    """How followers are read off their leader, as seen in the training rows.

    Attributes:
        leader: Position of the leading feature in the schema.
        followers: Positions of the following features.
        columns: (W,) the codes that the followers take.
        knots: (m,) values of a numeric leader, ascending; None where the leader is categorical.
        table: (m, W) codes of the followers for each knot, or for each slot of a categorical leader.
        known: (m,) whether the training rows have this leader value, and followers may be where it puts them.
    """

    leader: int
    followers: tuple[int, ...]
    columns: Positions
    knots: Floats | None
    table: Codes
    known: Flags


@dataclass(frozen=True, eq=False)
class Encoding:
    """A schema with the scaling of the training rows: all it takes to encode and decode.

    Attributes:
        schema: What the columns are.
        scaling: ``"standard"`` (mean 0, standard deviation 1) or ``"minmax"`` (0 to 1 over the training rows).
        center: (n,) subtracted from numbers.
        scale: (n,) numbers are then divided by it; 1 for a constant column.
        low: (n,) lowest value in the training rows.
        high: (n,) highest value in the training rows.
        links: How linked columns follow their leaders.
    """

    schema: Schema
    scaling: Scaling
    center: Floats
    scale: Floats
    low: Floats
    high: Floats
    links: tuple[Link, ...] = ()

    @classmethod
    def fit(cls, schema: Schema, values: Values, scaling: Scaling = "standard") -> Self:
        """Learn scaling, ranges and links from training rows.

        Raises:
            DataError: If a numeric column has no value at all, or a linked column is not determined by its leader.
        """
        numbers = values.numbers
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
        wild = ~(np.isfinite(center) & np.isfinite(scale))
        if wild.any():
            raise DataError(f"Column {names[int(wild.argmax())]!r} holds numbers too large to scale. Rescale it.")
        # A constant column has nothing to scale by. Rounding in the mean can hide that in the standard deviation.
        constant = (low == high) | (scale == 0)
        center = np.where(constant, low, center)
        unlinked = cls(schema, scaling, center, np.where(constant, 1.0, scale), low, high)
        links = tuple(_learn_link(unlinked, group, values) for group in schema.links)
        return cls(schema, scaling, center, unlinked.scale, low, high, links)

    @cached_property
    def numeric(self) -> tuple[Continuous, ...]:
        """The numeric features, in the order of `Values.numbers`."""
        return self.schema.numeric

    @cached_property
    def categorical(self) -> tuple[Categorical, ...]:
        """The categorical features, in the order of `Values.choices`."""
        return self.schema.categorical

    @cached_property
    def slices(self) -> tuple[slice, ...]:
        """The codes of each feature of the schema."""
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
    def gap_at(self) -> Positions:
        """(n,) the code that is 1 where the number is missing; -1 where the column refuses gaps."""
        numeric = [(f, s) for f, s in self._placed if isinstance(f, Continuous)]
        return np.array([s.stop - 1 if f.missing == "indicator" else -1 for f, s in numeric], np.intp)

    @cached_property
    def blocks(self) -> tuple[slice, ...]:
        """The codes of each categorical feature."""
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
    def steps(self) -> Floats:
        """(n,) the grid of each number, 0 where there is none."""
        return np.array([feature.step or 0.0 for feature in self.numeric])

    @cached_property
    def prices(self) -> Codes:
        """(D,) what a unit of each code costs: a category counts half where it goes and half where it comes from.

        Followers of a link cost nothing: the leader's price is the link's.
        """
        prices = np.zeros(self.width, np.float32)
        for j, feature in enumerate(self.numeric):
            if self.gap_at[j] >= 0:
                prices[self.gap_at[j]] = 1.0
            unit = feature.cost_per_unit
            prices[self.number_at[j]] = 1.0 if unit is None else unit * self.scale[j]
        for choice, block in zip(self.categorical, self.blocks, strict=True):
            prices[block] = 0.5 * choice.cost_per_change
        for link in self.links:
            prices[link.columns] = 0.0
        return prices

    @cached_property
    def change_prices(self) -> Codes:
        """(n,) what it costs to move a number at all."""
        return np.array([feature.cost_per_change for feature in self.numeric], np.float32)

    @cached_property
    def decimals(self) -> list[int]:
        """(n,) how many decimals the multiples of each step have."""
        exponents = [Decimal(repr(float(step))).normalize().as_tuple().exponent for step in self.steps]
        return [max(0, -int(exponent)) for exponent in exponents]

    @cached_property
    def _placed(self) -> list[tuple[Continuous | Categorical, slice]]:
        return list(zip(self.schema.features, self.slices, strict=True))

    def encode(self, values: Values) -> Codes:
        """Values to codes.

        Returns:
            (N, D).
        """
        x = np.zeros((len(values), self.width), np.float32)
        gaps = np.isnan(values.numbers)
        x[:, self.number_at] = np.where(gaps, 0.0, self.scaled(values.numbers))
        with_gaps = self.gap_at >= 0
        x[:, self.gap_at[with_gaps]] = gaps[:, with_gaps]
        rows = np.arange(len(values))
        for block, choice in zip(self.blocks, values.choices.T, strict=True):
            x[rows, block.start + choice] = 1.0
        return x

    def decode(self, x: Codes) -> Values:
        """Codes to values: numbers on their grid, the category with the largest code.

        Args:
            x: (N, D).
        """
        numbers = self.on_grid(self.unscaled(x[:, self.number_at]))
        with_gaps = self.gap_at >= 0
        numbers[:, with_gaps] = np.where(x[:, self.gap_at[with_gaps]] > 0.5, np.nan, numbers[:, with_gaps])
        choices = np.empty((len(x), len(self.blocks)), np.intp)
        for j, block in enumerate(self.blocks):
            choices[:, j] = x[:, block].argmax(axis=1)
        return Values(numbers, choices)

    def scaled(self, numbers: Floats) -> Codes:
        """Numbers to their codes, (..., n)."""
        return ((numbers - self.center) / self.scale).astype(np.float32)

    def unscaled(self, codes: Codes) -> Floats:
        """Codes of numbers back to units, (..., n); put on the grid where they are within rounding of it."""
        numbers = codes.astype(np.float64) * self.scale + self.center
        # What a float32 code cannot tell apart: half a unit in its last place, and a little for the way back.
        blur = np.finfo(np.float32).eps * (np.abs(codes) + 1.0) * self.scale
        grid = self.on_grid(numbers)
        return np.where(np.abs(grid - numbers) <= blur, grid, numbers)

    def on_grid(self, numbers: Floats) -> Floats:
        """The nearest multiple of each column's step, (..., n); unchanged where there is no step."""
        result = numbers.copy()
        for j, (step, decimals) in enumerate(zip(self.steps, self.decimals, strict=True)):
            if step:
                # The second rounding removes what 3 * 0.1 leaves behind, so that people see 0.3.
                result[..., j] = np.round(np.rint(numbers[..., j] / step) * step, decimals)
        return result

    @cached_property
    def _readers(self) -> tuple[list[Any], list[Any]]:
        numbers = [
            (feature, int(at), float(center), float(scale), int(gap))
            for feature, at, center, scale, gap in zip(
                self.numeric, self.number_at, self.center, self.scale, self.gap_at, strict=True
            )
        ]
        choices = [
            (feature, block.start, {value: block.start + i for i, value in enumerate(feature.categories)})
            for feature, block in zip(self.categorical, self.blocks, strict=True)
        ]
        return numbers, choices

    def encode_row(self, row: Mapping[str, Scalar | None]) -> Codes:
        """One row given as a dict, in microseconds.

        Args:
            row: Every column of the schema, and no other; None or NaN where missing.

        Returns:
            (D,), the same codes as `encode` gives.
        """
        if row.keys() != set(self.schema.names):
            check_names(list(row), self.schema.names)
        x = [0.0] * self.width
        numbers, choices = self._readers
        for feature, at, center, scale, gap in numbers:
            value = _plain(row[feature.name])
            if isinstance(value, (int, float)) and not isinstance(value, bool) and value - value == 0:
                x[at] = (value - center) / scale
            elif is_gap(value):
                if gap < 0:
                    refuse_gaps(feature.name, 1)
                x[gap] = 1.0
            else:
                refuse_numbers(feature.name, [value])
        for feature, start, slots in choices:
            value = _plain(row[feature.name])
            slot = slots.get(value) if isinstance(value, (str, int, float)) else None
            if slot is not None and isinstance(value, bool) is isinstance(feature.categories[0], bool):
                x[slot] = 1.0
            elif is_gap(value):
                if feature.missing == "error":
                    refuse_gaps(feature.name, 1)
                x[start + len(feature.categories)] = 1.0
            else:
                refuse_categories(feature, 1, [value])
        return np.array(x, np.float32)


def _width(feature: Continuous | Categorical) -> int:
    gap = feature.missing != "error"
    return (len(feature.categories) if isinstance(feature, Categorical) else 1) + gap


def _learn_link(encoding: Encoding, group: Sequence[str], values: Values) -> Link:
    """Read the table of a link off the training rows; rows with a gap in it have nothing to teach."""
    names = encoding.schema.names
    leader, *followers = (names.index(name) for name in group)
    codes = encoding.encode(values)
    columns = np.concatenate([np.arange(s.start, s.stop) for s in (encoding.slices[f] for f in followers)])
    lead = encoding.schema.features[leader]
    knots: Floats | None = None
    leading: NDArray[Any]
    complete = np.ones(len(values), bool)
    for position in (leader, *followers):
        feature = encoding.schema.features[position]
        if feature.missing != "error":
            complete &= codes[:, encoding.slices[position].stop - 1] == 0
    if isinstance(lead, Continuous):
        leading = values.numbers[:, encoding.numeric.index(lead)]
        knots, first, group_of = np.unique(leading[complete], return_index=True, return_inverse=True)
        known = np.ones(len(knots), bool)
        table = codes[complete][first][:, columns]
    else:
        leading = values.choices[:, encoding.categorical.index(lead)]
        seen, first, inverse = np.unique(leading[complete], return_index=True, return_inverse=True)
        group_of = seen[inverse]
        known = np.zeros(_width(lead), bool)
        known[seen] = _on_their_grids(encoding, followers, values.numbers[complete][first])
        table = np.zeros((len(known), len(columns)), np.float32)
        table[seen] = codes[complete][first][:, columns]
    wrong = (codes[complete][:, columns] != table[group_of]).any(axis=1)
    if wrong.any():
        example = leading[complete][wrong][0]
        shown = lead.categories[int(example)] if isinstance(lead, Categorical) else float(example)
        raise DataError(
            f"The link {' -> '.join(map(repr, group))} does not hold: {int(wrong.sum())} rows give {group[0]!r} ="
            f" {shown!r} other values of {enumerate_some(group[1:])} than earlier rows do. The first column of a link"
            " must determine the others."
        )
    return Link(leader, tuple(followers), columns, knots, table, known)


def _on_their_grids(encoding: Encoding, followers: Sequence[int], numbers: Floats) -> Flags:
    """(rows,) whether all numeric followers lie on a multiple of their step."""
    mine = [encoding.schema.features[position] for position in followers]
    chosen = [j for j, feature in enumerate(encoding.numeric) if feature in mine]
    return (encoding.on_grid(numbers) == numbers)[:, chosen].all(axis=1)


def is_gap(value: object) -> bool:
    """Whether a value means "missing": None, or a number that is not one."""
    return value is None or (isinstance(value, float) and value != value)


def check_names(names: Sequence[object], wanted: Sequence[str]) -> None:
    """Refuse rows that lack a column of the schema, have one too many, or have one twice.

    Raises:
        DataError: With the column and the fix.
    """
    twice = sorted({str(name) for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"The rows have column {enumerate_some(twice)} twice. Rename or drop one of them.")
    missing = [name for name in wanted if name not in names]
    extra = [name for name in names if name not in wanted]
    if missing:
        raise DataError(f"The rows lack column {enumerate_some(missing)}. {did_you_mean(missing[0], names)}")
    if extra:
        raise DataError(
            f"The rows have column {enumerate_some(extra)}, which the schema does not know. Drop it, e.g."
            " X[list(schema)], or make a schema that has it."
        )


def refuse_gaps(name: str, count: int) -> NoReturn:
    """A column that refuses gaps has some."""
    raise DataError(
        f"Column {name!r} has {count} missing value{'s' * (count != 1)}. Fill or drop them, or say"
        f" schema.allow_missing({name!r})."
    )


def refuse_numbers(name: str, values: Sequence[object]) -> NoReturn:
    """A numeric column holds something else."""
    infinite = all(isinstance(value, float) and value in (np.inf, -np.inf) for value in values)
    boolean = all(isinstance(value, (bool, np.bool_)) for value in values)
    fix = (
        "Replace them with finite numbers."
        if infinite
        else "The schema has it as a number: convert it with .astype(int), or infer a schema that has it as boolean."
        if boolean
        else f"Convert it, e.g. with pandas.to_numeric, or infer a schema with kinds={{{name!r}: 'categorical'}}."
    )
    what = "infinite" if infinite else "not a number"
    count = len(values)
    raise DataError(
        f"Column {name!r} has {count} value{'s' * (count != 1)} {what}: {enumerate_some(_some(values))}. {fix}"
    )


def refuse_categories(feature: Categorical, count: int, values: Sequence[object]) -> NoReturn:
    """A categorical column holds values that are no category of it."""
    if feature.kind == "yes or no":
        fix = "The schema has it as boolean: convert it with .astype(bool), or infer a schema that has it as a number."
    else:
        fix = (
            f"It knows: {enumerate_some(feature.categories, 12)}. Map the new value to one of these, or infer the"
            " schema from rows that have it."
        )
    raise DataError(
        f"Column {feature.name!r} has {count} value{'s' * (count != 1)} that {'is' if count == 1 else 'are'} no"
        f" category of it: {enumerate_some(_some(values))}. {fix}"
    )


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _some(values: Sequence[object]) -> list[object]:
    """Different values as plain Python ones, first come first."""
    return list({repr(value): _plain(value) for value in values}.values())
