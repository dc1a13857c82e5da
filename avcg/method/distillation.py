"""Students of models that can only be asked: networks that say nearly the same, and have gradients.

A generator learns from the students. What it answers is judged by the models themselves, and what they say of its
answers is taught to the students again: they need to be right where answers lie, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import pandas as pd
import torch
from torch import Tensor, nn

from avcg.errors import SettingError
from avcg.hypotheses.finite import FiniteSet
from avcg.hypotheses.predictors import Joined, Predictors, Stacked
from avcg.method.objective import target_log_probs
from avcg.method.query import Query
from avcg.method.refine import Deadline, prune
from avcg.method.risk import lower_log_odds
from avcg.models.networks import mlp
from avcg.models.piecewise_linear import PiecewiseLinearEncoding
from avcg.models.stacked_fit import fit_stacked
from avcg.models.training import Training
from avcg.space.base import Space

_HIDDEN = (64, 64)
_FIRST = Training(epochs=25, batch_size=512, learning_rate=4e-3, patience=None, schedule="one_cycle")
_LATER = Training(epochs=10, batch_size=512, learning_rate=2e-3, patience=None, schedule="one_cycle")
_MOST_ROWS = 20_000  # of the training rows, and of what has been learnt since
_FEWEST_CROSSED = 4000
_SPREAD = 2.0  # deviations, as in the hinge the generator is trained with
_CERTAIN = 1e-3  # no student is taught to be surer than this: a forest's 0 has no log-odds


@dataclass(frozen=True)
class Fidelity:
    """How well students stood in for their models on rows that they had not been taught.

    Attributes:
        rows: What they were asked: ``"training"`` rows set aside, or the generator's ``"answers"``.
        agreement: Share of (model, row) pairs with the same decision.
        difference: Mean absolute difference of probabilities.
        n_rows: How many rows.
    """

    rows: str
    agreement: float
    difference: float
    n_rows: int


class Distillation:
    """One student for each model, all trained as one stacked network.

    Args:
        deployed: The model in force, or several whose mean decides.
        train: The models to stand in for beside it.
        x: (N, D) training rows.
        space: Theirs.
        generator: Of everything.

    Attributes:
        students: Of the models in force, then of the teachers.
        fidelity: One entry for each time they were looked at.
    """

    def __init__(
        self, deployed: Predictors, train: Predictors, x: Tensor, space: Space, generator: torch.Generator
    ) -> None:
        if x.dim() != 2:
            raise SettingError("Only models of tables have students. Models of images need gradients: give networks.")
        self._models, self._n_deployed, self._space = Joined([deployed, train]), len(deployed), space
        self.fidelity: list[Fidelity] = []
        order = torch.randperm(len(x), generator=generator)[:_MOST_ROWS]
        share = len(order) // 10
        held, kept = order[: max(1, share)], order[share:]  # of very few rows, one is both
        own = x[kept]
        # Rows with features from two people: answers lie where no one has been yet.
        pairs = torch.randint(len(own), (2, max(len(own), _FEWEST_CROSSED)), generator=generator)
        self._x = torch.cat([own, space.cross(own[pairs[0]], own[pairs[1]], generator)])
        self._said = self._ask(self._x)
        self._n_first = len(self._x)
        numbers = torch.nonzero(~space.is_logit.expand(x.shape[1])).flatten()
        ramps = PiecewiseLinearEncoding(own, numbers.tolist())
        layers = mlp(ramps.n_outputs, self._said.shape[-1], _HIDDEN, dropout=0.0, generator=generator)
        network = nn.Sequential(ramps, layers)
        self.students = self._taught(Stacked(network, {}), torch.arange(len(self._x)), _FIRST, generator, fresh=True)
        self._look("training", x[held], self._ask(x[held]))

    @classmethod
    def of(cls, students: Stacked, fidelity: Sequence[Fidelity]) -> Distillation:
        """Students as they were taught elsewhere; they can be asked, and not be corrected.

        Args:
            students: Of the models in force, then of the teachers.
            fidelity: How well they stood in.
        """
        made = cls.__new__(cls)
        made.students, made.fidelity = students, list(fidelity)
        return made

    def teach(self) -> tuple[FiniteSet, Predictors]:
        """What a generator is trained against in place of the models: teachers, and the model in force."""
        first = torch.arange(self._n_deployed)
        rest = torch.arange(self._n_deployed, len(self.students))
        return FiniteSet(self.students.subset(rest)), self.students.subset(first)

    def correct(self, answers: Tensor, generator: torch.Generator) -> None:
        """Ask the models about a generator's answers, and teach the students what they say.

        Args:
            answers: (N, D) feasible rows.
            generator: Of the order of lessons.
        """
        said = self._ask(answers)
        self._look("answers", answers, said)
        self._x, self._said = torch.cat([self._x, answers]), torch.cat([self._said, said], dim=1)
        new = torch.arange(self._n_first, len(self._x))
        old = torch.randperm(self._n_first, generator=generator)[: max(len(new), _MOST_ROWS // 4)]
        self.students = self._taught(self.students, torch.cat([old, new]), _LATER, generator)

    def leaner(self, query: Query, answers: Tensor, margins: Sequence[Tensor]) -> Tensor:
        """The answers, and after them without what the students say they do not need: no model is asked for that.

        Args:
            query: What was asked.
            answers: (B, D) feasible answers.
            margins: (B,) each, log-odds that the students' mean less two deviations must keep.

        Returns:
            (1 + margins, B, D).
        """
        students = self.students

        def keeps(margin: Tensor, candidates: Tensor, rows: Tensor) -> Tensor:
            log_p = target_log_probs(students, candidates[None], query.target[rows])
            return lower_log_odds(log_p, students.weights, _SPREAD)[0] >= margin[rows]

        shorter = [prune(query.space, query.x, answers, partial(keeps, one), Deadline()) for one in margins]
        return torch.stack([answers, *shorter])

    def report(self) -> pd.DataFrame:
        """How well the students stood in, each time before they were corrected."""
        return pd.DataFrame([vars(one) for one in self.fidelity])

    def _ask(self, x: Tensor) -> Tensor:
        """(S, N, C) what the models say, but never quite certain."""
        parts = [self._models.log_probs(part).exp() for part in x.split(_MOST_ROWS)]
        found = torch.cat(parts, dim=1)
        return found * (1.0 - _CERTAIN * found.shape[-1]) + _CERTAIN

    def _taught(
        self, start: Stacked, lessons: Tensor, training: Training, generator: torch.Generator, *, fresh: bool = False
    ) -> Stacked:
        count = len(self._models)
        state, _ = fit_stacked(
            start.network,
            self._x,
            self._said,
            lessons.expand(count, -1),
            training,
            generator=generator,
            start=None if fresh else start.overrides,
            loss=_cross_entropy,
            own_targets=True,
            label=f"Training {count} students",
        )
        return Stacked(start.network, state, self._models.weights)

    @torch.no_grad()
    def _look(self, rows: str, x: Tensor, said: Tensor) -> None:
        guessed = self.students.log_probs(x).exp()
        same = (guessed.argmax(dim=-1) == said.argmax(dim=-1)).float().mean()
        self.fidelity.append(Fidelity(rows, float(same), float((guessed - said).abs().mean()), len(x)))


def _cross_entropy(logits: Tensor, said: Tensor) -> Tensor:
    """(S, N, C) twice to (S,)."""
    return -(said * torch.log_softmax(logits, dim=-1)).sum(dim=-1).mean(dim=1)
