"""Exceptions of avcg, one for each kind of problem that a caller may handle differently, and checks that raise them.

Each is also the closest builtin exception, so that ``except ValueError`` works without knowing avcg.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Integral

# Largest number of names searched for a similar one: comparing the tens of thousands that a request may hold takes
# seconds.
_MAX_COMPARED = 300


class AvcgError(Exception):
    """Base class of all exceptions that avcg raises on purpose."""


class SchemaError(AvcgError, ValueError):
    """An invalid schema, constraint or request, e.g. an unknown column, crossed bounds or no categories."""


class SettingError(AvcgError, ValueError):
    """An invalid parameter. The message names the parameter, the rule and the value."""


class DataError(AvcgError, ValueError):
    """Rows that do not fit the schema. The message names the column, how many rows, a few values and the fix."""


class DataFileError(AvcgError, OSError):
    """A dataset file that is missing, truncated or different from the published one."""


class ArtifactError(AvcgError, OSError):
    """A stored explainer that is missing, changed, of another format version, or made for another model."""


class PromiseWarning(UserWarning):
    """No promise about the next model can be made for some answers. The message says why, and what would help."""


class InternalError(AvcgError, AssertionError):
    """A defect of avcg that was caught before it reached a user, such as an answer that breaks a constraint."""


class MissingExtraError(AvcgError, ImportError):
    """An optional dependency that a feature needs and that is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package '{package}'. Install it with: pip install 'avcg[{extra}]'")


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """A sentence that lists the valid names, preceded by the most similar one as a suggestion.

    Args:
        name: Name that the caller wrote.
        known: Valid names.

    Returns:
        Text to append to an error message.

    >>> did_you_mean("hours", ["age", "hours-per-week"])
    "Did you mean 'hours-per-week'? Available: 'age', 'hours-per-week'."
    """
    names = [str(item) for item in known]
    close = get_close_matches(str(name), names[:_MAX_COMPARED], n=1, cutoff=0.4)
    suggestion = f"Did you mean {close[0]!r}? " if close else ""
    return f"{suggestion}Available: {enumerate_some(names, 12)}."


def enumerate_some(values: Iterable[object], limit: int = 4) -> str:
    """The first few values as text, and the number of those left out.

    Args:
        values: Values to list.
        limit: Largest number of values listed; 4 by default.

    >>> enumerate_some(["a", "b", "c"], 2)
    "'a', 'b' and 1 more"
    """
    items = list(values)
    shown = ", ".join(repr(item) for item in items[:limit])
    return shown if len(items) <= limit else f"{shown} and {len(items) - limit} more"


def check_int(value: object, what: str, least: int) -> int:
    """The value as a Python integer, after a check that it is a whole number and large enough.

    Args:
        value: Value to check.
        what: Name of the value, for the error message.
        least: Smallest valid value.

    Raises:
        SettingError: If the value is not an integer of Python or numpy, is a boolean, or is below ``least``.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise SettingError(f"The {what} must be a whole number >= {least}. Got {value!r} instead.")
    return int(value)


def check_setting(settings: object, name: str, holds: bool, expected: str) -> None:
    """Raise an error if a field of a settings object breaks its rule.

    Args:
        settings: Settings object, such as a `Recipe`.
        name: Name of the field.
        holds: Whether the field satisfies its rule.
        expected: Rule in words that follow "must be".

    Raises:
        SettingError: If the rule does not hold. The message names the field, the rule and the value.
    """
    if not holds:
        value = getattr(settings, name)
        raise SettingError(f"The '{name}' of {type(settings).__name__} must be {expected}. Got {value!r} instead.")
