"""Tables of a page, filled from stored results, so that no figure is ever typed.

A block of the page begins with ``<!-- results: WHAT PROTOCOL DATASET -->`` and ends with ``<!-- end -->``; what stands
between is written anew. WHAT is ``compare`` (beside the published figures), ``table METRIC,METRIC,...`` or ``run``.
"""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from avcg.bench.protocol import read_protocol
from avcg.bench.store import Store
from avcg.bench.tables import compare, comparison_markdown, summary_markdown
from avcg.errors import DataError, did_you_mean

_BLOCK = re.compile(r"(<!-- results: (?P<ask>[^>]*?) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str, folder: Path) -> str:
    """The page with every block written anew.

    Args:
        text: Of the page.
        folder: What the protocols' paths are relative to.
    """
    return _BLOCK.sub(lambda found: f"{found[1]}\n{_block(found['ask'].split(), folder)}\n\n{found[3]}", text)


def _block(ask: list[str], folder: Path) -> str:
    what, path = ask[0], folder / ask[1] if len(ask) > 1 else folder
    known = ("compare", "table", "run")
    if what not in known or len(ask) < 2:
        raise DataError(f"A block of results asks for {' '.join(ask)!r}. {did_you_mean(what, known)}")
    protocol = read_protocol(path)
    store = Store(path.parent / "results" / protocol.name)
    if what == "run":
        return _about(store)
    rows = store.rows()
    if what == "compare":
        assert protocol.reference is not None
        return comparison_markdown(compare(rows, pd.read_csv(path.parent / protocol.reference)), ask[2])
    reading = ask[4] if len(ask) > 4 else "raw"
    mine = rows[(rows["dataset"] == ask[2]) & (rows["reading"] == reading)]
    return summary_markdown(mine, ask[3].split(","), [method.name for method in protocol.methods])


def _about(store: Store) -> str:
    manifest = store.manifest()
    versions = ", ".join(f"{name} {number}" for name, number in manifest["versions"].items())
    cells = manifest["cells"].values()
    hours = sum(cell["seconds"] for cell in cells) / 3600
    return (
        f"{len(manifest['cells'])} cells, {hours:.1f} hours of cells in {manifest['wall_seconds'] / 60:.0f} minutes"
        f" with {manifest['workers']} workers on {manifest['device']}; {versions}."
    )
