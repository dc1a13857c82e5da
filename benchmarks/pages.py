"""Pages whose tables are written from stored records: the blocks of a page, and what all such pages share."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

NOTHING = "–"  # noqa: RUF001  a dash that is no minus


def read(path: Path) -> list[dict[str, Any]]:
    """The stored records of a file; none if there is no such file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def filled(text: str, word: str, blocks: Mapping[str, Callable[[], str]]) -> str:
    """The text of a page with every block generated again.

    A block begins with ``<!-- WORD: KIND -->`` and ends with ``<!-- end -->``.

    Args:
        text: Text of the page.
        word: Word by which the blocks begin.
        blocks: By kind: a function that writes the block.
    """
    block = re.compile(rf"(<!-- {word}: (?P<kind>[\w ]+?) -->\n).*?(<!-- end -->)", re.DOTALL)
    return block.sub(lambda match: f"{match[1]}\n{blocks[match['kind']]()}\n\n{match[3]}", text)


def write(description: str, fill: Callable[[str], str], draw: Callable[[Path], None]) -> None:
    """Write the tables of the page that the command line names again, and draw the figure where one is named.

    Args:
        description: What the program does.
        fill: Function from the text of the page to the text with new blocks.
        draw: Function that draws the figure.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("--figure", type=Path, default=None)
    options = parser.parse_args()
    options.page.write_text(fill(options.page.read_text()))
    if options.figure is not None:
        draw(options.figure)
