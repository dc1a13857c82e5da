"""What metrics look at: the judges, the encoded answers, and what several metrics compute from both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

from avcg.hypotheses.predictors import Predictors
from avcg.method.deployed import DeployedModel
from avcg.metrics.functional import column_changes, column_scales, input_stability, model_agreement, noisy_execution
from avcg.models.autoencoders import ClassAutoencoders
from avcg.space.base import Space
from avcg.space.encoding import Encoding
from avcg.space.tabular import table_of

T = TypeVar("T")
# From codes to the codes of the nearest proper row; see `avcg.metrics.numeric_view.NumericReading`.
Reread = Callable[[Tensor], Tensor]

_ROWS_FOR_SCALES = 10_000  # training rows from which deviations and ranges of columns are taken


@dataclass(frozen=True, eq=False)
class Context:
    """The judges of a dataset and a seed: the same for every method, and seen by none of them.

    A judge that is None is not there, and the metrics that need it are NaN.

    Attributes:
        space: How rows are read.
        deployed: The deployed model with its decision rule.
        x_train: (N, *event) training rows.
        y_train: (N,) class positions of the training rows.
        n_classes: C, the number of classes.
        bank: Hypotheses whose mean prediction decides on Val, and whose change under noise is NE.
        rashomon: For each ε, held-out hypotheses within it, none of which a method was trained on.
        surrogates: Models trained anew, for CMV.
        autoencoders: One autoencoder for each class, for IM1.
        execution_noise: (M, *event) errors in carrying an answer out.
        input_noise: (M, B, *event) errors in the rows explained.
        reread: How an answer becomes a proper row again; None: answers are proper rows.
    """

    space: Space
    deployed: DeployedModel
    x_train: Tensor
    y_train: Tensor
    n_classes: int
    bank: Predictors | None = None
    rashomon: Mapping[float, Predictors] | None = None
    surrogates: Predictors | None = None
    autoencoders: ClassAutoencoders | None = None
    execution_noise: Tensor | None = None
    input_noise: Tensor | None = None
    reread: Reread | None = None

    @cached_property
    def rows_by_class(self) -> tuple[Tensor, ...]:
        """The training rows of each class."""
        return tuple(self.x_train[self.y_train == label] for label in range(self.n_classes))

    @property
    def encoding(self) -> Encoding | None:
        """How columns are coded; None for images."""
        table = table_of(self.space)
        return None if table is None else table.encoding

    @cached_property
    def deviations(self) -> Tensor:
        """(columns,) the median absolute deviation of each column."""
        return column_scales(self.encoding, self.x_train[:_ROWS_FOR_SCALES], "mad")

    @cached_property
    def ranges(self) -> Tensor:
        """(columns,) the range of each column."""
        return column_scales(self.encoding, self.x_train[:_ROWS_FOR_SCALES], "range")


@dataclass(frozen=True, eq=False)
class EncodedAnswers:
    """The encoded answers of one method, and what was observed while it answered.

    What is None was not observed, and the metrics that need it are NaN.

    Attributes:
        x: (B, *event) the rows, one for each answer.
        target: (B,) class positions asked for.
        x_cf: (B, *event) the answers.
        n: Answers of each row, one after the other.
        alternatives: (K, B, *event) several answers to each row, for diversity.
        perturbed: (M, B, *event) answers to the rows with input noise, for stability.
        trained_on: The finite set of hypotheses that the method was trained on.
        delivered: (B,) 1.0 where the method handed out a valid answer, else 0.0.
        broken: (B,) how many columns break a constraint.
        gap: (B,) how much the loss falls when each answer is optimised by itself, for amortized methods.
        seconds_alone: (B,) seconds for a row by itself, from codes to codes; NaN for rows that were not timed.
        seconds_batch: Seconds a row for all rows at once, from codes to codes.
        seconds_frame: Seconds a row for all rows at once, from rows in user units to answers in user units.
    """

    x: Tensor
    target: Tensor
    x_cf: Tensor
    n: int = 1
    alternatives: Tensor | None = None
    perturbed: Tensor | None = None
    trained_on: Predictors | None = None
    delivered: Tensor | None = None
    broken: Tensor | None = None
    gap: Tensor | None = None
    seconds_alone: Tensor | None = None
    seconds_batch: float | None = None
    seconds_frame: float | None = None


@dataclass(frozen=True, eq=False)
class Case:
    """Answers beside their judges: what the function of a metric is called with.

    What several metrics have in common is a property here and is computed once.

    Attributes:
        context: The judges.
        answers: The encoded answers.
    """

    context: Context
    answers: EncodedAnswers

    @cached_property
    def current(self) -> Tensor:
        """(B,) class positions that the deployed model gives the rows."""
        return self.context.deployed.decide(self.context.deployed.probabilities(self.answers.x))

    @cached_property
    def valid(self) -> Tensor:
        """(B,) 1.0 where the deployed model gives the answer the target, else 0.0."""
        deployed = self.context.deployed
        return deployed.valid(deployed.probabilities(self.answers.x_cf), self.answers.target).float()

    @cached_property
    def unchanged(self) -> Tensor:
        """(B,) whether the answer is the row itself."""
        return (self.answers.x_cf == self.answers.x).flatten(1).all(dim=1)

    @property
    def unanswered(self) -> Tensor:
        """(B,) whether the row came back unchanged and is not valid: there is no answer."""
        return self.unchanged & (self.valid == 0)

    @cached_property
    def changes(self) -> Tensor:
        """(B, columns) how far each column moved."""
        return column_changes(self.context.encoding, self.answers.x_cf, self.answers.x)

    @cached_property
    def survival(self) -> Tensor:
        """(B,) the share of models trained anew that give the answer the target."""
        return self.agreement(there(self.context.surrogates))

    @cached_property
    def rashomon_agreement(self) -> dict[float, Tensor]:
        """For each ε, (B,) the share of held-out hypotheses within it that give the answer the target."""
        return {epsilon: self.agreement(members) for epsilon, members in there(self.context.rashomon).items()}

    @cached_property
    def execution(self) -> tuple[Tensor, Tensor]:
        """NE and the invalidation rate, both (B,)."""
        bank, noise = there(self.context.bank), there(self.context.execution_noise)
        return noisy_execution(bank, self.answers.x_cf, noise, self.answers.target)

    @cached_property
    def stability(self) -> tuple[Tensor, Tensor]:
        """R_IC and its numerator, both (B,)."""
        return input_stability(self.answers.x_cf, there(self.answers.perturbed), self.answers.x)

    def agreement(self, predictors: Predictors) -> Tensor:
        """(B,) the share of hypotheses that give the answer the target.

        Args:
            predictors: The hypotheses.
        """
        return model_agreement(predictors, self.answers.x_cf, self.answers.target)

    def by_target(self, measure: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """(B,) a measure of each answer against the training rows of its target.

        Args:
            measure: From (n, *event) answers and (m, *event) training rows of their target to (n,) values.
        """
        x_cf, target = self.answers.x_cf, self.answers.target
        result = torch.full((len(x_cf),), torch.nan)
        for label in target.unique().tolist():
            result[target == label] = measure(x_cf[target == label], self.context.rows_by_class[label])
        return result


def there(value: T | None) -> T:
    """A part of a case that a metric's ``needs`` promise to be there."""
    assert value is not None
    return value
