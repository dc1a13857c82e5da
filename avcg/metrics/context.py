"""The input of metrics: the judges, the encoded answers, and quantities that several metrics share."""

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
# From (N, *event) codes to the codes of the nearest proper rows; see `avcg.metrics.numeric_view.NumericReading`.
Reread = Callable[[Tensor], Tensor]

_ROWS_FOR_SCALES = 10_000  # training rows from which deviations and ranges of columns are computed


@dataclass(frozen=True, eq=False)
class Context:
    """The judges for one dataset and seed: the same for every method, and used by none of them.

    A judge may be None. The metrics that need it are then NaN.

    Attributes:
        space: The space of encoded rows.
        deployed: The deployed model with its decision rule.
        x_train: (N, *event) training rows.
        y_train: (N,) class positions of the training rows.
        n_classes: C, the number of classes.
        bank: Hypotheses whose mean prediction decides Val, and whose change under noise is NE.
        rashomon: Held-out hypotheses of the Rashomon set for each ε; no method is trained on them.
        surrogates: Retrained models, for CMV.
        autoencoders: One autoencoder for each class, for IM1.
        execution_noise: (M, *event) errors in carrying out an answer.
        input_noise: (M, B, *event) errors in the rows that are explained.
        reread: Function that makes proper rows of answers; None: answers are proper rows.
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
        """The encoding of columns; None for images."""
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
    """The encoded answers of one method, and what was measured while it answered.

    Measurements that were not made are None. The metrics that need them are then NaN.

    Attributes:
        x: (B, *event) the rows, one for each answer.
        target: (B,) class positions of the targets.
        x_cf: (B, *event) the answers.
        n: Number of answers to each row, one after the other.
        alternatives: (K, B, *event) several answers to each row, for diversity.
        perturbed: (M, B, *event) answers to the rows with input noise, for stability.
        trained_on: The finite set of hypotheses that the method was trained on.
        delivered: (B,) 1.0 if the method returned a valid answer, else 0.0.
        broken: (B,) number of columns that break a constraint.
        gap: (B,) decrease of the loss if each answer is optimised by itself, for amortized methods.
        seconds_alone: (B,) seconds for a row by itself, from codes to codes; NaN for rows that were not timed.
        seconds_batch: Seconds per row for all rows at once, from codes to codes.
        seconds_frame: Seconds per row for all rows at once, from rows in user units to answers in user units.
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
    """The argument of a metric's function: answers together with their judges.

    Quantities that several metrics share are properties, computed once.

    Attributes:
        context: The judges.
        answers: The encoded answers.
    """

    context: Context
    answers: EncodedAnswers

    @cached_property
    def current(self) -> Tensor:
        """(B,) class positions that the deployed model decides for, for the unchanged rows."""
        return self.context.deployed.decide(self.context.deployed.probabilities(self.answers.x))

    @cached_property
    def valid(self) -> Tensor:
        """(B,) 1.0 if the deployed model decides for the target, else 0.0."""
        deployed = self.context.deployed
        return deployed.valid(deployed.probabilities(self.answers.x_cf), self.answers.target).float()

    @cached_property
    def unchanged(self) -> Tensor:
        """(B,) whether the answer is the same as the row."""
        return (self.answers.x_cf == self.answers.x).flatten(1).all(dim=1)

    @property
    def unanswered(self) -> Tensor:
        """(B,) whether the answer is unchanged and not valid, which means that the method found none."""
        return self.unchanged & (self.valid == 0)

    @cached_property
    def changes(self) -> Tensor:
        """(B, columns) change of each column, by `column_changes`."""
        return column_changes(self.context.encoding, self.answers.x_cf, self.answers.x)

    @cached_property
    def survival(self) -> Tensor:
        """(B,) the share of retrained models that predict the target."""
        return self.agreement(there(self.context.surrogates))

    @cached_property
    def rashomon_agreement(self) -> dict[float, Tensor]:
        """The (B,) share of held-out hypotheses that predict the target, for each ε."""
        return {epsilon: self.agreement(members) for epsilon, members in there(self.context.rashomon).items()}

    @cached_property
    def execution(self) -> tuple[Tensor, Tensor]:
        """The metrics NE and invalidation rate, both (B,)."""
        bank, noise = there(self.context.bank), there(self.context.execution_noise)
        return noisy_execution(bank, self.answers.x_cf, noise, self.answers.target)

    @cached_property
    def stability(self) -> tuple[Tensor, Tensor]:
        """The metric R_IC and its numerator, both (B,)."""
        return input_stability(self.answers.x_cf, there(self.answers.perturbed), self.answers.x)

    def agreement(self, predictors: Predictors) -> Tensor:
        """(B,) the share of hypotheses that predict the target.

        Args:
            predictors: The hypotheses.
        """
        return model_agreement(predictors, self.answers.x_cf, self.answers.target)

    def by_target(self, measure: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """(B,) a measure of each answer against the training rows of its target.

        Args:
            measure: Function from (n, *event) answers and (m, *event) training rows of their target to (n,) values.
        """
        x_cf, target = self.answers.x_cf, self.answers.target
        result = torch.full((len(x_cf),), torch.nan)
        for label in target.unique().tolist():
            result[target == label] = measure(x_cf[target == label], self.context.rows_by_class[label])
        return result


def there(value: T | None) -> T:
    """The value, which a metric's ``needs`` guarantee not to be None."""
    assert value is not None
    return value
