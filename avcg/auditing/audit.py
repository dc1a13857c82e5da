"""Audits: whether answers given under one model are valid under other models, and replacements for lost answers."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from avcg.auditing.monitor import Monitor, can_monitor, monitor
from avcg.auditing.panel import Panel, Votes, replacements
from avcg.errors import DataError, SettingError
from avcg.explainers.avcg import AVCG
from avcg.explainers.base import Explainer
from avcg.explainers.counterfactuals import Counterfactuals
from avcg.explainers.records import MEANING
from avcg.guarantees.bounds import clopper_pearson
from avcg.metrics.groups import groups_of, share_of
from avcg.space.encoding import Flags
from avcg.space.serialize import to_json

TOLD = ("ok", "not_robust")  # statuses of answers that were delivered as valid
_FORMAT, _VERSION = "avcg.audit", 1
_SHOWN = 6


@dataclass(frozen=True, eq=False)
class Audit:
    """The validity of delivered answers under other models.

    Attributes:
        answers: The answers that were delivered.
        frame: One line for each answer, under the index of the answers. ``verdict`` is ``"holds"`` or ``"lost"`` for
            an answer that was delivered as valid, else ``"no_answer"``. ``probability_now`` and ``margin``, its
            distance from the decision threshold, are means over the models. ``agreeing`` of ``n_models`` decide for
            the target; ``lower_bound`` is a lower bound on the share of all models that do, if there are several.
            ``replacement`` is whether a lost answer has a replacement, ``keeps_advice`` whether that only adds changes
            to the answer, and ``extra_distance`` its additional cost.
        replacements: A replacement for every lost answer, as a change of the original row; None if none were asked for
            or none are needed.
        models: Names of the models.
        threshold: Probability of the second of two classes from which the decision is for it; None: the most probable
            class.
        confidence: Confidence of intervals and bounds, in (0, 1).
        monitor: The models beside those that the promise of ``recourse`` was calibrated by; None: there are none.
    """

    answers: Counterfactuals
    frame: pd.DataFrame
    replacements: Counterfactuals | None
    models: tuple[str, ...]
    threshold: float | None
    confidence: float
    monitor: Monitor | None = None

    def summary(self) -> pd.Series[Any]:
        """The totals of all answers, with an interval for the share that holds."""
        return pd.Series(self._totals(np.ones(len(self.frame), bool)), name="audit", dtype=object)

    def by(self, column: str) -> pd.DataFrame:
        """The totals by the values of a column of the factuals; numbers are grouped by quartile.

        Args:
            column: Name of the column.
        """
        labels, order = groups_of(self.answers.factuals, column)
        per_answer = labels.repeat(self.answers.n)
        return self._table({label: per_answer == label for label in order}, column)

    def by_change(self) -> pd.DataFrame:
        """The totals by changed column; an answer that changes several columns counts for each of them."""
        changed, delivered = self._changed(), self.delivered
        entries = {name: changed[:, j] for j, name in enumerate(self.answers.entries)}
        return self._table({name: flags for name, flags in entries.items() if (flags & delivered).any()}, "column")

    def by_count(self) -> pd.DataFrame:
        """The totals by the number of changed columns."""
        counts = self._changed().sum(axis=1)
        return self._table({int(k): counts == k for k in np.unique(counts[self.delivered])}, "changes")

    @property
    def delivered(self) -> Flags:
        """(N,) whether the answer was delivered as valid."""
        return np.asarray(self.frame["verdict"] != "no_answer")

    def _changed(self) -> Flags:
        """(N, entries) whether each entry of an answer differs from the factual."""
        if self.answers.changed is None:
            raise DataError("Images have no columns to group by. Look at .frame instead.")
        return self.answers.changed

    def _table(self, groups: Mapping[Any, Flags], name: str) -> pd.DataFrame:
        """The totals of groups, given as (N,) flags by label, that have a delivered answer."""
        lines = {label: self._totals(members) for label, members in groups.items() if (members & self.delivered).any()}
        index = pd.Index(list(lines), name=name, dtype=object)
        return pd.DataFrame(list(lines.values()), index=index, columns=list(self._totals(self.delivered)))

    def _totals(self, members: Flags) -> dict[str, Any]:
        """Counts and shares of the delivered answers among some, given as (N,) flags."""
        lines = self.frame[members & self.delivered]
        delivered, holds, replaced = len(lines), (lines["verdict"] == "holds").sum(), lines["replacement"].sum()
        holds, replaced, keeping = int(holds), int(replaced), int(lines["keeps_advice"].sum())
        share, low, high = share_of(holds, delivered, self.confidence)
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
        """The audit as JSON; NaN becomes null.

        Keys: ``format`` ("avcg.audit"), ``version`` (1), ``models``, ``threshold``, ``confidence``, ``survival``,
        ``summary`` (an object), ``by_change``, ``by_count`` and ``by`` (lists of objects; null where there is nothing
        to group by), ``answers`` (one object for each line of ``frame`` with its ``index``), ``replacements`` (as
        `Counterfactuals.to_json` writes them, or null), ``monitor`` (one object for each model, or null).

        Args:
            by: Name of a column of the factuals, for the key ``by``; None: null.
        """
        tables = self.answers.changed is not None
        document = {
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
            "monitor": None if self.monitor is None else _records(self.monitor.frame, "model"),
        }
        return json.dumps(document, allow_nan=False, default=str)

    def to_html(self, by: str | None = None) -> str:
        """A self-contained HTML page with totals, groups, all lost answers and the assumptions.

        Args:
            by: Name of a column of the factuals to group by; None: no such table.
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
            lines[0] += " keeping the old advice"
        lines += [] if self.monitor is None else [str(self.monitor)]
        lost = self.frame[self.frame["verdict"] == "lost"]
        for at, line in lost.head(_SHOWN).iterrows():
            outcome = "" if self.replacements is None else ", no replacement found"
            if line["replacement"]:
                outcome = ", advice extended" if line["keeps_advice"] else ", new advice"
            probability = f"probability {line['probability_then']:.2f} -> {line['probability_now']:.2f}"
            lines.append(f"{at} -> {line['target']}: lost, {probability}{outcome}")
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
    """Check whether delivered answers are valid under other models.

    An answer holds if the model decides for its target. Under several models, the promised share of them must.

    Args:
        answers: The answers that were delivered, or the path of a file that `Counterfactuals.to_json` wrote.
        models: One model, several in a list, several by name, or a distribution of hypotheses (every member of a
            finite set, else 50 draws; each counts once). A model is anything with ``predict_proba`` on the user's
            rows, a `BlackBox`, the path of an ONNX file, or a fitted explainer, which stands for its deployed model.
        recourse: A fitted method that replaces lost answers, judged by the models. If possible, the answer is kept and
            changes are added to it; otherwise the row is answered again. The monitor compares the models with its
            calibration models. None: nothing is replaced or compared.
        threshold: Probability from which the second of two classes is decided for; None: as ``recourse`` decides.
        confidence: Confidence of intervals and bounds, in (0, 1).

    Raises:
        DataError: If the answers are damaged, or a model does not read the rows, does not have a target as a class, or
            fails.
        SettingError: If there are no models, or a parameter is out of range.

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
    threshold = getattr(getattr(recourse, "deployed_", recourse), "threshold", None) if threshold is None else threshold
    panel = Panel.of(models, delivered, threshold)
    frame = _judged(delivered, panel.votes(delivered.answers, delivered.target.repeat(delivered.n)), confidence)
    lost, new_answers = np.flatnonzero(frame["verdict"] == "lost"), None
    if recourse is not None and len(lost):
        check_is_fitted(recourse)
        replaced = replacements(panel, recourse, delivered, lost)
        new_answers = replaced.answers
        frame = frame.assign(
            replacement=_scatter(replaced.good, lost, frame, False),
            keeps_advice=_scatter(replaced.kept, lost, frame, False),
            extra_distance=_scatter(np.where(replaced.good, replaced.extra, np.nan), lost, frame, np.nan),
        )
    names, monitored = tuple(map(str, panel.names)), _monitored(panel, models, recourse, delivered)
    return Audit(delivered, frame, new_answers, names, threshold, confidence, monitored)


def _monitored(panel: Panel, models: Any, recourse: Explainer | None, delivered: Counterfactuals) -> Monitor | None:
    """The models that are new beside the calibration models of an explainer; None if it has none."""
    if not isinstance(recourse, AVCG) or not can_monitor(recourse):
        return None
    given = list(models.values()) if isinstance(models, Mapping) else models
    given = given if isinstance(given, list) else [given]
    new = [i for i in range(len(panel.names)) if len(given) != len(panel.names) or given[i] is not recourse]
    if not new:
        return None
    judges = panel.judges(recourse, delivered.answers)
    members = replace(judges, predictors=judges.predictors.subset(torch.tensor(new)))
    return monitor(recourse, members, [str(panel.names[i]) for i in new])


def _judged(delivered: Counterfactuals, votes: Votes, confidence: float) -> pd.DataFrame:
    """The frame of an audit, one line for each answer, without replacements."""
    count, now = len(votes.valid), votes.probability.mean(axis=0)
    verdict = np.where(votes.hold(delivered.survival), "holds", "lost")
    bound = clopper_pearson(votes.agreeing, count, confidence)  # for one model too, since it checks the confidence
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


def _scatter(values: NDArray[Any], positions: NDArray[np.intp], frame: pd.DataFrame, default: Any) -> NDArray[Any]:
    """(N,) the values at some positions among the N answers of a frame, and a default at all others."""
    result = np.full(len(frame), default)
    result[positions] = values
    return result


def survival_curve(
    answers: Counterfactuals | str | Path, models: Any, *, threshold: float | None = None, confidence: float = 0.95
) -> pd.DataFrame:
    """The share of delivered answers that is valid under each of a sequence of models.

    Args:
        answers: The answers that were delivered, as in `audit`.
        models: Models as in `audit`, in the order in which they follow each other, e.g. by month.
        threshold: Probability of the second of two classes from which the decision is for it; None: the most probable
            class.
        confidence: Confidence of the intervals, in (0, 1).

    Returns:
        One line for each model: the share of delivered answers that is ``valid`` under it, with an interval from
        ``low`` to ``high``, the share that is valid under it and all models before it (``so_far``), and the number of
        delivered answers ``n``.

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
    lines = [share_of(int(by_model.sum()), n, confidence) for by_model in valid]
    curve = pd.DataFrame(lines, columns=["valid", "low", "high"], index=pd.Index(panel.names, name="model"))
    together = np.logical_and.accumulate(valid, axis=0).sum(axis=1)
    return curve.assign(so_far=together / n if n else np.nan, n=n)


def feasibility(
    recourse: Explainer, X: Any, target: Any = None, *, by: str | None = None, confidence: float = 0.95
) -> pd.DataFrame:
    """The share of denied rows for which no valid answer is found, for all rows and by group.

    It does not mean that there is none. This is certain only for rows that may not change at all (``immovable``) and
    for those of which it is proven (``infeasible``). For all others the method finds none with ``effort="thorough"``,
    and another method may find one.

    Args:
        recourse: A fitted method.
        X: Rows in user units.
        target: The decision to reach, as in `Explainer.generate`; rows that have it already are left out.
        by: Name of a column of X to group by, numbers by quartile; None: no groups.
        confidence: Confidence of the intervals, in (0, 1).

    Returns:
        One line for all rows, then one for each group. The columns are the number of rows that are ``denied``, and
        among them the numbers that are ``immovable``, ``infeasible``, ``without`` a valid answer for these or any other
        reason, and whose answer is only ``not_robust``, with shares and their intervals.

    >>> from avcg import BlackBox, PointMass, toys
    >>> from avcg.baselines.nearest import NearestUnlike
    >>> loans = toys.loans(n=200)
    >>> rule = BlackBox(lambda rows: (rows["housing"] == "rent") * 1.0, loans.X, schema=loans.schema)
    >>> recourse = NearestUnlike(PointMass(rule)).fit(loans.X)
    >>> feasibility(recourse, loans.X, target=1, by="housing")["without_share"].round(2).to_dict()  # own never to rent
    {'all': 0.7, 'free': 0.0, 'own': 1.0}
    """
    answers = recourse.generate(X, target, effort="thorough")
    denied = answers.statuses != "already_target"
    groups: dict[Any, Flags] = {"all": denied}
    if by is not None:
        labels, order = groups_of(answers.factuals, by)
        groups |= {label: denied & (labels == label) for label in order}
    lines = {}
    for label, members in groups.items():
        observed = answers.statuses[members]
        if label != "all" and not len(observed):
            continue
        certain = ("immovable", "infeasible")
        line: dict[str, float] = {"denied": len(observed), **{name: int((observed == name).sum()) for name in certain}}
        for name, statuses in (("without", (*certain, "not_found")), ("not_robust", ("not_robust",))):
            count = int(np.isin(observed, statuses).sum())
            share, low, high = share_of(count, len(observed), confidence)
            line |= {name: count, f"{name}_share": share, f"{name}_low": low, f"{name}_high": high}
        lines[label] = line
    return pd.DataFrame(list(lines.values()), index=pd.Index(list(lines), name=by, dtype=object))


def read_answers(answers: Counterfactuals | str | Path) -> Counterfactuals:
    """Answers from memory or from a file, checked for completeness.

    Args:
        answers: The answers, or the path of a file that `Counterfactuals.to_json` wrote.

    Raises:
        DataError: If there is no such file, or the answers are damaged.
    """
    if isinstance(answers, Counterfactuals):
        delivered, source = answers, "The set of answers"
    else:
        path, source = Path(answers), Path(answers).name
        if not path.is_file():
            raise DataError(f"There is no file {str(answers)!r}. Give a file that Counterfactuals.to_json wrote.")
        try:
            delivered = Counterfactuals.from_json(path.read_bytes())
        except DataError as error:
            raise DataError(f"{source}: {error}") from error
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{source} is damaged: {type(error).__name__}: {error}. Store the answers again."
            ) from error
    total = len(delivered.target) * delivered.n
    counts = {
        "factuals": (len(delivered.factuals), len(delivered.target)),
        "answers": (len(delivered.answers), total),
        "statuses": (len(delivered.statuses), total),
        "probability": (len(delivered.probability), total),
        "distance": (len(delivered.distance), total),
        "changed": (total if delivered.changed is None else len(delivered.changed), total),
    }
    for name, (count, expected) in counts.items():
        if count != expected:
            raise DataError(f"{source} is damaged: it has {count} of {expected} {name!r}. Store the answers again.")
    if not 0 < delivered.survival < 1:
        raise DataError(
            f"{source} is damaged: its survival must be in (0, 1). Got {delivered.survival!r}. Store the answers again."
        )
    unknown = set(delivered.statuses.tolist()) - set(MEANING)
    if unknown:
        raise DataError(f"{source} is damaged: {unknown.pop()!r} is not a status. Store the answers again.")
    return delivered


def _records(table: pd.DataFrame, key: str) -> list[dict[str, Any]]:
    """The lines of a table for JSON, each with its label under a key."""
    lines = zip(table.index, table.to_dict("records"), strict=True)
    return [{key: _label(label)} | {str(name): to_json(v) for name, v in line.items()} for label, line in lines]


def _label(label: Any) -> Any:
    """The label of a line as a plain value, or as a list for an index of several levels."""
    return [to_json(part) for part in label] if isinstance(label, tuple) else to_json(label)
