"""What people get wrong, and what they are told: the column, the value, the fix."""

import datetime

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from avcg import Categorical, Continuous, ImageSpace, Schema, TabularSpace, datasets, toys
from avcg.errors import AvcgError, DataError, SchemaError


def rows():
    return pd.DataFrame(
        {
            "age": [25, 40, 61],
            "income": [10.5, 20.0, 31.2],
            "job": ["clerk", "nurse", "clerk"],
            "owner": [True, False, True],
        }
    )


SCHEMA = Schema.infer(rows())
SPACE = TabularSpace.fit(SCHEMA, rows())


def encode(**changes):
    return lambda: SPACE.encode(rows().assign(**changes))


def fit(frame, schema=None):
    return lambda: TabularSpace.fit(schema or Schema.infer(frame), frame)


BAD_ROWS = {
    "not a frame": (lambda: SPACE.encode([[1, 2, 3, 4]]), DataError, "DataFrame. Got list instead"),
    "a numpy array": (lambda: SPACE.encode(np.ones((2, 4))), DataError, "Got ndarray instead.*columns=list"),
    "a missing column": (
        lambda: SPACE.encode(rows().drop(columns="job")),
        DataError,
        "lack column 'job'",
    ),
    "a misspelt column": (
        lambda: SPACE.encode(rows().rename(columns={"income": "incomes"})),
        DataError,
        "lack column 'income'. Did you mean 'incomes'",
    ),
    "an extra column": (encode(extra=1), DataError, "'extra', which the schema does not know. Drop it"),
    "a duplicate column": (
        lambda: SPACE.encode(pd.concat([rows(), rows()[["age"]]], axis=1)),
        DataError,
        "column 'age' twice",
    ),
    "no rows": (lambda: SPACE.encode(rows().head(0)), DataError, "no rows"),
    "no rows to fit": (fit(rows().head(0), SCHEMA), DataError, "no rows"),
    "an unseen category": (encode(job=["clerk", "pilot", "pilot"]), DataError, "'job' has 2 values.*'pilot'.*It knows"),
    "NaN in a number": (encode(income=[1.0, np.nan, 3.0]), DataError, r"'income' has 1 missing value\..*allow_missing"),
    "None in a category": (encode(job=["clerk", None, None]), DataError, r"'job' has 2 missing values\."),
    "infinity": (encode(income=[1.0, np.inf, -np.inf]), DataError, "'income' has 2 values infinite: inf, -inf"),
    "text in a number": (encode(income=["1", "two", "3"]), DataError, "'income' has 3 values not a number.*to_numeric"),
    "boolean for a number": (encode(age=[True, False, True]), DataError, "'age'.*not a number.*astype\\(int\\)"),
    "integer for a boolean": (
        encode(owner=[1, 0, 1]),
        DataError,
        "'owner'.*boolean: convert it with .astype\\(bool\\)",
    ),
    "number for a category": (encode(job=[1, 2, 3]), DataError, "'job' has 3 values.*no category"),
    "a duration": (
        lambda: Schema.infer(pd.DataFrame({"day": [datetime.timedelta(1)]})),
        DataError,
        "'day' is of type Duration.*days since",
    ),
    "nothing but dates": (
        lambda: Schema.infer(pd.DataFrame({"day": [datetime.datetime(2026, 1, 1)]})),
        DataError,
        "All columns are dates.*'day'.*kinds=",
    ),
    "no dummy set": (
        lambda: _fit_homes(home_own=[0, 0, 0]),
        DataError,
        "'home_own', 'home_rent' hold the feature 'home'.*exactly one is set.*in 1 row; the first is row 0, with 0 set",
    ),
    "a dummy of 2": (
        lambda: _fit_homes(home_own=[2, 0, 0]),
        DataError,
        "'home_own' has 1 value that is neither 0 nor 1: 2",
    ),
    "mixed types": (
        lambda: Schema.infer(pd.DataFrame({"mix": pd.Series([1, "a"], dtype=object)})),
        DataError,
        "'mix' holds values of type int, str, not texts",
    ),
    "names as categories": (
        lambda: Schema.infer(pd.DataFrame({"name": [f"n{i}" for i in range(300)]}), {"name": "categorical"}),
        DataError,
        "'name' has 300 different values",
    ),
    "a number with no value": (
        fit(pd.DataFrame({"a": [np.nan, np.nan]}), Schema((Continuous("a", missing="indicator"),))),
        DataError,
        "'a' has no value in any row",
    ),
    "numbers too large": (fit(pd.DataFrame({"a": [1e308, -1e308, 1.5]})), DataError, "'a' holds numbers too large"),
    "a broken link": (
        lambda: TabularSpace.fit(SCHEMA.link("job", "owner"), rows().assign(owner=[True, False, False])),
        DataError,
        "'job' -> 'owner' does not hold: 1 rows give 'job' = 'clerk'",
    ),
    "a narrow dtype": (
        lambda: _project_up(pd.DataFrame({"a": np.array([1, 100], np.int8)}), high=500),
        DataError,
        "'a' is int8, which cannot hold the answer 500",
    ),
    "answers of the wrong shape": (lambda: SPACE.decode(torch.zeros(3, 99)), DataError, r"\(rows, 6\). Got \(3, 99\)"),
    "answers of the wrong length": (
        lambda: SPACE.decode(torch.zeros(2, 6), like=rows()),
        DataError,
        "2 rows of codes and 3 rows in 'like'",
    ),
    "a generator gone wild": (
        lambda: SPACE.project(torch.full((3, 6), torch.nan), SPACE.encode(rows())),
        DataError,
        "18 codes to project are NaN",
    ),
    "polars with an unseen category": (
        lambda: SPACE.encode(pl.from_pandas(rows().assign(job=["clerk", "clerk", "pilot"]))),
        DataError,
        "'job' has 1 value that is no category of it: 'pilot'",
    ),
    "column names that are numbers": (
        lambda: Schema.infer(pd.DataFrame(np.ones((2, 2)))),
        DataError,
        "must be texts. Got 0",
    ),
    "a column of lists": (
        lambda: Schema.infer(pd.DataFrame({"a": [[1], [2]]})),
        DataError,
        "'a' holds values of type list",
    ),
    "a column of nothing": (
        lambda: Schema.infer(pd.DataFrame({"a": pd.Series([None, None], dtype=object)})),
        DataError,
        "'a' has no value in any row",
    ),
    "texts read as numbers": (
        lambda: Schema.infer(rows(), kinds={"job": "integer"}),
        DataError,
        "'job' has 3 values not a number",
    ),
    "a number beyond any code": (encode(income=[1.0, 1e300, 2.0]), DataError, "'income' has a value too far"),
    "a row beyond any code": (lambda: SPACE.encode(row(income=1e300)), DataError, "'income' has a value too far"),
    "candidates of the wrong width": (
        lambda: SPACE.relax(torch.zeros(3, 9), SPACE.encode(rows())),
        DataError,
        r"shapes \(..., rows, 6\).*Got \(3, 9\) and \(3, 6\)",
    ),
    "candidates of the wrong length": (
        lambda: SPACE.project(torch.zeros(2, 6), SPACE.encode(rows())),
        DataError,
        r"Got \(2, 6\) and \(3, 6\)",
    ),
    "answers for other rows": (
        lambda: SPACE.violations(rows().head(2), rows()),
        DataError,
        "2 answers for 3 rows",
    ),
    "a row without a column": (lambda: SPACE.encode({"age": 3}), DataError, "lack column 'income', 'job', 'owner'"),
    "a row with a text for a number": (lambda: SPACE.encode(row(age="3")), DataError, "'age' has 1 value not a number"),
    "a row with a boolean for a number": (lambda: SPACE.encode(row(age=True)), DataError, "'age'.*not a number"),
    "a row with an infinity": (
        lambda: SPACE.encode(row(income=float("inf"))),
        DataError,
        "'income' has 1 value infinite",
    ),
    "a row with a gap": (lambda: SPACE.encode(row(income=None)), DataError, "'income' has 1 missing value"),
    "a row with an unseen category": (lambda: SPACE.encode(row(job="pilot")), DataError, "'job'.*'pilot'"),
    "a row with a list for a category": (lambda: SPACE.encode(row(job=["clerk"])), DataError, "'job'.*no category"),
    "a row with 1 for yes": (lambda: SPACE.encode(row(owner=1)), DataError, "'owner'.*boolean"),
}


def row(**changes):
    return {"age": 25, "income": 10.5, "job": "clerk", "owner": True} | changes


def _fit_homes(**columns):
    homes = pd.DataFrame({"home_own": [1, 0, 0], "home_rent": [0, 1, 1]})
    return TabularSpace.fit(Schema.infer(homes), homes.assign(**columns))


def _project_up(frame, high):
    space = TabularSpace.fit(Schema.infer(frame).between("a", 0, high), frame)
    x = space.encode(frame)
    return space.decode(space.project(x + 1e6, x), like=frame)


BAD_SCHEMAS = {
    "freezing a list": (lambda: SCHEMA.freeze(["age", "job"]), "named one by one. Write 'age', 'job' without the list"),
    "a kind that is a number": (lambda: Schema.infer(rows(), kinds={"age": 5}), "kind of column 'age' must be.*Got 5"),
    "allowing nothing at all": (lambda: SCHEMA.allow("job", None), "takes a list of categories of column 'job'"),
    "a step that vanishes": (lambda: SCHEMA.step("age", 1e-10), "must be a multiple of its present step 1"),
    "freezing an unknown column": (lambda: SCHEMA.freeze("jobs"), "no column 'jobs' in the schema. Did you mean 'job'"),
    "crossed range": (lambda: SCHEMA.between("age", 60, 10), "range of column 'age' is crossed: its low bound 60"),
    "range that is no number": (lambda: SCHEMA.between("age", "old"), "bound of column 'age' must be a finite number"),
    "range of NaN": (lambda: SCHEMA.between("age", float("nan"), 3), "bound of column 'age' must be a finite number"),
    "range of a category": (lambda: SCHEMA.between("job", 1, 2), "between is for numbers; column 'job' is a category"),
    "range without a step in it": (
        lambda: SCHEMA.step("age", 5).between("age", 11, 14),
        "No multiple of the step 5 of column 'age' lies between 11 and 14",
    ),
    "negative step": (lambda: SCHEMA.step("income", -1), "step of column 'income' must be > 0. Got -1"),
    "finer step": (lambda: SCHEMA.step("age", 0.5), "step of column 'age' must be a multiple of its present step 1"),
    "empty allow list": (lambda: SCHEMA.allow("job", []), "allowed categories of column 'job' is empty. Use freeze"),
    "allow as a text": (lambda: SCHEMA.allow("job", "clerk"), r"takes a list of categories.*Write \['clerk'\]"),
    "allow of an unknown category": (
        lambda: SCHEMA.allow("job", ["clerc"]),
        "'job' has no category 'clerc'. Did you mean",
    ),
    "allow of a number": (lambda: SCHEMA.allow("age", [3]), "allow is for categories; column 'age' is a whole number"),
    "disjoint allow lists": (
        lambda: SCHEMA.allow("job", ["clerk"]).allow("job", ["nurse"]),
        "None of 'nurse' of column 'job' was still allowed",
    ),
    "forbidding to stay": (lambda: SCHEMA.forbid("job", "clerk", "clerk"), "'job' may always stay at 'clerk'"),
    "direction without order": (lambda: SCHEMA.only_up("job"), "'job' has no order.*kinds="),
    "two directions": (lambda: SCHEMA.only_up("age").only_down("age"), "'age' is limited to only up.*free\\('age'\\)"),
    "direction of a frozen column": (lambda: SCHEMA.freeze("age").only_up("age"), "'age' is frozen; only_up would"),
    "link of one": (lambda: SCHEMA.link("age"), "link needs at least two different columns"),
    "link twice": (lambda: SCHEMA.link("job", "age").link("age", "income"), "'age' is linked already"),
    "link of an unknown column": (lambda: SCHEMA.link("job", "agee"), "no column 'agee'"),
    "cost of nothing": (lambda: SCHEMA.cost("age"), "cost of column 'age' needs per_unit or per_change"),
    "negative cost": (lambda: SCHEMA.cost("age", per_unit=-1), "cost per unit of column 'age' must be >= 0. Got -1"),
    "unit cost of a category": (lambda: SCHEMA.cost("job", per_unit=1), "'job' is a category and has no units"),
    "cap of zero": (lambda: SCHEMA.at_most(0), "at_most must be a whole number >= 1. Got 0"),
    "cap of half": (lambda: SCHEMA.at_most(1.5), "at_most must be a whole number >= 1. Got 1.5"),
    "no columns": (lambda: Schema(()), "at least one column"),
    "the same column twice": (lambda: Schema((Continuous("a"), Continuous("a"))), "'a' appears twice"),
    "no categories": (lambda: Categorical("a", ()), "'a' needs at least one category"),
    "the same category twice": (lambda: Categorical("a", ("x", "x")), "'a' lists a category twice: 'x'"),
    "a category that is none": (lambda: Categorical("a", ((1, 2),)), "category of column 'a' must be a text"),
    "a kind that is none": (
        lambda: Schema.infer(rows(), kinds={"age": "fuzzy"}),
        "kind of column 'age' must be.*'fuzzy'",
    ),
    "a kind for no column": (lambda: Schema.infer(rows(), kinds={"agee": "integer"}), "'agee'. Did you mean 'age'"),
    "unknown scaling": (lambda: TabularSpace.fit(SCHEMA, rows(), scaling="log"), "'standard' or 'minmax'. Got 'log'"),
    "a priced follower": (
        lambda: TabularSpace.fit(SCHEMA.link("income", "age").cost("age", per_unit=2), rows()),
        "'age' follows 'income' and costs nothing of its own. Price 'income'",
    ),
    "a limited follower of a number": (
        lambda: TabularSpace.fit(SCHEMA.link("income", "age").only_up("age"), rows()),
        "'age' follows the number 'income', so its limits must be put on 'income'",
    ),
}

BAD_REQUESTS = {
    "vary as a number": (lambda: SPACE.restrict(vary=5), "'vary' must be a list of columns. Got 5"),
    "vary with a number in it": (lambda: SPACE.restrict(vary=[1]), "no column 1 in the schema"),
    "ranges of two lengths": (lambda: SPACE.restrict(ranges={"age": ([30, 31, 32], [40, 41])}), "one number per row"),
    "a table of caps": (lambda: SPACE.restrict(at_most=[[1, 2], [1, 2]]), "or one per row"),
    "vary as a text": (lambda: SPACE.restrict(vary="age"), r"'vary' must be a list of columns. Write \['age'\]"),
    "vary an unknown column": (
        lambda: SPACE.restrict(vary=["agee"]),
        "no column 'agee' in the schema. Did you mean 'age'",
    ),
    "vary a frozen column": (
        lambda: TabularSpace.fit(SCHEMA.freeze("age"), rows()).restrict(vary=["age"]),
        "'vary' names column 'age', which the schema does not let change",
    ),
    "vary of the wrong shape": (lambda: SPACE.restrict(vary=np.ones((3, 9), bool)), r"\(rows, 4\). Got \(3, 9\)"),
    "range of an unknown column": (lambda: SPACE.restrict(ranges={"agee": (1, 2)}), "no column 'agee'"),
    "range outside the schema's": (lambda: SPACE.restrict(ranges={"age": (70, 80)}), "'age' leaves nothing.*25 to 61"),
    "crossed range": (lambda: SPACE.restrict(ranges={"age": (50, 30)}), "'age' leaves nothing"),
    "range that is no pair": (lambda: SPACE.restrict(ranges={"age": 7}), r"must be a pair \(low, high\)"),
    "range of NaN": (lambda: SPACE.restrict(ranges={"age": (float("nan"), 50)}), "not a number"),
    "category that is none": (lambda: SPACE.restrict(ranges={"job": ["pilot"]}), "no category 'pilot' in column 'job'"),
    "categories as a text": (lambda: SPACE.restrict(ranges={"job": "clerk"}), "must be a list of its categories"),
    "empty list of categories": (lambda: SPACE.restrict(ranges={"job": []}), "'job' is empty"),
    "cap below zero": (lambda: SPACE.restrict(at_most=-1), "whole number >= 0, or one per row. Got -1"),
    "two numbers of rows": (
        lambda: SPACE.restrict(vary=[["age"], ["job"]], ranges={"age": ([30, 31, 32], 50)}),
        "different numbers of rows: 2, 3",
    ),
    "another number of rows": (
        lambda: SPACE.restrict(vary=[["age"], ["job"]]).project(SPACE.encode(rows()), SPACE.encode(rows())),
        "restricted for 2 rows. Got 3",
    ),
}

GREY = ImageSpace.fit(np.zeros((2, 4, 4), np.uint8))
BAD_IMAGES = {
    "whole numbers that are no bytes": (lambda: ImageSpace.fit(np.zeros((2, 4, 4), np.int64)), "uint8 or float.*int64"),
    "channels nobody can find": (lambda: ImageSpace.fit(np.zeros((2, 3, 4, 3), np.uint8)), "say channels='last'"),
    "two channels": (lambda: ImageSpace.fit(np.zeros((2, 4, 4, 2), np.uint8)), "say channels='last'"),
    "a layout that is none": (lambda: ImageSpace.fit(np.zeros((2, 4, 4)), channels="middle"), "'first'. Got 'middle'"),
    "a layout that does not fit": (
        lambda: ImageSpace.fit(np.zeros((2, 4, 4)), channels="last"),
        "cannot have channels",
    ),
    "no images": (lambda: ImageSpace.fit(np.zeros((0, 4, 4))), "no pixels"),
    "NaN pixels": (lambda: ImageSpace.fit(np.full((1, 2, 2), np.nan)), "4 pixels that are NaN"),
    "another size": (lambda: GREY.encode(np.zeros((2, 5, 4), np.uint8)), r"\(rows, 4, 4\). Got \(2, 5, 4\)"),
    "another dtype": (lambda: GREY.encode(np.zeros((2, 4, 4))), "holds uint8 images. Got float64"),
    "a mask of another size": (lambda: GREY.restrict(vary=np.ones((3, 3), bool)), "mask of pixels.*(4, 4)"),
    "bounds no byte can have": (
        lambda: ImageSpace.fit(np.zeros((2, 4, 4), np.uint8), bounds=(300, 400)),
        "leaves nothing",
    ),
    "bounds that are no numbers": (lambda: ImageSpace.fit(np.zeros((2, 4, 4)), bounds=(np.nan, 1)), "leaves nothing"),
    "codes of the wrong shape": (lambda: GREY.decode(torch.zeros(2, 2, 1, 4, 4)), r"\(rows, 1, 4, 4\)"),
    "a mask for other rows": (
        lambda: GREY.restrict(vary=np.ones((3, 4, 4), bool)).relax(torch.zeros(2, 1, 4, 4), torch.zeros(2, 1, 4, 4)),
        "restricted for 3 rows. Got 2",
    ),
    "crossed bounds": (lambda: GREY.restrict(ranges=(200, 100)), "range of pixels leaves nothing"),
    "a generator gone wild": (
        lambda: GREY.project(torch.full((2, 1, 4, 4), torch.nan), torch.zeros(2, 1, 4, 4)),
        "NaN",
    ),
}

BAD_OTHERS = {
    "a dataset that is none": (lambda: datasets.load("adlut"), "no dataset 'adlut'. Did you mean 'adult'"),
    "a toy of one row": (lambda: toys.loans(n=1), "'n' of a toy must be a whole number >= 2. Got 1"),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_bad_rows(case):
    call, kind, message = BAD_ROWS[case]
    with pytest.raises(kind, match=message) as caught:
        call()
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("case", BAD_SCHEMAS)
def test_bad_schemas(case):
    call, message = BAD_SCHEMAS[case]
    with pytest.raises(SchemaError, match=message):
        call()


@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_bad_requests(case):
    call, message = BAD_REQUESTS[case]
    with pytest.raises(SchemaError, match=message):
        call()


@pytest.mark.parametrize("case", BAD_IMAGES | BAD_OTHERS)
def test_bad_images_and_names(case):
    call, message = (BAD_IMAGES | BAD_OTHERS)[case]
    with pytest.raises(AvcgError, match=message):
        call()


def test_reordered_columns_are_no_mistake():
    """Columns are matched by name, and answers come back in the caller's own order."""
    turned = rows()[["owner", "job", "age", "income"]]
    assert torch.equal(SPACE.encode(turned), SPACE.encode(rows()))
    assert list(SPACE.decode(SPACE.encode(rows()), like=turned).columns) == list(turned.columns)


def test_constant_columns_and_single_categories_are_no_mistake():
    frame = pd.DataFrame({"a": [3.5, 3.5], "b": ["x", "x"], "c": [7, 7]})
    space = TabularSpace.fit(Schema.infer(frame), frame)
    x = space.encode(frame)
    assert torch.isfinite(x).all()
    pd.testing.assert_frame_equal(space.decode(space.project(x + 100, x), like=frame), frame)


def test_values_beyond_the_training_range_are_no_mistake():
    far = rows().assign(age=[99, 1, 40])
    x = SPACE.encode(far)
    answers = SPACE.decode(SPACE.project(x + 1e6 * torch.eye(6)[0], x), like=far)
    assert answers["age"].tolist() == [99, 61, 61], "outside it may stay, and otherwise move to the range"
