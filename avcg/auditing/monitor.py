"""The monitor: whether new models are like the calibration models, with a stated rate of false alarms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from avcg.errors import SettingError
from avcg.explainers.avcg import AVCG
from avcg.guarantees.bounds import Floats
from avcg.guarantees.exchangeability import evidence, online_p_values, p_value
from avcg.hypotheses.base import check_same_reading
from avcg.hypotheses.finite import FiniteSet
from avcg.method.calibration import Direction

_MOST_SHOWN = 1000  # evidence beyond which no digit matters


@dataclass(frozen=True, eq=False)
class Monitor:
    """New models beside the calibration models, by how many of the answers to the calibration people they accept.

    Attributes:
        frame: One line for each model, in their order: ``survival``, the share of the answers at the promised margins
            that it accepts; ``p_value``, low if hardly any calibration model accepts so few answers at all margins
            together; ``evidence`` of all models so far; and ``alarm``, whether that has ever reached the threshold.
        n_calibration: Number of calibration models.
        false_alarms: Largest chance that there is ever an alarm although all models are like the calibration models.
    """

    frame: pd.DataFrame
    n_calibration: int
    false_alarms: float

    @property
    def threshold(self) -> float:
        """Evidence from which there is an alarm."""
        return 1.0 / self.false_alarms

    def __str__(self) -> str:
        last, m = self.frame.iloc[-1], self.n_calibration
        if len(self.frame) == 1:
            least = "" if last["p_value"] * (m + 1) > 1.5 else f", the least that {m} models can show"
            fewer = round(last["p_value"] * (m + 1)) - 1
            return (
                f"{fewer or 'None'} of {m} calibration models accept{'s' * (fewer < 2)} as few of the answers as this"
                f" model, or fewer (p = {last['p_value']:.2g}{least})."
            )
        known = (
            f"the evidence that these models are unlike the calibration models is {shown_evidence(last['evidence'])}"
        )
        rule = f"an alarm from {self.threshold:g} on is false with a chance of at most {self.false_alarms:g}"
        if not last["alarm"]:
            return f"No alarm: {known}; {rule}."
        first = self.frame.index[self.frame["alarm"]][0]
        return f"Alarm since {first!r}: {known}; {rule}. The promise was not made for such models."


def monitor(
    recourse: AVCG, models: FiniteSet, names: Sequence[Any], *, false_alarms: float = 0.05, random_state: int = 0
) -> Monitor:
    """Compare new models with the calibration models of an explainer.

    Each model has one score: the share of the answers to the calibration people that it accepts, over all targets and
    margins. If the new models are exchangeable with the calibration models, so are the scores.

    Args:
        recourse: A fitted explainer with calibration models.
        models: New models over its codes and classes, in the order in which they come.
        names: Their names.
        false_alarms: Largest chance of a false alarm, in (0, 1).
        random_state: Seed by which ties are broken.

    Raises:
        SettingError: If the explainer has no calibration models of equal weight, the models read other codes, or a
            setting is out of range.
    """
    calibration = recourse.calibration_
    if not can_monitor(recourse):
        raise SettingError("A monitor needs calibration models of equal weight, and this explainer has none.")
    if not 0 < false_alarms < 1:
        raise SettingError(f"The 'false_alarms' of a monitor must be in (0, 1). Got {false_alarms!r} instead.")
    check_same_reading(recourse.space_, models.space, recourse.classes_, models.classes)
    reference, judged = calibration.of_effort(), recourse.judged_answers(models.predictors)
    own, scores = _scores(reference), _scores(judged)
    values = evidence(online_p_values(own, scores, np.random.default_rng(random_state)))
    frame = pd.DataFrame(
        {
            "survival": _survival(judged, [direction.verdict.position for direction in reference]),
            "p_value": [p_value(own, score) for score in scores],
            "evidence": values,
            "alarm": np.maximum.accumulate(values) >= 1.0 / false_alarms,
        },
        index=pd.Index(list(names), name="model"),
    )
    return Monitor(frame, calibration.n_models, false_alarms)


def can_monitor(recourse: AVCG) -> bool:
    """Whether an explainer has calibration models of equal weight that new models can be compared with.

    Args:
        recourse: A fitted explainer.
    """
    split = recourse.split_  # judged by other models, it has no calibration models any more
    return split.calibration is not None and split.countable


def _scores(directions: Sequence[Direction]) -> Floats:
    """(m,) share of all answers, over targets and margins, that each model accepts."""
    accepted = sum(direction.table.accepted.sum(axis=0) for direction in directions)
    return np.asarray(accepted / max(sum(int(direction.table.answered.sum()) for direction in directions), 1))


def _survival(directions: Sequence[Direction], positions: Sequence[int]) -> Floats:
    """(m,) share of the answers at one margin for each target that each model accepts."""
    tables = [direction.table for direction in directions]
    accepted = sum(table.accepted[at] for table, at in zip(tables, positions, strict=True))
    return np.asarray(
        accepted / max(sum(int(table.answered[at]) for table, at in zip(tables, positions, strict=True)), 1)
    )


def shown_evidence(value: float) -> str:
    """Evidence in words.

    >>> shown_evidence(3.2417), shown_evidence(52000.0)
    ('3.24', 'more than 1,000')
    """
    return f"{value:.3g}" if value < _MOST_SHOWN else f"more than {_MOST_SHOWN:,}"
