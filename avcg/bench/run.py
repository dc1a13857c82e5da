"""Running protocols: datasets and seeds in parallel, with the cell of each method stored as soon as it is finished."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from avcg.bench.methods import explainer_class, make_explainer
from avcg.bench.problem import Problem
from avcg.bench.protocol import Method, Protocol, read_protocol
from avcg.bench.store import Key, Store, file_name, keys_of
from avcg.console import progress
from avcg.errors import MissingExtraError, SettingError, check_int, did_you_mean
from avcg.explainers.base import Explainer
from avcg.hypotheses.base import HypothesisDistribution
from avcg.hypotheses.rashomon import RashomonSet
from avcg.metrics.evaluate import measure

_MAX_PICTURES = 8  # images of each method that are stored for figures
Backend = Literal["loky", "ray", "dask"]
Fitted = dict[Any, tuple[Explainer, float]]  # explainers, and the seconds that fitting took


def run(
    path: str | Path,
    results: str | Path | None = None,
    *,
    only_datasets: Sequence[str] = (),
    only_seeds: Sequence[int] = (),
    only_methods: Sequence[str] = (),
    workers: int = 1,
    backend: Backend = "loky",
    device: str = "cpu",
    retry: bool = False,
    renew: bool = False,
) -> Path:
    """Run the cells of a protocol that are not stored yet.

    Args:
        path: Path of the protocol.
        results: Folder of the results; None: ``results/NAME`` beside the protocol.
        only_datasets: Names of the datasets to run; empty: all.
        only_seeds: Seeds to run; empty: all.
        only_methods: Names of the methods to run; empty: all.
        workers: Number of processes that datasets and seeds are distributed over; 1 by default.
        backend: Engine of the processes: ``"loky"`` (processes of joblib on this machine), ``"ray"`` or ``"dask"``. Ray
            and Dask use the cluster that is already connected, or the one that ``RAY_ADDRESS`` or
            ``DASK_SCHEDULER_ADDRESS`` names, or else this machine. All machines must share the folders.
        device: Device of the networks; ``"cpu"`` by default.
        retry: Whether failed cells are run again.
        renew: Whether cells of another version of the protocol are run again.

    Returns:
        The folder of the results.

    Raises:
        SettingError: If there are cells of another version of the protocol, and ``renew`` is False.
        MissingExtraError: If the backend is not installed.
    """
    workers = check_int(workers, "'workers' of run", 1)
    if backend not in get_args(Backend):
        raise SettingError(f"There is no backend {backend!r}. {did_you_mean(backend, get_args(Backend))}")
    protocol = read_protocol(path)
    store = Store(results or Path(path).parent / "results" / protocol.name)
    wanted = [
        key
        for key in cells_of(protocol)
        if key[0] in _chosen(protocol.dataset_names, only_datasets, "dataset")
        and key[1] in _chosen(protocol.seeds, only_seeds, "seed")
        and key[2] in _chosen([method.name for method in protocol.methods], only_methods, "method")
    ]
    if retry:
        rows = store.rows() if store.finished() else pd.DataFrame({"error": []})
        store.forget(set(keys_of(rows[rows["error"].notna()])) & set(wanted) if len(rows) else ())
    _forget_outdated(protocol, store, wanted, renew)
    jobs = list(dict.fromkeys(key[:2] for key in wanted))
    with progress(f"Running {protocol.name}", len(jobs)) as advance:
        folder = store.folder.absolute()  # workers may have another working directory
        tasks = [(protocol, folder, [key for key in wanted if key[:2] == job], device, workers) for job in jobs]
        for i, (dataset, seed) in enumerate(_distributed(tasks, workers, backend)):
            advance(i + 1, f"{dataset}, seed {seed}")
    store.compact(_manifest(path, protocol))
    return store.folder


def cells_of(protocol: Protocol) -> dict[Key, Method]:
    """The method of every cell of a protocol. A method whose hypotheses depend on ε has a cell for each ε.

    Args:
        protocol: The benchmark.
    """
    levels = {
        method.name: protocol.epsilons if method.hypotheses.by_epsilon(protocol.folder) else (None,)
        for method in protocol.methods
    }
    return {
        (dataset, seed, method.name, epsilon): method
        for dataset in protocol.dataset_names
        for seed in protocol.seeds
        for method in protocol.methods
        for epsilon in levels[method.name]
    }


def digest(protocol: Protocol, key: Key) -> str:
    """Checksum of everything in a protocol that a cell depends on.

    Empty values do not count, so that stored cells stay valid when protocols get new optional keys.

    Args:
        protocol: The benchmark.
        key: Key of the cell.
    """
    record = protocol.record()
    names = ("reading", "rows", "epsilons", "retrains", "network", "judges", "model", "metrics")
    shared = {name: record[name] for name in names}
    files = protocol.source(key[0]).fingerprint(protocol.folder)
    inputs = _without_empty([key, shared, asdict(cells_of(protocol)[key]), files])
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:12]


def _without_empty(value: Any) -> Any:
    """A value without the entries of its tables that are None or empty."""
    if isinstance(value, dict):
        kept = {key: _without_empty(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item is not None and item not in ({}, [], ())}
    return [_without_empty(item) for item in value] if isinstance(value, (list, tuple)) else value


def _forget_outdated(protocol: Protocol, store: Store, wanted: Sequence[Key], renew: bool) -> None:
    """Drop cells of another version of the protocol, or refuse to run without ``renew``."""
    about = store.about()
    stored = [key for key in wanted if file_name(key) in about]
    outdated = [key for key in stored if about[file_name(key)].get("digest") != digest(protocol, key)]
    if outdated and not renew:
        dataset, seed, method, _ = outdated[0]
        raise SettingError(
            f"{len(outdated)} cells in {store.folder} were made by another version of {protocol.name!r}, such as"
            f" {method!r} on {dataset}, seed {seed}. Renew them (--renew), or write to another folder (--results)."
        )
    store.forget(outdated)


def _distributed(tasks: Sequence[Any], workers: int, backend: Backend) -> Iterator[tuple[str, int]]:
    if workers == 1 and backend == "loky":
        yield from (run_problem(*task) for task in tasks)
        return
    from joblib import Parallel, delayed

    with _engine(backend, workers):
        # Ray's pool returns all results at the end; cells are stored as soon as they are finished all the same.
        order = "list" if backend == "ray" else "generator_unordered"
        yield from Parallel(n_jobs=workers, return_as=order)(delayed(run_problem)(*task) for task in tasks)


@contextmanager
def _engine(backend: Backend, workers: int) -> Iterator[None]:
    """Let joblib run the block on a cluster if there is one, else on this machine."""
    from joblib import parallel_config

    with ExitStack() as stack:
        try:
            if backend == "ray":
                stack.enter_context(_on_ray(workers))
            elif backend == "dask":
                stack.enter_context(_on_dask(workers))
        except ImportError as error:
            raise MissingExtraError(error.name or backend, backend, f"The backend {backend!r}") from None
        stack.enter_context(parallel_config(backend))
        yield


@contextmanager
def _on_ray(workers: int) -> Iterator[None]:
    import ray
    from ray.util.joblib import register_ray

    register_ray()
    if ray.is_initialized():
        yield
        return
    own: dict[str, Any] = {"address": "local", "num_cpus": workers, "include_dashboard": False}
    ray.init(log_to_driver=False, **({} if "RAY_ADDRESS" in os.environ else own))
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _on_dask(workers: int) -> Iterator[None]:
    from dask import config
    from distributed import Client, get_client

    try:
        get_client()
    except ValueError:  # there is no client yet
        own: dict[str, Any] = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None}
        with Client(**({} if config.get("scheduler-address", None) else own)):
            yield
    else:
        yield


def run_problem(
    protocol: Protocol, folder: Path, wanted: Sequence[Key], device: str = "cpu", workers: int = 1
) -> tuple[str, int]:
    """Run the cells of one dataset and seed that are not stored yet; a failed cell is stored with its error.

    Args:
        protocol: The benchmark.
        folder: Folder of the results.
        wanted: Keys of the cells, all of one dataset and seed.
        device: Device of the networks; ``"cpu"`` by default.
        workers: Number of processes of the run, which is stored with the cells.

    Returns:
        The dataset and the seed.
    """
    store = Store(folder)
    finished = store.finished()
    missing = [key for key in wanted if key not in finished]
    dataset, seed = wanted[0][:2]
    methods, fitted = cells_of(protocol), Fitted()
    about = {"device": device, "workers": workers, "torch": _version("torch")}
    # One thread sums in one order, so that a cell does not depend on the number of workers.
    with threadpool_limits(1):
        try:
            problem = Problem(protocol, dataset, seed, device) if missing else None
        except Exception:  # stored with the cells, so that the other datasets go on
            for key in missing:
                store.write(key, _failure(), {**about, "seconds": 0.0, "digest": digest(protocol, key)})
            return dataset, seed
        for key in missing:
            assert problem is not None
            started = time.perf_counter()
            details: dict[str, Any] = {"digest": digest(protocol, key), "accuracy": problem.accuracy}
            try:
                rows = _run_cell(problem, store, key, methods[key], fitted, details)
            except Exception:  # stored with the cell, so that the other methods go on
                rows = _failure()
            store.write(key, rows, {**about, **details, "seconds": round(time.perf_counter() - started, 1)})
    return dataset, seed


def _failure() -> pd.DataFrame:
    """The line of a cell that has just failed, with its traceback."""
    return pd.DataFrame({"row": [-1], "answer": [0], "reading": ["raw"], "error": [traceback.format_exc(limit=-3)]})


def _run_cell(
    problem: Problem, store: Store, key: Key, method: Method, fitted: Fitted, about: dict[str, Any]
) -> pd.DataFrame:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "AVCG:", UserWarning)  # metrics report collapse and unmet promises
        hypotheses = problem.hypotheses(method.hypotheses, key[3])
        before = problem.asked()
        explainer, about["fit_seconds"] = _fitted(problem, method, hypotheses, fitted)
        if problem.protocol.model is not None:
            about["fit_queries"] = problem.asked() - before
        if isinstance(explainer.hypotheses, RashomonSet):
            about["kept"] = len(explainer.hypotheses)
        vary = _one_locked(problem) if method.locked else None
        options = method.options(vary)
        metrics = problem.protocol.all_metrics()
        rows = measure(problem.context, explainer, problem.X, problem.target, options, metrics=metrics)
        rows = rows.assign(error=np.nan)
        if problem.protocol.reading == "images" and problem.seed == problem.protocol.seeds[0]:
            _store_pictures(problem, store, key, explainer)
        return rows


def _fitted(
    problem: Problem, method: Method, hypotheses: HypothesisDistribution, fitted: Fitted
) -> tuple[Explainer, float]:
    """The fitted explainer of a cell and the seconds that fitting took; cells with the same settings share it."""
    kept = tuple(hypotheses.kept.tolist()) if isinstance(hypotheses, RashomonSet) else None
    cache_key = repr((replace(method, name="", answers=1, effort="standard", typicality=None, locked=False), kept))
    if cache_key not in fitted:
        folder = problem.protocol.folder
        what = f"the method {method.name!r} of {problem.protocol.name}"
        kind = explainer_class(method.kind, f"kind of {what}", folder)
        started = time.perf_counter()
        explainer = make_explainer(
            kind, method.settings, hypotheses, what, device=problem.device, random_state=problem.seed, folder=folder
        )
        fitted[cache_key] = explainer.fit(problem.X_train, problem.y_train), time.perf_counter() - started
    return fitted[cache_key]


def _store_pictures(problem: Problem, store: Store, key: Key, explainer: Explainer) -> None:
    """Store a few images with their answers, and titles that name the old and new class."""
    X, target = problem.X[:_MAX_PICTURES], problem.target[:_MAX_PICTURES]
    titles = [f"{a} → {b}" for a, b in zip(problem.model.predict(X), target, strict=True)]
    heading = key[2] + ("" if key[3] is None else f", ε = {key[3]:g}")
    store.write_pictures(file_name(key), heading, X, explainer.generate(X, target).answers, titles)


def _one_locked(problem: Problem) -> Any:
    """(rows, columns) which columns may vary: all but one of each row, drawn at random from those that may change."""
    space = problem.model.space_.codes
    free = space.feasible.movable(space.encoding)[0]  # type: ignore[attr-defined]
    unit = space.feasible.unit  # type: ignore[attr-defined]
    locked = np.random.default_rng(problem.seed).choice(np.flatnonzero(free), len(problem.X))
    return unit[None, :] != unit[locked][:, None]


def _chosen(available: Sequence[Any], wanted: Sequence[Any], what: str) -> tuple[Any, ...]:
    for value in wanted:
        if value not in available:
            raise SettingError(f"The protocol has no {what} {value!r}. {did_you_mean(value, available)}")
    return tuple(value for value in available if not wanted or value in wanted)


def _manifest(path: str | Path, protocol: Protocol) -> dict[str, Any]:
    packages = ("avcg", "torch", "numpy", "pandas", "scikit-learn")
    return {
        "protocol": protocol.record(),
        "protocol_sha256": hashlib.sha256(Path(path).read_bytes()).hexdigest(),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in packages}},
        "machine": {"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count()},
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "from a checkout"
