"""``avcg explain``: a stored explainer answers the rows of a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from avcg.console import console, progress
from avcg.errors import SettingError
from avcg.explainers.records import MEANING, at_least
from avcg.files import check_output

if TYPE_CHECKING:
    from rich.console import Console

    from avcg.batch.answerer import Answerer, Totals
    from avcg.batch.columns import Answered
    from avcg.batch.partition import PartitionExplainer

explain_app = typer.Typer()

_KINDS = (".csv", ".parquet", ".json")
_SHOWN = 10

Source = Annotated[
    str,
    typer.Argument(metavar="ROWS", help="A .csv or .parquet file, a folder of .parquet files, or - for CSV on stdin."),
]
Target = Annotated[str | None, typer.Option(help="The outcome wanted (default: the --positive of avcg fit).")]
Vary = Annotated[str | None, typer.Option(help="Columns that may change, e.g. income,months; others stay.")]
Ranges = Annotated[
    list[str] | None,
    typer.Option("--range", help="Where a column may go: income:30:60, housing:own|rent; may be repeated."),
]
Out = Annotated[
    str | None,
    typer.Option(
        help="Where to write: .csv or .parquet (any size), or .json for avcg audit and avcg report (put together in"
        " memory: at most 200,000 rows); a folder for a folder, where files that are answered already are not answered"
        " again. A column that is there already, say 'status', makes ours 'avcg_status'."
    ),
]
Chunk = Annotated[int, typer.Option(help="Rows held in memory at a time, rounded up to thousands.", min=1)]
Workers = Annotated[
    int, typer.Option(help="Processes, each with one thread, that parquet files are shared out among.", min=1)
]


@explain_app.command("explain")
def explain(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="A folder that avcg fit, or AVCG.save, wrote.")],
    rows: Source,
    target: Target = None,
    n: Annotated[int, typer.Option("-n", help="Answers for each row.", min=1)] = 1,
    vary: Vary = None,
    ranges: Ranges = None,
    min_prob: Annotated[float | None, typer.Option(help="Probability of the target that an answer must have.")] = None,
    max_changes: Annotated[int | None, typer.Option(help="Columns that may change at once.", min=1)] = None,
    refine: Annotated[bool, typer.Option("--refine", help="Spend more time to come closer.")] = False,
    only_denied: Annotated[
        bool, typer.Option("--only-denied/--all", help="Leave out rows that have the outcome already, or list them.")
    ] = True,
    chunk: Chunk = 10_000,
    workers: Workers = 1,
    out: Out = None,
    as_json: Annotated[bool, typer.Option("--json", help="A line of JSON for each answer, for machines.")] = False,
    seed: Annotated[
        int | None, typer.Option(help="Of the latents that are tried (default: as trained).", min=0, max=2**32 - 1)
    ] = None,
) -> None:
    """Tell for every row of a file what to change, and how sure that is."""
    folder = Path(rows).is_dir()
    place = _place(rows, out, folder=folder, workers=workers, as_json=as_json)  # before what is slow
    if min_prob is not None and not 0 < min_prob < 1:
        raise SettingError(f"--min-prob must be in (0, 1). Got {min_prob!r} instead.")

    from avcg.batch.answerer import TOGETHER, BatchOptions, Totals, digest_of, opened
    from avcg.batch.partition import PartitionExplainer
    from avcg.cli.explain_options import ranges_of, varied, wanted

    # By the path that workers know it by, so that it is read once here.
    artifact = opened(str(Path(directory).absolute()), digest_of(directory))
    options = BatchOptions(
        target=wanted(artifact, target),
        n=n,
        vary=varied(artifact, vary),
        ranges=ranges_of(ranges or (), artifact.space.schema),
        min_prob=min_prob,
        max_changes=max_changes,
        refine=refine,
        only_denied=only_denied,
        seed=seed,
    )
    explainer, size = PartitionExplainer(directory, options), -(-chunk // TOGETHER) * TOGETHER
    totals, shown = Totals(), list[dict[str, object]]()
    if place is not None and folder:
        name = _answer_folder(explainer, rows, place, totals, workers, size)
    elif place is not None and workers > 1:
        name = _answer_shared(explainer, rows, place, totals, workers, size)
    else:
        name, shown = _answer_all(explainer.answerer(), rows, place, totals, size, as_json=as_json)
    if not as_json:
        _say(console(), totals, options.target, name, shown, place)


def _place(rows: str, out: str | None, *, folder: bool, workers: int, as_json: bool) -> Path | None:
    """Where to write, if what was asked for goes together."""
    if folder:
        if out is None or as_json:
            raise SettingError("A folder of rows is answered into another, and nowhere else: give --out, not --json.")
        return Path(out)
    place = None if out is None else check_output(out, _KINDS)
    if workers > 1 and (place is None or as_json or {Path(rows).suffix.lower(), place.suffix} != {".parquet"}):
        raise SettingError(
            "--workers shares out parquet files: give rows and --out as .parquet, or as folders, and not --json."
        )
    return place


def _answer_folder(
    explainer: PartitionExplainer, rows: str, place: Path, totals: Totals, workers: int, size: int
) -> str:
    """Answer all files of a folder; how to call them."""
    from avcg.batch.shards import Shards

    shards = Shards.of(rows, place, explainer)
    with progress("Answering", len(shards.files)) as bar:
        for done, each in enumerate(shards.answered(workers, size), start=1):
            totals.add(each)
            bar(done, f"{totals.rows:,} rows")
    return f"{len(shards.files):,} files in {rows}"


def _answer_shared(
    explainer: PartitionExplainer, rows: str, place: Path, totals: Totals, workers: int, size: int
) -> str:
    """Answer one file by several processes; its name."""
    from avcg.batch.parquet import ParquetAnswers
    from avcg.batch.readers import ParquetRows
    from avcg.batch.shards import answer_pieces
    from avcg.cli.explain_options import open_rows_and_file

    with (
        open_rows_and_file(rows, place, explainer.answerer(), totals) as (source, writer),
        progress("Answering", source.total or 1) as bar,
    ):
        assert isinstance(source, ParquetRows)
        assert isinstance(writer, ParquetAnswers)
        for table, each in answer_pieces(explainer, source, workers, size):
            writer.add_table(table)
            totals.add(each)
            bar(totals.rows, f"{totals.rows:,} rows")
    return source.name


def _answer_all(
    answerer: Answerer, rows: str, place: Path | None, totals: Totals, size: int, *, as_json: bool
) -> tuple[str, list[dict[str, object]]]:
    """Answer and write; the name of what was read, and the first answers."""
    from avcg.batch.writers import records
    from avcg.cli.explain_options import open_rows_and_file

    shown = list[dict[str, object]]()
    with (
        open_rows_and_file(rows, place, answerer, totals) as (source, writer),
        progress("Answering", source.total or 1) as bar,
    ):
        for piece in source.pieces(size):
            blocks = answerer.answer(piece)
            totals.count(piece, blocks)
            if writer is not None:
                writer.add(blocks)
            for block in blocks:
                if as_json:
                    for line in records(block):
                        typer.echo(line)
                elif len(shown) < _SHOWN:
                    shown += _first(block, _SHOWN - len(shown))
            bar(source.done, f"{totals.rows:,} rows")
    return source.name, shown


def _first(block: Answered, count: int) -> list[dict[str, object]]:
    own = block.own()
    return [{name: values[i] for name, values in own.items()} for i in range(min(count, len(block.each)))]


def _say(
    screen: Console, totals: Totals, target: object, name: str, shown: list[dict[str, object]], place: Path | None
) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    already = f", {totals.left_out:,} of which have {target!r} already" if totals.left_out else ""
    screen.print(f"{totals.rows:,} rows of {name}{already}", markup=False)
    if place is None and shown:
        table = Table(box=box.SIMPLE_HEAD, title=f"The first {len(shown)} answers", title_justify="left")
        for head in ("row", "status", "what to change", "probability", "models that agree"):
            table.add_column(head, justify="right" if head == "row" else "left")
        for line in shown:
            sure = "" if line["agreeing"] is None else f"{line['agreeing']} of {line['n_models']}"
            if sure:
                sure += f": at least {at_least(line['lower_bound'])} of all"
            chance = f"{line['probability_before']:.2f} -> {line['probability']:.2f}"
            table.add_row(str(line["row"]), str(line["status"]), Text(str(line["changes"])), chance, sure)
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
    if place is not None:
        screen.print(f"Written to {place}", markup=False)
