"""Numbers as a tree sees them: between which of the values that occur does one lie?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn


class PiecewiseLinearEncoding(nn.Module):
    """Codes, and beside them for each number a step from each of its usual values to the next, rising from 0 to 1.

    A network that stands in for trees need not learn first where their thresholds can lie.

    Args:
        x: (N, D) rows to read usual values off.
        columns: The codes that are numbers.
        n_steps: Of each number, at most twice as many: by rows, and by distinct values, for tails.

    Attributes:
        n_outputs: D and one for each step.

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
            knots = torch.cat([torch.quantile(some, shares) for some in (values, values.unique())]).unique()
            at.append(torch.full((len(knots) - 1,), column))
            start.append(knots[:-1])
            width.append(knots.diff())
        self.register_buffer("at", torch.cat([*at, torch.zeros(0, dtype=torch.long)]))
        self.register_buffer("start", torch.cat([*start, torch.zeros(0)]))
        self.register_buffer("width", torch.cat([*width, torch.zeros(0)]))
        self.n_outputs = x.shape[1] + len(self.at)

    @classmethod
    def empty(cls, n_inputs: int, n_steps: int) -> Self:
        """With room for so many steps in all, which are to be filled in.

        Args:
            n_inputs: D.
            n_steps: Of all numbers together.
        """
        made = cls(torch.zeros(1, n_inputs), [])
        for name, value in (("at", torch.long), ("start", torch.float32), ("width", torch.float32)):
            made.register_buffer(name, torch.ones(n_steps, dtype=value))
        made.n_outputs = n_inputs + n_steps
        return made

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) to (..., n_outputs)."""
        steps = ((x[..., self.at] - self.start.to(x.dtype)) / self.width.to(x.dtype)).clamp(0.0, 1.0)
        return torch.cat([x, steps], dim=-1)
