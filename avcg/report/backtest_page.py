"""A self-contained HTML page of a backtest, without scripts, for light and dark screens and for print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from avcg.auditing.past import NOTHING
from avcg.guarantees.bounds import clopper_pearson
from avcg.report.page import figure, fill, percent, precise, short
from avcg.report.svg import Words, by_moment

if TYPE_CHECKING:
    from avcg.auditing.past import Backtest

_CONFIDENCE, _USUAL = 0.95, 0.95
BY_THE_PAST = "by the past"  # the method with margins, calibrated by the moments before


def page(backtest: Backtest, method: str | None, reliability: float) -> str:
    """Render a backtest as an HTML page, which loads nothing else.

    Args:
        backtest: The backtest.
        method: Name of the method whose promises past moments are to calibrate; None: the only one with margins.
        reliability: Reliability of these promises.
    """
    nearest = backtest.frame[backtest.frame["horizon"] == 1]
    origins = nearest["origin"].unique().tolist()
    replayed: list[dict[str, Any]] = []
    survival = float(backtest.frame["promised"].fillna(_USUAL).iloc[-1])
    if method is not None or (len(backtest.frontier) and backtest.frontier["method"].nunique() == 1):
        survival = backtest.past_moments(method).survival
        frame = backtest.replayed(method, reliability=reliability)
        replayed = [{str(name): value for name, value in line.items()} for line in frame.to_dict("records")]
    context = {
        "target": backtest.target,
        "origins": [short(origin) for origin in origins],
        "next_picture": _picture(
            _with_replayed(nearest, replayed), "origin", survival, "What the next model accepts", "advice of"
        ),
        "later_picture": _picture(backtest.frame, "horizon", survival, "Some models later", "moments later (mean)"),
        "methods": [_method(name, group) for name, group in nearest.groupby("method", sort=False)],
        "replayed": [_promise(line) for line in replayed],
        "kept": _kept(replayed),
        "survival": precise(survival),
        "reliability": precise(reliability),
        "carried": f"{len(origins) / (len(origins) + 1):.2f}",
    }
    return fill("backtest.html.j2", context)


def _picture(frame: pd.DataFrame, by: str, survival: float, title: str, across: str) -> Any:
    """Survival of each method over origins or horizons."""
    table = frame.pivot_table(index=by, columns="method", values="survival", aggfunc="mean", sort=False).sort_index()
    table = table.reindex(columns=frame["method"].unique())  # a method without any answer has no line
    order = [*(name for name in frame["method"].unique() if name != NOTHING), NOTHING]
    lines = {name: table[name].tolist() for name in order}
    says = "; ".join(
        f"{name}: {', '.join(f'{short(at)} {percent(value)}' for at, value in table[name].items())}" for name in order
    )
    return by_moment(lines, [short(at) for at in table.index], survival, Words(title, says, across))


def _method(name: Any, group: pd.DataFrame) -> dict[str, Any]:
    worst, made = int(group["survival"].fillna(np.inf).argmin()), int(group["promised"].count())
    return {
        "name": name,
        "answered": percent(group["answered"].mean()),
        "survival": percent(group["survival"].mean(), 1),
        "worst": f"{percent(group['survival'].iloc[worst], 1)} ({short(group['origin'].iloc[worst])})",
        "distance": figure(group["distance"].mean()) if name != NOTHING else "0",
        "harmed": percent(group["harmed"].mean(), 1),
        "promises": f"{int(group['kept'].sum())} of {made}" if made else "",
    }


def _with_replayed(nearest: pd.DataFrame, replayed: list[dict[str, Any]]) -> pd.DataFrame:
    """The lines of all methods, and those of promises calibrated by the past as one more method."""
    lines = pd.DataFrame(replayed).assign(method=BY_THE_PAST) if replayed else pd.DataFrame()
    first = nearest["method"] != nearest["method"].unique()[1]
    return pd.concat([nearest[~first], lines, nearest[first]])


def _promise(line: dict[str, Any]) -> dict[str, Any]:
    return {
        "origin": short(line["origin"]),
        "moments": line["moments"],
        "reliability": f"{line['reliability']:.2f}",
        "accepted": percent(line["survival"], 1),
        "distance": figure(line["distance"]),
        "made": line["made"],
        "kept": line["kept"],
    }


def _kept(replayed: list[dict[str, Any]]) -> dict[str, Any]:
    """How many promises were kept, with an interval."""
    made = sum(line["made"] for line in replayed)
    kept = sum(line["kept"] for line in replayed)
    if not made:
        return {"made": 0}
    counts = np.array([kept, made - kept])
    low, rest = (float(bound) for bound in clopper_pearson(counts, made, (1 + _CONFIDENCE) / 2))
    claimed = sum(line["reliability"] for line in replayed if line["made"])
    return {
        "made": made,
        "kept": kept,
        "claimed": f"{claimed:.1f}",
        "low": percent(low),
        "high": percent(1 - rest),
        "confidence": "95 %",
    }
