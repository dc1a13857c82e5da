"""Protocols, cells and their store."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from avcg import datasets
from avcg.bench import problem as problems
from avcg.bench.page import filled
from avcg.bench.protocol import read_protocol
from avcg.bench.run import cells_of, digest, run
from avcg.bench.store import KEYS, Store, file_name
from avcg.errors import DataError, SettingError

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TIMES = ["Time", "Time100", "TimeFrame"]

TINY = """
title = "Tiny"
datasets = ["breast_cancer"]
seeds = [0, 1]
rows = 8
epsilons = [0.0, 0.8]
retrains = 4
{more}
[network]
hidden = [8]
epochs = 5
[judges]
surrogates = 2
masks = 10
candidates = 20
execution_errors = 3
autoencoder_epochs = 3
[[methods]]
name = "class mean"
kind = "avcg.baselines.nearest:ClassMean"
[[methods]]
name = "AVCG-R"
kind = "avcg.explainers.avcg:AVCG"
hypotheses = "avcg.bench.hypotheses:rashomon"
n_test = 0
recipe = {{ from = "avcg.method.recipe:Recipe.paper", steps = 5 }}
[[methods]]
name = "Schut et al."
kind = "avcg.baselines.gradient:Schut"
descent = {{ steps = 5 }}
"""


def protocol(folder, more="", text=TINY):
    path = folder / "tiny.toml"
    path.write_text(text.format(more=more))
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    run(protocol(folder), folder / "out")
    return Store(folder / "out")


@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("*.toml")), ids=lambda path: path.stem)
def test_stored_cells_belong_to_their_protocols(path):
    protocol = read_protocol(path)
    known = {file_name(key): digest(protocol, key) for key in cells_of(protocol)}
    stored = Store(BENCHMARKS / "results" / protocol.name).about()
    assert {name: cell["digest"] for name, cell in stored.items()} == {name: known[name] for name in stored}


class TestRuns:
    def test_every_cell_is_there_with_every_row(self, whole):
        rows = whole.rows()
        assert rows["error"].isna().all()
        counts = rows.groupby([*KEYS, "reading"], dropna=False).size()
        assert (counts == 8).all()
        assert len(counts) == 2 * (2 + 2) * 2  # seeds, methods with two epsilons for one, readings
        assert set(rows.loc[rows["method"] == "AVCG-R", "epsilon"]) == {0.0, 0.8}
        raw = rows[rows["reading"] == "raw"]
        for name in ("Val", "IM1", "Imp", "Div", "CMV", "NE", "R_IC", "RVR@0", "RVR@0.8", "Time100", "L2", "yNN"):
            assert raw[name].notna().any(), name
        assert (raw["K@0"] <= raw["K@0.8"]).all()

    def test_a_manifest_says_how(self, whole):
        manifest = whole.manifest()
        assert manifest["protocol"]["title"] == "Tiny"
        assert set(manifest["versions"]) >= {"python", "torch"}
        assert len(manifest["cells"]) == 8
        assert all(cell["seconds"] > 0 and cell["workers"] == 1 for cell in manifest["cells"].values())
        assert manifest["cells"]["breast_cancer-0-AVCG_R-0.8"]["kept"] >= 1

    def test_a_run_killed_midway_goes_on_to_the_same_rows(self, whole, tmp_path):
        path = protocol(tmp_path)
        script = f"""
import os
from avcg.bench import run as module
from avcg.bench.store import Store
write, done = Store.write, []
def dying(self, key, rows, about):
    write(self, key, rows, about)
    done.append(1)
    if len(done) == 3:
        os._exit(9)
Store.write = dying
module.run({str(path)!r}, {str(tmp_path / "out")!r})
"""
        killed = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True)
        assert killed.returncode == 9
        store = Store(tmp_path / "out")
        assert len(store.finished()) == 3
        first = store.rows()
        run(path, tmp_path / "out")
        again = store.rows()
        order = [*KEYS, "reading", "row", "answer"]
        expected, found = (
            rows.drop(columns=TIMES).sort_values(order).reset_index(drop=True) for rows in (whole.rows(), again)
        )
        pd.testing.assert_frame_equal(found, expected[found.columns], rtol=1e-4, atol=1e-6)
        both = first.merge(again, on=order, suffixes=("", "_again"))
        assert len(both) == len(first)
        assert np.allclose(both["Time100"], both["Time100_again"], equal_nan=True)  # kept, not run again

    def test_two_workers_find_the_same(self, whole, tmp_path):
        run(protocol(tmp_path), tmp_path / "out", workers=2, only_methods=["class mean"])
        found = Store(tmp_path / "out").rows().drop(columns=TIMES)
        expected = whole.rows().query("method == 'class mean'")[found.columns]
        order = [*KEYS, "reading", "row"]
        pd.testing.assert_frame_equal(
            found.sort_values(order).reset_index(drop=True), expected.sort_values(order).reset_index(drop=True),
            rtol=1e-4, atol=1e-6,
        )  # fmt: skip

    def test_a_failure_is_a_row_and_can_be_tried_again(self, tmp_path, monkeypatch):
        path = protocol(tmp_path)
        target = problems.Problem.hypotheses
        monkeypatch.setattr(problems.Problem, "hypotheses", lambda *_: 1 / 0)
        run(path, tmp_path / "out", only_seeds=[0], only_methods=["class mean"])
        store = Store(tmp_path / "out")
        assert "ZeroDivisionError" in store.rows()["error"].iloc[0]
        monkeypatch.setattr(problems.Problem, "hypotheses", target)
        run(path, tmp_path / "out", only_seeds=[0], only_methods=["class mean"])
        assert store.rows()["error"].notna().all()
        run(path, tmp_path / "out", only_seeds=[0], only_methods=["class mean"], retry=True)
        assert store.rows()["error"].isna().all()
        run(path, tmp_path / "new", only_seeds=[0], only_methods=["class mean"], retry=True)  # nothing to try again
        assert Store(tmp_path / "new").rows()["error"].isna().all()

    def test_a_dataset_that_cannot_be_set_up_fails_by_itself(self, tmp_path, monkeypatch):
        def broken(*_, **__):
            raise OSError("no such file")

        monkeypatch.setattr(datasets, "load", broken)
        run(protocol(tmp_path), tmp_path / "out")
        rows = Store(tmp_path / "out").rows()
        assert len(rows) == 8
        assert rows["error"].str.contains("no such file").all()

    def test_cells_of_another_version_of_the_protocol_are_not_taken_for_its_own(self, tmp_path):
        path, choice = protocol(tmp_path), {"only_seeds": [0], "only_methods": ["class mean"]}
        run(path, tmp_path / "out", **choice)
        protocol(tmp_path, text=TINY.replace("rows = 8", "rows = 6"))
        with pytest.raises(SettingError, match=r"1 cells in .* such as 'class mean' on breast_cancer, seed 0"):
            run(path, tmp_path / "out", **choice)
        run(path, tmp_path / "out", **choice, renew=True)
        assert set(Store(tmp_path / "out").rows()["row"]) == set(range(6))

    def test_what_a_protocol_does_not_have_cannot_be_chosen(self, tmp_path):
        with pytest.raises(SettingError, match="no method 'Shut'"):
            run(protocol(tmp_path), tmp_path / "out", only_methods=["Shut"])

    def test_pictures(self, tmp_path, monkeypatch):
        from sklearn.datasets import load_digits

        digits = load_digits()
        small = datasets.Dataset(
            "mnist", (digits.images * 15).astype(np.uint8), digits.target, tuple(range(10)), None, "", "", ""
        )
        monkeypatch.setattr(datasets, "load", lambda *_, **__: small)
        text = TINY.replace('["breast_cancer"]', '["mnist"]')
        path = protocol(tmp_path, 'reading = "images"', text.replace("steps = 5 }}", "steps = 2 }}"))
        run(path, tmp_path / "out", only_seeds=[0])
        store = Store(tmp_path / "out")
        assert store.rows()["error"].isna().all(), store.rows()["error"].dropna().tolist()
        name, heading, before, after, titles = next(store.pictures())
        assert name == "mnist-0-AVCG_R-0.8"
        assert heading == "AVCG-R, ε = 0.8"
        assert before.shape == after.shape == (8, 8, 8)
        assert after.dtype == np.uint8
        assert all("→" in title for title in titles)


class TestCommands:
    def call(self, *arguments):
        return subprocess.run(
            [Path(sys.executable).parent / "avcg", "bench", *arguments], capture_output=True, text=True, check=False
        )

    def test_table_compare_and_plot(self, whole, tmp_path):
        path = protocol(tmp_path, f'reference = "{BENCHMARKS / "paper.csv"}"')
        results = ["--results", str(whole.folder)]
        table = self.call("table", str(path), *results)
        assert table.returncode == 0, table.stderr
        assert "Breast Cancer" in table.stdout
        compared = self.call("compare", str(path), *results, "--json")
        records = json.loads(compared.stdout)
        assert len(records) == 828
        wanted = {
            "table",
            "dataset",
            "epsilon",
            "method",
            "metric",
            "paper",
            "ours",
            "spread_seeds",
            "spread_instances",
        }
        assert wanted <= set(records[0])
        ours = [r for r in records if r["dataset"] == "breast_cancer" and r["method"] == "Schut et al."]
        assert all(record["ours"] is not None for record in ours)
        plotted = self.call("plot", str(path), *results, "--out", str(tmp_path))
        assert plotted.returncode == 0, plotted.stderr
        assert (tmp_path / "tradeoff.png").stat().st_size > 5000
        nothing = self.call("table", str(path), "--results", str(tmp_path / "nowhere"))
        assert nothing.returncode == 2
        assert "Run the protocol first" in nothing.stderr

    def test_the_results_page_is_what_the_results_say(self):
        page = BENCHMARKS.parent / "docs" / "results.md"
        assert filled(page.read_text(), page.parent) == page.read_text(), "run: avcg bench page docs/results.md"

    def test_a_page_is_filled(self, whole, tmp_path):
        path = protocol(tmp_path, f'reference = "{BENCHMARKS / "paper.csv"}"')
        (tmp_path / "results").mkdir()
        (tmp_path / "results" / "tiny").symlink_to(whole.folder)
        text = "A\n<!-- results: table tiny.toml breast_cancer Val,L2 -->\nold\n<!-- end -->\nB\n"
        once = filled(text, path.parent)
        assert "old" not in once
        assert "| class mean |" in once
        assert filled(once, path.parent) == once
        with pytest.raises(DataError, match="Did you mean 'table'"):
            filled(text.replace("table", "tabel"), path.parent)
