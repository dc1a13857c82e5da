"""The service: typed requests in, answers out, and a reason for whatever is refused."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib.resources import files
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from starlette.exceptions import HTTPException

import avcg
from avcg.errors import ArtifactError, DataError, SchemaError, SettingError, did_you_mean
from avcg.explainers.records import MEANING, MOST_ANSWERS, Option, Row
from avcg.schema.features import Categorical
from avcg.schema.schema import Schema
from avcg.serve.describe import assumption, check_examples, describe
from avcg.serve.engine import Auditor, Engine
from avcg.serve.messages import ExplainRequest, RefusedError, StoredAnswers, read
from avcg.serve.microbatch import MicroBatcher
from avcg.serve.middleware import RequestLimits
from avcg.serve.openapi import body_of, document, responses
from avcg.serve.prometheus import Metrics

Result = TypeVar("Result")

_JSON = "application/json"
_THREADS = 2  # for what is too long for the event loop
_FEW = 3  # answers to a row, as many as the page shows; for more there are many passes
_PAGE = {
    "index.html": "text/html; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "theme.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_ENCODE = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


@dataclass(frozen=True)
class Limits:
    """How much a request may ask.

    Attributes:
        rows: In one request.
        body_bytes: Of its body.
        answers: For each row.
        total: Rows times answers: several answers take longer than one, and all of them are held in memory.
        seconds: After which it is given up.
        inline: Rows times answers up to which the event loop answers by itself, for engines that take a millisecond;
            0 for those that take longer.
    """

    rows: int = 1000
    body_bytes: int = 1_000_000
    answers: int = MOST_ANSWERS
    total: int = 2000
    seconds: float = 30
    inline: int = 32


class Service:
    """The endpoints.

    Args:
        engine: Who answers.
        limits: How much a request may ask.
        examples: Rows to begin with.
        auditor: From stored answers to their audit, both as JSON; None: nothing is audited.
        metrics: What is counted.
    """

    def __init__(
        self,
        engine: Engine,
        limits: Limits,
        examples: Sequence[Mapping[str, Any]],
        auditor: Auditor | None,
        metrics: Metrics,
    ) -> None:
        check_examples(engine.schema, engine.encoding, examples)
        self.engine, self.limits, self.metrics = engine, limits, metrics
        self._auditor = auditor
        self._pool = _threads()
        self._together = MicroBatcher(engine, limits.inline)
        delivered = {name: value for name, value in asdict(limits).items() if name != "inline"}
        self._schema = _ENCODE(describe(engine, delivered, examples)).encode()
        self._health = _ENCODE({"status": "ok", "version": avcg.__version__}).encode()
        self._foot = {
            "survival": engine.survival,
            "confidence": engine.confidence,
            "assumption": assumption(engine),
        }
        folder = files("avcg.serve") / "page"
        self._files = {name: (folder / name).read_bytes() for name in _PAGE}

    @asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """Until the service stops."""
        yield
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = _threads()

    async def explain(self, request: Request) -> Response:
        """What to change so that the decision becomes the target, for every row."""
        asked = read(ExplainRequest, await self._body(request))
        self._check(asked)
        narrow: dict[str, Any] = {
            "vary": asked.vary,
            "ranges": asked.ranges,
            "min_prob": asked.min_prob,
            "max_changes": asked.max_changes,
        }
        call = partial(self.engine.answer, asked.rows, asked.target, n=asked.n, **narrow)
        try:
            # A thread costs more than a short answer; a long one would keep everybody else waiting.
            if asked.n > _FEW or len(asked.rows) * asked.n > self.limits.inline:
                found = await self._in_thread(call)
            elif any(limit is not None for limit in narrow.values()):
                found = call()
            else:
                found = await self._together.answer(asked.rows, asked.target, asked.n)
        except (DataError, SchemaError, SettingError) as error:
            raise RefusedError(422, str(error)) from None
        statuses = [option.status for row in found for option in row.options]
        self.metrics.answered(len(found), statuses)
        return _json({"rows": [_row(row, self.engine.n_models) for row in found], **self._foot})

    async def audit(self, request: Request) -> Response:
        """Whether stored answers, as `Counterfactuals.to_json` writes them, hold under the model in force."""
        assert self._auditor is not None
        body = await self._body(request)
        try:
            return Response(await self._in_thread(partial(self._audited, self._auditor, body)), 200, None, _JSON)
        except (DataError, SchemaError, SettingError) as error:
            raise RefusedError(422, str(error)) from None
        except ArtifactError as error:  # no fault of who asks
            raise RefusedError(503, str(error)) from None

    def _audited(self, auditor: Auditor, body: bytes) -> str:
        delivered = read(StoredAnswers, body)
        limits, rows = self.limits, len(delivered.target)
        if rows > limits.rows or delivered.n > limits.answers or rows * delivered.n > limits.total:
            raise RefusedError(
                422,
                f"At most {limits.rows} rows, {limits.answers} answers each and {limits.total:,} answers in all are"
                " audited at a time.",
                "target",
            )
        return auditor(body)

    async def schema(self) -> Response:
        """The columns and what may change, the classes, what is promised, and rows to begin with."""
        return Response(self._schema, 200, None, _JSON)

    async def health(self) -> Response:
        """That the service is up."""
        return Response(self._health, 200, None, _JSON)

    async def count(self) -> Response:
        """How the service is doing, as Prometheus reads it."""
        return Response(self.metrics.text(), 200, None, "text/plain; version=0.0.4; charset=utf-8")

    async def page(self) -> Response:
        """The page."""
        return Response(self._files["index.html"], 200, None, _PAGE["index.html"])

    async def part(self, name: str) -> Response:
        """What the page is made of."""
        if name not in self._files:
            raise RefusedError(404, "There is no such file.")
        return Response(self._files[name], 200, None, _PAGE[name])

    async def _body(self, request: Request) -> bytes:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != _JSON:
            raise RefusedError(415, f"The body must be JSON, with the header Content-Type: {_JSON}.")
        try:
            async with asyncio.timeout(self.limits.seconds):
                return await request.body()
        except TimeoutError:
            raise RefusedError(408, f"The body did not arrive within {self.limits.seconds:g} seconds.") from None

    async def _in_thread(self, call: Callable[[], Result]) -> Result:
        future = asyncio.get_running_loop().run_in_executor(self._pool, call)
        try:
            async with asyncio.timeout(self.limits.seconds):
                return await future
        except TimeoutError:
            reason = (
                f"There was no answer within {self.limits.seconds:g} seconds. Ask for fewer rows at a time, or later."
            )
            raise RefusedError(503, reason) from None

    def _check(self, asked: ExplainRequest) -> None:
        """What depends on the schema and the limits; the columns of rows are the engine's to check.

        Raises:
            RefusedError: With the field and the reason.
        """
        limits, classes = self.limits, self.engine.classes
        if len(asked.rows) > limits.rows:
            raise RefusedError(422, f"rows: there are {len(asked.rows)}; at most {limits.rows} are answered.", "rows")
        if asked.n > limits.answers:
            raise RefusedError(422, f"n: must be at most {limits.answers}. Got {asked.n}.", "n")
        if (total := len(asked.rows) * asked.n) > limits.total:
            reason = (
                f"n: {len(asked.rows)} rows with {asked.n} answers each are {total:,}; at most {limits.total:,} are"
            )
            raise RefusedError(422, f"{reason} given. Send fewer rows at a time.", "n")
        if asked.target is not None and not _among(asked.target, classes):
            hint = did_you_mean(asked.target, classes)
            raise RefusedError(422, f"target: {asked.target!r} is no class of the model. {hint}", "target")
        for name, wanted in (asked.ranges or {}).items():
            _check_range(self.engine.schema, name, wanted)


def create_app(
    engine: Engine,
    *,
    limits: Limits = Limits(),  # noqa: B008  it is frozen
    token: str | None = None,
    examples: Sequence[Mapping[str, Any]] | None = None,
    auditor: Auditor | None = None,
    hosts: Collection[str] | None = None,
) -> FastAPI:
    """The service as an ASGI application.

    Args:
        engine: Who answers.
        limits: How much a request may ask.
        token: That must come with every request but those for the page and ``/health``; None: nobody is asked for one.
        examples: Rows to choose from on the page.
        auditor: From stored answers to their audit, both as JSON; None: there is no ``/audit``.
        hosts: Names under which it may be called as long as it has no token; None: any.

    >>> from avcg import BlackBox, PointMass, toys
    >>> from avcg.baselines.nearest import NearestUnlike
    >>> from avcg.serve.engine import ExplainerEngine
    >>> X = toys.loans(n=200).X
    >>> rule = BlackBox(lambda rows: (rows["income"] > 50) * 1.0, X, classes=["no", "yes"])
    >>> app = create_app(ExplainerEngine(NearestUnlike(PointMass(rule)).fit(X)))
    >>> sorted(app.openapi()["paths"])
    ['/explain', '/health', '/metrics', '/schema']
    """
    paths = ["/explain", "/audit", "/schema", "/health", "/metrics", "/openapi.json", "/"]
    metrics = Metrics([*paths, *(f"/static/{name}" for name in _PAGE)])
    service = Service(engine, limits, examples or [], auditor, metrics)
    app = FastAPI(
        title="avcg",
        version=avcg.__version__,
        docs_url=None,  # the pages of the framework load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        lifespan=service.lifespan,
    )
    _add_routes(app, service, guarded=token is not None, audited=auditor is not None)
    app.add_exception_handler(HTTPException, _refuse)
    app.add_middleware(RequestLimits, metrics=metrics, body_bytes=limits.body_bytes, token=token, hosts=hosts)
    app.openapi = partial(document, app, engine, limits.rows, limits.answers, limits.total)  # type: ignore[method-assign]
    return app


def _add_routes(app: FastAPI, service: Service, *, guarded: bool, audited: bool) -> None:
    """The endpoints, those asked most first."""
    app.add_api_route(
        "/explain",
        service.explain,
        methods=["POST"],
        responses=responses("ExplainAnswer", body=True, guarded=guarded),
        openapi_extra=body_of("ExplainRequest"),
    )
    app.add_api_route("/health", service.health, responses=responses("HealthAnswer"))
    app.add_api_route("/schema", service.schema, responses=responses("SchemaAnswer", guarded=guarded))
    counted = responses(None, guarded=guarded)
    app.add_api_route("/metrics", service.count, responses=counted, response_class=PlainTextResponse)
    if audited:
        delivered, extra = responses(None, body=True, guarded=guarded, media=_JSON), body_of("StoredAnswers")
        app.add_api_route("/audit", service.audit, methods=["POST"], responses=delivered, openapi_extra=extra)
    app.add_api_route("/", service.page, include_in_schema=False)
    app.add_api_route("/static/{name}", service.part, include_in_schema=False)


async def _refuse(_: Request, error: Exception) -> Response:
    """What the framework refuses by itself: paths and methods that there are not."""
    assert isinstance(error, HTTPException)
    content = {"reason": f"{error.detail}.", "where": None, "id": None}
    return Response(_ENCODE(content), error.status_code, error.headers, _JSON)


def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="avcg-serve")


def _check_range(schema: Schema, name: str, wanted: list[Any]) -> None:
    where = f"ranges.{name}"
    if name not in schema.names:
        raise RefusedError(422, f"ranges: there is no column {name!r}. {did_you_mean(name, schema.names)}", where)
    feature = schema[name]
    if isinstance(feature, Categorical):
        for value in wanted:
            if not _among(value, feature.categories):
                hint = did_you_mean(value, feature.categories)
                raise RefusedError(422, f"{where}: {value!r} is no category of it. {hint}", where)
    elif len(wanted) != 2 or any(isinstance(bound, (str, bool)) for bound in wanted):
        raise RefusedError(422, f"{where}: must be [low, high], two numbers or null for an open side.", where)


def _among(value: Any, known: Sequence[Any]) -> bool:
    """Whether it is one of them, and not merely equal: true is not 1."""
    return any(value == one and isinstance(value, bool) is isinstance(one, bool) for one in known)


def _row(row: Row, n_models: int) -> dict[str, Any]:
    return {
        "decision": row.decision,
        "target": row.target,
        "probability_before": row.probability_before,
        "options": [_option(option, n_models) for option in row.options],
    }


def _option(option: Option, n_models: int) -> dict[str, Any]:
    return {
        "status": option.status,
        "meaning": MEANING[option.status],
        "changes": {name: {"before": before, "after": after} for name, (before, after) in option.changes.items()},
        "row": dict(option.row),
        "probability": option.probability,
        "distance": option.distance,
        "agreeing": option.agreeing,
        "n_models": n_models,
        "lower_bound": option.lower_bound,
        "repeated": option.repeated,
    }


def _json(content: dict[str, Any]) -> Response:
    try:
        text = _ENCODE(content)
    except ValueError:  # some number is not one
        text = _ENCODE(_finite(content))
    return Response(text, 200, None, _JSON)


def _finite(content: Any) -> Any:
    """The same with null for NaN and infinity."""
    if isinstance(content, Mapping):
        return {name: _finite(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
