"""Answering with a trained generator: one pass, and what is tried where that is not enough."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from avcg.explainers.base import Explainer
from avcg.method.calibration import Calibration
from avcg.method.config import SearchConfig
from avcg.method.distillation import Distillation
from avcg.method.generator import Condition, DiagonalNormal, Generator
from avcg.method.objective import Draws, objective
from avcg.method.query import Query, target_positions
from avcg.method.recipe import Recipe
from avcg.method.reference_set import ReferenceSet
from avcg.method.refine import Deadline, Refinement, Score, descend
from avcg.method.risk import Hinge
from avcg.method.search import Search
from avcg.models.adapter import as_rows
from avcg.models.precision import full_precision
from avcg.space.encoding import Codes


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

    recipe: Recipe | None
    recipe_: Recipe
    generator_: Generator
    reference_set_: ReferenceSet
    calibration_: Calibration
    diagnostics_: pd.DataFrame
    distillation_: Distillation | None = None

    @property
    def search(self) -> Search:
        """The search for answers, with this generator and its judges behind the ports."""
        return self._search_at(self.calibration_.margin)

    def _search_at(self, margin: float) -> Search:
        """The search at a margin beyond the decision."""
        recipe = self.recipe_
        return Search(
            acceptance=self.acceptance,
            propose=self._propose,
            references=[rows.cpu().numpy() for rows in self.reference_set_.rows],
            latents=partial(latent_noise, self.random_state, self.generator_.n_latent),
            margin=margin,
            single_pass=recipe.single_pass,
            shorten=self._shorten if self.distillation_ is not None else None,
        )

    def _shorten(self, query: Query, answers: Codes, margins: Codes) -> Codes:
        """Answers with fewer changes, as far as the students of models that can only be asked can tell."""
        assert self.distillation_ is not None
        return self.distillation_.leaner(query, answers, margins, rounds=self._search_config.refine_rounds)

    def _answers(self, query: Query) -> Codes:
        return self.search.answers(query)

    @property
    def _search_config(self) -> SearchConfig:
        recipe: Recipe = getattr(self, "recipe_", None) or self.recipe or Recipe()
        return recipe.search

    def _condition(self, query: Query, margin: Codes) -> Condition:
        """(N) what the generator is told, on its device; margins (K, B) are K conditions a row."""
        # A decoder that sees z and the target alone has no use for what else is asked.
        latent_only = self.recipe_.decoder == "latent"
        features = query.target[:, None].astype(np.float32) if latent_only else query.space.constraint_features(query.x)
        parts: list[NDArray[Any]] = [query.x, query.target, features]
        if margin.ndim > 1:
            parts = [np.tile(part, (len(margin), *[1] * (part.ndim - 1))) for part in parts]
        device = self._torch_device()
        return Condition(*(torch.from_numpy(part).to(device) for part in (*parts, margin.ravel())))

    @torch.no_grad()
    def _propose(self, query: Query, margin: Codes, latent: Codes | None = None) -> Codes:
        """(K, B, *event) feasible candidates; see `avcg.method.search.Propose`."""
        condition = self._condition(query, margin)
        shifts = np.zeros((1, self.generator_.n_latent), np.float32) if latent is None else latent
        with full_precision(condition.x.device):
            posterior = self.generator_.posterior(condition)
            z = posterior.sample(torch.from_numpy(shifts)[:, None].to(condition.x.device))
            return self._finalize(query, condition, z)

    def _finalize(self, query: Query, condition: Condition, z: Tensor) -> Codes:
        """(K, N, L) latents to (K N / B, B, *event) feasible answers."""
        proposal = self.generator_(condition, z)
        shape = (-1, len(query.x))
        raw = proposal.raw.cpu().numpy().reshape(*shape, *query.x.shape[1:])
        gates = proposal.gates
        if gates is not None:
            gates = (gates > 0).cpu().numpy().reshape(*shape, gates.shape[-1])
        return query.space.finalize(raw, query.x, gates, self._search_config.code_quantum)

    def _refined(self, query: Query, answers: Tensor, effort: Refinement, deadline: Deadline) -> Tensor:
        """The cheapest accepted of more tries, gradient steps on the latent posterior, then what every method does."""
        more = [] if deadline.passed or query.n > 1 else [torch.from_numpy(self._smaller_margins(query))]
        if effort.steps and query.n == 1:
            more.append(torch.from_numpy(self._descended(query, effort, deadline))[None])
        if more:
            everyone = torch.arange(len(query.x))
            pool = torch.cat([answers, *more])
            accepted = torch.stack([self._accept(query, each, everyone) for each in pool])
            prices = torch.from_numpy(query.space.distance(pool.numpy(), query.x))
            lowest, which = prices.masked_fill(~accepted, torch.inf).min(dim=0)
            cheaper = lowest < prices[0]
            answers = answers.clone()
            answers[0, cheaper] = pool[which, everyone][cheaper]
        return super()._refined(query, answers, effort, deadline)

    def _smaller_margins(self, query: Query) -> Codes:
        """(K, B, *event) answers with less margin than is safe for all, and without each of the first's changes."""
        margin, config = self.search.margins(query), self._search_config
        found = [self._propose(query, margin - np.array(config.refine_margins, np.float32)[:, None])]
        for rank in range(config.refine_locks):
            space = query.space.lock_change(found[0][0], query.x, rank)
            if space is not None:
                found.append(self._propose(replace(query, space=space), margin))
        return np.concatenate(found)

    def _descended(self, query: Query, effort: Refinement, deadline: Deadline) -> Codes:
        """(B, *event) answers at the posterior mean after gradient steps on it."""
        condition = self._condition(query, self.search.margins(query))
        score = self._scorer(query, condition, 1, torch.Generator().manual_seed(self.random_state))
        with torch.no_grad():
            start = self.generator_.posterior(condition)
        found = descend(start, score, effort.steps, effort.learning_rate, deadline)
        with torch.no_grad():
            return self._finalize(query, condition, found.mean[None])[0]

    def _scorer(self, query: Query, condition: Condition, n_latents: int, rng: torch.Generator) -> Score:
        """G as a function of the posterior, with its noise held fixed."""
        recipe, space = self.recipe_, query.space.tensors
        chance = 0.0 if recipe.temperature is None else recipe.noise[1]
        # The same for every row, so that none depends on its place.
        one = Draws.draw(self.generator_, space, n_latents, condition.x[:1], rng, hard=chance)
        draws = one.repeated(len(condition.x))
        known = self.judges_ if self.distillation_ is None else self.distillation_.students
        predictors = known.to(condition.x.device)
        temperature = None if recipe.temperature is None else recipe.temperature[1]
        reference = self.reference_set_.to(condition.x.device) if recipe.weights.plausibility else None

        def score(posterior: DiagonalNormal) -> Tensor:
            risk = recipe.risk or Hinge(condition.margin, recipe.spread)
            terms = objective(
                self.generator_, space, condition, posterior, predictors, draws, risk,
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
        current = self.deployed_.decide(self.deployed_.probabilities(x)).cpu().numpy()
        wanted, _ = target_positions(target, current, self.classes_.tolist())
        query = Query(x.numpy(), wanted, self.space_.codes)
        condition = self._condition(query, self.search.margins(query))
        search, measure = (
            self._scorer(query, condition, n_latents, torch.Generator().manual_seed(self.random_state + i))
            for i in (1, 2)
        )
        with torch.no_grad():
            start = self.generator_.posterior(condition)
        best = descend(start, search, steps, learning_rate, Deadline())
        with torch.no_grad():
            found = {name: measure(each).cpu().numpy() for name, each in (("encoder", start), ("refined", best))}
        index = rows.index if isinstance(rows, pd.DataFrame) else None
        return pd.DataFrame(found, index=index).assign(gap=found["encoder"] - found["refined"])


def latent_noise(seed: int, size: int, count: int) -> Codes:
    """(count, size) standard normal noise, the same for every row, call and surface."""
    return np.random.default_rng(seed).standard_normal((count, size)).astype(np.float32)
