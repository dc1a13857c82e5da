"""The page of the least change: its tables are those of the stored cells, and what it compares is counted right."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results" / "least-change.md"
README = PAGE.parents[2] / "README.md"


@pytest.fixture(scope="module")
def page():
    """The module that writes the page, which lies beside the benchmark."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield importlib.import_module("least_change_page")
        del sys.modules["least_change_page"]


def point(survival, l1, ynn=1.0, **more):
    return {
        "survival": survival, "l1": l1, "l1_median": l1, "ynn": ynn, "coverage": 1.0, "accepted": survival,
        "distance": l1, "columns": 2.0, "violations": 0, "rows": 10, **more,
    }  # fmt: skip


def cell(model="network", seed=0, own=(0.99, 2.0, 1.0), search=((0.9, 1.0), (1.0, 3.0)), **more):
    """A record as the benchmark stores it."""
    effort = point(
        *own, made=[True, False], margins=[1.0, 1.0], statuses={"ok": 9, "not_found": 1},
        fallback={"rows": 2, "accepted": 1, "seconds": 0.5, "asked": 10, "all seconds": 1.0},
    )  # fmt: skip
    shared = {"rows": 8, "share": [0.8, 0.99], "l1": [4.0, 3.0], "columns": [5.0, 2.0]}
    neighbour = {**point(0.7, 4.0), "shared": {"fast": shared, "standard": shared}}
    times = {"100": 2.0, "1": 70.0}
    return {
        "dataset": "heart", "model": model, "seed": seed, "training rows": 200, "judges": {"own": 17, "fresh": 20},
        "machine": {"side by side": 1}, "seconds": {"fit": 60.0}, "settings": {"typicality": 0.5},
        "promises": {promise: dict.fromkeys(("fast", "standard", "thorough"), effort) for promise in ("0.99", "0.95")},
        "worse": {"rows": 10, "fast to standard": 0, "standard to thorough": 0},
        "frontier": {name: [point(0.9, 1.5, margin=0.0), point(1.0, 2.5, margin=1.0)] for name in ("fast", "standard")},
        "search": [point(*each) for each in search],
        "typicality": [{"typicality": 0.5, **point(0.99, 2.0)}],
        "neighbours": dict.fromkeys(("nearest unlike", "robust neighbour"), neighbour),
        "times": dict.fromkeys(("fast", "standard", "thorough", "search", "nearest unlike"), times),
        **more,
    }  # fmt: skip


def test_its_tables_are_those_of_the_stored_cells(page):
    text = PAGE.read_text()
    assert page.filled(text) == text
    assert all(f"<!-- least: {kind} -->" in text for kind in [*page.BLOCKS, "ruler", "goals"])


def test_the_table_of_readme_is_that_of_the_stored_cells(page):
    text = README.read_text()
    assert "<!-- least: short -->" in text
    assert page.filled(text) == text


def test_it_promises_no_figure_before_there_is_one(page):
    assert ("least-change.png" in page.filled("<!-- least: figure -->\n<!-- end -->")) == any(
        record["model"] == "network" for record in page.stored()
    )


class TestFrontier:
    def test_between_two_points_it_is_a_line(self, page):
        frontier = page.Frontier.of([point(1.0, 3.0, 2.0), point(0.9, 1.0, 1.0)])
        assert frontier.at(0.95) == pytest.approx((2.0, 1.5))

    def test_what_survives_less_and_is_no_nearer_counts_for_nothing(self, page):
        frontier = page.Frontier.of([point(0.9, 1.0), point(1.0, 3.0), point(0.95, 3.5), point(0.5, 1.0)])
        assert frontier.survival == (0.9, 1.0)

    def test_what_a_mixture_of_two_others_beats_counts_for_nothing(self, page):
        frontier = page.Frontier.of([point(0.9, 1.0), point(0.95, 2.9), point(1.0, 3.0)])
        assert frontier.survival == (0.9, 1.0)

    def test_below_its_least_survival_it_is_the_nearest_point(self, page):
        assert page.Frontier.of([point(0.9, 1.0), point(1.0, 3.0)]).at(0.2) == (1.0, 1.0)

    def test_beyond_its_highest_it_has_nothing(self, page):
        assert page.Frontier.of([point(0.9, 1.0)]).at(0.95) is None
        assert page.Frontier.of([point(0.0, None)]).at(0.0) is None, "a method without any answer"


class TestBeside:
    def test_at_equal_survival(self, page):
        beside = page.Beside.of(cell(own=(0.95, 2.0, 3.0)), "standard")
        assert (beside.level, beside.l1, beside.ynn) == pytest.approx((0.95, 1.0, 3.0))
        assert not beside.at_ceiling

    def test_at_the_ceiling_of_the_search_along_the_own_frontier(self, page):
        beside = page.Beside.of(cell(own=(1.0, 2.5), search=((0.95, 1.0),)), "standard")
        assert (beside.level, beside.at_ceiling) == (0.95, True)
        assert beside.l1 == pytest.approx(2.0)

    def test_frontier_over_frontier_does_not_depend_on_the_calibrated_margin(self, page):
        ratios = [page.Beside.of(cell(own=own), "standard").frontier for own in ((0.99, 9.0), (0.5, 9.0))]
        assert ratios == pytest.approx([2.4 / 2.8] * 2)


class TestGoals:
    def goal(self, page, beginning, records, measured=()):
        return next(line for line in page.goals(records, list(measured)) if line["goal"].startswith(beginning))

    def test_networks(self, page):
        good = self.goal(page, "networks: L1", [cell(own=(0.99, 2.8))])
        bad = self.goal(page, "networks: L1", [cell(own=(0.99, 4.2))])
        assert (good["met"], good[""], good["missed by"]) == ("1 of 1", "met", page.NOTHING)
        assert (bad["met"], bad[""], bad["missed by"]) == ("0 of 1", "**missed**", "Heart (1.50)")

    def test_a_survival_below_the_goal_is_enough_at_the_ceiling_of_the_search(self, page):
        assert self.goal(page, "networks: cov", [cell(own=(0.95, 2.0), search=((0.95, 1.0),))])[""] == "met"
        assert self.goal(page, "networks: cov", [cell(own=(0.95, 2.0))])["missed by"] == "Heart (0.950)"

    def test_trees_have_other_goals(self, page):
        lines = page.goals([cell("xgboost")], [])
        assert not any(line["goal"].startswith("networks") for line in lines)
        assert self.goal(page, "trees: one row", [cell("xgboost")])["missed by"] == "Heart, XGBoost (70 ms)"
        assert self.goal(page, "trees: a row of 100", [cell("xgboost")])[""] == "met"

    def test_any_worse_answer_and_any_violation_misses(self, page):
        worse = cell(worse={"rows": 10, "fast to standard": 1, "standard to thorough": 0})
        assert self.goal(page, "more effort", [worse, cell(seed=1)])["missed by"] == "Heart (1 rows)"
        broken = cell(typicality=[{"typicality": 0.0, **point(1.0, 1.0, violations=2)}])
        assert self.goal(page, "no answer", [broken])["missed by"] == "Heart (2)"

    def test_the_ruler(self, page):
        line = {"method": "standard", "each": {"rows": 9, "median": 1.0, "p95": 1.2}}
        measured = [{"dataset": "heart", "model": "logistic", "seed": 0, "ruler": [line]}]
        assert self.goal(page, "over", [], measured)["missed by"] == "Heart, logistic, standard (1.20)"

    def test_medians_are_over_seeds(self, page):
        seeds = [cell(seed=seed, own=(0.99, 2.8 * ratio)) for seed, ratio in enumerate((0.5, 1.0, 9.0))]
        assert self.goal(page, "networks: L1", seeds)[""] == "met"


def test_times_are_those_of_the_cells_with_the_fewest_beside_them(page):
    quiet, loud = (cell(seed=seed, machine={"side by side": beside}) for seed, beside in ((0, 1), (1, 8)))
    loud["times"] = {name: {"100": 99.0, "1": 99.0} for name in loud["times"]}
    assert page.quietest([loud, quiet, loud]) == [quiet]
    assert "99" not in page.BLOCKS["times"]([loud, quiet])


def test_ratios_are_ours_over_theirs(page):
    assert page.shared_ratio([cell()], "nearest unlike", "l1") == 0.75
    assert np.isnan(page.median([None, float("nan")]))


def test_a_page_of_stored_cells_and_its_figure(page, tmp_path):
    pytest.importorskip("matplotlib")
    for record in (cell(), cell("xgboost"), cell("logistic", seed=1)):
        name = f"heart.{record['model']}.{record['seed']}.jsonl"
        (tmp_path / name).write_text(json.dumps(record) + "\n")
    text = page.filled(PAGE.read_text(), tmp_path)
    assert page.filled(text, tmp_path) == text
    assert "| Heart | XGBoost | standard | 10 | 20.0 % | 1 of 2 | 250.00 | 50.0 % | 9 | 0 | 1 | 0 |" in text
    assert "3.00 / 4.00" in text
    page.draw(page.stored(tmp_path), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
