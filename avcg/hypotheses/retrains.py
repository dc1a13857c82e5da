"""The user's own model, trained again: what next quarter may bring."""

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
    """Fit a model n times more, each time a little differently.

    Networks, bare or in a `Classifier`, are trained as one stacked network. Other estimators are cloned and fitted in
    parallel; they need ``predict_proba``. Those that can be had as networks exactly (`from_sklearn`) become such; all
    others are asked as they are, and `AVCG` learns from students of them.

    Args:
        model: A fitted `Classifier`, a torch network, or a scikit-learn estimator on raw frames.
        X: Training rows; encoded for a bare network.
        y: Their labels.
        n: How many.
        resampling: What differs between retrains: the ``"seed"`` alone, a ``"bootstrap"`` of the rows, or a
            ``"subsample"`` without replacement.
        share: Of the rows in a subsample, in (0, 1).
        schema: What the columns are, for estimators; None: inferred.
        training: How to train a bare network; None: its defaults.
        space: What a bare network reads.
        n_jobs: Processes for estimators, as in joblib.
        random_state: Seed.
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
                "A fitted Classifier and a network bring their own reading. Leave schema (and space) out."
            )
        return _networks(model, X, y, n, resampling, share, training, space, rng)
    if not hasattr(model, "predict_proba"):
        raise SettingError(
            f"A {type(model).__name__} has no predict_proba, so its certainty cannot be read. Use one that has, e.g. by"
            " CalibratedClassifierCV."
        )
    return _estimators(model, X, y, n, resampling, share, schema, n_jobs, rng)


def resample(rows: Tensor, n: int, resampling: How, share: float, rng: torch.Generator) -> Tensor:
    """(n, rows of each) what each copy trains on, in an order of its own.

    Args:
        rows: (N,) the rows there are.
        n: Copies.
        resampling: As in `retrains`.
        share: Of a subsample.
        rng: Random numbers for the draws.
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
    # Each copy has a split of its own, as a real retrain would: with one for all, copies would stop early or late
    # together and say too little about the next one.
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
        raise DataError(f"Estimators are refitted on pandas frames. Got a {kind}; convert it with .to_pandas().")
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
            " They say nothing about what may change; use resampling='bootstrap'.",
            stacklevel=3,
        )
    base = gather([model], X, space, classes) if hasattr(model, "classes_") else None
    return FiniteSet(members, space, classes, base)


def _with_two_classes(labels: Any, n: int, resampling: How, share: float, rng: torch.Generator) -> Any:
    """(n, rows) resamples, drawn again where only one class was left."""
    table = resample(torch.arange(len(labels)), n, resampling, share, rng).numpy()
    for i in range(n):
        for _ in range(100):
            if len(np.unique(labels[table[i]])) > 1:
                break
            table[i] = resample(torch.arange(len(labels)), 1, resampling, share, rng).numpy()[0]
        else:
            raise DataError(
                f"A {resampling} of these {len(labels)} rows keeps only one class, however often it is drawn."
            )
    return table
