"""Retrains of the user's own model, as hypotheses about the next deployed model."""

from __future__ import annotations

import copy
import warnings
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from joblib import Parallel, delayed
from sklearn.base import clone
from torch import Tensor, nn

from avcg.console import progress
from avcg.errors import DataError, SettingError, check_int
from avcg.hypotheses.base import check_count
from avcg.hypotheses.finite import FiniteSet
from avcg.hypotheses.from_models import gather
from avcg.hypotheses.predictors import Stacked
from avcg.models.adapter import as_rows, model_spec
from avcg.models.affine import schema_with_gaps
from avcg.models.classifier import Classifier, check_labels, split_rows
from avcg.models.stacked_fit import fit_stacked
from avcg.models.training import Training
from avcg.schema.schema import Schema
from avcg.space.base import Space
from avcg.space.frames import take_rows
from avcg.space.tabular import TabularSpace

How = Literal["seed", "bootstrap", "subsample"]


def retrains(
    model: Any,
    X: Any,
    y: Any,
    n: int = 20,
    *,
    resampling: How = "seed",
    share: float = 0.8,
    schema: Schema | None = None,
    training: Training | None = None,
    space: Space | None = None,
    n_jobs: int = 1,
    random_state: int = 0,
) -> FiniteSet:
    """Fit copies of a model with other seeds or on resampled rows.

    Networks, bare or in a `Classifier`, are trained as one stacked network. Other estimators are cloned and fitted in
    parallel; they need ``predict_proba``. Estimators that can be converted to networks exactly (`from_sklearn`) are
    converted. All others are used as black boxes, which `AVCG` distils into student networks.

    Args:
        model: A fitted `Classifier`, a torch network, or a scikit-learn estimator on raw frames.
        X: Training rows; encoded for a bare network.
        y: Labels of the training rows.
        n: Number of retrains.
        resampling: Difference between retrains: the ``"seed"`` alone, a ``"bootstrap"`` of the rows, or a
            ``"subsample"`` without replacement.
        share: Share of the rows in a subsample, in (0, 1).
        schema: Schema of the columns, for estimators; None: inferred from X.
        training: Training settings of a bare network; None: the defaults.
        space: Space of the rows that a bare network reads.
        n_jobs: Number of processes for estimators, as in joblib.
        random_state: Seed of all random numbers, >= 0.
    """
    n = check_count(n, "retrains")
    if resampling not in ("seed", "bootstrap", "subsample"):
        raise SettingError(
            f"The 'resampling' of retrains must be 'seed', 'bootstrap' or 'subsample'. Got {resampling!r} instead."
        )
    if not 0 < share < 1:
        raise SettingError(f"The 'share' of retrains must be in (0, 1). Got {share!r} instead.")
    rng = torch.Generator().manual_seed(check_int(random_state, "'random_state' of retrains", 0))
    if isinstance(model, (nn.Module, Classifier)):
        if schema is not None or (space is not None and isinstance(model, Classifier)):
            raise SettingError(
                "A network takes no 'schema', and a fitted Classifier neither 'schema' nor 'space'. Leave them out."
            )
        return _networks(model, X, y, n, resampling, share, training, space, rng)
    if not hasattr(model, "predict_proba"):
        raise SettingError(
            f"Retraining needs an estimator with predict_proba. A {type(model).__name__} has no predict_proba; wrap it,"
            " e.g. in CalibratedClassifierCV."
        )
    return _estimators(model, X, y, n, resampling, share, schema, n_jobs, rng)


def resample(rows: Tensor, n: int, resampling: How, share: float, rng: torch.Generator) -> Tensor:
    """(n, m) positions of the rows that each copy trains on, in random order.

    Args:
        rows: (N,) positions of the available rows.
        n: Number of copies.
        resampling: Kind of resampling, as in `retrains`.
        share: Share of the rows in a subsample.
        rng: Random numbers.
    """
    if resampling == "bootstrap":
        return rows[torch.randint(len(rows), (n, len(rows)), generator=rng)]
    size = max(1, round(share * len(rows))) if resampling == "subsample" else len(rows)
    return torch.stack([rows[torch.randperm(len(rows), generator=rng)[:size]] for _ in range(n)])


def _networks(
    model: nn.Module | Classifier,
    X: Any,
    y: Any,
    n: int,
    resampling: How,
    share: float,
    training: Training | None,
    space: Space | None,
    rng: torch.Generator,
) -> FiniteSet:
    opened = model_spec(model, space)
    network, settings, held_share, device = opened.network, training or Training(), 0.1, "cpu"
    if isinstance(model, Classifier):
        network, held_share, device = model.architecture(), model.validation, model.device
        settings = training or model.training()
    x, labels = opened.pair(X, y)
    x, labels = (x.to(device), labels.to(device)) if isinstance(model, Classifier) else (x, labels)
    # Each copy has its own validation split, as a real retrain would. With a common split, all copies would stop at
    # similar epochs and vary too little.
    splits = [split_rows(len(x), held_share, rng) for _ in range(n)]
    held = torch.stack([apart for _, apart in splits])
    state, _ = fit_stacked(
        network,
        x,
        labels,
        torch.cat([resample(chosen, 1, resampling, share, rng) for chosen, _ in splits]),
        settings,
        rng=rng,
        held=held if held.shape[1] else None,
        label=f"Training {n} networks",
    )
    home = copy.deepcopy(network).cpu().float()
    stacked = Stacked(home, {name: value.cpu() for name, value in state.items()})
    return FiniteSet(stacked, opened.space, opened.classes, Stacked(opened.network, {}))


def _estimators(
    model: Any,
    X: Any,
    y: Any,
    n: int,
    resampling: How,
    share: float,
    schema: Schema | None,
    n_jobs: int,
    rng: torch.Generator,
) -> FiniteSet:
    rows = as_rows(X)
    if not isinstance(rows, pd.DataFrame):
        kind = type(X).__name__
        raise DataError(
            f"Estimators must be refitted on a pandas DataFrame. Got a {kind}; convert it with .to_pandas()."
        )
    space = TabularSpace.fit(schema or schema_with_gaps(rows), rows)
    labels = check_labels(y, len(rows))
    classes = np.unique(labels)
    table = _with_two_classes(labels, n, resampling, share, rng)
    seeds = torch.randint(2**31 - 1, (n,), generator=rng).tolist()

    def fit(some: Any, seed: int) -> Any:
        copied = clone(model)
        chosen = {name: seed for name in copied.get_params() if name.rpartition("__")[2] == "random_state"}
        return copied.set_params(**chosen).fit(take_rows(X, some), labels[some])

    fitted = []
    with progress(f"Refitting {type(model).__name__}", n) as advance:
        tasks = (delayed(fit)(some, seed) for some, seed in zip(table, seeds, strict=True))
        for one in Parallel(n_jobs=n_jobs, return_as="generator")(tasks):
            fitted.append(one)
            advance(len(fitted), "")
    members = gather(fitted, X, space, classes)
    with torch.no_grad():
        first = members.log_probs(space.encode(rows.iloc[:200])).exp()
    if n > 1 and torch.allclose(first[:1].expand_as(first), first, atol=1e-4):
        warnings.warn(
            f"retrains: all {n} models are the same, since a {type(model).__name__} does not depend on {resampling!r}."
            " They show no uncertainty; use resampling='bootstrap'.",
            stacklevel=3,
        )
    base = gather([model], X, space, classes) if hasattr(model, "classes_") else None
    return FiniteSet(members, space, classes, base)


def _with_two_classes(labels: Any, n: int, resampling: How, share: float, rng: torch.Generator) -> Any:
    """(n, m) positions of resampled rows. A resample with only one class is drawn again."""
    table = resample(torch.arange(len(labels)), n, resampling, share, rng).numpy()
    for i in range(n):
        for _ in range(100):
            if len(np.unique(labels[table[i]])) > 1:
                break
            table[i] = resample(torch.arange(len(labels)), 1, resampling, share, rng).numpy()[0]
        else:
            raise DataError(
                f"A {resampling} of these {len(labels)} rows kept only one class in 100 draws. Add rows of the rare"
                " class."
            )
    return table
