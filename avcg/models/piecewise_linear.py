"""Piecewise linear encoding of numbers, for networks that imitate decision trees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn


class PiecewiseLinearEncoding(nn.Module):
    """A layer that appends piecewise linear features to codes: ramps from 0 to 1 between quantiles of each number.

    A student network of decision trees then need not learn where their thresholds can lie.

    Args:
        x: (N, D) encoded rows whose quantiles are used.
        columns: Positions of the codes that are numbers.
        n_steps: Number of ramps of each number over quantiles of the rows, and again over quantiles of the distinct
            values, which cover the tails. Equal quantiles are merged.

    Attributes:
        n_outputs: Number of outputs: D plus the number of ramps.

    >>> encoding = PiecewiseLinearEncoding(torch.tensor([[0.0], [1.0], [2.0]]), [0], n_steps=2)
    >>> encoding(torch.tensor([[1.5]])).tolist()
    [[1.5, 1.0, 0.5]]
    """

    at: Tensor
    start: Tensor
    width: Tensor

    def __init__(self, x: Tensor, columns: Sequence[int], n_steps: int = 16) -> None:
        super().__init__()
        shares = torch.linspace(0.0, 1.0, n_steps + 1)
        at, start, width = [], [], []
        for column in columns:
            values = x[:, column].float()
            knots = torch.cat([torch.quantile(sample, shares) for sample in (values, values.unique())]).unique()
            at.append(torch.full((len(knots) - 1,), column))
            start.append(knots[:-1])
            width.append(knots.diff())
        self.register_buffer("at", torch.cat([*at, torch.zeros(0, dtype=torch.long)]))
        self.register_buffer("start", torch.cat([*start, torch.zeros(0)]))
        self.register_buffer("width", torch.cat([*width, torch.zeros(0)]))
        self.n_outputs = x.shape[1] + len(self.at)

    @classmethod
    def empty(cls, n_inputs: int, n_steps: int) -> Self:
        """A layer with placeholder ramps, to load stored ones into.

        Args:
            n_inputs: Number of codes D.
            n_steps: Number of ramps of all numbers together.
        """
        layer = cls(torch.zeros(1, n_inputs), [])
        for name, value in (("at", torch.long), ("start", torch.float32), ("width", torch.float32)):
            layer.register_buffer(name, torch.ones(n_steps, dtype=value))
        layer.n_outputs = n_inputs + n_steps
        return layer

    def forward(self, x: Tensor) -> Tensor:
        """(..., n_outputs) features for (..., D) codes."""
        steps = ((x[..., self.at] - self.start.to(x.dtype)) / self.width.to(x.dtype)).clamp(0.0, 1.0)
        return torch.cat([x, steps], dim=-1)
