"""Answers: from frame to frame, one at a time, and from searches."""

from __future__ import annotations

import statistics
import time
from functools import partial

import numpy as np
import torch

from avcg import Classifier, datasets, load
from avcg.guarantees.certificate import certify as certificate
from avcg.hypotheses.predictors import Stacked
from avcg.method.query import Query
from avcg.models.networks import draw_state, mlp
from speeds.models import member
from speeds.timing import adult_artifact, median_seconds, turn_by_turn

_BATCH = 4096


def generate(repeats: int, folder: str | None) -> None:
    """The core pass at batch 4,096 beside bare matrix products, and 100,000 rows from frame to frame; on one thread."""
    torch.set_num_threads(1)
    explainer = load(adult_artifact(folder))
    data = datasets.load("adult")
    rows = np.random.default_rng(0).integers(0, len(data), 100_000)
    X = data.X.iloc[rows].reset_index(drop=True)
    x = explainer.space_.encode(X.iloc[:_BATCH])
    decided = explainer.deployed_.decide(explainer.deployed_.probabilities(x))
    query = Query(x.numpy(), (1 - decided).numpy(), explainer.space_.codes)
    margin = explainer.search.margins(query)
    layers = [layer for layer in explainer.generator_.modules() if isinstance(layer, torch.nn.Linear)]
    products = [
        (torch.randn(_BATCH, layer.in_features), layer.weight.detach().T, torch.empty(_BATCH, layer.out_features))
        for layer in layers
    ]

    def core() -> None:
        explainer._propose(query, margin)

    def bare() -> None:
        for left, right, out in products:
            torch.mm(left, right, out=out)

    times = turn_by_turn({"core": core, "bare": bare}, 10 * repeats)
    share = statistics.median(b / c for b, c in zip(times["bare"], times["core"], strict=True))
    ours, limit = (statistics.median(times[name]) for name in ("core", "bare"))
    operations = 2 * _BATCH * sum(layer.in_features * layer.out_features for layer in layers)
    print(
        f"core, {_BATCH:,} rows from codes to feasible answers: {1e3 * ours:.1f} ms, {1e6 * ours / _BATCH:.1f} µs a row"
    )
    print(f"the matrix products in it, bare: {1e3 * limit:.1f} ms, {1e-9 * operations / limit:.0f} Gflop/s")
    print(f"core at {share:.2f} of that rate (asked: at least 0.40)")
    for n, target in ((len(X), ">50K"), (_BATCH, None)):
        some = X.iloc[:n]
        taken = turn_by_turn(
            {"whole": lambda some=some, to=target: explainer.generate(some, to, effort="fast")}, max(2, repeats)
        )
        whole, cores = statistics.median(taken["whole"]), ours * n / _BATCH
        asked = "to >50K" if target else "each to its other class"
        print(
            f"{n:,} rows {asked}, frame to frame with retries and certificates: {whole:.2f} s, {1e6 * whole / n:.0f} µs"
            f" a row; the core of so many {cores:.2f} s: adds {whole / cores - 1:.2f} times that (asked: at most 3)"
        )


def certify(repeats: int, folder: str | None) -> None:
    """Certificates of 10,000 answers from all the hypotheses set aside, beside a loop and bare products; one thread."""
    torch.set_num_threads(1)
    explainer = load(adult_artifact(folder))
    x = explainer.space_.encode(datasets.load("adult").X.iloc[:10_000])
    target = torch.ones(len(x), dtype=torch.long)
    network = mlp(x.shape[1], 2, (64, 64))
    layers = [layer for layer in network.modules() if isinstance(layer, torch.nn.Linear)]
    piece = 1000  # rows that stay in a core's cache
    inputs = [torch.randn(piece, layer.in_features) for layer in layers]

    def loop(members: list[torch.nn.Module]) -> None:
        with torch.no_grad():
            shares = torch.stack([torch.softmax(one(x), dim=-1)[:, 1] for one in members])
        shares.mean(dim=0), shares.var(dim=0), (shares > 0.5).sum(dim=0)

    def bare(count: int) -> None:
        for _ in range(count * len(x) // piece):
            for some, layer in zip(inputs, layers, strict=True):
                torch.mm(some, layer.weight.detach().T)

    for count in (20, 200):
        models = Stacked(network, draw_state(network, count, torch.Generator().manual_seed(0)))
        works = {
            "ours": partial(certificate, models, x, target),
            "loop": partial(loop, [member(network, models.overrides, i) for i in range(count)]),
            "bare": partial(bare, count),
        }
        ours, slow, limit = (statistics.median(times) for times in turn_by_turn(works, repeats).values())
        print(
            f"10,000 answers by {count} hypotheses: {1e3 * ours:.0f} ms with bounds; a loop without them"
            f" {1e3 * slow:.0f} ms; bare products {1e3 * limit:.0f} ms ({limit / ours:.2f} of their rate)"
        )


def alone(repeats: int) -> None:
    """One row at a time in the paper's configuration, from codes to a feasible answer, on the paper's four tables."""
    import warnings
    from dataclasses import replace
    from functools import partial

    from avcg import AVCG, MCDropout, Recipe
    from avcg.metrics.numeric_view import NumericReading

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
    from avcg.baselines.gradient import QUCE, Batten, EntropicSearch, Schut, Wachter
    from avcg.baselines.robust_search import RobustSearch

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
