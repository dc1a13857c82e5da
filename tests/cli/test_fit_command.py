"""`avcg fit`: what is read off a file, what is kept of it, and what is said about it."""

import json
import subprocess
import sys
from functools import partial

import numpy as np
import pandas as pd
import pytest
from command_line import FIT, QUICK, people, run

import avcg
from avcg.cli import fit_run
from avcg.cli.fit_run import FitConfig, read_table
from avcg.io.artifact import about
from avcg.method.config import CalibrationConfig, DistillationConfig
from avcg.method.recipe import Recipe
from avcg.schema.features import Categorical, Continuous


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fit")
    people().to_csv(folder / "data.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def fitted(folder):
    """As a user does it, with limits of every kind."""
    limits = ["--only-up", "months", "--only-down", "member", "--between", "income:15:80", "--at-most", "2"]
    return run("fit", folder / "data.csv", *FIT, *limits, *QUICK, "--out", folder / "kept", "--seed", 3)


def config(path, **more):
    said = {"target": "approved", "positive": "yes", "drop": ("id",), "categorical": ("zip",)} | more
    return read_table(FitConfig(str(path), **said))


class TestReading:
    def test_as_pandas_reads_it(self, folder):
        """Values and gaps are those that pandas.read_csv finds."""
        table = config(folder / "data.csv")
        whole = pd.concat([table.X, table.held_out]).sort_index()
        expected = pd.read_csv(folder / "data.csv", dtype={"zip": object}).drop(columns=["id", "approved"])
        for name in expected:
            ours, theirs = whole[name].astype(object), expected[name].astype(object)
            assert (ours.isna() == theirs.isna()).all(), name
            assert (ours.dropna() == theirs.dropna()).all(), name
        assert whole.dtypes.astype(str).to_dict() == {
            "age": "int64", "income": "float64", "months": "float64", "owns": "bool", "member": "object",
            "housing": "object", "zip": "object",
        }  # fmt: skip

    def test_what_was_found_in_them(self, folder):
        assert "steps of 0.1" in config(folder / "data.csv").findings
        assert "schema.freeze('age')" in config(folder / "data.csv").findings
        assert "schema.freeze('age')" not in config(folder / "data.csv", freeze=("age",)).findings

    def test_what_the_columns_are(self, folder):
        schema = config(folder / "data.csv").schema
        assert schema["income"] == Continuous("income", step=0.1)
        assert schema["months"] == Continuous("months", step=1, missing="indicator")
        assert schema["age"] == Continuous("age", step=1)
        assert schema["owns"] == Categorical("owns", (False, True), ordered=True)
        assert schema["member"].missing == "category"
        assert schema["housing"] == Categorical("housing", ("free", "own", "rent"), missing="category")
        assert schema["zip"].categories == ("0100", "0101", "0102", "0103")

    def test_parquet_says_the_same_as_csv(self, folder):
        people().to_parquet(folder / "data.parquet")
        one, other = config(folder / "data.csv"), config(folder / "data.parquet")
        pd.testing.assert_frame_equal(one.X, other.X)
        assert (one.held_out_y == other.held_out_y).all()
        assert one.schema == other.schema

    def test_a_fifth_of_each_outcome_is_held_out(self, folder):
        table = config(folder / "data.csv")
        for label in ("yes", "no"):
            held_out, kept = (table.held_out_y == label).sum(), (table.y == label).sum()
            assert abs(held_out / (held_out + kept) - 0.2) < 0.01
        assert not set(table.X.index) & set(table.held_out.index)
        other = config(folder / "data.csv", seed=1)
        assert set(other.held_out.index) != set(table.held_out.index)

    @pytest.mark.parametrize(
        ("outcomes", "positive", "expected"),
        [(["0", "1"], "1", 1), (["True", "False"], "true", True), (["0.0", "1.0"], "1", 1.0), (["a b", "c"], "c", "c")],
    )
    def test_outcomes_of_every_kind(self, tmp_path, outcomes, positive, expected):
        cells = [f"{i % 7},{outcomes[i % 2]}" for i in range(40)]
        (tmp_path / "data.csv").write_text("\n".join(["x,y", *cells]))
        table = read_table(FitConfig(str(tmp_path / "data.csv"), "y", positive))
        assert (table.positive, type(table.positive)) == (expected, type(expected))

    def test_an_index_of_pandas(self, tmp_path):
        """Nameless in a CSV file, where it is pointed out; by a name of its own in parquet, where it is left out."""
        rows = people(200).drop(columns="id").sample(frac=1, random_state=0)
        rows.reset_index(drop=True).to_csv(tmp_path / "data.csv")
        rows.to_parquet(tmp_path / "data.parquet")
        assert "--drop 'Unnamed: 0'" in config(tmp_path / "data.csv", drop=()).notes[0]
        table = config(tmp_path / "data.parquet", drop=())
        assert list(table.X) == list(rows.columns.drop("approved"))
        assert table.notes == ()

    def test_cells_with_commas_quotes_and_line_ends(self, tmp_path):
        texts = ["a, b", 'say "x"', "two\nlines"] * 10
        pd.DataFrame({"t": texts, "x": range(30), "y": [0, 1] * 15}).sample(frac=1, random_state=0).to_csv(
            tmp_path / "data.csv", index=False
        )
        table = read_table(FitConfig(str(tmp_path / "data.csv"), "y", "1"))
        assert table.schema["t"].categories == tuple(sorted(set(texts)))


class TestKeeping:
    def test_the_artifact_knows_what_it_was_told(self, folder, fitted):
        assert fitted.code == 0, fitted.err
        noted = about(folder / "kept")
        assert (noted["target"], noted["positive"]) == ("approved", "yes")
        assert noted["dtypes"]["months"] == "float64"
        assert noted["settings"]["data"] == "data.csv"
        schema = avcg.load(folder / "kept").space_.schema
        changes = {feature.name: feature.change for feature in schema.features}
        expected = {"zip": "none", "age": "none", "months": "up", "member": "down"}
        assert changes == dict.fromkeys(schema, "any") | expected
        assert (schema["income"].low, schema["income"].high, schema.max_changes) == (15, 80, 2)

    def test_the_figures_are_what_they_say(self, folder, fitted):
        explainer, figures = avcg.load(folder / "kept"), about(folder / "kept")["held_out"]
        table = config(folder / "data.csv", seed=3)
        decisions = explainer.decide(table.held_out)
        denied = table.held_out[decisions == "no"]
        answers = explainer.generate(denied, "yes")
        delivered = np.isin(answers.statuses, ("ok", "not_robust"))
        assert figures["accuracy"] == pytest.approx((decisions == table.held_out_y).mean())
        assert (figures["denied"], figures["violations"]) == (len(denied), 0)
        assert figures["statuses"] == answers.summary().to_dict()
        assert figures["coverage"] == pytest.approx((answers.statuses == "ok").mean())
        assert figures["survival"] == pytest.approx(answers.certificate.share[delivered].mean())
        assert figures["distance"] == pytest.approx(answers.distance[delivered].mean())
        assert figures["changes"] == pytest.approx(answers.changed[delivered].sum(axis=1).mean())
        assert figures["changes"] <= 2
        assert figures["n_models"] == answers.certificate.n == 2
        assert figures["promise"] == str(explainer.calibration_)
        assert figures["statements"] == [statement.to_dict() for statement in explainer.statements()]

    def test_people_are_told_the_same(self, folder, fitted):
        noted = about(folder / "kept")
        figures = noted["held_out"]
        for words in (
            "300 rows of", "in steps of 0.1", "Measured on 60 rows", f"{figures['accuracy']:.0%}", "violations",
            figures["promise"], "mean share of the 2 models held back from training", noted["assumption"],
            "avcg explain",
        ):  # fmt: skip
            assert words in " ".join(fitted.out.split())

    def test_what_is_assumed_goes_with_the_artifact_to_the_report(self, folder, fitted):
        assert "on a bootstrap of the rows" in about(folder / "kept")["assumption"]
        run("explain", folder / "kept", folder / "data.csv", "--out", folder / "told.json")
        done = run("report", folder / "kept", folder / "told.json", "--out", folder / "told.html")
        assert done.code == 0, done.err
        assert about(folder / "kept")["assumption"] in (folder / "told.html").read_text()

    def test_the_same_seed_the_same_artifact_and_json(self, folder, fitted):
        limits = ["--only-up", "months", "--only-down", "member", "--between", "income:15:80", "--at-most", "2"]
        place = folder / "again"
        again = run("fit", folder / "data.csv", *FIT, *limits, *QUICK, "--out", place, "--seed", 3, "--json")
        found = json.loads(again.out)
        assert found["artifact"] == str(place)
        assert {name: found[name] for name in about(place)["held_out"]} == about(folder / "kept")["held_out"]
        weights = [{one.name for one in path.glob("weights-*")} for path in (folder / "kept", place)]
        assert weights[0] == weights[1] != set()

    def test_a_threshold_is_that_of_the_positive_outcome(self, folder):
        order = ["--target", "approved", "--positive", "no", "--drop", "id", *QUICK, "--threshold", "0.7"]
        found = run("fit", folder / "data.csv", *order, "--steps", 2, "--out", folder / "no", "--json")
        assert found.code == 0, found.err
        explainer = avcg.load(folder / "no")
        rows = config(folder / "data.csv", categorical=()).held_out
        probability = explainer.deployed_.probabilities(explainer.space_.encode(rows)).numpy()[:, 0]
        assert (explainer.decide(rows) == np.where(probability > 0.7, "no", "yes")).all()

    def test_more_than_two_outcomes(self, tmp_path):
        rows = people(200)
        rows["approved"] = np.where(rows["income"] > 70, "gold", rows["approved"])
        rows.to_csv(tmp_path / "data.csv", index=False)
        options = ["--target", "approved", "--positive", "gold", "--drop", "id,zip", *QUICK]
        found = run("fit", tmp_path / "data.csv", *options, "--out", tmp_path / "kept", "--json")
        assert found.code == 0, found.err
        assert json.loads(found.out)["denied"] > 0
        delivered = run("explain", tmp_path / "kept", tmp_path / "data.csv", "--out", tmp_path / "answers.csv")
        assert delivered.code == 0, delivered.err
        answers = pd.read_csv(tmp_path / "answers.csv")
        valid = answers[answers["status"].isin(["ok", "not_robust"])]
        assert len(valid)
        rows = valid[list(avcg.load(tmp_path / "kept").space_.schema)]
        assert (avcg.load(tmp_path / "kept").decide(rows.astype({"member": object})) == "gold").all()

    def test_columns_that_name_rows_are_pointed_out(self, tmp_path):
        rows = people(200).assign(number=range(200))
        rows.to_csv(tmp_path / "data.csv", index=False)
        table = config(tmp_path / "data.csv", drop=())
        assert table.schema.kept == ("id", "number")
        assert not table.notes
        said = " ".join(table.findings.split())
        assert "overrule with kinds={'id': ...}" in said
        assert "overrule with kinds={'number': ...}" in said
        counted = config(tmp_path / "data.csv", drop=("id", "number"), categorical=("zip",)).notes
        assert not counted
        rows.rename(columns={"number": "place"}).to_csv(tmp_path / "data.csv", index=False)
        assert ["--drop 'place'" in note for note in config(tmp_path / "data.csv", drop=()).notes] == [True]

    def test_dates_of_a_parquet_file_are_not_learnt_from(self, tmp_path):
        rows = people(200).assign(day=pd.Timestamp("2024-01-01"), text="2024-01-01")
        rows.to_parquet(tmp_path / "data.parquet")
        table = config(tmp_path / "data.parquet")
        assert "day" not in table.X
        assert table.schema.kept == ("text",)
        assert [note.split("'")[1] for note in table.notes] == ["day"]
        assert "all its texts are dates" in " ".join(table.findings.split())
        chosen = config(tmp_path / "data.parquet", categorical=("zip", "text"))
        assert chosen.schema["text"].categories == ("2024-01-01",)


@pytest.fixture
def short_students(monkeypatch):
    students = DistillationConfig(
        first_epochs=3, later_epochs=1, later_learning_rate=4e-3, attempts=100, crossed_rows=500
    )
    short = partial(Recipe, distillation=students, calibration=CalibrationConfig(refine_rows=10))
    monkeypatch.setattr(fit_run, "Recipe", short)


@pytest.fixture(scope="module")
def onnx_models(folder):
    pytest.importorskip("onnxruntime")
    convert = pytest.importorskip("skl2onnx").to_onnx
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType
    from sklearn.compose import make_column_transformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    inputs = [("income", FloatTensorType([None, 1])), ("zip", StringTensorType([None, 1]))]
    paths = []
    for seed in range(3):
        rows = people(300, seed)
        reader = make_column_transformer((OneHotEncoder(), ["zip"]), remainder="passthrough")
        model = make_pipeline(reader, LogisticRegression()).fit(rows[["income", "zip"]], rows["approved"])
        content = convert(model, initial_types=inputs, options={"zipmap": False}).SerializeToString()
        paths.append(folder / f"model{seed}.onnx")
        paths[-1].write_bytes(content)
    return paths, model


@pytest.mark.usefixtures("short_students")
class TestOtherModels:
    def test_one_decides_and_networks_stand_beside_it(self, folder, onnx_models):
        paths, _ = onnx_models
        found = run("fit", folder / "data.csv", *FIT, *QUICK, "--model", paths[0], "--out", folder / "one", "--json")
        assert found.code == 0, found.err
        figures, explainer = json.loads(found.out), avcg.load(folder / "one")
        assert "cannot be retrained here" in figures["assumption"]
        assert "4 plausible models" in figures["assumption"]
        assert about(folder / "one")["assumption"] == figures["assumption"]
        assert figures["n_models"] == len(explainer.split_.held_out) == 2
        table = config(folder / "data.csv")
        box = avcg.BlackBox(paths[0], table.X, classes=["no", "yes"])
        assert (explainer.decide(table.held_out) == box.predict(table.held_out)).all()

    def test_the_other_order_of_outcomes_is_noticed(self, folder, onnx_models):
        options = ["--model", onnx_models[0][0], "--classes", "yes,no", "--out", folder / "turned", "--json"]
        found = run("fit", folder / "data.csv", *FIT, *QUICK, "--steps", 2, *options)
        assert "less often than a coin toss" in found.err
        assert "--classes no,yes." in found.err
        assert json.loads(found.out)["accuracy"] < 0.5

    def test_several_are_the_plausible_ones(self, folder, onnx_models):
        paths = [part for path in onnx_models[0] for part in ("--model", path)]
        options = [*paths, "--steps", 20, "--out", folder / "several", "--json"]
        found = run("fit", folder / "data.csv", *FIT, *options)
        assert found.code == 0, found.err
        assert "like the 3 models that were given" in json.loads(found.out)["assumption"]
        explainer, table = avcg.load(folder / "several"), config(folder / "data.csv")
        box = avcg.BlackBox(onnx_models[0][0], table.X, classes=["no", "yes"])
        assert (explainer.decide(table.held_out) == box.predict(table.held_out)).all()
        answers = explainer.generate(table.held_out[explainer.decide(table.held_out) == "no"], "yes")
        ok = answers.answers[answers.statuses == "ok"]
        assert len(ok)
        assert (box.predict(ok) == "yes").all()


BAD_ROWS = {
    "no-target": lambda rows: rows.assign(approved=[None, *rows["approved"][1:]]),
    "one-outcome": lambda rows: rows.assign(approved="yes"),
    "many-outcomes": lambda rows: rows.assign(approved=rows["age"]),
    "few": lambda rows: rows.head(10),
    "no-rows": lambda rows: rows.head(0),
    "empty-column": lambda rows: rows.assign(income=None),
    "twice": lambda rows: rows.rename(columns={"age": "income"}),
    "alone": lambda rows: rows[["id", "approved"]],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad")
    rows = people(200)
    rows.to_csv(folder / "good.csv", index=False)
    for name, spoil in BAD_ROWS.items():
        spoil(rows).to_csv(folder / f"{name}.csv", index=False)
    (folder / "semicolons.csv").write_text("a;b\n1;2\n")
    (folder / "empty.csv").write_text("")
    (folder / "ragged.csv").write_text("x,approved\n1,yes\n2,no,3\n")
    (folder / "latin.csv").write_bytes("x,approved\né,yes\n".encode("latin-1"))
    (folder / "quote.csv").write_text('x,approved\n"1,yes\n')
    (folder / "broken.parquet").write_bytes(b"no parquet")
    (folder / "broken.onnx").write_bytes(b"no onnx")
    (folder / "a-file").write_text("")
    (folder / "full").mkdir()
    (folder / "full" / "letter.txt").write_text("dear")
    return folder


class TestMistakes:
    @pytest.mark.parametrize(
        ("data", "options", "says"),
        [
            ("absent.csv", [], "There is no file 'absent.csv'"),
            ("good.txt", [], "must end in '.csv', '.parquet'"),
            ("empty.csv", [], "empty.csv is empty"),
            ("no-rows.csv", [], "no-rows.csv has columns and no rows"),
            ("ragged.csv", [], "ragged.csv, line 3: 3 cells, but the first line names 2 columns"),
            ("latin.csv", [], "latin.csv is not UTF-8 text"),
            ("quote.csv", [], "quote.csv, line 2: unexpected end of data"),
            ("semicolons.csv", [], "separated by semicolons. Save it with commas"),
            ("broken.parquet", [], "broken.parquet cannot be read as a parquet file"),
            ("twice.csv", [], "has column 'income' twice"),
            ("no-target.csv", [], "1 of 200 rows have no outcome in column 'approved' (the first: no-target.csv, line"),
            ("one-outcome.csv", [], "Column 'approved' has 1 different values"),
            ("many-outcomes.csv", [], "must be a column of 2 to 20 outcomes"),
            ("few.csv", [], "few.csv has 10 rows"),
            ("alone.csv", ["--drop", "id"], "no column left to learn from"),
            ("empty-column.csv", ["--drop", "id"], "'income' is empty in every row. Leave it out: --drop 'income'"),
            ("good.csv", ["--target", "aproved"], "--target names 'aproved', which is not a column. Did you mean"),
            ("good.csv", ["--positive", "yess"], "'yess' is not one of the outcomes. Available: 'no', 'yes'"),
            ("good.csv", ["--drop", "idd"], "--drop names 'idd'"),
            ("good.csv", ["--freeze", "agee"], "--freeze names 'agee', which is not a column. Did you mean 'age'?"),
            ("good.csv", ["--only-up", "approved"], "--only-up names 'approved', which is not a column"),
            ("good.csv", ["--categorical", "zap"], "Did you mean 'zip'?"),
            ("good.csv", ["--only-up", "housing"], "Column 'housing' has no order"),
            ("good.csv", ["--freeze", "age", "--only-up", "age"], "Column 'age' is frozen"),
            ("good.csv", ["--between", "incom:1:2"], "--between names 'incom'"),
            ("good.csv", ["--between", "income:low:high"], "e.g. income:10:60 or income:10:. Got 'low:high'"),
            ("good.csv", ["--between", "income:90:10"], "is crossed"),
            ("good.csv", ["--between", "housing:1:2"], "between is for numbers"),
            ("good.csv", ["--survival", "1.5"], "--survival must be in (0, 1). Got 1.5"),
            ("good.csv", ["--reliability", "1"], "--reliability must be in (0, 1). Got 1.0 instead"),
            ("good.csv", ["--guarantee", "always"], "--guarantee must be one of 'next_model', 'most_models', 'expected'. Got 'always'"),  # noqa: E501
            ("good.csv", ["--guarantee", "most_models", "--confidence", "0"], "--confidence must be in (0, 1)"),
            ("good.csv", ["--confidence", "0.8"], "--confidence is for --guarantee most_models. Got next_model: leave"),
            ("good.csv", ["--guarantee", "expected", "--reliability", "0.8"], "expected has no --reliability, only"),
            ("good.csv", ["--threshold", "0"], "--threshold must be in (0, 1)"),
            ("good.csv", ["--resampling", "magic"], "--resampling must be one of 'seed', 'bootstrap', 'subsample'"),
            ("good.csv", ["--model", "none.onnx"], "There is no file 'none.onnx' for --model"),
            ("good.csv", ["--model", "broken.onnx"], "broken.onnx is not an ONNX model that can be run"),
            ("good.csv", ["--classes", "yes,no"], "Give one, or leave --classes out"),
            ("good.csv", ["--model", "broken.onnx", "--model", "broken.onnx", "--resampling", "seed"], "leave --hypotheses"),  # noqa: E501
            ("good.csv", ["--out", "a-file"], "a-file is a file. Give the name of a folder"),
            ("good.csv", ["--out", "full"], "full has other files in it"),
        ],
    )  # fmt: skip
    def test_one_sentence_and_nothing_written(self, place, data, options, says, monkeypatch):
        if "broken.onnx" in options and "--resampling" not in options:
            pytest.importorskip("onnxruntime")
        monkeypatch.chdir(place)
        before = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
        common = ["--target", "approved", "--positive", "yes", "--out", "new", *QUICK[:2], "--steps", 1]
        several = options.count("--model") > 1
        found = run("fit", data, *(common[:6] if several else common), *options)
        assert found.code == 2, found.out
        assert found.err.startswith("avcg: ")
        assert found.err.count("\n") == 1
        assert says in found.err
        assert {path: path.stat().st_mtime_ns for path in place.rglob("*")} == before

    @pytest.mark.parametrize("option", [["--at-most", "0"], ["--steps", "0"], ["--hypotheses", "1"], ["--seed", "-1"]])
    def test_numbers_out_of_range(self, place, option, monkeypatch):
        monkeypatch.chdir(place)
        found = run("fit", "good.csv", "--target", "approved", "--positive", "yes", "--out", "new", *option)
        assert found.code == 2
        assert option[0] in found.err
        assert not (place / "new").exists()


@pytest.mark.parametrize("command", ["fit", "explain"])
def test_help_does_not_wait_for_torch(command):
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom avcg.cli.main import app\n"
        "found = CliRunner().invoke(app,"
        f" [{command!r}, '--help'])\nassert '--json' in found.output\nprint({{m.split('.')[0] for m in sys.modules}} &"
        " {'torch', 'pandas', 'numpy', 'sklearn', 'pyarrow'})"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
