import numpy as np
import pandas as pd
import polars as pl
import pytest

from avcg import Categorical, Continuous, Schema
from avcg.errors import DataError, SchemaError


@pytest.fixture
def schema():
    return Schema(
        (
            Continuous("age", step=1),
            Continuous("income"),
            Categorical("job", ("clerk", "nurse", "smith")),
            Categorical("grade", ("low", "mid", "high"), ordered=True),
            Categorical("owner", (False, True), ordered=True),
        )
    )


def kinds(frame, **options):
    return [feature.kind for feature in Schema.infer(frame, **options).features]


class TestInference:
    def test_pandas_dtypes(self):
        frame = pd.DataFrame(
            {
                "text": ["b", "a"],
                "python text": pd.Series(["b", "a"], dtype=pd.StringDtype("python", na_value=np.nan)),
                "arrow text": pd.Series(["b", "a"], dtype=pd.StringDtype("pyarrow", na_value=np.nan)),
                "object text": pd.Series(["b", "a"], dtype=object),
                "category": pd.Categorical(["b", "a"]),
                "ordered": pd.Categorical(["b", "a"], ["b", "a"], ordered=True),
                "nullable": pd.array([1, None], dtype="Int64"),
                "bool": [True, False],
                "nullable bool": pd.array([True, None], dtype="boolean"),
                "object bool": pd.Series([True, None], dtype=object),
                "object number": pd.Series([1.5, 2], dtype=object),
                "float": [0.5, 1.0],
                "whole float": [1.0, 2.0],
                "int8": np.array([1, 2], np.int8),
            }
        )
        assert kinds(frame) == [
            *["category"] * 5, "ordered category", "whole number", *["yes or no"] * 3, *["number in steps of 0.1"] * 2,
            "whole number", "whole number",
        ]  # fmt: skip

    def test_polars_dtypes(self):
        frame = pl.DataFrame(
            {
                "text": ["b", "a"],
                "category": pl.Series(["b", "a"], dtype=pl.Categorical),
                "enum": pl.Series(["b", "a"], dtype=pl.Enum(["b", "a"])),
                "int": [1, None],
                "float": [0.5, None],
                "bool": [True, False],
            }
        )
        assert kinds(frame) == [
            "category",
            "category",
            "ordered category",
            "whole number",
            "number in steps of 0.1",
            "yes or no",
        ]
        assert Schema.infer(frame)["text"].categories == ("a", "b")

    def test_whole_numbers_are_never_categories(self):
        frame = pd.DataFrame({"amount": np.arange(48_000), "flag": np.arange(48_000) % 2})
        assert kinds(frame) == ["whole number", "whole number"]

    def test_the_order_of_an_ordered_category_is_kept(self):
        frame = pd.DataFrame({"c": pd.Categorical(["low"], ["low", "mid", "high"], ordered=True)})
        assert Schema.infer(frame)["c"].categories == ("low", "mid", "high")

    def test_columns_can_be_read_otherwise(self):
        frame = pd.DataFrame({"a": [1, 2], "b": [0, 1], "c": ["lo", "hi"], "d": [1.0, 2.0]})
        chosen = {"a": "categorical", "b": "boolean", "c": ["lo", "hi"], "d": "continuous"}
        assert kinds(frame, kinds=chosen) == ["category", "yes or no", "ordered category", "number"]
        assert Schema.infer(frame, kinds=chosen)["c"].categories == ("lo", "hi")

    def test_infer_leaves_the_frame_alone(self):
        frame = pd.DataFrame({"a": [1, 2], "b": ["x", None]})
        copy = frame.copy()
        Schema.infer(frame)
        pd.testing.assert_frame_equal(frame, copy)


class TestVerbs:
    def test_they_return_a_new_schema(self, schema):
        frozen = schema.freeze("age", "job")
        assert (schema["age"].change, frozen["age"].change, frozen["job"].change) == ("any", "none", "none")

    def test_directions(self, schema):
        assert schema.only_up("age", "grade", "owner")["grade"].change == "up"
        assert schema.only_down("income")["income"].change == "down"
        assert schema.only_up("age").only_up("age") == schema.only_up("age")

    def test_ranges_and_lists_only_narrow(self, schema):
        twice = schema.between("age", 10, 60).between("age", 20, 90)
        assert (twice["age"].low, twice["age"].high) == (20, 60)
        assert schema.between("age", low=3)["age"].high is None
        assert schema.allow("job", ["clerk", "nurse"]).allow("job", ["nurse", "smith"])["job"].allowed == ("nurse",)

    def test_steps_only_get_coarser(self, schema):
        assert schema.step("age", 5)["age"].step == 5
        assert schema.step("income", 0.1).step("income", 0.3)["income"].step == 0.3

    def test_forbid_and_cost_and_caps(self, schema):
        changed = schema.forbid("job", "clerk", "smith").cost("age", per_unit=2).cost("job", per_change=3).at_most(4)
        assert changed["job"].forbidden == (("clerk", "smith"),)
        assert (changed["age"].cost_per_unit, changed["job"].cost_per_change) == (2, 3)
        assert changed.at_most(2).max_changes == 2
        assert changed.at_most(9).max_changes == 4

    def test_free_lifts_limits_and_nothing_else(self, schema):
        limited = (
            schema.step("age", 5).cost("age", per_unit=2).between("age", 10, 60).freeze("age").allow_missing("age")
        )
        assert limited.free("age") == schema.step("age", 5).cost("age", per_unit=2).allow_missing("age")
        assert schema.allow("job", ["nurse"]).forbid("job", "clerk", "smith").free("job") == schema

    def test_missing_values_are_a_choice_of_the_kind(self, schema):
        gaps = schema.allow_missing("age", "job")
        assert (gaps["age"].missing, gaps["job"].missing, gaps["income"].missing) == ("indicator", "category", "error")


class TestJson:
    def test_round_trip_keeps_every_word(self, schema):
        whole = (
            schema.freeze("owner")
            .only_up("grade")
            .between("age", 18, 70)
            .step("income", 0.25)
            .allow("job", ["clerk", "nurse"])
            .forbid("job", "clerk", "nurse")
            .link("grade", "income")
            .cost("age", per_unit=0.5, per_change=1)
            .allow_missing("job", "age")
            .at_most(3)
        )
        back = Schema.from_json(whole.to_json())
        assert back == whole
        assert [type(value) for value in back["owner"].categories] == [bool, bool]

    def test_numbers_as_categories_keep_their_type(self):
        schema = Schema((Categorical("a", (1, 2)), Categorical("b", (1.0, 2.5))))
        back = Schema.from_json(schema.to_json())
        assert [type(v) for f in back.features for v in f.categories] == [int, int, float, float]

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("{", "not JSON"),
            ("[]", "not an avcg schema"),
            ('{"format": "avcg.schema", "version": 99}', "version 99"),
            ('{"format": "avcg.schema", "version": 1}', "incomplete or damaged"),
            (
                '{"format": "avcg.schema", "version": 1, "links": [], "max_changes": null,'
                ' "features": [{"type": "Continuous", "name": "a", "stepp": 1}]}',
                "Did you mean 'step'",
            ),
            (
                '{"format": "avcg.schema", "version": 1, "links": [], "max_changes": null,'
                ' "features": [{"type": "Continuous", "name": "a", "step": "one"}]}',
                "step of column 'a' must be a finite number",
            ),
            (
                '{"format": "avcg.schema", "version": 1, "links": [], "max_changes": null,'
                ' "features": [{"type": "Fuzzy", "name": "a"}]}',
                "'Continuous', 'Categorical'",
            ),
        ],
    )
    def test_damaged_texts_are_refused(self, text, says):
        with pytest.raises(SchemaError, match=says):
            Schema.from_json(text)


class TestWords:
    def test_linked_columns_are_told_together(self, schema):
        rows = {row["column"]: row for row in schema.link("grade", "income").freeze("income").describe()}
        assert rows["grade"]["may change"] == "no", "a fact is frozen where any part of it is"
        assert rows["income"]["cost"] == "in that of grade"

    def test_the_table_says_what_may_change(self, schema):
        text = str(
            schema.freeze("owner")
            .only_up("age")
            .between("income", 0, 100)
            .allow("job", ["clerk", "nurse"])
            .forbid("job", "clerk", "nurse")
            .link("grade", "income")
            .cost("age", per_unit=2, per_change=1)
            .allow_missing("job")
            .at_most(2)
        )
        for words in (
            "whole number", "0 to 100", "low < mid < high", "only up", "never clerk → nurse", "not to smith",
            "together with income", "2 per unit + 1 per change", "may be missing", "At most 2 may change at once.",
        ):  # fmt: skip
            assert words in text
        assert "no, yes" in text

    def test_rows_at_hand_give_the_ranges(self):
        frame = pd.DataFrame({"age": [20, 61], "pay": [1.25, 3.5], "job": ["a", "b"]})
        rows = Schema.infer(frame).between("pay", high=3).describe(frame)
        assert [row["values"] for row in rows] == ["20 to 61", "1.25 to 3", "a, b"]

    def test_every_column_has_a_row(self, schema):
        assert [row["column"] for row in schema.describe()] == list(schema)


def test_a_wild_text_column_is_refused_with_a_way_out():
    frame = pd.DataFrame({"name": [f"person {i}" for i in range(1000)]})
    with pytest.raises(DataError, match=r"'name' has 1000 different values.*Drop it"):
        Schema.infer(frame, kinds={"name": "categorical"})
