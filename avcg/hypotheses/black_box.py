"""Models that can only be asked, as hypotheses: judges of answers, and teachers of students."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from avcg.errors import DataError, SettingError
from avcg.hypotheses.predictors import Predictors, normalised, of_chosen
from avcg.models.black_box import BlackBox


class BlackBoxPredictors(Predictors):
    """Black boxes asked together: codes are turned into the frame they read once for all.

    Args:
        members: Over one space and the same classes.
        weights: (S,); None: all alike.
    """

    differentiable = False

    def __init__(self, members: Sequence[BlackBox], weights: Tensor | None = None) -> None:
        if not members:
            raise SettingError("There must be at least one model to ask. Got none.")
        self.members = tuple(members)
        self.weights = normalised(weights, len(members))
        self._rows: Any = None

    def log_probs(self, x: Tensor) -> Tensor:
        """(N, D) to (S, N, C), without gradients."""
        return self.probabilities(x).clamp(min=1e-30).log().to(x.dtype)

    def probabilities(self, x: Tensor) -> Tensor:
        """(N, D) to (S, N, C) as the models say them, to the last digit: what is at a threshold stays there."""
        first = self.members[0]
        rows = first.space_.decode(x.detach()) if self._rows is None else self._rows
        frame = first.frame_of(rows)
        if len(frame) != len(x):
            raise DataError(f"These models were to be asked about {len(frame)} rows. Got codes of {len(x)}.")
        found = [one.ask(frame if one.reads_like(first) else one.frame_of(rows)) for one in self.members]
        return torch.from_numpy(np.stack(found)).to(x.device)

    def bind_rows(self, rows: Any) -> BlackBoxPredictors:
        """The same, asked about these very rows and not about what their codes say."""
        bound = copy.copy(self)
        bound._rows = rows
        return bound

    @property
    def boxes(self) -> frozenset[BlackBox]:
        """The models themselves."""
        return frozenset(self.members)

    def subset(self, chosen: Tensor) -> BlackBoxPredictors:
        """Some of the hypotheses."""
        some = copy.copy(self)
        some.members = tuple(self.members[i] for i in chosen.tolist())
        some.weights = of_chosen(self.weights, chosen)
        return some
