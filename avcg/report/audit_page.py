"""A self-contained HTML page of an audit, without scripts, for light and dark screens and for print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from avcg.auditing.monitor import shown_evidence
from avcg.explainers.records import Option
from avcg.report.page import fill, percent, precise, short
from avcg.report.svg import Part, share_bar, stacked_bar

if TYPE_CHECKING:
    from avcg.auditing.audit import Audit
    from avcg.auditing.monitor import Monitor

_MAX_LOST = 200


def page(audit: Audit, by: str | None = None) -> str:
    """Render an audit as an HTML page, which loads nothing else.

    Args:
        audit: The audit.
        by: Column of the rows to group by; None: there are no groups.
    """
    total = audit.summary().to_dict()
    lost = np.flatnonzero(audit.frame["verdict"] == "lost")
    parts = (
        Part("holds", total["holds"], f"{total['holds']} hold"),
        Part("lost", total["lost"], f"{total['lost']} lost"),
    )
    context = {
        "total": total,
        "share": percent(total["share"]),
        "interval": f"{100 * total['low']:.0f} to {100 * total['high']:.0f}",
        "confidence": precise(audit.confidence),
        "survival": precise(audit.answers.survival),
        "threshold": audit.threshold,
        "models": audit.models,
        "monitor": audit.monitor,
        "judged": [] if audit.monitor is None else _judged(audit.monitor),
        "named": [name for name in audit.models if not name.isdigit()],
        "asked": audit.replacements is not None,
        "bar": stacked_bar(parts, f"{total['holds']} hold, {total['lost']} are lost"),
        "tables": _tables(audit, by),
        "lost": _lost(audit, lost[:_MAX_LOST]),
        "more": max(0, len(lost) - _MAX_LOST),
        "untold": len(audit.frame) - total["told"],
    }
    return fill("audit.html.j2", context)


def _judged(monitor: Monitor) -> list[dict[str, Any]]:
    """The lines of the models that are compared with the calibration models."""
    return [
        {
            "name": name,
            "alarm": line["alarm"],
            "accepts": percent(line["survival"]),
            "p": f"{line['p_value']:.2g}",
            "evidence": shown_evidence(line["evidence"]),
        }
        for name, line in monitor.frame.to_dict("index").items()
    ]


def _tables(audit: Audit, by: str | None) -> list[dict[str, Any]]:
    """Tables of counts, with bars."""
    tables = [] if by is None else [(f"By {by}", by, audit.by(by))]
    if audit.answers.changed is not None:
        tables.append(("By column to change", "column", audit.by_change()))
        tables.append(("By number of columns to change", "columns to change", audit.by_count()))
    return [
        {"title": title, "what": what, "lines": [_line(label, line) for label, line in table.iterrows()]}
        for title, what, table in tables
    ]


def _line(label: Any, line: pd.Series[Any]) -> dict[str, Any]:
    share, low, high = (percent(line[name]) for name in ("share", "low", "high"))
    says = f"{share}, from {low} to {high}"
    return {
        "label": short(label),
        "told": int(line["told"]),
        "holds": int(line["holds"]),
        "lost": int(line["lost"]),
        "share": share,
        "low": low,
        "high": high,
        "bar": share_bar(line["share"], line["low"], line["high"], says, rest="lost"),
    }


def _lost(audit: Audit, positions: Any) -> list[dict[str, Any]]:
    """Old values, advised values and replacements of lost answers.

    Args:
        audit: The audit.
        positions: Positions of the lost answers to show.
    """
    delivered = [option for row in audit.answers for option in row.options]
    replacements = [] if audit.replacements is None else [row.options[0] for row in audit.replacements]
    lost = []
    for i, position in enumerate(positions):
        line = audit.frame.iloc[position]
        new = replacements[i] if replacements and line["replacement"] else None
        names = dict.fromkeys([*delivered[position].changes, *(new.changes if new else ())])
        lost.append(
            {
                "label": short(audit.frame.index[position]),
                "target": line["target"],
                "then": f"{line['probability_then']:.2f}",
                "now": f"{line['probability_now']:.2f}",
                "agreeing": f"{line['agreeing']} of {line['n_models']}" if line["n_models"] > 1 else None,
                "cells": [_cell(name, delivered[position].changes, new) for name in names],
                "replaced": new is not None,
                "kept": bool(line["keeps_advice"]),
                "extra": f"{line['extra_distance']:+.2f}" if new else "",
            }
        )
    return lost


def _cell(name: str, delivered: Mapping[str, tuple[Any, Any]], new: Option | None) -> dict[str, Any]:
    before = delivered[name][0] if name in delivered or new is None else new.changes[name][0]
    then = delivered[name][1] if name in delivered else before
    now = None if new is None else new.changes[name][1] if name in new.changes else before
    return {
        "name": name,
        "before": short(before),
        "told": short(then),
        "moved": name in delivered,
        "now": short(now),
        "same": now == then,
        "new": now not in (then, before),
    }
