"""Rows on the page of answers: everything a row can hold."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pytest
from answer_pages import LOANS, Page

from avcg import BlackBox, Counterfactuals, PointMass, Schema
from avcg.baselines.nearest import NearestUnlike
from avcg.errors import SettingError
from avcg.explainers.records import MEANING
from avcg.report.answers_page import render
from avcg.report.population import by_column, number_columns


@pytest.fixture(scope="module")
def three(recourse):
    return recourse.generate(LOANS.X.head(40), target=1, n=3)


class TestRows:
    def test_several_answers_each(self, three, recourse):
        page = Page.of(render(three, recourse, by="housing"))
        assert "There are 3 answers for each; the numbers on this page count the first." in page.text()
        first = Counter(three.statuses[::3].tolist())
        assert f"{first['ok']} of {40 - first['already_target']} people" in page.text()
        asked = int((three.statuses[::3] != "already_target").sum())
        assert len(page.tables["people"][1:]) == 3 * asked + (40 - asked)
        assert (
            page.text("people").count("As above: no other answer was found.")
            == three.repeated[np.repeat(three.statuses[::3] != "already_target", 3)].sum()
        )
        unlucky = np.isin(three.statuses[::3], ("not_robust", "not_found"))
        rescued = int((unlucky & (three.statuses.reshape(-1, 3) == "ok").any(axis=1)).sum())
        assert (f"For {rescued} of all these, a further answer is ok" in page.text("without")) == bool(rescued)

    def test_taking_some_is_having_asked_about_some(self, three, recourse):
        rows = np.array([7, 3, 30])
        some, asked = three.take(rows, 2), recourse.generate(three.factuals.iloc[rows], target=1, n=3)
        pd.testing.assert_frame_equal(some.factuals, asked.factuals)
        both = asked.answers.iloc[[0, 1, 3, 4, 6, 7]]
        pd.testing.assert_frame_equal(some.answers.reset_index(drop=True), both.reset_index(drop=True))
        assert (some.n, three.take(rows).n) == (2, 3)
        with pytest.raises(
            SettingError, match=r"'n' of take must be at most 3, the number of answers for each row. Got 4"
        ):
            three.take(rows, 4)
        np.testing.assert_array_equal(some.statuses, asked.statuses[[0, 1, 3, 4, 6, 7]])
        np.testing.assert_array_equal(some.certificate.agreeing, asked.certificate.agreeing[[0, 1, 3, 4, 6, 7]])
        np.testing.assert_allclose(some.probability_before, asked.probability_before, atol=1e-6)
        assert len(some.frame) == 6

    def test_every_status(self, answers, recourse):
        statuses = np.array([list(MEANING)[i % 6] for i in range(120)])
        page = Page.of(render(replace(answers, statuses=statuses), recourse, by="rating"))
        for status, meaning in MEANING.items():
            assert f"20 {status.replace('_', ' ')} {meaning}" in page.text()
        assert "For 60 people no change that flips the decision was found." in page.text("without")
        assert "20 more have a change that too few models accept." in page.text("without")
        for status in ("immovable", "already_target"):
            assert page.text("people").count(MEANING[status]) == 20
        certain = "Only where the status is immovable (nothing may change) or infeasible (it is proven) is it certain"
        assert certain in page.text("without")

    @pytest.mark.parametrize("status", ["already_target", "immovable", "not_found"])
    def test_nobody_is_told_anything(self, answers, recourse, status):
        page = Page.of(render(replace(answers, statuses=np.full(120, status)), recourse, by="housing"))
        assert {"columns", "costs", "sure", "opinions"}.isdisjoint(page.tables)
        assert page.text("rests").count("No decision flips") == 4
        assert len(page.tables["people"]) == 121
        if status == "already_target":
            assert "All people have the wanted decision already" in page.text()

    def test_all_is_well(self, answers):
        words = Page.of(render(replace(answers, statuses=np.full(120, "ok")))).text("without")
        assert "Every answer is ok." in words

    def test_gaps(self):
        X = LOANS.X.assign(housing=LOANS.X["housing"].astype(object))
        X.loc[X.index[::3], "income"] = np.nan
        X.loc[X.index[::4], "housing"] = None
        schema = Schema.infer(X).allow_missing("income", "housing")
        rule = BlackBox(lambda rows: (rows["income"].fillna(0) > 50) * 1.0, X, schema=schema)
        recourse = NearestUnlike(PointMass(rule)).fit(X)
        answers = recourse.generate(X.head(60), target=1)
        page = Page.of(render(answers, recourse, by="housing"))
        filled = (answers.factuals["income"].isna() & answers.changed[:, 0]).sum()
        assert filled
        assert f"{filled} missing values filled" in page.lines("columns")["income"][1]
        assert page.text("people").count("income: missing → ") == filled
        assert "missing" in page.lines("groups")
        known = answers.changed[:, 0] & answers.factuals["income"].notna()
        moved = (answers.frame["income"] - answers.factuals["income"])[known]
        column = by_column(answers, number_columns(answers, recourse), 0.95)[0]
        assert (column.name, column.number.up, column.filled) == ("income", (moved > 0).sum(), filled)

    def test_an_index_of_several_levels_and_polars(self, answers, recourse):
        index = pd.MultiIndex.from_product([["north", "south"], range(60)], names=["region", "no"])
        nested = replace(answers, factuals=answers.factuals.set_axis(index), answers=answers.answers.set_axis(index))
        page = Page.of(render(nested, recourse))
        assert page.tables["people"][0][0] == "region / no"
        assert "south / 59" in page.lines("people")
        rows = pl.from_pandas(LOANS.X.head(30).reset_index(drop=True))
        own = recourse.generate(rows, target=1, n=2)
        same = recourse.generate(LOANS.X.head(30).reset_index(drop=True), target=1, n=2)
        assert render(own, recourse, by="housing") == render(same, recourse, by="housing")

    def test_what_was_stored_gives_the_same_page(self, answers, recourse):
        stored = Counterfactuals.from_json(answers.to_json())
        assert render(stored, recourse, by="income") == render(answers, recourse, by="income")

    def test_numbers_that_stand_for_categories(self, answers, recourse):
        assert number_columns(answers, recourse) == {"income", "months"}
        coded = answers.factuals.assign(owns=answers.factuals["owns"].astype(int))
        assert number_columns(replace(answers, factuals=coded), None) == {"income", "months", "owns"}

    def test_a_long_list_is_cut_and_says_so(self, answers, recourse):
        place = np.tile(np.arange(120), 3)
        page = Page.of(render(answers.take(place, 1), recourse))
        assert len(page.tables["people"]) == 201
        assert "And 160 more people, whose answers are in the file." in page.text("people")

    def test_many_groups_are_cut_to_the_largest(self, answers, recourse):
        labels = [f"g{i:02d}" if i < 100 else "g99" for i in range(120)]
        shown = replace(answers, factuals=answers.factuals.assign(housing=labels))
        page = Page.of(render(shown, by="housing"))
        assert len(page.tables["groups"]) == 31
        assert page.lines("groups")["g99"][0] == "21"
        assert "And 70 smaller groups." in page.text("groups")

    def test_many_changes_and_answers_are_cut(self):
        X = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 20)), columns=[f"c{i}" for i in range(20)])
        rule = BlackBox(lambda rows: (rows["c0"] > 0) * 1.0, X)
        recourse = NearestUnlike(PointMass(rule)).fit(X)
        page = Page.of(render(recourse.generate(X[X["c0"] < 0].head(4), target=1, n=7), recourse))
        assert "and 8 more" in page.text("people")
        assert "And 2 more answers for each of them." in page.text("people")
        assert len(page.tables["people"]) == 1 + 4 * 5
        assert "12 or more: 4" in page.text("costs")

    def test_no_rows(self, answers):
        page = Page.of(render(answers.take(np.array([], np.intp), 1)))
        assert "0 people" in page.text()
