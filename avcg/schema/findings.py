"""What was found in the columns of a table, in words, and the table that shows it."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from avcg.schema.schema import Schema

_WIDTH = 80  # of the printed table
_WIDEST_NAME = 24


@dataclass(frozen=True)
class Finding:
    """Something about a column that a user should know before answers are made.

    Attributes:
        column: Name of the column.
        found: What was found, in a few words.
        why: The reason, and how to overrule it.
    """

    column: str
    found: str
    why: str


@dataclass(frozen=True, repr=False)
class Inspection:
    """A schema that was inferred from rows, and what was found in them.

    Attributes:
        schema: The inferred schema.
        findings: What was found, in the order of the columns.
    """

    schema: Schema
    findings: tuple[Finding, ...]

    def __repr__(self) -> str:
        if not self.findings:
            return f"{len(self.schema)} columns. Nothing was found that needs a look."
        name_width = min(_WIDEST_NAME, max(len("column"), *(len(finding.column) for finding in self.findings)))
        text_width = _WIDTH - name_width - 2
        lines = [f"{'column'.ljust(name_width)}  what was found", f"{'-' * name_width}  {'-' * text_width}"]
        for finding in self.findings:
            names = textwrap.wrap(finding.column, name_width) or [""]
            end = "" if finding.found.endswith("?") else "."
            texts = textwrap.wrap(f"{finding.found}{end} {finding.why}", text_width)
            for i in range(max(len(names), len(texts))):
                name, text = (parts[i] if i < len(parts) else "" for parts in (names, texts))
                lines.append(f"{name.ljust(name_width)}  {text}".rstrip())
        return "\n".join(lines)
