"""The service described for machines. Requests are read and answers written by hand, so they are described by hand."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from avcg.serve.describe import movable_names, ranges_schema, row_schema
from avcg.serve.engine import Engine
from avcg.serve.messages import ExplainAnswer, ExplainRequest, HealthAnswer, Refusal, SchemaAnswer, StoredAnswers

_REASONS = {
    400: "The body is no JSON.",
    401: "The token is missing or wrong.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is not said to be JSON.",
    422: "The body is JSON, but cannot be meant; the reason names the field or the column.",
    500: "The service failed; the reason has an id.",
    503: "There was no answer in time.",
}
_MODELS = (ExplainRequest, ExplainAnswer, SchemaAnswer, HealthAnswer, StoredAnswers, Refusal)
_ABOUT = (
    "What to change so that a decision flips, and stays flipped when the model is renewed. Every row gets an answer or"
    " a reason. `GET /schema` says which columns there are and what may change."
)


def body_of(model: str) -> dict[str, Any]:
    """That an endpoint reads a message from its body."""
    schema = {"$ref": f"#/components/schemas/{model}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def responses(
    model: str | None, *, body: bool = False, guarded: bool = False, media: str = "text/plain"
) -> dict[int | str, dict[str, Any]]:
    """What an endpoint says.

    Args:
        model: Of its answer; None: something else.
        body: Whether it reads one.
        guarded: Whether it asks for a token.
        media: Of its answer, where there is no model.
    """
    answer = {"type": "object"} if media == "application/json" else {"type": "string"}
    content = {media: {"schema": answer}} if model is None else _content(model)
    found: dict[int | str, dict[str, Any]] = {200: {"description": "The answer.", "content": content}}
    statuses = [413, 500, *([401] if guarded else []), *([400, 408, 415, 422, 503] if body else [])]
    return found | {
        status: {"description": _REASONS[status], "content": _content("Refusal")} for status in sorted(statuses)
    }


def _content(model: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{model}"}}}


def document(app: FastAPI, engine: Engine, most_rows: int, most_answers: int, most_in_all: int) -> dict[str, Any]:
    """The OpenAPI document, with the columns, classes and limits of this very service.

    Args:
        app: With its routes.
        engine: Who answers.
        most_rows: In a request.
        most_answers: For each row.
        most_in_all: Rows times answers.
    """
    found = get_openapi(title=app.title, version=app.version, description=_ABOUT, routes=app.routes)
    pairs = [(model, "validation") for model in _MODELS]
    _, known = models_json_schema(pairs, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    models = known["$defs"]
    models["FeatureRow"] = row_schema(engine.schema)
    asked = models["ExplainRequest"]["properties"]
    asked["rows"]["maxItems"] = most_rows
    asked["n"]["maximum"] = most_answers
    asked["n"]["description"] += f" Rows times n must be at most {most_in_all:,}."
    asked["target"] = {**asked["target"], "anyOf": [{"enum": list(engine.classes)}, {"type": "null"}]}
    models["Ranges"] = ranges_schema(engine.schema)
    movable = movable_names(engine.encoding, engine.feasible)
    models["Names"] = {"type": "array", "items": {"enum": movable}} if movable else {"type": "array", "maxItems": 0}
    found.setdefault("components", {})["schemas"] = models
    return found
