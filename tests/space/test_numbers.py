"""What is read off the values of numbers, and that answers keep to it: steps, special codes, gaps between values."""

from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import avcg
from avcg import Continuous, Schema, TabularSpace
from avcg.errors import SchemaError
from avcg.space.encoding import Values

N = 400


def rng():
    return np.random.default_rng(0)


def number(values, **more):
    """The feature that is inferred from one column."""
    return Schema.infer(pd.DataFrame({"x": values}, **more))["x"]


class TestSteps:
    @pytest.mark.parametrize(
        ("values", "step"),
        [
            (np.round(rng().lognormal(4, 0.4, N), 2), 0.01),
            (np.round(rng().lognormal(4, 0.4, N), 1).astype(np.float32), 0.1),
            (rng().integers(1, 90, N) * 100, 100),
            (rng().integers(1, 90, N) * 300, 100),  # 300 is no step that people count in, hundreds are
            (rng().integers(1, 90, N) * 25, 25),
            (rng().integers(1, 90, N) * 250.0, 250),
            (rng().integers(1, 90, N) * 12, 1),
            (np.array([f"{k}e-2" for k in rng().integers(1, 60, N) * 5], float), 0.05),
            (np.round(rng().normal(size=N), 6), 1e-06),
            (np.round(rng().normal(size=N), 7), None),
            (rng().normal(size=N), None),
            (np.array([0.1 + 0.2, 0.5]), None),
            ([0, 500, 1000], 1),  # too few values to say
            ([2.5, 5.0], 0.1),
            ([2**60, 2**60 + 1024], 1),
            ([1e300, 2.0], 1),
            ([0.0, 0.0], 1),
        ],
    )
    def test_as_many_digits_as_the_rows_have(self, values, step):
        assert number(values).step == step

    def test_codes_have_no_part_in_it(self):
        feature = number(np.where(rng().random(N) < 0.2, -9, rng().integers(0, 50, N) * 1000))
        assert (feature.step, feature.codes) == (1000, (-9,))

    @settings(max_examples=100, deadline=None)
    @given(st.lists(st.decimals(-(10**6), 10**6, places=4), min_size=1, max_size=20), st.integers(0, 4))
    def test_every_value_is_a_multiple_of_it(self, decimals, places):
        rounded = [round(value, places) for value in decimals]
        step = number([float(value) for value in rounded]).step
        assert all(value % Decimal(repr(step)) == 0 for value in rounded)

    def test_pandas_and_polars_say_the_same(self):
        frame = pd.DataFrame({"a": np.round(rng().normal(size=N), 1).astype(np.float32), "b": rng().integers(-9, 9, N)})
        assert avcg.inspect(pl.from_pandas(frame)).findings == avcg.inspect(frame).findings


class TestCodes:
    @pytest.mark.parametrize(
        ("body", "codes"),
        [
            (rng().integers(0, 300, N), (-9, -8, -7)),
            (rng().integers(1, 871, N), (-1,)),
            (rng().integers(18, 76, N), (99,)),
            (rng().integers(0, 120, N), (888, 999)),
            (np.round(rng().lognormal(4, 1, N), 2), (-999,)),
            (rng().integers(0, 120, N), (-1, 999)),
        ],
    )
    def test_found(self, body, codes):
        values = np.where(rng().random(N) < 0.3, rng().choice(codes, N), body)
        feature = number(values)
        assert feature.codes == codes
        assert not feature.observed, "what lies between codes and numbers is no gap"

    @pytest.mark.parametrize(
        "values",
        [
            np.clip(rng().poisson(2, N), 0, 9),
            rng().integers(18, 100, N),
            rng().integers(1950, 2000, N),
            np.rint(rng().normal(8, 6, N)),  # temperatures, some below zero
            np.round(rng().normal(500, 400, N), 2),  # money, some negative
            rng().integers(0, 101, N),
            np.rint(rng().lognormal(3, 1.5, N)),
            rng().choice([-1, 0, 1], N),
            np.r_[rng().integers(0, 60, N), 99],  # an outlier
            np.r_[rng().integers(0, 60, N), [-250] * 9],
        ],
    )
    def test_ordinary_columns_have_none(self, values):
        assert number(values).codes == ()

    def test_verbs(self):
        schema = Schema((Continuous("months", step=1),)).codes("months", -8, -9)
        assert schema["months"].codes == (-9, -8)
        assert schema.leave("months")["months"].left_codes == (-9, -8)
        assert schema.leave("months", -9).codes("months", -9)["months"].left_codes == (-9,)
        assert schema.codes("months")["months"] == Continuous("months", step=1)
        with pytest.raises(SchemaError, match="Name them first"):
            schema.codes("months").leave("months")
        with pytest.raises(SchemaError, match="no code -7 that could be left"):
            schema.leave("months", -7)
        with pytest.raises(SchemaError, match="must be a finite number"):
            schema.codes("months", float("nan"))

    def test_scaling_is_by_the_numbers_alone(self):
        body = rng().integers(0, 100, N)
        space = TabularSpace.fit(
            Schema((Continuous("x", step=1, codes=(99999,)),)), pd.DataFrame({"x": [*body, 99999]})
        )
        assert (space.encoding.low[0], space.encoding.high[0]) == (body.min(), body.max())
        assert space.encoding.center[0] == pytest.approx(body.mean())
        assert space.encoding.scale[0] == pytest.approx(body.std())

    def test_leaving_one_costs_a_change_and_no_distance(self):
        schema = Schema((Continuous("x", step=1, codes=(9999,), cost_per_change=0.5),)).leave("x")
        X = pd.DataFrame({"x": [9999, *range(100)]})
        space = TabularSpace.fit(schema, X)
        x = space.encode(X)
        answers = space.project(x.clone().fill_(0.3), x)
        assert space.distance(answers, x)[0] == 1.5
        assert space.codes.distance(answers.numpy(), x.numpy())[0] == 1.5
        assert space.pairwise_distance(x[:1], x[1:]).tolist() == [[1.0] * 100]
        assert space.count_changes(answers, x)[0] == 1

    def test_another_schema_for_the_same_codes(self):
        X = pd.DataFrame({"x": [-9] * 20 + list(range(80))})
        space = TabularSpace.fit(Schema((Continuous("x", step=1),)), X)
        narrowed = space.narrowed(Schema((Continuous("x", step=1, codes=(-9,)),)), X)
        assert (space.encoding.low[0], narrowed.encoding.low[0]) == (-9, 0)
        assert (narrowed.encode(X) == space.encode(X)).all()


class TestGaps:
    def test_found_between_stretches(self):
        feature = number(np.r_[rng().normal(0, 1, N), rng().normal(50, 1, N)])
        assert feature.observed

    @pytest.mark.parametrize(
        "values",
        [
            rng().normal(size=N),
            rng().lognormal(0, 1.5, 20 * N),
            rng().pareto(1.0, 20 * N),
            rng().choice([12, 24, 36, 60], N),
            np.where(rng().random(N) < 0.7, 0, rng().lognormal(2, 1, N)),
            [1, 2, 3, 100],
        ],
    )
    def test_ordinary_columns_have_none(self, values):
        assert not number(values).observed

    def test_float32_columns_keep_their_ends(self):
        """0.3 in float32 is a little more than 0.3, which must remain the end of the range, and of a gap."""
        values = np.r_[np.arange(1, 4), np.arange(300, 308)].repeat(20).astype(np.float32) / np.float32(10)
        X = pd.DataFrame({"x": values})
        space = TabularSpace.fit(Schema.infer(X), X)
        assert space.schema["x"].step == 0.1
        assert (space.encoding.low[0], space.encoding.high[0]) == (0.1, 30.7)
        assert space.encoding.gaps.tolist() == [[0, 0.3, 30.0]]
        answers = space.decode(space.project(space.encode(X) * 0 - 0.5, space.encode(X)), like=X)
        assert not space.violations(answers, X).any()


def allowed_numbers(space, now):
    """Every number that a row may have, on a grid of whole numbers, by the words of the schema alone."""
    feature, low, high = space.schema["x"], space.encoding.low[0], space.encoding.high[0]
    if now in feature.codes and now not in feature.left_codes:
        return {now}
    if now not in feature.codes:
        low = now if feature.change == "up" else min(low, now)
        high = now if feature.change == "down" else max(high, now)
    gaps = [(a, b) for _, a, b in space.encoding.gaps if feature.observed]
    inside = {value for value in range(-200, 400) if low <= value <= high and value not in feature.codes}
    return {value for value in inside if not any(a < value < b for a, b in gaps)} | {now}


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_projection_finds_the_nearest_allowed_number(data):
    starts = data.draw(st.lists(st.sampled_from([-100, 0, 100, 200]), min_size=1, max_size=3, unique=True))
    body = np.concatenate([np.arange(start, start + 12) for start in starts])
    codes = data.draw(st.lists(st.sampled_from([-9, 5, 11, 104, 300]), max_size=3, unique=True))
    left = [code for code in codes if data.draw(st.booleans())]
    change = data.draw(st.sampled_from(["any", "up", "down"]))
    feature = Continuous("x", step=1, change=change, codes=codes, left_codes=left, observed=data.draw(st.booleans()))
    space = TabularSpace.fit(Schema((feature,)), pd.DataFrame({"x": np.array([*body, *codes])}))
    X = pd.DataFrame({"x": np.array([*body[::5], *codes, 50, -150])})
    x, everything = space.encode(X), np.arange(-200, 400)
    may_be = [allowed_numbers(space, now) for now in X["x"].tolist()]
    for wish in data.draw(st.lists(st.integers(-150, 350), min_size=3, max_size=3)):
        wanted = space.encode(Values(np.full((len(X), 1), float(wish)), np.zeros((len(X), 0), np.intp)))
        answers = space.decode(space.project(wanted, x), like=X)
        for now, after, allowed in zip(X["x"].tolist(), answers["x"].tolist(), may_be, strict=True):
            assert after in allowed, (now, wish)
            assert abs(after - wish) == min(abs(value - wish) for value in allowed), (now, wish)
    for now, allowed in zip(X["x"].tolist(), may_be, strict=True):
        points, row = pd.DataFrame({"x": everything}), pd.DataFrame({"x": np.full(600, now)})
        assert set(everything[~space.violations(points, row).any(axis=1)].tolist()) == allowed, now
    assert space.immovable(x).tolist() == [len(allowed) == 1 for allowed in may_be]
    for owner, points in space.codes.small_sets(x.numpy(), 2000, 10**5):
        for row in np.unique(owner):
            numbers = space.encoding.unscaled(points[owner == row])[:, 0]
            assert sorted(numbers) == sorted(may_be[row])


def test_a_number_without_a_grid_stays_clear_of_codes_and_gaps():
    values = np.r_[rng().normal(0, 1, N), rng().normal(50, 1, N), [0.5] * 20]
    X = pd.DataFrame({"x": values})
    space = TabularSpace.fit(Schema((Continuous("x", codes=(0.5,), observed=True),)), X)
    x = space.encode(X)
    _, low, high = space.encoding.gaps[0]
    for wish in np.r_[np.linspace(-2, 60, 50), 0.5, np.nextafter(0.5, 1), low, high]:
        wanted = space.encode(Values(np.full((len(X), 1), wish), np.zeros((len(X), 0), np.intp)))
        projected = space.project(wanted, x)
        assert (space.project(projected, x) == projected).all()
        answers = space.decode(projected, like=X)
        changed = answers["x"] != X["x"]
        assert not ((answers["x"] > low) & (answers["x"] < high))[changed].any()
        assert not (answers["x"] == 0.5)[changed].any()
        assert not changed[X["x"] == 0.5].any()
        assert not space.violations(answers, X).any()


class TestFindings:
    def test_what_is_said(self):
        frame = pd.DataFrame(
            {
                "months": [-9] * 10 + [*range(50)],
                "birth_year": np.arange(1940, 2000),
                "MaritalStatus": ["single", "married"] * 30,
                "branch": "Berlin",
                "a very long name of a column that wraps": np.round(rng().normal(size=60), 2),
                "sextant": rng().normal(size=60),
            }
        )
        inspection = avcg.inspect(frame)
        assert [(finding.column, finding.found) for finding in inspection.findings] == [
            ("months", "code -9"),
            ("birth_year", "people cannot change this; freeze it?"),
            ("MaritalStatus", "people cannot change this; freeze it?"),
            ("branch", "always Berlin"),
            ("a very long name of a column that wraps", "steps of 0.01"),
        ]
        assert inspection.schema == Schema.infer(frame)
        assert all(feature.change == "any" for feature in inspection.schema.features), "nothing is frozen silently"
        assert max(map(len, repr(inspection).splitlines())) <= 80
        assert "schema.leave('months')" in repr(inspection)

    def test_nothing_found(self):
        frame = pd.DataFrame({"x": rng().normal(size=9)})
        assert repr(avcg.inspect(frame)) == "1 columns. Nothing was found that needs a look."

    def test_a_kind_that_is_given_is_taken_as_it_is(self):
        frame = pd.DataFrame({"months": [-9] * 10 + [*range(50)], "pay": np.arange(60) / 10})
        schema = Schema.infer(frame, kinds={"months": "integer", "pay": "continuous"})
        assert schema.features == (Continuous("months", step=1), Continuous("pay"))
