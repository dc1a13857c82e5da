"""What can go wrong, as few exceptions as callers can act on differently.

Each is also the builtin that says the same thing, so ``except ValueError`` works for people who do not know avcg.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Integral

# Names of which one may have been meant: comparing tens of thousands, which anybody can send, takes seconds.
_COMPARED = 300


class AvcgError(Exception):
    """Root of everything avcg raises on purpose."""


class SchemaError(AvcgError, ValueError):
    """A schema, a constraint or a request that cannot be meant: an unknown column, crossed bounds, an empty choice."""


class SettingError(AvcgError, ValueError):
    """A parameter outside what it can mean. The message names it, the rule and the value."""


class DataError(AvcgError, ValueError):
    """Rows that do not fit the schema. The message names the column, how many rows, a few values and the fix."""


class DataFileError(AvcgError, OSError):
    """A dataset file that is missing, truncated or not the published one."""


class ArtifactError(AvcgError, OSError):
    """A stored explainer that is missing, changed, newer than this avcg, or made for another model."""


class InternalError(AvcgError, AssertionError):
    """A defect of avcg that was caught before it reached anybody, such as an answer that breaks a constraint."""


class MissingExtraError(AvcgError, ImportError):
    """An optional dependency that a feature needs and that is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package '{package}'. Install it with: pip install 'avcg[{extra}]'")


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """A sentence that lists what exists, led by the likeliest intention.

    Args:
        name: What the caller wrote.
        known: What there is.

    Returns:
        Text to append to an error message.

    >>> did_you_mean("hours", ["age", "hours-per-week"])
    "Did you mean 'hours-per-week'? There is: 'age', 'hours-per-week'."
    """
    names = [str(item) for item in known]
    close = get_close_matches(str(name), names[:_COMPARED], n=1, cutoff=0.4)
    start = f"Did you mean {close[0]!r}? " if close else ""
    return f"{start}There is: {enumerate_some(names, 12)}."


def enumerate_some(values: Iterable[object], limit: int = 4) -> str:
    """The first few values as people write them, and how many more there are.

    >>> enumerate_some(["a", "b", "c"], 2)
    "'a', 'b' and 1 more"
    """
    items = list(values)
    shown = ", ".join(repr(item) for item in items[:limit])
    return shown if len(items) <= limit else f"{shown} and {len(items) - limit} more"


def check_int(value: object, what: str, least: int) -> int:
    """The value as a Python integer, if it is a whole number of some kind and large enough.

    Raises:
        SettingError: With what it is, the rule and the value.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise SettingError(f"The {what} must be a whole number >= {least}. Got {value!r} instead.")
    return int(value)


def check_setting(settings: object, name: str, holds: bool, expected: str) -> None:
    """Refuse a field of a settings object that breaks a rule.

    Args:
        settings: The object, such as a `Recipe`.
        name: The field.
        holds: Whether the rule holds.
        expected: The rule, to read after "must be".

    Raises:
        SettingError: With the field, the rule and the value.
    """
    if not holds:
        value = getattr(settings, name)
        raise SettingError(f"The '{name}' of {type(settings).__name__} must be {expected}. Got {value!r} instead.")
