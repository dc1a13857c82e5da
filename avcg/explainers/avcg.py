"""AVCG: one generator, trained against a distribution of predictors, that answers in a single pass."""

from __future__ import annotations

import copy
import warnings
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from avcg.errors import DataError
from avcg.explainers.amortized import Amortized
from avcg.hypotheses.base import HypothesisDistribution, check_same_reading
from avcg.method.calibration import Calibration, calibrate, survival_of
from avcg.method.config import CalibrationConfig
from avcg.method.deployed import DeployedModel
from avcg.method.diagnostics import look, warn_of_collapse
from avcg.method.distillation import Distillation
from avcg.method.generator import Generator
from avcg.method.query import Query
from avcg.method.recipe import Recipe, draw_targets, fit_generator
from avcg.method.reference_set import ReferenceSet
from avcg.method.refine import Deadline, Refinement
from avcg.models.adapter import Model
from avcg.models.black_box import BlackBox
from avcg.schema.schema import Schema
from avcg.space.encoding import Codes
from avcg.space.frames import take_rows


class AVCG(Amortized):
    """The amortized variational counterfactual generator.

    Args:
        hypotheses: The plausible predictors: retrains, MCDropout, a Rashomon set, ...
        schema: What may change; None: as the hypotheses' own.
        model: The model whose decision counts; None: the one the hypotheses were made around, or their mean.
        threshold: Probability of the second of two classes from which the decision is for it; None: the likeliest.
        survival: The share of models promised to agree with an answer. The margin is chosen so that it holds on rows
            and hypotheses that were not trained on; a warning says when it cannot.
        recipe: How the generator is built and trained; None: the default. See `AVCG.paper`.
        n_test: Hypotheses set aside for certificates; None: a quarter of a finite set, or 50 draws.
        device: Where to train and answer.
        random_state: Seed.

    Attributes:
        recipe_: How it was trained, with weights for this space.
        generator_: The two networks.
        calibration_: How the margin was chosen, with the frontier of survival against distance.
        diagnostics_: By epoch: loss, KL, active latent units, personalisation, changes.
        distillation_: The students of models that can only be asked, with a report; None where there are none.

    >>> from avcg import toys, Classifier, retrains
    >>> loans = toys.loans(n=400)
    >>> model = Classifier(hidden=(16,), epochs=30).fit(loans.X, loans.y)
    >>> recourse = AVCG(retrains(model, loans.X, loans.y, n=8), recipe=Recipe(steps=300)).fit(loans.X)
    >>> denied = loans.X[model.predict(loans.X) == model.classes_[0]].head(2)
    >>> answers = recourse.generate(denied)
    >>> bool((answers.frame.columns == denied.columns).all())
    True
    """

    _tunes = True

    def __init__(
        self,
        hypotheses: HypothesisDistribution,
        schema: Schema | None = None,
        *,
        model: Model | BlackBox | None = None,
        threshold: float | None = None,
        survival: float = 0.99,
        recipe: Recipe | None = None,
        n_test: int | None = None,
        device: str = "cpu",
        random_state: int = 0,
    ) -> None:
        super().__init__(
            hypotheses, schema, model=model, threshold=threshold, survival=survival, n_test=n_test,
            device=device, random_state=random_state,
        )  # fmt: skip
        self.recipe = recipe

    @classmethod
    def paper(
        cls,
        hypotheses: HypothesisDistribution,
        schema: Schema | None = None,
        *,
        proximity: float = 3.0,
        n_test: int | None = None,
        device: str = "cpu",
        random_state: int = 0,
    ) -> Self:
        """The paper's configuration; see `Recipe.paper`.

        Args:
            hypotheses: As in the class; AVCG-B with MCDropout, AVCG-R with a Rashomon set.
            schema: What may change.
            proximity: λ.
            n_test: As in the class; 0 to train on every member of a finite set, as the paper does.
            device: As in the class.
            random_state: Seed.
        """
        recipe = Recipe.paper(proximity)
        return cls(hypotheses, schema, recipe=recipe, n_test=n_test, device=device, random_state=random_state)

    def _fit(self, x: Tensor, y: Tensor | None, rng: torch.Generator) -> None:
        recipe = self.recipe_ = (self.recipe or Recipe()).scaled_to(self.space_)
        held, chosen = _hold_back(x, self.space_.immovable(x), recipe.calibration, rng)
        self.generator_ = recipe.build_generator(self.space_, len(self.classes_), rng=rng)
        self.reference_set_ = ReferenceSet.robust(
            self.judges_, x[chosen], None if y is None else y[chosen], recipe.n_reference, rng
        )
        self._train(x[chosen], x[held], recipe, self.generator_.parameters(), rng)

    def _train(self, x: Tensor, held: Tensor, recipe: Recipe, trained: Iterable[Tensor], rng: torch.Generator) -> None:
        """Train some parameters, look at each epoch, and choose the margin."""
        device = self._torch_device()
        self.generator_.requires_grad_(False)
        for parameter in trained:
            parameter.requires_grad_(True)
        self.generator_.to(device)
        watched = self._held_query(held[: recipe.calibration.watched_rows], rng)
        seen: list[dict[str, float]] = []
        train, deployed = self.split_.train, self.deployed_.predictors
        self.distillation_, count = None, recipe.n_hypotheses
        if not self.judges_.differentiable:
            models = train.sample(count, generator=rng)
            self.distillation_ = Distillation(deployed, models, x, self.space_, rng, recipe.distillation)
        for lesson in (recipe,) if self.distillation_ is None else recipe.parted(recipe.distillation.rounds):
            if self.distillation_ is not None:
                if seen:
                    self.distillation_.correct(self._attempts(x, recipe, rng), rng)
                train, deployed = self.distillation_.teach()
            fit_generator(
                self.generator_,
                self.space_,
                x.to(device),
                train,
                DeployedModel(deployed.to(device), self.threshold),
                lesson,
                self.reference_set_.to(device) if recipe.weights.plausibility else None,
                rng,
                on_epoch=lambda epoch: seen.append({"loss": epoch.loss, **self._look(watched)}),
            )
        self.generator_.requires_grad_(False).eval()
        self.diagnostics_ = pd.DataFrame(seen, index=pd.RangeIndex(1, len(seen) + 1, name="epoch"))
        warn_of_collapse(self.diagnostics_)
        query = self._held_query(held, rng)
        self.calibration_ = self._calibrate(query, recipe)
        if not recipe.single_pass:
            few = query.take(np.arange(min(len(query.x), recipe.calibration.refine_rows)))
            self.refined_margin_ = self._calibrate_refining(few)

    def _held_query(self, held: Tensor, rng: torch.Generator) -> Query:
        """Rows as they are, each asking for another class than it has."""
        current = self.deployed_.decide(self.deployed_.probabilities(held))
        target = draw_targets(current, len(self.classes_), "other", rng)
        return Query(held.cpu().numpy(), target.cpu().numpy(), self.space_.codes)

    def _attempts(self, x: Tensor, recipe: Recipe, rng: torch.Generator) -> Tensor:
        """(N, *event) answers to training rows as they are now, at any margin and under any request."""
        able = x[~self.space_.immovable(x)]
        query = self._held_query(able[torch.randint(len(able), (recipe.distillation.attempts,), generator=rng)], rng)
        chance = np.random.default_rng(int(torch.randint(2**31, (), generator=rng)))
        some = replace(query, space=self.space_.random_requests(len(query.x), recipe.requests, chance).codes)
        low, high = recipe.margins
        margin = self.deployed_.rule.log_odds(some.target) + low + (high - low) * chance.random(len(some.x))
        latent = chance.standard_normal((1, self.generator_.n_latent)).astype(np.float32)
        return torch.from_numpy(self._propose(some, margin.astype(np.float32), latent)[0])

    @torch.no_grad()
    def _look(self, query: Query) -> dict[str, float]:
        margin = np.ones(len(query.x), np.float32)
        posterior = self.generator_.posterior(self._condition(query, margin))
        return look(query, posterior, self._propose(query, margin)[0])

    def _calibrate(self, query: Query, recipe: Recipe) -> Calibration:
        """The least margin at which the promise holds on rows and hypotheses that were not trained on."""
        count = recipe.calibration.n_margins if recipe.risk is None and recipe.margins[0] < recipe.margins[1] else 1
        found = calibrate(
            torch.linspace(*recipe.margins, count).tolist(),
            lambda margin: torch.from_numpy(self._first_at(query, margin)),
            query,
            self.deployed_,
            self.split_.calibration,
            self.survival,
            recipe.calibration.standard_errors,
        )
        if not found.met:
            warnings.warn(f"AVCG: {found}", stacklevel=5)
        return found

    def _calibrate_refining(self, query: Query) -> float:
        """The least that refining must leave the teachers for the promise to hold on rows that were not trained on."""
        answers = torch.from_numpy(self._first_at(query, self.calibration_.margin))[None]
        levels, clear = self.recipe_.calibration.refine_levels, self.recipe_.calibration.standard_errors
        target = torch.from_numpy(query.target)
        promise = min(self.survival, self.calibration_.best)

        def holds(level: float) -> bool:
            self.refined_margin_ = level
            shorter = self._refined(query, answers, Refinement(), Deadline())[0]
            survival, error = survival_of(self.deployed_, self.split_.calibration, shorter, target)
            return survival - clear * error >= promise

        return levels[bisect_left(levels[:-1], True, key=holds)]  # what more must be left, survives more

    def _first_at(self, query: Query, margin: float) -> Codes:
        """(B, *event) first answers at a margin beyond the decision."""
        search = self._search_at(margin)
        return search.first(query, search.margins(query))

    def save(self, path: str | Path, *, graphs: bool = False, about: Mapping[str, Any] | None = None) -> list[Any]:
        """Write this explainer to a folder that `avcg.load` opens: weights and JSON, no code.

        An interrupted save leaves what was there before. The folder holds the rows of `bank_`, which are training rows.

        Args:
            path: The folder; made where there is none.
            graphs: Whether to add ONNX graphs, from which `avcg.io.scorer.Scorer` and the service answer without torch.
                Takes seconds, the extra ``onnx``, and models that are networks.
            about: Notes to keep with it, plain values.

        Returns:
            Models that cannot be stored, to be handed back to `avcg.load`: empty for networks of known layers,
            XGBoost, LightGBM and ONNX.
        """
        from avcg.io.artifact import save

        return save(self, path, graphs=graphs, about=about)

    def to_onnx(self, path: str | Path) -> None:
        """Write the generator as one ONNX graph for any number of rows, compared with this one before it is written.

        It reads encoded rows ``x``, class positions ``target``, log-odds ``margin``, ``noise`` (zeros: the posterior
        mean) and what may change (``low``, ``high``, ``no_fall``, ``no_rise``, ``may_enter``, ``cap``, as
        `Freedom.coded` gives them), and writes ``answer``: codes within their limits, still to be rounded by
        `TabularSpace.project`.

        Args:
            path: Of the file.
        """
        from avcg.files import write_whole
        from avcg.io.onnx import generator_graph

        write_whole(Path(path), generator_graph(self))

    def refit(
        self, hypotheses: HypothesisDistribution, X: Any, *, steps: int = 500, only_encoder: bool = False
    ) -> Self:
        """A generator for new hypotheses, trained on from this one instead of from the start.

        Args:
            hypotheses: The new ones, over the same columns and classes.
            X: Training rows.
            steps: Of training.
            only_encoder: Whether to keep the decoder and refresh the encoder alone, on the half of the rows where the
                amortization gap has become largest.

        Returns:
            A new explainer; this one stays as it is.
        """
        check_is_fitted(self)
        recipe = replace(self.recipe_, steps=steps, warm_up=0.0)
        check_same_reading(self.hypotheses.space, hypotheses.space, self.classes_, hypotheses.classes)
        renewed = type(self)(**{**self.get_params(deep=False), "hypotheses": hypotheses})
        rng, rows, x, _ = renewed._prepare(X, None)
        renewed.recipe_, renewed.generator_ = self.recipe_, copy.deepcopy(self.generator_)
        renewed.calibration_, renewed.is_fitted_ = self.calibration_, True
        still = renewed.space_.immovable(x)
        held, chosen = _hold_back(x, still, recipe.calibration, rng)
        renewed.reference_set_ = ReferenceSet.robust(renewed.judges_, x[chosen], None, recipe.n_reference, rng)
        trained = renewed.generator_.encoder if only_encoder else renewed.generator_
        if only_encoder:
            chosen = chosen[~still[chosen]]
            gaps = torch.tensor(renewed.amortization_gap(take_rows(rows, chosen), steps=20)["gap"].to_numpy())
            chosen = chosen[gaps.argsort(descending=True)[: -(-len(chosen) // 2)]]
        renewed._train(x[chosen], x[held], recipe, trained.parameters(), rng)
        return renewed


def _hold_back(x: Tensor, immovable: Tensor, config: CalibrationConfig, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Positions of rows to choose the margin by, which all can change something, and of those to train on.

    Args:
        x: (N, *event) encoded rows.
        immovable: (N,) rows that may change nothing: there is no answer to them, but others may become like them.
        config: How many rows to hold back.
        rng: Random numbers for the choice.
    """
    able = int((~immovable).sum())
    if able < 2:
        raise DataError(
            f"A generator needs at least two rows to train on that may change something. Got {able} of {len(x)}."
        )
    order = torch.randperm(len(x), generator=rng)
    order = order[immovable[order].sort(stable=True).indices]
    most = max(config.max_codes // x[0].numel(), config.min_rows)
    count = min(max(round(config.held_share * able), min(config.min_rows, able // 3), 1), most)
    return order[:count], order[count:]
