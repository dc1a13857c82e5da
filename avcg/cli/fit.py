"""``avcg fit``: fit an explainer to a file of rows."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from avcg.batch.parsing import split_list
from avcg.console import console
from avcg.errors import MissingExtraError, SettingError
from avcg.explainers.records import MEANING

if TYPE_CHECKING:
    from rich.console import Console

fit_app = typer.Typer()

Data = Annotated[str, typer.Argument(metavar="DATA", help="A .csv or .parquet file, or - for CSV on stdin.")]
Target = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="Column of outcomes; required unless --schema names it.", show_default=False),
]
Positive = Annotated[
    str | None,
    typer.Option(
        metavar="OUTCOME", help="The outcome that people want; required unless --schema names it.", show_default=False
    ),
]
SchemaFile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="What the columns are and what may change: a file that avcg schema wrote, edited. Options such as --freeze"
        " are added to it.",
    ),
]
Freeze = Annotated[str | None, typer.Option(metavar="A,B,...", help="Columns that may not change.")]
OnlyUp = Annotated[str | None, typer.Option(metavar="A,B,...", help="Columns that may only rise.")]
OnlyDown = Annotated[str | None, typer.Option(metavar="A,B,...", help="Columns that may only fall.")]
Drop = Annotated[str | None, typer.Option(metavar="A,B,...", help="Columns to leave out, such as ids.")]
Categorical = Annotated[
    str | None, typer.Option(metavar="A,B,...", help="Columns of numbers that are names, such as postcodes.")
]
Between = Annotated[
    list[str] | None,
    typer.Option(metavar="COLUMN:LOW:HIGH", help="Range that answers stay in; either side may be empty; repeatable."),
]
Models = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODEL.ONNX",
        help="The deployed model, instead of a network trained here; repeatable: the first is the deployed one, and all"
        " are the plausible models.",
    ),
]
Classes = Annotated[
    str | None, typer.Option(metavar="A,B,...", help="Outcomes in the order of the models' probabilities.")
]
Resampling = Annotated[
    str | None,
    typer.Option(
        metavar="seed|bootstrap|subsample|added|label_noise", help="How plausible models differ (default: bootstrap)."
    ),
]
Survival = Annotated[
    float, typer.Option(help="Share of the people who followed the advice that a retrained model is to accept.")
]
Reliability = Annotated[
    float | None, typer.Option(help="Chance that the next retrained model does so (default: 0.9).", show_default=False)
]
Guarantee = Annotated[
    str,
    typer.Option(
        metavar="next_model|most_models|expected",
        help="What is promised: that the next model accepts --survival of the people with a chance of --reliability;"
        " that --reliability of all further models do, with --confidence; or that the next model accepts the next"
        " person with a chance of --survival.",
    ),
]
Confidence = Annotated[
    float | None,
    typer.Option(help="Confidence of --guarantee most_models (default: 0.9).", show_default=False),
]
CalibrateOn = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="JSON of avcg backtest, whose past moments calibrate the promise in place of models."
    ),
]
Threshold = Annotated[
    float | None,
    typer.Option(help="Probability from which the model decides for --positive (default: the likeliest outcome)."),
]


@fit_app.command("fit")
def fit(
    data: Data,
    out: Annotated[str, typer.Option(metavar="DIR", help="Folder to save the explainer to.")],
    target: Target = None,
    positive: Positive = None,
    schema: SchemaFile = None,
    freeze: Freeze = None,
    only_up: OnlyUp = None,
    only_down: OnlyDown = None,
    between: Between = None,
    drop: Drop = None,
    categorical: Categorical = None,
    at_most: Annotated[
        int | None, typer.Option(help="Largest number of columns that may change at once.", min=1)
    ] = None,
    model: Models = None,
    classes: Classes = None,
    survival: Survival = 0.95,
    reliability: Reliability = None,
    guarantee: Guarantee = "next_model",
    confidence: Confidence = None,
    calibrate_on: CalibrateOn = None,
    hypotheses: Annotated[
        int | None, typer.Option(help="Number of plausible models to train (default: 40).", min=2)
    ] = None,
    resampling: Resampling = None,
    steps: Annotated[int, typer.Option(help="Training steps of the generator.", min=1)] = 3000,
    threshold: Threshold = None,
    graphs: Annotated[bool, typer.Option("--graphs", help="Add ONNX graphs that answer without torch.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the split and of training.", min=0, max=2**32 - 1)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Fit an explainer to a file of rows, and measure it.

    It is measured on a fifth of the rows, which are held out.
    """
    from avcg.cli.fit_run import FitConfig, fit_explainer, read_table
    from avcg.cli.schema_file import resolve
    from avcg.io.folder import FORMAT, check_folder

    check_folder(out, FORMAT)  # before anything slow
    if graphs:
        _check_graphs(model)
    described, target, positive, dropped = resolve(schema, target, positive, split_list(drop))
    config = FitConfig(
        data, target, positive, split_list(freeze), split_list(only_up), split_list(only_down), tuple(between or ()),
        dropped, split_list(categorical), at_most, tuple(model or ()), split_list(classes), survival, reliability,
        guarantee, confidence, hypotheses, resampling, steps, threshold, seed, calibrate_on, described,
    )  # fmt: skip
    table = read_table(config)
    if not as_json:
        console().print(table.columns(data), markup=False)
    result = fit_explainer(config, table)
    result.explainer.save(out, graphs=graphs, about=result.about)
    for note in result.notes:
        sys.stderr.write(f"avcg: {note}\n")
    if as_json:
        typer.echo(json.dumps({"artifact": out, "positive": table.positive, **result.figures}, allow_nan=False))
    else:
        _print_summary(console(), result.figures, table.positive, out)


def _check_graphs(models: list[str] | None) -> None:
    if models:
        raise SettingError("--graphs needs the networks that are trained here. Leave it out with --model.")
    from avcg.io.onnx import missing_dependency

    missing = missing_dependency()
    if missing is not None:
        raise MissingExtraError(missing, "onnx", "--graphs")


def _print_summary(screen: Console, figures: dict[str, Any], positive: Any, out: str) -> None:
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
    screen.print(figures["promise"], markup=False)
    screen.print(f"Assumption: {figures['assumption']}", markup=False)
    screen.print(f"\nSaved to {out}. Next: avcg explain {out} rows.csv", markup=False)


def _lines(figures: dict[str, Any], positive: Any) -> list[tuple[str, str, str]]:
    """Lines of the summary: what was measured, the figure, and what it means."""
    baseline = f"the most frequent outcome for every row: {figures['most_frequent']:.0%}"
    lines = [
        ("correct decisions", f"{figures['accuracy']:.0%}", baseline),
        ("rows denied", f"{figures['denied']:,}", f"the decision is not {positive!r}"),
    ]
    if figures["measured"] is None:
        return [*lines, ("answers", "none", "no held-out row is denied, so nothing could be measured")]
    measured = figures["measured"]
    lines.append(("ok", f"{figures['coverage']:.1%}", f"of {measured:,} denied rows: {MEANING['ok']}"))
    others = {status: count for status, count in figures["statuses"].items() if status != "ok"}
    lines += [(f"  {status}", f"{count:,}", MEANING[status]) for status, count in others.items()]
    if figures["survival"] is not None:
        models = "the one model" if figures["n_models"] == 1 else f"the {figures['n_models']} models"
        meaning = f"mean share of {models} held back from training that accept an answer"
        lines.append(("survival", f"{figures['survival']:.3f}", meaning))
    if figures["distance"] is not None:
        lines.append(("distance", f"{figures['distance']:.2f}", "mean distance of an answer from its row"))
        lines.append(("changes", f"{figures['changes']:.1f}", "mean number of columns that an answer changes"))
    lines.append(("violations", f"{figures['violations']}", "cells of answers that break a constraint"))
    return lines
