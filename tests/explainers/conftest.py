"""An explainer over made-up loans and its answers, made once."""

import warnings

import pytest
from explained_loans import SHORT, TOY, denied, loan_retrains

from avcg import AVCG


@pytest.fixture(scope="session")
def recourse():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so short a training may not keep its promise
        return AVCG(loan_retrains(), recipe=SHORT).fit(TOY.X, TOY.y)


@pytest.fixture(scope="session")
def answers(recourse):
    return recourse.generate(denied())
