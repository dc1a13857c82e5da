"""Files of rows shared out among processes of one machine: a folder of parquet files, or the pieces of one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from avcg.batch.answerer import BatchOptions, Totals
from avcg.batch.chunks import arrow
from avcg.batch.columns import Layout
from avcg.batch.parquet import ParquetAnswers, read_note, whole_file
from avcg.batch.partition import PartitionExplainer
from avcg.batch.readers import ParquetRows
from avcg.errors import AvcgError, DataError, SettingError, check_int, enumerate_some
from avcg.files import write_whole
from avcg.io.folder import as_read

CHUNK = 10_000  # rows of a file held in memory at a time
_DONE = "_SUCCESS"  # written last; as others do, so that what waits for Spark or Hadoop waits for this too


def explain_shards(
    rows: str | Path | Sequence[str | Path],
    out: str | Path,
    artifact: str | Path,
    options: BatchOptions | None = None,
    *,
    workers: int = 2,
    chunk: int = CHUNK,
) -> Totals:
    """Answer a folder of parquet files: for each a file of the same name with what ``avcg explain`` would write.

    A file of answers is there whole or not at all. What is there already, of the same rows, artifact and wish, is not
    done again, so that whoever was interrupted runs the same once more; rows are neither lost nor doubled. When all is
    there, a file ``_SUCCESS`` is written.

    Args:
        rows: A folder, with those in it, or files.
        out: The folder to write to; made where there is none.
        artifact: The folder of a stored explainer.
        options: What is asked of every row; None: what the artifact was fitted for.
        workers: Processes, each with one thread and one file at a time.
        chunk: Rows that each holds in memory at a time.

    Returns:
        What has been done, now and before.

    Raises:
        AvcgError: If something is missing or does not fit, the folder is in use, or a worker was killed.
    """
    shards = Shards.of(rows, out, PartitionExplainer(str(artifact), options or BatchOptions()))
    totals = Totals()
    for each in shards.answered(workers, chunk):
        totals.add(each)
    return totals


@dataclass(frozen=True)
class Shards:
    """Files of rows, and where their answers go.

    Attributes:
        explainer: Who answers.
        out: The folder of answers.
        files: Of rows, by the name that their answers have in it.
    """

    explainer: PartitionExplainer
    out: Path
    files: Mapping[str, Path]

    @classmethod
    def of(cls, rows: str | Path | Sequence[str | Path], out: str | Path, explainer: PartitionExplainer) -> Shards:
        """Whatever there is to do, checked before anything slow is done.

        Raises:
            AvcgError: If there are no files, one lacks a column, or the folder of answers is in use.
        """
        shards = cls(explainer, Path(out), _files(rows))
        shards._check_folder(None if isinstance(rows, (list, tuple)) else Path(str(rows)))
        answerer = explainer.answerer()
        for name, file in shards.files.items():
            with ParquetRows(str(file)) as source:
                answerer.check_schema(source.schema, name)
        return shards

    def answered(self, workers: int, chunk: int = CHUNK) -> Iterator[Totals]:
        """Answer what is not answered yet; what there was to do, file by file, that of earlier times first.

        Args:
            workers: Processes.
            chunk: Rows that each holds in memory at a time.
        """
        check_int(workers, "'workers'", 1)
        found = {name: self._finished(name) for name in self.files}
        missing = [name for name, totals in found.items() if totals is None]
        total = Totals()
        if missing:
            self.out.mkdir(parents=True, exist_ok=True)
            (self.out / _DONE).unlink(missing_ok=True)
        for each in (*(one for one in found.values() if one is not None), *self._shared_out(missing, workers, chunk)):
            total.add(each)
            yield each
        for half in self.out.rglob(".avcg-*.part"):  # of workers that were killed
            half.unlink(missing_ok=True)
        write_whole(self.out / _DONE, json.dumps({"files": len(self.files), **total.noted()}, indent=1) + "\n")

    def _shared_out(self, names: Sequence[str], workers: int, chunk: int) -> Iterator[Totals]:
        tasks = [(self.explainer, self.files[name], self.out / name, self._note(name), chunk) for name in names]
        said = f"Files of answers in {self.out} are whole. Run the same again to go on"
        with _said_when_killed(said):
            yield from _in_processes(answer_file, tasks, workers, "generator_unordered")

    def _note(self, name: str) -> dict[str, Any]:
        """What answers depend on."""
        found = self.files[name].stat()
        rows = {"name": name, "bytes": found.st_size, "changed": found.st_mtime_ns}
        return as_read({"rows": rows, "artifact": self.explainer.digest, "wish": asdict(self.explainer.options)})

    def _finished(self, name: str) -> Totals | None:
        """What was done for a file; None where there is something to do."""
        note = read_note(self.out / name)
        if note is None or any(note.get(key) != value for key, value in self._note(name).items()):
            return None
        done = note["totals"]
        return Totals(done["rows"], done["left_out"], Counter(done["statuses"]))

    def _check_folder(self, rows: Path | None) -> None:
        if self.out.exists() and not self.out.is_dir():
            raise SettingError(f"{self.out} is a file. Give the name of a folder to write to.")
        here = self.out.resolve()
        inside = rows is not None and (here == rows.resolve() or rows.resolve() in here.parents)
        if inside or any(here == file.resolve().parent for file in self.files.values()):
            raise SettingError(f"Answers cannot go where the rows are. Give another folder than {self.out}.")
        ours = as_read({"artifact": self.explainer.digest, "wish": asdict(self.explainer.options)})
        for found in _tables(self.out) if self.out.is_dir() else ():
            name = found.relative_to(self.out).as_posix()
            note = read_note(found)
            if note is None or name not in self.files:
                raise SettingError(f"{self.out} is in use: {name} has no answers to these rows. Give another folder.")
            if any(note.get(key) != value for key, value in ours.items()):
                raise SettingError(
                    f"{self.out} is in use: {name} was answered by another artifact or for another wish. Give another"
                    " folder."
                )


def answer_file(
    explainer: PartitionExplainer, rows: Path, target: Path, note: Mapping[str, Any], chunk: int = CHUNK
) -> Totals:
    """Answers to one parquet file as another, there whole or not at all.

    Args:
        explainer: Who answers.
        rows: The file to read.
        target: The file to write.
        note: Plain values to leave in it.
        chunk: Rows held in memory at a time.

    Raises:
        DataError: If the file cannot be read, or a row does not fit.
    """
    totals, answerer = Totals(), explainer.answerer()
    target.parent.mkdir(parents=True, exist_ok=True)
    with (
        ParquetRows(str(rows)) as source,
        whole_file(target) as half,
        ParquetAnswers(half, Layout.of_arrow(source.schema)) as writer,
    ):
        for piece in source.pieces(chunk):
            blocks = answerer.answer(piece)
            totals.count(piece, blocks)
            writer.add(blocks)
        writer.note({**note, "totals": totals.noted()})
    return totals


def answer_pieces(
    explainer: PartitionExplainer, source: ParquetRows, workers: int, chunk: int = CHUNK
) -> Iterator[tuple[Any, Totals]]:
    """Answers to one file piece by piece, in its order, from several processes.

    Args:
        explainer: Who answers.
        source: The file.
        workers: Processes.
        chunk: Rows of a piece.

    Returns:
        For each piece a table of answers, each with the place of its row, and what there was to do.
    """
    failed: list[AvcgError] = []

    def tasks() -> Iterator[tuple[PartitionExplainer, Any]]:
        try:
            yield from ((explainer, piece) for piece in source.pieces(chunk))
        except AvcgError as error:  # joblib reads ahead in a thread of its own, where nobody would hear of it
            failed.append(error)

    with _said_when_killed("Nothing was written. Run the same again"):
        yield from _in_processes(PartitionExplainer.numbered, tasks(), workers, "generator")
    if failed:
        raise failed[0]


def _in_processes(function: Any, tasks: Iterable[tuple[Any, ...]], workers: int, order: str) -> Iterator[Any]:
    """Results as they come, or in their order; in this process where there is one worker."""
    if workers == 1:
        yield from (function(*task) for task in tasks)
        return
    from joblib import Parallel, delayed, parallel_config

    with parallel_config("loky", inner_max_num_threads=1):
        yield from Parallel(n_jobs=workers, return_as=order)(delayed(function)(*task) for task in tasks)


@contextmanager
def _said_when_killed(then: str) -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool:
        raise AvcgError(
            f"A worker was killed while it was at work, perhaps for want of memory. {then}, with fewer workers or a"
            " smaller chunk if memory is short."
        ) from None


def _files(rows: str | Path | Sequence[str | Path]) -> dict[str, Path]:
    """Files of rows by the names of their answers."""
    arrow()
    if isinstance(rows, (list, tuple)):
        given = [Path(one) for one in rows]
        absent = [str(one) for one in given if not one.is_file()]
        if absent:
            raise DataError(f"There is no file {enumerate_some(absent)}.")
        named = {one.name: one for one in given}
        if len(named) < len(given):
            twice = next(name for name, count in Counter(one.name for one in given).items() if count > 1)
            raise DataError(f"Two files of rows are called {twice!r}, and so would their answers be. Rename one.")
    else:
        folder = Path(str(rows))
        if not folder.is_dir():
            raise DataError(f"There is no folder {str(folder)!r}.")
        named = {one.relative_to(folder).as_posix(): one for one in _tables(folder)}
    if not named:
        raise DataError(f"There is no .parquet file in {str(rows)!r}.")
    return named


def _tables(folder: Path) -> list[Path]:
    """Parquet files below a folder, but for those that are hidden, as all engines see it."""
    found = (path for path in folder.rglob("*.parquet") if path.is_file())
    return sorted(p for p in found if not any(part.startswith((".", "_")) for part in p.relative_to(folder).parts))
