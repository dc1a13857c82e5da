"""Rules between columns: sums that must hold, columns computed from others, and what follows from a category.

Each family is a frozen dataclass with its check against the columns of a schema and its words in the description. What
a rule does to answers is in `avcg.space`, one file for each family. Standard library alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any, Generic, Protocol, Self, TypeVar

from avcg.errors import SchemaError, did_you_mean, enumerate_some
from avcg.schema.expressions import (
    Comparison,
    Linear,
    Node,
    check_columns,
    columns_of,
    linear,
    parse_comparison,
    parse_expression,
)
from avcg.schema.features import Categorical, Continuous, Feature, Scalar, check_finite, listed, to_python


class RuledTable(Protocol):
    """What rules need to know of a schema."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""

    @property
    def numeric(self) -> tuple[Continuous, ...]:
        """The numeric columns."""

    @property
    def links(self) -> tuple[tuple[str, ...], ...]:
        """Groups of columns that state the same fact."""

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules between columns."""

    @property
    def derivations(self) -> dict[str, Derivation]:
        """The rule of each derived column, by its name."""

    def __getitem__(self, name: str) -> Feature:
        """The column of a name."""

    def with_rule(self, rule: Rule) -> Self:
        """The same columns with one more rule."""


Table = TypeVar("Table", bound=RuledTable)
_SIGNS = {"<=": "is at most", ">=": "is at least", "==": "equals"}


@dataclass(frozen=True)
class Requirement:
    """A linear inequality or equality between numeric columns.

    Attributes:
        text: The rule, e.g. ``"rent + food <= income"``.
    """

    text: str

    @property
    def parsed(self) -> Comparison:
        """The two expressions and the sign between them."""
        return parse_comparison(self.text)

    @property
    def difference(self) -> Linear:
        """The left side minus the right side."""
        parsed = self.parsed
        return linear(parsed.left, self.text).plus(linear(parsed.right, self.text), -1.0)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the rule binds."""
        parsed = self.parsed
        return _names(parsed.left, parsed.right)

    def check(self, schema: RuledTable) -> None:
        """Refuse unknown columns, and what is not a sum of columns times constants."""
        parsed = self.parsed
        for side in (parsed.left, parsed.right):
            check_columns(side, self.text, schema.names, _numeric(schema))
        if not any(self.difference.weights.values()):
            raise SchemaError(f"The rule {self.text!r} does not depend on any column. Name the columns it compares.")

    @property
    def words(self) -> str:
        """The rule in words."""
        parsed = self.parsed
        left, right = self.text[: parsed.at].strip(), self.text[parsed.at + len(parsed.sign) :].strip()
        return f"{left} {_SIGNS[parsed.sign]} {right}."


@dataclass(frozen=True)
class Derivation:
    """A numeric column that is computed from others.

    Attributes:
        column: Name of the column.
        text: The expression, e.g. ``"debt / income"``.
    """

    column: str
    text: str

    @property
    def parsed(self) -> Node:
        """The expression."""
        return parse_expression(self.text)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns that it is computed from."""
        return _names(self.parsed)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the rule binds."""
        return (self.column, *self.inputs)

    def check(self, schema: RuledTable) -> None:
        """Refuse unknown columns, and limits that a computed column cannot keep by itself."""
        feature = schema[self.column]
        if not isinstance(feature, Continuous):
            raise SchemaError(f"derive is for numbers; column {self.column!r} is a {feature.kind}.")
        check_columns(self.parsed, self.text, schema.names, _numeric(schema))
        inputs = enumerate_some(self.inputs, 12)
        if not self.inputs:
            raise SchemaError(f"Column {self.column!r} is derived from no column. Write an expression of columns.")
        computed = f"Column {self.column!r} is computed from {inputs}, so it"
        if any(self.column in group for group in schema.links):
            raise SchemaError(f"{computed} cannot be linked as well. Keep one of the two.")
        if feature.change != "any":
            raise SchemaError(
                f"{computed} cannot be limited to one direction or frozen by itself. Limit these columns, or use"
                f" between({self.column!r}, ...)."
            )
        if feature.cost_per_unit is not None or feature.cost_per_change:
            raise SchemaError(f"{computed} costs nothing of its own. Price these columns.")

    @property
    def words(self) -> str:
        """The rule in words."""
        return f"{self.column} is computed: {self.text.strip()}."


@dataclass(frozen=True)
class Implication:
    """What holds for one column wherever another one has certain categories.

    Attributes:
        column: Name of the categorical column of the condition.
        categories: Its categories for which the consequence holds.
        target: Name of the column of the consequence.
        low: Lowest number of the target; None: no bound, or the target is categorical.
        high: Highest number of the target; None: no bound, or the target is categorical.
        one_of: Categories of the target; None: it is a number.
    """

    column: str
    categories: tuple[Scalar, ...]
    target: str
    low: float | None = None
    high: float | None = None
    one_of: tuple[Scalar, ...] | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the rule binds."""
        return (self.column, self.target)

    def check(self, schema: RuledTable) -> None:
        """Refuse unknown columns and categories, and a consequence that no value can have."""
        check_condition(schema, self.column, self.categories)
        if self.target == self.column:
            raise SchemaError(f"The condition and the consequence are both about column {self.column!r}. Use allow.")
        feature = schema[self.target]
        derived = schema.derivations.get(self.target)
        if derived is not None:
            raise SchemaError(
                f"Column {self.target!r} is computed from {enumerate_some(derived.inputs, 12)}, so a condition cannot"
                " set it. State the consequence for these columns."
            )
        if isinstance(feature, Categorical):
            if self.one_of is None:
                raise SchemaError(f"Column {self.target!r} is a {feature.kind}. Use equals= or one_of= a category.")
            for value in self.one_of:
                feature.position(value)
            return
        if self.one_of is not None:
            raise SchemaError(f"Column {self.target!r} is a {feature.kind}. Use equals=, low= or high= a number.")
        self._check_range(feature)

    def _check_range(self, feature: Continuous) -> None:
        for bound in (self.low, self.high):
            if bound is not None:
                check_finite(bound, f"The consequence for column {self.target!r}")
        # The features know how to find a multiple of the step within bounds, and how to say that there is none.
        Continuous(self.target, step=feature.step, low=self.low, high=self.high)

    @property
    def words(self) -> str:
        """The rule in words."""
        condition = f"Where {self.column} is {listed(self.categories, ' or ')}, {self.target} is"
        if self.one_of is not None:
            return f"{condition} {listed(self.one_of, ' or ')}."
        low, high = (None if bound is None else f"{bound:.10g}" for bound in (self.low, self.high))
        if low is not None and high is not None:
            return f"{condition} {low}." if self.low == self.high else f"{condition} between {low} and {high}."
        return f"{condition} at most {high}." if low is None else f"{condition} at least {low}."


Rule = Requirement | Derivation | Implication
_KINDS: dict[str, type[Rule]] = {"require": Requirement, "derive": Derivation, "when": Implication}


@dataclass(frozen=True)
class Condition(Generic[Table]):
    """The first half of a rule: a categorical column and some of its categories; see `Schema.when`.

    Attributes:
        schema: The schema that the rule is added to.
        column: Name of the column.
        categories: The categories for which the consequence holds.
    """

    schema: Table
    column: str
    categories: tuple[Scalar, ...]

    def then(
        self,
        column: str,
        *,
        equals: Scalar | None = None,
        low: float | None = None,
        high: float | None = None,
        one_of: list[Scalar] | tuple[Scalar, ...] | None = None,
    ) -> Table:
        """The schema with the rule that this holds for another column wherever the condition does.

        Args:
            column: Name of the other column.
            equals: The number or the category it must have.
            low: The lowest number it may have.
            high: The highest number it may have.
            one_of: The categories it may have.

        Raises:
            SchemaError: If the consequence does not fit the column, or nothing or too much is given.
        """
        equals, low, high = to_python(equals), to_python(low), to_python(high)
        given = [equals is not None, low is not None or high is not None, one_of is not None]
        if sum(given) != 1:
            raise SchemaError(
                f"The consequence for column {column!r} needs either equals=, or low= and high=, or one_of=. Got"
                f" {sum(given)} of these."
            )
        feature = self.schema[column]
        if one_of is not None and (isinstance(one_of, str) or not one_of):
            raise SchemaError(f"one_of takes a list of categories of column {column!r}. Got {one_of!r}.")
        if isinstance(feature, Categorical) and equals is not None:
            one_of = (equals,)
        elif equals is not None:
            low = high = check_finite(equals, f"The consequence for column {column!r}")
        choices = None if one_of is None else tuple(to_python(value) for value in one_of)
        return self.schema.with_rule(Implication(self.column, self.categories, column, low, high, choices))


def check_condition(schema: RuledTable, column: str, categories: tuple[Scalar, ...]) -> None:
    """Refuse a condition on a number, or on a category that does not exist.

    Raises:
        SchemaError: If it is one of these.
    """
    feature = schema[column]
    if not isinstance(feature, Categorical):
        raise SchemaError(f"when is for categories; column {column!r} is a {feature.kind}. Use require for numbers.")
    if not categories:
        raise SchemaError(f"when needs at least one category of column {column!r}. Got none.")
    for value in categories:
        feature.position(value)


def check_rules(schema: RuledTable) -> None:
    """Check every rule against the columns of a schema, and derivations against each other.

    Raises:
        SchemaError: If a rule does not fit, a column is derived twice, or derivations go round in a circle.
    """
    names: set[str] = set()
    for rule in schema.rules:
        if not isinstance(rule, (Requirement, Derivation, Implication)):
            raise SchemaError(f"A rule comes from require, derive or when. Got {rule!r}.")
        rule.check(schema)
        if isinstance(rule, Derivation):
            if rule.column in names:
                raise SchemaError(f"Column {rule.column!r} is derived twice. Keep one of the expressions.")
            names.add(rule.column)
    ordered(schema)


def ordered(schema: RuledTable) -> tuple[Derivation, ...]:
    """The derivations of a schema, each after those it takes as input.

    Raises:
        SchemaError: If there is no such order.
    """
    waiting, done = dict(schema.derivations), list[Derivation]()
    while waiting:
        ready = [rule for rule in waiting.values() if not any(name in waiting for name in rule.inputs)]
        if not ready:
            raise SchemaError(
                f"Columns {enumerate_some(waiting, 12)} are derived from each other in a circle. One of them must be"
                " given, not derived."
            )
        done += ready
        for rule in ready:
            del waiting[rule.column]
    return tuple(done)


def rule_to_dict(rule: Rule) -> dict[str, Any]:
    """A rule as plain values, for JSON."""
    (kind,) = (name for name, one in _KINDS.items() if isinstance(rule, one))
    return {"kind": kind, **asdict(rule)}


def rule_from_dict(content: dict[str, Any]) -> Rule:
    """The rule that `rule_to_dict` wrote.

    Raises:
        SchemaError: If it is of an unknown kind, or has an unknown entry.
    """
    kind = _KINDS.get(content["kind"])
    if kind is None:
        raise SchemaError(f"A rule must be of kind {enumerate_some(_KINDS)}.")
    known = [field.name for field in fields(kind)]
    entries = {key: tuple(v) if isinstance(v, list) else v for key, v in content.items() if key != "kind"}
    for key in entries:
        if key not in known:
            raise SchemaError(f"A rule has an unknown entry {key!r}. {did_you_mean(key, known)}")
    make: Callable[..., Rule] = kind
    return make(**entries)


def _names(*nodes: Node) -> tuple[str, ...]:
    return tuple(dict.fromkeys(column.name for node in nodes for column in columns_of(node)))


def _numeric(schema: RuledTable) -> tuple[str, ...]:
    return tuple(feature.name for feature in schema.numeric)
