"""``avcg audit``: ask new models about answers that people were given."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from avcg.errors import DataError, SettingError, enumerate_some
from avcg.progress import console

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

    from avcg.auditing import Audit

audit_app = typer.Typer()

_KINDS = (".html", ".json", ".csv")


@audit_app.command("audit")
def audit_answers(
    answers: Annotated[str, typer.Argument(metavar="ANSWERS", help="A file that Counterfactuals.to_json wrote.")],
    model: Annotated[list[str], typer.Option(help="An ONNX file; may be repeated.")],
    by: Annotated[str | None, typer.Option(help="A column of the rows to group by.")] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Probability of the second class from which it is decided for.")
    ] = None,
    classes: Annotated[
        str | None, typer.Option(help="Labels in the order of the models' probabilities, e.g. no,yes.")
    ] = None,
    out: Annotated[str | None, typer.Option(help="Where to write it too: .html, .json or .csv.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Records for machines.")] = False,
) -> None:
    """Say whether answers still hold under other models."""
    target = None if out is None else _checked(out)  # before what is slow

    from avcg.auditing import audit, read_answers
    from avcg.models.blackbox import BlackBox

    told = read_answers(answers)
    models: dict[str, Any] = {path: path for path in model}
    if classes is not None:
        labels = _labels(classes, told.target)
        models = {path: BlackBox(path, told.answers, classes=labels) for path in model}
    found = audit(told, models, threshold=threshold)
    text = found.to_json(by) if as_json else None
    shown = [] if as_json else _tables(found, by)
    if target is not None:
        _write(target, _rendered(found, by, target.suffix))
    if text is not None:
        typer.echo(text)
        return
    screen = console()
    screen.print(str(found).split("\n")[0], markup=False)
    for table in shown:
        screen.print(table)
    if target is not None:
        screen.print(f"Written to {target}", markup=False)


def _checked(out: str) -> Path:
    """Where to write, before anything is asked."""
    target = Path(out)
    if target.suffix not in _KINDS:
        raise SettingError(f"--out must end in {enumerate_some(_KINDS)}. Got {out!r} instead.")
    if not target.parent.is_dir():
        raise SettingError(f"There is no folder {str(target.parent)!r} to write to. Make it first.")
    return target


def _labels(classes: str, target: Any) -> list[Any]:
    """Labels as the answers have them: whole numbers, numbers, yes or no, or texts."""
    names = [name.strip() for name in classes.split(",")]
    if target.dtype.kind == "b":
        kinds = {"true": True, "false": False, "1": True, "0": False}
        if not all(name.lower() in kinds for name in names):
            raise SettingError(f"The targets of the answers are true or false. Got --classes {classes!r}.")
        return [kinds[name.lower()] for name in names]
    try:
        return [target.dtype.type(name).item() if target.dtype.kind in "iuf" else name for name in names]
    except ValueError:
        raise SettingError(f"The targets of the answers are numbers. Got --classes {classes!r}.") from None


def _rendered(found: Audit, by: str | None, suffix: str) -> str:
    if suffix == ".html":
        return found.to_html(by)
    return found.to_json(by) if suffix == ".json" else found.frame.to_csv(lineterminator="\n")


def _write(target: Path, text: str) -> None:
    """The whole file, or none of it."""
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    except OSError as error:
        raise DataError(f"{target} cannot be written: {error.strerror}.") from None
    half = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        half.chmod(0o644)
        half.replace(target)
    except OSError as error:
        raise DataError(f"{target} cannot be written: {error.strerror}.") from None
    finally:
        half.unlink(missing_ok=True)


def _tables(found: Audit, by: str | None) -> list[Table]:
    shown = []
    if found.answers.changed is not None:
        shown = [
            _table("By what was to change", found.by_change()),
            _table("By how many columns were to change", found.by_count()),
        ]
    return shown if by is None else [*shown, _table(f"By {by}", found.by(by))]


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
