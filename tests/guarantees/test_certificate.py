"""Certificates: what held-out models say of answers, what they prove, and how often it is true."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, norm
from simulated_promises import mean_exceeds
from torch import nn

from avcg import toys
from avcg.errors import DataError, SettingError
from avcg.guarantees.bounds import clopper_pearson
from avcg.guarantees.certificate import Certificate, certify
from avcg.hypotheses.predictors import Opaque, Stacked


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
    """2,000 trials on a problem whose survival is known in closed form: 25 models certify, truth is compared."""
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
    certificate = certify(hypotheses, torch.zeros(2, 3), torch.tensor([0, 1]))
    assert certificate.n == certificate.n_test == 2
    assert certificate.agreeing.tolist() == certificate.agreeing_test.tolist() == [2, 1]
    assert certificate.share.tolist() == [1.0, 0.5]
    strict = certify(hypotheses, torch.zeros(2, 3), torch.tensor([0, 1]), threshold=0.8)
    assert strict.agreeing.tolist() == [2, 0]
    lenient = certify(hypotheses, torch.zeros(2, 3), torch.tensor([0, 1]), threshold=0.25)
    assert lenient.agreeing.tolist() == [1, 1]
    frame = certificate.to_frame(index=["a", "b"])
    assert frame.columns.tolist() == ["agreeing", "share", "agreeing_test", "lower_bound"]
    assert frame.loc["a", "lower_bound"] == pytest.approx(0.05**0.5)
    assert "independent draws" in certificate.ASSUMPTION


def test_the_bound_is_of_the_test_models_alone():
    """Those that calibrated are counted, and prove nothing; the test models are the last ones."""
    agrees = np.array([[True, True], [True, False], [True, True], [False, True], [False, True]])
    certificate = Certificate.of(agrees, 2, 0.95)
    assert certificate.n == 5
    assert certificate.agreeing.tolist() == [3, 4]
    assert certificate.agreeing_test.tolist() == [0, 2]
    np.testing.assert_allclose(certificate.lower_bound, clopper_pearson([0, 2], 2, 0.95))


def test_without_test_models_nothing_is_proven():
    certificate = Certificate.of(np.ones((3, 2), bool), 0, 0.95)
    assert certificate.agreeing.tolist() == [3, 3]
    assert certificate.lower_bound.tolist() == [0, 0]
    assert certificate.false_discovery_rate(0.5).tolist() == [1, 1]


def test_no_answers():
    certificate = certify(equal(), torch.zeros(0, 4), torch.zeros(0, dtype=torch.long))
    assert certificate.agreeing.shape == certificate.lower_bound.shape == (0,)
    assert certificate.false_discovery_rate(0.9).shape == (0,)


@given(st.lists(st.integers(0, 7), min_size=1, max_size=12), st.permutations(range(12)))
def test_a_part_is_the_certificate_of_the_part(agreeing, order):
    agrees = np.arange(7)[:, None] < np.array(agreeing)
    chosen = np.array([position for position in order if position < len(agreeing)])
    part = Certificate.of(agrees, 3, 0.9).take(chosen)
    pd.testing.assert_frame_equal(part.to_frame(), Certificate.of(agrees[:, chosen], 3, 0.9).to_frame())
    assert (part.n, part.n_test, part.confidence) == (7, 3, 0.9)


class TestFalseDiscoveryRate:
    @given(st.lists(st.integers(0, 40), min_size=1, max_size=15), st.floats(0.5, 0.95))
    def test_it_is_the_rule_of_benjamini_and_yekutieli(self, agreeing, survival):
        """By definition: the least q with p(k) <= k q / (N c(N)) for some k at or after the answer."""
        agrees = np.arange(40)[:, None] < np.array(agreeing)
        p = binom.sf(np.array(agreeing) - 1, 40, survival)
        n, harmonic = len(p), sum(1 / k for k in range(1, len(p) + 1))
        for answer, value in enumerate(Certificate.of(agrees, 40, 0.95).false_discovery_rate(survival)):
            rates = [each * n * harmonic / (p <= each).sum() for each in p[p >= p[answer]]]
            assert value == pytest.approx(min(1.0, *rates))

    def test_few_models_discover_nothing(self):
        certificate = Certificate.of(np.ones((5, 1), bool), 5, 0.95)
        assert certificate.false_discovery_rate(0.95)[0] == pytest.approx(0.95**5)

    @pytest.mark.parametrize("shared", [0.0, 0.5, 0.95])
    def test_it_holds_though_all_answers_share_their_models(self, shared):
        """Half of 60 answers are accepted by just 70 of 100 models, half by almost all. Each model is good or bad for
        all answers at once, to a degree. Of the answers said to be accepted by more than 70, few are of the first."""
        rng, survival, rate = np.random.default_rng(1), 0.7, 0.2
        truth = np.repeat([survival, 0.995], 30)
        model, cell = rng.normal(size=(400, 40, 1)), rng.normal(size=(400, 40, 60))
        agrees = np.sqrt(shared) * model + np.sqrt(1 - shared) * cell < norm.ppf(truth)
        false, discovered = [], []
        for each in agrees:
            chosen = Certificate.of(each, 40, 0.95).false_discovery_rate(survival) <= rate
            false.append(chosen[:30].sum() / max(1, chosen.sum()))
            discovered.append(chosen[30:].mean())
        assert not mean_exceeds(np.array(false), rate)
        assert np.mean(discovered) > 0.3, "a rule that discovers nothing is never wrong"


def weighted():
    network = nn.utils.skip_init(nn.Linear, 4, 2)
    network.weight.data.zero_()
    return Stacked(network, {"bias": torch.zeros(2, 2)}, torch.tensor([0.9, 0.1]))


def equal():
    return weighted().subset(torch.tensor([0]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: certify(weighted(), torch.zeros(1, 4), torch.tensor([0])), "must have equal weights"),
        (lambda: certify(equal(), torch.zeros(2, 4), torch.tensor([0])), "one target per"),
        (lambda: certify(equal(), torch.zeros(1, 4), torch.tensor([0]), threshold=2), "threshold"),
        (lambda: certify(equal(), torch.zeros(1, 4), torch.tensor([0]), confidence=0.0), "'confidence' must be in"),
        (lambda: Certificate.of(np.ones((3, 1), bool), 3, 0.9).false_discovery_rate(1.0), "'survival' must be in"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises((SettingError, DataError), match=message):
        call()
