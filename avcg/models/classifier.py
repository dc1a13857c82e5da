"""A neural classifier with the interface of scikit-learn: raw frames or images in, labels and probabilities out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from avcg.errors import DataError, SettingError, check_int
from avcg.models.adapter import as_rows, class_positions
from avcg.models.affine import probabilities
from avcg.models.networks import cnn, mlp
from avcg.models.stacked_fit import fit_stacked
from avcg.models.training import Epoch, Training
from avcg.schema.schema import Schema
from avcg.space.base import Space
from avcg.space.encoding import Scaling
from avcg.space.images import ImageSpace
from avcg.space.tabular import TabularSpace

_MIN_VALIDATION_ROWS = 50


class Classifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A small neural classifier on raw rows: a multilayer perceptron for tables, a convolutional one for images.

    Args:
        hidden: Number of units of each hidden layer of the perceptron; for images, channels of each convolution.
        dropout: Dropout rate after every hidden layer, in [0, 1).
        epochs: Largest number of passes over the rows.
        batch_size: Number of rows per step.
        learning_rate: Learning rate of Adam.
        weight_decay: Weight decay of Adam.
        patience: Number of epochs without a better validation loss after which training stops; None: no early stopping.
        validation: Share of the rows held out for early stopping, in [0, 1). If that is fewer than 50 rows, none are
            held out and all epochs are run.
        schema: Schema of the columns; None: inferred from X.
        scaling: Scaling of numbers, ``"standard"`` or ``"minmax"``.
        device: Device for training, by its PyTorch name.
        random_state: Seed of all random numbers, >= 0.

    Attributes:
        classes_: Labels, sorted.
        space_: Space of the rows that the network reads.
        network_: Network from encoded rows to logits.
        history_: One entry per epoch.

    >>> from avcg import toys
    >>> loans = toys.loans(n=300)
    >>> model = Classifier(hidden=(16,), epochs=30).fit(loans.X, loans.y)
    >>> model.predict(loans.X[:2]).shape
    (2,)
    """

    classes_: NDArray[Any]
    space_: Space
    network_: nn.Module
    history_: list[Epoch]

    def __init__(
        self,
        hidden: Sequence[int] = (64, 64),
        *,
        dropout: float = 0.1,
        epochs: int = 100,
        batch_size: int = 128,
        learning_rate: float = 1e-3,
        weight_decay: float = 0.0,
        patience: int | None = 10,
        validation: float = 0.1,
        schema: Schema | None = None,
        scaling: Scaling = "standard",
        device: str = "cpu",
        random_state: int = 0,
    ) -> None:
        self.hidden = hidden
        self.dropout = dropout
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.patience = patience
        self.validation = validation
        self.schema = schema
        self.scaling = scaling
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: ArrayLike) -> Self:
        """Train on raw rows and their labels.

        Args:
            X: (N, ...) rows as a frame, a 2-dimensional array or images.
            y: (N,) labels.
        """
        rows = as_rows(X)
        labels = check_labels(y, len(rows))
        classes = np.unique(labels)
        if len(classes) < 2:
            raise DataError(f"A classifier needs at least two classes. All {len(labels)} labels are {labels[0]!r}.")
        space = self._fit_space(rows)
        network, settings = self.build(space, len(classes)), self.training()
        x, positions = space.encode(rows), class_positions(labels, classes)
        rng = torch.Generator().manual_seed(check_int(self.random_state, "'random_state' of Classifier", 0))
        training_rows, validation_rows = split_rows(len(rows), self.validation, rng)
        device = _device(self.device)
        x, positions = x.to(device), positions.to(device)
        state, history = fit_stacked(
            network,
            x,
            positions,
            training_rows[None],
            settings,
            rng=rng,
            held=validation_rows[None] if len(validation_rows) else None,
            label="Training the classifier",
        )
        network.load_state_dict({name: value[0].cpu() for name, value in state.items()}, strict=False)
        # Attributes are set last, so that a fit that fails leaves the classifier unchanged.
        self.classes_, self.space_, self.network_, self.history_ = classes, space, network.eval(), history
        self.n_features_in_ = int(np.prod(np.shape(rows)[1:]))
        if not isinstance(rows, np.ndarray):
            self.feature_names_in_ = np.array(list(rows.columns), object)
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float32]:
        """(N, C) probabilities, classes in the order of ``classes_``."""
        check_is_fitted(self)
        return probabilities(self.network_, self.space_.encode(as_rows(X)))

    def predict(self, X: Any) -> NDArray[Any]:
        """(N,) most probable label of each row."""
        likeliest = self.predict_proba(X).argmax(axis=1)
        return self.classes_[likeliest]

    def architecture(self) -> nn.Sequential:
        """A network of the same architecture with newly initialised weights."""
        check_is_fitted(self)
        return self.build(self.space_, len(self.classes_))

    def build(self, space: Space, n_classes: int) -> nn.Sequential:
        """A network of this classifier's settings with newly initialised weights.

        Args:
            space: Space of the rows that it reads.
            n_classes: Number of classes.
        """
        units = [self.hidden] if isinstance(self.hidden, int) else self.hidden
        hidden = tuple(check_int(size, "units in 'hidden' of Classifier", 1) for size in units)
        rng, shape = torch.Generator().manual_seed(0), space.event_shape
        if len(shape) == 3:
            size = (shape[0], shape[1], shape[2])
            return cnn(size, n_classes, hidden, dropout=self.dropout, rng=rng)
        return mlp(shape[0], n_classes, hidden, dropout=self.dropout, rng=rng)

    def training(self) -> Training:
        """The training settings of this classifier."""
        patience = self.patience if self.validation else None
        return Training(self.epochs, self.batch_size, self.learning_rate, self.weight_decay, patience)

    def _fit_space(self, rows: Any) -> Space:
        if isinstance(rows, np.ndarray):
            return ImageSpace.fit(rows)
        return TabularSpace.fit(self.schema or Schema.infer(rows), rows, self.scaling)


def check_labels(y: ArrayLike, n_rows: int) -> NDArray[Any]:
    """Labels as an array, checked to be one per row without missing values."""
    labels = np.asarray(y)
    if labels.shape != (n_rows,):
        raise DataError(f"There must be one label per row, {n_rows}. Got labels of shape {labels.shape}.")
    missing = int(pd.isna(labels).sum())
    if missing:
        raise DataError(f"Every row needs a label. {missing} labels are missing; drop those rows.")
    return labels


def _device(name: str) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError:
        raise SettingError(f"The 'device' of Classifier must be a PyTorch device, e.g. 'cuda'. Got {name!r}.") from None


def split_rows(n_rows: int, share: float, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Positions of the rows to train on, in random order, and of those held out for validation."""
    if not 0 <= share < 1:
        raise SettingError(f"The 'validation' share must be in [0, 1). Got {share!r} instead.")
    order = torch.randperm(n_rows, generator=rng)
    count = round(share * n_rows)
    if count >= n_rows:
        raise SettingError(f"A 'validation' share of {share!r} leaves none of {n_rows} rows to train on. Lower it.")
    # On a few validation rows the first epoch may be the best by chance, and the network would hardly be trained.
    count = count if count >= _MIN_VALIDATION_ROWS else 0
    return order[count:], order[:count]
