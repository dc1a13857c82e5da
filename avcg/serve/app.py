"""The HTTP service: endpoints that validate requests, answer them, and give a reason for every refusal."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from starlette.exceptions import HTTPException

import avcg
from avcg.errors import ArtifactError, DataError, SchemaError, SettingError, did_you_mean
from avcg.explainers.records import MEANING, MOST_ANSWERS, Option, Row
from avcg.method.query import QueryOptions
from avcg.schema.features import Categorical
from avcg.schema.schema import Schema
from avcg.serve.describe import assumption, check_examples, describe, promised
from avcg.serve.engine import Auditor, Engine
from avcg.serve.messages import ExplainRequest, RefusedError, StoredAnswers, read
from avcg.serve.microbatch import MicroBatcher
from avcg.serve.middleware import RequestLimits

if TYPE_CHECKING:
    from avcg.auditing.monitor import Monitor
from avcg.serve.openapi import body_of, document, responses
from avcg.serve.prometheus import Metrics

Result = TypeVar("Result")

_JSON = "application/json"
_THREADS = 2  # for requests that would block the event loop for too long
_MAX_PROMISES = 64  # promises that are kept in words, one for each set of targets
_MAX_INLINE_N = 3  # answers to a row, as many as the page shows; more take many passes of the generator
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
    """Limits of a request.

    Attributes:
        rows: Largest number of rows.
        body_bytes: Largest size of the body.
        answers: Largest number of answers for each row.
        total: Largest number of rows times answers, which bounds time and memory.
        seconds: Time until a request is given up.
        inline: Largest number of rows times answers that is answered in the event loop, for engines that take a
            millisecond a row; 0 for slower ones, which answer in threads.
    """

    rows: int = 1000
    body_bytes: int = 1_000_000
    answers: int = MOST_ANSWERS
    total: int = 2000
    seconds: float = 30
    inline: int = 32


class Service:
    """The endpoints of the service.

    Args:
        engine: Engine that answers.
        limits: Limits of a request.
        examples: Example rows for the page.
        auditor: Function from stored answers to their audit, both as JSON; None: there are no audits.
        metrics: Metrics that answers are counted in.
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
        self._pool = _thread_pool()
        self._batcher = MicroBatcher(engine, limits.inline)
        public_limits = {name: value for name, value in asdict(limits).items() if name != "inline"}
        self._schema = _ENCODE(describe(engine, public_limits, examples)).encode()
        self._health = _ENCODE({"status": "ok", "version": avcg.__version__}).encode()
        self._about = {
            "survival": engine.survival,
            "confidence": engine.confidence,
            "assumption": assumption(engine),
        }
        self._promised = lru_cache(_MAX_PROMISES)(self._promised_to)
        folder = files("avcg.serve") / "page"
        self._files = {name: (folder / name).read_bytes() for name in _PAGE}

    @asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """Stop the threads when the service stops."""
        yield
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = _thread_pool()

    async def explain(self, request: Request) -> Response:
        """Find, for every row, changes after which the decision is the target."""
        query = read(ExplainRequest, await self._body(request))
        self._check(query)
        restrictions: dict[str, Any] = {
            "vary": query.vary,
            "ranges": query.ranges,
            "min_prob": query.min_prob,
            "max_changes": query.max_changes,
        }
        wishes: dict[str, Any] = {"effort": query.effort, "typicality": query.typicality}
        call = partial(self.engine.answer, query.rows, query.target, n=query.n, **restrictions, **wishes)
        restricted = any(value is not None for value in restrictions.values())
        alike = not restricted and query.effort == "standard" and query.typicality is None
        try:
            # A thread costs more than a short answer, and a long one in the event loop would delay all other requests.
            if query.n > _MAX_INLINE_N or len(query.rows) * query.n > self.limits.inline:
                rows = await self._in_thread(call)
            elif not alike:
                rows = call()
            else:
                rows = await self._batcher.answer(query.rows, query.target, query.n)
        except (DataError, SchemaError, SettingError) as error:
            raise RefusedError(422, str(error)) from None
        self.metrics.count_answers(len(rows), [option.status for row in rows for option in row.options])
        asked = QueryOptions(n=1 if query.n == 1 and not restricted else 2, **wishes)
        promise = self._promised(frozenset(row.target for row in rows), asked, query.target is None)
        return _json({"rows": [_row(row, self.engine) for row in rows], **promise, **self._about})

    def _promised_to(self, targets: frozenset[Any], options: QueryOptions, any_class: bool) -> dict[str, Any]:
        """What is promised to the people who are answered, as values of JSON.

        Args:
            targets: Labels of the decisions that the answers aim at.
            options: Effort and typicality that were asked for; one answer only if there were no restrictions.
            any_class: Whether any class other than the present one will do.
        """
        statements = self.engine.statements(options, any_class=any_class)
        return promised([statement for statement in statements if statement.target in targets])

    async def audit(self, request: Request) -> Response:
        """Check whether stored answers, as `Counterfactuals.to_json` writes them, hold under the deployed model."""
        assert self._auditor is not None
        body = await self._body(request)
        try:
            return Response(await self._in_thread(partial(self._audit, self._auditor, body)), 200, None, _JSON)
        except (DataError, SchemaError, SettingError) as error:
            raise RefusedError(422, str(error)) from None
        except ArtifactError as error:  # the fault is the service's, not the client's
            raise RefusedError(503, str(error)) from None

    def _audit(self, auditor: Auditor, body: bytes) -> str:
        delivered = read(StoredAnswers, body)
        limits, rows = self.limits, len(delivered.target)
        if rows > limits.rows or delivered.n > limits.answers or rows * delivered.n > limits.total:
            raise RefusedError(
                422,
                f"An audit takes at most {limits.rows} rows, {limits.answers} answers for each and {limits.total:,}"
                f" answers in all. Got {rows} rows with {delivered.n} answers each: send fewer rows at a time.",
                "target",
            )
        return auditor(body)

    async def schema(self) -> Response:
        """Describe the columns and their constraints, the classes, the promise, the limits, and example rows."""
        return Response(self._schema, 200, None, _JSON)

    async def health(self) -> Response:
        """Say that the service is up."""
        return Response(self._health, 200, None, _JSON)

    async def metrics_text(self) -> Response:
        """Give the metrics in the text format of Prometheus."""
        return Response(self.metrics.text(), 200, None, "text/plain; version=0.0.4; charset=utf-8")

    async def page(self) -> Response:
        """Give the page for people."""
        return Response(self._files["index.html"], 200, None, _PAGE["index.html"])

    async def static_file(self, name: str) -> Response:
        """Give a file that the page loads."""
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
                f"There was no answer within {self.limits.seconds:g} seconds. Send fewer rows at a time, or try later."
            )
            raise RefusedError(503, reason) from None

    def _check(self, query: ExplainRequest) -> None:
        """Check a request against the schema and the limits; the engine checks the columns of rows.

        Raises:
            RefusedError: If a field is invalid or a limit is exceeded. It has the field and the reason.
        """
        limits, classes, n_rows = self.limits, self.engine.classes, len(query.rows)
        if n_rows > limits.rows:
            raise RefusedError(422, f"rows: must be at most {limits.rows}. Got {n_rows}: send fewer at a time.", "rows")
        if query.n > limits.answers:
            raise RefusedError(422, f"n: must be at most {limits.answers}. Got {query.n}.", "n")
        if (total := n_rows * query.n) > limits.total:
            reason = (
                f"n: rows times n must be at most {limits.total:,}. Got {n_rows} rows with n = {query.n}: {total:,}."
            )
            raise RefusedError(422, f"{reason} Send fewer rows at a time.", "n")
        if query.target is not None and not _contains(classes, query.target):
            hint = did_you_mean(query.target, classes)
            raise RefusedError(422, f"target: {query.target!r} is not a class of the model. {hint}", "target")
        for name, allowed in (query.ranges or {}).items():
            _check_range(self.engine.schema, name, allowed)


def create_app(
    engine: Engine,
    *,
    limits: Limits = Limits(),  # noqa: B008  it is frozen
    token: str | None = None,
    examples: Sequence[Mapping[str, Any]] | None = None,
    auditor: Auditor | None = None,
    hosts: Collection[str] | None = None,
    monitor: Monitor | None = None,
) -> FastAPI:
    """Make the service, an ASGI application.

    Args:
        engine: Engine that answers.
        limits: Limits of a request.
        token: Token required by every endpoint but the page and ``/health``; None: no token is required.
        examples: Example rows for the page; None: there are none.
        auditor: Function from stored answers to their audit, both as JSON; None: there is no ``/audit``.
        hosts: Host names that are accepted if there is no token; None: any.
        monitor: New models beside the calibration models, for ``/metrics``; None: there are none.

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
    if monitor is not None:
        metrics.watch(monitor)
    service = Service(engine, limits, examples or [], auditor, metrics)
    app = FastAPI(
        title="avcg",
        version=avcg.__version__,
        docs_url=None,  # the documentation pages of the framework load scripts from other sites
        redoc_url=None,
        redirect_slashes=False,
        lifespan=service.lifespan,
    )
    _add_routes(app, service, needs_token=token is not None, audits=auditor is not None)
    app.add_exception_handler(HTTPException, _refuse)
    app.add_middleware(RequestLimits, metrics=metrics, body_bytes=limits.body_bytes, token=token, hosts=hosts)
    app.openapi = partial(document, app, engine, limits.rows, limits.answers, limits.total)  # type: ignore[method-assign]
    return app


def _add_routes(app: FastAPI, service: Service, *, needs_token: bool, audits: bool) -> None:
    """Add the endpoints, the most frequent first, since they are matched in order."""
    app.add_api_route(
        "/explain",
        service.explain,
        methods=["POST"],
        responses=responses("ExplainAnswer", body=True, needs_token=needs_token),
        openapi_extra=body_of("ExplainRequest"),
    )
    app.add_api_route("/health", service.health, responses=responses("HealthAnswer"))
    app.add_api_route("/schema", service.schema, responses=responses("SchemaAnswer", needs_token=needs_token))
    text = responses(None, needs_token=needs_token)
    app.add_api_route("/metrics", service.metrics_text, responses=text, response_class=PlainTextResponse)
    if audits:
        audit, body = responses(None, body=True, needs_token=needs_token, media=_JSON), body_of("StoredAnswers")
        app.add_api_route("/audit", service.audit, methods=["POST"], responses=audit, openapi_extra=body)
    app.add_api_route("/", service.page, include_in_schema=False)
    app.add_api_route("/static/{name}", service.static_file, include_in_schema=False)


async def _refuse(_: Request, error: Exception) -> Response:
    """Refusals of the framework, for unknown paths and methods, in the JSON of all refusals."""
    assert isinstance(error, HTTPException)
    content = {"reason": f"{error.detail}.", "where": None, "id": None}
    return Response(_ENCODE(content), error.status_code, error.headers, _JSON)


def _thread_pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="avcg-serve")


def _check_range(schema: Schema, name: str, allowed: list[Any]) -> None:
    where = f"ranges.{name}"
    if name not in schema.all_names:
        raise RefusedError(422, f"ranges: there is no column {name!r}. {did_you_mean(name, schema.names)}", where)
    feature = schema[name]
    if isinstance(feature, Categorical):
        for value in allowed:
            if not _contains(feature.categories, value):
                hint = did_you_mean(value, feature.categories)
                raise RefusedError(422, f"{where}: {value!r} is not a category of the column. {hint}", where)
    elif len(allowed) != 2 or any(isinstance(bound, (str, bool)) for bound in allowed):
        raise RefusedError(422, f"{where}: must be [low, high], two numbers or null for an open side.", where)


def _contains(values: Sequence[Any], value: Any) -> bool:
    """Whether a value is among others. Booleans are not numbers: true is not 1."""
    return any(value == other and isinstance(value, bool) is isinstance(other, bool) for other in values)


def _row(row: Row, engine: Engine) -> dict[str, Any]:
    return {
        "decision": row.decision,
        "target": row.target,
        "probability_before": row.probability_before,
        "options": [_option(option, engine) for option in row.options],
    }


def _option(option: Option, engine: Engine) -> dict[str, Any]:
    return {
        "status": option.status,
        "meaning": MEANING[option.status],
        "changes": {name: {"before": before, "after": after} for name, (before, after) in option.changes.items()},
        "row": dict(option.row),
        "probability": option.probability,
        "distance": option.distance,
        "agreement": option.agreement(engine.n_models),
        "proof": option.proof(engine.n_test, engine.confidence),
        "agreeing": option.agreeing,
        "n_models": engine.n_models,
        "agreeing_test": option.agreeing_test,
        "n_test": engine.n_test,
        "lower_bound": option.lower_bound,
        "accepting_unchanged": option.accepting_unchanged,
        "harmed": option.harmed,
        "repeated": option.repeated,
    }


def _json(content: dict[str, Any]) -> Response:
    try:
        text = _ENCODE(content)
    except ValueError:  # NaN or infinity, which JSON does not have
        text = _ENCODE(_finite(content))
    return Response(text, 200, None, _JSON)


def _finite(content: Any) -> Any:
    """The content with None for NaN and infinity."""
    if isinstance(content, Mapping):
        return {name: _finite(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
