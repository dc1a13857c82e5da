"""The adapter from any supported model to its network, space and classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from avcg.errors import DataError, SettingError, enumerate_some
from avcg.space.base import Space


class Fitted(Protocol):
    """A fitted classifier around a network, such as `avcg.Classifier`."""

    @property
    def network_(self) -> nn.Module:
        """Network from encoded rows to logits."""

    @property
    def space_(self) -> Space:
        """Space of the rows that the network reads."""

    @property
    def classes_(self) -> NDArray[Any]:
        """Labels in the order of the logits."""


Model = nn.Module | Fitted


@dataclass(frozen=True, eq=False)
class ModelSpec:
    """A model's network with its space and classes, as far as they are known.

    Attributes:
        network: Network from encoded rows to logits.
        space: Space of the rows that the network reads; None: unknown.
        classes: Labels in the order of the logits; None: unknown.
    """

    network: nn.Module
    space: Space | None
    classes: NDArray[Any] | None

    def event_shape(self) -> tuple[int, ...]:
        """Shape of one encoded row, from the space or the first linear layer."""
        if self.space is not None:
            return self.space.event_shape
        first = next((layer for layer in self.network.modules() if not list(layer.children())), None)
        if isinstance(first, nn.Linear):
            return (first.in_features,)
        raise SettingError("The shape of the network's inputs is unknown. Pass the space of its rows: space=...")

    def rows(self, X: Any) -> Tensor:
        """Encoded rows in float32, from a frame, images, a table of numbers or an encoded tensor."""
        if isinstance(X, Tensor):
            return X.float()
        if self.space is None:
            raise SettingError(
                "A bare network reads encoded tensors. Pass a torch tensor, or the space of its rows: space=..."
            )
        return self.space.encode(as_rows(X))

    def labels(self, y: Any) -> Tensor:
        """(N,) class positions of labels. A tensor must hold class positions already."""
        if isinstance(y, Tensor):
            if y.is_floating_point():
                raise DataError(f"A tensor of labels must hold class positions, whole numbers from 0. Got {y.dtype}.")
            return y.long()
        values = np.asarray(y)
        if self.classes is None:
            if values.dtype.kind not in "iu":
                raise DataError(
                    f"A bare network needs class positions, whole numbers from 0. Got labels such as {values[0]!r}."
                )
            return torch.as_tensor(values).long()
        return class_positions(values, self.classes)

    def pair(self, X: Any, y: Any) -> tuple[Tensor, Tensor]:
        """Encoded rows and their class positions, on one device.

        Raises:
            DataError: If there is not one label per row, or there are no rows.
        """
        x, labels = self.rows(X), self.labels(y)
        if labels.shape != x.shape[:1] or not len(x):
            raise DataError(f"There must be one label per row, {len(x)}. Got labels of shape {tuple(labels.shape)}.")
        return x, labels.to(x.device)


def as_rows(X: Any) -> Any:
    """Rows as a frame or images. A 2-dimensional array becomes a frame with columns x0, x1, ..."""
    if isinstance(X, np.ndarray) and X.ndim == 2:
        return pd.DataFrame(X, columns=[f"x{i}" for i in range(X.shape[1])])
    return X


def class_positions(values: NDArray[Any], classes: NDArray[Any]) -> Tensor:
    """(N,) position of each label among the classes.

    Raises:
        DataError: If a label is not one of the classes.
    """
    positions = pd.Index(classes).get_indexer(pd.Index(values))
    unknown = pd.unique(pd.Series(values[positions < 0]))
    if len(unknown):
        expected = enumerate_some(classes.tolist(), 12)
        raise DataError(
            f"Labels must be among the model's classes, {expected}. Got {enumerate_some(unknown.tolist())}."
        )
    return torch.from_numpy(positions.astype(np.int64))


def model_spec(model: Model, space: Space | None = None) -> ModelSpec:
    """The network of a model with its space and classes.

    Raises:
        SettingError: If the model is neither a network nor a fitted classifier around one.
    """
    if isinstance(model, nn.Module):
        return ModelSpec(model, space, None)
    if isinstance(getattr(model, "network_", None), nn.Module):
        return ModelSpec(model.network_, model.space_, model.classes_)
    if type(model).__name__ == "Classifier":
        raise SettingError("The classifier is not fitted yet. Call fit first.")
    raise SettingError(
        f"A {type(model).__name__} is neither a torch network nor a fitted avcg.Classifier. Use it as a black box,"
        " avcg.BlackBox(model, X), or refit it with retrains."
    )
