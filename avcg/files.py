"""Output files: paths are checked before slow work starts, and a file is written completely or not at all."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from avcg.errors import DataError, SettingError, enumerate_some


def check_output(out: str | os.PathLike[str], suffixes: Sequence[str]) -> Path:
    """Check the path of an output file before slow work is done for it.

    Args:
        out: Path that was given with ``--out``.
        suffixes: Suffixes that its name may have.

    Raises:
        SettingError: If the path has another suffix, or its folder does not exist.

    >>> check_output("page.html", (".html", ".json")).name
    'page.html'
    """
    target = Path(out)
    if target.suffix not in suffixes:
        raise SettingError(f"--out must end in {enumerate_some(suffixes)}. Got {str(out)!r} instead.")
    if not target.parent.is_dir():
        raise SettingError(f"There is no folder {str(target.parent)!r} to write to. Create it first.")
    return target


def write_whole(target: Path, content: str | bytes) -> None:
    """Write a file completely or not at all; an existing file stays until the new one is complete.

    Args:
        target: Path of the file.
        content: Content of the file; texts are written as UTF-8.

    Raises:
        DataError: If the file cannot be written. The message gives the reason.
    """
    try:
        replace_file(target, content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise DataError(f"{target} cannot be written: {error.strerror}.") from None


def replace_file(path: Path, data: bytes) -> None:
    """Write a file atomically: even if the machine stops, there is either the old file or the new one.

    Args:
        path: Path of the file.
        data: Content of the file.

    Raises:
        OSError: If the file cannot be written; an existing file is then unchanged.
    """
    with beside(path) as temporary:
        temporary.write_bytes(data)


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """A hidden temporary file beside a path, which replaces the path if the block succeeds and is removed otherwise.

    Its content may be personal data, so it has the permissions of the file it replaces, or the default ones of new
    files.

    Args:
        path: Path of the file to write or replace.

    Raises:
        OSError: If the file cannot be written; an existing file is then unchanged.
    """
    temporary = path.parent / f".avcg-{secrets.token_hex(8)}.part"
    try:
        temporary.touch(exist_ok=False)
        mode = stat.S_IMODE((path if path.exists() else temporary).stat().st_mode)
        temporary.chmod(mode | stat.S_IWUSR)  # before anything is written to it
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(mode)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
