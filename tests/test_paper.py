"""What the paper claims and no other test proves; docs/explanation/paper-to-code.md has the rest."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from avcg import AVCG, MCDropout, Schema, TabularSpace, rashomon_set
from avcg.baselines.cfvae import vae_terms
from avcg.guarantees.bounds import stability_bound
from avcg.hypotheses.predictors import Stacked
from avcg.hypotheses.split import HypothesisSplit
from avcg.method.generator import Condition, DiagonalNormal, Generator
from avcg.method.objective import Draws, objective
from avcg.method.risk import expected_log_likelihood
from avcg.models.networks import mlp

FRAME = pd.DataFrame(np.random.default_rng(0).normal(size=(40, 3)), columns=["a", "b", "c"])
SPACE = TabularSpace.fit(Schema.infer(FRAME), FRAME)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def weightings():
    """Two ways to weigh five hypotheses, all of them possible."""
    share = st.floats(0.01, 1.0)
    return st.tuples(*(st.lists(share, min_size=5, max_size=5) for _ in range(2)))


@given(weightings(), st.integers(0, 50))
@torch.no_grad()
def test_theorem_1_holds_for_any_two_weightings(both, seed):
    """Objectives of one generator under two distributions over the same hypotheses, against sqrt(2) M sqrt(KL)."""
    x = SPACE.encode(FRAME)[:6].double()
    target = torch.arange(6) % 2
    generator = Generator(SPACE, 2, decoder="full", n_latent=2, layers=(8,), encoder=(8,), rng=rng(seed)).double()
    request = Condition(x, target, SPACE.constraint_features(x), x.new_zeros(6), x.new_zeros(6))
    network = torch.nn.utils.skip_init(torch.nn.Linear, 3, 2, dtype=torch.float64)  # every weight is overridden
    weight = torch.randn(5, 2, 3, generator=rng(seed), dtype=torch.float64)
    draws = Draws(torch.randn(4, 6, 2, generator=rng(1), dtype=torch.float64))
    first, second = (torch.tensor(one, dtype=torch.float64) / sum(one) for one in both)
    seen = []

    def remembering(log_p, weights):
        seen.append(float(log_p.abs().max()))
        return expected_log_likelihood(log_p, weights)

    totals = []
    for weights in (first, second):
        predictors = Stacked(network, {"weight": weight, "bias": torch.zeros(5, 2, dtype=torch.float64)}, weights)
        posterior = generator.posterior(request)
        terms = objective(generator, SPACE, request, posterior, predictors, draws, remembering)
        totals.append(terms.nll + terms.kl + 3.0 * terms.proximity)
    divergence = float((first * (first / second).log()).sum().clamp(min=0))
    difference = (totals[0] - totals[1]).abs().max()
    assert float(difference) <= stability_bound(max(seen), divergence) + 1e-9


def test_avcg_r_is_trained_on_every_member_of_the_set_alike():
    """P_R is uniform over the frozen masks that qualify, and R_eps is the plain mean over them."""
    network = mlp(3, 2, hidden=(8,), dropout=0.3, rng=rng())
    y = (SPACE.encode(FRAME)[:, 0] > 0).long()
    kept = rashomon_set(MCDropout(network, space=SPACE), FRAME, y, epsilon=0.0, n=40)
    assert 1 < len(kept) < 40
    recourse = AVCG.paper(kept, n_test=0)
    roles = HypothesisSplit.of(recourse.hypotheses, n_test=recourse.n_test, calibrate=recourse.recipe.has_margins)
    assert roles.train is kept
    drawn = roles.train.sample(recourse.recipe.n_hypotheses)
    assert len(drawn) == len(kept)
    log_p = drawn.log_probs(SPACE.encode(FRAME))[..., 1]
    torch.testing.assert_close(recourse.recipe.risk(log_p, drawn.weights), log_p.mean(dim=0))


@pytest.mark.parametrize("seed", range(3))
@torch.no_grad()
def test_the_bound_of_a_conditional_autoencoder_is_below_the_log_evidence(seed):
    """E_q log p(x | z, c) - KL against log of the integral of p(x | z, c) p(z), by brute force over one latent."""
    x = SPACE.encode(FRAME)[:5].double()
    labels = torch.tensor([0, 1, 0, 1, 1])
    vae = Generator(SPACE, 2, decoder="latent", n_latent=1, layers=(8,), encoder=(8,), rng=rng(seed)).double()
    request = Condition(x, labels, x.new_zeros(5), x.new_zeros(5), x.new_zeros(5))
    variance, count = 0.25, 4001
    constant = -0.5 * x.shape[1] * np.log(2 * np.pi * variance)

    def log_likelihood(z):
        answers = SPACE.relax(vae(request, z).raw, x)
        return constant - (answers - x).square().sum(dim=-1) / (2 * variance)

    normal = torch.special.ndtri((torch.arange(count, dtype=torch.float64) + 0.5) / count)[:, None, None]
    posterior = vae.posterior(request)
    bound = log_likelihood(posterior.sample(normal)).mean(dim=0) - posterior.kl()
    evidence = torch.logsumexp(log_likelihood(normal.expand(-1, 5, 1)), dim=0) - np.log(count)
    assert (bound <= evidence + 1e-6).all()
    error, divergence = vae_terms(vae, SPACE, x, labels, None)  # at the mean of z: the terms that training adds up
    at_mean = DiagonalNormal(posterior.mean, posterior.log_variance).sample(torch.zeros(1, 5, 1, dtype=torch.float64))
    torch.testing.assert_close(constant - error / (2 * variance), log_likelihood(at_mean)[0])
    torch.testing.assert_close(divergence, posterior.kl())
