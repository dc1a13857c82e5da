"""Rules of all families at once, under random requests, judged by plain Python on the rows people receive."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ruled_loans import RULES, counted, faults, loans, schema

from avcg import TabularSpace
from avcg.testing import check_space

FRAME = loans()
SPACES = {}


def space_of(names):
    names = tuple(sorted(names))
    if names not in SPACES:
        ruled = schema(FRAME)
        for name in names:
            ruled = RULES[name].add(ruled)
        SPACES[names] = TabularSpace.fit(ruled, FRAME)
    return SPACES[names]


CONJUNCTIONS = st.sets(st.sampled_from(sorted(RULES)), min_size=1, max_size=6)


@settings(max_examples=35, deadline=None)
@given(names=CONJUNCTIONS, seed=st.integers(0, 2**16), at_most=st.sampled_from([None, 1, 2, 4]))
def test_every_answer_obeys_every_rule(names, seed, at_most):
    rng = np.random.default_rng(seed)
    rows = FRAME.iloc[rng.choice(len(FRAME), 8, replace=False)].reset_index(drop=True)
    space = space_of(names)
    derived = {RULES[name].derived for name in names} - {None}
    if rng.random() < 0.5:
        vary = [name for name in space.schema.names if name not in derived and rng.random() < 0.7] or ["food"]
        space = space.restrict(vary=vary)
    else:
        vary = None
    if rng.random() < 0.4:
        space = space.restrict(ranges={"income": (None, rows["income"].to_numpy() + 500), "housing": ["own", "rent"]})
    space = space.restrict(at_most=at_most)
    x = space.encode(rows)
    raw = torch.from_numpy((rng.normal(size=(6, *x.shape)) * rng.choice([0.3, 2.0, 100.0])).astype(np.float32))
    near = space.project(x + 0.2 * raw, x)
    for candidates in (space.project(raw, x), near):
        assert torch.equal(space.project(candidates, x), candidates)
        for codes in candidates:
            answers = space.decode(codes, like=rows)
            assert not faults(names, answers, rows)
            assert not space.violations(answers, rows).any()
            if at_most is not None:
                assert counted(names, answers, rows).max() <= at_most
            if vary is not None:
                frozen = [name for name in rows if name not in vary and name not in derived]
                assert answers[frozen].equals(rows[frozen])


@settings(max_examples=25, deadline=None)
@given(names=CONJUNCTIONS, seed=st.integers(0, 2**16))
def test_the_check_of_answers_agrees_with_plain_python(names, seed):
    """Of random mixtures of rows and derived columns, those are refused that the judge refuses."""
    rng = np.random.default_rng(seed)
    space = space_of(names)
    rows = FRAME.sample(20, random_state=seed).reset_index(drop=True)
    other = FRAME.sample(20, random_state=seed + 1).reset_index(drop=True)
    answers = rows.where(rng.random(rows.shape) < 0.6, other)
    if "dti" in names:
        answers["dti"] = answers["dti"].where(rng.random(20) < 0.2, answers["debt"] / answers["income"])
    if "left" in names:
        answers["left"] = answers["left"].where(rng.random(20) < 0.2, answers["income"] - answers["total"])
    answers = answers.astype(rows.dtypes.to_dict())
    broken = space.violations(answers, rows).any(axis=1)
    judged = [bool(faults(names, answers.iloc[[i]], rows.iloc[[i]])) for i in range(20)]
    assert (broken[judged]).all()
    # The judge knows no ranges of derived columns, and nothing else refuses values of the rows themselves.
    derived = [RULES[name].derived for name in names if RULES[name].derived]
    inside = ((answers[derived] >= FRAME[derived].min()) & (answers[derived] <= FRAME[derived].max())).all(axis=1)
    assert not broken[~np.array(judged) & inside].any()


@pytest.mark.parametrize("seed", range(3))
def test_it_is_a_space(seed):
    rng = np.random.default_rng(seed)
    names = rng.choice(sorted(RULES), 5, replace=False)
    check_space(space_of(names), FRAME.head(10), seed=seed)


def test_a_row_that_breaks_a_rule_may_stay():
    space = space_of(["total"])
    wrong = FRAME[(FRAME["rent"] + FRAME["food"] + FRAME["other costs"] - FRAME["total"]).abs() > 1]
    assert len(wrong)
    x = space.encode(wrong)
    assert torch.equal(space.project(x, x), x)
    assert not space.violations(wrong, wrong).any()


def test_what_is_derived_cannot_be_named_in_vary():
    with pytest.raises(ValueError, match="'dti', which is computed from 'debt', 'income'"):
        space_of(["dti"]).restrict(vary=["dti"])


def test_small_sets_are_the_points_that_obey():
    """Every point of a product of whole numbers that obeys the rules is listed, and no other."""
    import itertools

    import pandas as pd

    from avcg import Schema

    frame = pd.DataFrame([(a, b, a + b, "pq"[a > 1]) for a in range(3) for b in range(3)], columns=["a", "b", "c", "k"])
    ruled = Schema.infer(frame).derive("c", "a + b").require("a <= b + 1").when("k", "p").then("a", high=1)
    space = TabularSpace.fit(ruled, frame)
    x = space.encode(frame).numpy()
    for owner, points in space.codes.small_sets(x, 4096, 2**16):
        for row in np.unique(owner):
            values = space.encoding.decode(points[owner == row])
            reached = {
                (*numbers, choice)
                for numbers, (choice,) in zip(values.numbers.tolist(), values.choices.tolist(), strict=True)
            }
            own = (*map(float, frame.iloc[row, :3]), "pq".index(frame["k"][row]))
            expected = {own}
            for a, b, k in itertools.product(range(3), range(3), range(2)):
                moved = {
                    name
                    for name, old, new in zip("abk", (own[0], own[1], own[3]), (a, b, k), strict=True)
                    if old != new
                }
                first = not moved & {"a", "b"} or a <= b + 1
                second = not moved & {"a", "k"} or k == 1 or a <= 1
                if moved and first and second:
                    expected.add((float(a), float(b), float(a + b), k))
            assert reached == expected
