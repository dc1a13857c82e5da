"""Files that people ask for: whether they can go where they should, before the work; whole or not at all, after it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
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
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    except OSError as error:
        raise DataError(f"{target} cannot be written: {error.strerror}.") from None
    half = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        half.chmod(0o644)
        half.replace(target)
    except OSError as error:
        raise DataError(f"{target} cannot be written: {error.strerror}.") from None
    finally:
        half.unlink(missing_ok=True)
