"""``avcg backtest``: advice of past moments, judged by the models that really came."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from avcg.batch.parsing import split_list
from avcg.cli.fit import Between, Categorical, Data, Drop, Freeze, OnlyDown, OnlyUp, Positive, SchemaFile, Target
from avcg.console import console
from avcg.files import check_output, write_whole

if TYPE_CHECKING:
    from rich.table import Table

    from avcg.auditing.past import Backtest

backtest_app = typer.Typer()

_SUFFIXES = (".html", ".json")
Time = Annotated[str, typer.Option(metavar="COLUMN", help="Column of moments, such as years; it can be sorted.")]
Out = Annotated[
    str | None, typer.Option(metavar="FILE", help="File to write the backtest to: .html (a page) or .json.")
]
Model = Annotated[
    str, typer.Option(metavar="network|xgboost", help="What is fitted at each moment (xgboost needs its extra).")
]
First = Annotated[int, typer.Option(help="Moments known before the first origin.", min=1)]
Window = Annotated[
    int | None, typer.Option(help="Moments that a model is trained on (default: all that are known).", min=1)
]
LabelDelay = Annotated[int, typer.Option(help="Moments after which an outcome is known.", min=0)]
Horizon = Annotated[int | None, typer.Option(help="Later models that judge (default: all).", min=1)]
People = Annotated[int, typer.Option(help="Most people who are advised at an origin.", min=1)]
Rows = Annotated[int | None, typer.Option(help="Most rows of a moment, drawn at random (default: all).", min=1)]
Survival = Annotated[float, typer.Option(help="Share of people that a later model is to accept.")]
Reliability = Annotated[float, typer.Option(help="Chance that the next model does so.")]
Hypotheses = Annotated[int, typer.Option(help="Number of plausible models to train at each origin.", min=2)]
Steps = Annotated[int, typer.Option(help="Training steps of the generator.", min=1)]
Search = Annotated[bool, typer.Option("--search", help="Add a search for each row by gradients, to compare distances.")]
Folder = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="Folder in which each origin is stored; a stopped run goes on from there."),
]
Jobs = Annotated[int, typer.Option(help="Number of processes.", min=1)]
Seed = Annotated[int, typer.Option(help="Seed of all random numbers.", min=0, max=2**32 - 1)]
AsJson = Annotated[bool, typer.Option("--json", help="Print the backtest as JSON.")]


@backtest_app.command("backtest")
def backtest_rows(
    data: Data,
    time: Time,
    target: Target = None,
    positive: Positive = None,
    schema: SchemaFile = None,
    out: Out = None,
    model: Model = "network",
    first: First = 1,
    window: Window = None,
    label_delay: LabelDelay = 0,
    horizon: Horizon = None,
    people: People = 1000,
    rows: Rows = None,
    freeze: Freeze = None,
    only_up: OnlyUp = None,
    only_down: OnlyDown = None,
    between: Between = None,
    drop: Drop = None,
    categorical: Categorical = None,
    survival: Survival = 0.95,
    reliability: Reliability = 0.9,
    hypotheses: Hypotheses = 40,
    steps: Steps = 3000,
    search: Search = False,
    folder: Folder = None,
    jobs: Jobs = 1,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Stand at each past moment, advise with what was known, and judge by the models that really came.

    A page shows what was promised and what was kept, beside doing nothing and simple methods. AVCG takes the JSON as
    calibrate_on, and so does avcg fit.
    """
    goal = None if out is None else check_output(out, _SUFFIXES)  # before anything slow
    from avcg.cli.backtest_run import BacktestOptions, run
    from avcg.cli.fit_run import FitConfig
    from avcg.cli.schema_file import resolve

    described, target, positive, dropped = resolve(schema, target, positive, split_list(drop))
    config = FitConfig(
        data, target, positive, split_list(freeze), split_list(only_up), split_list(only_down), tuple(between or ()),
        dropped, split_list(categorical), schema=described, survival=survival, reliability=reliability,
        hypotheses=hypotheses, steps=steps, seed=seed,
    )  # fmt: skip
    options = BacktestOptions(time, model, first, window, label_delay, horizon, people, rows, search, folder, jobs)
    found, notes = run(config, options)
    for note in notes:
        sys.stderr.write(f"avcg: {note}\n")
    if goal is not None:
        write_whole(goal, found.to_html(reliability=reliability) if goal.suffix == ".html" else found.to_json())
    if as_json:
        typer.echo(found.to_json())
    else:
        _print(found, reliability, goal)


def _print(found: Backtest, reliability: float, goal: Path | None) -> None:
    screen = console()
    screen.print(str(found), markup=False)
    screen.print(_replayed(found, reliability))
    if goal is not None:
        screen.print(f"Written to {goal}", markup=False)


def _replayed(found: Backtest, reliability: float) -> Table:
    """What each origin would have promised by the moments before it alone."""
    from rich import box
    from rich.table import Table

    title = "If each promise had been calibrated by the moments before it"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold")
    for name in ("origin", "moments", "reliability", "accepted", "distance", "promise"):
        table.add_column(name, justify="left" if name in ("origin", "promise") else "right")
    for line in found.replayed(reliability=reliability).to_dict("records"):
        says = ("kept" if line["kept"] else "broken") if line["made"] else "none made"
        figures = (f"{line['reliability']:.2f}", f"{line['survival']:.1%}", f"{line['distance']:.3g}")
        table.add_row(str(line["origin"]), str(line["moments"]), *figures, says)
    return table
