"""Reading rows from CSV files, parquet files and standard input, at once or in chunks."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from avcg.batch.chunks import ArrowChunk, TextChunk, check_unique, load_pyarrow
from avcg.errors import DataError, enumerate_some

SUFFIXES = (".csv", ".parquet")
_MAX_BATCH_ROWS = 65_536  # rows of a parquet file read at a time


class Rows(Protocol):
    """An open file of rows.

    Attributes:
        name: Name of the file, for messages.
        columns: Names of the columns, in the order of the file.
        total: Size of the file in the units of `done`; None for standard input.
        done: How much has been read: bytes of a CSV file, rows of a parquet file.
    """

    name: str
    columns: list[str]
    total: float | None

    @property
    def done(self) -> float:
        """How much has been read, in the units of ``total``."""

    def chunks(self, size: int | None = None) -> Iterator[TextChunk | ArrowChunk]:
        """The rows in chunks of a given number of rows; None: all rows in one chunk."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def open_rows(path: str) -> Rows:
    """Open a CSV or parquet file, or standard input.

    Args:
        path: Path of the file; ``-`` reads CSV from standard input.

    Raises:
        DataError: If the file is missing, empty or of another format.
    """
    if path == "-":
        return CsvRows(path)
    file = Path(path)
    if file.suffix.lower() not in SUFFIXES:
        raise DataError(
            f"The name of a file of rows must end in {enumerate_some(SUFFIXES)}, or be - for standard input."
            f" Got {path!r} instead."
        )
    if not file.is_file():
        raise DataError(f"There is no file {path!r}.")
    return ParquetRows(path) if file.suffix.lower() == ".parquet" else CsvRows(path)


class CsvRows:
    """An open CSV file, whose first line names the columns.

    Args:
        path: Path of the file; ``-`` reads standard input.
    """

    def __init__(self, path: str) -> None:
        self._piped = path == "-"
        self.name = "standard input" if self._piped else Path(path).name
        self.total: float | None = None
        if self._piped:
            self._bytes: Any = sys.stdin.buffer
        else:
            try:
                self._bytes = Path(path).open("rb")  # noqa: SIM115  closed on leaving
            except OSError as error:
                raise DataError(f"{path} cannot be read: {error.strerror}.") from None
            self.total = float(Path(path).stat().st_size)
        self._text = io.TextIOWrapper(self._bytes, encoding="utf-8-sig", newline="")
        self._lines = csv.reader(self._text, strict=True)
        try:
            self.columns = self._header()
        except DataError:
            self.__exit__(None, None, None)
            raise

    def _header(self) -> list[str]:
        first = next(self._records(), None)
        if first is None:
            raise DataError(f"{self.name} is empty. Its first line must name the columns.")
        header = first[1]
        for separator, name in ((";", "semicolons"), ("\t", "tabs")):
            if len(header) == 1 and separator in header[0]:
                raise DataError(f"{self.name} seems to be separated by {name}. Save it with commas.")
        names = [text.strip() or f"Unnamed: {i}" for i, text in enumerate(header)]
        check_unique(names, self.name)
        return names

    @property
    def done(self) -> float:
        """Number of bytes read."""
        return 0.0 if self._piped else float(self._bytes.tell())

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """The first line and the cells of each record; empty lines are skipped."""
        while True:
            line = self._lines.line_num + 1
            try:
                cells = next(self._lines, None)
            except csv.Error as error:
                raise DataError(f"{self.name}, line {line}: {error}.") from None
            except UnicodeDecodeError:
                raise DataError(f"{self.name} is not UTF-8 text after line {line - 1}. Save it as UTF-8.") from None
            if cells is None:
                return
            if cells:
                yield line, cells

    def chunks(self, size: int | None = None) -> Iterator[TextChunk]:
        """The rows in chunks of a given number of rows; None: all rows in one chunk."""
        records, start, width = self._records(), 0, len(self.columns)
        while batch := list(islice(records, size)):
            for line, cells in batch:
                if len(cells) != width:
                    raise DataError(
                        f"{self.name}, line {line}: {len(cells)} cells, but the first line names {width} columns."
                    )
            columns = map(list, zip(*(cells for _, cells in batch), strict=True))
            lines = [line for line, _ in batch]
            yield TextChunk(start, dict(zip(self.columns, columns, strict=True)), lines, self.name)
            start += len(batch)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._piped:
            self._text.detach()  # leaves standard input open
        else:
            self._text.close()


class ParquetRows:
    """An open parquet file.

    Args:
        path: Path of the file.
    """

    def __init__(self, path: str) -> None:
        pa = load_pyarrow()
        self.name = Path(path).name
        try:
            self._file = pa.parquet.ParquetFile(path)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{self.name} cannot be read as a parquet file: {error}") from None
        self.schema = self._file.schema_arrow
        self.columns = list(self.schema.names)
        self.total: float | None = float(self._file.metadata.num_rows)
        self.done = 0.0
        check_unique(self.columns, self.name)

    def chunks(self, size: int | None = None) -> Iterator[ArrowChunk]:
        """The rows in chunks of a given number of rows; None: all rows in one chunk."""
        pa = load_pyarrow()
        start, waiting = 0, self.schema.empty_table()
        size = int(self.total or 0) if size is None else size
        for batch in self._batches(max(1, min(size, _MAX_BATCH_ROWS))):
            waiting = pa.concat_tables([waiting, pa.Table.from_batches([batch], schema=self.schema)])
            while waiting.num_rows >= size > 0:
                yield self._chunk(start, waiting.slice(0, size))
                start, waiting = start + size, waiting.slice(size)
        if waiting.num_rows:
            yield self._chunk(start, waiting)

    def _batches(self, size: int) -> Iterator[Any]:
        try:
            yield from self._file.iter_batches(batch_size=size)
        except (load_pyarrow().ArrowException, OSError) as error:
            raise DataError(f"{self.name} is damaged: {error}") from None

    def _chunk(self, start: int, table: Any) -> ArrowChunk:
        self.done = float(start + table.num_rows)
        return ArrowChunk(start, table, self.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
