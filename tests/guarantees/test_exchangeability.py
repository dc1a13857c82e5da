"""Are new models like the calibration models? Ranks by hand, and rates of false alarms by simulation."""

import numpy as np
import pytest
from scipy.stats import binom, kstest

from avcg.guarantees.exchangeability import evidence, online_p_values, p_value

REFERENCE = np.array([0.5, 0.7, 0.7, 0.9])


@pytest.mark.parametrize(("score", "expected"), [(0.4, 0.2), (0.5, 0.4), (0.6, 0.4), (0.7, 0.8), (0.95, 1.0)])
def test_ranks_by_hand(score, expected):
    assert p_value(REFERENCE, score) == pytest.approx(expected)


def test_a_p_value_is_low_no_more_often_than_it_says():
    rng = np.random.default_rng(0)
    for scores in (rng.random((20_000, 10)), np.round(rng.random((20_000, 10)), 1)):
        found = np.array([p_value(line[1:], line[0]) for line in scores])
        for level in (0.1, 0.2, 0.5):
            assert binom.sf((found <= level).sum() - 1, len(found), level) > 1e-3
    assert (np.array([p_value(line[1:], line[0]) for line in rng.random((20_000, 10))]) <= 0.1).mean() > 0.09


@pytest.mark.parametrize("digits", [1, 15])
def test_values_of_a_sequence_are_uniform_and_independent(digits):
    """Also where many scores are equal: five models, and then ten new ones of the same kind."""
    rng = np.random.default_rng(1)
    found = np.array([online_p_values(*np.split(np.round(rng.random(15), digits), [5]), rng) for _ in range(4000)])
    assert kstest(found.ravel(), "uniform").pvalue > 1e-3
    assert np.abs(np.corrcoef(found.T) - np.eye(10)).max() < 0.07


def test_each_is_compared_with_all_before_it():
    rng = np.random.default_rng(0)
    first, second, third = online_p_values(np.array([0.5]), np.array([0.4, 0.3, 0.35]), rng)
    assert 0 < first <= 1 / 2
    assert 0 < second <= 1 / 3
    assert 1 / 4 < third <= 2 / 4


class TestEvidence:
    def test_it_is_a_fair_bet(self):
        values = np.random.default_rng(0).random((40_000, 3))
        growth = np.array([evidence(line)[-1] for line in values])
        assert np.median(growth) < 1
        grid = (np.arange(200_000) + 0.5) / 200_000
        for power in (0.5, 0.95):
            assert np.mean(power * grid ** (power - 1)) == pytest.approx(1, abs=0.01)

    def test_by_hand(self):
        powers = np.linspace(0.05, 0.95, 19)
        values = np.array([0.3, 0.01])
        single = [np.mean(powers * 0.3 ** (powers - 1)), np.mean(powers**2 * (0.3 * 0.01) ** (powers - 1))]
        assert evidence(values) == pytest.approx(single)

    @pytest.mark.parametrize("n_reference", [4, 19])
    def test_false_alarms_are_as_rare_as_stated(self, n_reference):
        """Looked at after each of 40 models, an alarm from 1 / rate on is ever false with at most that chance."""
        rng, runs = np.random.default_rng(2), 2000
        highest = np.array(
            [
                evidence(online_p_values(scores[:n_reference], scores[n_reference:], rng)).max()
                for scores in np.round(rng.random((runs, n_reference + 40)), 2)
            ]
        )
        for rate in (0.05, 0.2):
            assert binom.sf((highest >= 1 / rate).sum() - 1, runs, rate) > 1e-3
        assert (highest >= 5).mean() > 0.02, "and are not ruled out"

    def test_a_change_is_found(self):
        """Of 19 calibration models and then models that are all worse: power within ten models."""
        rng, found = np.random.default_rng(3), []
        for _ in range(300):
            scores = np.concatenate([rng.normal(0.97, 0.01, 19), rng.normal(0.92, 0.02, 10)])
            found.append(evidence(online_p_values(scores[:19], scores[19:], rng)).max() >= 20)
        assert np.mean(found) > 0.9
