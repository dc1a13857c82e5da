"""What every benchmark of speed uses: medians, and an explainer of Adult."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from avcg import Classifier, datasets


def median_seconds(work: Callable[[], Any], repeats: int) -> float:
    """Median wall time of a call, after one call that does not count."""
    work()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def turn_by_turn(works: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Seconds of several works, each in turn, so that a busy moment hits all alike; a first turn does not count."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(repeats + 1):
        for name, work in works.items():
            started = time.perf_counter()
            work()
            if turn:
                times[name].append(time.perf_counter() - started)
    return times


def adult_artifact(folder: str | None) -> Path:
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


def denied(folder: Path, count: int) -> list[dict[str, Any]]:
    """Test rows of Adult below the line, as plain values."""
    from avcg.io.scorer import Scorer

    scorer, (_, _, test) = Scorer(folder), datasets.load("adult").split(seed=0)
    rows = test.X.iloc[: 4 * count].astype(object).to_dict("records")
    return [row for row, found in zip(rows, scorer.answer(rows), strict=True) if found.decision == "<=50K"][:count]
