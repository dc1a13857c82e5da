"""The page of promises: its tables are those of the stored fits, and its sentences hold for them."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results" / "promise.md"


@pytest.fixture(scope="module")
def page():
    """The module that writes the page, which lies beside the benchmark."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield importlib.import_module("promise_page")
        del sys.modules["promise_page"]


@pytest.fixture(scope="module")
def fits(page):
    return page.read(page.RESULTS / "fits.jsonl")


@pytest.fixture(scope="module")
def outcomes(page, fits):
    lines = page.outcomes(fits)
    return lines[lines["recipe"] == "constraint"]


def test_its_tables_are_those_of_the_stored_fits(page):
    assert page.filled(PAGE.read_text()) == PAGE.read_text()
    assert all(f"<!-- promise: {kind} -->" in PAGE.read_text() for kind in page.BLOCKS)


class TestSentences:
    def test_there_are_as_many_fits_as_are_spoken_of(self, outcomes):
        seeds = outcomes.groupby("dataset")["seed"].nunique()
        assert seeds.to_dict() == {"breast_cancer": 10, "heart": 3, "spambase": 1, "adult": 3, "sba:2004": 3}

    def test_promises_are_made_and_broken_no_more_often_than_said(self, page, outcomes):
        for (_, _, reliability), lines in outcomes.groupby(["effort", "survival", "reliability"]):
            assert page.broken_share(lines)[0] <= 1 - reliability

    def test_0_95_is_promised_in_most_fits_and_0_99_on_small_tables_in_none(self, outcomes):
        common = outcomes[(outcomes["survival"] == 0.95) & (outcomes["dataset"] != "spambase")]
        assert (common.groupby(["dataset", "effort", "reliability", "target"])["made"].mean() > 0.5).all()
        small = outcomes["dataset"].isin(["breast_cancer", "heart"])
        assert not outcomes[small & (outcomes["survival"] == 0.99)]["made"].any()

    def test_on_sba_a_fixed_weight_stands_still_and_a_constraint_ends_higher(self, fits):
        shares = {
            recipe: np.mean(
                [
                    each["fresh"]["survival"]
                    for fit in fits
                    if (fit["dataset"], fit["recipe"]) == ("sba:2004", recipe)
                    for each in fit["efforts"]["single"]
                    if each["target"] == "charged off"
                ],
                axis=0,
            )
            for recipe in ("weight", "constraint")
        }
        late = np.array(fits[0]["efforts"]["single"][0]["margins"]) >= 1.6
        assert np.ptp(shares["weight"][late]) < 0.001
        assert round(shares["weight"][-1], 3) == 0.993
        assert round(shares["constraint"][-1], 3) == 0.996
        highest = [
            fit["multipliers"][-1] for fit in fits if (fit["dataset"], fit["recipe"]) == ("sba:2004", "constraint")
        ]
        assert highest == [120.0] * 3

    def test_at_equal_survival_a_constraint_is_not_much_farther(self, page, fits):
        stored = {(fit["dataset"], fit["seed"], fit["recipe"]): fit["efforts"]["single"] for fit in fits}
        for name in {dataset for dataset, *_ in stored}:
            seeds = [seed for dataset, seed, recipe in stored if (dataset, recipe) == (name, "constraint")]
            both = [
                [page.least_distance(stored[name, seed, recipe], 0.95) for seed in seeds] for recipe in page.RECIPES
            ]
            before, after = map(np.ravel, both)
            assert np.median(after / before) <= 1.05, name

    def test_what_ten_networks_cannot_carry_is_declined_in_words(self, page):
        given = page.read(page.RESULTS / "given.jsonl")
        assert len(given) == 3
        for fit in given:
            assert not any(fit["made"])
            assert "a reliability of 0.9 needs 9 models held back for calibration, and there are 4" in fit["sentence"]


class TestCounting:
    """On fits small enough to count by hand."""

    def fit(self, seed, made, accepted):
        direction = {
            "target": "a", "answered": 20, "made": made, "accepted": accepted, "distance": 1.0, "sentence": "",
        }  # fmt: skip
        return {
            "dataset": "heart",
            "seed": seed,
            "recipe": "constraint",
            "promises": {"0.95/0.9": {"single": [direction]}},
        }

    def test_a_model_keeps_a_promise_from_the_promised_share_on(self, page):
        (line,) = page.outcomes([self.fit(0, True, [20, 19, 18, 17])]).to_dict("records")
        assert (line["kept"], line["mean survival"]) == (0.5, 0.925)

    def test_what_was_not_promised_is_not_broken(self, page):
        lines = page.outcomes([self.fit(0, True, [20, 18]), self.fit(1, False, [0, 0])])
        share, low, high = page.broken_share(lines)
        assert share == 0.25
        assert (low, high) == (0.0, 0.5), "by fits: none, or half"

    def test_the_interval_is_of_fits_and_not_of_models(self, page):
        """A thousand models that judge two fits are two draws, not two thousand."""
        few, many = (
            page.outcomes([self.fit(0, True, [20] * n), self.fit(1, True, [0] * n)]) for n in (1, 1000)
        )  # fmt: skip
        assert page.broken_share(few) == page.broken_share(many) == (0.5, 0.0, 1.0)

    def test_the_least_distance_need_not_be_at_the_least_margin(self, page):
        direction = {"fresh": {"survival": [0.5, 0.9, 0.96, 1.0], "distance": [1.0, 3.0, 2.0, 4.0]}}
        assert page.least_distance([direction], 0.9) == [2.0]
        assert page.least_distance([direction], 1.1) == [np.inf]

    def test_no_fits_no_lines(self, page, tmp_path):
        assert page.read(tmp_path / "none.jsonl") == []
        assert page.outcomes([]).equals(pd.DataFrame())
