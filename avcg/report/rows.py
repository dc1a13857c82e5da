"""The table of single rows on a page: what each would have to change, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from avcg.errors import DataError
from avcg.explainers.base import Explainer
from avcg.explainers.counterfactuals import Counterfactuals
from avcg.explainers.records import MEANING, UNCHANGED, Option, Row
from avcg.report.images import Triple, triples
from avcg.report.page import short
from avcg.report.svg import dumbbell

SYMBOLS: Mapping[str, str] = {
    "ok": "✓",
    "not_robust": "≈",
    "not_found": "✗",
    "infeasible": "∅",
    "immovable": "⊘",
    "already_target": "=",
}
_MAX_ROWS, _MAX_PICTURES, _MAX_OPTIONS, _MAX_CHANGES = 200, 40, 5, 12


def spoken(status: str) -> str:
    """A status in words.

    >>> spoken("not_robust")
    'not robust'
    """
    return status.replace("_", " ")


def listed(answers: Counterfactuals, explainer: Explainer | None, numbers: frozenset[str]) -> dict[str, Any]:
    """The first rows with their answers; rows that have the decision already come last.

    Args:
        answers: Answers for tables or images.
        explainer: The fitted method, which knows the axis of channels of images; None: it is inferred from the shape.
        numbers: Names of the numeric columns.
    """
    images = answers.changed is None
    order = np.argsort(answers.statuses[:: answers.n] == "already_target", kind="stable")
    shown = order[: _MAX_PICTURES if images else _MAX_ROWS]
    first = answers.take(shown, min(answers.n, _MAX_OPTIONS))
    drawn: list[list[Triple]] = []
    if images and len(first):
        try:
            drawn = triples(first, explainer)
        except DataError:  # the axis of channels cannot be inferred, and the page says so
            drawn = []
    return {
        "index": _index_name(answers),
        "rows": [
            {"label": short(label), **_row(row, first, drawn[i] if drawn else [], numbers)}
            for i, (label, row) in enumerate(zip(_labels(answers, shown), first, strict=True))
        ],
        "more": len(answers) - len(shown),
        "unseen": max(0, answers.n - _MAX_OPTIONS),
        "sure": answers.certificate is not None,
        "images": images,
        "drawn": bool(drawn),
    }


def _labels(answers: Counterfactuals, rows: NDArray[np.intp]) -> list[Any]:
    """Index labels in the user's frame, or positions among all rows."""
    own = answers.factuals.index if isinstance(answers.factuals, pd.DataFrame) else pd.RangeIndex(len(answers))
    return own[rows].tolist()


def _index_name(answers: Counterfactuals) -> str:
    if not isinstance(answers.factuals, pd.DataFrame):
        return "row"
    names = [name for name in answers.factuals.index.names if name is not None]
    return short(tuple(names)) if names else "row"


def _row(row: Row, answers: Counterfactuals, pictures: list[Triple], numbers: frozenset[str]) -> dict[str, Any]:
    options = row.options[:1] if row.status in UNCHANGED else row.options
    return {
        "target": short(row.target),
        "options": [
            _option(option, row.probability_before, answers, pictures[i] if pictures else None, numbers)
            for i, option in enumerate(options)
        ],
    }


def _option(
    option: Option, before: float, answers: Counterfactuals, picture: Triple | None, numbers: frozenset[str]
) -> dict[str, Any]:
    changes = list(option.changes.items())
    after, sure = option.probability, answers.certificate
    return {
        "status": spoken(option.status),
        "kind": option.status,
        "symbol": SYMBOLS[option.status],
        "why": MEANING[option.status] if option.status != "ok" else "",
        "changes": [_change(name, *pair, name in numbers) for name, pair in changes[:_MAX_CHANGES]],
        "more": max(0, len(changes) - _MAX_CHANGES),
        "unchanged": option.status in UNCHANGED,
        "repeated": option.repeated,
        "picture": picture,
        "before": f"{before:.2f}",
        "after": f"{after:.2f}",
        "drawn": dumbbell(before, after, f"probability {before:.2f} before, {after:.2f} after"),
        "distance": f"{option.distance:.3g}",
        "agreement": None if sure is None else option.agreement(sure.n),
        "proof": None if sure is None else option.proof(sure.n_test, sure.confidence),
    }


def _change(name: str, before: Any, after: Any, number: bool) -> dict[str, str]:
    comparable = number and before is not None and after is not None
    way = ("↑" if after > before else "↓") if comparable else ""
    return {"name": short(name), "before": short(before), "after": short(after), "way": way}
