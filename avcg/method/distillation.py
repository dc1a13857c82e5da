"""Distillation of black-box models into students: networks that predict nearly the same and have gradients.

A generator is trained against the students. The models themselves judge its answers, and the students are then trained
on these judgements too, since students only need to be accurate where answers lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor, nn

from avcg.errors import SettingError
from avcg.hypotheses.finite import FiniteSet
from avcg.hypotheses.predictors import Joined, Predictors, Stacked
from avcg.method.config import DistillationConfig
from avcg.models.networks import mlp
from avcg.models.piecewise_linear import PiecewiseLinearEncoding
from avcg.models.stacked_fit import fit_stacked
from avcg.models.training import Training
from avcg.space.base import Space


@dataclass(frozen=True)
class Fidelity:
    """How closely students follow their models, on rows that they were not trained on.

    Attributes:
        rows: Kind of rows: held-out ``"training"`` rows, or the generator's ``"answers"``.
        agreement: Share of (model, row) pairs for which the most probable class is the same.
        difference: Mean absolute difference of probabilities.
        n_rows: Number of rows.
    """

    rows: str
    agreement: float
    difference: float
    n_rows: int


class Distillation:
    """One student for each model, all trained as one stacked network.

    Args:
        deployed: The deployed model, or several whose mean probability decides.
        train: The hypotheses trained against.
        x: (N, D) encoded training rows.
        space: The space of these rows.
        rng: Random numbers.
        config: How students are trained.

    Attributes:
        students: The students of the deployed models, followed by those of the hypotheses.
        fidelity: One measurement after the first training, and one before each later training, on the answers that it
            adds.

    Raises:
        SettingError: If the rows are images.
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
        if x.dim() != 2:
            raise SettingError(
                f"Students can only be trained for models of tables. Got rows of shape {tuple(x.shape[1:])}. For"
                " images, give networks, which have gradients."
            )
        self._config, self._models, self._n_deployed = config, Joined([deployed, train]), len(deployed)
        self.fidelity: list[Fidelity] = []
        order = torch.randperm(len(x), generator=rng)[: config.max_rows]
        n_held = int(len(order) * config.held_share + 1e-9)
        held_out, trained = order[: max(1, n_held)], order[n_held:]  # if there are very few rows, one is in both
        rows = x[trained]
        # Answers lie where no training row does, so students also learn from crossings of two rows.
        pairs = torch.randint(len(rows), (2, max(len(rows), config.crossed_rows)), generator=rng)
        self._x = torch.cat([rows, space.cross(rows[pairs[0]], rows[pairs[1]], rng)])
        self._labels = self._ask(self._x)
        self._n_first = len(self._x)
        numbers = torch.nonzero(~space.is_logit.expand(x.shape[1])).flatten()
        encoding = PiecewiseLinearEncoding(rows, numbers.tolist(), config.encoding_steps)
        layers = mlp(encoding.n_outputs, self._labels.shape[-1], config.hidden, dropout=0.0, rng=rng)
        network = nn.Sequential(encoding, layers)
        self.students = self._trained(Stacked(network, {}), torch.arange(len(self._x)), rng, start=True)
        self._measure("training", x[held_out], self._ask(x[held_out]))

    @classmethod
    def of(cls, students: Stacked, fidelity: Sequence[Fidelity], config: DistillationConfig) -> Distillation:
        """A distillation from stored students, which can be evaluated, but no longer corrected.

        Args:
            students: The students of the deployed models, followed by those of the hypotheses.
            fidelity: How closely they follow their models.
            config: How they were trained.
        """
        stored = cls.__new__(cls)
        stored.students, stored.fidelity, stored._config = students, list(fidelity), config
        return stored

    def stand_ins(self) -> tuple[FiniteSet, Predictors]:
        """The students of the hypotheses, and those of the deployed models, to train a generator against."""
        deployed = torch.arange(self._n_deployed)
        hypotheses = torch.arange(self._n_deployed, len(self.students))
        return FiniteSet(self.students.subset(hypotheses)), self.students.subset(deployed)

    def correct(self, answers: Tensor, rng: torch.Generator) -> None:
        """Train the students on the models' probabilities for a generator's answers.

        Args:
            answers: (N, D) feasible encoded rows.
            rng: Random numbers.
        """
        labels = self._ask(answers)
        self._measure("answers", answers, labels)
        self._x, self._labels = torch.cat([self._x, answers]), torch.cat([self._labels, labels], dim=1)
        new = torch.arange(self._n_first, len(self._x))
        n_replayed = max(len(new), int(self._config.replay_share * self._config.max_rows))
        replayed = torch.randperm(self._n_first, generator=rng)[:n_replayed]
        self.students = self._trained(self.students, torch.cat([replayed, new]), rng)

    def report(self) -> pd.DataFrame:
        """How closely the students follow their models, one line for each measurement."""
        return pd.DataFrame([vars(fidelity) for fidelity in self.fidelity])

    def _ask(self, x: Tensor) -> Tensor:
        """(S, N, C) probabilities of the models, smoothed so that none is 0."""
        parts = [self._models.log_probs(part).exp() for part in x.split(self._config.max_rows)]
        probabilities = torch.cat(parts, dim=1)
        lowest = self._config.label_smoothing
        return probabilities * (1.0 - lowest * probabilities.shape[-1]) + lowest

    def _trained(self, students: Stacked, rows: Tensor, rng: torch.Generator, *, start: bool = False) -> Stacked:
        """The students after training on the rows at some positions, from random weights if ``start``."""
        count, config = len(self._models), self._config
        epochs = config.first_epochs if start else config.later_epochs
        rate = config.first_learning_rate if start else config.later_learning_rate
        training = Training(epochs, config.batch_size, rate, patience=None, schedule="one_cycle")
        state, _ = fit_stacked(
            students.network,
            self._x,
            self._labels,
            rows.expand(count, -1),
            training,
            rng=rng,
            start=None if start else students.overrides,
            loss=_cross_entropy,
            own_targets=True,
            label=f"Training {count} students",
        )
        return Stacked(students.network, state, self._models.weights)

    @torch.no_grad()
    def _measure(self, rows: str, x: Tensor, labels: Tensor) -> None:
        """Append the fidelity of the students on (N, D) rows with (S, N, C) probabilities of the models."""
        probabilities = self.students.log_probs(x).exp()
        same = (probabilities.argmax(dim=-1) == labels.argmax(dim=-1)).float().mean()
        difference = (probabilities - labels).abs().mean()
        self.fidelity.append(Fidelity(rows, float(same), float(difference), len(x)))


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """(S,) the mean cross-entropy of (S, N, C) logits against (S, N, C) probabilities."""
    return -(labels * torch.log_softmax(logits, dim=-1)).sum(dim=-1).mean(dim=1)
