"""Evaluation of a fitted explainer: its answers, measured by judges that no method has used.

One `Context` for a dataset and a seed serves all methods, so that results differ only because of the answers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from avcg.explainers.avcg import AVCG
from avcg.explainers.base import Explainer
from avcg.hypotheses.finite import FiniteSet
from avcg.method.query import Effort, QueryOptions
from avcg.metrics.context import Case, Context, EncodedAnswers, Reread
from avcg.metrics.table import METRICS, Metric
from avcg.models.adapter import class_positions
from avcg.space.frames import take_rows
from avcg.space.tabular import table_of

_TIMED_ALONE = 8  # rows answered one at a time
_ALTERNATIVES = 5  # answers to each row from which diversity is measured


def evaluate(
    context: Context,
    explainer: Explainer,
    X: Any,
    target: Any,
    options: QueryOptions | None = None,
    *,
    metrics: Sequence[Metric] = METRICS,
) -> pd.DataFrame:
    """Metrics of the answers that people receive from a fitted explainer, in long form.

    Args:
        context: The judges.
        explainer: A fitted explainer of any method.
        X: Rows in user units.
        target: One label for each row.
        options: What is asked for beside rows and target; None: one answer for each row.
        metrics: The metrics to compute.

    Returns:
        One line for each answer, reading and metric, with columns row, answer, reading, metric and value.
    """
    wide = measure(context, explainer, X, target, options, metrics=metrics)
    return wide.melt(["row", "answer", "reading"], var_name="metric", value_name="value")


def measure(
    context: Context,
    explainer: Explainer,
    X: Any,
    target: Any,
    options: QueryOptions | None = None,
    *,
    metrics: Sequence[Metric] = METRICS,
) -> pd.DataFrame:
    """Metrics of the answers that people receive from a fitted explainer, with a column for each metric.

    Args:
        context: The judges.
        explainer: A fitted explainer of any method.
        X: Rows in user units.
        target: One label for each row.
        options: What is asked for beside rows and target; None: one answer for each row. Diversity, stability and
            times are measured only for one answer without restrictions, at any effort.
        metrics: The metrics to compute.

    Returns:
        One line for each answer as it was given (reading ``"raw"``). If the context can make proper rows of answers,
        one more line for each (reading ``"decoded"``).
    """
    options = options or QueryOptions()
    started = time.perf_counter()
    answers = explainer.query(X, target, options)
    seconds = (time.perf_counter() - started) / len(answers)
    rows = np.repeat(np.arange(len(answers)), options.n)
    x, targets = context.space.encode(X), class_positions(np.asarray(target), explainer.classes_)
    table = table_of(context.space)
    broken = None if table is None else table.violations(answers.answers, take_rows(X, rows))
    encoded = EncodedAnswers(
        x[rows],
        targets[rows],
        context.space.encode(answers.answers),
        options.n,
        delivered=torch.tensor(answers.status.isin(["ok", "not_robust"]).to_numpy(float)),
        broken=None if broken is None else torch.tensor(broken.sum(axis=1, dtype=float)),
        seconds_frame=seconds,
    )
    if replace(options, effort="standard").is_default:
        encoded = _with_measurements(context, explainer, X, target, encoded, options.effort)
    raw = score(context, encoded, metrics=metrics).assign(reading="raw")
    if context.reread is None:
        return raw
    proper = score(context, _proper(context.reread, encoded), metrics=metrics).assign(reading="decoded")
    return pd.concat([raw, proper], ignore_index=True)


def _with_measurements(
    context: Context, explainer: Explainer, X: Any, target: Any, encoded: EncodedAnswers, effort: Effort
) -> EncodedAnswers:
    """The answers with what needs further queries: alternatives, stability, times and the amortization gap."""
    x, targets = encoded.x, encoded.target
    noise, train = context.input_noise, explainer.split_.train
    perturbed = gap = None
    if noise is not None and not bool(context.space.is_logit.any()):  # noise cannot be added to categories
        perturbed = torch.stack([explainer.solve(x + error, targets, effort=effort)[0] for error in noise])
    if isinstance(explainer, AVCG) and context.encoding is not None:
        gaps = explainer.amortization_gap(X, target, steps=50, n_latents=5)["gap"]
        gap = torch.tensor(gaps.to_numpy(float))
    alternatives = explainer.solve(x, targets, n=_ALTERNATIVES, effort=effort)
    alone, batch = timings(explainer, x, targets, effort)
    return replace(
        encoded,
        alternatives=alternatives,
        perturbed=perturbed,
        trained_on=train.predictors if isinstance(train, FiniteSet) else None,
        gap=gap,
        seconds_alone=alone,
        seconds_batch=batch,
    )


def _proper(reread: Reread, encoded: EncodedAnswers) -> EncodedAnswers:
    """The answers as proper rows, without the measurements that refer to the answers as they were given.

    Answers to rows with noise are left out, because rows with noise are not proper rows.
    """
    alternatives = encoded.alternatives
    if alternatives is not None:
        alternatives = reread(alternatives.flatten(0, 1)).unflatten(0, alternatives.shape[:2])
    return EncodedAnswers(
        encoded.x, encoded.target, reread(encoded.x_cf), encoded.n,
        alternatives=alternatives, trained_on=encoded.trained_on,
    )  # fmt: skip


def timings(explainer: Explainer, x: Tensor, target: Tensor, effort: Effort = "standard") -> tuple[Tensor, float]:
    """Seconds per row, from codes to codes, one row at a time and all at once.

    Args:
        explainer: A fitted explainer of any method.
        x: (B, *event) encoded rows.
        target: (B,) class positions.
        effort: Work spent on closer answers.

    Returns:
        The (B,) seconds of the first few rows, each by itself, with NaN for the others; and the seconds per row for
        all at once.
    """
    alone = torch.full((len(x),), torch.nan, dtype=torch.float64)
    explainer.solve(x[:1], target[:1], effort=effort)
    for i in range(min(_TIMED_ALONE, len(x))):
        started = time.perf_counter()
        explainer.solve(x[i : i + 1], target[i : i + 1], effort=effort)
        alone[i] = time.perf_counter() - started
    started = time.perf_counter()
    explainer.solve(x, target, effort=effort)
    return alone, (time.perf_counter() - started) / len(x)


def score(context: Context, answers: EncodedAnswers, *, metrics: Sequence[Metric] = METRICS) -> pd.DataFrame:
    """Metrics of encoded answers, with a column for each metric.

    Args:
        context: The judges.
        answers: The answers of one method, and what was measured while it answered.
        metrics: The metrics to compute.

    Returns:
        One line for each answer, with a column for each metric and the columns row and answer.
    """
    case = Case(context, answers)
    columns = {name: values for metric in metrics for name, values in metric.columns(case).items()}
    positions = np.arange(len(answers.x))
    return pd.DataFrame(columns).assign(row=positions // answers.n, answer=positions % answers.n)
