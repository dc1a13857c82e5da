"""The promise in worlds where the truth is known: every claim may be rejected, and wrong rules are.

A test fails where a claim is rejected at the level .001. Wrong rules, the old one among them, must be rejected: else
the simulation could not see that a rule is wrong.
"""

from pathlib import Path

import numpy as np
import pytest
import simulated_promises as simulated
from simulated_promises import CATASTROPHES, PROMISES, SPREADS, World, claim_fails, mean_exceeds, simulate

from avcg.guarantees.conformal import Promise, SurvivalTable, decide

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "promise.md"
FITS = 300

each_promise = pytest.mark.parametrize(
    ("promise", "n_models"), PROMISES, ids=[f"{promise.guarantee}-{promise.survival}-{m}" for promise, m in PROMISES]
)


class TestClaims:
    @each_promise
    @pytest.mark.parametrize("catastrophes", CATASTROPHES)
    def test_in_short(self, promise, n_models, catastrophes):
        for spread in SPREADS:
            outcome = simulate(simulated.setting(spread, catastrophes), promise, n_models, 60, 40)
            assert not claim_fails(outcome, promise)

    @pytest.mark.slow
    @each_promise
    @pytest.mark.parametrize("catastrophes", CATASTROPHES)
    @pytest.mark.parametrize("spread", SPREADS)
    @pytest.mark.parametrize("n_rows", [30, 60, 200])
    def test_at_length(self, promise, n_models, catastrophes, spread, n_rows):
        outcome = simulate(simulated.setting(spread, catastrophes), promise, n_models, n_rows, FITS, seed=n_rows)
        assert not claim_fails(outcome, promise)

    @pytest.mark.parametrize(
        ("promise", "n_models", "chance"),
        [
            (Promise(0.9, 0.9), 9, 0.1),
            (Promise(0.9, 0.9), 19, 0.1),
            (Promise(0.9, 0.95), 19, 0.05),
            (Promise(0.9, 0.9), 25, 2 / 26),
            (Promise(0.89, guarantee="expected"), 19, 0.1),
        ],
    )
    def test_where_nothing_is_rounded_it_is_exact(self, promise, n_models, chance):
        """Where each model accepts everything or nothing, the chance is 1 - k / (m + 1)."""
        outcome = simulate(World.of_thresholds(), promise, n_models, 100, FITS)
        value = outcome.refused if promise.guarantee == "expected" else outcome.broken
        assert outcome.made.all()
        assert not claim_fails(outcome, promise)
        assert value.mean() == pytest.approx(chance, abs=4 * value.std() / np.sqrt(FITS) + 0.005)

    @pytest.mark.parametrize(("promise", "n_models"), [(Promise(0.9, 0.9), 8), (Promise(0.9, 0.9, "most_models"), 21)])
    def test_too_few_models_promise_nothing(self, promise, n_models):
        assert not simulate(World.of_thresholds(), promise, n_models, 60, 20).made.any()

    def test_of_promises_that_are_made_more_may_be_broken(self):
        """Where most are declined, the chance is about made-and-broken. Among those made it is another."""
        outcome = simulate(simulated.setting(1.0, 0.05), Promise(0.95, 0.95), 19, 100, FITS)
        assert outcome.made.mean() < 0.5
        assert outcome.broken.mean() < 0.05 < outcome.broken.sum() / outcome.made.sum()

    def test_expected_survival_is_no_share_of_answers(self):
        """Where 12 of 20 people have no answer, more of the answers may be refused than of the people, as is said."""
        world, promise = World.of_thresholds(unanswered=0.6), Promise(0.89, guarantee="expected")
        outcome = simulate(world, promise, 19, 200, FITS)
        assert not mean_exceeds(outcome.refused, 0.11)
        assert mean_exceeds(outcome.refused_answers, 0.11)


class TestWrongRules:
    """What the simulation must reject."""

    def test_the_old_rule_breaks_what_it_promises(self):
        """Named setting: models differ by as much as answers do. The mean is kept, and models are not."""
        world, promise = World.of(1.0), Promise(0.9, 0.9)
        outcome = simulate(world, promise, 10, 200, 100, rule=simulated.old_rule)
        assert outcome.made.mean() > 0.9
        assert claim_fails(outcome, promise)
        assert not claim_fails(simulate(world, promise, 10, 200, 100), promise)

    def test_the_old_rule_with_a_catastrophic_model_in_twenty(self):
        """Five calibration models seldom contain it, and then their standard error is nothing."""
        outcome = simulate(simulated.setting(0.3, 0.05), Promise(0.9, 0.9), 5, 200, 100, rule=simulated.old_rule)
        assert claim_fails(outcome, Promise(0.9, 0.9))

    @pytest.mark.parametrize(
        ("promise", "n_models"),
        [
            (Promise(0.9, 0.9), 9),
            (Promise(0.9, 0.9), 19),
            (Promise(0.9, 0.9), 39),
            (Promise(0.9, 0.9, "most_models"), 22),
        ],
    )
    def test_a_rank_that_is_one_less(self, monkeypatch, promise, n_models):
        rank = Promise.rank
        monkeypatch.setattr(Promise, "rank", lambda self, count: rank(self, count) - 1)
        assert claim_fails(simulate(World.of_thresholds(), promise, n_models, 60, FITS), promise)

    def test_a_rank_of_m_instead_of_m_and_the_next(self, monkeypatch):
        """reliability * m, without the next model: nine of ten models are content, and the tenth is forgotten."""
        monkeypatch.setattr(Promise, "rank", lambda self, count: round(self.reliability * count))
        promise = Promise(0.9, 0.9)
        assert claim_fails(simulate(World.of_thresholds(), promise, 20, 60, FITS), promise)

    def test_the_rank_for_the_next_model_is_none_for_most_models(self, monkeypatch):
        monkeypatch.setattr(Promise, "rank", lambda self, count: np.ceil(0.9 * (count + 1)).astype(int))
        promise = Promise(0.9, 0.9, "most_models")
        assert claim_fails(simulate(World.of_thresholds(), promise, 45, 60, FITS), promise)

    def test_the_first_margin_that_is_kept_instead_of_the_one_from_which_on_it_is(self, monkeypatch):
        promise, world = Promise(0.9, 0.9), World.of_thresholds(windows=True)
        assert not claim_fails(simulate(world, promise, 19, 60, FITS), promise)

        def first(table, survival):
            kept = table.kept(survival)
            return np.where(kept.any(axis=0), kept.argmax(axis=0), len(kept))

        monkeypatch.setattr(SurvivalTable, "critical", first)
        assert claim_fails(simulate(world, promise, 19, 60, FITS), promise)

    def test_both_directions_in_one(self):
        """One direction is easy, the other is not: together they keep what the difficult one breaks."""
        easy, hard, promise = World.of(0.3, seed=1), World.of(0.3, shift=1.0), Promise(0.9, 0.9)
        accepts, valid = (
            np.concatenate([getattr(easy, name), getattr(hard, name)], axis=-1) for name in ("accepts", "valid")
        )
        both = World(hard.margins, accepts, valid)
        pooled = simulate(both, promise, 19, 200, 100, judged_by=hard_half(both))
        assert claim_fails(pooled, promise)
        assert not claim_fails(simulate(hard, promise, 19, 200, 100), promise)

    def test_expected_survival_without_the_model_that_was_not_seen(self, monkeypatch):
        monkeypatch.setattr(
            SurvivalTable,
            "expected_bound",
            lambda table: table.ever_refused.sum(axis=1) / table.n_rows / table.n_models,
        )
        promise = Promise(0.89, guarantee="expected")
        assert claim_fails(simulate(World.of_thresholds(), promise, 19, 60, FITS), promise)

    def test_expected_survival_without_later_margins(self):
        """Refusals at this margin alone, though a larger one may be worse: the least margin found is a lucky one."""

        def unaware(table, promise):
            refused = (table.answered[:, None] - table.accepted).astype(np.int64)
            changed = SurvivalTable(
                table.margins, table.answered, table.accepted, refused, table.refusals, table.distance, table.changes
            )
            return decide(changed, promise)

        promise, world = Promise(0.89, guarantee="expected"), lucky_margins()
        assert not claim_fails(simulate(world, promise, 19, 60, FITS), promise)
        assert claim_fails(simulate(world, promise, 19, 60, FITS, rule=unaware), promise)


def hard_half(both):
    """The same world, in which the people of the second half ask: who was calibrated by stands for one of them."""
    half = both.accepts.shape[-1] // 2
    accepts, valid = (
        np.concatenate([part[..., half:], part[..., half:]], axis=-1) for part in (both.accepts, both.valid)
    )
    return World(both.margins, accepts, valid)


def lucky_margins():
    """At each margin a sixth of the models refuses everything, others each time: one margin looks good by luck."""
    rng = np.random.default_rng(0)
    accepts = rng.random((400, 600)) > 1 / 6
    shape = (*accepts.shape, 20)
    return World(np.linspace(0, 1, 400), np.broadcast_to(accepts[..., None], shape), np.ones((400, 20), bool))


class TestEveryone:
    """From the calibration rows to the people that they were drawn from."""

    # All models find the same people difficult, so that nothing but the draw of the rows decides.
    SAME = World.of(0.0, agreement=1.0, n_models=20, n_people=2000, n_margins=33)

    @pytest.mark.parametrize("n_rows", [60, 200])
    def test_the_promise_is_about_the_rows_and_may_fail_for_everyone(self, n_rows):
        promise = Promise(0.95, 0.9)
        outcome = simulate(self.SAME, promise, 19, n_rows, FITS)
        assert outcome.broken.max() == 0
        assert mean_exceeds(outcome.broken_beyond, 0.1)
        assert not mean_exceeds(outcome.refused, 0.05), "what is missing is little: on average it is kept"

    @pytest.mark.parametrize("n_rows", [60, 200, 800])
    @pytest.mark.parametrize("error", [0.05, 0.2])
    def test_what_is_said_of_everyone_holds(self, n_rows, error):
        promise = Promise(0.95, 0.9)
        beyond = promise.for_everyone(n_rows, error)
        outcome = simulate(self.SAME, promise, 19, n_rows, FITS, beyond=beyond)
        assert outcome.made.all()
        assert not mean_exceeds(outcome.broken_beyond, error), "no model differs, so all of it is for the rows"

    @pytest.mark.slow
    @pytest.mark.parametrize("n_rows", [60, 200, 800])
    @pytest.mark.parametrize("spread", [0.05, 0.3, 1.0])
    @pytest.mark.parametrize("agreement", [0.6, 1.0])
    def test_what_is_said_of_everyone_holds_at_length(self, n_rows, spread, agreement):
        world, promise = World.of(spread, agreement=agreement, n_people=2000, n_models=200), Promise(0.95, 0.9)
        beyond = promise.for_everyone(n_rows, 0.05)
        assert not mean_exceeds(simulate(world, promise, 19, n_rows, FITS, beyond=beyond).broken_beyond, 0.15)

    @pytest.mark.parametrize(("survival", "n_rows"), [(0.98, 100), (0.975, 200), (0.965, 800)])
    def test_a_larger_promise_is_one_for_everyone(self, survival, n_rows):
        """What the page advises: 95 of 100 of everyone at 1 in 10, by asking 19 models for more at 1 in 20."""
        promise = Promise(survival, 0.95)
        assert promise.for_everyone(n_rows, 0.05) >= 0.95
        outcome = simulate(self.SAME, promise, 19, n_rows, FITS, beyond=0.95)
        assert outcome.made.mean() > 0.9
        assert not mean_exceeds(outcome.broken_beyond, 0.1)


@pytest.mark.slow
class TestPage:
    """The figures of the page are those of the simulation."""

    def test_claims(self):
        assert simulated.claims_table(300) in PAGE.read_text()

    def test_everyone(self):
        assert simulated.everyone_table(300) in PAGE.read_text()
