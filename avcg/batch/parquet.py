"""Writing answers to parquet files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from avcg.batch.chunks import load_pyarrow
from avcg.batch.columns import AnsweredRows, Layout
from avcg.errors import AvcgError, DataError
from avcg.files import beside

_METADATA_KEY = b"avcg"


class ParquetAnswers:
    """An open parquet file of answers.

    Args:
        path: Path of the file.
        layout: Columns of the file.
    """

    def __init__(self, path: Path, layout: Layout) -> None:
        self._layout = layout
        self._file = load_pyarrow().parquet.ParquetWriter(path, layout.schema)

    def add(self, blocks: Sequence[AnsweredRows]) -> None:
        """Write answers as one row group."""
        self.add_table(self._layout.table(blocks))

    def add_table(self, table: Any) -> None:
        """Write a `pyarrow.Table` of answers as one row group."""
        if table.num_rows:
            self._file.write_table(table)

    def write_metadata(self, values: Mapping[str, Any]) -> None:
        """Write values of JSON to the metadata of the file, where `read_metadata` finds them."""
        self._file.add_key_value_metadata({_METADATA_KEY: json.dumps(dict(values), sort_keys=True).encode()})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def read_metadata(path: Path) -> dict[str, Any] | None:
    """The values that `ParquetAnswers.write_metadata` wrote; None if there are none or the file cannot be read."""
    pa = load_pyarrow()
    try:
        values = json.loads((pa.parquet.read_metadata(path).metadata or {})[_METADATA_KEY])
    except (pa.ArrowException, OSError, KeyError, ValueError):
        return None
    return values if isinstance(values, dict) else None


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A temporary file beside the target, which replaces it if the block succeeds and is removed otherwise.

    Raises:
        DataError: If the file cannot be written, with the reason.
    """
    try:
        with beside(target) as temporary:
            yield temporary
    except OSError as error:
        if isinstance(
            error, (AvcgError, BrokenPipeError)
        ):  # some of ours are OSErrors; a broken pipe is standard output's
            raise
        raise DataError(f"{target} cannot be written: {error.strerror or error}.") from None
