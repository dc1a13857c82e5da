"""What follows for one column from the category of another."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch

from avcg import Schema, TabularSpace

FRAME = pd.DataFrame(
    list(itertools.product(["own", "rent", "free"], [0, 40, 80], ["no", "yes"])), columns=["housing", "rent", "deposit"]
)


def space_of(add):
    return TabularSpace.fit(add(Schema.infer(FRAME)), FRAME)


def answers_to(space, row):
    """The answers to one row when every row of the frame is wanted."""
    rows = pd.concat([FRAME.iloc[[row]]] * len(FRAME), ignore_index=True)
    return space.decode(space.project(space.encode(FRAME), space.encode(rows)), like=rows), rows


EXAMPLES = {
    "equals": (lambda s: s.when("housing", "own").then("rent", equals=0), lambda h, r, d: h != "own" or r == 0),
    "low": (lambda s: s.when("housing", ["rent", "free"]).then("rent", low=40), lambda h, r, d: h == "own" or r >= 40),
    "high": (lambda s: s.when("deposit", "no").then("rent", high=50), lambda h, r, d: d == "yes" or r <= 50),
    "one of": (
        lambda s: s.when("housing", "free").then("deposit", one_of=["no"]),
        lambda h, r, d: h != "free" or d == "no",
    ),
    "category": (
        lambda s: s.when("deposit", "yes").then("housing", equals="own"),
        lambda h, r, d: d != "yes" or h == "own",
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_answers_obey_and_points_that_obey_are_kept(name):
    add, obeys = EXAMPLES[name]
    space = space_of(add)
    bound = [name for name in FRAME if name in space.schema.rules[0].columns]
    for row in range(len(FRAME)):
        answers, rows = answers_to(space, row)
        for (_, answer), (_, wanted), (_, own) in zip(
            answers.iterrows(), FRAME.iterrows(), rows.iterrows(), strict=True
        ):
            assert (answer[bound] == own[bound]).all() or obeys(*answer)
            if obeys(*wanted) or (wanted[bound] == own[bound]).all():
                assert answer.tolist() == wanted.tolist()
        assert not space.violations(answers, rows).any()


def test_what_follows_is_set():
    space = space_of(lambda s: s.when("housing", "own").then("rent", equals=0))
    rows = pd.DataFrame({"housing": ["rent"], "rent": [80], "deposit": ["no"]})
    wanted = rows.assign(housing="own")
    answer = space.decode(space.project(space.encode(wanted), space.encode(rows)), like=rows)
    assert answer.iloc[0].tolist() == ["own", 0, "no"]


@pytest.mark.parametrize(
    "limit",
    [
        lambda s: s.freeze("rent"),
        lambda s: s.only_up("rent"),
        lambda s: s.between("rent", 30, 80),
        lambda s: s.at_most(1),
    ],
)
def test_the_condition_is_taken_back_where_limits_bar_what_follows(limit):
    space = space_of(lambda s: limit(s.when("housing", "own").then("rent", equals=0)))
    rows = pd.DataFrame({"housing": ["rent"], "rent": [80], "deposit": ["no"]})
    wanted = rows.assign(housing="own", deposit="yes")
    answer = space.decode(space.project(space.encode(wanted), space.encode(rows)), like=rows)
    assert answer["housing"].tolist() == ["rent"]
    assert not space.violations(answer, rows).any()


def test_consequences_of_consequences():
    space = space_of(
        lambda s: s.when("deposit", "yes").then("housing", equals="own").when("housing", "own").then("rent", equals=0)
    )
    rows = pd.DataFrame({"housing": ["rent"], "rent": [80], "deposit": ["no"]})
    answer = space.decode(space.project(space.encode(rows.assign(deposit="yes")), space.encode(rows)), like=rows)
    assert answer.iloc[0].tolist() == ["own", 0, "yes"]


def test_a_sum_moves_no_number_that_a_condition_sets():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"rent": rng.integers(0, 50, 40), "food": rng.integers(0, 50, 40)})
    frame["total"], frame["housing"] = frame["rent"] + frame["food"], rng.choice(["own", "rent"], 40)
    schema = Schema.infer(frame).require("rent + food == total").when("housing", "own").then("rent", equals=0)
    space = TabularSpace.fit(schema, frame)
    x = space.encode(frame)
    raw = x + torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    answers = space.decode(space.project(raw, x), like=frame)
    moved = answers != frame
    own = (answers["housing"] == "own") & moved[["rent", "housing"]].any(axis=1)
    assert own.any()
    assert (answers["rent"][own] == 0).all()
    sums = moved[["rent", "food", "total"]].any(axis=1)
    assert (answers["rent"] + answers["food"] == answers["total"])[sums].all()


def test_a_row_that_breaks_the_rule_may_change_elsewhere():
    space = space_of(lambda s: s.when("housing", "own").then("rent", equals=0))
    rows = pd.DataFrame({"housing": ["own"], "rent": [80], "deposit": ["no"]})
    answer = space.decode(space.project(space.encode(rows.assign(deposit="yes")), space.encode(rows)), like=rows)
    assert answer.iloc[0].tolist() == ["own", 80, "yes"]
    assert not space.violations(answer, rows).any()
    moved = space.decode(space.project(space.encode(rows.assign(rent=40)), space.encode(rows)), like=rows)
    assert moved["rent"].tolist() == [0]
    assert space.violations(rows.assign(rent=40), rows).any()


def test_a_missing_number_does_not_obey():
    frame = FRAME.assign(rent=FRAME["rent"].where(FRAME["rent"] != 40))
    schema = Schema.infer(frame).allow_missing("rent").when("housing", "own").then("rent", equals=0)
    rows = pd.DataFrame({"housing": ["rent"], "rent": [np.nan], "deposit": ["no"]})
    for limited, expected in ((schema, ["own", 0.0]), (schema.freeze("rent"), ["rent", None])):
        space = TabularSpace.fit(limited, frame)
        answer = space.decode(space.project(space.encode(rows.assign(housing="own")), space.encode(rows)), like=rows)
        assert answer["housing"].tolist() == expected[:1]
        assert answer["rent"].isna().tolist() == [expected[1] is None]
