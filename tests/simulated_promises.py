"""Worlds in which the truth of a promise is known: every model that may come next, and everyone who may ask.

A world is a finite set of models and people. Calibration models and rows are drawn from it with replacement, as the next
model and the next person are, so that the chance that a promise is broken is a count and not an estimate. Run this file
for the tables of ``docs/explanation/promise.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest, ttest_1samp

from avcg.guarantees.conformal import Promise, SurvivalTable, Verdict, decide

# A claim is rejected where what was seen, or worse, has at most this chance under it.
LEVEL = 0.001

Rule = Callable[[SurvivalTable, Promise], Verdict]


@dataclass(frozen=True, eq=False)
class World:
    """All models that may come next, and all people who may ask.

    Attributes:
        margins: (L,) the ladder of margins.
        accepts: (L, M, P) whether each model accepts each person's answer at each margin.
        valid: (L, P) whether the deployed model does.
    """

    margins: np.ndarray
    accepts: np.ndarray
    valid: np.ndarray

    @classmethod
    def of(
        cls,
        spread: float,
        *,
        catastrophes: float = 0.0,
        waves: float = 0.0,
        unanswered: float = 0.0,
        shift: float = 0.0,
        personal: float = 0.6,
        n_models: int = 400,
        n_people: int = 500,
        n_margins: int = 49,
        seed: int = 0,
    ) -> World:
        """Draw a world from a probit model of margin, person and model.

        Args:
            spread: Standard deviation between models, in units of that between answers.
            catastrophes: Share of models that accept only three in ten answers, whatever the margin.
            waves: Height of waves in the margin, by model and person, so that more margin may be worse.
            unanswered: Share of people without an answer at the smallest margin; these are the difficult ones.
            shift: How much more margin all people of this direction need.
            personal: Correlation between two models' answers of the same person, but for the spread; its root is the
                weight of the person. 1: all models find the same people difficult.
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
        latent = np.sqrt(personal) * person + np.sqrt(1 - personal) * cell + model[:, None] - shift
        fails = rng.permutation(n_models) < round(catastrophes * n_models)
        spared = rng.random((n_models, n_people)) < 0.3
        accepts = np.stack([latent + margin + waves * np.sin(5.0 * margin + phase) >= 0 for margin in margins])
        accepts &= ~fails[:, None] | spared
        difficult = person < np.quantile(person, unanswered) if unanswered else np.zeros(n_people, bool)
        # Of the difficult, some are answered from a larger margin on.
        valid = ~difficult | (rng.uniform(0, 8, n_people) < margins[:, None])
        return cls(margins, accepts, valid)

    def table(self, models: np.ndarray, people: np.ndarray) -> SurvivalTable:
        """What these models say about these people."""
        accepts, valid = self.accepts[:, models[:, None], people], self.valid[:, people]
        return SurvivalTable.of(self.margins, accepts, valid, np.zeros(valid.shape), np.zeros(valid.shape))

    def shares(self, position: int, people: np.ndarray) -> np.ndarray:
        """(M,) share of the answers to these people that each model accepts at a margin."""
        people = people[self.valid[position, people]]
        return self.accepts[position][:, people].mean(axis=1) if len(people) else np.ones(self.accepts.shape[1])


@dataclass(frozen=True, eq=False)
class Outcome:
    """What became of the promises of repeated fits.

    Attributes:
        made: (F,) whether each fit made the promise.
        broken: (F,) share of all models that accept less than the promised share of the calibration people; 0 where
            nothing was promised.
        broken_beyond: (F,) likewise, of all people of the world.
        refused: (F,) chance that the next person has an answer which the next model refuses; 0 where nothing was promised.
        refused_answers: (F,) chance that the next model refuses the next answer; 0 where nothing was promised.
        position: (F,) position of the chosen margin.
    """

    made: np.ndarray
    broken: np.ndarray
    broken_beyond: np.ndarray
    refused: np.ndarray
    refused_answers: np.ndarray
    position: np.ndarray


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
        beyond: Survival that is counted as kept for all people of the world; None: the promised one.
        seed: Seed.
    """
    rng, judge = np.random.default_rng(seed), judged_by or world
    survival = promise.survival
    beyond = survival if beyond is None else beyond
    everyone = np.arange(judge.valid.shape[1])
    by_all = np.stack([judge.shares(position, everyone) for position in range(len(judge.margins))])
    answered = judge.valid.mean(axis=1)
    rows = []
    for _ in range(fits):
        models = rng.integers(world.accepts.shape[1], size=n_models)
        people = rng.integers(world.accepts.shape[2], size=n_rows)
        verdict = rule(world.table(models, people), promise)
        if not verdict.made:
            rows.append((False, 0.0, 0.0, 0.0, 0.0, verdict.position))
            continue
        by_these = judge.shares(verdict.position, people)
        lost = float(1 - by_all[verdict.position].mean())
        rows.append(
            (
                True,
                (by_these < survival - 1e-12).mean(),
                (by_all[verdict.position] < beyond - 1e-12).mean(),
                lost * answered[verdict.position],
                lost,
                verdict.position,
            )
        )
    return Outcome(*(np.array(column) for column in zip(*rows, strict=True)))


def mean_exceeds(values: np.ndarray, limit: float) -> bool:
    """Whether the claim that the mean is at most a limit is rejected (one-sided t-test over fits)."""
    if np.ptp(values) < 1e-12:
        return bool(values[0] > limit + 1e-12)
    return bool(ttest_1samp(values, limit, alternative="greater").pvalue < LEVEL)


def share_exceeds(events: np.ndarray, limit: float) -> bool:
    """Whether the claim that an event has at most some chance is rejected (exact binomial test over fits)."""
    return bool(binomtest(int(events.sum()), len(events), limit, alternative="greater").pvalue < LEVEL)


def old_rule(table: SurvivalTable, promise: Promise) -> Verdict:
    """The least margin at which the mean over models, less two standard errors, keeps the survival."""
    shares = table.shares
    error = shares.std(axis=1, ddof=1) / np.sqrt(table.n_models)
    keeps = shares.mean(axis=1) - 2 * error >= promise.survival
    return Verdict(bool(keeps.any()), int(np.argmax(keeps)), "" if keeps.any() else "margin", 0.0)
