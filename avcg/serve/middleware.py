"""Middleware of every endpoint: token, host, size of bodies, response headers, metrics, and errors without internals.

The server in front of it waits for the headers of a request without limit; `with_header_timeout` sets one.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import secrets
import time
from collections.abc import Collection
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from avcg.serve.messages import RefusedError
from avcg.serve.prometheus import Metrics

_LOG = logging.getLogger(__name__)
_OPEN = ("/", "/health")  # need no token, since they say nothing about people; likewise all files of the page
_PAGE = "/static/"
_DISCONNECTED = 499  # status counted for clients that disconnected before the answer

_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
        b" base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
]
_ANSWER_HEADERS = [*_HEADERS, (b"cache-control", b"no-store")]
_FILE_HEADERS = [*_HEADERS, (b"cache-control", b"no-cache")]


def refusal(status: int, reason: str, where: str | None = None, error_id: str | None = None) -> list[Message]:
    """The two ASGI messages of a refusal.

    Args:
        status: HTTP status.
        reason: Why the request was refused, one sentence.
        where: Name of the field at fault; None: no single field is.
        error_id: Identifier of the error in the log; None: it is not logged.
    """
    body = json.dumps({"reason": reason, "where": where, "id": error_id}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    start = {"type": "http.response.start", "status": status, "headers": headers}
    return [start, {"type": "http.response.body", "body": body}]


def with_header_timeout(protocol: Any, seconds: float) -> Any:
    """A protocol class of uvicorn that closes connections whose request headers do not arrive in time.

    The number of connections is limited. Without a timeout, a few hundred idle ones would block all other clients.

    Args:
        protocol: Protocol class of uvicorn, which has in ``cycle`` the latest request with complete headers.
        seconds: Time from the connection, or from the first byte after an answer, to the end of the headers.
    """

    class WithHeaderTimeout(protocol):  # type: ignore[misc]
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._timer = self.loop.call_later(seconds, self._close)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            waiting = self.cycle is None or self.cycle.response_complete
            if waiting and self._timer is None:
                self._timer = self.loop.call_later(seconds, self._close)
            elif not waiting:
                self._cancel()

        def connection_lost(self, error: Exception | None) -> None:
            self._cancel()
            super().connection_lost(error)

        def _cancel(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _close(self) -> None:
            self.transport.close()

    return WithHeaderTimeout


class RequestLimits:
    """ASGI middleware that checks token, host and size of requests, and turns errors into refusals.

    Args:
        app: The application.
        metrics: Metrics that requests are counted in.
        body_bytes: Size of the largest body that is read.
        token: Token required by every endpoint but the page and ``/health``; None: no token is required.
        hosts: Host names accepted by a service without a token. A page of another origin could otherwise make a browser
            call the service under a host name of its own (DNS rebinding). None: any.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        metrics: Metrics,
        body_bytes: int,
        token: str | None = None,
        hosts: Collection[str] | None = None,
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._max_bytes = body_bytes
        self._token = None if token is None else token.encode()
        self._hosts = None if hosts is None or token is not None else {host.encode() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the application, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, path = time.perf_counter(), scope["path"]
        headers = _FILE_HEADERS if path == "/" or path.startswith(_PAGE) else _ANSWER_HEADERS
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *headers]
            await send(message)

        try:
            self._check(path, dict(scope["headers"]))
            await self._app(scope, self._limited(receive), send_with_headers)
        except RefusedError as error:
            for message in refusal(error.status, error.reason, error.where):
                await send_with_headers(message)
        except ClientDisconnect:
            status = _DISCONNECTED
        except Exception as error:  # no error may stop the service or show its internals
            error_id = secrets.token_hex(8)
            # Messages and tracebacks may quote personal data from the request, so only the type is logged.
            _LOG.error("%s, id %s", type(error).__name__, error_id)
            if not status:
                reason = "The service failed to answer. Report the id to its operator."
                for message in refusal(500, reason, None, error_id):
                    await send_with_headers(message)
        finally:
            self._metrics.observe(path, status, time.perf_counter() - started)

    def _check(self, path: str, headers: dict[bytes, bytes]) -> None:
        """Refuse a request by its path and headers alone.

        Raises:
            RefusedError: If host or token are wrong, or the body is too large.
        """
        if self._hosts is not None:
            host = headers.get(b"host", b"")
            if host not in self._hosts and host.rpartition(b":")[0] not in self._hosts:
                reason = "Without a token, this service answers only under its local name, such as localhost."
                raise RefusedError(421, reason)
        if self._token is not None and path not in _OPEN and not path.startswith(_PAGE):
            scheme, _, sent_token = headers.get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer":
                raise RefusedError(401, "This service requires a token, in the header Authorization: Bearer TOKEN.")
            if not hmac.compare_digest(sent_token.strip(), self._token):
                raise RefusedError(401, "The token is wrong.")
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > self._max_bytes:
            raise self._too_large()

    def _limited(self, receive: Receive) -> Receive:
        """Receive a body up to the limit, also one without a content length."""
        read = 0

        async def receive_limited() -> Message:
            nonlocal read
            message = await receive()
            if message["type"] == "http.request":
                read += len(message.get("body", b""))
                if read > self._max_bytes:
                    raise self._too_large()
            return message

        return receive_limited

    def _too_large(self) -> RefusedError:
        return RefusedError(413, f"The body is larger than the limit of {self._max_bytes:,} bytes. Send fewer rows.")
