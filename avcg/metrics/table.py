"""The table of all metrics, which evaluation, benchmark tables, pages and figures are driven by.

A new metric is one entry of `METRICS`. A `Metric` defined elsewhere is named by a benchmark protocol under
``metrics``, as ``"package.module:name"``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from avcg.errors import DataError, SettingError, did_you_mean, enumerate_some
from avcg.guarantees.bounds import clopper_pearson
from avcg.method.diagnostics import personalisation
from avcg.metrics.context import Case, Context, EncodedAnswers, there
from avcg.metrics.functional import (
    columns_changed,
    distance_to_rows,
    gower,
    im1,
    implausibility,
    lof_inlier,
    nearest_other,
    pairwise_distance,
    redundancy,
    validity,
)

Direction = Literal["higher", "lower", "none"]
# A value for each answer, one value for all answers, or either of these by ε.
Values = Tensor | float | Mapping[float, Tensor | float]

_RESERVED = ("row", "answer", "reading", "error", "dataset", "seed", "method", "epsilon")
_OF_CONTEXT = ("encoding", *(field.name for field in fields(Context)))
_NEEDS = (*_OF_CONTEXT, *(field.name for field in fields(EncodedAnswers)))


@dataclass(frozen=True)
class Heading:
    """The name, direction and format of a column of results.

    Attributes:
        name: Name of the column.
        direction: Whether a ``"higher"`` or a ``"lower"`` value is better, or ``"none"``.
        unit: Unit of the values, e.g. ``"s"``; empty: none.
        digits: Digits after the decimal point.
    """

    name: str
    direction: Direction = "none"
    unit: str = ""
    digits: int = 3

    @property
    def text(self) -> str:
        """The name with its unit.

        >>> Heading("Time", "lower", unit="s").text
        'Time (s)'
        """
        return f"{self.name} ({self.unit})" if self.unit else self.name


@dataclass(frozen=True, kw_only=True)
class Metric(Heading):
    """A metric: its column of results, what it needs, and how it is computed.

    Attributes:
        function: Function from a `Case` to one value for each answer, or one value for all; by ε if ``by_epsilon``.
        needs: Attributes of `Context` and `EncodedAnswers` without which the metric is NaN, e.g. ``("surrogates",)``.
        answered_only: Whether the metric is NaN for rows without an answer, that is unchanged and not valid. Their
            distance of 0 would otherwise look like a good value.
        by_epsilon: Whether there is one column for each ε of the context, e.g. ``RVR@0.8``; none without Rashomon sets.
        in_paper: Whether the paper's tables print the metric.
        shown: Whether ``avcg bench table`` prints the metric if no others are asked for.

    >>> Metric("months", "lower", function=lambda case: 2 * case.changes.sum(dim=1), answered_only=True).direction
    'lower'
    """

    function: Callable[[Case], Values]
    needs: tuple[str, ...] = ()
    answered_only: bool = False
    by_epsilon: bool = False
    in_paper: bool = False
    shown: bool = False

    def __post_init__(self) -> None:
        if not self.name or self.name in _RESERVED or "@" in self.name:
            raise SettingError(
                f"The name of a metric must not be empty, contain '@' or be one of {enumerate_some(_RESERVED, 8)}. Got"
                f" {self.name!r} instead."
            )
        if self.direction not in get_args(Direction):
            raise SettingError(
                f"The 'direction' of the metric {self.name!r} must be 'higher', 'lower' or 'none'. Got"
                f" {self.direction!r} instead."
            )
        for need in self.needs:
            if need not in _NEEDS:
                raise SettingError(
                    f"The metric {self.name!r} needs {need!r}, which is not an attribute of Context or EncodedAnswers."
                    f" {did_you_mean(need, _NEEDS)}"
                )

    def lacks(self, case: Case) -> tuple[str, ...]:
        """The attributes that the metric needs and that are None in this case."""
        return tuple(
            need for need in self.needs if getattr(case.context if need in _OF_CONTEXT else case.answers, need) is None
        )

    @torch.no_grad()
    def columns(self, case: Case) -> dict[str, NDArray[np.float64]]:
        """One column of (B,) values, or one for each ε; NaN if the case lacks what the metric needs.

        Args:
            case: The answers with their judges.

        Raises:
            DataError: If the function returns values of another type or shape.
        """
        if self.lacks(case):
            return {} if self.by_epsilon else {self.name: np.full(len(case.answers.x), np.nan)}
        values = self.function(case)
        if self.by_epsilon != isinstance(values, Mapping):
            expected = "a mapping from ε to values" if self.by_epsilon else "values"
            raise DataError(f"The metric {self.name!r} must return {expected}. Got a {type(values).__name__}.")
        if isinstance(values, Mapping):
            return {f"{self.name}@{epsilon:g}": self._column(case, value) for epsilon, value in values.items()}
        return {self.name: self._column(case, values)}

    def _column(self, case: Case, value: Any) -> NDArray[np.float64]:
        """(B,) the values that the function returned, as an array."""
        count = len(case.answers.x)
        if self.answered_only:
            value = torch.where(case.unanswered, torch.nan, value)
        array = value.double().numpy() if isinstance(value, Tensor) else np.asarray(value, np.float64)
        if array.shape not in ((), (count,)):
            raise DataError(
                f"The metric {self.name!r} must return one value for each of the {count} answers. Got shape"
                f" {array.shape} instead."
            )
        return np.broadcast_to(array, (count,))


def _r_ic(case: Case) -> Tensor:
    """R_IC, NaN for unchanged rows, because the ratio to a distance of zero is undefined."""
    return torch.where(case.unchanged, torch.nan, case.stability[0])


def _rvr_lower(case: Case) -> dict[float, Tensor | float]:
    """The lower 95 % confidence bound on RVR for each ε."""
    result: dict[float, Tensor | float] = {}
    for epsilon, members in there(case.context.rashomon).items():
        agreeing = (case.rashomon_agreement[epsilon] * len(members)).round().numpy().astype(int)
        result[epsilon] = torch.as_tensor(clopper_pearson(agreeing, len(members)))
    return result


def _columns(case: Case) -> Tensor:
    """(B,) the number of columns that change, or of pixels for images."""
    x_cf, x, encoding = case.answers.x_cf, case.answers.x, case.context.encoding
    return case.context.space.count_changes(x_cf, x) if encoding is None else columns_changed(encoding, x_cf, x)


def _redundancy(case: Case) -> Tensor:
    deployed, answers = case.context.deployed, case.answers
    return redundancy(
        lambda x_cf, target: deployed.valid(deployed.probabilities(x_cf), target),
        case.context.encoding, answers.x_cf, answers.x, answers.target,
    )  # fmt: skip


def _im1(case: Case) -> Tensor:
    return im1(there(case.context.autoencoders), case.answers.x_cf, case.answers.target, case.current)


# First the metrics of the paper, in its order; then the others that `avcg bench table` shows; then the rest.
METRICS: tuple[Metric, ...] = (
    # Whether the target is the most probable class of the bank's mean prediction.
    Metric(
        "Val", "higher", needs=("bank",), in_paper=True, shown=True,
        function=lambda case: validity(there(case.context.bank), case.answers.x_cf, case.answers.target),
    ),
    # Reconstruction error by the target's autoencoder divided by that by the current class's.
    Metric(
        "IM1", "lower", needs=("autoencoders",), answered_only=True, in_paper=True, shown=True, function=_im1
    ),
    # Mean distance to all training rows of the target.
    Metric(
        "Imp", "lower", answered_only=True, in_paper=True, shown=True,
        function=lambda case: case.by_target(implausibility),
    ),
    # Diversity: mean distance between several answers to a row.
    Metric(
        "Div", "higher", needs=("alternatives",), in_paper=True, shown=True,
        function=lambda case: pairwise_distance(there(case.answers.alternatives)),
    ),
    # Share of retrained models that predict the target.
    Metric(
        "CMV", "higher", needs=("surrogates",), in_paper=True, shown=True, function=lambda case: case.survival
    ),
    # Noisy execution: squared change of the mean prediction if an answer is carried out with errors.
    Metric(
        "NE", "lower", digits=4, needs=("bank", "execution_noise"), in_paper=True, shown=True,
        function=lambda case: case.execution[0],
    ),
    # Input stability: change of answers under input noise, relative to their distance from the row.
    Metric("R_IC", "lower", digits=4, needs=("perturbed",), in_paper=True, shown=True, function=_r_ic),
    # Share of held-out hypotheses in the Rashomon set that predict the target.
    Metric(
        "RVR", "higher", needs=("rashomon",), by_epsilon=True, in_paper=True, shown=True,
        function=lambda case: case.rashomon_agreement,
    ),
    # Seconds for a row by itself.
    Metric(
        "Time", "lower", unit="s", digits=4, needs=("seconds_alone",), in_paper=True, shown=True,
        function=lambda case: there(case.answers.seconds_alone),
    ),
    # Whether the deployed model decides for the target.
    Metric("valid", "higher", shown=True, function=lambda case: case.valid),
    # Whether the method returned a valid answer.
    Metric(
        "coverage", "higher", shown=True,
        function=lambda case: case.valid if case.answers.delivered is None else case.answers.delivered,
    ),
    # CMV of valid answers, 0 for others.
    Metric(
        "end_to_end", "higher", needs=("surrogates",), shown=True, function=lambda case: case.valid * case.survival
    ),
    # Distances from the row: in standard deviations of a column, 1 for a changed category.
    Metric("L1", "lower", answered_only=True, shown=True, function=lambda case: case.changes.sum(dim=1)),
    Metric(
        "L2", "lower", answered_only=True, shown=True,
        function=lambda case: (case.answers.x_cf - case.answers.x).flatten(1).norm(dim=1),
    ),
    Metric("columns", "lower", answered_only=True, shown=True, function=_columns),
    # Mean distance to the five nearest training rows of the target.
    Metric(
        "yNN", "lower", answered_only=True, shown=True, function=lambda case: case.by_target(distance_to_rows)
    ),
    # Spread of answers relative to the spread of rows; the same value for all rows.
    Metric(
        "personalisation", "higher", shown=True,
        function=lambda case: personalisation(case.answers.x_cf, case.answers.x, case.answers.target),
    ),
    # Columns that break a constraint of the schema.
    Metric("violations", "lower", needs=("broken",), shown=True, function=lambda case: there(case.answers.broken)),
    # Share of the hypotheses trained on that predict the target.
    Metric(
        "RVR_trained", "higher", needs=("trained_on",),
        function=lambda case: case.agreement(there(case.answers.trained_on)),
    ),
    Metric("RVR_lower", "higher", needs=("rashomon",), by_epsilon=True, function=_rvr_lower),
    # Number of held-out hypotheses.
    Metric(
        "K", needs=("rashomon",), by_epsilon=True,
        function=lambda case: {e: float(len(members)) for e, members in there(case.context.rashomon).items()},
    ),
    Metric("Linf", "lower", answered_only=True, function=lambda case: case.changes.amax(dim=1)),
    # L1 in median absolute deviations of each column.
    Metric(
        "L1_mad", "lower", answered_only=True,
        function=lambda case: (case.changes / case.context.deviations).sum(dim=1),
    ),
    Metric(
        "gower", "lower", answered_only=True,
        function=lambda case: gower(case.context.encoding, case.answers.x_cf, case.answers.x, case.context.ranges),
    ),
    # Share of the changed columns that could be changed back; not for images, which have too many pixels to try.
    Metric("redundancy", "lower", needs=("encoding",), answered_only=True, function=_redundancy),
    # Whether the answer is an inlier among the rows of its target, by the local outlier factor.
    Metric(
        "inlier", "higher", answered_only=True,
        function=lambda case: lof_inlier(case.answers.x_cf, case.answers.target, case.context.rows_by_class),
    ),
    # Share of errors in carrying out an answer under which the bank's mean prediction is not the target.
    Metric(
        "invalidation", "lower", needs=("bank", "execution_noise"), function=lambda case: case.execution[1]
    ),
    # The numerator of R_IC.
    Metric("R_IC_moved", "lower", needs=("perturbed",), function=lambda case: case.stability[1]),
    # Distance to the nearest other answer to the same row.
    Metric("apart", "higher", function=lambda case: nearest_other(case.answers.x_cf, case.answers.n)),
    # Seconds per row for all rows at once, from frame to frame and from codes to codes.
    Metric(
        "TimeFrame", "lower", unit="s", needs=("seconds_frame",),
        function=lambda case: there(case.answers.seconds_frame),
    ),
    Metric(
        "Time100", "lower", unit="s", needs=("seconds_batch",),
        function=lambda case: there(case.answers.seconds_batch),
    ),
    # Amortization gap: decrease of the loss if each answer is optimised by itself.
    Metric("gap", "lower", needs=("gap",), function=lambda case: there(case.answers.gap)),
)  # fmt: skip


PAPER_METRICS = tuple(metric.name for metric in METRICS if metric.in_paper)
_BY_NAME = {metric.name: metric for metric in METRICS}


def check_names(metrics: Sequence[Metric]) -> None:
    """Check that no two metrics have the same name, since their columns would be confused.

    Args:
        metrics: All metrics of a run.

    Raises:
        SettingError: If two metrics have the same name.
    """
    names = [metric.name for metric in metrics]
    for name in names:
        if names.count(name) > 1:
            raise SettingError(f"The names of metrics must differ. Got two metrics called {name!r}. Rename one.")


def heading_of(name: str, extra: Sequence[Heading] = ()) -> Heading:
    """The heading of a column of results; without direction or unit if the column is not a metric.

    Args:
        name: Name of the column; for a metric by ε it may contain the ε, e.g. ``"RVR@0.8"``.
        extra: Headings in addition to those of `METRICS`, e.g. the metrics of a protocol.

    >>> heading_of("RVR@0.8").direction
    'higher'
    """
    headings = {**_BY_NAME, **{heading.name: heading for heading in extra}}
    metric = headings.get(name.partition("@")[0])
    return Heading(name) if metric is None else Heading(name, metric.direction, metric.unit, metric.digits)
