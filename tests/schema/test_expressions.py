"""Arithmetic over columns: what is read, what is refused and where, and what it evaluates to."""

import contextlib
import math
import operator
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from avcg.errors import SchemaError
from avcg.schema.expressions import (
    DEEPEST,
    LONGEST,
    check_columns,
    columns_of,
    evaluate,
    linear,
    parse_comparison,
    parse_expression,
)

VALUES = {"a": 3.0, "b": -2.5, "c d": 0.5, "min": 7.0}


def value(text):
    return float(evaluate(parse_expression(text), lambda name: np.float64(VALUES[name]), np))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", 3.0),
        ("2 * a - b", 8.5),
        ("a - b - `c d`", 5.0),
        ("a / 2 / 3", 0.5),
        ("-a + +b", -5.5),
        ("- - a", 3.0),
        ("2 * (a + b) * 4", 4.0),
        ("a * -b", 7.5),
        ("max(a, b, `c d` + 4)", 4.5),
        ("min(a, min(b, 9))", -2.5),
        ("`min` + 1", 8.0),
        ("min + 1", 8.0),
        ("1.5e2 + .5 + 3.", 153.5),
    ],
)
def test_values(text, expected):
    assert value(text) == expected


def texts():
    """Random expressions that Python reads alike."""
    leaves = st.sampled_from(["a", "b", "2", "0.5", "3.25e1"])
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from("+-*/"), inner).map(" ".join),
            inner.map("({})".format),
            inner.map("-{}".format),
            st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(lambda t: f"{t[0]}({t[1]}, {t[2]})"),
        ),
        max_leaves=12,
    )


@given(texts())
def test_values_are_those_of_python(text):
    with np.errstate(all="ignore"):
        names = {name: np.float64(VALUES[name]) for name in "ab"} | {"min": np.minimum, "max": np.maximum}
        numbers = re.sub(r"(?<![\w.])(\d[\d.e]*)", r"number(\1)", text)
        expected = eval(numbers, {"number": np.float64, **names})
        found = value(text)
    assert found == expected or (math.isnan(found) and math.isnan(expected))


@pytest.mark.parametrize("sign", ["<=", ">=", "=="])
def test_comparisons(sign):
    compared = parse_comparison(f"a + `x{sign}y` {sign} 2*b")
    assert compared.sign == sign
    assert [column.name for side in (compared.left, compared.right) for column in columns_of(side)] == [
        "a",
        f"x{sign}y",
        "b",
    ]


@pytest.mark.parametrize(
    ("text", "message", "at"),
    [
        ("a < b", "strict '<' .* Write '<='", 2),
        ("a > b", "strict '>' .* Write '>='", 2),
        ("a = b", "Write '=='", 2),
        ("a + b", "Expected '<=', '>=' or '==', got the end", 5),
        ("a b <= 1", "got 'b'. A column whose name is not a single word", 2),
        ("a <= ", "Expected a number, a column or a bracket, got the end", 5),
        ("(a <= 1", r"Expected '\)', got '<='", 3),
        ("a) <= 1", r"got '\)'", 1),
        ("a <= b <= 1", "A rule compares once", 7),
        ("a <= 1 1", "or the end, got '1'", 7),
        ("`a <= 1", "The backtick", 0),
        ("a $ b <= 1", r"got '\$'", 2),
        ("a <= 1e999", "too large", 5),
        ("a <= exp(b)", "no function 'exp'. Available: min, max", 5),
        ("", "got the end", 0),
    ],
)
def test_refusals_point_at_the_place(text, message, at):
    with pytest.raises(SchemaError, match=message) as error:
        parse_comparison(text)
    shown, caret = str(error.value).splitlines()[-2:]
    assert shown == "  " + text
    assert caret.index("^") == at + 2


def test_an_expression_does_not_compare():
    with pytest.raises(SchemaError, match="nothing to compare"):
        parse_expression("a <= b")


@pytest.mark.parametrize("text", [None, 3, ["a <= 1"]])
def test_only_texts_are_read(text):
    with pytest.raises(SchemaError, match="must be a text"):
        parse_comparison(text)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 400 + "a",
        "-(" * 300 + "a",
        "max(" * 200 + "a",
        "min(a," * 150,
        "`" * 999,
        "a+" * 499 + "a",
        "-" * 900 + "a",
    ],
)
def test_hostile_texts_do_not_exhaust_the_stack(text):
    assert len(text) <= LONGEST
    try:
        node = parse_expression(text)
    except SchemaError:
        return
    assert evaluate(node, lambda _: np.ones(2), np).shape == (2,)


def test_length_and_depth_are_bounded():
    parse_expression("(" * DEEPEST + "a" + ")" * DEEPEST)
    with pytest.raises(SchemaError, match=f"at most {DEEPEST} brackets"):
        parse_expression("(" * (DEEPEST + 1) + "a" + ")" * (DEEPEST + 1))
    with pytest.raises(SchemaError, match=f"at most {LONGEST} characters. Got {LONGEST + 1}"):
        parse_expression("a" * (LONGEST + 1))


@given(st.text(alphabet="ab12.+-*/()<>=`, minmax$\n\té", max_size=40))
def test_any_text_is_read_or_refused(text):
    for read in (parse_expression, parse_comparison):
        with contextlib.suppress(SchemaError):
            read(text)


def test_unknown_columns():
    text = "rent + fod"
    with pytest.raises(SchemaError, match=r"no column 'fod' in the schema\. Did you mean 'food'") as error:
        check_columns(parse_expression(text), text, ("rent", "food", "job"), ("rent", "food"))
    assert str(error.value).splitlines()[-1].index("^") == 2 + 7
    with pytest.raises(SchemaError, match="'job' holds categories"):
        check_columns(parse_expression("job"), "job", ("rent", "job"), ("rent",))


@given(
    st.lists(st.tuples(st.sampled_from("+-"), st.sampled_from("ab"), st.integers(-9, 9)), min_size=1, max_size=6),
    st.integers(1, 5),
)
def test_linear_forms_have_the_same_values(terms, divisor):
    text = "(" + " ".join(f"{sign} {times} * {name}" for sign, name, times in terms) + f" - 7) / {divisor}"
    form = linear(parse_expression(text), text)
    found = sum(weight * VALUES[name] for name, weight in form.weights.items()) + form.constant
    assert found == pytest.approx(value(text), abs=1e-12)


@pytest.mark.parametrize("text", ["a * b", "1 / a", "a / b", "max(a, b)", "(a + 1) * (2 - b)", "a / 0"])
def test_what_is_not_linear_is_refused(text):
    with pytest.raises(SchemaError, match=r"adds columns times constants|without min and max|divides by 0"):
        linear(parse_expression(text), text)


def test_division_can_be_replaced():
    assert evaluate(parse_expression("a / 0"), lambda _: 1.0, np, lambda a, b: operator.truediv(a, b or 2.0)) == 0.5
