"""A table read as numbers only, and any numbers read as a proper row again."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from avcg import Continuous, Schema, TabularSpace, datasets, toys
from avcg.metrics.numeric_view import NumericReading

LOANS = toys.loans(n=200)
READING = NumericReading.fit(LOANS.schema, LOANS.X)
FLAT = READING.flatten(LOANS.X)
SPACE = TabularSpace.fit(LOANS.schema, LOANS.X)
CODED = pd.DataFrame({"pain": [1, 4, 9, 4], "pressure": [120, 141, 99, 130], "depth": [0.5, 2.25, 1.0, 0.0]})
CODED_READING = NumericReading.fit(Schema.infer(CODED, kinds={"pain": "categorical"}), CODED)


def row(**changed):
    return FLAT.iloc[[0]].assign(**changed)


class TestThereAndBack:
    def test_loans_come_back_cell_by_cell(self):
        back = READING.restore(FLAT)
        assert list(back.columns) == list(LOANS.X.columns)
        for name in LOANS.X.columns:
            assert back[name].tolist() == LOANS.X[name].tolist()
        assert SPACE.encode(back).equal(SPACE.encode(LOANS.X))

    def test_numbers_whole_numbers_and_yes_or_no_keep_their_dtypes(self):
        kept = ["income", "months", "owns"]
        pd.testing.assert_frame_equal(READING.restore(FLAT)[kept], LOANS.X[kept])

    def test_breast_cancer_comes_back_bit_for_bit(self):
        data = datasets.load("breast_cancer")
        reading = NumericReading.fit(data.schema, data.X)
        flat = reading.flatten(data.X)
        pd.testing.assert_frame_equal(flat, data.X)
        pd.testing.assert_frame_equal(reading.restore(flat), data.X)

    def test_categories_that_are_numbers_come_back(self):
        flat = CODED_READING.flatten(CODED)
        assert list(flat.columns) == ["pain", "pressure", "depth"]
        pd.testing.assert_frame_equal(CODED_READING.restore(flat), CODED)

    @pytest.mark.parametrize(
        "index",
        [pd.Index([f"client {i}" for i in range(200)]), pd.Index([7] * 200), pd.RangeIndex(0, 400, 2, name="id")],
        ids=["words", "the same", "named"],
    )
    def test_the_index_is_kept_both_ways(self, index):
        rows = LOANS.X.set_axis(index)
        flat = READING.flatten(rows)
        pd.testing.assert_index_equal(flat.index, index)
        back = READING.restore(flat)
        pd.testing.assert_index_equal(back.index, index)
        assert back["housing"].tolist() == LOANS.X["housing"].tolist()

    def test_a_table_of_words_alone_keeps_its_index_too(self):
        words = LOANS.X[["housing"]].set_axis(pd.RangeIndex(0, 400, 2))
        reading = NumericReading.fit(Schema.infer(words), words)
        pd.testing.assert_frame_equal(reading.restore(reading.flatten(words)), words)


class TestFlat:
    def test_a_column_for_each_number_and_each_word(self):
        expected = [
            "income", "months", "owns", "housing=free", "housing=own", "housing=rent",
            "rating=poor", "rating=fair", "rating=good",
        ]  # fmt: skip
        assert list(FLAT.columns) == expected
        assert (FLAT.dtypes == np.float64).all()

    def test_its_schema_is_numbers_that_nothing_holds(self):
        assert READING.schema.features == tuple(Continuous(name) for name in FLAT.columns)
        assert TabularSpace.fit(READING.schema, FLAT).encode(FLAT).shape == FLAT.shape

    def test_one_dummy_of_each_word_is_set(self):
        for name in ("housing", "rating"):
            dummies = FLAT.filter(like=f"{name}=")
            assert (dummies.sum(axis=1) == 1).all()
            assert dummies.idxmax(axis=1).str.removeprefix(f"{name}=").tolist() == LOANS.X[name].tolist()
        assert FLAT["owns"].tolist() == LOANS.X["owns"].astype(float).tolist()

    def test_a_row_may_have_its_columns_in_any_order(self):
        pd.testing.assert_frame_equal(READING.flatten(LOANS.X[LOANS.X.columns[::-1]]), FLAT)
        pd.testing.assert_frame_equal(READING.restore(FLAT[FLAT.columns[::-1]]), READING.restore(FLAT))


class TestNearestProperRow:
    @pytest.mark.parametrize(
        ("dummies", "word"),
        [((0.4, 0.5, 0.1), "own"), ((-3.0, -2.0, -1.0), "rent"), ((9.0, 0.0, 1.0), "free"), ((0.0, 0.0, 0.0), "free")],
    )
    def test_the_largest_dummy_is_the_word(self, dummies, word):
        changed = dict(zip(("housing=free", "housing=own", "housing=rent"), dummies, strict=True))
        assert READING.restore(row(**changed))["housing"].tolist() == [word]

    @pytest.mark.parametrize(("number", "code"), [(-50.0, 1), (2.4, 1), (2.6, 4), (6.4, 4), (6.6, 9), (1e9, 9)])
    def test_the_nearest_code_is_the_category(self, number, code):
        flat = CODED_READING.flatten(CODED.head(1)).assign(pain=number)
        found = CODED_READING.restore(flat)["pain"]
        assert found.tolist() == [code]
        assert found.dtype == np.int64

    @pytest.mark.parametrize(("number", "answer"), [(0.49, False), (0.51, True), (-7.0, False), (7.0, True)])
    def test_the_nearer_of_no_and_yes(self, number, answer):
        found = READING.restore(row(owns=number))["owns"]
        assert found.dtype == bool
        assert found.tolist() == [answer]

    @pytest.mark.parametrize(("number", "months"), [(33.4, 33), (33.6, 34), (5.2, 5)])
    def test_whole_numbers_are_whole(self, number, months):
        found = READING.restore(row(months=number))["months"]
        assert found.dtype == np.int64
        assert found.tolist() == [months]

    @pytest.mark.parametrize("name", ["income", "months"])
    def test_numbers_stay_within_the_training_rows(self, name):
        low, high = LOANS.X[name].min(), LOANS.X[name].max()
        found = READING.restore(pd.concat([row(**{name: number}) for number in (-1e6, low, high, 1e6)]))
        assert found[name].tolist() == [low, low, high, high]

    def test_the_range_is_that_of_the_rows_it_was_fitted_to(self):
        few = NumericReading.fit(LOANS.schema, LOANS.X.head(5))
        found = few.restore(few.flatten(LOANS.X))
        for name in ("income", "months"):
            assert found[name].tolist() == np.clip(LOANS.X[name], *np.sort(LOANS.X[name].head(5))[[0, -1]]).tolist()

    def test_a_number_in_range_is_left_as_it_is(self):
        assert READING.restore(row(income=40.12))["income"].tolist() == [40.12]


FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(numbers=arrays(np.float64, st.tuples(st.integers(1, 6), st.just(FLAT.shape[1])), elements=FINITE))
def test_any_finite_numbers_become_rows_that_the_schema_reads(numbers):
    found = READING.restore(pd.DataFrame(numbers, columns=FLAT.columns))
    codes = SPACE.encode(found)
    assert codes.isfinite().all()
    again = READING.restore(READING.flatten(found))
    pd.testing.assert_frame_equal(again, found)
    for name in ("income", "months"):
        assert found[name].between(LOANS.X[name].min(), LOANS.X[name].max()).all()


@given(numbers=arrays(np.float64, st.tuples(st.integers(1, 6), st.just(3)), elements=FINITE))
def test_any_finite_codes_become_categories_that_there_are(numbers):
    found = CODED_READING.restore(pd.DataFrame(numbers, columns=CODED.columns))
    assert TabularSpace.fit(CODED_READING.original, CODED).encode(found).isfinite().all()
    brute = [min((1, 4, 9), key=lambda code: abs(code - number)) for number in numbers[:, 0].tolist()]
    assert found["pain"].tolist() == brute
