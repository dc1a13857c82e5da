"""Answers as rows of a CSV file, as one JSON document, and as lines of JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import numpy as np
import pandas as pd

from avcg.batch.columns import Answered, own_names, written
from avcg.batch.readers import Rows
from avcg.errors import DataError
from avcg.explainers.counterfactuals import Counterfactuals
from avcg.guarantees.certificate import Certificate
from avcg.space.serialize import to_json

MOST_JSON = 200_000  # rows of answers that are put together in memory


class Writer(Protocol):
    """A file of answers that is being written."""

    def add(self, blocks: Sequence[Answered]) -> None:
        """More answers."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class CsvAnswers:
    """Answers as CSV.

    Args:
        path: Of the file.
        source: Whose columns come first.
    """

    def __init__(self, path: Path, source: Rows) -> None:
        self._columns, self._own = source.columns, own_names(source.columns)
        self._file = path.open("w", encoding="utf-8", newline="")
        self._lines = csv.writer(self._file, lineterminator="\n")
        self._lines.writerow([*self._columns, *self._own.values()])

    def add(self, blocks: Sequence[Answered]) -> None:
        """More answers."""
        for block in blocks:
            own = [[written(value) for value in values] for values in block.own().values()]
            self._lines.writerows(zip(*block.texts().values(), *own, strict=True))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


class JsonAnswers:
    """Answers as `Counterfactuals.to_json` writes them, put together in memory.

    Args:
        path: Of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._parts, self._rows = path, list[Counterfactuals](), 0

    def add(self, blocks: Sequence[Answered]) -> None:
        """More answers.

        Raises:
            DataError: If there are more than fit.
        """
        self._parts += [block.found for block in blocks]
        self._rows += sum(len(block.found) for block in blocks)
        if self._rows > MOST_JSON:
            raise DataError(
                f"More than {MOST_JSON:,} rows want an answer, too many for one JSON document. Write them to .csv or"
                " .parquet instead."
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            return
        if not self._parts:
            raise DataError("No row wants an answer, and a JSON document of none cannot be written. Say --all.")
        self._path.write_text(merged(self._parts).to_json(), encoding="utf-8")


def merged(parts: Sequence[Counterfactuals]) -> Counterfactuals:
    """Answers one after the other, as if they had been asked for at once."""
    first = parts[0]
    arrays = ("target", "statuses", "probability", "probability_before", "distance", "changed", "repeated")
    joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in arrays}
    sure = first.certificate
    if sure is not None:
        each = [part.certificate for part in parts]
        values = {one.name: getattr(sure, one.name) for one in fields(Certificate)}
        for name, value in values.items():
            if isinstance(value, np.ndarray):
                values[name] = np.concatenate([getattr(one, name) for one in each])
        sure = Certificate(**values)
    return Counterfactuals(
        factuals=pd.concat([part.factuals for part in parts]),
        answers=pd.concat([part.answers for part in parts]),
        n=first.n,
        certificate=sure,
        survival=first.survival,
        **joined,
    )


def records(block: Answered) -> Iterator[str]:
    """Each answer as a line of JSON: how it went, its target and changes, its values, and what was carried along."""
    own, found = block.own(), block.found
    values = {name: found.answers[name].tolist() for name in found.answers}
    carried = {name: block.carried(name) for name in block.names if name not in values}
    for i, changes in enumerate(block.changes):
        line = {name: to_json(column[i]) for name, column in own.items()}
        line["target"] = to_json(found.target[i // found.n])
        line["changes"] = {name: list(change) for name, change in changes.items()}
        line["values"] = {name: to_json(column[i]) for name, column in values.items()}
        line["carried"] = {name: to_json(column[i]) for name, column in carried.items()}
        yield json.dumps(line, allow_nan=False, default=str)
