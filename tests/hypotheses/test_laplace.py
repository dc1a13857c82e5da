"""The Laplace approximation against closed forms."""

import torch
from distributions import rng, rows
from torch import nn

import avcg
from avcg import toys
from avcg.models.networks import mlp


class TestLaplace:
    def test_full_equals_the_hessian_of_logistic_regression(self):
        toy = toys.linear_logistic(n=60, n_features=3)
        network = mlp(3, 2, (), rng=rng(4))
        x, y = torch.tensor(toy.X.to_numpy(), dtype=torch.float32), torch.tensor(toy.y)
        posterior = avcg.Laplace.fit(network, x, y, prior_precision=0.7)

        def loss(vector):
            weight, bias = vector[:6].view(2, 3), vector[6:]
            return nn.functional.cross_entropy(x.double() @ weight.T + bias, y, reduction="sum")

        vector = torch.cat([network[0].weight.flatten(), network[0].bias]).detach().double()
        precision = torch.autograd.functional.hessian(loss, vector) + 0.7 * torch.eye(8, dtype=torch.float64)
        covariance = posterior.factor.covariance().double()
        torch.testing.assert_close(covariance, torch.linalg.inv(precision), atol=1e-5, rtol=1e-4)

    def test_the_diagonal_of_all_equals_the_diagonal_of_the_hessian_for_a_linear_model(self):
        network = mlp(3, 2, (), rng=rng(4))
        x, y = rows(50, 3), (rows(50, seed=2) > 0).long()
        full = avcg.Laplace.fit(network, x, y, prior_precision=1.0)
        diagonal = avcg.Laplace.fit(network, x, y, prior_precision=1.0, parameters="all", structure="diag")
        precision = torch.linalg.inv(full.factor.covariance().double())
        torch.testing.assert_close(
            diagonal.diagonal.double().square().reciprocal(), precision.diagonal(), atol=1e-3, rtol=1e-3
        )

    def test_kron_is_exact_where_the_curvature_is_the_same_for_all_rows(self):
        """With zero weights every row has p = 1/2, so the curvature is a Kronecker product."""
        network = mlp(3, 2, ())
        for parameter in network.parameters():
            parameter.data.zero_()
        x, y = rows(40, 3), (rows(40, seed=2) > 0).long()
        full, kron = (avcg.Laplace.fit(network, x, y, prior_precision=0.5, structure=s) for s in ("full", "kron"))
        torch.testing.assert_close(kron.factor.covariance(), full.factor.covariance(), atol=1e-4, rtol=1e-4)

    def test_draws_have_the_covariance_they_should(self):
        network = mlp(2, 2, ())
        x, y = rows(30, 2), (rows(30, seed=2) > 0).long()
        posterior = avcg.Laplace.fit(network, x, y)
        drawn = posterior.sample(40_000, rng=rng())
        vectors = torch.cat([drawn.overrides["0.weight"].flatten(1), drawn.overrides["0.bias"]], dim=1)
        torch.testing.assert_close(torch.cov(vectors.T), posterior.factor.covariance(), atol=0.03, rtol=0.05)

    def test_the_prior_is_chosen_by_the_marginal_likelihood(self):
        network = mlp(3, 2, (), rng=rng(4))
        x, y = rows(80, 3), (rows(80, seed=2) > 0).long()
        chosen = avcg.Laplace.fit(network, x, y)
        for factor in (0.5, 2.0):
            other = avcg.Laplace.fit(network, x, y, prior_precision=chosen.prior_precision * factor)
            assert other.log_marginal_likelihood <= chosen.log_marginal_likelihood + 1e-6
