"""Files that people ask for: whether they can go where they should, before the work; whole or not at all, after it."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from avcg.errors import DataError, SettingError, enumerate_some


def check_output(out: str | os.PathLike[str], kinds: Sequence[str]) -> Path:
    """Where to write, before anything slow is done.

    Args:
        out: As given with ``--out``.
        kinds: What its name may end in.

    Raises:
        SettingError: If it ends in something else, or its folder does not exist.

    >>> check_output("page.html", (".html", ".json")).name
    'page.html'
    """
    target = Path(out)
    if target.suffix not in kinds:
        raise SettingError(f"--out must end in {enumerate_some(kinds)}. Got {str(out)!r} instead.")
    if not target.parent.is_dir():
        raise SettingError(f"There is no folder {str(target.parent)!r} to write to. Make it first.")
    return target


def write_whole(target: Path, content: str | bytes) -> None:
    """The whole file, or none of it: what was there stays until the new one is complete.

    Raises:
        DataError: If it cannot be written, with the reason.
    """
    try:
        replace_file(target, content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise DataError(f"{target} cannot be written: {error.strerror}.") from None


def replace_file(path: Path, data: bytes) -> None:
    """Put a whole file in the place of another at once, even if the machine stops.

    Raises:
        OSError: If it cannot be written; then nothing has changed.
    """
    with beside(path) as half:
        half.write_bytes(data)


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """A hidden file to write to; it takes the place of another if all goes well, else it goes.

    It is as readable as the other, or as files are made here: what is in it may be personal.

    Raises:
        OSError: If it cannot be written; then nothing has changed.
    """
    half = path.parent / f".avcg-{secrets.token_hex(8)}.part"
    try:
        half.touch(exist_ok=False)
        mode = stat.S_IMODE((path if path.exists() else half).stat().st_mode)
        half.chmod(mode | stat.S_IWUSR)  # before anything is in it
        yield half
        with half.open("rb+") as file:
            os.fsync(file.fileno())
        half.chmod(mode)
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)
