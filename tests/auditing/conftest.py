"""Advice given in spring, and its audit by a later model, made once."""

import warnings

import pytest
from advice import SCHEMA, SPRING, autumn_model, denied, learnt, spring_model

from avcg import AVCG, Recipe, audit, from_models


@pytest.fixture(scope="session")
def recourse():
    members = [learnt(SPRING, 0.0, slice(i, None, 4)) for i in range(4)]
    everyone = from_models(members, SPRING.X, deployed=spring_model(), schema=SCHEMA)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so short a training may not keep its promise
        return AVCG(everyone, survival=0.7, recipe=Recipe(steps=200, layers=(32, 32))).fit(SPRING.X)


@pytest.fixture(scope="session")
def delivered(recourse):
    return recourse.generate(denied(), target=1, effort="thorough")


@pytest.fixture(scope="session")
def found(recourse, delivered):
    return audit(delivered, autumn_model(), recourse=recourse)
