"""Published files: found on this machine or fetched from where they are published, and checked in any case."""

from __future__ import annotations

import hashlib
import lzma
import os
from dataclasses import dataclass
from pathlib import Path

from avcg.console import Advance, progress
from avcg.errors import DataFileError, MissingExtraError


@dataclass(frozen=True)
class Source:
    """One published file.

    Attributes:
        path: Where it lies below the data directory.
        sha256: Of its content, decompressed where the path ends in ``.bin``.
        url: Where it is published.
        md5: Of the archive at the address, where the file is part of one.
    """

    path: str
    sha256: str
    url: str
    md5: str | None = None


def cache_directory() -> Path:
    """Where downloaded files are kept: ``$XDG_CACHE_HOME/avcg``, else ``~/.cache/avcg``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "avcg"


def _places(directory: str | Path | None) -> list[Path]:
    given = directory or os.environ.get("AVCG_DATA")
    return [*([Path(given)] if given else []), cache_directory()]


def find(source: Source, directory: str | Path | None) -> Path | None:
    """Where a file lies, in the directory given, ``$AVCG_DATA`` or the cache; None if in neither."""
    # A batch of CIFAR-10 may be stored recompressed; what is in it is checked all the same.
    ends = (".xz", "") if source.path.endswith(".bin") else ("",)
    candidates = (place / f"{source.path}{end}" for place in _places(directory) for end in ends)
    return next((path for path in candidates if path.is_file()), None)


def read(source: Source, directory: str | Path | None, download: bool) -> bytes:
    """The content of a file, found or fetched, and checked."""
    path = find(source, directory)
    if path is None:
        if not download:
            looked = ", ".join(str(place) for place in _places(directory))
            raise DataFileError(
                f"The file {source.path} was not found in {looked}. Put it there, set AVCG_DATA to the directory"
                " that has it, or allow the download."
            )
        _download(source)
        path = cache_directory() / source.path
    try:
        content = path.read_bytes()
        content = lzma.decompress(content) if path.suffix == ".xz" else content
    except (EOFError, lzma.LZMAError) as error:
        raise DataFileError(
            f"The file {path} is damaged or truncated ({error}). Delete it and fetch it again."
        ) from error
    found = hashlib.sha256(content).hexdigest()
    if found != source.sha256:
        raise DataFileError(
            f"The file {path} is not the published one: its SHA-256 is {found[:16]}…, expected {source.sha256[:16]}…"
            " It may be truncated or changed. Delete it and fetch it again."
        )
    return content


def _download(source: Source) -> None:
    """Fetch a file into the cache. It appears there whole and checked, or not at all."""
    try:
        import pooch
    except ImportError:
        raise MissingExtraError("pooch", "data", f"Downloading {source.path}") from None
    target = cache_directory() / source.path
    packed = source.md5 is not None
    log = pooch.get_logger()
    level = log.level
    log.setLevel("WARNING")  # the bar says it, and only on a terminal
    try:
        with progress(f"Downloading {Path(source.url).name}", total=1.0) as advance:
            fetched = pooch.retrieve(
                source.url,
                known_hash=f"md5:{source.md5}" if packed else f"sha256:{source.sha256}",
                fname=Path(source.url).name if packed else target.name,
                path=cache_directory() if packed else target.parent,
                downloader=pooch.HTTPDownloader(progressbar=_Bar(advance), timeout=30),
            )
        if packed:
            _unpack(Path(fetched), target)
    except Exception as error:  # whatever the network library raises, the way out is the same
        raise DataFileError(
            f"The file {source.path} is not on this machine and could not be fetched from {source.url}"
            f" ({type(error).__name__}). Check the network, or fetch it by hand into a directory, keep its name, and"
            " set AVCG_DATA to that directory."
        ) from None
    finally:
        log.setLevel(level)


class _Bar:
    """What pooch calls while it downloads, in its words."""

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
    """Put all files of the target's kind beside it, so that one download serves all of them."""
    import tarfile

    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as packed:
        for member in packed.getmembers():
            content = (
                packed.extractfile(member) if member.isfile() and Path(member.name).suffix == target.suffix else None
            )
            if content is not None:
                whole = target.parent / Path(member.name).name
                half = whole.with_name(f"{whole.name}.{os.getpid()}.part")
                half.write_bytes(content.read())
                half.replace(whole)
