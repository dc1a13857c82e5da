"""A folder that is whole at every moment: files named by their content, and one manifest that names them.

New files are written beside the old ones; then the manifest is replaced, which happens at once or not at all; then
what no manifest names any more is removed. Whoever is interrupted leaves the folder as it was, or as it should be.
Nothing but the standard library.
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
except ImportError:  # Windows has no such locks: there, two saves into one folder must not meet
    fcntl = None  # type: ignore[assignment]

MANIFEST = "manifest.json"
FORMAT, VERSION = "avcg.artifact", 2  # of stored explainers
_DIGITS = 16  # of a hash in a file's name
_LARGEST = 2**63  # no whole number that means something is larger
# What only a save can have left: files named by their content, and halves of files.
_OURS = re.compile(rf"[a-z]+(-[0-9]+)?-[0-9a-f]{{{_DIGITS}}}\.[a-z]+|\.avcg-[0-9a-f]+\.part")
_NAME = re.compile(r"[a-z]+(-[0-9]+)?\.[a-z]+")
# Notes of whoever saves that commands go by; all others are for people.
_NOTES = {"positive?": (bool, float, str), "dtypes?": {...: str}, "assumption?": str, ...: object}


def write_folder(path: str | Path, content: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
    """Write a folder, or leave what was there.

    Args:
        path: The folder; made where there is none.
        content: Of the manifest, plain values.
        files: By a name such as ``weights.safetensors`` or ``model-1.onnx``.

    Raises:
        ArtifactError: If it cannot be written, or is a folder of something else.
        SettingError: If the content is more than JSON can hold.
    """
    folder = Path(path)
    named = {name: _named(name, data) for name, data in files.items()}
    manifest = as_read({**content, "files": named})
    manifest["sha256"] = _digest(manifest)
    try:
        check_folder(folder, content["format"])
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder) as finalize:
            _refuse_strangers(folder, content["format"])
            for name, data in files.items():
                place = folder / named[name]["file"]
                if not _holds(place, data):
                    replace_file(place, data)
            finalize()  # all that the manifest will name is there before it is
            replace_file(folder / MANIFEST, _text(manifest))
            finalize()
            kept = {MANIFEST, *(entry["file"] for entry in named.values())}
            for one in folder.iterdir():
                if one.name not in kept and _OURS.fullmatch(one.name):
                    with suppress(OSError):  # some systems keep what is being read; the next save tries again
                        one.unlink()
    except ArtifactError:
        raise
    except OSError as error:
        raise ArtifactError(f"{folder} cannot be written: {error.strerror or error}.") from None


def check_folder(path: str | Path, kind: str) -> None:
    """Whether a folder can be written here, for those who have slow work to do first.

    Args:
        path: The folder; there need not be one.
        kind: The format that its manifest would name.

    Raises:
        ArtifactError: If it is a file, or a folder of something else, or may not be written.
    """
    folder = Path(path)
    try:
        if folder.exists() and not folder.is_dir():
            raise ArtifactError(f"{folder} is a file. Give the name of a folder.")
        if folder.is_dir():
            _refuse_strangers(folder, kind)
        there = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.exists())
    except PermissionError as error:
        raise ArtifactError(f"{folder} cannot be written: {error.strerror}.") from None
    if not there.is_dir():
        raise ArtifactError(f"{folder} cannot be written: {there} is a file.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ArtifactError(f"{folder} cannot be written: nothing may be written in {there}.")


def read_folder(
    path: str | Path, kind: str, version: int, names: Iterable[str] | None = None
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The manifest and the files of a folder, every byte checked, all of one save even where another is under way.

    Args:
        path: The folder.
        kind: The format that its manifest must name.
        version: The one that can be read.
        names: The files to read; None: all.

    Raises:
        ArtifactError: If something is missing, changed, newer or of another kind.
    """
    while True:
        before = _stamp(path)
        manifest = read_manifest(path, kind, version)
        try:
            wanted = manifest["files"] if names is None else names
            return manifest, {name: read_file(path, manifest, name) for name in wanted}
        except ArtifactError:
            if _stamp(path) == before:
                raise
            # It has just been replaced by another, perhaps with the same words.


def _stamp(path: str | Path) -> tuple[int, int] | None:
    """Which manifest a folder has: every save writes a new one."""
    with suppress(OSError, ValueError):
        found = (Path(path) / MANIFEST).stat()
        return found.st_ino, found.st_mtime_ns
    return None


def read_manifest(path: str | Path, kind: str, version: int) -> dict[str, Any]:
    """What a folder says of itself.

    Raises:
        ArtifactError: If it is missing, changed, newer or of another kind.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ArtifactError(f"There is no folder {str(path)!r}. Give one that save, or avcg fit, wrote.")
    place = folder / MANIFEST
    if not place.is_file():
        raise ArtifactError(f"{folder} has no {MANIFEST}, so it is no artifact.")
    try:
        data = place.read_bytes()
        manifest = json.loads(data)
        text = _text(manifest)
    except (ValueError, OSError, RecursionError) as error:
        raise ArtifactError(f"{place} cannot be read: {error}.") from None
    wrong = validate(manifest, {"format": str, "version": int, ...: object})
    if wrong is not None:
        raise ArtifactError(f"{place} is no manifest: {wrong}.")
    if manifest["format"] != kind:
        raise ArtifactError(
            f"{folder} holds {manifest['format']!r}, not {kind!r}. Give a folder that save, or avcg fit, wrote; where"
            " an older avcg wrote it, fit the explainer again and save it."
        )
    if manifest["version"] != version:
        older = manifest["version"] < version
        raise ArtifactError(
            f"{folder} has format version {manifest['version']}; this avcg reads version {version}."
            f" {'Fit the explainer again and save it' if older else 'Update avcg'}."
        )
    if text != data or manifest.get("sha256") != _digest(manifest):
        raise ArtifactError(f"{place} was changed after it was written. Save the explainer again.")
    wrong = validate(manifest.get("files"), {...: {"file": str, "sha256": str, "bytes": int}}, "files")
    for name, entry in ({} if wrong else manifest["files"]).items():
        # So that a manifest cannot name files of another folder.
        if not _NAME.fullmatch(name) or entry["file"] != _place(name, entry["sha256"]):
            wrong = f"{entry['file']!r} is no name for {name!r}"
    if wrong is not None:
        raise ArtifactError(f"{place} is not what save writes: {wrong}.")
    return manifest


def read_file(path: str | Path, manifest: Mapping[str, Any], name: str) -> bytes:
    """One file of a folder, checked.

    Raises:
        ArtifactError: If the folder has none of this name, or it was changed.
    """
    if name not in manifest["files"]:
        raise ArtifactError(f"{path} has no {name}.")
    entry = manifest["files"][name]
    place = Path(path) / entry["file"]
    if not place.is_file():
        raise ArtifactError(f"{path} lacks {entry['file']} ({name}).")
    try:
        # The size first, so that no more is read than was written.
        data = place.read_bytes() if place.stat().st_size == entry["bytes"] else None
    except OSError as error:
        raise ArtifactError(f"{place} cannot be read: {error.strerror}.") from None
    if data is None or hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise ArtifactError(f"{place} was changed or cut off after it was written.")
    return data


def misnoted(notes: Any, labels: Sequence[Any]) -> str | None:
    """What keeps the notes in a manifest from being gone by; None where nothing does.

    Args:
        notes: As `json.loads` gives them.
        labels: Of the model, likewise.

    >>> misnoted({"positive": "maybe", "by": "someone"}, ["no", "yes"])
    "about.positive is 'maybe', which is no label: there is 'no', 'yes'"
    """
    wrong = validate(notes, _NOTES, "about")
    if wrong is not None or "positive" not in notes:
        return wrong
    wanted = notes["positive"]
    if any(wanted == one and isinstance(wanted, bool) is isinstance(one, bool) for one in labels):
        return None
    return f"about.positive is {wanted!r:.60}, which is no label: there is {enumerate_some(labels, 12)}"


def notes_of(path: str | Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What was noted when an explainer was saved.

    Raises:
        ArtifactError: If commands cannot go by it, with the folder and the note.
    """
    labels = {"classes": {"values": [object], ...: object}, ...: object}
    found: dict[str, Any] = manifest.get("about", {})
    wrong = validate(manifest, labels) or misnoted(found, manifest["classes"]["values"])
    if wrong is not None:
        raise ArtifactError(f"The notes in {path} cannot be gone by: {wrong}. Save the explainer again without it.")
    return found


def validate(value: Any, pattern: Any, where: str = "it") -> str | None:
    """Where a value of JSON is not as a pattern says; None where it is.

    Args:
        value: As `json.loads` gives it.
        pattern: A type (whole numbers are floats too, truths are no numbers); a tuple of patterns of which one must
            fit; a list of the pattern of all items, or of each; a dictionary of patterns by name, those that end in
            ``?`` for what may be left out and ``...`` for all other names; or a value.
        where: What to call the value.

    >>> validate({"name": "a", "size": [1, "2"]}, {"name": str, "size": [int], "note?": str})
    "it.size[1] is '2'"
    """
    wrong = f"{where} is {value!r:.60}"
    if isinstance(pattern, tuple):
        return None if any(validate(value, one) is None for one in pattern) else wrong
    if isinstance(pattern, list):
        if not isinstance(value, list) or len(value) != len(pattern) != 1:
            return wrong
        each = pattern * len(value) if len(pattern) == 1 else pattern
        found = (validate(one, inner, f"{where}[{i}]") for i, (one, inner) in enumerate(zip(value, each, strict=True)))
        return next((one for one in found if one is not None), None)
    if isinstance(pattern, dict):
        if not isinstance(value, dict):
            return wrong
        lacking = [name for name in pattern if name is not ... and name[-1:] != "?" and name not in value]
        if lacking:
            return f"{where} lacks {lacking[0]!r}"
        for name, one in value.items():
            inner = pattern.get(name, pattern.get(f"{name}?", pattern.get(...)))
            found_here = f"{where} has {name!r}" if inner is None else validate(one, inner, f"{where}.{name}")
            if found_here is not None:
                return found_here
        return None
    if isinstance(pattern, type):
        kinds = (int, float) if pattern is float else pattern
        fits = isinstance(value, kinds) and (pattern in (bool, object) or not isinstance(value, bool))
        fits = fits and (type(value) is not int or abs(value) < _LARGEST)
    else:
        fits = type(value) is type(pattern) and value == pattern
    return None if fits else wrong


def as_read(content: Mapping[str, Any]) -> dict[str, Any]:
    """What JSON makes of some values.

    Raises:
        SettingError: If they are more than JSON can hold.
    """
    try:
        found: dict[str, Any] = json.loads(json.dumps(content, allow_nan=False, default=_scalar))
    except (TypeError, ValueError) as error:
        raise SettingError(
            f"Only texts, finite numbers, truths, lists and dictionaries can be saved: {error}"
        ) from None
    return found


def _scalar(value: Any) -> Any:
    if hasattr(value, "item"):  # numpy's, which are as good
        return value.item()
    raise TypeError(f"there is a {type(value).__name__}, {value!r:.60}.")


def _text(manifest: Mapping[str, Any]) -> bytes:
    return json.dumps(manifest, indent=1, allow_nan=False).encode()


def _digest(manifest: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in manifest.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _named(name: str, data: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    return {"file": _place(name, digest), "sha256": digest, "bytes": len(data)}


def _place(name: str, digest: str) -> str:
    stem, _, kind = name.rpartition(".")
    return f"{stem}-{digest[:_DIGITS]}.{kind}"


def _refuse_strangers(folder: Path, kind: str) -> None:
    """A save removes what is no longer named, so it does not go where other things live."""
    names = {one.name for one in folder.iterdir()}
    strangers = {name for name in names if not _OURS.fullmatch(name)}
    damaged = strangers == {MANIFEST} != names  # an artifact's own files, and a manifest that no longer says so
    place, start = folder / MANIFEST, _text({"format": kind}).removesuffix(b"\n}")
    known = place.is_file() and place.read_bytes().startswith(start)
    if strangers and not known and not damaged:
        raise ArtifactError(f"{folder} is a folder with other things in it. Give a new one, or an artifact's own.")


@contextmanager
def _alone(folder: Path) -> Iterator[Callable[[], None]]:
    """One save at a time, and a way to have names on the disk; ends with the process, however that ends."""
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


def _holds(path: Path, data: bytes) -> bool:
    own = path.is_file() and not path.is_symlink()
    return own and path.stat().st_size == len(data) and path.read_bytes() == data
