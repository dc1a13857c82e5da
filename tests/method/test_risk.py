import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from avcg.errors import SettingError
from avcg.method.risk import CVaR, Entropic, expected_log_likelihood, log_expected_likelihood, worst_case


def draw(seed, shape=(7, 3, 4)):
    rng = np.random.default_rng(seed)
    log_p = torch.from_numpy(np.log(rng.uniform(1e-6, 1, shape)))
    weights = torch.from_numpy(rng.dirichlet(np.ones(shape[0])))
    return log_p, weights


@given(st.integers(0, 10_000), st.floats(0.01, 1), st.floats(0.01, 50))
def test_they_are_ordered(seed, share, temper):
    log_p, weights = draw(seed)
    worst, cvar = worst_case(log_p, weights), CVaR(share)(log_p, weights)
    mean, predictive = expected_log_likelihood(log_p, weights), log_expected_likelihood(log_p, weights)
    entropic = Entropic(temper)(log_p, weights)
    slack = 1e-9
    assert (worst <= cvar + slack).all()
    assert (cvar <= mean + slack).all()
    assert (mean <= predictive + slack).all()
    assert (worst <= entropic + slack).all()
    assert (entropic <= mean + slack).all()


def test_values_by_hand():
    log_p, weights = torch.tensor([0.2, 0.5, 0.8]).log(), torch.tensor([0.5, 0.25, 0.25])
    mean = 0.5 * np.log(0.2) + 0.25 * np.log(0.5) + 0.25 * np.log(0.8)
    assert expected_log_likelihood(log_p, weights).item() == pytest.approx(mean)
    assert log_expected_likelihood(log_p, weights).item() == pytest.approx(np.log(0.1 + 0.125 + 0.2))
    assert worst_case(log_p, weights).item() == pytest.approx(np.log(0.2))
    assert CVaR(0.5)(log_p, weights).item() == pytest.approx(np.log(0.2))
    three_quarters = (0.5 * np.log(0.2) + 0.25 * np.log(0.5)) / 0.75
    assert CVaR(0.75)(log_p, weights).item() == pytest.approx(three_quarters)
    assert CVaR(1.0)(log_p, weights).item() == pytest.approx(mean)
    entropic = -np.log(0.5 / 0.2 + 0.25 / 0.5 + 0.25 / 0.8)
    assert Entropic(1.0)(log_p, weights).item() == pytest.approx(entropic)


def test_the_limits_of_the_entropic_risk():
    log_p, weights = draw(0)
    torch.testing.assert_close(
        Entropic(1e-7)(log_p, weights), expected_log_likelihood(log_p, weights), atol=1e-5, rtol=0
    )
    torch.testing.assert_close(Entropic(1e4)(log_p, weights), worst_case(log_p, weights), atol=1e-2, rtol=0)


def test_a_weight_of_zero_is_as_good_as_absent():
    log_p, _ = draw(1)
    weights = torch.tensor([0.0, 0.3, 0.0, 0.2, 0.5, 0.0, 0.0], dtype=torch.float64)
    some = weights > 0
    for risk in (expected_log_likelihood, log_expected_likelihood, worst_case, Entropic(2.0), CVaR(0.4)):
        torch.testing.assert_close(risk(log_p, weights), risk(log_p[some], weights[some]))


@pytest.mark.parametrize(
    "risk", [expected_log_likelihood, log_expected_likelihood, worst_case, Entropic(2.0), CVaR(0.3)]
)
def test_the_order_of_hypotheses_does_not_matter_and_gradients_flow(risk):
    log_p, weights = draw(2)
    turned = torch.randperm(7, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(risk(log_p[turned], weights[turned]), risk(log_p, weights))
    log_p.requires_grad_()
    risk(log_p, weights).sum().backward()
    assert torch.isfinite(log_p.grad).all()
    assert (log_p.grad >= 0).all(), "no hypothesis is ever wished to be less convinced"


@pytest.mark.parametrize("call", [lambda: CVaR(0), lambda: CVaR(1.5), lambda: Entropic(0), lambda: Entropic(-1)])
def test_settings_that_cannot_be(call):
    with pytest.raises(SettingError, match="must be"):
        call()
