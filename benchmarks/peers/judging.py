"""One judge for all answers, whoever gave them: rows in their own units, models that no method has seen."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from exchange import Positions
from numpy.typing import NDArray

from avcg.metrics.context import Context
from avcg.metrics.functional import columns_changed, l1_distance, model_agreement
from avcg.schema.features import Continuous
from avcg.schema.schema import Schema
from avcg.space.tabular import TabularSpace

MEASURES = ("answered", "valid", "survival", "L1", "columns", "broken")


def judge(context: Context, X: pd.DataFrame, target: Positions, answers: pd.DataFrame) -> pd.DataFrame:
    """Measure answers.

    Args:
        context: With the deployed model, and models trained anew as its surrogates.
        X: The rows that were asked about, as many as there are targets.
        target: The class positions wanted.
        answers: In the units of X, a line for each row that has one; the index is the row's position in X.

    Returns:
        One line for each row asked: ``row``; ``answered`` (a row handed back as it was, and not valid, is no answer);
        of answers only, ``valid`` under the model in force, ``survival`` (the share of surrogates that agree), ``L1``
        (standard deviations, 1 for a changed category), ``columns`` that changed and ``broken`` constraints. An answer
        that cannot be read, with an unknown category or a gap, is not valid, survives nowhere and breaks a constraint.
    """
    assert isinstance(context.space, TabularSpace)
    space = context.space
    result = pd.DataFrame(np.nan, index=pd.RangeIndex(len(X)), columns=list(MEASURES))
    result["answered"] = 0.0
    result.loc[answers.index, "answered"] = 1.0
    readable = _readable(space.schema, answers)
    result.loc[answers.index[~readable], ["valid", "survival", "broken"]] = [0.0, 0.0, 1.0]
    given = answers[readable]
    if len(given):
        asked = X.iloc[given.index]
        x, x_cf = space.encode(asked), space.encode(given)
        wanted = torch.from_numpy(target[given.index])
        valid = context.deployed.valid(context.deployed.probabilities(x_cf), wanted)
        assert context.surrogates is not None
        found = np.column_stack(
            [
                valid.numpy(),
                model_agreement(context.surrogates, x_cf, wanted).numpy(),
                l1_distance(space.encoding, x_cf, x).numpy(),
                columns_changed(space.encoding, x_cf, x).numpy(),
                space.violations(given, asked).sum(axis=1),
            ]
        )
        none = (x_cf == x).all(dim=1).numpy() & ~valid.numpy()
        found[none] = np.nan
        result.loc[given.index, list(MEASURES[1:])] = found.astype(np.float64)
        result.loc[given.index[none], "answered"] = 0.0
    return result.rename_axis("row").reset_index()


def _readable(schema: Schema, answers: pd.DataFrame) -> NDArray[np.bool_]:
    """(N,) whether every number is one, and every category known."""
    fine = np.ones(len(answers), bool)
    for feature in schema.features:
        cells = answers[feature.name]
        if isinstance(feature, Continuous):
            fine &= np.isfinite(pd.to_numeric(cells, errors="coerce").to_numpy(np.float64))
        else:
            fine &= cells.isin(feature.categories).to_numpy(bool)
    return fine
