"""The user's own model, trained again: what next quarter may bring."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from joblib import Parallel, delayed
from sklearn.base import clone
from torch import Tensor, nn

from avcg.errors import DataError, SettingError, whole
from avcg.hypotheses.distributions import FiniteSet, check_count
from avcg.hypotheses.predictors import Predictors, Stacked, normalised, of_chosen
from avcg.models.classifier import Classifier, check_labels, split_rows
from avcg.models.fitting import fit_stacked
from avcg.models.opened import as_rows, open_model
from avcg.schema import Schema
from avcg.space import Space, TabularSpace
from avcg.training import Training

How = Literal["seed", "bootstrap", "subsample"]


def retrains(
    model: Any,
    X: Any,
    y: Any,
    n: int = 20,
    *,
    how: How = "seed",
    share: float = 0.8,
    schema: Schema | None = None,
    training: Training | None = None,
    space: Space | None = None,
    n_jobs: int = 1,
    random_state: int = 0,
) -> FiniteSet:
    """Fit a model n times more, each time a little differently.

    Networks, bare or in a `Classifier`, are trained as one stacked network. Other estimators are cloned and fitted in
    parallel; they need ``predict_proba``, and serve as judges without gradients.

    Args:
        model: A fitted `Classifier`, a torch network, or a scikit-learn estimator on raw frames.
        X: Training rows; encoded for a bare network.
        y: Their labels.
        n: How many.
        how: What differs: only the ``"seed"``, a ``"bootstrap"`` of the rows, or a ``"subsample"`` without repeats.
        share: Of the rows in a subsample, in (0, 1).
        schema: What the columns are, for estimators; None: inferred.
        training: How to train a bare network; None: its defaults.
        space: What a bare network reads.
        n_jobs: Processes for estimators, as in joblib.
        random_state: Seed.
    """
    n = check_count(n, "retrains")
    if how not in ("seed", "bootstrap", "subsample"):
        raise SettingError(f"The 'how' of retrains must be 'seed', 'bootstrap' or 'subsample'. Got {how!r} instead.")
    if not 0 < share < 1:
        raise SettingError(f"The 'share' of retrains must be in (0, 1). Got {share!r} instead.")
    generator = torch.Generator().manual_seed(whole(random_state, "'random_state' of retrains", 0))
    if isinstance(model, (nn.Module, Classifier)):
        if schema is not None or (space is not None and isinstance(model, Classifier)):
            raise SettingError(
                "A fitted Classifier and a network bring their own reading. Leave schema (and space) out."
            )
        return _networks(model, X, y, n, how, share, training, space, generator)
    if not hasattr(model, "predict_proba"):
        raise SettingError(
            f"A {type(model).__name__} has no predict_proba, so its certainty cannot be read. Use one that has, e.g. by"
            " CalibratedClassifierCV."
        )
    return _estimators(model, as_rows(X), y, n, how, share, schema, n_jobs, generator)


def resample(rows: Tensor, n: int, how: How, share: float, generator: torch.Generator) -> Tensor:
    """(n, rows of each) what each copy trains on, in an order of its own.

    Args:
        rows: (N,) the rows there are.
        n: Copies.
        how: As in `retrains`.
        share: Of a subsample.
        generator: Of the draws.
    """
    if how == "bootstrap":
        return rows[torch.randint(len(rows), (n, len(rows)), generator=generator)]
    size = max(1, round(share * len(rows))) if how == "subsample" else len(rows)
    return torch.stack([rows[torch.randperm(len(rows), generator=generator)[:size]] for _ in range(n)])


def _networks(
    model: nn.Module | Classifier,
    X: Any,
    y: Any,
    n: int,
    how: How,
    share: float,
    training: Training | None,
    space: Space | None,
    generator: torch.Generator,
) -> FiniteSet:
    opened = open_model(model, space)
    network, settings, held_share, device = opened.network, training or Training(), 0.1, "cpu"
    if isinstance(model, Classifier):
        network, held_share, device = model.architecture(), model.validation, model.device
        settings = training or model.training()
    x, labels = opened.pair(X, y)
    x, labels = (x.to(device), labels.to(device)) if isinstance(model, Classifier) else (x, labels)
    # Each copy has a split of its own, as a real retrain would: with one for all, copies would stop early or late
    # together and say too little about the next one.
    splits = [split_rows(len(x), held_share, generator) for _ in range(n)]
    held = torch.stack([apart for _, apart in splits])
    state, _ = fit_stacked(
        network,
        x,
        labels,
        torch.cat([resample(chosen, 1, how, share, generator) for chosen, _ in splits]),
        settings,
        generator=generator,
        held=held if held.shape[1] else None,
        label=f"Training {n} networks",
    )
    home = copy.deepcopy(network).cpu().float()
    stacked = Stacked(home, {name: value.cpu() for name, value in state.items()})
    return FiniteSet(stacked, opened.space, opened.classes, Stacked(opened.network, {}))


def _estimators(
    model: Any,
    X: pd.DataFrame,
    y: Any,
    n: int,
    how: How,
    share: float,
    schema: Schema | None,
    n_jobs: int,
    generator: torch.Generator,
) -> FiniteSet:
    if not isinstance(X, pd.DataFrame):
        kind = type(X).__name__
        raise DataError(f"Estimators are refitted on pandas frames. Got a {kind}; convert it with .to_pandas().")
    space = TabularSpace.fit(schema or Schema.infer(X), X)
    labels = check_labels(y, len(X))
    classes = np.unique(labels)
    table = _with_two_classes(labels, n, how, share, generator)
    seeds = torch.randint(2**31 - 1, (n,), generator=generator).tolist()

    def fit(rows: Any, seed: int) -> Any:
        copied = clone(model)
        chosen = {name: seed for name in copied.get_params() if name.rpartition("__")[2] == "random_state"}
        return copied.set_params(**chosen).fit(X.iloc[rows], labels[rows])

    fitted = Parallel(n_jobs=n_jobs)(delayed(fit)(rows, seed) for rows, seed in zip(table, seeds, strict=True))
    first = [one.predict_proba(X.iloc[:200]) for one in fitted]
    if n > 1 and all(np.allclose(first[0], other, atol=1e-4) for other in first[1:]):
        warnings.warn(
            f"retrains: all {n} models are the same, since a {type(model).__name__} does not depend on {how!r}."
            " They say nothing about what may change; use how='bootstrap'.",
            stacklevel=3,
        )
    base = Estimators([model], space, classes, X.dtypes) if hasattr(model, "classes_") else None
    return FiniteSet(Estimators(fitted, space, classes, X.dtypes), space, classes, base)


def _with_two_classes(labels: Any, n: int, how: How, share: float, generator: torch.Generator) -> Any:
    """(n, rows) resamples, drawn again where only one class was left."""
    table = resample(torch.arange(len(labels)), n, how, share, generator).numpy()
    for i in range(n):
        for _ in range(100):
            if len(np.unique(labels[table[i]])) > 1:
                break
            table[i] = resample(torch.arange(len(labels)), 1, how, share, generator).numpy()[0]
        else:
            raise DataError(f"A {how} of these {len(labels)} rows keeps only one class, however often it is drawn.")
    return table


class Estimators(Predictors):
    """Fitted estimators on raw frames, asked together: the rows are decoded once for all.

    Args:
        fitted: With ``predict_proba`` and ``classes_``.
        space: From codes to the frames they read.
        classes: All labels, in the order of the probabilities.
        dtypes: Of the columns they were fitted on.
        weights: (S,); None: all alike.
    """

    differentiable = False

    def __init__(
        self, fitted: Sequence[Any], space: TabularSpace, classes: Any, dtypes: Any, weights: Tensor | None = None
    ) -> None:
        self.fitted = tuple(fitted)
        self.space, self.classes, self.dtypes = space, classes, dtypes
        self.weights = normalised(weights, len(fitted))

    def log_probs(self, x: Tensor) -> Tensor:
        """(N, D) to (S, N, C), without gradients."""
        frame = self.space.decode(x)[list(self.dtypes.index)].astype(self.dtypes)
        probabilities = np.zeros((len(self), len(frame), len(self.classes)))
        for each, one in zip(probabilities, self.fitted, strict=True):
            # A resample may lack a class altogether; its probability is then none.
            each[:, np.searchsorted(self.classes, one.classes_)] = one.predict_proba(frame)
        if np.isnan(probabilities).any():
            raise DataError("An estimator returned probabilities that are not numbers.")
        return torch.from_numpy(np.log(np.maximum(probabilities, 1e-30))).to(x.device, x.dtype)

    def subset(self, chosen: Tensor) -> Estimators:
        """Some of the hypotheses."""
        kept = [self.fitted[i] for i in chosen.tolist()]
        some = Estimators(kept, self.space, self.classes, self.dtypes)
        some.weights = of_chosen(self.weights, chosen)
        return some
