"""One judge for all answers, whoever gave them: the benchmark's metrics, on rows in their own units."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from exchange import Positions
from numpy.typing import NDArray

from avcg import TabularSpace
from avcg.metrics.context import Context, EncodedAnswers
from avcg.metrics.evaluate import score
from avcg.metrics.table import METRICS, Metric
from avcg.schema.features import Continuous
from avcg.schema.schema import Schema

ANSWERED = Metric("answered", "higher", function=lambda case: (~case.unanswered).float())
_NAMES = ("valid", "CMV", "L1", "columns", "violations")
# A row that was handed back as it was, and is not valid, is no answer: nothing is measured of it.
_METRICS = (ANSWERED, *(replace(metric, answered_only=True) for metric in METRICS if metric.name in _NAMES))
MEASURES = (ANSWERED.name, *_NAMES)


def judge(context: Context, X: pd.DataFrame, target: Positions, answers: pd.DataFrame) -> pd.DataFrame:
    """Measure answers.

    Args:
        context: The judges, with models trained anew as surrogates.
        X: The rows that were asked about, one for each target.
        target: The class positions asked for.
        answers: Answers in the units of X, one line for each row that has one; the index is the row's position in X.

    Returns:
        One line for each row asked about: ``row``, ``answered`` and, of answers only, the metrics of those names in
        `avcg.metrics.table.METRICS`. An answer that cannot be read, with an unknown category or a gap, is not valid,
        survives nowhere and breaks a constraint.
    """
    space = context.space
    assert isinstance(space, TabularSpace)
    result = pd.DataFrame(np.nan, index=pd.RangeIndex(len(X)), columns=list(MEASURES))
    result["answered"] = 0.0
    readable = _readable(space.schema, answers)
    unreadable = {"answered": 1.0, "valid": 0.0, "CMV": 0.0, "violations": 1.0}
    result.loc[answers.index[~readable], list(unreadable)] = list(unreadable.values())
    read = answers[readable]
    if len(read):
        rows = X.iloc[read.index]
        broken = space.violations(read, rows).sum(axis=1, dtype=float)
        wanted = torch.from_numpy(target[read.index])
        encoded = EncodedAnswers(space.encode(rows), wanted, space.encode(read), broken=torch.from_numpy(broken))
        scored = score(context, encoded, metrics=_METRICS)
        result.loc[read.index, list(MEASURES)] = scored[list(MEASURES)].to_numpy()
    return result.rename_axis("row").reset_index()


def _readable(schema: Schema, answers: pd.DataFrame) -> NDArray[np.bool_]:
    """(N,) whether every number is finite and every category is one of the column's."""
    readable = np.ones(len(answers), bool)
    for feature in schema.features:
        cells = answers[feature.name]
        if isinstance(feature, Continuous):
            readable &= np.isfinite(pd.to_numeric(cells, errors="coerce").to_numpy(np.float64))
        else:
            readable &= cells.isin(feature.categories).to_numpy(bool)
    return readable
