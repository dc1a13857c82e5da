"""``avcg schema``: what the columns of a file are, as a file to edit."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from avcg.batch.parsing import split_list
from avcg.cli.fit import Categorical, Data, Drop
from avcg.errors import SettingError
from avcg.files import check_output, write_whole

schema_app = typer.Typer()

SUFFIXES = (".toml",)


@schema_app.command("schema")
def schema(
    data: Data,
    target: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of outcomes, which is not described.")
    ] = None,
    positive: Annotated[
        str | None, typer.Option(metavar="OUTCOME", help="The outcome that people want, noted in the file.")
    ] = None,
    drop: Drop = None,
    categorical: Categorical = None,
    out: Annotated[
        str | None, typer.Option(metavar="FILE", help="A .toml file to write to (default: standard output).")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
) -> None:
    """Write what the columns of a file are, to be edited and given to avcg fit --schema.

    Nothing is frozen: say yourself what people cannot change.
    """
    goal = None if out is None else _goal(out, force=force)  # before anything slow
    from avcg.cli.fit_columns import id_notes
    from avcg.cli.fit_run import FitConfig, read_columns, schema_of
    from avcg.schema.entries import CommandNotes
    from avcg.schema.toml import to_toml
    from avcg.space.frames import number_ranges

    config = FitConfig(data, target, positive or "", drop=split_list(drop), categorical=split_list(categorical))
    X, _, dates = read_columns(config)
    described = schema_of(config, X)
    described = replace(described, kept=(*described.kept, *dates))
    for note in (*id_notes(X, described), *dates.values()):
        sys.stderr.write(f"avcg: {note}\n")
    text = to_toml(described, number_ranges(X, described), CommandNotes(target, positive, config.drop))
    if goal is None:
        typer.echo(text, nl=False)
        return
    write_whole(goal, text)
    missing = [option for option, value in (("--target", target), ("--positive", positive)) if value is None]
    options = "".join(f" {option} ..." for option in missing)
    files = f"{shlex.quote(data)} --schema {shlex.quote(str(goal))}"
    typer.echo(f"Written to {goal}. Edit it, then: avcg fit {files}{options} --out recourse")


def _goal(out: str, *, force: bool) -> Path:
    goal = check_output(out, SUFFIXES)
    if goal.exists() and not force:
        raise SettingError(f"There is a file {out!r} already. Give another name, or --force to replace it.")
    return goal
