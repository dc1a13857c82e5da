"""Ask a fitted explainer, and measure its answers by judges that no method has seen.

One `Context` for a dataset and a seed serves every method, so that they differ in their answers and in nothing else.
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
from avcg.method.query import QueryOptions
from avcg.metrics.context import Case, Context, EncodedAnswers, Reread
from avcg.metrics.table import METRICS, Metric
from avcg.models.adapter import class_positions
from avcg.space.frames import take_rows
from avcg.space.tabular import table_of

_TIMED_ALONE = 8  # rows answered one at a time
_ALTERNATIVES = 5  # answers to each row, of which diversity is measured


def evaluate(
    context: Context,
    explainer: Explainer,
    X: Any,
    target: Any,
    options: QueryOptions | None = None,
    *,
    metrics: Sequence[Metric] = METRICS,
) -> pd.DataFrame:
    """Ask a fitted explainer, and measure what people receive.

    Args:
        context: The judges.
        explainer: A fitted explainer of any method.
        X: Rows in user units.
        target: One label for each row.
        options: What is asked for beside them; None: one answer for each row.
        metrics: What to measure.

    Returns:
        One line for each answer, reading and metric: columns row, answer, reading, metric, value.
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
    """The same as `evaluate`, with a column for each metric.

    Args:
        context: The judges.
        explainer: A fitted explainer of any method.
        X: Rows in user units.
        target: One label for each row.
        options: What is asked for beside them; None: one answer for each row. Diversity, stability and times are
            measured for that default only.
        metrics: What to measure.

    Returns:
        One line for each answer as it was given (reading ``"raw"``) and, where the context can read answers again as
        proper rows, one more for each (reading ``"decoded"``).
    """
    options = options or QueryOptions()
    started = time.perf_counter()
    answers = explainer.query(X, target, options)
    seconds = (time.perf_counter() - started) / len(answers)
    rows = np.repeat(np.arange(len(answers)), options.n)
    x, wanted = context.space.encode(X), class_positions(np.asarray(target), explainer.classes_)
    table = table_of(context.space)
    broken = None if table is None else table.violations(answers.answers, take_rows(X, rows))
    encoded = EncodedAnswers(
        x[rows],
        wanted[rows],
        context.space.encode(answers.answers),
        options.n,
        delivered=torch.tensor(answers.status.isin(["ok", "not_robust"]).to_numpy(float)),
        broken=None if broken is None else torch.tensor(broken.sum(axis=1, dtype=float)),
        seconds_frame=seconds,
    )
    if options.is_default:
        encoded = _observed(context, explainer, X, target, encoded)
    raw = score(context, encoded, metrics=metrics).assign(reading="raw")
    if context.reread is None:
        return raw
    proper = score(context, _proper(context.reread, encoded), metrics=metrics).assign(reading="decoded")
    return pd.concat([raw, proper], ignore_index=True)


def _observed(context: Context, explainer: Explainer, X: Any, target: Any, encoded: EncodedAnswers) -> EncodedAnswers:
    """The same with what takes more answers: diversity, stability, times and the amortization gap."""
    x, wanted = encoded.x, encoded.target
    noise, train = context.input_noise, explainer.split_.train
    perturbed = gap = None
    if noise is not None and not bool(context.space.is_logit.any()):  # a category has no noise
        perturbed = torch.stack([explainer.solve(x + error, wanted)[0] for error in noise])
    if isinstance(explainer, AVCG) and context.encoding is not None:
        gaps = explainer.amortization_gap(X, target, steps=50, n_latents=5)["gap"]
        gap = torch.tensor(gaps.to_numpy(float))
    alternatives = explainer.solve(x, wanted, n=_ALTERNATIVES)
    alone, batch = timings(explainer, x, wanted)
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
    """The same answers as proper rows, without what was observed of the answers as they were given.

    Answers to rows with noise are left out: rows with noise are no proper rows.
    """
    alternatives = encoded.alternatives
    if alternatives is not None:
        alternatives = reread(alternatives.flatten(0, 1)).unflatten(0, alternatives.shape[:2])
    return EncodedAnswers(
        encoded.x, encoded.target, reread(encoded.x_cf), encoded.n,
        alternatives=alternatives, trained_on=encoded.trained_on,
    )  # fmt: skip


def timings(explainer: Explainer, x: Tensor, target: Tensor) -> tuple[Tensor, float]:
    """Seconds a row, from codes to codes.

    Args:
        explainer: A fitted explainer of any method.
        x: (B, *event) encoded rows.
        target: (B,) class positions.

    Returns:
        (B,) seconds of the first few rows, each by itself, NaN for the others; and seconds a row for all at once.
    """
    alone = torch.full((len(x),), torch.nan, dtype=torch.float64)
    explainer.solve(x[:1], target[:1])
    for i in range(min(_TIMED_ALONE, len(x))):
        started = time.perf_counter()
        explainer.solve(x[i : i + 1], target[i : i + 1])
        alone[i] = time.perf_counter() - started
    started = time.perf_counter()
    explainer.solve(x, target)
    return alone, (time.perf_counter() - started) / len(x)


def score(context: Context, answers: EncodedAnswers, *, metrics: Sequence[Metric] = METRICS) -> pd.DataFrame:
    """Metrics of encoded answers.

    Args:
        context: The judges.
        answers: What a method answered, and what was observed of it.
        metrics: What to measure.

    Returns:
        One line for each answer, with a column for each metric and the columns row and answer.
    """
    case = Case(context, answers)
    columns = {name: values for metric in metrics for name, values in metric.columns(case).items()}
    positions = np.arange(len(answers.x))
    return pd.DataFrame(columns).assign(row=positions // answers.n, answer=positions % answers.n)
