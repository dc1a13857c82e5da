"""The page of distributions: its tables are those of the stored records, and its sentences hold for them."""

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results" / "distributions.md"
FEW = {"MC dropout", "Laplace", "SWAG", "retrains, seed", "retrains, bootstrap"}


@pytest.fixture(scope="module")
def page():
    """The module that writes the page, which lies beside the benchmark."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield importlib.import_module("distributions_page")
        del sys.modules["distributions_page"]


@pytest.fixture(scope="module")
def means(page):
    """The mean over seeds, by dataset and distribution."""
    return page.records().drop(columns="seed_number").groupby(["dataset", "distribution"]).mean(numeric_only=True)


def test_its_tables_are_those_of_the_stored_records(page):
    assert page.filled(PAGE.read_text()) == PAGE.read_text()
    assert all(f"<!-- distributions: {kind} -->" in PAGE.read_text() for kind in page.BLOCKS)


def test_every_distribution_has_three_seeds(page):
    lines = page.records()
    assert (lines.groupby(["dataset", "distribution"])["seed_number"].nunique() == 3).all()
    kinds = {name: set(own["distribution"]) for name, own in lines.groupby("dataset")}
    assert len(kinds["sba"]) == 16
    assert len(kinds["breast_cancer"]) == 13
    assert kinds["heart"] == kinds["adult"] == FEW


class TestSentences:
    def said_and_kept(self, means, dataset, kind):
        line = means.loc[(dataset, kind)]
        return round(line["said"], 3), round(line["bootstrap"], 3)

    def test_the_choice_decides(self, means):
        found = {kind: self.said_and_kept(means, "breast_cancer", kind) for kind in FEW}
        assert found["SWAG"] == (0.997, 0.372)
        assert found["MC dropout"] == (0.990, 0.799)
        assert found["Laplace"] == (0.998, 0.881)
        assert found["retrains, bootstrap"] == (0.994, 0.991)

    def test_a_certificate_cannot_tell(self, means):
        sba = means.loc["sba"]
        for kind in ("MC dropout", "mean-field VI"):
            assert sba.loc[kind, "bootstrap"] >= sba.loc["retrains, bootstrap", "bootstrap"] - 0.001
        assert self.said_and_kept(means, "sba", "Laplace") == (0.999, 0.932)

    def test_more_distance_buys_more(self, means):
        table = means.loc["breast_cancer"]
        usual = table.loc["retrains, bootstrap", "distance"]
        for kind in ("mean-field VI", "retrains, label noise"):
            assert round(table.loc[kind, "bootstrap"], 3) == 1.0
            assert 1.3 < table.loc[kind, "distance"] / usual < 1.5
        assert round(table.loc["retrains, variants", "bootstrap"], 3) == 0.998
        assert round(table.loc["retrains, variants", "distance"] / usual, 2) == 1.07

    def test_no_distribution_knows_the_next_year(self, means):
        sba = means.loc["sba"]
        assert (round(sba["year 1"].min(), 3), round(sba["year 1"].max(), 3)) == (0.772, 0.967)
        assert round(sba["year 2"].max(), 3) == 0.780
        assert round(sba.loc["retrains, rolling", "year 1"], 3) == 0.923
        assert round(sba.loc["retrains, bootstrap", "year 1"], 3) == 0.934

    def test_ten_are_too_few(self, page, means):
        lines = page.records()
        assert not lines.loc[lines["distribution"] == "deep ensemble", "made"].any()
        for dataset in ("breast_cancer", "sba"):
            table = means.loc[dataset]
            assert table.loc["deep ensemble", "bootstrap keep"] < table.loc["retrains, bootstrap", "bootstrap keep"]

    def test_retrains_by_seed_are_right_about_seeds_alone(self, means):
        for dataset, seeds, bootstraps in (("heart", 0.997, 0.911), ("adult", 0.992, 0.944)):
            line = means.loc[(dataset, "retrains, seed")]
            assert (round(line["seed"], 3), round(line["bootstrap"], 3)) == (seeds, bootstraps)
            assert means.loc[(dataset, "retrains, bootstrap"), "bootstrap"] > line["bootstrap"]
