"""Hypotheses that are evaluated on a device of their own."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from avcg.hypotheses.predictors import Predictors


class OnDevice(Predictors):
    """Hypotheses on a device of their own. Rows are moved there, and results back to the device of the rows.

    Args:
        inner: The hypotheses.
        device: Device on which they are evaluated.
    """

    def __init__(self, inner: Predictors, device: torch.device | str) -> None:
        self.inner, self.device = inner.to(device), torch.device(device)
        self.weights, self.differentiable = inner.weights.cpu(), inner.differentiable

    def log_probs(self, x: Tensor) -> Tensor:
        """(S, N, C) log-probabilities for (N, *event) rows."""
        return self.inner.log_probs(x.to(self.device)).to(x.device)

    def probabilities(self, x: Tensor) -> Tensor:
        """(S, N, C) probabilities for (N, *event) rows."""
        return self.inner.probabilities(x.to(self.device)).to(x.device)

    def bind_rows(self, rows: Any) -> OnDevice:
        """A copy whose black boxes read these rows instead of rows decoded from codes."""
        bound = copy.copy(self)
        bound.inner = self.inner.bind_rows(rows)
        return bound

    @property
    def boxes(self) -> frozenset[Any]:
        """The black boxes among the hypotheses."""
        return self.inner.boxes

    def thresholds(self) -> dict[str, NDArray[np.float64]]:
        """Thresholds at which the trees among the hypotheses split numbers."""
        return self.inner.thresholds()

    def subset(self, chosen: Tensor) -> OnDevice:
        """The chosen hypotheses, in the order given."""
        return OnDevice(self.inner.subset(chosen), self.device)

    def to(self, device: torch.device | str) -> Predictors:
        """The inner hypotheses on the given device, without this wrapper."""
        return self.inner.to(device)
