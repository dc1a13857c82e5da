"""Sections of a page about the training of a generator: its frontier, signs of collapse, and its students."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from avcg.explainers.avcg import AVCG
from avcg.explainers.base import Explainer
from avcg.method.diagnostics import collapse
from avcg.report.page import figure, percent, precise, signed
from avcg.report.svg import Point, Words, curve, frontier, share_bar

_NO_EXPLAINER = "This section needs the explainer that gave the answers."
_NO_GENERATOR = "Only AVCG trains a generator; these answers are by {}."


def _reason(explainer: Explainer | None) -> str:
    return _NO_EXPLAINER if explainer is None else _NO_GENERATOR.format(type(explainer).__name__)


def frontier_of(explainer: Explainer | None) -> dict[str, Any] | str:
    """The section on distance against survival, or why it is left out."""
    if not isinstance(explainer, AVCG):
        return _reason(explainer)
    calibration = explainer.calibration_
    table = calibration.frontier
    points = [
        Point(
            line["distance"],
            line["survival"],
            calibration.standard_errors * line["error"],
            _best(table, line["distance"], line["survival"]),
        )
        for line in table.to_dict("records")
    ]
    chosen = int(np.abs(table.index.to_numpy(np.float64) - calibration.margin).argmin())
    line = table.iloc[chosen]
    says = "; ".join(f"distance {figure(p.x)}: {100 * p.y:.1f} %" for p in points)
    words = Words("Share of models that agree, against distance", says, "mean distance")
    label = f"chosen: {100 * line['survival']:.1f} % at {figure(line['distance'])}"
    sentence = str(calibration)
    return {
        "chart": frontier(points, chosen, calibration.promise, label, words),
        "sentence": sentence[0].upper() + sentence[1:],
        "margins": len(points),
        "rows": calibration.n_rows,
        "models": calibration.n_hypotheses,
        "margin": signed(calibration.margin),
        "met": calibration.met,
        "promise": precise(calibration.promise),
        "best": sum(point.best for point in points),
    }


def _best(table: pd.DataFrame, distance: float, survival: float) -> bool:
    distances, survivals = table["distance"], table["survival"]
    no_worse = (distances <= distance) & (survivals >= survival)
    better = no_worse & ((distances < distance) | (survivals > survival))
    return not bool(better.any())


def collapse_of(explainer: Explainer | None) -> dict[str, Any] | str:
    """The section on collapse: curves by epoch and a verdict, or why it is left out."""
    if not isinstance(explainer, AVCG):
        return _reason(explainer)
    diagnostics = explainer.diagnostics_
    if not len(diagnostics):
        return "No diagnostics were recorded while the generator was trained."
    config = explainer.recipe_.diagnostics
    fallen, units = collapse(diagnostics, config), int(diagnostics["active_units"].iloc[-1])
    differ = f"answers differ {percent(diagnostics['personalisation'].iloc[-1])} as much as the rows they answer"
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
        curve(
            diagnostics["personalisation"].tolist(),
            _words("Personalisation", diagnostics["personalisation"]),
            config.collapsed,
        ),
        curve(diagnostics["kl"].tolist(), _words("KL divergence", diagnostics["kl"])),
        curve(diagnostics["active_units"].tolist(), _words("Latent units in use", diagnostics["active_units"])),
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
    """The section on students that imitate black boxes, or why it is left out."""
    if not isinstance(explainer, AVCG):
        return _reason(explainer)
    if explainer.distillation_ is None:
        return "The models have gradients, and need no students."
    lines = [
        {
            "asked": "held-out training rows" if line["rows"] == "training" else "answers of the generator",
            "rows": line["n_rows"],
            "agreement": percent(line["agreement"], 1),
            "bar": share_bar(line["agreement"], 0.0, 0.0, f"{100 * line['agreement']:.1f} % the same decision"),
            "difference": f"{line['difference']:.3f}",
        }
        for line in explainer.distillation_.report().to_dict("records")
    ]
    return {"lines": lines}
