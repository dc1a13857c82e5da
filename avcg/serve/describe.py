"""Descriptions of a service: its columns for people and the page, and its rows as JSON Schema."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from avcg.errors import DataError
from avcg.guarantees.statement import Statement, summary
from avcg.schema.features import Categorical, Continuous, Feature, columns_of
from avcg.schema.schema import Schema
from avcg.serve.engine import Engine
from avcg.space.constraints import FeasibleSet
from avcg.space.encoding import Encoding
from avcg.space.reading import entry_of_rows, read_rows

Example = Mapping[str, Any]


def assumption(engine: Engine) -> str:
    """The assumptions behind an engine's certificates, in words for people."""
    if not engine.n_models:
        return (
            "There are no held-out models to check answers with, so they are about today's model alone. It is assumed"
            " that nothing changes but what is listed."
        )
    return (
        f"{engine.assumption or 'The next model is made like the held-out models.'} The held-out models are taken for"
        " independent draws that had no part in making the answer. It is also assumed that nothing changes but what is"
        " listed."
    )


def promised(statements: Sequence[Statement]) -> dict[str, Any]:
    """What is promised, in words and as values of JSON.

    Args:
        statements: One statement for each target class.
    """
    return {
        "promise": " ".join(summary(statements)),
        "statements": [statement.to_dict() for statement in statements],
    }


def check_examples(schema: Schema, encoding: Encoding, examples: Sequence[Example]) -> None:
    """Refuse example rows that the engine could not answer.

    Raises:
        DataError: If a row does not fit the schema. The message has its number, the column and the reason.
    """
    for number, row in enumerate(examples, 1):
        try:
            encoding.encode(read_rows(schema, [row]))
        except DataError as error:
            raise DataError(f"Example {number} does not fit the schema of {len(schema)} columns. {error}") from None


def describe(engine: Engine, limits: Mapping[str, Any], examples: Sequence[Example]) -> dict[str, Any]:
    """The answer to ``GET /schema``.

    Args:
        engine: Engine of the service.
        limits: Limits of a request.
        examples: Example rows for the page.
    """
    schema, free = engine.schema, engine.feasible
    return {
        "columns": [_column(engine.encoding, free, j, examples) for j in range(len(schema))],
        "links": [list(group) for group in schema.links],
        "max_changes": None if free.max_changes is None else int(free.max_changes[0]),
        "classes": list(engine.classes),
        **promised(engine.statements()),
        "survival": engine.survival,
        "confidence": engine.confidence,
        "typicality": engine.typicality,
        "n_models": engine.n_models,
        "n_test": engine.n_test,
        "assumption": assumption(engine),
        "limits": dict(limits),
        "examples": [dict(row) for row in examples],
    }


def _column(encoding: Encoding, free: FeasibleSet, j: int, examples: Sequence[Example]) -> dict[str, Any]:
    schema, feature, i = encoding.schema, encoding.schema.features[j], encoding.kind_index[j]
    group = next((group for group in schema.links if feature.name in group), (feature.name,))
    description = {
        "name": feature.name,
        "kind": feature.kind,
        "type": "number" if isinstance(feature, Continuous) else "category",
        "change": _change(encoding, free, j),
        "missing": feature.missing != "error",
        "columns": list(columns_of(feature)) if isinstance(feature, Categorical) and feature.columns else None,
        "thermometer": isinstance(feature, Categorical) and feature.is_thermometer,
        "typical": _typical(encoding, j, entry_of_rows(feature, examples)),
        "follows": None if group[0] == feature.name else group[0],
        "low": None,
        "high": None,
        "seen_low": None,
        "seen_high": None,
        "step": None,
        "categories": None,
        "ordered": False,
        "moves": None,
    }
    if isinstance(feature, Continuous):
        return description | {
            "low": float(free.limits.ranges.low[0, i]),
            "high": float(free.limits.ranges.high[0, i]),
            "seen_low": float(encoding.low[i]),
            "seen_high": float(encoding.high[i]),
            "step": feature.step,
        }
    slots = encoding.slots[i]
    n = len(feature.categories)
    categories = free.limits.categories
    allowed = categories.moves[slots, :n] & categories.may_enter[0, slots][:n]
    moves = [[feature.categories[k] for k in range(n) if k != i and allowed[i, k]] for i in range(n)]
    return description | {"categories": list(feature.categories), "ordered": feature.ordered, "moves": moves}


def _change(encoding: Encoding, free: FeasibleSet, j: int) -> str:
    """Direction in which a column may change: any, up, down or none."""
    feature, i = encoding.schema.features[j], encoding.kind_index[j]
    if not free.movable(encoding)[0, j]:
        return "none"
    if isinstance(feature, Categorical):
        return feature.change
    directions = free.limits.directions
    return "up" if directions.no_fall[0, i] else "down" if directions.no_rise[0, i] else "any"


def movable_names(encoding: Encoding, free: FeasibleSet) -> list[str]:
    """The columns that a request may name in ``vary``: those that may change, and those linked to them."""
    units = set(free.unit[free.movable(encoding)[0]].tolist())
    return [name for name, unit in zip(encoding.schema.names, free.unit.tolist(), strict=True) if unit in units]


def _typical(encoding: Encoding, j: int, seen: Sequence[Any]) -> Any:
    """A value to start from: the median or mode of the examples, or else the middle of the training rows."""
    feature, i = encoding.schema.features[j], encoding.kind_index[j]
    present = [value for value in seen if value is not None]
    if isinstance(feature, Categorical):
        return Counter(present).most_common(1)[0][0] if present else feature.categories[0]
    if present:
        return sorted(present)[len(present) // 2]
    middle = encoding.center if encoding.scaling == "standard" else (encoding.low + encoding.high) / 2
    value = float(encoding.on_grid(middle.copy())[i])
    return round(value, 2) if feature.step is None and abs(value) >= 1 else value


def row_schema(schema: Schema) -> dict[str, Any]:
    """The JSON Schema of a row.

    >>> row_schema(Schema((Continuous("hours", step=1), Categorical("job", ("clerk", "nurse")))))["properties"]
    {'hours': {'type': 'number'}, 'job': {'enum': ['clerk', 'nurse']}}
    """
    return {
        "title": "FeatureRow",
        "type": "object",
        "properties": {
            **{name: _cell_schema(feature) for feature in schema.features for name in columns_of(feature)},
            **{name: {"type": ["string", "number", "boolean", "null"]} for name in schema.kept},
        },
        "required": list(schema.columns),
        "additionalProperties": False,
    }


def _cell_schema(feature: Feature) -> dict[str, Any]:
    nullable = feature.missing != "error"
    if isinstance(feature, Categorical) and feature.columns is not None:
        return {"enum": [0, 1, False, True, *([None] if nullable else [])]}
    if isinstance(feature, Categorical):
        return {"enum": [*feature.categories, *([None] if nullable else [])]}
    return {"type": ["number", "null"] if nullable else "number"}


def ranges_schema(schema: Schema) -> dict[str, Any]:
    """The JSON Schema of ``ranges``; columns that follow another column have no range of their own."""
    followers = {name for group in schema.links for name in group[1:]}
    own = [feature for feature in schema.features if feature.name not in followers]
    return {
        "title": "Ranges",
        "type": "object",
        "properties": {feature.name: _range_schema(feature) for feature in own},
        "additionalProperties": False,
    }


def _range_schema(feature: Feature) -> dict[str, Any]:
    if isinstance(feature, Categorical):
        return {"type": "array", "minItems": 1, "items": {"enum": list(feature.categories)}}
    return {"type": "array", "minItems": 2, "maxItems": 2, "items": {"type": ["number", "null"]}}
