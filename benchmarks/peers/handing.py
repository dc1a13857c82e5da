"""From avcg to the files that peers read: the very network that is explained, its columns and its limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from exchange import Column, Positions, Task
from torch import nn

from avcg import TabularSpace
from avcg.errors import DataError, SettingError
from avcg.models.adapter import class_positions
from avcg.schema.features import Categorical, Continuous

_ALIKE = 1e-5  # probabilities as the peers compute them, and as avcg does


def task_of(model: Any, X_train: pd.DataFrame, y_train: Any, X: pd.DataFrame, target: Positions) -> Task:
    """A task with the model's weights, compared with the model before it is handed out.

    Args:
        model: A `Classifier` fitted on a table.
        X_train: Training rows.
        y_train: Their labels.
        X: Rows to explain; the task keeps their index.
        target: (B,) the class position wanted for each.

    Raises:
        SettingError: If the network is no stack of linear layers with ReLU between them.
        DataError: If a column has gaps, which no peer reads, or the task does not say what the model says.
    """
    space = model.space_
    assert isinstance(space, TabularSpace)
    labels = class_positions(np.asarray(y_train), model.classes_).numpy()
    task = Task(
        _columns(space),
        tuple(str(label) for label in model.classes_.tolist()),
        _layers(model.network_),
        X_train.reset_index(drop=True),
        labels,
        X,
        target,
    )
    if len(X):
        apart = float(np.abs(task.probabilities(task.encode(X)) - model.predict_proba(X)).max())
        if apart > _ALIKE:
            raise DataError(f"The task's probabilities are off by {apart:.1e} from the model's.")
    return task


def _layers(network: nn.Module) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    for layer in network.modules():
        if isinstance(layer, nn.Linear):
            found.append((layer.weight.detach().numpy(), layer.bias.detach().numpy()))
        elif not isinstance(layer, (nn.Sequential, nn.ReLU, nn.Dropout)):
            raise SettingError(f"Peers are handed linear layers and ReLU. This network has a {type(layer).__name__}.")
    return found


def _columns(space: TabularSpace) -> tuple[Column, ...]:
    encoding, feasible = space.encoding, space.feasible
    columns = []
    for j, feature in enumerate(space.schema.features):
        place = encoding.kind_index[j]
        if feature.missing == "indicator":
            raise DataError(f"Column {feature.name!r} may have gaps, and peers read none.")
        if isinstance(feature, Continuous):
            columns.append(
                Column(
                    feature.name,
                    None,
                    center=float(encoding.center[place]),
                    scale=float(encoding.scale[place]),
                    low=float(feasible.limits.ranges.low[0, place]),
                    high=float(feasible.limits.ranges.high[0, place]),
                    whole=feature.step == 1,
                    change=feature.change,
                )
            )
        else:
            assert isinstance(feature, Categorical)
            allowed = feature.categories if feature.allowed is None else tuple(feature.allowed)
            columns.append(Column(feature.name, feature.categories, change=feature.change, allowed=allowed))
    return tuple(columns)


def same_model(explainer: Any, model: Any, X: pd.DataFrame) -> bool:
    """Whether a stored explainer explains this very model, by what it says of some rows."""
    x = explainer.space_.encode(X)
    with torch.no_grad():
        theirs = explainer.deployed_.probabilities(x).numpy()
    return bool(np.abs(theirs - model.predict_proba(X)).max() <= _ALIKE)
