"""A stored explainer as a function of a partition: an Arrow table of rows in, an Arrow table of answers out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from avcg.batch.answerer import Answerer, BatchOptions, Totals, artifact_digest, load_cached
from avcg.batch.chunks import ArrowChunk, load_pyarrow
from avcg.batch.columns import Layout
from avcg.errors import SettingError

_NAME = "the partition"


@dataclass(frozen=True)
class PartitionExplainer:
    """A stored explainer as a pure function of a table, small enough to be sent to any number of processes.

    The answers have the columns of the table in their own types, with changed cells replaced, followed by the columns
    that ``avcg explain`` writes. ``row`` is left out, since a partition does not know its position: identify rows by a
    column that the model does not read, such as an id. Answers do not depend on how a table is partitioned.

    Each process loads the explainer at the first call. It must be at the same path everywhere, with the content it had
    when this object was made: answers of two explainers are never mixed.

    Args:
        artifact: Folder of a stored explainer.
        options: Options that apply to every row.

    Attributes:
        digest: Checksum of the stored explainer.

    Raises:
        AvcgError: If there is no stored explainer in the folder.
    """

    artifact: str
    options: BatchOptions = field(default_factory=BatchOptions)
    digest: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.artifact, (str, Path)):
            raise SettingError(f"The 'artifact' must be the path of a folder. Got a {type(self.artifact).__name__}.")
        object.__setattr__(self, "digest", artifact_digest(str(self.artifact)))
        # Workers may have another working directory.
        object.__setattr__(self, "artifact", str(Path(self.artifact).absolute()))

    def __call__(self, rows: Any) -> Any:
        """Answer the rows of a partition.

        Args:
            rows: A `pyarrow.Table` or `pyarrow.RecordBatch`; it may be empty.

        Returns:
            A `pyarrow.Table` with the columns of `schema`: the answers, in the order of the rows.

        Raises:
            DataError: If a column is missing, or a row does not fit the schema.
        """
        pa = load_pyarrow()
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        answerer = self.answerer()
        answerer.check(table.column_names, _NAME)
        layout = Layout.of_arrow(table.schema, with_row=False)
        return layout.table(answerer.answer(ArrowChunk(0, table, _NAME)))

    def batches(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Answer an iterator of record batches lazily, as record batches."""
        for batch in batches:
            yield from self(batch).combine_chunks().to_batches()

    def schema(self, rows: Any, name: str = _NAME) -> Any:
        """The columns of the answers to rows with given columns, as a `pyarrow.Schema`.

        Args:
            rows: Columns of the rows, a `pyarrow.Schema`.
            name: Name of the rows, for error messages.

        Raises:
            AvcgError: If a column is missing or of another type, or the options do not fit the explainer.
        """
        self.answerer().check_schema(rows, name)
        return Layout.of_arrow(rows, with_row=False).schema

    def answerer(self) -> Answerer:
        """The explainer loaded in this process, with the options applied.

        Raises:
            AvcgError: If it cannot be loaded, was replaced by another, or the options do not fit it.
        """
        return Answerer(load_cached(self.artifact, self.digest), self.options)

    def answer_chunk(self, chunk: ArrowChunk) -> tuple[Any, Totals]:
        """Answers to a chunk of a file as a `pyarrow.Table` with the column ``row``, and their counts."""
        totals = Totals()
        blocks = self.answerer().answer(chunk)
        totals.count(chunk, blocks)
        return Layout.of_arrow(chunk.table.schema).table(blocks), totals
