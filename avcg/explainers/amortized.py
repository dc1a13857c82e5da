"""Explainers that answer with a trained generator: the ports of the search, and the amortization gap."""

from __future__ import annotations

import copy
from collections.abc import Mapping
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
from avcg.guarantees.statement import Statement
from avcg.method.calibration import Calibration
from avcg.method.descent import Score, descend
from avcg.method.distillation import Distillation
from avcg.method.generator import Condition, DiagonalNormal, Generator
from avcg.method.objective import Draws, objective
from avcg.method.query import Effort, Query, target_positions
from avcg.method.recipe import Recipe
from avcg.method.reference_set import ReferenceSet
from avcg.method.risk import Hinge
from avcg.method.search import Search
from avcg.models.adapter import as_rows
from avcg.models.precision import full_precision
from avcg.space.encoding import Codes


class Amortized(Explainer):
    """An explainer that answers with a generator; `avcg.AVCG` trains it.

    Attributes:
        recipe_: The recipe that the generator was trained by, with its weights scaled to this space.
        generator_: The encoder and the decoder.
        reference_set_: Training rows of each class that answers stay near to and fall back on.
        calibration_: The margins that were chosen, with the frontier of survival against distance.
        diagnostics_: Loss, KL divergence, active latent units, personalisation and changes of each epoch.
        distillation_: The students of black-box models; None if the models have gradients.
    """

    recipe: Recipe | None
    recipe_: Recipe
    generator_: Generator
    reference_set_: ReferenceSet
    calibration_: Calibration
    diagnostics_: pd.DataFrame
    distillation_: Distillation | None = None
    _exact: tuple[Generator, Generator] | None = None

    @property
    def search(self) -> Search:
        """The search for answers with this generator, at the margin calibrated for standard effort."""
        return self._search_at(self.calibration_.margins())

    def _search_at(self, margins: Codes) -> Search:
        """The search for answers with this generator.

        Args:
            margins: (C,) log-odds beyond the decision to aim at, by target class.
        """
        return Search(
            acceptance=self.acceptance,
            propose=self._propose,
            references=[rows.cpu().numpy() for rows in self.reference_set_.rows],
            latents=partial(latent_noise, self.random_state, self.generator_.n_latent),
            margin=margins,
            single_pass=self.recipe_.single_pass,
            n_typical=self.recipe_.reference.n_neighbours,
            cuts=self.judges_.thresholds(),
        )

    def _answers(self, query: Query) -> Codes:
        return self._search_at(self.calibration_.margins(query.effort)).answers(query)

    def _statements(self, effort: Effort) -> Mapping[Any, Statement]:
        if self.split_.calibration is None and self.calibration_.n_models:  # other models judge than calibrated
            return {}
        statements = self.calibration_.statements(effort)
        if effort in self.calibration_.directions or effort != "thorough":
            return statements
        return {label: each.not_for_this_query() for label, each in statements.items()}

    @property
    def _choices(self) -> Recipe:
        return getattr(self, "recipe_", None) or self.recipe or super()._choices

    def _condition(self, query: Query, margin: Codes) -> Condition:
        """The generator's input on its device: B rows for (B,) margins, K B rows for (K, B) margins."""
        # A "latent" decoder does not read the constraint features, so a placeholder of B rows is enough.
        features = query.target[:, None].astype(np.float32)
        if self.generator_.kind != "latent":
            features = query.space.constraint_features(query.x, self.generator_.reach)
        parts: list[NDArray[Any]] = [query.x, query.target, features]
        if margin.ndim > 1:
            parts = [np.tile(part, (len(margin), *[1] * (part.ndim - 1))) for part in parts]
        typicality = np.full(margin.size, query.typicality, np.float32)
        device = self._torch_device()
        return Condition(*(torch.from_numpy(part).to(device) for part in (*parts, margin.ravel(), typicality)))

    @property
    def _exact_generator(self) -> Generator:
        """The generator in float64 for tables, so that numbers are rounded alike whatever computes them.

        Images have no other interface to agree with, and keep float32. While the generator is trained, the copy is made
        again for every call.
        """
        if len(self.generator_.event_shape) > 1:
            return self.generator_
        if self._exact is None or self._exact[0] is not self.generator_ or self.generator_.training:
            self._exact = self.generator_, copy.deepcopy(self.generator_).double().requires_grad_(False).eval()
        return self._exact[1]

    @torch.no_grad()
    def _propose(self, query: Query, margin: Codes, latent: Codes | None = None) -> Codes:
        """(K, B, *event) feasible candidates; see `avcg.method.search.Propose`."""
        condition, generator = self._condition(query, margin), self._exact_generator
        noise = np.zeros((1, generator.n_latent), np.float32) if latent is None else latent
        condition = replace(condition, x=condition.x.to(generator.anchor.dtype))
        with full_precision(condition.x.device):
            posterior = generator.posterior(condition)
            z = posterior.sample(torch.from_numpy(noise)[:, None].to(condition.x))
            proposal = generator(condition, z)
        shape = (-1, len(query.x))
        raw = proposal.raw.float().cpu().numpy().reshape(*shape, *query.x.shape[1:])
        gates = proposal.gates
        if gates is not None:
            gates = (gates > 0).cpu().numpy().reshape(*shape, gates.shape[-1])
        return query.space.finalize(raw, query.x, gates, self.recipe_.search.code_quantum)

    def _score(self, query: Query, condition: Condition, n_latents: int, rng: torch.Generator) -> Score:
        """The objective G as a function of the posterior, with its noise held fixed."""
        recipe, space = self.recipe_, query.space.tensors
        noise = 0.0 if recipe.temperature is None else recipe.noise[1]
        # The same noise for every row, so that no answer depends on its position in the batch.
        draws = Draws.draw(self.generator_, space, n_latents, condition.x[:1], rng, hard=noise).repeated(
            len(condition.x)
        )
        judges = self.judges_ if self.distillation_ is None else self.distillation_.students
        predictors = judges.to(condition.x.device)
        temperature = None if recipe.temperature is None else recipe.temperature[1]
        reference = self.reference_set_.to(condition.x.device) if recipe.weights.plausibility else None

        def score(posterior: DiagonalNormal) -> Tensor:
            risk = recipe.risk or Hinge(condition.margin, recipe.spread)
            terms = objective(
                self.generator_, space, condition, posterior, predictors, draws, risk,
                temperature=temperature, distance=recipe.distance, expected_share=recipe.expected_share,
                plausibility=reference, min_separation=recipe.min_separation,
            )  # fmt: skip
            return terms.total(recipe.weights, condition.typicality)

        return score

    def amortization_gap(
        self, X: Any, target: Any = None, *, steps: int = 100, n_latents: int = 20, learning_rate: float = 0.05
    ) -> pd.DataFrame:
        """The amortization gap of each row: G under the encoder's posterior minus G under the best posterior found.

        Both are measured with the same noise, which differs from the noise that the descent uses.

        Args:
            X: Rows in user units.
            target: The decision to reach, as in `generate`.
            steps: Number of gradient steps on each row's (mean, log variance).
            n_latents: Number of latents for the descent, and as many for the measurement.
            learning_rate: Learning rate of the descent.

        Returns:
            A line for each row, with columns ``encoder``, ``refined`` and ``gap`` = encoder - refined.
        """
        check_is_fitted(self)
        rows = as_rows(X)
        x = self.space_.encode(rows)
        current = self.deployed_.decide(self.deployed_.probabilities(x)).cpu().numpy()
        positions, _ = target_positions(target, current, self.classes_.tolist())
        query = Query(x.numpy(), positions, self.space_.codes)
        condition = self._condition(query, self.search.margins(query))
        minimised, measured = (
            self._score(query, condition, n_latents, torch.Generator().manual_seed(self.random_state + i))
            for i in (1, 2)
        )
        with torch.no_grad():
            start = self.generator_.posterior(condition)
        best = descend(start, minimised, steps, learning_rate)
        with torch.no_grad():
            encoder, refined = measured(start).cpu().numpy(), measured(best).cpu().numpy()
        index = rows.index if isinstance(rows, pd.DataFrame) else None
        return pd.DataFrame({"encoder": encoder, "refined": refined, "gap": encoder - refined}, index=index)


def latent_noise(seed: int, size: int, count: int) -> Codes:
    """(count, size) standard normal noise, the same for every row, call and interface."""
    return np.random.default_rng(seed).standard_normal((count, size)).astype(np.float32)
