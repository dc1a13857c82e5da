"""The tabular space by example: each rule once, with numbers one can check by hand."""

import itertools
import json
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from avcg import Schema, TabularSpace
from avcg.errors import DataError, SchemaError

ROWS = pd.DataFrame(
    {
        "age": [20, 30, 40, 50],
        "pay": [1.0, 2.0, 3.0, 4.0],
        "job": ["clerk", "nurse", "smith", "clerk"],
        "grade": pd.Categorical(["low", "mid", "high", "mid"], ["low", "mid", "high"], ordered=True),
        "owner": [True, False, True, False],
    }
)


def space_of(schema=None, frame=ROWS, **options):
    return TabularSpace.fit(schema or Schema.infer(frame), frame, **options)


def moved(space, frame=ROWS, **wishes):
    """The answers when a decoder wishes for these raw values or categories, everything else as it is."""
    x = space.encode(frame)
    wish = x.clone()
    for name, value in wishes.items():
        feature = space.schema[name]
        block = space.encoding.slices[space.schema.names.index(name)]
        if hasattr(feature, "categories"):
            wish[:, block] = 0
            wish[:, block.start + feature.position(value)] = 1
        else:
            i = space.encoding.numeric.index(feature)
            wish[:, block.start] = (value - space.encoding.center[i]) / space.encoding.scale[i]
            wish[:, block.start + 1 : block.stop] = 0
    return space.decode(space.project(wish, x), like=frame)


class TestEncoding:
    def test_standard_scaling_is_scikit_learns(self):
        from sklearn.preprocessing import StandardScaler

        x = space_of().encode(ROWS)
        expected = StandardScaler().fit_transform(ROWS[["age", "pay"]].astype(float))
        np.testing.assert_allclose(x[:, :2], expected, atol=1e-6)
        assert x[:, 2:].sum(dim=1).tolist() == [3.0] * 4, "one category in each of three columns"

    def test_minmax_scaling_spans_zero_to_one(self):
        x = space_of(scaling="minmax").encode(ROWS)
        assert (x[:, 1].min(), x[:, 1].max()) == (0.0, 1.0)

    def test_a_row_as_a_dict_has_the_same_codes(self):
        schema = Schema.infer(ROWS).allow_missing("pay", "job")
        gappy = ROWS.assign(pay=[1.0, None, 3.0, 4.0], job=["clerk", "nurse", None, "clerk"])
        space = space_of(schema, gappy)
        x = space.encode(gappy)
        for i, row in enumerate(gappy.to_dict("records")):
            assert torch.equal(space.encode(row)[0], x[i])
            reread = json.loads(json.dumps(row).replace("NaN", "null"))
            assert torch.equal(space.encode(reread)[0], x[i])
        assert torch.equal(space.encode({"age": np.int64(20)} | gappy.drop(columns="age").iloc[0].to_dict())[0], x[0])

    def test_encoding_a_row_needs_neither_torch_nor_pandas(self):
        code = (
            "import sys, numpy as np\n"
            "from avcg.schema.schema import Schema\n"
            "from avcg.schema.features import Continuous, Categorical\n"
            "from avcg.space.encoding import Encoding, Values\n"
            "from avcg.space.reading import read_rows\n"
            "from avcg.space.constraints import FeasibleSet\n"
            "from avcg.space.project import project\n"
            "s = Schema((Continuous('a'), Categorical('b', ('x', 'y'))))\n"
            "e = Encoding.fit(s, Values(np.array([[1.0], [3.0]]), np.array([[0], [1]])))\n"
            "x = e.encode(read_rows(s, [{'a': 1.0, 'b': 'y'}]))\n"
            "y = project(e, FeasibleSet.of(e, ()), x[None] + 9, x)\n"
            "assert e.decode(y[0]).numbers[0, 0] == 3.0\n"
            "print(sorted({m.split('.')[0] for m in sys.modules} &"
            " {'torch', 'pandas', 'sklearn', 'narwhals', 'rich'}))\n"
        )
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert found.stdout.strip() == "[]"


class TestProjection:
    def test_frozen_columns_stay(self):
        answers = moved(space_of(Schema.infer(ROWS).freeze("age", "job")), age=45, job="smith")
        pd.testing.assert_frame_equal(answers, ROWS)

    def test_directions(self):
        answers = moved(space_of(Schema.infer(ROWS).only_up("age").only_down("grade")), age=35, grade="mid")
        assert answers["age"].tolist() == [35, 35, 40, 50]
        assert answers["grade"].tolist() == ["low", "mid", "mid", "mid"]

    def test_a_factual_outside_its_range_only_moves_toward_it(self):
        space = space_of(Schema.infer(ROWS).between("age", 25, 35))
        assert moved(space, age=10)["age"].tolist() == [20, 25, 25, 25]
        assert moved(space, age=60)["age"].tolist() == [35, 35, 40, 50]

    def test_a_step_puts_changes_on_its_grid_and_leaves_the_rest(self):
        frame = ROWS.assign(age=[21, 30, 37, 52])
        space = space_of(Schema.infer(frame).step("age", 5), frame)
        assert moved(space, frame, age=38.1)["age"].tolist() == [40, 40, 37, 40], "37 is nearer to 38.1 than 40 is"
        assert moved(space, frame, age=1000)["age"].tolist() == [50, 50, 50, 52], (
            "no multiple of 5 beyond 50 is in range"
        )

    def test_decimal_steps_look_decimal(self):
        answers = moved(space_of(Schema.infer(ROWS, kinds={"pay": "continuous"}).step("pay", 0.1)), pay=3.3000001)
        assert answers["pay"].tolist() == [3.3] * 4

    def test_allow_and_forbid(self):
        schema = Schema.infer(ROWS).allow("job", ["nurse", "smith"]).forbid("job", "clerk", "nurse")
        assert moved(space_of(schema), job="nurse")["job"].tolist() == ["clerk", "nurse", "nurse", "clerk"]
        assert moved(space_of(schema), job="clerk")["job"].tolist() == ["clerk", "nurse", "smith", "clerk"]

    def test_it_finds_the_nearest_allowed_number(self):
        """Against every allowed whole number, one by one."""
        space = space_of(Schema.infer(ROWS).only_up("age").between("age", 27, 43))
        x = space.encode(ROWS)
        for wish in torch.linspace(-3, 3, 61).tolist():
            x_cf = x.clone()
            x_cf[:, 0] = wish
            found = space.decode(space.project(x_cf, x), like=ROWS)["age"]
            wanted = wish * space.encoding.scale[0] + space.encoding.center[0]
            for before, after in zip(ROWS["age"], found, strict=True):
                allowed = [v for v in range(100) if v == before or (v > before and min(27, before) <= v <= 43)]
                assert abs(after - wanted) == pytest.approx(min(abs(v - wanted) for v in allowed), abs=1e-5)

    def test_it_finds_the_nearest_point_with_few_changes(self):
        """Against every set of changes of the allowed size, one by one."""
        free = space_of()
        x = free.encode(ROWS)
        rng = np.random.default_rng(0)
        wish = torch.from_numpy(rng.normal(size=(20, *x.shape)).astype(np.float32) * 2)
        capped = space_of(Schema.infer(ROWS).at_most(2)).project(wish, x)
        whole = free.project(wish, x)
        best = torch.full(whole.shape[:2], torch.inf)
        for kept in itertools.combinations(range(5), 2):
            some = x.expand_as(whole).clone()
            for j in kept:
                block = free.encoding.slices[j]
                some[..., block] = whole[..., block]
            best = torch.minimum(best, free.distance(some, whole))
        found = free.distance(capped, whole)
        torch.testing.assert_close(found, best)

    def test_several_answers_at_once_are_the_same_as_one_by_one(self):
        space = space_of(
            Schema.infer(ROWS).link("job", "owner").freeze("age"), ROWS.assign(owner=[True, False, True, True])
        )
        x = space.encode(ROWS.assign(owner=[True, False, True, True]))
        wish = torch.from_numpy(np.random.default_rng(1).normal(size=(6, *x.shape)).astype(np.float32))
        together = space.project(wish, x)
        for k, i in itertools.product(range(6), range(4)):
            assert torch.equal(space.project(wish[k, i : i + 1], x[i : i + 1])[0], together[k, i])


class TestPrices:
    def test_a_number_that_may_be_missing_has_a_price_per_change_like_any_other(self):
        schema = Schema.infer(ROWS).allow_missing("pay").cost("pay", per_unit=1.0, per_change=5.0)
        space = space_of(schema, ROWS.assign(pay=[1.0, 2.0, None, 4.0]))
        before = space.encode(ROWS.assign(pay=[1.0, 2.0, None, 4.0]))
        after = space.encode(ROWS.assign(pay=[1.5, 2.0, 3.0, 2.0]))
        expected = [5.5, 0.0, 6.0, 7.0]  # filling a gap costs 1 itself
        np.testing.assert_allclose(space.distance(after, before), expected, atol=1e-5)
        np.testing.assert_allclose(space.codes.distance(after.numpy(), before.numpy()), expected, atol=1e-5)


class TestLinks:
    FRAME = pd.DataFrame(
        {"education": ["school", "college", "phd", "college"], "years": [10, 14, 20, 14], "pay": [1.0, 2.0, 3.0, 4.0]}
    )

    def test_followers_follow_and_count_once(self):
        space = space_of(Schema.infer(self.FRAME).link("education", "years").at_most(1), self.FRAME)
        answers = moved(space, self.FRAME, education="phd")
        assert answers["education"].tolist() == ["phd"] * 4
        assert answers["years"].tolist() == [20] * 4
        assert space.distance(space.encode(answers), space.encode(self.FRAME)).tolist() == [1.0, 1.0, 0.0, 1.0]

    def test_a_followers_limits_bind_its_leader(self):
        space = space_of(Schema.infer(self.FRAME).link("education", "years").only_up("years"), self.FRAME)
        answers = moved(space, self.FRAME, education="college")
        assert answers["education"].tolist() == ["college", "college", "phd", "college"], "a doctorate is not undone"
        relaxed = space.relax(torch.full((4, 5), 3.0), space.encode(self.FRAME))
        assert relaxed[2, 1] == 1.0, "nor in training"

    def test_a_followers_step_binds_its_leader(self):
        space = space_of(Schema.infer(self.FRAME).link("education", "years").step("years", 5), self.FRAME)
        answers = moved(space, self.FRAME, education="college")
        assert answers["education"].tolist() == ["school", "college", "phd", "college"], "14 is no multiple of 5"

    def test_freezing_one_freezes_all(self):
        space = space_of(Schema.infer(self.FRAME).link("education", "years").freeze("years"), self.FRAME)
        pd.testing.assert_frame_equal(moved(space, self.FRAME, education="phd"), self.FRAME)

    def test_varying_one_varies_all(self):
        space = space_of(Schema.infer(self.FRAME).link("education", "years"), self.FRAME).restrict(vary=["years"])
        assert moved(space, self.FRAME, education="phd", pay=1.5)["years"].tolist() == [20] * 4

    def test_a_number_can_lead(self):
        frame = pd.DataFrame({"age": [10, 20, 30], "band": ["young", "young", "old"], "half": [5.0, 10.0, 15.0]})
        schema = Schema.infer(frame, kinds={"half": "continuous"}).link("age", "band", "half")
        answers = moved(space_of(schema, frame), frame, age=26)
        assert answers["age"].tolist() == [26, 26, 26]
        assert answers["band"].tolist() == ["old"] * 3, "26 is nearer to 30 than to 20"
        np.testing.assert_allclose(answers["half"], 13.0, atol=1e-5)

    @pytest.mark.parametrize(
        "limited",
        [
            lambda schema: schema.only_up("half"),
            lambda schema: schema.between("half", low=6.0),
            lambda schema: schema.between("half", high=12.0),
            lambda schema: schema.allow("band", ["old"]),
            lambda schema: schema.forbid("band", "young", "old"),
        ],
        ids=["up", "low", "high", "allow", "forbid"],
    )
    def test_what_follows_a_number_may_have_no_limit_of_its_own(self, limited):
        frame = pd.DataFrame({"age": [10, 20, 30], "band": ["young", "young", "old"], "half": [5.0, 10.0, 15.0]})
        schema = Schema.infer(frame, kinds={"half": "continuous"}).link("age", "band", "half")
        assert space_of(schema, frame)
        with pytest.raises(SchemaError, match="follows the number 'age', so its limits must be put on 'age'"):
            space_of(limited(schema), frame)

    def test_a_row_that_never_obeyed_the_link_is_left_alone_until_it_moves(self):
        space = space_of(Schema.infer(self.FRAME).link("education", "years"), self.FRAME)
        odd = self.FRAME.assign(years=[11, 14, 20, 14])
        pd.testing.assert_frame_equal(moved(space, odd, pay=1.0).drop(columns="pay"), odd.drop(columns="pay"))
        assert moved(space, odd, education="college")["years"].tolist() == [14] * 4


class TestGaps:
    FRAME = pd.DataFrame({"pay": [1.0, None, 3.0], "job": ["clerk", "nurse", None]})

    def space(self, change=lambda schema: schema):
        return space_of(change(Schema.infer(self.FRAME).allow_missing("pay", "job")), self.FRAME)

    def test_they_survive_the_way_there_and_back(self):
        space = self.space()
        back = space.decode(space.encode(self.FRAME), like=self.FRAME)
        pd.testing.assert_frame_equal(back, self.FRAME)
        assert (
            space.decode(space.encode(self.FRAME)).isna().to_numpy().tolist() == self.FRAME.isna().to_numpy().tolist()
        )

    def test_they_can_be_filled(self):
        answers = moved(self.space(), self.FRAME, pay=2.0, job="nurse")
        assert answers["pay"].tolist() == [2.0, 2.0, 2.0]
        assert answers["job"].tolist() == ["nurse", "nurse", "nurse"]

    def test_they_are_never_invented(self):
        space = self.space()
        x = space.encode(self.FRAME)
        wish = torch.full_like(x, -5.0)
        wish[:, [1, 4]] = 1e6  # a decoder that wants nothing but gaps
        pd.testing.assert_frame_equal(
            space.decode(space.project(wish, x), like=self.FRAME).isna(), self.FRAME.isna(), check_exact=True
        )

    def test_frozen_gaps_stay(self):
        space = self.space(lambda schema: schema.freeze("pay", "job"))
        pd.testing.assert_frame_equal(moved(space, self.FRAME, pay=2.0, job="nurse"), self.FRAME)

    def test_filling_one_counts_as_a_change(self):
        space = self.space()
        answers = moved(space, self.FRAME, pay=2.0)
        assert space.changed(answers, self.FRAME)[:, 0].tolist() == [True, True, True]
        assert space.distance(space.encode(answers), space.encode(self.FRAME)).tolist() == [1.0, 1.0, 1.0]


class TestRequests:
    def test_each_row_its_own(self):
        space = space_of().restrict(
            vary=[["age"], ["job"], ["age", "job"], []], ranges={"age": ([20, 20, 30, 20], [22, 50, 35, 50])}
        )
        answers = moved(space, age=45, job="smith")
        assert answers["age"].tolist() == [22, 30, 40, 50], "40 lies outside 30 to 35 and may not go further"
        assert answers["job"].tolist() == ["clerk", "smith", "smith", "clerk"]

    def test_categories_of_each_row_its_own(self):
        space = space_of().restrict(ranges={"job": [["smith"], ["clerk"], ["nurse"], ["nurse", "smith"]]})
        assert moved(space, job="smith")["job"].tolist() == ["smith", "nurse", "smith", "smith"]

    def test_a_boolean_array_is_the_same_as_lists(self):
        mask = np.zeros((4, 5), bool)
        mask[0, 0] = mask[1, 2] = True
        by_array, by_lists = space_of().restrict(vary=mask), space_of().restrict(vary=[["age"], ["job"], [], []])
        pd.testing.assert_frame_equal(moved(by_array, age=45, job="smith"), moved(by_lists, age=45, job="smith"))

    def test_caps(self):
        space = space_of().restrict(at_most=[0, 1, 2, 3])
        answers = moved(space, age=45, pay=1.0, job="smith", owner=True)
        assert space.changed(answers, ROWS).sum(axis=1).tolist() == [0, 1, 2, 3]

    def test_two_requests_narrow_further(self):
        space = space_of().restrict(vary=["age", "job"]).restrict(ranges={"age": (30, None)})
        assert space.feasible.movable(space.encoding)[0].tolist() == [True, False, True, False, False]


class TestDistance:
    def test_prices(self):
        schema = Schema.infer(ROWS).cost("age", per_unit=0.5, per_change=2).cost("job", per_change=3)
        space = space_of(schema)
        x = space.encode(ROWS)
        answers = space.encode(ROWS.assign(age=[24, 30, 40, 50], job=["smith", "nurse", "nurse", "clerk"]))
        np.testing.assert_allclose(space.distance(answers, x), [0.5 * 4 + 2 + 3, 0, 3, 0], atol=1e-5)

    def test_it_carries_gradients(self):
        space = space_of()
        x = space.encode(ROWS)
        x_cf = (x + 0.1).requires_grad_()
        space.distance(x_cf, x).sum().backward()
        assert (x_cf.grad > 0).all()


class TestRelax:
    def test_gradient_equals_finite_differences(self):
        frame = TestLinks.FRAME.assign(years=[10, 14, 20, 14])
        schema = Schema.infer(frame).link("education", "years").only_up("years").between("pay", 0, 10)
        space = space_of(schema, frame)
        x = space.encode(frame).double()
        raw = torch.from_numpy(np.random.default_rng(0).normal(size=(2, *x.shape))).requires_grad_()
        assert torch.autograd.gradcheck(lambda r: space.relax(r, x), raw)

    def test_a_number_that_leads_carries_gradients_to_its_followers(self):
        frame = pd.DataFrame({"age": [10.0, 20.0, 40.0], "half": [5.5, 10.0, 30.0]})
        space = space_of(Schema.infer(frame, kinds={"age": "continuous"}).link("age", "half"), frame)
        x = space.encode(frame).double()
        raw = torch.tensor([[0.1, 0.0], [0.2, 0.0], [-0.3, 0.0]], dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda r: space.relax(r, x), raw)

    def test_hard_logits_agree_with_projection(self):
        """A decoder that is sure of itself trains on what people will receive, up to grids."""
        space = space_of(Schema.infer(ROWS, kinds={"age": "continuous", "pay": "continuous"}).only_up("grade"))
        x = space.encode(ROWS)
        raw = torch.from_numpy(np.random.default_rng(3).normal(size=(8, *x.shape)).astype(np.float32))
        raw[..., 2:] *= 1e5
        torch.testing.assert_close(space.relax(raw, x), space.project(raw, x), atol=1e-6, rtol=1e-6)


def test_polars_frames_come_back_as_polars():
    frame = pl.from_pandas(ROWS.assign(grade=ROWS["grade"].astype(str)))
    space = space_of(Schema.infer(frame).freeze("job"), frame)
    answers = moved(space, frame, age=33, owner=True)
    assert isinstance(answers, pl.DataFrame)
    assert answers.schema == frame.schema
    assert answers["age"].to_list() == [33] * 4
    assert answers["owner"].to_list() == [True] * 4


def test_a_polars_column_of_nothing_but_nulls_can_be_filled():
    training = pl.DataFrame({"pay": [1.0, None], "job": ["clerk", None]})
    space = space_of(Schema.infer(training).allow_missing("pay", "job"), training)
    empty = pl.DataFrame({"pay": [None], "job": [None]})
    assert moved(space, empty, pay=1.0, job="clerk").rows() == [(1.0, "clerk")]


def test_the_users_frame_is_never_written_to():
    before = ROWS.copy(deep=True)
    moved(space_of(), age=45, pay=3.5, job="smith", grade="high", owner=True)
    pd.testing.assert_frame_equal(ROWS, before)


def test_numbers_a_float32_cannot_hold_come_back_exactly():
    frame = pd.DataFrame({"id": [1_000_000_007, 2_000_000_011, 2_000_000_012], "pay": [1.1, 2.2, 3.3]})
    space = space_of(Schema.infer(frame).freeze("id"), frame)
    assert moved(space, frame, pay=2.0)["id"].tolist() == frame["id"].tolist()


class TestWhatReviewersFound:
    """Each of these once gave a wrong answer or a traceback."""

    def test_an_answer_never_shares_memory_with_the_factuals(self):
        space = space_of()
        answers = space.decode(space.encode(ROWS), like=ROWS)
        before = ROWS.copy(deep=True)
        answers.loc[0, "age"] = 99
        pd.testing.assert_frame_equal(ROWS, before)

    @pytest.mark.parametrize("dtype", ["float64", "Int64", "Int8"])
    def test_codes_with_gaps_read_as_categories(self, dtype):
        frame = pd.DataFrame({"thal": pd.Series([3.0, 6.0, None, 7.0], dtype=dtype)})
        space = space_of(Schema.infer(frame, kinds={"thal": "categorical"}).allow_missing("thal"), frame)
        answers = moved(space, frame, thal=6)
        assert answers["thal"].tolist() == [6, 6, 6, 6]
        assert answers["thal"].dtype == frame["thal"].dtype

    def test_followers_are_exactly_what_the_training_rows_say(self):
        frame = pd.DataFrame({"c": list("xyz"), "v": [0.1, 14.2, 77.7]})
        answers = moved(space_of(Schema.infer(frame).link("c", "v"), frame), frame, c="y")
        assert answers["v"].tolist() == [14.2] * 3

    def test_a_link_whose_values_no_code_can_tell_apart_is_refused(self):
        frame = pd.DataFrame({"c": list("xyz"), "v": [100, 105, 2_000_000_000]})
        with pytest.raises(DataError, match="column 'v' has values too close together"):
            space_of(Schema.infer(frame).link("c", "v"), frame)

    def test_a_link_that_only_seems_to_hold_is_refused(self):
        frame = pd.DataFrame({"city": ["k", "k", "m"], "id": [100, 101, 2_000_000_000]})
        with pytest.raises(DataError, match="does not hold"):
            space_of(Schema.infer(frame, {"id": "integer"}).link("city", "id"), frame)

    def test_a_link_without_a_complete_row_is_refused(self):
        frame = pd.DataFrame({"a": [10.5, 20, None], "v": [None, None, 2.6]})
        with pytest.raises(DataError, match="cannot be learnt"):
            space_of(Schema.infer(frame).allow_missing("a", "v").link("a", "v"), frame)

    def test_a_number_that_leads_puts_followers_on_their_grid_within_their_range(self):
        frame = pd.DataFrame({"a": [10.0, 20, 30], "v": [1.4, 2.0, 2.6]})
        space = space_of(Schema.infer(frame).link("a", "v").step("v", 1), frame)
        answers = moved(space, frame, a=30)
        assert answers["v"].tolist() == [2.0, 2.0, 2.6]
        assert not space.violations(answers, frame).any()

    @pytest.mark.parametrize("library", ["pandas", "polars"])
    def test_a_filled_gap_in_a_float32_column_stays_in_range(self, library):
        frame = pd.DataFrame({"a": pd.Series([0.05, None, 0.02], dtype="float32")})
        if library == "polars":
            frame = pl.DataFrame({"a": pl.Series([0.05, None, 0.02], dtype=pl.Float32)})
        space = space_of(Schema.infer(frame, {"a": "continuous"}).allow_missing("a").between("a", 0, 0.1), frame)
        answers = moved(space, frame, a=5.0)
        assert not space.violations(answers, frame).any()
        assert all(float(value) <= 0.1 for value in answers["a"].to_list())

    def test_relax_and_distance_take_any_precision(self):
        frame = pd.DataFrame({"lead": list("abc"), "follow": list("xxy"), "n": [1.5, 2.0, 3.0]})
        space = space_of(Schema.infer(frame).link("lead", "follow"), frame)
        x = space.encode(frame)
        raw = torch.full_like(x, 0.3)
        single = space.relax(raw, x)
        torch.testing.assert_close(space.relax(raw.double(), x.double()).float(), single)
        torch.testing.assert_close(space.relax(raw.double(), x).float(), single)
        torch.testing.assert_close(space.distance(raw.double(), x).float(), space.distance(raw, x))
        assert space.project(raw.double(), x.double()).dtype == torch.float64

    @pytest.mark.parametrize("scaling", ["standard", "minmax"])
    def test_filling_a_gap_costs_the_same_wherever_it_is_filled(self, scaling):
        frame = pd.DataFrame({"a": [1.5, None, 2.5]})
        schema = Schema.infer(frame).allow_missing("a").cost("a", per_unit=100, per_change=7)
        space = space_of(schema, frame, scaling=scaling)
        x = space.encode(frame)
        for value in (1.5, 2.0, 2.5):
            answer = space.encode(frame.fillna(value))
            assert space.distance(answer, x)[1] == 8
            assert space.distance(x, answer)[1] == 8

    def test_a_range_that_misses_the_training_rows_is_refused(self):
        with pytest.raises(
            SchemaError, match=r"sets 100 as the low bound of column 'age'.*end at 50. Give a high bound"
        ):
            space_of(Schema.infer(ROWS).between("age", low=100))

    def test_an_ordered_column_keeps_its_order_when_it_learns_a_category(self):
        space = space_of()
        few = ROWS.iloc[:2].assign(grade=pd.Categorical(["low", "high"], ["low", "high"], ordered=True))
        answers = moved(space, few, grade="mid")
        assert answers["grade"].dtype.categories.tolist() == ["low", "mid", "high"]
        assert answers["grade"].dtype.ordered
        enum = pl.DataFrame({"g": pl.Series(["a", "c"], dtype=pl.Enum(["a", "c"]))})
        wide = pl.DataFrame({"g": pl.Series(["a", "b", "c"], dtype=pl.Enum(["a", "b", "c"]))})
        assert moved(space_of(None, wide), enum, g="b")["g"].to_list() == ["b", "b"]

    def test_numpy_numbers_are_numbers(self):
        schema = Schema.infer(ROWS, kinds={"job": ROWS["job"].unique()})
        schema = schema.between("age", ROWS["age"].min(), ROWS["age"].max()).at_most(np.int64(2))
        schema = schema.cost("age", per_unit=np.float32(0.5)).step("age", np.int64(5))
        assert Schema.from_json(schema.to_json()) == schema

    def test_a_column_of_zeros_and_ones_can_be_read_as_boolean(self):
        frame = pd.DataFrame({"owner": [0, 1, 1]})
        space = space_of(Schema.infer(frame, kinds={"owner": "boolean"}).only_up("owner"), frame)
        assert space.schema["owner"].kind == "yes or no"
        answers = moved(space, frame, owner=1)
        assert answers["owner"].tolist() == [1, 1, 1]
        assert answers["owner"].dtype == frame["owner"].dtype

    def test_booleans_in_other_clothes(self):
        for column in (pd.Series(pd.Categorical([True, False])), pd.Series([True, None], dtype=object)):
            frame = pd.DataFrame({"a": column})
            space = space_of(Schema.infer(frame).allow_missing("a"), frame)
            assert moved(space, frame, a=True)["a"].tolist() == [True, True]

    def test_a_frozen_number_has_no_gradient(self):
        space = space_of(Schema.infer(ROWS).freeze("age"))
        x = space.encode(ROWS)
        raw = x.clone().requires_grad_()
        space.relax(raw, x).sum().backward()
        assert (raw.grad[:, 0] == 0).all()

    def test_numbers_come_as_people_write_them(self):
        frame = pd.DataFrame({"pay": [10.5, 17.25, 33.3, 41.0]})
        assert moved(space_of(None, frame), frame, pay=20.0)["pay"].tolist() == [20.0] * 4

    def test_whole_numbers_in_an_object_column_stay_whole(self):
        frame = pd.DataFrame({"a": pd.Series([1, 9], dtype=object)})
        assert [type(v) for v in moved(space_of(None, frame), frame, a=5)["a"]] == [int, int]

    def test_many_columns_are_no_trouble(self):
        wide = pd.DataFrame({f"c{i}": [0.5, 1.5] for i in range(1500)})
        started = time.perf_counter()
        space = space_of(Schema.infer(wide).freeze(*list(wide)[:700]).at_most(3), wide)
        x = space.encode(wide)
        space.violations(space.decode(space.project(x + 1, x), like=wide), wide)
        assert time.perf_counter() - started < 10, "nothing here is quadratic in columns"


def test_a_move_that_a_code_cannot_hold_is_none():
    """Projecting twice is projecting once, also where two numbers of a column share their digits."""
    X = pd.DataFrame({"a": [83887.0, -0.00390625, 0.0, np.nan]})
    space = TabularSpace.fit(Schema.infer(X, kinds={"a": "continuous"}).allow_missing("a"), X, "minmax")
    x = space.encode(X)
    for wish in (-5.0, -1e-3, 0.0, 2e-8, 1e-7, 0.5):
        x_cf = space.project(torch.tensor([[wish, 0.0]]).expand_as(x), x)
        assert torch.equal(space.project(x_cf, x), x_cf)
