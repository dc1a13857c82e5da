"""Proofs that a decision is out of reach, against every point of small feasible sets: none is false, none is missed."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from strategies import codes, tables
from torch import nn

from avcg import Schema, TabularSpace, from_models
from avcg.hypotheses.linear import linear_logits
from avcg.hypotheses.on_device import OnDevice
from avcg.hypotheses.predictors import Joined, Stacked
from avcg.method.query import Query
from avcg.method.reachability import proven_unreachable
from avcg.models.decision import DecisionRule

EXAMPLES = settings(max_examples=200)


def linear_model(rng, width, classes):
    """Random weights and biases, and the probabilities of that model."""
    weights = rng.normal(size=(classes, width)) * (rng.random((classes, width)) < 0.7)
    biases = rng.normal(size=classes) * 4

    def probabilities(x):
        logits = x @ weights.T + biases
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        return odds / odds.sum(axis=1, keepdims=True)

    return weights, biases, probabilities


def tabled_model(rng, classes):
    """A model without any structure: the probabilities of a point are drawn by its codes."""
    seed = int(rng.integers(2**31))

    def probabilities(x):
        drawn = [np.random.default_rng([seed, abs(hash(row.tobytes()))]).dirichlet(np.full(classes, 0.2)) for row in x]
        return np.array(drawn)

    return probabilities


@st.composite
def queries(draw):
    """Rows of a random table with random targets, constraints and probabilities to reach, and a decision rule."""
    table, rng = draw(tables()), np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    space = TabularSpace.fit(table.schema, table.frame)
    x = space.encode(table.frame).numpy()
    classes = draw(st.sampled_from([2, 2, 3]))
    caps = rng.integers(0, 4, len(x)) if draw(st.booleans()) else None
    free = rng.random((len(x), len(table.schema))) < 0.6
    narrowed = space.codes.restrict(free, None, caps) if draw(st.booleans()) else space.codes
    min_prob = draw(st.sampled_from([None, None, 0.3, 0.9]))
    rule = DecisionRule(draw(st.sampled_from([None, 0.2, 0.7])) if classes == 2 else None)
    return Query(x, rng.integers(0, classes, len(x)), narrowed, min_prob=min_prob), rule, classes, rng


def best_by_hand(query, probabilities, rule):
    """For each row with few points, whether any of them is valid."""
    for owner, points in query.space.small_sets(query.x, 300, 10**6):
        valid = rule.valid(probabilities(points), query.target[owner], query.min_prob)
        yield from ((row, valid[owner == row].any()) for row in np.unique(owner))


@EXAMPLES
@given(queries())
def test_any_model_is_asked_about_every_point_of_small_sets(drawn):
    query, rule, classes, rng = drawn
    probabilities = tabled_model(rng, classes)
    proven = proven_unreachable(query, probabilities, rule, most_points=300, at_once=100)
    by_hand = dict(best_by_hand(query, probabilities, rule))
    assert [bool(flag) for flag in proven] == [not by_hand.get(row, True) for row in range(len(query.x))]


@EXAMPLES
@given(queries(), st.data())
def test_a_proof_for_a_linear_model_is_never_false_and_finds_what_points_do(drawn, data):
    query, rule, classes, rng = drawn
    weights, biases, probabilities = linear_model(rng, query.x.shape[1], classes)
    proven = proven_unreachable(query, probabilities, rule, linear=(weights, biases), most_points=0)
    reached = query.space.project(codes(data.draw, (64, *query.x.shape)), query.x)
    for points in reached:
        assert not (rule.valid(probabilities(points), query.target, query.min_prob) & proven).any()
    exact = not any(link.knots is not None for link in query.space.feasible.links)
    for row, reachable in best_by_hand(query, probabilities, rule):
        assert not (proven[row] and reachable)
        nearly = proven_unreachable(
            query, probabilities, rule, linear=(weights, biases - 0.01 * np.eye(classes)[query.target[row]])
        )
        assert reachable or not exact or classes > 2 or nearly[row]


ROWS = pd.DataFrame({"debt": [1, 2, 3, 4, 5, 6], "age": [20, 30, 40, 50, 60, 70], "job": list("aabbcc")})
SCHEMA = Schema.infer(ROWS).freeze("age").only_up("debt")
LABELS = np.array([1, 1, 1, 0, 0, 0])


def one_column(bias):
    """A query for the second class under a model of the debt alone, which may only grow, and counts against it."""
    space = TabularSpace.fit(SCHEMA, ROWS)
    x = space.encode(ROWS).numpy()
    weights = np.zeros((2, x.shape[1]))
    weights[1, space.encoding.number_at[0]] = -1.0
    return Query(x, np.ones(len(x), np.intp), space.codes), weights, np.array([0.0, bias])


def test_rows_beyond_the_border_that_may_only_move_away_are_out_of_reach():
    query, weights, biases = one_column(0.0)

    def probabilities(x):
        second = 1 / (1 + np.exp(-(x @ (weights[1] - weights[0]) + biases[1])))
        return np.stack([1 - second, second], axis=1)

    expected = [False] * 3 + [True] * 3
    rule = DecisionRule()
    assert proven_unreachable(query, probabilities, rule).tolist() == expected
    assert proven_unreachable(query, probabilities, rule, linear=(weights, biases), most_points=0).tolist() == expected
    assert not proven_unreachable(query, probabilities, rule, most_points=2).any(), "too many points to try"
    wanted = replace(query, min_prob=0.99)
    assert proven_unreachable(wanted, probabilities, rule, most_points=0).tolist() == [False] * 6
    assert proven_unreachable(wanted, probabilities, rule).all()


def test_a_row_within_rounding_of_the_border_is_not_proven():
    query, weights, _ = one_column(0.0)
    near = float(query.x[3] @ weights[0] - query.x[3] @ weights[1])
    proven = proven_unreachable(
        query, None, DecisionRule(), linear=(weights, np.array([0.0, near - 1e-8])), most_points=0
    )
    assert proven.tolist() == [False] * 4 + [True] * 2


def filled(inputs, outputs, bias=True):
    """A linear layer with weights that nobody drew."""
    layer = nn.utils.skip_init(nn.Linear, inputs, outputs, bias=bias)
    for parameter in layer.parameters():
        parameter.data = torch.linspace(-1.0, 2.0, parameter.numel()).reshape(parameter.shape)
    return layer


def test_linear_logits_are_those_of_every_model_in_the_order_of_the_weights():
    models = [LogisticRegression(C=c).fit(ROWS[["debt", "age"]], LABELS) for c in (0.01, 0.1, 1.0)]
    members = from_models(models, ROWS[["debt", "age"]]).predictors
    other = Stacked(nn.Sequential(filled(2, 3), nn.Identity(), filled(3, 2, bias=False)), {})
    joined = Joined([members, other]).subset(torch.tensor([3, 1, 0]))
    x = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
    for predictors in (members, joined, OnDevice(members, "cpu")):
        weights, biases = linear_logits(predictors)
        logits = np.einsum("scd,nd->snc", weights, x.numpy()) + biases[:, None]
        found = torch.log_softmax(torch.from_numpy(logits), dim=-1).numpy()
        np.testing.assert_allclose(found, predictors.log_probs(x).numpy(), atol=1e-5)


@pytest.mark.parametrize("layers", [[(2, 3), nn.ReLU(), (3, 2)], [(2, 2), nn.LogSigmoid()]])
def test_a_network_with_an_activation_is_not_linear(layers):
    bent = Stacked(nn.Sequential(*(filled(*layer) if isinstance(layer, tuple) else layer for layer in layers)), {})
    assert linear_logits(bent) is None
    assert linear_logits(Joined([Stacked(filled(2, 2), {}), bent])) is None
