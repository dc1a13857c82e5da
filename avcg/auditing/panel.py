"""Other models as judges of answers: their votes on the rows that people received, and replacements they accept."""

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
from avcg.space.dummies import in_entries
from avcg.space.encoding import Flags, Positions
from avcg.space.frames import open_frame, take_rows
from avcg.space.tabular import TabularSpace, table_of


@dataclass(frozen=True, eq=False)
class Votes:
    """The predictions of S models for N rows with a target each.

    Attributes:
        probability: (S, N) probability of the target.
        margin: (S, N) difference between that probability and the decision threshold; for more than two classes, half
            the difference from the most probable other class.
        valid: (S, N) whether the decision is for the target.
    """

    probability: Floats
    margin: Floats
    valid: Flags

    @property
    def agreeing(self) -> NDArray[np.int64]:
        """(N,) the number of models that decide for the target."""
        return self.valid.sum(axis=0)

    def hold(self, survival: float) -> Flags:
        """(N,) whether the promised share of models decides for the target."""
        return np.asarray(self.agreeing >= needed_votes(len(self.valid), survival))


@dataclass(frozen=True, eq=False)
class Panel:
    """Models that are evaluated on rows as people received them, never on codes.

    Attributes:
        names: The user's names of the models, or their positions.
        models: The models, for tables as black boxes; empty if there are hypotheses.
        drawn: Hypotheses with equal weights; None if there are models.
        threshold: Probability of the second of two classes from which the decision is for it; None: the most probable
            class.
    """

    names: tuple[Any, ...]
    models: tuple[Any, ...]
    drawn: FiniteSet | None
    threshold: float | None

    @classmethod
    def of(cls, models: Any, delivered: Counterfactuals, threshold: float | None) -> Panel:
        """A panel of the models that a user gives.

        Args:
            models: One or several models, as `avcg.audit` takes them.
            delivered: The answers, whose columns the models must read and whose targets must be among their classes.
            threshold: Probability of the second of two classes from which the decision is for it; None: the most
                probable class.

        Raises:
            SettingError: If there are no models, or they cannot be evaluated.
            DataError: If a model does not read the rows or does not have a target as a class.
        """
        DecisionRule(threshold)  # raises an error if the threshold is not a probability
        if isinstance(models, HypothesisDistribution):
            drawn = _equally_weighted(models)
            return cls(tuple(range(len(drawn))), (), drawn, threshold)
        if isinstance(models, Mapping):
            named = dict(models)
        else:
            several = isinstance(models, Sequence) and not isinstance(models, str)
            named = dict(enumerate(models if several else [models]))
        if not named:
            raise SettingError("There must be at least one model to audit by. Got none.")
        checked = []
        for name, model in named.items():
            with _naming(name, len(named)):
                checked.append(_checked(model, delivered))
        return cls(tuple(named), tuple(checked), None, threshold)

    def votes(self, rows: Any, target: NDArray[Any]) -> Votes:
        """The predictions of all models for rows.

        Args:
            rows: N rows in user units.
            target: (N,) labels of the targets.
        """
        votes = [self._vote(probabilities, classes, target) for probabilities, classes in self._predictions(rows)]
        return Votes(*(np.stack(part) for part in zip(*votes, strict=True)))

    def judges(self, recourse: Explainer, rows: Any) -> FiniteSet:
        """The models as hypotheses that read the codes of a method.

        Args:
            recourse: A fitted method.
            rows: Rows in user units, with the columns that the models read.
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
        functions = [
            lambda x, model=model: torch.from_numpy(_predict_images(model, space.decode(x))) for model in self.models
        ]
        return FiniteSet(Opaque(functions), space, classes)

    def _predictions(self, rows: Any) -> list[tuple[Floats, NDArray[Any]]]:
        """The (N, C) probabilities of each model, and its (C,) class labels."""
        if self.drawn is not None:
            space = self.drawn.space
            assert space is not None
            with torch.no_grad():
                predictors = self.drawn.predictors.bind_rows(rows)
                probabilities = predictors.probabilities(space.encode(rows)).double().numpy()
            if np.isnan(probabilities).any():
                count = int(np.isnan(probabilities).any(axis=(1, 2)).sum())
                raise DataError(f"Probabilities must be numbers. Got NaN from {count} hypotheses for these rows.")
            labels = self.drawn.classes
            return [(part, np.arange(part.shape[1]) if labels is None else labels) for part in probabilities]
        predict = _predict_images if isinstance(rows, np.ndarray) else BlackBox.predict_proba
        predictions = []
        for name, model in zip(self.names, self.models, strict=True):
            with _naming(name, len(self.models)):
                predictions.append((predict(model, rows), np.asarray(model.classes_)))
        return predictions

    def _vote(self, probabilities: Floats, classes: NDArray[Any], target: NDArray[Any]) -> tuple[Floats, Floats, Flags]:
        """The fields of `Votes` for one model, given its (N, C) probabilities."""
        at, rule = _positions(classes, target), DecisionRule(self.threshold)
        rule.check_classes(len(classes))
        return of_target(probabilities, at), rule.lead(probabilities, at), rule.accepts(probabilities, at)


@dataclass(frozen=True, eq=False)
class Replacements:
    """Replacements of M lost answers.

    Attributes:
        answers: One answer for each, as a change of the original row.
        good: (M,) whether the models accept the replacement.
        kept: (M,) whether the replacement only adds changes to the lost answer.
        extra: (M,) additional cost compared with the lost answer.
    """

    answers: Counterfactuals
    good: Flags
    kept: Flags
    extra: Floats


def replacements(panel: Panel, recourse: Explainer, delivered: Counterfactuals, lost: Positions) -> Replacements:
    """Replacements of lost answers: the lost answer with added changes if possible, else a new answer.

    Args:
        panel: The models that must accept a replacement.
        recourse: The fitted method that searches.
        delivered: All answers.
        lost: (M,) positions of the lost answers among them.
    """
    space, rows = recourse.space_, lost // delivered.n
    target, lost_answers, factuals = (
        delivered.target[rows],
        take_rows(delivered.answers, lost),
        take_rows(delivered.factuals, rows),
    )
    if isinstance(factuals, pd.DataFrame):  # a row with several lost answers needs an index for each
        factuals = factuals.set_axis(delivered.index[lost])
    judges = panel.judges(recourse, delivered.answers)
    if isinstance(recourse, GradientSearch) and not judges.predictors.differentiable:
        raise SettingError(
            f"A {type(recourse).__name__} as 'recourse' needs models with gradients. Got black-box models, which have"
            " none. Use AVCG or avcg.baselines.nearest.RobustNeighbour instead."
        )
    method = _RejudgedMethod(panel, recourse, judges, delivered.survival)
    kept, parts = np.zeros(len(lost), bool), []
    table = table_of(space)
    if table is not None:
        extended = method.answers(lost_answers, target, *_remaining(table, lost_answers, factuals))
        holds = panel.votes(extended, target).hold(delivered.survival)
        kept = holds & ~table.violations(extended, factuals).any(axis=1)
        parts.append((take_rows(extended, np.flatnonzero(kept)), np.flatnonzero(kept)))
    if not kept.all():
        rest = np.flatnonzero(~kept)
        parts.append((method.answers(take_rows(factuals, rest), target[rest]), rest))
    new_rows = _merged(parts)
    if isinstance(factuals, pd.DataFrame):
        new_rows = new_rows.set_axis(factuals.index)
    answers = _packaged(panel, recourse, factuals, new_rows, target, delivered.survival)
    good = np.isin(answers.statuses, ("ok", "already_target"))
    return Replacements(answers, good, kept, answers.distance - _distance(space, lost_answers, factuals))


@dataclass(frozen=True, eq=False)
class _RejudgedMethod:
    """A fitted method whose answers are judged by the models of a panel, as hypotheses that read its codes."""

    panel: Panel
    recourse: Explainer
    judges: FiniteSet
    survival: float

    def answers(self, rows: Any, target: NDArray[Any], vary: Flags | None = None, most: Positions | None = None) -> Any:
        """The best answers to M rows that the method finds, whether the models accept them or not.

        Args:
            rows: M rows in user units, which the models do not accept.
            target: (M,) labels of the targets.
            vary: (M, features) which features may change; None: all that the schema lets.
            most: (M,) largest number of changes; None: as the schema says.
        """
        margins = self.panel.votes(rows, target).margin
        # The deployed model for a row is the last one that must agree to keep the promise, in descending order of
        # margin. With the mean of the models, a row that most accept would count as done, although the promise is not
        # kept.
        decisive = np.argsort(-margins, axis=0, kind="stable")[needed_votes(len(margins), self.survival) - 1]
        parts = []
        for model in np.unique(decisive):
            members = np.flatnonzero(decisive == model)
            answered = self._with_deployed(int(model)).generate(
                take_rows(rows, members),
                target[members],
                vary=None if vary is None else vary[members],
                max_changes=None if most is None else most[members].tolist(),
                effort="thorough",
            )
            parts.append((answered.answers, members))
        return _merged(parts)

    def _with_deployed(self, position: int) -> Explainer:
        """The method with the model at a position as the deployed model."""
        base = self.judges.predictors.subset(torch.tensor([position]))
        judges = FiniteSet(self.judges.predictors, self.judges.space, self.judges.classes, base)
        judged = self.recourse.judged_by(judges)
        judged.promise_, judged.threshold = replace(judged.promise_, survival=self.survival), self.panel.threshold
        judged.deployed_ = replace(judged.deployed_, threshold=self.panel.threshold)
        return judged


def _remaining(space: TabularSpace, delivered: Any, factuals: Any) -> tuple[Flags, Positions | None]:
    """(M, features) whether an answer leaves each feature unchanged, and the (M,) numbers of changes that remain."""
    unit = space.feasible.unit
    changed = space.changed(delivered, factuals) @ (unit[:, None] == unit)  # a link changes as a whole
    cap = space.feasible.max_changes
    used = changed[:, np.unique(unit)].sum(axis=1)
    return ~changed, None if cap is None else np.maximum(cap - used, 0)


def _packaged(
    panel: Panel, recourse: Explainer, factuals: Any, answers: Any, target: NDArray[Any], survival: float
) -> Counterfactuals:
    """Replacements as people receive them, with status and probabilities by the panel's models."""
    space = recourse.space_
    before, after = panel.votes(factuals, target), panel.votes(answers, target)
    holds, distance = after.hold(survival), _distance(space, answers, factuals)
    changed = None
    same = distance == 0
    table = table_of(space)
    if table is not None:
        changed = in_entries(table.schema, open_frame(factuals).columns, table.changed(answers, factuals))
        same = ~changed.any(axis=1)
    mean = (len(after.valid) > 1) & (after.margin.mean(axis=0) >= 0)
    immovable = space.immovable(space.encode(factuals)).numpy()
    return Counterfactuals(
        factuals=factuals,
        answers=answers,
        n=1,
        target=target,
        statuses=statuses(holds & same, immovable & ~holds, np.zeros(len(holds), bool), holds | mean, holds),
        probability=after.probability.mean(axis=0),
        probability_before=before.probability.mean(axis=0),
        distance=distance,
        changed=changed,
        repeated=np.zeros(len(target), bool),
        certificate=None,
        survival=survival,
        groups=() if table is None else table.schema.grouped,
    )


def _distance(space: Any, answers: Any, factuals: Any) -> Floats:
    """(N,) the cost of the change from factuals to answers, both in user units."""
    distances: Floats = space.distance(space.encode(answers), space.encode(factuals)).double().numpy()
    return distances


def _merged(parts: Sequence[tuple[Any, Positions]]) -> Any:
    """The rows of several frames or arrays as one, each at its position."""
    order = np.argsort(np.concatenate([positions for _, positions in parts]))
    frames = [frame for frame, positions in parts if len(positions)]
    if isinstance(frames[0], np.ndarray):
        return np.concatenate(frames)[order]
    return take_rows(nw.concat([nw.from_native(frame, eager_only=True) for frame in frames]).to_native(), order)


class _Estimator:
    """A black box as an estimator with class labels, which selects its own columns."""

    def __init__(self, box: BlackBox) -> None:
        self.classes_, self.predict_proba = box.classes_, box.predict_proba


class InForce:
    """The deployed model of an explainer, as an estimator on rows in user units.

    Args:
        explainer: A fitted explainer.
    """

    def __init__(self, explainer: Explainer) -> None:
        check_is_fitted(explainer)
        self._explainer, self.classes_ = explainer, explainer.classes_
        if explainer.space_.schema is not None:
            self.feature_names_in_ = np.array(explainer.space_.schema.columns, object)

    def predict_proba(self, rows: Any) -> Floats:
        """(N, C) probabilities of rows in user units."""
        deployed, x = self._explainer.deployed_.bind_rows(rows), self._explainer.space_.encode(rows)
        probabilities: Floats = deployed.probabilities(x).double().numpy()
        return probabilities


def _member(box: BlackBox, columns: list[str]) -> Any:
    """The estimator inside a black box if it can be converted to a network on these columns, else the black box."""
    same = list(getattr(box.model, "feature_names_in_", ())) == columns
    return box.model if same and convertible(box.model) else _Estimator(box)


def _equally_weighted(models: HypothesisDistribution) -> FiniteSet:
    """All members of a finite set, or draws from any other distribution, with equal weights."""
    if models.space is None:
        raise SettingError("These hypotheses have no space, so rows cannot be encoded for them. Give them one.")
    members = models.predictors if isinstance(models, FiniteSet) else models.sample(SplitConfig().n_draws)
    equal = members.subset(torch.arange(len(members)))
    equal.weights = torch.full((len(members),), 1.0 / len(members))
    return FiniteSet(equal, models.space, models.classes)


def _checked(model: Any, delivered: Counterfactuals) -> Any:
    """A model, as a black box for tables, which reads the rows and has the targets among its classes."""
    model = InForce(model) if isinstance(model, Explainer) else model
    if isinstance(delivered.answers, np.ndarray):
        if not (hasattr(model, "predict_proba") and hasattr(model, "classes_")):
            raise SettingError(f"A model of images must have predict_proba and classes_. Got a {type(model).__name__}.")
    elif not isinstance(model, BlackBox):
        model = _box(model, _pandas(delivered.answers), np.unique(delivered.target))
    _positions(np.asarray(model.classes_), delivered.target)
    return model


def _box(model: Any, rows: pd.DataFrame, targets: NDArray[Any]) -> BlackBox:
    """A black box for a model or the path of an ONNX file, given the answers and the labels that they aim at."""
    if isinstance(model, (str, Path)):
        box = BlackBox(model, rows)
        if len(box.classes_) == len(targets) == 2:
            return BlackBox(model, rows, classes=targets.tolist())
        raise SettingError(
            f"{Path(model).name} has {len(box.classes_)} probabilities without names of classes, and the answers aim at"
            f" {enumerate_some(targets.tolist())} only. Name all classes in the order of the probabilities:"
            " avcg.BlackBox(path, X, classes=[...]), or --classes on the command line."
        )
    columns = getattr(model, "feature_names_in_", None)
    if columns is None:
        # Columns of an array are named x0, x1, ..., and a model that was fitted to an array expects no names.
        from_array = hasattr(model, "n_features_in_") and list(rows) == [f"x{i}" for i in range(rows.shape[1])]
        return BlackBox(model, rows.to_numpy() if from_array else rows)
    missing = [name for name in columns if name not in rows]
    if missing:
        raise DataError(
            f"The {type(model).__name__} reads column {missing[0]!r}, which the answers do not have."
            f" {did_you_mean(missing[0], rows)}"
        )
    return BlackBox(model, rows[list(columns)])


def _positions(classes: NDArray[Any], target: NDArray[Any]) -> Positions:
    """(N,) the position of each target among the classes of a model."""
    positions = pd.Index(classes).get_indexer(pd.Index(target))
    if (positions < 0).any():
        raise DataError(
            f"The answers aim at {target[positions < 0].tolist()[0]!r}, which is not a class of this model. Its classes"
            f" are {enumerate_some(classes.tolist())}."
        )
    return positions


def _pandas(rows: Any) -> pd.DataFrame:
    """Rows as a pandas frame."""
    return rows if isinstance(rows, pd.DataFrame) else open_frame(rows).to_pandas()


def _predict_images(model: Any, images: NDArray[Any]) -> Floats:
    """(N, C) probabilities of images, with the checks of `BlackBox`, which reads a frame of their positions."""

    def predict(positions: pd.DataFrame) -> Any:
        return model.predict_proba(images[positions["image"].to_numpy()])

    predict.__name__ = type(model).__name__
    positions = pd.DataFrame({"image": np.arange(len(images))})
    return BlackBox(predict, positions, classes=model.classes_).predict_proba(positions)


@contextmanager
def _naming(name: Any, count: int) -> Iterator[None]:
    """A context in which errors name the model, if there are several."""
    try:
        yield
    except (DataError, SettingError) as error:
        if count == 1:
            raise
        raise type(error)(f"Model {name!r}: {error}") from error
