"""What this format version wrote once is read by every avcg that reads the version; an older folder is refused.

When the format gets a new version: ``PYTHONPATH=tests python tests/io/test_versions.py --write``.
"""

import json
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import run

import avcg
from avcg import AVCG, Classifier, Counterfactuals, Recipe, Schema, retrains, toys
from avcg.batch import PartitionExplainer
from avcg.errors import ArtifactError
from avcg.io.artifact import about
from avcg.io.folder import FORMAT, VERSION, read_manifest, write_folder
from avcg.io.scorer import Scorer
from avcg.serve.engine import open_engine

DATA = Path(__file__).parents[1] / "data"
STORED, ANSWERS = DATA / f"artifact-v{VERSION}", DATA / f"artifact-v{VERSION}-answers.json"
ANSWERS_FILE = DATA / "answers-v2.json"
LIMITS = {"vary": ["income", "housing"], "ranges": {"income": [20, 60]}, "max_changes": 1}
QUERIES = [{}, {"n": 3}, {"effort": "fast"}, {"effort": "thorough"}, LIMITS]


def write():
    """Store a small explainer and its answers."""
    toy = toys.loans(n=360)
    labels = np.where(toy.y == 1, "approve", "reject")
    schema = Schema.infer(toy.X).only_up("months").forbid("housing", "own", "rent")
    model = Classifier(hidden=(8,), epochs=60, dropout=0.1, schema=schema).fit(toy.X, labels)
    recipe = Recipe(steps=400, layers=(16, 16), encoder=(16,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so short a training may not keep its promise
        explainer = AVCG(retrains(model, toy.X, labels, n=8, resampling="bootstrap"), recipe=recipe).fit(toy.X)
    explainer.save(STORED, about={"made for": "every avcg that reads this version"})
    rows = toy.X.tail(12)
    answers = [[query, json.loads(explainer.generate(rows, **query).to_json())] for query in QUERIES]
    ANSWERS.write_text(json.dumps(answers))


class TestThisVersion:
    """An artifact that was written when the format was new: every avcg that reads its version reads it.

    Its answers are stored too. They change only when the search for answers does, and then the changelog says so.
    """

    def test_it_answers_as_it_did(self):
        loaded = avcg.load(STORED)
        stored = json.loads(ANSWERS.read_text())
        assert [query for query, _ in stored] == QUERIES
        for query, then in stored:
            delivered = Counterfactuals.from_json(json.dumps(then))
            now = loaded.generate(delivered.factuals, **query)
            assert now.status.equals(delivered.status)
            assert now.target.tolist() == delivered.target.tolist()
            pd.testing.assert_frame_equal(now.frame, delivered.frame, rtol=1e-9)
            assert np.allclose(now.probability, delivered.probability, atol=1e-6)
            assert np.allclose(now.probability_before, delivered.probability_before, atol=1e-6)
            assert np.array_equal(now.certificate.agreeing, delivered.certificate.agreeing)

    def test_it_is_small_and_whole(self):
        assert sum(file.stat().st_size for file in STORED.iterdir()) < 200_000
        assert read_manifest(STORED, FORMAT, VERSION)["version"] == VERSION


def test_the_first_version_is_refused_and_what_to_do_is_said():
    with pytest.raises(ArtifactError, match=r"artifact-v1 holds .*fit the explainer again and save it"):
        avcg.load(DATA / "artifact-v1")


class TestAnOlderVersion:
    """Everything that reads a stored explainer refuses an older one with the same sentence."""

    SAYS = "old has format version 2; this avcg reads version 3. Fit the explainer again and save it."

    @pytest.fixture
    def old(self, tmp_path):
        folder = tmp_path / "old"
        write_folder(folder, {"format": FORMAT, "version": VERSION - 1}, {"weights.safetensors": b"weights"})
        return folder

    @pytest.mark.parametrize("read", [avcg.load, about, Scorer, open_engine, PartitionExplainer])
    def test_from_python_and_in_the_service(self, old, read):
        with pytest.raises(ArtifactError, match=self.SAYS):
            read(str(old))

    @pytest.mark.parametrize(
        "command",
        [("explain", "{}", "rows.csv"), ("report", "{}", ANSWERS_FILE), ("audit", ANSWERS_FILE, "--model", "{}"),
         ("serve", "{}")],
    )  # fmt: skip
    def test_on_the_command_line(self, old, command):
        done = run(*(str(part).format(old) for part in command))
        assert done.code == 2
        assert done.err.endswith(f"{self.SAYS}\n")
        assert done.err.count("\n") == 1


if __name__ == "__main__" and "--write" in sys.argv:
    write()
    print(f"{STORED} and {ANSWERS} are written.")
