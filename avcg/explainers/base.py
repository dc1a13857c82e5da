"""What every method has in common: rows and targets in, answers with a status and a certificate out.

A method writes `_fit` and `_candidates`; reading, constraints, targets, choice, decoding, judging and certificates
happen here, once, on the rows people receive.
"""

from __future__ import annotations

import copy
import numbers
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

import narwhals.stable.v2 as nw
import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from avcg.errors import DataError, SchemaError, SettingError, check_int, did_you_mean, enumerate_some
from avcg.explainers.counterfactuals import Counterfactuals
from avcg.guarantees.certificate import certify
from avcg.hypotheses.base import HypothesisDistribution, check_same_reading
from avcg.hypotheses.finite import FiniteSet, PointMass
from avcg.hypotheses.predictors import Joined, OnDevice, Predictors
from avcg.hypotheses.split import HypothesisSplit
from avcg.method.decision import Decider
from avcg.method.objective import target_log_probs
from avcg.method.query import Query, choose, repeated_answers
from avcg.method.refine import Deadline, Refinement, prune
from avcg.method.risk import lower_log_odds
from avcg.method.tries import CONFIDENCE, REFUSED, SLACK
from avcg.models.adapter import Model, as_rows, class_positions
from avcg.models.black_box import BlackBox
from avcg.schema.schema import Schema
from avcg.space.base import Space
from avcg.space.frames import take_rows
from avcg.space.images import ImageSpace
from avcg.space.tabular import TabularSpace

# What refining leaves: teachers' mean log-odds less two standard deviations stay this far beyond the line.
_REFINED_MARGIN, _SPREAD = 0.5, 2.0
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
        decider_: The model in force with its rule.
        split_: Which hypotheses teach, tune and certify.
        judges_: The model in force and a draw of the teachers: what candidates are judged by.
        refined_margin_: Log-odds beyond the line, by the teachers' mean less two deviations, that refining leaves.
    """

    space_: Space
    classes_: NDArray[Any]
    decider_: Decider
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
        draw = self.split_.train.sample(50, generator=rng)
        self.judges_ = Joined([self.split_.deployed, draw])
        device = self._torch_device()
        if device.type != "cpu":  # it is hypotheses that cost most
            self.judges_, self.split_ = OnDevice(self.judges_, device), self.split_.on(device)
        self.decider_ = Decider(self.split_.deployed, self.threshold)
        x = self.space_.encode(rows)
        if bool(self.space_.immovable(x).all()):
            raise SchemaError("No training row may change anything. Free a column of the schema, or widen a range.")
        self.refined_margin_ = _REFINED_MARGIN
        probabilities = self.decider_.probabilities(x[:2])
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
        found = self.decider_.bind_rows(rows).probabilities(self.space_.encode(rows))
        return self.classes_[self.decider_.decide(found).cpu().numpy()]

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
        other.decider_ = Decider(decides, self.threshold)
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
        return self._best(Query(x, target, self.space_, n))

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
            vary: What may change in this request, as `TabularSpace.restrict` takes it; None: all that the schema lets.
            ranges: Where values may go in this request, likewise.
            min_prob: The probability of the target that the model in force must give.
            max_changes: How many features may change at once.
            refine: Whether to take back what an answer does not need, or how to refine; slower and closer.
            time_budget: Seconds after which refining stops, with the best so far.

        Returns:
            One answer, or n, for each row, with its status.
        """
        check_is_fitted(self)
        n = check_int(n, "'n' of generate", 1)
        if min_prob is not None and not 0 < min_prob < 1:
            raise SettingError(f"The 'min_prob' of generate must be in (0, 1). Got {min_prob!r} instead.")
        if not isinstance(refine, (bool, Refinement)):
            raise SettingError(f"The 'refine' of generate must be True, False or a Refinement. Got {refine!r} instead.")
        if time_budget is not None and refine is False:
            raise SettingError("A 'time_budget' bounds refining. Say refine=True too.")
        effort, deadline = Refinement() if refine is True else refine or None, Deadline.after(time_budget)
        rows = as_rows(X)
        seen = self.space_.read(rows) if isinstance(self.space_, TabularSpace) else rows
        x = self.space_.encode(seen)
        space = self._restricted(vary, ranges, max_changes, len(x))
        before = self.decider_.bind_rows(rows).probabilities(x)
        current = self.decider_.decide(before)
        wanted, free = self._targets(target, current)
        settled = self.decider_.valid(before, wanted, min_prob) | space.immovable(x)
        x_cf = x.expand(n, *x.shape).clone()
        for part in torch.nonzero(~settled).flatten().split(max(1, _ANSWERS_AT_ONCE // n)):
            x_cf[:, part], wanted[part] = self._answer(
                x[part], wanted[part], space.take(part), n, min_prob, free, effort, deadline
            )
        return self._package(rows, seen, x, x_cf, wanted, before, space, min_prob)

    def _answer(
        self,
        x: Tensor,
        target: Tensor,
        space: Space,
        n: int,
        min_prob: float | None,
        free: bool,
        effort: Refinement | None,
        deadline: Deadline,
    ) -> tuple[Tensor, Tensor]:
        """(n, B, *event) answers and (B,) what they aim at, for rows that fit in memory."""
        query = Query(x, target, space, n, min_prob)
        found = self._best(query)
        if free and len(self.classes_) > 2:
            # Any other class will do: aim at each in turn, and keep for each row the cheapest that is accepted.
            score = self._costs(query, found).amax(dim=0)
            aimed = target.clone()
            for step in range(1, len(self.classes_) - 1):
                other = Query(x, (target + step) % len(self.classes_), space, n, min_prob)
                candidates = self._best(other)
                cost = self._costs(other, candidates).amax(dim=0)
                better = cost < score
                found[:, better], aimed[better] = candidates[:, better], other.target[better]
                score = torch.minimum(cost, score)
            query = Query(x, aimed, space, n, min_prob)
        if effort is not None:
            found = self._refined(query, found, effort, deadline)
        if n > 1:  # the best first, as the teachers see it; those set aside have no say
            order = self._costs(query, found).argsort(dim=0, stable=True)
            found = found[order, torch.arange(len(x))]
        return found, query.target

    def _refined(self, query: Query, answers: Tensor, effort: Refinement, deadline: Deadline) -> Tensor:
        """(n, B, *event) the answers with what they do not need taken back; answers that differ stay different."""
        if not effort.prune:
            return answers
        result = answers.clone()
        for k in range(len(answers)):
            mine = torch.nonzero(self._accept(query, answers[k], torch.arange(len(query.x)))).flatten()
            if not len(mine):
                continue
            some = query.take(mine)
            shorter = prune(some.space, some.x, answers[k][mine], partial(self._accept, some), deadline)
            others = torch.cat([result[:k], answers[k + 1 :]])[:, mine]
            clash = (query.space.distance(others, shorter) <= 1e-6).any(dim=0)
            result[k, mine] = torch.where(clash.view(-1, *[1] * (shorter.dim() - 1)), answers[k][mine], shorter)
        return result

    def _accept(self, query: Query, candidates: Tensor, rows: Tensor) -> Tensor:
        """(M,) whether candidates for the rows named convince the teachers by `refined_margin_`, and the request."""
        wanted = query.target[rows]
        with torch.no_grad():
            log_p = target_log_probs(self.judges_, candidates[None], wanted)
            lower = lower_log_odds(log_p, self.judges_.weights, _SPREAD)[0]
        needed = self.decider_.log_odds_at_line(wanted) + self.refined_margin_
        valid = self.decider_.valid(self.decider_.probabilities(candidates), wanted, query.min_prob)
        return (lower >= needed) & valid

    def _best(self, query: Query) -> Tensor:
        """(n, B, *event) the best n candidates, feasible and different where there are enough."""
        candidates = self._candidates(query)
        if len(candidates) == query.n:
            return candidates
        return choose(query.space, candidates, self._costs(query, candidates), query.n)

    def _costs(self, query: Query, candidates: Tensor) -> Tensor:
        """(K, B) what candidates cost, in float64; one that is refused costs `REFUSED` and more, the worse the more."""
        flat, wanted = candidates.flatten(0, 1), query.target.repeat(len(candidates))
        valid = self.decider_.valid(self.decider_.probabilities(flat), wanted, query.min_prob)
        share = self.decider_.agreement(self.judges_, flat, wanted).double()
        penalty = REFUSED * torch.where(valid, 2.0 - share, 3.0)
        penalty = torch.where(valid & (share >= self.survival - SLACK), 0.0, penalty)
        cost = query.space.distance(candidates, query.x).double()
        return cost + penalty.view_as(cost)

    def _package(
        self,
        rows: Any,
        seen: Any,
        x: Tensor,
        x_cf: Tensor,
        target: Tensor,
        before: Tensor,
        space: Space,
        min_prob: float | None,
    ) -> Counterfactuals:
        """Decode, judge what was decoded, and say how it went."""
        n = len(x_cf)
        already, immovable = self.decider_.valid(before, target, min_prob), space.immovable(x)
        place = torch.arange(len(x)).repeat_interleave(n)
        each, codes = space.take(place), x_cf.transpose(0, 1).flatten(0, 1)
        factuals = rows if n == 1 else take_rows(rows, place)
        if isinstance(each, TabularSpace):
            here = seen if n == 1 else seen.take(place.numpy())
            answers = each.decode(codes, factuals, here)
            delivered = each.read(answers)
            order = [each.schema.names.index(name) for name in nw.from_native(factuals, eager_only=True).columns]
            received, changed = each.encode(delivered), each.changed(delivered, here)[:, order]
        else:
            answers = each.decode(codes, factuals)
            received, changed = each.encode(answers), None
        wanted = target[place]
        after = self.decider_.bind_rows(answers).probabilities(received)
        valid = self.decider_.valid(after, wanted, min_prob)
        fresh, sure = self.split_.test, None
        robust = torch.ones_like(valid)
        if fresh is not None:
            line = self.decider_.line(wanted, torch.float64 if fresh.boxes else torch.float32)
            sure = certify(fresh.bind_rows(answers), received, wanted, confidence=CONFIDENCE, threshold=line)
            robust = torch.from_numpy(sure.share >= self.survival - 1e-9)
        statuses = np.select(
            [already[place].numpy(), immovable[place].numpy(), ~valid.numpy(), ~robust.numpy()],
            ["already_target", "infeasible", "not_valid", "not_robust"],
            "ok",
        )
        return Counterfactuals(
            factuals=rows,
            answers=answers,
            n=n,
            target=self.classes_[target.numpy()],
            statuses=statuses,
            probability=after.gather(1, wanted[:, None])[:, 0].double().numpy(),
            probability_before=before.gather(1, target[:, None])[:, 0].double().numpy(),
            distance=each.distance(received, x[place]).double().numpy(),
            changed=changed,
            repeated=repeated_answers(received, n),
            certificate=sure,
            survival=self.survival,
        )

    def _targets(self, target: Any, current: Tensor) -> tuple[Tensor, bool]:
        """(B,) class positions, and whether any other class will do."""
        if target is None:
            return (current + 1) % len(self.classes_), True
        if isinstance(target, (str, numbers.Number, np.generic)):
            target = np.full(len(current), target)
        wanted = np.asarray(target)
        if wanted.shape != current.shape:
            raise DataError(f"'target' must be one label, or one per row ({len(current)}). Got shape {wanted.shape}.")
        strange = [value for value in dict.fromkeys(wanted.tolist()) if value not in self.classes_.tolist()]
        if strange:
            known = enumerate_some([str(label) for label in self.classes_.tolist()], 12)
            hint = did_you_mean(strange[0], self.classes_.tolist())
            raise DataError(f"The target {strange[0]!r} is no class of the model, which knows {known}. {hint}".strip())
        return class_positions(wanted, self.classes_), False

    def _space(self, rows: Any) -> Space:
        space = self.hypotheses.space
        if space is None:
            raise SettingError(
                "These hypotheses do not say what rows they read. Give them a space, e.g."
                " DeepEnsemble(networks, space=TabularSpace.fit(schema, X))."
            )
        if self.schema is None:
            return space
        if not isinstance(space, TabularSpace):
            raise SchemaError("A schema is for tables. These hypotheses read images; use vary and ranges.")
        return space.under(self.schema, rows)

    def _restricted(self, vary: Any, ranges: Any, max_changes: Any, rows: int) -> Space:
        space = self.space_
        if vary is None and ranges is None and max_changes is None:
            return space
        if isinstance(space, ImageSpace):
            if max_changes is not None:
                raise SettingError("'max_changes' is for tables. For images say which pixels may 'vary'.")
            pictures = space.restrict(vary, ranges)
            counts = {len(part) for part in (pictures.low, pictures.high, pictures.may_change)} - {1, rows}
            if counts:
                raise SchemaError(f"The request speaks of {counts.pop()} pictures. Got {rows} in X.")
            return pictures
        assert isinstance(space, TabularSpace)
        narrower = space.restrict(vary, ranges, max_changes)
        if narrower.feasible.rows not in (1, rows):
            raise SchemaError(f"The request speaks of {narrower.feasible.rows} rows. Got {rows} rows in X.")
        return narrower

    def _fit(self, x: Tensor, y: Tensor | None, rng: torch.Generator) -> None:
        """Learn from encoded rows; `space_`, `roles_`, `decider_` and `classes_` are set."""
        raise NotImplementedError

    def _candidates(self, query: Query) -> Tensor:
        """(K, B, *event) feasible candidates, K >= n."""
        raise NotImplementedError
