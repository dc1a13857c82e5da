"""Families of change: by which rows and labels a retrain differs from the model that is deployed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from avcg.errors import DataError, SettingError, enumerate_some
from avcg.space.frames import open_frame

How = Literal["seed", "bootstrap", "subsample", "added", "label_noise", "rolling", "expanding"]

IN_TIME = ("rolling", "expanding")
# Share of the rows, or of their labels, that a family leaves as they are.
_SHARES: dict[How, float] = {"subsample": 0.8, "added": 0.8, "label_noise": 0.95, "rolling": 0.5, "expanding": 0.5}


@dataclass(frozen=True, eq=False)
class Families:
    """The families that retrains are drawn from.

    Attributes:
        chances: Chance of each family.
        share: Share of the rows or labels that stay as they are, in all families that have one; None: their defaults.
        time: (N,) rank of the moment of each row; None: no family is about time.
        n_rows: Number of training rows.
        n_classes: Number of classes.
    """

    chances: Mapping[How, float]
    share: float | None
    time: NDArray[np.int64] | None
    n_rows: int
    n_classes: int

    @classmethod
    def of(cls, resampling: Any, share: float | None, time: Any, X: Any, n_rows: int, n_classes: int) -> Self:
        """Read the settings of `avcg.retrains`.

        Args:
            resampling: A family, or families with their shares.
            share: Share of the rows or labels that stay as they are; None: the defaults.
            time: The moment of each row, as a column of X or (N,) values; None: there is none.
            X: Training rows.
            n_rows: Number of training rows.
            n_classes: Number of classes.

        Raises:
            SettingError: If a setting is invalid, or window and time are not given together.
            DataError: If the moments do not fit the rows.
        """
        chances = dict(resampling) if isinstance(resampling, Mapping) else {resampling: 1.0}
        for name, chance in chances.items():
            if name not in get_args(How):
                raise SettingError(
                    f"The 'resampling' of retrains must be one of {enumerate_some(get_args(How), len(get_args(How)))}"
                    f" or shares of these. Got {name!r} instead."
                )
            if isinstance(chance, bool) or not isinstance(chance, (int, float)) or not 0 < chance < np.inf:
                raise SettingError(f"The share of the family {name!r} must be a number > 0. Got {chance!r} instead.")
        if not chances:
            raise SettingError("The 'resampling' of retrains must name at least one family. Got none.")
        if share is not None and not 0 < share < 1:
            raise SettingError(f"The 'share' of retrains must be in (0, 1). Got {share!r} instead.")
        windows = [name for name in chances if name in IN_TIME]
        if windows and time is None:
            raise SettingError(f"The family {windows[0]!r} needs 'time': a column, or the moment of each row.")
        if time is not None and not windows:
            raise SettingError("A 'time' is for resampling='rolling' or 'expanding'. Leave it out, or ask for one.")
        total = sum(chances.values())
        ranks = None if time is None else moments_of(time, X, n_rows)[1]
        return cls({name: chance / total for name, chance in chances.items()}, share, ranks, n_rows, n_classes)

    @property
    def labels_change(self) -> bool:
        """Whether a family gives rows another label."""
        return "label_noise" in self.chances

    def draw(self, count: int, rng: torch.Generator) -> list[How]:
        """The family of each of several retrains, drawn independently.

        Args:
            count: Number of retrains.
            rng: Random numbers.
        """
        names = list(self.chances)
        if len(names) == 1:
            return names * count
        drawn = torch.multinomial(torch.tensor(list(self.chances.values())), count, replacement=True, generator=rng)
        return [names[i] for i in drawn.tolist()]

    def available(self, family: How, rng: torch.Generator) -> Tensor:
        """Positions of the rows that one retrain may see: those of its window in time, or all.

        Args:
            family: Family of the retrain.
            rng: Random numbers.
        """
        if self.time is None or family not in IN_TIME:
            return torch.arange(self.n_rows)
        order = torch.randperm(self.n_rows, generator=rng)  # rows of one moment come in no order
        order = order[torch.from_numpy(self.time)[order].sort(stable=True).indices]
        least = self._kept(family, self.n_rows)
        drawn = int(torch.randint(self.n_rows - least + 1, (), generator=rng))
        return order[: least + drawn] if family == "expanding" else order[drawn : drawn + least]

    def rows(self, family: How, available: Tensor, rng: torch.Generator) -> Tensor:
        """Positions of the rows that one retrain is trained on, in random order.

        Position p is row p % N, with the label moved on by p // N classes; see `moved_labels`.

        Args:
            family: Family of the retrain.
            available: (m,) positions of the rows that it may see.
            rng: Random numbers.
        """
        count = len(available)
        if family == "bootstrap":
            return available[torch.randint(count, (count,), generator=rng)]
        order = available[torch.randperm(count, generator=rng)]
        kept = self._kept(family, count)
        if family == "subsample":
            return order[:kept]
        if family == "added":
            return torch.cat([order, available[torch.randint(count, (count - kept,), generator=rng)]])
        if family == "label_noise":
            moved = torch.randint(1, self.n_classes, (count - kept,), generator=rng)
            return torch.cat([order[:kept], order[kept:] + self.n_rows * moved])
        return order

    def moved_labels(self, positions: Tensor) -> Tensor:
        """(K N,) class positions: those of N rows, then the same moved on by one class, by two, ...

        Args:
            positions: (N,) class positions of the rows.
        """
        moves = torch.arange(self.n_classes, device=positions.device)
        return ((positions + moves[:, None]) % self.n_classes).flatten()

    def _kept(self, family: How, count: int) -> int:
        share = self.share if self.share is not None else _SHARES.get(family, 1.0)
        return max(1, round(share * count))


def moments_of(time: Any, X: Any, n_rows: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The different moments of rows in their order, and the (N,) position among them of each row's moment.

    Args:
        time: The name of a column of X, or (N,) values that can be sorted.
        X: Rows.
        n_rows: Number of rows, N.

    Raises:
        DataError: If the moments do not fit the rows.
    """
    if isinstance(time, str):
        frame = open_frame(X)
        if time not in frame.columns:
            raise DataError(f"The 'time' names column {time!r}, which the rows do not have. Got {list(frame.columns)}.")
        time = frame[time].to_numpy()
    moments = pd.Series(np.asarray(time))
    if moments.shape != (n_rows,):
        raise DataError(f"There must be one moment per row, {n_rows}. Got 'time' with {len(moments)}.")
    if moments.isna().any():
        raise DataError(f"Every row needs a moment. {int(moments.isna().sum())} values of 'time' are missing.")
    different, positions = np.unique(moments.to_numpy(), return_inverse=True)
    return different, positions.astype(np.int64)
