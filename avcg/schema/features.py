"""What a column is, a number or one of several categories: its limits, its prices, and how they read in words.

All that a limit on one column needs in the schema is here beside its field: the check of its value, its words in the
description, and whether `free` lifts it. The verb that sets it is a method of `Schema`.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from typing import Any, Literal, get_args

from avcg.errors import SchemaError, did_you_mean, enumerate_some

Scalar = str | int | float | bool
Change = Literal["any", "up", "down", "none"]
# Characters after which a name of a dummy column may tell its category.
SEPARATORS = "_=.- :"
_LARGEST = sys.float_info.max
# Words in the names of columns that people cannot change.
_UNCHANGEABLE = frozenset(
    "age sex gender race ethnicity ethnic birth birthday birthdate born dob country nationality citizenship marital"
    " religion id date month year".split()
)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\d_A-Z]+")
_CHANGE_WORDS = {"any": "yes", "up": "only up", "down": "only down", "none": "no"}


def to_python(value: Any) -> Any:
    """A numpy scalar as the Python value it stands for; anything else as it is."""
    return value.item() if hasattr(value, "item") and not getattr(value, "shape", None) else value


def check_finite(value: object, what: str) -> float:
    """The value, if it is a finite number.

    Raises:
        SchemaError: If it is not; ``what`` says what should have been one.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= _LARGEST:
        raise SchemaError(f"{what} must be a finite number. Got {value!r} instead.")
    return value


def listed(values: Sequence[object], separator: str = ", ", limit: int = 4) -> str:
    """Values in a row, with those in the middle left out if there are more than ``limit``.

    >>> listed("abcdefg")
    'a, b, c, …, g'
    """
    if len(values) <= limit:
        return separator.join(map(str, values))
    return separator.join([*map(str, values[: limit - 1]), "…", str(values[-1])])


def _check_choice(value: object, options: tuple[str, ...], what: str) -> None:
    if value not in options:
        raise SchemaError(f"{what} must be one of {enumerate_some(options, 9)}. Got {value!r} instead.")


def _check_price(value: float | None, what: str) -> None:
    if value is not None and check_finite(value, what) < 0:
        raise SchemaError(f"{what} must be >= 0. Got {value!r} instead.")


def is_unchangeable(name: str) -> bool:
    """Whether the name of a column says that people cannot change it, or not by their own will.

    >>> is_unchangeable("customerAge"), is_unchangeable("mortgage")
    (True, False)
    """
    return any(word.lower() in _UNCHANGEABLE for word in _WORD.findall(name))


@dataclass(frozen=True)
class Continuous:
    """A numeric column, on a grid if ``step`` is given (``step=1``: whole numbers).

    Attributes:
        name: Name of the column.
        step: Answers are multiples of it; None: any number.
        low: Lowest number an answer may have; None: the lowest of the training rows.
        high: Highest number an answer may have; None: the highest of the training rows.
        change: Which way answers may move it: ``"any"``, ``"up"``, ``"down"`` or ``"none"`` (frozen).
        missing: ``"error"`` refuses missing values; ``"indicator"`` reads them, and an answer may fill a missing value
            but never creates one.
        cost_per_unit: Price of moving by one unit; None: 1 per standard deviation (per range if scaled to 0 to 1).
        cost_per_change: Price of any change, however small.
        codes: Values that are no numbers, such as -9 for "not applicable". No answer enters them, and a row that has
            one keeps it.
        left_codes: Those of the codes that an answer may leave for a number, which costs 1 and the price of a change.
        observed: Whether answers stay out of the gaps between the values of the training rows.

    >>> Continuous("hours", step=1, low=0, high=99).step
    1
    """

    name: str
    step: float | None = None
    low: float | None = None
    high: float | None = None
    change: Change = "any"
    missing: Literal["error", "indicator"] = "error"
    cost_per_unit: float | None = None
    cost_per_change: float = 0.0
    codes: tuple[float, ...] = ()
    left_codes: tuple[float, ...] = ()
    observed: bool = False

    def __post_init__(self) -> None:
        self._check_codes()
        for field in ("step", "low", "high", "cost_per_unit", "cost_per_change"):
            object.__setattr__(self, field, to_python(getattr(self, field)))
        _check_choice(self.change, get_args(Change), f"The 'change' of column {self.name!r}")
        _check_choice(self.missing, ("error", "indicator"), f"The 'missing' of the numeric column {self.name!r}")
        _check_price(self.cost_per_unit, f"The cost per unit of column {self.name!r}")
        _check_price(self.cost_per_change, f"The cost per change of column {self.name!r}")
        for side, bound in (("low", self.low), ("high", self.high)):
            if bound is not None:
                check_finite(bound, f"The {side} bound of column {self.name!r}")
        if self.step is not None and check_finite(self.step, f"The step of column {self.name!r}") <= 0:
            raise SchemaError(f"The step of column {self.name!r} must be > 0. Got {self.step!r} instead.")
        if self.low is None or self.high is None:
            return
        if self.low > self.high:
            raise SchemaError(
                f"The range of column {self.name!r} is crossed: its low bound {self.low!r} is above its high bound"
                f" {self.high!r}. Swap them, or use freeze({self.name!r}) if it may not change."
            )
        if self.step is not None and not self._reaches_a_multiple(self.low, self.high, self.step):
            raise SchemaError(
                f"No multiple of the step {self.step!r} of column {self.name!r} lies between {self.low!r} and"
                f" {self.high!r}. Widen the range or make the step smaller."
            )

    def _check_codes(self) -> None:
        for field in ("codes", "left_codes"):
            given = getattr(self, field)
            if isinstance(given, str) or not isinstance(given, Iterable):
                raise SchemaError(f"The {field!r} of column {self.name!r} must be a list of numbers. Got {given!r}.")
            values = [check_finite(to_python(value), f"A code of column {self.name!r}") for value in given]
            object.__setattr__(self, field, tuple(sorted(set(values))))
        for code in self.left_codes:
            if code not in self.codes:
                raise SchemaError(
                    f"Column {self.name!r} has no code {code!r} that could be left."
                    f" {did_you_mean(code, self.codes) if self.codes else 'Name its codes first, with codes.'}"
                )
        if not isinstance(self.observed, bool):
            raise SchemaError(f"The 'observed' of column {self.name!r} must be True or False. Got {self.observed!r}.")

    @property
    def decimals(self) -> int:
        """Number of decimals of the multiples of the step."""
        return max(0, -int(Decimal(repr(float(self.step or 1))).normalize().as_tuple().exponent))

    def _reaches_a_multiple(self, low: float, high: float, step: float) -> bool:
        # Neighbours too, since 0.3 / 0.1 is a hair below 3.
        near = (round((low // step + i) * step, self.decimals) for i in (0, 1, 2))
        return any(low <= value <= high for value in near)

    @property
    def kind(self) -> str:
        """What the column is, in words."""
        if self.step is None:
            return "number"
        return "whole number" if self.step == 1 else f"number in steps of {self.step:.10g}"

    @property
    def change_words(self) -> str:
        """Whether and how an answer may change the column, in words."""
        return _CHANGE_WORDS[self.change]

    def free(self) -> Continuous:
        """The same column without limits on where it may move."""
        return replace(self, change="any", low=None, high=None, observed=False)

    def with_missing(self) -> Continuous:
        """The same column, which may have missing values."""
        return replace(self, missing="indicator")


@dataclass(frozen=True)
class Categorical:
    """A column with one of several categories, from lowest to highest if ``ordered``.

    Attributes:
        name: Name of the column.
        categories: All values it can have.
        ordered: Whether the order of the categories means something; only then can a direction be set.
        allowed: Categories an answer may change it to; None: any. Staying is always allowed.
        forbidden: Pairs (before, after) of changes that are not allowed.
        change: Which way answers may move it: ``"any"``, ``"up"``, ``"down"`` or ``"none"`` (frozen).
        missing: ``"error"`` refuses missing values; ``"category"`` reads them as a category of their own, which an
            answer may leave but never enter.
        cost_per_change: Price of any change.
        columns: Columns of 0 and 1 that hold the feature in the user's rows; None: the column ``name`` holds it.
            With one column for each category exactly one is set. With one column less the feature is a thermometer:
            its category is the number of columns set, and each set column implies the one before.

    >>> Categorical("owner", (False, True), ordered=True).kind
    'yes or no'
    >>> Categorical("housing", ("own", "rent"), columns=("housing_own", "housing_rent")).kind
    'category'
    """

    name: str
    categories: tuple[Scalar, ...]
    ordered: bool = False
    allowed: tuple[Scalar, ...] | None = None
    forbidden: tuple[tuple[Scalar, Scalar], ...] = ()
    change: Change = "any"
    missing: Literal["error", "category"] = "error"
    cost_per_change: float = 1.0
    columns: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.categories, str) or not isinstance(self.ordered, bool):
            raise SchemaError(
                f"Column {self.name!r} needs a list of categories, and ordered=True or False. Got"
                f" {self.categories!r} and ordered={self.ordered!r}."
            )
        object.__setattr__(self, "categories", tuple(map(to_python, self.categories)))
        if self.allowed is not None:
            object.__setattr__(self, "allowed", tuple(map(to_python, self.allowed)))
        pairs = dict.fromkeys((to_python(before), to_python(after)) for before, after in self.forbidden)
        object.__setattr__(self, "forbidden", tuple(pairs))
        object.__setattr__(self, "cost_per_change", to_python(self.cost_per_change))
        _check_choice(self.change, get_args(Change), f"The 'change' of column {self.name!r}")
        _check_choice(self.missing, ("error", "category"), f"The 'missing' of the categorical column {self.name!r}")
        _check_price(self.cost_per_change, f"The cost per change of column {self.name!r}")
        if not self.categories:
            raise SchemaError(f"Column {self.name!r} needs at least one category. Got none.")
        for value in self.categories:
            if not isinstance(value, Scalar) or (isinstance(value, float) and not math.isfinite(value)):
                raise SchemaError(
                    f"A category of column {self.name!r} must be a text, a finite number or a boolean. Got {value!r}"
                    f" ({type(value).__name__}) instead."
                )
        if len(set(self.categories)) < len(self.categories):
            repeated = [value for i, value in enumerate(self.categories) if value in self.categories[:i]]
            raise SchemaError(f"Column {self.name!r} lists a category twice: {enumerate_some(repeated)}.")
        if self.change in ("up", "down") and not self.ordered:
            raise SchemaError(
                f"Column {self.name!r} has no order, so it cannot be limited to one direction. Declare its order with"
                f" Schema.infer(..., kinds={{{self.name!r}: [lowest, ..., highest]}}), or use allow or forbid."
            )
        if self.allowed is not None and not self.allowed:
            raise SchemaError(
                f"The list of allowed categories of column {self.name!r} is empty. Use freeze({self.name!r}) if it may"
                " not change."
            )
        for value in (*(self.allowed or ()), *(value for pair in self.forbidden for value in pair)):
            self.position(value)
        for before, after in self.forbidden:
            if before == after:
                raise SchemaError(
                    f"Column {self.name!r} may always stay at {before!r}. Forbid a change to another one."
                )
        if self.columns is not None:
            self._check_columns(self.columns)

    def _check_columns(self, columns: Sequence[str]) -> None:
        """Refuse columns that cannot hold the categories."""
        if isinstance(columns, str) or len(columns) < 2 or not all(isinstance(name, str) for name in columns):
            raise SchemaError(
                f"The 'columns' of feature {self.name!r} must be at least two names of columns. Got {columns!r}."
            )
        object.__setattr__(self, "columns", tuple(columns))
        if len(set(columns)) < len(columns):
            raise SchemaError(f"The 'columns' of feature {self.name!r} name a column twice: {enumerate_some(columns)}.")
        thermometer = len(columns) + 1
        if len(self.categories) != len(columns) and not (self.ordered and len(self.categories) == thermometer):
            raise SchemaError(
                f"Feature {self.name!r} has {len(self.categories)} categories in {len(columns)} columns. Give one"
                f" column for each category, or {thermometer} ordered categories for columns of which each implies the"
                " one before."
            )

    @property
    def kind(self) -> str:
        """What the column is, in words."""
        if self.categories == (False, True):  # 0 and 1 too, which equal them
            return "yes or no"
        return "ordered category" if self.ordered else "category"

    @property
    def change_words(self) -> str:
        """Whether and how an answer may change the column, in words."""
        words = _CHANGE_WORDS[self.change]
        if self.allowed is not None and len(self.allowed) < len(self.categories):
            barred = tuple(value for value in self.categories if value not in self.allowed)
            few_barred = len(barred) < len(self.allowed)
            words += f", not to {listed(barred)}" if few_barred else f", only to {listed(self.allowed)}"
        words += "".join(f", never {before} → {after}" for before, after in self.forbidden[:3])
        return words + (f" and {len(self.forbidden) - 3} more" if len(self.forbidden) > 3 else "")

    def free(self) -> Categorical:
        """The same column without limits on where it may move."""
        return replace(self, change="any", allowed=None, forbidden=())

    def with_missing(self) -> Categorical:
        """The same column, which may have missing values."""
        return replace(self, missing="category")

    @property
    def is_thermometer(self) -> bool:
        """Whether the category is the number of columns set, instead of the one column set."""
        return self.columns is not None and len(self.categories) > len(self.columns)

    @cached_property
    def positions(self) -> dict[Scalar, int]:
        """Position of each category in the list."""
        return {value: i for i, value in enumerate(self.categories)}

    def position(self, value: Scalar) -> int:
        """Position of a category in the list.

        Args:
            value: The category.

        Raises:
            SchemaError: If the column has no such category.
        """
        if value not in self.categories:
            raise SchemaError(f"Column {self.name!r} has no category {value!r}. {did_you_mean(value, self.categories)}")
        return self.categories.index(value)


Feature = Continuous | Categorical


def columns_of(feature: Feature) -> tuple[str, ...]:
    """The columns of rows that hold a feature: its own name, or the columns of a group."""
    columns = feature.columns if isinstance(feature, Categorical) else None
    return (feature.name,) if columns is None else columns


def common_prefix(columns: Sequence[str]) -> str:
    """The longest beginning that names have in common and that ends in a separator; empty if there is none.

    >>> common_prefix(("housing_own", "housing_rent"))
    'housing_'
    """
    first, last = min(columns), max(columns)
    same = [a == b for a, b in zip(first, last, strict=False)]
    shared = first[: same.index(False) if False in same else len(same)]
    while shared and (shared[-1] not in SEPARATORS or shared in columns):
        shared = shared[:-1]
    return shared


def category_names(columns: Sequence[str]) -> tuple[str, ...]:
    """What each column of a group stands for: the rest of its name after what all names have in common.

    >>> category_names(("housing_own", "housing_rent"))
    ('own', 'rent')
    """
    shared = len(common_prefix(columns))
    return tuple(name[shared:] for name in columns)


def one_way(feature: Feature, wanted: Literal["up", "down"]) -> Change:
    """The direction of a feature that may only move one way.

    Raises:
        SchemaError: If it is limited otherwise already.
    """
    if feature.change in ("any", wanted):
        return wanted
    now = "frozen" if feature.change == "none" else f"limited to only {feature.change}"
    raise SchemaError(
        f"Column {feature.name!r} is {now}; only_{wanted} would say something else. Call free({feature.name!r}) first"
        " if the earlier limit no longer holds."
    )
