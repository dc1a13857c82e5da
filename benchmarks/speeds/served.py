"""The exported generator, and the service."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

import numpy as np
import torch

from avcg import datasets
from speeds.timing import adult_artifact, denied, median_seconds


def onnx(repeats: int, folder: str | None) -> None:
    """The exported generator: one row on one thread, and 10,000 rows against the one it was exported from."""
    import onnxruntime

    from avcg import load
    from avcg.io.folder import FORMAT, VERSION, read_file, read_manifest
    from avcg.io.scorer import GENERATOR, Scorer
    from avcg.method.generator import Condition

    torch.set_num_threads(1)
    place = adult_artifact(folder)
    explainer = load(place)
    space, generator = explainer.space_, explainer.generator_
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    graph = read_file(place, read_manifest(place, FORMAT, VERSION), GENERATOR)
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    x = space.encode(datasets.load("adult").X.iloc[:10_000])
    requests = space.random_requests(len(x), 0.5, np.random.default_rng(0))
    rng = torch.Generator().manual_seed(0)
    noise, margin = torch.randn(len(x), generator.n_latent, generator=rng), 4 * torch.rand(len(x), generator=rng)
    target = torch.ones(len(x), dtype=torch.long)

    def eager(some: slice) -> torch.Tensor:
        narrow = requests.take(torch.arange(len(x))[some])
        request = Condition(x[some], target[some], narrow.constraint_features(x[some]), margin[some])
        with torch.no_grad():
            proposal = generator(request, generator.posterior(request).sample(noise[None, some]))
            return narrow.relax(proposal.raw, x[some], proposal.gates > 0)[0]

    given = {"x": x, "target": target, "margin": margin, "noise": noise}
    feed = {name: value.numpy() for name, value in given.items()} | requests.codes.coded
    one = {name: np.ascontiguousarray(value[:1]) for name, value in feed.items()}
    (found,) = session.run(None, {name: np.ascontiguousarray(value) for name, value in feed.items()})
    apart = np.abs(found - eager(slice(None)).numpy()).max(axis=1)
    print(f"10,000 rows: {int((apart > 1e-5).sum())} differ by more than 1e-5; the most is {apart.max():.1e}")
    exported = median_seconds(lambda: session.run(None, one), 100 * repeats)
    torch_one = median_seconds(lambda: eager(slice(0, 1)), 20 * repeats)
    print(f"one row, one thread: {1e6 * exported:.0f} µs exported, {1e6 * torch_one:.0f} µs in torch")
    scorer, rows = Scorer(place), denied(place, 200)
    times = [median_seconds(lambda row=row: scorer.answer([row], ">50K"), 3) for row in rows]
    print(f"a row as a dict to its answer with certificate: median {1e6 * statistics.median(times):.0f} µs")


# The same service around an engine that reads its rows and always says the same: what a request costs by itself.
_NO_WORK = """
import sys
from avcg.io.scorer import Scorer
from avcg.space.reading import read_rows
from avcg.serve.service import create_app
import uvicorn

class NoWork(Scorer):
    said = None
    def answer(self, rows, target=None, *, n=1, vary=None, ranges=None, min_prob=None, max_changes=None):
        self.said = self.said or super().answer(rows[:1], target)[0]
        self.encoding.encode(read_rows(self.schema, rows))
        return [self.said] * len(rows)

uvicorn.run(create_app(NoWork(sys.argv[1])), port=int(sys.argv[2]), access_log=False, log_level="warning")
"""


def serve(seconds: float, folder: str | None) -> None:
    """One row by HTTP with certificate, four clients at once, against an endpoint that does nothing."""
    import asyncio
    import json
    import socket

    place = adult_artifact(folder)
    bodies = [json.dumps({"rows": [row], "target": ">50K"}).encode() for row in denied(place, 200)]
    head = "POST /explain HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
    full = [head.format(len(body)).encode() + body for body in bodies]
    empty = [b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"]
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    command = [sys.executable, "-m", "avcg", "serve", str(place), "--port", str(ports[0])]
    servers = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL),
        subprocess.Popen([sys.executable, "-c", _NO_WORK, str(place), str(ports[1])]),
    ]
    asked = {"GET /health": (ports[0], empty), "no engine": (ports[1], full), "explain": (ports[0], full)}
    times: dict[str, list[float]] = {name: [] for name in asked}
    try:
        for port in ports:
            _wait_for(port)
            asyncio.run(_clients(port, full, 1.0))  # warm up
        # Turn by turn, so that whatever else the machine does hits all alike.
        for _ in range(12):
            for name, (port, requests) in asked.items():
                times[name] += asyncio.run(_clients(port, requests, seconds / 12))
    finally:
        for server in servers:
            server.terminate()
            server.wait()
    print(f"four clients, {seconds:g} s each, {len(times['explain']):,} answers, no errors")
    points = {name: np.percentile(values, [50, 99]) * 1e3 for name, values in times.items()}
    for name, (half, most) in points.items():
        print(f"  {name:12} p50 {half:.2f} ms, p99 {most:.2f} ms, {len(times[name]) / seconds:.0f} a second")
    for name in ("GET /health", "no engine"):
        half, most = points["explain"] / points[name]
        print(f"  explain / {name}: p50 {half:.2f} (asked: at most 3), p99 {most:.2f} (at most 4)")


def _wait_for(port: int) -> None:
    import socket

    for _ in range(200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError("The service did not start.")


async def _clients(port: int, requests: list[bytes], seconds: float) -> list[float]:
    """Latencies of four clients that ask as soon as they are answered.

    Raises:
        RuntimeError: If one answer is no 200.
    """
    import asyncio

    until, times = time.perf_counter() + seconds, []

    async def client(start: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        at = start
        while time.perf_counter() < until:
            began = time.perf_counter()
            writer.write(requests[at % len(requests)])
            head = await reader.readuntil(b"\r\n\r\n")
            if b" 200 " not in head.split(b"\r\n", 1)[0]:
                raise RuntimeError(f"The service answered {head.splitlines()[0]!r}.")
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
            await reader.readexactly(length)
            times.append(time.perf_counter() - began)
            at += 4
        writer.close()

    await asyncio.gather(*(client(i) for i in range(4)))
    return times
