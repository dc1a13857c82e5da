"""The messy credit table is what it claims to be, and its checker finds every fault that is planted."""

import ast
from pathlib import Path

import messy_credit as messy
import numpy as np
import pandas as pd
import pytest
from messy_credit import applicants, check

MAY = tuple(name for name in applicants(50)[0].columns if name not in messy.KEPT)


@pytest.fixture(scope="module")
def whole():
    return applicants()


@pytest.fixture
def rows():
    return applicants(120, seed=1)[0]


def planted(rows, *cells):
    """The rows with other values in the cells given, each a row, a column and a value."""
    answers = rows.copy()
    for row, name, value in cells:
        answers.loc[row, name] = value
    return answers


def first(rows, holds):
    return int(np.flatnonzero(holds(rows))[0])


class TestTable:
    def test_it_is_the_same_every_time(self, whole):
        again, labels = applicants()
        pd.testing.assert_frame_equal(whole[0], again)
        assert (whole[1] == labels).all()
        assert not applicants(seed=1)[0].equals(again)

    def test_it_has_what_exports_have(self, whole):
        frame, labels = whole
        assert len(frame) == 2000
        assert 0.3 < labels.mean() < 0.7
        for name, codes in messy.CODES.items():
            assert set(frame[name][frame[name] < 0]) == set(codes)
            assert 0.2 < (frame[name] < 0).mean() < 0.5
        assert frame[messy.INCOME].mul(100).sub(frame[messy.INCOME].mul(100).round()).abs().max() < 1e-6
        assert (frame[messy.INCOME].mul(10) % 1 > 0.01).any(), "two decimals, not one"
        assert (frame[messy.LIMIT] % 100 == 0).all()
        assert (frame[list(messy.REGIONS)].sum(axis=1) == 1).all()
        assert (frame[list(messy.REGIONS)].dtypes == np.int64).all()
        assert (frame[list(messy.PURPOSES)].dtypes == "bool").all()
        assert set(map(tuple, frame[list(messy.THERMOMETER)].to_numpy())) == {
            (0, 0, 0),
            (1, 0, 0),
            (1, 1, 0),
            (1, 1, 1),
        }
        assert frame["product"].nunique() == 1
        assert frame["country"].value_counts().tolist()[1:] == [3]
        assert frame[messy.DEPENDANTS].dtype == "Int64"
        assert 0.05 < frame[messy.DEPENDANTS].isna().mean() < 0.15
        assert 0.05 < frame[messy.EMPLOYED].isna().mean() < 0.2
        assert not frame[messy.SCORE].between(421, 599).any()
        assert list(frame[messy.GRADE].cat.categories) == list("ABCDE")
        assert frame[messy.GRADE].cat.ordered
        assert set(frame[messy.GRADE]) == set("ABCDE")

    def test_ids_dates_and_texts(self, whole):
        frame, _ = whole
        for name in (messy.APPLICANT, messy.ACCOUNT, messy.NOTE):
            assert frame[name].is_unique, name
        assert (frame[messy.ACCOUNT] != frame[messy.ACCOUNT].astype(float).astype(np.int64)).any()
        assert frame[messy.OPENED].str.fullmatch(r"\d{4}-\d\d-\d\d").all()
        assert pd.api.types.is_datetime64_any_dtype(frame[messy.APPLIED])

    def test_the_label_can_be_learnt_but_not_exactly(self, whole):
        frame, labels = whole
        score = (frame[messy.SCORE] > 500).to_numpy()
        assert 0.6 < (score == labels).mean() < 0.97

    def test_it_keeps_its_own_rules(self, whole):
        assert check(whole[0], whole[0], ()) == []
        other = applicants(500, seed=7)[0]
        assert check(other, other.copy(), MAY) == []


class TestChecker:
    def test_honest_changes_are_no_fault(self, rows):
        renting = first(rows, lambda f: f[messy.HOUSING] == "rent")
        coded = first(rows, lambda f: f[messy.ARREARS] == -9)
        gap = first(rows, lambda f: f[messy.EMPLOYED].isna())
        empty = first(rows, lambda f: f[messy.DEPENDANTS].isna())
        owing = first(rows, lambda f: f[messy.PARTS[0]] > 100)
        cards, total = (rows.loc[owing, name] for name in (messy.PARTS[0], messy.TOTAL))
        new_total = round(total - cards + 50.25, 2)
        region = first(rows, lambda f: f["region_north"] == 1)
        answers = planted(
            rows, (renting, messy.HOUSING, "own"), (renting, messy.RENT, 0.0), (coded, messy.ARREARS, 12),
            (gap, messy.EMPLOYED, 3.5), (empty, messy.DEPENDANTS, 1), (owing, messy.PARTS[0], 50.25),
            (owing, messy.TOTAL, new_total), (owing, messy.RATIO, round(new_total / rows.loc[owing, messy.INCOME], 2)),
            (region, "region_north", 0), (region, "region_west", 1), (3, messy.GRADE, "A"), (4, messy.SCORE, 700),
            (5, messy.LIMIT, 12_300),
        )  # fmt: skip
        assert check(answers, rows, MAY) == []

    @pytest.mark.parametrize(
        ("holds", "name", "value", "says"),
        [
            (lambda f: f[messy.ARREARS] >= 0, messy.ARREARS, -8, "the code -8 was invented"),
            (lambda f: f[messy.ARREARS] == -9, messy.ARREARS, -8, "the code -8 was invented"),
            (lambda f: f[messy.INQUIRY] >= 0, messy.INQUIRY, -3, "-3 occurs nowhere"),
            (lambda f: f[messy.HOUSING] == "rent", messy.RENT, 500.125, "has more digits than the data"),
            (lambda f: f[messy.EMPLOYED] > 1, messy.EMPLOYED, 0.25, "data, which come in steps of 0.1"),
            (lambda f: f[messy.LIMIT] > 100, messy.LIMIT, 150, "data, which come in steps of 100"),
            (lambda f: f[messy.EMPLOYED] > 1, messy.EMPLOYED, np.inf, "inf is no finite number"),
            (lambda f: f[messy.SCORE] > 0, messy.SCORE, 500, "500 lies where no value does"),
            (lambda f: f[messy.HOUSING] == "rent", messy.HOUSING, "lent", "'lent' is no category"),
            (lambda f: f[messy.EMPLOYED].notna(), messy.EMPLOYED, np.nan, "a missing value was created"),
            (lambda f: f[messy.DEPENDANTS].notna(), messy.DEPENDANTS, pd.NA, "a missing value was created"),
            (lambda f: f[messy.GRADE] == "C", messy.GRADE, np.nan, "a missing value was created"),
            (lambda f: f[messy.NOTE] != "", messy.NOTE, "paid", "a kept column was altered"),
            (lambda f: f[messy.ACCOUNT] > 0, messy.ACCOUNT, 1, "a kept column was altered"),
            (lambda f: f[messy.APPLICANT] != "", messy.APPLICANT, "A-1", "a kept column was altered"),
            (lambda f: f[messy.OPENED] != "", messy.OPENED, "2020-02-30", "a kept column was altered"),
            (lambda f: f[messy.APPLIED].notna(), messy.APPLIED, pd.Timestamp("2024-01-01"), "a kept column"),
        ],
    )  # fmt: skip
    def test_a_planted_cell_is_found(self, rows, holds, name, value, says):
        row = first(rows, lambda frame: holds(frame).fillna(False))
        faults = check(planted(rows, (row, name, value)), rows, MAY)
        assert [(fault.row, fault.column) for fault in faults] == [(row, name)]
        assert says in faults[0].what

    @pytest.mark.parametrize(
        ("holds", "cells", "column"),
        [
            (lambda f: f["region_north"] == 1, {"region_south": 1}, "region"),
            (lambda f: f["region_north"] == 1, {"region_north": 0}, "region"),
            (lambda f: f["purpose_car"], {"purpose_home": True}, "purpose"),
            (lambda f: f["purpose_car"], {"purpose_car": False}, "purpose"),
            (lambda f: f["late_1"] == 0, {"late_2": 1}, "late"),
            (lambda f: f["late_3"] == 1, {"late_1": 0}, "late"),
            (lambda f: f["late_1"] == 0, {"late_1": 2}, "late"),
            (lambda f: f[messy.HOUSING] == "own", {messy.RENT: 300.0}, messy.RENT),
            (lambda f: f[messy.HOUSING] == "rent", {messy.HOUSING: "own"}, messy.RENT),
            (lambda f: f[messy.TOTAL] > 1000, {messy.INCOME: 1.0}, messy.RATIO),
        ],
    )
    def test_cells_that_contradict_each_other_are_found(self, rows, holds, cells, column):
        row = first(rows, holds)
        faults = check(planted(rows, *((row, name, value) for name, value in cells.items())), rows, MAY)
        assert [(fault.row, fault.column) for fault in faults] == [(row, column)]

    def test_sums_and_ratios_to_the_cent(self, rows):
        row = first(rows, lambda f: (f[messy.TOTAL] > 1000) & (f[messy.PARTS[1]] > 0))
        part, total = rows.loc[row, messy.PARTS[1]], rows.loc[row, messy.TOTAL]
        faults = check(planted(rows, (row, messy.PARTS[1], round(part + 0.01, 2))), rows, MAY)
        assert [fault.column for fault in faults] == [messy.TOTAL]
        both = (row, messy.PARTS[1], round(part + 0.01, 2)), (row, messy.TOTAL, round(total + 0.01, 2))
        assert check(planted(rows, *both), rows, MAY) == []
        (fault,) = check(planted(rows, (row, messy.RATIO, round(rows.loc[row, messy.RATIO] + 0.01, 2))), rows, MAY)
        assert (fault.row, fault.column) == (row, messy.RATIO)

    def test_an_income_like_60_879999_is_found(self, rows):
        row = first(rows, lambda f: f[messy.TOTAL] == 0)
        near = float(np.float32(rows.loc[row, messy.INCOME]))
        assert near != rows.loc[row, messy.INCOME]
        (fault,) = check(planted(rows, (row, messy.INCOME, near)), rows, MAY)
        assert "an unchanged cell is not bit for bit" in fault.what
        (fault,) = check(planted(rows, (row, messy.INCOME, float(np.float32(6087.88)))), rows, MAY)
        assert "more digits than the data" in fault.what

    def test_bits_signs_and_dtypes(self, rows):
        owner = first(rows, lambda f: f[messy.HOUSING] == "own")
        assert [fault.column for fault in check(planted(rows, (owner, messy.RENT, -0.0)), rows, MAY)] == [messy.RENT]
        faults = check(rows.astype({messy.LIMIT: float}), rows, MAY)
        assert faults[0] == (None, messy.LIMIT, "dtype int64 became float64")
        assert len(faults) == 1 + len(rows), "and every cell of it"
        assert {fault.column for fault in check(rows.astype({"purpose_car": int}), rows, MAY)} == {"purpose_car"}

    def test_columns_that_may_not_change(self, rows):
        answers = planted(rows, (2, messy.SCORE, 800))
        assert check(answers, rows, (messy.SCORE,)) == []
        (fault,) = check(answers, rows, (messy.INCOME,))
        assert (fault.row, fault.column) == (2, messy.SCORE)
        assert "may not change" in fault.what

    def test_rows_and_columns_must_be_those_of_the_rows(self, rows):
        with pytest.raises(ValueError, match=r"One answer for each row is expected\. Got 119 for 120"):
            check(rows.head(119), rows, MAY)
        for other in (rows[rows.columns[::-1]], rows.set_axis(range(1, 121))):
            (fault,) = check(other, rows, MAY)
            assert "the columns or the index" in fault.what


def test_the_checker_shares_no_code_with_the_package():
    tree = ast.parse(Path(messy.__file__).read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported == {"math", "decimal", "typing", "numpy", "pandas"}
