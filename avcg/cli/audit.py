"""``avcg audit``: check whether delivered answers hold under new models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from avcg.console import console
from avcg.errors import SettingError, enumerate_some
from avcg.files import check_output, write_whole

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

    from avcg.auditing.audit import Audit
    from avcg.explainers.avcg import AVCG

audit_app = typer.Typer()

_SUFFIXES = (".html", ".json", ".csv")


@audit_app.command("audit")
def audit_answers(
    answers: Annotated[str, typer.Argument(metavar="ANSWERS", help="A file that Counterfactuals.to_json wrote.")],
    model: Annotated[
        list[str],
        typer.Option(
            metavar="MODEL",
            help="An ONNX file, or a folder that avcg fit wrote, whose model judges and whose explainer replaces lost"
            " answers; repeatable.",
        ),
    ],
    by: Annotated[str | None, typer.Option(metavar="COLUMN", help="Column of the rows to group by.")] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Probability from which the models decide for the second class.")
    ] = None,
    classes: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Labels in the order of the models' probabilities.")
    ] = None,
    out: Annotated[
        str | None, typer.Option(metavar="FILE", help="File to write the audit to: .html, .json or .csv.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the audit as JSON.")] = False,
) -> None:
    """Check whether answers still hold under other models."""
    target = None if out is None else check_output(out, _SUFFIXES)  # before anything slow

    from avcg.auditing.audit import audit, read_answers
    from avcg.models.black_box import BlackBox

    delivered = read_answers(answers)
    stored = _stored(model)
    models: dict[str, Any] = {path: stored.get(path, path) for path in model}
    if classes is not None:
        if len(stored) == len(models):
            raise SettingError("--classes is for ONNX files, and every --model is a folder: leave it out.")
        labels = _labels(classes, delivered.target)
        models |= {path: BlackBox(path, delivered.answers, classes=labels) for path in model if path not in stored}
    rule = _rule(stored) if threshold is None else threshold
    result = audit(delivered, models, recourse=next(iter(stored.values()), None), threshold=rule)
    text = result.to_json(by) if as_json else None
    shown = [] if as_json else _tables(result, by)
    if target is not None:
        write_whole(target, _rendered(result, by, target.suffix))
    if text is not None:
        typer.echo(text)
        return
    screen = console()
    screen.print(str(result).split("\n")[0], markup=False)
    if result.monitor is not None:
        screen.print(str(result.monitor), markup=False)
    for table in shown:
        screen.print(table)
    if target is not None:
        screen.print(f"Written to {target}", markup=False)


def _stored(paths: list[str]) -> dict[str, AVCG]:
    """The stored explainers, loaded from the paths that are folders."""
    from avcg.io.artifact import load

    return {path: load(path) for path in paths if Path(path).is_dir()}


def _rule(stored: dict[str, AVCG]) -> float | None:
    """The threshold of the stored explainers; None if there are none, or they have none."""
    rules = {explainer.threshold for explainer in stored.values()}
    if len(rules) > 1:
        raise SettingError(f"The folders decide by different thresholds: {enumerate_some(rules)}. Give --threshold.")
    return next(iter(rules), None)


def _labels(classes: str, target: Any) -> list[Any]:
    """Labels of ``--classes`` in the type of the answers' targets."""
    names = [name.strip() for name in classes.split(",")]
    if target.dtype.kind == "b":
        booleans = {"true": True, "false": False, "1": True, "0": False}
        if not all(name.lower() in booleans for name in names):
            raise SettingError(f"The targets of the answers are true or false. Got --classes {classes!r}.")
        return [booleans[name.lower()] for name in names]
    try:
        return [target.dtype.type(name).item() if target.dtype.kind in "iuf" else name for name in names]
    except ValueError:
        raise SettingError(f"The targets of the answers are numbers. Got --classes {classes!r}.") from None


def _rendered(result: Audit, by: str | None, suffix: str) -> str:
    if suffix == ".html":
        return result.to_html(by)
    return result.to_json(by) if suffix == ".json" else result.frame.to_csv(lineterminator="\n")


def _tables(result: Audit, by: str | None) -> list[Table]:
    shown = []
    if result.answers.changed is not None:
        shown = [
            _table("By column to change", result.by_change()),
            _table("By number of columns to change", result.by_count()),
        ]
    return shown if by is None else [*shown, _table(f"By {by}", result.by(by))]


def _table(title: str, totals: pd.DataFrame) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, title=Text(title), title_justify="left", title_style="bold")
    table.add_column(Text(str(totals.index.name)))
    for name in ("told", "hold", "lost", "share", "interval"):
        table.add_column(name, justify="right")
    for label, line in totals.iterrows():
        counts = [f"{int(line[name])}" for name in ("told", "holds", "lost")]
        interval = f"{line['low']:.0%} to {line['high']:.0%}"
        table.add_row(Text(str(label)), *counts, f"{line['share']:.0%}", interval)
    return table
