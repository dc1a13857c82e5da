"""Black boxes as hypotheses: models whose probabilities can be computed, but not their gradients.

Codes and exact values are judged by the compiled forms of tree ensembles where there are any, which were compared with
the models. Bound frames are judged by the models themselves.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from avcg.errors import DataError, SettingError
from avcg.hypotheses.predictors import Predictors, normalised, of_chosen
from avcg.models.black_box import BlackBox
from avcg.models.judging import Judges
from avcg.space.encoding import Values


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
        self._judges: Judges | None = None

    def log_probs(self, x: Tensor) -> Tensor:
        """(S, N, C) log-probabilities for (N, D) codes, without gradients."""
        return self.probabilities(x).clamp(min=1e-30).log().to(x.dtype)

    def probabilities(self, x: Tensor) -> Tensor:
        """(S, N, C) probabilities for (N, D) codes; for bound frames exactly as the models return them.

        A probability at the decision threshold therefore stays there.
        """
        first, values = self.members[0], self._rows
        if values is None:
            encoding = first.space_.encoding
            values = encoding.decode(encoding.checked(x.detach().cpu().numpy().astype(np.float32, copy=False)))
        if isinstance(values, Values):
            return torch.from_numpy(self.judges.probabilities(values)).to(x.device)
        frame = first.frame_of(self._rows)
        if len(frame) != len(x):
            raise DataError(f"The codes must belong to the {len(frame)} bound rows. Got codes of {len(x)} rows.")
        probabilities = [box.ask(frame if box.reads_like(first) else box.frame_of(self._rows)) for box in self.members]
        return torch.from_numpy(np.stack(probabilities)).to(x.device)

    @property
    def judges(self) -> Judges:
        """The models as they are asked about codes, made when first needed."""
        if self._judges is None:
            self._judges = Judges(self.members, self.members[0].space_.encoding)
        return self._judges

    def thresholds(self) -> dict[str, NDArray[np.float64]]:
        """The thresholds of all trees that are compiled."""
        return self.judges.thresholds()

    def bind_rows(self, rows: Any) -> BlackBoxPredictors:
        """A copy that evaluates these rows instead of rows decoded from codes; see `Predictors.bind_rows`."""
        if isinstance(rows, Values):
            _ = self.judges  # compiled once, and not by every copy
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
        part.weights, part._judges = of_chosen(self.weights, chosen), None
        return part
