"""Parsing of command-line options that name columns, ranges and labels. Needs the standard library alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from avcg.errors import SettingError, did_you_mean, enumerate_some

_BOOLEANS = {"true": True, "false": False}


def split_list(text: str | None) -> tuple[str, ...]:
    """The names in a list that is separated by commas.

    >>> split_list("age, sex")
    ('age', 'sex')
    """
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def check_columns(option: str, names: Iterable[str], columns: Sequence[str]) -> None:
    """Refuse an option that names an unknown column.

    Args:
        option: Name of the option, for the error message.
        names: Names that it was given.
        columns: Names of the columns there are.

    Raises:
        SettingError: If a name is not a column.
    """
    for name in names:
        if name not in columns:
            raise SettingError(f"{option} names {name!r}, which is not a column. {did_you_mean(name, columns)}")


def split_column(option: str, text: str, columns: Sequence[str]) -> tuple[str, str]:
    """Split ``column:rest`` after the name of a column, which may itself contain colons.

    Args:
        option: Name of the option, for the error message.
        text: Value that it was given.
        columns: Names of the columns there are.

    Raises:
        SettingError: If the text does not start with the name of a column and a colon.

    >>> split_column("--between", "a:b:1:2", ["a", "a:b"])
    ('a:b', '1:2')
    """
    matches = [name for name in columns if text.startswith(f"{name}:")]
    if not matches:
        check_columns(option, [text.partition(":")[0]], columns)
        raise SettingError(f"{option} gives column {text!r} no range. Write {text}:low:high.")
    name = max(matches, key=len)
    return name, text[len(name) + 1 :]


def parse_range(option: str, name: str, text: str) -> tuple[float | None, float | None]:
    """The bounds in ``low:high``; None for a side that is left empty.

    Args:
        option: Name of the option, for the error message.
        name: Name of the column, for the error message.
        text: The two bounds.

    Raises:
        SettingError: If the text does not have two sides that are numbers or empty.

    >>> parse_range("--between", "age", "18:")
    (18.0, None)
    """
    parts = text.split(":")
    try:
        low, high = (float(part) if part.strip() else None for part in parts)
    except ValueError:
        raise SettingError(
            f"{option} must give column {name!r} a lowest and a highest number, e.g. {name}:10:60 or {name}:10:. Got"
            f" {text!r} instead."
        ) from None
    return low, high


def parse_label(option: str, text: str, labels: Sequence[Any], what: str = "the outcomes") -> Any:
    """The label that a text stands for: an exact match, or else a number, boolean or text of equal value.

    Args:
        option: Name of the option, for the error message.
        text: Value that it was given.
        labels: All labels, as plain Python values.
        what: What the labels are, for the error message.

    Raises:
        SettingError: If the text stands for none of the labels.

    >>> parse_label("--positive", "1", [0.0, 1.0])
    1.0
    """
    for label in labels:
        if str(label) == text:
            return label
    word = text.strip()
    for label in labels:
        if isinstance(label, bool):
            same = _BOOLEANS.get(word.lower()) is label
        elif isinstance(label, (int, float)):
            same = _number(word) == label
        else:
            same = str(label).strip() == word
        if same:
            return label
    close = did_you_mean(text, labels) if len(labels) > 2 else f"Available: {enumerate_some(labels)}."
    raise SettingError(f"{option} {text!r} is not one of {what}. {close}")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
