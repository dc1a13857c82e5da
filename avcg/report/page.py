"""Rendering of templates, and formatting of values, for all pages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from avcg.metrics.groups import MISSING
from avcg.space.validation import is_missing

_MAX_LENGTH = 80  # characters of a value


def fill(template: str, context: Mapping[str, Any]) -> str:
    """Render a template of the package. Every value is escaped, except `Markup`.

    Args:
        template: File name of the template.
        context: Values by name; a name that is missing is an error.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("avcg.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text: str = environment.get_template(template).render(context)
    return text


def short(value: Any) -> str:
    """Format any value for people, cut off after 80 characters.

    >>> short(0.1 + 0.2), short(None), short("rent"), short(("north", 7)), short(1234567.0)
    ('0.3', 'missing', 'rent', 'north / 7', '1234567')
    """
    if is_missing(value):
        return MISSING
    if isinstance(value, tuple):  # the label of a row with an index of several levels
        return " / ".join(short(part) for part in value)
    text = figure(value, 6) if isinstance(value, float) else str(value)
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 1]}…"


def figure(value: float, digits: int = 3) -> str:
    """Format a number with a few significant digits, and without an exponent if it is large.

    >>> figure(0.12345), figure(11612.4, 4), figure(2.5e-9)
    ('0.123', '11612', '2.5e-09')
    """
    return f"{value:.0f}" if 10**digits <= abs(value) < 1e15 else f"{value:.{digits}g}"


def signed(value: float) -> str:
    """Format a change of a number, with its sign.

    >>> signed(12.5)
    '+12.5'
    """
    text = figure(value, 4)
    return text.replace("-", "\N{MINUS SIGN}", 1) if value < 0 else f"+{text}"


def percent(share: float, digits: int = 0) -> str:
    """Format a share: only 1 is 100 %, only 0 is 0 %, and NaN (a share of nothing) is "none".

    >>> percent(0.916), percent(0.998), percent(0.998, 1), percent(1.0), percent(0.001), percent(float("nan"))
    ('92 %', '>99 %', '99.8 %', '100 %', '<1 %', 'none')
    """
    if share != share:
        return "none"
    least, text = 10.0**-digits, f"{100 * share:.{digits}f}"
    if share < 1 and float(text) == 100:
        return f">{100 - least:.{digits}f} %"
    return f"<{least:g} %" if share > 0 and float(text) == 0 else f"{text} %"


def precise(share: float) -> str:
    """Format a share that was chosen, such as a promise, with all its digits.

    >>> precise(0.995), precise(0.95)
    ('99.5 %', '95 %')
    """
    return f"{100 * share:.6g} %"


def at_least(share: float) -> str:
    """Format a lower bound, rounded down.

    >>> at_least(0.749), at_least(0.55)
    ('74 %', '55 %')
    """
    return f"{math.floor(100 * share + 1e-9)} %"
