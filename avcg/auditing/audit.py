"""Whether advice given under one model still holds under others, and what to tell those for whom it does not."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from avcg.auditing.panel import Panel, Votes, replacements
from avcg.errors import DataError, SettingError
from avcg.explainers.base import Explainer
from avcg.explainers.counterfactuals import Counterfactuals
from avcg.explainers.records import MEANING
from avcg.guarantees.bounds import clopper_pearson
from avcg.metrics.groups import groups_of, share_of
from avcg.space.encoding import Flags
from avcg.space.serialize import to_json

TOLD = ("ok", "not_robust")  # statuses of answers that somebody was told as valid
_FORMAT, _VERSION = "avcg.audit", 1
_SHOWN = 6


@dataclass(frozen=True, eq=False)
class Audit:
    """What other models make of answers that people were given.

    Attributes:
        answers: What was told.
        frame: One line for each answer, under the index of the answers. ``verdict``: ``"holds"`` or ``"lost"`` for what
            was told as valid, else ``"no_answer"``; ``probability_now`` and ``margin``, how far that is beyond the
            line, are means over the models; ``agreeing`` of ``n_models`` decide for the target, and ``lower_bound``
            is what that says of all models, where there are several; ``replacement``, ``keeps_advice`` (it only adds to
            what was told) and ``extra_distance`` (what it costs more) speak of what a lost answer is replaced by.
        replacements: For every lost answer, from the original row; None where none were asked for or none are needed.
        models: Their names.
        threshold: Of the decision; None: the likeliest class.
        confidence: Of intervals and bounds.
    """

    answers: Counterfactuals
    frame: pd.DataFrame
    replacements: Counterfactuals | None
    models: tuple[str, ...]
    threshold: float | None
    confidence: float

    def summary(self) -> pd.Series[Any]:
        """Totals, with an interval for the share that holds."""
        return pd.Series(self._totals(np.ones(len(self.frame), bool)), name="audit", dtype=object)

    def by(self, column: str) -> pd.DataFrame:
        """Totals by the values of a column of the factuals, numbers in quartiles."""
        labels, order = groups_of(self.answers.factuals, column)
        each = labels.repeat(self.answers.n)
        return self._table({label: each == label for label in order}, column)

    def by_change(self) -> pd.DataFrame:
        """Totals by the column that was to change; an answer with several counts for each of them."""
        changed = self._changed()
        names = [str(name) for name in nw.from_native(self.answers.factuals, eager_only=True).columns]
        delivered = self.delivered
        return self._table(
            {n: changed[:, j] for j, n in enumerate(names) if (changed[:, j] & delivered).any()}, "column"
        )

    def by_count(self) -> pd.DataFrame:
        """Totals by how many columns were to change."""
        counts = self._changed().sum(axis=1)
        return self._table({int(k): counts == k for k in np.unique(counts[self.delivered])}, "changes")

    @property
    def delivered(self) -> Flags:
        """(N,) whether somebody was told the answer as valid."""
        return np.asarray(self.frame["verdict"] != "no_answer")

    def _changed(self) -> Flags:
        if self.answers.changed is None:
            raise DataError("Images have no columns to group by. Look at .frame instead.")
        return self.answers.changed

    def _table(self, groups: Mapping[Any, Flags], name: str) -> pd.DataFrame:
        lines = {label: self._totals(which) for label, which in groups.items() if (which & self.delivered).any()}
        index = pd.Index(list(lines), name=name, dtype=object)
        return pd.DataFrame(list(lines.values()), index=index, columns=list(self._totals(self.delivered)))

    def _totals(self, which: Flags) -> dict[str, Any]:
        some = self.frame[which & self.delivered]
        delivered, holds, replaced = len(some), int((some["verdict"] == "holds").sum()), int(some["replacement"].sum())
        share, low, high = share_of(holds, delivered, self.confidence)
        keeping = int(some["keeps_advice"].sum())
        counts = {
            "told": delivered,
            "holds": holds,
            "lost": delivered - holds,
            "share": share,
            "low": low,
            "high": high,
        }
        return counts | {"replaced": replaced, "keeping": keeping}

    def to_json(self, by: str | None = None) -> str:
        """Everything as JSON; NaN becomes null.

        Keys: ``format`` ("avcg.audit"), ``version`` (1), ``models``, ``threshold``, ``confidence``, ``survival``,
        ``summary`` (an object), ``by_change``, ``by_count`` and ``by`` (lists of objects; null where there is nothing
        to group by), ``answers`` (one object for each line of ``frame`` with its ``index``), ``replacements`` (as
        `Counterfactuals.to_json` writes them, or null).

        Args:
            by: A column of the factuals, for ``by``.
        """
        tables = self.answers.changed is not None
        found = {
            "format": _FORMAT,
            "version": _VERSION,
            "models": self.models,
            "threshold": self.threshold,
            "confidence": self.confidence,
            "survival": self.answers.survival,
            "summary": {name: to_json(value) for name, value in self.summary().items()},
            "by_change": _records(self.by_change(), "column") if tables else None,
            "by_count": _records(self.by_count(), "changes") if tables else None,
            "by": None if by is None else _records(self.by(by), "value"),
            "answers": _records(self.frame, "index"),
            "replacements": None if self.replacements is None else json.loads(self.replacements.to_json()),
        }
        return json.dumps(found, allow_nan=False, default=str)

    def to_html(self, by: str | None = None) -> str:
        """A page that needs nothing else: totals, groups, every lost answer and what all this rests on.

        Args:
            by: A column of the factuals to group by.
        """
        from avcg.report.audit_page import page

        return page(self, by)

    def __str__(self) -> str:
        total = self.summary()
        interval = f"{total['share']:.0%}, {self.confidence:.0%} interval {total['low']:.0%} to {total['high']:.0%}"
        lines = [f"{total['holds']} of {total['told']} answers still hold ({interval})" if total["told"] else
                 "None of the answers was valid when it was made: there is nothing to audit"]  # fmt: skip
        if self.replacements is not None:
            lines[0] += f"; {total['replaced']} of {total['lost']} lost ones replaced, {total['keeping']} of these"
            lines[0] += " keeping what was told"
        lost = self.frame[self.frame["verdict"] == "lost"]
        for at, line in lost.head(_SHOWN).iterrows():
            instead = "" if self.replacements is None else ", no replacement found"
            if line["replacement"]:
                instead = ", told more" if line["keeps_advice"] else ", told anew"
            said = f"probability {line['probability_then']:.2f} -> {line['probability_now']:.2f}"
            lines.append(f"{at} -> {line['target']}: lost, {said}{instead}")
        return "\n".join([*lines, f"... and {len(lost) - _SHOWN} more lost"] if len(lost) > _SHOWN else lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def audit(
    answers: Counterfactuals | str | Path,
    models: Any,
    *,
    recourse: Explainer | None = None,
    threshold: float | None = None,
    confidence: float = 0.95,
) -> Audit:
    """Ask other models about the rows that people were told to become.

    Args:
        answers: What was told, or the path of what `Counterfactuals.to_json` wrote.
        models: One, several in a list, several by name, or a distribution of hypotheses (every member of a finite set,
            else 50 draws; each counts once). A model is anything with ``predict_proba`` on the user's rows, a
            `BlackBox`, the path of an ONNX file, or a fitted explainer for the one that it answers for.
        recourse: A fitted method to replace lost answers with, judged by the models; one that learnt from them finds
            most. What was told is kept and added to where that is possible; else the row is answered afresh.
        threshold: Probability of the second of two classes from which the decision is for it; None: that of
            ``recourse`` if it has one, else the likeliest class.
        confidence: Of intervals and bounds.

    Returns:
        An answer holds if the model decides for its target; under several, if the share that was promised does.

    Raises:
        DataError: If answers are damaged, or a model does not take the rows, does not know a target or fails.
        SettingError: If there are no models, or a parameter cannot be.

    >>> from sklearn.linear_model import LogisticRegression
    >>> from avcg import PointMass, from_sklearn, toys
    >>> from avcg.baselines.nearest import NearestUnlike
    >>> loans = toys.loans(n=300)
    >>> X, y = loans.X[["income", "months"]], loans.y
    >>> spring, autumn = (LogisticRegression().fit(X[part], y[part]) for part in (slice(0, 150), slice(150, 300)))
    >>> recourse = NearestUnlike(PointMass(from_sklearn(spring, X))).fit(X)
    >>> told = recourse.generate(X[spring.predict(X) == 0], target=1)
    >>> found = audit(told, autumn, recourse=recourse)
    >>> bool((autumn.predict(told.frame) == 1).sum() == found.summary()["holds"])
    True
    """
    delivered = read_answers(answers)
    if recourse is not None and not isinstance(recourse, Explainer):
        raise SettingError(f"The 'recourse' of audit must be a method such as AVCG. Got a {type(recourse).__name__}.")
    threshold = getattr(recourse, "threshold", None) if threshold is None else threshold
    panel = Panel.of(models, delivered, threshold)
    frame = _judged(delivered, panel.votes(delivered.answers, delivered.target.repeat(delivered.n)), confidence)
    lost, instead = np.flatnonzero(frame["verdict"] == "lost"), None
    if recourse is not None and len(lost):
        check_is_fitted(recourse)
        found = replacements(panel, recourse, delivered, lost)
        instead = found.answers
        frame = frame.assign(
            replacement=_spread(found.good, lost, frame, False),
            keeps_advice=_spread(found.kept, lost, frame, False),
            extra_distance=_spread(np.where(found.good, found.extra, np.nan), lost, frame, np.nan),
        )
    return Audit(delivered, frame, instead, tuple(map(str, panel.names)), threshold, confidence)


def _judged(delivered: Counterfactuals, votes: Votes, confidence: float) -> pd.DataFrame:
    """One line for each answer; nothing is replaced yet."""
    count, now = len(votes.valid), votes.probability.mean(axis=0)
    verdict = np.where(votes.hold(delivered.survival), "holds", "lost")
    bound = clopper_pearson(votes.agreeing, count, confidence)  # worked out for one model too: it checks the confidence
    return pd.DataFrame(
        {
            "target": delivered.target.repeat(delivered.n),
            "verdict": np.where(np.isin(delivered.statuses, TOLD), verdict, "no_answer"),
            "probability_then": delivered.probability,
            "probability_now": now,
            "probability_change": now - delivered.probability,
            "margin": votes.margin.mean(axis=0),
            "agreeing": votes.agreeing,
            "n_models": count,
            "lower_bound": bound if count > 1 else np.nan,
            "replacement": False,
            "keeps_advice": False,
            "extra_distance": np.nan,
        },
        index=delivered.index,
    )


def _spread(values: NDArray[Any], at: NDArray[np.intp], frame: pd.DataFrame, otherwise: Any) -> NDArray[Any]:
    """(N,) values at their places among all answers."""
    result = np.full(len(frame), otherwise)
    result[at] = values
    return result


def survival_curve(
    answers: Counterfactuals | str | Path, models: Any, *, threshold: float | None = None, confidence: float = 0.95
) -> pd.DataFrame:
    """How much of what was told is left, model after model.

    Args:
        answers: As in `audit`.
        models: As in `audit`, in their order: by month, by seed.
        threshold: Probability of the second of two classes from which the decision is for it; None: the likeliest.
        confidence: Of the intervals.

    Returns:
        By model: the share of what was told that is ``valid`` under it, with an interval from ``low`` to ``high``, the
        share valid under it and all before (``so_far``), and ``n`` answers told.

    >>> from avcg import BlackBox, PointMass, toys
    >>> from avcg.baselines.nearest import NearestUnlike
    >>> X = toys.loans(n=200).X[["income", "months"]]
    >>> rules = {year: BlackBox(lambda rows, k=k: (rows["income"] > k) * 1.0, X) for year, k in ((24, 50), (25, 60))}
    >>> told = NearestUnlike(PointMass(rules[24])).fit(X).generate(X[X["income"] < 50], target=1)
    >>> float(survival_curve(told, rules)["valid"][24])
    1.0
    """
    delivered = read_answers(answers)
    panel = Panel.of(models, delivered, threshold)
    votes = panel.votes(delivered.answers, delivered.target.repeat(delivered.n))
    valid = votes.valid[:, np.isin(delivered.statuses, TOLD)]
    n = valid.shape[1]
    lines = [share_of(int(one.sum()), n, confidence) for one in valid]
    curve = pd.DataFrame(lines, columns=["valid", "low", "high"], index=pd.Index(panel.names, name="model"))
    together = np.logical_and.accumulate(valid, axis=0).sum(axis=1)
    return curve.assign(so_far=together / n if n else np.nan, n=n)


def feasibility(
    recourse: Explainer, X: Any, target: Any = None, *, by: str | None = None, confidence: float = 0.95
) -> pd.DataFrame:
    """Of those who are denied, how many are left without an answer that helps?

    It says that none was *found*. Only for rows where nothing may change at all (``infeasible``) is it certain that
    there is none; for all others it is what the method finds with ``refine=True``, and another may find more.

    Args:
        recourse: Fitted.
        X: Rows in user units.
        target: As in `Explainer.generate`; rows that have it already are left out.
        by: A column of X; numbers are put in quartiles.
        confidence: Of the intervals.

    Returns:
        A line for all, then one for each group. Of those ``denied``: how many are ``without`` a change that helps, how
        many of them ``infeasible``, and how many have one that is only ``not_robust``; shares with their intervals.

    >>> from avcg import BlackBox, PointMass, toys
    >>> from avcg.baselines.nearest import NearestUnlike
    >>> loans = toys.loans(n=200)
    >>> rule = BlackBox(lambda rows: (rows["housing"] == "rent") * 1.0, loans.X, schema=loans.schema)
    >>> recourse = NearestUnlike(PointMass(rule)).fit(loans.X)
    >>> feasibility(recourse, loans.X, target=1, by="housing")["without_share"].round(2).to_dict()  # own never to rent
    {'all': 0.7, 'free': 0.0, 'own': 1.0}
    """
    found = recourse.generate(X, target, refine=True)
    denied = found.statuses != "already_target"
    groups: dict[Any, Flags] = {"all": denied}
    if by is not None:
        labels, order = groups_of(found.factuals, by)
        groups |= {label: denied & (labels == label) for label in order}
    lines = {}
    for label, which in groups.items():
        some = found.statuses[which]
        if label != "all" and not len(some):
            continue
        line: dict[str, float] = {"denied": len(some), "infeasible": int((some == "infeasible").sum())}
        for name, statuses in (("without", ("infeasible", "not_valid")), ("not_robust", ("not_robust",))):
            count = int(np.isin(some, statuses).sum())
            share, low, high = share_of(count, len(some), confidence)
            line |= {name: count, f"{name}_share": share, f"{name}_low": low, f"{name}_high": high}
        lines[label] = line
    return pd.DataFrame(list(lines.values()), index=pd.Index(list(lines), name=by, dtype=object))


def read_answers(answers: Counterfactuals | str | Path) -> Counterfactuals:
    """Answers, or a file of them, if they are whole.

    Raises:
        DataError: If something is missing, or does not fit together.
    """
    if isinstance(answers, Counterfactuals):
        found, what = answers, "The answers"
    else:
        path, what = Path(answers), Path(answers).name
        if not path.is_file():
            raise DataError(f"There is no file {str(answers)!r}. Give the path of what Counterfactuals.to_json wrote.")
        try:
            found = Counterfactuals.from_json(path.read_bytes())
        except DataError as error:
            raise DataError(f"{what}: {error}") from error
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"{what} is damaged: {type(error).__name__}: {error}.") from error
    total = len(found.target) * found.n
    counts = {
        "factuals": (len(found.factuals), len(found.target)),
        "answers": (len(found.answers), total),
        "statuses": (len(found.statuses), total),
        "probability": (len(found.probability), total),
        "distance": (len(found.distance), total),
        "changed": (total if found.changed is None else len(found.changed), total),
    }
    for name, (there, expected) in counts.items():
        if there != expected:
            raise DataError(f"{what} is damaged: it has {there} of {expected} {name!r}. Store the answers again.")
    if not 0 < found.survival < 1:
        raise DataError(f"{what} is damaged: a survival of {found.survival!r} is no share. Store the answers again.")
    strange = set(found.statuses.tolist()) - set(MEANING)
    if strange:
        raise DataError(f"{what} is damaged: {strange.pop()!r} is no status. Store the answers again.")
    return found


def _records(table: pd.DataFrame, key: str) -> list[dict[str, Any]]:
    """Lines for JSON, each with its label."""
    lines = zip(table.index, table.to_dict("records"), strict=True)
    return [{key: _label(label)} | {str(name): to_json(v) for name, v in line.items()} for label, line in lines]


def _label(label: Any) -> Any:
    """Of a row, as plain values: a list for an index of several levels."""
    return [to_json(part) for part in label] if isinstance(label, tuple) else to_json(label)
