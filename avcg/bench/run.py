"""Run a protocol: every dataset and seed by itself, in parallel, each method's cell stored when it is done."""

from __future__ import annotations

import hashlib
import os
import platform
import time
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from avcg.bench.methods import KINDS
from avcg.bench.problem import Problem
from avcg.bench.protocol import Method, Protocol, read_protocol
from avcg.bench.store import KEYS, Store, file_name
from avcg.errors import SettingError, did_you_mean, whole
from avcg.evaluation import Ask, measure
from avcg.explainer import Explainer
from avcg.hypotheses.rashomon import RashomonSet
from avcg.progress import progress

_PICTURES = 8  # of each method, stored to be drawn


def run(
    path: str | Path,
    results: str | Path | None = None,
    *,
    only_datasets: Sequence[str] = (),
    only_seeds: Sequence[int] = (),
    only_methods: Sequence[str] = (),
    workers: int = 1,
    device: str = "cpu",
    retry: bool = False,
) -> Path:
    """Run what is not there yet.

    Args:
        path: Of the protocol.
        results: Folder; None: ``results/NAME`` beside the protocol.
        only_datasets: Of the protocol's; empty: all.
        only_seeds: Likewise.
        only_methods: Likewise.
        workers: Processes; datasets and seeds are shared out among them, each with one thread.
        device: Where networks are trained and asked.
        retry: Whether cells that failed are run again.

    Returns:
        The folder.
    """
    workers = whole(workers, "'workers' of run", 1)
    protocol = read_protocol(path)
    protocol = replace(
        protocol,
        datasets=_chosen(protocol.datasets, only_datasets, "dataset"),
        seeds=_chosen(protocol.seeds, only_seeds, "seed"),
        methods=tuple(
            method
            for method in protocol.methods
            if method.name in _chosen([m.name for m in protocol.methods], only_methods, "method")
        ),
    )
    store = Store(results or Path(path).parent / "results" / protocol.name)
    if retry:
        _forget_failures(store)
    jobs = [(dataset, seed) for dataset in protocol.datasets for seed in protocol.seeds]
    started = time.perf_counter()
    with progress(f"Running {protocol.name}", len(jobs)) as advance:
        for i, (dataset, seed) in enumerate(_shared_out(protocol, store, jobs, workers, device)):
            advance(i + 1, f"{dataset}, seed {seed}")
    before = float(store.manifest().get("wall_seconds", 0.0))
    store.compact(_manifest(path, protocol, device, workers, before + time.perf_counter() - started))
    return store.folder


def _shared_out(protocol: Protocol, store: Store, jobs: list[tuple[str, int]], workers: int, device: str) -> Any:
    if workers == 1:
        return (run_problem(protocol, store.folder, *job, device) for job in jobs)
    from joblib import Parallel, delayed, parallel_config

    with parallel_config("loky", inner_max_num_threads=1):
        return Parallel(n_jobs=workers, return_as="generator_unordered")(
            delayed(run_problem)(protocol, store.folder, *job, device) for job in jobs
        )


def run_problem(protocol: Protocol, folder: Path, dataset: str, seed: int, device: str = "cpu") -> tuple[str, int]:
    """The cells of one dataset and seed that are not there yet; what fails is kept as a line that says so."""
    store = Store(folder)
    done = store.finished()
    cells = [
        (method, epsilon)
        for method in protocol.methods
        for epsilon in (protocol.epsilons if method.hypotheses == "rashomon" else (None,))
        if (dataset, seed, method.name, epsilon) not in done
    ]
    if not cells:
        return dataset, seed
    problem = Problem(protocol, dataset, seed, device)
    fitted: dict[Any, tuple[Explainer, float]] = {}
    for method, epsilon in cells:
        started = time.perf_counter()
        about: dict[str, Any] = {"accuracy": problem.accuracy, "device": device}
        try:
            rows = _run_cell(problem, method, epsilon, fitted, about)
        except Exception:  # whatever it was, the others go on, and it is told
            told = traceback.format_exc(limit=-3)
            rows = pd.DataFrame({"row": [-1], "answer": [0], "reading": ["raw"], "error": [told]})
        about["seconds"] = round(time.perf_counter() - started, 1)
        for place, (name, value) in enumerate(zip(KEYS, (dataset, seed, method.name, epsilon), strict=True)):
            rows.insert(place, name, np.nan if value is None else value)
        store.write(rows, about)
        if protocol.reading == "images" and seed == protocol.seeds[0] and "fit_seconds" in about:
            explainer, _ = _fitted(problem, method, epsilon, fitted)
            store.write_pictures(file_name(dataset, seed, method.name, epsilon), *_examples(problem, explainer))
    return dataset, seed


def _run_cell(
    problem: Problem, method: Method, epsilon: float | None, fitted: dict[Any, tuple[Explainer, float]], about: Any
) -> pd.DataFrame:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "AVCG:", UserWarning)  # collapse and promises are measured below
        explainer, about["fit_seconds"] = _fitted(problem, method, epsilon, fitted)
        ask = Ask(method.answers, method.refine, _one_locked(problem) if method.locked else None)
        return measure(problem.context, explainer, problem.X, problem.target, ask).assign(error=np.nan)


def _fitted(
    problem: Problem, method: Method, epsilon: float | None, fitted: dict[Any, tuple[Explainer, float]]
) -> tuple[Explainer, float]:
    """The explainer of a cell and the seconds it took, fitted once for all cells that would fit the same."""
    hypotheses = problem.hypotheses(method.hypotheses, epsilon)
    kept = tuple(hypotheses.kept.tolist()) if isinstance(hypotheses, RashomonSet) else None
    same = (method.kind, method.hypotheses, kept, method.survival, repr(method.recipe), repr(method.descent))
    if same not in fitted:
        started = time.perf_counter()
        # The paper trains on every mask it keeps; judges have their own.
        aside = 0 if method.hypotheses in ("rashomon", "point") else None
        made = KINDS[method.kind](method, hypotheses, aside, problem.device, problem.seed)
        fitted[same] = made.fit(problem.X_train, problem.y_train), time.perf_counter() - started
    return fitted[same]


def _examples(problem: Problem, explainer: Explainer) -> tuple[Any, Any, list[str]]:
    """A few pictures, their answers, and from what to what."""
    X, target = problem.X[:_PICTURES], problem.target[:_PICTURES]
    titles = [f"{a} → {b}" for a, b in zip(problem.model.predict(X), target, strict=True)]
    return X, explainer.generate(X, target).answers, titles


def _one_locked(problem: Problem) -> Any:
    """(rows, features) all free but one of each row that could change, at random."""
    space = problem.model.space_
    free = space.freedom.movable(space.encoding)[0]  # type: ignore[attr-defined]
    unit = space.freedom.unit  # type: ignore[attr-defined]
    locked = np.random.default_rng(problem.seed).choice(np.flatnonzero(free), len(problem.X))
    return unit[None, :] != unit[locked][:, None]


def _chosen(known: Sequence[Any], wanted: Sequence[Any], what: str) -> tuple[Any, ...]:
    for one in wanted:
        if one not in known:
            raise SettingError(f"The protocol has no {what} {one!r}. {did_you_mean(one, known)}")
    return tuple(one for one in known if not wanted or one in wanted)


def _forget_failures(store: Store) -> None:
    rows = store.rows()
    failed = rows[rows["error"].notna()]
    keys = failed[["dataset", "seed", "method", "epsilon"]].itertuples(index=False)
    store.forget({(str(d), int(s), str(m), None if pd.isna(e) else float(e)) for d, s, m, e in keys})


def _manifest(path: str | Path, protocol: Protocol, device: str, workers: int, seconds: float) -> dict[str, Any]:
    packages = ("avcg", "torch", "numpy", "pandas", "scikit-learn")
    return {
        "protocol": asdict(protocol),
        "protocol_sha256": hashlib.sha256(Path(path).read_bytes()).hexdigest(),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in packages}},
        "machine": {"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count()},
        "device": device,
        "workers": workers,
        "wall_seconds": round(seconds, 1),
    }


def _version(name: str) -> str:
    from importlib.metadata import PackageNotFoundError

    try:
        return version(name)
    except PackageNotFoundError:  # run from a checkout
        return "not installed"
