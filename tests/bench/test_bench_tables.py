"""The benchmark's tables against numbers worked out by hand, and its pictures."""

import io
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from avcg.bench import figures, tables
from avcg.errors import DataError, MissingExtraError, SettingError
from avcg.metrics.table import PAPER_METRICS

PAPER = pd.read_csv(Path(__file__).parents[2] / "benchmarks" / "paper.csv")
LEVELS = (0.0, 0.1, 0.8)


def line(method="QUCE", seed=0, row=0, dataset="adult", epsilon=np.nan, reading="raw", error=np.nan, **metrics):
    where = {"dataset": dataset, "seed": seed, "method": method, "epsilon": epsilon, "reading": reading}
    return {**where, "row": row, "error": error, **metrics}


@pytest.fixture
def rows():
    """Two seeds of QUCE, AVCG-R at two epsilons, and one cell that failed."""
    return pd.DataFrame(
        [
            line(seed=0, row=0, **{"Val": 1.0, "IM1": 2.0, "RVR@0": 0.2, "RVR@0.8": 0.6}),
            line(seed=0, row=1, **{"Val": 0.0, "IM1": np.nan, "RVR@0": 0.4, "RVR@0.8": 0.8}),
            line(seed=1, row=0, **{"Val": 1.0, "IM1": 5.0, "RVR@0": 0.6, "RVR@0.8": 1.0}),
            line("Schut et al.", error="RuntimeError: [bold] no gradient"),
            line("AVCG-R", epsilon=0.0, **{"Val": 0.25, "RVR@0": 0.3, "RVR@0.8": 0.4}),
            line("AVCG-R", epsilon=0.8, **{"Val": 0.75, "RVR@0": 0.5, "RVR@0.8": 0.7}),
            line(reading="decoded", Val=0.125),
        ]
    )


def of(summary, **where):
    for name, value in where.items():
        summary = summary[summary[name] == value]
    (record,) = summary.to_dict("records")
    return record


def printed(function, *arguments, **options):
    console = Console(file=io.StringIO(), width=250, highlight=False)
    function(console, *arguments, **options)
    return console.file.getvalue()


class TestSummarise:
    def test_spreads_by_hand(self, rows):
        found = of(tables.summarise(rows, ["Val"]), method="QUCE", reading="raw")
        # Seeds have the means 1/2 and 1; the instances are 1, 0, 1.
        assert found["mean"] == pytest.approx(0.75)
        assert found["spread_seeds"] == pytest.approx(np.sqrt(2 * 0.25**2))
        assert found["spread_instances"] == pytest.approx(np.sqrt(2 / 9))
        assert (found["n_seeds"], found["n_rows"]) == (2, 3)

    def test_what_was_not_measured_is_left_out(self, rows):
        found = of(tables.summarise(rows, ["IM1"]), method="QUCE", reading="raw")
        assert found["mean"] == pytest.approx(3.5)
        assert (found["n_seeds"], found["n_rows"]) == (2, 2)
        nothing = of(tables.summarise(rows, ["IM1"]), method="AVCG-R", epsilon=0.8)
        assert np.isnan([nothing[name] for name in ("mean", "spread_seeds", "spread_instances")]).all()
        assert (nothing["n_seeds"], nothing["n_rows"]) == (0, 0)

    def test_one_seed_has_no_spread_over_seeds(self, rows):
        found = of(tables.summarise(rows, ["Val"]), method="AVCG-R", epsilon=0.8)
        assert np.isnan(found["spread_seeds"])
        assert found["spread_instances"] == 0

    def test_each_line_has_its_own_place(self, rows):
        summary = tables.summarise(rows, ["Val", "IM1"])
        assert not summary.duplicated(["dataset", "method", "epsilon", "reading", "metric"]).any()
        assert len(summary) == 2 * 5
        assert of(summary, method="QUCE", reading="decoded", metric="Val")["mean"] == 0.125
        assert list(summary["metric"].unique()) == ["Val", "IM1"]

    def test_the_order_of_rows_does_not_matter(self, rows):
        turned = rows.iloc[::-1].reset_index(drop=True)
        for function in (lambda r: tables.summarise(r, ["Val", "RVR"]), lambda r: tables.compare(r, PAPER)):
            pd.testing.assert_frame_equal(function(rows), function(turned))

    def test_yes_and_no_count_as_one_and_nothing(self, rows):
        rows["valid"] = [True, False, True, np.nan, True, True, True]
        assert of(tables.summarise(rows, ["valid"]), method="QUCE", reading="raw")["mean"] == 0.75

    def test_failures_are_listed_and_excluded(self, rows):
        rows.loc[rows["error"].notna(), "Val"] = 1000.0
        assert np.isnan(of(tables.summarise(rows, ["Val"]), method="Schut et al.")["mean"])
        (failed,) = tables.failures(rows).to_dict("records")
        assert (failed["method"], failed["seed"]) == ("Schut et al.", 0)
        assert failed["error"] == "RuntimeError: [bold] no gradient"

    def test_a_metric_nobody_measured(self, rows):
        assert tables.summarise(rows, ["CMV"])["mean"].isna().all()  # one of the paper's
        with pytest.raises(DataError, match="Did you mean 'IM1'"):
            tables.summarise(rows, ["IM2"])
        with pytest.raises(DataError, match="lacks the columns 'seed'"):
            tables.summarise(rows.drop(columns="seed"), ["Val"])


class TestEpsilon:
    def test_rvr_is_looked_up(self, rows):
        for epsilon, mean in ((0.0, 0.45), (0.8, 0.85)):
            found = tables.summarise(tables.at_epsilon(rows, epsilon), ["RVR"])
            assert of(found, method="QUCE", reading="raw")["mean"] == pytest.approx(mean)

    def test_a_method_with_epsilon_has_its_own_lines(self, rows):
        for epsilon, val, rvr in ((0.0, 0.25, 0.3), (0.8, 0.75, 0.7)):
            found = tables.summarise(tables.at_epsilon(rows, epsilon), ["Val", "RVR"])
            assert of(found, method="AVCG-R", metric="Val")["mean"] == val
            assert of(found, method="AVCG-R", metric="RVR")["mean"] == rvr

    def test_without_one_each_line_has_its_own(self, rows):
        found = tables.summarise(rows, ["RVR"])
        assert of(found, method="AVCG-R", epsilon=0.8)["mean"] == 0.7
        assert np.isnan(of(found, method="QUCE", reading="raw")["mean"])

    def test_rows_are_left_as_they_were(self, rows):
        before = rows.copy()
        tables.at_epsilon(rows, 0.8)
        tables.compare(rows, PAPER)
        pd.testing.assert_frame_equal(rows, before)


class TestCompare:
    def test_every_line_of_the_paper_is_known(self, rows):
        records = tables.compare(rows, PAPER)
        assert len(records) == len(PAPER) == 828
        assert set(records["dataset"]) == set(tables.TITLES) - {"sba"}, "which is not in the paper"
        assert list(records["metric"].unique()) == list(PAPER_METRICS)
        assert records["paper"].tolist() == PAPER["mean"].tolist()
        assert list(records) == (
            "table dataset epsilon method metric paper paper_spread ours spread_seeds spread_instances n_seeds".split()
        )

    def test_ours_stands_beside_theirs(self, rows):
        records = tables.compare(rows, PAPER)
        quce = {"dataset": "adult", "method": "QUCE"}
        for epsilon, rvr in ((0.0, 0.45), (0.8, 0.85)):
            assert of(records, **quce, epsilon=epsilon, metric="Val")["ours"] == 0.75
            assert of(records, **quce, epsilon=epsilon, metric="RVR")["ours"] == pytest.approx(rvr)
        # The paper prints its own methods in two tables of each dataset.
        ours = records[(records["dataset"] == "adult") & (records["method"] == "AVCG-R") & (records["metric"] == "Val")]
        assert ours.groupby("epsilon")["ours"].unique().map(list).to_dict() == {0.0: [0.25], 0.8: [0.75]}
        assert of(records, **quce, epsilon=0.0, metric="Val")["paper"] == 0.918
        assert of(records, **quce, epsilon=0.0, metric="Val")["paper_spread"] == 0.274

    def test_cells_we_lack_are_nan(self, rows):
        records = tables.compare(rows, PAPER)
        assert records.loc[records["dataset"] == "mnist", "ours"].isna().all()
        assert records.loc[records["method"] == "Schut et al.", "ours"].isna().all()
        assert records.loc[records["metric"] == "CMV", "ours"].isna().all()
        late = tables.compare(rows[rows["epsilon"] != 0.8], PAPER)
        late = late[(late["dataset"] == "adult") & (late["method"] == "AVCG-R") & (late["metric"] == "Val")]
        assert late.groupby("epsilon")["ours"].count().to_dict() == {0.0: 2, 0.8: 0}

    def test_a_strange_table(self, rows):
        with pytest.raises(DataError, match="unknown dataset"):
            tables.compare(rows, PAPER.assign(dataset="Adults"))


class TestPrinting:
    def test_a_table(self, rows):
        text = printed(tables.print_table, rows, ["Val", "RVR"], epsilon=0.8)
        assert "0.750 ±0.354 ±0.471" in text
        assert "0.750 ±– ±0.000" in text  # noqa: RUF001
        assert text.index("QUCE") < text.index("Schut et al.") < text.index("AVCG-R")
        assert "over seeds" in text
        assert "Failed: adult, seed 0, Schut et al.: RuntimeError: [bold] no gradient" in text
        assert "AVCG-R ε=0.8" in printed(tables.print_table, rows, ["Val"])
        with pytest.raises(DataError, match="no results of the reading 'cooked'"):
            tables.print_table(Console(file=io.StringIO()), rows, ["Val"], reading="cooked")

    def test_a_comparison(self, rows):
        text = printed(tables.print_comparison, tables.compare(rows, PAPER))
        assert "0.750 (0.918)" in text
        assert " or " in text
        assert text.count("Adult Income") == 2

    def test_pipes(self, rows):
        records = tables.compare(rows, PAPER)
        head, rule, *body = tables.comparison_markdown(records, "adult").splitlines()
        assert head.startswith("| ε | method | Val ↑ | IM1 ↓ |")
        assert len(body) == 2 * 7
        assert {text.count("|") for text in (head, rule, *body)} == {12}
        assert any("| 0.750 ±0.354 ±0.471 / 0.918 ±0.274 |" in text for text in body)
        with pytest.raises(DataError, match="Did you mean 'adult'"):
            tables.comparison_markdown(records, "adults")
        assert tables.to_markdown(pd.DataFrame({"a": ["x|y", None], "b": [1, 2]})).splitlines()[2] == "| x\\|y | 1 |"

    def test_small_is_not_nothing(self, rows):
        text = printed(tables.print_table, rows.assign(Time=2e-5), ["Time"])
        assert "2e-05" in text


@pytest.fixture
def sweep():
    rng = np.random.default_rng(0)
    lines = []
    for dataset in ("adult", "mnist"):
        for method, levels in (("QUCE", [np.nan]), ("CF-VAE", [np.nan]), ("AVCG-R", LEVELS)):
            for seed, level, row in ((s, e, r) for s in range(2) for e in levels for r in range(4)):
                values = dict(zip(("Val", "CMV", "L2", *(f"RVR@{e:g}" for e in LEVELS)), rng.random(6), strict=True))
                time = 1e-4 if dataset == "adult" else 1.0
                lines.append(line(method, seed, row, dataset, level, Time=time, **values))
    return pd.DataFrame(lines)


def is_picture(path):
    return path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000


class TestFigures:
    def test_sweep(self, sweep, tmp_path):
        path = tmp_path / "sweep.png"
        assert figures.plot_sweep(sweep, ["Val", "CMV", "RVR", "Time"], path) == path
        assert is_picture(path)
        with pytest.raises(DataError, match="at any epsilon"):
            figures.plot_sweep(sweep, ["Val"], path, method="QUCE")

    def test_tradeoff(self, sweep, tmp_path):
        path = tmp_path / "tradeoff.png"
        for epsilon in (None, 0.8):
            assert figures.plot_tradeoff(sweep, path, epsilon) == path
            assert is_picture(path)
        with pytest.raises(DataError, match="both L2 and CMV"):
            figures.plot_tradeoff(sweep.assign(CMV=np.nan), path)

    @pytest.mark.parametrize("shape", [(3, 8, 8), (1, 8, 8, 3)])
    def test_image_grid(self, shape, tmp_path):
        images = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
        path = tmp_path / "grid.png"
        titles = ["4 → 9"] * len(images)
        assert figures.plot_image_grid(images, images[:, ::-1], titles, path, "Numbers") == path
        assert is_picture(path)
        figures.plot_image_grid(images, images, titles, path, "Nothing differs")
        with pytest.raises(DataError, match="unsigned bytes"):
            figures.plot_image_grid(images / 255, images, titles, path, "")
        with pytest.raises(DataError, match="answers of the same shape, and one title each"):
            figures.plot_image_grid(images, images, [], path, "")

    def test_a_path_that_cannot_be_drawn_at(self, sweep, tmp_path):
        with pytest.raises(SettingError, match="no folder"):
            figures.plot_tradeoff(sweep, tmp_path / "nowhere" / "a.png")

    def test_without_matplotlib(self, sweep, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        with pytest.raises(MissingExtraError, match=r"avcg\[plots\]"):
            figures.plot_tradeoff(sweep, tmp_path / "a.png")


class TestYardsticks:
    ROWS = pd.DataFrame(
        [
            ("toy", 0, "AVCG", 0, 1.0, 1.0, 1.0, 2.0, 1.0, 3.0),
            ("toy", 0, "AVCG", 1, 1.0, 1.0, 0.8, 4.0, 3.0, 5.0),
            ("toy", 0, "robust neighbour", 0, 1.0, 1.0, 1.0, 6.0, 9.0, 2.0),
            ("toy", 0, "robust neighbour", 1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
            ("toy", 0, "search to 0.7", 0, 1.0, 1.0, 0.8, 1.0, 1.0, 1.0),
            ("toy", 0, "search to 0.7", 1, 1.0, 1.0, 0.9, 1.0, 1.0, 1.0),
            ("toy", 0, "search to 0.9", 0, 1.0, 1.0, 0.9, 4.0, 1.0, 1.0),
            ("toy", 0, "search to 0.9", 1, 1.0, 1.0, 0.9, 2.0, 1.0, 1.0),
        ],
        columns=["dataset", "seed", "method", "row", "coverage", "valid", "CMV", "L1", "columns", "yNN"],
    )

    def test_ratios_by_hand(self):
        (found,) = tables.yardsticks(self.ROWS, "AVCG").to_dict("records")
        assert found["survival"] == pytest.approx(0.9)
        assert found["L1 / robust neighbour's"] == pytest.approx(3.0 / 6.0)  # of those it can serve
        assert found["yNN / robust neighbour's"] == pytest.approx(4.0 / 2.0)
        assert found["L1 / search's at no lower survival"] == pytest.approx(3.0 / 3.0)  # not the one to 0.7

    def test_where_no_search_survives_as_often_there_is_no_ratio(self):
        weaker = self.ROWS[self.ROWS["method"] != "search to 0.9"]
        assert tables.yardsticks(weaker, "AVCG")["L1 / search's at no lower survival"].isna().all()

    def test_several_answers(self):
        rows = pd.DataFrame(
            {
                "dataset": "toy", "seed": 0, "method": "five", "row": [0, 0, 1, 1, 2, 2],
                "valid": [1.0, 1.0, 1.0, 0.0, 1.0, 1.0], "apart": [0.5, 0.5, 2.0, 2.0, 0.0, 0.0],
            }
        )  # fmt: skip
        (found,) = tables.several(rows, "five").to_dict("records")
        assert found["all valid"] == pytest.approx(2 / 3)
        assert found["all different"] == pytest.approx(2 / 3)
        assert found["apart"] == pytest.approx(5 / 6)
