"""What every method has in common: rows and targets in, answers with a status and a certificate out.

A method writes `_fit` and `_candidates`; reading, constraints, targets, choice, decoding, judging and certificates
happen here, once, on the rows people receive.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from avcg.errors import DataError, SchemaError, SettingError, check_int
from avcg.explainers.counterfactuals import Counterfactuals
from avcg.guarantees.certificate import certify
from avcg.hypotheses.base import HypothesisDistribution, check_same_reading
from avcg.hypotheses.finite import FiniteSet, PointMass
from avcg.hypotheses.predictors import Joined, OnDevice, Predictors
from avcg.hypotheses.split import HypothesisSplit
from avcg.method.config import SearchConfig
from avcg.method.delivery import check_delivery, needed_votes, statuses
from avcg.method.deployed import DeployedModel
from avcg.method.objective import target_log_probs
from avcg.method.query import Query, QueryOptions, repeated_answers, target_positions
from avcg.method.refine import Deadline, Refinement, prune
from avcg.method.risk import lower_log_odds
from avcg.method.search import Acceptance, any_class
from avcg.models.adapter import Model, as_rows, class_positions
from avcg.models.black_box import BlackBox
from avcg.models.decision import of_target
from avcg.schema.schema import Schema
from avcg.space.base import Space
from avcg.space.encoding import Codes, Positions
from avcg.space.frames import take_rows

# Answers made at a time, so that memory is bounded by this and not by the input.
_ANSWERS_AT_ONCE = 16_384


class Explainer(BaseEstimator):  # type: ignore[misc]
    """What a method is built on; see `AVCG` for the one most people want.

    Args:
        hypotheses: The plausible predictors.
        schema: What may change; None: as the hypotheses' own. It may narrow, but not change what a column is.
        model: The model whose decision counts; None: the one the hypotheses were made around, or their mean.
        threshold: Probability of the second of two classes from which the decision is for it; None: the likeliest.
        survival: The share of models that is promised to agree with an answer, in (0, 1).
        n_test: Hypotheses set aside for certificates, never trained against; None: a quarter of a finite set, or 50.
        device: Where hypotheses are asked, and networks of the method's own live.
        random_state: Seed.

    Attributes:
        space_: What answers are made in.
        classes_: The labels.
        deployed_: The model in force with its rule.
        split_: Which hypotheses teach, tune and certify.
        judges_: The model in force and a draw of the teachers: what candidates are judged by.
        refined_margin_: Log-odds beyond the line, by the teachers' mean less two deviations, that refining leaves.
    """

    space_: Space
    classes_: NDArray[Any]
    deployed_: DeployedModel
    split_: HypothesisSplit
    judges_: Predictors
    refined_margin_: float
    _tunes = False  # whether the method keeps some hypotheses back to choose a setting by

    def __init__(
        self,
        hypotheses: HypothesisDistribution,
        schema: Schema | None = None,
        *,
        model: Model | BlackBox | None = None,
        threshold: float | None = None,
        survival: float = 0.99,
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
        """Learn to answer.

        Args:
            X: Training rows, in user units.
            y: Their labels, for methods that look at them; None: as the model in force sees the rows.
        """
        # On a copy, put in place at the end: a fit that fails leaves the explainer as it was.
        fresh = type(self)(**self.get_params(deep=False))
        rng, _, x, labels = fresh._prepare(X, y)
        fresh._fit(x, labels, rng)
        fresh.is_fitted_ = True
        self.__dict__.update(fresh.__dict__)
        return self

    @classmethod
    def default_settings(cls) -> dict[str, Any]:
        """What arguments of the constructor stand for where they are None, if that is a record, by name.

        A benchmark protocol changes single fields of these records.
        """
        return {}

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "is_fitted_")

    def _prepare(self, X: Any, y: Any) -> tuple[torch.Generator, Any, Tensor, Tensor | None]:
        """Check everything, and set all that does not depend on the method."""
        if not 0 < self.survival < 1:
            raise SettingError(f"The 'survival' of {type(self).__name__} must be in (0, 1). Got {self.survival!r}.")
        seed = check_int(self.random_state, f"'random_state' of {type(self).__name__}", 0)
        if not isinstance(self.hypotheses, HypothesisDistribution):
            raise SettingError(
                f"'hypotheses' must be a distribution over models, e.g. avcg.retrains(...). Got a"
                f" {type(self.hypotheses).__name__}; for a single network use avcg.PointMass(model), for any other"
                " model avcg.PointMass(avcg.BlackBox(model, X))."
            )
        rows = as_rows(X)
        self.space_ = self._space(rows)
        rng = torch.Generator().manual_seed(seed)
        own = None
        if self.model is not None:
            alone = PointMass(self.model)
            check_same_reading(self.hypotheses.space, alone.space, self.hypotheses.classes, alone.classes)
            own = alone.predictors
        self.split_ = HypothesisSplit.of(self.hypotheses, rng, deployed=own, n_test=self.n_test, tune=self._tunes)
        draw = self.split_.train.sample(50, rng=rng)
        self.judges_ = Joined([self.split_.deployed, draw])
        device = self._torch_device()
        if device.type != "cpu":  # it is hypotheses that cost most
            self.judges_, self.split_ = OnDevice(self.judges_, device), self.split_.on(device)
        self.deployed_ = DeployedModel(self.split_.deployed, self.threshold)
        x = self.space_.encode(rows)
        if bool(self.space_.immovable(x).all()):
            raise SchemaError("No training row may change anything. Free a column of the schema, or widen a range.")
        self.refined_margin_ = self._search_config.refined_margin
        probabilities = self.deployed_.probabilities(x[:2])
        known = self.hypotheses.classes
        self.classes_ = np.arange(probabilities.shape[1]) if known is None else np.asarray(known)
        labels = None if y is None else class_positions(np.asarray(y), self.classes_)
        if labels is not None and len(labels) != len(x):
            raise DataError(f"There must be one label per row, {len(x)}. Got {len(labels)}.")
        return rng, rows, x, labels

    def _torch_device(self) -> torch.device:
        try:
            return torch.device(self.device)
        except RuntimeError:
            name = type(self).__name__
            raise SettingError(f"The 'device' of {name} must be one of PyTorch's. Got {self.device!r}.") from None

    def decide(self, X: Any) -> NDArray[Any]:
        """(N,) what the model in force decides about rows, by its own rule.

        Args:
            X: Rows in user units.
        """
        check_is_fitted(self)
        rows = as_rows(X)
        read = self.space_.read(rows)
        found = self.deployed_.bind_rows(rows).probabilities(self.space_.encode(read))
        return self.classes_[self.deployed_.decide(found).cpu().numpy()]

    def judged_by(self, judges: FiniteSet) -> Self:
        """The same method, its answers accepted by other models: those of the day in place of those it learnt from.

        Nothing is learnt again, so that more rows may be left without an answer; `generate` says which. There is no
        certificate: these models have a say in what is answered.

        Args:
            judges: Over the same columns and classes; their base, or else their mean, decides.
        """
        check_is_fitted(self)
        if not isinstance(judges, FiniteSet):
            raise SettingError(
                f"The 'judges' must be a set of models. Got a {type(judges).__name__}; make one with"
                " avcg.given(models, X, space=explainer.space_)."
            )
        check_same_reading(self.hypotheses.space, judges.space, self.classes_, judges.classes)
        decides = judges.predictors if judges.base is None else judges.base
        other = copy.copy(self)
        other.deployed_ = DeployedModel(decides, self.threshold)
        other.judges_ = Joined([decides, judges.predictors])
        other.split_ = replace(self.split_, deployed=decides, test=None)
        return other

    def solve(self, x: Tensor, target: Tensor, *, n: int = 1) -> Tensor:
        """Answers without anything around them: no refining, no choice of class, no judging, all rows at once.

        Args:
            x: (B, *event) encoded rows.
            target: (B,) class positions.
            n: Answers for each row.

        Returns:
            (n, B, *event) encoded, feasible answers.
        """
        check_is_fitted(self)
        query = Query(x.cpu().numpy(), target.cpu().numpy(), self.space_.codes, n)
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
        refine: bool | Refinement = False,
        time_budget: float | None = None,
    ) -> Counterfactuals:
        """Answer: what to change so that the decision becomes the target.

        Args:
            X: Rows in user units.
            target: The decision wanted: a label for all, one per row, or None for any other than the present one.
            n: Answers for each row.
            vary: What may change in this query, as `TabularSpace.restrict` takes it; None: all that the schema lets.
            ranges: Where values may go in this query, likewise.
            min_prob: Probability of the target that the deployed model must give.
            max_changes: How many features may change at once.
            refine: Whether to take back what an answer does not need, or how to refine; slower and closer.
            time_budget: Seconds after which refining stops, with the best so far.

        Returns:
            One answer, or n, for each row, with its status.
        """
        return self.query(X, target, QueryOptions(n, vary, ranges, min_prob, max_changes, refine, time_budget))

    def query(self, X: Any, target: Any, options: QueryOptions) -> Counterfactuals:
        """The same as `generate`, with everything that is asked for in one object.

        Args:
            X: Rows in user units.
            target: As in `generate`.
            options: What is asked for beside them.
        """
        check_is_fitted(self)
        if not isinstance(options.refine, (bool, Refinement)):
            raise SettingError(
                f"The 'refine' of a query must be True, False or a Refinement. Got {options.refine!r} instead."
            )
        effort = Refinement() if options.refine is True else options.refine or None
        deadline = Deadline.after(options.time_budget)
        rows = as_rows(X)
        read = self.space_.read(rows)
        encoded = self.space_.encode(read)
        space = self.space_
        if options.restricts:
            space = space.restrict_rows(options.vary, options.ranges, options.max_changes, len(encoded))
        rule, x = self.deployed_.rule, encoded.numpy()
        before = self.deployed_.bind_rows(rows).probabilities(encoded).cpu().numpy()
        wanted, any_will_do = target_positions(target, rule.decide(before), self.classes_.tolist())
        query, targets = Query(x, wanted, space.codes, options.n, options.min_prob), wanted.copy()
        settled = rule.valid(before, wanted, options.min_prob) | query.space.immovable(x)
        codes = np.broadcast_to(x, (options.n, *x.shape)).copy()
        left = np.flatnonzero(~settled)
        for start in range(0, len(left), at_once := max(1, _ANSWERS_AT_ONCE // options.n)):
            part = left[start : start + at_once]
            codes[:, part], targets[part] = self._answer(query.take(part), any_will_do, effort, deadline)
        return self._package(rows, read, replace(query, target=targets), codes, before, space)

    def _answer(
        self, query: Query, any_will_do: bool, effort: Refinement | None, deadline: Deadline
    ) -> tuple[Codes, Positions]:
        """(n, B, *event) answers and (B,) what they aim at, for rows that fit in memory."""
        if any_will_do and len(self.classes_) > 2:
            answers, aimed = any_class(self.acceptance, query, len(self.classes_), self._answers)
            query = replace(query, target=aimed)
        else:
            answers = self._answers(query)
        if effort is not None:
            answers = self._refined(query, torch.from_numpy(answers), effort, deadline).numpy()
        return self.acceptance.ranked(query, answers), query.target

    def _refined(self, query: Query, answers: Tensor, effort: Refinement, deadline: Deadline) -> Tensor:
        """(n, B, *event) the answers with what they do not need taken back; answers that differ stay different."""
        if not effort.prune:
            return answers
        result, space, x = answers.clone(), query.space.tensors, torch.from_numpy(query.x)
        for k in range(len(answers)):
            mine = torch.nonzero(self._accept(query, answers[k], torch.arange(len(x)))).flatten()
            if not len(mine):
                continue
            some, rounds = query.take(mine.numpy()), self._search_config.refine_rounds
            accept = partial(self._accept, some)
            shorter = prune(some.space.tensors, x[mine], answers[k][mine], accept, deadline, rounds)
            others = torch.cat([result[:k], answers[k + 1 :]])[:, mine]
            clash = (space.distance(others, shorter) <= 1e-6).any(dim=0)
            result[k, mine] = torch.where(clash.view(-1, *[1] * (shorter.dim() - 1)), answers[k][mine], shorter)
        return result

    def _accept(self, query: Query, candidates: Tensor, rows: Tensor) -> Tensor:
        """(M,) whether candidates for the rows named convince the judges by `refined_margin_`, and the query."""
        wanted = torch.from_numpy(query.target)[rows]
        with torch.no_grad():
            log_p = target_log_probs(self.judges_, candidates[None], wanted)
            lower = lower_log_odds(log_p, self.judges_.weights, self._search_config.spread)[0]
        needed = self.deployed_.log_odds(wanted) + self.refined_margin_
        valid = self.deployed_.valid(self.deployed_.probabilities(candidates), wanted, query.min_prob)
        return (lower >= needed) & valid

    @property
    def _search_config(self) -> SearchConfig:
        """How candidates are searched and compared."""
        return SearchConfig()

    @property
    def acceptance(self) -> Acceptance:
        """Who judges candidates: the deployed model and the hypotheses trained against, never those held out."""
        deployed = self.split_.deployed
        weights = self.judges_.weights.double().numpy()
        shares = deployed.weights.double().numpy()
        return Acceptance(self._judge, weights, shares, self.deployed_.rule, self.survival, self._search_config)

    def _judge(self, x: Codes) -> NDArray[Any]:
        """(S, N, C) what the judges say of (N, *event) encoded rows."""
        with torch.no_grad():
            return self.judges_.probabilities(torch.from_numpy(x)).cpu().numpy()

    def _answers(self, query: Query) -> Codes:
        """(n, B, *event) the best n candidates, feasible and different where there are enough."""
        return self.acceptance.best(query, self._candidates(in_torch(query)).cpu().numpy())

    def _package(
        self, rows: Any, read: Any, query: Query, codes: Codes, before: NDArray[Any], space: Space
    ) -> Counterfactuals:
        """Decode, look at what was decoded once more, judge it, and say how it went."""
        n, x, rule = query.n, query.x, self.deployed_.rule
        place = np.repeat(np.arange(len(x)), n)
        each, factuals = (query.take(place), take_rows(rows, place)) if n > 1 else (query, rows)
        flat = np.swapaxes(codes, 0, 1).reshape(len(place), *x.shape[1:])
        here = read if n == 1 else take_rows(read, place)
        given = space.take(torch.from_numpy(place)).deliver(flat, factuals, here)
        check_delivery(given.broken)
        received = torch.from_numpy(given.received)
        after = self.deployed_.bind_rows(given.answers).probabilities(received).cpu().numpy()
        valid = rule.valid(after, each.target, query.min_prob)
        certificate, robust = None, np.ones(len(place), bool)
        if self.split_.test is not None:
            test, target = self.split_.test.bind_rows(given.answers), torch.from_numpy(each.target)
            confidence = self._search_config.confidence
            certificate = certify(test, received, target, confidence=confidence, threshold=rule.threshold)
            robust = certificate.agreeing >= needed_votes(certificate.n, self.survival)
        already = rule.valid(before, query.target, query.min_prob)
        return Counterfactuals(
            factuals=rows,
            answers=given.answers,
            n=n,
            target=self.classes_[query.target],
            statuses=statuses(already[place], query.space.immovable(x)[place], valid, robust),
            probability=of_target(after, each.target).astype(np.float64),
            probability_before=of_target(before, query.target).astype(np.float64),
            distance=each.space.distance(given.received, each.x).astype(np.float64),
            changed=given.changed,
            repeated=repeated_answers(given.received, n),
            certificate=certificate,
            survival=self.survival,
        )

    def _space(self, rows: Any) -> Space:
        space = self.hypotheses.space
        if space is None:
            raise SettingError(
                "These hypotheses do not say what rows they read. Give them a space, e.g."
                " DeepEnsemble(networks, space=TabularSpace.fit(schema, X))."
            )
        return space if self.schema is None else space.narrowed(self.schema, rows)

    def _fit(self, x: Tensor, y: Tensor | None, rng: torch.Generator) -> None:
        """Learn from encoded rows; `space_`, `split_`, `deployed_` and `classes_` are set."""
        raise NotImplementedError

    def _candidates(self, query: Query) -> Tensor:
        """(K, B, *event) feasible candidates, K >= n, for a query of tensors."""
        raise NotImplementedError


def in_torch(query: Query) -> Query:
    """The same query with tensors and a space of tensors."""
    x, target = torch.from_numpy(query.x), torch.from_numpy(query.target)
    return replace(query, x=x, target=target, space=query.space.tensors)
