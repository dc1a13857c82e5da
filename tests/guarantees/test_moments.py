"""Promises calibrated by past moments: by brute force, in simulations of many histories, and in words."""

import numpy as np
import pytest
from scipy.stats import binomtest

from avcg.errors import DataError, SettingError
from avcg.guarantees.conformal import Promise
from avcg.guarantees.moments import PastMoments, past_for
from avcg.guarantees.statement import as_fraction, chance

LADDER = np.linspace(-1.0, 2.0, 7)


def past(accepted, answered=20, horizon=1, survival=0.95):
    accepted = np.asarray(accepted)
    counts = np.full(accepted.shape, answered)
    names = tuple(range(2000, 2000 + accepted.shape[1]))
    return PastMoments("yes", names, horizon, LADDER[: len(accepted)], counts, accepted, survival)


def histories(rng, n, moments, people=40):
    """Exchangeable moments: each has a shift of its own, which a larger margin overcomes."""
    shifts = rng.gumbel(0.0, 0.6, (n, moments))
    rate = 1 / (1 + np.exp(-4 * (LADDER[:, None, None] - shifts + 0.8)))
    return rng.binomial(people, rate), people


class TestCritical:
    def test_by_brute_force(self):
        rng = np.random.default_rng(0)
        for _ in range(200):
            answered = rng.integers(0, 25, (5, 4))
            accepted = rng.binomial(answered, 0.95)
            moments = PastMoments("yes", (1, 2, 3, 4), 1, LADDER[:5], answered, accepted, 0.9)
            for t, found in enumerate(moments.critical(0.9)):
                good = [answered[i, t] > 0 and 10 * accepted[i, t] >= 9 * answered[i, t] for i in range(5)]
                assert found == next((i for i in range(6) if all(good[i:])), 5)

    def test_people_of_a_moment_are_counted_as_they_are(self):
        """19 of 20 keep 0.95: no person who was not seen is added, because every moment has its own people."""
        assert past([[19]]).critical(0.95).tolist() == [0]
        assert past([[18]]).critical(0.95).tolist() == [1]


class TestDecision:
    def test_the_margin_that_all_moments_need_where_the_most_is_asked_for(self):
        moments = past([[10, 20, 20], [20, 10, 20], [20, 20, 20]])
        decided = moments.decide(Promise(0.95, 0.99).carried_by(3))
        assert (decided.made, decided.position) == (True, 2)

    def test_a_smaller_reliability_leaves_the_worst_moment_out(self):
        moments = past([[20, 20, 10], [20, 20, 20]])
        assert moments.decide(Promise(0.95, 0.5)).position == 0
        assert moments.decide(Promise(0.95, 0.75)).position == 1

    def test_no_margin_is_enough(self):
        decided = past([[20, 3]]).decide(Promise(0.95, 2 / 3))
        assert (decided.made, decided.reason, decided.reachable) == (False, "margin", 0.15)

    def test_what_is_reachable_is_kept_at_all_larger_margins_too(self):
        """97 of 100 at one margin do not help where the next larger one keeps 90."""
        decided = past([[80] * 4, [97] * 4, [90] * 4], answered=100).decide(Promise(0.95, 0.8))
        assert (decided.made, decided.reachable) == (False, 0.9)

    def test_most_models_needs_more_moments(self):
        promise = Promise(0.95, 0.9, "most_models").carried_by(3)
        decided = past([[20, 20, 20]]).decide(promise)
        assert (decided.made, decided.reason) == (False, "moments")
        assert "needs 22 past moments, and there are 3" in str(past([[20, 20, 20]]).statement(promise, decided))

    @pytest.mark.parametrize("moments", range(1, 60))
    def test_t_moments_carry_t_of_t_and_1_exactly(self, moments):
        carried = Promise(0.95, 0.999).carried_by(moments)
        assert as_fraction(carried.reliability) * (moments + 1) == moments
        assert carried.rank(moments) == moments
        assert chance(carried.reliability) == f"1 in {moments + 1}"


class TestCoverage:
    @pytest.mark.parametrize(("moments", "reliability"), [(4, 0.8), (9, 0.9), (12, 0.99)])
    def test_promises_made_and_broken_are_no_more_than_claimed(self, moments, reliability):
        """The last moment of each history judges what the others calibrated."""
        accepted, people = histories(np.random.default_rng(moments), 4000, moments + 1)
        broken = made = 0
        for h in range(4000):
            known = past(accepted[:, h, :moments], people)
            promise = Promise(0.9, reliability).carried_by(moments)
            decided = known.decide(promise)
            made += decided.made
            broken += decided.made and accepted[decided.position, h, moments] < 0.9 * people
        claimed = 1 - promise.reliability
        assert made > 2000
        assert binomtest(broken, 4000, claimed, alternative="greater").pvalue > 0.001
        assert broken > 0.3 * claimed * 4000, "it is not kept by being far too careful"

    def test_one_rank_less_breaks_it(self):
        """A mutant: the last but one of the critical margins."""
        accepted, people = histories(np.random.default_rng(1), 4000, 10)
        broken = 0
        for h in range(4000):
            known = past(accepted[:, h, :9], people)
            decided = known.decide(Promise(0.9, 0.8))
            broken += decided.made and accepted[decided.position, h, 9] < 0.9 * people
        assert binomtest(broken, 4000, 0.1, alternative="greater").pvalue < 0.001


class TestWords:
    def said(self, reliability=0.95, horizon=1, accepted=((20, 20, 20, 20),)):
        moments = past(accepted, horizon=horizon)
        promise = Promise(0.95, reliability).carried_by(4)
        return str(moments.statement(promise, moments.decide(promise)))

    def test_what_the_past_can_carry(self):
        assert self.said() == (
            "At most a 1 in 5 chance that the model that comes one moment later accepts fewer than 95 of 100 people who"
            " followed this advice; calibrated by 4 past moments and 80 people advised at them, which can carry no"
            " smaller chance. Moments of one history are not independent of each other."
        )
        assert "which can carry" not in self.said(reliability=0.5)
        assert "the model that comes 3 moments later" in self.said(horizon=3)

    def test_no_promise(self):
        assert self.said(accepted=((20, 20, 20, 3),)) == (
            "No promise for the target 'yes' that the model that comes one moment later accepts 95 of 100 people: no"
            " margin was enough. With 4 past moments, at most 0.15 could be promised. Ask for less, or train by"
            " hypotheses that differ more."
        )


class TestInputs:
    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"answered": np.ones((2, 1))}, "none of them 0"),
            ({"accepted": np.array([[21]])}, "more acceptances than answers"),
            ({"moments": ()}, "none of them 0"),
        ],
    )
    def test_counts_that_do_not_fit(self, change, says):
        given = {"target": 1, "moments": (1,), "horizon": 1, "margins": LADDER[:1], "survival": 0.9}
        given |= {"answered": np.array([[20]]), "accepted": np.array([[20]]), **change}
        with pytest.raises(DataError, match=says):
            PastMoments(**given)

    @pytest.mark.parametrize(
        ("source", "classes", "margins", "promise", "says"),
        [
            ("backtest.json", ["yes"], LADDER[:2], Promise(), "what avcg.backtest returns. Got a str"),
            (past([[20], [20]]), ["no"], LADDER[:2], Promise(), "aims at 'yes', which is none of 'no'"),
            (past([[20], [20]]), ["yes"], LADDER[:3], Promise(), "are not those of this recipe"),
            (past([[20], [20]]), ["yes"], LADDER[1:3], Promise(), "are not those of this recipe"),
            (past([[20], [20]]), ["yes"], LADDER[:2], Promise(guarantee="expected"), "Leave 'calibrate_on' out"),
            (
                past([[20], [20]]),
                ["yes"],
                LADDER[:2],
                Promise(0.9),
                r"asked for a survival of 0\.95, and this.* 0\.9\.",
            ),
        ],
    )
    def test_a_backtest_that_does_not_fit(self, source, classes, margins, promise, says):
        with pytest.raises(SettingError, match=says):
            past_for(source, margins, classes, promise)
