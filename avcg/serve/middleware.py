"""What stands before every endpoint: the token, the size of bodies, headers, times, and failures without internals.

What stands before these is the server, which waits for the head of a request as long as it takes; `hurried` is its
protocol with an end to that.
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
_OPEN = ("/", "/health")  # what tells nothing about anybody; so does whatever lies under _PAGE
_PAGE = "/static/"
_GONE = 499  # counted for those who did not wait for an answer

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
_ANSWER = [*_HEADERS, (b"cache-control", b"no-store")]
_FILE = [*_HEADERS, (b"cache-control", b"no-cache")]


def refusal(status: int, reason: str, where: str | None = None, known_as: str | None = None) -> list[Message]:
    """The two messages that say why there is no answer."""
    body = json.dumps({"reason": reason, "where": where, "id": known_as}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    start = {"type": "http.response.start", "status": status, "headers": headers}
    return [start, {"type": "http.response.body", "body": body}]


def hurried(protocol: Any, seconds: float) -> Any:
    """A protocol of uvicorn that hangs up on whoever does not finish the head of a request in time.

    A connection counts against the most that there may be from its first moment on. Without an end to it, a few hundred
    that say nothing would keep everybody else out.

    Args:
        protocol: A class of uvicorn's, which has in ``cycle`` the latest request whose head is complete.
        seconds: From the connection, or from the first byte after an answer, to the end of the head.
    """

    class Hurried(protocol):  # type: ignore[misc]
        _alarm: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._alarm = self.loop.call_later(seconds, self._hang_up)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            waiting = self.cycle is None or self.cycle.response_complete
            if waiting and self._alarm is None:
                self._alarm = self.loop.call_later(seconds, self._hang_up)
            elif not waiting:
                self._calm()

        def connection_lost(self, error: Exception | None) -> None:
            self._calm()
            super().connection_lost(error)

        def _calm(self) -> None:
            if self._alarm is not None:
                self._alarm.cancel()
                self._alarm = None

        def _hang_up(self) -> None:
            self.transport.close()

    return Hurried


class RequestLimits:
    """Plain ASGI, since every request passes through it.

    Args:
        app: What it stands before.
        metrics: Where requests are counted.
        body_bytes: The largest body that is read.
        token: That must come with all that answers; None: nobody is asked for one.
        hosts: Names under which a service without a token may be called, so that no foreign page can have a browser
            call it under another; None: any.
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
        self._most = body_bytes
        self._secret = None if token is None else token.encode()
        self._hosts = None if hosts is None or token is not None else {host.encode() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or say why not."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, path = time.perf_counter(), scope["path"]
        extra = _FILE if path == "/" or path.startswith(_PAGE) else _ANSWER
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *extra]
            await send(message)

        try:
            self._check(path, dict(scope["headers"]))
            await self._app(scope, self._counted(receive), sending)
        except RefusedError as error:
            for message in refusal(error.status, error.reason, error.where):
                await sending(message)
        except ClientDisconnect:
            status = _GONE
        except Exception as error:  # whatever it is, the caller learns nothing of the inside and the service stays up
            known_as = secrets.token_hex(8)
            # A message may quote what somebody sent, and so may a traceback: neither is written down.
            _LOG.error("%s, id %s", type(error).__name__, known_as)
            if not status:
                for message in refusal(500, "The service failed to answer. Say the id to who runs it.", None, known_as):
                    await sending(message)
        finally:
            self._metrics.observe(path, status, time.perf_counter() - started)

    def _check(self, path: str, headers: dict[bytes, bytes]) -> None:
        """Refuse a request by its head alone.

        Raises:
            RefusedError: With the reason.
        """
        if self._hosts is not None:
            host = headers.get(b"host", b"")
            if host not in self._hosts and host.rpartition(b":")[0] not in self._hosts:
                raise RefusedError(421, "As long as it has no token, this service answers to its local name alone.")
        if self._secret is not None and path not in _OPEN and not path.startswith(_PAGE):
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer":
                raise RefusedError(401, "This service asks for a token: Authorization: Bearer TOKEN.")
            if not hmac.compare_digest(given.strip(), self._secret):
                raise RefusedError(401, "The token is not the right one.")
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > self._most:
            raise self._too_large()

    def _counted(self, receive: Receive) -> Receive:
        """The same body, as long as it is small enough; bodies that do not say their length too."""
        read = 0

        async def counting() -> Message:
            nonlocal read
            message = await receive()
            if message["type"] == "http.request":
                read += len(message.get("body", b""))
                if read > self._most:
                    raise self._too_large()
            return message

        return counting

    def _too_large(self) -> RefusedError:
        return RefusedError(413, f"The body is larger than the {self._most:,} bytes that are read. Send fewer rows.")
