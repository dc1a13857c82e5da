"""The words of a schema file: one entry for each field of a feature and of a schema, in one place.

An entry says how a field is called in the file, what it may hold, and what it means. Reading, writing, error messages
and the explanations at the top of a file all come from these tables, so that a new field is one new line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from avcg.schema.features import Categorical, Continuous, Scalar
from avcg.schema.rules import Derivation, Implication, Requirement, Rule


@dataclass(frozen=True)
class Form:
    """What an entry may hold, and how it becomes the value of a field and comes back.

    Attributes:
        expected: What is expected, in words that follow "expected".
        fits: Whether a value of TOML has this form.
        read: The value of the field for a value of TOML that fits.
        write: The value of TOML for a value of the field.
        words: Words that the entry may hold, for suggestions; empty: it holds something else.
    """

    expected: str
    fits: Callable[[Any], bool]
    read: Callable[[Any], Any] = field(default=lambda value: value)
    write: Callable[[Any], Any] = field(default=lambda value: value)
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entry:
    """One entry of a schema file.

    Attributes:
        field: Name of the field.
        word: Name of the entry in the file.
        form: What the entry may hold.
        meaning: One line that explains it to somebody who has never seen it.
        example: Value of TOML that is shown as an example.
        always: Whether it is written even if it holds the default.
    """

    field: str
    word: str
    form: Form
    meaning: str
    example: object
    always: bool = False


def _is_scalar(value: object) -> bool:
    return isinstance(value, Scalar)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_list_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _choice(words: Mapping[str, str]) -> Form:
    """One of several words, each with the value that it stands for."""
    expected = ", ".join(f'"{word}"' for word in words)
    back = {value: word for word, value in words.items()}
    return Form(f"one of {expected}", lambda v: _is_text(v) and v in words, words.__getitem__, back.get, tuple(words))


def _accepts_missing(way: str) -> Form:
    """True or false, for a field that names the way in which missing values are read."""
    return Form(
        "true or false",
        lambda value: isinstance(value, bool),
        lambda value: way if value else "error",
        lambda value: value != "error",
    )


def _rows_of(form: Callable[[Any], bool], expected: str, length: int | None = None) -> Form:
    """A list of lists."""
    inner = _is_list_of(form)
    return Form(
        expected,
        _is_list_of(lambda row: inner(row) and length in (None, len(row))),
        lambda value: tuple(map(tuple, value)),
        lambda value: [list(row) for row in value],
    )


_SIGNS = ("<=", ">=", "==")
_CONSEQUENCES = ("low", "high", "one_of")


def _is_rule(value: object) -> bool:
    if _is_text(value):
        return "=" in str(value)
    if not isinstance(value, dict):
        return False
    if value.keys() == {"derive", "from"}:
        return all(map(_is_text, value.values()))
    bounds = all(_is_number(value[word]) for word in ("low", "high") if word in value)
    named = _is_text(value.get("when")) and _is_text(value.get("then")) and _is_list_of(_is_scalar)(value.get("is"))
    listed = _is_list_of(_is_scalar)(value.get("one_of", []))
    return (
        named and bounds and listed and {"when", "is", "then"} < value.keys() <= {"when", "is", "then", *_CONSEQUENCES}
    )


def _read_rule(value: Any) -> Rule:
    if isinstance(value, dict):
        if "derive" in value:
            return Derivation(value["derive"], value["from"])
        one_of = tuple(value["one_of"]) if "one_of" in value else None
        return Implication(
            value["when"], tuple(value["is"]), value["then"], value.get("low"), value.get("high"), one_of
        )
    if any(sign in value for sign in _SIGNS):
        return Requirement(value)
    column, _, expression = value.partition("=")
    return Derivation(column.strip(), expression.strip())


def _write_rule(rule: Rule) -> str | dict[str, Any]:
    """The shortest text that is read as the same rule, or a table where no text is."""
    if isinstance(rule, Requirement):
        return rule.text
    if isinstance(rule, Derivation):
        text = f"{rule.column} = {rule.text}"
        is_read_back = not any(sign in text for sign in _SIGNS) and _read_rule(text) == rule
        return text if is_read_back else {"derive": rule.column, "from": rule.text}
    table: dict[str, Any] = {"when": rule.column, "is": list(rule.categories), "then": rule.target}
    held = {word: getattr(rule, word) for word in _CONSEQUENCES}
    return table | {
        word: list(value) if word == "one_of" else value for word, value in held.items() if value is not None
    }


NUMBER = Form("a number", _is_number)
WHOLE_NUMBER = Form("a whole number", lambda value: _is_number(value) and isinstance(value, int))
TRUTH = Form("true or false", lambda value: isinstance(value, bool))
TEXT = Form("a text in quotes", _is_text)
VALUE = Form("a text in quotes, a number, true or false", _is_scalar)
VALUES = Form('a list such as ["own", "rent"] of texts, numbers, true or false', _is_list_of(_is_scalar), tuple, list)
TEXTS = Form('a list of names such as ["own", "rent"]', _is_list_of(_is_text), tuple, list)
PAIRS = _rows_of(_is_scalar, 'a list of pairs such as [["own", "rent"]]', 2)
GROUPS = _rows_of(_is_text, 'a list of lists of columns such as [["degree", "years"]]')
NUMBERS = Form("a list of numbers such as [-9, -8]", _is_list_of(_is_number), tuple, list)
RULES = Form(
    'a list of rules such as ["rent <= income", "ratio = debt / income"], or of tables such as'
    ' { when = "housing", is = ["own"], then = "rent", low = 0, high = 0 }',
    _is_list_of(_is_rule),
    lambda value: tuple(map(_read_rule, value)),
    lambda value: list(map(_write_rule, value)),
)
CHANGE = _choice({"any": "any", "only up": "up", "only down": "down", "frozen": "none"})

# Of a column of numbers; the name of the column is that of its table.
NUMBER_ENTRIES = (
    Entry("change", "change", CHANGE, '"any", "only up", "only down" or "frozen".', "only up", always=True),
    Entry("step", "step", NUMBER, "Answers are multiples of it. Left out: any number.", 0.01, always=True),
    Entry("low", "low", NUMBER, "Lowest number of an answer. Left out: the lowest in the data.", 0),
    Entry("high", "high", NUMBER, "Highest number of an answer. Left out: the highest in the data.", 99.5),
    Entry("missing", "missing", _accepts_missing("indicator"), "Whether cells may be empty. Left out: false.", True),
    Entry("codes", "codes", NUMBERS, "Values that are no numbers; no answer enters them.", [-9, -8]),
    Entry("left_codes", "left_codes", NUMBERS, "Codes that an answer may leave. Left out: none.", [-9]),
    Entry("observed", "observed", TRUTH, "Whether answers keep out of gaps in the data. Left out: false.", True),
    Entry("cost_per_unit", "cost_per_unit", NUMBER, "Price of one unit. Left out: 1 per standard deviation.", 0.05),
    Entry("cost_per_change", "cost_per_change", NUMBER, "Price of any change. Left out: 0.", 1),
)

# Of a column of categories.
CATEGORY_ENTRIES = (
    Entry("categories", "categories", VALUES, "All values it can have, in order if ordered.", ["own", "rent", "free"]),
    Entry("ordered", "ordered", TRUTH, "Whether the order means something. Left out: false.", True),
    Entry(
        "change",
        "change",
        CHANGE,
        '"any" or "frozen"; if ordered also "only up" or "only down".',
        "frozen",
        always=True,
    ),
    Entry("allowed", "allowed", VALUES, "What answers may change it to. Left out: any.", ["own", "rent"]),
    Entry(
        "forbidden",
        "forbidden",
        PAIRS,
        "Changes that no answer makes, from the first to the second.",
        [["own", "rent"]],
    ),
    Entry("missing", "missing", _accepts_missing("category"), "Whether cells may be empty. Left out: false.", True),
    Entry("cost_per_change", "cost_per_change", NUMBER, "Price of any change. Left out: 1.", 3),
    Entry(
        "columns",
        "columns",
        TEXTS,
        "The columns of 0 and 1 that hold it, one for each category.",
        ["home_own", "home_rent", "home_free"],
    ),
)

# Of the whole table.
SCHEMA_ENTRIES = (
    Entry("max_changes", "max_changes", WHOLE_NUMBER, "Most columns that may change at once. Left out: all.", 2),
    Entry(
        "links",
        "links",
        GROUPS,
        "Columns that state the same fact and change together; the first leads.",
        [["degree", "years"]],
    ),
    Entry("kept", "kept", TEXTS, "Columns that are no features: returned, never changed.", ["applicant"]),
    Entry("rules", "rules", RULES, "Rules between columns.", ["rent <= income", "ratio = debt / income"]),
)


@dataclass(frozen=True)
class CommandNotes:
    """What a schema file says to the commands, beside the schema.

    Attributes:
        target: Column of outcomes; None: not said.
        positive: The outcome that people want; None: not said.
        drop: Columns that are left out, such as ids.
    """

    target: str | None = None
    positive: Scalar | None = None
    drop: tuple[str, ...] = ()


COMMAND_ENTRIES = (
    Entry("target", "target", TEXT, "Column of outcomes.", "approved"),
    Entry("positive", "positive", VALUE, "The outcome that people want.", "yes"),
    Entry("drop", "drop", TEXTS, "Columns to leave out, such as ids.", ["applicant"]),
)

# What `kind` says, the class of such a column, and its entries.
KINDS: dict[str, tuple[type[Continuous] | type[Categorical], tuple[Entry, ...]]] = {
    "number": (Continuous, NUMBER_ENTRIES),
    "category": (Categorical, CATEGORY_ENTRIES),
}
