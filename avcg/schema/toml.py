"""A schema as a TOML file that people edit: `schema.toml`, written with explanations and read with exact complaints."""

from __future__ import annotations

import os
import re
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from avcg.errors import DataError, SchemaError, did_you_mean
from avcg.files import write_whole
from avcg.schema.describe import Ranges
from avcg.schema.entries import COMMAND_ENTRIES, KINDS, SCHEMA_ENTRIES, CommandNotes, Entry
from avcg.schema.features import Continuous, Feature, is_unchangeable
from avcg.schema.schema import Schema

VERSION = 1
MAX_BYTES = 10_000_000
_WIDTH = 80
_EXAMPLE_WIDTH = 24
_LARGEST_SHOWN = 1e18  # whole numbers below are written with all their digits
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
_HEADER = """
What each column is, and what an answer may do to it.

Edit this file and give it to the commands, or read it in Python:
  avcg fit data.csv --schema schema.toml --out recourse
  schema = avcg.Schema.read("schema.toml")

Text after # is a comment. Texts are in quotes; numbers, true, false are not.
"""


def to_toml(schema: Schema, ranges: Ranges | None = None, notes: CommandNotes | None = None) -> str:
    """The text of a schema file, with an explanation of every possible entry.

    Args:
        schema: What is written.
        ranges: Lowest and highest number of each numeric column in the data, for the comments; None: no data.
        notes: What the file says to the commands; None: nothing.

    Raises:
        SchemaError: If a text cannot be written as UTF-8.
    """
    lines = [f"version = {VERSION}"]
    lines += _entries(COMMAND_ENTRIES, notes or CommandNotes()) + _entries(SCHEMA_ENTRIES, schema)
    for feature in schema.features:
        kind, entries = next((word, entries) for word, (cls, entries) in KINDS.items() if isinstance(feature, cls))
        lines += ["", f"[columns.{_key(feature.name)}]", *_about(feature, (ranges or {}).get(feature.name))]
        lines += [f'kind = "{kind}"', *_entries(entries, feature)]
    return "\n".join([*_header(), "", *lines, ""])


def from_toml(text: str, name: str = "The schema") -> tuple[Schema, CommandNotes]:
    """The schema in the text of a schema file, and what the file says to the commands.

    Args:
        text: Text of the file.
        name: Name of the file, for error messages.

    Raises:
        SchemaError: If the text is not TOML, or says something that a schema cannot say. The message names the column
            and the entry, and what was expected.
    """
    try:
        content = tomllib.loads(text)
    except RecursionError:
        raise SchemaError(f"{name} is not a schema: its lists or tables are nested too deeply.") from None
    except tomllib.TOMLDecodeError as error:
        raise SchemaError(f"{name} is not TOML: {error}.") from None
    except ValueError:  # Python refuses to read such a number
        raise SchemaError(f"{name} is not a schema: a whole number in it has thousands of digits.") from None
    if type(content.get("version", VERSION)) is not int or content.get("version", VERSION) != VERSION:
        raise SchemaError(
            f"{name} has version {content['version']!r}; this avcg reads version {VERSION}. Upgrade avcg."
        )
    columns = content.get("columns")
    if not isinstance(columns, dict) or not columns:
        raise SchemaError(f"{name} has no columns. Write a table for each, such as [columns.income].")
    top = {word: value for word, value in content.items() if word not in ("version", "columns")}
    known = (*COMMAND_ENTRIES, *SCHEMA_ENTRIES)
    _check_words(top, [entry.word for entry in known], name)
    notes = CommandNotes(**_fields(COMMAND_ENTRIES, top, name))
    features = tuple(_feature(column, table, f"{name}, column {column!r}") for column, table in columns.items())
    whole = _fields(SCHEMA_ENTRIES, top, name)
    try:
        return Schema(features, **whole), notes
    except SchemaError as error:
        raise SchemaError(f"{name}: {error}") from None


def write(path: str | os.PathLike[str], text: str) -> None:
    """Write the text of a schema file completely or not at all.

    Raises:
        DataError: If the file cannot be written.
    """
    write_whole(Path(path), text)


def read(path: str | os.PathLike[str]) -> tuple[Schema, CommandNotes]:
    """Read a schema file: TOML, or JSON if its name ends in ``.json``.

    Args:
        path: Path of the file.

    Raises:
        DataError: If the file is missing, larger than 10 MB or not UTF-8.
        SchemaError: If it is not a schema. The message names the file, the column and the entry.
    """
    file = Path(path)
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise DataError(f"The schema {str(path)!r} cannot be read: {error.strerror}.") from None
    if len(data) > MAX_BYTES:
        raise DataError(f"The schema {str(path)!r} is larger than {MAX_BYTES // 1_000_000} MB, which no schema is.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{file.name} is not a text in UTF-8 (byte {error.start}). Save it as UTF-8.") from None
    if file.suffix.lower() != ".json":
        return from_toml(text, file.name)
    try:
        return Schema.from_json(text), CommandNotes()
    except SchemaError as error:
        raise SchemaError(f"{file.name}: {error}") from None


def _feature(column: str, table: object, where: str) -> Feature:
    if not isinstance(table, dict):
        raise SchemaError(
            f"{where}: expected a table that starts with [columns.{_key(column)}]. Got {_shown(table)} instead."
        )
    kind = table.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        got = f"Got {_shown(kind)} instead." if "kind" in table else "There is none."
        if isinstance(kind, str):
            got = f"{got} {did_you_mean(kind, KINDS)}"
        elif "kind" not in table and any(isinstance(value, dict) for value in table.values()):
            got += f' A name with a dot stands in quotes, such as [columns."{column}.{next(iter(table))}"].'
        expected = " or ".join(f'kind = "{word}"' for word in KINDS)
        raise SchemaError(f"{where}: expected {expected}. {got}")
    cls, entries = KINDS[kind]
    content = {word: value for word, value in table.items() if word != "kind"}
    _check_words(content, [entry.word for entry in entries], where, kind)
    for needed in (name for name, default in _defaults(cls).items() if name != "name" and default is MISSING):
        word = next(entry.word for entry in entries if entry.field == needed)
        if word not in content:
            raise SchemaError(f"{where}: a column of kind {kind!r} needs the entry {word!r}. There is none.")
    values = _fields(entries, content, where)
    try:
        return cls(name=column, **values)
    except SchemaError as error:
        raise SchemaError(f"{where}: {error}") from None


def _check_words(content: Mapping[str, Any], known: Sequence[str], where: str, kind: str | None = None) -> None:
    """Refuse an entry that is not known at this place, and say where it belongs if it is known at another one."""
    for word in content:
        if word in known:
            continue
        if kind is not None and word in {entry.word for entry in (*SCHEMA_ENTRIES, *COMMAND_ENTRIES)}:
            hint = "It is about the whole table: move it above the first line that starts with [columns."
        elif others := [other for other, (_, entries) in KINDS.items() if word in {entry.word for entry in entries}]:
            hint = (
                "It belongs under [columns.name]."
                if kind is None
                else f"It is for columns of kind {others[0]!r}, and this one is of kind {kind!r}."
            )
        else:
            hint = did_you_mean(word, [*known, *(["kind"] if kind is not None else ["columns"])])
        raise SchemaError(f"{where} has an unknown entry {word!r}. {hint}")


def _fields(entries: Iterable[Entry], content: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Values of fields by their names, for the entries that are there."""
    values = {}
    for entry in entries:
        if entry.word not in content:
            continue
        value = content[entry.word]
        if not entry.form.fits(value):
            hint = f" {did_you_mean(value, entry.form.words)}" if entry.form.words and isinstance(value, str) else ""
            raise SchemaError(
                f"{where}, entry {entry.word!r}: expected {entry.form.expected}. Got {_shown(value)} instead.{hint}"
            )
        values[entry.field] = entry.form.read(value)
    return values


def _shown(value: object) -> str:
    """A value of TOML as it may stand in a message."""
    if isinstance(value, (str, int, float, list)):
        shown = _value(value) if isinstance(value, (str, int, float)) else repr(value)
    else:
        shown = "a table" if isinstance(value, dict) else f"{value} (a {type(value).__name__}; put it in quotes)"
    return shown if len(shown) <= _WIDTH else f"{shown[: _WIDTH - 1]}…"


def _entries(entries: Iterable[Entry], owner: object) -> list[str]:
    """The lines of the entries that do not hold their defaults."""
    defaults = _defaults(type(owner))
    lines: list[str] = []
    for entry in entries:
        value = getattr(owner, entry.field)
        default = defaults[entry.field]
        is_default = type(value) is type(default) and value == default
        if value is not None and (entry.always or not is_default):
            lines += _assignment(entry.word, entry.form.write(value))
    return lines


def _defaults(cls: type) -> dict[str, Any]:
    """The default of each field of a dataclass, MISSING for a field that has none."""
    return {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(cls)
    }


def _assignment(word: str, value: Any) -> list[str]:
    """``word = value``, a list over several lines if it is long."""
    line = f"{word} = {_value(value)}"
    if len(line) <= _WIDTH or not isinstance(value, list):
        return [line]
    packed, current = [f"{word} = ["], "   "
    for item in map(_value, value):
        if len(current) + len(item) + len(" ,") > _WIDTH and current.strip():
            packed.append(current)
            current = "   "
        current += f" {item},"
    return [*packed, current, "]"]


def _value(value: Any) -> str:
    """A value in the syntax of TOML, of exactly the same type when it is read."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_key(key)} = {_value(held)}' for key, held in value.items())} }}" if value else "{}"
    return repr(value)  # Python writes numbers as TOML reads them


def _quoted(text: str) -> str:
    """A text in quotes, with everything that cannot be seen written as an escape."""
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise SchemaError(f"The text {text!r} cannot be written to a file: it holds half of a character.")
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isprintable():
        return char
    return f"\\u{ord(char):04X}" if ord(char) <= 0xFFFF else f"\\U{ord(char):08X}"


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _quoted(name)


def _comment(text: str, indent: str = "") -> list[str]:
    """A text as lines of comments, at most 80 characters wide where words allow it."""
    visible = "".join(char if char.isprintable() else _escaped(char) for char in text)
    lines = textwrap.wrap(visible, _WIDTH - 2, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return [f"# {line}" for line in lines] or ["#"]


def _header() -> Iterator[str]:
    """What the file is, and every entry that it may have, with an example."""
    for line in _HEADER.strip("\n").split("\n"):
        yield f"# {line}".rstrip()
    sections: list[tuple[str, tuple[Entry, ...]]]
    sections = [("the whole table, above the first [columns...]", (*COMMAND_ENTRIES, *SCHEMA_ENTRIES))]
    sections += [(f'a column with kind = "{kind}"', entries) for kind, (_, entries) in KINDS.items()]
    for title, entries in sections:
        yield from ("#", f"# Entries of {title}:")
        for entry in entries:
            yield from _explained(f"{entry.word} = {_value(entry.example)}", entry.meaning)


def _explained(example: str, meaning: str) -> Iterator[str]:
    """An example with its meaning at its right, or below it if the example is long."""
    margin = f"#   {'':{_EXAMPLE_WIDTH}}  # "
    parts = textwrap.wrap(meaning, _WIDTH - len(margin))
    if len(example) > _EXAMPLE_WIDTH:
        yield f"#   {example}"
    else:
        yield f"#   {example:{_EXAMPLE_WIDTH}}  # {parts.pop(0)}"
    yield from (f"{margin}{part}" for part in parts)


def _figure(value: float) -> str:
    return f"{value:.0f}" if value == round(value) and abs(value) < _LARGEST_SHOWN else f"{value:.10g}"


def _about(feature: Feature, data_range: tuple[float, float] | None) -> list[str]:
    """Comments on a column: what it is, which values the data have, and whether people can change it at all."""
    what = feature.kind if feature.missing == "error" else f"{feature.kind}, may be missing"
    if isinstance(feature, Continuous):
        what += "" if data_range is None else f", {_figure(data_range[0])} to {_figure(data_range[1])} in the data"
    elif feature.kind != "yes or no":
        what += f", {len(feature.categories)} different"
    lines = _comment(f"{what[0].upper()}{what[1:]}.")
    if is_unchangeable(feature.name) and feature.change != "none":
        lines += _comment('People cannot change this: change = "frozen"?')
    return lines
