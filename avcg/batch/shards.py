"""Files of rows shared out among processes of one machine: a folder of parquet files, or the chunks of one file."""

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
from avcg.batch.chunks import load_pyarrow
from avcg.batch.columns import Layout
from avcg.batch.parquet import ParquetAnswers, read_metadata, replacing
from avcg.batch.partition import PartitionExplainer
from avcg.batch.readers import ParquetRows
from avcg.errors import AvcgError, DataError, SettingError, check_int, enumerate_some
from avcg.files import write_whole
from avcg.io.folder import json_round_trip

CHUNK_SIZE = 10_000  # rows of a file held in memory at a time
_SUCCESS = "_SUCCESS"  # written last, under the name that Spark and Hadoop use


def explain_shards(
    rows: str | Path | Sequence[str | Path],
    out: str | Path,
    artifact: str | Path,
    options: BatchOptions | None = None,
    *,
    workers: int = 2,
    chunk_size: int = CHUNK_SIZE,
) -> Totals:
    """Answer a folder of parquet files, each into a file of the same name with what ``avcg explain`` would write.

    A file of answers is either complete or absent. Files that were already answered, from the same rows with the same
    explainer and options, are kept, so that an interrupted run can be repeated; no row is lost or answered twice. When
    all files are complete, a file ``_SUCCESS`` is written.

    Args:
        rows: A folder of parquet files, or a list of their paths.
        out: Folder to write to; it is created if it does not exist.
        artifact: Folder of a stored explainer.
        options: Options that apply to every row; None: those that the explainer was fitted for.
        workers: Number of processes. Each has one thread and answers one file at a time.
        chunk_size: Number of rows that each process holds in memory at a time.

    Returns:
        Counts of all rows and answers, including those of earlier runs.

    Raises:
        AvcgError: If files or columns are missing or do not fit, the folder is in use, or a worker was killed.
    """
    shards = Shards.of(rows, out, PartitionExplainer(str(artifact), options or BatchOptions()))
    totals = Totals()
    for file_totals in shards.answer(workers, chunk_size):
        totals.add(file_totals)
    return totals


@dataclass(frozen=True)
class Shards:
    """Parquet files of rows, and the folder that their answers are written to.

    Attributes:
        explainer: The stored explainer with its options.
        out: Folder of the answers.
        files: Files of rows, by the name of their answers in the folder.
    """

    explainer: PartitionExplainer
    out: Path
    files: Mapping[str, Path]

    @classmethod
    def of(cls, rows: str | Path | Sequence[str | Path], out: str | Path, explainer: PartitionExplainer) -> Shards:
        """Find the files, and check everything that can be checked before the first row is answered.

        Args:
            rows: A folder of parquet files, or a list of their paths.
            out: Folder to write to.
            explainer: The stored explainer with its options.

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

    def answer(self, workers: int, chunk_size: int = CHUNK_SIZE) -> Iterator[Totals]:
        """Answer the files that are not answered yet, and give the counts of every file, answered ones first.

        Args:
            workers: Number of processes.
            chunk_size: Number of rows that each process holds in memory at a time.
        """
        check_int(workers, "'workers'", 1)
        stored = {name: self._stored_totals(name) for name in self.files}
        missing = [name for name, totals in stored.items() if totals is None]
        total = Totals()
        if missing:
            self.out.mkdir(parents=True, exist_ok=True)
            (self.out / _SUCCESS).unlink(missing_ok=True)
        answered = (totals for totals in stored.values() if totals is not None)
        for file_totals in (*answered, *self._answer_files(missing, workers, chunk_size)):
            total.add(file_totals)
            yield file_totals
        for temporary in self.out.rglob(".avcg-*.part"):  # left by workers that were killed
            temporary.unlink(missing_ok=True)
        write_whole(self.out / _SUCCESS, json.dumps({"files": len(self.files), **total.to_json()}, indent=1) + "\n")

    def _answer_files(self, names: Sequence[str], workers: int, chunk_size: int) -> Iterator[Totals]:
        tasks = [(self.explainer, self.files[name], self.out / name, self._inputs(name), chunk_size) for name in names]
        with _explain_killed_worker(f"Files of answers in {self.out} are complete. Run the same again to go on"):
            yield from _in_processes(answer_file, tasks, workers, "generator_unordered")

    def _inputs(self, name: str) -> dict[str, Any]:
        """Everything that the answers to a file depend on."""
        status = self.files[name].stat()
        rows = {"name": name, "bytes": status.st_size, "changed": status.st_mtime_ns}
        return {"rows": rows, **self._common_inputs()}

    def _common_inputs(self) -> dict[str, Any]:
        return json_round_trip({"artifact": self.explainer.digest, "options": asdict(self.explainer.options)})

    def _stored_totals(self, name: str) -> Totals | None:
        """The counts stored with the answers to a file; None if there are no answers from the present inputs."""
        metadata = read_metadata(self.out / name)
        if metadata is None or any(metadata.get(key) != value for key, value in self._inputs(name).items()):
            return None
        return Totals.from_json(metadata["totals"])

    def _check_folder(self, rows: Path | None) -> None:
        if self.out.exists() and not self.out.is_dir():
            raise SettingError(f"{self.out} is a file. Give the name of a folder to write to.")
        out = self.out.resolve()
        inside = rows is not None and (out == rows.resolve() or rows.resolve() in out.parents)
        if inside or any(out == file.resolve().parent for file in self.files.values()):
            raise SettingError(f"Answers cannot go into the folder of the rows. Give another folder than {self.out}.")
        inputs = self._common_inputs()
        for path in _parquet_files(self.out) if self.out.is_dir() else ():
            name = path.relative_to(self.out).as_posix()
            metadata = read_metadata(path)
            if metadata is None or name not in self.files:
                raise SettingError(f"{self.out} is in use: {name} has no answers to these rows. Give another folder.")
            if any(metadata.get(key) != value for key, value in inputs.items()):
                raise SettingError(
                    f"{self.out} is in use: {name} was answered by another explainer or with other options. Give"
                    " another folder."
                )


def answer_file(
    explainer: PartitionExplainer, rows: Path, target: Path, inputs: Mapping[str, Any], chunk_size: int = CHUNK_SIZE
) -> Totals:
    """Answer one parquet file into another, which is complete in the end or not written at all.

    Args:
        explainer: The stored explainer with its options.
        rows: File to read.
        target: File to write.
        inputs: What the answers depend on, as values of JSON; stored in the metadata of the file with the counts.
        chunk_size: Number of rows held in memory at a time.

    Returns:
        Counts of rows and answers.

    Raises:
        DataError: If the file cannot be read, or a row does not fit the schema.
    """
    totals, answerer = Totals(), explainer.answerer()
    target.parent.mkdir(parents=True, exist_ok=True)
    with (
        ParquetRows(str(rows)) as source,
        replacing(target) as temporary,
        ParquetAnswers(temporary, Layout.of_arrow(source.schema)) as writer,
    ):
        for chunk in source.chunks(chunk_size):
            blocks = answerer.answer(chunk)
            totals.count(chunk, blocks)
            writer.add(blocks)
        writer.write_metadata({**inputs, "totals": totals.to_json()})
    return totals


def answer_chunks(
    explainer: PartitionExplainer, source: ParquetRows, workers: int, chunk_size: int = CHUNK_SIZE
) -> Iterator[tuple[Any, Totals]]:
    """Answer the chunks of one file in several processes, and give them in the order of the file.

    Args:
        explainer: The stored explainer with its options.
        source: File to read.
        workers: Number of processes.
        chunk_size: Number of rows in a chunk.

    Returns:
        For each chunk, a `pyarrow.Table` of answers with the column ``row``, and their counts.
    """
    errors: list[AvcgError] = []

    def tasks() -> Iterator[tuple[PartitionExplainer, Any]]:
        try:
            yield from ((explainer, chunk) for chunk in source.chunks(chunk_size))
        except AvcgError as error:  # joblib reads ahead in a thread of its own, where the error would be lost
            errors.append(error)

    with _explain_killed_worker("Nothing was written. Run the same again"):
        yield from _in_processes(PartitionExplainer.answer_chunk, tasks(), workers, "generator")
    if errors:
        raise errors[0]


def _in_processes(function: Any, tasks: Iterable[tuple[Any, ...]], workers: int, order: str) -> Iterator[Any]:
    """Results of a function as joblib orders them (`order`); one worker runs in this process."""
    if workers == 1:
        yield from (function(*task) for task in tasks)
        return
    from joblib import Parallel, delayed, parallel_config

    with parallel_config("loky", inner_max_num_threads=1):
        yield from Parallel(n_jobs=workers, return_as=order)(delayed(function)(*task) for task in tasks)


@contextmanager
def _explain_killed_worker(advice: str) -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool:
        raise AvcgError(
            f"A worker process was killed, perhaps for lack of memory. {advice}, with fewer workers or smaller chunks"
            " if memory is short."
        ) from None


def _files(rows: str | Path | Sequence[str | Path]) -> dict[str, Path]:
    """Files of rows, by the names of their answers."""
    load_pyarrow()  # raises if it is not installed
    if isinstance(rows, (list, tuple)):
        paths = [Path(path) for path in rows]
        absent = [str(path) for path in paths if not path.is_file()]
        if absent:
            raise DataError(f"There is no file {enumerate_some(absent)}.")
        files = {path.name: path for path in paths}
        if len(files) < len(paths):
            repeated = next(name for name, count in Counter(path.name for path in paths).items() if count > 1)
            raise DataError(f"Two files of rows are called {repeated!r}, and so would their answers be. Rename one.")
    else:
        folder = Path(str(rows))
        if not folder.is_dir():
            raise DataError(f"There is no folder {str(folder)!r}.")
        files = {path.relative_to(folder).as_posix(): path for path in _parquet_files(folder)}
    if not files:
        raise DataError(f"There is no .parquet file in {str(rows)!r}.")
    return files


def _parquet_files(folder: Path) -> list[Path]:
    """The parquet files in a folder and its subfolders, without hidden ones (names that start with ``.`` or ``_``)."""
    files = (path for path in folder.rglob("*.parquet") if path.is_file())
    return sorted(p for p in files if not any(part.startswith((".", "_")) for part in p.relative_to(folder).parts))
