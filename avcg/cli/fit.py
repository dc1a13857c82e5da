"""``avcg fit``: an explainer from a file of rows."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from avcg.batch.parsing import listed
from avcg.console import console
from avcg.errors import MissingExtraError, SettingError
from avcg.explainers.records import MEANING, at_least

if TYPE_CHECKING:
    from rich.console import Console

fit_app = typer.Typer()

Between = Annotated[
    list[str] | None,
    typer.Option(metavar="COLUMN:LOW:HIGH", help="Answers stay in this range; either side may be empty; repeatable."),
]
Models = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODEL.ONNX",
        help="A model that decides, in place of one that is trained here; of several the first decides and all are the"
        " plausible ones.",
    ),
]
Classes = Annotated[
    str | None, typer.Option(metavar="A,B,...", help="Outcomes in the order of the models' probabilities.")
]
How = Annotated[
    str | None,
    typer.Option(
        metavar="seed|bootstrap|subsample", help="What differs between plausible models (default: bootstrap)."
    ),
]
Threshold = Annotated[
    float | None,
    typer.Option(help="Probability of --positive from which it is decided for (default: the likeliest outcome)."),
]


@fit_app.command("fit")
def fit(
    data: Annotated[str, typer.Argument(metavar="DATA", help="A .csv or .parquet file, or - for CSV on stdin.")],
    target: Annotated[str, typer.Option(help="The column of outcomes.")],
    positive: Annotated[str, typer.Option(help="The outcome that people want.")],
    out: Annotated[str, typer.Option(metavar="DIR", help="Where to keep the explainer.")],
    freeze: Annotated[str | None, typer.Option(metavar="A,B,...", help="Columns that may not change.")] = None,
    only_up: Annotated[str | None, typer.Option(metavar="A,B,...", help="Columns that may only rise.")] = None,
    only_down: Annotated[str | None, typer.Option(metavar="A,B,...", help="Columns that may only fall.")] = None,
    between: Between = None,
    drop: Annotated[str | None, typer.Option(metavar="A,B,...", help="Columns to leave out, such as ids.")] = None,
    categorical: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Columns whose numbers are names, such as postcodes.")
    ] = None,
    at_most: Annotated[int | None, typer.Option(help="Columns that may change at once.", min=1)] = None,
    model: Models = None,
    classes: Classes = None,
    survival: Annotated[float, typer.Option(help="Share of models promised to agree.")] = 0.99,
    hypotheses: Annotated[int | None, typer.Option(help="Plausible models to train (default: 20).", min=2)] = None,
    resampling: How = None,
    steps: Annotated[int, typer.Option(help="Of training the generator.", min=1)] = 3000,
    threshold: Threshold = None,
    graphs: Annotated[bool, typer.Option("--graphs", help="Add graphs to answer from without torch.")] = False,
    seed: Annotated[int, typer.Option(help="Of everything.", min=0, max=2**32 - 1)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="The figures for machines.")] = False,
) -> None:
    """Learn from a file to tell people what to change, and measure it on rows that were held out."""
    from avcg.cli.fit_run import FitConfig, learn, read_config
    from avcg.io.folder import FORMAT, check_folder

    check_folder(out, FORMAT)  # before what is slow
    if graphs:
        _check_graphs(model)
    config = FitConfig(
        data, target, positive, listed(freeze), listed(only_up), listed(only_down), tuple(between or ()),
        listed(drop), listed(categorical), at_most, tuple(model or ()), listed(classes), survival, hypotheses,
        resampling, steps, threshold, seed,
    )  # fmt: skip
    table = read_config(config)
    if not as_json:
        console().print(f"{len(table.X) + len(table.held):,} rows of {data}\n{table.schema}\n", markup=False)
    learnt = learn(config, table)
    learnt.explainer.save(out, graphs=graphs, about=learnt.about)
    for note in learnt.notes:
        sys.stderr.write(f"avcg: {note}\n")
    if as_json:
        typer.echo(json.dumps({"artifact": out, "positive": table.positive, **learnt.figures}, allow_nan=False))
    else:
        _say(console(), learnt.figures, table.positive, out)


def _check_graphs(models: list[str] | None) -> None:
    if models:
        raise SettingError("--graphs is for networks that are trained here. Leave it out with --model.")
    from avcg.io.onnx import missing_dependency

    missing = missing_dependency()
    if missing is not None:
        raise MissingExtraError(missing, "onnx", "--graphs")


def _say(screen: Console, figures: dict[str, Any], positive: Any, out: str) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    title = f"Measured on {figures['held_out']:,} rows that were held out of {figures['rows'] + figures['held_out']:,}"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    for line in _lines(figures, positive):
        table.add_row(*map(Text, line))
    screen.print(table)
    screen.print(f"The promise: {figures['calibration']}", markup=False)
    screen.print(f"What certificates assume: {figures['assumption']}", markup=False)
    screen.print(f"\nKept in {out}. Go on with: avcg explain {out} rows.csv", markup=False)


def _lines(figures: dict[str, Any], positive: Any) -> list[tuple[str, str, str]]:
    """What is measured, the figure, and what it says."""
    common = f"always saying the most frequent outcome: {figures['most_frequent']:.0%}"
    lines = [
        ("decisions that are right", f"{figures['accuracy']:.0%}", common),
        ("rows denied", f"{figures['denied']:,}", f"decided otherwise than {positive!r}"),
    ]
    if figures["measured"] is None:
        return [*lines, ("answers", "none", "no row that was held out is denied, so that nothing could be measured")]
    measured = figures["measured"]
    lines.append(("answered", f"{figures['coverage']:.1%}", f"of {measured:,} denied rows: {MEANING['ok']}"))
    others = {status: count for status, count in figures["statuses"].items() if status != "ok"}
    lines += [(f"  {status}", f"{count:,}", MEANING[status]) for status, count in others.items()]
    if figures["survival"] is not None:
        aside, provable = f"{figures['n_models']} models set aside", f"{at_least(figures['provable'])} of all models"
        said = f"share of {aside} that agree, on average; promised: {figures['promise']}; all of them prove {provable}"
        lines.append(("survival", f"{figures['survival']:.3f}", said))
    if figures["distance"] is not None:
        lines.append(("distance", f"{figures['distance']:.2f}", "what a change costs, on average"))
        lines.append(("changes", f"{figures['changes']:.1f}", "columns, on average"))
    lines.append(("violations", f"{figures['violations']}", "cells that may not be as they were answered"))
    return lines
