"""AVCG: a generator trained against a distribution of predictors, which answers in a single pass."""

from __future__ import annotations

import copy
import math
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
from avcg.method.diagnostics import measure, warn_of_collapse
from avcg.method.distillation import Distillation
from avcg.method.multipliers import Multipliers
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
        hypotheses: The distribution over plausible models: retrains, MCDropout, a Rashomon set, ...
        schema: What may change; None: the hypotheses' own schema.
        model: The deployed model, whose decision counts; None: the one the hypotheses were made around, or their mean.
        threshold: Probability of the second of two classes from which the decision is for it; None: the likeliest.
        survival: Share of models that is promised to agree with an answer, in (0, 1). The margin is chosen so that the
            promise holds on rows and hypotheses that were not trained on; a warning says when it cannot.
        recipe: How the generator is built, trained and searched; None: the default. See `AVCG.paper`.
        n_test: Number of hypotheses held out for certificates; None: a quarter of a finite set, or 50 draws.
        device: PyTorch device on which to train and answer.
        random_state: Seed of all random numbers.

    Attributes:
        recipe_: The recipe it was trained by, with its weights scaled to this space.
        generator_: The encoder and the decoder.
        calibration_: The margin that was chosen, with the frontier of survival against distance.
        diagnostics_: By epoch: loss, KL, active latent units, personalisation, changes.
        distillation_: The students of models that can only be asked; None where models have gradients.

    >>> from avcg import toys, Classifier, retrains
    >>> loans = toys.loans(n=400)
    >>> model = Classifier(hidden=(16,), epochs=30).fit(loans.X, loans.y)
    >>> recourse = AVCG(retrains(model, loans.X, loans.y, n=8), recipe=Recipe(steps=300)).fit(loans.X)
    >>> denied = loans.X[model.predict(loans.X) == model.classes_[0]].head(2)
    >>> answers = recourse.generate(denied)
    >>> bool((answers.frame.columns == denied.columns).all())
    True
    """

    _calibrates = True

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
    def default_settings(cls) -> dict[str, Any]:
        """The default recipe; see `Explainer.default_settings`."""
        return {"recipe": Recipe()}

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
        """An explainer in the paper's configuration; see `Recipe.paper`.

        Args:
            hypotheses: The distribution over plausible models: MCDropout for AVCG-B, a Rashomon set for AVCG-R.
            schema: What may change; None: the hypotheses' own schema.
            proximity: λ, the weight of the distance.
            n_test: Number of hypotheses held out for certificates; 0 to train on every member of a finite set, as the
                paper does; None: a quarter of a finite set, or 50 draws.
            device: PyTorch device on which to train and answer.
            random_state: Seed of all random numbers.
        """
        recipe = Recipe.paper(proximity)
        return cls(hypotheses, schema, recipe=recipe, n_test=n_test, device=device, random_state=random_state)

    def _fit(self, x: Tensor, y: Tensor | None, rng: torch.Generator) -> None:
        recipe = self.recipe_ = (self.recipe or Recipe()).scaled_to(self.space_)
        held, chosen = _hold_back(x, self.space_.immovable(x), recipe.calibration, rng)
        self.generator_ = recipe.build_generator(self.space_, len(self.classes_), rng=rng)
        self.reference_set_ = ReferenceSet.robust(
            self.judges_, x[chosen], None if y is None else y[chosen], recipe.reference, rng
        )
        self._train(x[chosen], x[held], recipe, self.generator_.parameters(), rng)

    def _train(self, x: Tensor, held: Tensor, recipe: Recipe, trained: Iterable[Tensor], rng: torch.Generator) -> None:
        """Train the generator, measure it after each epoch, and calibrate the margin.

        Args:
            x: (N, *event) rows to train on.
            held: (M, *event) rows held back for calibration.
            recipe: The recipe to train by.
            trained: The parameters to train; all others stay as they are.
            rng: Random numbers.
        """
        device = self._torch_device()
        self.generator_.requires_grad_(False)
        for parameter in trained:
            parameter.requires_grad_(True)
        self.generator_.to(device)
        watched = self._held_query(held[: recipe.diagnostics.rows], rng)
        epochs: list[dict[str, float]] = []
        train, deployed = self.split_.train, self.deployed_.predictors
        self.multipliers_ = (
            None
            if recipe.constraint is None or recipe.risk is not None
            else Multipliers(recipe.constraint, recipe.margins, recipe.weights.nll, device)
        )
        self.distillation_, count = None, recipe.n_hypotheses
        if not self.judges_.differentiable:
            models = train.sample(count, rng=rng)
            self.distillation_ = Distillation(deployed, models, x, self.space_, rng, recipe.distillation)
        for round_recipe in [recipe] if self.distillation_ is None else recipe.in_rounds():
            if self.distillation_ is not None:
                if epochs:
                    self.distillation_.correct(self._attempts(x, recipe, rng), rng)
                train, deployed = self.distillation_.stand_ins()
            fit_generator(
                self.generator_,
                self.space_,
                x.to(device),
                train,
                DeployedModel(deployed.to(device), self.threshold),
                round_recipe,
                self.reference_set_.to(device) if recipe.weights.plausibility else None,
                rng,
                multipliers=self.multipliers_,
                on_epoch=lambda epoch: epochs.append({"loss": epoch.loss, **self._measure(watched)}),
            )
        self.generator_.requires_grad_(False).eval()
        self.diagnostics_ = pd.DataFrame(epochs, index=pd.RangeIndex(1, len(epochs) + 1, name="epoch"))
        warn_of_collapse(self.diagnostics_, recipe.diagnostics)
        query = self._held_query(held, rng)
        self.calibration_ = self._calibrate(query, recipe)
        if not recipe.single_pass:
            first = np.arange(min(len(query.x), recipe.calibration.refine_rows))
            self.refined_margin_ = self._calibrate_refining(query.take(first))

    def _held_query(self, held: Tensor, rng: torch.Generator) -> Query:
        """A query for encoded rows, each aimed at a class that it does not have."""
        current = self.deployed_.decide(self.deployed_.probabilities(held))
        target = draw_targets(current, len(self.classes_), "other", rng)
        return Query(held.cpu().numpy(), target.cpu().numpy(), self.space_.codes)

    def _attempts(self, x: Tensor, recipe: Recipe, rng: torch.Generator) -> Tensor:
        """(N, *event) the generator's present answers to training rows, at random margins and restrictions."""
        movable = x[~self.space_.immovable(x)]
        rows = movable[torch.randint(len(movable), (recipe.distillation.attempts,), generator=rng)]
        query = self._held_query(rows, rng)
        rng_numpy = np.random.default_rng(int(torch.randint(2**31, (), generator=rng)))
        space = self.space_.random_requests(len(query.x), recipe.requests, rng_numpy).codes
        low, high = recipe.margins
        margin = self.deployed_.rule.log_odds(query.target) + low + (high - low) * rng_numpy.random(len(query.x))
        latent = rng_numpy.standard_normal((1, self.generator_.n_latent)).astype(np.float32)
        return torch.from_numpy(self._propose(replace(query, space=space), margin.astype(np.float32), latent)[0])

    @torch.no_grad()
    def _measure(self, query: Query) -> dict[str, float]:
        """The diagnostics of the generator as it is now."""
        config = self.recipe_.diagnostics
        margin = np.full(len(query.x), config.margin, np.float32)
        posterior = self.generator_.posterior(self._condition(query, margin))
        return measure(query, posterior, self._propose(query, margin)[0], config)

    def _calibrate(self, query: Query, recipe: Recipe) -> Calibration:
        """The least margin at which the promise holds on rows and hypotheses that were not trained on."""
        count = recipe.calibration.n_margins if recipe.risk is None and recipe.margins[0] < recipe.margins[1] else 1
        calibration = calibrate(
            torch.linspace(*recipe.margins, count).tolist(),
            lambda margin: torch.from_numpy(self._first_at(query, margin)),
            query,
            self.deployed_,
            self.split_.calibration,
            self.survival,
            recipe.calibration.standard_errors,
        )
        if not calibration.met:
            warnings.warn(f"AVCG: {calibration}", stacklevel=5)
        return calibration

    def _calibrate_refining(self, query: Query) -> float:
        """The least log-odds that refining must leave for the promise to hold on rows that were not trained on."""
        answers = torch.from_numpy(self._first_at(query, self.calibration_.margin))[None]
        config = self.recipe_.calibration
        target = torch.from_numpy(query.target)
        promise = min(self.survival, self.calibration_.best)

        def holds(level: float) -> bool:
            self.refined_margin_ = level
            shorter = self._refined(query, answers, Refinement(), Deadline())[0]
            survival, error = survival_of(self.deployed_, self.split_.calibration, shorter, target)
            return survival - config.standard_errors * error >= promise

        levels = config.refine_levels  # survival grows with the level, so the least can be bisected
        return levels[bisect_left(levels[:-1], True, key=holds)]

    def _first_at(self, query: Query, margin: float) -> Codes:
        """(B, *event) one answer for each row, at a margin beyond the decision in log-odds."""
        search = self._search_at(margin)
        return search.first(query, search.margins(query))

    def save(self, path: str | Path, *, graphs: bool = False, about: Mapping[str, Any] | None = None) -> list[Any]:
        """Write this explainer to a folder that `avcg.load` opens: weights and JSON, no code.

        An interrupted save leaves the folder as it was. The folder holds the rows of ``reference_set_``, which are
        training rows.

        Args:
            path: The folder; it is made if it does not exist.
            graphs: Whether to add ONNX graphs, from which `avcg.io.scorer.Scorer` and the service answer without torch.
                It takes seconds, and needs the extra ``onnx`` and models that are networks.
            about: Notes to store with it, plain values; None: no notes.

        Returns:
            The models that cannot be stored and must be given to `avcg.load`; none for networks of known layers,
            XGBoost, LightGBM and ONNX.
        """
        from avcg.io.artifact import save

        return save(self, path, graphs=graphs, about=about)

    def to_onnx(self, path: str | Path) -> None:
        """Write the generator as one ONNX graph for any number of rows, after comparing its output with this one's.

        It reads encoded rows ``x``, class positions ``target``, log-odds ``margin``, ``noise`` (zeros: the posterior
        mean) and what may change (``low``, ``high``, ``no_fall``, ``no_rise``, ``may_enter``, ``cap``, as
        `TableCodes.coded` gives them). It writes ``answer``: codes within their limits, still to be rounded by
        `TabularSpace.project`.

        Args:
            path: The file to write.
        """
        from avcg.files import write_whole
        from avcg.io.onnx import generator_graph

        write_whole(Path(path), generator_graph(self))

    def refit(
        self, hypotheses: HypothesisDistribution, X: Any, *, steps: int = 500, only_encoder: bool = False
    ) -> Self:
        """A new explainer for new hypotheses, whose training continues from this generator.

        Args:
            hypotheses: New hypotheses over the same columns and classes.
            X: Training rows in user units.
            steps: Number of training steps.
            only_encoder: Whether to keep the decoder and train the encoder alone, on the rows with the largest
                amortization gap (`Recipe.refresh_share` of them).

        Returns:
            The new explainer; this one stays as it is.
        """
        check_is_fitted(self)
        recipe = replace(self.recipe_, steps=steps, warm_up=0.0)
        check_same_reading(self.hypotheses.space, hypotheses.space, self.classes_, hypotheses.classes)
        renewed = type(self)(**{**self.get_params(deep=False), "hypotheses": hypotheses})
        rng, rows, x, _ = renewed._prepare(X, None)
        renewed.recipe_, renewed.generator_ = self.recipe_, copy.deepcopy(self.generator_)
        renewed.calibration_, renewed.is_fitted_ = self.calibration_, True
        immovable = renewed.space_.immovable(x)
        held, chosen = _hold_back(x, immovable, recipe.calibration, rng)
        renewed.reference_set_ = ReferenceSet.robust(renewed.judges_, x[chosen], None, recipe.reference, rng)
        trained = renewed.generator_.encoder if only_encoder else renewed.generator_
        if only_encoder:
            chosen = chosen[~immovable[chosen]]
            gaps = renewed.amortization_gap(take_rows(rows, chosen), steps=recipe.refresh_steps)["gap"].to_numpy()
            count = math.ceil(recipe.refresh_share * len(chosen))
            chosen = chosen[torch.tensor(gaps).argsort(descending=True)[:count]]
        renewed._train(x[chosen], x[held], recipe, trained.parameters(), rng)
        return renewed


def _hold_back(x: Tensor, immovable: Tensor, config: CalibrationConfig, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Positions of the rows to calibrate by, all of which may change something, and of the rows to train on.

    Args:
        x: (N, *event) encoded rows.
        immovable: (N,) whether a row may change nothing. It has no answer, but may be a reference row for others.
        config: How many rows to hold back.
        rng: Random numbers.

    Raises:
        DataError: If fewer than two rows may change something.
    """
    movable = int((~immovable).sum())
    if movable < 2:
        raise DataError(
            f"A generator needs at least two rows to train on that may change something. Got {movable} of {len(x)}."
        )
    order = torch.randperm(len(x), generator=rng)
    order = order[immovable[order].sort(stable=True).indices]
    least = min(config.min_rows, int(config.max_share * movable + 1e-9))
    most = max(config.max_codes // x[0].numel(), config.min_rows)
    count = min(max(round(config.held_share * movable), least, 1), most)
    return order[:count], order[count:]
