"""Tables of a page, filled from stored results, so that no figure is ever typed.

A block of the page begins with ``<!-- results: WHAT PROTOCOL ... -->`` and ends with ``<!-- end -->``; what stands
between is written anew. WHAT is ``compare`` (then the dataset: beside the published figures), ``table`` (then the
dataset, METRIC,METRIC,... and the reading, raw if left out), ``yardsticks`` (then methods, with underscores for
blanks), ``several`` (then a method that was asked for more answers) or ``run`` (how it was run).
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

_BLOCK = re.compile(r"(<!-- results: (?P<ask>[^>]*?) -->\n).*?(<!-- end -->)", re.DOTALL)
# What each kind of block needs after the protocol, at least.
_NEEDS: Mapping[str, int] = {"compare": 1, "table": 2, "yardsticks": 1, "several": 1, "run": 0}


def filled(text: str, folder: Path) -> str:
    """The page with every block written anew.

    Args:
        text: Of the page.
        folder: What the protocols' paths are relative to.
    """
    return _BLOCK.sub(lambda found: f"{found[1]}\n{_block(found['ask'].split(), folder)}\n\n{found[3]}", text)


def published(protocol: Protocol, path: str | Path) -> pd.DataFrame:
    """The figures that a protocol names to compare with."""
    if protocol.reference is None:
        raise DataError(f"{path} names no 'reference' to compare with.")
    return pd.read_csv(Path(path).parent / protocol.reference)


def _block(ask: list[str], folder: Path) -> str:
    what = ask[0] if ask else ""
    if what not in _NEEDS:
        raise DataError(f"A block of results asks for {' '.join(ask)!r}. {did_you_mean(what, _NEEDS)}")
    if len(ask) < 2 + _NEEDS[what]:
        raise DataError(f"The block {' '.join(ask)!r} says too little. See avcg.bench.page.")
    path, more = folder / ask[1], ask[2:]
    protocol = read_protocol(path)
    store = Store(path.parent / "results" / protocol.name)
    rows = store.rows()
    if what == "run":
        return _about(store)
    if what == "yardsticks":
        names = [name.replace("_", " ") for name in more]
        found = pd.concat([yardsticks(rows, name).assign(method=name) for name in names])
        return to_markdown(found[["method", *(name for name in found if name != "method")]])
    if what == "several":
        return to_markdown(several(rows, more[0].replace("_", " ")))
    if what == "compare":
        return comparison_markdown(compare(rows, published(protocol, path)), more[0])
    reading = more[2] if len(more) > 2 else "raw"
    mine = rows[(rows["dataset"] == more[0]) & (rows["reading"] == reading)]
    headings = [heading_of(name, protocol.extra_metrics()) for name in more[1].split(",")]
    return summary_markdown(mine, headings, [method.name for method in protocol.methods])


def _about(store: Store) -> str:
    """How many cells, and where they were run."""
    places = Counter[tuple[str, str, int]]()
    hours = Counter[tuple[str, str, int]]()
    for cell in store.about().values():
        place = (cell["device"], cell["torch"], cell["workers"])
        places[place] += 1
        hours[place] += cell["seconds"] / 3600
    lines = []
    for (device, torch, workers), count in sorted(places.items()):
        side = "one after the other" if workers == 1 else f"{workers} side by side"
        spent = f"{hours[device, torch, workers]:.1f} hours"
        lines.append(f"{count} cells ({spent} of them) on {device}, torch {torch}, {side}")
    return "; ".join(lines) + "."
