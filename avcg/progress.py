"""Progress that people see and machines do not: a bar on a terminal, silence everywhere else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Advance(Protocol):
    """Called as work gets done."""

    def __call__(self, done: float, note: str = "") -> None:
        """Say how much is done by now, and what happens.

        Args:
            done: In the units of ``total``.
            note: A few words shown beside the bar.
        """


@contextmanager
def progress(label: str, total: float) -> Iterator[Advance]:
    """A bar on standard error while the block runs, if that is a terminal.

    Args:
        label: What is being done.
        total: How much there is to do.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(label, total=total, note="")

        def advance(done: float, note: str = "") -> None:
            bar.update(task, completed=done, note=note)

        yield advance
