"""A model opened up: its network, and what is known about its inputs and classes."""

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
        """From encoded rows to logits."""

    @property
    def space_(self) -> Space:
        """What it reads."""

    @property
    def classes_(self) -> NDArray[Any]:
        """The labels in the order of the logits."""


Model = nn.Module | Fitted


@dataclass(frozen=True, eq=False)
class ModelSpec:
    """A model's network with what is known about its inputs and classes.

    Attributes:
        network: From encoded rows to logits.
        space: What it reads, or None.
        classes: The labels in the order of the logits, or None.
    """

    network: nn.Module
    space: Space | None
    classes: NDArray[Any] | None

    def event_shape(self) -> tuple[int, ...]:
        """Of one row of input, from the space or the first linear layer."""
        if self.space is not None:
            return self.space.event_shape
        first = next((layer for layer in self.network.modules() if not list(layer.children())), None)
        if isinstance(first, nn.Linear):
            return (first.in_features,)
        raise SettingError("The shape of the network's inputs is not known. Pass the space it reads.")

    def rows(self, X: Any) -> Tensor:
        """Encoded rows in float32, from a frame, images, a table of numbers or an encoded tensor."""
        if isinstance(X, Tensor):
            return X.float()
        if self.space is None:
            raise SettingError("A bare network reads encoded tensors. Pass a torch tensor, or the space it reads.")
        return self.space.encode(as_rows(X))

    def labels(self, y: Any) -> Tensor:
        """Class positions, from labels; a tensor is taken to hold positions already."""
        if isinstance(y, Tensor):
            if y.is_floating_point():
                raise DataError(f"A tensor of labels holds class positions, whole numbers from 0. Got {y.dtype}.")
            return y.long()
        values = np.asarray(y)
        if self.classes is None:
            if values.dtype.kind not in "iu":
                raise DataError(f"A bare network reads class positions, 0 and up. Got labels such as {values[0]!r}.")
            return torch.as_tensor(values).long()
        return class_positions(values, self.classes)

    def pair(self, X: Any, y: Any) -> tuple[Tensor, Tensor]:
        """Encoded rows and their class positions, one for each.

        Raises:
            DataError: If their numbers differ.
        """
        x, labels = self.rows(X), self.labels(y)
        if labels.shape != x.shape[:1] or not len(x):
            raise DataError(f"There must be one label per row, {len(x)}. Got labels of shape {tuple(labels.shape)}.")
        return x, labels.to(x.device)


def as_rows(X: Any) -> Any:
    """A frame or images as they are; a table of numbers as a frame with columns x0, x1, ..."""
    if isinstance(X, np.ndarray) and X.ndim == 2:
        return pd.DataFrame(X, columns=[f"x{i}" for i in range(X.shape[1])])
    return X


def class_positions(values: NDArray[Any], classes: NDArray[Any]) -> Tensor:
    """(N,) where each label stands among the classes.

    Raises:
        DataError: If a label is none of them.
    """
    positions = pd.Index(classes).get_indexer(pd.Index(values))
    strange = pd.unique(pd.Series(values[positions < 0]))
    if len(strange):
        known = enumerate_some(classes.tolist(), 12)
        raise DataError(f"The labels {enumerate_some(strange.tolist())} are none of the model's classes: {known}.")
    return torch.from_numpy(positions.astype(np.int64))


def model_spec(model: Model, space: Space | None = None) -> ModelSpec:
    """The network in a model, and what is known about it.

    Raises:
        SettingError: If it is neither a network nor a fitted classifier around one.
    """
    if isinstance(model, nn.Module):
        return ModelSpec(model, space, None)
    if isinstance(getattr(model, "network_", None), nn.Module):
        return ModelSpec(model.network_, model.space_, model.classes_)
    if type(model).__name__ == "Classifier":
        raise SettingError("The classifier is not fitted yet. Call fit first.")
    raise SettingError(
        f"A {type(model).__name__} is neither a torch network nor a fitted avcg.Classifier. Ask it as it is, with"
        " avcg.BlackBox(model, X), or use retrains, which refits it."
    )
