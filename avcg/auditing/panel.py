"""Other models as judges of answers: what they say of the rows people received, and what they would accept instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from avcg.baselines.gradient import GradientSearch
from avcg.errors import DataError, SettingError, did_you_mean, enumerate_some
from avcg.explainers.base import Explainer
from avcg.explainers.counterfactuals import Counterfactuals
from avcg.guarantees.bounds import Floats
from avcg.hypotheses.base import HypothesisDistribution, check_same_reading
from avcg.hypotheses.finite import FiniteSet
from avcg.hypotheses.from_models import gather
from avcg.hypotheses.predictors import Opaque
from avcg.hypotheses.split import SplitConfig
from avcg.method.delivery import needed_votes, statuses
from avcg.models.black_box import BlackBox
from avcg.models.decision import DecisionRule, of_target
from avcg.models.sklearn import convertible
from avcg.space.encoding import Flags, Positions
from avcg.space.frames import open_frame, take_rows
from avcg.space.tabular import TabularSpace, table_of


@dataclass(frozen=True, eq=False)
class Votes:
    """What S models say of N rows.

    Attributes:
        probability: (S, N) of the target.
        margin: (S, N) how far that is beyond the line; for the likeliest of several classes, half the lead.
        valid: (S, N) whether the decision is for the target.
    """

    probability: Floats
    margin: Floats
    valid: Flags

    @property
    def agreeing(self) -> NDArray[np.int64]:
        """(N,) how many models decide for the target."""
        return self.valid.sum(axis=0)

    def hold(self, survival: float) -> Flags:
        """(N,) whether the promised share of models does."""
        return np.asarray(self.agreeing >= needed_votes(len(self.valid), survival))


@dataclass(frozen=True, eq=False)
class Panel:
    """Models that are asked about rows as people received them, never about codes.

    Attributes:
        names: By which the user knows them.
        models: Black boxes for tables, as given for images; none where there are hypotheses.
        drawn: Hypotheses, all with the same weight; None where there are models.
        threshold: Probability of the second of two classes from which the decision is for it; None: the likeliest.
    """

    names: tuple[Any, ...]
    models: tuple[Any, ...]
    drawn: FiniteSet | None
    threshold: float | None

    @classmethod
    def of(cls, models: Any, delivered: Counterfactuals, threshold: float | None) -> Panel:
        """Whatever the user calls models.

        Args:
            models: As `avcg.audit` takes them.
            delivered: For the rows they must take and the targets they must know.
            threshold: Of the decision.

        Raises:
            SettingError: If there are none, or they cannot be asked.
            DataError: If they do not take the rows or do not know a target.
        """
        DecisionRule(threshold)  # which refuses what is not a probability
        if isinstance(models, HypothesisDistribution):
            drawn = _drawn(models)
            return cls(tuple(range(len(drawn))), (), drawn, threshold)
        if isinstance(models, Mapping):
            named = dict(models)
        else:
            several = isinstance(models, Sequence) and not isinstance(models, str)
            named = dict(enumerate(models if several else [models]))
        if not named:
            raise SettingError("There must be at least one model to ask. Got none.")
        opened = []
        for name, model in named.items():
            with _naming(name, len(named)):
                opened.append(_opened(model, delivered))
        return cls(tuple(named), tuple(opened), None, threshold)

    def votes(self, rows: Any, target: NDArray[Any]) -> Votes:
        """What the models say of rows.

        Args:
            rows: N, in user units.
            target: (N,) labels.
        """
        each = [self._vote(*found, target) for found in self._asked(rows)]
        return Votes(*(np.stack(part) for part in zip(*each, strict=True)))

    def judges(self, recourse: Explainer, rows: Any) -> FiniteSet:
        """The models as hypotheses about the codes of a method.

        Args:
            recourse: Fitted.
            rows: In user units, as the models take them.
        """
        if self.drawn is not None:
            return self.drawn
        space, classes = recourse.space_, recourse.classes_
        table = table_of(space)
        if table is not None:
            frame = _pandas(rows)
            members = [_member(box, list(frame.columns)) for box in self.models]
            return FiniteSet(gather(members, frame, table, classes), space, classes)
        for model in self.models:
            check_same_reading(None, None, classes, model.classes_)
        asked = [lambda x, one=one: torch.from_numpy(_of_pictures(one, space.decode(x))) for one in self.models]
        return FiniteSet(Opaque(asked), space, classes)

    def _asked(self, rows: Any) -> list[tuple[Floats, NDArray[Any]]]:
        """For each model (N, C) probabilities and (C,) the labels."""
        if self.drawn is not None:
            space = self.drawn.space
            assert space is not None
            with torch.no_grad():
                found = self.drawn.predictors.bind_rows(rows).probabilities(space.encode(rows)).double().numpy()
            if np.isnan(found).any():
                raise DataError(f"{int(np.isnan(found).any(axis=(1, 2)).sum())} hypotheses return NaN for these rows.")
            labels = self.drawn.classes
            return [(one, np.arange(one.shape[1]) if labels is None else labels) for one in found]
        ask = _of_pictures if isinstance(rows, np.ndarray) else BlackBox.predict_proba
        answers = []
        for name, model in zip(self.names, self.models, strict=True):
            with _naming(name, len(self.models)):
                answers.append((ask(model, rows), np.asarray(model.classes_)))
        return answers

    def _vote(self, found: Floats, classes: NDArray[Any], target: NDArray[Any]) -> tuple[Floats, Floats, Flags]:
        place, rule = _places(classes, target), DecisionRule(self.threshold)
        rule.check_classes(len(classes))
        return of_target(found, place), rule.lead(found, place), rule.accepts(found, place)


@dataclass(frozen=True, eq=False)
class Replacements:
    """What M people are told instead of an answer that was lost.

    Attributes:
        answers: From the original rows, one for each.
        good: (M,) whether it convinces the models that the lost one did not.
        kept: (M,) whether it only adds to what was told.
        extra: (M,) what it costs more than what was told.
    """

    answers: Counterfactuals
    good: Flags
    kept: Flags
    extra: Floats


def replacements(panel: Panel, recourse: Explainer, delivered: Counterfactuals, lost: Positions) -> Replacements:
    """Look for what to tell instead: first what was told and something more, else something new.

    Args:
        panel: Whom it must convince.
        recourse: The method that looks.
        delivered: All answers.
        lost: (M,) places among them.
    """
    space, rows = recourse.space_, lost // delivered.n
    target, stand, factuals = (
        delivered.target[rows],
        take_rows(delivered.answers, lost),
        take_rows(delivered.factuals, rows),
    )
    if isinstance(factuals, pd.DataFrame):  # several answers to a row are told apart
        factuals = factuals.set_axis(delivered.index[lost])
    judges = panel.judges(recourse, delivered.answers)
    if isinstance(recourse, GradientSearch) and not judges.predictors.differentiable:
        raise SettingError(
            f"A {type(recourse).__name__} searches by gradients, and these models can only be asked. Use AVCG or"
            " avcg.baselines.nearest.RobustNeighbour as 'recourse'."
        )
    ask = _Asking(panel, recourse, judges, delivered.survival)
    kept, parts = np.zeros(len(lost), bool), []
    table = table_of(space)
    if table is not None:
        more = ask.answers(stand, target, *_left(table, stand, factuals))
        kept = panel.votes(more, target).hold(delivered.survival) & ~table.violations(more, factuals).any(axis=1)
        parts.append((take_rows(more, np.flatnonzero(kept)), np.flatnonzero(kept)))
    if not kept.all():
        rest = np.flatnonzero(~kept)
        parts.append((ask.answers(take_rows(factuals, rest), target[rest]), rest))
    instead = _merged(parts)
    if isinstance(factuals, pd.DataFrame):
        instead = instead.set_axis(factuals.index)
    found = _packaged(panel, recourse, factuals, instead, target, delivered.survival)
    good = np.isin(found.statuses, ("ok", "already_target"))
    return Replacements(found, good, kept, found.distance - _distance(space, stand, factuals))


@dataclass(frozen=True, eq=False)
class _Asking:
    """A method that answers for other models than those it learnt from."""

    panel: Panel
    recourse: Explainer
    judges: FiniteSet
    survival: float

    def answers(self, rows: Any, target: NDArray[Any], vary: Flags | None = None, most: Positions | None = None) -> Any:
        """M rows that the models may accept, whether they do or not.

        Args:
            rows: M, in user units, that they do not accept.
            target: (M,) labels.
            vary: (M, features) what may change; None: all that the schema lets.
            most: (M,) how many changes are left; None: as the schema says.
        """
        margins = self.panel.votes(rows, target).margin
        # On whom the promise hinges, of the models in the order of their favour: with the mean of them in force, a row
        # that most accept would count as settled, though the promise is not kept.
        hinge = np.argsort(-margins, axis=0, kind="stable")[needed_votes(len(margins), self.survival) - 1]
        parts = []
        for which in np.unique(hinge):
            at = np.flatnonzero(hinge == which)
            found = self._under(int(which)).generate(
                take_rows(rows, at),
                target[at],
                vary=None if vary is None else vary[at],
                max_changes=None if most is None else most[at].tolist(),
                refine=True,
            )
            parts.append((found.answers, at))
        return _merged(parts)

    def _under(self, which: int) -> Explainer:
        """The method with one of the models in force."""
        base = self.judges.predictors.subset(torch.tensor([which]))
        judges = FiniteSet(self.judges.predictors, self.judges.space, self.judges.classes, base)
        judged = self.recourse.judged_by(judges)
        judged.survival, judged.threshold = self.survival, self.panel.threshold
        judged.deployed_ = replace(judged.deployed_, threshold=self.panel.threshold)
        return judged


def _left(space: TabularSpace, delivered: Any, factuals: Any) -> tuple[Flags, Positions | None]:
    """(M, features) what an answer left as it was, and (M,) how many changes it left over."""
    unit = space.feasible.unit
    changed = space.changed(delivered, factuals) @ (unit[:, None] == unit)  # naming one of a link names them all
    cap = space.feasible.max_changes
    used = changed[:, np.unique(unit)].sum(axis=1)
    return ~changed, None if cap is None else np.maximum(cap - used, 0)


def _packaged(
    panel: Panel, recourse: Explainer, factuals: Any, instead: Any, target: NDArray[Any], survival: float
) -> Counterfactuals:
    """Replacements as people receive answers, judged by the models on what was decoded."""
    space = recourse.space_
    before, after = panel.votes(factuals, target), panel.votes(instead, target)
    holds, distance = after.hold(survival), _distance(space, instead, factuals)
    changed = None
    same = distance == 0
    table = table_of(space)
    if table is not None:
        places = [table.schema.names.index(name) for name in open_frame(factuals).columns]
        changed = table.changed(instead, factuals)[:, places]
        same = ~changed.any(axis=1)
    mean = (len(after.valid) > 1) & (after.margin.mean(axis=0) >= 0)
    immovable = space.immovable(space.encode(factuals)).numpy()
    return Counterfactuals(
        factuals=factuals,
        answers=instead,
        n=1,
        target=target,
        statuses=statuses(holds & same, immovable & ~holds, holds | mean, holds),
        probability=after.probability.mean(axis=0),
        probability_before=before.probability.mean(axis=0),
        distance=distance,
        changed=changed,
        repeated=np.zeros(len(target), bool),
        certificate=None,
        survival=survival,
    )


def _distance(space: Any, answers: Any, factuals: Any) -> Floats:
    found: Floats = space.distance(space.encode(answers), space.encode(factuals)).double().numpy()
    return found


def _merged(parts: Sequence[tuple[Any, Positions]]) -> Any:
    """Rows of several frames, each at the places given."""
    order = np.argsort(np.concatenate([at for _, at in parts]))
    rows = [some for some, at in parts if len(at)]
    if isinstance(rows[0], np.ndarray):
        return np.concatenate(rows)[order]
    return take_rows(nw.concat([nw.from_native(some, eager_only=True) for some in rows]).to_native(), order)


class _Known:
    """A black box as an estimator: whoever asks it learns its labels, and it picks its own columns."""

    def __init__(self, box: BlackBox) -> None:
        self.classes_, self.predict_proba = box.classes_, box.predict_proba


class InForce:
    """The model that an explainer answers for, as one that is asked about rows.

    Args:
        explainer: Fitted.
    """

    def __init__(self, explainer: Explainer) -> None:
        check_is_fitted(explainer)
        self._explainer, self.classes_ = explainer, explainer.classes_
        if explainer.space_.schema is not None:
            self.feature_names_in_ = np.array(explainer.space_.schema.names, object)

    def predict_proba(self, rows: Any) -> Floats:
        """(N, C)."""
        explainer = self._explainer
        found: Floats = (
            explainer.deployed_.bind_rows(rows).probabilities(explainer.space_.encode(rows)).double().numpy()
        )
        return found


def _member(box: BlackBox, columns: list[str]) -> Any:
    """What is judged by: the estimator itself where it can be had as a network on these columns."""
    same = list(getattr(box.model, "feature_names_in_", ())) == columns
    return box.model if same and convertible(box.model) else _Known(box)


def _drawn(models: HypothesisDistribution) -> FiniteSet:
    """Every member of a finite set, or draws; each counts once."""
    if models.space is None:
        raise SettingError("These hypotheses do not say what rows they read. Give them a space.")
    found = models.predictors if isinstance(models, FiniteSet) else models.sample(SplitConfig().n_draws)
    alike = found.subset(torch.arange(len(found)))
    alike.weights = torch.full((len(found),), 1.0 / len(found))
    return FiniteSet(alike, models.space, models.classes)


def _opened(model: Any, delivered: Counterfactuals) -> Any:
    """A model that takes the rows and knows the targets."""
    model = InForce(model) if isinstance(model, Explainer) else model
    if isinstance(delivered.answers, np.ndarray):
        if not (hasattr(model, "predict_proba") and hasattr(model, "classes_")):
            raise SettingError(f"To be asked about images, a {type(model).__name__} needs predict_proba and classes_.")
    elif not isinstance(model, BlackBox):
        model = _box(model, _pandas(delivered.answers), np.unique(delivered.target))
    _places(np.asarray(model.classes_), delivered.target)
    return model


def _box(model: Any, rows: pd.DataFrame, targets: NDArray[Any]) -> BlackBox:
    if isinstance(model, (str, Path)):
        found = BlackBox(model, rows)
        if len(found.classes_) == len(targets) == 2:
            return BlackBox(model, rows, classes=targets.tolist())
        raise SettingError(
            f"{Path(model).name} has {len(found.classes_)} probabilities and does not say of which classes; the answers"
            f" aim at {enumerate_some(targets.tolist())} alone. Name all classes in the order of the probabilities:"
            " avcg.BlackBox(path, X, classes=[...]), or --classes on the command line."
        )
    columns = getattr(model, "feature_names_in_", None)
    if columns is None:
        # A table of numbers without names was given names, which a model of such tables does not know.
        made_here = hasattr(model, "n_features_in_") and list(rows) == [f"x{i}" for i in range(rows.shape[1])]
        return BlackBox(model, rows.to_numpy() if made_here else rows)
    missing = [name for name in columns if name not in rows]
    if missing:
        raise DataError(
            f"The {type(model).__name__} reads column {missing[0]!r}, which the answers do not have."
            f" {did_you_mean(missing[0], rows)}"
        )
    return BlackBox(model, rows[list(columns)])


def _places(classes: NDArray[Any], target: NDArray[Any]) -> Positions:
    """(N,) where each target stands among the classes."""
    places = pd.Index(classes).get_indexer(pd.Index(target))
    if (places < 0).any():
        raise DataError(
            f"The answers aim at {target[places < 0].tolist()[0]!r}, which is no class of this model: it knows"
            f" {enumerate_some(classes.tolist())}."
        )
    return places


def _pandas(rows: Any) -> pd.DataFrame:
    return rows if isinstance(rows, pd.DataFrame) else open_frame(rows).to_pandas()


def _of_pictures(model: Any, images: NDArray[Any]) -> Floats:
    """(N, C) probabilities; a black box reads frames, so it is given places, and its checks hold for images too."""

    def ask(places: pd.DataFrame) -> Any:
        return model.predict_proba(images[places["image"].to_numpy()])

    ask.__name__ = type(model).__name__
    places = pd.DataFrame({"image": np.arange(len(images))})
    return BlackBox(ask, places, classes=model.classes_).predict_proba(places)


@contextmanager
def _naming(name: Any, count: int) -> Iterator[None]:
    """Say which of several models it was."""
    try:
        yield
    except (DataError, SettingError) as error:
        if count == 1:
            raise
        raise type(error)(f"Model {name!r}: {error}") from error
