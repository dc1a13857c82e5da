"""What people write on the command line, read and checked before anything slow is done. Python alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from avcg.errors import SettingError, did_you_mean, enumerate_some

_FLAGS = {"true": True, "false": False}


def listed(text: str | None) -> tuple[str, ...]:
    """The parts between commas.

    >>> listed("age, sex")
    ('age', 'sex')
    """
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def check_columns(option: str, names: Iterable[str], columns: Sequence[str]) -> None:
    """Refuse an option that names what is no column.

    Raises:
        SettingError: With the option and what there is.
    """
    for name in names:
        if name not in columns:
            raise SettingError(f"{option} names {name!r}, which is no column. {did_you_mean(name, columns)}")


def split_column(option: str, text: str, columns: Sequence[str]) -> tuple[str, str]:
    """A column and what is said of it, from ``column:rest``; the name itself may hold colons.

    Raises:
        SettingError: If it begins with no column.

    >>> split_column("--between", "a:b:1:2", ["a", "a:b"])
    ('a:b', '1:2')
    """
    found = [name for name in columns if text.startswith(f"{name}:")]
    if not found:
        check_columns(option, [text.partition(":")[0]], columns)
        raise SettingError(f"{option} says nothing of column {text!r}. Write {text}:low:high.")
    name = max(found, key=len)
    return name, text[len(name) + 1 :]


def number_range(option: str, name: str, text: str) -> tuple[float | None, float | None]:
    """The lowest and the highest from ``low:high``, either of them left out or not.

    Raises:
        SettingError: If it is something else.

    >>> number_range("--between", "age", "18:")
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


def label_of(option: str, text: str, labels: Sequence[Any], what: str = "the outcomes") -> Any:
    """The label that somebody means: as it is written, or as it is counted.

    Args:
        option: Where it was written.
        text: What was written.
        labels: All there are, as plain values.
        what: They are.

    Raises:
        SettingError: If it is none of them.

    >>> label_of("--positive", "1", [0.0, 1.0])
    1.0
    """
    for label in labels:
        if str(label) == text:
            return label
    word = text.strip()
    for label in labels:
        if isinstance(label, bool):
            same = _FLAGS.get(word.lower()) is label
        elif isinstance(label, (int, float)):
            same = _number(word) == label
        else:
            same = str(label).strip() == word
        if same:
            return label
    close = did_you_mean(text, labels) if len(labels) > 2 else f"There is: {enumerate_some(labels)}."
    raise SettingError(f"{option} {text!r} is none of {what}. {close}")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
