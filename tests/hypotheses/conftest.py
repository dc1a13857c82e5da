"""A toy problem with a trained classifier, made once."""

import pytest

import avcg
from avcg import toys


def trained(n=400, seed=0, **options):
    toy = toys.linear_logistic(n=n, seed=seed)
    return toy, avcg.Classifier(hidden=(16,), epochs=20, **options).fit(toy.X, toy.y)


@pytest.fixture(scope="session")
def toy_model():
    return trained()
