"""Sets of predictors against loops and finite differences."""

import copy
import subprocess
import sys

import numpy as np
import pytest
import torch
from distributions import NETWORKS, perturbed, rows

import avcg
from avcg import toys
from avcg.errors import DataError
from avcg.hypotheses.predictors import Joined, Opaque, Stacked
from avcg.models.networks import mlp
from avcg.testing import check_hypotheses


def one_by_one(network, state, x):
    outputs = []
    for s in range(len(next(iter(state.values())))):
        member = copy.deepcopy(network).eval().to(x.dtype)
        with torch.no_grad():
            for name, value in state.items():
                member.get_parameter(name).copy_(value[s])
        outputs.append(torch.log_softmax(member(x), dim=-1))
    return torch.stack(outputs)


@pytest.mark.parametrize("kind", NETWORKS)
class TestStacked:
    def test_equals_a_loop(self, kind):
        build, event = NETWORKS[kind]
        network = build()
        state = perturbed(network, 4)
        x = rows(7, *event)
        torch.testing.assert_close(
            Stacked(network, state).log_probs(x), one_by_one(network, state, x), atol=1e-5, rtol=1e-5
        )

    def test_partial_overrides_equal_a_loop(self, kind):
        build, event = NETWORKS[kind]
        network = build()
        state = perturbed(network, 4)
        name = list(state)[-1]
        x = rows(7, *event)
        expected = one_by_one(network, {name: state[name]}, x)
        torch.testing.assert_close(Stacked(network, {name: state[name]}).log_probs(x), expected, atol=1e-5, rtol=1e-5)

    def test_gradients_equal_finite_differences(self, kind):
        build, event = NETWORKS[kind]
        network = build()
        predictors = Stacked(network, perturbed(network, 3))
        x = rows(2, *event, dtype=torch.float64).requires_grad_()
        assert torch.autograd.gradcheck(predictors.log_probs, x, eps=1e-6, atol=1e-6)

    def test_chunks_change_nothing(self, kind, monkeypatch):
        build, event = NETWORKS[kind]
        network = build()
        predictors = Stacked(network, perturbed(network, 3))
        x = rows(11, *event).requires_grad_()
        whole = predictors.log_probs(x)
        (gradient,) = torch.autograd.grad(whole.square().sum(), x)
        for kept in (2**28, 1):  # without and with computing activations twice
            monkeypatch.setattr("avcg.hypotheses.predictors._CPU_NUMBERS", 1)
            monkeypatch.setattr("avcg.hypotheses.predictors._KEPT_NUMBERS", kept)
            parts = predictors.log_probs(x)
            torch.testing.assert_close(parts, whole, atol=1e-5, rtol=1e-5)
            (found,) = torch.autograd.grad(parts.square().sum(), x)
            torch.testing.assert_close(found, gradient, atol=1e-4, rtol=1e-4)


def test_the_network_given_is_never_changed():
    network = mlp(5, 3, (8,), dropout=0.3)
    network.train()
    before = copy.deepcopy(network.state_dict())
    predictors = Stacked(network, perturbed(network, 3))
    predictors.log_probs(rows(4, 5))
    avcg.MCDropout(network).sample(3).log_probs(rows(4, 5))
    assert network.training
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert all(parameter.requires_grad for parameter in network.parameters())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/status")
def test_memory_stays_bounded():
    """500 hypotheses on 100,000 rows: the hidden activations all at once would take 12 GiB, the answer takes 0.4.

    In a process of its own, by its own high-water mark: the peak of one that has done other things before says nothing,
    and the one that getrusage tells is handed down from the parent.
    """
    code = """
import torch
from pathlib import Path
from avcg.hypotheses.predictors import Stacked
from avcg.models.networks import draw_state, mlp
network = mlp(4, 2, (64,))
predictors = Stacked(network, draw_state(network, 500, torch.Generator().manual_seed(0)))
x = torch.zeros(100_000, 4)
peak = lambda: int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 2**20
before = peak()
predictors.log_probs(x)
print(peak() - before)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 0.3 < float(found.stdout) < 1.0, "GiB"


class TestJoinedAndOpaque:
    def test_groups_side_by_side(self):
        small, large = mlp(5, 3, (4,)), mlp(5, 3, (9, 9))
        joined = Joined([Stacked(small, perturbed(small, 2)), Stacked(large, perturbed(large, 3))])
        x = rows(6, 5)
        assert joined.log_probs(x).shape == (5, 6, 3)
        torch.testing.assert_close(joined.weights, torch.full((5,), 0.2))
        some = joined.subset(torch.tensor([4, 0]))
        torch.testing.assert_close(some.log_probs(x), joined.log_probs(x)[[4, 0]])
        assert joined.differentiable

    def test_shares_of_groups(self):
        small, large = mlp(5, 3, (4,)), mlp(5, 3, (9,))
        joined = Joined([Stacked(small, perturbed(small, 2)), Stacked(large, perturbed(large, 3))], [0.5, 0.5])
        torch.testing.assert_close(joined.weights, torch.tensor([0.25, 0.25, 1 / 6, 1 / 6, 1 / 6]))

    def test_functions_without_gradients(self):
        opaque = Opaque(
            [lambda x: torch.full((len(x), 2), 0.5), lambda x: torch.tensor([[0.9, 0.1]]).expand(len(x), 2)]
        )
        assert not opaque.differentiable
        torch.testing.assert_close(opaque.predictive(rows(3, 5)), torch.tensor([[0.7, 0.3]]).expand(3, 2))
        assert not Joined([opaque, Stacked(mlp(5, 2, ()), {})]).differentiable
        with pytest.raises(DataError, match="do not sum to one"):
            Opaque([lambda x: torch.ones(len(x), 2)]).log_probs(rows(3, 5))


def test_frames_of_estimators_come_back_as_they_were_fitted():
    from sklearn.compose import make_column_transformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder
    from sklearn.tree import DecisionTreeClassifier

    loans = toys.loans(n=200)
    encoder = make_column_transformer((OneHotEncoder(), ["housing", "rating"]), remainder="passthrough")
    model = make_pipeline(encoder, DecisionTreeClassifier(max_depth=4))
    members = avcg.retrains(model, loans.X, loans.y, n=3, resampling="bootstrap", schema=loans.schema)
    x = members.space.encode(loans.X[:20])
    check_hypotheses(members, x)
    found = members.predictors.log_probs(x).exp()
    for s, one in enumerate(members.predictors.members):
        np.testing.assert_allclose(found[s], one.model.predict_proba(loans.X[:20]), atol=1e-5)
