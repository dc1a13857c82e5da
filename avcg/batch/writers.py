"""Writing answers as CSV, as one JSON document, or as lines of JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
import pandas as pd

from avcg.batch.columns import AnsweredRows, cell_text, result_names
from avcg.batch.readers import Rows
from avcg.errors import DataError
from avcg.explainers.counterfactuals import Counterfactuals
from avcg.explainers.records import VOTES, votes_in_words
from avcg.guarantees.certificate import Certificate
from avcg.space.serialize import to_json

MAX_JSON_ROWS = 200_000  # answered rows in one JSON document, which is held in memory


class Writer(Protocol):
    """An open file of answers."""

    def add(self, blocks: Sequence[AnsweredRows]) -> None:
        """Write answers."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class CsvAnswers:
    """An open CSV file of answers.

    Args:
        path: Path of the file.
        source: File of the rows, whose columns come first.
    """

    def __init__(self, path: Path, source: Rows) -> None:
        self._file = path.open("w", encoding="utf-8", newline="")
        self._lines = csv.writer(self._file, lineterminator="\n")
        self._lines.writerow([*source.columns, *result_names(source.columns).values()])

    def add(self, blocks: Sequence[AnsweredRows]) -> None:
        """Write answers."""
        for block in blocks:
            results = [[cell_text(value) for value in values] for values in block.results().values()]
            self._lines.writerows(zip(*block.texts().values(), *results, strict=True))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


class JsonAnswers:
    """A JSON document as `Counterfactuals.to_json` writes it, collected in memory and written at the end.

    Args:
        path: Path of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._parts, self._rows = path, list[Counterfactuals](), 0

    def add(self, blocks: Sequence[AnsweredRows]) -> None:
        """Collect answers.

        Raises:
            DataError: If there are more than `MAX_JSON_ROWS` rows.
        """
        self._parts += [block.answers for block in blocks]
        self._rows += sum(len(block.answers) for block in blocks)
        if self._rows > MAX_JSON_ROWS:
            raise DataError(
                f"A JSON document holds the answers to at most {MAX_JSON_ROWS:,} rows, and there are more. Write them"
                " to .csv or .parquet instead."
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            return
        if not self._parts:
            raise DataError(
                "Every row has the outcome already, and a JSON document needs at least one answer. Add --all, or write"
                " to .csv or .parquet."
            )
        self._path.write_text(concatenate(self._parts).to_json(), encoding="utf-8")


def concatenate(parts: Sequence[Counterfactuals]) -> Counterfactuals:
    """Answers of several queries with the same options as those of one query."""
    first = parts[0]
    names = ("target", "statuses", "probability", "probability_before", "distance", "changed", "repeated")
    arrays: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    certificate = first.certificate
    if certificate is not None:
        certificates = [part.certificate for part in parts]
        values = {field.name: getattr(certificate, field.name) for field in fields(Certificate)}
        for name, value in values.items():
            if isinstance(value, np.ndarray):
                values[name] = np.concatenate([getattr(part, name) for part in certificates])
        certificate = Certificate(**values)
    return Counterfactuals(
        factuals=pd.concat([part.factuals for part in parts]),
        answers=pd.concat([part.answers for part in parts]),
        n=first.n,
        certificate=certificate,
        survival=first.survival,
        statements=tuple(dict.fromkeys(statement for part in parts for statement in part.statements)),
        groups=first.groups,
        **arrays,
    )


def json_lines(block: AnsweredRows) -> Iterator[str]:
    """Each answer as a line of JSON.

    It has the result columns, what the held-out models say of the answer and what is promised in words, target, changes
    and values, and the columns that are not in the model.
    """
    results, answers = block.results(), block.answers
    statements = {statement.target: statement.to_dict() for statement in answers.statements}
    values = {name: answers.answers[name].tolist() for name in answers.answers}
    carried = {name: block.original_cells(name) for name in block.names if name not in values}
    for i, changes in enumerate(block.changes):
        line = {name: to_json(column[i]) for name, column in results.items()}
        line["agreement"] = votes_in_words(*(line[name] for name in VOTES))
        line["target"] = to_json(answers.target[i // answers.n])
        line["statement"] = statements.get(line["target"])
        line["changes"] = {name: list(change) for name, change in changes.items()}
        line["values"] = {name: to_json(column[i]) for name, column in values.items()}
        line["carried"] = {name: to_json(column[i]) for name, column in carried.items()}
        yield json.dumps(line, allow_nan=False, default=str)
