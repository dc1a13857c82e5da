"""DiCE (package dice-ml): one answer for each row, by random draws, a genetic algorithm or gradients.

What it is told of the constraints is what it has words for: columns that may vary, and ranges of them.
"""

from __future__ import annotations

import contextlib
import io
import random
from typing import Any

import dice_ml
import numpy as np
import pandas as pd
import torch
from exchange import Codes, Explain, Positions, Task, run_peer
from raiutils.exceptions import UserConfigValidationException
from torch import Tensor, nn

_OUTCOME = "outcome"
_FOUND_NOTHING = "No counterfactuals found for any of the query points"


class BlackBoxPredictors:
    """The model as DiCE's agnostic methods ask it: with frames."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def predict_proba(self, rows: pd.DataFrame) -> Codes:
        """(B, C)."""
        return self.task.probabilities(self.task.encode(rows))

    def predict(self, rows: pd.DataFrame) -> Positions:
        """(B,) class positions."""
        return self.predict_proba(rows).argmax(axis=1)


class Opened(nn.Module):
    """The model as DiCE's gradients read it: one-hot codes and numbers from 0 to 1, to the probability of class 1."""

    def __init__(self, task: Task, low: Codes, high: Codes) -> None:
        super().__init__()
        # DiCE has the numbers first; ours are where their columns are.
        numbers = [i for i, column in enumerate(task.columns) if column.categories is None]
        choices = [i for i, column in enumerate(task.columns) if column.categories is not None]
        theirs = [code for i in (*numbers, *choices) for code in range(task.slices[i].start, task.slices[i].stop)]
        self.order = torch.from_numpy(np.argsort(theirs))
        slope, offset = np.ones(len(theirs)), np.zeros(len(theirs))
        for place, i in enumerate(numbers):
            column = task.columns[i]
            slope[place] = (high[place] - low[place]) / column.scale
            offset[place] = (low[place] - column.center) / column.scale
        self.slope, self.offset = torch.tensor(slope).float(), torch.tensor(offset).float()
        self.layers = [(torch.from_numpy(weight), torch.from_numpy(bias)) for weight, bias in task.layers]

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) to (..., 1)."""
        x = (x * self.slope + self.offset)[..., self.order]
        for i, (weight, bias) in enumerate(self.layers):
            x = nn.functional.linear(x, weight, bias)
            x = torch.relu(x) if i < len(self.layers) - 1 else x
        return torch.softmax(x, dim=-1)[..., 1:]


def prepare(task: Task, kind: str) -> Explain:
    """An explainer of the task; the kind is DiCE's method: ``"random"``, ``"genetic"`` or ``"gradient"``."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  DiCE draws from it
    torch.manual_seed(0)
    numbers = [column.name for column in task.columns if column.categories is None]
    train = _as_text(task, task.train).assign(**{_OUTCOME: task.labels})
    data = dice_ml.Data(dataframe=train, continuous_features=numbers, outcome_name=_OUTCOME)
    if kind == "gradient":
        low, high = (train[numbers].agg(side).to_numpy(np.float64) for side in ("min", "max"))
        model = dice_ml.Model(model=Opened(task, low, high), backend="PYT", func="ohe-min-max")
    else:
        model = dice_ml.Model(model=BlackBoxPredictors(task), backend="sklearn")
    explainer = dice_ml.Dice(data, model, method=kind)
    ranges: dict[str, list[Any]] = {}
    for column in task.columns:
        if column.change != "none":
            ranges[column.name] = [column.low, column.high] if column.allowed is None else [*map(str, column.allowed)]
    if kind == "gradient":  # it knows ranges of numbers only, and wants all of them
        ranges = {column.name: [column.low, column.high] for column in task.columns if column.categories is None}

    def explain(rows: pd.DataFrame, target: Positions) -> pd.DataFrame:
        queries, found = _as_text(task, rows), {}
        for i, place in enumerate(rows.index):
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                try:
                    result = explainer.generate_counterfactuals(
                        queries.iloc[i : i + 1], total_CFs=1, desired_class=int(target[i]),
                        features_to_vary=task.free, permitted_range=ranges,
                    )  # fmt: skip
                except UserConfigValidationException as error:
                    if not str(error).startswith(_FOUND_NOTHING):
                        raise
                    continue
            example = result.cf_examples_list[0]
            answer = example.final_cfs_df if example.final_cfs_df_sparse is None else example.final_cfs_df_sparse
            if answer is not None and len(answer):
                found[place] = answer[task.names].iloc[0]
        return pd.DataFrame.from_dict(found, orient="index", columns=task.names)

    return explain


def _as_text(task: Task, frame: pd.DataFrame) -> pd.DataFrame:
    """Categories as texts, as DiCE reads them."""
    return frame.astype({column.name: str for column in task.columns if column.categories is not None})


if __name__ == "__main__":
    run_peer(prepare, ["dice-ml", "torch", "numpy", "pandas"])
