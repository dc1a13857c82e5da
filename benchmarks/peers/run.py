"""AVCG beside others: the very same model and rows, one judge, one clock.

    benchmarks/peers/setup.sh
    python benchmarks/peers/run.py adult --rows 100 10000
    python benchmarks/peers/tables.py docs/results/peers.md

The network, the hypotheses and the judges are those of ``benchmarks/recourse.toml``: methods of avcg are given the same
20 bootstrap retrains, peers the one network, and ten further retrains that nobody has seen say what survives. Times are
of explaining, from frame to frame; what is done once is reported as fitting. A method that starts over for every row
does not get cheaper by having more of them: of a large batch it is asked about some rows, at even distances, and the
table says how many.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import tempfile
import warnings
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from exchange import Clock, Positions
from handing import same_model, task_of
from judging import judge
from methods import METHODS, OURS, RETRAINED, Outcome, Own, Peer, Stored, ask_own, ask_peer
from tables import RESULTS, markdown, read_results, store_run

import avcg
from avcg import AVCG
from avcg.bench.problem import Problem
from avcg.bench.protocol import read_protocol
from avcg.models.adapter import class_positions

_PROTOCOL = Path(__file__).parents[1] / "recourse.toml"


def measure(options: argparse.Namespace) -> None:
    """Ask every method in every batch with every number of threads, and store what came of it."""
    torch.set_num_threads(1)  # sums in one order, so that the model is the same wherever it is trained
    print(f"Training the model on {options.dataset}, seed {options.seed}")
    protocol = replace(read_protocol(_PROTOCOL), rows=max(options.rows))
    problem = Problem(protocol, options.dataset, options.seed)
    about = _about(problem)
    print("Training the hypotheses and the judges")
    problem.hypotheses(RETRAINED, None)
    context = problem.context
    with tempfile.TemporaryDirectory() as place:
        stored = _store(problem, options.artifact, Path(place) / "explainer")
        for batch in options.rows:
            X, target = _batch(problem, batch)
            for threads, method in itertools.product(options.threads, METHODS):
                if options.only and method.name not in options.only:
                    continue
                chosen = _spread(batch, batch if method.most is None else min(method.most, options.at_most or batch))
                outcome = _ask(method, problem, stored, X.iloc[chosen], target[chosen], threads, options.seconds)
                rows = None
                if threads == options.threads[0] and outcome.error is None:
                    rows = judge(context, X, target, outcome.answers).iloc[chosen]
                cell = _cell(options, batch, method.name, threads, outcome)
                store_run(options.results, cell, rows, about)
                delivered = outcome.error or f"{1e3 * outcome.cpu / outcome.asked:.3g} ms of processor time a row"
                print(f"{batch:,} rows, threads: {threads}, {method.name}: {delivered}", flush=True)
    results = read_results(options.results)
    order, per_row = [one.name for one in METHODS], [one.name for one in METHODS if one.per_row]
    for batch in options.rows:
        print(f"\n{options.dataset}, {batch:,} rows\n")
        print(markdown(results.of(options.dataset, batch), order, per_row, OURS))


def _store(problem: Problem, artifact: Path | None, place: Path) -> Stored:
    """The explainer in a folder with its graphs: the one given, or one fitted now."""
    if artifact is not None:
        explainer, seconds = avcg.load(artifact), np.nan
        if not same_model(explainer, problem.model, problem.X.iloc[:100]):
            raise SystemExit(f"{artifact} explains another model than benchmarks/recourse.toml trains. Leave it out.")
    else:
        print("Training the generator: about two minutes on an idle core")
        with Clock() as fitting, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "AVCG:", UserWarning)  # how well it answers is measured
            explainer = AVCG(problem.hypotheses(RETRAINED, None), random_state=problem.seed)
            explainer.fit(problem.X_train, problem.y_train)
        seconds = fitting.cpu
    explainer.save(place, graphs=True)
    return Stored(place, seconds)


def _batch(problem: Problem, size: int) -> tuple[pd.DataFrame, Positions]:
    """The first test rows, from the start again where there are not enough, and the other class for each."""
    places = np.arange(size) % len(problem.X)
    target = class_positions(np.asarray(problem.target), problem.model.classes_).numpy()
    return problem.X.iloc[places].reset_index(drop=True), target[places]


def _spread(batch: int, most: int) -> Positions:
    """Positions at even distances, at most so many."""
    return np.unique(np.linspace(0, batch - 1, min(batch, most)).round().astype(np.int64))


def _ask(
    method: Own | Peer,
    problem: Problem,
    stored: Stored,
    X: pd.DataFrame,
    target: Positions,
    threads: int,
    seconds: float,
) -> Outcome:
    if isinstance(method, Own):
        return ask_own(method, problem, stored, X, target, threads)
    task = task_of(problem.model, problem.X_train, problem.y_train, X, target)
    return ask_peer(method, task, threads, seconds)


def _cell(options: argparse.Namespace, batch: int, method: str, threads: int, outcome: Outcome) -> dict[str, Any]:
    times = {
        name: None if np.isnan(value) else round(value, 6)
        for name, value in (("fit_cpu", outcome.fit_cpu), ("cpu", outcome.cpu), ("wall", outcome.wall))
    }
    return {
        "dataset": options.dataset, "seed": options.seed, "batch": batch, "method": method, "threads": threads,
        "asked": outcome.asked, **times, "versions": outcome.versions, "error": outcome.error,
        "load": round(os.getloadavg()[0], 2),
    }  # fmt: skip


def _about(problem: Problem) -> dict[str, Any]:
    packages = ("avcg", "torch", "numpy", "pandas", "scikit-learn")
    return {
        "accuracy": problem.accuracy,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        "machine": {"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count()},
    }


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="adult, breast_cancer, heart or spambase")
    parser.add_argument("--rows", type=int, nargs="+", default=[100, 10_000], help="sizes of batches")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, os.cpu_count() or 1])
    parser.add_argument(
        "--artifact", type=Path, default=None, help="a stored explainer of the same model; else fit one"
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="METHOD", help="of the methods; others stay as stored")
    parser.add_argument("--at-most", type=int, default=None, help="rows for methods that take one after the other")
    parser.add_argument("--seconds", type=float, default=1800.0, help="after which a peer is stopped")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder")
    options = parser.parse_args()
    strange = sorted(set(options.only) - {method.name for method in METHODS})
    if strange:
        parser.error(f"there is no method {strange[0]!r}: {', '.join(repr(method.name) for method in METHODS)}")
    options.threads = list(dict.fromkeys(options.threads))
    measure(options)


if __name__ == "__main__":
    main()
