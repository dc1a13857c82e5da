"""Figures of results, drawn with matplotlib (the extra ``plots``) without touching its global state."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from avcg.bench.tables import TITLES, at_epsilon, summarise
from avcg.errors import DataError, MissingExtraError, did_you_mean
from avcg.metrics.table import heading_of
from avcg.report.plots import check_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours of Okabe and Ito, which colour-blind people can tell apart; markers differ too, for print in grey.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = "osD^vPX*"
_GREY = "#777777"
_MAX_PANELS = 3  # in a row
# Ratio of the largest to the smallest value above which an axis is logarithmic.
_LOG_RATIO = 30.0
# Directions in which a label may lie from its point, in order of preference.
_DIRECTIONS = [
    np.array(direction)
    for direction in (
        (1, 0),
        (-1, 0),
        (0, 1),
        (0, -1),
        (1, 1),
        (-1, 1),
        (1, -1),
        (-1, -1),
        (0.5, 1),
        (-0.5, 1),
        (0.5, -1),
    )
]
# Cost of each point of a leader line that crosses another mark, in square pixels of hidden label.
_CROSSING_COST = 30
_BETTER = {"higher": " (higher is better)", "lower": " (lower is better)", "none": ""}


def plot_sweep(
    rows: pd.DataFrame,
    metric_names: Sequence[str],
    path: str | os.PathLike[str],
    method: str = "AVCG-R",
    reading: str = "raw",
) -> Path:
    """Plot metrics against ε: one panel for each metric, one line for each dataset.

    Args:
        rows: One line per explained instance.
        metric_names: Names of metrics, which are columns of the rows. A metric by ε, such as ``"RVR"``, is read at each
            line's own ε.
        path: Path of the file to write, ``.png``, ``.svg`` or ``.pdf``.
        method: Name of a method that depends on ε.
        reading: Answers to measure: ``"raw"``, as the method gave them, or ``"decoded"`` to valid rows.

    Returns:
        The path.

    Raises:
        DataError: If there are no results of that method and reading at any epsilon.
        MissingExtraError: If matplotlib is not installed.
    """
    target = check_picture(path)
    chosen = rows[(rows["method"] == method) & (rows["reading"] == reading) & rows["epsilon"].notna()]
    if chosen.empty:
        suggestion = did_you_mean(method, rows.loc[rows["epsilon"].notna(), "method"].unique())
        raise DataError(f"There are no {reading} results of {method!r} at any epsilon. {suggestion}")
    summary = summarise(at_epsilon(chosen), metric_names)
    levels = sorted(summary["epsilon"].unique())
    wide = min(len(metric_names), _MAX_PANELS)
    high = -(-len(metric_names) // wide)
    figure = _blank(max(3.6 * wide, 5.5), 2.6 * high + 0.9)
    panels = figure.subplots(high, wide, squeeze=False).ravel()
    for panel, metric in zip(panels, metric_names, strict=False):
        _draw_sweep(panel, summary[summary["metric"] == metric], levels, _ordered_datasets(chosen))
        panel.set_ylabel(_axis(metric))
    for panel in panels[len(metric_names) :]:
        panel.remove()
    _explain_bands(figure, panels[0])
    figure.suptitle(f"{method} over the tolerance of its Rashomon set", fontsize=11)
    return _save(figure, target)


def plot_tradeoff(
    rows: pd.DataFrame, path: str | os.PathLike[str], epsilon: float | None = None, reading: str = "raw"
) -> Path:
    """Plot survival against distance: the share of retrained models that accept answers (CMV), and L2.

    Args:
        rows: One line per explained instance, with the columns L2 and CMV.
        path: Path of the file to write, ``.png``, ``.svg`` or ``.pdf``.
        epsilon: ε of the methods that depend on it; None: every ε is drawn, joined by a line.
        reading: Answers to measure: ``"raw"``, as the method gave them, or ``"decoded"`` to valid rows.

    Returns:
        The path.

    Raises:
        DataError: If no method has both L2 and CMV.
        MissingExtraError: If matplotlib is not installed.
    """
    target = check_picture(path)
    chosen = at_epsilon(rows[rows["reading"] == reading], epsilon)
    summary = summarise(chosen, ["L2", "CMV"])
    points = summary.pivot(index=["dataset", "method", "epsilon"], columns="metric", values="mean")
    points = points.dropna(subset=["L2", "CMV"]).reset_index()
    if points.empty:
        raise DataError(f"There are no {reading} results with both L2 and CMV to draw.")
    datasets = [dataset for dataset in _ordered_datasets(chosen) if (points["dataset"] == dataset).any()]
    methods = list(dict.fromkeys(chosen["method"]))
    wide = min(len(datasets), _MAX_PANELS)
    high = -(-len(datasets) // wide)
    figure = _blank(4.4 * wide, 3.5 * high)
    panels = figure.subplots(high, wide, squeeze=False).ravel()
    for panel in panels[len(datasets) :]:
        panel.remove()
    texts = []
    for panel, dataset in zip(panels, datasets, strict=False):
        block = points[points["dataset"] == dataset]
        texts.append(_draw_tradeoff(panel, block, methods, named=epsilon is None))
        panel.set_title(TITLES.get(dataset, dataset), loc="left", fontsize=10)
        panel.set_xlabel("L2 from the person (mean)")
        panel.set_ylabel(_axis("CMV"))
    figure.draw_without_rendering()  # labels are placed once the layout of the panels is final
    figure.set_layout_engine("none")
    for panel, labels in zip(panels, texts, strict=False):
        _place_labels(panel, labels)
    return _save(figure, target)


def plot_image_grid(
    factuals: np.ndarray[Any, Any],
    answers: np.ndarray[Any, Any],
    titles: Sequence[str],
    path: str | os.PathLike[str],
    heading: str,
) -> Path:
    """Plot images, their answers and the differences: three rows, one column for each image.

    Args:
        factuals: (N, H, W) or (N, H, W, 3) images of unsigned bytes.
        answers: Answers of the same shape.
        titles: Title of each column, such as ``"4 → 9"``.
        path: Path of the file to write, ``.png``, ``.svg`` or ``.pdf``.
        heading: Title of the figure.

    Returns:
        The path.

    Raises:
        DataError: If the shapes, dtypes or lengths do not fit.
        MissingExtraError: If matplotlib is not installed.
    """
    target = check_picture(path)
    _check_images(factuals, answers, titles)
    change = answers.astype(float) - factuals.astype(float)
    if change.ndim == 4:
        change = change.mean(axis=-1)
    limit = float(np.abs(change).max()) or 1.0
    width = max(1.05, 0.07 * max(len(title) for title in titles))
    height = width * factuals.shape[1] / factuals.shape[2]
    figure = _blank(max(width * len(titles) + 2.0, 0.1 * len(heading)), 3.1 * height + 1.0)
    panels = figure.subplots(3, len(titles), squeeze=False)
    drawn: Any = None
    for column, title in enumerate(titles):
        for panel, image in zip(panels[:2, column], (factuals[column], answers[column]), strict=True):
            panel.imshow(image, cmap="gray", vmin=0, vmax=255)
        drawn = panels[2, column].imshow(change[column], cmap="RdBu_r", vmin=-limit, vmax=limit)
        panels[0, column].set_title(title, fontsize=9)
    for panel in panels.ravel():
        panel.set_xticks([])
        panel.set_yticks([])
    for panel, name in zip(panels[:, 0], ("factual", "answer", "difference"), strict=True):
        panel.set_ylabel(name, rotation=0, ha="right", va="center", labelpad=6)
    bar = figure.colorbar(drawn, ax=panels.ravel().tolist(), shrink=0.3, anchor=(0.0, 0.0), pad=0.02)
    bar.set_label("darker – brighter", fontsize=8)  # noqa: RUF001
    bar.ax.tick_params(labelsize=7)
    figure.suptitle(heading, fontsize=11)
    return _save(figure, target)


def _blank(width: float, height: float) -> Figure:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("matplotlib", "plots", "Drawing results") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Figure, target: Path) -> Path:
    figure.savefig(target, dpi=150, metadata={"Date": None} if target.suffix == ".svg" else None)
    return target


def _ordered_datasets(rows: pd.DataFrame) -> list[str]:
    """The datasets in the paper's order, so that the colour of each does not depend on the order of the rows."""
    present = {str(dataset) for dataset in rows["dataset"]}
    return [*(name for name in TITLES if name in present), *sorted(present - set(TITLES))]


def _axis(metric: str) -> str:
    heading = heading_of(metric)
    return f"{heading.text}{_BETTER[heading.direction]}"


def _draw_sweep(panel: Axes, summary: pd.DataFrame, levels: list[float], datasets: list[str]) -> None:
    means = summary["mean"].dropna()
    if _log_if_wide(panel, "y", means):
        # An error bar that would reach below zero leaves the panel at the bottom.
        panel.set_ylim(means.min() / 3, 1.5 * (summary["mean"] + summary["spread_instances"]).max())
    for index, dataset in enumerate(datasets):
        block = summary[summary["dataset"] == dataset].dropna(subset=["mean"]).sort_values("epsilon")
        # Datasets are drawn side by side, since several may have the same values.
        offset = 0.07 * (index - (len(datasets) - 1) / 2)
        x = offset + np.array([levels.index(level) for level in block["epsilon"]], dtype=float)
        mean, seeds = block["mean"].to_numpy(), block["spread_seeds"].to_numpy()
        colour, marker = _COLOURS[index % len(_COLOURS)], _MARKERS[index % len(_MARKERS)]
        panel.fill_between(x, mean - seeds, mean + seeds, color=colour, alpha=0.25, linewidth=0)
        panel.errorbar(
            x, mean, block["spread_instances"], fmt="none", ecolor=colour, elinewidth=0.8, capsize=2, alpha=0.6
        )
        panel.plot(x, mean, color=colour, marker=marker, markersize=4, label=TITLES.get(dataset, dataset))
    panel.set_xticks(range(len(levels)), [f"{level:g}" for level in levels])
    panel.set_xlim(-0.4, len(levels) - 0.6)
    panel.set_xlabel("ε (evenly spaced)")
    panel.spines[["top", "right"]].set_visible(False)


def _explain_bands(figure: Figure, panel: Axes) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles, names = panel.get_legend_handles_labels()
    handles += [Patch(color=_GREY, alpha=0.3), Line2D([], [], color=_GREY, marker="|", linestyle="none", markersize=10)]
    names += ["± standard deviation over seeds", "± standard deviation over instances"]
    figure.legend(
        handles, names, loc="outside lower center", ncols=int(figure.get_figwidth() // 2.6), fontsize=8, frameon=False
    )


def _log_if_wide(panel: Axes, axis: str, values: pd.Series[float]) -> bool:
    wide = len(values) > 0 and values.min() > 0 and values.max() / values.min() > _LOG_RATIO
    if wide:
        panel.set(**{f"{axis}scale": "log"})
    return bool(wide)


def _draw_tradeoff(
    panel: Axes, points: pd.DataFrame, methods: list[str], named: bool
) -> list[tuple[float, float, str, str]]:
    """Draw one point for each method and ε, and return the labels to place: x, y, text and colour."""
    labels = []
    for index, method in enumerate(methods):
        own = points[points["method"] == method].sort_values("epsilon")
        colour, marker = _COLOURS[index % len(_COLOURS)], _MARKERS[index % len(_MARKERS)]
        panel.plot(
            own["L2"], own["CMV"], color=colour, marker=marker, markersize=6 if len(own) == 1 else 4, linewidth=0.8
        )
        for i, (x, y, level) in enumerate(zip(own["L2"], own["CMV"], own["epsilon"], strict=True)):
            if i in (0, len(own) - 1):  # both ends of a sweep
                labels.append((x, y, f"{method} ε={level:g}" if named and not np.isnan(level) else method, colour))
    _log_if_wide(panel, "x", points["L2"])
    panel.margins(0.18)
    panel.spines[["top", "right"]].set_visible(False)
    return labels


def _place_labels(panel: Axes, labels: list[tuple[float, float, str, str]]) -> None:
    """Write each label at the nearest free position around its point."""
    canvas: Any = panel.figure.canvas
    point = panel.figure.dpi / 72
    frame = np.array(panel.get_window_extent(canvas.get_renderer()).extents)
    dots = np.concatenate([line.get_transform().transform(line.get_xydata()) for line in panel.lines])
    around = np.concatenate([dots - 5 * point, dots + 5 * point], axis=1)
    written: list[np.ndarray[Any, Any]] = []
    leaders = np.empty((0, 2))  # points on the leader lines drawn so far
    for x, y, name, colour in labels:
        probe = panel.text(0, 0, name, fontsize=8)
        size = np.array(probe.get_window_extent(canvas.get_renderer()).size)
        probe.remove()
        centre = panel.transData.transform((x, y))
        others = [*around[~np.isclose(dots, centre).all(axis=1)], *written]
        spots = [
            centre + (step * point + size / 2) * way for step in (7, 14, 22, 31, 41, 52, 64) for way in _DIRECTIONS
        ]
        costs = []
        for spot in spots:
            box = np.concatenate([spot - size / 2, spot + size / 2])
            hidden = sum(_overlap(box, other) for other in (*around, *written)) + size.prod() - _overlap(box, frame)
            crossed = sum(_inside(_points_between(centre, spot), other) for other in others) + _inside(leaders, box)
            costs.append(round(hidden + _CROSSING_COST * crossed))
        best = int(np.argmin(costs))  # the nearest of equal ones
        written.append(np.concatenate([spots[best] - size / 2, spots[best] + size / 2]))
        leader = None
        if best >= 4:  # a label directly beside, above or below its point needs no leader line
            leader = {"arrowstyle": "-", "color": colour, "lw": 0.6, "shrinkA": 0}
            leaders = np.concatenate([leaders, _points_between(centre, spots[best])])
        offset = (spots[best] - centre) / point
        panel.annotate(
            name, (x, y), offset, textcoords="offset points", fontsize=8, ha="center", va="center", arrowprops=leader
        )


def _points_between(start: np.ndarray[Any, Any], end: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return start + np.linspace(0.0, 1.0, 12)[:, None] * (end - start)


def _inside(points: np.ndarray[Any, Any], box: np.ndarray[Any, Any]) -> int:
    return int(((points > box[:2]) & (points < box[2:])).all(axis=1).sum())


def _overlap(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> float:
    sides = np.minimum(first[2:], second[2:]) - np.maximum(first[:2], second[:2])
    return float(np.clip(sides, 0, None).prod())


def _check_images(factuals: np.ndarray[Any, Any], answers: np.ndarray[Any, Any], titles: Sequence[str]) -> None:
    for name, images in (("factuals", factuals), ("answers", answers)):
        if images.dtype != np.uint8 or images.ndim not in (3, 4) or images.shape[3:] not in ((), (3,)):
            raise DataError(
                f"The {name} must be unsigned bytes of shape (N, H, W) or (N, H, W, 3). Got {images.dtype} of shape "
                f"{images.shape} instead."
            )
    if factuals.shape != answers.shape or len(factuals) != len(titles) or not len(titles):
        raise DataError(
            f"There must be at least one factual, answers of the same shape, and one title each. Got shapes "
            f"{factuals.shape} and {answers.shape}, and {len(titles)} titles."
        )
