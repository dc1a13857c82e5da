"""Lagrange multipliers that turn the hinge of the objective from a weighted term into a constraint.

With one fixed weight, the hinge loses against distance and plausibility wherever the models' log-odds are shallow: the
margin can be asked for, but not bought. So each level of margin has a multiplier of its own, which is raised while
answers fall short of their margin and lowered while they do not, as in Rezende and Viola, "Taming VAEs" (2018).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from avcg.errors import check_int, check_setting


@dataclass(frozen=True)
class ConstraintConfig:
    """How the multipliers of the hinge are raised and lowered during training.

    Attributes:
        levels: Number of levels of margin, each with a multiplier of its own.
        violation: Mean shortfall of the log-odds that is tolerated at each level.
        rate: Change of a multiplier's logarithm in one step, for each log-odd of shortfall beyond ``violation``.
        lowest: Smallest multiplier.
        highest: Largest multiplier.
    """

    levels: int = 10
    violation: float = 0.2
    rate: float = 0.02
    lowest: float = 0.5
    highest: float = 15.0

    def __post_init__(self) -> None:
        check_int(self.levels, "'levels' of ConstraintConfig", 1)
        for name in ("violation", "rate"):
            check_setting(self, name, getattr(self, name) >= 0, "a number >= 0")
        check_setting(self, "lowest", 0 < self.lowest <= self.highest, "in (0, highest]")


class Multipliers:
    """One multiplier for each level of margin, between the lowest and the highest margin of a recipe.

    Args:
        config: How they change.
        margins: Lowest and highest margin, in log-odds.
        start: Value of every multiplier before the first step.
        device: Device of the values.
    """

    def __init__(
        self, config: ConstraintConfig, margins: tuple[float, float], start: float, device: torch.device | None = None
    ) -> None:
        self.config, self.margins = config, margins
        self.values = torch.full((config.levels,), float(start), device=device).clamp(config.lowest, config.highest)

    def level(self, margin: Tensor) -> Tensor:
        """(B,) the level of each margin."""
        low, high = self.margins
        share = (margin - low) / max(high - low, 1e-12)
        return (share * self.config.levels).long().clamp(0, self.config.levels - 1)

    def update(self, level: Tensor, shortfall: Tensor) -> None:
        """One step of dual ascent.

        Args:
            level: (B,) the level of each row's margin.
            shortfall: (B,) log-odds by which each row's answer falls short of its margin.
        """
        counts = torch.bincount(level, minlength=self.config.levels)
        sums = torch.zeros_like(self.values).index_add_(0, level, shortfall.to(self.values.dtype))
        excess = torch.where(counts > 0, sums / counts.clamp(min=1) - self.config.violation, 0.0)
        grown = self.values * torch.exp(self.config.rate * excess)
        self.values = grown.clamp(self.config.lowest, self.config.highest)

    def to_frame(self) -> pd.DataFrame:
        """The multiplier of each level, with the lowest and the highest margin of the level."""
        edges = np.linspace(*self.margins, self.config.levels + 1)
        return pd.DataFrame({"lowest": edges[:-1], "highest": edges[1:], "multiplier": self.values.cpu().numpy()})
