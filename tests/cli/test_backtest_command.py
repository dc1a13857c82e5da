"""`avcg backtest`, and `avcg fit --calibrate-on`, as a user meets them."""

import json

import numpy as np
import pandas as pd
import pytest
from command_line import run

import avcg
from avcg import toys
from avcg.auditing.past import Backtest
from avcg.cli.backtest_run import _known
from avcg.cli.fit_run import FitConfig, read_table

FAST = ["--steps", "60", "--hypotheses", "20", "--horizon", "1"]
ASKED = ["--target", "outcome", "--positive", "yes", "--time", "month"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A table of moments, and what was found on it."""
    folder = tmp_path_factory.mktemp("backtest")
    toy = toys.drift(n=90, moments=4, shift=0.3)
    table = toy.X.assign(month=[f"2025-0{1 + t}" for t in toy.time], outcome=["yes" if y else "no" for y in toy.y])
    table.to_csv(folder / "table.csv", index=False)
    return folder


@pytest.fixture(autouse=True)
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)


def backtested(*options):
    return run("backtest", "table.csv", *ASKED, *FAST, *options)


class TestRun:
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def stored(cls, folder):
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            cls.ran = backtested("--out", "found.json", "--folder", "origins")
        return cls.ran

    def test_it_says_what_became_of_the_advice(self):
        assert self.ran.code == 0, self.ran.err
        assert "nothing: the next model accepts" in self.ran.out
        assert "avcg: the next model accepts" in self.ran.out
        assert "2 past moments can carry a reliability of 0.67 at most." in self.ran.out
        assert "If each promise had been calibrated by the moments before it" in self.ran.out
        assert "Written to found.json" in self.ran.out

    def test_the_json_is_that_of_python(self, folder):
        found = Backtest.from_json(folder / "found.json")
        assert found.target == "yes"
        assert found.frame["origin"].unique().tolist() == ["2025-02", "2025-03"]
        assert (found.frame["later"] > found.frame["origin"]).all()
        assert set(found.frame["method"]) == {"nothing", "avcg", "nearest unlike", "robust neighbour"}

    def test_what_is_done_is_read_again_and_a_page_is_made_of_it(self, folder):
        ran = backtested("--out", "found.html", "--folder", "origins", "--json")
        assert ran.code == 0, ran.err
        assert json.loads(ran.out) == json.loads((folder / "found.json").read_text())
        page = (folder / "found.html").read_text()
        assert page.count("<svg") == 2
        assert "advised how to be decided as yes" in page

    def test_other_settings_need_another_folder(self):
        for options in (["--steps", "61"], ["--survival", "0.9"], ["--freeze", "a"], ["--model", "xgboost"]):
            ran = backtested("--folder", "origins", *options)
            assert ran.code == 2
            assert "holds a backtest with other settings or rows" in ran.err

    def test_answers_move_only_to_categories_that_were_known(self, folder):
        frame = pd.read_csv(folder / "table.csv")
        kinds = np.where(frame["month"] == "2025-04", "late", np.where(np.arange(len(frame)) % 2, "x", "y"))
        frame.assign(kind=kinds).to_csv(folder / "late.csv", index=False)
        config = FitConfig(str(folder / "late.csv"), "outcome", "yes", hypotheses=4, steps=1)
        table = read_table(config, apart="month")
        early = pd.concat([table.X, table.held_out]).sort_index()[:180]
        model = avcg.Classifier(schema=table.schema, epochs=2).fit(early, np.arange(180) % 2)
        schema = _known(avcg.retrains(model, early, np.arange(180) % 2, n=2), early)
        assert {feature.name: feature for feature in schema.features}["kind"].allowed == ("x", "y")

    def test_a_row_without_a_moment(self, folder):
        frame = pd.read_csv(folder / "table.csv")
        frame.assign(month=frame["month"].where(frame.index != 5)).to_csv(folder / "gap.csv", index=False)
        ran = run("backtest", "gap.csv", *ASKED, *FAST)
        assert ran.code == 2
        assert "Column 'month' is empty in 1 rows. Every row needs a moment" in ran.err

    def test_it_calibrates_a_fit(self, folder):
        fit = ["fit", "table.csv", "--target", "outcome", "--positive", "yes", "--drop", "month", "--out", "recourse"]
        ran = run(*fit, "--steps", "60", "--hypotheses", "20", "--calibrate-on", "found.json")
        assert ran.code == 0, ran.err
        said = {each.target: each for each in avcg.load(folder / "recourse").statements()}
        assert said["yes"].basis == "moments"
        assert said["yes"].n_models == 2
        assert str(said["yes"])[1:] in " ".join(ran.out.split())

    def test_columns_of_moments_are_not_learnt_from(self, folder):
        frame = pd.read_csv(folder / "table.csv")
        assert "month" in frame
        assert "month" not in (folder / "found.json").read_text().replace('"month"', "month").split("lines")[0]


class TestTrees:
    def test_xgboost_with_texts(self, folder):
        frame = pd.read_csv(folder / "table.csv")
        frame.assign(kind=["a", "b", "c"] * 120).to_csv(folder / "kinds.csv", index=False)
        ran = run("backtest", "kinds.csv", *ASKED, *FAST, "--model", "xgboost", "--rows", "60", "--people", "10")
        assert ran.code == 0, ran.err
        assert "avcg: the next model accepts" in ran.out


class TestWrong:
    @pytest.mark.parametrize(
        ("options", "says"),
        [
            (["--model", "forest"], "--model must be one of 'network', 'xgboost'. Got 'forest'"),
            (["--model", "xgboost", "--search"], "--search needs gradients"),
            (["--out", "found.txt"], "found.txt"),
            (["--first", "3"], "A backtest needs at least 5 moments"),
            (["--time", "quarter"], "'quarter'"),
            (["--time", "a"], "has 360 different moments, and at each of them models are trained"),
            (["--positive", "maybe"], "'maybe'"),
        ],
    )
    def test_options(self, options, says):
        ran = backtested(*options)
        assert ran.code == 2
        assert says in ran.err

    @pytest.mark.parametrize(
        ("file", "says"), [("none.json", "no file 'none.json'"), ("table.csv", "not the JSON of a")]
    )
    def test_what_does_not_calibrate(self, file, says):
        fit = ["fit", "table.csv", "--target", "outcome", "--positive", "yes", "--out", "other", "--steps", "1"]
        ran = run(*fit, "--hypotheses", "4", "--calibrate-on", file)
        assert ran.code == 2
        assert says in ran.err
