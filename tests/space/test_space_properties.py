"""Laws of the tabular space, over random tables of every kind of column and random constraints on them."""

import numpy as np
import pandas as pd
import polars as pl
import polars.testing
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import cells, codes, complaints, tables

from avcg import Categorical, Continuous, TabularSpace

EXAMPLES = settings(max_examples=500)
scalings = st.sampled_from(["standard", "minmax"])


def same_frame(a, b):
    if isinstance(a, pl.DataFrame):
        polars.testing.assert_frame_equal(a, b, check_exact=True)
    else:
        pd.testing.assert_frame_equal(a, b, check_exact=True)


def bits(frame, name):
    """A column in a form that tells -0.0 from 0.0 and one NaN from another."""
    values = frame[name].to_numpy()
    return (
        values.view(f"u{values.itemsize}").tolist() if values.dtype.kind == "f" else [repr(v) for v in values.tolist()]
    )


@EXAMPLES
@given(tables(), scalings)
def test_there_and_back_is_the_same_frame(table, scaling):
    space = TabularSpace.fit(table.schema, table.frame, scaling)
    back = space.decode(space.encode(table.frame), like=table.frame)
    same_frame(back, table.frame)
    assert all(bits(back, name) == bits(table.frame, name) for name in table.schema)


@EXAMPLES
@given(tables(), scalings)
def test_codes_alone_hold_the_values(table, scaling):
    """Without the factuals to fall back on: discrete values exactly, continuous ones within 1e-6 of their range."""
    space = TabularSpace.fit(table.schema, table.frame, scaling)
    back = space.decode(space.encode(table.frame))
    for feature in table.schema.features:
        before, after = cells(table.frame, feature.name), cells(back, feature.name)
        on_grid = isinstance(feature, Continuous) and feature.step is not None
        if isinstance(feature, Categorical):
            assert before == after
        present = [v for v in before if v is not None]
        reach = 1e-6 * max(max(present) - min(present), 1e-9) if isinstance(feature, Continuous) else 0
        for b, a in zip(before, after, strict=True) if isinstance(feature, Continuous) else ():
            assert (b is None) == (a is None)
            if b is not None and not on_grid:
                assert abs(a - b) <= reach + 1e-12 * abs(b)
            # A float32 code tells a few million steps apart; beyond that only the factual itself is exact.
            elif b is not None and b == round(b / feature.step) * feature.step and reach < feature.step / 4:
                assert abs(a - b) < 1e-9 * max(1, abs(b))


@EXAMPLES
@given(tables(), scalings, st.data())
def test_projected_answers_break_nothing(table, scaling, data):
    space = TabularSpace.fit(table.schema, table.frame, scaling)
    x = space.encode(table.frame)
    x_cf = space.project(torch.from_numpy(codes(data.draw, (2, *x.shape))), x)
    assert torch.equal(space.project(x_cf, x), x_cf), "projecting twice is projecting once"
    for k in range(2):
        answers = space.decode(x_cf[k], like=table.frame)
        assert complaints(table.schema, table.frame, table.frame, answers) == []
        assert not space.violations(answers, table.frame).any()
        assert type(answers) is type(table.frame)
        assert list(answers.columns) == list(table.frame.columns)
        if isinstance(answers, pd.DataFrame):
            assert answers.index.equals(table.frame.index)
            assert (answers.dtypes == table.frame.dtypes).all()
        else:
            assert answers.schema == table.frame.schema
        # What is measured is what people receive: encoding the answer again gives the projected codes.
        off = (space.encode(answers) - x_cf[k]).abs()
        assert (off <= 2e-6 * x_cf[k].abs() + 2e-5 + resolution(space, answers)).all()


def resolution(space, frame):
    """(D,) what the frame's own float32 columns cannot tell apart, in codes."""
    blur = torch.zeros(space.event_shape)
    for j, feature in enumerate(space.schema.features):
        if isinstance(feature, Continuous) and "loat32" in str(frame[feature.name].dtype):
            i = space.encoding.numeric.index(feature)
            largest = max((abs(v) for v in cells(frame, feature.name) if v is not None), default=0)
            blur[space.encoding.slices[j].start] = largest * 2**-22 / space.encoding.scale[i]
    return blur


@EXAMPLES
@given(tables(), st.data())
def test_a_cell_that_was_not_changed_is_the_factuals_own(table, data):
    space = TabularSpace.fit(table.schema, table.frame)
    x = space.encode(table.frame)
    moved = data.draw(st.sampled_from(range(len(table.schema))))
    x_cf = x.clone()
    block = space.encoding.slices[moved]
    x_cf[:, block] = torch.from_numpy(codes(data.draw, tuple(x_cf[:, block].shape)))
    answers = space.decode(space.project(x_cf, x), like=table.frame)
    together = next((group for group in table.schema.links if table.schema.names[moved] in group), ())
    for name in table.schema:
        if name != table.schema.names[moved] and name not in together:
            assert bits(answers, name) == bits(table.frame, name)


@EXAMPLES
@given(tables(), scalings, st.data())
def test_relaxed_points_obey_and_have_finite_gradients(table, scaling, data):
    space = TabularSpace.fit(table.schema, table.frame, scaling)
    x = space.encode(table.frame)
    raw = torch.from_numpy(codes(data.draw, (3, *x.shape))).requires_grad_()
    relaxed = space.relax(raw, x)
    weights = torch.linspace(-1.0, 1.0, x.shape[1])
    (relaxed @ weights).sum().backward()
    assert torch.isfinite(raw.grad).all()
    assert relaxed.shape == raw.shape
    relaxed = relaxed.detach()
    encoding = space.encoding
    linked = {name: group for group in table.schema.links for name in group}
    frozen = [any(table.schema[n].change == "none" for n in linked.get(name, (name,))) for name in table.schema]
    for j, (feature, block) in enumerate(zip(table.schema.features, encoding.slices, strict=True)):
        here, there = x[:, block], relaxed[..., block]
        if frozen[j]:
            assert torch.equal(there, here.expand_as(there)), f"{feature.name} is frozen"
        if isinstance(feature, Categorical):
            torch.testing.assert_close(there.sum(-1), torch.ones(there.shape[:-1]))
            assert (there >= 0).all()
            gap = feature.missing == "category"
            assert not gap or torch.equal(there[..., -1] * (1 - here[:, -1]), torch.zeros_like(there[..., -1]))
            _check_shares(feature, here, there)
        else:
            _check_numbers(feature, space, j, here, there)


def _check_shares(feature, here, there):
    for i, category in enumerate(feature.categories):
        barred = feature.allowed is not None and category not in feature.allowed
        stays = here[:, i] == 1
        assert not barred or torch.equal(there[..., i] * ~stays, torch.zeros_like(there[..., i]))
        for k, before in enumerate(feature.categories):
            wrong = (before, category) in feature.forbidden
            wrong |= (feature.change == "up" and i < k) or (feature.change == "down" and i > k)
            assert not (wrong and i != k and (there[..., i] * here[:, k]).any())


def _check_numbers(feature, space, j, here, there):
    encoding = space.encoding
    i = encoding.numeric.index(feature)
    missing = here[:, -1] == 1 if feature.missing == "indicator" else torch.zeros(len(here), dtype=torch.bool)
    low = encoding.low[i] if feature.low is None else feature.low
    high = encoding.high[i] if feature.high is None else feature.high
    low, high = (float(np.float32((bound - encoding.center[i]) / encoding.scale[i])) for bound in (low, high))
    value, now = there[..., 0][..., ~missing], here[~missing, 0]
    # A follower is a weighted mean of allowed values, which rounding can push past the last of them by a hair.
    hair = (
        1e-5 * (1 + now.abs()) if any(j in link.followers for link in space.feasible.links) else torch.zeros_like(now)
    )
    assert (value >= now.clamp(max=low) - hair).all()
    assert (value <= now.clamp(min=high) + hair).all()
    assert feature.change != "up" or (value >= now - hair).all()
    assert feature.change != "down" or (value <= now + hair).all()
    if feature.missing == "indicator":
        assert (there[..., 1][..., ~missing] == 0).all(), "no gap is invented"


@EXAMPLES
@given(tables(gaps=False), st.data())
def test_restricting_only_narrows(table, data):
    space = TabularSpace.fit(table.schema, table.frame)
    x = space.encode(table.frame)
    free = space.feasible.movable(space.encoding)[0]
    names = [name for name, can in zip(table.schema.names, free, strict=True) if can]
    n = x.shape[0]
    vary = data.draw(
        st.one_of(
            st.lists(st.sampled_from(names), unique=True) if names else st.just([]),
            st.lists(st.lists(st.sampled_from(names)) if names else st.just([]), min_size=n, max_size=n),
        )
    )
    followers = {name for group in table.schema.links for name in group[1:]}
    ranges = {}
    for feature in table.schema.features:
        if feature.name in followers or not data.draw(st.booleans()):
            continue
        if isinstance(feature, Categorical):
            ranges[feature.name] = data.draw(st.lists(st.sampled_from(feature.categories), min_size=1))
        else:
            i = space.encoding.numeric.index(feature)
            numbers = space.feasible.limits.ranges
            low, high = numbers.low[0, i], numbers.high[0, i]
            ranges[feature.name] = (data.draw(st.sampled_from([None, low, (low + high) / 2])), high)
    narrow = space.restrict(vary=vary, ranges=ranges)
    per_row = vary if vary and isinstance(vary[0], list) else [vary] * n
    raw = torch.from_numpy(codes(data.draw, tuple(x.shape)))
    answers = narrow.decode(narrow.project(raw, x), like=table.frame)
    assert complaints(table.schema, table.frame, table.frame, answers) == []
    assert not narrow.violations(answers, table.frame).any()
    assert not space.violations(answers, table.frame).any()
    changed = space.changed(answers, table.frame)
    linked = {name: group for group in table.schema.links for name in group}
    for i in range(n):
        named = {other for name in per_row[i] for other in linked.get(name, (name,))}
        assert {table.schema.names[j] for j in np.flatnonzero(changed[i])} <= named
    for name, wanted in ranges.items():
        for before, after in zip(cells(table.frame, name), cells(answers, name), strict=True):
            if before != after and isinstance(table.schema[name], Categorical):
                assert after in wanted
            elif before != after:
                assert after <= max(wanted[1], before)
                assert wanted[0] is None or after >= min(wanted[0], before)


@EXAMPLES
@given(tables(), st.data())
def test_distance_is_zero_at_home_and_symmetric(table, data):
    space = TabularSpace.fit(table.schema, table.frame)
    x = space.encode(table.frame)
    other = space.project(torch.from_numpy(codes(data.draw, tuple(x.shape))), x)
    assert torch.equal(space.distance(x, x), torch.zeros(len(x)))
    assert torch.equal(space.distance(x, other), space.distance(other, x))
    assert (space.distance(other, x) >= 0).all()


@EXAMPLES
@given(tables(), scalings, st.data())
def test_settling_is_projecting_what_was_relaxed(table, scaling, data):
    space = TabularSpace.fit(table.schema, table.frame, scaling)
    x = space.encode(table.frame)
    raw = torch.from_numpy(codes(data.draw, (2, *x.shape)))
    chance = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1))).random((2, len(x), space.n_gates))
    gates = torch.from_numpy(chance < 0.5)
    expected = space.project(space.relax(raw, x, gates), x)
    torch.testing.assert_close(space.finalize(raw, x, gates), expected, atol=1e-5, rtol=1e-5)
    # Without gates a gap may be half filled, which relaxing shows and an answer cannot.
    if not any(None in cells(table.frame, name) for name in table.schema):
        expected = space.project(space.relax(raw, x), x)
        torch.testing.assert_close(space.finalize(raw, x), expected, atol=1e-5, rtol=1e-5)


@EXAMPLES
@given(tables(), scalings)
def test_rows_are_as_far_apart_as_one_by_one(table, scaling):
    space = TabularSpace.fit(table.schema, table.frame, scaling)
    x, prices = space.encode(table.frame), torch.from_numpy(space.encoding.prices)
    apart = (x[:, None] - x).abs() * prices
    # A code is at no distance from a number: it costs 1 to become another value, or nothing where a leader pays.
    special = torch.from_numpy(space.encoding.at_special(space.read(table.frame).numbers))
    followers = {name for group in table.schema.links for name in group[1:]}
    for j, (feature, at) in enumerate(zip(space.encoding.numeric, space.encoding.number_at, strict=True)):
        either = special[:, None, j] | special[None, :, j]
        change = (x[:, None, at] != x[None, :, at]).float() * (feature.name not in followers)
        apart[..., at] = torch.where(either, change, apart[..., at])
    expected = apart.sum(dim=2)
    torch.testing.assert_close(space.pairwise_distance(x, x), expected, atol=1e-4, rtol=1e-5)
