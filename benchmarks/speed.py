"""Speed figures, each beside what it is compared to, in the same run.

    python benchmarks/speed.py space
    python benchmarks/speed.py hypotheses [--device cuda]
    python benchmarks/speed.py retraining
    python benchmarks/speed.py generate
    python benchmarks/speed.py alone
    python benchmarks/speed.py searches
    python benchmarks/speed.py onnx [--artefact DIR]
    python benchmarks/speed.py serve [--artefact DIR] [--seconds 60]

Machines are noisy: every figure is a median of repeats, and the ratio is the one to quote.
"""

from __future__ import annotations

import argparse
import copy
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from rich.console import Console
from rich.table import Table

from avcg import Classifier, TabularSpace, Training, datasets
from avcg.hypotheses.predictors import Stacked
from avcg.models.fitting import fit_stacked
from avcg.models.networks import draw_state, initialise, mlp
from avcg.models.opened import class_positions
from avcg.noise import draw_masks, with_noise


def median_seconds(work: Callable[[], Any], repeats: int) -> float:
    """Median wall time of a call, after one call that does not count."""
    work()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def space(rows: int, repeats: int) -> None:
    """A million rows of Adult there and back, against scikit-learn; one row as a dict."""
    from sklearn.compose import ColumnTransformer
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    data = datasets.load("adult")
    X = data.X.iloc[np.random.default_rng(0).integers(0, len(data), rows)].reset_index(drop=True)
    assert data.schema is not None
    fitted = TabularSpace.fit(data.schema, data.X)
    numeric = [feature.name for feature in data.schema.numeric]
    categorical = [feature.name for feature in data.schema.categorical]

    def ours(like: pd.DataFrame | None) -> Callable[[], tuple[float, float]]:
        def both() -> tuple[float, float]:
            started = time.perf_counter()
            x = fitted.encode(X)
            halfway = time.perf_counter()
            fitted.decode(x, like=like)
            return halfway - started, time.perf_counter() - halfway

        return both

    def theirs(sparse: bool) -> Callable[[], tuple[float, float]]:
        columns = ColumnTransformer(
            [("numbers", StandardScaler(), numeric), ("choices", OneHotEncoder(sparse_output=sparse), categorical)]
        ).fit(data.X)

        def both() -> tuple[float, float]:
            started = time.perf_counter()
            x = columns.transform(X)
            halfway = time.perf_counter()
            width = len(numeric)
            first = x[:, :width]
            pd.DataFrame(
                columns.named_transformers_["numbers"].inverse_transform(first.toarray() if sparse else first),
                columns=numeric,
            )
            pd.DataFrame(columns.named_transformers_["choices"].inverse_transform(x[:, width:]), columns=categorical)
            return halfway - started, time.perf_counter() - halfway

        return both

    table = Table("what", "there (s)", "back (s)", "both (s)", "ours / theirs", title=f"{rows:,} rows of Adult")
    times: dict[str, list[tuple[float, float]]] = {}
    runs = {
        "avcg": ours(X),
        "avcg, back from codes alone": ours(None),
        "scikit-learn, sparse": theirs(True),
        "scikit-learn, dense": theirs(False),
    }
    for _ in range(repeats):  # turn by turn, so that a busy minute does not fall on one of them alone
        for name, run in runs.items():
            times.setdefault(name, []).append(run())
    for name, pairs in times.items():
        there, back, both = (
            statistics.median(values) for values in (*zip(*pairs, strict=True), [sum(p) for p in pairs])
        )
        ratio = statistics.median(sum(a) / sum(b) for a, b in zip(times["avcg"], pairs, strict=True))
        table.add_row(name, f"{there:.2f}", f"{back:.2f}", f"{both:.2f}", f"{ratio:.2f}")
    Console().print(table)

    row = data.X.iloc[0].to_dict()
    calls = 2000
    one = median_seconds(lambda: [fitted.encoding.encode_row(row) for _ in range(calls)], 7) / calls
    frame = data.X.iloc[[0]]
    columns = ColumnTransformer([("n", StandardScaler(), numeric), ("c", OneHotEncoder(), categorical)]).fit(data.X)
    other = median_seconds(lambda: columns.transform(frame), 50)
    table = Table("one row", "microseconds", "against", title="One row of Adult, 14 columns")
    table.add_row("avcg, as a dict", f"{1e6 * one:.1f}", "at most 50")
    table.add_row("scikit-learn, as a frame", f"{1e6 * other:.0f}", f"{other / one:.0f} times ours")
    Console().print(table)
    code = "import sys, avcg.encoding; print({'torch', 'pandas'} & set(sys.modules) or 'neither torch nor pandas')"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    print(f"importing the encoder loads {loaded}")


def hypotheses(device: str, repeats: int) -> None:
    """Forward and backward to the inputs for S hypotheses at once, against calling S networks in a loop."""
    network = mlp(30, 2, (64, 64), dropout=0.1)
    noisy, sites = with_noise(network, (30,))
    for kind in ("own weights", "dropout masks"):
        table = Table("S", "N", "loop (ms)", "ours (ms)", "loop / ours", title=f"{kind}, 30-64-64-2, {device}")
        for count in (5, 20, 50, 100):
            generator = torch.Generator().manual_seed(count)
            if kind == "own weights":
                base, overrides = network, draw_state(network, count, generator)
            else:
                base, overrides = noisy, draw_masks(sites, (count,), generator)
            ours = Stacked(base, overrides).to(device)
            members = [_member(base, overrides, i).to(device) for i in range(count)]
            for rows in (1, 64, 640, 4096):
                x = torch.randn(rows, 30, generator=generator).to(device).requires_grad_()
                slow, fast, ratio = _versus(
                    lambda x=x, members=members: torch.stack([torch.log_softmax(one(x), -1) for one in members]),
                    lambda x=x, ours=ours: ours.log_probs(x),
                    x,
                    repeats,
                )
                table.add_row(str(count), str(rows), f"{1e3 * slow:.2f}", f"{1e3 * fast:.2f}", f"{ratio:.2f}")
        Console().print(table)


def _member(network: torch.nn.Module, overrides: dict[str, torch.Tensor], i: int) -> torch.nn.Module:
    member = copy.deepcopy(network).eval().requires_grad_(False)
    member.load_state_dict({name: value[i] for name, value in overrides.items()}, strict=False)
    return member


def _versus(
    slow: Callable[[], torch.Tensor], fast: Callable[[], torch.Tensor], x: torch.Tensor, repeats: int
) -> tuple[float, float, float]:
    """Median times of forward and backward of both, turn by turn, and the median of their ratios."""

    def timed(work: Callable[[], torch.Tensor]) -> float:
        x.grad = None
        started = time.perf_counter()
        work().sum().backward()
        if x.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - started

    timed(slow), timed(fast), timed(slow), timed(fast)
    turns = max(5, min(repeats * 20, int(2.0 / (timed(slow) + timed(fast)))))
    pairs = [(timed(slow), timed(fast)) for _ in range(turns)]
    times = [statistics.median(values) for values in zip(*pairs, strict=True)]
    return times[0], times[1], statistics.median(a / b for a, b in pairs)


def retraining(device: str, repeats: int) -> None:
    """Twenty networks on Adult as one stacked network, against twenty plain PyTorch fits of the same steps in turn."""
    data = datasets.load("adult")
    train, validation, _ = data.split(seed=0)
    model = Classifier(hidden=(64, 64), epochs=1, schema=data.schema).fit(train.X, train.y)
    x, y = model.space_.encode(train.X).to(device), class_positions(train.y, model.classes_).to(device)
    held, labels = model.space_.encode(validation.X), class_positions(validation.y, model.classes_)
    settings = Training(epochs=3, batch_size=128, patience=None)
    rows = torch.stack([torch.randperm(len(x), generator=torch.Generator().manual_seed(s)) for s in range(20)])

    def stacked(seed: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return fit_stacked(model.architecture(), x, y, rows, settings, generator=generator)[0]

    def plain(seed: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        network = initialise(model.architecture(), generator).to(device).train()
        optimizer = torch.optim.Adam(network.parameters(), lr=settings.learning_rate)
        for _ in range(settings.epochs):
            for batch in torch.randperm(len(x), generator=generator).split(settings.batch_size):
                optimizer.zero_grad(set_to_none=True)
                torch.nn.functional.cross_entropy(network(x[batch]), y[batch]).backward()
                optimizer.step()
        return {name: value.detach()[None] for name, value in network.named_parameters()}

    ratios = []
    for turn in range(repeats):
        started = time.perf_counter()
        together = stacked(turn)
        halfway = time.perf_counter()
        apart = [plain(turn * 100 + s) for s in range(20)]
        ratios.append((time.perf_counter() - halfway, halfway - started))
        in_turn = {name: torch.cat([state[name] for state in apart]) for name in together}
        accuracy = [
            1
            - Stacked(model.architecture(), {n: v.cpu() for n, v in state.items()})
            .losses(held, labels, "zero_one")
            .mean()
            for state in (together, in_turn)
        ]
        print(
            f"20 networks on Adult, {settings.epochs} epochs: one after the other {ratios[-1][0]:.1f} s, stacked"
            f" {ratios[-1][1]:.1f} s, ratio {ratios[-1][0] / ratios[-1][1]:.2f}; accuracy {accuracy[1]:.4f} and"
            f" {accuracy[0]:.4f}"
        )
    print(f"median ratio {statistics.median(a / b for a, b in ratios):.2f}")


def generate(repeats: int) -> None:
    """10,000 rows of Adult from frame to frame, and the core pass for one encoded row, beside bare matrix products."""
    import warnings

    from avcg import AVCG, Recipe, retrains
    from avcg.generator import Request

    data = datasets.load("adult")
    train, _, test = data.split(seed=0)
    model = Classifier(epochs=2, schema=data.schema).fit(train.X, train.y)
    hypotheses = retrains(model, train.X, train.y, n=20, how="bootstrap", training=Training(epochs=2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # how well it answers is another benchmark's business
        fitted = AVCG(hypotheses, recipe=Recipe(steps=600)).fit(train.X, train.y)
    X = test.X.iloc[np.arange(10_000) % len(test.X)].reset_index(drop=True)
    whole = median_seconds(lambda: fitted.generate(X), repeats)
    print(f"10,000 rows, one answer each, frame to frame, certified: {whole:.2f} s (asked: at most 1)")
    torch.set_num_threads(1)
    space, network = fitted.space_, fitted.generator_
    x = space.encode(X.iloc[:1])
    request = Request(x, torch.ones(1, dtype=torch.long), space.leeway(x), torch.zeros(1))

    def core() -> None:
        for _ in range(100):
            network(request, network.posterior(request).mean[None])

    weights = [layer.weight for layer in network.modules() if isinstance(layer, torch.nn.Linear)]
    inputs = [torch.randn(1, weight.shape[1]) for weight in weights]

    def bare() -> None:
        for _ in range(100):
            for one, weight in zip(inputs, weights, strict=True):
                torch.nn.functional.linear(one, weight)

    with torch.no_grad():
        ours, limit = (1e4 * median_seconds(work, 20) for work in (core, bare))
    print(f"core pass, one encoded row, one thread: {ours:.0f} microseconds (asked: at most 300)")
    print(f"the matrix products in it, bare: {limit:.0f} microseconds")


def alone(repeats: int) -> None:
    """One row at a time in the paper's configuration, from codes to a feasible answer, on the paper's four tables."""
    import warnings
    from dataclasses import replace
    from functools import partial

    from avcg import AVCG, MCDropout, Recipe
    from avcg.numeric import NumericReading

    torch.set_num_threads(1)
    for name in ("adult", "breast_cancer", "heart", "spambase"):
        data = datasets.load(name)
        train, _, test = data.split(seed=0)
        assert data.schema is not None
        reading = NumericReading.fit(data.schema, train.X)
        X, rows = reading.flatten(train.X), reading.flatten(test.X.iloc[:100])
        model = Classifier((64, 32), dropout=0.15, epochs=2, schema=reading.schema).fit(X, train.y)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # how well it answers is another benchmark's business
            fitted = AVCG(MCDropout(model), recipe=replace(Recipe.paper(), steps=100)).fit(X)
        x, target = model.space_.encode(rows), torch.ones(len(rows), dtype=torch.long)
        times = [median_seconds(partial(fitted.solve, x[i : i + 1], target[i : i + 1]), repeats) for i in range(len(x))]
        together = median_seconds(partial(fitted.solve, x, target), repeats)
        print(
            f"{name}: one row alone {1e3 * statistics.mean(times):.2f} ms (the paper's: 1.1), in a batch of {len(x)}"
            f" {1e3 * together / len(x):.3f} ms a row"
        )


def searches(repeats: int) -> None:
    """Every iterative baseline on 100 rows of breast cancer: in one batch, and row by row."""
    from avcg import MCDropout
    from avcg.baselines.descent import QUCE, Batten, EntropicSearch, Schut, Wachter
    from avcg.baselines.search import RobustSearch

    data = datasets.load("breast_cancer")
    train, _, test = data.split(seed=0)
    model = Classifier((64, 32), dropout=0.15, schema=data.schema).fit(train.X, train.y)
    x = model.space_.encode(test.X.iloc[:100])
    target = 1 - torch.from_numpy(model.predict_proba(test.X.iloc[:100])).argmax(dim=1)
    for kind in (Wachter, Batten, QUCE, Schut, EntropicSearch, RobustSearch):
        fitted = kind(MCDropout(model)).fit(train.X, train.y)
        ratios = []
        for _ in range(min(repeats, 3)):
            started = time.perf_counter()
            together = fitted.solve(x, target)[0]
            halfway = time.perf_counter()
            alone = torch.cat([fitted.solve(x[i : i + 1], target[i : i + 1])[0] for i in range(len(x))])
            ratios.append((time.perf_counter() - halfway) / (halfway - started))
        same = float(((together - alone).abs() <= 1e-4).all(dim=1).float().mean())
        print(
            f"{kind.__name__}: row by row takes {statistics.median(ratios):.0f} times as long; {same:.2f} of rows same"
        )


def _adult_artefact(folder: str | None) -> Path:
    """An explainer of Adult with its graphs: the one given, or one fitted now as a user would."""
    from avcg import AVCG, retrains

    if folder is not None:
        return Path(folder)
    data = datasets.load("adult")
    train, _, _ = data.split(seed=0)
    model = Classifier(schema=data.schema).fit(train.X, train.y)
    place = Path(tempfile.mkdtemp()) / "adult"
    print("Fitting an explainer of Adult (about two minutes on an idle core)")
    AVCG(retrains(model, train.X, train.y, n=20)).fit(train.X).save(place, graphs=True)
    return place


def _denied(folder: Path, count: int) -> list[dict[str, Any]]:
    """Test rows of Adult below the line, as plain values."""
    from avcg.scorer import Scorer

    scorer, (_, _, test) = Scorer(folder), datasets.load("adult").split(seed=0)
    rows = test.X.iloc[: 4 * count].astype(object).to_dict("records")
    return [row for row, found in zip(rows, scorer.answer(rows), strict=True) if found.decision == "<=50K"][:count]


def onnx(repeats: int, folder: str | None) -> None:
    """The exported generator: one row on one thread, and 10,000 rows against the one it was exported from."""
    import onnxruntime

    from avcg import load
    from avcg.generator import Request
    from avcg.io.folder import read_file, read_manifest
    from avcg.scorer import GENERATOR, Scorer

    torch.set_num_threads(1)
    place = _adult_artefact(folder)
    explainer = load(place)
    space, generator = explainer.space_, explainer.generator_
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    graph = read_file(place, read_manifest(place, "avcg.artefact", 1), GENERATOR)
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    x = space.encode(datasets.load("adult").X.iloc[:10_000])
    requests = space.random_requests(len(x), 0.5, np.random.default_rng(0))
    rng = torch.Generator().manual_seed(0)
    noise, margin = torch.randn(len(x), generator.n_latent, generator=rng), 4 * torch.rand(len(x), generator=rng)
    target = torch.ones(len(x), dtype=torch.long)

    def eager(some: slice) -> torch.Tensor:
        narrow = requests.take(torch.arange(len(x))[some])
        request = Request(x[some], target[some], narrow.leeway(x[some]), margin[some])
        with torch.no_grad():
            proposal = generator(request, generator.posterior(request).sample(noise[None, some]))
            return narrow.relax(proposal.raw, x[some], proposal.gates > 0)[0]

    given = {"x": x, "target": target, "margin": margin, "noise": noise}
    feed = {name: value.numpy() for name, value in given.items()} | requests.freedom.coded(space.encoding)
    one = {name: np.ascontiguousarray(value[:1]) for name, value in feed.items()}
    (found,) = session.run(None, {name: np.ascontiguousarray(value) for name, value in feed.items()})
    apart = np.abs(found - eager(slice(None)).numpy()).max(axis=1)
    print(f"10,000 rows: {int((apart > 1e-5).sum())} differ by more than 1e-5; the most is {apart.max():.1e}")
    exported = median_seconds(lambda: session.run(None, one), 100 * repeats)
    torch_one = median_seconds(lambda: eager(slice(0, 1)), 20 * repeats)
    print(f"one row, one thread: {1e6 * exported:.0f} µs exported, {1e6 * torch_one:.0f} µs in torch")
    scorer, rows = Scorer(place), _denied(place, 200)
    times = [median_seconds(lambda row=row: scorer.answer([row], ">50K"), 3) for row in rows]
    print(f"a row as a dict to its answer with certificate: median {1e6 * statistics.median(times):.0f} µs")


# The same service around an engine that reads its rows and always says the same: what a request costs by itself.
_NO_WORK = """
import sys
from avcg.scorer import Scorer
from avcg.serve.service import create_app
import uvicorn

class NoWork(Scorer):
    said = None
    def answer(self, rows, target=None, *, n=1, vary=None, ranges=None, min_prob=None, max_changes=None):
        self.said = self.said or super().answer(rows[:1], target)[0]
        for row in rows:
            self.encoding.encode_row(row)
        return [self.said] * len(rows)

uvicorn.run(create_app(NoWork(sys.argv[1])), port=int(sys.argv[2]), access_log=False, log_level="warning")
"""


def serve(seconds: float, folder: str | None) -> None:
    """One row by HTTP with certificate, four clients at once, against an endpoint that does nothing."""
    import asyncio
    import json
    import socket

    place = _adult_artefact(folder)
    bodies = [json.dumps({"rows": [row], "target": ">50K"}).encode() for row in _denied(place, 200)]
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


def main() -> None:
    """Run what is named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    runs: dict[str, Callable[[argparse.Namespace], None]] = {
        "space": lambda o: space(o.rows, o.repeats),
        "hypotheses": lambda o: hypotheses(o.device, o.repeats),
        "retraining": lambda o: retraining(o.device, o.repeats),
        "generate": lambda o: generate(o.repeats),
        "alone": lambda o: alone(o.repeats),
        "searches": lambda o: searches(o.repeats),
        "onnx": lambda o: onnx(o.repeats, o.artefact),
        "serve": lambda o: serve(o.seconds, o.artefact),
    }
    parser.add_argument("what", choices=list(runs))
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=None, help="of torch; default: its own choice")
    parser.add_argument("--seconds", type=float, default=60.0, help="of asking the service")
    parser.add_argument("--artefact", default=None, help="an explainer of Adult saved with graphs; default: fit one")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    versions = f"Python {platform.python_version()}, numpy {np.__version__}, torch {torch.__version__}"
    print(f"{versions}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}")
    runs[options.what](options)


if __name__ == "__main__":
    main()
