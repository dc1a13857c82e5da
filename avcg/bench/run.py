"""Run a protocol: every dataset and seed by itself, in parallel, each method's cell stored when it is done."""

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
from avcg.method.query import QueryOptions
from avcg.metrics.evaluate import measure

_PICTURES = 8  # of each method, stored to be drawn
Backend = Literal["loky", "ray", "dask"]
Fitted = dict[Any, tuple[Explainer, float]]  # explainers, and the seconds it took to fit them


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
    """Run what is not there yet.

    Args:
        path: Of the protocol.
        results: Folder; None: ``results/NAME`` beside the protocol.
        only_datasets: Of the protocol's; empty: all.
        only_seeds: Likewise.
        only_methods: Likewise.
        workers: Processes; datasets and seeds are shared out among them.
        backend: Who runs them: joblib's own processes on this machine, Ray or Dask. Those two go to the cluster that is
            connected to already, or that ``RAY_ADDRESS`` or ``DASK_SCHEDULER_ADDRESS`` names, or else stay here; its
            machines must see the same folders.
        device: Where networks are trained and asked.
        retry: Whether cells that failed are run again.
        renew: Whether cells are run again that another version of the protocol made.

    Returns:
        The folder.

    Raises:
        SettingError: If there are cells of another version of the protocol, and they are not to be renewed.
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
    _settle_changed(protocol, store, wanted, renew)
    jobs = list(dict.fromkeys(key[:2] for key in wanted))
    with progress(f"Running {protocol.name}", len(jobs)) as advance:
        place = store.folder.absolute()  # whatever folder a worker is in
        tasks = [(protocol, place, [key for key in wanted if key[:2] == job], device, workers) for job in jobs]
        for i, (dataset, seed) in enumerate(_shared_out(tasks, workers, backend)):
            advance(i + 1, f"{dataset}, seed {seed}")
    store.compact(_manifest(path, protocol))
    return store.folder


def cells_of(protocol: Protocol) -> dict[Key, Method]:
    """Every cell of a protocol; methods whose hypotheses depend on ε have one for each.

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
    """Checksum of all that a cell depends on in its protocol.

    What a protocol leaves empty does not count, so that a key that is new to protocols leaves stored cells valid.

    Args:
        protocol: The benchmark.
        key: The cell.
    """
    record = protocol.record()
    names = ("reading", "rows", "epsilons", "retrains", "network", "judges", "model", "metrics")
    shared = {name: record[name] for name in names}
    files = protocol.source(key[0]).fingerprint(protocol.folder)
    depends = _without_empty([key, shared, asdict(cells_of(protocol)[key]), files])
    return hashlib.sha256(json.dumps(depends, sort_keys=True).encode()).hexdigest()[:12]


def _without_empty(value: Any) -> Any:
    """The same without entries of tables that are None or empty."""
    if isinstance(value, dict):
        kept = {key: _without_empty(each) for key, each in value.items()}
        return {key: each for key, each in kept.items() if each is not None and each not in ({}, [], ())}
    return [_without_empty(each) for each in value] if isinstance(value, (list, tuple)) else value


def _settle_changed(protocol: Protocol, store: Store, wanted: Sequence[Key], renew: bool) -> None:
    about = store.about()
    changed = [key for key in wanted if file_name(key) in about]
    changed = [key for key in changed if about[file_name(key)].get("digest") != digest(protocol, key)]
    if changed and not renew:
        dataset, seed, method, _ = changed[0]
        raise SettingError(
            f"{len(changed)} cells in {store.folder} were made by another version of {protocol.name!r}, such as"
            f" {method!r} on {dataset}, seed {seed}. Renew them (--renew), or write to another folder (--results)."
        )
    store.forget(changed)


def _shared_out(tasks: Sequence[Any], workers: int, backend: Backend) -> Iterator[tuple[str, int]]:
    if workers == 1 and backend == "loky":
        yield from (run_problem(*task) for task in tasks)
        return
    from joblib import Parallel, delayed

    with _engine(backend, workers):
        # Ray's pool hands everything over at the end; cells are stored as they are done all the same.
        order = "list" if backend == "ray" else "generator_unordered"
        yield from Parallel(n_jobs=workers, return_as=order)(delayed(run_problem)(*task) for task in tasks)


@contextmanager
def _engine(backend: Backend, workers: int) -> Iterator[None]:
    """Where joblib runs what is in the block: on a cluster if there is one, else on this machine."""
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
    except ValueError:  # nobody has connected yet
        own: dict[str, Any] = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None}
        with Client(**({} if config.get("scheduler-address", None) else own)):
            yield
    else:
        yield


def run_problem(
    protocol: Protocol, folder: Path, wanted: Sequence[Key], device: str = "cpu", workers: int = 1
) -> tuple[str, int]:
    """Cells of one dataset and seed, those that are not there yet; what fails is kept as a line that says so."""
    store = Store(folder)
    done = store.finished()
    missing = [key for key in wanted if key not in done]
    dataset, seed = wanted[0][:2]
    methods, fitted = cells_of(protocol), Fitted()
    about = {"device": device, "workers": workers, "torch": _version("torch")}
    # Sums in one order whatever the number of workers, so that a cell is the same in any run.
    with threadpool_limits(1):
        try:
            problem = Problem(protocol, dataset, seed, device) if missing else None
        except Exception:  # the other datasets go on
            for key in missing:
                store.write(key, _failure(), {**about, "seconds": 0.0, "digest": digest(protocol, key)})
            return dataset, seed
        for key in missing:
            assert problem is not None
            started = time.perf_counter()
            more: dict[str, Any] = {"digest": digest(protocol, key), "accuracy": problem.accuracy}
            try:
                rows = _run_cell(problem, store, key, methods[key], fitted, more)
            except Exception:  # whatever it was, the other methods go on, and it is told
                rows = _failure()
            store.write(key, rows, {**about, **more, "seconds": round(time.perf_counter() - started, 1)})
    return dataset, seed


def _failure() -> pd.DataFrame:
    """The line of a cell that failed just now."""
    return pd.DataFrame({"row": [-1], "answer": [0], "reading": ["raw"], "error": [traceback.format_exc(limit=-3)]})


def _run_cell(
    problem: Problem, store: Store, key: Key, method: Method, fitted: Fitted, about: dict[str, Any]
) -> pd.DataFrame:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "AVCG:", UserWarning)  # collapse and promises are measured below
        hypotheses = problem.hypotheses(method.hypotheses, key[3])
        before = problem.asked()
        explainer, about["fit_seconds"] = _fitted(problem, method, hypotheses, fitted)
        if problem.protocol.model is not None:
            about["fit_queries"] = problem.asked() - before
        if isinstance(explainer.hypotheses, RashomonSet):
            about["kept"] = len(explainer.hypotheses)
        vary = _one_locked(problem) if method.locked else None
        options = QueryOptions(n=method.answers, vary=vary, refine=method.refine)
        metrics = problem.protocol.all_metrics()
        rows = measure(problem.context, explainer, problem.X, problem.target, options, metrics=metrics)
        rows = rows.assign(error=np.nan)
        if problem.protocol.reading == "images" and problem.seed == problem.protocol.seeds[0]:
            _store_pictures(problem, store, key, explainer)
        return rows


def _fitted(
    problem: Problem, method: Method, hypotheses: HypothesisDistribution, fitted: Fitted
) -> tuple[Explainer, float]:
    """The explainer of a cell and the seconds it took to fit, fitted once for all cells that would fit the same."""
    kept = tuple(hypotheses.kept.tolist()) if isinstance(hypotheses, RashomonSet) else None
    same = repr((replace(method, name="", answers=1, refine=False, locked=False), kept))
    if same not in fitted:
        folder = problem.protocol.folder
        what = f"the method {method.name!r} of {problem.protocol.name}"
        kind = explainer_class(method.kind, f"kind of {what}", folder)
        started = time.perf_counter()
        explainer = make_explainer(
            kind, method.settings, hypotheses, what, device=problem.device, random_state=problem.seed, folder=folder
        )
        fitted[same] = explainer.fit(problem.X_train, problem.y_train), time.perf_counter() - started
    return fitted[same]


def _store_pictures(problem: Problem, store: Store, key: Key, explainer: Explainer) -> None:
    """A few pictures, their answers, and from what to what."""
    X, target = problem.X[:_PICTURES], problem.target[:_PICTURES]
    titles = [f"{a} → {b}" for a, b in zip(problem.model.predict(X), target, strict=True)]
    heading = key[2] + ("" if key[3] is None else f", ε = {key[3]:g}")
    store.write_pictures(file_name(key), heading, X, explainer.generate(X, target).answers, titles)


def _one_locked(problem: Problem) -> Any:
    """(rows, features) all free but one of each row that could change, at random."""
    space = problem.model.space_.codes
    free = space.feasible.movable(space.encoding)[0]  # type: ignore[attr-defined]
    unit = space.feasible.unit  # type: ignore[attr-defined]
    locked = np.random.default_rng(problem.seed).choice(np.flatnonzero(free), len(problem.X))
    return unit[None, :] != unit[locked][:, None]


def _chosen(known: Sequence[Any], wanted: Sequence[Any], what: str) -> tuple[Any, ...]:
    for one in wanted:
        if one not in known:
            raise SettingError(f"The protocol has no {what} {one!r}. {did_you_mean(one, known)}")
    return tuple(one for one in known if not wanted or one in wanted)


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
