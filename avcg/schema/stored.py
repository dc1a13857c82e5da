"""A schema as a versioned JSON text, for stored explainers and programs. People edit TOML; see `avcg.schema.toml`."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any, TypeVar

from avcg.errors import SchemaError, did_you_mean, enumerate_some
from avcg.schema.columns import Columns
from avcg.schema.features import Categorical, Continuous, Feature
from avcg.schema.rules import rule_from_dict, rule_to_dict

VERSION = 1
Held = TypeVar("Held", bound=Columns)


def to_json(schema: Columns) -> str:
    """The schema as a versioned JSON text."""
    features = [{"type": type(feature).__name__, **asdict(feature)} for feature in schema.features]
    content: dict[str, Any] = {"features": features, "links": schema.links, "max_changes": schema.max_changes}
    content |= {"kept": schema.kept, "rules": [rule_to_dict(rule) for rule in schema.rules]}
    return json.dumps({"format": "avcg.schema", "version": VERSION, **content}, indent=1, allow_nan=False)


def from_json(text: str, cls: type[Held]) -> Held:
    """The schema that `to_json` wrote.

    Args:
        text: The text.
        cls: Class of the schema.

    Raises:
        SchemaError: If the text is not a schema, is damaged, or has another version.
    """
    try:
        content = json.loads(text)
    except (TypeError, json.JSONDecodeError) as error:
        raise SchemaError(f"This is not JSON: {error}.") from None
    if not isinstance(content, dict) or content.get("format") != "avcg.schema":
        raise SchemaError('This JSON is not an avcg schema: it lacks "format": "avcg.schema".')
    if content.get("version") != VERSION:
        raise SchemaError(
            f"This schema has version {content.get('version')!r}; this avcg reads version {VERSION}. Upgrade avcg."
        )
    try:
        return cls(
            features=tuple(_feature_from(entry) for entry in content["features"]),
            links=tuple(tuple(group) for group in content["links"]),
            max_changes=content["max_changes"],
            kept=tuple(content.get("kept", ())),
            rules=tuple(rule_from_dict(entry) for entry in content.get("rules", ())),
        )
    except SchemaError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SchemaError(f"This schema is incomplete or damaged: {error!r}.") from None


def _feature_from(entry: dict[str, Any]) -> Feature:
    entry = {key: tuple(tuple(v) if isinstance(v, list) else v for v in value) if isinstance(value, list) else value
             for key, value in entry.items()}  # fmt: skip
    kinds: dict[str, type[Feature]] = {"Continuous": Continuous, "Categorical": Categorical}
    kind = kinds.get(entry.pop("type"))
    if kind is None:
        raise SchemaError(f"A feature must be of type {enumerate_some(kinds)}.")
    names = [field.name for field in fields(kind)]
    for key in entry:
        if key not in names:
            raise SchemaError(f"Feature {entry.get('name')!r} has an unknown entry {key!r}. {did_you_mean(key, names)}")
    return kind(**entry)
