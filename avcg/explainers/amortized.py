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
from avcg.method.generator import DiagonalNormal, Generator, Request
from avcg.method.objective import Draws, objective
from avcg.method.query import Question, choose
from avcg.method.recipe import Recipe
from avcg.method.reference_set import Bank
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
        question: About B rows.
        margin: (B,) that was aimed at.
        answers: (B, *event), overwritten by better ones.
        costs: (B,) of these.
    """

    question: Question
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
        bank_: Rows of each class to stay near to, and to fall back on.
        calibration_: How the margin was chosen, with the frontier of survival against distance.
        diagnostics_: By epoch: loss, KL, active latent units, personalisation, changes.
        distillation_: The students of models that can only be asked, with a report; None where there are none.
    """

    recipe_: Recipe
    generator_: Generator
    bank_: Bank
    calibration_: Calibration
    diagnostics_: pd.DataFrame
    distillation_: Distillation | None = None

    def _line(self, question: Question) -> Tensor:
        return self.decider_.log_odds_at_line(question.target)

    def _margin(self, question: Question) -> Tensor:
        """(B,) the log-odds to aim at: enough for the promise, and for what the request asks."""
        margin = self._line(question) + self.calibration_.margin
        asked = question.min_prob
        return margin if asked is None else margin.clamp(min=math.log(asked / (1 - asked)) + A_LITTLE)

    def _request(self, question: Question, margin: Tensor) -> Request:
        device = self._torch_device()
        # A decoder that sees z and the target alone has no use for what else is asked.
        leeway = margin[:, None] if self.recipe_.decoder == "latent" else question.space.leeway(question.x)
        parts = (question.x, question.target, leeway, margin)
        return Request(*(part.to(device) for part in parts))

    @torch.no_grad()
    def _pass(self, question: Question, margin: Tensor, noise: Tensor | None = None) -> Tensor:
        """One forward pass: (K, B, *event) feasible answers, at the posterior mean where there is no noise (K, L)."""
        request = self._request(question, margin)
        shifts = torch.zeros(1, self.generator_.n_latent) if noise is None else noise
        with full_precision(request.x.device):
            posterior = self.generator_.posterior(request)
            return self._settle(question, request, posterior.sample(shifts[:, None].to(request.x.device)))

    def _settle(self, question: Question, request: Request, z: Tensor) -> Tensor:
        """(K, B, L) latents to feasible answers."""
        proposal = self.generator_(request, z)
        gates = None if proposal.gates is None else (proposal.gates > 0).cpu()
        return question.space.settle(proposal.raw.cpu(), question.x, gates)

    def _accepted(self, question: Question, margin: Tensor) -> Tensor:
        """(B, *event) one answer a row; where the teachers refuse the first, the cheapest of more that they do not."""
        answers = self._pass(question, margin)[0]
        if self.recipe_.single_pass:
            return answers
        costs = self._costs(question, answers[None])[0]
        refused = torch.nonzero(costs >= REFUSED).flatten()
        if len(refused):
            some = _Tries(question.take(refused), margin[refused], answers[refused], costs[refused])
            answers[refused] = self._tried_again(some)
        if self.distillation_ is not None:
            tried = self.distillation_.leaner(question, answers, [margin + more for more in HARDER])
            answers = choose(question.space, tried, self._costs(question, tried), 1)[0]
        return answers

    def _tried_again(self, tries: _Tries) -> Tensor:
        """(B, *event) with more margin until it is accepted, a row of the bank if that is closer, else all there is."""
        for more in LADDER:
            left = tries.refused()
            if not len(left):
                break
            some = tries.question.take(left)
            self._keep(tries, left, some, self._pass(some, tries.margin[left] + more))
        question = tries.question
        bank = self.bank_.neighbours(question.space, question.x, question.target, ROWS_FIRST)
        self._keep(tries, torch.arange(len(question.x)), question, bank)
        left = tries.refused()
        if len(left):
            some, noise = question.take(left), self._noise(RETRY_LATENTS)
            for more in HARDER:
                self._keep(tries, left, some, self._pass(some, tries.margin[left] + more, noise))
            self._keep(tries, left, some, self.bank_.neighbours(some.space, some.x, some.target, ROWS_TRIED))
        return tries.answers

    def _keep(self, tries: _Tries, rows: Tensor, question: Question, tried: Tensor) -> None:
        """Keep for some rows the cheapest of (K, b, *event) tries, where it is cheaper than what there was."""
        lowest, which = self._costs(question, tried).min(dim=0)
        better = torch.nonzero(lowest < tries.costs[rows]).flatten()
        tries.answers[rows[better]], tries.costs[rows[better]] = tried[which[better], better], lowest[better]

    def _noise(self, count: int) -> Tensor:
        """(count, L) the same for every row and call, so that an answer does not depend on its neighbours."""
        rng = torch.Generator().manual_seed(int(self.random_state))
        return torch.randn(count, self.generator_.n_latent, generator=rng)

    def _candidates(self, question: Question) -> Tensor:
        """(K, B, *event) the first answer; for more: other latents, margins, fewer of its changes, rows of the bank."""
        margin = self._margin(question)
        first = self._accepted(question, margin)
        if question.n == 1:
            return first[None]
        if self.recipe_.single_pass:
            return torch.cat([first[None], self._pass(question, margin, self._noise(question.n - 1))])
        found = [first[None], self._pass(question, margin, self._noise(LATENTS_EACH * question.n))]
        found += [self._pass(question, margin + more) for more in HARDER[1:]]
        found.append(self.bank_.neighbours(question.space, question.x, question.target, LATENTS_EACH * question.n))
        for rank in range(question.n):
            narrower, answer, place = question, first, rank
            for _ in range(LOCKS):  # without one change, and then also without what took its place
                space = narrower.space.without(answer, question.x, place)
                if space is None:
                    break
                narrower, place = replace(narrower, space=space), 0
                answer = self._accepted(narrower, margin)
                found.append(answer[None])
        return torch.cat(found)

    def _refined(self, question: Question, answers: Tensor, effort: Refinement, deadline: Deadline) -> Tensor:
        """The cheapest accepted of more tries, gradient steps on the latent posterior, then what every method does."""
        more = [] if deadline.passed or question.n > 1 else [self._tries(question)]
        if effort.steps and question.n == 1:
            more.append(self._descended(question, effort, deadline)[None])
        if more:
            everyone = torch.arange(len(question.x))
            pool = torch.cat([answers, *more])
            accepted = torch.stack([self._accept(question, each, everyone) for each in pool])
            prices = question.space.distance(pool, question.x)
            lowest, which = prices.masked_fill(~accepted, torch.inf).min(dim=0)
            found = lowest < prices[0]
            answers = answers.clone()
            answers[0, found] = pool[which, everyone][found]
        return super()._refined(question, answers, effort, deadline)

    def _tries(self, question: Question) -> Tensor:
        """(K, B, *event) answers with less margin than is safe for all, and without each of the first's changes."""
        margin = self._margin(question)
        found = [self._pass(question, margin - less) for less in _EASIER]
        for rank in range(_WITHOUT):
            space = question.space.without(found[0][0], question.x, rank)
            if space is not None:
                found.append(self._pass(replace(question, space=space), margin))
        return torch.cat(found)

    def _descended(self, question: Question, effort: Refinement, deadline: Deadline) -> Tensor:
        """(B, *event) answers at the posterior mean after gradient steps on it."""
        margin = self._margin(question)
        request = self._request(question, margin)
        score = self._scorer(question, request, 1, torch.Generator().manual_seed(self.random_state))
        with torch.no_grad():
            start = self.generator_.posterior(request)
        found = descend(start, score, effort.steps, effort.learning_rate, deadline)
        with torch.no_grad():
            return self._settle(question, request, found.mean[None])[0]

    def _scorer(self, question: Question, request: Request, n_latents: int, rng: torch.Generator) -> Score:
        """G as a function of the posterior, with its noise held fixed."""
        recipe = self.recipe_
        chance = 0.0 if recipe.temperature is None else recipe.noise[1]
        # The same for every row, so that none depends on its place.
        one = Draws.draw(self.generator_, question.space, n_latents, request.x[:1], rng, hard=chance)
        draws = one.repeated(len(request.x))
        known = self.teachers_ if self.distillation_ is None else self.distillation_.students
        predictors = known.to(request.x.device)
        temperature = None if recipe.temperature is None else recipe.temperature[1]
        bank = self.bank_.to(request.x.device) if recipe.weights.plausibility else None

        def score(posterior: DiagonalNormal) -> Tensor:
            risk = recipe.risk or Hinge(request.margin, recipe.spread)
            terms = objective(
                self.generator_, question.space, request, posterior, predictors, draws, risk,
                temperature=temperature, distance=recipe.distance, plausibility=bank, apart=recipe.apart,
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
        question = Question(x, wanted, self.space_, 1)
        request = self._request(question, self._line(question) + self.calibration_.margin)
        search, measure = (
            self._scorer(question, request, n_latents, torch.Generator().manual_seed(self.random_state + i))
            for i in (1, 2)
        )
        with torch.no_grad():
            start = self.generator_.posterior(request)
        best = descend(start, search, steps, learning_rate, Deadline())
        with torch.no_grad():
            found = {name: measure(each).cpu().numpy() for name, each in (("encoder", start), ("refined", best))}
        index = rows.index if isinstance(rows, pd.DataFrame) else None
        return pd.DataFrame(found, index=index).assign(gap=found["encoder"] - found["refined"])
