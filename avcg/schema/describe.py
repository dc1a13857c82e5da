"""A schema as a table in plain words, for people who sign off constraints and do not read code."""

from __future__ import annotations

from collections.abc import Mapping

from avcg.schema.features import Categorical, Continuous, Feature, listed
from avcg.schema.schema import Schema

Ranges = Mapping[str, tuple[float, float]]


def describe(schema: Schema, ranges: Ranges | None = None) -> list[dict[str, str]]:
    """One row per column: what it is, its values, whether it may change, and the cost of a change.

    Args:
        schema: What to describe.
        ranges: Lowest and highest number of each numeric column in the data; None: there is no data.
    """
    linked = {name: group for group in schema.links for name in group}
    return [
        {
            "column": feature.name,
            "what it is": _kind(feature),
            "values": _values(feature, (ranges or {}).get(feature.name)),
            "may change": _may_change(feature, schema, linked.get(feature.name, (feature.name,))),
            "cost": "nothing"
            if feature.name in schema.derivations
            else _cost(feature, linked.get(feature.name, (feature.name,))[0]),
        }
        for feature in schema.features
    ]


def table(schema: Schema) -> str:
    """The description as aligned text, with the cap on changes and the rules between columns below."""
    rows = describe(schema)
    widths = {key: max(len(key), *(len(row[key]) for row in rows)) for key in rows[0]}
    lines = ["  ".join(key.ljust(width) for key, width in widths.items())]
    lines.append("  ".join("-" * width for width in widths.values()))
    lines += ["  ".join(row[key].ljust(width) for key, width in widths.items()) for row in rows]
    if schema.kept:
        lines.append(f"Kept as they are, and no features: {', '.join(schema.kept)}.")
    if schema.max_changes is not None:
        lines.append(f"At most {schema.max_changes} may change at once.")
    lines += [rule.words for rule in schema.rules]
    return "\n".join(line.rstrip() for line in lines)


def _kind(feature: Feature) -> str:
    missing = "" if feature.missing == "error" else ", may be missing"
    if isinstance(feature, Categorical) and feature.columns is not None:
        missing = f", in {len(feature.columns)} columns{missing}"
    if isinstance(feature, Categorical) and feature.kind != "yes or no":
        return f"{feature.kind}, {len(feature.categories)} different{missing}"
    return f"{feature.kind}{missing}"


def _values(feature: Feature, data_range: tuple[float, float] | None) -> str:
    if isinstance(feature, Continuous):
        words = ", not in gaps" if feature.observed else ""
        if feature.codes:
            codes = [f"{code:.10g}{' (may be left)' if code in feature.left_codes else ''}" for code in feature.codes]
            words += f", code{'s' * (len(codes) > 1)} {listed(codes, limit=6)}"
        if feature.low is None and feature.high is None and data_range is None:
            return "as in the data" + words
        lowest, highest = (
            ("lowest in the data", "highest in the data") if data_range is None else map(_figure, data_range)
        )
        low = lowest if feature.low is None else f"{feature.low:.10g}"
        high = highest if feature.high is None else f"{feature.high:.10g}"
        return f"{low} to {high}{words}"
    if feature.kind == "yes or no":
        return "no, yes"
    return listed(feature.categories, " < " if feature.ordered else ", ")


def _figure(value: float) -> str:
    return f"{value:.0f}" if value == round(value) else f"{value:.6g}"


def _may_change(feature: Feature, schema: Schema, group: tuple[str, ...]) -> str:
    if feature.name in schema.derivations:
        return f"computed from {', '.join(schema.derivations[feature.name].inputs)}"
    if any(schema[name].change == "none" for name in group):  # freezing one column of a link freezes all
        return "no"
    partners = [name for name in group if name != feature.name]
    return f"{feature.change_words}, together with {', '.join(partners)}" if partners else feature.change_words


def _cost(feature: Feature, leader: str) -> str:
    if leader != feature.name:
        return f"in that of {leader}"
    prices = []
    if isinstance(feature, Continuous):
        price = feature.cost_per_unit
        prices.append("1 per std. dev." if price is None else f"{price:.10g} per unit")
    if feature.cost_per_change or not prices:
        prices.append(f"{feature.cost_per_change:.10g} per change")
    return " + ".join(prices)
