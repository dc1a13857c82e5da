"""The contract of a distribution over predictors."""

from __future__ import annotations

import torch
from torch import Tensor

from avcg.hypotheses.base import HypothesisDistribution
from avcg.hypotheses.predictors import Predictors
from avcg.testing.unchanged import streams_untouched


def check_hypotheses(distribution: HypothesisDistribution, x: Tensor, n: int = 6) -> None:
    """Assert that a distribution over predictors behaves as the rest of avcg expects.

    It draws at most n hypotheses with weights that sum to one. The same seed gives the same draw, and global random
    streams stay untouched. A drawn hypothesis is deterministic, and its probabilities for a row do not depend on the
    other rows. Probabilities sum to one. Gradients in x, if there are any, agree with finite differences.

    Args:
        distribution: Distribution over predictors.
        x: (N, *event) a few encoded rows, at least two.
        n: Number of hypotheses to draw; 6 by default.

    Raises:
        AssertionError: If a condition does not hold. The message names it.
    """
    with streams_untouched("sampling or evaluating"):
        first, again = (distribution.sample(n, rng=torch.Generator().manual_seed(3)) for _ in range(2))
        log_probs = first.log_probs(x)
    assert isinstance(first, Predictors), f"sample returned a {type(first).__name__}, not Predictors"
    assert 1 <= len(first) <= n, f"sample({n}) returned {len(first)} hypotheses"
    assert first.weights.shape == (len(first),), "there is not one weight per hypothesis"
    assert torch.isclose(first.weights.sum(), torch.tensor(1.0), atol=1e-5), "weights do not sum to one"
    assert log_probs.shape[:2] == (len(first), len(x)), f"log_probs have shape {tuple(log_probs.shape)}"
    assert log_probs.shape[-1] >= 2, "there are fewer than two classes"
    assert torch.allclose(log_probs.exp().sum(-1), torch.ones(log_probs.shape[:2]), atol=1e-4), (
        "probabilities do not sum to one"
    )
    assert torch.equal(log_probs, first.log_probs(x)), "a hypothesis gave other probabilities the second time"
    assert torch.equal(log_probs, again.log_probs(x)), "the same seed drew other hypotheses"
    _check_rows(first, x, log_probs)
    if first.differentiable:
        _check_gradient(first, x)


def _check_rows(predictors: Predictors, x: Tensor, log_probs: Tensor) -> None:
    order = torch.arange(len(x) - 1, -1, -1)
    reordered = predictors.log_probs(x[order])[:, order]
    assert torch.allclose(reordered, log_probs, atol=1e-5), "probabilities depend on the order of rows"
    alone = predictors.log_probs(x[:1])[:, 0]
    assert torch.allclose(alone, log_probs[:, 0], atol=1e-5), "probabilities depend on the other rows"
    mean = torch.einsum("s,snc->nc", predictors.weights, log_probs.exp())
    assert torch.allclose(predictors.predictive(x).to(mean), mean, atol=1e-5), "predictive is not the weighted mean"
    last = predictors.subset(torch.tensor([len(predictors) - 1]))
    assert len(last) == 1, "a subset of one hypothesis has another size"
    assert torch.allclose(last.log_probs(x)[0], log_probs[-1], atol=1e-5), "a subset gives other probabilities"
    labels = log_probs[0].argmax(dim=-1)
    assert torch.allclose(
        predictors.losses(x, labels), -log_probs[:, torch.arange(len(x)), labels].mean(dim=1), atol=1e-5
    ), "losses are not the mean negative log-probabilities"


def _check_gradient(predictors: Predictors, x: Tensor) -> None:
    point = x[:2].double().requires_grad_()
    predictors.log_probs(point).sum().backward()
    assert point.grad is not None, "no gradient reaches the inputs"
    step = torch.zeros_like(point)
    flat = step.flatten(1)
    for i in range(0, flat.shape[1], max(1, flat.shape[1] // 5)):
        flat[:, i] = 1e-5
        moved = step.view_as(point)
        with torch.no_grad():
            difference = predictors.log_probs(point + moved) - predictors.log_probs(point - moved)
        slope = difference.sum(dim=(0, 2)) / 2e-5
        gradient = point.grad.flatten(1)[:, i]
        assert torch.allclose(gradient, slope, rtol=1e-3, atol=1e-4), "a gradient differs from finite differences"
        flat[:, i] = 0.0
