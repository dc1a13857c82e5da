"""What a row may become, against projections of random points: these are all among the points, and none is better."""

from dataclasses import replace

import numpy as np
import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import codes, complaints, tables

from avcg import ImageSpace, Schema, TabularSpace

EXAMPLES = settings(max_examples=300)


def fitted(table, data):
    """The codes of a table, narrowed in half of the cases by requests that differ from row to row."""
    space = TabularSpace.fit(table.schema, table.frame)
    x = space.encode(table.frame)
    if data.draw(st.booleans()):
        caps = data.draw(st.lists(st.integers(0, 3), min_size=len(x), max_size=len(x)))
        free = np.array(data.draw(st.lists(st.booleans(), min_size=x.shape[1], max_size=x.shape[1])))
        free = np.resize(free, (len(x), len(table.schema)))
        return space.codes.restrict(free, None, caps), x.numpy()
    return space.codes, x.numpy()


@EXAMPLES
@given(tables(), st.data())
def test_every_feasible_point_of_a_small_set_is_listed_and_no_other(table, data):
    narrowed, x = fitted(table, data)
    near = x + np.random.default_rng(0).normal(size=(64, *x.shape)).astype(np.float32) * 0.5
    reached = narrowed.project(np.concatenate([codes(data.draw, (64, *x.shape)), near]), x)
    seen = set()
    for owner, points in narrowed.small_sets(x, 200, 50):
        assert (np.diff(owner) >= 0).all()
        for row in np.unique(owner):
            assert row not in seen
            seen.add(row)
            listed = points[owner == row]
            assert len(listed) <= 200
            assert len(np.unique(listed, axis=0)) == len(listed)
            assert (listed == x[row]).all(axis=1).any()
            off = np.abs(reached[:, row, None] - listed).max(axis=2).min(axis=1)
            assert (off <= 1e-5 * (1 + np.abs(reached[:, row]).max(axis=1))).all()
        alone = narrowed.take(owner)
        np.testing.assert_array_equal(alone.project(points[None], x[owner])[0], points)
    for row in seen:
        still = narrowed.take(np.array([row]))
        assert len(list(still.small_sets(x[[row]], 200, 50))) == 1


@EXAMPLES
@given(tables(), st.data())
def test_answers_read_off_the_points_break_no_constraint(table, data):
    space = TabularSpace.fit(table.schema, table.frame)
    x = space.encode(table.frame).numpy()
    for owner, points in space.codes.small_sets(x, 60, 1000):
        copies = np.bincount(owner, minlength=len(x)).max()
        every = np.repeat(x[None], copies, axis=0)
        for row in np.unique(owner):
            listed = points[owner == row]
            every[: len(listed), row] = listed
        for one in every[:20]:
            answers = space.decode(space.encode(table.frame).new_tensor(one), like=table.frame)
            assert complaints(table.schema, table.frame, table.frame, answers) == []


@EXAMPLES
@given(tables(), st.data())
def test_no_feasible_point_has_a_larger_score_and_one_nearly_has_it(table, data):
    narrowed, x = fitted(table, data)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    weights = rng.normal(size=x.shape[1]) * (rng.random(x.shape[1]) < 0.8)
    best = narrowed.largest_scores(x, weights)
    reached = narrowed.project(codes(data.draw, (64, *x.shape)), x)
    assert (reached @ weights <= best).all()
    led = any(link.knots is not None for link in narrowed.feasible.links)
    for owner, points in narrowed.small_sets(x, 500, 10**6):
        for row in np.unique(owner):
            scores = points[owner == row] @ weights
            size = 1 + np.abs(points[owner == row]) @ np.abs(weights)
            assert scores.max() <= best[row]
            # The widest range that a limit extends to, not the row, sets what rounding is allowed for.
            assert led or best[row] - scores.max() <= 1e-4 * size.max() + 1e-5 * np.abs(weights).sum() * reach(
                narrowed, row
            )


def reach(narrowed, row):
    """How far the limits of any number extend, in codes."""
    ranges, encoding = narrowed.feasible.limits.ranges, narrowed.encoding
    at = min(row, len(ranges.low) - 1)
    ends = np.abs(np.concatenate([ranges.low[at], ranges.high[at], encoding.center, encoding.low, encoding.high]))
    return 1 + (ends.reshape(5, -1) / encoding.scale).max(initial=0)


def test_a_number_without_a_step_makes_the_set_infinite_unless_it_is_frozen():
    frame = pd.DataFrame({"pay": [0.5, 1.25, 3.75], "kind": ["a", "b", "c"]})
    schema = Schema.infer(frame, kinds={"pay": "continuous"})
    free, frozen = (TabularSpace.fit(each, frame) for each in (schema, schema.freeze("pay")))
    x = free.encode(frame).numpy()
    assert list(free.codes.small_sets(x, 10**6, 10**6)) == []
    ((owner, _),) = frozen.codes.small_sets(x, 3, 10**6)
    assert owner.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert list(frozen.codes.small_sets(x, 2, 10**6)) == []
    capped = replace(frozen.codes, feasible=frozen.codes.feasible.narrow(frozen.encoding, at_most=[0, 1, 0]))
    assert [len(part) for _, part in capped.small_sets(x, 2, 10**6)] == [2]


def test_pictures_have_no_small_sets_and_no_bound():
    pictures = np.random.default_rng(0).integers(0, 256, (3, 4, 4), np.uint8)
    space = ImageSpace.fit(pictures)
    x = space.encode(pictures).numpy()
    assert list(space.codes.small_sets(x, 10**6, 10**6)) == []
    assert np.isinf(space.codes.largest_scores(x, np.ones(16))).all()
