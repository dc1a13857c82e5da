"""The closed forms of the toys against brute force."""

import itertools

import numpy as np
import pandas as pd
import pytest

from avcg import TabularSpace, toys


class TestLinearLogistic:
    def test_survival_is_the_share_of_drawn_models(self):
        toy = toys.linear_logistic(n=30, seed=1)
        drawn = toy.sample(200_000, np.random.default_rng(0))
        logits = np.column_stack([toy.X.to_numpy(), np.ones(30)]) @ drawn.T
        for target in (0, 1):
            share = ((logits > 0) == (target == 1)).mean(axis=1)
            np.testing.assert_allclose(toy.survival(toy.X, target), share, atol=0.005)

    def test_the_nearest_point_is_nearest(self):
        toy = toys.linear_logistic(n=5, n_features=3, seed=2)
        nearest = toy.nearest(toy.X, logit=1.5)
        np.testing.assert_allclose(toy.logit(nearest), 1.5)
        distance = np.linalg.norm(nearest - toy.X, axis=1)
        rng = np.random.default_rng(0)
        for _ in range(2000):
            step = rng.normal(size=3)
            reach = (1.5 - toy.logit(toy.X)) / (step @ toy.mean[:-1])
            assert (np.abs(reach) * np.linalg.norm(step) >= distance - 1e-9).all()

    def test_labels_are_the_mean_models(self):
        toy = toys.linear_logistic()
        assert ((toy.logit(toy.X) > 0) == (toy.y == 1)).all()


class TestTwoMoons:
    def test_the_nearest_point_against_a_dense_arc(self):
        toy = toys.two_moons(n=60, noise=0.4, seed=0)
        t = np.linspace(0, np.pi, 20_001)
        arcs = {0: np.column_stack([np.cos(t), np.sin(t)]), 1: np.column_stack([1 - np.cos(t), 0.5 - np.sin(t)])}
        for target, arc in arcs.items():
            found = np.linalg.norm(toy.nearest(toy.X, target) - toy.X, axis=1)
            brute = np.linalg.norm(toy.X.to_numpy()[:, None] - arc[None], axis=2).min(axis=1)
            np.testing.assert_allclose(found, brute, atol=1e-6)


class TestLoans:
    @pytest.mark.parametrize(("income", "month"), [(0.05, 0.04), (0.05, 0.01), (0.2, 0.079)])
    def test_the_least_cost_against_every_combination(self, income, month):
        toy = toys.loans(n=60, seed=0)
        refused = toy.X[toy.y == 0]
        more = np.arange(400)
        best = np.full(len(refused), np.inf)
        for owns, housing, rating in itertools.product((False, True), toy.HOUSING, toy.RATING):
            changed = refused.assign(owns=owns, housing=housing, rating=rating)
            changes = sum(
                (refused[name].astype(object) != changed[name].astype(object)).astype(int)
                for name in ("owns", "housing", "rating")
            )
            lacking = np.maximum(0, -toy.points(changed)[:, None] - toy.PER_MONTH * more)
            cost = changes.to_numpy()[:, None] + more * month + lacking / toy.PER_INCOME * income
            allowed = (refused["housing"] != "own").to_numpy() | (housing != "rent")
            best = np.minimum(best, np.where(allowed, cost.min(axis=1), np.inf))
        np.testing.assert_allclose(toy.least_cost(refused, income, month), best, atol=1e-9)

    def test_its_schema_fits(self):
        toy = toys.loans()
        space = TabularSpace.fit(toy.schema, toy.X)
        pd.testing.assert_frame_equal(space.decode(space.encode(toy.X), like=toy.X), toy.X)
        assert 0.2 < toy.y.mean() < 0.8
