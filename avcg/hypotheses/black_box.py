"""Black boxes as hypotheses: models whose probabilities can be computed, but not their gradients."""

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
    """Hypotheses that are black boxes. Codes are decoded into a frame once for all of them.

    Args:
        members: Black boxes with the same space and the same classes.
        weights: (S,) weights of the members; None: equal weights.
    """

    differentiable = False

    def __init__(self, members: Sequence[BlackBox], weights: Tensor | None = None) -> None:
        if not members:
            raise SettingError("BlackBoxPredictors needs at least one model. Got none.")
        self.members = tuple(members)
        self.weights = normalised(weights, len(members))
        self._rows: Any = None

    def log_probs(self, x: Tensor) -> Tensor:
        """(S, N, C) log-probabilities for (N, D) codes, without gradients."""
        return self.probabilities(x).clamp(min=1e-30).log().to(x.dtype)

    def probabilities(self, x: Tensor) -> Tensor:
        """(S, N, C) probabilities for (N, D) codes, exactly as the models return them.

        A probability at the decision threshold therefore stays there.
        """
        first = self.members[0]
        rows = first.space_.decode(x.detach()) if self._rows is None else self._rows
        frame = first.frame_of(rows)
        if len(frame) != len(x):
            raise DataError(f"The codes must belong to the {len(frame)} bound rows. Got codes of {len(x)} rows.")
        probabilities = [box.ask(frame if box.reads_like(first) else box.frame_of(rows)) for box in self.members]
        return torch.from_numpy(np.stack(probabilities)).to(x.device)

    def bind_rows(self, rows: Any) -> BlackBoxPredictors:
        """A copy that evaluates these rows themselves instead of rows decoded from codes."""
        bound = copy.copy(self)
        bound._rows = rows
        return bound

    @property
    def boxes(self) -> frozenset[BlackBox]:
        """The black boxes among the hypotheses."""
        return frozenset(self.members)

    def subset(self, chosen: Tensor) -> BlackBoxPredictors:
        """The chosen hypotheses, in the order given."""
        part = copy.copy(self)
        part.members = tuple(self.members[i] for i in chosen.tolist())
        part.weights = of_chosen(self.weights, chosen)
        return part
