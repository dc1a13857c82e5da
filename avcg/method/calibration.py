"""Calibration: for each target class and effort, the least margin that carries a promise about the next model.

Rows and models that trained nothing of the generator judge its answers at every margin of a ladder;
`avcg.guarantees.conformal` decides by what they say, or `avcg.guarantees.moments` by what past moments say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from avcg.errors import DataError
from avcg.guarantees.conformal import Promise, Reason, SurvivalTable, Verdict, decide
from avcg.guarantees.moments import PastMoments
from avcg.guarantees.statement import Statement, summary
from avcg.hypotheses.predictors import Predictors
from avcg.method.config import CalibrationConfig
from avcg.method.deployed import DeployedModel
from avcg.method.query import Effort, Query
from avcg.space.encoding import Codes, Positions

AROUND_ONE_NETWORK = (
    "the promise is about draws around one network, because the hypotheses are such draws. What they accept says"
    " little about retrained models, which often accept far less. Train by avcg.retrains, or calibrate by them:"
    " recourse.calibrate(models=avcg.retrains(model, X, y))."
)
# The effort of an answer to a query that does not say; past moments are judged by such answers.
USUAL: Effort = "standard"
# The verdict on a promise that is still to be decided.
OPEN = Verdict(made=False, position=0, reason="margin", reachable=0.0)


@dataclass(frozen=True, eq=False)
class Direction:
    """The calibration of the answers that aim at one class, with one effort.

    Attributes:
        target: Label of the class.
        table: What the calibration models said at each margin.
        verdict: Whether the promise is made, and at which margin.
    """

    target: Any
    table: SurvivalTable
    verdict: Verdict

    @property
    def margin(self) -> float:
        """The chosen margin beyond the decision, in log-odds."""
        return float(self.table.margins[self.verdict.position])

    @property
    def survival(self) -> float:
        """Share of (answer, calibration model) pairs that agree at the chosen margin."""
        return float(self.table.survival[self.verdict.position])

    def at_margin(self, margin: float) -> Direction:
        """This direction at the first margin of its ladder that is no less than another."""
        above = np.flatnonzero(self.table.margins >= margin - 1e-9)
        return replace(self, verdict=replace(self.verdict, position=int(above[0]))) if len(above) else self

    def statement(self, promise: Promise, n_models: int) -> Statement:
        """What may be said to the people whose advice aims at this class.

        Args:
            promise: What was asked for.
            n_models: Number of models that were held out for calibration.
        """
        table, verdict = self.table, self.verdict
        return Statement(
            target=self.target,
            made=verdict.made,
            reason=verdict.reason,
            survival=promise.survival,
            reliability=promise.reliability,
            guarantee=promise.guarantee,
            confidence=promise.confidence,
            n_models=n_models,
            n_rows=int(table.answered[verdict.position]),
            needed_models=promise.needed_models_for(table.n_rows),
            needed_rows=promise.needed_rows,
            reachable=verdict.reachable,
            refused_rows=int((table.refusals > 0).sum()),
            unanswered_rows=table.n_rows - int(table.answered[verdict.position]),
        )


@dataclass(frozen=True, eq=False)
class Calibration:
    """The margins that were chosen, and what they were chosen by.

    Attributes:
        promise: What was asked for.
        directions: The calibration of single answers, by class position, for each effort that was calibrated; always
            for ``"fast"``.
        n_models: Number of models that were held out for calibration; 0: margins were chosen by training hypotheses.
        countable: Whether these models have equal weights.
        around_one_network: Whether these models are draws around one network, which are no retrained models.
        past: Past moments that the promise is calibrated by, for single answers of standard effort to one class; None:
            these models.
    """

    promise: Promise
    directions: Mapping[Effort, tuple[Direction, ...]]
    n_models: int
    countable: bool
    past: PastMoments | None = None
    around_one_network: bool = False

    def with_promise(self, promise: Promise) -> Calibration:
        """The calibration for a promise, by the same judgements.

        Args:
            promise: What is asked for.
        """
        directions = _at_one_margin(
            {effort: self._decided(of_effort, promise) for effort, of_effort in self.directions.items()}
        )
        if self.past is not None:
            decided, usual = self.past.decide(promise.carried_by(len(self.past))), self._calibrated(USUAL)
            directions = {
                effort: tuple(_unpromised(each, "query") for each in of_effort)
                for effort, of_effort in directions.items()
                if effort != usual
            } | {
                usual: tuple(
                    replace(each, verdict=decided) if each.target == self.past.target else _unpromised(each, "target")
                    for each in directions[usual]
                )
            }
        return replace(self, promise=promise, directions=directions)

    def _decided(self, directions: Sequence[Direction], promise: Promise) -> tuple[Direction, ...]:
        """The directions with the verdict on a promise.

        A direction with too few rows aims at no less than the largest margin of the others.
        """
        verdicts = [decide(direction.table, promise) for direction in directions]
        cautious = max((each.position for each in verdicts if each.reason != "rows"), default=0)
        verdicts = [
            replace(each, position=max(each.position, cautious)) if each.reason == "rows" else each for each in verdicts
        ]
        if not (self.countable and self.n_models):
            reason: Reason = "models" if self.countable else "weights"
            verdicts = [replace(each, made=False, reason=reason, reachable=0.0) for each in verdicts]
        return tuple(replace(each, verdict=verdict) for each, verdict in zip(directions, verdicts, strict=True))

    def _calibrated(self, effort: Effort) -> Effort:
        """The effort whose calibration holds for an effort: its own, or that of the fastest answers."""
        return effort if effort in self.directions else "fast"

    def of_effort(self, effort: Effort = USUAL) -> tuple[Direction, ...]:
        """The calibration of one effort, by class position; where it was not calibrated, that of the fastest answers.

        Args:
            effort: Work spent on an answer.
        """
        return self.directions[self._calibrated(effort)]

    def margins(self, effort: Effort = USUAL) -> NDArray[np.float32]:
        """(C,) log-odds beyond the decision to aim at, by class position.

        Args:
            effort: Work spent on an answer.
        """
        return np.array([direction.margin for direction in self.of_effort(effort)], np.float32)

    def statements(self, effort: Effort = USUAL) -> dict[Any, Statement]:
        """What may be said, by target label.

        Args:
            effort: Work spent on an answer.
        """
        statements = {each.target: each.statement(self.promise, self.n_models) for each in self.of_effort(effort)}
        if self.past is not None and self._calibrated(effort) == self._calibrated(USUAL):
            past, promise = self.past, self.promise.carried_by(len(self.past))
            decided = next(each.verdict for each in self.of_effort() if each.target == past.target)
            statements[past.target] = past.statement(promise, decided)
        return (
            statements
            if not self.around_one_network
            else {
                label: replace(each, basis="draws") if each.basis == "models" else each
                for label, each in statements.items()
            }
        )

    @property
    def made(self) -> bool:
        """Whether the promise is made, for single answers of standard effort to every class it was calibrated for."""
        asked = [each for each in self.of_effort() if self.past is None or each.target == self.past.target]
        return all(direction.verdict.made for direction in asked)

    @property
    def caution(self) -> str:
        """Why no promise is made, or what is doubtful about it, in words; empty where nothing is."""
        if not self.made:
            return str(self)
        return AROUND_ONE_NETWORK if self.around_one_network and self.past is None else ""

    @property
    def frontier(self) -> pd.DataFrame:
        """By effort, target and margin: survival, its least over models, rows answered, distance and changes."""
        frames = {
            (effort, direction.target): pd.DataFrame(
                {
                    "survival": direction.table.survival,
                    "lowest": direction.table.shares.min(axis=1),
                    "answered": direction.table.answered / max(direction.table.n_rows, 1),
                    "distance": direction.table.distance,
                    "changes": direction.table.changes,
                },
                index=pd.Index(direction.table.margins, name="margin"),
            )
            for effort, directions in self.directions.items()
            for direction in directions
        }
        return pd.concat(frames, names=["effort", "target"]).sort_index()

    def __str__(self) -> str:
        return " ".join(summary(self.statements().values()))


def _at_one_margin(directions: Mapping[Effort, tuple[Direction, ...]]) -> dict[Effort, tuple[Direction, ...]]:
    """The directions with one margin for all efforts, so that more effort is never dearer.

    It is the largest margin of those that make the promise, which holds at every margin from its critical one on. Where
    none makes it, it is that of the usual effort.
    """
    margins = []
    for of_class in zip(*directions.values(), strict=True):
        by_effort = dict(zip(directions, of_class, strict=True))
        made = [each.margin for each in of_class if each.verdict.made]
        margins.append(max(made, default=by_effort.get(USUAL, of_class[0]).margin))
    return {
        effort: tuple(each.at_margin(margin) for each, margin in zip(of_effort, margins, strict=True))
        for effort, of_effort in directions.items()
    }


def _unpromised(direction: Direction, reason: Reason) -> Direction:
    return replace(direction, verdict=replace(direction.verdict, made=False, reason=reason, reachable=0.0))


def hold_back(
    immovable: Tensor, decided: Tensor, config: CalibrationConfig, n_codes: int, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Positions of the rows to calibrate by, all of which may change something, and of the rows to train on.

    Args:
        immovable: (N,) whether a row may change nothing. It has no answer, but may be a reference row for others.
        decided: (N,) position of the class that the deployed model decides for.
        config: How many rows to hold back.
        n_codes: Number of codes of a row.
        rng: Random numbers.

    Raises:
        DataError: If fewer than two rows may change something.
    """
    movable = int((~immovable).sum())
    if movable < 2:
        raise DataError(
            "A generator needs at least two rows to train on that may change something. Got"
            f" {movable} of {len(immovable)}."
        )
    order = torch.randperm(len(immovable), generator=rng)
    order = order[immovable[order].sort(stable=True).indices]
    held = torch.arange(len(order)) < config.n_held(movable, n_codes)
    for label in decided.unique():  # a direction with few rows could promise nothing
        own = torch.nonzero(decided[order[:movable]] == label).flatten()
        held[own[: config.n_held_of_class(len(own), n_codes)]] = True
    return order[held], order[~held]


def judge_margins(
    margins: Sequence[float],
    answer: Callable[[float], Codes],
    query: Query,
    deployed: DeployedModel,
    models: Predictors,
    labels: Sequence[Any],
) -> tuple[Direction, ...]:
    """Ask calibration models about the answers at each margin, for each target class separately.

    Args:
        margins: Log-odds to choose from, ascending.
        answer: Function from a margin to (B, *event) answers.
        query: B rows that were not trained on.
        deployed: The deployed model.
        models: m models that were not trained against.
        labels: Labels of the classes.

    Returns:
        By class position: what was said, with a verdict that is still open.
    """
    target, space = torch.from_numpy(query.target), query.space.tensors
    x, accepts, valid, distance, changes = torch.from_numpy(query.x), [], [], [], []
    for margin in margins:
        answers = torch.from_numpy(answer(margin))
        accepts.append(deployed.agree(models, answers, target).cpu().numpy())
        valid.append(deployed.valid(deployed.probabilities(answers), target).cpu().numpy())
        distance.append(space.distance(answers, x).numpy())
        changes.append(space.count_changes(answers, x).numpy())
    judged = [np.stack(part) for part in (accepts, valid, distance, changes)]
    return tuple(
        Direction(label, SurvivalTable.of(np.array(margins), *(part[..., query.target == i] for part in judged)), OPEN)
        for i, label in enumerate(labels)
    )


def first_of_each(target: Positions, count: int) -> Positions:
    """Positions of the first rows of each target class, in their order, at most so many of each.

    Args:
        target: (B,) positions of the target classes.
        count: Largest number of rows of each.
    """
    return np.sort(np.concatenate([np.flatnonzero(target == label)[:count] for label in np.unique(target)]))
