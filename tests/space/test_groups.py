"""Columns of 0 and 1 that hold one category, and columns that are no features."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from avcg import BlackBox, Categorical, Continuous, Schema
from avcg.errors import DataError, SchemaError, SettingError
from avcg.models.affine import schema_with_gaps
from avcg.space.codes import TableCodes
from avcg.space.dummies import flags_of_positions, positions_of_flags
from avcg.space.frames import open_frame
from avcg.space.grouping import find_groups, find_kept
from avcg.space.reading import read_rows
from avcg.space.records import answer_as_dict
from avcg.space.tabular import TabularSpace

HOME = Categorical("home", ("own", "rent", "free"), columns=("home_own", "home_rent", "home_free"))
LEVEL = Categorical("level", (0, 1, 2), ordered=True, columns=("level>=1", "level>=2"))
DTYPES = ["int64", "int8", "uint8", "float64", "float32", "bool", "Int64", "boolean", "Float64", "object", "objects"]


def frame(n=30, seed=0):
    """Rows with a number, a group of dummies, a thermometer, an id, a date and a free text."""
    rng = np.random.default_rng(seed)
    home, level = np.r_[0, 1, 2, rng.integers(3, size=n - 3)], np.r_[0, 1, 2, 3, rng.integers(4, size=n - 4)]
    return pd.DataFrame(
        {
            "pay": rng.normal(50, 10, n).round(2),
            "home_own": (home == 0).astype(int),
            "home_rent": home == 1,
            "home_free": (home == 2).astype(np.uint8),
            "delay_1": level >= 1,
            "delay_2": level >= 2,
            "delay_3": level >= 3,
            "loan_id": rng.permutation(n) + 1000,
            "since": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(900, size=n), unit="D"),
            "note": [f"text {i}" for i in rng.permutation(n)],
        }
    )


def cells(flags, dtype):
    if dtype == "objects":
        return pd.Series([bool(flag) for flag in flags], dtype=object)
    return pd.Series(flags).astype(dtype)


class TestInference:
    def test_groups_and_kept_columns_are_found(self):
        schema = Schema.infer(frame())
        assert schema.names == ("pay", "home", "delay")
        assert schema["home"].categories == ("own", "rent", "free")
        assert schema["delay"].categories == (0, 1, 2, 3)
        assert schema["delay"].ordered
        assert schema.kept == ("loan_id", "since", "note")
        assert schema.columns == tuple(frame().columns[:7])
        assert "Kept as they are, and no features: loan_id, since, note." in str(schema)

    def test_kinds_overrule_it(self):
        schema = Schema.infer(frame(), kinds={"home_own": "boolean", "loan_id": "integer", "delay_1": "boolean"})
        assert schema.names[:4] == ("pay", "home_own", "home_rent", "home_free")
        assert not schema.grouped
        assert schema["loan_id"].kind == "whole number"

    @pytest.mark.parametrize("separator", ["_", "=", ".", "-", " "])
    def test_every_separator(self, separator):
        X = pd.get_dummies(pd.DataFrame({"kind of job": ["a b", "c", "a_b"] * 3, "n": range(9)}), prefix_sep=separator)
        assert Schema.infer(X)["kind of job"].categories == ("a b", "a_b", "c")

    def test_a_prefix_of_several_words(self):
        X = pd.DataFrame({"loan_use_car": [1, 0, 0], "loan_use_home": [0, 1, 1], "loan_owner_a": [1, 1, 0]})
        assert Schema.infer(X)["loan_use"].categories == ("car", "home")
        assert Schema.infer(X).names == ("loan_use", "loan_owner_a")

    def test_columns_side_by_side_need_no_prefix_if_they_are_three(self):
        X = pd.DataFrame({"own": [1, 0, 0], "rent": [0, 1, 0], "free": [0, 0, 1], "x": [1, 2, 3]})
        assert Schema.infer(X).names == ("own / rent / free", "x")
        assert Schema.infer(X[["own", "rent", "x", "free"]]).grouped == ()
        two = pd.DataFrame({"own": [1, 0, 0], "rent": [0, 1, 1]})
        assert Schema.infer(two).grouped == ()

    def test_a_column_that_is_never_set_or_missing_makes_no_group(self):
        X = pd.DataFrame({"a_x": [1, 0], "a_y": [0, 1], "a_z": [0, 0], "b_x": [1.0, None], "b_y": [0, 1]})
        assert Schema.infer(X, kinds={"b_x": "continuous"}).grouped == ()

    def test_dummies_of_which_one_was_dropped_are_a_finding_and_no_group(self):
        X = pd.get_dummies(pd.DataFrame({"job": ["a", "b", "c", "a"]}), drop_first=True)
        assert Schema.infer(X).names == ("job_b", "job_c")
        ((columns, found, why),) = find_groups(open_frame(X))
        assert (columns, found) == (("job_b", "job_c"), "dropped category")
        assert "none in 2" in why
        assert "drop_first=False" in why

    def test_a_thermometer_needs_every_level(self):
        X = pd.DataFrame({"d_1": [0, 1, 1, 1], "d_2": [0, 0, 1, 1], "d_3": [0, 0, 1, 1]})
        assert Schema.infer(X).grouped == ()

    @pytest.mark.parametrize(
        ("column", "found"),
        [
            (pd.Series(["2020-01-01", "2021-12-31T10:00", None]), "date"),
            (pd.Series(pd.to_datetime(["2020-01-01", "2021-01-01", None])), "date"),
            (pd.Series(["2020-01-01", "2021-13-31", "x"]), None),
            (pd.Series([f"p{i}" for i in range(20)]), "identifier"),
            (pd.Series([f"p{i}" for i in range(19)]), None),
            (pd.Series([f"p{i}" for i in range(257)] * 2), "free text"),
            (pd.Series([f"p{i}" for i in range(256)] * 2), None),
        ],
    )
    def test_columns_that_are_kept(self, column, found):
        assert [what for _, what, _ in find_kept(open_frame(column.to_frame("x")))] == ([found] if found else [])

    @pytest.mark.parametrize(
        "name", ["id", "loan_id", "customerID", "CustomerNumber", "ref", "case no", "uuid", "id.x"]
    )
    def test_names_of_identifiers(self, name):
        assert find_kept(open_frame(pd.DataFrame({name: [3, 1, 2]})))
        assert not find_kept(open_frame(pd.DataFrame({name: [3, 1, 1]})))

    @pytest.mark.parametrize("name", ["paid", "number of children", "reference_rate", "nothing", "age", "keyboard"])
    def test_names_of_numbers(self, name):
        assert not find_kept(open_frame(pd.DataFrame({name: [3, 1, 2]})))

    def test_rows_of_nothing_but_kept_columns_are_refused(self):
        with pytest.raises(DataError, match=r"All columns are dates.*'id'"):
            Schema.infer(pd.DataFrame({"id": [1, 2, 3]}))

    def test_polars(self):
        assert Schema.infer(pl.from_pandas(frame())) == Schema.infer(frame())


class TestSchema:
    def test_group_by_hand(self):
        schema = Schema.infer(pd.DataFrame({"own_home": [1, 0, 0], "x": [1.5, 2, 2], "rents": [0, 1, 1]}))
        grouped = schema.group("home", ("own_home", "rents"), ("own", "rent"))
        assert grouped.names == ("home", "x")
        assert grouped.columns == ("own_home", "rents", "x")
        assert schema.group("home", ("own_home", "rents"))["home"].categories == ("own_home", "rents")
        assert grouped["rents"] == grouped["home"]
        assert grouped.freeze("rents") == grouped.freeze("home")

    def test_group_refuses(self):
        schema = Schema((Continuous("a", step=1), Continuous("b", step=1), Continuous("c"), HOME))
        with pytest.raises(SchemaError, match="There is no column 'x'"):
            schema.group("g", ("a", "x"))
        with pytest.raises(SchemaError, match="'c' is a number"):
            schema.group("g", ("a", "c"))
        with pytest.raises(SchemaError, match="'home_own' is a category"):
            schema.group("g", ("a", "home_own"))
        with pytest.raises(SchemaError, match=r"3 categories in 2 columns"):
            schema.group("g", ("a", "b"), ("x", "y", "z"))
        with pytest.raises(SchemaError, match="'a' is linked"):
            schema.link("a", "b").group("g", ("a", "b"))

    def test_keep_by_hand(self):
        schema = Schema.infer(frame()).keep("pay", "home_own")
        assert schema.names == ("delay",)
        assert schema.kept == ("loan_id", "since", "note", "pay", "home_own", "home_rent", "home_free")
        assert schema.freeze("pay") == schema  # which it is anyway
        with pytest.raises(SchemaError, match="'pay' is kept"):
            schema.only_up("pay")

    def test_a_column_read_twice_is_refused(self):
        with pytest.raises(SchemaError, match="'home_own' is read twice"):
            Schema((HOME, Continuous("home_own")))
        with pytest.raises(SchemaError, match="'x' is read twice"):
            Schema((Continuous("x"),), kept=("x",))
        with pytest.raises(SchemaError, match="the name of another column"):
            Schema((HOME, Categorical("home_own", ("a", "b"), columns=("p", "q"))))

    def test_json(self):
        schema = Schema((HOME.with_missing(), LEVEL, Continuous("x")), kept=("id",))
        assert Schema.from_json(schema.to_json()) == schema


class TestReading:
    @given(st.data())
    @settings(max_examples=60, deadline=None)
    def test_flags_and_positions_are_inverse(self, data):
        feature = data.draw(st.sampled_from([HOME, LEVEL, HOME.with_missing(), LEVEL.with_missing()]))
        size = len(feature.categories) + (feature.missing != "error")
        positions = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1)), np.intp)
        assert (positions_of_flags(feature, flags_of_positions(feature, positions)) == positions).all()

    @given(st.lists(st.tuples(*[st.sampled_from([0.0, 1.0, np.nan])] * 3), min_size=1, max_size=6))
    @settings(max_examples=100, deadline=None)
    def test_rows_that_are_no_category_are_refused_and_counted(self, rows):
        flags = np.array(rows)
        broken = sum(sorted(row) != [0.0, 0.0, 1.0] for row in rows)
        alien = sum(sorted(row) != [0.0, 0.0, 1.0] and not np.isnan(row).all() for row in rows)
        if alien:
            with pytest.raises(
                DataError, match=f"exactly one is set.*hold in {alien} row" if len(rows) > 1 else "exac"
            ):
                positions_of_flags(HOME, flags)
        elif broken:
            with pytest.raises(DataError, match=f"'home' has {broken} missing"):
                positions_of_flags(HOME, flags)
        else:
            assert (positions_of_flags(HOME, flags) == flags.argmax(axis=1)).all()

    def test_what_is_wrong_is_said(self):
        schema, X = Schema.infer(frame()), frame()
        with pytest.raises(DataError, match="'home_own' has 1 value that is neither 0 nor 1: 7"):
            TabularSpace.fit(schema, X.assign(home_own=X["home_own"].where(X.index != 4, 7)))
        with pytest.raises(
            DataError, match=r"'home_free' hold the feature 'home', of which exactly one is set.*row 1, with 2 set"
        ):
            TabularSpace.fit(schema, X.assign(home_own=1))
        with pytest.raises(DataError, match="each set column implies the one before"):
            TabularSpace.fit(schema, X.assign(delay_2=~X["delay_2"]))
        with pytest.raises(DataError, match="The rows lack column 'home_own'"):
            TabularSpace.fit(schema, X.drop(columns="home_own"))
        with pytest.raises(DataError, match=r"column 'home'.*list\(schema.columns\)"):
            TabularSpace.fit(schema, X.assign(home="own"))

    def test_none_set_is_missing_where_that_is_allowed(self):
        X = frame().astype({"home_own": int, "home_rent": int, "home_free": int})
        X.loc[5, ["home_own", "home_rent", "home_free"]] = 0
        schema = Schema.infer(frame()).allow_missing("home")
        space = TabularSpace.fit(schema, X)
        assert space.read(X).choices[5, 0] == 3
        wanted = space.encode(X).clone()
        wanted[:, space.encoding.slices[1]] = 0
        wanted[:, space.encoding.slices[1].start + 1] = 1
        answers = space.decode(space.project(wanted, space.encode(X)), like=X)
        assert (answers["home_rent"] == 1).all()
        assert (answers[["home_own", "home_free"]] == 0).all(axis=None)


class TestWriting:
    @given(st.lists(st.sampled_from(DTYPES), min_size=3, max_size=3), st.booleans(), st.integers(0, 2**32 - 1))
    @settings(max_examples=40, deadline=None)
    def test_answers_are_dummies_in_the_dtypes_of_their_columns(self, dtypes, as_polars, seed):
        rng = np.random.default_rng(seed)
        home, wanted = np.r_[0, 1, 2, rng.integers(3, size=9)], rng.integers(3, size=12)
        X = pd.DataFrame({"x": rng.normal(size=12)}, index=rng.permutation(12))
        for j, (name, dtype) in enumerate(zip(HOME.columns, dtypes, strict=True)):
            X[name] = cells(home == j, dtype).to_numpy() if dtype == "objects" else cells(home == j, dtype).array
        rows = pl.from_pandas(X.astype({c: d for c, d in zip(HOME.columns, dtypes, strict=True) if "object" not in d}))
        rows = rows if as_polars else X
        space = TabularSpace.fit(Schema((HOME, Continuous("x"))), rows)
        codes = space.encode(rows).clone()
        codes[:, :3] = 0
        codes[np.arange(12), wanted] = 1
        answers = space.decode(space.project(codes, space.encode(rows)), like=rows)
        assert type(answers) is type(rows)
        dtype_of = dict(answers.schema) if as_polars else dict(answers.dtypes)
        assert dtype_of == (dict(rows.schema) if as_polars else dict(rows.dtypes))
        for j, name in enumerate(HOME.columns):
            assert [bool(cell) for cell in answers[name].to_list()] == (wanted == j).tolist()
            same = [type(a) is type(b) for a, b in zip(answers[name].to_list(), rows[name].to_list(), strict=True)]
            assert all(same)
        untouched = answers["x"].to_list()
        assert untouched == rows["x"].to_list()

    @given(st.integers(0, 2**32 - 1))
    @settings(max_examples=25, deadline=None)
    def test_dictionaries_and_frames_say_the_same(self, seed):
        X = frame(12, seed)
        schema = Schema.infer(frame())
        space = TabularSpace.fit(schema, frame())
        rows = [{name: value for name, value in row.items() if name != "since"} for row in X.to_dict("records")]
        read = read_rows(schema, rows)
        assert (read.choices == space.read(X).choices).all()
        goal = space.read(frame(12, seed + 1))
        codes = space.project(space.encode(goal), space.encode(X))
        answers = space.decode(codes, like=X)
        table = TableCodes(space.encoding, space.feasible)
        values = table.restore(codes.numpy(), read)
        changed = table.changes(values, read)
        for i, row in enumerate(rows):
            answer, changes = answer_as_dict(space.encoding, row, values, changed[i], i)
            assert answer == {name: answers[name].tolist()[i] for name in row}
            assert set(changes) == {schema.names[j] for j in np.flatnonzero(changed[i])}

    def test_kept_columns_are_returned_as_they_are_or_not_there(self):
        X = frame()
        space = TabularSpace.fit(Schema.infer(X), X)
        codes = space.project(space.encode(X).flip(0), space.encode(X))
        answers = space.decode(codes, like=X)
        pd.testing.assert_frame_equal(answers[["loan_id", "since", "note"]], X[["loan_id", "since", "note"]])
        assert not answers.equals(X)
        fewer = X.drop(columns=["since", "note"])
        pd.testing.assert_frame_equal(space.decode(codes, like=fewer), answers[fewer.columns])

    def test_requests_name_the_feature_or_one_of_its_columns(self):
        X = frame()
        space = TabularSpace.fit(Schema.infer(X), X)
        by_column = space.restrict(["home_rent"], {"home_own": ["own", "rent"]}).feasible.arrays()
        by_name = space.restrict(["home"], {"home": ["own", "rent"]}).feasible.arrays()
        assert all(np.array_equal(by_column[name], by_name[name]) for name in by_name)


class TestModels:
    def test_a_model_is_given_any_value_of_a_kept_column_that_it_ignores(self):
        X = frame()
        box = BlackBox(lambda rows: rows["home_own"] * 0.5 + (rows["since"] > "1900") * 0.1, X)
        assert box.space_.schema.kept == ("since", "note")
        assert box.space_.schema["loan_id"].change == "none"
        fewer = box.predict_proba(X.drop(columns=["since", "note"]))
        assert (fewer == box.predict_proba(X)).all()
        with pytest.raises(DataError, match="reads column 'pay'"):
            box.predict_proba(X.drop(columns="pay"))

    def test_a_model_that_reads_a_kept_column_is_refused(self):
        X = frame()
        box = BlackBox(lambda rows: (rows["since"] > "2021-01-01") * 0.5, X)
        with pytest.raises(SettingError, match=r"reads column 'since', which the schema keeps.*made a number"):
            _ = box.space_
        ids = BlackBox(lambda rows: (rows["loan_id"] > 1010) * 0.5, X)
        assert ids.space_.schema["loan_id"].change == "none"
        with pytest.raises(SettingError, match=r"kinds=\{'loan_id': 'integer'\}\)\.freeze\('loan_id'\)"):
            _ = BlackBox(ids.model, X, schema=Schema.infer(X)).space_

    def test_gaps_of_groups(self):
        schema = schema_with_gaps(frame())
        assert schema.names == ("pay", "home", "delay", "loan_id")
        assert {feature.missing for feature in schema.features} == {"error"}
