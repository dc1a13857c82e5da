"""A schema in words: the table that a compliance officer signs."""

from __future__ import annotations

from collections.abc import Mapping

from avcg.schema.features import Categorical, Continuous, Feature
from avcg.schema.schema import Schema

Seen = Mapping[str, tuple[float, float]]


def describe(schema: Schema, seen: Seen | None = None) -> list[dict[str, str]]:
    """One row per column: what it is, which values, whether it may change, what a change costs.

    Args:
        schema: To put in words.
        seen: Lowest and highest number of columns, where rows are at hand.
    """
    linked = {name: group for group in schema.links for name in group}
    return [
        {
            "column": feature.name,
            "what it is": _what(feature),
            "values": _values(feature, (seen or {}).get(feature.name)),
            "may change": _freedom(feature, schema, linked.get(feature.name, (feature.name,))),
            "cost": _cost(feature, linked.get(feature.name, (feature.name,))[0]),
        }
        for feature in schema.features
    ]


def table(schema: Schema) -> str:
    """The same as aligned text, with the cap on changes below."""
    rows = describe(schema)
    widths = {key: max(len(key), *(len(row[key]) for row in rows)) for key in rows[0]}
    lines = ["  ".join(key.ljust(width) for key, width in widths.items())]
    lines.append("  ".join("-" * width for width in widths.values()))
    lines += ["  ".join(row[key].ljust(width) for key, width in widths.items()) for row in rows]
    if schema.max_changes is not None:
        lines.append(f"At most {schema.max_changes} may change at once.")
    return "\n".join(line.rstrip() for line in lines)


def _what(feature: Feature) -> str:
    gaps = "" if feature.missing == "error" else ", may be missing"
    if isinstance(feature, Categorical) and feature.kind != "yes or no":
        return f"{feature.kind}, {len(feature.categories)} different{gaps}"
    return f"{feature.kind}{gaps}"


def _values(feature: Feature, seen: tuple[float, float] | None) -> str:
    if isinstance(feature, Continuous):
        if feature.low is None and feature.high is None and seen is None:
            return "as in the data"
        lowest, highest = ("lowest in the data", "highest in the data") if seen is None else map(_figure, seen)
        low = lowest if feature.low is None else f"{feature.low:.10g}"
        high = highest if feature.high is None else f"{feature.high:.10g}"
        return f"{low} to {high}"
    if feature.kind == "yes or no":
        return "no, yes"
    return _some(feature.categories, " < " if feature.ordered else ", ")


def _figure(value: float) -> str:
    return f"{value:.0f}" if value == round(value) else f"{value:.6g}"


def _some(values: tuple[object, ...], separator: str, limit: int = 4) -> str:
    if len(values) <= limit:
        return separator.join(map(str, values))
    return separator.join([*map(str, values[: limit - 1]), "…", str(values[-1])])


def _freedom(feature: Feature, schema: Schema, group: tuple[str, ...]) -> str:
    words = {"any": "yes", "up": "only up", "down": "only down", "none": "no"}[feature.change]
    if any(schema[name].change == "none" for name in group):  # one fact: where a part of it is frozen, all of it is
        return "no"
    if isinstance(feature, Categorical):
        if feature.allowed is not None and len(feature.allowed) < len(feature.categories):
            barred = tuple(value for value in feature.categories if value not in feature.allowed)
            few = len(barred) < len(feature.allowed)
            words += f", not to {_some(barred, ', ')}" if few else f", only to {_some(feature.allowed, ', ')}"
        words += "".join(f", never {before} → {after}" for before, after in feature.forbidden[:3])
        words += f" and {len(feature.forbidden) - 3} more" if len(feature.forbidden) > 3 else ""
    partners = [name for name in group if name != feature.name]
    return f"{words}, together with {', '.join(partners)}" if partners else words


def _cost(feature: Feature, leader: str) -> str:
    if leader != feature.name:
        return f"in that of {leader}"
    prices = []
    if isinstance(feature, Continuous):
        unit = feature.cost_per_unit
        prices.append("1 per std. dev." if unit is None else f"{unit:.10g} per unit")
    if feature.cost_per_change or not prices:
        prices.append(f"{feature.cost_per_change:.10g} per change")
    return " + ".join(prices)
