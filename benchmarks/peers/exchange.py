"""What a peer is handed, and what it hands back: plain files, read with numpy and pandas alone.

A folder holds the model (``model.npz``), what the columns are and what may change (``task.json``), the training rows
and the rows to explain in their own units (``train.csv``, ``rows.csv``). A peer writes ``answers.csv``, a line for each
row that it has an answer to, and ``report.json``. Peers run in environments of their own, where avcg is not installed:
nothing here may import it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Codes = NDArray[np.float32]
Positions = NDArray[np.int64]
Layers = Sequence[tuple[Codes, Codes]]
_TASK, _MODEL, _TRAIN, _ROWS, _ANSWERS, _REPORT = (
    "task.json", "model.npz", "train.csv", "rows.csv", "answers.csv", "report.json"
)  # fmt: skip
_ROW, _LABEL, _TARGET = "row", "label", "target"


@dataclass(frozen=True)
class Column:
    """One column in its own units, and how the model reads it.

    Attributes:
        name: In the frames.
        categories: Its values, one code each, in this order; None: a number, which has one code.
        center: Taken from a number;
        scale: what is left is divided by it.
        low: Lowest value that an answer may have.
        high: Highest.
        whole: Whether only whole numbers make sense.
        change: ``"any"``, ``"up"``, ``"down"`` or ``"none"``.
        allowed: The categories that an answer may move to; None for numbers.
    """

    name: str
    categories: tuple[Any, ...] | None
    center: float = 0.0
    scale: float = 1.0
    low: float = 0.0
    high: float = 0.0
    whole: bool = False
    change: str = "any"
    allowed: tuple[Any, ...] | None = None

    @property
    def width(self) -> int:
        """How many codes it has."""
        return 1 if self.categories is None else len(self.categories)


@dataclass(frozen=True, eq=False)
class Task:
    """A model, rows to explain and everything a peer may know about them.

    Attributes:
        columns: In the order of the frames.
        classes: The labels.
        layers: Weights (out, in) and biases of linear layers with ReLU between them, from codes to logits.
        train: Training rows.
        labels: Their class positions.
        rows: To explain.
        target: The class position wanted for each.
    """

    columns: tuple[Column, ...]
    classes: tuple[str, ...]
    layers: Layers
    train: pd.DataFrame
    labels: Positions
    rows: pd.DataFrame
    target: Positions

    @property
    def names(self) -> list[str]:
        """Of the columns."""
        return [column.name for column in self.columns]

    @property
    def free(self) -> list[str]:
        """The columns that may change at all."""
        return [column.name for column in self.columns if column.change != "none"]

    @cached_property
    def slices(self) -> list[slice]:
        """Where the codes of each column are."""
        ends = np.cumsum([column.width for column in self.columns]).tolist()
        return [slice(end - column.width, end) for column, end in zip(self.columns, ends, strict=True)]

    def encode(self, frame: pd.DataFrame) -> Codes:
        """(B, D) codes of rows in their own units."""
        return self.encode_values(self.values(frame))

    def values(self, frame: pd.DataFrame) -> NDArray[np.float64]:
        """(B, columns) numbers as they are and categories as positions.

        Raises:
            ValueError: If there is a category that the column does not have.
        """
        found = np.empty((len(frame), len(self.columns)))
        for j, column in enumerate(self.columns):
            if column.categories is None:
                found[:, j] = frame[column.name].to_numpy(np.float64)
                continue
            positions = frame[column.name].astype(object).map(self._places[j]).to_numpy(np.float64)
            if np.isnan(positions).any():
                strange = frame[column.name][np.isnan(positions)].iloc[0]
                raise ValueError(f"Column {column.name!r} has no category {strange!r}.")
            found[:, j] = positions
        return found

    @cached_property
    def _places(self) -> list[dict[Any, int]]:
        """For each column, the positions of its categories, by their values and by their texts."""
        every = [list(enumerate(column.categories or ())) for column in self.columns]
        return [{**{str(value): i for i, value in pairs}, **{value: i for i, value in pairs}} for pairs in every]

    def encode_values(self, values: NDArray[Any]) -> Codes:
        """(B, D) codes of (B, columns) values as `values` has them."""
        numbers, choices, center, scale = self._layout
        starts = np.array([block.start for block in self.slices])
        codes = np.zeros((len(values), self.slices[-1].stop), np.float32)
        codes[:, starts[numbers]] = (values[:, numbers].astype(np.float64) - center) / scale
        codes[np.arange(len(values))[:, None], starts[choices] + values[:, choices].astype(np.int64)] = 1.0
        return codes

    @cached_property
    def _layout(self) -> tuple[list[int], list[int], NDArray[np.float64], NDArray[np.float64]]:
        """Which columns are numbers, which are categories, and the scaling of the former."""
        numbers = [j for j, column in enumerate(self.columns) if column.categories is None]
        choices = [j for j, column in enumerate(self.columns) if column.categories is not None]
        center = np.array([self.columns[j].center for j in numbers])
        return numbers, choices, center, np.array([self.columns[j].scale for j in numbers])

    def frame_of(self, values: NDArray[Any]) -> pd.DataFrame:
        """(B, columns) values as `values` has them, back in their own units."""
        found = {}
        for j, column in enumerate(self.columns):
            if column.categories is None:
                found[column.name] = values[:, j].astype(np.float64)
            else:
                named = np.array(column.categories, object)
                found[column.name] = named[values[:, j].astype(np.int64)]
        return pd.DataFrame(found)

    def probabilities(self, codes: Codes) -> NDArray[np.float32]:
        """(B, C) what the model says."""
        x = codes
        for i, (weight, bias) in enumerate(self.layers):
            x = x @ weight.T + bias
            if i < len(self.layers) - 1:
                x = np.maximum(x, 0.0)
        x = np.exp(x - x.max(axis=1, keepdims=True))
        return np.asarray(x / x.sum(axis=1, keepdims=True), np.float32)


def write_task(folder: Path, task: Task) -> None:
    """Everything a peer needs, into an empty folder."""
    folder.mkdir(parents=True, exist_ok=True)
    said = {"columns": [asdict(column) for column in task.columns], "classes": task.classes, "layers": len(task.layers)}
    (folder / _TASK).write_text(json.dumps(said, indent=1))
    arrays: dict[str, Any] = {f"weight{i}": weight for i, (weight, _) in enumerate(task.layers)}
    arrays |= {f"bias{i}": bias for i, (_, bias) in enumerate(task.layers)}
    np.savez(folder / _MODEL, **arrays)
    task.train.assign(**{_LABEL: task.labels}).to_csv(folder / _TRAIN, index=False)
    task.rows.assign(**{_TARGET: task.target}).to_csv(folder / _ROWS, index=False)


def read_task(folder: Path) -> Task:
    """What `write_task` wrote."""
    said = json.loads((folder / _TASK).read_text())
    columns = tuple(
        Column(**{**one, "categories": _listed(one["categories"]), "allowed": _listed(one["allowed"])})
        for one in said["columns"]
    )
    with np.load(folder / _MODEL, allow_pickle=False) as stored:
        layers = [(stored[f"weight{i}"], stored[f"bias{i}"]) for i in range(said["layers"])]
    train, labels = _read_rows(folder / _TRAIN, columns, _LABEL)
    rows, target = _read_rows(folder / _ROWS, columns, _TARGET)
    return Task(columns, tuple(said["classes"]), layers, train, labels, rows, target)


def _listed(values: list[Any] | None) -> tuple[Any, ...] | None:
    return None if values is None else tuple(values)


def write_answers(folder: Path, answers: pd.DataFrame, report: Mapping[str, Any]) -> None:
    """What a peer found: the index says which rows the answers are to."""
    answers.rename_axis(_ROW).to_csv(folder / _ANSWERS)
    (folder / _REPORT).write_text(json.dumps(dict(report), indent=1))


def read_answers(folder: Path, columns: Sequence[Column]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """What `write_answers` wrote: none where there was an error. Categories that there are not stay as written."""
    report = json.loads((folder / _REPORT).read_text())
    if report["error"] is not None:
        return pd.DataFrame(columns=[column.name for column in columns]), report
    answers, rows = _read_rows(folder / _ANSWERS, columns, _ROW)
    return answers.set_axis(rows), report


def _read_rows(path: Path, columns: Sequence[Column], more: str) -> tuple[pd.DataFrame, Positions]:
    """Rows in their own units, and the column of whole numbers beside them."""
    written = pd.read_csv(path, dtype=str, keep_default_na=False)
    found: dict[str, Any] = {}
    for column in columns:
        texts = written[column.name]
        if column.categories is None:
            numbers = pd.to_numeric(texts, errors="coerce").astype(np.float64)
            exact = column.whole and bool((numbers == np.rint(numbers)).all())
            found[column.name] = numbers.astype(np.int64) if exact else numbers
        else:
            named = {str(value): value for value in column.categories}
            found[column.name] = pd.Series([named.get(text, text) for text in texts], dtype=object)
    return pd.DataFrame(found), written[more].to_numpy(np.int64)


# From rows and the class positions wanted to answers: a line for each row that has one, the index as in the rows.
Explain = Callable[[pd.DataFrame, Positions], pd.DataFrame]
# From a task and a kind of the method to that.
Prepare = Callable[[Task, str], Explain]


def run_peer(prepare: Prepare, packages: Sequence[str]) -> None:
    """The main program of a peer: read a task, explain its rows under a clock, write answers.

    Preparing is timed by itself, and one row is explained before the clock starts. What goes wrong is written down too.

    Args:
        prepare: Of the peer.
        packages: Whose versions are reported.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("kind")
    options = parser.parse_args()
    versions = {"python": platform.python_version(), **{name: _version(name) for name in packages}}
    report: dict[str, Any] = {"versions": versions, "threads": os.environ.get("OMP_NUM_THREADS")}
    answers = pd.DataFrame()
    try:
        task = read_task(options.folder)
        with Clock() as fitting:
            explain = prepare(task, options.kind)
        explain(task.rows.iloc[:1], task.target[:1])
        with Clock() as explaining:
            answers = explain(task.rows, task.target)
        report |= {"fit_cpu": fitting.cpu, "cpu": explaining.cpu, "wall": explaining.wall, "error": None}
    except Exception as error:  # whatever it is, it is the result
        report["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
        traceback.print_exc(file=sys.stderr)
    write_answers(options.folder, answers, report)


class Clock:
    """Processor seconds (user and system, all threads) and wall seconds of a ``with`` block."""

    cpu = wall = 0.0

    def __enter__(self) -> Clock:
        self._cpu, self._wall = time.process_time(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.cpu, self.wall = time.process_time() - self._cpu, time.perf_counter() - self._wall


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
