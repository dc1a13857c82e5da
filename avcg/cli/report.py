"""``avcg report``: write answers as an HTML page."""

from __future__ import annotations

from typing import Annotated

import typer

from avcg.console import console
from avcg.files import check_output, write_whole

report_app = typer.Typer()


@report_app.command("report")
def report_answers(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="A folder that AVCG.save wrote.")],
    answers: Annotated[str, typer.Argument(metavar="ANSWERS", help="A file that Counterfactuals.to_json wrote.")],
    out: Annotated[str, typer.Option(metavar="FILE", help="File to write, .html.")] = "report.html",
    by: Annotated[str | None, typer.Option(metavar="COLUMN", help="Column of the rows to group by.")] = None,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
) -> None:
    """Write an HTML page about answers.

    It shows who would have to change what, how sure that is, and what it costs.
    """
    target = check_output(out, (".html",))  # before anything slow

    from avcg.auditing.audit import read_answers
    from avcg.io.artifact import about, load
    from avcg.report.answers_page import TITLE, render

    delivered = read_answers(answers)
    page = render(
        delivered,
        load(directory),
        by=by,
        title=TITLE if title is None else title,
        assumption=about(directory).get("assumption"),
    )
    write_whole(target, page)
    screen = console()
    screen.print(str(delivered).split("\n")[0], markup=False)
    screen.print(f"Written to {target}", markup=False)
