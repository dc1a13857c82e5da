"""Parquet files of answers, there whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from avcg.batch.chunks import arrow
from avcg.batch.columns import Answered, Layout
from avcg.errors import AvcgError, DataError
from avcg.files import beside

_NOTE = b"avcg"


class ParquetAnswers:
    """Answers as parquet.

    Args:
        path: Of the file.
        layout: Of its columns.
    """

    def __init__(self, path: Path, layout: Layout) -> None:
        self._layout = layout
        self._file = arrow().parquet.ParquetWriter(path, layout.schema)

    def add(self, blocks: Sequence[Answered]) -> None:
        """More answers, as one group of rows."""
        self.add_table(self._layout.table(blocks))

    def add_table(self, table: Any) -> None:
        """The same, of answers that are a table already."""
        if table.num_rows:
            self._file.write_table(table)

    def note(self, values: Mapping[str, Any]) -> None:
        """Plain values to be found again by `read_note`."""
        self._file.add_key_value_metadata({_NOTE: json.dumps(dict(values), sort_keys=True).encode()})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def read_note(path: Path) -> dict[str, Any] | None:
    """What was noted in a file; None where nothing was, or it is no parquet file that can be read."""
    pa = arrow()
    try:
        found = json.loads((pa.parquet.read_metadata(path).metadata or {})[_NOTE])
    except (pa.ArrowException, OSError, KeyError, ValueError):
        return None
    return found if isinstance(found, dict) else None


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
