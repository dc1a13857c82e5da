"""Charts as inline SVG, drawn by hand: no script, no network, no plotting library.

Colours are classes of the page's style sheet, which has versions for dark screens and print. No information is given by
colour alone: marks also differ in shape or position, or carry a number. Every text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from avcg.report.page import figure

_WIDTH, _HEIGHT = 640.0, 260.0  # of a chart, in units of its viewBox
_BAR_WIDTH = 240.0
_LABEL_PADDING = 26.0  # width that a part of a bar needs beside its label


@dataclass(frozen=True)
class Part:
    """A part of a stacked bar.

    Attributes:
        kind: Class in the style sheet.
        count: Size of the part.
        label: Text on the part.
    """

    kind: str
    count: int
    label: str


@dataclass(frozen=True)
class Quartiles:
    """The three quartiles of some values."""

    low: float
    middle: float
    high: float


@dataclass(frozen=True)
class Point:
    """A point of a frontier.

    Attributes:
        x: Horizontal coordinate.
        y: Vertical coordinate.
        lowest: Vertical coordinate that a thin line reaches down to.
    """

    x: float
    y: float
    lowest: float


@dataclass(frozen=True)
class Series:
    """A line of points of a frontier.

    Attributes:
        kind: Effort of the answers, which is the class in the style sheet and decides the shape of the points.
        points: Points in the order in which they are joined.
        chosen: Position of the point in a ring.
    """

    kind: str
    points: Sequence[Point]
    chosen: int


@dataclass(frozen=True)
class Words:
    """Texts of a chart.

    Attributes:
        title: Title of the chart.
        says: The data in words, for screen readers.
        across: Label of the horizontal axis.
    """

    title: str
    says: str
    across: str = ""


@dataclass(frozen=True)
class _Axis:
    """A linear map from values to coordinates."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        span = self.high - self.low
        return self.start + (self.stop - self.start) * ((value - self.low) / span if span > 0 else 0.5)


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers that span a range, at most about ``most`` steps apart.

    >>> ticks(0.03, 0.97)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    span = high - low if high > low else abs(low) or 1.0
    rough = span / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(size * power for size in (1.0, 2.0, 2.5, 5.0, 10.0) if size * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    last = max(last, first + 1)
    return [round(i * step, 12) + 0.0 for i in range(first, last + 1)]


def share_bar(share: float, low: float, high: float, says: str, rest: str = "track") -> Markup:
    """A share as a bar, with its interval as a line.

    Args:
        share: Share from 0 to 1; NaN draws nothing.
        low: Lower end of the interval.
        high: Upper end of the interval.
        says: The data in words, for screen readers.
        rest: Class in the style sheet of the rest of the bar.
    """
    filled = _rect(0, 2, 0.0 if share != share else _BAR_WIDTH * share, 12, "holds")
    whisker = _line(_BAR_WIDTH * low, 8, _BAR_WIDTH * high, 8, "whisker")
    return _svg(_BAR_WIDTH, 16, "bar", says, _rect(0, 2, _BAR_WIDTH, 12, rest), filled, whisker)


def stacked_bar(parts: Sequence[Part], says: str) -> Markup:
    """Parts of a total side by side, with labels where there is room."""
    total, width, height = sum(part.count for part in parts), 1000.0, 44.0
    drawn, at = [], 0.0
    for part in parts:
        if part.count:
            size = width * part.count / total
            drawn.append(_rect(at, 0, max(size - 2, 1), height, part.kind))
            if size > _LABEL_PADDING + 9 * len(part.label):
                drawn.append(_text(at + size / 2 - 1, height / 2 + 6, part.label, f"on-{part.kind}", "middle"))
            at += size
    return _svg(width, height, "wide", says, *drawn)


def dumbbell(before: float, after: float, says: str) -> Markup:
    """Two values between 0 and 1 on a line: a hollow circle, and a full one where it ends."""
    axis = _Axis(0.0, 1.0, 7.0, 133.0)
    start, stop = axis(before), axis(after)
    drawn = [_line(axis(0), 9, axis(1), 9, "rail"), *(_line(axis(x), 5, axis(x), 13, "rail") for x in (0, 0.5, 1))]
    if abs(stop - start) > 1:
        drawn.append(_line(start, 9, stop, 9, "path"))
    return _svg(140, 18, "rail", says, *drawn, _circle(start, 9, 4, "hollow"), _circle(stop, 9, 5, "full"))


def quartile_bar(quartiles: Quartiles, low: float, high: float, says: str) -> Markup:
    """The middle half as a box and the median as a line, on a scale from ``low`` to ``high``."""
    axis = _Axis(low, high, 4.0, 156.0)
    box = _rect(axis(quartiles.low), 4, max(axis(quartiles.high) - axis(quartiles.low), 1.5), 10, "box")
    median = _line(axis(quartiles.middle), 1, axis(quartiles.middle), 17, "median")
    return _svg(160, 18, "box", says, _line(4, 9, 156, 9, "rail"), box, median)


def shift(before: Quartiles, after: Quartiles, low: float, high: float, says: str) -> Markup:
    """The middle half before (above, hollow) and after (below, full), with a line from median to median."""
    axis, drawn = _Axis(low, high, 4.0, 216.0), [_line(4, 17, 216, 17, "rail")]
    for quartiles, y, kind in ((before, 3, "hollow"), (after, 21, "full")):
        drawn.append(_rect(axis(quartiles.low), y, max(axis(quartiles.high) - axis(quartiles.low), 2), 9, kind))
        drawn.append(_line(axis(quartiles.middle), y - 2, axis(quartiles.middle), y + 11, f"median-{kind}"))
    drawn.append(_line(axis(before.middle), 14, axis(after.middle), 19, "path"))
    return _svg(220, 34, "shift", says, *drawn)


def columns(counts: Sequence[int], labels: Sequence[str], words: Words) -> Markup:
    """A column chart, with counts on top of the columns and labels below."""
    return _columns([(counts, "holds", 1)], labels, words, (), 420.0)


def mirrored(before: Sequence[int], after: Sequence[int], labels: Sequence[str], words: Words) -> Markup:
    """A mirrored column chart: counts after rise from a line, and counts before hang from it, hollow."""
    return _columns([(after, "holds", 1), (before, "hanging", -1)], labels, words, ("after", "before"), _WIDTH)


def _columns(
    series: Sequence[tuple[Sequence[int], str, int]],
    labels: Sequence[str],
    words: Words,
    sides: Sequence[str],
    width: float,
) -> Markup:
    left, tall = (64.0, 120.0) if sides else (8.0, 130.0)
    floor = tall + 48
    bottom = floor + 26 + (tall + 22 if sides else 0)
    most = max([1, *(count for counts, _, _ in series for count in counts)])
    slot = (width - left - 8) / len(labels)
    drawn = [_text(left, 14, words.title, "head", "start")]
    for counts, kind, way in series:
        base = floor if way > 0 else floor + 24
        for i, count in enumerate(counts):
            size, x = tall * count / most, left + slot * i
            drawn.append(_rect(x + slot * 0.1, base - size if way > 0 else base, slot * 0.8, size, kind))
            if count:
                y = base - size - 6 if way > 0 else base + size + 15
                drawn.append(_text(x + slot / 2, y, f"{count}", "number", "middle"))
        drawn.append(_line(left, base, width - 8, base, "axis"))
    for i, label in enumerate(labels):
        drawn.append(_text(left + slot * (i + 0.5), floor + 17, label, "tick", "middle"))
    for side, y in zip(sides, (floor - tall / 2, floor + 24 + tall / 2), strict=False):
        drawn.append(_text(left - 10, y, side, "side", "end"))
    drawn.append(_text((left + width) / 2, bottom + 12, words.across, "tick", "middle"))
    return _chart(width, bottom + 20, "chart" if sides else "half", words, *drawn)


def frontier(series: Sequence[Series], promise: float, words: Words) -> Markup:
    """Survival against distance, with the survival asked for as a dashed line and chosen points in rings.

    Args:
        series: At least one line of points, each with at least one.
        promise: Survival that is asked for.
        words: Texts of the chart.
    """
    every = [point for line in series for point in line.points]
    lowest, highest = min(promise, *(p.lowest for p in every)), max(promise, *(p.y for p in every))
    xs = ticks(min(p.x for p in every), max(p.x for p in every))
    ys = ticks(lowest - 0.04 * (highest - lowest), highest)  # so that the promise does not lie on the axis
    across, up = _Axis(xs[0], xs[-1], 80.0, _WIDTH - 16), _Axis(ys[0], ys[-1], _HEIGHT + 20, 30.0)
    drawn = [_text(8, 14, words.title, "head", "start")]
    drawn += _grid(xs, ys, across, up, words.across, "share of answers accepted")
    level = up(promise)
    drawn.append(_line(across.start, level, across.stop, level, "promise"))
    for line in series:
        coordinates = [(across(p.x), up(p.y)) for p in line.points]
        drawn.append(_polyline(coordinates, f"joined {line.kind}"))
        mark = _MARKS[line.kind]
        for (x, y), point in zip(coordinates, line.points, strict=True):
            drawn += [_line(x, y, x, up(point.lowest), "error"), mark(x, y, 4, f"mark {line.kind}")]
        drawn.append(_circle(*coordinates[line.chosen], 9, "ring"))
    # Above the line at its right end, or below it where points are in the way.
    crowded = any(across(p.x) > across.stop - 160 and 0 <= level - up(p.y) < 26 for p in every)
    label = f"asked for: {100 * promise:.4g} %"
    drawn.append(_text(across.stop - 2, level + (17 if crowded else -6), label, "note", "end"))
    return _chart(_WIDTH, _HEIGHT + 64, "chart", words, *drawn)


def by_moment(lines: Mapping[str, Sequence[float]], labels: Sequence[str], promise: float, words: Words) -> Markup:
    """Shares over moments, a line for each method with its name at the end, and a dashed line at a promise.

    Args:
        lines: By name of the method: (K,) shares from 0 to 1; NaN is left out. The last one is drawn in grey.
        labels: (K,) names of the moments.
        promise: Share of the dashed line.
        words: Texts of the chart.
    """
    lowest = min([promise, *(value for values in lines.values() for value in values if value == value)])
    ys = ticks(lowest, 1.0)
    across, up = _Axis(0, max(len(labels) - 1, 1), 56.0, _WIDTH - 150), _Axis(ys[0], 1.0, _HEIGHT + 20, 30.0)
    drawn = [_text(8, 14, words.title, "head", "start"), *_levels([y for y in ys if y <= 1], across, up, percent=True)]
    for i in range(0, len(labels), -(-len(labels) // 8)):
        drawn.append(_text(across(i), up.start + 18, labels[i], "tick", "middle"))
    drawn.append(_text((across.start + across.stop) / 2, up.start + 38, words.across, "tick", "middle"))
    drawn.append(_line(across.start, up(promise), across.stop, up(promise), "promise"))
    ends = []
    for rank, (name, values) in enumerate(lines.items()):
        points = [(across(i), up(value)) for i, value in enumerate(values) if value == value]
        if points:
            kind = "rest" if rank == len(lines) - 1 else f"m{rank % 7}"
            mark = (_circle, _square)[rank % 2]
            drawn.append(_polyline(points, f"joined {kind}"))
            drawn += [mark(x, y, 3.5, f"mark {kind}") for x, y in points]
            ends.append((points[-1][1], f"name {kind}", name))
    below = -math.inf
    for y, kind, name in sorted(ends):  # names that would overlap move down
        below = max(y, below + 15)
        drawn.append(_text(across.stop + 10, below + 4, name, kind, "start"))
    return _chart(_WIDTH, max(_HEIGHT + 66, below + 10), "chart", words, *drawn)


def curve(values: Sequence[float], words: Words, limit: float | None = None) -> Markup:
    """A small curve by epoch with its last value.

    Args:
        values: One value for each epoch; NaN is left out.
        words: Texts of the chart.
        limit: Value of a dashed line below which something is wrong; None: no line.
    """
    width, height = 300.0, 170.0
    finite = [value for value in values if value == value]
    ys = ticks(min([0.0, *finite]), max([limit or 0.0, *finite]), 3)
    across, up = _Axis(1, max(len(values), 2), 44.0, width - 48), _Axis(ys[0], ys[-1], height - 30, 30.0)
    drawn = [_text(4, 14, words.title, "head", "start"), *_levels(ys, across, up)]
    drawn.append(_text(across.start, height - 10, "epoch 1", "tick", "start"))
    drawn.append(_text(across.stop, height - 10, f"{len(values)}", "tick", "end"))
    if limit is not None:
        drawn.append(_line(across.start, up(limit), across.stop, up(limit), "promise"))
    stride = -(-len(values) // 200)  # more points cannot be distinguished
    kept = sorted({*range(0, len(values), stride), len(values) - 1})
    points = [(across(i + 1), up(values[i])) for i in kept if values[i] == values[i]]
    if points:
        x, y = points[-1]
        drawn += [_polyline(points, "joined"), _circle(x, y, 4, "full")]
        drawn.append(_text(x + 8, y + 4, figure(finite[-1]), "number", "start"))
    return _chart(width, height, "small", words, *drawn)


def _grid(xs: Sequence[float], ys: Sequence[float], across: _Axis, up: _Axis, x_name: str, y_name: str) -> list[Markup]:
    drawn = _levels(ys, across, up, percent=True)
    for x in xs:
        drawn.append(_line(across(x), up.start, across(x), up.start + 5, "axis"))
        drawn.append(_text(across(x), up.start + 18, figure(x), "tick", "middle"))
    drawn.append(_line(across.start, up.start, across.stop, up.start, "axis"))
    middle, level = (across.start + across.stop) / 2, (up.start + up.stop) / 2
    drawn.append(_text(middle, up.start + 36, x_name, "tick", "middle"))
    turned = {"x": 14, "y": level, "class": "tick", "text-anchor": "middle", "transform": f"rotate(-90 14 {level:g})"}
    return [*drawn, _element("text", turned, y_name)]


def _levels(ys: Sequence[float], across: _Axis, up: _Axis, *, percent: bool = False) -> list[Markup]:
    drawn = []
    for y in ys:
        drawn.append(_line(across.start, up(y), across.stop, up(y), "level"))
        says = f"{100 * y:.4g} %" if percent else figure(y)
        drawn.append(_text(across.start - 6, up(y) + 4, says, "tick", "end"))
    return drawn


def _svg(width: float, height: float, kind: str, says: str, *drawn: Markup) -> Markup:
    attributes = {"class": kind, "viewBox": f"0 0 {width:g} {height:g}", "role": "img"}
    return _element("svg", attributes, _element("title", {}, says), *drawn)


def _chart(width: float, height: float, kind: str, words: Words, *drawn: Markup) -> Markup:
    return _svg(width, height, kind, words.title, _element("desc", {}, words.says), *drawn)


def _rect(x: float, y: float, width: float, height: float, kind: str) -> Markup:
    return _element("rect", {"class": kind, "x": x, "y": y, "width": width, "height": height})


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    return _element("line", {"class": kind, "x1": x1, "y1": y1, "x2": x2, "y2": y2})


def _circle(x: float, y: float, radius: float, kind: str) -> Markup:
    return _element("circle", {"class": kind, "cx": x, "cy": y, "r": radius})


def _square(x: float, y: float, radius: float, kind: str) -> Markup:
    return _rect(x - radius, y - radius, 2 * radius, 2 * radius, kind)


def _diamond(x: float, y: float, radius: float, kind: str) -> Markup:
    ends = ((x - radius, y), (x, y - radius), (x + radius, y), (x, y + radius))
    return _element("polygon", {"class": kind, "points": " ".join(f"{a:.2f},{b:.2f}" for a, b in ends)})


def _polyline(points: Sequence[tuple[float, float]], kind: str) -> Markup:
    return _element("polyline", {"class": kind, "points": " ".join(f"{x:.2f},{y:.2f}" for x, y in points)})


def _text(x: float, y: float, says: str, kind: str, anchor: str) -> Markup:
    return _element("text", {"class": kind, "x": x, "y": y, "text-anchor": anchor}, says)


def _element(name: str, attributes: Mapping[str, object], *children: str) -> Markup:
    pairs = Markup("").join(
        Markup(' {}="{}"').format(key, f"{value:.6g}" if isinstance(value, float) else value)
        for key, value in attributes.items()
    )
    return Markup("<{0}{1}>{2}</{0}>").format(name, pairs, Markup("").join(children))


_MARKS = {"fast": _circle, "standard": _square, "thorough": _diamond}
