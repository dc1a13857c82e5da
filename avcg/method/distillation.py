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
from avcg.method.config import DistillationConfig
from avcg.method.objective import target_log_probs
from avcg.method.query import Query
from avcg.method.refine import Deadline, prune
from avcg.method.risk import lower_log_odds
from avcg.models.networks import mlp
from avcg.models.piecewise_linear import PiecewiseLinearEncoding
from avcg.models.stacked_fit import fit_stacked
from avcg.models.training import Training
from avcg.space.base import Space
from avcg.space.encoding import Codes


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
        rng: Random numbers for everything.
        config: How they are trained.

    Attributes:
        students: Of the models in force, then of the teachers.
        fidelity: One entry for each time they were looked at.
    """

    def __init__(
        self,
        deployed: Predictors,
        train: Predictors,
        x: Tensor,
        space: Space,
        rng: torch.Generator,
        config: DistillationConfig,
    ) -> None:
        self._config = config
        if x.dim() != 2:
            raise SettingError("Only models of tables have students. Models of images need gradients: give networks.")
        self._models, self._n_deployed, self._space = Joined([deployed, train]), len(deployed), space
        self.fidelity: list[Fidelity] = []
        order = torch.randperm(len(x), generator=rng)[: config.max_rows]
        share = len(order) // 10
        held, kept = order[: max(1, share)], order[share:]  # of very few rows, one is both
        own = x[kept]
        # Rows with features from two people: answers lie where no one has been yet.
        pairs = torch.randint(len(own), (2, max(len(own), config.crossed_rows)), generator=rng)
        self._x = torch.cat([own, space.cross(own[pairs[0]], own[pairs[1]], rng)])
        self._said = self._ask(self._x)
        self._n_first = len(self._x)
        numbers = torch.nonzero(~space.is_logit.expand(x.shape[1])).flatten()
        ramps = PiecewiseLinearEncoding(own, numbers.tolist())
        layers = mlp(ramps.n_outputs, self._said.shape[-1], config.hidden, dropout=0.0, rng=rng)
        network = nn.Sequential(ramps, layers)
        self.students = self._taught(Stacked(network, {}), torch.arange(len(self._x)), rng, start=True)
        self._look("training", x[held], self._ask(x[held]))

    @classmethod
    def of(cls, students: Stacked, fidelity: Sequence[Fidelity], config: DistillationConfig) -> Distillation:
        """Students as they were taught elsewhere; they can be asked, and not be corrected.

        Args:
            students: Of the models in force, then of the teachers.
            fidelity: How well they stood in.
            config: How they were trained.
        """
        made = cls.__new__(cls)
        made.students, made.fidelity, made._config = students, list(fidelity), config
        return made

    def teach(self) -> tuple[FiniteSet, Predictors]:
        """What a generator is trained against in place of the models: teachers, and the model in force."""
        first = torch.arange(self._n_deployed)
        rest = torch.arange(self._n_deployed, len(self.students))
        return FiniteSet(self.students.subset(rest)), self.students.subset(first)

    def correct(self, answers: Tensor, rng: torch.Generator) -> None:
        """Ask the models about a generator's answers, and teach the students what they say.

        Args:
            answers: (N, D) feasible rows.
            rng: Random numbers for the order of lessons.
        """
        said = self._ask(answers)
        self._look("answers", answers, said)
        self._x, self._said = torch.cat([self._x, answers]), torch.cat([self._said, said], dim=1)
        new = torch.arange(self._n_first, len(self._x))
        old = torch.randperm(self._n_first, generator=rng)[: max(len(new), self._config.max_rows // 4)]
        self.students = self._taught(self.students, torch.cat([old, new]), rng)

    def leaner(self, query: Query, answers: Codes, margins: Codes, *, rounds: int) -> Codes:
        """The answers, and after them without what the students say they do not need: no model is asked for that.

        Args:
            query: What was asked.
            answers: (B, D) feasible answers.
            margins: (R, B) log-odds that the students' mean less some standard deviations must keep.
            rounds: Rounds of taking changes back, at most.

        Returns:
            (1 + R, B, D).
        """
        students, spread, space = self.students, self._config.spread, query.space.tensors
        x, target, given = (torch.from_numpy(part) for part in (query.x, query.target, answers))

        def keeps(margin: Tensor, candidates: Tensor, rows: Tensor) -> Tensor:
            log_p = target_log_probs(students, candidates[None], target[rows])
            return lower_log_odds(log_p, students.weights, spread)[0] >= margin[rows]

        shorter = [
            prune(space, x, given, partial(keeps, margin), Deadline(), rounds) for margin in torch.from_numpy(margins)
        ]
        return torch.stack([given, *shorter]).numpy()

    def report(self) -> pd.DataFrame:
        """How well the students stood in, each time before they were corrected."""
        return pd.DataFrame([vars(one) for one in self.fidelity])

    def _ask(self, x: Tensor) -> Tensor:
        """(S, N, C) what the models say, but never quite certain."""
        parts = [self._models.log_probs(part).exp() for part in x.split(self._config.max_rows)]
        found = torch.cat(parts, dim=1)
        least = self._config.label_smoothing
        return found * (1.0 - least * found.shape[-1]) + least

    def _taught(self, student: Stacked, lessons: Tensor, rng: torch.Generator, *, start: bool = False) -> Stacked:
        """The students after training on some rows, from random weights where they ``start``."""
        count, config = len(self._models), self._config
        epochs = config.first_epochs if start else config.later_epochs
        rate = config.first_learning_rate if start else config.later_learning_rate
        training = Training(epochs, config.batch_size, rate, patience=None, schedule="one_cycle")
        state, _ = fit_stacked(
            student.network,
            self._x,
            self._said,
            lessons.expand(count, -1),
            training,
            rng=rng,
            start=None if start else student.overrides,
            loss=_cross_entropy,
            own_targets=True,
            label=f"Training {count} students",
        )
        return Stacked(student.network, state, self._models.weights)

    @torch.no_grad()
    def _look(self, rows: str, x: Tensor, said: Tensor) -> None:
        guessed = self.students.log_probs(x).exp()
        same = (guessed.argmax(dim=-1) == said.argmax(dim=-1)).float().mean()
        self.fidelity.append(Fidelity(rows, float(same), float((guessed - said).abs().mean()), len(x)))


def _cross_entropy(logits: Tensor, said: Tensor) -> Tensor:
    """(S, N, C) twice to (S,)."""
    return -(said * torch.log_softmax(logits, dim=-1)).sum(dim=-1).mean(dim=1)
