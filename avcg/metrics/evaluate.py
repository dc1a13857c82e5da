"""Everything that can be measured of answers, by judges that no method has seen.

One `Context` for a dataset and a seed serves every method, so that they differ in their answers and in nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from avcg.explainers.avcg import AVCG
from avcg.explainers.base import Explainer
from avcg.guarantees.bounds import clopper_pearson
from avcg.hypotheses.finite import FiniteSet
from avcg.hypotheses.predictors import Predictors
from avcg.method.deployed import DeployedModel
from avcg.method.diagnostics import personalisation
from avcg.method.query import QueryOptions
from avcg.metrics.functional import (
    column_changes,
    column_scales,
    columns_changed,
    distance_to_rows,
    gower,
    im1,
    implausibility,
    input_stability,
    lof_inlier,
    model_agreement,
    noisy_execution,
    pairwise_distance,
    redundancy,
    validity,
)
from avcg.models.adapter import class_positions
from avcg.models.autoencoders import ClassAutoencoders
from avcg.space.base import Space
from avcg.space.encoding import Encoding
from avcg.space.frames import take_rows
from avcg.space.tabular import table_of

# From codes to the codes of what a proper row would be; see `avcg.metrics.numeric_view.NumericReading`.
Reread = Callable[[Tensor], Tensor]

_TIMED_ALONE = 8  # rows answered one at a time
_SCALED_BY = 10_000  # training rows from which deviations and ranges are taken
_SEVERAL = 5  # latents of which diversity is measured


@dataclass(frozen=True, eq=False)
class Context:
    """What answers are judged by. What is None cannot be judged, and its metrics are NaN.

    Attributes:
        space: What rows are read by.
        deployed: The model in force.
        x_train: (N, *event) training rows.
        y_train: (N,) their class positions.
        n_classes: C.
        n_reference: Hypotheses whose mean prediction decides on Val, and whose change under noise is NE.
        rashomon: By ε, hypotheses within it; none that a method was trained on.
        surrogates: Models trained anew, for CMV.
        autoencoders: One a class, for IM1.
        execution_noise: (M, *event) errors in carrying an answer out.
        input_noise: (M, B, *event) errors in the rows explained.
        reread: How an answer becomes a proper row again; None: answers are proper rows.
    """

    space: Space
    deployed: DeployedModel
    x_train: Tensor
    y_train: Tensor
    n_classes: int
    bank: Predictors | None = None
    rashomon: Mapping[float, Predictors] | None = None
    surrogates: Predictors | None = None
    autoencoders: ClassAutoencoders | None = None
    execution_noise: Tensor | None = None
    input_noise: Tensor | None = None
    reread: Reread | None = None

    @cached_property
    def rows_of(self) -> tuple[Tensor, ...]:
        """The training rows of each class."""
        return tuple(self.x_train[self.y_train == label] for label in range(self.n_classes))

    @property
    def encoding(self) -> Encoding | None:
        """Of a table; None for pictures."""
        table = table_of(self.space)
        return None if table is None else table.encoding

    @cached_property
    def deviations(self) -> Tensor:
        """(columns,) the median absolute deviation of each."""
        return column_scales(self.encoding, self.x_train[:_SCALED_BY], "mad")

    @cached_property
    def ranges(self) -> Tensor:
        """(columns,) the range of each."""
        return column_scales(self.encoding, self.x_train[:_SCALED_BY], "range")


@dataclass(frozen=True, eq=False)
class Answered:
    """Codes of what a method answered.

    Attributes:
        x: (B, *event) the rows.
        target: (B,) class positions.
        x_cf: (B, *event) one answer each.
        several: (K, B, *event) more answers each; None: not asked.
        moved: (M, B, *event) answers to the rows with noise; None: not asked.
        trained_on: The finite set of hypotheses the method was trained on; None: there is none.
        n: Answers of a row, one after the other, where there are more.
    """

    x: Tensor
    target: Tensor
    x_cf: Tensor
    several: Tensor | None = None
    moved: Tensor | None = None
    trained_on: Predictors | None = None
    n: int = 1


def evaluate(
    context: Context, explainer: Explainer, X: Any, target: Any, options: QueryOptions | None = None
) -> pd.DataFrame:
    """Ask a fitted explainer, and measure what people receive.

    Args:
        context: The judges.
        explainer: Of any method.
        X: Rows in user units.
        target: One label for each.
        options: What is asked for beside them; None: one answer each.

    Returns:
        One line for each answer, reading and metric: columns row, answer, reading, metric, value.
    """
    wide = measure(context, explainer, X, target, options)
    return wide.melt(["row", "answer", "reading"], var_name="metric", value_name="value")


def measure(
    context: Context, explainer: Explainer, X: Any, target: Any, options: QueryOptions | None = None
) -> pd.DataFrame:
    """The same with a column for each metric: a line for each answer as given, and one for each as a proper row."""
    options = options or QueryOptions()
    started = time.perf_counter()
    answers = explainer.query(X, target, options)
    seconds = (time.perf_counter() - started) / len(answers)
    place = np.repeat(np.arange(len(answers)), options.n)
    x, wanted = context.space.encode(X), class_positions(np.asarray(target), explainer.classes_)
    answered = Answered(x[place], wanted[place], context.space.encode(answers.answers), n=options.n)
    if options.is_default:
        answered = replace(answered, **_asked_more(context, explainer, x, wanted))
    raw = score(context, answered).assign(reading="raw", TimeFrame=seconds)
    if options.is_default:
        raw = raw.assign(**timings(explainer, x, wanted))
        if isinstance(explainer, AVCG) and context.encoding is not None:
            raw["gap"] = explainer.amortization_gap(X, target, steps=50, n_latents=5)["gap"].to_numpy()
    raw["coverage"] = answers.status.isin(["ok", "not_robust"]).to_numpy(float)
    raw["violations"] = _violations(context.space, answers.answers, take_rows(X, place))
    if context.reread is None:
        return raw
    proper = score(context, _reread(context.reread, answered)).assign(reading="decoded")
    proper["coverage"] = proper["valid"]
    return pd.concat([raw, proper], ignore_index=True)


def _asked_more(context: Context, explainer: Explainer, x: Tensor, wanted: Tensor) -> dict[str, Any]:
    """More answers, answers to rows with noise where rows are numbers only, and what was trained on."""
    noise, train = context.input_noise, explainer.split_.train
    moved = None
    if noise is not None and not bool(context.space.is_logit.any()):
        moved = torch.stack([explainer.solve(x + one, wanted)[0] for one in noise])
    known = train.predictors if isinstance(train, FiniteSet) else None
    return {"several": explainer.solve(x, wanted, n=_SEVERAL), "moved": moved, "trained_on": known}


def _reread(reread: Reread, answered: Answered) -> Answered:
    """The same answers as proper rows; answers to rows with noise are left out, since rows with noise are none."""
    several = answered.several
    proper = None if several is None else reread(several.flatten(0, 1)).unflatten(0, several.shape[:2])
    return replace(answered, x_cf=reread(answered.x_cf), several=proper, moved=None)


def _violations(space: Space, answers: Any, X: Any) -> Any:
    table = table_of(space)
    if table is None:
        return np.nan
    return table.violations(answers, X).sum(axis=1).astype(float)


def timings(explainer: Explainer, x: Tensor, wanted: Tensor) -> dict[str, Any]:
    """Seconds a row from codes to codes: ``Time`` alone, for the first few, and ``Time100`` all in one batch."""
    alone = np.full(len(x), np.nan)
    explainer.solve(x[:1], wanted[:1])
    for i in range(min(_TIMED_ALONE, len(x))):
        started = time.perf_counter()
        explainer.solve(x[i : i + 1], wanted[i : i + 1])
        alone[i] = time.perf_counter() - started
    started = time.perf_counter()
    explainer.solve(x, wanted)
    return {"Time": alone, "Time100": (time.perf_counter() - started) / len(x)}


@torch.no_grad()
def score(context: Context, answered: Answered) -> pd.DataFrame:
    """Every metric that depends on codes alone, one line for each row."""
    x, x_cf, target = answered.x, answered.x_cf, answered.target
    current = context.deployed.decide(context.deployed.probabilities(x))
    decisions = _decisions(context, answered)
    about_answers = {**_distances(context, x_cf, x, target), **_plausibility(context, x_cf, target, current)}
    # The row itself handed back, and no answer: its distance of 0 would be a merit.
    none = (x_cf == x).flatten(1).all(dim=1) & (decisions["valid"] == 0)
    found: dict[str, Any] = {
        **decisions,
        **{name: torch.where(none, torch.nan, value) for name, value in about_answers.items()},
        "personalisation": personalisation(x_cf, x, target),
        "Div": np.nan if answered.several is None else pairwise_distance(answered.several),
    }
    if context.bank is not None and context.execution_noise is not None:
        found["NE"], found["invalidation"] = noisy_execution(context.bank, x_cf, context.execution_noise, target)
    if answered.n > 1:
        found["apart"] = _apart(x_cf, answered.n)
    if answered.moved is not None:
        ratio, found["R_IC_moved"] = input_stability(x_cf, answered.moved, x)
        still = (x_cf == x).flatten(1).all(dim=1)
        found["R_IC"] = torch.where(still, torch.nan, ratio)  # no change, no ratio to it
    frame = pd.DataFrame({name: _array(value, len(x)) for name, value in found.items()})
    places = np.arange(len(x))
    return frame.assign(row=places // answered.n, answer=places % answered.n)


def _apart(x_cf: Tensor, n: int) -> Tensor:
    """(N,) the Euclidean distance of each answer to the nearest other answer of its row."""
    answers = x_cf.flatten(1).unflatten(0, (-1, n))
    return (torch.cdist(answers, answers) + torch.diag(torch.full((n,), torch.inf))).amin(dim=-1).flatten()


def _decisions(context: Context, answered: Answered) -> dict[str, Any]:
    x_cf, target = answered.x_cf, answered.target
    valid = context.deployed.valid(context.deployed.probabilities(x_cf), target).float()
    later = None if context.surrogates is None else model_agreement(context.surrogates, x_cf, target)
    found: dict[str, Any] = {
        "Val": np.nan if context.bank is None else validity(context.bank, x_cf, target),
        "valid": valid,
        "CMV": np.nan if later is None else later,
        "end_to_end": np.nan if later is None else valid * later,
        "RVR_trained": np.nan if answered.trained_on is None else model_agreement(answered.trained_on, x_cf, target),
    }
    for epsilon, members in (context.rashomon or {}).items():
        share = model_agreement(members, x_cf, target)
        count = len(members)
        found[f"RVR@{epsilon:g}"] = share
        found[f"RVR_lower@{epsilon:g}"] = clopper_pearson((share * count).round().numpy().astype(int), count)
        found[f"K@{epsilon:g}"] = float(count)
    return found


def _distances(context: Context, x_cf: Tensor, x: Tensor, target: Tensor) -> dict[str, Any]:
    encoding, deployed = context.encoding, context.deployed
    changes = column_changes(encoding, x_cf, x)
    found: dict[str, Any] = {
        "L1": changes.sum(dim=1),
        "L2": (x_cf - x).flatten(1).norm(dim=1),
        "Linf": changes.amax(dim=1),
        "L1_mad": (changes / context.deviations).sum(dim=1),
        "gower": gower(encoding, x_cf, x, context.ranges),
        "columns": context.space.count_changes(x_cf, x) if encoding is None else columns_changed(encoding, x_cf, x),
    }
    if encoding is not None:  # pixels are too many to be put back one at a time
        found["redundancy"] = redundancy(
            lambda some, wanted: deployed.valid(deployed.probabilities(some), wanted), encoding, x_cf, x, target
        )
    return found


def _plausibility(context: Context, x_cf: Tensor, target: Tensor, current: Tensor) -> dict[str, Any]:
    rows = context.rows_of
    overall, near = torch.full((len(x_cf),), torch.nan), torch.full((len(x_cf),), torch.nan)
    for label in target.unique().tolist():
        mine = target == label
        overall[mine] = implausibility(x_cf[mine], rows[label])
        near[mine] = distance_to_rows(x_cf[mine], rows[label])
    found: dict[str, Any] = {"Imp": overall, "yNN": near, "inlier": lof_inlier(x_cf, target, rows)}
    if context.autoencoders is not None:
        found["IM1"] = im1(context.autoencoders, x_cf, target, current)
    return found


def _array(value: Any, count: int) -> Any:
    array = value.double().numpy() if isinstance(value, Tensor) else np.asarray(value, float)
    return np.broadcast_to(array, (count,))
