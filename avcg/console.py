"""Tables and progress bars on a terminal; a pipe or file gets plain tables and no progress bars."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console

_PIPE_WIDTH = 250  # characters


class Advance(Protocol):
    """Callback that reports progress."""

    def __call__(self, done: float, note: str = "") -> None:
        """Update the progress bar.

        Args:
            done: Amount of work done so far, in the units of ``total``.
            note: Short text shown beside the bar.
        """


@contextmanager
def progress(label: str, total: float) -> Iterator[Advance]:
    """Show a progress bar on standard error while the block runs, if standard error is a terminal.

    Args:
        label: Short description of the work, shown before the bar.
        total: Total amount of work, in any unit.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    stderr = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"), TimeRemainingColumn())
    with Progress(*columns, console=stderr, disable=not stderr.is_terminal, transient=True) as bar:
        task = bar.add_task(label, total=total, note="")

        def advance(done: float, note: str = "") -> None:
            bar.update(task, completed=done, note=note)

        yield advance


def console() -> Console:
    """The console for printing tables: as wide as the terminal, or wide enough for any table if output is piped."""
    from rich.console import Console

    terminal = Console(highlight=False)
    # A pipe has no width; rich would fold tables at eighty columns.
    return terminal if terminal.is_terminal else Console(highlight=False, width=_PIPE_WIDTH)
