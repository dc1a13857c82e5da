"""What a trained generator says of itself: what survival costs, whether it listens, and whom it learnt from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from avcg.explainers.avcg import AVCG
from avcg.explainers.base import Explainer
from avcg.method.diagnostics import collapse
from avcg.report.page import figure, percent, precise, signed
from avcg.report.svg import Point, Words, curve, frontier, share_bar

_NO_EXPLAINER = "It needs the explainer that gave the answers."
_NO_GENERATOR = "Only AVCG trains a generator; these answers are by {}."


def _excuse(explainer: Explainer | None) -> str:
    return _NO_EXPLAINER if explainer is None else _NO_GENERATOR.format(type(explainer).__name__)


def frontier_of(explainer: Explainer | None) -> dict[str, Any] | str:
    """What agreement costs in distance, with what was promised and chosen; or why that is not known."""
    if not isinstance(explainer, AVCG):
        return _excuse(explainer)
    found = explainer.calibration_
    table = found.frontier
    points = [
        Point(
            one["distance"],
            one["survival"],
            found.standard_errors * one["error"],
            _best(table, one["distance"], one["survival"]),
        )
        for one in table.to_dict("records")
    ]
    place = int(np.abs(table.index.to_numpy(np.float64) - found.margin).argmin())
    at = table.iloc[place]
    says = "; ".join(f"distance {figure(p.x)}: {100 * p.y:.1f} %" for p in points)
    words = Words("Share of models that agree, against distance", says, "distance: what the change costs, on average")
    said = str(found)
    return {
        "chart": frontier(
            points, place, found.promise, f"chosen: {100 * at['survival']:.1f} % at {figure(at['distance'])}", words
        ),
        "sentence": said[0].upper() + said[1:],
        "margins": len(points),
        "rows": found.n_rows,
        "models": found.n_hypotheses,
        "margin": signed(found.margin),
        "met": found.met,
        "promise": precise(found.promise),
        "best": sum(point.best for point in points),
    }


def _best(table: pd.DataFrame, distance: float, survival: float) -> bool:
    near, sure = table["distance"], table["survival"]
    better = (near <= distance) & (sure >= survival) & ((near < distance) | (sure > survival))
    return not bool(better.any())


def collapse_of(explainer: Explainer | None) -> dict[str, Any] | str:
    """Curves by epoch of what is lost when a generator stops listening, and a verdict; or why there are none."""
    if not isinstance(explainer, AVCG):
        return _excuse(explainer)
    seen = explainer.diagnostics_
    if not len(seen):
        return "Nothing was looked at while the generator was trained."
    config = explainer.recipe_.diagnostics
    fallen, units = collapse(seen, config), int(seen["active_units"].iloc[-1])
    differ = f"answers differ {percent(seen['personalisation'].iloc[-1])} as much as the rows they answer"
    if fallen is not None:
        verdict = f"The answers have collapsed: {fallen}"
    elif not units:
        verdict = (
            f"The answers have not collapsed, but the latent has: {differ}, yet no latent unit is in use. Several"
            " answers to one row differ for other reasons."
        )
    else:
        verdict = f"Nothing has collapsed: {differ}, and {units} latent unit{'s are' if units > 1 else ' is'} in use."
    charts = [
        curve(seen["personalisation"].tolist(), _words("Personalisation", seen["personalisation"]), config.collapsed),
        curve(seen["kl"].tolist(), _words("KL divergence", seen["kl"])),
        curve(seen["active_units"].tolist(), _words("Latent units in use", seen["active_units"])),
    ]
    return {
        "verdict": verdict,
        "fallen": fallen is not None or not units,
        "charts": charts,
        "limit": percent(config.collapsed),
    }


def _words(title: str, values: pd.Series[Any]) -> Words:
    return Words(title, f"{values.iloc[0]:.3g} after the first epoch, {values.iloc[-1]:.3g} after the last")


def students_of(explainer: Explainer | None) -> dict[str, Any] | str:
    """How well students stood in for models that can only be asked; or why there are none."""
    if not isinstance(explainer, AVCG):
        return _excuse(explainer)
    if explainer.distillation_ is None:
        return "The models have gradients of their own, and need no students."
    lines = [
        {
            "asked": "training rows set aside" if one["rows"] == "training" else "answers of the generator",
            "rows": one["n_rows"],
            "agreement": percent(one["agreement"], 1),
            "bar": share_bar(one["agreement"], 0.0, 0.0, f"{100 * one['agreement']:.1f} % the same decision"),
            "difference": f"{one['difference']:.3f}",
        }
        for one in explainer.distillation_.report().to_dict("records")
    ]
    return {"lines": lines}
