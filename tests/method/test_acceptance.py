"""What the judges say of candidates and what each costs, against plain loops over judges and candidates."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from avcg import Schema, TabularSpace
from avcg.method.acceptance import Acceptance, any_class, price, squash
from avcg.method.config import SearchConfig
from avcg.method.query import Query
from avcg.models.decision import DecisionRule

FRAME = pd.DataFrame({name: np.linspace(-2, 2, 9) for name in "ab"})
SPACE = TabularSpace.fit(Schema.infer(FRAME), FRAME)
MOST = SearchConfig().most_log_odds


def drawn(judges=5, classes=2, threshold=None, deployed=(1.0,), survival=0.6, spread=0.7, seed=0, sharp=1.0):
    """Judges whose probabilities are drawn once for each candidate, with unequal weights; and these probabilities."""
    rng = np.random.default_rng(seed)
    table = rng.dirichlet(np.full(classes, 1 / sharp), (judges, 300))
    weights = rng.dirichlet(np.ones(judges))
    rule = DecisionRule(threshold)

    def judge(x):
        return table[:, : len(x)]

    return Acceptance(judge, weights, np.array(deployed), rule, survival, spread), table, weights


CASES = [
    {},
    {"threshold": 0.3},
    {"threshold": 0.8},
    {"classes": 3},
    {"classes": 4, "deployed": (0.25, 0.75)},
    {"deployed": (0.5, 0.3, 0.2), "sharp": 20.0},
    {"sharp": 300.0, "survival": 0.95},
    {"judges": 1, "spread": 0.0},
]


def logit(p):
    p = min(max(p, 1 / (1 + math.exp(MOST))), 1 / (1 + math.exp(-MOST)))
    return math.log(p / (1 - p))


class TestJudged:
    @pytest.mark.parametrize("min_prob", [None, 0.7, 0.2])
    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_is_what_plain_loops_say(self, case, min_prob):
        acceptance, table, weights = drawn(**case)
        classes, deployed = table.shape[-1], case.get("deployed", (1.0,))
        target = np.random.default_rng(1).integers(0, classes, 300)
        said = acceptance.judged(np.zeros((300, 2), np.float32), target, min_prob)
        needed = case.get("threshold")

        def decides(p, t):
            if needed is None:
                return p[t] == p.max()
            return p[1] >= needed if t == 1 else p[1] < needed

        for i, t in enumerate(target):
            mean = sum(share * table[s, i] for s, share in enumerate(deployed))
            valid = decides(mean, t) and (min_prob is None or mean[t] >= min_prob)
            share = sum(weights[s] for s in range(len(weights)) if decides(table[s, i], t))
            odds = [logit(table[s, i, t]) for s in range(len(weights))]
            middle = np.dot(weights, odds)
            lower = middle - acceptance.spread * math.sqrt(np.dot(weights, (np.array(odds) - middle) ** 2))
            assert said.valid[i] == valid
            assert said.share[i] == pytest.approx(share)
            assert said.lower[i] == pytest.approx(lower)
            assert said.accepted[i] == (valid and share >= acceptance.survival - 1e-6)
            assert said.short[i] == pytest.approx(0.0 if valid else self.short(mean, t, needed, min_prob), abs=1e-9)
            assert valid or said.short[i] >= 0
        assert 0 < said.valid.sum() < 300

    @staticmethod
    def short(p, t, needed, min_prob):
        own = logit(p[t])
        if needed is None:
            least = 1 / (1 + math.exp(MOST))
            others = max(value for k, value in enumerate(p) if k != t)
            short = math.log(max(others, least)) - math.log(max(p[t], least))
        else:
            cut = math.log(needed / (1 - needed))
            short = (cut if t == 1 else -cut) - own
        if min_prob is not None:
            short = max(short, math.log(min_prob / (1 - min_prob)) - own)
        return max(short, 0.0)

    def test_exactly_the_share_that_is_promised_is_enough(self):
        table = np.tile(np.array([0.4, 0.6]), (20, 1, 1))
        table[0:1] = [0.6, 0.4]
        for refusing, accepted in ((1, True), (2, False)):
            table[1:refusing] = [0.6, 0.4]
            judges = np.concatenate([table[::-1]])
            acceptance = Acceptance(lambda _, j=judges: j, np.full(20, 0.05), np.ones(1), DecisionRule(), 0.95, 1.0)
            assert acceptance.judged(np.zeros((1, 2)), np.ones(1, np.intp), None).accepted == [accepted]


class TestCosts:
    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_are_the_price_and_a_penalty_in_four_tiers(self, case):
        acceptance, table, _ = drawn(**case)
        rng = np.random.default_rng(2)
        x = rng.normal(size=(30, 2)).astype(np.float32)
        target = rng.integers(0, table.shape[-1], 30)
        candidates = SPACE.codes.project(rng.normal(size=(4, 30, 2)).astype(np.float32), x)
        candidates[2, 5:10] = x[5:10]
        query = Query(x, target, SPACE.codes)
        costs, prices = acceptance.costs(query, candidates), price(query, candidates)
        said = acceptance.judged(candidates.reshape(120, 2), np.tile(target, 4), None)
        million = acceptance.config.rejection_penalty
        for k, row in np.ndindex(4, 30):
            i = k * 30 + row
            penalty = 0.0 if said.accepted[i] else 2 - said.share[i]
            if not said.valid[i]:
                penalty = 3 + said.short[i] / (1 + said.short[i])
            penalty += 5.0 * (candidates[k, row] == x[row]).all()
            assert costs[k, row] == pytest.approx(prices[k, row] + million * penalty, rel=1e-12)
            rejected = not said.accepted[i] or (candidates[k, row] == x[row]).all()
            assert acceptance.rejected(costs)[k, row] == rejected

    def test_ranked_puts_the_cheapest_first_and_of_equal_ones_the_first(self):
        acceptance = Acceptance(
            lambda x: np.tile([0.2, 0.8], (1, len(x), 1)), np.ones(1), np.ones(1), DecisionRule(), 0.9, 0.0
        )
        x = np.zeros((2, 2), np.float32)
        answers = np.array([[[3, 0], [1, 0]], [[1, 0], [0, -1]], [[0, 2], [2, 2]]], np.float32) / 2
        query = Query(x, np.ones(2, np.intp), SPACE.codes, n=3)
        ranked = acceptance.ranked(query, answers)
        assert (2 * ranked).tolist() == [[[1, 0], [1, 0]], [[0, 2], [0, -1]], [[3, 0], [2, 2]]]
        np.testing.assert_array_equal(acceptance.best(query, answers), answers)
        one = acceptance.best(replace(query, n=1), answers)
        assert (2 * one).tolist() == [[[1, 0], [1, 0]]]

    def test_shortfalls_are_squashed_in_order(self):
        short = np.array([0.0, 0.1, 1.0, 3.0, 1e6])
        assert squash(short).tolist() == pytest.approx([0.0, 1 / 11, 0.5, 0.75, 1e6 / (1 + 1e6)])
        assert squash(short).max() < 1


class TestAnyClass:
    def test_the_cheapest_first_answer_decides_and_of_equal_ones_the_first_class(self):
        """Of three classes, from the row at 0: what each costs, and whether it is accepted."""
        reached = {0: 1.5, 1: 1.0, 2: 0.5}

        def judge(x):
            p = np.full((1, len(x), 3), 0.1)
            for label, at in reached.items():
                if label != banned:
                    p[0, np.abs(x[:, 0] - at) < 1e-6, label] = 0.8
            return p

        def answer(query):
            asked.append((query.n, query.target.tolist()))
            point = np.array([[reached[t], 0.0] for t in query.target], np.float32)
            return np.tile(point, (query.n, 1, 1))

        x = np.zeros((3, 2), np.float32)
        acceptance = Acceptance(judge, np.ones(1), np.ones(1), DecisionRule(), 0.9, 0.0)
        for case, aims in ((None, [2, 2, 1]), (2, [1, 0, 1])):
            banned = case
            for n in (1, 2):
                asked = []
                query = Query(x, np.array([1, 2, 0]), SPACE.codes, n=n)  # the classes after 0, 1 and 2
                answers, aimed = any_class(acceptance, query, 3, answer)
                assert aimed.tolist() == aims
                assert answers.shape == (n, 3, 2)
                assert answers[0, :, 0].tolist() == [reached[t] for t in aims]
                assert asked[:2] == [(1, [1, 2, 0]), (1, [2, 0, 1])]
                assert asked[2:] == ([] if n == 1 else [(n, aims)])
            assert query.target.tolist() == [1, 2, 0], "the query is as it was"
        reached, banned, asked = {0: 2.0, 1: 1.0, 2: -1.0}, None, []
        assert any_class(acceptance, replace(query, n=1), 3, answer)[1].tolist() == [1, 2, 1]

    def test_of_three_others_the_cheapest_and_not_the_last_that_is_cheaper_than_the_one_before(self):
        reached = np.array([9.0, 0.5, 2.0, 1.0])

        def answer(query):
            return np.stack([reached[query.target], 0 * query.target], axis=1).astype(np.float32)[None]

        def judge(x):
            p = np.abs(x[:, :1] - reached) < 1e-6
            return ((p + 0.1) / (p + 0.1).sum(axis=1, keepdims=True))[None]

        acceptance = Acceptance(judge, np.ones(1), np.ones(1), DecisionRule(), 0.9, 0.0)
        query = Query(np.zeros((1, 2), np.float32), np.array([1]), SPACE.codes)
        answers, aimed = any_class(acceptance, query, 4, answer)
        assert aimed.tolist() == [1]
        assert answers.tolist() == [[[0.5, 0.0]]]
