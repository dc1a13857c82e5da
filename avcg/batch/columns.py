"""Tables of answers: the rows of a file with their changed cells replaced, and columns that describe each answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from avcg.batch.chunks import (
    MISSING_TEXTS,
    ArrowChunk,
    CellType,
    Chunk,
    TextChunk,
    decoded_array,
    load_pyarrow,
    parse_integer,
)
from avcg.errors import DataError
from avcg.explainers.counterfactuals import Counterfactuals
from avcg.schema.features import columns_of
from avcg.space.encoding import Positions
from avcg.space.serialize import to_json

# Columns that describe an answer, with their types in parquet files.
RESULT_COLUMNS = {
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
    "agreeing_test": "int64",
    "n_test": "int64",
    "lower_bound": "float64",
    "accepting_unchanged": "int64",
    "harmed": "int64",
}
_ARROW_TYPES: Mapping[CellType, str] = {
    "integer": "int64",
    "number": "float64",
    "boolean": "bool_",
    "text": "string",
    "flag": "int64",
}


@dataclass(frozen=True, eq=False)
class AnsweredRows:
    """Answers to some rows of a chunk.

    Attributes:
        chunk: Rows as they are in the file.
        positions: (B,) positions in the chunk of the rows that were answered.
        answers: Their answers.
    """

    chunk: Chunk
    positions: Positions
    answers: Counterfactuals

    @cached_property
    def row_of_answer(self) -> Positions:
        """(N,) position in the chunk of the row that each answer belongs to."""
        return self.positions.repeat(self.answers.n)

    @property
    def names(self) -> list[str]:
        """Names of the columns of the file."""
        return list(self.chunk.cells if isinstance(self.chunk, TextChunk) else self.chunk.table.column_names)

    def results(self) -> dict[str, list[Any]]:
        """Values of each of `RESULT_COLUMNS`, one for each answer; None where there is no certificate."""
        answers, certificate = self.answers, self.answers.certificate
        n, total = answers.n, len(answers.statuses)
        nothing = [None] * total
        return {
            "row": (self.chunk.start + self.row_of_answer).tolist(),
            "answer": list(range(n)) * len(answers),
            "status": answers.statuses.tolist(),
            "probability_before": answers.probability_before.repeat(n).tolist(),
            "probability": answers.probability.tolist(),
            "distance": answers.distance.tolist(),
            "n_changes": [len(changes) for changes in self.changes],
            "changes": ["; ".join(_change_text(*change) for change in changes.items()) for changes in self.changes],
            "agreeing": nothing if certificate is None else certificate.agreeing.tolist(),
            "n_models": nothing if certificate is None else [certificate.n] * total,
            "agreeing_test": nothing if certificate is None else certificate.agreeing_test.tolist(),
            "n_test": nothing if certificate is None else [certificate.n_test] * total,
            "lower_bound": nothing if certificate is None else certificate.lower_bound.tolist(),
            **{
                name: nothing if (counts := getattr(certificate, name, None)) is None else counts.tolist()
                for name in ("accepting_unchanged", "harmed")
            },
        }

    @cached_property
    def changes(self) -> list[dict[str, tuple[Any, Any]]]:
        """(N,) old and new value of each changed column, by its name; several columns of one feature are one."""
        assert self.answers.changed is not None
        result: list[dict[str, tuple[Any, Any]]] = [{} for _ in self.answers.statuses]
        for j, name in enumerate(self.answers.entries):
            at = np.flatnonzero(self.answers.changed[:, j])
            if not len(at):
                continue
            before = self.answers.entry(self.answers.factuals.iloc[at // self.answers.n], name)
            after = self.answers.entry(self.answers.answers.iloc[at], name)
            for i, old, new in zip(at, before, after, strict=True):
                result[i][name] = old, new
        return result

    def changed(self, name: str) -> Positions:
        """(M,) positions of the answers that change a column."""
        group = next((feature.name for feature in self.answers.groups if name in columns_of(feature)), None)
        entry = name if group is None else group
        if entry not in self.answers.entries or self.answers.changed is None:
            return np.zeros(0, np.intp)
        at = np.flatnonzero(self.answers.changed[:, self.answers.entries.index(entry)])
        if group is None:
            return at
        before, after = self.answers.factuals[name].iloc[at // self.answers.n], self.answers.answers[name].iloc[at]
        return at[before.to_numpy() != after.to_numpy()]

    def texts(self) -> dict[str, list[str]]:
        """Every cell as a text, by column of the file. Cells that no answer changes are as they were written."""
        if isinstance(self.chunk, ArrowChunk):
            table = self.arrow_columns(None)
            return {name: [cell_text(value) for value in column.to_pylist()] for name, column in table.items()}
        return {name: self._texts(name) for name in self.chunk.cells}

    def _texts(self, name: str) -> list[str]:
        """(N,) the cells of a column of a CSV file."""
        texts, at = self.original_cells(name), self.changed(name)
        new = self.answers.answers[name].iloc[at].tolist() if len(at) else []
        for i, value in zip(at, new, strict=True):
            texts[i] = _in_case_of(texts[i], to_json(value))
        return texts

    def original_cells(self, name: str) -> list[Any]:
        """(N,) the cells of a column as they are in the file, one for each answer."""
        if isinstance(self.chunk, TextChunk):
            return [self.chunk.cells[name][i] for i in self.row_of_answer.tolist()]
        return list(self._arrow_column(name).to_pylist())

    def arrow_columns(self, cell_types: Mapping[str, CellType] | None) -> dict[str, Any]:
        """The columns of the file with changed cells replaced, as arrays of pyarrow.

        Args:
            cell_types: Types of the columns of a CSV file that are not texts; None for a parquet file.
        """
        if isinstance(self.chunk, ArrowChunk):
            return {name: self._arrow_column(name) for name in self.chunk.table.column_names}
        assert cell_types is not None
        pa, result = load_pyarrow(), {}
        for name in self.names:
            if name in cell_types:
                values, kind = self.answers.answers[name], getattr(pa, _ARROW_TYPES[cell_types[name]])()
                if cell_types[name] == "integer" and values.dtype.kind == "f":
                    # Missing values made floats of the integers, which lose digits: parse the texts again.
                    values = [None if text in MISSING_TEXTS else parse_integer(text) for text in self._texts(name)]
                if cell_types[name] == "flag" and values.dtype == object:  # 0, 1, false, true and missing side by side
                    values = [None if value is None else int(value) for value in values]
                result[name] = pa.array(values, type=kind, from_pandas=True)
            else:
                result[name] = pa.array(self.original_cells(name), type=pa.string())
        return result

    def _arrow_column(self, name: str) -> Any:
        """A column of a parquet file with the changed cells replaced."""
        assert isinstance(self.chunk, ArrowChunk)
        pa, at = load_pyarrow(), self.changed(name)
        column = self.chunk.table.column(name).take(pa.array(self.row_of_answer))
        if not len(at):
            return column.combine_chunks()
        array, mask = decoded_array(column), np.zeros(len(column), bool)
        mask[at] = True
        try:
            cells = pa.array(self.answers.answers[name].iloc[at].to_numpy()).cast(array.type)
        except pa.ArrowException as error:
            raise DataError(
                f"{self.chunk.name}: column {name!r} is of type {array.type} and cannot hold its answers: {error}"
            ) from None
        result = pa.compute.replace_with_mask(array, pa.array(mask), cells)
        return result if result.type == column.type else result.cast(column.type)


def cell_text(value: Any) -> str:
    """A value as it is written in a CSV file."""
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)


def _change_text(name: str, change: tuple[Any, Any]) -> str:
    before, after = ("missing" if value is None else cell_text(value) for value in change)
    return f"{name}: {before} -> {after}"


def _in_case_of(before: str, value: Any) -> str:
    """A new cell as text; booleans are in the case of the cell they replace (true, True or TRUE)."""
    if isinstance(value, bool):
        return str(value).lower() if before.islower() else str(value).upper() if before.isupper() else str(value)
    return cell_text(value)


def result_names(columns: Sequence[str], *, with_row: bool = True) -> dict[str, str]:
    """Names of the result columns in a table of answers, prefixed with ``avcg_`` where the name is taken.

    Names are compared without case, as SQL does.

    Args:
        columns: Names of the other columns of the table.
        with_row: Whether to include ``row``, the position of the row in its file.

    >>> result_names(["Status"])["status"]
    'avcg_status'
    """
    taken, names = {name.lower() for name in columns}, {}
    for name in RESULT_COLUMNS:
        names[name] = name
        while names[name] in taken:
            names[name] = f"avcg_{names[name]}"
    return names if with_row else {name: column for name, column in names.items() if name != "row"}


@dataclass(frozen=True, eq=False)
class Layout:
    """Columns of a parquet file of answers: those of the rows in their own types, then the result columns.

    Attributes:
        schema: The columns, a `pyarrow.Schema`.
        result_columns: The names in `RESULT_COLUMNS` that are included.
        cell_types: Types of the columns that are not texts, if the rows come from a CSV file.
    """

    schema: Any
    result_columns: tuple[str, ...]
    cell_types: Mapping[str, CellType] | None = None

    @classmethod
    def of_arrow(cls, rows: Any, *, with_row: bool = True) -> Layout:
        """The layout of answers to rows that have a schema of pyarrow, whose metadata is kept.

        Args:
            rows: Schema of the rows.
            with_row: Whether to include ``row``, the position of the row in its file.
        """
        pa, names = load_pyarrow(), result_names(rows.names, with_row=with_row)
        fields = [pa.field(column, getattr(pa, RESULT_COLUMNS[name])()) for name, column in names.items()]
        return cls(pa.schema([*rows, *fields], metadata=rows.metadata), tuple(names))

    @classmethod
    def of_texts(cls, columns: Sequence[str], cell_types: Mapping[str, CellType]) -> Layout:
        """The layout of answers to rows of a CSV file.

        Args:
            columns: Names of the columns of the file.
            cell_types: Types of the columns that are not texts, by column name.
        """
        pa = load_pyarrow()
        types = {name: _ARROW_TYPES[cell_types[name]] if name in cell_types else "string" for name in columns}
        rows = pa.schema([(name, getattr(pa, kind)()) for name, kind in types.items()])
        return replace(cls.of_arrow(rows), cell_types=cell_types)

    def table(self, blocks: Sequence[AnsweredRows]) -> Any:
        """Answers as a `pyarrow.Table` with this layout."""
        pa, types = load_pyarrow(), self.schema.types
        tables = []
        for block in blocks:
            results = block.results()
            columns = [*block.arrow_columns(self.cell_types).values(), *(results[name] for name in self.result_columns)]
            arrays = [pa.array(c, type=t) if isinstance(c, list) else c for c, t in zip(columns, types, strict=True)]
            tables.append(pa.Table.from_arrays(arrays, schema=self.schema))
        return pa.concat_tables(tables) if tables else self.schema.empty_table()
