"""Which distribution over models? What each says and what real models keep, as tables and one figure.

    python benchmarks/distributions_page.py docs/results/distributions.md [--figure docs/images/distributions.png]

A block of the page begins with ``<!-- distributions: DATASET -->``; the text up to ``<!-- end -->`` is written from the
records that ``benchmarks/distributions.py`` stored.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pages
import pandas as pd
from pages import read

from avcg.bench.tables import to_markdown

RESULTS = Path(__file__).parent / "results" / "distributions" / "records.jsonl"
TITLES = {"breast_cancer": "Breast cancer", "heart": "Heart", "adult": "Adult", "sba": "SBA loans of 2004"}
YEARS = (1, 2, 3, 5)
AROUND_ONE = ("MC dropout", "Rashomon, masks", "Laplace", "mean-field VI", "SWAG")


def records() -> pd.DataFrame:
    """A line for each dataset, seed and distribution, with the mean share that each family of real models keeps."""
    lines = []
    for record in read(RESULTS):
        shares = {family: float(np.mean(each)) for family, each in record["kept"].items()}
        keeping = {f"{family} keep": float(np.mean(np.array(each) >= 0.95)) for family, each in record["kept"].items()}
        names = ("dataset", "distribution", "made", "said", "distance", "answered")
        rest = {"seed_number": record["seed"], **{name: record[name] for name in names}}
        lines.append({**rest, **record["seconds"], **shares, **keeping})
    return pd.DataFrame(lines)


def _table(dataset: str) -> str:
    own = records()
    own, rows = own[own["dataset"] == dataset], []
    for kind, lines in own.groupby("distribution", sort=False):
        made = int(lines["made"].sum())
        later = {f"year {year}": f"{lines[f'year {year}'].mean():.3f}" for year in YEARS} if dataset == "sba" else {}
        rows.append(
            {
                "": kind,
                "promised": f"{made} of {len(lines)}",
                "says": f"{lines['said'].mean():.3f}",
                "bootstraps": f"{lines['bootstrap'].mean():.3f}",
                "least": f"{lines['bootstrap'].min():.3f}",
                "seeds": f"{lines['seed'].mean():.3f}",
                "kept by": f"{100 * lines['bootstrap keep'].mean():.0f} of 100",
                **later,
                "distance": f"{lines['distance'].mean():.2f}",
                "seconds": f"{lines['hypotheses'].mean():.0f} + {lines['fit'].mean():.0f}",
            }
        )
    order = list(dict.fromkeys(own["distribution"]))
    rows.sort(key=lambda row: (row[""] not in AROUND_ONE, order.index(row[""])))
    return to_markdown(pd.DataFrame(rows))


BLOCKS = {dataset: partial(_table, dataset) for dataset in TITLES}


def filled(text: str) -> str:
    """The text of the page with every block generated again."""
    return pages.filled(text, "distributions", BLOCKS)


def draw(path: Path) -> None:
    """By table and distribution: what it says of its answers (hollow), and what bootstrap retrains accept (full)."""
    import matplotlib.pyplot as plt

    lines = records()
    kinds = sorted(lines["distribution"].unique(), key=lambda kind: (kind not in AROUND_ONE, kind))[::-1]
    figure, axes = plt.subplots(1, len(TITLES), figsize=(13.0, 4.6), sharey=True, layout="constrained")
    for axis, (dataset, title) in zip(axes, TITLES.items(), strict=True):
        own = lines[lines["dataset"] == dataset]
        for kind, seeds in own.groupby("distribution"):
            height, colour = kinds.index(kind), "#D55E00" if kind in AROUND_ONE else "#0072B2"
            said, kept = seeds["said"].mean(), seeds["bootstrap"].mean()
            axis.plot([kept, said], [height, height], color=colour, linewidth=1.5)
            axis.plot(seeds["bootstrap"], [height] * len(seeds), ".", color=colour, alpha=0.5, markersize=4)
            axis.plot(said, height, "o", color=colour, markerfacecolor="white")
            axis.plot(kept, height, "o", color=colour)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("share of answers accepted")
        axis.grid(alpha=0.3)
    axes[0].set_yticks(range(len(kinds)), kinds, fontsize=9)
    for label, face in (("as it says", "white"), ("by bootstrap retrains", "black")):
        axes[0].plot([], [], "o", color="black", markerfacecolor=face, label=label)
    for label, colour in (("around one network", "#D55E00"), ("models that were fitted", "#0072B2")):
        axes[0].plot([], [], "-", color=colour, label=label)
    axes[0].legend(fontsize=8, loc="lower left")
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    pages.write(__doc__, filled, draw)
