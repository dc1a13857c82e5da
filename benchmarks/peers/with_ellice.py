"""ElliCE: a gradient search for each row, until the worst model of an ellipsoid around the last layer agrees.

The ellipsoid holds the last layers whose loss is at most epsilon above the model's, to second order. What it is told of
the constraints is what it has words for: columns that may vary, ranges, one-way changes and groups of one-hot codes.
Numbers come back between whole ones and are rounded here, as whoever reads the answer would.
"""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import torch
from ellice.data import Data
from ellice.generators.continuous import ContinuousGenerator
from ellice.models.wrappers import PyTorchModel
from exchange import Explain, Positions, Task, run_peer
from numpy.typing import NDArray
from torch import nn

_DIRECTIONS = {"up": "increase", "down": "decrease"}


def prepare(task: Task, kind: str) -> Explain:
    """An explainer of the task; the kind is epsilon, how much worse the last layers in the ellipsoid may be."""
    torch.manual_seed(0)  # categories are drawn from it
    codes = pd.DataFrame(task.encode(task.train), columns=_code_names(task))
    data = Data(codes.assign(label=task.labels), "label", continuous_features=list(codes), categorical_features=[])
    # Its own Explainer makes one of these, which computes the ellipsoid, and goes through the rows, on every call.
    generator = ContinuousGenerator(PyTorchModel(_one_logit(task)), data, eps=float(kind), device="cpu")
    free, ranges, one_way, groups = _constraints(task)

    def explain(rows: pd.DataFrame, target: Positions) -> pd.DataFrame:
        queries = pd.DataFrame(task.encode(rows), columns=list(codes), index=rows.index)
        found, kept = [], []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a row was given up is told by its missing answer
            for (place, query), wanted in zip(queries.iterrows(), target, strict=True):
                answer = generator.generate(
                    query, features_to_vary=free, permitted_range=ranges, one_way_change=one_way,
                    one_hot_groups=groups, target_class=int(wanted), progress_bar=False,
                ).to_numpy()[0]  # fmt: skip
                if not np.array_equal(
                    answer, query.to_numpy()
                ):  # the row itself is its way of saying that there is none
                    found.append(answer)
                    kept.append(place)
        return _frame(task, np.array(found).reshape(len(found), codes.shape[1]), rows.loc[kept])

    return explain


def _code_names(task: Task) -> list[str]:
    names = []
    for column in task.columns:
        names += [column.name] if column.categories is None else [f"{column.name}={one}" for one in column.categories]
    return names


def _one_logit(task: Task) -> nn.Sequential:
    """The model with the difference of its two logits for output, which is what ElliCE reads."""
    modules: list[nn.Module] = []
    *hidden, (last, shift) = task.layers
    for weight, bias in (*hidden, (last[1:] - last[:1], shift[1:] - shift[:1])):
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        layer.weight.data, layer.bias.data = torch.from_numpy(weight.copy()), torch.from_numpy(bias.copy())
        modules += [layer, nn.ReLU()]
    return nn.Sequential(*modules[:-1]).eval().requires_grad_(False)


def _constraints(task: Task) -> tuple[list[str], dict[str, list[float]], dict[str, str], list[list[str]]]:
    """Codes that may vary, ranges of codes, one-way codes, and the codes of each column of categories."""
    names = _code_names(task)
    free, ranges, one_way, groups = [], {}, {}, []
    for column, block in zip(task.columns, task.slices, strict=True):
        mine = names[block]
        free += mine if column.change != "none" else []
        if column.categories is not None:
            groups.append(mine)
        elif column.change != "none":
            ranges[mine[0]] = [(bound - column.center) / column.scale for bound in (column.low, column.high)]
            if column.change in _DIRECTIONS:
                one_way[mine[0]] = _DIRECTIONS[column.change]
    return free, ranges, one_way, groups


def _frame(task: Task, codes: NDArray[np.float32], rows: pd.DataFrame) -> pd.DataFrame:
    """Codes in the units of the rows; what may not change is as it was, whatever float32 makes of it."""
    values, own = np.empty((len(codes), len(task.columns))), task.values(rows)
    for j, (column, block) in enumerate(zip(task.columns, task.slices, strict=True)):
        if column.change == "none":
            values[:, j] = own[:, j]
        elif column.categories is None:
            number = codes[:, block.start].astype(np.float64) * column.scale + column.center
            values[:, j] = np.rint(number) if column.whole else number
        else:
            values[:, j] = codes[:, block].argmax(axis=1)
    return task.frame_of(values).set_axis(rows.index)


if __name__ == "__main__":
    run_peer(prepare, ["ellice", "torch", "numpy", "pandas"])
