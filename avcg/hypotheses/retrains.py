"""Retrains of the user's own model, as hypotheses about the next deployed model."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

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
from avcg.hypotheses.families import Families, How
from avcg.hypotheses.finite import FiniteSet
from avcg.hypotheses.from_models import gather
from avcg.hypotheses.predictors import Joined, Predictors, Stacked
from avcg.models.adapter import ModelSpec, as_rows, model_spec
from avcg.models.affine import Converted, schema_with_gaps
from avcg.models.black_box import BlackBox
from avcg.models.classifier import Classifier, check_labels, split_rows
from avcg.models.stacked_fit import fit_stacked
from avcg.models.training import Training
from avcg.schema.schema import Schema
from avcg.space.base import Space
from avcg.space.frames import take_rows
from avcg.space.tabular import TabularSpace

# From rows, their labels and a seed to a fitted model.
Refit = Callable[[Any, NDArray[Any], int], Any]

_WORTH_PROCESSES = 4.0  # seconds of fitting from which other processes are started; changes no result
_CHECKED_ROWS = 2000  # training rows by which a failed fit is found
_DRAWS = 100  # times that rows of one class are drawn again
_ATTEMPTS = 3  # times that failed fits are repeated
_LEAST_SKILL = 0.1  # share of the frequencies' Brier score that a model must save for others to be far worse than it


def retrains(
    model: Any,
    X: Any,
    y: Any,
    n: int = 40,
    *,
    resampling: How | Mapping[How, float] = "bootstrap",
    share: float | None = None,
    time: Any = None,
    variants: Sequence[Any] = (),
    refit: Refit | None = None,
    schema: Schema | None = None,
    training: Training | None = None,
    space: Space | None = None,
    n_jobs: int | None = None,
    random_state: int = 0,
) -> FiniteSet:
    """Fit a model n times more, each time a little differently.

    Networks, bare or in a `Classifier`, are trained as one stacked network. Other estimators are cloned and fitted in
    parallel; they need ``predict_proba``. Those that can be had as networks exactly (`from_sklearn`) become such; all
    others are black boxes, and `AVCG` learns from students of them. Fits that fail (`failed_fits`) are repeated, and
    left out with a warning if they fail again: the hypotheses are about next models that pass this check.

    Args:
        model: A fitted `Classifier`, a torch network, or a scikit-learn estimator on raw frames. With ``refit``, any
            fitted model that `from_models` takes.
        X: Training rows; encoded for a bare network.
        y: (N,) labels.
        n: Number of models. 40 carry a reliability of 0.95, see `AVCG`.
        resampling: What differs beside random numbers: ``"seed"`` (nothing), ``"bootstrap"``, ``"subsample"`` (rows
            are deleted), ``"added"`` (rows are copied), ``"label_noise"`` (labels are others), ``"rolling"`` or
            ``"expanding"`` (windows in time). Or several with their shares, of which each model draws one.
        share: Share of the rows or labels that stay as they are, in (0, 1); None: 0.8 for ``"subsample"`` and
            ``"added"``, 0.95 for ``"label_noise"``, 0.5 for windows.
        time: For windows: the moment of each row, as the name of a column of X or (N,) values that can be sorted.
        variants: Models with other settings, or other estimators. Each retrain is of ``model`` or one of these.
        refit: Function ``(rows, labels, seed) -> fitted model`` that trains in place of ``fit``: for models that are
            functions, and where training takes more than rows and labels.
        schema: Schema of the columns, for estimators; None: inferred.
        training: Settings of the training of a bare network; None: the defaults.
        space: Space of the rows that a bare network reads.
        n_jobs: Number of processes for estimators, as in joblib; None: all cores if the fits take seconds, else one.
        random_state: Seed of all random numbers.
    """
    n = check_count(n, "retrains")
    rng = torch.Generator().manual_seed(check_int(random_state, "'random_state' of retrains", 0))
    kinds = [model, *variants]
    if refit is None and all(isinstance(kind, (nn.Module, Classifier)) for kind in kinds):
        if schema is not None:
            raise SettingError("A network takes no 'schema': it has one, or reads encoded rows. Leave it out.")
        return _networks(kinds, X, y, n, resampling, share, time, training, space, rng)
    return _estimators(model, _fits(kinds, refit), X, y, n, resampling, share, time, schema, n_jobs, rng)


def _fits(kinds: Sequence[Any], refit: Refit | None) -> list[Refit]:
    """The ways in which retrains are trained."""
    if refit is None:
        for kind in kinds:
            _check_refittable(kind)
        return [partial(fit_clone, kind) for kind in kinds]
    if len(kinds) > 1:
        raise SettingError("A 'refit' trains whatever it likes, so it takes no 'variants'. Leave one of them out.")
    return [refit]


def _check_refittable(model: Any) -> None:
    if isinstance(model, Converted):
        raise SettingError(
            "A converted model does not know how it was trained. Retrain the estimator that it came from, or its"
            " network on codes: retrains(model.network_, model.space_.encode(X), positions, space=model.space_)."
        )
    if isinstance(model, BlackBox) or (callable(model) and not hasattr(model, "fit")):
        kind = type(model).__name__
        raise SettingError(f"A {kind} can be asked, and not trained. Say how: refit=lambda rows, labels, seed: ...")
    if not hasattr(model, "predict_proba"):
        raise SettingError(
            f"Retraining needs an estimator with predict_proba. A {type(model).__name__} has no predict_proba; wrap it,"
            " e.g. in CalibratedClassifierCV."
        )


def _networks(
    kinds: Sequence[nn.Module | Classifier],
    X: Any,
    y: Any,
    n: int,
    resampling: How | Mapping[How, float],
    share: float | None,
    time: Any,
    training: Training | None,
    space: Space | None,
    rng: torch.Generator,
) -> FiniteSet:
    if space is not None and isinstance(kinds[0], Classifier):
        raise SettingError("A fitted Classifier has a space of its own. Leave 'space' out.")
    spec = model_spec(kinds[0], space)
    x, labels = spec.pair(X, y)
    n_classes = int(labels.max()) + 1 if spec.classes is None else len(spec.classes)
    families = Families.of(resampling, share, time, X, len(x), n_classes)
    seen, aims = x, labels
    if families.labels_change:
        seen, aims = x.repeat(n_classes, *[1] * (x.dim() - 1)), families.moved_labels(labels)
    networks = [_untrained(kind, spec, training) for kind in kinds]
    homes = [copy.deepcopy(network).cpu().float() for network, *_ in networks]

    def train_alike(kind: int, count: int) -> Stacked:
        network, settings, held_share, device = networks[kind]
        # Each copy has its own validation split, as a real retrain would. With a common split, all copies would stop at
        # similar epochs and vary too little.
        drawn = families.draw(count, rng)
        available = [families.available(family, rng) for family in drawn]
        splits = [split_rows(len(rows), held_share, rng) for rows in available]
        held = [rows[validation] for rows, (_, validation) in zip(available, splits, strict=True)]
        parts = zip(drawn, available, splits, strict=True)
        trained = [families.rows(family, rows[kept], rng) for family, rows, (kept, _) in parts]
        states = _trained_alike(network, seen.to(device), aims.to(device), trained, held, settings, rng)
        return _stacked([Stacked(homes[kind], state) for state in states])

    def train(count: int) -> list[tuple[int, Stacked]]:
        drawn = _draw_kinds(len(kinds), count, rng)
        return [(kind, train_alike(kind, drawn.count(kind))) for kind in sorted(set(drawn))]

    def joined(parts: list[list[tuple[int, Stacked]]]) -> Predictors:
        flat = [each for part in parts for each in part]
        stacks = [_stacked([stack for own, stack in flat if own == kind]) for kind in sorted({own for own, _ in flat})]
        return stacks[0] if len(stacks) == 1 else Joined(stacks)

    base = Stacked(spec.network, {})
    checked, known = x[:_CHECKED_ROWS].cpu(), labels[:_CHECKED_ROWS].cpu()
    members = _repeated_until_trained(train, joined, n, base, checked, known, skilled=families.time is None)
    return FiniteSet(members, spec.space, spec.classes, base)


def _untrained(
    kind: nn.Module | Classifier, spec: ModelSpec, training: Training | None
) -> tuple[nn.Module, Training, float, str]:
    """The architecture of a network, its settings of training, its share of validation rows, and its device."""
    if not isinstance(kind, Classifier):
        return kind, training or Training(), 0.1, "cpu"
    if spec.space is None or spec.classes is None:
        raise SettingError("A bare network and a Classifier read rows differently. Give variants of the same kind.")
    network = kind.build(spec.space, len(spec.classes))
    return network, training or kind.training(), kind.validation, kind.device


def _trained_alike(
    network: nn.Module,
    x: Tensor,
    labels: Tensor,
    trained: Sequence[Tensor],
    held: Sequence[Tensor],
    settings: Training,
    rng: torch.Generator,
) -> list[dict[str, Tensor]]:
    """Parameters of copies of a network: of those with validation rows, and of those with too few rows to stop by."""
    states = []
    for stops_early in (True, False):
        chosen = [i for i, rows in enumerate(held) if bool(len(rows)) is stops_early]
        if chosen:
            table = _as_table([trained[i] for i in chosen])
            validation = _as_table([held[i] for i in chosen]) if stops_early else None
            label = f"Training {len(chosen)} networks"
            state, _ = fit_stacked(network, x, labels, table, settings, rng=rng, held=validation, label=label)
            states.append({name: value.cpu() for name, value in state.items()})
    return states


def _as_table(rows: Sequence[Tensor]) -> Tensor:
    """(S, m) positions from rows of positions; shorter ones are repeated to the length of the longest."""
    longest = max(map(len, rows))
    return torch.stack([part.repeat(-(-longest // max(len(part), 1)))[:longest] for part in rows])


def _stacked(parts: Sequence[Stacked]) -> Stacked:
    names = parts[0].overrides
    return Stacked(parts[0].network, {name: torch.cat([part.overrides[name] for part in parts]) for name in names})


def _draw_kinds(n_kinds: int, count: int, rng: torch.Generator) -> list[int]:
    """Which model each retrain is of."""
    return [0] * count if n_kinds == 1 else torch.randint(n_kinds, (count,), generator=rng).tolist()


def _estimators(
    model: Any,
    fits: Sequence[Refit],
    X: Any,
    y: Any,
    n: int,
    resampling: How | Mapping[How, float],
    share: float | None,
    time: Any,
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
    classes, positions = np.unique(labels, return_inverse=True)
    families = Families.of(resampling, share, time, rows, len(rows), len(classes))
    aims = classes[families.moved_labels(torch.from_numpy(positions)).numpy()]

    def train(count: int) -> list[Any]:
        drawn = [_with_two_classes(families, family, aims, rng) for family in families.draw(count, rng)]
        seeds = torch.randint(2**31 - 1, (count,), generator=rng).tolist()
        which = _draw_kinds(len(fits), count, rng)

        def fit(i: int) -> Any:
            return fits[which[i]](take_rows(X, drawn[i] % len(rows)), aims[drawn[i]], seeds[i])

        return _in_parallel(fit, count, f"Refitting {type(model).__name__}", n_jobs)

    def gathered(parts: list[list[Any]]) -> Predictors:
        fitted = [each for part in parts for each in part]
        return gather([_boxed(each, X, classes, space) for each in fitted], X, space, classes)

    is_fitted = hasattr(model, "classes_") or not hasattr(model, "fit")
    base = gather([_boxed(model, X, classes, space)], X, space, classes) if is_fitted else None
    checked = rows.iloc[:_CHECKED_ROWS]
    members = _repeated_until_trained(
        train, gathered, n, base, space.encode(checked), torch.from_numpy(positions[:_CHECKED_ROWS]),
        skilled=families.time is None,
    )  # fmt: skip
    with torch.no_grad():
        first = members.log_probs(space.encode(rows.iloc[:200])).exp()
    if n > 1 and torch.allclose(first[:1].expand_as(first), first, atol=1e-4):
        warnings.warn(
            f"retrains: all {n} models are the same, since a {type(model).__name__} does not depend on"
            f" {resampling!r}. They show no uncertainty; use resampling='bootstrap'.",
            stacklevel=3,
        )
    return FiniteSet(members, space, classes, base)


def _boxed(model: Any, X: Any, classes: NDArray[Any], space: TabularSpace) -> Any:
    """A fitted model as `gather` takes it: functions become black boxes."""
    return model if hasattr(model, "classes_") else BlackBox(model, X, classes=classes, space=space)


def fit_clone(model: Any, rows: Any, labels: NDArray[Any], seed: int) -> Any:
    """A clone of an estimator, fitted with a seed of its own.

    Args:
        model: The estimator; its settings are copied, and nothing that it learnt.
        rows: Training rows.
        labels: (N,) labels.
        seed: Seed of everything in it that has a ``random_state``.

    Raises:
        SettingError: If it cannot be fitted to rows and labels alone.
    """
    try:
        clone_of_model = clone(model)
    except RuntimeError:  # a constructor that copies its lists, as CatBoost's does
        clone_of_model = type(model)(**copy.deepcopy(model.get_params()))
    names = [name for name in clone_of_model.get_params() if name.rpartition("__")[2] == "random_state"]
    try:
        return clone_of_model.set_params(**dict.fromkeys(names, seed)).fit(rows, labels)
    except Exception as error:  # another library's code may raise anything
        raise SettingError(
            f"Refitting a {type(model).__name__} on rows and labels failed: {str(error).strip().splitlines()[0]:.200}"
            " If its training takes more, e.g. eval_set or sample_weight, say how: refit=lambda rows, labels, seed: ..."
        ) from error


def _in_parallel(fit: Callable[[int], Any], count: int, label: str, n_jobs: int | None) -> list[Any]:
    """The results of numbered fits, in other processes if they take long."""
    with progress(label, count) as advance:
        start = time.monotonic()
        fitted = [fit(0)]
        expected = (time.monotonic() - start) * (count - 1)
        advance(1, "")
        if n_jobs is None:
            n_jobs = -1 if expected > _WORTH_PROCESSES else 1
        for model in Parallel(n_jobs=n_jobs, return_as="generator")(delayed(fit)(i) for i in range(1, count)):
            fitted.append(model)
            advance(len(fitted), "")
    return fitted


def _with_two_classes(families: Families, family: How, labels: NDArray[Any], rng: torch.Generator) -> NDArray[np.intp]:
    """(m,) positions of the rows that a retrain is fitted to. Rows of only one class are drawn again."""
    for _ in range(_DRAWS):
        drawn = families.rows(family, families.available(family, rng), rng).numpy()
        if len(np.unique(labels[drawn])) > 1:
            return drawn
    raise DataError(
        f"A {family} of these {families.n_rows} rows kept only one class in {_DRAWS} draws. Add rows of the rare class."
    )


def _repeated_until_trained(
    train: Callable[[int], Any],
    combine: Callable[[list[Any]], Predictors],
    n: int,
    base: Predictors | None,
    x: Tensor,
    labels: Tensor,
    *,
    skilled: bool,
) -> Predictors:
    """N trained models. Fits that fail are repeated, and left out if they fail again and again.

    Args:
        train: Function from a number to that many trained models.
        combine: Function from several results of ``train`` to all of their models.
        n: Number of models.
        base: The model that is trained again; None: it is not fitted.
        x: (N, *event) training rows by which a failed fit is found.
        labels: (N,) class positions.
        skilled: Whether a fit also fails where it is far worse than ``base``. A model of other years may be that.

    Raises:
        DataError: If every fit fails.
    """
    parts = [train(n)]
    members = combine(parts)
    failed = failed_fits(members, base, x, labels, skilled=skilled)
    if not bool(failed.any()):
        return members
    n_failed = missing = int(failed.sum())
    for _ in range(_ATTEMPTS):
        parts.append(train(missing))
        members = combine(parts)
        kept = torch.nonzero(~failed_fits(members, base, x, labels, skilled=skilled)).flatten()
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
def failed_fits(
    members: Predictors, base: Predictors | None, x: Tensor, labels: Tensor, *, skilled: bool = True
) -> Tensor:
    """(S,) whether the fit of each model failed.

    That is, whether the model decides the same for all rows, where ``base`` does not, or its Brier score is more than
    halfway from that of ``base`` to that of the class frequencies, unless ``base`` itself is hardly better than these.

    Args:
        members: The models.
        base: The model that was trained again; None: there is none to compare with.
        x: (N, *event) training rows.
        labels: (N,) class positions.
        skilled: Whether a fit also fails where it is far worse than ``base``.
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
    if not skilled or reference > (1.0 - _LEAST_SKILL) * worst:
        return constant
    return constant | (scores > (reference + worst) / 2)
