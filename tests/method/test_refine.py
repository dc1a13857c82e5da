"""Refined answers against every point of small feasible sets; and what they never do."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st
from small_problems import problems

from avcg import Schema, TabularSpace
from avcg.bench.ruler import LinearModels
from avcg.method import refine
from avcg.method.acceptance import Acceptance, price
from avcg.method.config import SearchConfig
from avcg.method.query import Deadline, Query
from avcg.method.refine import Refiner, _Ledger, _State, toward_typical
from avcg.models.decision import DecisionRule
from avcg.space.alternatives import Alternatives

EXAMPLES = settings(max_examples=50)
ROUNDS = (1.0, 0.5, 0.25)
MANY = ROUNDS * 12
QUANTUM = SearchConfig().cost_quantum
# From random points, where every point of a small set can be tried. On several samples: 0.63 to 0.73, and 1.07 to 1.14.
SHARE_OF_BEST, MEAN_RATIO = 0.6, 1.15


def acceptance_of(models, *, survival=0.75, spread=0.5, **settings):
    """The first of linear models decides, and all of them judge."""

    def judge(x):
        logits = np.einsum("scd,nd->snc", models.weights, x.astype(np.float64)) + models.biases[:, None]
        odds = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return odds / odds.sum(axis=-1, keepdims=True)

    count = len(models.biases)
    weights = np.full(count, 1 / count)
    return Acceptance(judge, weights, np.ones(1), DecisionRule(), survival, spread, SearchConfig(**settings))


def another_class(acceptance, x, classes):
    """For each row the class after the one that is decided for."""
    return (acceptance.judge(x)[0].argmax(axis=-1) + 1) % classes


def at_random(codes, x, rng, scale=2.0):
    """Random feasible points, one for each row."""
    raw = (x + rng.normal(size=x.shape) * scale).astype(np.float32)
    return codes.project(np.where(rng.random(x.shape) < 0.8, raw, x)[None], x)[0]


@st.composite
def queries(draw, typical=True):
    """A small problem: how candidates are judged, a query, answers to begin with, and margins."""
    space, codes, _, x, _, models = draw(problems())
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    acceptance = acceptance_of(models)
    classes = models.biases.shape[1]
    min_prob = draw(st.sampled_from([None, None, 0.7]))
    query = Query(x, another_class(acceptance, x, classes), codes, min_prob=min_prob)
    if typical and draw(st.booleans()):
        reference = rng.normal(size=(3, 6, x.shape[1])).astype(np.float32)
        query = replace(query, typicality=draw(st.sampled_from([0.3, 1.0])), typical=reference, n_typical=2)
    answers = at_random(codes, x, rng)
    return space, acceptance, query, answers, rng.uniform(0, 2, 3).astype(np.float32), rng


def judged(acceptance, query, answers):
    return acceptance.judged(answers, query.target, query.min_prob)


def floors(acceptance, query, start, margin):
    """(B,) log-odds that a refined answer keeps."""
    before = judged(acceptance, query, start)
    return np.where(before.accepted, np.minimum(margin, before.lower), margin)


def every_point(acceptance, query):
    """For each row, each of its points other than the row itself: codes, what the judges say of them, and prices."""
    for owner, points in query.space.small_sets(query.x, 10**5, 10**7):
        for row in np.unique(owner):
            mine = points[owner == row]
            mine = mine[(mine != query.x[row]).any(axis=1)]
            if len(mine):
                one = query.take(np.array([row]))
                said = acceptance.judged(mine, np.repeat(one.target, len(mine)), query.min_prob)
                yield row, mine, said, price(one, mine[:, None])[:, 0]


def feasible(query, answers):
    np.testing.assert_array_equal(query.space.project(answers[None], query.x)[0], answers)
    return True


class TestRefined:
    @EXAMPLES
    @given(queries(), st.sampled_from([ROUNDS, (0.5,), (0.25, 1.0, 0.5)]))
    def test_accepted_answers_cost_no_more_keep_their_floor_and_stay_feasible(self, drawn, steps):
        _, acceptance, query, start, margin, _ = drawn
        found = Refiner(acceptance).refined(query, start, margin, steps)
        assert feasible(query, found)
        before, after = judged(acceptance, query, start), judged(acceptance, query, found)
        floor = floors(acceptance, query, start, margin)
        moved = (start != query.x).any(axis=1)
        assert after.accepted[before.accepted].all()
        assert (after.lower >= floor - 1e-9)[before.accepted].all()
        assert (price(query, found[None]) <= price(query, start[None]))[0, before.accepted & moved].all()

    @EXAMPLES
    @given(queries())
    def test_rejected_answers_come_no_farther_from_being_accepted(self, drawn):
        _, acceptance, query, start, margin, _ = drawn
        found = Refiner(acceptance).refined(query, start, margin, ROUNDS)
        costs = [acceptance.costs(query, one[None])[0] for one in (start, found)]
        rejected = ~judged(acceptance, query, start).accepted
        share = acceptance.judged(start, query.target, query.min_prob).valid
        # Among valid ones the log-odds decide here, and the share of judges there.
        worse = (costs[1] > costs[0] + 1e-6 * acceptance.config.rejection_penalty) & ~share
        assert not (worse & rejected).any()

    @EXAMPLES
    @given(queries())
    def test_the_answer_given_is_left_as_it_was(self, drawn):
        _, acceptance, query, start, margin, _ = drawn
        before, x = start.copy(), query.x.copy()
        Refiner(acceptance).refined(query, start, margin, ROUNDS, start[None])
        np.testing.assert_array_equal(start, before)
        np.testing.assert_array_equal(query.x, x)

    def test_most_reach_the_best_point_of_small_sets(self, record_property):
        """With an additive judge and from random points. The others would have to change several units at once."""
        ratios = []

        @seed(0)  # the share differs from sample to sample
        @settings(max_examples=160, phases=[Phase.generate])
        @given(queries(typical=False))
        def collect(drawn):
            _, acceptance, query, start, margin, _ = drawn
            if acceptance.judge(query.x).shape[-1] > 2:  # log-odds of one class among three do not add up
                return
            one = replace(acceptance, judge=lambda x: acceptance.judge(x)[:1], weights=np.ones(1), spread=0.0)
            accepted, floor = judged(one, query, start).accepted, floors(one, query, start, margin)
            found = Refiner(one).refined(query, start, margin, MANY)
            reached = price(query, found[None])[0]
            for row, _, said, prices in every_point(one, query):
                if accepted[row]:
                    best = prices[said.accepted & (said.lower >= floor[row] - 1e-9)].min()
                    assert reached[row] >= best - 1e-5
                    ratios.append((reached[row] - best, reached[row] / max(best, 1e-9)))

        collect()
        excess, ratio = np.array(ratios).T
        share = (excess <= 2 * QUANTUM).mean()
        record_property(
            "say", f"refined: {share:.1%} of {len(ratios)} answers are the best, mean ratio {ratio.mean():.4f}"
        )
        assert len(ratios) > 40
        assert share >= SHARE_OF_BEST
        assert ratio.mean() <= MEAN_RATIO

    def test_changes_that_are_not_needed_are_undone_and_the_others_made_smaller(self):
        frame = pd.DataFrame({name: np.linspace(-2, 2, 41) for name in "ab"})
        space = TabularSpace.fit(Schema.infer(frame), frame)
        scale = space.codes.encoding.scale[0]
        models = LinearModels(np.array([[[0.0, 0.0], [2.0, 0.1]]]), np.array([[0.0, -1.0]]))
        x = np.zeros((2, 2), np.float32)
        start = np.array([[1.2, 1.1], [1.6, 0.0]], np.float32)
        query = Query(x, np.ones(2, np.intp), space.codes)
        found = Refiner(acceptance_of(models)).refined(query, start, np.zeros(2, np.float32), MANY)
        assert (found[:, 1] == 0.0).all(), "taken back, to the last digit"
        assert ((found[:, 0] >= 0.5) & (found[:, 0] <= 0.5 + 0.25)).all()
        assert scale > 0


class TestRejectedRows:
    @EXAMPLES
    @given(queries())
    def test_are_accepted_where_any_point_is(self, drawn):
        _, acceptance, query, start, margin, _ = drawn
        acceptance = replace(acceptance, config=SearchConfig(most_points=10**5))
        found = Refiner(acceptance).exhausted(query, start, margin)
        assert feasible(query, found)
        after, floor = judged(acceptance, query, found), floors(acceptance, query, start, margin)
        for row, points, said, prices in every_point(acceptance, query):
            good = said.accepted & (said.lower >= floor[row])
            if good.any():
                assert after.accepted[row]
                assert after.lower[row] >= floor[row] - 1e-9
                assert price(query, found[None])[0, row] <= prices[good].min() + 2 * QUANTUM
            elif said.accepted.any():
                assert after.accepted[row]
                assert after.lower[row] >= said.lower[said.accepted].max() - 1e-4
            elif said.valid.any():
                assert after.valid[row]
                assert after.lower[row] >= said.lower[said.valid].max() - 1e-4
            else:
                assert after.short[row] <= said.short.min() + 1e-4 * (1 + said.short.min()) ** 2
                assert (found[row] != query.x[row]).any(), "the row itself is no answer"
            assert len(points)

    @EXAMPLES
    @given(queries(typical=False), st.booleans())
    def test_are_never_answered_by_themselves(self, drawn, best_is_the_row):
        """Even where every change makes the target less probable, as the second judge has it."""
        _, acceptance, query, start, margin, _ = drawn

        def hopeless(x):
            far = np.abs(x[None] - query.x[:, None]).sum(axis=-1).min(axis=0)
            p = 0.4 * np.exp(-far) if best_is_the_row else 0.4 * (1 - np.exp(-far))
            judged = np.tile(((1 - p) / 3)[None, :, None], (1, 1, 4))
            judged[:, np.arange(len(x)), 0] = p
            return judged

        none = replace(acceptance, judge=hopeless, weights=np.ones(1))
        query = replace(query, target=np.zeros(3, np.intp), min_prob=0.9)
        refiner = Refiner(none)
        moved = (start != query.x).any(axis=1)
        found = refiner.refined(query, start, margin, ROUNDS)
        assert (found != query.x).any(axis=1)[moved].all()
        found = refiner.exhausted(query, found, margin)
        assert (found != query.x).any(axis=1)[moved].all()

    @EXAMPLES
    @given(queries())
    def test_with_many_rounds_most_are_accepted_where_any_point_is(self, drawn):
        """A row without any change has to find its way by itself."""
        _, acceptance, query, _, margin, _ = drawn
        found = Refiner(acceptance).refined(query, query.x, margin, MANY)
        assert feasible(query, found)
        costs = [acceptance.costs(query, one[None])[0] for one in (query.x, found)]
        assert (costs[1] <= costs[0]).all()

    def test_a_small_set_is_searched_only_up_to_its_size(self):
        frame = pd.DataFrame({"a": np.arange(9.0), "b": list("uvwuvwuvw")})
        space = TabularSpace.fit(Schema.infer(frame), frame)
        x = space.encode(frame.iloc[:1]).numpy()
        models = LinearModels(np.array([[[0.0] * 4, [1.0, 0, 0, 0]]]), np.array([[0.0, 0.0]]))
        query = Query(x, np.ones(1, np.intp), space.codes)
        for most, accepted in ((27, True), (26, False)):
            refiner = Refiner(acceptance_of(models, most_points=most))
            found = refiner.exhausted(query, x, np.zeros(1, np.float32))
            assert judged(refiner.acceptance, query, found).accepted == [accepted]


def people(n=40, seed=0, typicality=0.0, **settings):
    """Rows with every kind of column, limits of their own, several judges, and answers to begin with."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "income": rng.normal(50, 20, n),
            "debt": np.where(rng.random(n) < 0.2, np.nan, rng.normal(5, 2, n)),
            "months": rng.integers(0, 60, n),
            "job": rng.choice(list("abcd"), n),
            "owns": rng.random(n) < 0.5,
            "grade": pd.Categorical(rng.choice(["low", "mid", "high"], n), ["low", "mid", "high"], ordered=True),
        }
    )
    schema = Schema.infer(frame).allow_missing("debt").only_up("months").cost("income", per_change=0.3)
    space = TabularSpace.fit(schema, frame)
    x = space.encode(frame).numpy()
    codes = space.codes.restrict(rng.random((n, 6)) < 0.8, None, rng.integers(1, 5, n))
    weights = rng.normal(size=(1, 2, x.shape[1])) + 0.2 * rng.normal(size=(5, 2, x.shape[1]))
    acceptance = acceptance_of(LinearModels(weights, np.zeros((5, 2))), **settings)
    query = Query(x, another_class(acceptance, x, 2), codes, typicality=typicality)
    answers = at_random(codes, x, rng, 3.0)
    if typicality:
        references = [rng.normal(size=(30, x.shape[1])).astype(np.float32) for _ in range(2)]
        query = toward_typical(query, answers, references, acceptance.config, 5)
    return acceptance, query, answers, rng.uniform(0, 2, n).astype(np.float32), codes


class TestRowsAreIndependent:
    @pytest.mark.parametrize("typicality", [0.0, 0.4])
    def test_permuted_in_part_and_alone(self, typicality):
        acceptance, query, start, margin, codes = people(typicality=typicality)
        refiner, steps = Refiner(acceptance), (0.5, 0.25, 1.0, 0.5, 0.25)
        starts = np.stack([at_random(codes, query.x, np.random.default_rng(i)) for i in (7, 8)])
        whole = refiner.refined(query, start, margin, steps, starts)
        assert (whole != start).any(axis=1).mean() > 0.5
        rng = np.random.default_rng(1)
        parts = [rng.permutation(40), np.arange(40)[::-1], rng.choice(40, 11, replace=False)]
        for rows in (*parts, *np.arange(40)[:, None]):
            part = refiner.refined(query.take(rows), start[rows], margin[rows], steps, starts[:, rows])
            np.testing.assert_array_equal(part, whole[rows])
            part = refiner.exhausted(query.take(rows), start[rows], margin[rows])
            np.testing.assert_array_equal(part, refiner.exhausted(query, start, margin)[rows])

    def test_however_many_are_held_at_once(self, monkeypatch):
        acceptance, query, start, margin, _ = people(typicality=0.3)
        starts = start[None, ::1] * np.float32(1.0)
        whole = Refiner(acceptance).refined(query, query.x, margin, ROUNDS, starts)
        for at_once in (1, 150, 400):
            monkeypatch.setattr(refine, "_CANDIDATES", at_once)
            np.testing.assert_array_equal(Refiner(acceptance).refined(query, query.x, margin, ROUNDS, starts), whole)


class TestStartsAndDeadlines:
    def test_a_start_is_taken_where_it_is_cheaper_and_keeps_the_floor(self):
        acceptance, query, start, margin, codes = people(shaved=(0.0,))
        refiner = Refiner(acceptance)
        starts = np.stack([at_random(codes, query.x, np.random.default_rng(i), 1.5) for i in range(6)])
        found = refiner.refined(query, start, margin, (), starts)
        floor = floors(acceptance, query, start, margin)
        before = judged(acceptance, query, start)
        prices, own = price(query, starts), price(query, start[None])[0]
        kept = 0
        for row in np.flatnonzero(before.accepted):
            said = acceptance.judged(starts[:, row], np.repeat(query.target[row], 6), None)
            changed = (starts[:, row] != query.x[row]).any(axis=-1)
            good = said.accepted & (said.lower >= floor[row]) & changed & (prices[:, row] < own[row] - QUANTUM)
            wanted = starts[np.where(good, prices[:, row], np.inf).argmin(), row] if good.any() else start[row]
            np.testing.assert_array_equal(found[row], wanted)
            kept += good.any()
        assert kept > 2

    def test_the_row_itself_is_no_start(self):
        acceptance, query, start, margin, _ = people(shaved=(0.0,))
        found = Refiner(acceptance).refined(query, start, margin, (), query.x[None])
        np.testing.assert_array_equal(found, start)

    def test_no_round_is_begun_after_the_deadline(self):
        acceptance, query, start, margin, _ = people()
        late = replace(query, deadline=Deadline(0.0))
        np.testing.assert_array_equal(Refiner(acceptance).refined(late, start, margin, ROUNDS), start)
        found = Refiner(acceptance).refined(late, query.x, margin, ROUNDS, start[None])
        assert feasible(query, found)

    def test_a_deadline_in_the_midst_leaves_what_was_found(self, monkeypatch):
        acceptance, query, start, margin, _ = people(shaved=(0.0,))
        moments = iter([0.0, 0.0, *[9.0] * 100])
        monkeypatch.setattr("time.monotonic", lambda: next(moments))
        late = replace(query, deadline=Deadline(5.0))
        found = Refiner(acceptance).refined(late, start, margin, ROUNDS)
        monkeypatch.undo()
        np.testing.assert_array_equal(found, Refiner(acceptance).refined(query, start, margin, ROUNDS[:2]))
        assert feasible(query, found)


class TestWork:
    """What is not asked about costs nothing; results are the same."""

    def asked(self, acceptance, query, start, margin, steps):
        sizes = []
        counting = replace(acceptance, judge=lambda x: sizes.append(len(x)) or acceptance.judge(x))
        found = Refiner(counting).refined(query, start, margin, steps)
        return found, sizes

    def test_rows_that_gain_nothing_are_left_alone_until_the_steps_grow(self):
        acceptance, query, start, margin, _ = people(shaved=(0.0,))
        best = Refiner(acceptance).refined(query, start, margin, MANY)
        _, once = self.asked(acceptance, query, best, margin, (0.25,))
        found, thrice = self.asked(acceptance, query, best, margin, (0.25, 0.25, 0.25, 0.25))
        assert (found == best).all(axis=1).mean() > 0.8
        assert sum(thrice) < 2.5 * sum(once)
        _, again = self.asked(acceptance, query, best, margin, (0.25, 0.5))
        assert sum(again) > 1.7 * sum(once)

    def test_later_rounds_try_the_units_that_gain_most(self):
        acceptance, query, start, margin, _ = people(n_units=1)
        _, few = self.asked(acceptance, query, start, margin, (0.25, 0.25))
        acceptance, query, start, margin, _ = people(n_units=6)
        _, many = self.asked(acceptance, query, start, margin, (0.25, 0.25))
        assert few[:2] == many[:2], "the first round tries everything"
        assert few[3] < many[3]


class TestTypicality:
    def test_prices_are_those_of_a_plain_loop(self):
        _, query, _, _, codes = people(12, typicality=0.3)
        candidates = np.stack([at_random(codes, query.x, np.random.default_rng(i)) for i in range(5)])
        for near in (1, 3, 5, 99):
            asked = replace(query, n_typical=near)
            found = price(asked, candidates)
            for k, row in np.ndindex(5, 12):
                distance = codes.take(np.array([row])).distance(candidates[k, row][None], query.x[[row]])[0]
                rows = query.typical[row].astype(np.float64)
                nearest = sorted(np.sqrt(((rows - candidates[k, row]) ** 2).sum(axis=1)))[:near]
                assert found[k, row] == pytest.approx(0.7 * distance + 0.3 * np.mean(nearest), abs=1e-6)
        plain = replace(query, typical=None)
        np.testing.assert_allclose(price(plain, candidates), codes.distance(candidates, query.x), atol=1e-9)

    def test_it_is_measured_from_the_rows_of_the_target_nearest_to_the_first_answers(self):
        acceptance, query, start, _, _ = people()
        rng = np.random.default_rng(3)
        references = [rng.normal(size=(n, query.x.shape[1])).astype(np.float32) for n in (50, 30)]
        asked = toward_typical(replace(query, typicality=0.5), start, references, acceptance.config, 7)
        assert asked.n_typical == 7
        assert asked.typical.shape[1] == 24
        for row in range(40):
            rows = references[query.target[row]].astype(np.float64)
            order = np.sqrt(((rows - start[row]) ** 2).sum(axis=1)).argsort()[:24]
            assert {one.tobytes() for one in asked.typical[row]} == {
                rows[i].astype(np.float32).tobytes() for i in order
            }
        untyped = replace(asked, typicality=0.0)
        np.testing.assert_array_equal(price(untyped, start[None]), query.space.distance(start, query.x)[None])
        few = [references[0][:3], references[1][:9]]
        asked = toward_typical(replace(query, typicality=0.5), start, few, acceptance.config, 7)
        assert asked.typical.shape[1] == 3, "as many as every class has"
        none = [references[0][:0], references[1]]
        assert toward_typical(replace(query, typicality=0.5), start, none, acceptance.config, 7).typical is None

    def test_more_of_it_draws_answers_toward_the_reference_rows(self):
        means = []
        for typicality in (0.05, 0.35, 0.7, 1.0):
            acceptance, query, start, margin, _ = people(80, typicality=typicality)
            found = Refiner(acceptance).refined(query, start, margin, MANY)
            means.append(price(replace(query, typicality=1.0), found[None]).mean())
        assert all(np.diff(means) <= 1e-6)
        assert means[-1] < 0.97 * means[0]

    def test_without_it_answers_are_nearer(self):
        distances = []
        for typicality in (0.0, 1.0):
            acceptance, query, start, margin, _ = people(80, typicality=typicality)
            found = Refiner(acceptance).refined(query, start, margin, MANY)
            distances.append(query.space.distance(found, query.x).mean())
        assert distances[0] < distances[1]


class TestCombinations:
    """One round in which several units have to change at once, on columns of yes or no."""

    def query(self, prices, gains, start, *, interaction=0.0, bias=-2.5, min_prob=None):
        """A row of noes, that yes adds to the log-odds of, and less the more there are of them."""
        n = len(prices)
        frame = pd.DataFrame({f"c{j}": [False, True] for j in range(n)})
        schema = Schema.infer(frame)
        for j, cost in enumerate(prices):
            schema = schema.cost(f"c{j}", per_change=cost)
        space = TabularSpace.fit(schema, frame)

        def judge(x):
            yes = x[:, 1::2] > 0.5
            odds = bias + yes @ np.array(gains) - interaction * np.maximum(yes.sum(axis=1) - 1, 0)
            return np.stack([1 / (1 + np.exp(odds)), 1 / (1 + np.exp(-odds))], axis=-1)[None]

        acceptance = Acceptance(judge, np.ones(1), np.ones(1), DecisionRule(), 0.9, 0.0, SearchConfig())
        x = space.encode(frame.iloc[[0]]).numpy()
        answer = space.encode(pd.DataFrame([start], columns=frame.columns).astype(bool)).numpy()
        query = Query(x, np.ones(1, np.intp), space.codes, min_prob=min_prob)
        found = Refiner(acceptance).refined(query, answer, np.zeros(1), (0.5,))
        return (found[0, 1::2] > 0.5).astype(int).tolist()

    def test_a_rejected_row_takes_the_cheapest_that_are_enough_together(self):
        assert self.query([1.0, 2.0, 1.5, 3.0], [1.0] * 4, [0, 0, 0, 0]) == [1, 1, 1, 0]

    def test_the_probability_that_was_asked_for_is_kept(self):
        assert self.query([1.0, 2.0, 1.5, 3.0], [1.0] * 4, [1, 1, 1, 1], min_prob=0.8) == [1, 1, 1, 1]
        assert self.query([1.0, 2.0, 1.5, 3.0], [1.0] * 4, [1, 1, 1, 1], min_prob=0.6) == [1, 1, 1, 0]

    def test_a_dear_change_is_exchanged_for_two_cheap_ones(self):
        assert self.query([3.0, 0.5, 0.5], [3.0, 1.6, 1.6], [1, 0, 0]) == [0, 1, 1]

    def test_what_does_not_add_up_takes_one_more(self):
        """Three add 3 by themselves, and 2 together; four add 4, and 2.6."""
        chosen = self.query([1.0, 1.1, 1.2, 1.3], [1.0] * 4, [0, 0, 0, 0], interaction=0.45)
        assert chosen == [1, 1, 1, 1]

    def test_what_is_more_than_enough_is_given_up_at_once(self):
        assert self.query([1.0, 1.0, 1.0, 1.0], [3.0, 0.1, 0.1, 0.1], [1, 1, 1, 1]) == [1, 0, 0, 0]

    def test_a_combination_is_tried_once_however_many_slacks_ask_for_it(self):
        moves = Alternatives(np.zeros(4, np.intp), np.array([0, 1, 1, 2]), np.zeros((4, 1), np.float32), 3)
        cost, gain = np.array([1.0, 9.0, 2.0, 3.0]), np.array([1.0, 0.5, 1.0, 1.0])
        chosen = _Ledger.of(moves, cost, gain, 1).combinations(np.array([0.8]), SearchConfig())
        stays = [-1, -1, -1]
        assert chosen[:, 0].tolist() == [[0, -1, -1], stays, [0, 2, -1], stays, stays, [0, 2, 3]]


class TestShaving:
    def test_is_the_last_step_and_gives_up_what_the_floor_does_not_need(self):
        acceptance, query, start, margin, codes = people(shaved=(0.2, 0.1))
        found = Refiner(acceptance).refined(query, start, margin, ())
        before, floor = judged(acceptance, query, start), floors(acceptance, query, start, margin)
        shaved = codes.nearer(start, query.x, (0.2, 0.1))
        kept = 0
        for row in np.flatnonzero(before.accepted & (start != query.x).any(axis=1)):
            said = acceptance.judged(shaved[:, row], np.repeat(query.target[row], 2), None)
            good = said.accepted & (said.lower >= floor[row]) & (shaved[:, row] != start[row]).any(axis=1)
            wanted = shaved[good.argmax(), row] if good.any() else start[row]
            np.testing.assert_array_equal(found[row], wanted)
            kept += good.any()
        assert kept > 2

    def test_cuts_of_trees_are_reached_and_nothing_is_said_otherwise(self):
        frame = pd.DataFrame({"a": np.linspace(0, 10, 101), "b": np.arange(101.0) % 11})
        space = TabularSpace.fit(Schema.infer(frame), frame)
        codes = space.codes
        cuts = {"a": np.array([2.0, 6.25, 8.0]), "b": np.array([3.5, 7.0])}

        def judge(x):
            numbers = codes.encoding.unscaled(x)
            votes = (numbers[:, 0] >= 6.25) * 0.3 + (numbers[:, 1] < 3.5) * 0.3 + 0.2
            return np.stack([1 - votes, votes], axis=-1)[None]

        acceptance = Acceptance(judge, np.ones(1), np.ones(1), DecisionRule(), 0.9, 0.0, SearchConfig())
        x = space.encode(pd.DataFrame({"a": [1.0, 3.0, 5.5], "b": [9.0, 6.0, 4.0]})).numpy()
        start = space.encode(pd.DataFrame({"a": [9.5, 9.0, 7.5], "b": [1.0, 0.0, 2.0]})).numpy()
        query = Query(x, np.ones(3, np.intp), codes)
        found = Refiner(acceptance, cuts).refined(query, start, np.full(3, 9.0, np.float32), ())
        numbers = codes.encoding.unscaled(found)
        last = np.array([8.0, 8.0, 6.25])  # of the cuts that were passed
        assert ((numbers[:, 0] >= last) & (numbers[:, 0] < last + 1e-3)).all()
        assert numbers[:, 1].tolist() == pytest.approx([3.0, 3.0, 3.0])
        np.testing.assert_array_equal(judge(found), judge(start))
        late = replace(query, deadline=Deadline(0.0))
        np.testing.assert_array_equal(
            Refiner(acceptance, cuts).refined(late, start, np.zeros(3, np.float32), ()), start
        )


class TestState:
    """What one round hands to the next."""

    @pytest.mark.parametrize("typicality", [0.0, 0.4])
    def test_what_is_kept_of_the_answers_is_true_of_them(self, typicality, monkeypatch):
        acceptance, query, start, margin, _ = people(typicality=typicality)
        one_round, rounds = _State.round, []

        def checked(state, *arguments, **settings):
            one_round(state, *arguments, **settings)
            said = judged(acceptance, query, state.answers)
            np.testing.assert_allclose(state.prices, price(query, state.answers[None])[0], atol=1e-9)
            np.testing.assert_allclose(state.odds, said.lower, atol=1e-9)
            good = said.accepted & (said.lower >= state.floor)
            np.testing.assert_allclose(state.costs[good], state.prices[good], atol=1e-9)
            assert (state.costs[~good] >= acceptance.config.rejection_penalty).all()
            rounds.append((state.answers != start).any(axis=1).mean())

        monkeypatch.setattr(_State, "round", checked)
        Refiner(acceptance).refined(query, start, margin, (0.5, 0.25, 1.0))
        assert len(rounds) == 3
        assert rounds[-1] > 0.5

    def test_what_may_become_cheaper_is_tried_again(self, monkeypatch):
        acceptance, query, start, margin, _ = people(n_units=1)
        one_round, seen = _State.round, []

        def noted(state, *arguments, **settings):
            one_round(state, *arguments, **settings)
            seen.append(state.promising.copy())

        monkeypatch.setattr(_State, "round", noted)
        Refiner(acceptance).refined(query, start, margin, (0.5,))
        space = query.space
        changed = np.stack([(start != query.x)[:, span].any(axis=1) for span in space.encoding.slices], axis=1)
        assert seen[0][changed].all()
        assert (seen[0] & ~changed).sum(axis=1).max() <= 1

    def test_of_two_that_cost_the_same_the_answer_stays(self):
        frame = pd.DataFrame({"a": list("uvwuvw"), "b": np.arange(6.0)})
        space = TabularSpace.fit(Schema.infer(frame), frame)
        at = space.codes.encoding.slot_at
        weights = np.zeros((1, 2, space.codes.encoding.width))
        weights[0, 1, at[1:]] = 3.0  # v and w are as good as each other
        acceptance = acceptance_of(LinearModels(weights, np.array([[0.0, -1.0]])))
        x = space.encode(frame.iloc[[0, 0]]).numpy()
        start = space.encode(frame.iloc[[1, 2]].assign(b=0.0)).numpy()
        query = Query(x, np.ones(2, np.intp), space.codes)
        for rounds in (MANY, MANY[:1]):
            found = Refiner(acceptance).refined(query, start, np.zeros(2, np.float32), rounds)
            np.testing.assert_array_equal(found, start)
