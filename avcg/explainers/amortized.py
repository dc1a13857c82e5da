"""Answering with a trained generator: one pass, and what is tried where that is not enough."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from avcg.explainers.base import Explainer
from avcg.method.calibration import Calibration
from avcg.method.distillation import Distillation
from avcg.method.generator import Condition, DiagonalNormal, Generator
from avcg.method.objective import Draws, objective
from avcg.method.query import Query, choose
from avcg.method.recipe import Recipe
from avcg.method.reference_set import ReferenceSet
from avcg.method.refine import Deadline, Refinement, Score, descend
from avcg.method.risk import Hinge
from avcg.method.tries import (
    A_LITTLE,
    HARDER,
    LADDER,
    LATENTS_EACH,
    LOCKS,
    REFUSED,
    RETRY_LATENTS,
    ROWS_FIRST,
    ROWS_TRIED,
)
from avcg.models.adapter import as_rows
from avcg.models.precision import full_precision

# Refining also looks at answers with less margin, and at doing without each of the first changes.
_EASIER, _WITHOUT = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0), 3


@dataclass(frozen=True, eq=False)
class _Tries:
    """Rows whose answers were refused, and the best that was found for them so far.

    Attributes:
        query: About B rows.
        margin: (B,) that was aimed at.
        answers: (B, *event), overwritten by better ones.
        costs: (B,) of these.
    """

    query: Query
    margin: Tensor
    answers: Tensor
    costs: Tensor

    def refused(self) -> Tensor:
        """Positions of rows that are still without an accepted answer."""
        return torch.nonzero(self.costs >= REFUSED).flatten()


class Amortized(Explainer):
    """An explainer whose answers come from a generator; see `avcg.AVCG`, which trains it.

    Attributes:
        recipe_: How it was trained, with weights for this space.
        generator_: The two networks.
        reference_set_: Rows of each class to stay near to, and to fall back on.
        calibration_: How the margin was chosen, with the frontier of survival against distance.
        diagnostics_: By epoch: loss, KL, active latent units, personalisation, changes.
        distillation_: The students of models that can only be asked, with a report; None where there are none.
    """

    recipe_: Recipe
    generator_: Generator
    reference_set_: ReferenceSet
    calibration_: Calibration
    diagnostics_: pd.DataFrame
    distillation_: Distillation | None = None

    def _line(self, query: Query) -> Tensor:
        return self.decider_.log_odds_at_line(query.target)

    def _margin(self, query: Query) -> Tensor:
        """(B,) the log-odds to aim at: enough for the promise, and for what the request asks."""
        margin = self._line(query) + self.calibration_.margin
        asked = query.min_prob
        return margin if asked is None else margin.clamp(min=math.log(asked / (1 - asked)) + A_LITTLE)

    def _condition(self, query: Query, margin: Tensor) -> Condition:
        device = self._torch_device()
        # A decoder that sees z and the target alone has no use for what else is asked.
        constraint_features = (
            margin[:, None] if self.recipe_.decoder == "latent" else query.space.constraint_features(query.x)
        )
        parts = (query.x, query.target, constraint_features, margin)
        return Condition(*(part.to(device) for part in parts))

    @torch.no_grad()
    def _pass(self, query: Query, margin: Tensor, noise: Tensor | None = None) -> Tensor:
        """One forward pass: (K, B, *event) feasible answers, at the posterior mean where there is no noise (K, L)."""
        request = self._condition(query, margin)
        shifts = torch.zeros(1, self.generator_.n_latent) if noise is None else noise
        with full_precision(request.x.device):
            posterior = self.generator_.posterior(request)
            return self._finalize(query, request, posterior.sample(shifts[:, None].to(request.x.device)))

    def _finalize(self, query: Query, request: Condition, z: Tensor) -> Tensor:
        """(K, B, L) latents to feasible answers."""
        proposal = self.generator_(request, z)
        gates = None if proposal.gates is None else (proposal.gates > 0).cpu()
        return query.space.finalize(proposal.raw.cpu(), query.x, gates)

    def _accepted(self, query: Query, margin: Tensor) -> Tensor:
        """(B, *event) one answer a row; where the teachers refuse the first, the cheapest of more that they do not."""
        answers = self._pass(query, margin)[0]
        if self.recipe_.single_pass:
            return answers
        costs = self._costs(query, answers[None])[0]
        refused = torch.nonzero(costs >= REFUSED).flatten()
        if len(refused):
            some = _Tries(query.take(refused), margin[refused], answers[refused], costs[refused])
            answers[refused] = self._tried_again(some)
        if self.distillation_ is not None:
            tried = self.distillation_.leaner(query, answers, [margin + more for more in HARDER])
            answers = choose(query.space, tried, self._costs(query, tried), 1)[0]
        return answers

    def _tried_again(self, tries: _Tries) -> Tensor:
        """(B, *event) with more margin until it is accepted, a row of the bank if that is closer, else all there is."""
        for more in LADDER:
            left = tries.refused()
            if not len(left):
                break
            some = tries.query.take(left)
            self._keep(tries, left, some, self._pass(some, tries.margin[left] + more))
        query = tries.query
        reference = self.reference_set_.neighbours(query.space, query.x, query.target, ROWS_FIRST)
        self._keep(tries, torch.arange(len(query.x)), query, reference)
        left = tries.refused()
        if len(left):
            some, noise = query.take(left), self._noise(RETRY_LATENTS)
            for more in HARDER:
                self._keep(tries, left, some, self._pass(some, tries.margin[left] + more, noise))
            self._keep(tries, left, some, self.reference_set_.neighbours(some.space, some.x, some.target, ROWS_TRIED))
        return tries.answers

    def _keep(self, tries: _Tries, rows: Tensor, query: Query, tried: Tensor) -> None:
        """Keep for some rows the cheapest of (K, b, *event) tries, where it is cheaper than what there was."""
        lowest, which = self._costs(query, tried).min(dim=0)
        better = torch.nonzero(lowest < tries.costs[rows]).flatten()
        tries.answers[rows[better]], tries.costs[rows[better]] = tried[which[better], better], lowest[better]

    def _noise(self, count: int) -> Tensor:
        """(count, L) the same for every row and call, so that an answer does not depend on its neighbours."""
        rng = torch.Generator().manual_seed(int(self.random_state))
        return torch.randn(count, self.generator_.n_latent, generator=rng)

    def _candidates(self, query: Query) -> Tensor:
        """(K, B, *event) the first answer; for more: other latents, margins, fewer of its changes, rows of the bank."""
        margin = self._margin(query)
        first = self._accepted(query, margin)
        if query.n == 1:
            return first[None]
        if self.recipe_.single_pass:
            return torch.cat([first[None], self._pass(query, margin, self._noise(query.n - 1))])
        found = [first[None], self._pass(query, margin, self._noise(LATENTS_EACH * query.n))]
        found += [self._pass(query, margin + more) for more in HARDER[1:]]
        found.append(self.reference_set_.neighbours(query.space, query.x, query.target, LATENTS_EACH * query.n))
        for rank in range(query.n):
            narrower, answer, place = query, first, rank
            for _ in range(LOCKS):  # without one change, and then also without what took its place
                space = narrower.space.lock_change(answer, query.x, place)
                if space is None:
                    break
                narrower, place = replace(narrower, space=space), 0
                answer = self._accepted(narrower, margin)
                found.append(answer[None])
        return torch.cat(found)

    def _refined(self, query: Query, answers: Tensor, effort: Refinement, deadline: Deadline) -> Tensor:
        """The cheapest accepted of more tries, gradient steps on the latent posterior, then what every method does."""
        more = [] if deadline.passed or query.n > 1 else [self._tries(query)]
        if effort.steps and query.n == 1:
            more.append(self._descended(query, effort, deadline)[None])
        if more:
            everyone = torch.arange(len(query.x))
            pool = torch.cat([answers, *more])
            accepted = torch.stack([self._accept(query, each, everyone) for each in pool])
            prices = query.space.distance(pool, query.x)
            lowest, which = prices.masked_fill(~accepted, torch.inf).min(dim=0)
            found = lowest < prices[0]
            answers = answers.clone()
            answers[0, found] = pool[which, everyone][found]
        return super()._refined(query, answers, effort, deadline)

    def _tries(self, query: Query) -> Tensor:
        """(K, B, *event) answers with less margin than is safe for all, and without each of the first's changes."""
        margin = self._margin(query)
        found = [self._pass(query, margin - less) for less in _EASIER]
        for rank in range(_WITHOUT):
            space = query.space.lock_change(found[0][0], query.x, rank)
            if space is not None:
                found.append(self._pass(replace(query, space=space), margin))
        return torch.cat(found)

    def _descended(self, query: Query, effort: Refinement, deadline: Deadline) -> Tensor:
        """(B, *event) answers at the posterior mean after gradient steps on it."""
        margin = self._margin(query)
        request = self._condition(query, margin)
        score = self._scorer(query, request, 1, torch.Generator().manual_seed(self.random_state))
        with torch.no_grad():
            start = self.generator_.posterior(request)
        found = descend(start, score, effort.steps, effort.learning_rate, deadline)
        with torch.no_grad():
            return self._finalize(query, request, found.mean[None])[0]

    def _scorer(self, query: Query, request: Condition, n_latents: int, rng: torch.Generator) -> Score:
        """G as a function of the posterior, with its noise held fixed."""
        recipe = self.recipe_
        chance = 0.0 if recipe.temperature is None else recipe.noise[1]
        # The same for every row, so that none depends on its place.
        one = Draws.draw(self.generator_, query.space, n_latents, request.x[:1], rng, hard=chance)
        draws = one.repeated(len(request.x))
        known = self.judges_ if self.distillation_ is None else self.distillation_.students
        predictors = known.to(request.x.device)
        temperature = None if recipe.temperature is None else recipe.temperature[1]
        reference = self.reference_set_.to(request.x.device) if recipe.weights.plausibility else None

        def score(posterior: DiagonalNormal) -> Tensor:
            risk = recipe.risk or Hinge(request.margin, recipe.spread)
            terms = objective(
                self.generator_, query.space, request, posterior, predictors, draws, risk,
                temperature=temperature, distance=recipe.distance, plausibility=reference,
                min_separation=recipe.min_separation,
            )  # fmt: skip
            return terms.total(recipe.weights)

        return score

    def amortization_gap(
        self, X: Any, target: Any = None, *, steps: int = 100, n_latents: int = 20, learning_rate: float = 0.05
    ) -> pd.DataFrame:
        """What a single pass gives away: G under the encoder's posterior less G under the best posterior found.

        Both are measured with the same noise, which is not the noise the search for the best one used.

        Args:
            X: Rows in user units.
            target: As in `generate`.
            steps: Of gradient descent on each row's (mean, log variance).
            n_latents: Noise for the search, and as much for the measure.
            learning_rate: Of the descent.

        Returns:
            Columns ``encoder``, ``refined`` and ``gap`` = encoder - refined, by row.
        """
        check_is_fitted(self)
        rows = as_rows(X)
        x = self.space_.encode(rows)
        wanted, _ = self._targets(target, self.decider_.decide(self.decider_.probabilities(x)))
        query = Query(x, wanted, self.space_, 1)
        request = self._condition(query, self._line(query) + self.calibration_.margin)
        search, measure = (
            self._scorer(query, request, n_latents, torch.Generator().manual_seed(self.random_state + i))
            for i in (1, 2)
        )
        with torch.no_grad():
            start = self.generator_.posterior(request)
        best = descend(start, search, steps, learning_rate, Deadline())
        with torch.no_grad():
            found = {name: measure(each).cpu().numpy() for name, each in (("encoder", start), ("refined", best))}
        index = rows.index if isinstance(rows, pd.DataFrame) else None
        return pd.DataFrame(found, index=index).assign(gap=found["encoder"] - found["refined"])
