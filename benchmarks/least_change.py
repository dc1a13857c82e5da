"""The least change: answers of all efforts beside searches for each row and rows of the data, judged by fresh retrains.

    python benchmarks/least_change.py run --models network logistic xgboost --datasets adult heart --seeds 3 --workers 2
    python benchmarks/least_change.py again --models xgboost lightgbm --seeds 1 --workers 1
    python benchmarks/least_change.py ruler [--models logistic xgboost] [--datasets adult heart sba:2004] [--workers 2]

A cell is a dataset, a kind of model and a seed. It has a model, 40 bootstrap retrains as hypotheses, and 20 more as
judges, on which nothing was trained. An explainer that promises a survival of 0.99 answers unseen rows, aimed at the
other class, with every effort, at fixed margins and at several typicalities. The methods beside it are a search for
each row (models with gradients) and rows of the data. A cell runs in a process of its own with one thread, and is
stored as one file with one line of JSON. Cells that are stored are not run again. A dataset may have a cohort:
``sba:2004``. `again` measures the times of stored cells again, as many side by side as it is told, and whether more
effort made an answer worse. `ruler` compares with the provably nearest answers. ``least_change_page.py`` makes a page
of all this.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from least_change_page import DATASETS, MODELS, PROBABILITIES, RESULTS
from numpy.typing import NDArray
from torch import Tensor

from avcg import AVCG, Classifier, Recipe, datasets, retrains
from avcg.baselines.nearest import NearestUnlike, RobustNeighbour
from avcg.baselines.robust_search import RobustSearch
from avcg.bench import models as estimators
from avcg.bench.models import as_categories
from avcg.explainers.base import Explainer
from avcg.explainers.counterfactuals import Counterfactuals
from avcg.files import write_whole
from avcg.guarantees.certificate import accepted_by
from avcg.hypotheses.finite import FiniteSet
from avcg.hypotheses.predictors import Joined
from avcg.method.acceptance import price
from avcg.method.query import EFFORTS, Effort, Query, QueryOptions
from avcg.method.refine import toward_typical
from avcg.method.search import Search
from avcg.metrics.functional import columns_changed, distance_to_rows, l1_distance
from avcg.models.adapter import class_positions
from avcg.schema.schema import Schema
from avcg.space.encoding import Codes

HYPOTHESES, FRESH, FRESH_SEED = 40, 20, 10_000
SURVIVALS = (0.99, 0.95)  # what is promised: that of the issue first, then the default
MARGINS = tuple(np.arange(-1.0, 4.01, 0.5).tolist())
TYPICALITIES = (0.0, 0.2, 0.35, 0.5, 0.7, 1.0)
BATCH, MANY, ALONE, REPEATS, ENOUGH = 100, 10_000, 20, 3, 60.0  # ENOUGH: seconds after which nothing is repeated
MOST_TRAINING_ROWS = 8000  # of models other than networks
SMALL = {"n_estimators": 20, "max_depth": 3}  # ensembles that the ruler can measure
SMALL_RETRAINS, RULER_SECONDS = 8, 10.0
Record = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """A dataset, a kind of model, and a seed.

    Attributes:
        dataset: Name of the dataset, with a year after a colon where it has cohorts.
        model: Kind of the model: ``"network"``, or a function of `avcg.bench.models`.
        seed: Seed of the split, the models and the explainer.
    """

    dataset: str
    model: str
    seed: int

    def file(self, folder: Path) -> Path:
        """The file where its record is stored."""
        return folder / f"{self.dataset.replace(':', '-')}.{self.model}.{self.seed}.jsonl"


@dataclass(frozen=True, eq=False)
class Problem:
    """What all methods of a cell share.

    Attributes:
        X: Training rows.
        y: (N,) positions of their classes.
        unseen: Rows to answer.
        schema: Schema of the rows.
        classes: Labels of the classes.
        hypotheses: Retrains to train against, with the deployed model.
        fresh: Retrains that judge.
        seconds: Processor time of each step.
        accuracy: Share of the test rows that the deployed model classifies correctly.
    """

    X: pd.DataFrame
    y: NDArray[np.int64]
    unseen: pd.DataFrame
    schema: Schema
    classes: tuple[str, ...]
    hypotheses: FiniteSet
    fresh: FiniteSet
    seconds: dict[str, float]
    accuracy: float

    @classmethod
    def of(cls, cell: Cell, n: int = HYPOTHESES, **settings: Any) -> Problem:
        """Load the rows, fit the model, and retrain it.

        Args:
            cell: The cell.
            n: Number of hypotheses.
            settings: Settings of the estimator that replace its own.
        """
        name, _, cohort = cell.dataset.partition(":")
        data = datasets.load(name, cohort=int(cohort)) if cohort else datasets.load(name)
        assert data.schema is not None
        train, _, test = data.split(cell.seed)
        if cell.model != "network":
            chosen = np.random.default_rng(cell.seed).permutation(len(train.X))[:MOST_TRAINING_ROWS]
            train = train.take(np.sort(chosen))
        X, unseen = train.X, test.X
        y, tested = (class_positions(np.asarray(part.y), np.array(data.classes)).numpy() for part in (train, test))
        if cell.model == "network":
            model, given = Classifier(schema=data.schema, random_state=cell.seed), {}
        else:
            X, unseen = (as_categories(part, data.schema) for part in (X, unseen))
            model, given = getattr(estimators, cell.model)(X, cell.seed), {"schema": data.schema, "n_jobs": 1}
        clock = Clock()
        model = model.set_params(**settings).fit(X, y)
        accuracy = float((model.predict(unseen) == tested).mean())
        clock.lap("model")
        again = partial(retrains, model, X, y, **given)
        hypotheses = again(n=n, random_state=cell.seed)
        clock.lap("hypotheses")
        fresh = again(n=FRESH, random_state=FRESH_SEED + cell.seed)
        clock.lap("judges")
        return cls(X, y, unseen, data.schema, tuple(map(str, data.classes)), hypotheses, fresh, clock.laps, accuracy)

    def rows(self, recourse: Explainer, count: int, seed: int) -> pd.DataFrame:
        """At most so many unseen rows, without those that may change nothing."""
        movable = ~recourse.space_.immovable(recourse.space_.encode(self.unseen)).numpy()
        rows = self.unseen[movable]
        return rows.sample(min(count, len(rows)), random_state=seed)


@dataclass
class Clock:
    """Processor time between laps, by name."""

    laps: dict[str, float] = field(default_factory=dict)
    started: float = field(default_factory=time.process_time)

    def lap(self, name: str) -> None:
        """End a lap."""
        now = time.process_time()
        self.laps[name] = round(now - self.started, 3)
        self.started = now


@dataclass(frozen=True, eq=False)
class Measured:
    """What is measured of one answer to each of B rows.

    Attributes:
        valid: (B,) whether the deployed model decides for the target, after a change.
        share: (B,) share of the fresh judges that do.
        l1: (B,) sum of the changes of columns, in standard deviations; a category is 1.
        distance: (B,) distance at the schema's prices.
        columns: (B,) columns changed.
        ynn: (B,) mean distance to the five nearest training rows of the target class.
        broken: (B,) whether a constraint is broken.
    """

    valid: NDArray[np.bool_]
    share: NDArray[np.float64]
    l1: NDArray[np.float64]
    distance: NDArray[np.float64]
    columns: NDArray[np.float64]
    ynn: NDArray[np.float64]
    broken: NDArray[np.bool_]

    def summary(self) -> Record:
        """Means over the rows with a valid answer, and how many these are."""
        valid = self.valid
        coverage, accepted = float(valid.mean()), _mean(self.share[valid])
        return {
            "rows": len(valid),
            "coverage": coverage,
            "accepted": accepted,
            "survival": coverage * (accepted or 0.0),  # coverage x valid x survival
            "violations": int(self.broken.sum()),
            "l1": _mean(self.l1[valid]),
            "l1_median": _short(np.median(self.l1[valid])) if valid.any() else None,
            "distance": _mean(self.distance[valid]),
            "columns": _mean(self.columns[valid]),
            "ynn": _mean(self.ynn[valid]),
        }


def _mean(values: NDArray[Any]) -> float | None:
    return _short(values.mean()) if len(values) else None


def _short(value: Any) -> float:
    return round(float(value), 5)


@dataclass(frozen=True, eq=False)
class Referee:
    """Judges answers to the same rows, whatever method they are of.

    Attributes:
        recourse: The explainer, whose space and deployed model count for all methods.
        rows: B rows, all of which may change something.
        x: (B, D) their codes.
        target: (B,) positions of the classes to reach.
        reference: For each class, the codes of its training rows.
        fresh: The judges.
    """

    recourse: AVCG
    rows: pd.DataFrame
    x: Tensor
    target: Tensor
    reference: tuple[Tensor, ...]
    fresh: FiniteSet

    @classmethod
    def of(cls, problem: Problem, recourse: AVCG, rows: pd.DataFrame) -> Referee:
        """The referee for rows that are aimed at the other class."""
        space, deployed = recourse.space_, recourse.deployed_
        x, train = space.encode(rows), space.encode(problem.X)
        target = 1 - deployed.decide(deployed.bind_rows(rows).probabilities(x)).cpu()
        reference = tuple(train[torch.from_numpy(problem.y == label)] for label in range(len(problem.classes)))
        return cls(recourse, rows, x, target, reference, problem.fresh)

    def query(self, effort: Effort = "standard", typicality: float | None = None) -> Query:
        """The rows as a query to the search."""
        options = QueryOptions(effort=effort, typicality=typicality)
        space = self.recourse.space_.codes
        return options.query(self.x.numpy(), self.target.numpy(), space, self.recourse.typicality)

    def measure(self, answers: pd.DataFrame) -> Measured:
        """Judge answers as people receive them."""
        space, deployed = self.recourse.space_, self.recourse.deployed_
        received, encoding = space.encode(answers), space.codes.encoding
        probabilities = deployed.bind_rows(answers).probabilities(received)
        valid = deployed.valid(probabilities, self.target).cpu().numpy() & (received != self.x).any(dim=1).numpy()
        votes = accepted_by(self.fresh.predictors.bind_rows(answers), received, self.target, deployed.threshold)
        ynn = np.empty(len(answers))
        for label, reference in enumerate(self.reference):
            aimed = (self.target == label).numpy()
            ynn[aimed] = distance_to_rows(received[torch.from_numpy(aimed)], reference).numpy()
        return Measured(
            valid, votes.mean(axis=0), l1_distance(encoding, received, self.x).numpy().astype(np.float64),
            space.distance(received, self.x).numpy().astype(np.float64),
            columns_changed(encoding, received, self.x).numpy().astype(np.float64), ynn,
            space.violations(answers, self.rows).any(axis=1),
        )  # fmt: skip

    def delivered(self, codes: Codes) -> pd.DataFrame:
        """The rows that people would receive for (B, D) codes."""
        space = self.recourse.space_
        return space.deliver(codes, self.rows, space.read(self.rows)).answers

    def asked(self, method: Explainer, **options: Any) -> tuple[Counterfactuals, Measured]:
        """The answers of a method to the rows, and what is measured of them."""
        found = method.generate(self.rows, self.recourse.classes_[self.target.numpy()], **options)
        return found, self.measure(found.answers)


@dataclass(frozen=True, eq=False)
class Watched(Search):
    """A search that says how many rows fell back to a search of their own, and what that took.

    Attributes:
        fallback: Its rows, those of them that were accepted after it, and its processor time.
    """

    fallback: Record = field(default_factory=lambda: {"rows": 0, "accepted": 0, "seconds": 0.0})

    def _rescued(self, query: Query, margin: Codes, answers: Codes) -> Codes:
        before = self._n_rejected(query, answers)
        started = time.process_time()
        found = super()._rescued(query, margin, answers)
        self.fallback["seconds"] += time.process_time() - started
        self.fallback["rows"] += before
        self.fallback["accepted"] += before - self._n_rejected(query, found)
        return found

    def _n_rejected(self, query: Query, answers: Codes) -> int:
        return int(self.acceptance.rejected(self.acceptance.costs(query, answers[None])[0]).sum())


def watched(recourse: AVCG, effort: Effort, referee: Referee) -> Record:
    """The rows that fell back to a search of their own, with an effort at its calibrated margin."""
    search = Watched(**vars(recourse._search_at(recourse.calibration_.margins(effort))))
    started = time.process_time()
    search.answers(referee.query(effort))
    return {**search.fallback, "asked": len(referee.rows), "all seconds": time.process_time() - started}


def promised(recourse: AVCG, referee: Referee) -> Record:
    """By effort: the answers at the calibrated margin, whether the promise is made, and who needed the fallback."""
    record = {}
    for effort in EFFORTS:
        found, measured = referee.asked(recourse, effort=effort)
        directions = recourse.calibration_.of_effort(effort)
        record[effort] = {
            **measured.summary(),
            "statuses": dict(Counter(found.statuses.tolist())),
            "made": [direction.verdict.made for direction in directions],
            "margins": [_short(direction.margin) for direction in directions],
            "fallback": watched(recourse, effort, referee),
        }
    return record


def worse(recourse: AVCG, referee: Referee) -> Record:
    """Rows whose answer is worse with more effort, at the same margin.

    An accepted answer is worse if it costs more or is no longer accepted. One that the judges reject is worse if it is
    farther from being accepted.
    """
    search, query = recourse._search_at(recourse.calibration_.margins()), referee.query()
    first = search.propose(query, search.margins(query))[0]
    priced = toward_typical(query, first, search.references, search.config, search.n_typical)
    found = {effort: search.answers(referee.query(effort))[0] for effort in EFFORTS}
    prices = {effort: price(priced, answers[None])[0] for effort, answers in found.items()}
    judged = {effort: search.acceptance.judged(answers, query.target, None) for effort, answers in found.items()}

    def is_worse(less: Effort, more: Effort) -> NDArray[np.bool_]:
        before, after, quantum = judged[less], judged[more], search.config.cost_quantum
        dearer = after.accepted & (prices[more] > prices[less] + quantum)
        farther = ~after.accepted & np.where(before.valid, ~after.valid, after.short > before.short + quantum)
        farther |= ~after.accepted & before.valid & (after.lower < before.lower - quantum)
        return np.where(before.accepted, dearer | ~after.accepted, farther)

    return {f"{less} to {more}": int(is_worse(less, more).sum()) for less, more in pairwise(EFFORTS)}


def frontier(recourse: AVCG, referee: Referee) -> dict[str, list[Record]]:
    """The answers of fast and standard effort at fixed margins."""
    return {
        effort: [
            {
                "margin": margin,
                **referee.measure(referee.delivered(recourse._answer_at(referee.query(effort), margin))).summary(),
            }
            for margin in MARGINS
        ]
        for effort in ("fast", "standard")
    }


def search_for(recourse: AVCG, problem: Problem, probability: float) -> RobustSearch:
    """The search for each row, judged by every hypothesis that the explainer was trained against."""
    descent = replace(RobustSearch.usual, probability=probability)
    search = RobustSearch(
        problem.hypotheses, descent=descent, survival=SURVIVALS[0], random_state=recourse.random_state
    ).fit(problem.X, problem.y)
    search.split_, search.deployed_ = recourse.split_, recourse.deployed_
    search.judges_ = Joined([search.split_.deployed, search.split_.train.sample(HYPOTHESES)])
    return search


def neighbours(problem: Problem, seed: int) -> dict[str, Explainer]:
    """The methods that answer with rows of the data."""
    kinds = {"nearest unlike": NearestUnlike, "robust neighbour": RobustNeighbour}
    return {
        name: kind(problem.hypotheses, survival=SURVIVALS[0], random_state=seed).fit(problem.X, problem.y)
        for name, kind in kinds.items()
    }


def shared(theirs: Measured, ours: Measured) -> Record:
    """What is measured of a method and of ours on the rows that both answer."""
    both = theirs.valid & ours.valid
    return {
        "rows": int(both.sum()),
        "not by them": int((ours.valid & ~both).sum()),
        "not by us": int((theirs.valid & ~both).sum()),
        **{
            name: [_mean(getattr(part, name)[both]) for part in (theirs, ours)]
            for name in ("share", "l1", "distance", "columns", "ynn")
        },
    }


def _median_time(work: Callable[[], Any], repeats: int) -> float:
    """Median processor time of a call; it is repeated less often where it takes long."""
    times: list[float] = []
    while len(times) < repeats and sum(times) < ENOUGH:
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return statistics.median(times)


def timed(methods: dict[str, Callable[[pd.DataFrame], Any]], unseen: pd.DataFrame, many: Iterable[str]) -> Record:
    """By method: milliseconds of processor time a row, in batches and alone."""
    rng = np.random.default_rng(0)
    batch, large = (unseen.iloc[rng.integers(len(unseen), size=count)] for count in (BATCH, MANY))
    times = {}
    for name, work in methods.items():
        work(batch)  # what is made once does not count
        alone = [unseen.iloc[[i]] for i in rng.integers(len(unseen), size=ALONE)]
        times[name] = {
            str(BATCH): _short(1000 * _median_time(partial(work, batch), REPEATS) / BATCH),
            "1": _short(1000 * statistics.median(_median_time(partial(work, row), 1) for row in alone)),
        }
        if name in many:
            times[name][str(MANY)] = _short(1000 * _median_time(partial(work, large), REPEATS) / MANY)
    return times


def fitted(problem: Problem, cell: Cell, recipe: Recipe | None = None) -> AVCG:
    """The explainer that promises the survival of the issue."""
    recourse = AVCG(problem.hypotheses, survival=SURVIVALS[0], recipe=recipe, random_state=cell.seed)
    return recourse.fit(problem.X, problem.y)


def run_cell(cell: Cell, options: argparse.Namespace) -> Record:
    """Everything that is measured of a cell."""
    problem = Problem.of(cell)
    clock = Clock()
    recourse = fitted(problem, cell, Recipe(steps=options.steps) if options.steps else None)
    clock.lap("fit")
    renewed = recourse.calibrate(survival=SURVIVALS[1])
    clock.lap("calibrate again")
    rows = problem.rows(recourse, options.rows, cell.seed)
    referee = Referee.of(problem, recourse, rows)
    promises = {str(SURVIVALS[0]): promised(recourse, referee), str(SURVIVALS[1]): promised(renewed, referee)}
    clock.lap("promises")
    record: Record = {
        "dataset": cell.dataset,
        "model": cell.model,
        "seed": cell.seed,
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "side by side": options.workers},
        "settings": {"rows": options.rows, "steps": options.steps, "typicality": recourse.typicality},
        "training rows": len(problem.X),
        "accuracy": _short(problem.accuracy),
        "classes": list(problem.classes),
        "judges": {"own": len(recourse.judges_), "fresh": FRESH},
        "compiled": bool(recourse.judges_.thresholds()) if cell.model not in ("network", "logistic") else None,
        "promises": promises,
        "worse": {"rows": len(rows), **worse(recourse, referee)},
        "frontier": frontier(recourse, referee),
        "typicality": [
            {"typicality": t, **referee.asked(recourse, typicality=t)[1].summary()} for t in TYPICALITIES
        ],
    }  # fmt: skip
    clock.lap("frontiers")
    works: dict[str, Callable[[pd.DataFrame], Any]] = {
        effort: partial(recourse.generate, effort=effort) for effort in EFFORTS
    }
    if recourse.judges_.differentiable:
        found = {p: search_for(recourse, problem, p) for p in PROBABILITIES}
        record["search"] = [{"probability": p, **referee.asked(s)[1].summary()} for p, s in found.items()]
        works["search"] = found[RobustSearch.usual.probability].generate
        clock.lap("search")
    ours = {effort: referee.asked(recourse, effort=effort)[1] for effort in ("fast", "standard")}
    record["neighbours"] = {}
    for name, method in neighbours(problem, cell.seed).items():
        theirs = referee.asked(method)[1]
        record["neighbours"][name] = {
            **theirs.summary(),
            "shared": {effort: shared(theirs, each) for effort, each in ours.items()},
        }
        works[name] = method.generate
    clock.lap("neighbours")
    record["times"] = timed(works, problem.unseen, ("fast", "standard") if cell.model == "network" else ())
    clock.lap("times")
    return {**record, "seconds": problem.seconds | clock.laps}


def run_again(cell: Cell, options: argparse.Namespace) -> Record:
    """The record of a stored cell, with times, and rows that more effort made worse, measured again."""
    record: Record = json.loads(cell.file(folder_of(options)).read_text())
    problem = Problem.of(cell)
    recourse = fitted(problem, cell, Recipe(steps=options.steps) if options.steps else None)
    works: dict[str, Callable[[pd.DataFrame], Any]] = {
        effort: partial(recourse.generate, effort=effort) for effort in EFFORTS
    }
    works |= {name: method.generate for name, method in neighbours(problem, cell.seed).items()}
    many = ("fast", "standard") if cell.model == "network" else ()
    rows = problem.rows(recourse, options.rows, cell.seed)
    return {
        **record,
        "worse": {"rows": len(rows), **worse(recourse, Referee.of(problem, recourse, rows))},
        "times": timed(works, problem.unseen, many),
        "timed": {"side by side": options.workers},
    }


def run_ruler(cell: Cell, options: argparse.Namespace) -> Record:
    """How far the answers of a cell are from the provably nearest ones that are as robust."""
    from avcg.bench.ruler import LinearModels, nearest_linear, over_optimum
    from avcg.bench.tree_ruler import Ensemble, TreeModels, nearest_in_trees
    from avcg.hypotheses.linear import linear_logits

    linear = cell.model == "logistic"
    problem = Problem.of(cell) if linear else Problem.of(cell, SMALL_RETRAINS, **SMALL)
    recourse = fitted(problem, cell, Recipe(steps=options.steps) if options.steps else None)
    rows = problem.rows(recourse, min(options.rows, 100 if linear else 20), cell.seed)
    referee, encoding = Referee.of(problem, recourse, rows), recourse.space_.codes.encoding
    if linear:
        judges, nearest = LinearModels(*linear_logits(recourse.judges_)), nearest_linear
    else:
        boxes = recourse.judges_.boxes
        judges, nearest = TreeModels([Ensemble.of(box.model, encoding) for box in boxes], encoding), nearest_in_trees
    methods = {"RobustNeighbour": (neighbours(problem, cell.seed)["robust neighbour"], {})}
    for effort, typicality in (("fast", None), ("standard", None), ("standard", 0.0), ("thorough", 0.0)):
        title = effort if typicality is None else f"{effort}, typicality {typicality:g}"
        methods[title] = (recourse, {"effort": effort, "typicality": typicality})
    lines = []
    for title, (method, asked) in methods.items():
        found, measured = referee.asked(method, **asked)
        received, own = recourse.space_.encode(found.answers).numpy(), np.flatnonzero(measured.valid)
        started = time.perf_counter()
        part = (recourse.space_.codes.take(own), referee.x.numpy()[own], referee.target.numpy()[own], received[own])
        readings = {
            reading: over_optimum(*part, judges, nearest=nearest, lowest=reading == "lowest", seconds=RULER_SECONDS)
            for reading in ("each", "lowest")
        }
        lines.append(
            {
                "method": title,
                **measured.summary(),
                **{reading: _spread(ratios) for reading, ratios in readings.items()},
                "seconds": _short(time.perf_counter() - started),
            }
        )
        print(cell, lines[-1], flush=True)
    return {
        "dataset": cell.dataset, "model": cell.model, "seed": cell.seed, "judges": len(recourse.judges_),
        "settings": {"rows": options.rows, "steps": options.steps}, "ruler": lines,
    }  # fmt: skip


def _spread(ratios: NDArray[Any]) -> Record:
    """The middle and the far end of the ratios that are known."""
    known = ratios[np.isfinite(ratios)]
    quantiles = np.quantile(known, [0.5, 0.95]) if len(known) else [None, None]
    return {"rows": len(known), **dict(zip(("median", "p95"), (q and _short(q) for q in quantiles), strict=True))}


RUNS: dict[str, Callable[[Cell, argparse.Namespace], Record]] = {
    "run": run_cell,
    "again": run_again,
    "ruler": run_ruler,
}


def folder_of(options: argparse.Namespace) -> Path:
    """The folder of the records."""
    return options.out / "ruler" if options.what == "ruler" else options.out


def run_one(cell: Cell, options: argparse.Namespace) -> None:
    """Run a cell in this process, and store its record."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    record = RUNS[options.what](cell, options)
    write_whole(cell.file(folder_of(options)), json.dumps(record) + "\n")


def start(cell: Cell, options: argparse.Namespace) -> bool:
    """Run a cell in a process of its own with one thread; whether it succeeded."""
    command = [sys.executable, __file__, options.what, "--out", str(options.out), "--rows", str(options.rows),
               "--workers", str(options.workers), "--steps", str(options.steps),
               "--cell", cell.dataset, cell.model, str(cell.seed)]  # fmt: skip
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    started = time.perf_counter()
    done = subprocess.run(
        command, env={**os.environ, **dict.fromkeys(names, "1")}, capture_output=True, text=True, check=False
    )
    passed = f"{time.perf_counter() - started:.0f} s"
    print(cell, passed if done.returncode == 0 else f"failed after {passed}\n{done.stderr[-3000:]}", flush=True)
    return done.returncode == 0


def run(options: argparse.Namespace) -> int:
    """Run the cells that are not stored yet, or measure those that are again; the number that failed."""
    folder = folder_of(options)
    folder.mkdir(parents=True, exist_ok=True)
    cells = [
        Cell(dataset, model, seed)
        for seed in range(options.seeds)
        for dataset in options.datasets
        for model in options.models
        if options.what != "ruler" or model == "logistic" or dataset == "heart"
    ]
    if options.what == "again":
        wanted = [cell for cell in cells if cell.file(folder).exists()]
    else:
        wanted = [cell for cell in cells if not cell.file(folder).exists()]
    with ThreadPoolExecutor(options.workers) as pool:
        return sum(not done for done in pool.map(partial(start, options=options), wanted))


def main() -> None:
    """Run what is named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=list(RUNS))
    parser.add_argument("--models", nargs="+", choices=list(MODELS), help="default: all; logistic and xgboost of ruler")
    parser.add_argument("--datasets", nargs="+", choices=list(DATASETS), default=list(DATASETS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="cells side by side (default 2)")
    parser.add_argument("--rows", type=int, default=200, help="unseen rows of each cell (default 200)")
    parser.add_argument("--steps", type=int, default=0, help="training steps, to try it; 0: as the default recipe")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--cell", nargs=3, metavar=("DATASET", "MODEL", "SEED"), help="one cell, in this process")
    options = parser.parse_args()
    options.models = options.models or (["logistic", "xgboost"] if options.what == "ruler" else list(MODELS))
    if options.cell is not None:
        dataset, model, seed = options.cell
        run_one(Cell(dataset, model, int(seed)), options)
        return
    sys.exit(min(run(options), 1))


if __name__ == "__main__":
    main()
