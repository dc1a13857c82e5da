"""How near the answers are, as tables of a page and one figure: no number is typed by hand.

    python benchmarks/least_change_page.py docs/results/least-change.md [--figure docs/images/least-change.png]

A block of the page begins with ``<!-- least: KIND -->`` and ends with ``<!-- end -->``; the text between is written
from the cells that ``benchmarks/least_change.py`` stored. The kinds are the keys of `BLOCKS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pages
import pandas as pd
from pages import NOTHING, read

from avcg.bench.tables import to_markdown

RESULTS = Path(__file__).parent / "results" / "least_change"
DATASETS = {
    "adult": "Adult",
    "breast_cancer": "Breast cancer",
    "heart": "Heart",
    "spambase": "Spambase",
    "sba:2004": "SBA, 2004",
}
MODELS = {
    "network": "network",
    "logistic": "logistic",
    "xgboost": "XGBoost",
    "lightgbm": "LightGBM",
    "random_forest": "random forest",
    "hist_gradient_boosting": "HistGradientBoosting",
    "catboost": "CatBoost",
}
WITH_TREES = tuple(name for name in MODELS if name not in ("network", "logistic"))
PROBABILITIES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995)  # of the search for each row
EFFORTS = ("fast", "standard", "thorough")
NEIGHBOURS = ("nearest unlike", "robust neighbour")
PROMISE, DEFAULT = "0.99", "0.95"
SURVIVAL, L1, YNN = 0.99, 1.00, 1.05  # goals of networks
BATCH_MS, ALONE_MS, OVER_OPTIMUM = 3.0, 60.0, 1.10  # goals of trees and of the ruler
EMPTY = "Nothing is stored yet."
CEILING = "\\*"  # marks what is compared at the search's own ceiling
Record = dict[str, Any]


def stored(folder: Path = RESULTS) -> list[Record]:
    """The records of a folder, by dataset, model and seed in the order of the page."""
    records = [record for path in sorted(folder.glob("*.jsonl")) for record in read(path)]
    order = (list(DATASETS), list(MODELS))
    return sorted(records, key=lambda r: (order[0].index(r["dataset"]), order[1].index(r["model"]), r["seed"]))


@dataclass(frozen=True)
class Frontier:
    """What can be had for which survival: the ends of the lower convex hull of L1 over survival.

    Attributes:
        survival: Shares, ascending: coverage times the share that fresh judges accept.
        l1: L1 of each.
        ynn: Distance of each to the five nearest rows of the target.
    """

    survival: tuple[float, ...]
    l1: tuple[float, ...]
    ynn: tuple[float, ...]

    @classmethod
    def of(cls, points: Iterable[Record]) -> Frontier:
        """The frontier of a method's points; what survives less often and is no nearer is left out."""
        best: list[tuple[float, float, float]] = []
        known = [(p["survival"], p["l1"], p["ynn"]) for p in points if p["l1"] is not None]
        for point in sorted(known, key=lambda p: (-p[0], p[1])):
            if not best or point[1] < best[-1][1]:
                best.append(point)
        hull: list[tuple[float, float, float]] = []
        for point in reversed(best):
            while len(hull) > 1 and _slope(hull[-2], hull[-1]) >= _slope(hull[-1], point):
                hull.pop()
            hull.append(point)
        survival, l1, ynn = zip(*hull, strict=True) if hull else ((), (), ())
        return cls(survival, l1, ynn)

    @property
    def highest(self) -> float:
        """The highest survival that is reached."""
        return self.survival[-1] if self.survival else 0.0

    def at(self, survival: float) -> tuple[float, float] | None:
        """L1 and yNN at a survival, by linear interpolation; None where it is never reached."""
        if not self.survival or survival > self.highest + 1e-9:
            return None
        l1, ynn = (float(np.interp(survival, self.survival, values)) for values in (self.l1, self.ynn))
        return l1, ynn


def _ratios(ours: tuple[float, float] | None, theirs: tuple[float, float] | None) -> tuple[float, float]:
    """L1 and yNN over those of the search; NaN where either has none."""
    if ours is None or theirs is None or ours[0] is None:
        return np.nan, np.nan
    return ours[0] / theirs[0], ours[1] / theirs[1]


def _slope(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    return (b[1] - a[1]) / (b[0] - a[0])


@dataclass(frozen=True)
class Beside:
    """An effort beside the search for each row at equal survival, on one cell.

    Attributes:
        survival: Coverage times the share that fresh judges accept, at the calibrated margin.
        ceiling: The highest survival of the search.
        level: The survival at which both are compared.
        l1: L1 over that of the search; NaN where it cannot be compared.
        ynn: The same of yNN.
        frontier: L1 along the effort's own frontier over that of the search, at 0.99 or what both reach.
    """

    survival: float
    ceiling: float
    level: float
    l1: float
    ynn: float
    frontier: float

    @classmethod
    def of(cls, record: Record, effort: str) -> Beside:
        """Compare at the survival of the effort, or at the search's ceiling along the effort's own frontier."""
        own, search = record["promises"][PROMISE][effort], Frontier.of(record["search"])
        along = Frontier.of([*record["frontier"][effort], own])
        level, ours = own["survival"], (own["l1"], own["ynn"])
        if level > search.highest + 1e-9:
            level, ours = search.highest, along.at(search.highest)
        both = min(SURVIVAL, search.highest, along.highest)
        l1, ynn = _ratios(ours, search.at(level))
        return cls(own["survival"], search.highest, level, l1, ynn, _ratios(along.at(both), search.at(both))[0])

    @property
    def at_ceiling(self) -> bool:
        """Whether the search never reaches the survival of the effort."""
        return self.level < self.survival


def groups(records: Iterable[Record], models: Sequence[str] = tuple(MODELS)) -> dict[tuple[str, str], list[Record]]:
    """The records of all seeds, by dataset and model."""
    found: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        if record["model"] in models:
            found.setdefault((record["dataset"], record["model"]), []).append(record)
    return found


def median(values: Iterable[float | None]) -> float:
    """The median of what is known; NaN if nothing is."""
    known = [value for value in values if value is not None and not np.isnan(value)]
    return float(np.median(known)) if known else float("nan")


def _number(value: float, digits: int = 2) -> str:
    return NOTHING if np.isnan(value) else f"{value:.{digits}f}"


def _share(value: float) -> str:
    return NOTHING if np.isnan(value) else f"{100 * value:.1f} %"


def _table(rows: list[dict[str, Any]]) -> str:
    return to_markdown(pd.DataFrame(rows)) if rows else EMPTY


def _titles(key: tuple[str, str]) -> dict[str, str]:
    return {"": DATASETS[key[0]], "model": MODELS[key[1]]}


def _runs(records: list[Record]) -> str:
    if not records:
        return EMPTY
    lines = []
    for model, title in MODELS.items():
        own = [record for record in records if record["model"] == model]
        if own:
            names = [title for name, title in DATASETS.items() if any(record["dataset"] == name for record in own)]
            rows = sorted({record["training rows"] for record in own})
            judges = sorted({record["judges"]["own"] for record in own})
            side = sorted({record["machine"]["side by side"] for record in own})
            lines.append(
                {
                    "model": title,
                    "datasets": "; ".join(names),
                    "seeds": max(len(seeds) for seeds in groups(own).values()),
                    "rows answered": sum(record["worse"]["rows"] for record in own),
                    "training rows": _range(rows),
                    "judges of a candidate": _range(judges),
                    "cells side by side": _range(side),
                    "minutes a cell, median": _number(median(sum(r["seconds"].values()) / 60 for r in own), 1),
                }
            )
    return _table(lines)


def _range(values: Sequence[int]) -> str:
    return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"


def _goal(what: str, met: dict[str, bool], shown: dict[str, str]) -> dict[str, str]:
    missed = [f"{name} ({shown[name]})" for name, good in met.items() if not good]
    return {
        "goal": what,
        "met": f"{sum(met.values())} of {len(met)}",
        "": NOTHING if not met else "met" if not missed else "**missed**",
        "missed by": "; ".join(missed) or NOTHING,
    }


def _judged(
    what: str, values: dict[str, float], good: Callable[[float], bool], show: Callable[[float], str]
) -> dict[str, str]:
    """A goal, by what was measured; what could not be measured is left out."""
    known = {name: value for name, value in values.items() if not np.isnan(value)}
    return _goal(what, {name: good(v) for name, v in known.items()}, {name: show(v) for name, v in known.items()})


def goals(records: list[Record], measured: list[Record]) -> list[dict[str, str]]:
    """Each goal: on how many tables it is met, and where it is missed by how much.

    Args:
        records: Stored cells.
        measured: Stored cells of the ruler.
    """

    def name(key: tuple[str, str]) -> str:
        return DATASETS[key[0]] if key[1] == "network" else f"{DATASETS[key[0]]}, {MODELS[key[1]]}"

    networks = {name(key): [Beside.of(r, "standard") for r in own] for key, own in groups(records, ["network"]).items()}
    others = groups(records, tuple(MODELS)[1:])
    trees = groups(records, WITH_TREES)
    standard = {name(key): [r["promises"][PROMISE]["standard"] for r in own] for key, own in others.items()}
    lines = [
        _goal(
            f"networks: coverage x survival at least {SURVIVAL}, or the search's own ceiling",
            {title: all(_enough(each) for each in own) for title, own in networks.items()},
            {title: _number(min(each.survival for each in own), 3) for title, own in networks.items()},
        ),
        _judged(
            f"networks: L1 at most {L1:.2f} times the search's at equal survival",
            {title: median(each.l1 for each in own) for title, own in networks.items()},
            lambda value: round(value, 2) <= L1, _number,
        ),
        _judged(
            f"networks: yNN at most {YNN:.2f} times the search's at equal survival",
            {title: median(each.ynn for each in own) for title, own in networks.items()},
            lambda value: round(value, 2) <= YNN, _number,
        ),
        _judged(
            f"other models: fresh judges accept at least {SURVIVAL} of the answers",
            {title: median(each["accepted"] for each in own) for title, own in standard.items()},
            lambda value: round(value, 3) >= SURVIVAL, lambda value: _number(value, 3),
        ),
        *(
            _judged(
                f"other models: {words} the {neighbour} on shared rows",
                {name(key): shared_ratio(own, neighbour, of) for key, own in others.items()},
                (lambda value: round(value, 2) < 1.0) if of == "columns" else (lambda value: round(value, 2) <= 1.0),
                _number,
            )
            for neighbour in NEIGHBOURS
            for of, words in (("l1", "L1 at most that of"), ("columns", "fewer columns than"))
        ),
        _judged(
            f"trees: a row of 100 takes at most {BATCH_MS:g} ms",
            {name(key): median(r["times"]["standard"]["100"] for r in quietest(own)) for key, own in trees.items()},
            lambda value: value <= BATCH_MS, lambda value: f"{value:.1f} ms",
        ),
        _judged(
            f"trees: one row alone takes at most {ALONE_MS:g} ms",
            {name(key): median(r["times"]["standard"]["1"] for r in quietest(own)) for key, own in trees.items()},
            lambda value: value <= ALONE_MS, lambda value: f"{value:.0f} ms",
        ),
        _judged(
            f"over the exact optimum: 95th percentile at most {OVER_OPTIMUM:.2f}",
            {
                f"{name(key)}, {line['method']}": median(_ruled(r, line["method"], "each", "p95") for r in own)
                for key, own in groups(measured).items() for line in own[0]["ruler"]
                if line["method"].startswith("standard")
            },
            lambda value: round(value, 2) <= OVER_OPTIMUM, _number,
        ),
        _judged(
            "no answer breaks a constraint",
            {name(key): float(sum(map(_violations, own))) for key, own in groups(records).items()},
            lambda value: value == 0, lambda value: f"{value:.0f}",
        ),
        _judged(
            "more effort never makes an answer worse",
            {
                name(key): float(sum(r["worse"][step] for r in own for step in r["worse"] if step != "rows"))
                for key, own in groups(records).items()
            },
            lambda value: value == 0, lambda value: f"{value:.0f} rows",
        ),
    ]  # fmt: skip
    return [line for line in lines if line["met"] != "0 of 0"]


def _enough(beside: Beside) -> bool:
    return round(beside.survival, 3) >= min(SURVIVAL, round(beside.ceiling, 3))


def _violations(record: Record) -> int:
    """The broken constraints of all answers of AVCG in a cell."""
    promised = [each for efforts in record["promises"].values() for each in efforts.values()]
    fixed = [point for points in record["frontier"].values() for point in points]
    return sum(each["violations"] for each in [*promised, *fixed, *record["typicality"]])


def shared_ratio(own: Iterable[Record], neighbour: str, of: str, effort: str = "standard") -> float:
    """Median over seeds of a mean of ours over theirs, on rows that both answer.

    Args:
        own: Records of all seeds.
        neighbour: Name of the other method.
        of: What is measured, such as ``"l1"``.
        effort: Our effort.
    """
    pairs = [record["neighbours"][neighbour]["shared"][effort][of] for record in own]
    return median(ours / theirs for theirs, ours in pairs if ours is not None and theirs)


def _ruled(record: Record, method: str, reading: str, quantile: str) -> float | None:
    return next((line[reading][quantile] for line in record["ruler"] if line["method"] == method), None)


def _answers(models: Sequence[str], records: list[Record]) -> str:
    rows = []
    for key, own in groups(records, models).items():
        for promise, effort in ((PROMISE, "fast"), (PROMISE, "standard"), (PROMISE, "thorough"), (DEFAULT, "standard")):
            lines = [record["promises"][promise][effort] for record in own]
            made = [made for line in lines for made in line["made"]]
            middle = {name: median(line[name] for line in lines) for name in lines[0] if name in _SHOWN}
            rows.append(
                {
                    **_titles(key), "promise": promise, "effort": effort, "made": f"{sum(made)} of {len(made)}",
                    "coverage": _number(middle["coverage"], 3), "accepted": _number(middle["accepted"], 3),
                    "coverage x accepted": _number(middle["survival"], 3), "L1": _number(middle["l1"]),
                    "L1, median row": _number(middle["l1_median"]), "distance": _number(middle["distance"]),
                    "columns": _number(middle["columns"], 1), "yNN": _number(middle["ynn"]),
                }
            )  # fmt: skip
    return _table(rows)


_SHOWN = ("coverage", "accepted", "survival", "l1", "l1_median", "distance", "columns", "ynn")


def _search(records: list[Record]) -> str:
    rows = []
    for key, own in groups(records, ("network", "logistic")).items():
        for effort in ("fast", "standard"):
            each = [Beside.of(record, effort) for record in own]
            mark = f" {CEILING}" if any(beside.at_ceiling for beside in each) else ""
            columns = median(record["promises"][PROMISE][effort]["columns"] for record in own)
            rows.append(
                {
                    **_titles(key), "effort": effort,
                    "coverage x accepted": _number(median(beside.survival for beside in each), 3),
                    "search's ceiling": _number(median(beside.ceiling for beside in each), 3),
                    "compared at": _number(median(beside.level for beside in each), 3) + mark,
                    "L1 over the search's": _number(median(beside.l1 for beside in each)),
                    "yNN over the search's": _number(median(beside.ynn for beside in each)),
                    "L1, frontier over frontier": _number(median(beside.frontier for beside in each)),
                    "columns": _number(columns, 1),
                }
            )  # fmt: skip
    return _table(rows)


def _neighbours(records: list[Record]) -> str:
    rows = []
    for key, own in groups(records).items():
        for neighbour in NEIGHBOURS:
            theirs = [record["neighbours"][neighbour] for record in own]
            shared = [each["shared"]["standard"] for each in theirs]
            pair = {
                of: [median(each[of][i] for each in shared) for i in range(2)] for of in ("share", "l1", "columns")
            }  # fmt: skip
            rows.append(
                {
                    **_titles(key), "beside": neighbour,
                    "it answers": _number(median(each["coverage"] for each in theirs), 3),
                    "shared rows": sum(each["rows"] for each in shared),
                    "accepted": " / ".join(_number(value, 3) for value in reversed(pair["share"])),
                    "L1": " / ".join(map(_number, reversed(pair["l1"]))),
                    "columns": " / ".join(_number(value, 1) for value in reversed(pair["columns"])),
                    "L1, ratio": _number(shared_ratio(own, neighbour, "l1")),
                    "L1, ratio of fast": _number(shared_ratio(own, neighbour, "l1", "fast")),
                }
            )  # fmt: skip
    return _table(rows)


def quietest(records: list[Record]) -> list[Record]:
    """The cells whose times were measured again, or else those with the fewest others beside them."""
    records = [record for record in records if "timed" in record] or records
    fewest = min(map(beside, records))
    return [record for record in records if beside(record) == fewest]


def beside(record: Record) -> int:
    """How many cells ran side by side while the times of a cell were measured."""
    return int(record.get("timed", record["machine"])["side by side"])


def _times(records: list[Record]) -> str:
    rows = []
    for key, own in groups(records).items():
        for count, words in (("100", "a row of 100"), ("10000", "a row of 10,000"), ("1", "one row alone")):
            found = {
                name: median(record["times"].get(name, {}).get(count) for record in quietest(own))
                for name in (*EFFORTS, "search", *NEIGHBOURS)
            }
            if not all(np.isnan(value) for value in found.values()):
                side = beside(quietest(own)[0])
                times = {name: _number(v) for name, v in found.items()}
                rows.append({**_titles(key), "ms for": words, "cells side by side": side, **times})
    return _table(rows)


def short(records: list[Record], dataset: str = "adult", model: str = "network") -> str:
    """A short table of one dataset and model, as README shows it: the search at the first level that survives as often.

    Args:
        records: Stored cells.
        dataset: Name of the dataset.
        model: Kind of model.
    """
    own = [record for record in records if (record["dataset"], record["model"]) == (dataset, model)]
    if not own:
        return EMPTY
    survival = median(record["promises"][PROMISE]["standard"]["survival"] for record in own)
    levels = [[record["search"][i] for record in own] for i in range(len(own[0]["search"]))]
    enough = next((each for each in levels if median(point["survival"] for point in each) >= survival), levels[-1])
    lines = {
        **{
            f"{name} row".replace("neighbour row", "neighbour"): ([record["neighbours"][name] for record in own], name)
            for name in NEIGHBOURS
        },
        "gradient search for each row": (enough, "search"),
        **{
            f"**avcg**, `effort=\"{effort}\"`": ([record["promises"][PROMISE][effort] for record in own], effort)
            for effort in ("fast", "standard")
        },
    }  # fmt: skip
    return _table(
        [
            {
                f"{DATASETS[dataset]}, {model}": name,
                "answered": _share(median(point["coverage"] for point in points)),
                "accepted by new models": _number(median(point["accepted"] for point in points), 3),
                "L1": _number(median(point["l1"] for point in points), 1),
                "columns changed": _number(median(point["columns"] for point in points), 1),
                "processor ms a row": _number(median(each["times"][timed]["100"] for each in quietest(own))),
            }
            for name, (points, timed) in lines.items()
        ]
    )


def _fallback(records: list[Record]) -> str:
    rows = []
    for key, own in groups(records).items():
        for effort in EFFORTS:
            lines = [record["promises"][PROMISE][effort] for record in own]
            asked, needed, accepted = (
                sum(line["fallback"][name] for line in lines) for name in ("asked", "rows", "accepted")
            )
            seconds, total = (sum(line["fallback"][name] for line in lines) for name in ("seconds", "all seconds"))
            statuses: dict[str, int] = {}
            for line in lines:
                for status, count in line["statuses"].items():
                    statuses[status] = statuses.get(status, 0) + count
            rows.append(
                {
                    **_titles(key), "effort": effort, "rows": asked, "needed the fallback": _share(needed / asked),
                    "then accepted": f"{accepted} of {needed}" if needed else NOTHING,
                    "ms for each": _number(1000 * seconds / needed) if needed else NOTHING,
                    "share of all time": _share(seconds / total) if needed else NOTHING,
                    **{name: statuses.get(name, 0) for name in ("ok", "not_robust", "not_found", "infeasible")},
                }
            )  # fmt: skip
    return _table(rows)


def _typicality(records: list[Record]) -> str:
    rows = []
    for key, own in groups(records).items():
        levels = [point["typicality"] for point in own[0]["typicality"]]
        default = own[0]["settings"]["typicality"]
        cells = {}
        for i, level in enumerate(levels):
            points = [record["typicality"][i] for record in own]
            values = (median(point[name] for point in points) for name in ("l1", "ynn", "survival"))
            title = f"{level:g}, default" if level == default else f"{level:g}"
            cells[title] = ", ".join(_number(v, d) for v, d in zip(values, (2, 2, 3), strict=True))
        rows.append({**_titles(key), **cells})
    return _table(rows)


def _ruler(measured: list[Record]) -> str:
    rows = []
    for key, own in groups(measured).items():
        for line in own[0]["ruler"]:
            rows.append(
                {
                    **_titles(key), "method": line["method"],
                    "rows": sum(_ruled(record, line["method"], "each", "rows") or 0 for record in own),
                    **{
                        f"{reading}, {title}": _number(
                            median(_ruled(record, line["method"], reading, name) for record in own), 3
                        )
                        for reading in ("each", "lowest") for name, title in (("median", "median"), ("p95", "95 %"))
                    },
                }
            )  # fmt: skip
    return _table(rows)


def _figure(records: list[Record]) -> str:
    if not groups(records, ("network",)):
        return EMPTY
    return "![L1 against survival, and yNN against L1, by dataset](../images/least-change.png)"


BLOCKS: dict[str, Callable[[list[Record]], str]] = {
    "runs": _runs,
    "answers of networks": partial(_answers, ("network",)),
    "answers of others": partial(_answers, tuple(MODELS)[1:]),
    "search": _search,
    "neighbours": _neighbours,
    "times": _times,
    "fallback": _fallback,
    "typicality": _typicality,
    "figure": _figure,
}


def filled(text: str, folder: Path = RESULTS) -> str:
    """The text of a page with every block generated again.

    Args:
        text: Text of the page.
        folder: Folder of the stored cells.
    """
    records, measured = stored(folder), stored(folder / "ruler")
    made = {kind: partial(write, records) for kind, write in BLOCKS.items()}
    made |= {
        "short": partial(short, records),
        "ruler": partial(_ruler, measured),
        "goals": lambda: _table(goals(records, measured)),
    }
    return pages.filled(text, "least", made)


def draw(records: list[Record], path: Path) -> None:
    """L1 against survival and yNN against L1, by dataset, of networks: the efforts and the search for each row.

    Args:
        records: Stored cells.
        path: File of the picture.
    """
    import matplotlib.pyplot as plt

    by_dataset = {key[0]: own for key, own in groups(records, ("network",)).items()}
    if not by_dataset:
        return
    figure, axes = plt.subplots(
        2, len(by_dataset), figsize=(3.2 * len(by_dataset), 6.0), layout="constrained", squeeze=False
    )
    styles = {
        "fast": ("AVCG, fast", "#E69F00", "^--"),
        "standard": ("AVCG, standard", "#0072B2", "o-"),
        "search": ("search for each row", "#D55E00", "s:"),
        "typicality": ("AVCG, by typicality", "#009E73", "D-."),
    }
    for (upper, lower), (name, own) in zip(axes.T, by_dataset.items(), strict=True):
        for kind, (title, colour, line) in styles.items():
            lines = [record["frontier"].get(kind) or record[kind] for record in own]
            survival, l1, ynn = (
                np.array([[point[of] if point[of] is not None else np.nan for point in each] for each in lines])
                for of in ("survival", "l1", "ynn")
            )
            style = {"color": colour, "markersize": 4, "linewidth": 1.5}
            middle = [np.nanmedian(values, axis=0) for values in (survival, l1, ynn)]
            if kind != "typicality":
                upper.plot(middle[0], middle[1], line, label=title, **style)
            lower.plot(middle[1], middle[2], line, label=title, **style)
        calibrated = [record["promises"][PROMISE]["standard"] for record in own]
        place = [median(each[of] for each in calibrated) for of in ("survival", "l1", "ynn")]
        marker = {"color": "black", "marker": "*", "s": 90, "zorder": 5, "label": "AVCG as delivered, promise 0.99"}
        upper.scatter(place[0], place[1], **marker)
        lower.scatter(place[1], place[2], **marker)
        upper.set_title(DATASETS[name], fontsize=10)
        upper.set_xlabel("coverage x survival")
        lower.set_xlabel("L1 (standard deviations)")
        for axis in (upper, lower):
            axis.grid(alpha=0.3)
    axes[0, 0].set_ylabel("L1 (standard deviations)")
    axes[1, 0].set_ylabel("yNN (lower: more typical)")
    figure.legend(*axes[1, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Write the tables of a page again, and draw the figure where one is named."""
    pages.write(__doc__, filled, lambda path: draw(stored(), path))


if __name__ == "__main__":
    main()
