"""What people see on a terminal: tables, and progress, which machines do not see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console

_WIDE = 250


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

    stderr = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"), TimeRemainingColumn())
    with Progress(*columns, console=stderr, disable=not stderr.is_terminal, transient=True) as bar:
        task = bar.add_task(label, total=total, note="")

        def advance(done: float, note: str = "") -> None:
            bar.update(task, completed=done, note=note)

        yield advance


def console() -> Console:
    """Where tables are printed: as wide as the terminal, or as they need."""
    from rich.console import Console

    terminal = Console(highlight=False)
    # A pipe has no width: let tables be as wide as they need rather than fold them at eighty columns.
    return terminal if terminal.is_terminal else Console(highlight=False, width=_WIDE)
