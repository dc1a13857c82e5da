"""Bounds against closed forms and brute force."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from avcg.errors import SettingError
from avcg.guarantees.bounds import (
    cantelli,
    chebyshev,
    clopper_pearson,
    markov,
    stability_bound,
    stability_bound_of_subset,
)

shares = st.floats(0, 1)


def test_the_papers_example():
    """Mean 0.95, variance 0.002, beta 0.45: with probability 0.99 and more the next model stays above one half."""
    assert chebyshev(0.002, 0.45) >= 0.99
    assert cantelli(0.002, 0.45) >= chebyshev(0.002, 0.45)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=30), st.floats(0.05, 0.95))
def test_they_hold_for_every_finite_distribution(values, gamma):
    """On a distribution that puts equal weight on a few numbers, the true probability is a count."""
    p = np.array(values)
    assert (p >= gamma).mean() >= markov(p.mean().clip(0, 1), gamma) - 1e-9
    beta = p.mean() - gamma
    if beta > 1e-6:
        truth = (p > p.mean() - beta).mean() + (np.isclose(p, p.mean() - beta)).mean()
        assert truth >= cantelli(p.var(), beta) - 1e-9
        assert truth >= chebyshev(p.var(), beta) - 1e-9


@given(shares, shares, st.floats(0, 0.25), st.floats(0, 0.25), st.floats(1e-3, 1))
def test_they_are_shares_and_monotone(low, high, calm, wild, beta):
    low, high = sorted((low, high))
    calm, wild = sorted((calm, wild))
    assert 0 <= markov(low) <= markov(high) <= 1
    for bound in (chebyshev, cantelli):
        assert 0 <= bound(wild, beta) <= bound(calm, beta) <= 1
    assert chebyshev(calm, beta) <= cantelli(calm, beta) + 1e-12
    assert chebyshev(calm, -beta) == cantelli(calm, -beta) == chebyshev(calm, 0.0) == 0


@given(st.integers(1, 60), st.data(), st.floats(0.5, 0.999))
def test_clopper_pearson_is_where_the_binomial_says(n, data, confidence):
    """At the bound, seeing as many agree as were seen has exactly the chance that was left."""
    k = data.draw(st.integers(0, n))
    bound = float(clopper_pearson(k, n, confidence))
    assert 0 <= bound <= k / n
    if k:
        assert binom.sf(k - 1, n, bound) == pytest.approx(1 - confidence, abs=1e-6)
        assert clopper_pearson(k - 1, n, confidence) < bound


def test_small_numbers_prove_little():
    assert clopper_pearson(1, 1) == pytest.approx(0.05)
    assert clopper_pearson(10, 10) == pytest.approx(0.05**0.1)
    assert clopper_pearson(50, 50) == pytest.approx(0.05 ** (1 / 50))
    assert clopper_pearson([0, 5, 10], 10).tolist()[0] == 0


@given(st.floats(0.1, 20), st.integers(1, 50), st.data())
def test_the_exact_form_of_theorem_1_is_never_looser(bound, n, data):
    kept = data.draw(st.integers(1, n))
    exact = stability_bound_of_subset(bound, kept, n)
    assert exact <= stability_bound(bound, np.log(n / kept)) * (1 + 1e-9)
    # And it is reached: log-probabilities of -M on those kept and +M on the rest move the mean by just as much.
    values = np.full(n, -bound)
    values[kept:] = bound
    assert abs(values[:kept].mean() - values.mean()) == pytest.approx(exact)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: markov(1.2), "mean of probabilities must be in"),
        (lambda: markov(0.9, gamma=1.0), "'gamma' of markov"),
        (lambda: chebyshev(-0.1, 0.4), "variance must be >= 0"),
        (lambda: clopper_pearson(11, 10), "0 to n agreeing"),
        (lambda: clopper_pearson(5, 0), "n >= 1"),
        (lambda: clopper_pearson(5, 10, confidence=1.0), "'confidence' must be in"),
        (lambda: stability_bound(0, 1), "'log_prob_bound' must be > 0"),
        (lambda: stability_bound_of_subset(1, 0, 5), "1 <= kept <= n"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(SettingError, match=message):
        call()
