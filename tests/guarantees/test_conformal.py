"""The promise, against its definitions: counted by hand, enumerated, and for any table whatever."""

from dataclasses import replace
from fractions import Fraction
from itertools import permutations
from math import inf

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import beta, binom, kstest
from torch import nn

from avcg.errors import SettingError
from avcg.guarantees.bounds import clopper_pearson
from avcg.guarantees.conformal import Promise, SurvivalTable, confident_rank, decide
from avcg.hypotheses.base import seeded
from avcg.hypotheses.finite import FiniteSet
from avcg.hypotheses.predictors import Stacked
from avcg.hypotheses.split import HypothesisSplit

SHARES = [0.3, 0.5, 0.6, 0.75, 0.8, 0.9]


def table_of(accepts, valid=None):
    """The table of (L, m, n) acceptances; without ``valid``, everyone has an answer."""
    accepts = np.asarray(accepts, bool)
    valid = np.ones(accepts.shape[::2], bool) if valid is None else np.asarray(valid, bool)
    ladder = np.arange(float(len(accepts)))
    return SurvivalTable.of(ladder, accepts, valid, np.ones(valid.shape), np.full(valid.shape, 2))


@st.composite
def judgements(draw, max_models=6, max_rows=7):
    """(L, m, n) acceptances and (L, n) validity, in no order whatever."""
    n_margins, m, n = draw(st.integers(1, 4)), draw(st.integers(1, max_models)), draw(st.integers(1, max_rows))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    share = rng.random((1, m, 1)) ** 0.3
    accepts = rng.random((n_margins, m, n)) < share
    if draw(st.booleans()):
        accepts = np.logical_or.accumulate(accepts, axis=0)
    return accepts, rng.random((n_margins, n)) < draw(st.sampled_from([0.7, 1.0]))


class TestTable:
    def test_it_counts_by_row_model_and_margin(self):
        #              margin 0, models a and b      margin 1
        accepts = [[[1, 0, 1], [1, 1, 0]], [[1, 0, 1], [0, 1, 1]]]
        table = SurvivalTable.of(
            np.array([0.5, 1.5]),
            np.array(accepts, bool),
            np.array([[1, 1, 0], [1, 1, 1]], bool),
            np.array([[1.0, 2.0, 9.0], [1.0, 2.0, 6.0]]),
            np.array([[1, 1, 7], [1, 2, 3]]),
        )
        assert (table.n_models, table.n_rows) == (2, 3)
        assert table.answered.tolist() == [2, 3]
        assert table.accepted.tolist() == [[1, 2], [2, 2]]
        assert table.ever_refused.tolist() == [[1, 1], [1, 1]]
        assert table.refusals.tolist() == [1, 1, 0]
        assert table.distance.tolist() == [1.5, 3.0]
        assert table.changes.tolist() == [1.0, 2.0]
        np.testing.assert_allclose(table.survival, [0.75, 2 / 3])

    def test_without_rows_nothing_is_kept(self):
        table = table_of(np.ones((3, 4, 0)))
        assert table.critical(0.5).tolist() == [3] * 4
        assert decide(table, Promise(0.5, 0.5)).reason == "rows"

    @given(judgements(), st.sampled_from(SHARES))
    def test_critical_margins_by_definition(self, judged, survival):
        """The least margin from which on a model accepts ``survival`` of the answers, one more counted as refused."""
        accepts, valid = judged
        n_margins = len(accepts)
        share = Fraction(str(survival))
        for model, critical in enumerate(table_of(accepts, valid).critical(survival)):
            keeps = []
            for margin in range(n_margins):
                answered = sum(valid[margin])
                accepted = sum(a and v for a, v in zip(accepts[margin, model], valid[margin], strict=True))
                keeps.append(answered > 0 and Fraction(int(accepted), int(answered) + 1) >= share)
            assert critical == min((i for i in range(n_margins) if all(keeps[i:])), default=n_margins)

    @given(judgements())
    def test_the_expected_bound_by_definition(self, judged):
        accepts, valid = judged
        n_margins, m, n = accepts.shape
        for margin, bound in enumerate(table_of(accepts, valid).expected_bound()):
            refused = sum(
                any(valid[later, i] and not accepts[later, j, i] for later in range(margin, n_margins))
                for j in range(m)
                for i in range(n)
            )
            assert bound == pytest.approx((refused + n + m + 1) / ((n + 1) * (m + 1)))


class TestRank:
    @pytest.mark.parametrize("reliability", [0.5, 0.6, 0.75, 0.8, 0.9])
    @pytest.mark.parametrize("values", [(1, 2, 3, 4, 5), (1, 1, 2, 2, 3), (0, 0, 0, 0, 0), (1, 2, 3, inf, inf)])
    def test_by_all_orders_of_exchangeable_values(self, values, reliability):
        """The last of five values exceeds the k-th of the others in at most 1 - reliability of their orders."""
        rank = Promise(reliability=reliability).rank(4)
        if rank is None:
            assert reliability == 0.9
            return
        orders = list(permutations(values))
        above = [order[-1] > sorted(order[:-1])[rank - 1] for order in orders]
        allowed = 1 - Fraction(str(reliability))
        assert Fraction(sum(above), len(orders)) <= allowed
        if len(set(values)) == 5 and rank > 1:
            above = [order[-1] > sorted(order[:-1])[rank - 2] for order in orders]
            assert Fraction(sum(above), len(orders)) > allowed, "a smaller rank would not do"

    @pytest.mark.parametrize("following", [1, 2, 3])
    def test_several_next_models_at_once(self, following):
        """With the largest of m critical margins, all of the next M lie below it in a share m / (m + M) of orders."""
        orders = list(permutations(range(3 + following)))
        below = [max(order[3:]) < max(order[:3]) for order in orders]
        assert Promise(reliability=0.75).rank(3) == 3
        assert Fraction(sum(below), len(orders)) == Fraction(3, 3 + following)

    def test_decimals_are_meant_as_they_are_written(self):
        """As floats, 0.9 / (1 - 0.9) is a little more than 9, and 0.56 * 25 a little more than 14."""
        assert 0.9 / (1 - 0.9) > 9
        assert 0.56 * 25 > 14
        assert Promise(reliability=0.9).needed_models == 9
        assert Promise(reliability=0.56).rank(24) == 14
        assert Promise(reliability=0.55).rank(99) == 55
        assert Promise(reliability=0.999).rank(999) == 999

    @given(st.integers(1, 200), st.sampled_from([0.5, 0.8, 0.9, 0.95, 0.99]), st.sampled_from([0.5, 0.8, 0.9, 0.95]))
    def test_with_confidence_it_is_the_least_that_the_binomial_allows(self, m, reliability, confidence):
        rank = confident_rank(m, reliability, confidence)
        allowed = [k for k in range(1, m + 1) if binom.sf(k - 1, m, reliability) <= 1 - confidence + 1e-9]
        assert (rank or None) == (min(allowed) if allowed else None)
        if rank:  # the share of all models below the k-th of m is a Beta variable
            assert beta.cdf(reliability, rank, m + 1 - rank) <= 1 - confidence + 1e-9

    def test_the_share_of_models_that_keep_it_is_spread_like_a_beta_variable(self):
        """Given one calibration, the k-th of m critical margins is exceeded by a share of Beta(k, m + 1 - k) of all."""
        promise, m = Promise(0.9, 0.9), 19
        ladder = np.linspace(0, 1, 2001)
        rng, kept = np.random.default_rng(0), []
        for _ in range(400):
            accepted = 30 * (ladder[:, None] >= rng.random(m))
            zeros = np.zeros(len(ladder))
            table = SurvivalTable(
                ladder, np.full(len(ladder), 30), accepted, 0 * accepted, np.zeros(30, int), zeros, zeros
            )
            kept.append(ladder[decide(table, promise).position])
        assert kstest(kept, beta(18, 2).cdf).pvalue > 0.001
        assert kstest(kept, beta(17, 3).cdf).pvalue < 0.001
        assert np.mean(np.array(kept) < 0.9) == pytest.approx(beta(18, 2).cdf(0.9), abs=0.1)


class TestNeeded:
    @pytest.mark.parametrize(
        ("reliability", "needed"), [(0.5, 1), (0.8, 4), (0.9, 9), (0.95, 19), (0.98, 49), (0.99, 99)]
    )
    def test_models_that_carry_a_reliability(self, reliability, needed):
        promise = Promise(reliability=reliability)
        assert promise.needed_models == needed
        assert promise.rank(needed) == needed
        assert promise.rank(needed - 1) is None

    @pytest.mark.parametrize(("reliability", "needed"), [(0.8, 11), (0.9, 22), (0.95, 45), (0.99, 230)])
    def test_models_that_carry_it_with_confidence(self, reliability, needed):
        promise = Promise(reliability=reliability, guarantee="most_models", confidence=0.9)
        assert promise.needed_models == needed
        assert promise.rank(needed) == needed
        assert promise.rank(needed - 1) is None

    @pytest.mark.parametrize(("survival", "needed"), [(0.8, 4), (0.9, 9), (0.93, 14), (0.95, 19), (0.99, 99)])
    def test_rows_that_carry_a_survival(self, survival, needed):
        promise = Promise(survival, 0.5)
        assert promise.needed_rows == needed
        for n, made in ((needed, True), (needed - 1, False)):
            assert decide(table_of(np.ones((1, 3, n))), promise).made == made

    @pytest.mark.parametrize("survival", [0.5, 0.6, 0.8, 0.9, 0.93, 0.95, 0.97])
    @pytest.mark.parametrize("n", [10, 30, 100, 500, 10**6])
    def test_models_and_rows_that_carry_an_expected_survival(self, survival, n):
        """By definition: the least m for which no refusal at all would do."""
        promise = Promise(survival, guarantee="expected")
        allowed = 1 - Fraction(str(survival))
        enough = [m for m in range(1, 2000) if Fraction(n + m + 1, (n + 1) * (m + 1)) <= allowed]
        if enough:
            assert promise.needed_models_for(n) == enough[0]
            assert n >= promise.needed_rows
        else:
            assert n < promise.needed_rows or promise.needed_models_for(n) >= 2000

    def test_nineteen_models_never_carry_an_expected_survival_of_95(self):
        promise = Promise(0.95, guarantee="expected")
        assert promise.needed_models == 20
        assert decide(table_of(np.ones((1, 19, 5000))), promise).reason == "models"
        assert decide(table_of(np.ones((1, 20, 5000))), promise).made
        assert Promise(0.99, guarantee="expected").needed_models == 100

    @pytest.mark.parametrize(
        ("n", "train", "calibration", "test", "reliability"),
        [
            (10, 4, 4, 2, 0.8),
            (20, 8, 9, 3, 0.9),
            (40, 16, 19, 5, 0.95),
            (100, 40, 47, 13, 0.97),
            (200, 80, 95, 25, 0.98),
        ],
    )
    def test_what_a_number_of_hypotheses_can_promise(self, n, train, calibration, test, reliability):
        """The table of the page on the promise, by the split that a fit makes."""
        network = nn.utils.skip_init(nn.Linear, 1, 2)
        network.weight.data.zero_()
        members = FiniteSet(Stacked(network, {"bias": torch.randn(n, 2, generator=seeded(None))}), None, None)
        split = HypothesisSplit.of(members)
        assert (len(split.train), len(split.calibration), len(split.test)) == (train, calibration, test)
        assert Promise(reliability=reliability).needed_models <= calibration
        assert Promise(reliability=round(reliability + 0.01, 2)).needed_models > calibration


class TestDecide:
    @given(judgements(max_models=8), st.sampled_from(SHARES), st.sampled_from(SHARES))
    def test_of_exchangeable_models_few_break_what_is_promised(self, judged, survival, reliability):
        """For any table at all: each model in turn is the next one, and the rule sees the others.

        The share of turns in which a promise is made and broken is at most 1 - reliability: the proof, counted.
        """
        accepts, valid = judged
        turns = accepts.shape[1]
        assume(turns >= 2)
        broken = 0
        for following in range(turns):
            others = np.delete(accepts, following, axis=1)
            verdict = decide(table_of(others, valid), Promise(survival, reliability))
            answered = valid[verdict.position]
            kept = accepts[verdict.position, following] & answered
            broken += verdict.made and kept.sum() < Fraction(str(survival)) * int(answered.sum())
        assert Fraction(broken, turns) <= 1 - Fraction(str(reliability))

    @given(judgements(max_models=5, max_rows=6), st.sampled_from([0.1, 0.2, 0.3, 0.4, 0.5]))
    def test_of_exchangeable_rows_and_models_few_cells_are_refused(self, judged, survival):
        """For any table at all: each row and model in turn is the next one. The share of turns in which an expected
        survival is promised and the next model refuses the next row's answer is at most 1 - survival."""
        accepts, valid = judged
        _, m, n = accepts.shape
        assume(m >= 2)
        assume(n >= 2)
        refused = 0
        for model in range(m):
            for row in range(n):
                table = table_of(np.delete(np.delete(accepts, model, 1), row, 2), np.delete(valid, row, 1))
                verdict = decide(table, Promise(survival, guarantee="expected"))
                at = verdict.position
                refused += verdict.made and valid[at, row] and not accepts[at, model, row]
        assert Fraction(int(refused), m * n) <= 1 - Fraction(str(survival))

    @given(
        judgements(),
        st.sampled_from(SHARES),
        st.sampled_from(SHARES),
        st.sampled_from(["next_model", "most_models", "expected"]),
    )
    def test_a_smaller_promise_needs_no_more_margin(self, judged, survival, reliability, guarantee):
        promise = Promise(survival, reliability, guarantee, confidence=0.5)
        table = table_of(*judged)
        verdict = decide(table, promise)
        for less in (replace(promise, survival=survival / 2), replace(promise, reliability=reliability / 2)):
            smaller = decide(table, less)
            assert smaller.made >= verdict.made
            if verdict.made:
                assert smaller.position <= verdict.position

    @given(judgements(), st.randoms(use_true_random=False), st.sampled_from(["next_model", "most_models", "expected"]))
    def test_the_order_of_rows_and_models_is_nothing(self, judged, random, guarantee):
        accepts, valid = judged
        models, rows = list(range(accepts.shape[1])), list(range(accepts.shape[2]))
        random.shuffle(models)
        random.shuffle(rows)
        promise = Promise(0.6, 0.6, guarantee, confidence=0.5)
        shuffled = table_of(accepts[:, models][:, :, rows], valid[:, rows])
        assert decide(table_of(accepts, valid), promise) == decide(shuffled, promise)

    @given(judgements(), st.sampled_from(["next_model", "most_models", "expected"]))
    def test_what_is_reachable_is_granted_and_no_more(self, judged, guarantee):
        table = table_of(*judged)
        promise = Promise(0.999, 0.5, guarantee, confidence=0.5)
        reachable = decide(table, replace(promise, survival=0.001)).reachable
        for survival in (reachable - 1e-4, reachable - 0.1, reachable + 1e-4, reachable + 0.1):
            if not 0.001 < survival < 1 or abs(round(survival, 5) - reachable) < 1e-6:
                continue
            assert decide(table, replace(promise, survival=round(survival, 5))).made == (survival < reachable)

    def test_the_least_margin_that_is_enough_for_k_models(self):
        """Ten margins, nine models, each content from its own margin on: the last of them decides, then the eighth."""
        accepts = np.repeat(np.arange(10)[:, None] >= np.arange(9), 20, axis=1).reshape(10, 9, 20)
        assert decide(table_of(accepts), Promise(0.9, 0.9)).position == 8
        assert decide(table_of(accepts), Promise(0.9, 0.8)).position == 7
        assert decide(table_of(accepts), Promise(0.9, 0.05)).position == 0

    def test_a_model_that_is_content_for_a_while_only_does_not_count(self):
        """Non-monotone: content at margin 0, not at 1, again from 2 on. Its critical margin is 2."""
        accepts = np.array([True, False, True])[:, None, None] & np.ones((3, 4, 20), bool)
        table = table_of(accepts)
        assert table.critical(0.9).tolist() == [2] * 4
        assert decide(table, Promise(0.9, 0.8)).position == 2

    @pytest.mark.parametrize(
        ("shape", "promise", "reason"),
        [
            ((8, 100), Promise(0.9, 0.9), "models"),
            ((9, 8), Promise(0.9, 0.9), "rows"),
            ((8, 8), Promise(0.9, 0.9), "models"),
            ((9, 9), Promise(0.9, 0.9), ""),
            ((21, 100), Promise(0.9, 0.9, "most_models"), "models"),
            ((22, 100), Promise(0.9, 0.9, "most_models"), ""),
            ((9, 10**4), Promise(0.9, guarantee="expected"), "models"),
            ((10, 10), Promise(0.9, guarantee="expected"), "models"),
            ((19, 19), Promise(0.9, guarantee="expected"), ""),
            ((10**4, 9), Promise(0.9, guarantee="expected"), "rows"),
        ],
    )
    def test_what_stands_in_the_way_when_no_answer_is_refused(self, shape, promise, reason):
        verdict = decide(table_of(np.ones((1, *shape))), promise)
        assert verdict.reason == reason
        assert verdict.made == (not reason)

    @pytest.mark.parametrize("guarantee", ["next_model", "most_models", "expected"])
    def test_answers_that_all_models_refuse_stand_in_the_way(self, guarantee):
        accepts = np.ones((3, 50, 50), bool)
        accepts[:2] = False
        accepts[2, :, :20] = False
        verdict = decide(table_of(accepts), Promise(0.9, 0.9, guarantee))
        assert (verdict.made, verdict.reason, verdict.position) == (False, "margin", 2)
        assert 0.55 < verdict.reachable < 0.6

    def test_rows_without_an_answer_are_not_judged(self):
        """Of 100 people 80 have an answer: the promise is about these, whatever models say of the others."""
        accepts, valid = np.ones((1, 9, 100), bool), np.ones((1, 100), bool)
        valid[:, :20] = accepts[:, :, :20] = False
        table = table_of(accepts, valid)
        assert decide(table, Promise(0.95, 0.9)).made
        assert table.refusals.sum() == 0

    def test_too_few_models_aim_at_what_all_of_them_accept(self):
        accepts = np.arange(5)[:, None, None] >= np.array([0, 1, 3])[None, :, None] * np.ones((5, 3, 30))
        verdict = decide(table_of(accepts), Promise(0.9, 0.9))
        assert (verdict.made, verdict.reason, verdict.position, verdict.reachable) == (False, "models", 3, 0.0)


class TestForEveryone:
    def test_it_is_the_bound_of_what_was_counted(self):
        promise = Promise(0.95, 0.9)
        assert promise.for_everyone(200) == pytest.approx(float(clopper_pearson(191, 200, 0.95)))
        assert promise.for_everyone(200, error=0.01) == pytest.approx(float(clopper_pearson(191, 200, 0.99)))
        assert promise.for_everyone(18) == 0, "too few rows to promise anything"
        assert Promise(0.95, guarantee="expected").for_everyone(30) == 0.95, "this is about everyone as it is"

    def test_fewer_than_59_people_never_carry_95_of_100_for_everyone(self):
        best = Promise(0.999, 0.9)
        assert [float(clopper_pearson(n, n, 0.95)) >= 0.95 for n in (58, 59)] == [False, True]
        assert best.for_everyone(59) == 0, "and the promise itself must be one that 59 people carry"
        assert Promise(0.98, 0.9).for_everyone(59) >= 0.95

    def test_it_comes_close_with_many_rows(self):
        shares = [Promise(0.95, 0.9).for_everyone(n) for n in (19, 60, 200, 800, 5000, 10**6)]
        assert shares == sorted(shares)
        assert 0.949 < shares[-1] < 0.95


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Promise(survival=1.0), "'survival' of a promise must be a number in"),
        (lambda: Promise(survival=0), "'survival' of a promise must be a number in"),
        (lambda: Promise(reliability="0.9"), "'reliability' of a promise must be a number in"),
        (lambda: Promise(reliability=True), "'reliability' of a promise must be a number in"),
        (lambda: Promise(reliability=float("nan")), "'reliability' of a promise must be a number in"),
        (lambda: Promise(confidence=-0.1), "'confidence' of a promise must be a number in"),
        (lambda: Promise(guarantee="always"), "must be 'next_model', 'most_models' or 'expected'"),
        (lambda: Promise().for_everyone(0), "'n_rows' of a promise"),
        (lambda: Promise().for_everyone(100, error=0.0), "'confidence' must be in"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(SettingError, match=message):
        call()
