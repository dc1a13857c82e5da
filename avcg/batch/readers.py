"""Files of rows, and standard input, opened and read whole or piece by piece."""

from __future__ import annotations

import csv
import io
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from avcg.batch.chunks import ArrowPiece, TextPiece, arrow
from avcg.errors import DataError, enumerate_some

KINDS = (".csv", ".parquet")
_AT_ONCE = 65_536  # rows of a parquet file read at a time, at most


class Rows(Protocol):
    """An open file.

    Attributes:
        name: For people.
        columns: In their order.
        total: How much there is to read, in units of `done`; None where nobody knows.
        done: How much has been read.
    """

    name: str
    columns: list[str]
    total: float | None

    @property
    def done(self) -> float:
        """How much has been read, in units of ``total``."""

    def pieces(self, size: int | None = None) -> Iterator[TextPiece | ArrowPiece]:
        """All rows, so many at a time; None: all at once."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def open_rows(path: str) -> Rows:
    """Open a CSV or parquet file; ``-`` is CSV on standard input.

    Raises:
        DataError: If it is missing, empty or something else.
    """
    if path == "-":
        return CsvRows(path)
    file = Path(path)
    if file.suffix.lower() not in KINDS:
        raise DataError(f"Rows come as {enumerate_some(KINDS)}, or as - for standard input. Got {path!r} instead.")
    if not file.is_file():
        raise DataError(f"There is no file {path!r}.")
    return ParquetRows(path) if file.suffix.lower() == ".parquet" else CsvRows(path)


class CsvRows:
    """An open CSV file; its first line names the columns.

    Args:
        path: ``-`` for standard input.
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
            raise DataError(f"{self.name} is empty: not even its columns are named.")
        header = first[1]
        for other, what in ((";", "semicolons"), ("\t", "tabs")):
            if len(header) == 1 and other in header[0]:
                raise DataError(f"{self.name} seems to be separated by {what}. Save it with commas.")
        names = [text.strip() or f"Unnamed: {i}" for i, text in enumerate(header)]
        _check_twice(names, self.name)
        return names

    @property
    def done(self) -> float:
        """Bytes read."""
        return 0.0 if self._piped else float(self._bytes.tell())

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """The line on which each record begins, and its cells; empty lines are left out."""
        while True:
            line = self._lines.line_num + 1
            try:
                cells = next(self._lines, None)
            except csv.Error as error:
                raise DataError(f"{self.name}, line {line}: {error}.") from None
            except UnicodeDecodeError:
                raise DataError(f"{self.name} is no UTF-8 text after line {line - 1}. Save it as UTF-8.") from None
            if cells is None:
                return
            if cells:
                yield line, cells

    def pieces(self, size: int | None = None) -> Iterator[TextPiece]:
        """All rows, so many at a time; None: all at once."""
        records, start, width = self._records(), 0, len(self.columns)
        while some := list(islice(records, size)):
            for line, cells in some:
                if len(cells) != width:
                    raise DataError(
                        f"{self.name}, line {line}: {len(cells)} cells, where the first line names {width} columns."
                    )
            columns = map(list, zip(*(cells for _, cells in some), strict=True))
            yield TextPiece(start, dict(zip(self.columns, columns, strict=True)), [line for line, _ in some], self.name)
            start += len(some)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._piped:
            self._text.detach()  # standard input is not ours to close
        else:
            self._text.close()


class ParquetRows:
    """An open parquet file.

    Args:
        path: Of the file.
    """

    def __init__(self, path: str) -> None:
        pa = arrow()
        self.name = Path(path).name
        try:
            self._file = pa.parquet.ParquetFile(path)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{self.name} is no parquet file that can be read: {error}") from None
        self.schema = self._file.schema_arrow
        self.columns = list(self.schema.names)
        self.total: float | None = float(self._file.metadata.num_rows)
        self.done = 0.0
        _check_twice(self.columns, self.name)

    def pieces(self, size: int | None = None) -> Iterator[ArrowPiece]:
        """All rows, so many at a time; None: all at once."""
        pa = arrow()
        start, waiting = 0, self.schema.empty_table()
        size = int(self.total or 0) if size is None else size
        for batch in self._batches(max(1, min(size, _AT_ONCE))):
            waiting = pa.concat_tables([waiting, pa.Table.from_batches([batch], schema=self.schema)])
            while waiting.num_rows >= size > 0:
                yield self._piece(start, waiting.slice(0, size))
                start, waiting = start + size, waiting.slice(size)
        if waiting.num_rows:
            yield self._piece(start, waiting)

    def _batches(self, size: int) -> Iterator[Any]:
        try:
            yield from self._file.iter_batches(batch_size=size)
        except (arrow().ArrowException, OSError) as error:
            raise DataError(f"{self.name} is damaged: {error}") from None

    def _piece(self, start: int, table: Any) -> ArrowPiece:
        self.done = float(start + table.num_rows)
        return ArrowPiece(start, table, self.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def _check_twice(names: Sequence[str], where: str) -> None:
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise DataError(f"{where} has column {enumerate_some(twice)} twice. Rename or drop one of them.")
