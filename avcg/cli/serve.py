"""``avcg serve``: the HTTP service and its page."""

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

    from avcg.auditing.monitor import Monitor
    from avcg.serve.engine import Engine

serve_app = typer.Typer()

_LOCAL = ("localhost", "127.0.0.1", "[::1]")
_MAX_INLINE_SECONDS = 0.01  # engines that take longer for a row answer in threads, not in the event loop
_SHUTDOWN_SECONDS = 5  # for requests that are running when the service is stopped
_HEADER_SECONDS = 10  # from a connection to the end of the headers of its request
_MAX_CONNECTIONS = 256
_ASKED = 20  # calibration people by whom it is checked that a new model reads their rows


@serve_app.command("serve")
def serve(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="A folder that AVCG.save wrote.")],
    host: Annotated[
        str, typer.Option(help="Address to listen on; the default is reachable from this machine alone.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any free port.", min=0, max=65535)] = 8000,
    token_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="File with the token that clients must send (default: $AVCG_TOKEN, or none)."
        ),
    ] = None,
    rows: Annotated[
        str | None, typer.Option(metavar="FILE", help="A .csv or .parquet file of example rows for the page.")
    ] = None,
    new_model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL",
            help="An ONNX file or a folder with a newer model, in the order of deployment; repeatable. Whether they are"
            " like the calibration models is printed, and shown under /metrics.",
        ),
    ] = None,
    max_rows: Annotated[int, typer.Option(help="Largest number of rows in a request.", min=1)] = 1000,
    max_body: Annotated[int, typer.Option(help="Largest size of a request in bytes.", min=1000)] = 1_000_000,
) -> None:
    """Answer over HTTP, and show a page for people."""
    uvicorn, protocol = _uvicorn()
    token = _token(token_file)
    if token is None and not _is_loopback(host):
        sys.stderr.write(
            f"avcg: anyone who can reach {host} can use this service. Require a token: --token-file FILE\n"
        )
    monitor = _monitored(directory, new_model) if new_model else None
    app = _app(directory, host, token, rows, max_rows, max_body, monitor)
    listening = _listen(host, port)
    address = f"http://{_host_in_url(host)}:{listening.getsockname()[1]}/"
    if monitor is not None:
        console().print(str(monitor), markup=False)
    console().print(f"The page is at {address} (Ctrl+C stops)", markup=False)
    sys.stdout.flush()  # programs that start the service through a pipe wait for this line
    settings = uvicorn.Config(
        app,
        http=protocol,
        access_log=False,  # paths and queries may hold personal data
        log_config=None,
        log_level="warning",
        server_header=False,
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )
    with _ignored_signals():
        uvicorn.Server(settings).run(sockets=[listening])


def _uvicorn() -> tuple[Any, Any]:
    """The package uvicorn, and a protocol for it with a header timeout."""
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn
        from uvicorn.protocols.http.auto import AutoHTTPProtocol
    except ImportError as error:
        raise MissingExtraError(error.name or "fastapi", "serve", "The service") from None
    from avcg.serve.middleware import with_header_timeout

    return uvicorn, with_header_timeout(AutoHTTPProtocol, _HEADER_SECONDS)


def _monitored(directory: str, new_models: list[str]) -> Monitor:
    """New models beside the calibration models of the explainer that is served."""
    import torch

    from avcg.auditing.audit import audit
    from avcg.io.artifact import load

    recourse = load(directory)
    named = {Path(path).name: path for path in new_models}
    if len(named) < len(new_models):
        raise SettingError("The models of --new-model must have different file names, which are shown under /metrics.")
    models: dict[str, Any] = {name: load(path) if Path(path).is_dir() else path for name, path in named.items()}
    people = recourse.space_.decode(torch.from_numpy(recourse.calibration_query_.x[:_ASKED]))
    judged = audit(recourse.generate(people), models, recourse=recourse).monitor
    if judged is None:
        raise SettingError("--new-model needs an explainer with calibration models of equal weight. This one has none.")
    return judged


def _app(
    directory: str,
    host: str,
    token: str | None,
    rows: str | None,
    max_rows: int,
    max_body: int,
    monitor: Monitor | None,
) -> FastAPI:
    from avcg.serve.app import Limits, create_app
    from avcg.serve.engine import open_engine
    from avcg.serve.examples import read_examples

    engine, auditor = open_engine(directory)
    examples = [] if rows is None else read_examples(rows, engine.schema)
    limits = Limits(rows=max_rows, body_bytes=max_body, total=max(max_rows, Limits.total))
    if not _is_fast(engine, examples):
        limits = replace(limits, inline=0)
    return create_app(
        engine,
        limits=limits,
        token=token,
        examples=examples,
        auditor=auditor,
        hosts=(*_LOCAL, _host_in_url(host)) if _is_loopback(host) else None,
        monitor=monitor,
    )


def _is_fast(engine: Engine, examples: list[dict[str, Any]]) -> bool:
    """Whether a row is answered fast enough for the event loop. This also warms the engine up."""
    from avcg.serve.describe import describe

    columns = describe(engine, {}, [])["columns"]
    row = examples[0] if examples else {column["name"]: column["typical"] for column in columns}
    times = []
    for _ in range(3):
        started = time.perf_counter()
        engine.answer([row])
        times.append(time.perf_counter() - started)
    return min(times) < _MAX_INLINE_SECONDS


def _token(path: str | None) -> str | None:
    """The token from a file or else from the environment; None if there is none."""
    if path is None:
        return os.environ.get("AVCG_TOKEN", "").strip() or None
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"The token in {path} cannot be read: {error}.") from None
    if not token:
        raise SettingError(f"The file {path} is empty. Write a token into it, or leave --token-file out.")
    return token


def _host_in_url(host: str) -> str:
    """A host as it is written in a URL, where IPv6 addresses have brackets."""
    return f"[{host}]" if ":" in host else host


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int) -> socket.socket:
    """Open the socket before its address is printed."""
    try:
        kind, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(kind)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_MAX_CONNECTIONS)  # connections made from now on wait for the server to start
    except OSError as error:
        raise SettingError(f"Cannot listen on {host}, port {port}: {error.strerror}. Try --port 0.") from None
    return listening


@contextmanager
def _ignored_signals() -> Iterator[None]:
    """Ignore signals that uvicorn raises again after it has handled them, so that Ctrl+C ends without a traceback."""
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
