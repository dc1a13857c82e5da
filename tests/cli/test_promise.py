"""The promise in words: the same on every surface, and said where there is none."""

import json
import re
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
from command_line import FIT, QUICK, people, run

import avcg
from avcg.batch.answerer import Totals
from avcg.explainers.records import UNCHANGED
from avcg.guarantees.certificate import Certificate
from avcg.guarantees.statement import agreement
from avcg.io.artifact import about
from avcg.report.answers_page import render

MADE = ["--hypotheses", "20", "--steps", "60", "--survival", "0.6", "--seed", "1"]
NONE = "a reliability of 0.9 needs 9 models held back for calibration, and there is 1. Give more hypotheses"
BOUND = re.compile(r"at least 0?\.?\d\d? ?%? of all")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An explainer with a promise, one without, and rows."""
    folder = tmp_path_factory.mktemp("promise")
    people().to_csv(folder / "data.csv", index=False)
    people(60, seed=9).drop(columns="approved").to_csv(folder / "rows.csv", index=False)
    for name, options in (("made", MADE), ("none", QUICK)):
        done = run("fit", folder / "data.csv", *FIT, *options, "--out", folder / name)
        assert done.code == 0, done.err
        assert done.err == ""  # a warning that there is no promise would say the same twice
        (folder / f"{name}.txt").write_text(done.out)
    return folder


@pytest.fixture(autouse=True)
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)


def content(name):
    return Path(name).read_text()


def words(text):
    return " ".join(text.split())


@pytest.fixture(scope="module")
def answers(folder):
    assert run("explain", folder / "made", folder / "rows.csv", "--out", folder / "answers.json").code == 0
    return avcg.Counterfactuals.from_json((folder / "answers.json").read_text())


def lines(*options):
    return [json.loads(line) for line in run("explain", *options, "--json").out.splitlines()]


class TestOnePromise:
    def test_it_is_made_and_the_same_everywhere(self, folder, answers):
        (statement,) = [each for each in avcg.load("made").statements() if each.target == "yes"]
        sentence = str(statement)
        assert statement.made
        assert sentence.startswith(
            "At most a 1 in 10 chance that the next retrained model accepts fewer than 60 of 100"
        )
        assert answers.promise == sentence
        assert sentence in str(answers)
        shown = words(run("explain", "made", "rows.csv").out)
        assert sentence in shown
        assert {line["statement"]["sentence"] for line in lines("made", "rows.csv")} == {sentence}
        assert json.loads((folder / "answers.json").read_text())["statements"] == [statement.to_dict()]
        assert sentence in words(render(answers, avcg.load("made")))
        assert sentence in words(run("explain", "made", "rows.csv", "--out", "answers.csv").out)

    def test_fitting_says_it_of_both_targets_at_once(self):
        promise = str(avcg.load("made").calibration_)
        assert promise.count("1 in 10 chance") == 1
        assert promise in words(content("made.txt"))
        assert about("made")["held_out"]["promise"] == promise

    def test_where_there_is_none_every_surface_answers_and_says_so(self):
        assert NONE in words(content("none.txt"))
        assert NONE in words(run("explain", "none", "rows.csv", "--out", "none.json").out)
        told = avcg.Counterfactuals.from_json(content("none.json"))
        assert NONE in told.promise
        assert "No promise for the target 'yes'" in told.promise
        assert NONE in words(render(told, avcg.load("none")))
        assert all(NONE in line["statement"]["sentence"] for line in lines("none", "rows.csv"))
        assert (told.statuses == "ok").any()

    @pytest.mark.parametrize("options", [["-n", "2"], ["--min-prob", "0.7"], ["--max-changes", "1"]], ids=str)
    def test_a_query_that_it_was_not_calibrated_for(self, options):
        shown = words(run("explain", "made", "rows.csv", *options).out)
        assert "it was calibrated for single answers to queries without restrictions." in shown
        assert "1 in 10 chance" not in shown

    @pytest.mark.parametrize("effort", ["fast", "standard", "thorough"])
    def test_each_effort_has_its_own(self, effort):
        statement = avcg.load("made").calibration_.statements(effort)["yes"]
        assert str(statement) in words(run("explain", "made", "rows.csv", "--effort", effort).out)

    def test_another_typicality_than_it_was_calibrated_for(self):
        shown = words(run("explain", "made", "rows.csv", "--typicality", "0.1").out)
        assert "it was calibrated for single answers to queries without restrictions." in shown
        usual = words(run("explain", "made", "rows.csv", "--typicality", str(avcg.Recipe().typicality)).out)
        assert "it was calibrated for single answers" not in usual

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            (["--guarantee", "expected"], "a survival of 0.95 needs 47 models held back for calibration"),
            (["--guarantee", "most_models", "--confidence", "0.95"], "a reliability of 0.9 needs 29 models held back"),
            (["--reliability", "0.8"], "a reliability of 0.8 needs 4 models held back for calibration"),
        ],
    )
    def test_other_promises_can_be_asked_for(self, tmp_path, options, says):
        done = run("fit", "data.csv", *FIT, *QUICK, "--steps", 2, *options, "--out", tmp_path / "other", "--json")
        assert done.code == 0, done.err
        figures = json.loads(done.out)
        assert says in figures["promise"]
        assert all(entry["sentence"] in figures["promise"] for entry in figures["statements"])
        promise = avcg.load(tmp_path / "other").promise_
        assert promise.guarantee == (options[1] if options[0] == "--guarantee" else "next_model")


class TestOneAnswer:
    def test_votes_are_the_same_everywhere(self, answers):
        sentences = [
            None if status in UNCHANGED else agreement(int(votes[0]), answers.certificate.n, *map(int, votes[1:]))
            for status, *votes in zip(
                answers.statuses,
                answers.certificate.agreeing,
                answers.certificate.accepting_unchanged,
                answers.certificate.harmed,
                strict=True,
            )
        ]
        assert [line["agreement"] for line in lines("made", "rows.csv")] == sentences
        shown = words(run("explain", "made", "rows.csv").out)
        page = words(render(answers, avcg.load("made")))
        for sentence in set(sentences) - {None}:
            assert sentence in page
        for sentence in sentences[:5]:
            assert sentence in shown
        assert sentences[0] in str(answers)

    def test_no_bound_stands_beside_ok(self, answers):
        for text in (run("explain", "made", "rows.csv").out, str(answers), content("made.txt")):
            assert "54" not in text
            assert not BOUND.search(text)

    def test_bounds_and_counts_are_columns_of_files(self, answers):
        assert run("explain", "made", "rows.csv", "--out", "answers.csv").code == 0
        table, certificate = pd.read_csv("answers.csv"), answers.certificate
        assert (certificate.n, certificate.n_test) == (12, 3)
        for name in ("agreeing", "agreeing_test", "lower_bound"):
            assert table[name].tolist() == getattr(certificate, name).tolist()
        assert set(table["n_test"]) == {3}


class TestManyAnswers:
    def test_a_rate_of_false_discoveries_goes_with_answers_in_memory(self, folder, answers):
        stored = json.loads((folder / "answers.json").read_text())["certificate"]["false_discovery_rate"]
        expected = answers.certificate.false_discovery_rate(answers.survival)
        assert stored == expected.tolist()
        frame = answers.certificate.to_frame(answers.index, survival=answers.survival)
        assert frame["false_discovery_rate"].tolist() == stored
        assert "false_discovery_rate" not in answers.certificate.to_frame()

    def test_totals_give_the_rate_that_all_answers_together_have(self):
        votes = Counter({200: 300, 199: 50, 190: 20, 100: 5})
        agreeing = pd.Series(list(votes.elements())).to_numpy()
        everyone = Certificate(200, agreeing, 200, agreeing, agreeing / 200, 0.95)
        rates = everyone.false_discovery_rate(0.95)
        shown, rate = Totals(votes=votes, n_test=200).discovery(0.95)
        assert rate == pytest.approx(rates.min())
        assert shown == (rates <= rates.min() * (1 + 1e-9)).sum()

    def test_few_test_models_prove_little_and_the_summary_is_silent(self):
        assert Totals(votes=Counter({3: 100}), n_test=3).discovery(0.95) == (0, 1.0)
        assert Totals(votes=Counter({0: 100}), n_test=0).discovery(0.95) == (0, 1.0)
        assert "false discovery" not in run("explain", "made", "rows.csv").out

    def test_totals_survive_being_stored(self):
        totals = Totals(9, 1, Counter({"ok": 8}), Counter({3: 7, 2: 1}), 3)
        assert Totals.from_json(json.loads(json.dumps(totals.to_json()))) == totals
        other = Totals(1, 0, Counter({"ok": 1}), Counter({3: 1}), 3)
        other.add(totals)
        assert other == Totals(10, 1, Counter({"ok": 9}), Counter({3: 8, 2: 1}), 3)
