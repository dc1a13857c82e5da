"""The search, with judges and candidates one can check by hand."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from avcg import Schema, TabularSpace
from avcg.method.acceptance import Acceptance, any_class
from avcg.method.query import Query
from avcg.models.decision import DecisionRule

FRAME = pd.DataFrame({"x": np.linspace(-2.0, 2.0, 9)})
SPACE = TabularSpace.fit(Schema.infer(FRAME), FRAME)


def acceptance(judge, deployed=(1.0,), judges=1):
    return Acceptance(judge, np.full(judges, 1 / judges), np.array(deployed), DecisionRule(), survival=0.5, spread=2.0)


@pytest.mark.parametrize(
    ("weights", "expected"), [([1.0], [0.9, 0.1]), ([0.5, 0.5], [0.6, 0.4]), ([0.25, 0.25, 0.5], [0.4, 0.6])]
)
def test_the_deployed_probability_is_the_weighted_mean_of_all_deployed_models(weights, expected):
    judged = np.array([[[0.9, 0.1]], [[0.3, 0.7]], [[0.2, 0.8]], [[0.0, 1.0]]])
    found = acceptance(None, weights).deployed_probability(judged)
    np.testing.assert_allclose(found, [expected])


def test_the_class_is_aimed_at_whose_first_answer_is_cheaper():
    """Of three classes, one is reached by answers that cost 1 and 4, the other by answers that cost 2 and 3."""

    def judge(candidates):
        return np.full((1, len(candidates), 3), 1 / 3) + np.eye(3)[wanted[-1]]

    def answer(query):
        wanted.append(query.target[0])
        asked.append(query.n)
        return np.array(costs[query.target[0]], np.float32)[: query.n, None, None]

    query = Query(np.zeros((1, 1), np.float32), np.array([1]), SPACE.codes, n=2)
    for costs, aimed in (({1: (1, 4), 2: (2, 3)}, 1), ({1: (2, 3), 2: (1, 4)}, 2)):
        wanted, asked = [], []
        answers, target = any_class(acceptance(judge), replace(query), 3, answer)
        assert target.tolist() == [aimed]
        assert answers[:, 0, 0].tolist() == list(costs[aimed])
        assert asked == [1, 1, 2], "all answers are made for the chosen class alone"
