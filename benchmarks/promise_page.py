"""What became of promises, as tables of a page and one figure: no number is typed by hand.

    python benchmarks/promise_page.py docs/results/promise.md [--figure docs/images/promise.png]

A block of the page begins with ``<!-- promise: KIND -->`` and ends with ``<!-- end -->``; the text between is written
from the stored fits of ``benchmarks/promise.py``. The kinds are the keys of `BLOCKS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pages
import pandas as pd
from pages import NOTHING, read
from scipy.stats import beta

from avcg.bench.tables import to_markdown
from avcg.guarantees import Promise

RESULTS = Path(__file__).parent / "results" / "promise"
TITLES = {
    "breast_cancer": "Breast cancer",
    "heart": "Heart",
    "spambase": "Spambase",
    "adult": "Adult",
    "sba:2004": "SBA, 2004",
}
TIMED = ("adult", "sba:2004")  # fitted while nothing else ran
RECIPES = {"weight": "fixed weight", "constraint": "constraint"}
SHOWN_MARGINS = (-1.5, 0.0625, 1.625, 3.1875, 6.0)
LEVELS = (0.95, 0.97, 0.98, 0.99, 0.995, 0.999)
QUANTILES = (0.1, 0.5, 0.9)
N_RESAMPLES = 4000


def outcomes(fits: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """One line for each fit, promise, effort and target: whether it was made, and the share of fresh models keeping it.

    Args:
        fits: Stored fits.
    """
    lines = []
    for fit in fits:
        for asked, efforts in fit["promises"].items():
            survival, reliability = asked.split("/")
            for effort, directions in efforts.items():
                for each in directions:
                    accepted = np.array(each["accepted"])
                    needed = float(Fraction(survival) * each["answered"])
                    lines.append(
                        {
                            "dataset": fit["dataset"], "seed": fit["seed"], "recipe": fit["recipe"],
                            "survival": float(survival), "reliability": float(reliability), "effort": effort,
                            "target": each["target"], "made": each["made"],
                            "kept": float((accepted >= needed - 1e-9).mean()),
                            "mean survival": float(accepted.mean() / max(each["answered"], 1)),
                            "distance": each["distance"], "sentence": each["sentence"],
                        }
                    )  # fmt: skip
    return pd.DataFrame(lines)


def broken_share(lines: pd.DataFrame) -> tuple[float, float, float]:
    """Share of (fit, target, fresh model) with a promise made and broken, and its interval over resampled fits.

    Args:
        lines: Outcomes of one promise.
    """
    broken = (1.0 - lines["kept"]) * lines["made"]
    fits = broken.groupby([lines["dataset"], lines["seed"]]).agg(["sum", "count"]).to_numpy(float)
    drawn = np.random.default_rng(0).integers(len(fits), size=(N_RESAMPLES, len(fits)))
    sums = fits[drawn].sum(axis=1)
    low, high = np.quantile(sums[:, 0] / sums[:, 1], [0.025, 0.975])
    return float(broken.mean()), float(low), float(high)


def least_distance(efforts: list[dict[str, Any]], survival: float) -> list[float]:
    """By target: the least distance of any margin at which fresh models accept so much; infinity: no margin does.

    Args:
        efforts: What was measured at every margin, by target.
        survival: Mean share of the answers that fresh models accept.
    """
    return [
        min(
            (
                distance
                for share, distance in zip(each["fresh"]["survival"], each["fresh"]["distance"], strict=True)
                if share >= survival
            ),
            default=np.inf,
        )
        for each in efforts
    ]


def _kept(fits: list[dict[str, Any]]) -> str:
    lines = outcomes(fits)
    lines = lines[lines["recipe"] == "constraint"]
    rows = []
    for (name, effort, survival, reliability, target), group in lines.groupby(
        ["dataset", "effort", "survival", "reliability", "target"], sort=False
    ):
        made = group[group["made"]]
        rows.append(
            {
                "": TITLES[name],
                "to": target,
                "effort": effort,
                "promise": f"{survival:g} / {reliability:g}",
                "made": f"{len(made)} of {len(group)}",
                "kept by": f"{100 * made['kept'].mean():.0f} of 100" if len(made) else NOTHING,
                "fewest": f"{100 * made['kept'].min():.0f}" if len(made) else NOTHING,
                "survival": f"{group['mean survival'].mean():.3f}",
                "distance": f"{group['distance'].mean():.2f}",
            }
        )
    order = list(TITLES.values())
    rows.sort(key=lambda row: (order.index(row[""]), row["effort"] == "refined", row["promise"]))
    return to_markdown(pd.DataFrame(rows))


def _broken(fits: list[dict[str, Any]]) -> str:
    lines = outcomes(fits)
    lines, rows = lines[lines["recipe"] == "constraint"], []
    for (effort, survival, reliability), group in lines.groupby(["effort", "survival", "reliability"]):
        share, low, high = broken_share(group)
        rows.append(
            {
                "promise": f"{survival:g} / {reliability:g}",
                "effort": effort,
                "made": f"{int(group['made'].sum())} of {len(group)}",
                "made and broken": f"{share:.3f}",
                "95 % interval": f"{low:.3f} to {high:.3f}",
                "at most": f"{1 - reliability:.2f}",
                "broken among those made": f"{1 - group.loc[group['made'], 'kept'].mean():.3f}",
            }
        )
    return to_markdown(pd.DataFrame(rows))


def _spread(fits: list[dict[str, Any]]) -> str:
    lines = outcomes(fits)
    lines = lines[(lines["recipe"] == "constraint") & lines["made"] & (lines["survival"] == 0.95)]
    rows = []
    for (effort, reliability), group in lines.groupby(["effort", "reliability"]):
        m = 19
        rank = Promise(reliability=reliability).rank(m)
        assert rank is not None
        spread = beta(rank, m + 1 - rank)
        shares = {"promises made": np.quantile(group["kept"], QUANTILES), "Beta": spread.ppf(QUANTILES)}
        below = {"promises made": (group["kept"] < reliability - 1e-9).mean(), "Beta": spread.cdf(reliability)}
        for title, quantiles in shares.items():
            rows.append(
                {
                    "promise": f"0.95 / {reliability:g}",
                    "effort": effort,
                    "": title if title != "Beta" else f"Beta({rank}, {m + 1 - rank})",
                    "one in ten below": f"{quantiles[0]:.2f}",
                    "median": f"{quantiles[1]:.2f}",
                    "one in ten above": f"{quantiles[2]:.2f}",
                    "below its reliability": f"{below[title]:.2f}",
                }
            )
    return to_markdown(pd.DataFrame(rows))


def _frontier(fits: list[dict[str, Any]]) -> str:
    rows = []
    for name, title in TITLES.items():
        for recipe, words in RECIPES.items():
            own = [fit for fit in fits if (fit["dataset"], fit["recipe"]) == (name, recipe)]
            targets = [each["target"] for each in own[0]["efforts"]["single"]] if own else []
            for i, target in enumerate(targets):
                tables = [fit["efforts"]["single"][i] for fit in own]
                places = [tables[0]["margins"].index(margin) for margin in SHOWN_MARGINS]
                share, distance = (
                    np.mean([np.array(table["fresh"][name])[places] for table in tables], axis=0)
                    for name in ("survival", "distance")
                )
                cells = [f"{each:.3f}, {far:.1f}" for each, far in zip(share, distance, strict=True)]
                margins = [f"{margin:.1f}" for margin in SHOWN_MARGINS]
                rows.append({"": title, "to": target, "hinge": words, **dict(zip(margins, cells, strict=True))})
    return to_markdown(pd.DataFrame(rows))


def _distance(fits: list[dict[str, Any]]) -> str:
    stored = {(fit["dataset"], fit["seed"], fit["recipe"]): fit["efforts"]["single"] for fit in fits}
    rows = []
    for name, title in TITLES.items():
        seeds = [seed for own, seed, recipe in stored if (own, recipe) == (name, "constraint")]
        row = {"": title}
        for level in LEVELS:
            after, before = (
                np.array([least_distance(stored[name, seed, recipe], level) for seed in seeds]).ravel()
                for recipe in ("constraint", "weight")
            )
            both = np.isfinite(after) & np.isfinite(before)
            gained, lost = int((np.isfinite(after) & ~both).sum()), int((np.isfinite(before) & ~both).sum())
            row[f"{level:g}"] = (f"{np.median(after[both] / before[both]):.2f}" if both.any() else NOTHING) + (
                f" (+{gained}, -{lost})" if gained or lost else ""
            )
        rows += [row] if seeds else []
    return to_markdown(pd.DataFrame(rows))


def _cost(fits: list[dict[str, Any]]) -> str:
    lines = pd.DataFrame([{"dataset": fit["dataset"], "recipe": fit["recipe"], **fit["seconds"]} for fit in fits])
    rows = []
    for name in TIMED:
        own = lines[lines["dataset"] == name]
        if len(own):
            fit = own.groupby("recipe")["fit"].median()
            rows.append(
                {
                    "": TITLES[name],
                    "40 retrains (s)": f"{own['retrains'].median():.0f}",
                    "fit, fixed weight (s)": f"{fit['weight']:.0f}",
                    "fit, constraint (s)": f"{fit['constraint']:.0f}",
                    "of it to calibrate again (s)": f"{own['of it calibration'].median():.1f}",
                }
            )
    return to_markdown(pd.DataFrame(rows))


def _given(given: list[dict[str, Any]]) -> str:
    seeds: dict[str, list[str]] = {}
    for fit in given:
        seeds.setdefault(fit["sentence"], []).append(str(fit["seed"]))
    return "\n".join(f"- Seed {', '.join(own)}: {sentence}" for sentence, own in seeds.items())


BLOCKS: dict[str, Callable[[list[dict[str, Any]]], str]] = {
    "kept": _kept,
    "broken": _broken,
    "spread": _spread,
    "frontier": _frontier,
    "distance": _distance,
    "cost": _cost,
    "given": _given,
}


def filled(text: str, folder: Path = RESULTS) -> str:
    """The text of a page with every block generated again.

    Args:
        text: Text of the page.
        folder: Folder of the stored fits.
    """
    fits, given = read(folder / "fits.jsonl"), read(folder / "given.jsonl")
    fits.sort(key=lambda fit: (fit["dataset"], fit["seed"], fit["recipe"]))
    made = {kind: partial(write, given if kind == "given" else fits) for kind, write in BLOCKS.items()}
    return pages.filled(text, "promise", made)


def draw(fits: list[dict[str, Any]], path: Path) -> None:
    """Survival under fresh models against the margin, by dataset and target, with a fixed weight and as a constraint.

    Args:
        fits: Stored fits.
        path: File of the picture.
    """
    import matplotlib.pyplot as plt

    names = [name for name in TITLES if any(fit["dataset"] == name for fit in fits)]
    figure, axes = plt.subplots(2, len(names), figsize=(3.0 * len(names), 5.2), sharex=True, layout="constrained")
    colours = {"weight": "#D55E00", "constraint": "#0072B2"}
    for column, name in zip(axes.T, names, strict=True):
        for recipe, words in RECIPES.items():
            own = [fit for fit in fits if (fit["dataset"], fit["recipe"]) == (name, recipe)]
            for axis, i in zip(column, range(2), strict=True):
                tables = [fit["efforts"]["single"][i] for fit in own]
                style = {"color": colours[recipe], "linestyle": "--" if recipe == "weight" else "-"}
                for table in tables[:3]:
                    axis.plot(table["margins"], table["fresh"]["survival"], alpha=0.25, linewidth=0.8, **style)
                mean = np.mean([table["fresh"]["survival"] for table in tables], axis=0)
                axis.plot(tables[0]["margins"], mean, label=words, linewidth=2, **style)
                axis.set_title(f"{TITLES[name]}: to {tables[0]['target']!r}", fontsize=9)
                axis.grid(alpha=0.3)
    for axis in axes[-1]:
        axis.set_xlabel("margin (log-odds)")
    for axis in axes[:, 0]:
        axis.set_ylabel("survival, 100 fresh retrains")
    axes[0, 0].legend(title="hinge as", fontsize=8, title_fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Write the tables of a page again, and draw the figure where one is named."""
    pages.write(__doc__, filled, lambda path: draw(read(RESULTS / "fits.jsonl"), path))


if __name__ == "__main__":
    main()
