"""Bounds against closed forms, brute force and simulation."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom
from torch import nn

from avcg import toys
from avcg.errors import DataError, SettingError
from avcg.guarantees.bounds import (
    cantelli,
    chebyshev,
    clopper_pearson,
    markov,
    stability_bound,
    stability_bound_of_subset,
)
from avcg.guarantees.certificate import certify
from avcg.hypotheses.predictors import Opaque, Stacked

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


class Linear:
    """The toy's models as hypotheses: rows of raw numbers to two logits."""

    def __init__(self, toy):
        self.toy = toy

    def sample(self, n, rng):
        weights = torch.tensor(self.toy.sample(n, rng), dtype=torch.float32)
        network = nn.utils.skip_init(nn.Linear, weights.shape[1] - 1, 2)
        for parameter in network.parameters():
            parameter.data.zero_()
        zeros = torch.zeros_like(weights[:, :1])
        return Stacked(
            network,
            {
                "weight": torch.stack([torch.zeros_like(weights[:, :-1]), weights[:, :-1]], dim=1),
                "bias": torch.cat([zeros, weights[:, -1:]], dim=1),
            },
        )


def test_the_bound_holds_as_often_as_it_says():
    """2,000 trials on a problem whose survival is known in closed form: draw 25 models, certify, compare with the"
    " truth."""
    toy = toys.linear_logistic(n=200, spread=0.25, seed=3)
    refused = toy.X[toy.y == 0]
    answers = pd.concat(
        [toy.nearest(refused[5 * i : 5 * i + 5], logit) for i, logit in enumerate((0.3, 1.0, 2.0, 5.0))]
    )
    truth = toy.survival(answers, target=1)
    assert truth.min() < 0.8
    assert truth.max() > 0.97
    x, target = torch.tensor(answers.to_numpy(), dtype=torch.float32), torch.ones(20, dtype=torch.long)
    rng, hypotheses = np.random.default_rng(0), Linear(toy)
    held = np.stack([certify(hypotheses.sample(25, rng), x, target).lower_bound <= truth for _ in range(2000)])
    assert held.mean(axis=0).min() >= 0.95 - 3 * np.sqrt(0.95 * 0.05 / 2000)
    assert held.mean() >= 0.95


def test_a_certificate_counts_what_it_sees():
    first = torch.tensor([[0.9, 0.1], [0.4, 0.6]])
    second = torch.tensor([[0.7, 0.3], [0.8, 0.2]])
    hypotheses = Opaque([lambda x: first, lambda x: second])
    found = certify(hypotheses, torch.zeros(2, 3), torch.tensor([0, 1]))
    assert found.agreeing.tolist() == [2, 1]
    assert found.share.tolist() == [1.0, 0.5]
    np.testing.assert_allclose(found.mean, [0.8, 0.4], atol=1e-6)
    np.testing.assert_allclose(found.variance, [0.01, 0.04], atol=1e-6)
    np.testing.assert_allclose(found.markov, [0.6, 0.0], atol=1e-6)
    strict = certify(hypotheses, torch.zeros(2, 3), torch.tensor([0, 1]), threshold=0.8)
    assert strict.agreeing.tolist() == [2, 0]
    lenient = certify(hypotheses, torch.zeros(2, 3), torch.tensor([0, 1]), threshold=0.25)
    assert lenient.agreeing.tolist() == [1, 1]
    frame = found.to_frame(index=["a", "b"])
    assert frame.loc["a", "lower_bound"] == pytest.approx(0.05**0.5)
    assert "independent draws" in found.ASSUMPTION


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
        (lambda: certify(weighted(), torch.zeros(1, 4), torch.tensor([0])), "must have equal weights"),
        (lambda: certify(weighted().subset(torch.tensor([0])), torch.zeros(2, 4), torch.tensor([0])), "one target per"),
        (
            lambda: certify(weighted().subset(torch.tensor([0])), torch.zeros(1, 4), torch.tensor([0]), threshold=2),
            "threshold",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises((SettingError, DataError), match=message):
        call()


def weighted():
    network = nn.utils.skip_init(nn.Linear, 4, 2)
    network.weight.data.zero_()
    return Stacked(network, {"bias": torch.zeros(2, 2)}, torch.tensor([0.9, 0.1]))
