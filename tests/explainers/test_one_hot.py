"""Answers to rows with dummies, thermometers, identifiers and dates, through every door."""

import json

import numpy as np
import pandas as pd
import polars as pl
import pytest
from command_line import run
from served import request
from sklearn.compose import make_column_transformer
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import avcg
from avcg import AVCG, BlackBox, Classifier, Recipe, Schema, retrains
from avcg.explainers.counterfactuals import Counterfactuals
from avcg.io.scorer import Scorer
from avcg.report.population import number_columns
from avcg.report.rows import listed
from avcg.serve.app import create_app

pytestmark = pytest.mark.filterwarnings("ignore::avcg.errors.PromiseWarning")  # so few models promise nothing

HOME = ["housing_free", "housing_own", "housing_rent"]
RATING = ["rating_poor", "rating_fair", "rating_good"]
DELAY = ["delay_1", "delay_2", "delay_3"]
FEATURES = ["income", *HOME, *RATING, *DELAY]
RECIPE = Recipe(steps=25, layers=(32, 32), batch_size=64)


def people(n=240, seed=0):
    """Credit applicants with two groups of dummies, a thermometer, a text id and a date; and decisions."""
    rng = np.random.default_rng(seed)
    housing, rating, delay = (rng.integers(3, size=n), rng.integers(3, size=n), rng.integers(4, size=n))
    X = pd.DataFrame({"case": [f"c{i:04d}" for i in rng.permutation(n)], "income": rng.normal(50, 15, n).round(1)})
    for i, name in enumerate(HOME):
        X[name] = (housing == i).astype(np.int64)
    for i, name in enumerate(RATING):
        X[name] = rating == i
    for i, name in enumerate(DELAY):
        X[name] = (delay > i).astype(np.int64)
    X["since"] = [f"20{year:02d}-03-01" for year in rng.integers(10, 24, n)]
    score = 0.08 * (X["income"] - 55) + (housing == 1) + 0.8 * (rating - 1) - 0.5 * delay + rng.normal(0, 0.5, n)
    return X, np.where(score > -0.5, "yes", "no")


def check_possible(answers, like):
    """Exactly one dummy of each group is set, thermometers fall, and nothing else is touched."""
    for group in (HOME, RATING):
        assert (answers[group].astype(int).sum(axis=1) == 1).all()
    levels = answers[DELAY].to_numpy()
    assert (levels[:, 1:] <= levels[:, :-1]).all()
    assert answers.dtypes.equals(like.dtypes)
    for name in ("case", "since"):
        if name in like:
            assert (answers[name].to_numpy() == like[name].to_numpy()).all()


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """An explainer of networks in a folder with graphs, and rows that were denied."""
    X, y = people()
    model = Classifier(hidden=(8,), epochs=15, random_state=0).fit(X, y)
    explainer = AVCG(retrains(model, X, y, n=6, random_state=0), recipe=RECIPE, random_state=0).fit(X, y)
    path = tmp_path_factory.mktemp("one-hot") / "art"
    explainer.save(path, graphs=True)
    denied = X[explainer.decide(X) == "no"].head(30)
    return explainer, denied.reset_index(drop=True), path


class TestModels:
    """Models that are trained on the dummies themselves."""

    @pytest.mark.parametrize(
        "model",
        [
            LogisticRegression(max_iter=500),
            make_pipeline(
                make_column_transformer(("passthrough", FEATURES), remainder="drop"),
                GradientBoostingClassifier(n_estimators=10, random_state=0),
            ),
        ],
    )
    def test_no_answer_is_impossible(self, model, tmp_path):
        """AVCG with few steps: 18 to 68 % of the answers were impossible, when every dummy was a feature."""
        X, y = people()
        if not hasattr(model, "steps"):  # it reads every column it gets
            X = X[FEATURES]
        model.fit(X, y)
        explainer = AVCG(retrains(model, X, y, n=4, random_state=0), recipe=RECIPE, random_state=0).fit(X, y)
        assert explainer.space_.schema.names == ("income", "housing", "rating", "delay")
        answers = explainer.generate(X[model.predict(X) == "no"].head(40), "yes")
        check_possible(answers.frame, answers.factuals)
        assert (answers.statuses == "ok").mean() > 0.5
        assert set(answers.changes()["column"]) > {"rating"}
        delivered = np.isin(answers.statuses, ["ok", "not_robust"])
        assert (model.predict(answers.frame)[delivered] == "yes").all()
        models = explainer.save(tmp_path / "art")
        loaded = avcg.load(tmp_path / "art", **({"model": models} if models else {}))
        again = loaded.generate(answers.factuals, "yes")
        pd.testing.assert_frame_equal(again.frame, answers.frame)

    def test_compiled_trees_read_a_group_as_one_column(self):
        X, y = people()
        box = BlackBox(GradientBoostingClassifier(n_estimators=10, random_state=0).fit(X[FEATURES], y), X[FEATURES])
        from avcg.models.judging import Judges

        judges = Judges([box], box.space_.encoding)
        assert judges.n_compiled == 1
        assert np.allclose(judges.probabilities(box.space_.read(X[FEATURES]))[0], box.predict_proba(X[FEATURES]))

    def test_a_linear_model_on_dummies_becomes_a_network(self):
        X, y = people()
        model = LogisticRegression(max_iter=500).fit(X[FEATURES], y)
        network = avcg.from_sklearn(model, X[FEATURES])
        assert np.allclose(network.predict_proba(X[FEATURES]), model.predict_proba(X[FEATURES]), atol=1e-5)


class TestDoors:
    """The same answers from pandas, polars, dictionaries, CSV, Parquet and the service."""

    def test_pandas(self, fitted):
        explainer, rows, _ = fitted
        answers = explainer.generate(rows, "yes")
        check_possible(answers.frame, rows)
        assert set(answers.changes()["column"]) <= {"income", "housing", "rating", "delay"}
        assert explainer.space_.schema.kept == ("case", "since")
        without = explainer.generate(rows.drop(columns=["case", "since"]), "yes")
        pd.testing.assert_frame_equal(without.frame, answers.frame.drop(columns=["case", "since"]))
        again = Counterfactuals.from_json(answers.to_json())
        assert again.changes().equals(answers.changes())
        assert again.groups == answers.groups
        table = listed(answers, explainer, number_columns(answers, explainer))
        assert any(change["name"] == "rating" for row in table["rows"] for change in row["options"][0]["changes"])

    def test_a_column_names_its_group(self, fitted):
        explainer, rows, _ = fitted
        answers = explainer.generate(rows, "yes", vary=["housing_own", "income"], ranges={"housing": ["own"]})
        assert set(answers.changes()["column"]) <= {"housing", "income"}
        assert set(answers.changes().query("column == 'housing'")["after"]) <= {"own"}
        by_name = explainer.generate(rows, "yes", vary=["housing", "income"], ranges={"housing_rent": ["own"]})
        pd.testing.assert_frame_equal(by_name.frame, answers.frame)

    def test_polars(self, fitted):
        explainer, rows, _ = fitted
        expected, answers = explainer.generate(rows, "yes"), explainer.generate(pl.from_pandas(rows), "yes")
        assert isinstance(answers.frame, pl.DataFrame)
        assert answers.frame.to_dict(as_series=False) == expected.frame.to_dict("list")
        assert answers.changes().equals(expected.changes())

    def test_dictionaries(self, fitted):
        explainer, rows, path = fitted
        scorer, expected = Scorer(path), explainer.generate(rows, "yes")
        answers = scorer.answer(rows.to_dict("records"), "yes")
        for answer, wanted in zip(answers, expected, strict=True):
            assert answer.options[0].row == wanted.options[0].row
            assert answer.changes == wanted.changes
        fewer = scorer.answer(rows[FEATURES].to_dict("records"), "yes")
        assert [row.changes for row in fewer] == [row.changes for row in answers]

    @pytest.mark.parametrize("suffixes", [("csv", "csv"), ("parquet", "parquet"), ("csv", "parquet")])
    def test_files(self, fitted, suffixes, tmp_path):
        explainer, rows, path = fitted
        source, out = (tmp_path / f"{name}.{suffix}" for name, suffix in zip(("rows", "out"), suffixes, strict=True))
        if suffixes[0] == "csv":
            rows.to_csv(source, index=False)
        else:
            rows.to_parquet(source, index=False)
        done = run("explain", path, source, "--target", "yes", "--all", "--out", out)
        assert done.code == 0, done.err
        expected = explainer.generate(rows, "yes")
        answers = pd.read_csv(out) if suffixes[1] == "csv" else pd.read_parquet(out)
        for name in rows:
            assert answers[name].tolist() == expected.frame[name].tolist()
        assert answers["n_changes"].tolist() == expected.changed.sum(axis=1).tolist()
        assert answers["changes"].str.contains("rating: ").any()

    def test_flags_of_a_file_may_be_written_in_several_ways(self, fitted, tmp_path):
        explainer, rows, path = fitted
        texts = rows.astype(dict.fromkeys(HOME, str))
        texts[HOME] = texts[HOME].replace({"0": "false", "1": "1.0"})
        texts.to_csv(tmp_path / "rows.csv", index=False)
        for out in ("out.csv", "out.parquet"):
            done = run("explain", path, tmp_path / "rows.csv", "--target", "yes", "--all", "--out", tmp_path / out)
            assert done.code == 0, done.err
        expected = explainer.generate(rows, "yes").frame
        written = pd.read_csv(tmp_path / "out.csv", dtype=str)
        unchanged = (expected[HOME] == rows[HOME]).to_numpy()
        assert (written[HOME].to_numpy()[unchanged] == texts[HOME].to_numpy()[unchanged]).all()
        assert (pd.read_parquet(tmp_path / "out.parquet")[HOME] == expected[HOME]).all(axis=None)

    def test_service(self, fitted):
        explainer, rows, path = fitted
        app = create_app(Scorer(path))
        about = request(app, "GET", "/schema").json()
        (housing,) = [column for column in about["columns"] if column["name"] == "housing"]
        assert housing["columns"] == HOME
        sent = json.loads(rows.head(3).to_json(orient="records"))
        answer = request(app, "POST", "/explain", json={"rows": sent, "target": "yes"}).json()
        expected = list(explainer.generate(rows.head(3), "yes"))
        for got, wanted in zip(answer["rows"], expected, strict=True):
            assert got["options"][0]["row"] == wanted.options[0].row
        shape = request(app, "GET", "/openapi.json").json()["components"]["schemas"]["FeatureRow"]
        assert shape["required"] == FEATURES
        assert {"case", "since"} < set(shape["properties"])
        broken = request(app, "POST", "/explain", json={"rows": [sent[0] | {"housing_own": 1, "housing_free": 1}]})
        assert broken.status_code == 422
        assert "exactly one is set" in broken.text


def test_the_commands_say_what_they_make_of_columns(tmp_path):
    X, y = people(120)
    X.assign(approved=y).to_csv(tmp_path / "data.csv", index=False)
    order = ["--target", "approved", "--positive", "yes", "--hypotheses", 4, "--steps", 20, "--freeze", "housing"]
    done = run("fit", tmp_path / "data.csv", *order, "--out", tmp_path / "art")
    assert done.code == 0, done.err
    said = " ".join((done.out + done.err).split())
    assert "overrule with kinds={'case': ...}" in said
    assert "They are the one category 'rating'" in said
    done = run(
        "explain", tmp_path / "art", tmp_path / "data.csv", "--vary", "rating_good,income", "--out", tmp_path / "o.csv"
    )
    assert done.code == 0, done.err
    answers = pd.read_csv(tmp_path / "o.csv")
    check_possible(answers[list(X)], answers[list(X)])


def test_a_schema_with_groups_and_kept_columns_is_stored(fitted):
    explainer, _, _ = fitted
    schema = explainer.space_.schema
    assert Schema.from_json(schema.to_json()) == schema
