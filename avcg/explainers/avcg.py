"""AVCG: a generator trained against a distribution of predictors, which answers in a single pass."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from avcg.errors import PromiseWarning, SettingError
from avcg.explainers.amortized import Amortized
from avcg.guarantees.conformal import Guarantee, Promise
from avcg.guarantees.moments import HasPast, PastMoments, past_for
from avcg.hypotheses.base import HypothesisDistribution, check_same_reading, is_around_one_network
from avcg.hypotheses.finite import FiniteSet
from avcg.hypotheses.predictors import Predictors
from avcg.hypotheses.split import HypothesisSplit, Taught, equal_weights
from avcg.method.calibration import USUAL, Calibration, Direction, first_of_each, hold_back, judge_margins
from avcg.method.config import CalibrationConfig
from avcg.method.deployed import DeployedModel
from avcg.method.diagnostics import measure, warn_of_collapse
from avcg.method.distillation import Distillation
from avcg.method.multipliers import Multipliers
from avcg.method.query import EFFORTS, Effort, Query
from avcg.method.recipe import Recipe, draw_targets, fit_generator
from avcg.method.reference_set import ReferenceSet
from avcg.models.adapter import Model, as_rows
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
        threshold: Probability of the second of two classes that decides for it; None: the deployed model's own rule.
        survival: Share of the people who followed the advice that a later model is to accept, in (0, 1).
        reliability: Chance that the next model does, in (0, 1). Margins are calibrated on rows and hypotheses that were
            not trained on; a `PromiseWarning` says when no promise can be made, and why.
        guarantee: What the chance is about; see `avcg.guarantees.Promise`.
        confidence: Confidence of the guarantee ``"most_models"``, in (0, 1).
        recipe: How the generator is built, trained and searched; None: the default. See `AVCG.paper`.
        calibrate_on: A backtest of this method with this recipe, whose past moments calibrate the promise for its
            target in place of hypotheses. The next model is then one after a step in time, and the reliability no more
            than T past moments carry, T / (T + 1). None: hypotheses calibrate.
        n_test: Number of hypotheses held out to test answers; None: an eighth of a finite set, or 50 draws.
        device: PyTorch device on which to train and answer.
        random_state: Seed of all random numbers.

    Attributes:
        recipe_: The recipe it was trained by, with its weights scaled to this space.
        generator_: The encoder and the decoder.
        calibration_: The margins that were chosen, by target class and effort, and what may be promised.
        diagnostics_: By epoch: loss, KL, active latent units, personalisation, changes.
        multipliers_: What the hinge costs at each level of margin; None where its weight is fixed.
        distillation_: The students of models that can only be asked; None where models have gradients.

    >>> from avcg import toys, Classifier, retrains
    >>> loans = toys.loans(n=400)
    >>> model = Classifier(hidden=(16,), epochs=30).fit(loans.X, loans.y)
    >>> recourse = AVCG(retrains(model, loans.X, loans.y, n=24), recipe=Recipe(steps=300)).fit(loans.X)
    >>> denied = loans.X[model.predict(loans.X) == model.classes_[0]].head(2)
    >>> answers = recourse.generate(denied)
    >>> bool((answers.frame.columns == denied.columns).all())
    True
    """

    def __init__(
        self,
        hypotheses: HypothesisDistribution,
        schema: Schema | None = None,
        *,
        model: Model | BlackBox | None = None,
        threshold: float | None = None,
        survival: float = 0.95,
        reliability: float = 0.9,
        guarantee: Guarantee = "next_model",
        confidence: float = 0.9,
        recipe: Recipe | None = None,
        calibrate_on: HasPast | None = None,
        n_test: int | None = None,
        device: str = "cpu",
        random_state: int = 0,
    ) -> None:
        super().__init__(
            hypotheses, schema, model=model, threshold=threshold, survival=survival, n_test=n_test,
            device=device, random_state=random_state,
        )  # fmt: skip
        self.reliability = reliability
        self.guarantee = guarantee
        self.confidence = confidence
        self.recipe = recipe
        self.calibrate_on = calibrate_on

    @property
    def _calibrates(self) -> bool:
        return (self.recipe or Recipe()).has_margins

    def _asked_promise(self) -> Promise:
        return Promise(self.survival, self.reliability, self.guarantee, self.confidence)

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
            n_test: Number of hypotheses held out to test answers; 0 to train on every member of a finite set, as the
                paper does; None: an eighth of a finite set, or 50 draws.
            device: PyTorch device on which to train and answer.
            random_state: Seed of all random numbers.
        """
        recipe = Recipe.paper(proximity)
        return cls(hypotheses, schema, recipe=recipe, n_test=n_test, device=device, random_state=random_state)

    def _fit(self, x: Tensor, y: Tensor | None, rng: torch.Generator) -> None:
        recipe = self.recipe_ = (self.recipe or Recipe()).scaled_to(self.space_)
        self._past_moments()  # a backtest that does not fit is refused before training
        held, chosen = self._hold_back(x, recipe.calibration, rng)
        self.generator_ = recipe.build_generator(self.space_, len(self.classes_), rng=rng)
        self.reference_set_ = ReferenceSet.robust(
            self.judges_, x[chosen], None if y is None else y[chosen], recipe.reference, rng
        )
        self._train(x[chosen], x[held], recipe, self.generator_.parameters(), rng)

    def _hold_back(self, x: Tensor, config: CalibrationConfig, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Positions of the rows to calibrate by and of those to train on; see `hold_back`."""
        decided = self.deployed_.decide(self.deployed_.probabilities(x)).cpu()
        return hold_back(self.space_.immovable(x), decided, config, x[0].numel(), rng)

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
        self.generator_.requires_grad_(False).train()
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
        self._exact = None
        self.diagnostics_ = pd.DataFrame(epochs, index=pd.RangeIndex(1, len(epochs) + 1, name="epoch"))
        warn_of_collapse(self.diagnostics_, recipe.diagnostics)
        self.calibration_query_ = self._held_query(held, rng)
        self.calibration_ = self._calibrated()
        self._warn_of_no_promise(stacklevel=6)

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

    def _calibrated(self) -> Calibration:
        """The margins for the promise, by rows and hypotheses that were not trained on."""
        split = self.split_
        models, n_models = (
            (self.judges_, 0) if split.calibration is None else (split.calibration, len(split.calibration))
        )
        directions = {effort: self.judged_answers(models, effort=effort) for effort in self._calibrated_efforts}
        basis = (n_models, split.countable, self._past_moments(), split.around_one_network)
        return Calibration(self.promise_, directions, *basis).with_promise(self.promise_)

    @property
    def _calibrated_efforts(self) -> tuple[Effort, ...]:
        """The efforts whose answers are calibrated separately; one where the generator is told no margin."""
        recipe = self.recipe_
        return EFFORTS if recipe.has_margins and not recipe.single_pass else ("fast",)

    def _past_moments(self) -> PastMoments | None:
        """The past moments to calibrate by, which fit this explainer."""
        return past_for(self.calibrate_on, self._ladder(USUAL), self.classes_.tolist(), self.promise_)

    def _ladder(self, effort: Effort) -> list[float]:
        """The margins at which single answers of an effort are judged."""
        recipe, config = self.recipe_, self.recipe_.calibration
        fast = effort == "fast" or effort not in self._calibrated_efforts
        count = config.n_margins if fast else config.n_refined
        return list(map(float, np.linspace(*recipe.margins, count if recipe.has_margins else 1)))

    def judged_answers(
        self, models: Predictors, query: Query | None = None, effort: Effort = USUAL
    ) -> tuple[Direction, ...]:
        """What models say of single answers at every margin, by class position, with a verdict that is still open.

        Args:
            models: Models that were not trained against.
            query: Rows to answer; None: the calibration rows.
            effort: Work spent on the answers; where it is not calibrated separately, answers are fast.
        """
        effort = effort if effort in self._calibrated_efforts else "fast"
        rows = self.calibration_query_ if query is None else query
        if query is None and effort != "fast":
            rows = rows.take(first_of_each(rows.target, self.recipe_.calibration.refine_rows))
        answer, labels = (
            partial(self._answer_at, replace(rows, effort=effort, typicality=self.typicality)),
            self.classes_.tolist(),
        )
        return judge_margins(self._ladder(effort), answer, rows, self.deployed_, models, labels)

    def _answer_at(self, query: Query, margin: float) -> Codes:
        """(B, *event) one answer for each row, at a margin beyond the decision in log-odds."""
        return self._search_at(np.full(len(self.classes_), margin, np.float32)).answers(query)[0]

    def calibrate(
        self,
        *,
        survival: float | None = None,
        reliability: float | None = None,
        guarantee: Guarantee | None = None,
        confidence: float | None = None,
        models: FiniteSet | None = None,
        X: Any = None,
        on: HasPast | None = None,
    ) -> Self:
        """This explainer with another promise, or calibrated by other models, rows or a backtest; nothing is trained.

        Asking for one promise after the other until one is made is a selection that the guarantee does not allow for:
        decide before what to ask for.

        Args:
            survival: Share of people that a later model is to accept; None: as before.
            reliability: Chance that the next model does; None: as before.
            guarantee: What the chance is about; None: as before.
            confidence: Confidence of the guarantee ``"most_models"``; None: as before.
            models: Models to calibrate by, none of which the generator was trained against; None: the present ones.
            X: Rows to calibrate by, in user units, that no model and no generator was trained on; None: the rows held
                back when the explainer was fitted.
            on: A backtest to calibrate on, as ``calibrate_on`` of the constructor; None: as before, or models if given.

        Returns:
            The new explainer; this one stays as it is.

        Raises:
            SettingError: If a model was trained against, or reads rows in another way, or the backtest does not fit.
        """
        check_is_fitted(self)
        asked = {"survival": survival, "reliability": reliability, "guarantee": guarantee, "confidence": confidence}
        settings: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
        renewed = copy.copy(self)
        renewed.promise_ = replace(self.promise_, **settings)
        renewed.__dict__.update(asdict(renewed.promise_))
        if on is not None or models is not None:  # models calibrate in place of a backtest
            renewed.calibrate_on = on
        if models is not None:
            renewed.split_ = self._split_with(models)
        if X is not None:
            x = self.space_.encode(as_rows(X))
            rng = torch.Generator().manual_seed(self.random_state)
            renewed.calibration_query_ = self._held_query(x[~self.space_.immovable(x)], rng)
        if models is None and X is None and renewed.promise_.survival == self.promise_.survival:
            calibration = replace(self.calibration_, past=renewed._past_moments())
            renewed.calibration_ = calibration.with_promise(renewed.promise_)
        else:  # answers depend on the survival: the search accepts candidates by it
            renewed.calibration_ = renewed._calibrated()
        renewed._warn_of_no_promise(stacklevel=3)
        return renewed

    def _warn_of_no_promise(self, *, stacklevel: int) -> None:
        if self._calibrates and self.calibration_.caution:
            warnings.warn(f"AVCG: {self.calibration_.caution}", PromiseWarning, stacklevel=stacklevel)

    def _split_with(self, models: FiniteSet) -> HypothesisSplit:
        """The split with other models to calibrate by.

        Raises:
            SettingError: If they are not a set of models over the same rows and classes that taught nothing.
        """
        if not isinstance(models, FiniteSet):
            raise SettingError(
                f"The 'models' of calibrate must be a set of models, e.g. avcg.retrains(...). Got a"
                f" {type(models).__name__}."
            )
        check_same_reading(self.hypotheses.space, models.space, self.classes_, models.classes)
        taught = int(self._taught().among(models.predictors).sum())
        if taught:
            raise SettingError(
                f"The 'models' of calibrate must not have trained the generator. {taught} of {len(models)} did. Give"
                " models that were fitted separately, for example retrains with another random_state."
            )
        countable, around = equal_weights(models.predictors), is_around_one_network(models)
        return replace(self.split_, calibration=models.predictors, countable=countable, around_one_network=around)

    def _taught(self) -> Taught:
        """The hypotheses that the generator was trained against, recognised on calibration rows."""
        train, config = self.split_.train, self.recipe_.split
        count = len(train) if isinstance(train, FiniteSet) else config.n_judges
        probe = torch.from_numpy(self.calibration_query_.x[: self.recipe_.diagnostics.rows])
        return Taught(train.sample(count), probe)

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

        It reads encoded rows ``x``, class positions ``target``, log-odds ``margin``, ``typicality``, ``noise`` (zeros:
        the posterior mean) and what may change (``low``, ``high``, ``no_fall``, ``no_rise``, ``may_enter``, ``cap``, as
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
        rng, rows, x, _ = renewed._prepare(X, None, self._taught())
        renewed.recipe_, renewed.generator_ = self.recipe_, copy.deepcopy(self.generator_)
        renewed.calibration_, renewed.is_fitted_ = self.calibration_, True
        held, chosen = renewed._hold_back(x, recipe.calibration, rng)
        renewed.reference_set_ = ReferenceSet.robust(renewed.judges_, x[chosen], None, recipe.reference, rng)
        trained = renewed.generator_.encoder if only_encoder else renewed.generator_
        if only_encoder:
            chosen = chosen[~renewed.space_.immovable(x[chosen])]
            gaps = renewed.amortization_gap(take_rows(rows, chosen), steps=recipe.refresh_steps)["gap"].to_numpy()
            count = math.ceil(recipe.refresh_share * len(chosen))
            chosen = chosen[torch.tensor(gaps).argsort(descending=True)[:count]]
        renewed._train(x[chosen], x[held], recipe, trained.parameters(), rng)
        return renewed
