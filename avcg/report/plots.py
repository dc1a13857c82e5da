"""Plots of answers with matplotlib (the extra ``plots``), without touching its global state."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from avcg.errors import DataError, MissingExtraError, SettingError, check_int, enumerate_some
from avcg.explainers.counterfactuals import Counterfactuals
from avcg.explainers.records import Option, Row
from avcg.space.validation import is_missing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Blue and orange of Okabe and Ito, which differ for colour-blind people and in grey.
_BEFORE, _AFTER, _LINE = "#0072B2", "#D55E00", "#999999"
_MAX_CHANGES = 8
_SUFFIXES = (".png", ".svg", ".pdf")


def plot_changes(answers: Counterfactuals, path: str | os.PathLike[str], rows: int = 3) -> Path:
    """Plot the changes of the first rows: one panel for each row, one line for each change.

    Numbers are placed between the lowest and highest value of all rows and answers; categories are written out.

    Args:
        answers: Answers for tables.
        path: Path of the file to write, ``.png``, ``.svg`` or ``.pdf``.
        rows: Number of rows to draw, 3 by default.

    Returns:
        The path.

    Raises:
        DataError: If the answers are for images.
        MissingExtraError: If matplotlib is not installed.
    """
    target = check_picture(path)
    if answers.changed is None:
        raise DataError("Images have no columns to draw. Look at .frame beside the factuals.")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("matplotlib", "plots", "Drawing answers") from None
    shown = [row for row, _ in zip(answers, range(check_int(rows, "'rows' of plot_changes", 1)), strict=False)]
    heights = [1.2 + min(len(row.changes), _MAX_CHANGES) for row in shown]
    figure = Figure(figsize=(9.0, 0.42 * sum(heights) + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(shown), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    for panel, row in zip(panels, shown, strict=True):
        _draw(panel, row, answers)
    for name, colour in (("now", _BEFORE), ("to become", _AFTER)):
        panels[0].plot([], [], "o", color=colour, label=name)
    figure.legend(loc="outside upper right", ncols=2, fontsize=8, frameon=False)
    figure.savefig(target, dpi=150, metadata={"Date": None} if target.suffix == ".svg" else None)
    return target


def check_picture(path: str | os.PathLike[str]) -> Path:
    """Check that a plot can be written to a path, before slow work is done for it.

    Raises:
        SettingError: If the folder does not exist, or the name has another ending.
    """
    target = Path(path)
    if target.suffix not in _SUFFIXES:
        raise SettingError(f"The name of a plot must end in {enumerate_some(_SUFFIXES)}. Got {str(path)!r} instead.")
    if not target.parent.is_dir():
        raise SettingError(f"There is no folder {str(target.parent)!r} to write a plot to. Create it first.")
    return target


def _draw(panel: Axes, row: Row, answers: Counterfactuals) -> None:
    option = row.options[0]
    panel.set_title(f"{row.index}  →  {row.target}     {_sure(option, answers)}", loc="left", fontsize=10)
    changes = list(option.changes.items())
    lines = changes[:_MAX_CHANGES]
    for y, (name, (before, after)) in enumerate(lines):
        ends = _ends(answers, name, before, after)
        if ends is None:
            panel.text(0.5, y, f"{before}  →  {after}", ha="center", va="center", fontsize=9, color=_AFTER)
            continue
        panel.annotate("", (ends[1], y), (ends[0], y), arrowprops={"arrowstyle": "-|>", "color": _LINE})
        for at, value, colour, side in ((ends[0], before, _BEFORE, -1), (ends[1], after, _AFTER, 1)):
            outward = side if ends[1] >= ends[0] else -side
            panel.plot([at], [y], "o", color=colour, markersize=6)
            panel.text(
                at + 0.02 * outward, y, _short(value), ha="left" if outward > 0 else "right", va="center", fontsize=8
            )
    panel.set_yticks(range(len(lines)), [name for name, _ in lines], fontsize=9)
    panel.set_ylim(len(lines) - 0.4, -0.6)
    panel.set_xlim(-0.2, 1.2)
    panel.set_xticks([0.0, 1.0], ["lowest", "highest"], fontsize=8)
    if len(changes) > len(lines):
        panel.set_xlabel(f"and {len(changes) - len(lines)} more changes", fontsize=8)
    panel.spines[["top", "right", "left"]].set_visible(False)


def _sure(option: Option, answers: Counterfactuals) -> str:
    votes = None if answers.certificate is None else option.agreement(answers.certificate.n)
    return option.status if votes is None else f"{option.status}: {votes}"


def _ends(answers: Counterfactuals, name: str, before: Any, after: Any) -> tuple[float, float] | None:
    """Positions of two values between the lowest (0) and highest (1) of the column; None if they are not numbers."""
    numeric = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in (before, after))
    if not numeric:
        return None
    values = [
        float(value)
        for frame in (answers.factuals, answers.answers)
        for value in answers.entry(frame, name)
        if not is_missing(value)
    ]
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return (before - low) / span, (after - low) / span


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
