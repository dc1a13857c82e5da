"""Answers to some rows of a table: what was asked with only the changed cells replaced, and beside it how it went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from avcg.batch.chunks import GAPS, ArrowPiece, Reading, TextPiece, arrow, plain_array, whole_number
from avcg.errors import DataError
from avcg.explainers.counterfactuals import Counterfactuals
from avcg.space.encoding import Positions
from avcg.space.serialize import to_json

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
                result[i][name] = to_json(old), to_json(new)
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
        return {name: self._texts(name) for name in self.piece.cells}

    def _texts(self, name: str) -> list[str]:
        """(N,) the cells of a column of a CSV file."""
        texts, at = self.carried(name), self.changed(name)
        new = self.found.answers[name].iloc[at].tolist() if len(at) else []
        for i, value in zip(at, new, strict=True):
            texts[i] = _like(texts[i], to_json(value))
        return texts

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
                if readings[name] == "whole" and values.dtype.kind == "f":  # gaps made floats of them: read them again
                    values = [None if text in GAPS else whole_number(text) for text in self._texts(name)]
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
        try:
            cells = pa.array(self.found.answers[name].iloc[at].to_numpy()).cast(array.type)
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


def own_names(columns: Sequence[str], *, numbered: bool = True) -> dict[str, str]:
    """What the columns of `OWN` are called beside others: by another name where one is taken.

    Small and capital letters are taken for the same, as SQL does.

    Args:
        columns: The others.
        numbered: Whether rows have a place in a file to be called by.

    >>> own_names(["Status"])["status"]
    'avcg_status'
    """
    taken, names = {name.lower() for name in columns}, {}
    for name in OWN:
        names[name] = name
        while names[name] in taken:
            names[name] = f"avcg_{names[name]}"
    return names if numbered else {name: called for name, called in names.items() if name != "row"}


@dataclass(frozen=True, eq=False)
class Layout:
    """A table of answers: the columns of the rows in their own types, then those of `OWN`.

    Attributes:
        schema: Of pyarrow.
        own: The columns of `OWN` that it has.
        readings: Of columns that come from CSV.
    """

    schema: Any
    own: tuple[str, ...]
    readings: Mapping[str, Reading] | None = None

    @classmethod
    def of_arrow(cls, rows: Any, *, numbered: bool = True) -> Layout:
        """Beside rows with a schema of pyarrow, which is kept with all that is noted in it.

        Args:
            rows: Their schema.
            numbered: Whether each has a place in a file to be called by.
        """
        names = own_names(rows.names, numbered=numbered)
        more = [arrow().field(called, getattr(arrow(), OWN[name])()) for name, called in names.items()]
        return cls(arrow().schema([*rows, *more], metadata=rows.metadata), tuple(names))

    @classmethod
    def of_texts(cls, columns: Sequence[str], readings: Mapping[str, Reading]) -> Layout:
        """Beside rows of a CSV file.

        Args:
            columns: Of the file.
            readings: Of those that are more than texts.
        """
        kinds = {name: _ARROW[readings[name]] if name in readings else "string" for name in columns}
        rows = arrow().schema([(name, getattr(arrow(), kind)()) for name, kind in kinds.items()])
        return replace(cls.of_arrow(rows), readings=readings)

    def table(self, blocks: Sequence[Answered]) -> Any:
        """Answers as a table of pyarrow."""
        pa, kinds = arrow(), self.schema.types
        tables = []
        for block in blocks:
            own = block.own()
            columns = [*block.columns(self.readings).values(), *(own[name] for name in self.own)]
            arrays = [pa.array(c, type=k) if isinstance(c, list) else c for c, k in zip(columns, kinds, strict=True)]
            tables.append(pa.Table.from_arrays(arrays, schema=self.schema))
        return pa.concat_tables(tables) if tables else self.schema.empty_table()
