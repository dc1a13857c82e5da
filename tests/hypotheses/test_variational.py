"""Mean-field variational inference and SWAG."""

import numpy as np
import torch
from distributions import rng, rows
from torch import nn

import avcg


class TestVariational:
    def test_it_finds_the_conjugate_posterior(self):
        """Linear regression with orthogonal inputs: the exact posterior is an independent Gaussian for every weight."""
        n, noise, prior = 64, 0.5, 1.3
        x = torch.linalg.qr(rows(n, 3, seed=5)).Q * np.sqrt(n)
        truth = torch.tensor([0.7, -0.4, 1.1])
        y = x @ truth + noise * rows(n, seed=6)
        network = nn.utils.skip_init(nn.Linear, 3, 1, bias=False)
        network.weight.data.zero_()

        def likelihood(outputs, targets):
            return (0.5 * ((outputs[..., 0] - targets) / noise).square()).mean(dim=1)

        settings = avcg.Training(epochs=1500, batch_size=n, learning_rate=5e-3, patience=None)
        found = avcg.MeanFieldVI.fit(network, x, y, prior_std=prior, n_draws=16, training=settings, loss=likelihood)
        variance = 1 / (n / noise**2 + 1 / prior**2)
        mean = variance * (x.T @ y) / noise**2
        torch.testing.assert_close(found.mean["weight"][0], mean, atol=0.02, rtol=0.02)
        torch.testing.assert_close(found.diagonal, torch.full((3,), variance**0.5), atol=0.01, rtol=0.1)

    def test_swag_draws_around_the_mean_of_its_snapshots(self, toy_model):
        toy, model = toy_model
        posterior = avcg.SWAG.fit(model, toy.X, toy.y, n_snapshots=6)
        drawn = posterior.sample(4000, rng=rng())
        for name, value in posterior.mean.items():
            spread = drawn.overrides[name].std(dim=0).mean() + 1e-6
            assert (drawn.overrides[name].mean(dim=0) - value).abs().mean() < 0.1 * spread
