"""What became of advice on SBA loans in real years, as tables of a page and one figure: no number is typed by hand.

    python benchmarks/years_page.py docs/results/years.md [--figure docs/images/years.png]

A block of the page begins with ``<!-- years: KIND -->``; the text up to ``<!-- end -->`` is written from the backtests
that ``benchmarks/years.py`` stored.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pages
import pandas as pd
from pages import NOTHING

from avcg.auditing.past import Backtest
from avcg.bench.tables import to_markdown
from avcg.guarantees import clopper_pearson

RESULTS = Path(__file__).parent / "results" / "years"
DRIFT = RESULTS.parent / "drift.json"
TREES = RESULTS / "tree_search.json"
SEARCHES = ("search", "taken back")  # methods that search for each row, by the beginning of their names
MODELS = {"network": "a network", "xgboost": "XGBoost"}
SURVIVAL, RELIABILITY, FIRST, CRISIS, HORIZONS = 0.95, 0.9, 1997, (2006, 2007, 2008), (2, 3)
PERIODS = {
    "1997 to 2011": lambda origin: origin >= FIRST,
    "without 2006 to 2008": lambda origin: (origin >= FIRST) & ~origin.isin(CRISIS),
    "2006 to 2008": lambda origin: origin.isin(CRISIS),
}


def stored(model: str) -> Backtest:
    """The backtest of a model, with the search of ``benchmarks/tree_search.py`` beside it where it is of trees."""
    found = Backtest.from_json(RESULTS / f"{model}.json")
    if model != "xgboost":
        return found
    search = Backtest.from_json(TREES).frame
    frame = pd.concat([found.frame, search[search["method"] != "nothing"]], ignore_index=True)
    return replace(found, frame=frame)


def origins(model: str) -> pd.DataFrame:
    """A line for each origin: what the past would have promised, what hypotheses promised, and what was kept."""
    found = stored(model)
    past = found.replayed(reliability=RELIABILITY).set_index("origin")
    next_year = found.frame[found.frame["horizon"] == 1].set_index(["method", "origin"])
    frontier = found.frontier.set_index(["origin", "horizon", "margin"])
    for years in HORIZONS:
        shares = []
        for origin, margin in past["margin"].items():
            line = frontier.loc[(origin, years, margin)] if (origin, years) in frontier.index.droplevel(2) else None
            shares.append(np.nan if line is None else line["accepted"] / max(line["answered"], 1))
        past[f"after {years}"] = shares
    searched = [name for name in found.frame["method"].unique() if name.startswith(SEARCHES)]
    past["search"] = found.at_equal_survival(past.reset_index(), searched).to_numpy()
    own = next_year.loc["avcg"]
    columns = {"people": "people", "promised": "own promise", "survival": "own", "kept": "own kept"}
    past = past.join(own[list(columns)].rename(columns=columns))
    return past.join(next_year.loc["nothing"]["survival"].rename("nothing"))


def counts(model: str) -> pd.DataFrame:
    """By period: promises made and kept, those that the past calibrated and those of hypotheses, and intervals."""
    lines, rows = origins(model), []
    for period, within in PERIODS.items():
        chosen = lines[within(lines.index.to_series())]
        for basis, made, kept, claimed in (
            ("past years", chosen["made"], chosen["kept"], chosen["reliability"][chosen["made"]].sum()),
            (
                "bootstraps",
                chosen["own promise"].notna(),
                chosen["own kept"],
                RELIABILITY * chosen["own promise"].count(),
            ),
        ):
            n, k = int(made.sum()), int(kept.sum())
            low, high = _interval(k, n)
            rows.append(
                {"model": MODELS[model], "origins": period, "basis": basis, "made": n, "kept": k, "claimed": claimed,
                 "low": low, "high": high}
            )  # fmt: skip
    return pd.DataFrame(rows)


def _interval(kept: int, made: int) -> tuple[float, float]:
    """The two-sided 95 % interval of Clopper and Pearson for the share of promises that are kept."""
    low, rest = clopper_pearson(np.array([kept, made - kept]), made, 0.975)
    return float(low), 1.0 - float(rest)


def _share(value: float) -> str:
    return NOTHING if np.isnan(value) else f"{value:.3f}"


def _verdict(made: Any, kept: Any) -> str:
    return NOTHING if not made else "kept" if kept else "**broken**"


def _origins(model: str) -> str:
    rows = [
        {
            "advice of": origin,
            "people": int(line["people"]),
            "past years": int(line["moments"]),
            "reliability": f"{line['reliability']:.2f}",
            "next year": _share(line["survival"]),
            "promise": _verdict(line["made"], line["kept"]),
            **{f"{years} years on": _share(line[f"after {years}"]) for years in HORIZONS},
            "distance": f"{line['distance']:.2f}",
            "search": NOTHING if np.isnan(line["search"]) else f"{line['search']:.2f}",
            "bootstraps": _share(line["own"]),
            "their promise": _verdict(line["own promise"] == line["own promise"], line["own kept"]),
            "nothing": _share(line["nothing"]),
        }
        for origin, line in origins(model).iterrows()
    ]
    return to_markdown(pd.DataFrame(rows))


def _counts() -> str:
    rows = [
        {
            "": line["model"],
            "advice of": line["origins"],
            "calibrated by": line["basis"],
            "kept": f"{line['kept']} of {line['made']}",
            "95 % interval": f"{line['low']:.2f} to {line['high']:.2f}",
            "claimed at least": f"{line['claimed']:.1f}",
        }
        for model in MODELS
        for line in counts(model).to_dict("records")
    ]
    return to_markdown(pd.DataFrame(rows))


def _methods() -> str:
    rows = []
    for model, title in MODELS.items():
        found = stored(model)
        chosen = found.frame[(found.frame["horizon"] == 1) & (found.frame["origin"] >= FIRST)]
        for method, lines in chosen.groupby("method", sort=False):
            rows.append(
                {
                    "": title,
                    "method": method,
                    "answered": f"{lines['answered'].mean():.3f}",
                    "next year": f"{lines['survival'].mean():.3f}",
                    "least": f"{lines['survival'].min():.3f}",
                    "distance": f"{lines['distance'].mean():.2f}",
                    "harmed": f"{lines['harmed'].mean():.4f}",
                }
            )
        past = origins(model)
        past = past[past.index >= FIRST]
        rows.append(
            {
                "": title,
                "method": "avcg, by past years",
                "answered": f"{past['answered'].mean():.3f}",
                "next year": f"{past['survival'].mean():.3f}",
                "least": f"{past['survival'].min():.3f}",
                "distance": f"{past['distance'].mean():.2f}",
                "harmed": NOTHING,
            }
        )
    return to_markdown(pd.DataFrame(rows))


def drifts() -> pd.DataFrame:
    """By how the border of a toy moves: promises made and kept, and the share of histories with an alarm."""
    lines = pd.DataFrame(json.loads(DRIFT.read_text()))
    counted = ["made", "kept", "past made", "past kept", "claimed"]
    return lines.groupby("change", sort=False).agg(
        **{name.replace(" ", "_"): (name, "sum") for name in counted},
        histories=("alarm", "count"),
        alarms=("alarm", "sum"),
        first=("first", "median"),
    )


def _drift() -> str:
    rows = [
        {
            "the border": change,
            "kept, by bootstraps": f"{line['kept']:.0f} of {line['made']:.0f}",
            "kept, by past moments": f"{line['past_kept']:.0f} of {line['past_made']:.0f}",
            "claimed at least": f"{line['claimed']:.0f}",
            "alarms": f"{line['alarms']:.0f} of {line['histories']:.0f}",
            "first alarm, median": NOTHING if np.isnan(line["first"]) else f"moment {line['first']:.0f}",
        }
        for change, line in drifts().iterrows()
    ]
    return to_markdown(pd.DataFrame(rows))


BLOCKS = {
    "drift": _drift,
    "counts": _counts,
    "network": partial(_origins, "network"),
    "xgboost": partial(_origins, "xgboost"),
    "methods": _methods,
}


def filled(text: str) -> str:
    """The text of the page with every block generated again."""
    return pages.filled(text, "years", BLOCKS)


def draw(path: Path) -> None:
    """What the next year's model accepts, by origin: by past years, by bootstraps, and without any change."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10.0, 3.8), sharey=True, layout="constrained")
    styles = {
        "survival": ("calibrated by past years", "#0072B2", "o-"),
        "own": ("calibrated by bootstraps", "#D55E00", "s--"),
        "nothing": ("nothing changed", "#888888", "^:"),
    }
    for axis, (model, title) in zip(axes, MODELS.items(), strict=True):
        lines = origins(model)
        for column, (words, colour, style) in styles.items():
            axis.plot(lines.index, lines[column], style, color=colour, label=words, markersize=4)
        axis.axhline(SURVIVAL, color="black", linewidth=0.8, linestyle=(0, (6, 4)))
        axis.axvspan(CRISIS[0] - 0.5, CRISIS[-1] + 0.5, color="#eeeeee", zorder=0)
        axis.set_title(f"{title[0].upper()}{title[1:]}", fontsize=10)
        axis.set_xlabel("advice of")
        axis.set_xticks(range(1990, 2012, 5))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("accepted by the next year's model")
    axes[0].legend(fontsize=8, loc="center left")
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    pages.write(__doc__, filled, draw)
