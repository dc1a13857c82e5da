"""Tables of a Markdown page, generated from stored results so that no figure is typed by hand.

A block of the page begins with ``<!-- results: KIND PROTOCOL ... -->`` and ends with ``<!-- end -->``; the text between
is replaced. The kinds of blocks and their further arguments are:

- ``compare DATASET``: results beside the published figures;
- ``table DATASET METRIC,METRIC,... [READING]``: metrics of all methods; the reading is ``raw`` by default;
- ``yardsticks METHOD ...``: ratios to simple methods, with underscores for spaces in names;
- ``several METHOD``: shares of rows with several answers that are valid and different;
- ``run``: the number of cells and the machines they were run on.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from avcg.bench.protocol import Protocol, read_protocol
from avcg.bench.store import Store
from avcg.bench.tables import compare, comparison_markdown, several, summary_markdown, to_markdown, yardsticks
from avcg.errors import DataError, did_you_mean
from avcg.metrics.table import heading_of

_BLOCK = re.compile(r"(<!-- results: (?P<arguments>[^>]*?) -->\n).*?(<!-- end -->)", re.DOTALL)
# Smallest number of arguments after the protocol, by kind of block.
_MIN_ARGUMENTS: Mapping[str, int] = {"compare": 1, "table": 2, "yardsticks": 1, "several": 1, "run": 0}


def filled(text: str, folder: Path) -> str:
    """The text of a page with every block generated again.

    Args:
        text: Text of the page.
        folder: Folder that the paths of protocols are relative to.
    """
    return _BLOCK.sub(lambda match: f"{match[1]}\n{_block(match['arguments'].split(), folder)}\n\n{match[3]}", text)


def published(protocol: Protocol, path: str | Path) -> pd.DataFrame:
    """The published figures that a protocol names as its reference.

    Args:
        protocol: The benchmark.
        path: Path of its file.

    Raises:
        DataError: If the protocol names no reference.
    """
    if protocol.reference is None:
        raise DataError(f"{path} has no 'reference' to compare with. Name a file of published figures there.")
    return pd.read_csv(Path(path).parent / protocol.reference)


def _block(arguments: list[str], folder: Path) -> str:
    kind, block = arguments[0] if arguments else "", " ".join(arguments)
    if kind not in _MIN_ARGUMENTS:
        raise DataError(f"The block {block!r} is of an unknown kind. {did_you_mean(kind, _MIN_ARGUMENTS)}")
    if len(arguments) < 2 + _MIN_ARGUMENTS[kind]:
        raise DataError(f"The block {block!r} lacks arguments. See the documentation of avcg.bench.page.")
    path, rest = folder / arguments[1], arguments[2:]
    protocol = read_protocol(path)
    store = Store(path.parent / "results" / protocol.name)
    rows = store.rows()
    if kind == "run":
        return _about(store)
    if kind == "yardsticks":
        names = [name.replace("_", " ") for name in rest]
        ratios = pd.concat([yardsticks(rows, name).assign(method=name) for name in names])
        return to_markdown(ratios[["method", *(name for name in ratios if name != "method")]])
    if kind == "several":
        return to_markdown(several(rows, rest[0].replace("_", " ")))
    if kind == "compare":
        return comparison_markdown(compare(rows, published(protocol, path)), rest[0])
    reading = rest[2] if len(rest) > 2 else "raw"
    selected = rows[(rows["dataset"] == rest[0]) & (rows["reading"] == reading)]
    headings = [heading_of(name, protocol.extra_metrics()) for name in rest[1].split(",")]
    return summary_markdown(selected, headings, [method.name for method in protocol.methods])


def _about(store: Store) -> str:
    """The number of cells, and the machines they were run on, in words."""
    counts = Counter[tuple[str, str, int]]()
    hours = Counter[tuple[str, str, int]]()
    for cell in store.about().values():
        machine = (cell["device"], cell["torch"], cell["workers"])
        counts[machine] += 1
        hours[machine] += cell["seconds"] / 3600
    lines = []
    for (device, torch, workers), count in sorted(counts.items()):
        order = "one after the other" if workers == 1 else f"{workers} side by side"
        spent = f"{hours[device, torch, workers]:.1f} hours"
        lines.append(f"{count} cells ({spent} of them) on {device}, torch {torch}, {order}")
    return "; ".join(lines) + "."
