"""Linear inequalities and equalities: the nearest point, grids, bounds, missing numbers."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from avcg import Schema, TabularSpace

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame({name: RNG.uniform(-5, 5, 40) for name in "abc"}).assign(whole=RNG.integers(0, 20, 40))


def project(space, wanted, rows):
    """Answers to rows for which other rows are wanted."""
    return space.decode(space.project(space.encode(wanted), space.encode(rows)), like=rows)


@settings(max_examples=60, deadline=None)
@given(
    weights=st.lists(st.sampled_from([-2.0, -1.0, -0.5, 0.5, 1.0, 3.0]), min_size=3, max_size=3),
    sign=st.sampled_from(["<=", ">=", "=="]),
    bound=st.floats(-6, 6).map(lambda b: round(b, 2)),
    seed=st.integers(0, 2**16),
)
def test_one_rule_is_repaired_at_the_least_price(weights, sign, bound, seed):
    """As near to what was wanted as a linear program gets."""
    frame = FRAME[list("abc")]
    text = " + ".join(f"{weight} * {name}" for weight, name in zip(weights, "abc", strict=True)) + f" {sign} {bound}"
    space = TabularSpace.fit(Schema.infer(frame).require(text), frame)
    rows, wanted = frame.sample(1, random_state=seed), frame.sample(1, random_state=seed + 1)
    low, high = frame.min().to_numpy(), frame.max().to_numpy()
    found = project(space, wanted, rows).to_numpy()[0]
    scale, start = space.encoding.scale, wanted.to_numpy()[0]
    turned = np.array(weights) * (-1 if sign == ">=" else 1)
    limit = bound * (-1 if sign == ">=" else 1)
    # Minimise the sum of |x - start| / scale: x = start + up - down.
    row = np.concatenate([turned, -turned])[None]
    rest = np.array([limit - turned @ start])
    bounds = [*zip(np.zeros(3), high - start, strict=True), *zip(np.zeros(3), start - low, strict=True)]
    rules = {"A_eq": row, "b_eq": rest} if sign == "==" else {"A_ub": row, "b_ub": rest}
    best = linprog(np.concatenate([1 / scale, 1 / scale]), **rules, bounds=bounds)
    if best.status == 2 or wanted.equals(rows):
        assert (found == rows.to_numpy()[0]).all()
        return
    total = turned @ found
    assert (abs(total - limit) if sign == "==" else total - limit) <= 1e-9
    assert np.abs(found - start) @ (1 / scale) == pytest.approx(best.fun, abs=1e-5)


def test_numbers_on_a_grid_stay_on_it():
    frame = FRAME[["a", "whole"]]
    space = TabularSpace.fit(Schema.infer(frame).require("whole + 3 * a <= 12"), frame)
    obeying = int((frame["whole"] + 3 * frame["a"] <= 12).argmax())
    rows = frame.iloc[[obeying] * 40].reset_index(drop=True)
    answers = project(space, frame.reset_index(drop=True), rows)
    assert (answers["whole"] % 1 == 0).all()
    assert (answers["whole"] + 3 * answers["a"] <= 12 + 1e-9).all()
    assert (answers != rows).any(axis=1).mean() > 0.9


def test_whole_numbers_add_up():
    """An equality of whole numbers alone is kept by every answer, and every total can be reached."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(rng.integers(0, 9, (50, 3)), columns=["x", "y", "z"]).assign(total=lambda f: f.sum(axis=1))
    space = TabularSpace.fit(Schema.infer(frame).require("x + y + z == total"), frame)
    wanted = pd.DataFrame(rng.integers(0, 24, (50, 4)), columns=frame.columns)
    answers = project(space, wanted, frame)
    assert (answers["x"] + answers["y"] + answers["z"] == answers["total"]).all()
    assert (answers != frame).any(axis=1).mean() > 0.9


def test_what_may_not_change_does_not():
    frame = FRAME[list("abc")]
    space = TabularSpace.fit(Schema.infer(frame).only_up("a").freeze("b").require("a + b - c <= -1"), frame)
    answers = project(space, frame.sample(40, random_state=2).reset_index(drop=True), frame)
    moved = (answers != frame).any(axis=1)
    assert moved.mean() > 0.5
    assert (answers["a"] + answers["b"] - answers["c"])[moved].max() <= -1 + 1e-9
    assert (answers["b"] == frame["b"]).all()
    assert (answers["a"] >= frame["a"]).all()


def test_two_rules_that_share_a_column():
    frame = FRAME[list("abc")]
    space = TabularSpace.fit(Schema.infer(frame).require("a + b == 1").require("b + c <= 0"), frame)
    answers = project(space, frame.sample(40, random_state=3).reset_index(drop=True), frame)
    moved = answers != frame
    first, second = moved[["a", "b"]].any(axis=1), moved[["b", "c"]].any(axis=1)
    assert (answers["a"] + answers["b"] - 1)[first].abs().max() <= 1e-9
    assert (answers["b"] + answers["c"])[second].max() <= 1e-9
    assert first.mean() > 0.8


def test_a_missing_number_says_nothing():
    frame = FRAME[list("abc")].copy()
    frame.loc[::2, "c"] = np.nan
    space = TabularSpace.fit(Schema.infer(frame).allow_missing("c").freeze("c").require("a + c <= -3"), frame)
    wanted = frame.assign(a=4.0)
    answers = project(space, wanted, frame)
    assert answers["a"][::2].tolist() == pytest.approx([4.0] * 20, abs=1e-6)
    assert (answers["a"] + answers["c"])[1::2][answers["a"] != frame["a"]].max() <= -3 + 1e-9
    assert not space.violations(answers, frame).any()


@pytest.mark.parametrize("dtype", ["float32", "Float64"])
def test_columns_of_other_types(dtype):
    frame = FRAME[list("abc")].astype(dtype)
    space = TabularSpace.fit(Schema.infer(frame).require("a + b == c"), frame)
    answers = project(space, frame.sample(40, random_state=4).reset_index(drop=True), frame)
    excess = (answers["a"].astype(float) + answers["b"].astype(float) - answers["c"].astype(float)).abs()
    moved = (answers != frame).any(axis=1)
    assert moved.mean() > 0.9
    assert excess[moved].max() <= (1e-5 if dtype == "float32" else 1e-9)
    assert not space.violations(answers, frame).any()


def test_the_check_marks_the_changed_columns_of_a_broken_rule():
    frame = FRAME[list("abc")]
    space = TabularSpace.fit(Schema.infer(frame).require("a + b <= -100"), frame)
    answers = frame.assign(a=0.0, c=1.0)
    broken = space.violations(answers, frame)
    assert broken[:, 0].all()
    assert not broken[:, 1:].any()


@given(st.integers(0, 2**16))
@settings(max_examples=20, deadline=None)
def test_every_grid_point_that_obeys_is_kept(seed):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(list(itertools.product(range(4), range(4), range(4))), columns=["x", "y", "z"])
    first, second, sign = rng.integers(-2, 3), rng.integers(1, 3), rng.choice(["<=", ">=", "=="])
    text = f"{first} * x + {second} * y {sign} z + {rng.integers(0, 3)}"
    space = TabularSpace.fit(Schema.infer(frame).require(text), frame)
    rows = frame.iloc[[int(rng.integers(64))] * 64].reset_index(drop=True)
    x, points = space.encode(rows), space.encode(frame)
    kept = (space.project(points, x) == points).all(dim=1).numpy()
    left, right = text.replace("==", "<=").replace(">=", "<=").split("<=")
    difference = frame.eval(left) - frame.eval(right)
    obeys = (difference == 0) if "==" in text else (difference <= 0) if "<=" in text else (difference >= 0)
    used = ["x", "y", "z"] if not text.startswith("0 ") else ["y", "z"]
    untouched = (frame[used] == rows[used]).all(axis=1)
    assert (kept == (obeys | untouched)).all()
    assert torch.equal(space.project(x, x), x)
