"""The OpenAPI document, written by hand since requests and answers do not go through the models of FastAPI."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from avcg.serve.describe import movable_names, ranges_schema, row_schema
from avcg.serve.engine import Engine
from avcg.serve.messages import ExplainAnswer, ExplainRequest, HealthAnswer, Refusal, SchemaAnswer, StoredAnswers

_REASONS = {
    400: "The body is not JSON.",
    401: "The token is missing or wrong.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The header Content-Type is not application/json.",
    422: "The body is JSON, but invalid; the reason names the field or the column.",
    500: "The service failed; the refusal has an id under which the error is logged.",
    503: "There was no answer in time.",
}
_MODELS = (ExplainRequest, ExplainAnswer, SchemaAnswer, HealthAnswer, StoredAnswers, Refusal)
_ABOUT = (
    "Finds what to change so that a decision becomes another, also after the model is retrained. Every row gets an"
    " answer or a reason. `GET /schema` describes the columns and what may change."
)


def body_of(model: str) -> dict[str, Any]:
    """The part of an endpoint's description that names the message in its body.

    Args:
        model: Name of the message.
    """
    schema = {"$ref": f"#/components/schemas/{model}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def responses(
    model: str | None, *, body: bool = False, needs_token: bool = False, media: str = "text/plain"
) -> dict[int | str, dict[str, Any]]:
    """The responses of an endpoint, by status.

    Args:
        model: Name of the message that it answers with; None: an answer without a model.
        body: Whether it reads a body.
        needs_token: Whether it requires a token.
        media: Media type of an answer without a model.
    """
    answer = {"type": "object"} if media == "application/json" else {"type": "string"}
    content = {media: {"schema": answer}} if model is None else _content(model)
    result: dict[int | str, dict[str, Any]] = {200: {"description": "The answer.", "content": content}}
    statuses = [413, 500, *([401] if needs_token else []), *([400, 408, 415, 422, 503] if body else [])]
    return result | {
        status: {"description": _REASONS[status], "content": _content("Refusal")} for status in sorted(statuses)
    }


def _content(model: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{model}"}}}


def document(app: FastAPI, engine: Engine, max_rows: int, max_answers: int, max_total: int) -> dict[str, Any]:
    """The OpenAPI document, with the columns, classes and limits of a service.

    Args:
        app: The application with its routes.
        engine: Engine of the service.
        max_rows: Largest number of rows in a request.
        max_answers: Largest number of answers for each row.
        max_total: Largest number of rows times answers.
    """
    result = get_openapi(title=app.title, version=app.version, description=_ABOUT, routes=app.routes)
    pairs = [(model, "validation") for model in _MODELS]
    _, definitions = models_json_schema(pairs, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    models = definitions["$defs"]
    models["FeatureRow"] = row_schema(engine.schema)
    fields = models["ExplainRequest"]["properties"]
    fields["rows"]["maxItems"] = max_rows
    fields["n"]["maximum"] = max_answers
    fields["n"]["description"] += f" Rows times n must be at most {max_total:,}."
    fields["target"] = {**fields["target"], "anyOf": [{"enum": list(engine.classes)}, {"type": "null"}]}
    models["Ranges"] = ranges_schema(engine.schema)
    movable = movable_names(engine.encoding, engine.feasible)
    models["Names"] = {"type": "array", "items": {"enum": movable}} if movable else {"type": "array", "maxItems": 0}
    result.setdefault("components", {})["schemas"] = models
    return result
