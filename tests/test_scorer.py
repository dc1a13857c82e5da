"""The light scorer answers as the explainer it was saved from, without torch or pandas."""

import json
import math
import re
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
import torch

from avcg import AVCG, Classifier, MCDropout, Recipe, Schema, load, retrains, toys
from avcg.errors import ArtefactError, DataError, SchemaError, SettingError
from avcg.io.folder import FORMAT, VERSION, read_folder, write_folder
from avcg.io.scorer import Scorer
from avcg.io.tensors import read_tensors, write_tensors
from avcg.method.decider import Decider
from avcg.method.generator import Condition

LOANS = toys.loans(n=700)
SCHEMA = Schema.infer(LOANS.X).only_up("months").allow_missing("income", "rating")
WITH_GAPS = LOANS.X.astype({"income": "float64"}).assign(
    income=lambda X: X["income"].where(np.arange(len(X)) % 9 > 0),
    rating=lambda X: X["rating"].astype(object).where(np.arange(len(X)) % 7 > 0, None),
)


def fitted(hypotheses, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so short a training may not keep its promise
        return AVCG(hypotheses, recipe=Recipe(steps=250, layers=(48, 48), encoder=(16,)), **settings).fit(WITH_GAPS)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    model = Classifier(hidden=(16,), epochs=25, schema=SCHEMA).fit(WITH_GAPS, LOANS.y)
    explainer = fitted(retrains(model, WITH_GAPS, LOANS.y, n=8), survival=0.9)
    path = tmp_path_factory.mktemp("scorer") / "recourse"
    explainer.save(path, graphs=True)
    return explainer, path


@pytest.fixture(scope="module")
def three_classes(tmp_path_factory):
    """Three classes, a threshold-free mean of dropout masks, a link."""
    X = LOANS.X.assign(code=LOANS.X["housing"].map({name: i for i, name in enumerate(LOANS.X["housing"].unique())}))
    y = np.where(LOANS.X["income"] > 60, "high", np.where(LOANS.X["income"] > 35, "middle", "low"))
    schema = Schema.infer(X).link("housing", "code")
    model = Classifier(hidden=(16,), dropout=0.1, epochs=25, schema=schema).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recipe = Recipe(steps=250, layers=(48, 48), encoder=(16,))
        explainer = AVCG(MCDropout(model), recipe=recipe, survival=0.8, n_test=20).fit(X)
    path = tmp_path_factory.mktemp("scorer3") / "recourse"
    explainer.save(path, graphs=True)
    return explainer, path, X


def as_dicts(frame):
    return [
        {name: None if value is None or value != value else value for name, value in row.items()}
        for row in frame.astype(object).to_dict("records")
    ]


def same(explainer, scorer, frame, *, share=1.0, **request):
    """The same statuses, targets, bounds and changes, numbers to what two runtimes may differ by."""
    delivered = list(explainer.generate(frame, **request))
    found = scorer.answer(as_dicts(frame), **request)
    alike = []
    for mine, theirs in zip(found, delivered, strict=True):
        assert len(mine.options) == len(theirs.options)
        equal = mine.target == theirs.target
        equal &= math.isclose(mine.probability_before, theirs.probability_before, abs_tol=1e-5)
        for option, other in zip(mine.options, theirs.options, strict=True):
            equal &= option.status == other.status
            equal &= option.changes.keys() == other.changes.keys()
            equal &= all(_close(option.row[name], other.row[name]) for name in other.row)
            equal &= math.isclose(option.probability, other.probability, abs_tol=1e-4)
            equal &= math.isclose(option.distance, other.distance, rel_tol=1e-3, abs_tol=1e-4)
            equal &= (option.agreeing, option.repeated) == (other.agreeing, other.repeated)
            equal &= option.lower_bound == pytest.approx(other.lower_bound, abs=1e-12)
        alike.append(bool(equal))
    assert np.mean(alike) >= share, f"{np.flatnonzero(~np.array(alike))[:5]} of {len(alike)} differ"
    return found


def _close(one, other):
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-4, abs_tol=1e-4)
    return one == other


class TestSameAsTheExplainer:
    def test_one_answer(self, saved):
        found = same(saved[0], Scorer(saved[1]), WITH_GAPS.head(150))
        assert {row.status for row in found} >= {"ok"}

    @pytest.mark.parametrize(
        "request_",
        [
            {"target": "yes"},
            {"target": "no"},
            {"vary": ["income", "owns"]},
            {"ranges": {"income": (30, 70), "housing": ["own", "rent"]}},
            {"min_prob": 0.9},
            {"max_changes": 1},
            {"vary": ["months"], "max_changes": 1, "min_prob": 0.99},
        ],
        ids=str,
    )
    def test_requests(self, saved, request_):
        labels = saved[0].classes_.tolist()
        if "target" in request_:
            request_ = {**request_, "target": labels[request_["target"] == "yes"]}
        if "ranges" in request_:
            request_ = {"ranges": {**request_["ranges"], "housing": LOANS.X["housing"].unique().tolist()[:2]}}
        same(saved[0], Scorer(saved[1]), WITH_GAPS.head(80), **request_)

    def test_three_answers(self, saved):
        # A candidate that ties with another may be told apart by the last digit of a runtime.
        same(saved[0], Scorer(saved[1]), WITH_GAPS.head(60), n=3, share=0.95)

    def test_a_threshold(self, saved):
        explainer, scorer = load(saved[1]), Scorer(saved[1])
        explainer.decider_ = Decider(explainer.decider_.predictors, 0.3)
        scorer._threshold = 0.3
        same(explainer, scorer, WITH_GAPS.head(80))

    def test_three_classes_and_a_link(self, three_classes):
        explainer, path, X = three_classes
        found = same(explainer, Scorer(path), X.head(60), share=0.97)
        assert len({row.target for row in found}) > 1
        moved = [o.row for row in found for o in row.options if "housing" in o.changes]
        pairs = set(zip(X["housing"], X["code"], strict=True))
        assert moved
        assert all((row["housing"], row["code"]) in pairs for row in moved)

    def test_decisions_are_named(self, saved):
        rows = WITH_GAPS.head(40)
        found = Scorer(saved[1]).answer(as_dicts(rows))
        assert [row.decision for row in found] == saved[0].decide(rows).tolist()

    def test_an_answer_does_not_depend_on_its_neighbours(self, saved):
        scorer, rows = Scorer(saved[1]), as_dicts(WITH_GAPS.head(30))
        together = scorer.answer(rows, n=2)
        alone = [scorer.answer([row], n=2)[0] for row in rows]
        assert [[o.row for o in row.options] for row in together] == [[o.row for o in row.options] for row in alone]


class TestGraph:
    def test_agrees_with_eager_over_many_rows(self, saved):
        import onnxruntime

        explainer = saved[0]
        space = explainer.space_
        (graph,) = saved[1].glob("generator-*.onnx")
        session = onnxruntime.InferenceSession(graph.read_bytes(), providers=["CPUExecutionProvider"])
        x = space.encode(pd.concat([WITH_GAPS] * 15).head(10_000))
        requests = space.random_requests(len(x), 0.7, np.random.default_rng(1))
        rng = torch.Generator().manual_seed(1)
        target, margin = torch.randint(2, (len(x),), generator=rng), 4 * torch.rand(len(x), generator=rng)
        noise = torch.randn(len(x), explainer.generator_.n_latent, generator=rng)
        request = Condition(x, target, requests.constraint_features(x), margin)
        with torch.no_grad():
            proposal = explainer.generator_(request, explainer.generator_.posterior(request).sample(noise[None]))
            eager = requests.relax(proposal.raw, x, proposal.gates > 0)[0]
        feed = {"x": x, "target": target, "margin": margin, "noise": noise}
        feed = {name: value.numpy() for name, value in feed.items()} | requests.feasible.coded(space.encoding)
        (found,) = session.run(["answer"], {name: np.ascontiguousarray(value) for name, value in feed.items()})
        # A gate that both runtimes see at zero to the last digit may open in the one and not in the other.
        apart = np.abs(found - eager.numpy()).max(axis=1)
        assert (apart > 1e-5).mean() <= 1e-4

    def test_to_onnx_writes_a_whole_file(self, saved, tmp_path):
        saved[0].to_onnx(tmp_path / "generator.onnx")
        assert [one.name for one in tmp_path.iterdir()] == ["generator.onnx"]
        import onnx

        graph = onnx.load(tmp_path / "generator.onnx").graph
        assert [one.name for one in graph.input][:4] == ["x", "target", "margin", "noise"]
        assert graph.input[0].type.tensor_type.shape.dim[0].dim_param


class TestLight:
    def test_needs_neither_torch_nor_pandas(self, saved):
        code = """
import json, sys
for heavy in ("torch", "pandas", "scipy", "sklearn", "narwhals"):
    sys.modules[heavy] = None
from avcg.io.scorer import Scorer
found = Scorer(sys.argv[1]).answer(json.loads(sys.argv[2]))
print(json.dumps([found[0].status, found[0].target]))
"""
        row = json.dumps(as_dicts(WITH_GAPS.iloc[[3]]), default=bool)
        done = subprocess.run([sys.executable, "-c", code, str(saved[1]), row], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)[0] in ("ok", "not_robust", "already_target")


def settings(**change):
    return lambda content, arrays, files: content["settings"].update(change)


def counts(**change):
    return lambda content, arrays, files: content["scorer"].update(change)


def tables(**change):
    """By name, what takes an array's place; None: nothing."""

    def dotted(name):
        return name if "." in name else re.sub("^(noise|bank|teachers)_", r"\1.", name)

    def spoil(content, arrays, files):
        for name, other in change.items():
            array = arrays.pop(dotted(name))
            if other is not None:
                arrays[dotted(name)] = other(array)

    return spoil


def lock_change(part, name):
    return lambda content, arrays, files: content[part].pop(name)


def more_models(content, arrays, files):
    """The counts and the tables agree with each other, and not with the graph."""
    content["scorer"]["n_fresh"] += 1
    arrays["lower_bounds"] = np.append(arrays["lower_bounds"], 1.0)


class TestFoldersOfOtherMeans:
    @pytest.mark.parametrize(
        ("spoil", "says"),
        [
            (settings(survival=1.5), r"'survival' must be in \(0, 1\). Got 1.5"),
            (settings(survival=0), "'survival' must be in"),
            (settings(survival="much"), r"it.settings.survival is 'much'"),
            (settings(threshold=2.0), "'threshold' must be in"),
            (lock_change("settings", "survival"), "it.settings lacks 'survival'"),
            (lock_change("calibration", "margin"), "it.calibration lacks 'margin'"),
            (lock_change("scorer", "single_pass"), "it.scorer lacks 'single_pass'"),
            (lock_change("classes", "values"), "lacks 'values'"),
            (lambda content, *_: content["classes"].update(values=[1, 1]), "These are no labels"),
            (counts(n_deployed=0), "cannot be 0 models in force"),
            (counts(n_deployed=99), "cannot be 99 models in force"),
            (counts(n_test=-1), "-1 set aside"),
            (counts(n_train=7), "'teachers.weights' is missing, or of another shape"),
            (counts(n_test=1), "'lower_bounds' is missing, or of another shape"),
            (more_models, r"where probabilities of \d+ models and 2 classes were stored"),
            (tables(teachers_weights=lambda a: -a), "shares that add up to 1"),
            (tables(teachers_weights=lambda a: a * np.nan), "shares that add up to 1"),
            (tables(**{"deployed.weights": None}), "'in_force.weights' is missing"),
            (tables(lower_bounds=lambda a: a + 1), "Lower bounds must be shares"),
            (tables(noise_1=None), "of size 0, which is too little"),
            (tables(noise_5=None), "'noise.19' is missing|'noise.5' is missing"),
            (tables(noise_2=lambda a: a[:1]), "'noise.2' is missing, or of another shape"),
            (tables(bank_1=None), "'bank.1' is missing"),
            (tables(bank_0=lambda a: a[:0]), "'bank.0' holds no rows"),
            (
                tables(bank_0=lambda a: np.full_like(a, np.inf)),
                "'bank.0' holds no rows, or something that is no number",
            ),
            (tables(bank_0=lambda a: a[:, 1:]), "'bank.0' is missing, or of another shape"),
            (lambda content, arrays, files: files.update({"judges.onnx": b"no graph"}), "A stored graph cannot be run"),
            (
                lambda content, arrays, files: files.update({"judges.onnx": files["generator.onnx"]}),
                "The stored graphs do not fit the rows",
            ),
        ],
    )
    def test_are_refused_with_the_reason(self, saved, tmp_path, spoil, says):
        """Whoever signs anew can change what is answered, but never break what reads it."""
        manifest, files = read_folder(saved[1], FORMAT, VERSION)
        content = {name: value for name, value in manifest.items() if name not in ("files", "sha256")}
        arrays = read_tensors(files["scorer.safetensors"])
        spoil(content, arrays, files)
        write_folder(tmp_path / "x", content, {**files, "scorer.safetensors": write_tensors(arrays)})
        with pytest.raises(ArtefactError, match=says):
            Scorer(tmp_path / "x")


class TestRefusals:
    def test_no_graphs(self, saved, tmp_path):
        saved[0].save(tmp_path / "plain")
        with pytest.raises(ArtefactError, match="graphs=True"):
            Scorer(tmp_path / "plain")

    def test_no_folder(self, tmp_path):
        with pytest.raises(ArtefactError, match="no folder"):
            Scorer(tmp_path / "nothing")

    def test_a_changed_graph(self, saved, tmp_path):
        import shutil

        shutil.copytree(saved[1], tmp_path / "bad")
        graph = next((tmp_path / "bad").glob("generator-*.onnx"))
        content = bytearray(graph.read_bytes())
        content[len(content) // 2] ^= 1
        graph.write_bytes(bytes(content))
        with pytest.raises(ArtefactError, match="changed"):
            Scorer(tmp_path / "bad")

    @pytest.mark.parametrize(
        ("request_", "error", "words"),
        [
            ({"n": 0}, SettingError, "whole number"),
            ({"n": 11}, SettingError, "at most 10"),
            ({"min_prob": 1.5}, SettingError, "min_prob"),
            ({"target": "maybe"}, DataError, "maybe"),
            ({"target": [["no"]]}, DataError, "no class"),
            ({"vary": ["salary"]}, SchemaError, "salary"),
            ({"ranges": {"income": (9, 1)}}, SchemaError, "income"),
            ({"max_changes": -1}, SchemaError, "at_most"),
        ],
    )
    def test_requests_that_cannot_be_meant(self, saved, request_, error, words):
        with pytest.raises(error, match=words):
            Scorer(saved[1]).answer(as_dicts(WITH_GAPS.iloc[[3]]), **request_)

    def test_rows_that_do_not_fit(self, saved):
        scorer, (row,) = Scorer(saved[1]), as_dicts(WITH_GAPS.iloc[[3]])
        assert scorer.answer([]) == []
        with pytest.raises(DataError, match="months"):
            scorer.answer([{**row, "months": "many"}])
        for far in (10**400, -(10**400)):  # which no float holds
            with pytest.raises(DataError, match="'months' has a value too far"):
                scorer.answer([{**row, "months": far}])
        with pytest.raises(DataError, match="housing"):
            scorer.answer([{**row, "housing": "castle"}])
        with pytest.raises(DataError, match="lack"):
            scorer.answer([{name: value for name, value in row.items() if name != "owns"}])
