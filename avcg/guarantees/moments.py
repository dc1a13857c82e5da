"""Promises calibrated by the past: critical margins of steps that were really taken in time.

At each past moment advice was made with what was known then, at every margin of a ladder, and the model that came next
judged it. If the next step in time is exchangeable with these steps, split conformal prediction over moments holds as
it does over models; see `avcg.guarantees.conformal`. T moments carry a reliability of at most T / (T + 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from avcg.errors import DataError, SettingError, enumerate_some
from avcg.guarantees.conformal import Counts, Promise, Reason, Verdict, kept_from, verdict
from avcg.guarantees.statement import Statement, as_fraction


class HasPast(Protocol):
    """What a promise can be calibrated on, such as `avcg.auditing.backtest.Backtest`."""

    def past_moments(self) -> PastMoments:
        """The past moments, with what became of the advice that was given at them."""


@dataclass(frozen=True, eq=False)
class PastMoments:
    """What became of the advice of T past moments, at each margin.

    Attributes:
        target: The decision that people wanted.
        moments: (T,) the moments, as numbers or texts.
        horizon: Number of moments after which the model came that judged.
        margins: (L,) the ladder of margins, ascending.
        answered: (L, T) number of people with an answer that the model of the moment accepted.
        accepted: (L, T) number of these answers that the later model accepted.
        survival: Survival that the method was asked for, which its answers depend on.
    """

    target: Any
    moments: tuple[Any, ...]
    horizon: int
    margins: NDArray[np.float64]
    answered: Counts
    accepted: Counts
    survival: float

    def __post_init__(self) -> None:
        shape = (len(self.margins), len(self.moments))
        if 0 in shape or self.answered.shape != shape or self.accepted.shape != shape:
            raise DataError(
                f"Past moments need counts of shape (margins, moments) = {shape}, none of them 0. Got"
                f" {self.answered.shape} and {self.accepted.shape}."
            )
        if (self.accepted < 0).any() or (self.accepted > self.answered).any() or (np.diff(self.margins) < 0).any():
            raise DataError("Past moments have more acceptances than answers, or margins out of order.")

    def __len__(self) -> int:
        return len(self.moments)

    def past_moments(self) -> PastMoments:
        """These moments: they calibrate as a backtest does."""
        return self

    def take(self, positions: Sequence[int]) -> PastMoments:
        """Some of these moments.

        Args:
            positions: Their positions.
        """
        moments, chosen = tuple(self.moments[i] for i in positions), list(positions)
        return replace(self, moments=moments, answered=self.answered[:, chosen], accepted=self.accepted[:, chosen])

    @property
    def shares(self) -> NDArray[np.float64]:
        """(L, T) share of the answers that the later model accepted; 0 where there was no answer."""
        return self.accepted / np.maximum(self.answered, 1)

    def critical(self, survival: float) -> NDArray[np.intp]:
        """(T,) position of each moment's critical margin, from which on the share was kept; L: there is none.

        Each moment has its own people, so that the share itself is what is exchangeable, and no person is added to it.

        Args:
            survival: Share of the answers that the later model must accept.
        """
        exact = as_fraction(survival)
        needed = -(-exact.numerator * self.answered // exact.denominator)  # rounded up, in whole numbers
        return kept_from((self.accepted >= needed) & (self.answered > 0))

    def decide(self, promise: Promise) -> Verdict:
        """Choose the margin for a promise, or say why there is none.

        Args:
            promise: What is to be promised, already no more than so many moments can carry.
        """
        rank = promise.rank(len(self))
        reason: Reason = "" if rank is not None else "moments"
        rank = rank or len(self)
        keeps = np.arange(len(self.margins)) >= np.sort(self.critical(promise.survival))[rank - 1]
        closeness = np.sort(self.shares, axis=1)[:, len(self) - rank]
        return verdict(reason, keeps, closeness, 0.0 if reason else float(closeness[-1]))

    def statement(self, promise: Promise, decided: Verdict) -> Statement:
        """What may be said to the people whose advice aims at the target.

        Args:
            promise: What was decided about.
            decided: The verdict.
        """
        answered = self.answered[decided.position]
        return Statement(
            target=self.target,
            made=decided.made,
            reason=decided.reason,
            survival=promise.survival,
            reliability=promise.reliability,
            guarantee=promise.guarantee,
            confidence=promise.confidence,
            n_models=len(self),
            n_rows=int(answered.sum()),
            needed_models=promise.needed_models,
            needed_rows=1,
            reachable=decided.reachable,
            refused_rows=int((answered - self.accepted[decided.position]).sum()),
            unanswered_rows=0,
            basis="moments",
            horizon=self.horizon,
        )


def past_for(
    source: HasPast | None, margins: Sequence[float], classes: Sequence[Any], promise: Promise
) -> PastMoments | None:
    """The past moments that a backtest offers, if a promise of an explainer can be calibrated by them.

    Args:
        source: The backtest; None: there is none.
        margins: The margins of the explainer.
        classes: Labels of its classes.
        promise: What it promises.

    Raises:
        SettingError: If it is something else, or does not fit the explainer.
    """
    if source is None:
        return None
    if not hasattr(source, "past_moments"):
        raise SettingError(f"'calibrate_on' must be what avcg.backtest returns. Got a {type(source).__name__}.")
    if promise.guarantee == "expected":
        raise SettingError("The guarantee 'expected' is about models of one moment. Leave 'calibrate_on' out.")
    past = source.past_moments()
    if past.target not in classes:
        raise SettingError(f"The backtest aims at {past.target!r}, which is none of {enumerate_some(classes)}.")
    if len(margins) < 2 or len(past.margins) != len(margins) or not np.allclose(past.margins, margins):
        raise SettingError(
            "The margins of the backtest are not those of this recipe. Give AVCG and backtest the same recipe, one with"
            " margins."
        )
    if past.survival != promise.survival:
        raise SettingError(
            f"The backtest asked for a survival of {past.survival:g}, and this explainer asks for {promise.survival:g}."
            " Answers depend on it: run the backtest again, or ask for the same."
        )
    return past
