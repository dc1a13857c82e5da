"""Answers as rows of a file: what was asked with only the changed cells replaced, and beside it how it went."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
import pandas as pd

from avcg.answers import Counterfactuals
from avcg.certificates import Certificate
from avcg.commands.row_files import Rows
from avcg.commands.row_pieces import ArrowPiece, Reading, TextPiece, arrow, plain_array
from avcg.encoding import Positions
from avcg.errors import AvcgError, DataError
from avcg.outputs import beside
from avcg.tables import plain

MOST_JSON = 200_000  # rows of answers that are put together in memory
# How an answer went, with the type that parquet gives it.
OWN = {
    "row": "int64",
    "answer": "int64",
    "status": "string",
    "probability_before": "float64",
    "probability": "float64",
    "distance": "float64",
    "n_changes": "int64",
    "changes": "string",
    "agreeing": "int64",
    "n_models": "int64",
    "lower_bound": "float64",
}
_ARROW: Mapping[Reading, str] = {"whole": "int64", "decimal": "float64", "flag": "bool_", "text": "string"}


@dataclass(frozen=True, eq=False)
class Answered:
    """Answers to some rows of a piece.

    Attributes:
        piece: As it lies in the file.
        places: (B,) which of its rows were asked.
        found: Their answers.
    """

    piece: TextPiece | ArrowPiece
    places: Positions
    found: Counterfactuals

    @cached_property
    def each(self) -> Positions:
        """(N,) the row of the piece that each answer is for."""
        return self.places.repeat(self.found.n)

    @property
    def names(self) -> list[str]:
        """The columns of the file."""
        return list(self.piece.cells if isinstance(self.piece, TextPiece) else self.piece.table.column_names)

    def own(self) -> dict[str, list[Any]]:
        """By the names of `OWN`, a value for each answer; None where there is no certificate."""
        found, sure = self.found, self.found.certificate
        count, total = found.n, len(found.statuses)
        nothing = [None] * total
        return {
            "row": (self.piece.start + self.each).tolist(),
            "answer": list(range(count)) * len(found),
            "status": found.statuses.tolist(),
            "probability_before": found.probability_before.repeat(count).tolist(),
            "probability": found.probability.tolist(),
            "distance": found.distance.tolist(),
            "n_changes": [len(changes) for changes in self.changes],
            "changes": ["; ".join(_worded(*change) for change in changes.items()) for changes in self.changes],
            "agreeing": nothing if sure is None else sure.agreeing.tolist(),
            "n_models": nothing if sure is None else [sure.n] * total,
            "lower_bound": nothing if sure is None else sure.lower_bound.tolist(),
        }

    @cached_property
    def changes(self) -> list[dict[str, tuple[Any, Any]]]:
        """(N,) by column, what it was and what it becomes."""
        assert self.found.changed is not None
        result: list[dict[str, tuple[Any, Any]]] = [{} for _ in self.found.statuses]
        for j, name in enumerate(self.found.factuals.columns):
            at = np.flatnonzero(self.found.changed[:, j])
            before = self.found.factuals[name].iloc[at // self.found.n].tolist()
            after = self.found.answers[name].iloc[at].tolist()
            for i, old, new in zip(at, before, after, strict=True):
                result[i][name] = plain(old), plain(new)
        return result

    def changed(self, name: str) -> Positions:
        """(M,) which answers change a column."""
        columns = list(self.found.factuals.columns)
        if name not in columns or self.found.changed is None:
            return np.zeros(0, np.intp)
        return np.flatnonzero(self.found.changed[:, columns.index(name)])

    def texts(self) -> dict[str, list[str]]:
        """By column of the file, every cell as a text; those that no answer changes as they were written."""
        if isinstance(self.piece, ArrowPiece):
            table = self.columns(None)
            return {name: [written(value) for value in column.to_pylist()] for name, column in table.items()}
        result = {}
        for name, cells in self.piece.cells.items():
            texts = [cells[i] for i in self.each.tolist()]
            at = self.changed(name)
            new = self.found.answers[name].iloc[at].tolist() if len(at) else []
            for i, value in zip(at, new, strict=True):
                texts[i] = _like(texts[i], plain(value))
            result[name] = texts
        return result

    def carried(self, name: str) -> list[Any]:
        """(N,) the cells of a column that no answer knows."""
        if isinstance(self.piece, TextPiece):
            return [self.piece.cells[name][i] for i in self.each.tolist()]
        return list(self._replaced(name).to_pylist())

    def columns(self, readings: Mapping[str, Reading] | None) -> dict[str, Any]:
        """By column of the file, an array of pyarrow.

        Args:
            readings: Of the columns of a CSV file; all others are texts.
        """
        if isinstance(self.piece, ArrowPiece):
            return {name: self._replaced(name) for name in self.piece.table.column_names}
        assert readings is not None
        result = {}
        for name in self.names:
            if name in readings:
                values, kind = self.found.answers[name], getattr(arrow(), _ARROW[readings[name]])()
                result[name] = arrow().array(values, type=kind, from_pandas=True)
            else:
                result[name] = arrow().array(self.carried(name), type=arrow().string())
        return result

    def _replaced(self, name: str) -> Any:
        """A column of a parquet file with the changed cells replaced."""
        assert isinstance(self.piece, ArrowPiece)
        pa, at = arrow(), self.changed(name)
        whole = self.piece.table.column(name).take(pa.array(self.each))
        if not len(at):
            return whole.combine_chunks()
        array, mask = plain_array(whole), np.zeros(len(whole), bool)
        mask[at] = True
        new = [plain(value) for value in self.found.answers[name].iloc[at].tolist()]
        try:
            cells = pa.array(new).cast(array.type)
        except pa.ArrowException as error:
            raise DataError(
                f"{self.piece.name}: column {name!r} is of type {array.type} and cannot hold its answers: {error}"
            ) from None
        result = pa.compute.replace_with_mask(array, pa.array(mask), cells)
        return result if result.type == whole.type else result.cast(whole.type)


def written(value: Any) -> str:
    """A value as a CSV file holds it."""
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)


def _worded(name: str, change: tuple[Any, Any]) -> str:
    before, after = ("missing" if value is None else written(value) for value in change)
    return f"{name}: {before} -> {after}"


def _like(before: str, value: Any) -> str:
    """A new cell in the manner of the one that it replaces: true beside true, TRUE beside TRUE."""
    if isinstance(value, bool):
        return str(value).lower() if before.islower() else str(value).upper() if before.isupper() else str(value)
    return written(value)


def own_names(columns: Sequence[str]) -> dict[str, str]:
    """What the columns of `OWN` are called beside others: by another name where one is taken.

    >>> own_names(["status"])["status"]
    'avcg_status'
    """
    names = {}
    for name in OWN:
        names[name] = name
        while names[name] in columns:
            names[name] = f"avcg_{names[name]}"
    return names


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


class ParquetAnswers:
    """Answers as parquet.

    Args:
        path: Of the file.
        source: Whose columns come first, in their own types.
        readings: The types of columns that come from CSV.
    """

    def __init__(self, path: Path, source: Rows, readings: Mapping[str, Reading]) -> None:
        pa = arrow()
        self._readings = readings
        kinds = getattr(source, "schema", None)
        if kinds is None:
            texts = {name: _ARROW[readings[name]] if name in readings else "string" for name in source.columns}
            kinds = pa.schema([(name, getattr(pa, kind)()) for name, kind in texts.items()])
        own = own_names(source.columns)
        more = [pa.field(own[name], getattr(pa, kind)()) for name, kind in OWN.items()]
        self._schema = pa.schema([*kinds, *more])
        self._file = pa.parquet.ParquetWriter(path, self._schema)

    def add(self, blocks: Sequence[Answered]) -> None:
        """More answers, as one group of rows."""
        pa, kinds = arrow(), self._schema.types
        tables = []
        for block in blocks:
            columns = [*block.columns(self._readings).values(), *block.own().values()]
            arrays = [pa.array(c, type=k) if isinstance(c, list) else c for c, k in zip(columns, kinds, strict=True)]
            tables.append(pa.Table.from_arrays(arrays, schema=self._schema))
        if tables:
            self._file.write_table(pa.concat_tables(tables))

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
        line = {name: plain(column[i]) for name, column in own.items()}
        line["target"] = plain(found.target[i // found.n])
        line["changes"] = {name: list(change) for name, change in changes.items()}
        line["values"] = {name: plain(column[i]) for name, column in values.items()}
        line["carried"] = {name: plain(column[i]) for name, column in carried.items()}
        yield json.dumps(line, allow_nan=False, default=str)


@contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """A hidden file beside the target to write to; it takes the target's place if all goes well, else it goes.

    Raises:
        DataError: If it cannot be written, with the reason.
    """
    try:
        with beside(target) as half:
            yield half
    except OSError as error:
        if isinstance(error, (AvcgError, BrokenPipeError)):  # of a terminal that reads no more
            raise
        raise DataError(f"{target} cannot be written: {error.strerror or error}.") from None
