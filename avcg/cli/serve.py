"""``avcg serve``: answers over HTTP, and the page."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from avcg.console import console
from avcg.errors import DataError, MissingExtraError, SettingError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastapi import FastAPI

    from avcg.serve.engine import Engine

serve_app = typer.Typer()

_LOCAL = ("localhost", "127.0.0.1", "[::1]")
_QUICK = 0.01  # seconds: an engine that takes longer for a row has no place in the event loop
_GRACE = 5  # seconds for requests under way when the service is told to stop
_HEAD = 10  # seconds from a connection to the end of the head of its request
_CONNECTIONS = 256


@serve_app.command("serve")
def serve(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="A folder that AVCG.save wrote.")],
    host: Annotated[
        str, typer.Option(help="Address to listen at; only this machine unless told otherwise.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any that is free.", min=0, max=65535)] = 8000,
    token_file: Annotated[
        str | None, typer.Option(help="A file with the token that callers must have (default: $AVCG_TOKEN, or none).")
    ] = None,
    rows: Annotated[str | None, typer.Option(help="A .csv or .parquet file with rows to choose from.")] = None,
    max_rows: Annotated[int, typer.Option(help="Rows in one request.", min=1)] = 1000,
    max_body: Annotated[int, typer.Option(help="Bytes of one request.", min=1000)] = 1_000_000,
) -> None:
    """Answer over HTTP, and show a page where people can try."""
    uvicorn, protocol = _uvicorn()
    token = _token(token_file)
    if token is None and not _is_loopback(host):
        sys.stderr.write(
            f"avcg: anybody who can reach {host} can ask this service. Give it a token: --token-file FILE\n"
        )
    app = _app(directory, host, token, rows, max_rows, max_body)
    listening = _listen(host, port)
    console().print(f"The page is at http://{_shown(host)}:{listening.getsockname()[1]}/ (Ctrl+C stops)", markup=False)
    sys.stdout.flush()  # whoever started this through a pipe waits for it
    settings = uvicorn.Config(
        app,
        http=protocol,
        access_log=False,  # a path or a query may hold what nobody should read
        log_config=None,
        log_level="warning",
        server_header=False,
        limit_concurrency=_CONNECTIONS,
        timeout_graceful_shutdown=_GRACE,
    )
    with _stopping_quietly():
        uvicorn.Server(settings).run(sockets=[listening])


def _uvicorn() -> tuple[Any, Any]:
    """The server, and the protocol that it speaks."""
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn
        from uvicorn.protocols.http.auto import AutoHTTPProtocol
    except ImportError as error:
        raise MissingExtraError(error.name or "fastapi", "serve", "The service") from None
    from avcg.serve.middleware import hurried

    return uvicorn, hurried(AutoHTTPProtocol, _HEAD)


def _app(directory: str, host: str, token: str | None, rows: str | None, max_rows: int, max_body: int) -> FastAPI:
    from avcg.serve.app import Limits, create_app
    from avcg.serve.engine import open_engine
    from avcg.serve.examples import read_examples

    engine, auditor = open_engine(directory)
    examples = [] if rows is None else read_examples(rows, engine.schema)
    limits = Limits(rows=max_rows, body_bytes=max_body, total=max(max_rows, Limits.total))
    if not _quick(engine, examples):
        limits = replace(limits, inline=0)
    return create_app(
        engine,
        limits=limits,
        token=token,
        examples=examples,
        auditor=auditor,
        hosts=(*_LOCAL, _shown(host)) if _is_loopback(host) else None,
    )


def _quick(engine: Engine, examples: list[dict[str, Any]]) -> bool:
    """Whether a row is answered fast enough for the event loop; asking also warms the engine up."""
    from avcg.serve.describe import describe

    row = examples[0] if examples else {one["name"]: one["typical"] for one in describe(engine, {}, [])["columns"]}
    times = []
    for _ in range(3):
        started = time.perf_counter()
        engine.answer([row])
        times.append(time.perf_counter() - started)
    return min(times) < _QUICK


def _token(path: str | None) -> str | None:
    """The secret, from a file or the environment; None where there is none."""
    if path is None:
        return os.environ.get("AVCG_TOKEN", "").strip() or None
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"The token in {path} cannot be read: {error}.") from None
    if not token:
        raise SettingError(f"The file {path} holds no token. Write one into it, or leave --token-file out.")
    return token


def _shown(host: str) -> str:
    """As a host stands in an address."""
    return f"[{host}]" if ":" in host else host


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int) -> socket.socket:
    """A socket that is ours, before anybody is told of it."""
    try:
        kind, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(kind)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_CONNECTIONS)  # who calls from now on waits, and is not turned away
    except OSError as error:
        raise SettingError(f"Nothing can listen at {host}, port {port}: {error.strerror}. Try --port 0.") from None
    return listening


@contextmanager
def _stopping_quietly() -> Iterator[None]:
    """Let signals end the service and nothing more: it passes them on once it has stopped."""
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
