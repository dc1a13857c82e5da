"""A self-contained HTML page of answers: who changes what, how sure, at what cost, and who has no answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from avcg.auditing.audit import read_answers
from avcg.errors import SettingError
from avcg.explainers.base import Explainer
from avcg.explainers.counterfactuals import Counterfactuals
from avcg.explainers.records import MEANING
from avcg.guarantees.statement import summary
from avcg.method.config import SearchConfig
from avcg.report.certainty import opinions_of, sure_of
from avcg.report.page import figure, fill, percent, precise, short, signed
from avcg.report.population import (
    Column,
    Group,
    NumberMoves,
    Share,
    by_column,
    by_group,
    check_columns,
    combinations,
    delivered,
    number_columns,
)
from avcg.report.rows import SYMBOLS, listed, spoken
from avcg.report.svg import (
    Part,
    Quartiles,
    Words,
    columns,
    quartile_bar,
    share_bar,
    shift,
    stacked_bar,
    ticks,
)
from avcg.report.training import collapse_of, frontier_of, students_of

TITLE = "What would have to change"
_MIN_SPREAD = 4  # changes for which the middle half is shown beside the median
_MAX_COLUMNS, _MAX_GROUPS, _MAX_SETS, _MAX_COUNTS, _MAX_TARGETS = 40, 30, 5, 12, 6
_HEADINGS = {
    "columns": "Which columns change",
    "costs": "What it costs",
    "groups": "Cost by group",
    "without": "Who has no answer",
    "sure": "How sure, and on what assumption",
    "opinions": "How the models decide, before and after",
    "frontier": "Distance against survival",
    "collapse": "Does the generator respond to the rows?",
    "students": "How well students imitate the models",
    "people": "Who changes what",
}
# The values of a section, or the reason why it is left out.
Section = dict[str, Any] | str


def render(
    answers: Counterfactuals,
    explainer: Explainer | None = None,
    *,
    by: str | None = None,
    title: str = TITLE,
    assumption: str | None = None,
) -> str:
    """Render answers as an HTML page.

    Every row counts once, with its first answer. Sections that need the explainer are left out without it, and the page
    says so.

    Args:
        answers: Answers for tables or images.
        explainer: The fitted method that gave them; None: the page is made from the answers alone.
        by: Column of the rows to group by, numbers in quarters; None: there are no groups.
        title: Title of the page.
        assumption: How the next model is made, in words; None: it is like the held-out models.

    Returns:
        The page as HTML, which loads nothing else.

    Raises:
        DataError: If the answers are damaged or do not fit the explainer, or there is no such column.
        SettingError: If the explainer is not a fitted method.

    >>> from avcg import BlackBox, PointMass, toys
    >>> from avcg.baselines.nearest import NearestUnlike
    >>> loans = toys.loans(n=200)
    >>> rule = BlackBox(lambda rows: (rows["income"] > 50) * 1.0, loans.X)
    >>> recourse = NearestUnlike(PointMass(rule)).fit(loans.X)
    >>> page = render(recourse.generate(loans.X, target=1), recourse, by="housing")
    >>> "Which columns change" in page and "http" not in page
    True
    """
    answers = read_answers(answers)
    check_columns(answers)
    if explainer is not None:
        _check_fitted(explainer)
    confidence = _confidence(answers)
    first = answers.take(np.arange(len(answers)), 1)
    everyone = by_group(first, None, confidence)[0]
    noun = "people" if answers.changed is not None else "pictures"
    sections = _sections(answers, first, everyone, explainer, by, assumption)
    context = {
        "title": title,
        "headings": _HEADINGS if by is None else _HEADINGS | {"groups": f"Cost by {short(by)}"},
        "shown": [name for name, section in sections.items() if not isinstance(section, str)],
        "left_out": [(_HEADINGS[name], section) for name, section in sections.items() if isinstance(section, str)],
        **{name: None if isinstance(section, str) else section for name, section in sections.items()},
        "noun": noun,
        "who": "who" if noun == "people" else "that",
        "by": by,
        "n": answers.n,
        "confidence": precise(confidence),
        "overview": _overview(answers, first, everyone, confidence),
    }
    return fill("answers.html.j2", context)


def _check_fitted(explainer: Explainer) -> None:
    if not isinstance(explainer, Explainer):
        raise SettingError(
            f"The 'explainer' of render must be a fitted method such as AVCG. Got a {type(explainer).__name__}."
        )
    check_is_fitted(explainer)


def _sections(
    answers: Counterfactuals,
    first: Counterfactuals,
    everyone: Group,
    explainer: Explainer | None,
    by: str | None,
    assumption: str | None,
) -> dict[str, Section]:
    """The sections by name, in the order of the page."""
    confidence = _confidence(answers)
    groups = [] if by is None else by_group(first, by, confidence)
    numbers = number_columns(answers, explainer)
    noun = "people" if answers.changed is not None else "pictures"
    return {
        "columns": _columns(first, numbers, confidence),
        "costs": _costs(first, noun),
        "groups": "No column to group by was given." if by is None else _groups(groups, by),
        "without": _without(answers, everyone, groups),
        "sure": sure_of(first, noun, assumption),
        "opinions": opinions_of(first, explainer, noun),
        "frontier": frontier_of(explainer),
        "collapse": collapse_of(explainer),
        "students": students_of(explainer),
        "people": listed(answers, explainer, numbers),
    }


def _confidence(answers: Counterfactuals) -> float:
    return SearchConfig().confidence if answers.certificate is None else answers.certificate.confidence


def _overview(answers: Counterfactuals, first: Counterfactuals, everyone: Group, confidence: float) -> dict[str, Any]:
    """The values of the summary at the top of the page."""
    lacking, counts = everyone.coverage.n, everyone.statuses
    targets = Counter(short(label) for label in answers.target.tolist()).most_common()
    present = [(status, counts[status]) for status in SYMBOLS if counts[status]]
    parts = [Part(status, count, f"{SYMBOLS[status]} {count}") for status, count in present]
    legend = [{"symbol": SYMBOLS[s], "kind": s, "name": spoken(s), "count": c, "means": MEANING[s]} for s, c in present]
    tiles = []
    if lacking:
        good = Share.of(counts["ok"], lacking, confidence)
        tiles.append((percent(good.share), "have an answer that is ok", f"{good.count} of {good.n}, {_interval(good)}"))
    if everyone.distance is not None:
        if first.changed is not None:
            moved = first.changed[delivered(first)].sum(axis=1)
            spread = [f"{value:g}" for value in np.quantile(moved, [0.25, 0.5, 0.75])]
            tiles.append((spread[1], "columns to change", f"median; middle half {spread[0]} to {spread[2]}"))
        spread = [figure(value) for value in vars(everyone.distance).values()]
        tiles.append((spread[1], "distance", f"median; middle half {spread[0]} to {spread[2]}"))
    if answers.certificate is not None and everyone.agreement == everyone.agreement:
        models = f"mean share of {answers.certificate.n} models held back from training"
        tiles.append((percent(everyone.agreement, 1), "of the models accept an answer", models))
    return {
        "rows": len(answers),
        "lacking": lacking,
        "already": counts["already_target"],
        "ok": counts["ok"],
        "judged": answers.certificate is not None,
        "promise": summary(answers.statements),
        "targets": [{"label": label, "count": count} for label, count in targets[:_MAX_TARGETS]],
        "more_targets": max(0, len(targets) - _MAX_TARGETS),
        "bar": stacked_bar(parts, ", ".join(f"{count} {spoken(status)}" for status, count in present)),
        "legend": legend,
        "tiles": [{"value": value, "name": name, "note": note} for value, name, note in tiles],
    }


def _columns(first: Counterfactuals, numbers: frozenset[str], confidence: float) -> Section:
    if first.changed is None:
        return "Images have no columns."
    if not delivered(first).any():
        return "No decision flips."
    every_column = by_column(first, numbers, confidence)
    used = [column for column in every_column if column.changed.count]
    rest = [column.name for column in every_column if not column.changed.count]
    sets = [(names, count) for names, count in combinations(first, _MAX_SETS) if count > 1]
    return {
        "n": int(delivered(first).sum()),
        "lines": [_column(column) for column in used[:_MAX_COLUMNS]],
        "more": max(0, len(used) - _MAX_COLUMNS),
        "top": short(used[0].name) if used else None,
        "top_share": percent(used[0].changed.share) if used else "",
        "untouched": [short(name) for name in rest[:_MAX_COLUMNS]],
        "more_untouched": max(0, len(rest) - _MAX_COLUMNS),
        "sets": [{"names": [short(name) for name in names], "count": count} for names, count in sets],
    }


def _column(column: Column) -> dict[str, Any]:
    number = column.number
    return {
        "name": short(column.name),
        "share": _shared(column.changed),
        "typical": None if number is None else _typical(number),
        "picture": None if number is None else _shifted(number),
        "moves": [{"before": short(a), "after": short(b), "count": count} for a, b, count in column.moves],
        "other_moves": column.other_moves,
        "filled": column.filled,
    }


def _typical(number: NumberMoves) -> dict[str, Any]:
    by, count = number.by, number.up + number.down
    ways = [f"{sign} {moved}" for sign, moved in (("↑", number.up), ("↓", number.down)) if moved]
    half = f"{signed(by.low)} to {signed(by.high)}" if count >= _MIN_SPREAD else ""
    return {"ways": " · ".join(ways), "middle": signed(by.middle), "half": half}


def _shifted(number: NumberMoves) -> dict[str, Any]:
    says = f"The median goes from {short(number.before.middle)} to {short(number.after.middle)}."
    drawn = shift(number.before, number.after, *number.span, says)
    return {"drawn": drawn, "low": figure(number.span[0], 4), "high": figure(number.span[1], 4)}


def _costs(first: Counterfactuals, noun: str) -> Section:
    valid = delivered(first)
    if not valid.any():
        return "No decision flips."
    distances = first.distance[valid]
    edges = ticks(0.0, float(distances.max()), 8)
    heights = np.histogram(distances, edges)[0].tolist()
    labels = [f"to {figure(edge, 4)}" for edge in edges[1:]]
    charts = [_histogram(heights, labels, f"{noun.capitalize()} by distance", "distance")]
    if first.changed is not None:
        counts = np.minimum(first.changed[valid].sum(axis=1), _MAX_COUNTS)
        low, high = int(counts.min()), int(counts.max())
        labels = [f"{k}" if k < _MAX_COUNTS else f"{k} or more" for k in range(low, high + 1)]
        heights = np.bincount(counts - low, minlength=high - low + 1).tolist()
        charts.insert(0, _histogram(heights, labels, f"{noun.capitalize()} by columns to change", "columns to change"))
    return {"charts": charts, "n": int(valid.sum())}


def _histogram(counts: Sequence[int], labels: Sequence[str], title: str, across: str) -> Any:
    says = "; ".join(f"{label}: {count}" for label, count in zip(labels, counts, strict=True))
    return columns(counts, labels, Words(title, says, across))


def _groups(groups: Sequence[Group], by: str) -> dict[str, Any]:
    """The largest groups in their order, with distances on one scale."""
    kept = _largest(groups)
    top = max([group.distance.high for group in kept if group.distance is not None], default=1.0)
    ranked = sorted((g.distance.middle, short(g.label), g.coverage.count) for g in kept if g.distance is not None)
    ends = [ranked[0], ranked[-1]] if len(ranked) > 1 else []
    return {
        "lines": [
            {
                "label": short(group.label),
                "rows": group.rows,
                "lacking": group.coverage.n,
                "coverage": _shared(group.coverage),
                "kept": None if group.kept is None else _shared(group.kept),
                "agreement": percent(group.agreement, 1),
                "distance": None if group.distance is None else _spread(group.distance, top),
                "changes": None if group.changes is None else f"{group.changes:.1f}",
            }
            for group in kept
        ],
        "by": by,
        "more": len(groups) - len(kept),
        "ends": [{"label": label, "median": figure(middle), "count": count} for middle, label, count in ends],
    }


def _spread(quartiles: Quartiles, top: float) -> dict[str, Any]:
    middle, low, high = figure(quartiles.middle), figure(quartiles.low), figure(quartiles.high)
    drawn = quartile_bar(quartiles, 0.0, top, f"median {middle}, middle half {low} to {high}")
    return {"drawn": drawn, "middle": middle, "half": f"{low} to {high}"}


def _without(answers: Counterfactuals, everyone: Group, groups: Sequence[Group]) -> dict[str, Any]:
    """Statuses other than ok, by group."""
    statuses = [status for status in SYMBOLS if status != "ok" and everyone.statuses[status]]
    by_row = answers.statuses.reshape(len(answers), answers.n)
    unsuccessful = np.isin(by_row[:, 0], ("not_robust", "not_found", "infeasible"))
    kept = _largest(groups)
    return {
        "statuses": [{"name": spoken(s), "symbol": SYMBOLS[s], "kind": s, "means": MEANING[s]} for s in statuses],
        "lines": [
            {
                "label": "all" if group is everyone else short(group.label),
                "rows": group.rows,
                "counts": [(group.statuses[s], _of(group.statuses[s], group.rows)) for s in statuses],
            }
            for group in (everyone, *kept)
        ],
        "more": len(groups) - len(kept),
        "without": sum(everyone.statuses[status] for status in ("not_found", "immovable", "infeasible")),
        "weak": everyone.statuses["not_robust"],
        "unsure": bool(everyone.statuses["not_found"]),
        "rescued": int((unsuccessful & (by_row == "ok").any(axis=1)).sum()),
    }


def _largest(groups: Sequence[Group]) -> list[Group]:
    """The largest groups, as many as the page shows, in their order."""
    largest = sorted(range(len(groups)), key=lambda i: -groups[i].rows)[:_MAX_GROUPS]
    return [groups[i] for i in sorted(largest)]


def _shared(share: Share) -> Mapping[str, Any]:
    says = f"{percent(share.share)}, {_interval(share)}"
    drawn = share_bar(share.share, share.low, share.high, says) if share.n else None
    return {
        "share": percent(share.share),
        "count": share.count,
        "n": share.n,
        "interval": _interval(share),
        "bar": drawn,
    }


def _interval(share: Share) -> str:
    return f"{100 * share.low:.0f} to {100 * share.high:.0f} %"


def _of(count: int, n: int) -> str:
    return percent(count / n) if n else percent(float("nan"))
