"""Peers beside us: what they are handed, how their answers are judged, and that none fails in silence."""

import importlib
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from avcg import Classifier, Schema, TabularSpace, toys
from avcg.bench.store import Store
from avcg.bench.tables import failures
from avcg.errors import DataError
from avcg.hypotheses.predictors import Stacked
from avcg.method.deployed import DeployedModel
from avcg.metrics.context import Context
from avcg.models.networks import cnn

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "benchmarks" / "peers"


@pytest.fixture(scope="module")
def peers():
    """The modules beside the benchmark, which stand alone so that peers can import one of them."""
    names = ("exchange", "handing", "judging", "methods", "tables", "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS)
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
        for name in names:
            del sys.modules[name]


@pytest.fixture(scope="module")
def loans():
    toy = toys.loans(n=300)
    schema = toy.schema.freeze("owns").allow("housing", ["own", "rent"])
    return SimpleNamespace(X=toy.X, y=toy.y, model=Classifier((8, 8), epochs=3, schema=schema).fit(toy.X, toy.y))


@pytest.fixture(scope="module")
def task(peers, loans):
    asked = loans.X.iloc[[3, 7, 20, 41]]
    return peers.handing.task_of(loans.model, loans.X, loans.y, asked, np.array([1, 0, 1, 1]))


class TestExchange:
    def test_a_task_is_read_as_it_was_written(self, peers, loans, task, tmp_path):
        peers.exchange.write_task(tmp_path, task)
        found = peers.exchange.read_task(tmp_path)
        assert found.columns == task.columns
        assert found.classes == ("0", "1")
        assert found.free == ["income", "months", "housing", "rating"]
        for mine, theirs in ((task.train, found.train), (task.rows, found.rows)):
            assert mine.astype(object).reset_index(drop=True).equals(theirs.astype(object))
        assert np.array_equal(found.labels, loans.y)
        assert np.array_equal(found.target, [1, 0, 1, 1])
        rows = loans.X.iloc[[3, 7, 20, 41]]
        assert np.array_equal(found.encode(found.rows), loans.model.space_.encode(rows).numpy())
        said = found.probabilities(found.encode(found.rows))
        assert np.abs(said - loans.model.predict_proba(rows)).max() < 1e-6

    def test_values_go_there_and_back(self, task):
        values = task.values(task.rows)
        assert np.array_equal(task.values(task.frame_of(values)), values)
        assert np.array_equal(task.encode_values(values), task.encode(task.rows))
        with pytest.raises(ValueError, match="'housing' has no category 'tent'"):
            task.values(task.rows.assign(housing="tent"))

    def test_limits_are_handed_on(self, task):
        by_name = {column.name: column for column in task.columns}
        assert by_name["months"].change == "up"
        assert by_name["months"].whole
        assert not by_name["income"].whole
        assert by_name["owns"].change == "none"
        assert set(by_name["housing"].allowed) == {"own", "rent"}
        assert set(by_name["housing"].allowed) < set(by_name["housing"].categories)
        assert (by_name["months"].low, by_name["months"].high) == (
            task.train["months"].min(),
            task.train["months"].max(),
        )

    def test_answers_keep_their_rows_and_what_cannot_be_read(self, peers, task, tmp_path):
        answers = task.rows.reset_index(drop=True).iloc[[2, 0]].assign(housing=["tent", "own"])
        peers.exchange.write_answers(tmp_path, answers, {"error": None})
        found, report = peers.exchange.read_answers(tmp_path, task.columns)
        assert report == {"error": None}
        assert found.index.tolist() == [2, 0]
        assert found["housing"].tolist() == ["tent", "own"]
        assert found["months"].tolist() == answers["months"].tolist()

    def test_only_what_peers_can_read_is_handed_out(self, peers, loans):
        gaps = loans.X.assign(income=loans.X["income"].where(loans.X["months"] > 10))
        model = Classifier((4,), epochs=1, schema=Schema.infer(gaps).allow_missing("income")).fit(gaps, loans.y)
        with pytest.raises(DataError, match="'income' may have gaps"):
            peers.handing.task_of(model, gaps, loans.y, gaps.iloc[:2], np.zeros(2, np.int64))
        with pytest.raises(ValueError, match="This network has a Conv2d"):
            peers.handing._layers(cnn((1, 8, 8), 2, (4,)))

    def test_the_clock_of_the_processor_does_not_count_waiting(self, peers):
        with peers.exchange.Clock() as clock:
            time.sleep(0.3)
        assert clock.wall >= 0.3
        assert clock.cpu < 0.15


# Hours decide: from 40 on the model in force says yes, and of four judges those that ask for 30, 40, 50 and 60.
ROWS = pd.DataFrame(
    {"hours": [10, 20, 30, 35, 20, 20, 25, 30], "job": ["a", "b", "a", "b", "a", "b", "a", "b"], "sex": ["f", "m"] * 4}
)
TRAIN = pd.DataFrame({"hours": [0, 80, 40, 40], "job": ["a", "b", "a", "b"], "sex": ["f", "m", "m", "f"]})


@pytest.fixture(scope="module")
def context():
    space = TabularSpace.fit(Schema.infer(TRAIN).only_up("hours").freeze("sex"), TRAIN)
    center, scale = float(space.encoding.center[0]), float(space.encoding.scale[0])
    network = nn.Linear(space.encoding.width, 2)
    weight = torch.zeros(2, space.encoding.width)
    weight[1, space.encoding.number_at[0]] = scale
    network.weight.data = weight

    def asking(*lines):
        biases = torch.tensor([[0.0, center - line + 0.5] for line in lines])
        return Stacked(network, {"bias": biases})

    y = torch.tensor([0, 1, 1, 1])
    return Context(space, DeployedModel(asking(40)), space.encode(TRAIN), y, 2, surrogates=asking(30, 40, 50, 60))


class TestJudge:
    def answers(self):
        """To all rows but the last: each a case."""
        given = ROWS.iloc[:7].copy().astype({"hours": float})
        given["hours"] = [70.0, 45.0, 30.0, 55.5, 20.0, 10.0, 75.0]
        given.loc[0, "job"] = "b"  # changed: 1 more
        given.loc[4, "job"] = "c"  # no such category
        given.loc[5, "hours"] = 10.0  # less hours than before, and not enough
        given.loc[6, "sex"] = "m"  # frozen
        return given

    def test_every_case(self, peers, context):
        found = peers.judging.judge(context, ROWS, np.ones(8, np.int64), self.answers()).set_index("row")
        unit = float(context.space.encoding.scale[0])
        expected = pd.DataFrame(
            {
                # row 2 came back as it was, row 7 has no answer
                "answered": [1, 1, 0, 1, 1, 1, 1, 0],
                "valid": [1, 1, np.nan, 1, 0, 0, 1, np.nan],
                "CMV": [1, 0.5, np.nan, 0.75, 0, 0, 1, np.nan],
                "L1": [60 / unit + 1, 25 / unit, np.nan, 20.5 / unit, np.nan, 10 / unit, 50 / unit + 1, np.nan],
                "columns": [2, 1, np.nan, 1, np.nan, 1, 2, np.nan],
                "violations": [0, 0, np.nan, 1, 1, 1, 1, np.nan],
            }
        ).rename_axis("row")
        pd.testing.assert_frame_equal(found, expected, check_dtype=False, rtol=1e-5)

    def test_a_gap_is_not_read(self, peers, context):
        gap = ROWS.iloc[[1]].assign(hours=np.nan)
        found = peers.judging.judge(context, ROWS, np.ones(8, np.int64), gap)
        assert found.loc[1, ["answered", "valid", "CMV", "violations"]].tolist() == [1, 0, 0, 1]

    def test_no_answer_at_all(self, peers, context):
        found = peers.judging.judge(context, ROWS, np.ones(8, np.int64), ROWS.iloc[:0])
        assert found["answered"].sum() == 0
        assert found[list(peers.judging.MEASURES[1:])].isna().all(axis=None)


PEER = f"""
import sys, time
sys.path.insert(0, {str(SCRIPTS)!r})
import exchange

def prepare(task, kind):
    def explain(rows, target):
        if kind == "raise":
            raise RuntimeError("no gradient here")
        if kind == "exit":
            sys.exit("out of patience")
        if kind == "sleep":
            time.sleep(60)
        if kind == "strange":
            return rows.set_axis(rows.index + 1)
        return rows[target == 1].assign(months=99)
    return explain

exchange.run_peer(prepare, ["numpy", "no-such-package"])
"""


class TestRunning:
    @pytest.fixture
    def ask(self, peers, task, tmp_path):
        script = tmp_path / "peer.py"
        script.write_text(PEER)
        command = [sys.executable, str(script)]
        return lambda kind, seconds=60.0: peers.methods.run_script(command, kind, task, 1, seconds)

    def test_answers_come_back_to_the_rows_asked(self, ask):
        found = ask("plain")
        assert found.error is None
        assert found.answers.index.tolist() == [3, 20, 41]
        assert found.answers["months"].tolist() == [99, 99, 99]
        assert found.asked == 4
        assert found.versions["numpy"] == np.__version__
        assert found.versions["no-such-package"] is None
        assert min(found.cpu, found.wall, found.fit_cpu) >= 0

    @pytest.mark.parametrize(
        ("kind", "reason"),
        [
            ("raise", "RuntimeError: no gradient here"),
            ("exit", "exit status 1: out of patience"),
            ("strange", "its answers are to rows that nobody asked about, or twice to one"),
        ],
    )
    def test_a_peer_that_fails_says_why(self, ask, kind, reason):
        found = ask(kind)
        assert found.error == reason
        assert not len(found.answers)

    def test_a_peer_that_takes_too_long_is_stopped(self, ask):
        assert ask("sleep", 1.5).error == "stopped after 1.5 s"

    def test_a_peer_that_is_not_there(self, peers, task, tmp_path, monkeypatch):
        monkeypatch.setattr(peers.methods, "ENVIRONMENTS", tmp_path)
        peer = peers.methods.Peer("Some", "some", "kind")
        assert peers.methods.ask_peer(peer, task, 1, 1.0).error == ("not installed: run benchmarks/peers/setup.sh some")
        (tmp_path / "some.failed").write_text("ERROR: No matching distribution found for some==1\n")
        assert peers.methods.ask_peer(peer, task, 1, 1.0).error == (
            "not installed: ERROR: No matching distribution found for some==1"
        )

    def test_a_method_of_ours_that_fails_is_told_too(self, peers, loans):
        def ask(explainer, X, target):
            raise RuntimeError(f"{explainer} does not answer\nat all")

        own = peers.methods.Own("Own", lambda *_: "Nobody", ask)
        before = torch.get_num_threads()
        found = peers.methods.ask_own(
            own, None, peers.methods.Stored(Path()), loans.X[:3], np.zeros(3, int), before + 1
        )
        assert found.error == "RuntimeError: Nobody does not answer"
        assert torch.get_num_threads() == before

    def test_rows_of_a_large_batch_are_spread(self, peers):
        assert peers.run._spread(5, 10).tolist() == [0, 1, 2, 3, 4]
        assert peers.run._spread(101, 3).tolist() == [0, 50, 100]

    def test_every_peer_has_a_script_and_a_name_of_its_own(self, peers):
        names = [method.name for method in peers.methods.METHODS]
        assert len(set(names)) == len(names)
        assert set(peers.methods.OURS) <= set(names)
        setup = (SCRIPTS / "setup.sh").read_text()
        for method in peers.methods.METHODS:
            if isinstance(method, peers.methods.Peer):
                assert (SCRIPTS / f"with_{method.package}.py").exists()
                assert f"{method.package})" in setup


def cell(method, cpu, asked=4, threads=1, error=None, **more):
    found = {"dataset": "toy", "seed": 0, "batch": 4, "method": method, "threads": threads, "asked": asked}
    return {**found, "cpu": cpu, "wall": cpu, "fit_cpu": 1.0, "error": error, **more}


def judged(rows, L1, survival=1.0, answered=1.0):
    measures = {"answered": answered, "valid": 1.0, "CMV": survival, "L1": L1, "columns": 1.0, "violations": 0.0}
    return pd.DataFrame({"row": rows, **{name: np.broadcast_to(value, len(rows)) for name, value in measures.items()}})


class TestTables:
    @pytest.fixture
    def store(self, peers, tmp_path):
        """Store what came of a method, and read all results again."""

        def store(run, rows):
            peers.tables.store_run(tmp_path, run, rows, {"machine": "toy"})
            return peers.tables.read_results(tmp_path)

        return store

    @pytest.fixture
    def results(self, store):
        store(cell("ours", 0.004), judged(range(4), [1.0, 2.0, 3.0, 6.0]))
        store(cell("other way", 0.008), judged(range(4), [1.0, 2.0, 3.0, 6.0]))
        store(cell("slow", 0.4, asked=2), judged([1, 3], [2.0, 2.0], answered=[1.0, 1.0]))
        store(cell("quick", 0.04), judged(range(4), 3.0, survival=0.96))
        store(cell("frail", 0.04), judged(range(4), 0.1, survival=0.94))
        return store(cell("mute", None, error="RuntimeError: no"), None)

    ORDER = ("ours", "other way", "slow", "quick", "frail", "mute")

    def text(self, peers, results):
        per_row = ("slow", "quick", "frail", "mute")
        return peers.tables.markdown(results.of("toy", 4), self.ORDER, per_row, ("ours", "other way"))

    def test_distances_are_compared_on_the_rows_of_both(self, peers, results):
        found = peers.tables.summary(results.of("toy", 4), self.ORDER, "ours").set_index("method")
        assert found.loc["slow", "farther"] == (2.0 + 6.0) / (2.0 + 2.0)
        assert found.loc["slow", "slower"] == pytest.approx(200.0)
        assert found.loc["slow", "rows"] == 2
        assert found.loc["quick", "slower"] == pytest.approx(10.0)
        assert found.loc["ours", ["slower", "farther"]].tolist() == [1.0, 1.0]
        assert "mute" not in found.index

    def test_the_faster_of_our_ways_is_compared(self, peers, results):
        assert peers.tables.fastest(results, ("ours", "other way")) == "ours"
        assert peers.tables.fastest(results, ("nobody",)) is None

    def test_what_is_asked_is_said_to_be_met_or_missed(self, peers, results):
        text = self.text(peers, results)
        assert "- slow: 200 times less (met), 2.00 times as far (missed)" in text
        assert "- quick: 10 times less (missed), 1.00 times as far (met)" in text
        assert "- frail" not in text  # it does not survive well enough to be measured by
        assert "Ours takes 1 ms (missed)" in text

    def test_a_subsample_and_a_failure_are_said(self, peers, results):
        text = self.text(peers, results)
        assert "| slow | 2 of 4 | 1.000 |" in text
        assert "| quick | 4 | 1.000 |" in text
        assert "- mute: RuntimeError: no" in text
        assert "| mute |" not in text

    def test_results_are_in_the_store_of_the_benchmark(self, results, tmp_path):
        rows = Store(tmp_path / "4").rows()
        assert set(rows["method"]) == {"ours", "other way", "slow", "quick", "frail", "mute"}
        assert failures(rows)["error"].tolist() == ["RuntimeError: no"]
        assert Store(tmp_path / "4").manifest()["machine"] == "toy"
        assert len(results.rows) == len(rows) - 1

    def test_a_method_that_is_measured_again_is_replaced(self, peers, results, store):
        again = store(cell("slow", 0.2, asked=1), judged([1], [4.0]))
        assert len(again.cells) == len(results.cells)
        assert again.rows["method"].value_counts()["slow"] == 1
        more = store(cell("slow", 0.3, asked=2, threads=2), None)
        assert len(more.cells) == len(results.cells) + 1
        key = ["method", "row"]
        pd.testing.assert_frame_equal(
            more.rows.sort_values(key, ignore_index=True), again.rows.sort_values(key, ignore_index=True)
        )
        assert "processor ms a row, 2 threads" in self.text(peers, more)

    def test_nothing_measured(self, peers, results):
        assert peers.tables.markdown(results.of("toy", 5), self.ORDER, (), ("ours",)) == "Nothing has been measured."

    def test_the_page_says_what_the_rows_say(self, peers):
        page = (ROOT / "docs" / "results" / "peers.md").read_text()
        order = [one.name for one in peers.methods.METHODS]
        per_row = [one.name for one in peers.methods.METHODS if one.per_row]
        results = peers.tables.read_results(peers.tables.RESULTS)
        assert len(results.cells)
        assert peers.tables.filled(page, results, order, per_row, peers.methods.OURS) == page
