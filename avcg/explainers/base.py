"""The base class of all methods: from rows and targets to answers with a status and a certificate.

A method implements `_fit` and `_candidates`. The base class does the rest: it reads rows, targets and constraints,
chooses among candidates, decodes them, and judges and certifies the decoded rows that people receive.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from avcg.errors import DataError, SchemaError, SettingError, check_int
from avcg.explainers.counterfactuals import Counterfactuals
from avcg.explainers.packaging import Packaging
from avcg.guarantees.conformal import Promise
from avcg.guarantees.statement import Statement
from avcg.hypotheses.base import HypothesisDistribution, check_same_reading, narrowed_space
from avcg.hypotheses.finite import FiniteSet, PointMass
from avcg.hypotheses.on_device import OnDevice
from avcg.hypotheses.predictors import Joined, Predictors
from avcg.hypotheses.split import HypothesisSplit, Taught
from avcg.method.acceptance import Acceptance, any_class
from avcg.method.deployed import DeployedModel
from avcg.method.query import Effort, Query, QueryOptions, check_effort, target_positions
from avcg.method.recipe import Recipe
from avcg.method.refine import Refiner
from avcg.models.adapter import Model, as_rows, class_positions
from avcg.models.black_box import BlackBox
from avcg.schema.schema import Schema
from avcg.space.base import Space
from avcg.space.encoding import Codes, Positions

_ANSWERS_AT_ONCE = 16_384  # it bounds memory and changes no result
_DEFAULT_RECIPE = Recipe()


class Explainer(BaseEstimator):  # type: ignore[misc]
    """The base class of explainers; `AVCG` is the one most people want.

    Args:
        hypotheses: The distribution over plausible models.
        schema: What may change; None: the hypotheses' own schema. It may narrow that schema, but not change the type
            of a column.
        model: The deployed model, whose decision counts; None: the one the hypotheses were made around, or their mean.
        threshold: Probability of the second of two classes from which the decision is for it; None: that by which the
            deployed model itself decides (`BlackBox.threshold`), or the most probable class.
        survival: Share of models that is promised to agree with an answer, in (0, 1).
        n_test: Number of hypotheses held out to test answers; None: an eighth of a finite set, or 50 draws.
        device: PyTorch device on which models are evaluated and networks trained.
        random_state: Seed of all random numbers.

    Attributes:
        space_: The space of encoded rows and what they may change.
        classes_: The labels of all classes.
        deployed_: The deployed model with its decision rule.
        split_: The hypotheses that train, calibrate and test.
        judges_: The deployed model and hypotheses trained against, which accept or reject candidates.
        promise_: What answers are judged by; set when the method is fitted or calibrated, not by `set_params`.
    """

    space_: Space
    classes_: NDArray[Any]
    deployed_: DeployedModel
    split_: HypothesisSplit
    judges_: Predictors
    promise_: Promise

    def __init__(
        self,
        hypotheses: HypothesisDistribution,
        schema: Schema | None = None,
        *,
        model: Model | BlackBox | None = None,
        threshold: float | None = None,
        survival: float = 0.95,
        n_test: int | None = None,
        device: str = "cpu",
        random_state: int = 0,
    ) -> None:
        self.hypotheses = hypotheses
        self.schema = schema
        self.model = model
        self.threshold = threshold
        self.survival = survival
        self.n_test = n_test
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the method to training rows.

        Args:
            X: Training rows, in user units.
            y: (N,) labels, for methods that use them; None: the deployed model's decisions.
        """
        # A fit that fails must leave the explainer as it was, so a copy is fitted first.
        fitted = type(self)(**self.get_params(deep=False))
        rng, _, x, labels = fitted._prepare(X, y)
        fitted._fit(x, labels, rng)
        fitted.is_fitted_ = True
        self.__dict__.update(fitted.__dict__)
        return self

    @classmethod
    def default_settings(cls) -> dict[str, Any]:
        """The settings objects that arguments of the constructor stand for if they are None, by argument.

        A benchmark protocol changes single fields of these objects.
        """
        return {}

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "is_fitted_")

    def _prepare(
        self, X: Any, y: Any, taught: Taught | None = None
    ) -> tuple[torch.Generator, Any, Tensor, Tensor | None]:
        """Check the settings and rows, and set all attributes that do not depend on the method.

        Args:
            X: Training rows in user units.
            y: (N,) labels, or None.
            taught: Hypotheses that the method was trained against before; None: there are none.

        Returns:
            The random numbers, the rows, the (N, *event) encoded rows, and the (N,) class positions of ``y`` or None.
        """
        self.promise_ = self._asked_promise()
        seed = check_int(self.random_state, f"'random_state' of {type(self).__name__}", 0)
        if not isinstance(self.hypotheses, HypothesisDistribution):
            raise SettingError(
                f"'hypotheses' must be a distribution over models, e.g. avcg.retrains(...). Got a"
                f" {type(self.hypotheses).__name__}; for a single network use avcg.PointMass(model), for any other"
                " model avcg.PointMass(avcg.BlackBox(model, X))."
            )
        rows = as_rows(X)
        self.space_ = narrowed_space(self.hypotheses.space, self.schema, rows)
        rng = torch.Generator().manual_seed(seed)
        deployed = None
        if self.model is not None:
            given = PointMass(self.model)
            check_same_reading(self.hypotheses.space, given.space, self.hypotheses.classes, given.classes)
            deployed = given.predictors
        config = self._choices.split
        self.split_ = HypothesisSplit.of(
            self.hypotheses,
            rng,
            deployed=deployed,
            n_test=self.n_test,
            calibrate=self._calibrates,
            taught=taught,
            config=config,
        )
        self.judges_ = Joined([self.split_.deployed, self.split_.train.sample(config.n_judges, rng=rng)])
        device = self._torch_device()
        if device.type != "cpu":  # hypotheses are evaluated there, since that takes most of the time
            self.judges_, self.split_ = OnDevice(self.judges_, device), self.split_.on(device)
        self.deployed_ = DeployedModel(self.split_.deployed, self.threshold)
        x = self.space_.encode(rows)
        if bool(self.space_.immovable(x).all()):
            raise SchemaError("No training row may change anything. Free a column of the schema, or widen a range.")
        classes = self.hypotheses.classes
        n_classes = self.deployed_.probabilities(x[:2]).shape[1]
        self.classes_ = np.arange(n_classes) if classes is None else np.asarray(classes)
        labels = None if y is None else class_positions(np.asarray(y), self.classes_)
        if labels is not None and len(labels) != len(x):
            raise DataError(f"There must be one label per row, {len(x)} in all. Got {len(labels)} instead.")
        return rng, rows, x, labels

    def _torch_device(self) -> torch.device:
        try:
            return torch.device(self.device)
        except RuntimeError:
            name = type(self).__name__
            raise SettingError(
                f"The 'device' of {name} must be the name of a PyTorch device, such as 'cpu' or 'cuda'. Got"
                f" {self.device!r} instead."
            ) from None

    def decide(self, X: Any) -> NDArray[Any]:
        """(N,) the deployed model's decisions, by its decision rule.

        Args:
            X: Rows in user units.
        """
        check_is_fitted(self)
        rows = as_rows(X)
        read = self.space_.read(rows)
        probabilities = self.deployed_.bind_rows(rows).probabilities(self.space_.encode(read))
        return self.classes_[self.deployed_.decide(probabilities).cpu().numpy()]

    def judged_by(self, judges: FiniteSet) -> Self:
        """This method with other judges: newer models accept its answers, in place of those it was trained against.

        The method is not trained again, so more rows may be left without an answer; `generate` says which. There is no
        certificate and no promise, because these models take part in choosing the answers.

        Args:
            judges: Models over the same columns and classes. Their base decides, or their mean where they have none.
        """
        check_is_fitted(self)
        if not isinstance(judges, FiniteSet):
            raise SettingError(
                f"The 'judges' must be a set of models. Got a {type(judges).__name__}; make one with"
                " avcg.from_models(models, X, space=explainer.space_)."
            )
        check_same_reading(self.hypotheses.space, judges.space, self.classes_, judges.classes)
        deployed = judges.predictors if judges.base is None else judges.base
        rejudged = copy.copy(self)
        rejudged.deployed_ = DeployedModel(deployed, self.threshold)
        rejudged.judges_ = Joined([deployed, judges.predictors])
        rejudged.split_ = replace(self.split_, deployed=deployed, calibration=None, test=None)
        return rejudged

    def solve(self, x: Tensor, target: Tensor, *, n: int = 1, effort: Effort = "standard") -> Tensor:
        """Encoded answers to encoded rows, without status or certificate; all rows in one batch.

        Args:
            x: (B, *event) encoded rows.
            target: (B,) positions of the target classes.
            n: Number of answers for each row.
            effort: Work spent on closer answers, as in `generate`.

        Returns:
            (n, B, *event) encoded, feasible answers.
        """
        check_is_fitted(self)
        check_effort(effort)
        arrays = x.cpu().numpy(), target.cpu().numpy()
        query = Query(*arrays, self.space_.codes, n, effort=effort, typicality=self.typicality)
        return torch.from_numpy(self._answers(query))

    def generate(
        self,
        X: Any,
        target: Any = None,
        *,
        n: int = 1,
        vary: Any = None,
        ranges: Any = None,
        min_prob: float | None = None,
        max_changes: int | Sequence[int] | None = None,
        effort: Effort = "standard",
        typicality: float | None = None,
        time_budget: float | None = None,
    ) -> Counterfactuals:
        """Find for each row what to change so that the decision becomes the target.

        Args:
            X: Rows in user units.
            target: The decision to reach: one label for all rows, one for each row, or None for any class other than
                the present one.
            n: Number of answers for each row.
            vary: What may change in this query, as `TabularSpace.restrict` takes it; None: all that the schema lets.
            ranges: Where values may go in this query, as `TabularSpace.restrict` takes it; None: as the schema says.
            min_prob: Probability of the target that the deployed model must give; None: enough for its decision.
            max_changes: Largest number of features that may change at once; one number, or one for each row.
            effort: Work spent on closer answers: ``"fast"``, one pass, ``"standard"`` or ``"thorough"``.
            typicality: How typical answers are, from 0, the nearest to the row, to 1, like the people who were
                accepted; None: the recipe's default.
            time_budget: Seconds after which no further step is begun, and the best answers so far are given; None: no
                limit.

        Returns:
            n answers for each row, with their status.
        """
        options = QueryOptions(n, vary, ranges, min_prob, max_changes, effort, typicality, time_budget)
        return self.query(X, target, options)

    def query(self, X: Any, target: Any, options: QueryOptions) -> Counterfactuals:
        """Answer rows as `generate` does, with the options in one object.

        Args:
            X: Rows in user units.
            target: The decision to reach, as in `generate`.
            options: What is asked for beside rows and target.
        """
        check_is_fitted(self)
        rows = as_rows(X)
        read = self.space_.read(rows)
        encoded = self.space_.encode(read)
        space = self.space_
        if options.restricts:
            space = space.restrict_rows(options.vary, options.ranges, options.max_changes, len(encoded))
        rule, x = self.deployed_.rule, encoded.numpy()
        before = self.deployed_.bind_rows(rows).probabilities(encoded).cpu().numpy()
        targets, any_other = target_positions(target, rule.decide(before), self.classes_.tolist())
        query, aimed = options.query(x, targets, space.codes, self.typicality), targets.copy()
        unchanged = rule.valid(before, targets, options.min_prob) | query.space.immovable(x)
        codes = np.broadcast_to(x, (options.n, *x.shape)).copy()
        open_rows = np.flatnonzero(~unchanged)
        at_once = max(1, _ANSWERS_AT_ONCE // options.n)
        for start in range(0, len(open_rows), at_once):
            part = open_rows[start : start + at_once]
            codes[:, part], aimed[part] = self._answer(query.take(part), any_other)
        statements = {each.target: each for each in self.statements(options, any_class=any_other)}
        packaging = Packaging(
            self.deployed_, self.split_, self.classes_, self.promise_.survival, self._choices.search.confidence
        )
        return packaging.package(rows, read, replace(query, target=aimed), codes, before, space, statements)

    def statements(self, options: QueryOptions | None = None, *, any_class: bool = False) -> list[Statement]:
        """What is promised to the people who are answered, one statement for each target class.

        Args:
            options: What is asked for; None: one answer without restrictions.
            any_class: Whether any class other than the present one will do. If there are more than two, answers aim
                at the class that is cheapest to reach, which no promise was calibrated for.

        Returns:
            The statements in the order of the classes; none without calibration.
        """
        options = options or QueryOptions()
        statements = list(self._statements(options.effort).values())
        if not options.is_calibrated(self.typicality) or (any_class and len(self.classes_) > 2):
            return [each.not_for_this_query() for each in statements]
        return statements

    def _answer(self, query: Query, any_other: bool) -> tuple[Codes, Positions]:
        """(n, B, *event) answers and the (B,) classes they aim at, for rows that fit in memory."""
        if any_other and len(self.classes_) > 2:
            return any_class(self.acceptance, query, len(self.classes_), self._answers)
        return self._answers(query), query.target

    def _answers(self, query: Query) -> Codes:
        """(n, B, *event) the cheapest candidates of each row, all different if there are enough, the cheapest first.

        Published methods answer as published; with thorough effort, changes that an answer does not need are undone.
        """
        answers = self.acceptance.best(query, self._candidates(in_torch(query)).cpu().numpy())
        if query.effort == "thorough":
            margin = (self.deployed_.rule.log_odds(query.target) + self._choices.search.refined_margin).astype(
                np.float32
            )
            refiner, steps = Refiner(self.acceptance), self._choices.search.steps
            closer = np.stack([refiner.refined(query, answer, margin, steps) for answer in answers])
            first = (closer[:, None] == closer[None]).reshape(*[len(answers)] * 2, len(query.x), -1).all(axis=-1)
            repeated = np.tril(np.moveaxis(first, -1, 0), -1).any(axis=-1).T  # answers that differ stay different
            answers = np.where(repeated.reshape(*repeated.shape, *[1] * (query.x.ndim - 1)), answers, closer)
        return self.acceptance.ranked(query, answers)

    @property
    def typicality(self) -> float:
        """How typical answers are where a query does not say, from 0, the nearest, to 1."""
        return self._choices.typicality

    @property
    def _choices(self) -> Recipe:
        """The recipe with every choice that changes results; the default one for methods that are not given any."""
        return _DEFAULT_RECIPE

    @property
    def acceptance(self) -> Acceptance:
        """Which candidates are accepted, by the deployed model and hypotheses trained against, never held-out ones."""
        weights = self.judges_.weights.double().numpy()
        deployed_weights = self.split_.deployed.weights.double().numpy()
        rule, choices = self.deployed_.rule, self._choices
        survival = self.promise_.survival
        return Acceptance(self._judge, weights, deployed_weights, rule, survival, choices.spread, choices.search)

    def _judge(self, x: Codes) -> NDArray[Any]:
        """(S, N, C) probabilities of the judges for (N, *event) encoded rows.

        In float64, so that no answer depends on the last digits, which differ from library to library and with the
        number of rows.
        """
        with torch.no_grad():
            return self.judges_.probabilities(torch.from_numpy(x).double()).cpu().numpy()

    @property
    def _calibrates(self) -> bool:
        """Whether the method keeps some hypotheses from training to calibrate by."""
        return False

    def _asked_promise(self) -> Promise:
        """The promise that the settings ask for."""
        return Promise(survival=self.survival)

    def _statements(self, effort: Effort) -> Mapping[Any, Statement]:  # noqa: ARG002  for methods that calibrate
        """What is promised, by target label; nothing without calibration."""
        return {}

    def _fit(self, x: Tensor, y: Tensor | None, rng: torch.Generator) -> None:
        """Fit the method to encoded rows; `space_`, `split_`, `deployed_` and `classes_` are set before.

        Args:
            x: (N, *event) encoded training rows.
            y: (N,) class positions; None: none were given.
            rng: Random numbers.
        """
        raise NotImplementedError

    def _candidates(self, query: Query) -> Tensor:
        """(K, B, *event) feasible candidates, K >= n, for a query with tensors."""
        raise NotImplementedError


def in_torch(query: Query) -> Query:
    """The query with tensors, and a space that takes tensors."""
    x, target = torch.from_numpy(query.x), torch.from_numpy(query.target)
    return replace(query, x=x, target=target, space=query.space.tensors)
