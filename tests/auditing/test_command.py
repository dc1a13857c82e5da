"""`avcg audit`."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from advice import SPRING, STORED
from sklearn.linear_model import LogisticRegression
from typer.testing import CliRunner

from avcg import PointMass, audit, from_sklearn
from avcg.baselines.nearest import NearestUnlike
from avcg.cli.main import app
from avcg.errors import AvcgError, SettingError


@pytest.fixture(scope="module")
def onnx_file(tmp_path_factory):
    """Two models of income and months as ONNX files, the answers they are asked about, and the models."""
    pytest.importorskip("onnxruntime")
    skl2onnx = pytest.importorskip("skl2onnx")
    folder = tmp_path_factory.mktemp("onnx")
    X = SPRING.X[["income", "months"]].astype("float32")
    labels = np.where(SPRING.y == 1, "yes", "no")
    models = [LogisticRegression().fit(X[i::3], labels[i::3]) for i in range(3)]
    for i, model in enumerate(models[1:]):
        kind = [("X", skl2onnx.common.data_types.FloatTensorType([None, 2]))]
        options = {id(model): {"zipmap": bool(i)}}
        (folder / f"{i}.onnx").write_bytes(
            skl2onnx.to_onnx(model, initial_types=kind, options=options).SerializeToString()
        )
    recourse = NearestUnlike(PointMass(from_sklearn(models[0], X))).fit(X)
    delivered = recourse.generate(X[models[0].predict(X) == "no"].head(30), target="yes")
    (folder / "answers.json").write_text(delivered.to_json())
    return folder, delivered, models[1:]


def run(*arguments):
    return CliRunner().invoke(app, ["audit", *map(str, arguments)])


class TestCommand:
    def test_it_counts_as_python_does(self, onnx_file):
        folder, delivered, models = onnx_file
        result = run(
            folder / "answers.json", "--model", folder / "0.onnx", "--classes", "no,yes", "--by", "months", "--json"
        )
        assert result.exit_code == 0, result.output
        shown = json.loads(result.output)
        holds = int((models[0].predict(delivered.frame) == "yes").sum())
        assert shown["summary"]["holds"] == holds
        assert sum(line["told"] for line in shown["by"]) == shown["summary"]["told"]

    def test_tables_and_several_models(self, onnx_file):
        folder, delivered, models = onnx_file
        result = run(
            folder / "answers.json",
            "--model",
            folder / "0.onnx",
            "--model",
            folder / "1.onnx",
            "--classes",
            "no,yes",
            "--by",
            "months",
        )
        assert result.exit_code == 0, result.output
        both = audit(delivered, models)
        assert f"{both.summary()['holds']} of {both.summary()['told']} answers still hold" in result.output
        for words in ("By column to change", "income", "By number of columns to change", "By months", "up to"):
            assert words in result.output

    def test_classes_are_the_targets_where_these_name_both(self, onnx_file, tmp_path):
        folder, delivered, models = onnx_file
        mixed = replace(delivered, target=np.array(["yes", "no"] * 15))
        (tmp_path / "mixed.json").write_text(mixed.to_json())
        result = run(tmp_path / "mixed.json", "--model", folder / "1.onnx", "--json")
        expected = (models[1].predict(delivered.frame) == mixed.target).sum()
        assert json.loads(result.output)["summary"]["holds"] == expected

    @pytest.mark.parametrize("kind", ["html", "json", "csv"])
    def test_files_are_written_whole(self, onnx_file, tmp_path, kind):
        folder, delivered, models = onnx_file
        out = tmp_path / f"audit.{kind}"
        result = run(folder / "answers.json", "--model", folder / "0.onnx", "--classes", "no, yes", "--out", out)
        assert result.exit_code == 0, result.output
        assert [path.name for path in tmp_path.iterdir()] == [out.name]
        expected = audit(delivered, models[0])
        if kind == "csv":
            assert pd.read_csv(out, index_col=0)["verdict"].tolist() == expected.frame["verdict"].tolist()
        else:
            assert f"{expected.summary()['holds']}" in out.read_text(encoding="utf-8")
        out.write_text("before")
        failed = run(
            folder / "answers.json", "--model", folder / "0.onnx", "--classes", "no,yes", "--by", "x", "--out", out
        )
        assert isinstance(failed.exception, AvcgError)
        assert out.read_text() == "before"
        assert [path.name for path in tmp_path.iterdir()] == [out.name]

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (
                ["--model", "0.onnx"],
                "0.onnx has 2 probabilities without names of classes, and the answers aim at 'yes'",
            ),
            (["--model", "0.onnx", "--classes", "no,yes,maybe"], "must return probabilities of shape"),
            (["--model", "0.onnx", "--classes", "no,yep"], "The answers aim at 'yes', which is not a class"),
            (["--model", "none.onnx", "--classes", "no,yes"], "There is no file"),
            (["--model", "answers.json", "--classes", "no,yes"], "is not an ONNX model that can be run"),
            (["--model", "0.onnx", "--out", "audit.pdf"], "--out must end in '.html', '.json', '.csv'"),
            (["--model", "0.onnx", "--out", "nowhere/audit.csv"], "There is no folder 'nowhere'"),
            (["--model", "0.onnx", "--classes", "no,yes", "--by", "mnths"], "Did you mean 'months'"),
        ],
    )
    def test_mistakes(self, onnx_file, arguments, says, monkeypatch):
        monkeypatch.chdir(onnx_file[0])
        result = run("answers.json", *arguments)
        assert isinstance(result.exception, AvcgError)
        assert says in str(result.exception)

    def test_a_mistake_is_one_sentence_and_exit_code_2(self):
        command = [
            "-c",
            "from avcg.cli.main import main; main()",
            "audit",
            STORED,
            "--model",
            "0.onnx",
            "--out",
            "audit.pdf",
        ]
        found = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True)
        assert found.returncode == 2
        assert found.stderr == "avcg: --out must end in '.html', '.json', '.csv'. Got 'audit.pdf' instead.\n"
        assert found.stdout == ""

    @pytest.mark.parametrize(
        ("target", "classes", "expected"),
        [
            (np.array([1, 0]), "0,1", [0, 1]),
            (np.array([1.5]), "0.5,1.5", [0.5, 1.5]),
            (np.array([True]), "false,True", [False, True]),
            (np.array(["a"]), "a, b", ["a", "b"]),
        ],
    )
    def test_labels_are_of_the_kind_of_the_targets(self, target, classes, expected):
        from avcg.cli.audit import _labels

        assert _labels(classes, target) == expected
        assert [type(label) for label in _labels(classes, target)] == [type(label) for label in expected]

    @pytest.mark.parametrize("target", [np.array([1]), np.array([True])])
    def test_labels_of_another_kind(self, target):
        from avcg.cli.audit import _labels

        with pytest.raises(SettingError, match="Got --classes 'no,yes'"):
            _labels("no,yes", target)
