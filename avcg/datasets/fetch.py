"""Published files, found on this machine or downloaded, and checked by their SHA-256."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from avcg.console import Advance, progress
from avcg.errors import DataFileError, MissingExtraError

# How a stored file is decompressed, by what is added to its published name.
_DECOMPRESS: dict[str, Callable[[bytes], bytes]] = {".xz": lzma.decompress, ".gz": gzip.decompress, "": bytes}


@dataclass(frozen=True)
class Source:
    """A published file.

    Attributes:
        path: Its path below the data directory.
        sha256: SHA-256 of its content, in hexadecimal. A file may be stored compressed once more, with ``.gz`` or
            ``.xz`` added to its name; it is the decompressed content that is checked.
        url: The address that it is downloaded from.
        md5: MD5 of the archive at that address, in hexadecimal; None where the address is the file itself.
    """

    path: str
    sha256: str
    url: str
    md5: str | None = None


def cache_directory() -> Path:
    """The directory of downloaded files: ``$XDG_CACHE_HOME/avcg``, else ``~/.cache/avcg``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "avcg"


def _directories(directory: str | Path | None) -> list[Path]:
    """The directories that are searched, in order."""
    preferred = directory or os.environ.get("AVCG_DATA")
    return [*([Path(preferred)] if preferred else []), cache_directory()]


def find(source: Source, directory: str | Path | None) -> Path | None:
    """The path of a file on this machine, or None if it is not there.

    Args:
        source: File to look for.
        directory: Directory to look in before the cache; None: ``$AVCG_DATA``, if set.
    """
    candidates = (folder / f"{source.path}{suffix}" for folder in _directories(directory) for suffix in _DECOMPRESS)
    return next((path for path in candidates if path.is_file()), None)


def read(source: Source, directory: str | Path | None, download: bool) -> bytes:
    """Read a file, or download it first, and check its content.

    Args:
        source: File to read.
        directory: Directory to look in before the cache; None: ``$AVCG_DATA``, if set.
        download: Whether a missing file may be downloaded.

    Raises:
        DataFileError: If it is missing and cannot be downloaded, or is not the published one.
    """
    path = find(source, directory)
    if path is None:
        if not download:
            searched = ", ".join(str(folder) for folder in _directories(directory))
            raise DataFileError(
                f"The file {source.path} was not found in {searched}. Put it there, set AVCG_DATA to the directory"
                " that has it, or allow the download."
            )
        _download(source)
        path = cache_directory() / source.path
    try:
        content = _DECOMPRESS[path.name.removeprefix(Path(source.path).name)](path.read_bytes())
    except (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
        raise DataFileError(
            f"The file {path} is damaged or truncated ({error}). Delete it and download it again."
        ) from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != source.sha256:
        raise DataFileError(
            f"The file {path} is not the published one: its SHA-256 is {digest[:16]}…, expected {source.sha256[:16]}…."
            " It may be truncated or changed. Delete it and download it again."
        )
    return content


def _download(source: Source) -> None:
    """Download a file into the cache. It appears there complete and checked, or not at all."""
    try:
        import pooch
    except ImportError:
        raise MissingExtraError("pooch", "data", f"Downloading {source.path}") from None
    target = cache_directory() / source.path
    archived = source.md5 is not None
    log = pooch.get_logger()
    level = log.level
    log.setLevel("WARNING")  # the progress bar shows the download, and only on a terminal
    try:
        with progress(f"Downloading {Path(source.url).name}", total=1.0) as advance:
            fetched = pooch.retrieve(
                source.url,
                known_hash=f"md5:{source.md5}" if archived else f"sha256:{source.sha256}",
                fname=Path(source.url).name if archived else target.name,
                path=cache_directory() if archived else target.parent,
                downloader=pooch.HTTPDownloader(progressbar=_Bar(advance), timeout=30),
            )
        if archived:
            _unpack(Path(fetched), target)
    except Exception as error:  # errors of the network library are of many kinds, with the same remedy
        raise DataFileError(
            f"The file {source.path} is not on this machine and could not be downloaded from {source.url}"
            f" ({type(error).__name__}). Check the network, or download it yourself, put it into a directory as"
            f" {source.path}, and set AVCG_DATA to that directory."
        ) from None
    finally:
        log.setLevel(level)


class _Bar:
    """A progress bar with the interface that pooch expects of one."""

    def __init__(self, advance: Advance) -> None:
        self.total = 0.0
        self._done = 0.0
        self._advance = advance

    def update(self, size: float) -> None:
        self._done += size
        self._advance(self._done / max(self.total, 1.0), f"{self._done / 1e6:.0f} of {self.total / 1e6:.0f} MB")

    def reset(self) -> None:
        self._done = 0.0

    def close(self) -> None:
        self.reset()


def _unpack(archive: Path, target: Path) -> None:
    """Extract all files with the suffix of the target to its folder, so that an archive is downloaded once."""
    import tarfile

    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            content = tar.extractfile(member) if member.isfile() and Path(member.name).suffix == target.suffix else None
            if content is not None:
                file = target.parent / Path(member.name).name
                partial = file.with_name(f"{file.name}.{os.getpid()}.part")
                partial.write_bytes(content.read())
                partial.replace(file)
