"""The contract of an explainer."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch

from avcg.explainers.base import Explainer
from avcg.explainers.counterfactuals import Counterfactuals
from avcg.explainers.records import MEANING
from avcg.space.tabular import table_of
from avcg.testing.unchanged import streams_untouched


def check_explainer(explainer: Explainer, X: pd.DataFrame) -> None:
    """Assert that a fitted explainer of tables behaves as the rest of avcg expects.

    Every row gets a status, and answers have the columns, dtypes and index of the rows. No constraint is broken, also
    if each row has its own restrictions. Statuses agree with what the deployed model decides about the delivered rows.
    Answers are the same alone, in a batch and in any order, and survive a round trip through JSON. Global random
    streams stay untouched.

    Args:
        explainer: A fitted explainer.
        X: A few rows, at least four.

    Raises:
        AssertionError: If a condition does not hold. The message names it.
    """
    with streams_untouched("generate"):
        answers = explainer.generate(X)
    assert answers.frame.index.equals(X.index), "the index is not that of the rows"
    assert list(answers.frame.columns) == list(X.columns), "the columns are not those of the rows"
    assert answers.frame.dtypes.equals(X.dtypes), "the dtypes are not those of the rows"
    assert set(answers.statuses) <= set(MEANING), f"unknown statuses: {set(answers.statuses) - set(MEANING)}"
    _check_judgement(explainer, answers, X)
    _check_constraints(explainer, answers, X)
    _check_neighbours(explainer, answers, X)
    assert Counterfactuals.from_json(answers.to_json()).to_json() == answers.to_json(), (
        "answers are changed by a round trip through JSON"
    )
    several = explainer.generate(X, n=2)
    assert len(several.frame) == len(several.statuses) == 2 * len(X), "there are not two answers for each row"


def _check_judgement(explainer: Explainer, answers: Counterfactuals, X: pd.DataFrame) -> None:
    x_cf, deployed = explainer.space_.encode(answers.frame), explainer.deployed_
    after = deployed.bind_rows(answers.frame).probabilities(x_cf)
    before = deployed.bind_rows(X).probabilities(explainer.space_.encode(X))
    decided, current = (explainer.classes_[deployed.decide(probabilities).numpy()] for probabilities in (after, before))
    delivered = answers.status.isin(["ok", "not_robust"]).to_numpy()
    assert (decided[delivered] == answers.target[delivered]).all(), "an answer is reported as valid and is not"
    unreported = (np.isin(answers.statuses, ["not_found", "infeasible"])) & (decided == answers.target)
    assert not unreported.any(), "an answer is valid and reported as not valid"
    assert ((answers.statuses == "already_target") == (current == answers.target)).all(), "already_target is wrong"
    unchanged = answers.status.isin(["already_target", "immovable"]).to_numpy()
    pd.testing.assert_frame_equal(answers.frame[unchanged], X[unchanged])


def _check_constraints(explainer: Explainer, answers: Counterfactuals, X: pd.DataFrame) -> None:
    space = table_of(explainer.space_)
    assert space is not None, "check_explainer is for tables"
    assert not space.violations(answers.frame, X).any(), "a constraint of the schema is broken"
    free = np.flatnonzero(space.feasible.movable(space.encoding)[0])
    vary = np.zeros((len(X), len(space.schema)), bool)
    vary[np.arange(len(X)), free[np.arange(len(X)) % len(free)]] = True
    restricted = explainer.generate(X, vary=vary)
    broken = space.restrict(vary=vary).violations(restricted.frame, X)
    assert not broken.any(), "a restriction of a single row is broken"


def _check_neighbours(explainer: Explainer, answers: Counterfactuals, X: pd.DataFrame) -> None:
    expected = explainer.space_.encode(answers.frame)
    reversed_rows = explainer.space_.encode(explainer.generate(X.iloc[::-1]).frame.iloc[::-1])
    alone = explainer.space_.encode(explainer.generate(X.iloc[[1]]).frame)
    assert torch.allclose(reversed_rows, expected, atol=1e-5), "an answer depends on the order of rows"
    assert torch.allclose(alone, expected[1:2], atol=1e-5), "an answer depends on the other rows"
