"""What each column of a table is, and what an answer may do to it.

A schema is immutable. Its verbs (`freeze`, `only_up`, `between`, ...) return a new schema with one more constraint.
Only `free` lifts constraints again. This module imports only the standard library, for the light scorer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from os import PathLike
from typing import Any, Literal, Self

from avcg.errors import SchemaError, enumerate_some
from avcg.schema.columns import Columns
from avcg.schema.features import (
    Categorical,
    Continuous,
    Feature,
    Scalar,
    category_names,
    check_finite,
    columns_of,
    one_way,
    to_python,
)
from avcg.schema.rules import (
    Condition,
    Derivation,
    Requirement,
    check_condition,
)

Kind = Literal["continuous", "integer", "boolean", "categorical"]


@dataclass(frozen=True, repr=False)
class Schema(Columns):
    """The columns of a table, their constraints and the prices of changes.

    Attributes:
        features: What the columns say, in the order of the encoded row. A feature is one column, or several columns
            of 0 and 1 (see `group`).
        links: Groups of columns that state the same fact; the first column leads, the others follow it.
        max_changes: Most features that may change at once (a link counts once); None: any number.
        kept: Columns that are no features, such as identifiers and dates. Rows may have or lack them, and answers
            return them as they are.
        rules: Rules between columns, from `require`, `derive` and `when`.

    >>> schema = Schema((Continuous("hours", step=1), Categorical("sex", ("f", "m"))))
    >>> print(schema.freeze("sex").between("hours", 10, 60))
    column  what it is             values    may change  cost
    ------  ---------------------  --------  ----------  ---------------
    hours   whole number           10 to 60  yes         1 per std. dev.
    sex     category, 2 different  f, m      no          1 per change
    """

    @classmethod
    def infer(cls, frame: Any, kinds: Mapping[str, Kind | Sequence[Scalar]] | None = None) -> Self:
        """Infer a schema from a pandas or polars frame.

        Numbers stay numbers however few values they have. They get the step that all values are multiples of: 1 for
        whole numbers, 0.01 for amounts with two decimals, 100 for amounts in hundreds. Isolated values such as -9 or
        999 become codes, and gaps between the values are kept free. Texts, categories and booleans become categories.
        Columns of 0 and 1 of which exactly one is set in every row become one category. Dates, identifiers and free
        texts are kept and never changed (`kept`). Nothing is frozen. `avcg.inspect` says what was found and why.

        Args:
            frame: Rows in the user's own units.
            kinds: Kinds of columns to use instead of the inferred ones, by name: ``"continuous"``, ``"integer"``,
                ``"boolean"``, ``"categorical"``, or a list of the categories from lowest to highest. A column that is
                named here is a feature of its own. A number whose kind is given has the step 1 or none, no codes, and
                no gaps.

        Returns:
            The schema, with the features in the order of the frame.

        >>> import pandas as pd
        >>> frame = pd.DataFrame({"age": [30, 41], "job": ["clerk", "nurse"], "grade": ["b", "a"]})
        >>> schema = Schema.infer(frame, kinds={"grade": ["b", "a"]})
        >>> [feature.kind for feature in schema.features]
        ['whole number', 'category', 'ordered category']
        """
        from avcg.space.inspect import inspect

        schema = inspect(frame, kinds).schema
        return cls(schema.features, kept=schema.kept)

    def freeze(self, *columns: str) -> Self:
        """These columns may not change. Kept columns never do."""
        return self._each(
            tuple(name for name in columns if name not in self.kept), lambda feature: replace(feature, change="none")
        )

    def only_up(self, *columns: str) -> Self:
        """These columns may only rise (numbers, ordered categories, no to yes)."""
        return self._each(columns, lambda feature: replace(feature, change=one_way(feature, "up")))

    def only_down(self, *columns: str) -> Self:
        """These columns may only fall (numbers, ordered categories, yes to no)."""
        return self._each(columns, lambda feature: replace(feature, change=one_way(feature, "down")))

    def free(self, *columns: str) -> Self:
        """Lift every limit on where these columns may move. Steps, gaps, codes, prices, links and rules stay."""
        return self._each(columns, lambda feature: feature.free())

    def between(self, column: str, low: float | None = None, high: float | None = None) -> Self:
        """Answers keep this number within a range, and within any range given before.

        A number that is outside the range may stay or move toward the range, but not away from it.

        Args:
            column: Name of a numeric column.
            low: Lowest number; None: no bound is added.
            high: Highest number; None: no bound is added.
        """
        feature = self._number(column, "between")
        lows = [to_python(bound) for bound in (feature.low, low) if bound is not None]
        highs = [to_python(bound) for bound in (feature.high, high) if bound is not None]
        for bound in (*lows, *highs):
            check_finite(bound, f"A bound of column {column!r}")
        return self._with(replace(feature, low=max(lows, default=None), high=min(highs, default=None)))

    def step(self, column: str, size: float) -> Self:
        """Answers move this number to multiples of a step.

        Args:
            column: Name of a numeric column.
            size: The step, a multiple of the present step if there is one.
        """
        feature = self._number(column, "step")
        coarser = replace(feature, step=size)
        if feature.step is not None:
            ratio = size / feature.step
            if round(ratio) < 1 or abs(ratio - round(ratio)) > 1e-9:
                raise SchemaError(
                    f"The step of column {column!r} must be a multiple of its present step {feature.step!r}. Got"
                    f" {size!r} instead."
                )
        return self._with(coarser)

    def codes(self, column: str, *values: float) -> Self:
        """Say which values of a numeric column are codes and no numbers, such as -9 for "not applicable".

        No answer enters a code, and a row that has one keeps it unless `leave` says that it may be left.

        Args:
            column: Name of a numeric column.
            values: All codes of the column, in place of those it has; none: every value of the column is a number.
        """
        feature = self._number(column, "codes")
        kept = tuple(code for code in feature.left_codes if code in values)
        return self._with(replace(feature, codes=values, left_codes=kept))

    def leave(self, column: str, *codes: float) -> Self:
        """Answers may leave these codes of a column for a number, as they may fill a missing value.

        That counts as one change and costs 1 and the price of a change, whatever the number.

        Args:
            column: Name of a numeric column.
            codes: Codes of the column; none: every code of the column.
        """
        feature = self._number(column, "leave")
        if not feature.codes:
            raise SchemaError(f"Column {column!r} has no codes. Name them first, e.g. codes({column!r}, -9).")
        return self._with(replace(feature, left_codes=(*feature.left_codes, *(codes or feature.codes))))

    def observed(self, *columns: str) -> Self:
        """Answers keep these numbers out of the gaps between the values of the training rows.

        A gap lies between two neighbouring values, with at least 10 rows and 1% of the rows on each side. It is more
        than 10 times as wide as the median distance of neighbours, and wider than 15% of the range of nearly all rows.
        """
        return self._each(columns, lambda feature: replace(self._number(feature.name, "observed"), observed=True))

    def allow(self, column: str, categories: Iterable[Scalar]) -> Self:
        """Answers may change this column only to these categories; staying is always allowed."""
        feature = self._choice(column, "allow")
        if isinstance(categories, str) or not isinstance(categories, Iterable):
            raise SchemaError(f"allow takes a list of categories of column {column!r}. Write [{categories!r}].")
        allowed = [value for value in map(to_python, categories) if feature.position(value) >= 0]
        before = feature.categories if feature.allowed is None else feature.allowed
        both = tuple(value for value in before if value in allowed)
        if allowed and not both:
            raise SchemaError(
                f"None of {enumerate_some(allowed)} of column {column!r} was still allowed. There is:"
                f" {enumerate_some(before, 12)}."
            )
        return self._with(replace(feature, allowed=both))

    def forbid(self, column: str, before: Scalar, after: Scalar) -> Self:
        """No answer changes this column from the category ``before`` to the category ``after``."""
        feature = self._choice(column, "forbid")
        return self._with(replace(feature, forbidden=(*feature.forbidden, (before, after))))

    def allow_missing(self, *columns: str) -> Self:
        """These columns may have missing values. An answer may fill a missing value and never creates one."""
        return self._each(columns, lambda feature: feature.with_missing())

    def link(self, *columns: str) -> Self:
        """These columns state the same fact, so they change together and count as one change.

        The first column leads. It must determine the others in the data (each education has one number of years).
        """
        return replace(self, links=(*self.links, tuple(self[column].name for column in columns)))

    def cost(self, column: str, per_unit: float | None = None, per_change: float | None = None) -> Self:
        """Set the price of changing this column.

        Args:
            column: Name of the column.
            per_unit: Price of each unit that a number moves; None: as before.
            per_change: Price of any change, however small; None: as before.
        """
        if per_unit is None and per_change is None:
            raise SchemaError(f"cost of column {column!r} needs per_unit or per_change. Got neither.")
        feature = self[column]
        if per_change is not None:
            feature = replace(feature, cost_per_change=per_change)
        if per_unit is not None:
            if isinstance(feature, Categorical):
                raise SchemaError(f"Column {column!r} is a {feature.kind} and has no units. Use per_change.")
            feature = replace(feature, cost_per_unit=per_unit)
        return self._with(feature)

    def group(self, name: str, columns: Sequence[str], categories: Iterable[Scalar] | None = None) -> Self:
        """Columns of 0 and 1 of which exactly one is set are one category, e.g. columns that `get_dummies` made.

        `Schema.infer` finds such columns by itself where the rows show it. The new feature has no limits yet.

        Args:
            name: Name of the feature.
            columns: The columns, each a whole number or a boolean feature of the schema, one for each category.
            categories: What each column stands for; None: the rest of its name after what all have in common.

        >>> schema = Schema((Continuous("own_home", step=1), Continuous("rented_home", step=1)))
        >>> schema.group("home", ("own_home", "rented_home"), ("own", "rented")).names
        ('home',)
        """
        if isinstance(columns, str):
            raise SchemaError(f"group takes the columns of feature {name!r} as a list. Got {columns!r}.")
        for column in columns:
            feature = self[column]
            whole = isinstance(feature, Continuous) and feature.step == 1
            if not (whole or feature.kind == "yes or no") or feature.name != column:
                raise SchemaError(
                    f"Column {column!r} is a {feature.kind}. group is for columns of 0 and 1, each a feature of its"
                    " own."
                )
        linked = [column for link in self.links for column in link if column in columns]
        if linked:
            raise SchemaError(
                f"Column {linked[0]!r} is linked. Group the columns first, and link the feature {name!r}."
            )
        values = category_names(columns) if categories is None else tuple(categories)
        made = Categorical(name, values, columns=tuple(columns))
        if any(self[column].missing != "error" for column in columns):
            made = made.with_missing()
        first = next(feature.name for feature in self.features if feature.name in columns)
        features = [made if feature.name == first else feature for feature in self.features]
        rest = (feature for feature in features if feature is made or feature.name not in columns)
        return replace(self, features=tuple(rest))

    def keep(self, *columns: str) -> Self:
        """These columns are no features: answers return them as they are, and no model is trained on them.

        A feature of several columns is dropped as a whole.
        """
        dropped = {self[column].name: self[column] for column in columns if column not in self.kept}
        for group in self.links:
            if linked := [name for name in group if name in dropped]:
                raise SchemaError(f"Column {linked[0]!r} is linked. Keep it before the link is made.")
        kept = (name for feature in dropped.values() for name in columns_of(feature))
        features = tuple(feature for feature in self.features if feature.name not in dropped)
        return replace(self, features=features, kept=(*self.kept, *kept))

    def at_most(self, n: int) -> Self:
        """No answer changes more than ``n`` features; linked columns count once."""
        capped = replace(self, max_changes=n)
        return capped if self.max_changes is None else replace(self, max_changes=min(n, self.max_changes))

    def require(self, rule: str) -> Self:
        """Every answer that changes a column of this rule obeys it.

        Args:
            rule: A linear inequality or equality between numeric columns with ``<=``, ``>=`` or ``==``. Names that are
                not identifiers are written in backticks. While a number of the rule is missing, it says nothing.

        Raises:
            SchemaError: If the text is not such a rule. The message shows the place.

        >>> schema = Schema((Continuous("rent"), Continuous("food"), Continuous("total")))
        >>> [rule.words for rule in schema.require("rent + food == total").rules]
        ['rent + food equals total.']
        """
        return self.with_rule(Requirement(rule))

    def derive(self, column: str, expression: str) -> Self:
        """This numeric column is computed from others whenever one of them changes, and never changed by itself.

        It costs nothing and does not count as a change. The training rows must obey the expression.

        Args:
            column: Name of the column.
            expression: Sums, products, ratios, ``min`` and ``max`` of numeric columns and constants.

        Raises:
            SchemaError: If the text is not such an expression, or the column is limited in a way that only its inputs
                can keep.

        >>> schema = Schema((Continuous("debt"), Continuous("income"), Continuous("dti")))
        >>> schema.derive("dti", "debt / income").derivations["dti"].inputs
        ('debt', 'income')
        """
        return self.with_rule(Derivation(column, expression))

    def when(self, column: str, categories: Scalar | Iterable[Scalar]) -> Condition[Self]:
        """Begin a rule about another column wherever this one has certain categories; `then` completes it.

        Args:
            column: Name of a categorical column.
            categories: One of its categories, or several.

        Raises:
            SchemaError: If the column is a number, or has no such category.

        >>> schema = Schema((Categorical("housing", ("own", "rent")), Continuous("rent")))
        >>> [rule.words for rule in schema.when("housing", "own").then("rent", equals=0).rules]
        ['Where housing is own, rent is 0.']
        """
        one = isinstance(categories, str) or not isinstance(categories, Iterable)
        values = tuple(map(to_python, [categories] if one else categories))  # type: ignore[arg-type]
        check_condition(self, column, values)
        return Condition(self, column, values)

    def describe(self, X: Any = None) -> list[dict[str, str]]:
        """The schema in plain words, one row per column.

        Args:
            X: Rows whose lowest and highest numbers are shown if the schema sets no range; None: "as in the data" is
                shown.
        """
        from avcg.schema.describe import describe
        from avcg.space.frames import number_ranges

        return describe(self, {} if X is None else number_ranges(X, self))

    def __repr__(self) -> str:
        from avcg.schema.describe import table

        return table(self)

    def to_json(self) -> str:
        """The schema as a versioned JSON text."""
        from avcg.schema.stored import to_json

        return to_json(self)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The schema that `to_json` wrote.

        Raises:
            SchemaError: If the text is not a schema, is damaged, or has another version.
        """
        from avcg.schema.stored import from_json

        return cls._of(from_json(text, cls))

    def to_toml(self, X: Any = None) -> str:
        """The schema as a TOML text that people can edit, with an explanation of every entry.

        Args:
            X: Rows whose lowest and highest numbers are shown in comments; None: no numbers are shown.

        >>> text = Schema((Continuous("age", step=1, change="none"),)).to_toml()
        >>> print(text[text.index("[columns.age]") :], end="")
        [columns.age]
        # Whole number.
        kind = "number"
        change = "frozen"
        step = 1
        """
        from avcg.schema.toml import to_toml

        if X is None:
            return to_toml(self)
        from avcg.space.frames import number_ranges

        return to_toml(self, number_ranges(X, self))

    @classmethod
    def from_toml(cls, text: str) -> Self:
        """The schema in a TOML text, as `to_toml` writes it or as somebody wrote it by hand.

        Args:
            text: Text of a schema file.

        Raises:
            SchemaError: If the text is not TOML or not a schema. The message names the column, the entry and what was
                expected.
        """
        from avcg.schema.toml import from_toml

        return cls._of(from_toml(text)[0])

    def write(self, path: str | PathLike[str], X: Any = None) -> None:
        """Write the schema to a file that people can edit: TOML, or JSON if its name ends in ``.json``.

        Args:
            path: Path of the file. It is replaced if it exists.
            X: Rows whose lowest and highest numbers are shown in comments; None: no numbers are shown.

        Raises:
            DataError: If the file cannot be written.
        """
        from avcg.schema.toml import write

        write(path, self.to_json() if str(path).lower().endswith(".json") else self.to_toml(X))

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Self:
        """Read a schema from a file: TOML, or JSON if its name ends in ``.json``.

        Args:
            path: Path of the file.

        Raises:
            DataError: If the file is missing, larger than 10 MB or not UTF-8.
            SchemaError: If it is not a schema. The message names the file, the column and the entry.
        """
        from avcg.schema.toml import read

        return cls._of(read(path)[0])

    @classmethod
    def _of(cls, schema: Columns) -> Self:
        return cls(**{field.name: getattr(schema, field.name) for field in fields(schema)})

    def _with(self, feature: Feature) -> Self:
        return replace(self, features=tuple(feature if old.name == feature.name else old for old in self.features))

    def _each(self, columns: tuple[str, ...], change: Callable[[Feature], Feature]) -> Self:
        changed = {self[column].name: change(self[column]) for column in columns}
        return replace(self, features=tuple(changed.get(feature.name, feature) for feature in self.features))
