"""Answers: from frame to frame, one at a time, and from searches."""

from __future__ import annotations

import statistics
import time

import numpy as np
import torch

from avcg import Classifier, Training, datasets
from speeds.timing import median_seconds


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
