"""Folders of files that are complete at every moment: files named by their content, and a manifest that lists them.

New files are written beside the old ones. Then the manifest is replaced, which either happens or does not, and files
that it does not list are removed. An interrupted save leaves either the old content or the new. Needs the standard
library alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from avcg.errors import ArtifactError, SettingError, enumerate_some
from avcg.files import replace_file

try:
    import fcntl
except ImportError:  # Windows has no such locks, so two processes must not save to one folder at the same time
    fcntl = None  # type: ignore[assignment]

MANIFEST = "manifest.json"
FORMAT, VERSION = "avcg.artifact", 3  # of stored explainers
_HASH_DIGITS = 16  # of the hash in a file name
_MAX_INT = 2**63  # whole numbers of JSON that are not 64-bit integers are refused
# Names that only a save gives: files named by their content, and incomplete files.
_OWN_FILE = re.compile(rf"[a-z]+(-[0-9]+)?-[0-9a-f]{{{_HASH_DIGITS}}}\.[a-z]+|\.avcg-[0-9a-f]+\.part")
_NAME = re.compile(r"[a-z]+(-[0-9]+)?\.[a-z]+")
# Notes that commands rely on; any others are for people.
_NOTES = {"positive?": (bool, float, str), "dtypes?": {...: str}, "assumption?": str, ...: object}


def write_folder(path: str | Path, content: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
    """Write a folder completely, or leave it as it was.

    Args:
        path: Path of the folder; it is created if it does not exist.
        content: Entries of the manifest, as values of JSON; ``format`` and ``version`` among them.
        files: Content of each file, by a name such as ``weights.safetensors`` or ``model-1.onnx``.

    Raises:
        ArtifactError: If the folder cannot be written, or has other content.
        SettingError: If an entry of the manifest is not a value of JSON.
    """
    folder = Path(path)
    entries = {name: _entry(name, data) for name, data in files.items()}
    manifest = json_round_trip({**content, "files": entries})
    manifest["sha256"] = _digest(manifest)
    try:
        check_folder(folder, content["format"])
        folder.mkdir(parents=True, exist_ok=True)
        with _lock(folder) as sync:
            _check_content(folder, content["format"])
            for name, data in files.items():
                file = folder / entries[name]["file"]
                if not _has_content(file, data):
                    replace_file(file, data)
            sync()  # the files must be on the disk before a manifest lists them
            replace_file(folder / MANIFEST, _text(manifest))
            sync()
            kept = {MANIFEST, *(entry["file"] for entry in entries.values())}
            for file in folder.iterdir():
                if file.name not in kept and _OWN_FILE.fullmatch(file.name):
                    with suppress(OSError):  # some systems keep files that are being read; the next save removes them
                        file.unlink()
    except ArtifactError:
        raise
    except OSError as error:
        raise ArtifactError(f"{folder} cannot be written: {error.strerror or error}.") from None


def check_folder(path: str | Path, kind: str) -> None:
    """Check that a folder can be written, before slow work is done for it.

    Args:
        path: Path of the folder, which need not exist.
        kind: Format of its manifest.

    Raises:
        ArtifactError: If the path is a file, or a folder that has other content or cannot be written.
    """
    folder = Path(path)
    try:
        if folder.exists() and not folder.is_dir():
            raise ArtifactError(f"{folder} is a file. Give the name of a folder.")
        if folder.is_dir():
            _check_content(folder, kind)
        existing = next(part for part in (folder.absolute(), *folder.absolute().parents) if part.exists())
    except PermissionError as error:
        raise ArtifactError(f"{folder} cannot be written: {error.strerror}.") from None
    if not existing.is_dir():
        raise ArtifactError(f"{folder} cannot be written: {existing} is a file.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ArtifactError(f"{folder} cannot be written: there is no permission to write in {existing}.")


def read_folder(
    path: str | Path, kind: str, version: int, names: Iterable[str] | None = None
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Read the manifest and files of one save, even while another save replaces them. All checksums are compared.

    Args:
        path: Path of the folder.
        kind: Format that the manifest must have.
        version: Version of the format that can be read.
        names: Names of the files to read; None: all.

    Raises:
        ArtifactError: If something is missing, changed, or of another format or version.
    """
    while True:
        stamp = _manifest_stamp(path)
        manifest = read_manifest(path, kind, version)
        try:
            names_to_read = manifest["files"] if names is None else names
            return manifest, {name: read_file(path, manifest, name) for name in names_to_read}
        except ArtifactError:
            if _manifest_stamp(path) == stamp:
                raise
            # Another save replaced the files meanwhile: read those.


def _manifest_stamp(path: str | Path) -> tuple[int, int] | None:
    """A value that differs after every save, even one of the same content."""
    with suppress(OSError, ValueError):
        status = (Path(path) / MANIFEST).stat()
        return status.st_ino, status.st_mtime_ns
    return None


def read_manifest(path: str | Path, kind: str, version: int) -> dict[str, Any]:
    """Read the manifest of a folder and compare its checksum.

    Args:
        path: Path of the folder.
        kind: Format that the manifest must have.
        version: Version of the format that can be read.

    Raises:
        ArtifactError: If the manifest is missing, changed, or of another format or version.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ArtifactError(f"There is no folder {str(path)!r}. Give one that AVCG.save or avcg fit wrote.")
    file = folder / MANIFEST
    if not file.is_file():
        raise ArtifactError(f"{folder} has no {MANIFEST}. Give a folder that AVCG.save or avcg fit wrote.")
    try:
        data = file.read_bytes()
        manifest = json.loads(data)
        text = _text(manifest)
    except (ValueError, OSError, RecursionError) as error:
        raise ArtifactError(f"{file} cannot be read: {error}.") from None
    wrong = validate(manifest, {"format": str, "version": int, ...: object})
    if wrong is not None:
        raise ArtifactError(f"{file} is not a manifest of avcg: {wrong}.")
    if manifest["format"] != kind:
        raise ArtifactError(
            f"{folder} holds {manifest['format']!r}, not {kind!r}. Give a folder that AVCG.save or avcg fit wrote. If"
            " an older avcg wrote it, fit the explainer again and save it."
        )

    if manifest["version"] != version:
        older = manifest["version"] < version
        raise ArtifactError(
            f"{folder} has format version {manifest['version']}; this avcg reads version {version}."
            f" {'Fit the explainer again and save it' if older else 'Update avcg'}."
        )
    if text != data or manifest.get("sha256") != _digest(manifest):
        raise ArtifactError(f"{file} was changed after it was written. Save the explainer again.")
    wrong = validate(manifest.get("files"), {...: {"file": str, "sha256": str, "bytes": int}}, "files")
    for name, entry in ({} if wrong else manifest["files"]).items():
        # A manifest must not list files outside of its folder.
        if not _NAME.fullmatch(name) or entry["file"] != _file_name(name, entry["sha256"]):
            wrong = f"{entry['file']!r} is not the file name of {name!r}"
    if wrong is not None:
        raise ArtifactError(f"{file} was not written by AVCG.save: {wrong}.")
    return manifest


def read_file(path: str | Path, manifest: Mapping[str, Any], name: str) -> bytes:
    """Read a file of a folder and compare its checksum.

    Args:
        path: Path of the folder.
        manifest: Manifest of the folder.
        name: Name of the file in the manifest.

    Raises:
        ArtifactError: If the manifest does not list the file, or the file is missing or changed.
    """
    if name not in manifest["files"]:
        raise ArtifactError(f"{path} has no {name}.")
    entry = manifest["files"][name]
    file = Path(path) / entry["file"]
    if not file.is_file():
        raise ArtifactError(f"{path} lacks {entry['file']} ({name}).")
    try:
        # The size is compared first, so that a file that has grown is not read.
        data = file.read_bytes() if file.stat().st_size == entry["bytes"] else None
    except OSError as error:
        raise ArtifactError(f"{file} cannot be read: {error.strerror}.") from None
    if data is None or hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise ArtifactError(f"{file} was changed or truncated after it was written.")
    return data


def invalid_note(notes: Any, labels: Sequence[Any]) -> str | None:
    """The first note that commands could not rely on; None if there is none.

    Args:
        notes: Notes of an explainer, as values of JSON.
        labels: Labels of its classes, as values of JSON.

    >>> invalid_note({"positive": "maybe", "by": "someone"}, ["no", "yes"])
    "about.positive is 'maybe', which is not a label: there is 'no', 'yes'"
    """
    wrong = validate(notes, _NOTES, "about")
    if wrong is not None or "positive" not in notes:
        return wrong
    positive = notes["positive"]
    if any(positive == label and isinstance(positive, bool) is isinstance(label, bool) for label in labels):
        return None
    return f"about.positive is {positive!r:.60}, which is not a label: there is {enumerate_some(labels, 12)}"


def stored_notes(path: str | Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The notes that were saved with an explainer.

    Args:
        path: Path of the folder, for the error message.
        manifest: Manifest of the folder.

    Raises:
        ArtifactError: If there is a note that commands cannot rely on.
    """
    labels = {"classes": {"values": [object], ...: object}, ...: object}
    notes: dict[str, Any] = manifest.get("about", {})
    wrong = validate(manifest, labels) or invalid_note(notes, manifest["classes"]["values"])
    if wrong is not None:
        raise ArtifactError(f"A note in {path} is invalid: {wrong}. Save the explainer again without it.")
    return notes


def validate(value: Any, pattern: Any, where: str = "it") -> str | None:
    """The first difference between a value of JSON and a pattern, in words; None if the value matches.

    Args:
        value: A value as `json.loads` gives it.
        pattern: One of: a type (an integer is also a float, a boolean is not a number); a tuple of alternative
            patterns; a list of one pattern for all items, or of one pattern for each item; a dictionary of patterns by
            name, where a name that ends in ``?`` is optional and ``...`` stands for any other name; or a value.
        where: Name of the value, for the result.

    >>> validate({"name": "a", "size": [1, "2"]}, {"name": str, "size": [int], "note?": str})
    "it.size[1] is '2'"
    """
    wrong = f"{where} is {value!r:.60}"
    if isinstance(pattern, tuple):
        return None if any(validate(value, alternative) is None for alternative in pattern) else wrong
    if isinstance(pattern, list):
        if not isinstance(value, list) or len(value) != len(pattern) != 1:
            return wrong
        patterns = pattern * len(value) if len(pattern) == 1 else pattern
        items = enumerate(zip(value, patterns, strict=True))
        differences = (validate(item, inner, f"{where}[{i}]") for i, (item, inner) in items)
        return next((difference for difference in differences if difference is not None), None)
    if isinstance(pattern, dict):
        if not isinstance(value, dict):
            return wrong
        missing = [name for name in pattern if name is not ... and name[-1:] != "?" and name not in value]
        if missing:
            return f"{where} lacks {missing[0]!r}"
        for name, item in value.items():
            inner = pattern.get(name, pattern.get(f"{name}?", pattern.get(...)))
            difference = f"{where} has {name!r}" if inner is None else validate(item, inner, f"{where}.{name}")
            if difference is not None:
                return difference
        return None
    if isinstance(pattern, type):
        types = (int, float) if pattern is float else pattern
        matches = isinstance(value, types) and (pattern in (bool, object) or not isinstance(value, bool))
        matches = matches and (type(value) is not int or abs(value) < _MAX_INT)
    else:
        matches = type(value) is type(pattern) and value == pattern
    return None if matches else wrong


def json_round_trip(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content as it is after it was written to JSON and read again.

    Raises:
        SettingError: If there are values that JSON does not have.
    """
    try:
        result: dict[str, Any] = json.loads(json.dumps(content, allow_nan=False, default=_scalar))
    except (TypeError, ValueError) as error:
        raise SettingError(
            f"Only texts, finite numbers, booleans, lists and dictionaries can be saved: {error}"
        ) from None
    return result


def _scalar(value: Any) -> Any:
    if hasattr(value, "item"):  # a number of numpy
        return value.item()
    raise TypeError(f"there is a {type(value).__name__}, {value!r:.60}.")


def _text(manifest: Mapping[str, Any]) -> bytes:
    return json.dumps(manifest, indent=1, allow_nan=False).encode()


def _digest(manifest: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in manifest.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _entry(name: str, data: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    return {"file": _file_name(name, digest), "sha256": digest, "bytes": len(data)}


def _file_name(name: str, digest: str) -> str:
    stem, _, suffix = name.rpartition(".")
    return f"{stem}-{digest[:_HASH_DIGITS]}.{suffix}"


def _check_content(folder: Path, kind: str) -> None:
    """Refuse a folder with other content than a save: a save removes the files that it does not list."""
    names = {file.name for file in folder.iterdir()}
    others = {name for name in names if not _OWN_FILE.fullmatch(name)}
    damaged = others == {MANIFEST} != names  # files of a save, and a manifest that cannot be recognised any more
    manifest, start = folder / MANIFEST, _text({"format": kind}).removesuffix(b"\n}")
    recognised = manifest.is_file() and manifest.read_bytes().startswith(start)
    if others and not recognised and not damaged:
        raise ArtifactError(
            f"{folder} has other files in it. Give a new folder, or one that an explainer was saved to."
        )


@contextmanager
def _lock(folder: Path) -> Iterator[Callable[[], None]]:
    """Hold the lock for saving to a folder; gives a function that syncs its file names to the disk.

    The system releases the lock when the process ends in any way.
    """
    if fcntl is None:
        yield lambda: None
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network disks have no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield partial(os.fsync, handle)
    finally:
        os.close(handle)


def _has_content(path: Path, data: bytes) -> bool:
    regular = path.is_file() and not path.is_symlink()
    return regular and path.stat().st_size == len(data) and path.read_bytes() == data
