"""Contracts that anyone's own parts can be run against."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from avcg.explainers.base import Explainer
from avcg.explainers.counterfactuals import Counterfactuals
from avcg.explainers.records import MEANING
from avcg.hypotheses.base import HypothesisDistribution
from avcg.hypotheses.predictors import Predictors
from avcg.space.tabular import TabularSpace


def check_hypotheses(distribution: HypothesisDistribution, x: Tensor, n: int = 6) -> None:
    """Assert that a distribution over predictors behaves as the rest of avcg expects.

    It draws at most n hypotheses with weights that sum to one; a seed means the same draw and no global stream is
    touched; a drawn hypothesis answers the same twice, and about a row the same whatever its neighbours; probabilities
    are probabilities; gradients in x are those of finite differences, where there are any.

    Args:
        distribution: Of any kind.
        x: (N, *event) a few encoded rows, at least two.
        n: Hypotheses to draw.

    Raises:
        AssertionError: With what does not hold.
    """
    before = torch.get_rng_state()
    first, again = (distribution.sample(n, generator=torch.Generator().manual_seed(3)) for _ in range(2))
    log_probs = first.log_probs(x)
    assert torch.equal(before, torch.get_rng_state()), "sampling or evaluating touched PyTorch's global stream"
    assert isinstance(first, Predictors), f"sample returned a {type(first).__name__}, not Predictors"
    assert 1 <= len(first) <= n, f"sample({n}) returned {len(first)} hypotheses"
    assert first.weights.shape == (len(first),), "there is not one weight per hypothesis"
    assert torch.isclose(first.weights.sum(), torch.tensor(1.0), atol=1e-5), "weights do not sum to one"
    assert log_probs.shape[:2] == (len(first), len(x)), f"log_probs have shape {tuple(log_probs.shape)}"
    assert log_probs.shape[-1] >= 2, "there are fewer than two classes"
    assert torch.allclose(log_probs.exp().sum(-1), torch.ones(log_probs.shape[:2]), atol=1e-4), "not probabilities"
    assert torch.equal(log_probs, first.log_probs(x)), "the same hypothesis answered differently the second time"
    assert torch.equal(log_probs, again.log_probs(x)), "the same seed drew other hypotheses"
    _check_rows(first, x, log_probs)
    if first.differentiable:
        _check_gradient(first, x)


def _check_rows(predictors: Predictors, x: Tensor, log_probs: Tensor) -> None:
    order = torch.arange(len(x) - 1, -1, -1)
    turned = predictors.log_probs(x[order])[:, order]
    assert torch.allclose(turned, log_probs, atol=1e-5), "an answer depends on the order of rows"
    alone = predictors.log_probs(x[:1])[:, 0]
    assert torch.allclose(alone, log_probs[:, 0], atol=1e-5), "an answer depends on the other rows"
    mean = torch.einsum("s,snc->nc", predictors.weights, log_probs.exp())
    assert torch.allclose(predictors.predictive(x).to(mean), mean, atol=1e-5), "predictive is not the weighted mean"
    chosen = torch.tensor([len(predictors) - 1])
    one = predictors.subset(chosen)
    assert len(one) == 1, "a subset of one has another size"
    assert torch.allclose(one.log_probs(x)[0], log_probs[-1], atol=1e-5), "a subset answers differently"
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
        found = point.grad.flatten(1)[:, i]
        assert torch.allclose(found, slope, rtol=1e-3, atol=1e-4), "a gradient differs from finite differences"
        flat[:, i] = 0.0


def check_explainer(explainer: Explainer, X: pd.DataFrame) -> None:
    """Assert that a fitted explainer keeps the promises that every method of avcg makes about tables.

    A status for every row and never a missing one; columns, dtypes and index as they came; no constraint broken, also
    under a request of its own; validity as the model in force sees the rows handed out; the same answers alone, in a
    batch and in any order; JSON there and back; no global stream touched.

    Args:
        explainer: Fitted.
        X: A few rows, at least four.

    Raises:
        AssertionError: With what does not hold.
    """
    before = torch.get_rng_state()
    answers = explainer.generate(X)
    assert torch.equal(before, torch.get_rng_state()), "generate touched PyTorch's global stream"
    assert answers.frame.index.equals(X.index), "the index is not that of the rows"
    assert list(answers.frame.columns) == list(X.columns), "the columns are not those of the rows"
    assert answers.frame.dtypes.equals(X.dtypes), "the dtypes are not those of the rows"
    assert set(answers.statuses) <= set(MEANING), f"unknown statuses: {set(answers.statuses) - set(MEANING)}"
    _check_judgement(explainer, answers, X)
    _check_constraints(explainer, answers, X)
    _check_neighbours(explainer, answers, X)
    assert Counterfactuals.from_json(answers.to_json()).to_json() == answers.to_json(), (
        "JSON does not come back the same"
    )
    several = explainer.generate(X, n=2)
    assert len(several.frame) == len(several.statuses) == 2 * len(X), "there are not two answers for each row"


def _check_judgement(explainer: Explainer, answers: Counterfactuals, X: pd.DataFrame) -> None:
    x_cf, decider = explainer.space_.encode(answers.frame), explainer.decider_
    after = decider.bind_rows(answers.frame).probabilities(x_cf)
    before = decider.bind_rows(X).probabilities(explainer.space_.encode(X))
    decided, current = (explainer.classes_[decider.decide(found).numpy()] for found in (after, before))
    delivered = answers.status.isin(["ok", "not_robust"]).to_numpy()
    assert (decided[delivered] == answers.target[delivered]).all(), "an answer said to be valid is not"
    untold = (answers.statuses == "not_valid") & (decided == answers.target)
    assert not untold.any(), "an answer said not to be valid is"
    assert ((answers.statuses == "already_target") == (current == answers.target)).all(), "already_target is wrong"
    left = answers.status.isin(["already_target", "infeasible"]).to_numpy()
    pd.testing.assert_frame_equal(answers.frame[left], X[left])


def _check_constraints(explainer: Explainer, answers: Counterfactuals, X: pd.DataFrame) -> None:
    space = explainer.space_
    assert isinstance(space, TabularSpace), "check_explainer is for tables"
    assert not space.violations(answers.frame, X).any(), "a constraint of the schema is broken"
    free = np.flatnonzero(space.feasible.movable(space.encoding)[0])
    vary = np.zeros((len(X), len(space.schema)), bool)
    vary[np.arange(len(X)), free[np.arange(len(X)) % len(free)]] = True
    asked = explainer.generate(X, vary=vary)
    assert not space.restrict(vary=vary).violations(asked.frame, X).any(), "a request of a row's own is not kept"


def _check_neighbours(explainer: Explainer, answers: Counterfactuals, X: pd.DataFrame) -> None:
    whole = explainer.space_.encode(answers.frame)
    turned = explainer.space_.encode(explainer.generate(X.iloc[::-1]).frame.iloc[::-1])
    alone = explainer.space_.encode(explainer.generate(X.iloc[[1]]).frame)
    assert torch.allclose(turned, whole, atol=1e-5), "an answer depends on the order of rows"
    assert torch.allclose(alone, whole[1:2], atol=1e-5), "an answer depends on the other rows"
