"""The one function of a partition: rows as an Arrow table in, their answers as an Arrow table out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from avcg.batch.answerer import Answerer, BatchOptions, Totals, digest_of, opened
from avcg.batch.chunks import ArrowPiece, arrow
from avcg.batch.columns import Layout
from avcg.errors import SettingError

_NAME = "the partition"


@dataclass(frozen=True)
class PartitionExplainer:
    """A stored explainer as a pure function of a table, small enough to be sent to any number of processes.

    A table comes back with the columns it had, in their types, changed cells replaced and all else as it was. Beside
    them stand the columns that ``avcg explain`` writes, without ``row``, for a partition does not know its place: rows
    are told apart by columns of their own that the model does not read, such as an id. Answers do not depend on how a
    table is cut into partitions.

    A process reads the artifact when it is first asked. It must lie under the same path everywhere, and be the same as
    when this was made: answers of two artifacts are never mixed.

    Args:
        artifact: The folder of a stored explainer.
        options: What is asked of every row.

    Attributes:
        digest: What tells the artifact from any other.

    Raises:
        AvcgError: If there is no such artifact.
    """

    artifact: str
    options: BatchOptions = field(default_factory=BatchOptions)
    digest: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.artifact, (str, Path)):
            raise SettingError(f"The 'artifact' must be the path of a folder. Got a {type(self.artifact).__name__}.")
        object.__setattr__(self, "digest", digest_of(str(self.artifact)))
        object.__setattr__(self, "artifact", str(Path(self.artifact).absolute()))  # whatever folder a worker is in

    def __call__(self, rows: Any) -> Any:
        """Answers to the rows of a partition.

        Args:
            rows: A table or a record batch of pyarrow; it may be empty.

        Returns:
            A table with `schema`: in the order of the rows, the answers to each that is answered.

        Raises:
            DataError: If a column is missing, or a row does not fit.
        """
        pa = arrow()
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        answerer = self.answerer()
        answerer.check(table.column_names, _NAME)
        layout = Layout.of_arrow(table.schema, numbered=False)
        return layout.table(answerer.answer(ArrowPiece(0, table, _NAME)))

    def batches(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Answers to record batches one after the other, as record batches."""
        for batch in batches:
            yield from self(batch).combine_chunks().to_batches()

    def schema(self, rows: Any, name: str = _NAME) -> Any:
        """Of the answers to rows with a schema, if they can be answered.

        Args:
            rows: Their schema.
            name: What to call them.

        Raises:
            AvcgError: If a column is missing or of another kind, or the wish cannot be meant.
        """
        self.answerer().check_schema(rows, name)
        return Layout.of_arrow(rows, numbered=False).schema

    def answerer(self) -> Answerer:
        """Who answers in this process.

        Raises:
            AvcgError: If the artifact cannot be opened or is another one by now, or the wish cannot be meant.
        """
        return Answerer(opened(self.artifact, self.digest), self.options)

    def numbered(self, piece: ArrowPiece) -> tuple[Any, Totals]:
        """Answers to a piece of a file, each with the place of its row there, and what there was to do."""
        totals = Totals()
        blocks = self.answerer().answer(piece)
        totals.count(piece, blocks)
        return Layout.of_arrow(piece.table.schema).table(blocks), totals
