"""Retrains of the user's own model, as hypotheses about the next deployed model."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from joblib import Parallel, delayed
from numpy.typing import NDArray
from sklearn.base import clone
from torch import Tensor, nn

from avcg.console import progress
from avcg.errors import DataError, SettingError, check_int
from avcg.hypotheses.base import check_count
from avcg.hypotheses.finite import FiniteSet
from avcg.hypotheses.from_models import gather
from avcg.hypotheses.predictors import Predictors, Stacked
from avcg.models.adapter import as_rows, model_spec
from avcg.models.affine import Converted, schema_with_gaps
from avcg.models.classifier import Classifier, check_labels, split_rows
from avcg.models.stacked_fit import fit_stacked
from avcg.models.training import Training
from avcg.schema.schema import Schema
from avcg.space.base import Space
from avcg.space.frames import take_rows
from avcg.space.tabular import TabularSpace

How = Literal["seed", "bootstrap", "subsample"]

_WORTH_PROCESSES = 4.0  # seconds of fitting from which other processes are started; changes no result
_CHECKED_ROWS = 2000  # training rows by which a failed fit is found
_ATTEMPTS = 3  # times that failed fits are repeated
_LEAST_SKILL = 0.1  # share of the frequencies' Brier score that a model must save for others to be far worse than it


def retrains(
    model: Any,
    X: Any,
    y: Any,
    n: int = 40,
    *,
    resampling: How = "bootstrap",
    share: float = 0.8,
    schema: Schema | None = None,
    training: Training | None = None,
    space: Space | None = None,
    n_jobs: int | None = None,
    random_state: int = 0,
) -> FiniteSet:
    """Fit a model n times more, each time a little differently.

    Networks, bare or in a `Classifier`, are trained as one stacked network. Other estimators are cloned and fitted in
    parallel; they need ``predict_proba``. Those that can be had as networks exactly (`from_sklearn`) become such; all
    others are black boxes, and `AVCG` learns from students of them.

    A fit counts as failed if the model decides the same for all rows, where ``model`` does not, or if its Brier score
    on training rows is more than halfway from that of ``model`` to that of the class frequencies (unless ``model``
    itself is hardly better than these). Failed fits are repeated with new random numbers, up to three times, and then
    left out; a warning says how many. So the hypotheses are about next models that pass this check.

    Args:
        model: A fitted `Classifier`, a torch network, or a scikit-learn estimator on raw frames.
        X: Training rows; encoded for a bare network.
        y: (N,) labels.
        n: Number of models. 40 carry a reliability of 0.95, see `AVCG`.
        resampling: What differs between retrains: the ``"seed"`` alone, a ``"bootstrap"`` of the rows, or a
            ``"subsample"`` without replacement.
        share: Share of the rows in a subsample, in (0, 1).
        schema: Schema of the columns, for estimators; None: inferred.
        training: Settings of the training of a bare network; None: the defaults.
        space: Space of the rows that a bare network reads.
        n_jobs: Number of processes for estimators, as in joblib; None: all cores if the fits take seconds, else one.
        random_state: Seed of all random numbers.
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
    if isinstance(model, Converted):
        raise SettingError(
            "A converted model does not know how it was trained. Retrain the estimator that it came from, or its network"
            " on codes: retrains(model.network_, model.space_.encode(X), positions, space=model.space_, training=...)."
        )
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
    spec = model_spec(model, space)
    network, settings, held_share, device = spec.network, training or Training(), 0.1, "cpu"
    if isinstance(model, Classifier):
        network, held_share, device = model.architecture(), model.validation, model.device
        settings = training or model.training()
    x, labels = spec.pair(X, y)
    x, labels = (x.to(device), labels.to(device)) if isinstance(model, Classifier) else (x, labels)
    home, base = copy.deepcopy(network).cpu().float(), Stacked(spec.network, {})

    def train(count: int) -> Stacked:
        # Each copy has its own validation split, as a real retrain would. With a common split, all copies would stop at
        # similar epochs and vary too little.
        splits = [split_rows(len(x), held_share, rng) for _ in range(count)]
        held = torch.stack([validation for _, validation in splits])
        state, _ = fit_stacked(
            network,
            x,
            labels,
            torch.cat([resample(rows, 1, resampling, share, rng) for rows, _ in splits]),
            settings,
            rng=rng,
            held=held if held.shape[1] else None,
            label=f"Training {count} networks",
        )
        return Stacked(home, {name: value.cpu() for name, value in state.items()})

    def stacked(parts: list[Stacked]) -> Stacked:
        names = parts[0].overrides
        return Stacked(home, {name: torch.cat([part.overrides[name] for part in parts]) for name in names})

    checked = x[:_CHECKED_ROWS].cpu()
    return FiniteSet(
        _repeated_until_trained(train, stacked, n, base, checked, labels[:_CHECKED_ROWS].cpu()),
        spec.space,
        spec.classes,
        base,
    )


def _estimators(
    model: Any,
    X: Any,
    y: Any,
    n: int,
    resampling: How,
    share: float,
    schema: Schema | None,
    n_jobs: int | None,
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

    def train(count: int) -> list[Any]:
        table = _with_two_classes(labels, count, resampling, share, rng)
        seeds = torch.randint(2**31 - 1, (count,), generator=rng).tolist()
        return _fit_copies(model, X, labels, table, seeds, n_jobs)

    def gathered(parts: list[list[Any]]) -> Predictors:
        return gather([fitted for part in parts for fitted in part], X, space, classes)

    base = gather([model], X, space, classes) if hasattr(model, "classes_") else None
    checked = rows.iloc[:_CHECKED_ROWS]
    positions = torch.from_numpy(np.searchsorted(classes, labels[:_CHECKED_ROWS]))
    members = _repeated_until_trained(train, gathered, n, base, space.encode(checked), positions)
    with torch.no_grad():
        first = members.log_probs(space.encode(rows.iloc[:200])).exp()
    if n > 1 and torch.allclose(first[:1].expand_as(first), first, atol=1e-4):
        warnings.warn(
            f"retrains: all {n} models are the same, since a {type(model).__name__} does not depend on {resampling!r}."
            " They show no uncertainty; use resampling='bootstrap'.",
            stacklevel=3,
        )
    return FiniteSet(members, space, classes, base)


def _fit_copies(
    model: Any, X: Any, labels: NDArray[Any], table: NDArray[np.intp], seeds: list[int], n_jobs: int | None
) -> list[Any]:
    """Clones of an estimator, each fitted to the rows of one line of a table with a seed of its own."""

    def fit(chosen: NDArray[np.intp], seed: int) -> Any:
        clone_of_model = clone(model)
        names = [name for name in clone_of_model.get_params() if name.rpartition("__")[2] == "random_state"]
        return clone_of_model.set_params(**dict.fromkeys(names, seed)).fit(take_rows(X, chosen), labels[chosen])

    with progress(f"Refitting {type(model).__name__}", len(seeds)) as advance:
        start = time.monotonic()
        fitted = [fit(table[0], seeds[0])]
        expected = (time.monotonic() - start) * (len(seeds) - 1)
        advance(1, "")
        if n_jobs is None:
            n_jobs = -1 if expected > _WORTH_PROCESSES else 1
        tasks = (delayed(fit)(chosen, seed) for chosen, seed in zip(table[1:], seeds[1:], strict=True))
        for copy_of_model in Parallel(n_jobs=n_jobs, return_as="generator")(tasks):
            fitted.append(copy_of_model)
            advance(len(fitted), "")
    return fitted


def _repeated_until_trained(
    train: Callable[[int], Any],
    combine: Callable[[list[Any]], Predictors],
    n: int,
    base: Predictors | None,
    x: Tensor,
    labels: Tensor,
) -> Predictors:
    """N trained models. Fits that fail are repeated, and left out if they fail again and again.

    Args:
        train: Function from a number to that many trained models.
        combine: Function from several results of ``train`` to all of their models.
        n: Number of models.
        base: The model that is trained again; None: it is not fitted.
        x: (N, *event) training rows by which a failed fit is found.
        labels: (N,) class positions.

    Raises:
        DataError: If every fit fails.
    """
    parts = [train(n)]
    members = combine(parts)
    failed = failed_fits(members, base, x, labels)
    if not bool(failed.any()):
        return members
    n_failed = missing = int(failed.sum())
    for _ in range(_ATTEMPTS):
        parts.append(train(missing))
        members = combine(parts)
        kept = torch.nonzero(~failed_fits(members, base, x, labels)).flatten()
        missing = n - len(kept)
        if not missing:
            break
    if not len(kept):
        raise DataError(
            f"All {n} retrains failed: they decide the same for every row, or are far worse than the model. Train"
            " longer, or check that the labels belong to the rows."
        )
    left_out = (
        f"; {missing} of them failed every time and {'is' if missing == 1 else 'are'} left out" if missing else ""
    )
    warnings.warn(
        f"retrains: {n_failed} of {n} fits failed, since their models decide the same for every row or are far worse"
        f" than the model. They were repeated{left_out}.",
        stacklevel=4,
    )
    return members.subset(kept)


@torch.no_grad()
def failed_fits(members: Predictors, base: Predictors | None, x: Tensor, labels: Tensor) -> Tensor:
    """(S,) whether the fit of each model failed; see `retrains`.

    Args:
        members: The models.
        base: The model that was trained again; None: there is none to compare with.
        x: (N, *event) training rows.
        labels: (N,) class positions.
    """
    probabilities = members.probabilities(x).double().cpu()
    one_hot = torch.nn.functional.one_hot(labels.cpu(), probabilities.shape[-1]).double()
    scores, decided = (probabilities - one_hot).square().sum(-1).mean(-1), probabilities.argmax(-1)
    constant = (decided == decided[:, :1]).all(dim=1) & (len(labels.unique()) > 1)
    worst = float((one_hot.mean(0) - one_hot).square().sum(-1).mean())
    if base is None:
        return constant
    own = base.probabilities(x).double().cpu()[0]
    if len(own.argmax(-1).unique()) == 1:
        constant = torch.zeros_like(constant)
    reference = float((own - one_hot).square().sum(-1).mean())
    if reference > (1.0 - _LEAST_SKILL) * worst:
        return constant
    return constant | (scores > (reference + worst) / 2)


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
