"""Arithmetic over columns, as users write it in rules: one small grammar, parsed here and never evaluated as code.

    comparison   expression ("<=" | ">=" | "==") expression
    expression   term (("+" | "-") term)*
    term         factor (("*" | "/") factor)*
    factor       ("+" | "-")* (number | column | "(" expression ")" | extreme)
    extreme      ("min" | "max") "(" expression ("," expression)* ")"

A column is an identifier, or any name in backticks. Texts and their nesting are bounded, so that no text can exhaust
the stack. Standard library alone; `evaluate` takes numpy or torch as an argument.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from avcg.errors import SchemaError, did_you_mean

LONGEST = 1000  # characters of a text
DEEPEST = 30  # brackets within brackets
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>[^\W\d]\w*)|`(?P<quoted>[^`]*)`"
    r"|(?P<sign><=|>=|==|[-+*/(),<>=]))"
)


@dataclass(frozen=True)
class Number:
    """A constant."""

    value: float


@dataclass(frozen=True)
class Column:
    """The value of a column, and the position of its name in the text."""

    name: str
    at: int


@dataclass(frozen=True)
class Sum:
    """Terms that are added where the flag is True, and subtracted where it is False."""

    terms: tuple[tuple[bool, Node], ...]


@dataclass(frozen=True)
class Product:
    """Factors that are multiplied where the flag is True, and divided by where it is False; with their positions."""

    factors: tuple[tuple[bool, Node, int], ...]


@dataclass(frozen=True)
class Extreme:
    """The smallest or the largest of several values, and the position of the word in the text."""

    largest: bool
    values: tuple[Node, ...]
    at: int


Node = Number | Column | Sum | Product | Extreme


@dataclass(frozen=True)
class Comparison:
    """Two expressions, and the sign between them (``<=``, ``>=`` or ``==``) with its position in the text."""

    left: Node
    sign: str
    right: Node
    at: int


@dataclass(frozen=True)
class Linear:
    """A sum of columns times constants, plus a constant."""

    weights: dict[str, float]
    constant: float

    def plus(self, other: Linear, times: float = 1.0) -> Linear:
        """This sum, plus a multiple of another one."""
        weights = dict(self.weights)
        for name, weight in other.weights.items():
            weights[name] = weights.get(name, 0.0) + times * weight
        return Linear(weights, self.constant + times * other.constant)


def parse_expression(text: str) -> Node:
    """Read an expression.

    Raises:
        SchemaError: If it is not one. The message shows the place and says what was expected.
    """
    parser = _Parser(text)
    node = parser.expression(0)
    if parser.sign in ("<=", ">=", "==", "<", ">", "="):
        parser.refuse("There is nothing to compare with here: write the expression alone")
    parser.end()
    return node


def parse_comparison(text: str) -> Comparison:
    """Read two expressions with ``<=``, ``>=`` or ``==`` between them.

    Raises:
        SchemaError: If it is not that. The message shows the place and says what was expected.
    """
    parser = _Parser(text)
    left = parser.expression(0)
    sign = parser.sign
    if sign in ("<", ">"):
        parser.refuse(f"A strict {sign!r} has no nearest number that satisfies it. Write {sign + '='!r}")
    if sign == "=":
        parser.refuse("Write '==' for columns that must be equal")
    if sign not in ("<=", ">=", "=="):
        parser.expected("'<=', '>=' or '=='" + ("" if parser.ended else " or one of + - * /"))
    at = parser.at
    parser.advance()
    right = parser.expression(0)
    if parser.sign in ("<=", ">=", "==", "<", ">", "="):
        parser.refuse("A rule compares once. Write a second rule for the second comparison")
    parser.end()
    return Comparison(left, sign, right, at)


def columns_of(node: Node) -> Iterator[Column]:
    """Every mention of a column, from left to right."""
    if isinstance(node, Column):
        yield node
    elif not isinstance(node, Number):
        for part in _parts(node):
            yield from columns_of(part)


def _parts(node: Sum | Product | Extreme) -> tuple[Node, ...]:
    if isinstance(node, Extreme):
        return node.values
    return tuple(entry[1] for entry in (node.terms if isinstance(node, Sum) else node.factors))


def linear(node: Node, text: str) -> Linear:
    """The expression as a sum of columns times constants.

    Args:
        node: The expression.
        text: The text it was read from, for the error message.

    Raises:
        SchemaError: If columns are multiplied or divided by each other, or ``min`` or ``max`` is used.
    """
    if isinstance(node, Number):
        return Linear({}, node.value)
    if isinstance(node, Column):
        return Linear({node.name: 1.0}, 0.0)
    total = Linear({}, 0.0)
    if isinstance(node, Sum):
        for added, term in node.terms:
            total = total.plus(linear(term, text), 1.0 if added else -1.0)
        return total
    if isinstance(node, Extreme):
        refuse(text, node.at, "A rule of require is a sum, without min and max. Write one rule for each of the values")
    total = Linear({}, 1.0)
    for multiplied, factor, at in node.factors:
        part = linear(factor, text)
        if part.weights and (total.weights or not multiplied):
            refuse(
                text,
                at,
                "A rule of require adds columns times constants, and does not multiply or divide columns by each other."
                " Multiply both sides by the denominator, or derive a column",
            )
        if not part.weights:
            scale = part.constant if multiplied else 1.0 / part.constant if part.constant else math.inf
            if not math.isfinite(scale):
                refuse(text, at, "This divides by 0")
            total = Linear({}, 0.0).plus(total, scale)
        else:
            total = Linear({}, 0.0).plus(part, total.constant)
    return total


def evaluate(
    node: Node, value_of: Callable[[str], Any], xp: Any, divide: Callable[[Any, Any], Any] = operator.truediv
) -> Any:
    """The value of an expression, computed from left to right.

    Args:
        node: The expression.
        value_of: Function from the name of a column to its values, arrays of one shape.
        xp: numpy or torch; the arrays are of its kind.
        divide: Function that divides; by default the operator ``/``.
    """
    if isinstance(node, Number):
        return xp.asarray(node.value)
    if isinstance(node, Column):
        return value_of(node.name)
    values = [evaluate(part, value_of, xp, divide) for part in _parts(node)]
    total = values[0]
    if isinstance(node, Extreme):
        for value in values[1:]:
            total = xp.maximum(total, value) if node.largest else xp.minimum(total, value)
    elif isinstance(node, Sum):
        total = total if node.terms[0][0] else -total
        for (added, _), value in zip(node.terms[1:], values[1:], strict=True):
            total = total + value if added else total - value
    else:
        for (multiplied, _, _), value in zip(node.factors[1:], values[1:], strict=True):
            total = total * value if multiplied else divide(total, value)
    return total


def refuse(text: str, at: int, message: str) -> NoReturn:
    """Raise an error that shows a place in a text with a caret below it."""
    line, caret = text.replace("\n", " ").replace("\t", " "), " " * at + "^"
    raise SchemaError(f"{message}.\n  {line}\n  {caret}")


def check_columns(node: Node, text: str, known: tuple[str, ...], numeric: tuple[str, ...]) -> None:
    """Refuse names that are not numeric columns.

    Raises:
        SchemaError: If there is such a name. The message shows the place.
    """
    for column in columns_of(node):
        if column.name not in known:
            hint = did_you_mean(column.name, numeric).removesuffix(".")
            refuse(text, column.at, f"There is no column {column.name!r} in the schema. {hint}")
        if column.name not in numeric:
            refuse(text, column.at, f"Column {column.name!r} holds categories, but arithmetic needs a numeric column")


class _Parser:
    """A text and the token that is read next."""

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise SchemaError(f"A rule must be a text such as 'rent + food <= income'. Got {text!r} instead.")
        if len(text) > LONGEST:
            raise SchemaError(f"A rule may have at most {LONGEST} characters. Got {len(text)}.")
        self.text, self.next = text, 0
        self.advance()

    def advance(self) -> None:
        """Read the next token."""
        match = _TOKEN.match(self.text, self.next)
        self.number = self.name = self.sign = ""
        self.quoted = False
        rest = self.text[self.next :]
        self.at = self.next + len(rest) - len(rest.lstrip())
        self.ended = not rest.strip()
        if self.ended:
            return
        if match is None:
            if self.text[self.at] == "`":
                self.refuse("The backtick that begins this name is not closed by another one")
            self.expected("a number, a column, one of + - * / ( ) or a comparison")
        self.number, self.sign = match["number"] or "", match["sign"] or ""
        self.quoted = match["quoted"] is not None
        self.name = match["quoted"] if self.quoted else match["name"] or ""
        self.next = match.end()

    def expression(self, depth: int) -> Node:
        """Terms that are added and subtracted."""
        if depth > DEEPEST:
            self.refuse(f"A rule may have at most {DEEPEST} brackets within each other")
        terms = [(True, self.term(depth))]
        while self.sign in ("+", "-"):
            added = self.sign == "+"
            self.advance()
            terms.append((added, self.term(depth)))
        return terms[0][1] if len(terms) == 1 else Sum(tuple(terms))

    def term(self, depth: int) -> Node:
        """Factors that are multiplied and divided."""
        factors = [(True, *self.factor(depth))]
        while self.sign in ("*", "/"):
            multiplied = self.sign == "*"
            self.advance()
            factors.append((multiplied, *self.factor(depth)))
        return factors[0][1] if len(factors) == 1 else Product(tuple(factors))

    def factor(self, depth: int) -> tuple[Node, int]:
        """A number, a column, a bracket, or the smallest or largest of several, with its position."""
        at, positive = self.at, True
        while self.sign in ("+", "-"):
            positive = positive == (self.sign == "+")
            self.advance()
        node = self.atom(depth)
        return (node if positive else Sum(((False, node),))), at

    def atom(self, depth: int) -> Node:
        """A factor without signs before it."""
        at = self.at
        if self.number:
            value = float(self.number)
            if not math.isfinite(value):
                self.refuse("This number is too large")
            self.advance()
            return Number(value)
        if self.name or self.quoted:
            name, plain = self.name, not self.quoted
            self.advance()
            if plain and self.sign == "(":
                if name not in ("min", "max"):
                    refuse(self.text, at, f"There is no function {name!r}. Available: min, max")
                return Extreme(name == "max", self.arguments(depth), at)
            return Column(name, at)
        if self.sign != "(":
            self.expected("a number, a column or a bracket")
        self.advance()
        node = self.expression(depth + 1)
        self.close()
        return node

    def arguments(self, depth: int) -> tuple[Node, ...]:
        """Expressions in brackets, with commas between them."""
        self.advance()
        values = [self.expression(depth + 1)]
        while self.sign == ",":
            self.advance()
            values.append(self.expression(depth + 1))
        self.close()
        return tuple(values)

    def close(self) -> None:
        """Read a closing bracket."""
        if self.sign != ")":
            self.expected("')'")
        self.advance()

    def end(self) -> None:
        """Check that nothing follows."""
        if not self.ended:
            self.expected("one of + - * / or the end")

    def expected(self, what: str) -> NoReturn:
        """Refuse the token that is read next."""
        got = "the end of the text" if self.ended else f"{self._shown()!r}"
        hint = ""
        if (self.name or self.number) and not self.ended:
            hint = " A column whose name is not a single word is written in backticks"
        self.refuse(f"Expected {what}, got {got}" + (f".{hint}" if hint else ""))

    def _shown(self) -> str:
        return self.number or self.name or self.sign or self.text[self.at]

    def refuse(self, message: str) -> NoReturn:
        """Raise an error about the token that is read next."""
        refuse(self.text, self.at, message)
