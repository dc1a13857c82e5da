"""The page of real years: its tables are those of the stored backtests, and its sentences hold for them."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results" / "years.md"


@pytest.fixture(scope="module")
def page():
    """The module that writes the page, which lies beside the benchmark."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield importlib.import_module("years_page")
        del sys.modules["years_page"]


@pytest.fixture(scope="module")
def counts(page):
    """Promises made and kept by model, period and basis."""
    lines = [line for model in page.MODELS for line in page.counts(model).to_dict("records")]
    return {(line["model"], line["origins"], line["basis"]): line for line in lines}


def test_its_tables_are_those_of_the_stored_backtests(page):
    assert page.filled(PAGE.read_text()) == PAGE.read_text()
    assert all(f"<!-- years: {kind} -->" in PAGE.read_text() for kind in page.BLOCKS)


class TestSentences:
    def test_promises_kept_where_the_past_calibrates_and_where_bootstraps_do(self, counts):
        found = {
            (model, basis): (counts[model, "1997 to 2011", basis]["kept"], counts[model, "1997 to 2011", basis]["made"])
            for model in ("a network", "XGBoost")
            for basis in ("past years", "bootstraps")
        }
        assert found == {
            ("a network", "past years"): (12, 15),
            ("XGBoost", "past years"): (14, 15),
            ("a network", "bootstraps"): (9, 15),
            ("XGBoost", "bootstraps"): (8, 15),
        }
        claimed = [
            round(counts[model, "1997 to 2011", "past years"]["claimed"], 1) for model in ("a network", "XGBoost")
        ]
        assert claimed == [13.1, 13.5]

    def test_the_crisis(self, counts):
        for basis, kept in (("past years", 5), ("bootstraps", 1)):
            crisis = [counts[model, "2006 to 2008", basis] for model in ("a network", "XGBoost")]
            assert (sum(each["kept"] for each in crisis), sum(each["made"] for each in crisis)) == (kept, 6)

    def test_what_breaks_is_the_first_shock(self, page):
        broken = {model: (lines := page.origins(model))[lines["made"] & ~lines["kept"]] for model in page.MODELS}
        assert broken["network"].index.tolist() == [2002, 2003, 2008]
        assert broken["xgboost"].index.tolist() == [1994, 1995, 1996, 2009]
        assert broken["xgboost"]["people"].iloc[:3].agg(["min", "max"]).tolist() == [17, 62]

    def test_the_same_advice_is_worth_less_later(self, page):
        later = page.origins("network")["after 3"]
        assert [round(later[year], 3) for year in (2003, 2006)] == [0.556, 0.692]

    def test_the_network_refused_nobody_in_1992_to_1995(self, page):
        assert not set(page.stored("network").frame["origin"]) & {1992, 1993, 1994, 1995}

    def test_distance_beside_the_search(self, page):
        lines = page.origins("network")
        ratio = (lines["distance"] / lines["search"]).loc[1999:2008]
        assert len(ratio) == 10
        assert np.abs(ratio - 1).max() <= 0.13
        assert (lines["distance"] > lines["search"]).loc[[1997, 1998, 2010, 2011]].all()

    def test_with_trees_a_robust_neighbour_is_closer_and_survives_as_often(self, page):
        frame = page.stored("xgboost").frame
        own = frame[(frame["horizon"] == 1) & (frame["origin"] >= page.FIRST) & (frame["method"] == "robust neighbour")]
        past = page.origins("xgboost").loc[page.FIRST :]
        assert own["distance"].mean() < past["distance"].mean()
        assert own["survival"].mean() >= past["survival"].mean() - 0.001

    def test_with_trees_a_search_for_each_row_is_closer(self, page):
        lines, frame = page.origins("xgboost").loc[page.FIRST :], page.stored("xgboost").frame
        own = frame[(frame["horizon"] == 1) & (frame["origin"] >= page.FIRST)].groupby("method")
        search = own[["survival", "distance"]].mean().loc["taken back to 1"].round(3)
        assert [round(search["survival"], 3), round(search["distance"], 2)] == [0.992, 0.85]
        assert [round(lines["survival"].mean(), 3), round(lines["distance"].mean(), 2)] == [0.992, 1.40]
        ratio = (lines["distance"] / lines["search"]).dropna()
        assert (len(ratio), round(ratio.min(), 1), round(ratio.max(), 1)) == (9, 1.1, 2.8)

    def test_the_search_beside_trees_is_of_the_same_people(self, page):
        frame = page.stored("xgboost").frame
        people = frame[(frame["horizon"] == 1) & (frame["origin"] >= page.FIRST)].groupby("origin")["people"]
        assert (people.nunique() == 1).all()

    def test_each_origin_knows_only_earlier_years(self, page):
        for model in page.MODELS:
            lines = page.origins(model)
            assert lines["moments"].tolist() == list(range(1, len(lines) + 1))
            assert (lines["reliability"] <= lines["moments"] / (lines["moments"] + 1) + 1e-12).all()

    def test_drift_with_a_known_truth(self, page):
        found = page.drifts()
        assert (found["histories"] == 16).all()
        assert found.loc["stays", ["kept", "made"]].tolist() == [94, 96]
        assert found["alarms"].tolist() == [0, 16, 16, 16, 16]
        assert found["first"].tolist()[1:] == [6, 3, 6, 3]
        ahead = found["past_kept"] - found["claimed"].round()
        assert (ahead[["stays", "shifts by 0.1", "turns by 0.4"]] >= 0).all()
        for change, kept, made, claimed in (("shifts by 0.4", 28, 58, 39), ("turns by 0.1", 51, 80, 57)):
            line = found.loc[change]
            assert (line["past_kept"], line["past_made"], round(line["claimed"])) == (kept, made, claimed)
