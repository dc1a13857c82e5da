"""Sections of a page about the training of a generator: its frontier, signs of collapse, and its students."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from avcg.explainers.avcg import AVCG
from avcg.explainers.base import Explainer
from avcg.guarantees.conformal import SurvivalTable
from avcg.method.calibration import Calibration, Direction
from avcg.method.diagnostics import collapse
from avcg.report.page import figure, percent, short, signed
from avcg.report.svg import Point, Series, Words, curve, frontier, share_bar

_NO_EXPLAINER = "This section needs the explainer that gave the answers."
_NO_GENERATOR = "Only AVCG trains a generator; these answers are by {}."
_MAX_PANELS = 6  # target classes that are drawn
_ALIVE = 0.0005  # rise of survival that can be seen in a tenth of a percent


def _reason(explainer: Explainer | None) -> str:
    return _NO_EXPLAINER if explainer is None else _NO_GENERATOR.format(type(explainer).__name__)


def frontier_of(explainer: Explainer | None) -> dict[str, Any] | str:
    """The section on distance against survival: a chart for each target class, or why it is left out."""
    if not isinstance(explainer, AVCG):
        return _reason(explainer)
    calibration = explainer.calibration_
    usual = calibration.of_effort()
    panels = [
        _panel([(effort, directions[i]) for effort, directions in calibration.directions.items()], calibration)
        for i in range(min(len(usual), _MAX_PANELS))
    ]
    made = sum(direction.verdict.made for direction in usual)
    return {
        "panels": panels,
        "made": made,
        "directions": len(usual),
        "more": len(usual) - len(panels),
        "models": calibration.n_models,
        "efforts": list(calibration.directions),
    }


def _panel(efforts: list[tuple[str, Direction]], calibration: Calibration) -> dict[str, Any]:
    """The chart of one target class, with what is promised for each effort.

    Args:
        efforts: Names of efforts with the calibration of the class.
        calibration: The calibration of all classes.
    """
    target = short(efforts[0][1].target)
    series, lines, says = [], [], []
    for effort, direction in efforts:
        table, statement = direction.table, direction.statement(calibration.promise, calibration.n_models)
        kept = np.flatnonzero(table.answered)
        chosen = direction.verdict.position
        points = [Point(float(table.distance[k]), float(table.survival[k]), float(table.shares[k].min())) for k in kept]
        if points:
            series.append(Series(effort, points, int(np.abs(kept - chosen).argmin())))
            says.append(f"{effort}: " + "; ".join(f"distance {figure(p.x)}: {100 * p.y:.1f} %" for p in points))
        at = f"{percent(direction.survival, 1)} at a mean distance of {figure(table.distance[chosen])}"
        lines.append(
            {
                "effort": effort,
                "made": statement.made,
                "chosen": f"Margin {signed(direction.margin)}: {at}" if points else "No answer to any row",
                "knob": _knob(table),
                "sentence": str(statement),
            }
        )
    words = Words(f"Answers that aim at {target}", ". ".join(says), "mean distance")
    chart = frontier(series, calibration.promise.survival, words) if series else None
    return {"title": words.title, "chart": chart, "lines": lines}


def _knob(table: SurvivalTable) -> str:
    """What the margin does to survival, in words."""
    survival = table.survival[table.answered > 0]
    if len(survival) < 2:
        return ""
    low, high = percent(survival[0], 1), percent(survival.max(), 1)
    if survival.max() - survival[0] >= _ALIVE:
        return f"A larger margin raises survival from {low} to {high}."
    return f"Survival is {low} at the smallest margin, and a larger one does not raise it."


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
