"""The rule of the promise, pinned on small tables whose answer can be counted by hand."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import binom

from avcg.guarantees.conformal import Promise, SurvivalTable, confident_rank, decide
from avcg.method.calibration import OPEN, Calibration, Direction

# Half of the rows by half of the models: few of each can carry it.
HALF = Promise(survival=0.5, reliability=0.5)


def table_of(accepts, valid=None):
    """A table with margins 0, 1, 2, ... from (L, m, n) what models say of answers; by default all answers are valid."""
    accepts = np.asarray(accepts, bool)
    shape = (len(accepts), accepts.shape[2])
    valid = np.ones(shape, bool) if valid is None else np.asarray(valid, bool)
    return SurvivalTable.of(np.arange(len(accepts), dtype=float), accepts, valid, np.ones(shape), np.ones(shape))


def by_model(*margins, n=20):
    """Models that accept all answers at the margins marked in a text, one text for each model, such as ``".##"``."""
    said = np.array([[mark == "#" for mark in model] for model in margins])
    return table_of(np.repeat(said.T[:, :, None], n, axis=2))


def by_rows(*counts, n=20):
    """One margin, and models that accept so many of the n answers."""
    return table_of([[np.arange(n) < count for count in counts]])


class TestRank:
    @pytest.mark.parametrize("reliability", ["0.5", "0.8", "0.9", "0.95"])
    def test_it_is_the_least_that_a_uniform_rank_allows(self, reliability):
        """The next model's rank is uniform over 1 to m + 1: it is at most k with a chance of k / (m + 1)."""
        for m in range(1, 60):
            enough = [k for k in range(1, m + 1) if Fraction(k, m + 1) >= Fraction(reliability)]
            assert Promise(reliability=float(reliability)).rank(m) == (enough[0] if enough else None)

    @pytest.mark.parametrize(("reliability", "confidence"), [(0.9, 0.9), (0.95, 0.9), (0.5, 0.8), (0.9, 0.99)])
    def test_with_confidence_it_is_the_least_that_the_binomial_allows(self, reliability, confidence):
        promise = Promise(reliability=reliability, guarantee="most_models", confidence=confidence)
        for m in range(1, 80):
            tails = binom.sf(np.arange(1, m + 1) - 1, m, reliability)
            enough = 1 + np.flatnonzero(tails <= 1 - confidence + 1e-12)
            assert confident_rank(m, reliability, confidence) == (enough[0] if len(enough) else None)
            assert (promise.rank(m) is not None) == (m >= promise.needed_models)

    @pytest.mark.parametrize(
        ("settings", "models", "rows"),
        [
            ({"survival": 0.9, "reliability": 0.9}, 9, 9),
            ({"survival": 0.95, "reliability": 0.8}, 4, 19),
            ({"survival": 0.95, "guarantee": "expected"}, 20, 20),
            ({"survival": 0.99, "guarantee": "expected"}, 100, 100),
            ({"survival": 0.99, "reliability": 0.9, "guarantee": "most_models", "confidence": 0.9}, 22, 99),
        ],
    )
    def test_models_and_rows_that_carry_a_promise(self, settings, models, rows):
        promise = Promise(**settings)
        assert (promise.needed_models, promise.needed_rows) == (models, rows)


class TestMargin:
    def test_it_is_the_least_that_enough_models_keep(self):
        said = by_model("####", ".###", ".###", "..##")
        chosen = {share: decide(said, Promise(0.5, share)).position for share in (0.2, 0.4, 0.6, 0.8)}
        assert chosen == {0.2: 0, 0.4: 1, 0.6: 1, 0.8: 2}

    def test_a_margin_counts_only_if_no_larger_one_fails(self):
        """Survival need not grow with the margin, and what fails at more margin was luck at less."""
        verdict = decide(by_model("#.##", "#.##", "#.##"), HALF)
        assert verdict.made
        assert verdict.position == 2

    def test_where_no_margin_is_enough_nothing_is_promised(self):
        verdict = decide(by_model("##.", "##.", "###", n=30), HALF)
        assert not verdict.made
        assert verdict.reason == "margin"

    def test_it_then_comes_as_close_as_it_can(self):
        accepts = np.zeros((3, 3, 20), bool)
        for margin, count in enumerate((4, 9, 6)):
            accepts[margin, :, :count] = True
        verdict = decide(table_of(accepts), Promise(0.95, 0.5))
        assert not verdict.made
        assert verdict.position == 1
        assert verdict.reachable == pytest.approx(6 / 21)

    @pytest.mark.parametrize(("n", "count", "kept"), [(9, 9, True), (10, 9, False), (10, 10, True), (19, 18, True)])
    def test_the_row_not_seen_counts_as_refused(self, n, count, kept):
        """Nine in ten of the rows that were seen are fewer than nine in ten with the next one."""
        assert decide(by_rows(*[count] * 9, n=n), Promise(0.9, 0.9)).made == kept

    def test_answers_that_the_deployed_model_refuses_are_not_judged(self):
        valid = np.arange(20)[None] < 10
        kept = table_of([[valid[0]] * 3], valid)
        assert kept.answered.tolist() == [10]
        assert decide(kept, Promise(0.9, 0.5)).made
        none = table_of(np.ones((1, 3, 20)), np.zeros((1, 20)))
        assert not decide(none, HALF).made

    def test_too_few_models_promise_nothing(self):
        verdict = decide(by_model(*["##"] * 8), Promise(0.5, 0.9))
        assert (verdict.made, verdict.reason) == (False, "models")
        assert decide(by_model(*["##"] * 9), Promise(0.5, 0.9)).made

    def test_too_few_rows_promise_nothing(self):
        verdict = decide(by_model(*["##"] * 9, n=8), Promise(0.9, 0.9))
        assert (verdict.made, verdict.reason) == (False, "rows")
        assert decide(by_model(*["##"] * 9, n=9), Promise(0.9, 0.9)).made


class TestExpected:
    """The bound of the next person and the next model, against the array with a row and a column not seen."""

    def bound_of(self, accepts):
        refused_later = np.logical_or.accumulate(~accepts[::-1], axis=0)[::-1]
        return [np.pad(refused, (0, 1), constant_values=True).mean() for refused in refused_later]

    def test_it_is_the_share_refused_with_what_was_not_seen(self):
        accepts = np.random.default_rng(0).random((4, 7, 11)) < np.array([0.6, 0.8, 0.9, 1.0])[:, None, None]
        np.testing.assert_allclose(table_of(accepts).expected_bound(), self.bound_of(accepts))
        assert (np.diff(self.bound_of(accepts)) <= 0).all(), "it falls with the margin"

    def test_a_promise_is_made_exactly_where_the_bound_allows_it(self):
        accepts = np.ones((3, 30, 40), bool)
        accepts[0, :15, :10], accepts[1, :3, :4] = False, False
        bounds = self.bound_of(accepts)
        for position, bound in enumerate(bounds):
            promise = Promise(survival=round(1 - bound, 4) - 1e-4, guarantee="expected")
            verdict = decide(table_of(accepts), promise)
            assert (verdict.made, verdict.position) == (True, position)
            assert verdict.reachable == pytest.approx(1 - bounds[-1])
        assert not decide(table_of(accepts), Promise(survival=0.95, guarantee="expected")).made

    @pytest.mark.parametrize(("n", "m", "survival"), [(4, 4, 0.64), (9, 9, 0.81), (3, 1, 0.375)])
    def test_a_bound_of_exactly_what_is_allowed_is_enough(self, n, m, survival):
        """Where nobody is refused, n m of the (n + 1) (m + 1) cells are those that were seen."""
        table = table_of(np.ones((1, m, n)))
        assert decide(table, Promise(survival=survival, guarantee="expected")).made
        assert not decide(table, Promise(survival=survival + 0.001, guarantee="expected")).made


class TestDirections:
    def calibration(self, *tables, n_models=9, countable=True):
        directions = tuple(Direction(label, table, OPEN) for label, table in enumerate(tables))
        return Calibration(HALF, {"fast": directions}, n_models, countable)

    def test_each_target_has_a_margin_of_its_own(self):
        decided = self.calibration(by_model("###", "###", "###"), by_model("..#", "..#", "..#")).with_promise(HALF)
        assert decided.margins().tolist() == [0.0, 2.0]
        assert decided.made

    def test_one_with_too_few_rows_takes_no_less_than_the_others_need(self):
        few = by_model("###", "###", "###", n=1)
        decided = self.calibration(few, by_model(".##", ".##", ".##")).with_promise(replace(HALF, survival=0.8))
        assert [each.verdict.reason for each in decided.of_effort()] == ["rows", ""]
        assert decided.margins().tolist() == [1.0, 1.0]
        assert not decided.made

    def test_where_all_have_too_few_rows_no_more_margin_is_taken_than_brings_them_closest(self):
        few = by_model("###", "###", "###", n=1)
        decided = self.calibration(few, few).with_promise(replace(HALF, survival=0.8))
        assert [each.verdict.reason for each in decided.of_effort()] == ["rows", "rows"]
        assert decided.margins().tolist() == [0.0, 0.0]

    @pytest.mark.parametrize(("settings", "reason"), [({"n_models": 0}, "models"), ({"countable": False}, "weights")])
    def test_models_that_do_not_count_promise_nothing(self, settings, reason):
        (direction,) = self.calibration(by_model("###", "###", "###"), **settings).with_promise(HALF).of_effort()
        assert (direction.verdict.made, direction.verdict.reason) == (False, reason)
