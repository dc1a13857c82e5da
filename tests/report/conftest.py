"""An explainer over made-up loans, its answers and their page, made once."""

import warnings

import pytest
from answer_pages import LOANS, Page

from avcg import AVCG, Classifier, Recipe, retrains
from avcg.report.answers_page import render


@pytest.fixture(scope="session")
def recourse():
    model = Classifier(hidden=(16,), epochs=30, schema=LOANS.schema).fit(LOANS.X, LOANS.y)
    everyone = retrains(model, LOANS.X, LOANS.y, n=16, resampling="bootstrap")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so short a training may not keep its promise
        return AVCG(everyone, survival=0.9, recipe=Recipe(steps=150, layers=(32, 32))).fit(LOANS.X)


@pytest.fixture(scope="session")
def answers(recourse):
    return recourse.generate(LOANS.X.head(120), target=1)


@pytest.fixture(scope="session")
def page(answers, recourse):
    return Page.of(render(answers, recourse, by="housing"))
