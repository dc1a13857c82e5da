"""Every distribution in the room keeps the contract: a new one is tested by being there, with an example below."""

import importlib
import inspect
import pkgutil
from typing import get_type_hints

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier
from torch import nn

import avcg
import avcg.hypotheses
from avcg import toys
from avcg.hypotheses.predictors import Stacked
from avcg.hypotheses.rashomon import RashomonSet
from avcg.models.networks import mlp
from avcg.testing import check_hypotheses

TOY = toys.linear_logistic(n=400)


@pytest.fixture(scope="module")
def model():
    return avcg.Classifier(hidden=(16,), epochs=20).fit(TOY.X, TOY.y)


class Foreign:
    """As laplace-torch does it: n vectors of all parameters, drawn from the global stream."""

    def __init__(self, network):
        self.vector = nn.utils.parameters_to_vector(network.parameters()).detach()

    def sample(self, n):
        return self.vector + 0.1 * torch.randn(n, len(self.vector))


def noisy(model, kind="bernoulli"):
    return avcg.MCDropout(avcg.attach_dropout(model.network_, 0.2, kind), space=model.space_)


def gaussian(model):
    mean = {name: value.detach() for name, value in model.network_.named_parameters()}
    count = sum(value.numel() for value in mean.values())
    return avcg.GaussianPosterior(model.network_, mean, torch.full((count,), 0.1), None, model.space_, model.classes_)


def rashomon_masks(model):
    return avcg.rashomon_set(avcg.MCDropout(model), TOY.X, TOY.y, epsilon=0.1)


def estimators(model, last):
    return [make_pipeline(StandardScaler(), last).fit(TOY.X[start::3], TOY.y[start::3]) for start in range(3)]


# By class, or by the function that makes one: examples from a small fitted classifier.
EXAMPLES = {
    avcg.FiniteSet: {"weighted": lambda model: avcg.FiniteSet(
        Stacked(model.network_, gaussian(model).sample(3).overrides, torch.tensor([0.5, 0.3, 0.2])), model.space_
    )},
    avcg.PointMass: {"point mass": avcg.PointMass},
    avcg.DeepEnsemble: {
        "alike": lambda model: avcg.DeepEnsemble([model, model.network_], model.space_),
        "two kinds": lambda model: avcg.DeepEnsemble([model.network_, mlp(4, 2, (3,))], model.space_),
    },
    avcg.MCDropout: {
        "trained with dropout": avcg.MCDropout,
        "attached": noisy,
        "attached, Gaussian": lambda model: noisy(model, "gaussian"),
    },
    avcg.GaussianPosterior: {"diagonal": gaussian},
    avcg.SampledWeights: {
        "another library's": lambda model: avcg.SampledWeights(model.network_, Foreign(model.network_), model.space_)
    },
    avcg.Laplace: {
        "last layer": lambda model: avcg.Laplace.fit(model, TOY.X, TOY.y),
        "kron": lambda model: avcg.Laplace.fit(model, TOY.X, TOY.y, structure="kron"),
        "all, diagonal": lambda model: avcg.Laplace.fit(model, TOY.X, TOY.y, parameters="all", structure="diag"),
    },
    avcg.MeanFieldVI: {
        "three epochs": lambda model: avcg.MeanFieldVI.fit(model, TOY.X, TOY.y, training=avcg.Training(epochs=3))
    },
    avcg.SWAG: {"four snapshots": lambda model: avcg.SWAG.fit(model, TOY.X, TOY.y, n_snapshots=4)},
    avcg.Mixture: {
        "uneven shares": lambda model: avcg.Mixture([avcg.MCDropout(model), avcg.PointMass(model)], [0.9, 0.1])
    },
    avcg.rashomon_set: {"of masks": rashomon_masks},
    RashomonSet: {"of masks": rashomon_masks},
    avcg.retrains: {
        "of a network": lambda model: avcg.retrains(model, TOY.X, TOY.y, n=4, resampling="bootstrap"),
        "of trees": lambda model: avcg.retrains(
            DecisionTreeClassifier(max_depth=3, random_state=0), TOY.X, TOY.y, n=3, resampling="bootstrap",
        ),
    },
    avcg.from_models: {
        "as networks": lambda model: avcg.from_models(
            estimators(model, LogisticRegression()), TOY.X, space=model.space_
        ),
        "as black boxes": lambda model: avcg.from_models(
            estimators(model, DecisionTreeClassifier(max_depth=3, random_state=0)), TOY.X, space=model.space_
        ),
    },
}  # fmt: skip


def distributions_in_the_room():
    """Public classes of `avcg.hypotheses` that can be sampled, and public functions that return one."""
    parts = pkgutil.iter_modules(avcg.hypotheses.__path__)
    modules = [importlib.import_module(f"avcg.hypotheses.{part.name}") for part in parts]
    own = {
        name: thing
        for module in modules
        for name, thing in vars(module).items()
        if not name.startswith("_") and getattr(thing, "__module__", None) == module.__name__
    }
    classes = {
        name: kind
        for name, kind in own.items()
        if inspect.isclass(kind) and hasattr(kind, "sample") and not getattr(kind, "_is_protocol", False)
    }
    functions = {
        name: function
        for name, function in own.items()
        if inspect.isfunction(function) and get_type_hints(function).get("return") in classes.values()
    }
    return classes | functions


@pytest.mark.parametrize("distribution", distributions_in_the_room().values(), ids=distributions_in_the_room())
def test_it_keeps_the_contract(distribution, model):
    assert distribution in EXAMPLES, (
        f"{distribution.__name__} has no example: add to EXAMPLES a function from a fitted classifier to one"
    )
    for name, example in EXAMPLES[distribution].items():
        hypotheses = example(model)
        assert isinstance(hypotheses, avcg.HypothesisDistribution), name
        assert hypotheses.space is model.space_ or distribution is avcg.retrains, name
        check_hypotheses(hypotheses, hypotheses.space.encode(TOY.X[:5]))


def test_every_distribution_is_found():
    assert set(EXAMPLES) == set(distributions_in_the_room().values())


def test_a_distribution_that_breaks_the_contract_is_found_out(model):
    x = model.space_.encode(TOY.X[:5])

    class Global:
        space = None

        def sample(self, n, *, rng=None):
            state = {name: v.detach() + 0.1 * torch.randn(n, *v.shape) for name, v in model.network_.named_parameters()}
            return Stacked(model.network_, state)

    class TrainMode(Stacked):
        def log_probs(self, x):
            noise = 1 + 0.5 * torch.linspace(-1, 1, len(x))[:, None]
            return super().log_probs(x * noise)

    with torch.random.fork_rng(), pytest.raises(AssertionError, match="global stream"):
        check_hypotheses(Global(), x)
    with pytest.raises(AssertionError, match=r"other rows|order of rows"):
        check_hypotheses(avcg.FiniteSet(TrainMode(model.network_, {}), None), x)
