"""``avcg explain``: a stored explainer answers the rows of a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from avcg.console import console, progress
from avcg.errors import SettingError
from avcg.explainers.records import MEANING, VOTES, votes_in_words
from avcg.files import check_output

if TYPE_CHECKING:
    from rich.console import Console

    from avcg.batch.answerer import Answerer, Totals
    from avcg.batch.columns import AnsweredRows
    from avcg.batch.partition import PartitionExplainer
    from avcg.method.query import Effort

explain_app = typer.Typer()

_SUFFIXES = (".csv", ".parquet", ".json")
_MAX_SHOWN = 10  # answers printed on the terminal
_MAX_RATE = 0.5  # false discovery rate that is worth printing

Source = Annotated[
    str,
    typer.Argument(metavar="ROWS", help="A .csv or .parquet file, a folder of .parquet files, or - for CSV on stdin."),
]
Target = Annotated[
    str | None, typer.Option(metavar="OUTCOME", help="The outcome wanted (default: the --positive of avcg fit).")
]
Vary = Annotated[str | None, typer.Option(metavar="A,B,...", help="Columns that may change; the others stay.")]
Ranges = Annotated[
    list[str] | None,
    typer.Option(
        "--range",
        metavar="COLUMN:VALUES",
        help="Values that answers may give a column: income:30:60 or housing:own|rent; repeatable.",
    ),
]
EffortName = Annotated[
    str, typer.Option(metavar="EFFORT", help="Work spent on closer answers: fast, standard or thorough.")
]
Typicality = Annotated[
    float | None,
    typer.Option(
        help="How typical answers are, from 0, the nearest to the row, to 1, like the people who were accepted"
        " (default: as in the recipe)."
    ),
]
Out = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="File to write: .csv or .parquet (any size), or .json for avcg audit and avcg report (at most 200,000"
        " rows, held in memory). For a folder of rows, a folder; files in it that are answered already are kept."
        " A result column such as 'status' is called 'avcg_status' if the rows have a column of that name.",
    ),
]
ChunkSize = Annotated[
    int, typer.Option("--chunk", help="Rows held in memory at a time, rounded up to a multiple of 4096.", min=1)
]
Workers = Annotated[int, typer.Option(help="Processes, with one thread each; more than one needs .parquet.", min=1)]


@explain_app.command("explain")
def explain(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="A folder that avcg fit or AVCG.save wrote.")],
    rows: Source,
    target: Target = None,
    n: Annotated[int, typer.Option("-n", help="Answers for each row.", min=1)] = 1,
    vary: Vary = None,
    ranges: Ranges = None,
    min_prob: Annotated[
        float | None, typer.Option(help="Probability of the target that the deployed model must give an answer.")
    ] = None,
    max_changes: Annotated[
        int | None, typer.Option(help="Largest number of columns that may change at once.", min=1)
    ] = None,
    effort: EffortName = "standard",
    typicality: Typicality = None,
    only_denied: Annotated[
        bool, typer.Option("--only-denied/--all", help="Leave out rows that have the outcome already, or include them.")
    ] = True,
    chunk_size: ChunkSize = 10_000,
    workers: Workers = 1,
    out: Out = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON for each answer.")] = False,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of the latent noise (default: the one used in training).", min=0, max=2**32 - 1),
    ] = None,
) -> None:
    """Say for every row of a file what to change, and how sure that is."""
    is_folder = Path(rows).is_dir()
    target_path = _output(rows, out, is_folder=is_folder, workers=workers, as_json=as_json)  # before anything slow
    wanted = _checked(min_prob, effort, typicality)

    from avcg.batch.answerer import MAX_GROUP_ROWS, Answerer, BatchOptions, Totals, artifact_digest, load_cached
    from avcg.batch.partition import PartitionExplainer
    from avcg.cli.explain_options import parse_ranges, parse_target, parse_vary

    # The absolute path is the key of the cache that PartitionExplainer uses, so that the explainer is loaded once.
    artifact = load_cached(str(Path(directory).absolute()), artifact_digest(directory))
    options = BatchOptions(
        target=parse_target(artifact, target),
        n=n,
        vary=parse_vary(artifact, vary),
        ranges=parse_ranges(ranges or (), artifact.space.schema),
        min_prob=min_prob,
        max_changes=max_changes,
        effort=wanted,
        typicality=typicality,
        only_denied=only_denied,
        seed=seed,
    )
    explainer, size = PartitionExplainer(directory, options), -(-chunk_size // MAX_GROUP_ROWS) * MAX_GROUP_ROWS
    totals, first_answers = Totals(), list[dict[str, Any]]()
    if target_path is not None and is_folder:
        name = _answer_folder(explainer, rows, target_path, totals, workers, size)
    elif target_path is not None and workers > 1:
        name = _answer_in_processes(explainer, rows, target_path, totals, workers, size)
    else:
        name, first_answers = _answer_file(explainer.answerer(), rows, target_path, totals, size, as_json=as_json)
    if not as_json:
        _print_summary(console(), totals, Answerer(artifact, options), name, first_answers, target_path)


def _checked(min_prob: float | None, effort: str, typicality: float | None) -> Effort:
    """The effort, after checking the options that are numbers or names."""
    from avcg.method.query import EFFORTS

    if min_prob is not None and not 0 < min_prob < 1:
        raise SettingError(f"--min-prob must be in (0, 1). Got {min_prob!r} instead.")
    if typicality is not None and not 0 <= typicality <= 1:
        raise SettingError(f"--typicality must be in [0, 1]. Got {typicality!r} instead.")
    if effort not in EFFORTS:
        raise SettingError(f"--effort must be fast, standard or thorough. Got {effort!r} instead.")
    return effort


def _output(rows: str, out: str | None, *, is_folder: bool, workers: int, as_json: bool) -> Path | None:
    """The path to write to, after checking that it goes with the other options."""
    if is_folder:
        if out is None or as_json:
            raise SettingError("A folder of rows is answered into another folder: give --out, and not --json.")
        return Path(out)
    path = None if out is None else check_output(out, _SUFFIXES)
    if workers > 1 and (path is None or as_json or {Path(rows).suffix.lower(), path.suffix} != {".parquet"}):
        raise SettingError(
            "--workers above 1 is for parquet files: give rows and --out as .parquet or as folders, and not --json."
        )
    return path


def _answer_folder(explainer: PartitionExplainer, rows: str, out: Path, totals: Totals, workers: int, size: int) -> str:
    """Answer the files of a folder, and describe them in a few words."""
    from avcg.batch.shards import Shards

    shards = Shards.of(rows, out, explainer)
    with progress("Answering", len(shards.files)) as bar:
        for done, file_totals in enumerate(shards.answer(workers, size), start=1):
            totals.add(file_totals)
            bar(done, f"{totals.rows:,} rows")
    return f"{len(shards.files):,} files in {rows}"


def _answer_in_processes(
    explainer: PartitionExplainer, rows: str, out: Path, totals: Totals, workers: int, size: int
) -> str:
    """Answer one parquet file in several processes, and give its name."""
    from avcg.batch.parquet import ParquetAnswers
    from avcg.batch.readers import ParquetRows
    from avcg.batch.shards import answer_chunks
    from avcg.cli.explain_options import open_source_and_writer

    with (
        open_source_and_writer(rows, out, explainer.answerer(), totals) as (source, writer),
        progress("Answering", source.total or 1) as bar,
    ):
        assert isinstance(source, ParquetRows)
        assert isinstance(writer, ParquetAnswers)
        for table, chunk_totals in answer_chunks(explainer, source, workers, size):
            writer.add_table(table)
            totals.add(chunk_totals)
            bar(totals.rows, f"{totals.rows:,} rows")
    return source.name


def _answer_file(
    answerer: Answerer, rows: str, out: Path | None, totals: Totals, size: int, *, as_json: bool
) -> tuple[str, list[dict[str, Any]]]:
    """Answer one file in this process, and give its name and the first answers."""
    from avcg.batch.writers import json_lines
    from avcg.cli.explain_options import open_source_and_writer

    first_answers = list[dict[str, Any]]()
    with (
        open_source_and_writer(rows, out, answerer, totals) as (source, writer),
        progress("Answering", source.total or 1) as bar,
    ):
        for chunk in source.chunks(size):
            blocks = answerer.answer(chunk)
            totals.count(chunk, blocks)
            if writer is not None:
                writer.add(blocks)
            for block in blocks:
                if as_json:
                    for line in json_lines(block):
                        typer.echo(line)
                elif len(first_answers) < _MAX_SHOWN:
                    first_answers += _first(block, _MAX_SHOWN - len(first_answers))
            bar(source.done, f"{totals.rows:,} rows")
    return source.name, first_answers


def _first(block: AnsweredRows, count: int) -> list[dict[str, Any]]:
    results = block.results()
    count = min(count, len(block.row_of_answer))
    return [{name: values[i] for name, values in results.items()} for i in range(count)]


def _print_summary(
    screen: Console,
    totals: Totals,
    answerer: Answerer,
    name: str,
    first_answers: list[dict[str, Any]],
    out: Path | None,
) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from avcg.guarantees.statement import discovery, summary

    already = f", {totals.left_out:,} of which have {answerer.target!r} already" if totals.left_out else ""
    screen.print(f"{totals.rows:,} rows of {name}{already}", markup=False)
    if out is None and first_answers:
        table = Table(box=box.SIMPLE_HEAD, title=f"The first {len(first_answers)} answers", title_justify="left")
        for head in ("row", "status", "what to change", "probability", "how sure"):
            table.add_column(head, justify="right" if head == "row" else "left")
        for line in first_answers:
            votes = votes_in_words(*(line[name] for name in VOTES)) or ""
            probabilities = f"{line['probability_before']:.2f} -> {line['probability']:.2f}"
            table.add_row(str(line["row"]), str(line["status"]), Text(str(line["changes"])), probabilities, votes)
        screen.print(table)
    table = Table(box=box.SIMPLE_HEAD, title="All answers", title_justify="left")
    table.add_column("status")
    table.add_column("answers", justify="right")
    table.add_column("meaning")
    for status, meaning in MEANING.items():
        if totals.statuses[status]:
            table.add_row(status, f"{totals.statuses[status]:,}", meaning)
    if totals.statuses:
        screen.print(table)
        promise = " ".join(summary(answerer.statements()))
        if promise:
            screen.print(promise, markup=False)
        shown, rate = totals.discovery(answerer.survival)
        if rate <= _MAX_RATE:
            sentence = discovery(shown, rate, totals.votes.total(), totals.n_test, answerer.survival)
            screen.print(sentence, markup=False)
    if out is not None:
        screen.print(f"Written to {out}", markup=False)
