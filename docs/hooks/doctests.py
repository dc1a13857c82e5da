"""Examples in docstrings, shown as code: to Markdown, the prompt of a doctest is a quotation in a quotation."""

from __future__ import annotations

from typing import Any

import griffe


class DoctestBlocks(griffe.Extension):
    """Puts a fence around every doctest of a docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for everything that can have a docstring, once it is read."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """The text with its doctests, from a prompt to the next blank line, as blocks of code."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        if inside and not line.strip():
            lines.append("```")
            inside = False
        elif not inside and line.startswith(">>> "):
            lines.append("```pycon")
            inside = True
        lines.append(line)
    return "\n".join([*lines, "```"] if inside else lines)
