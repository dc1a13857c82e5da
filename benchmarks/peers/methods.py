"""Who is compared: avcg's own methods in this process, peers each in an environment of its own."""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from exchange import Clock, Positions, Task, read_answers, write_task
from threadpoolctl import threadpool_limits

import avcg
from avcg.baselines.gradient import Schut
from avcg.baselines.robust_search import RobustSearch
from avcg.bench.hypotheses import HypothesesSource
from avcg.bench.problem import Problem
from avcg.explainers.base import Explainer
from avcg.io.scorer import Scorer
from avcg.method.query import Effort

_HERE = Path(__file__).parent
# What methods of avcg are given, as in benchmarks/recourse.toml.
RETRAINED = HypothesesSource("avcg.bench.hypotheses:retrained")
ENVIRONMENTS = _HERE / ".venvs"
_REPEATS, _ENOUGH_SECONDS = 5, 10.0
_COVERED = ("ok", "not_robust")

# From what `Own.fit` made, rows and the class positions wanted to answers, a line for each row that has one.
QueryOptions = Callable[[Any, pd.DataFrame, Positions], pd.DataFrame]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What came of asking a method.

    Attributes:
        answers: In the units of the rows, the index the position of the row; empty where it failed.
        asked: How many rows.
        fit_cpu: Processor seconds of what is done once, before any row is asked about.
        cpu: Processor seconds of all rows, user and system, all threads.
        wall: Wall seconds of all rows.
        versions: Of the packages of a peer.
        error: Why there are no answers; None: there are.
    """

    answers: pd.DataFrame
    asked: int
    fit_cpu: float = np.nan
    cpu: float = np.nan
    wall: float = np.nan
    versions: dict[str, Any] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True, eq=False)
class Stored:
    """An explainer on disk.

    Attributes:
        folder: Where it lies, with its graphs.
        fit_cpu: Processor seconds that training it took; NaN where that was done elsewhere.
    """

    folder: Path
    fit_cpu: float = np.nan


@dataclass(frozen=True, eq=False)
class Own:
    """A method of avcg.

    Attributes:
        name: As printed.
        fit: What is asked, given the problem, the stored explainer and how many threads it may use.
        ask: How it is asked.
        per_row: Whether it starts over for every row, alone or many side by side.
        most: Rows that it is asked about at most, where it takes one after the other and more of them say nothing new;
            None: the whole batch.
    """

    name: str
    fit: Callable[[Problem, Stored, int], Any]
    ask: QueryOptions
    per_row: bool = True
    most: int | None = None


@dataclass(frozen=True)
class Peer:
    """A method of others, asked by the script ``with_PACKAGE.py`` in the environment ``.venvs/PACKAGE``.

    Attributes:
        name: As printed.
        package: Whose.
        kind: What the script is told.
        most: As in `Own`; all of them take one row after the other.
        per_row: As in `Own`.
    """

    name: str
    package: str
    kind: str
    most: int = 100
    per_row: bool = True


def ask_own(method: Own, problem: Problem, stored: Stored, X: pd.DataFrame, target: Positions, threads: int) -> Outcome:
    """Fit and ask a method of avcg: once before the clock starts, then the median of a few times.

    Args:
        method: Which.
        problem: With training rows and hypotheses.
        stored: The explainer.
        X: The rows, the index their positions.
        target: The class positions wanted.
        threads: That it may use.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with threadpool_limits(threads), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "AVCG:", UserWarning)  # how well it answers is measured
            with Clock() as fitting:
                asked = method.fit(problem, stored, threads)
            method.ask(asked, X.iloc[:1], target[:1])
            clocks: list[Clock] = []
            while len(clocks) < _REPEATS and sum(clock.wall for clock in clocks) < _ENOUGH_SECONDS:
                with Clock() as clock:
                    answers = method.ask(asked, X, target)
                clocks.append(clock)
    except Exception as error:  # the others go on, and it is told
        return Outcome(pd.DataFrame(), len(X), error=f"{type(error).__name__}: {error}".splitlines()[0])
    finally:
        torch.set_num_threads(before)
    return Outcome(
        answers,
        len(X),
        fitting.cpu if method.per_row else stored.fit_cpu,
        statistics.median(clock.cpu for clock in clocks),
        statistics.median(clock.wall for clock in clocks),
    )


def ask_peer(method: Peer, task: Task, threads: int, seconds: float) -> Outcome:
    """Run a peer's script in its environment on the rows of a task; whatever happens there is told.

    Args:
        method: Which.
        task: Its rows have their positions for an index.
        threads: That it may use.
        seconds: Wall time after which it is stopped.
    """
    python = ENVIRONMENTS / method.package / "bin" / "python"
    reason = ENVIRONMENTS / f"{method.package}.failed"
    nothing = pd.DataFrame(columns=task.names)
    if not python.exists() or reason.exists():
        why = reason.read_text().strip() if reason.exists() else f"run benchmarks/peers/setup.sh {method.package}"
        return Outcome(nothing, len(task.rows), error=f"not installed: {why}")
    command = [str(python), str(_HERE / f"with_{method.package}.py")]
    return run_script(command, method.kind, task, threads, seconds)


def run_script(command: Sequence[str], kind: str, task: Task, threads: int, seconds: float) -> Outcome:
    """Run a command that reads a task and writes answers; see `exchange`."""
    nothing, asked = pd.DataFrame(columns=task.names), len(task.rows)
    limits = {f"{library}_NUM_THREADS": str(threads) for library in ("OMP", "MKL", "OPENBLAS")}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_task(folder, task)
        try:
            done = subprocess.run(
                [*command, str(folder), kind], capture_output=True, text=True, timeout=seconds,
                env={**os.environ, **limits}, cwd=folder,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Outcome(nothing, asked, error=f"stopped after {seconds:g} s")
        except OSError as error:
            return Outcome(nothing, asked, error=f"cannot be started: {error}")
        if done.returncode:
            last = (done.stderr.strip() or "it said nothing").splitlines()[-1]
            return Outcome(nothing, asked, error=f"exit status {done.returncode}: {last}")
        try:
            answers, report = read_answers(folder, task.columns)
        except (OSError, ValueError, KeyError) as error:
            return Outcome(nothing, asked, error=f"its answers cannot be read: {type(error).__name__}: {error}")
    if report["error"] is not None:
        return Outcome(nothing, asked, versions=report["versions"], error=report["error"])
    if not answers.index.is_unique or not answers.index.isin(range(asked)).all():
        return Outcome(nothing, asked, error="its answers are to rows that nobody asked about, or twice to one")
    placed = answers.set_axis(task.rows.index[answers.index])
    return Outcome(placed, asked, report["fit_cpu"], report["cpu"], report["wall"], report["versions"])


def _generate(effort: Effort = "standard") -> QueryOptions:
    """Frame to frame, all rows at once, with status and certificate."""

    def ask(explainer: Explainer, X: pd.DataFrame, target: Positions) -> pd.DataFrame:
        found = explainer.generate(X, explainer.classes_[target], effort=effort)
        return found.answers[np.isin(found.statuses, _COVERED)]

    return ask


def _one_by_one(explainer: Explainer, X: pd.DataFrame, target: Positions) -> pd.DataFrame:
    """Frame to frame, each row by itself."""
    ask = _generate()
    return pd.concat([ask(explainer, X.iloc[[i]], target[[i]]) for i in range(len(X))])


def _by_scorer(scorer: Scorer, X: pd.DataFrame, target: Positions) -> pd.DataFrame:
    """Frame to frame through plain values, as the service answers."""
    rows: list[Any] = X.astype(object).to_dict("records")
    found = scorer.answer(rows, np.asarray(scorer.classes)[target].tolist(), effort="fast")
    answered = [i for i, row in enumerate(found) if row.status in _COVERED]
    return pd.DataFrame([dict(found[i].options[0].row) for i in answered], X.index[answered], columns=X.columns)


def _load(_: Problem, stored: Stored, __: int) -> Explainer:
    return avcg.load(stored.folder)


def _open(_: Problem, stored: Stored, threads: int) -> Scorer:
    return Scorer(stored.folder, threads=threads)


def _search(probability: float) -> Callable[[Problem, Stored, int], Explainer]:
    def fit(problem: Problem, _: Stored, __: int) -> Explainer:
        descent = replace(RobustSearch.usual, probability=probability)
        hypotheses = problem.hypotheses(RETRAINED, None)
        return RobustSearch(hypotheses, descent=descent, random_state=problem.seed).fit(problem.X_train)

    return fit


def _schut(problem: Problem, _: Stored, __: int) -> Explainer:
    return Schut(problem.hypotheses(RETRAINED, None), random_state=problem.seed).fit(problem.X_train)


# Two ways to ask the same explainer; the others are compared with the one that is faster.
OURS = ("AVCG", "AVCG, scorer")
METHODS: tuple[Own | Peer, ...] = (
    Own(OURS[0], _load, _generate("fast"), per_row=False),
    Own(OURS[1], _open, _by_scorer, per_row=False),
    Own("AVCG, refined", _load, _generate("standard"), per_row=False),
    Own("robust search to 0.7", _search(0.7), _generate()),
    Own("robust search to 0.9", _search(0.9), _generate()),
    Own("robust search to 0.7, one by one", _search(0.7), _one_by_one, most=20),
    Own("Schut et al.", _schut, _generate()),
    Own("Schut et al., one by one", _schut, _one_by_one, most=100),
    Peer("ElliCE, ε = 0.01", "ellice", "0.01"),
    Peer("ElliCE, ε = 0.001", "ellice", "0.001"),
    Peer("NICE, sparsity", "nice", "sparsity", most=1000),
    Peer("NICE, proximity", "nice", "proximity", most=1000),
    Peer("DiCE, random", "dice", "random"),
    Peer("DiCE, genetic", "dice", "genetic", most=50),
    Peer("DiCE, gradient", "dice", "gradient", most=20),
)
