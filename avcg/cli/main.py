"""The command line. Commands import what they need when they run, so that ``--help`` is fast."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import avcg
from avcg.cli.audit import audit_app
from avcg.cli.backtest import backtest_app
from avcg.cli.bench import bench_app
from avcg.cli.explain import explain_app
from avcg.cli.fit import fit_app
from avcg.cli.report import report_app
from avcg.cli.schema import schema_app
from avcg.cli.serve import serve_app
from avcg.console import console
from avcg.errors import AvcgError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from rich.table import Table

    from avcg.datasets.base import Dataset

app = typer.Typer(
    name="avcg",
    help="Recourse that stays valid after the model is retrained.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_show_locals=False,  # local variables may hold personal data
)
data_app = typer.Typer(help="List and show the datasets of avcg.", no_args_is_help=True)
for command in (schema_app, fit_app, explain_app, report_app, audit_app, backtest_app, serve_app):
    app.add_typer(command)
app.add_typer(data_app, name="data")
app.add_typer(bench_app, name="bench")

Directory = Annotated[
    str | None, typer.Option("--dir", metavar="DIR", help="Folder of the original files (default: $AVCG_DATA).")
]
Seed = Annotated[int, typer.Option(help="Seed of the split and of training.", min=0, max=2**32 - 1)]


def main() -> None:
    """Run the command line. A mistake of the user is one sentence on standard error, and exit code 2."""
    # Characters that a terminal cannot show, such as arrows, become question marks instead of a traceback.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app()
    except AvcgError as error:
        sys.stderr.write(f"avcg: {error}\n")
        raise SystemExit(2) from None
    except BrokenPipeError:  # the reader, such as head, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"avcg {avcg.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Recourse that stays valid after the model is retrained."""


@app.command()
def demo(
    seed: Seed = 0,
    picture: Annotated[
        str, typer.Option(help="File to plot the three answers to (needs the extra 'plots').")
    ] = "demo.png",
    steps: Annotated[int, typer.Option(help="Training steps of the generator.", min=1)] = 1200,
    save: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder to save the explainer to, for explain, report and serve.")
    ] = None,
) -> None:
    """Fit an explainer to embedded data, and show three answers.

    The data is on breast cancer. The answers say what would have to change for a tumour to be judged benign.
    """
    from avcg.cli.demo import demonstrate

    demonstrate(console(), seed, picture, steps, save)


@data_app.command("list")
def list_datasets(directory: Directory = None) -> None:
    """List the datasets, and whether their files are available."""
    from avcg.datasets import published as datasets

    table = _table("name", "title", "rows", "licence", "files")
    for name in datasets.names():
        facts = datasets.about(name)
        files = "available" if datasets.available(name, directory) else "to download"
        table.add_row(name, str(facts["title"]), f"{facts['rows']:,}", str(facts["licence"]), files)
    console().print(table)


@data_app.command("show")
def show_dataset(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name that avcg data list shows.")],
    directory: Directory = None,
    cohort: Annotated[
        list[int] | None,
        typer.Option(help="Cohort to load, such as a year; may be repeated (default: all).", metavar="NUMBER"),
    ] = None,
    download: Annotated[bool, typer.Option(help="Download files that are missing.")] = True,
    seed: Seed = 0,
) -> None:
    """Show the columns, constraints, classes, split and cohorts of a dataset."""
    from avcg.datasets import published as datasets

    screen = console()
    data = datasets.load(name, directory, cohort=cohort or None, download=download)
    shape = " x ".join(str(size) for size in data.X.shape[1:])
    what = f"{len(data.X.columns)} columns" if data.schema else f"images of {shape}"
    screen.print(f"\n[bold]{datasets.about(name)['title']}[/bold]: {len(data):,} rows, {what}")
    screen.print(f"{data.note}\n")
    if data.schema is not None:
        screen.print(_schema_table(data))
    screen.print(_split_table(data, seed))
    if data.cohort is not None:
        screen.print(_cohort_table(data, data.cohort))
    screen.print(f"Licence: {data.licence}. Cite: {data.citation}", markup=False)


def _table(*columns: str, title: str | None = None) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold")
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in ("rows", "share") else "left"
        table.add_column(column, justify=justify, no_wrap=column in ("name", "column"))
    return table


def _schema_table(data: Dataset, title: str | None = None) -> Table:
    from rich.text import Text

    schema = data.schema
    assert schema is not None
    rows = schema.describe(data.X)
    table = _table(*rows[0], title=title)
    for row in rows:
        table.add_row(*(Text(cell, style="dim" if row["may change"] == "no" else "") for cell in row.values()))
    if schema.max_changes is not None:
        table.caption = f"At most {schema.max_changes} may change at once."
    return table


def _split_table(data: Dataset, seed: int) -> Table:
    parts = dict(zip(("train", "validation", "test"), data.split(seed), strict=True))
    table = _table("part", "rows", *(str(label) for label in data.classes), title=f"Split with seed {seed}")
    for name, part in (*parts.items(), ("all", data)):
        table.add_row(name, f"{len(part):,}", *_counts(part))
    return table


def _cohort_table(data: Dataset, cohort: NDArray[Any]) -> Table:
    table = _table("cohort", "rows", *(str(label) for label in data.classes), title="Cohorts")
    for number in sorted(set(cohort.tolist())):
        part = data.take((cohort == number).nonzero()[0])
        table.add_row(str(number), f"{len(part):,}", *_counts(part))
    return table


def _counts(data: Dataset) -> list[str]:
    return [f"{int((data.y == label).sum()):,}" for label in data.classes]
