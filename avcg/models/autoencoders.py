"""One autoencoder per class, trained as one stacked network, to measure how well a row fits each class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from avcg.errors import DataError
from avcg.models.batched import stacked_forward
from avcg.models.networks import autoencoder, conv_autoencoder
from avcg.models.stacked_fit import fit_stacked
from avcg.models.training import Epoch, Training

_CHUNK_ROWS = 1024  # rows processed at a time


@dataclass(frozen=True, eq=False)
class ClassAutoencoders:
    """C autoencoders of one architecture, each fitted to the rows of one class.

    Attributes:
        network: Architecture of the autoencoders.
        state: Parameters by name, (C, *shape).
        history: One entry per epoch.
    """

    network: nn.Module
    state: Mapping[str, Tensor]
    history: tuple[Epoch, ...]

    @classmethod
    def fit(
        cls,
        x: Tensor,
        y: Tensor,
        n_classes: int,
        *,
        network: nn.Module | None = None,
        training: Training | None = None,
        rng: torch.Generator | None = None,
    ) -> Self:
        """Train one autoencoder per class on encoded rows.

        Args:
            x: (N, *event) encoded rows.
            y: (N,) class positions.
            n_classes: Number of classes C.
            network: Architecture; None: a small perceptron for tables, a convolutional one for images.
            training: Training settings; None: 100 epochs without early stopping.
            rng: Random numbers; None: a generator seeded with 0.

        Raises:
            DataError: If a class has no rows.

        >>> x = torch.cat([torch.zeros(50, 4), torch.ones(50, 4)])
        >>> y = torch.arange(100) // 50
        >>> errors = ClassAutoencoders.fit(x, y, 2).errors(x)
        >>> bool((errors.argmin(dim=0) == y).all())
        True
        """
        rng = torch.Generator().manual_seed(0) if rng is None else rng
        if network is None:
            size = tuple(x.shape[1:])
            network = autoencoder(size[0]) if len(size) == 1 else conv_autoencoder((size[0], size[1], size[2]))
        rows = _rows_of_classes(y.cpu(), n_classes, rng)
        settings = training or Training(patience=None)
        state, history = fit_stacked(
            network, x, x, rows, settings, rng=rng, loss=_squared_error, label="Training autoencoders"
        )
        return cls(network, state, tuple(history))

    def to(self, device: torch.device | str) -> ClassAutoencoders:
        """The autoencoders on another device."""
        state = {name: value.to(device) for name, value in self.state.items()}
        return ClassAutoencoders(self.network.to(device), state, self.history)

    def errors(self, x: Tensor) -> Tensor:
        """Squared reconstruction error of each row under each class's autoencoder.

        Args:
            x: (N, *event) encoded rows.

        Returns:
            (C, N) errors, differentiable in x.
        """
        count = len(next(iter(self.state.values())))
        forward = stacked_forward(self.network.to(x.device), x.dim() - 1)
        parts = [
            (forward(part, self.state, count) - part).square().flatten(2).sum(dim=-1) for part in x.split(_CHUNK_ROWS)
        ]
        return torch.cat(parts, dim=1)


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """(C,) mean squared error for (C, N, *event) outputs and targets."""
    return (outputs - targets).square().flatten(1).mean(dim=1)


def _rows_of_classes(y: Tensor, n_classes: int, rng: torch.Generator) -> Tensor:
    """(C, n) positions of each class's rows in random order, repeated up to the size of the largest class."""
    groups = [torch.nonzero(y == c).flatten() for c in range(n_classes)]
    empty = [c for c, group in enumerate(groups) if not len(group)]
    if empty:
        raise DataError(
            f"Every class needs rows to fit an autoencoder to. Class {empty[0]} of {n_classes} has no rows."
        )
    size = max(len(group) for group in groups)
    shuffled = [group[torch.randperm(len(group), generator=rng)] for group in groups]
    return torch.stack([group.repeat(-(-size // len(group)))[:size] for group in shuffled])
