"""Worlds in which the truth of a promise is known: every model that may come next, and everyone who may ask.

A world is a finite set of models and people. Calibration models and rows are drawn from it with replacement, as the
next model and the next person are, so that the chance that a promise is broken is a count and not an estimate. Run this
file for the tables of ``docs/explanation/promise.md``.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest, ttest_1samp

from avcg.guarantees.conformal import Promise, SurvivalTable, Verdict, decide

# A claim is rejected where what was seen, or worse, has at most this chance under it.
LEVEL = 0.001

Rule = Callable[[SurvivalTable, Promise], Verdict]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Positions = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class World:
    """All models that may come next, and all people who may ask.

    Attributes:
        margins: (L,) the ladder of margins.
        accepts: (L, M, P) whether each model accepts each person's answer at each margin.
        valid: (L, P) whether the deployed model does.
    """

    margins: Floats
    accepts: Bools
    valid: Bools

    @classmethod
    def of(
        cls,
        spread: float,
        *,
        catastrophes: float = 0.0,
        waves: float = 0.0,
        unanswered: float = 0.0,
        shift: float = 0.0,
        agreement: float = 0.6,
        n_models: int = 400,
        n_people: int = 500,
        n_margins: int = 49,
        seed: int = 0,
    ) -> World:
        """A world by a probit model of margin, person and model.

        Args:
            spread: Standard deviation between models, in units of that between answers to one model.
            catastrophes: Share of models that accept only three in ten answers, whatever the margin.
            waves: Height of waves in the margin, by model and person, so that more margin may be worse.
            unanswered: Share of people without an answer at the smallest margin; these are the difficult ones.
            shift: How much more margin all people of this direction need.
            agreement: Correlation between models of what they find difficult. 1: they find the same people difficult.
            n_models: Number of models, M.
            n_people: Number of people, P.
            n_margins: Number of margins, L.
            seed: Seed.
        """
        rng = np.random.default_rng(seed)
        margins = np.linspace(0.0, 4.0, n_margins)
        person, model = rng.normal(size=n_people), spread * rng.normal(size=n_models)
        cell = rng.normal(size=(n_models, n_people))
        phase = rng.uniform(0, 2 * np.pi, n_models)[:, None] + 0.7 * rng.normal(size=n_people)
        latent = np.sqrt(agreement) * person + np.sqrt(1 - agreement) * cell + model[:, None] - shift
        fails = rng.permutation(n_models) < round(catastrophes * n_models)
        spared = rng.random((n_models, n_people)) < 0.3
        rises = [latent + margin + (waves * np.sin(5.0 * margin + phase) if waves else 0.0) >= 0 for margin in margins]
        accepts = np.stack(rises) & (~fails[:, None] | spared)
        difficult = person < np.quantile(person, unanswered) if unanswered else np.zeros(n_people, bool)
        # Of the difficult, some are answered from a larger margin on.
        valid = ~difficult | (rng.uniform(0, 8, n_people) < margins[:, None])
        return cls(margins, accepts, valid)

    @classmethod
    def of_thresholds(cls, *, unanswered: float = 0.0, windows: bool = False, n_models: int = 1000) -> World:
        """A world in which each model accepts everything from a margin of its own on, and nothing below.

        Nothing is lost to rounding here, so that the chances come as close to what is promised as they can.

        Args:
            unanswered: Share of people without an answer.
            windows: Whether each model accepts everything in a narrow window of smaller margins also.
            n_models: Number of models, M.
        """
        rng = np.random.default_rng(0)
        margins, n_people = np.linspace(0.0, 1.0, 201), 50
        threshold = rng.permutation((np.arange(n_models) + 0.5) / n_models)
        accepts = margins[:, None] >= threshold
        if windows:
            start = 0.9 * threshold * rng.random(n_models)
            accepts |= (margins[:, None] >= start) & (margins[:, None] < start + 0.02)
        valid = np.arange(n_people) >= round(unanswered * n_people)
        shape = (len(margins), n_models, n_people)
        return cls(margins, np.broadcast_to(accepts[..., None], shape), np.broadcast_to(valid, (shape[0], n_people)))

    def table(self, models: Positions, people: Positions) -> SurvivalTable:
        """What these models say about these people."""
        accepts, valid = self.accepts[:, models[:, None], people], self.valid[:, people]
        return SurvivalTable.of(self.margins, accepts, valid, np.zeros(valid.shape), np.zeros(valid.shape))

    def shares(self, position: int, people: Positions) -> Floats:
        """(M,) share of the answers to these people that each model accepts at a margin; without any, all."""
        people = people[self.valid[position, people]]
        return self.accepts[position][:, people].mean(axis=1) if len(people) else np.ones(self.accepts.shape[1])


@dataclass(frozen=True, eq=False)
class Outcome:
    """What became of the promises of repeated calibrations; numbers are 0 where nothing was promised.

    Attributes:
        made: (F,) whether each calibration made the promise.
        broken: (F,) share of all models that accept less than the promised share of the calibration people.
        broken_beyond: (F,) share of all models that accept less than a share of all people of the world.
        refused: (F,) chance that the next person has an answer which the next model refuses.
        refused_answers: (F,) chance that the next model refuses the next answer.
    """

    made: Bools
    broken: Floats
    broken_beyond: Floats
    refused: Floats
    refused_answers: Floats


def simulate(
    world: World,
    promise: Promise,
    n_models: int,
    n_rows: int,
    fits: int,
    *,
    rule: Rule = decide,
    judged_by: World | None = None,
    beyond: float | None = None,
    seed: int = 0,
) -> Outcome:
    """Calibrate again and again, and count who breaks the promise.

    Args:
        world: Where calibration models and people come from.
        promise: What is asked for.
        n_models: Number of calibration models.
        n_rows: Number of calibration rows.
        fits: Number of calibrations.
        rule: The rule that chooses the margin.
        judged_by: Where the next model and the next person come from; None: the same world.
        beyond: Share of all people of the world that counts as kept; None: the promised survival.
        seed: Seed.
    """
    rng, judge = np.random.default_rng(seed), judged_by or world
    beyond = promise.survival if beyond is None else beyond
    everyone, by_all = np.arange(judge.valid.shape[1]), {}
    answered = judge.valid.mean(axis=1)
    outcomes = []
    for _ in range(fits):
        models = rng.integers(world.accepts.shape[1], size=n_models)
        people = rng.integers(world.accepts.shape[2], size=n_rows)
        verdict = rule(world.table(models, people), promise)
        if not verdict.made:
            outcomes.append((False, 0.0, 0.0, 0.0, 0.0))
            continue
        position = verdict.position
        if position not in by_all:
            by_all[position] = judge.shares(position, everyone)
        lost = 1.0 - float(by_all[position].mean())
        broken = float((judge.shares(position, people) < promise.survival - 1e-12).mean())
        broken_beyond = float((by_all[position] < beyond - 1e-12).mean())
        outcomes.append((True, broken, broken_beyond, lost * float(answered[position]), lost))
    return Outcome(*(np.array(column) for column in zip(*outcomes, strict=True)))


def mean_exceeds(values: Floats, limit: float) -> bool:
    """Whether the claim that the mean is at most a limit is rejected (one-sided t-test over calibrations)."""
    if np.ptp(values) < 1e-12:
        return bool(values[0] > limit + 1e-12)
    return bool(ttest_1samp(values, limit, alternative="greater").pvalue < LEVEL)


def share_exceeds(events: Bools, limit: float) -> bool:
    """Whether the claim that an event has at most some chance is rejected (exact binomial test over calibrations)."""
    return bool(binomtest(int(events.sum()), len(events), limit, alternative="greater").pvalue < LEVEL)


def claim_fails(outcome: Outcome, promise: Promise) -> bool:
    """Whether the simulation rejects what a promise claims, at the level .001.

    The chance that the next model breaks a promise is known for each calibration, so that the first and the last claim
    are about means. The second is about a share of calibrations.
    """
    if promise.guarantee == "next_model":
        return mean_exceeds(outcome.broken, 1 - promise.reliability)
    if promise.guarantee == "expected":
        return mean_exceeds(outcome.refused, 1 - promise.survival)
    return share_exceeds(outcome.broken > 1 - promise.reliability + 1e-9, 1 - promise.confidence)


def old_rule(table: SurvivalTable, promise: Promise) -> Verdict:
    """The least margin at which the mean over models, less two standard errors, keeps the survival."""
    shares = table.shares
    error = shares.std(axis=1, ddof=1) / np.sqrt(table.n_models)
    keeps = shares.mean(axis=1) - 2 * error >= promise.survival
    return Verdict(bool(keeps.any()), int(np.argmax(keeps)), "" if keeps.any() else "margin", 0.0)


# The settings of the simulation: three spreads between models, each with and without one catastrophic model in twenty.
SPREADS = (0.05, 0.3, 1.0)
CATASTROPHES = (0.0, 0.05)
PROMISES = (
    (Promise(0.9, 0.9), 9),
    (Promise(0.95, 0.9), 19),
    (Promise(0.95, 0.95), 19),
    (Promise(0.95, 0.9), 45),
    (Promise(0.9, 0.9, "most_models"), 22),
    (Promise(0.95, 0.9, "most_models"), 45),
    (Promise(0.9, guarantee="expected"), 19),
    (Promise(0.95, guarantee="expected"), 45),
)


@functools.cache
def setting(spread: float, catastrophes: float) -> World:
    """The world of a setting: with waves in the margin, and one person in ten who is difficult to answer."""
    return World.of(spread, catastrophes=catastrophes, waves=0.4, unanswered=0.1)


def claims_table(fits: int) -> str:
    """What was promised and what came of it, in every setting, as rows of a table."""
    lines = []
    for promise, n_models in PROMISES:
        cells = []
        for catastrophes in CATASTROPHES:
            for spread in SPREADS:
                outcome = simulate(setting(spread, catastrophes), promise, n_models, 100, fits)
                if promise.guarantee == "next_model":
                    value = outcome.broken.mean()
                elif promise.guarantee == "expected":
                    value = outcome.refused.mean()
                else:
                    value = (outcome.broken > 1 - promise.reliability + 1e-9).mean()
                cells.append(f"{value:.3f} ({outcome.made.mean():.2f})")
        name, limit = promise.guarantee, 1 - promise.reliability
        asked = f"{promise.survival:g}, {promise.reliability:g}"
        if name == "most_models":
            limit = 1 - promise.confidence
        elif name == "expected":
            limit, asked = 1 - promise.survival, f"{promise.survival:g}"
        lines.append(f"| `{name}` {asked}; {n_models} | {limit:.2f} | {' | '.join(cells)} |")
    return "\n".join(lines)


ROWS = (30, 60, 200, 800)


def everyone_table(fits: int) -> str:
    """How often a promise that was made does not hold for all people that the rows were drawn from, as rows."""
    lines = []
    for agreement, spread in ((1.0, 0.0), (1.0, 0.05), (1.0, 0.2), (0.95, 0.0), (0.95, 0.2), (0.6, 0.05), (0.6, 0.3)):
        world = World.of(spread, agreement=agreement, n_models=200, n_people=2000, n_margins=33)
        cells = []
        for n_rows in ROWS:
            outcome = simulate(world, Promise(0.95, 0.9), 19, n_rows, fits)
            cells.append(f"{outcome.broken_beyond.mean():.3f}")
        lines.append(f"| {agreement:g}, {spread:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    print(claims_table(count))
    print()
    print(everyone_table(count))
