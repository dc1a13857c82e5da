"""The light scorer answers as the explainer it was saved from, without torch or pandas."""

import json
import re
import subprocess
import sys
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from avcg import AVCG, Classifier, MCDropout, Recipe, Schema, datasets, load, retrains, toys
from avcg.errors import ArtifactError, DataError, InternalError, SchemaError, SettingError
from avcg.io.folder import FORMAT, VERSION, read_folder, write_folder
from avcg.io.scorer import Scorer
from avcg.io.tensors import read_tensors, write_tensors
from avcg.method.deployed import DeployedModel
from avcg.method.generator import Condition
from avcg.space.codes import TableCodes

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


def same(explainer, scorer, frame, **request):
    """In every row the same statuses, targets, bounds, columns and categories, and numbers after their rounding."""
    delivered = list(explainer.generate(frame, **request))
    found = scorer.answer(as_dicts(frame), **request)
    steps = {feature.name: feature.step or 0.0 for feature in explainer.space_.schema.numeric}
    for mine, theirs in zip(found, delivered, strict=True):
        where = f"row {mine.index} of {len(frame)}"
        assert mine.target == theirs.target, where
        assert mine.probability_before == pytest.approx(theirs.probability_before, abs=1e-5), where
        assert len(mine.options) == len(theirs.options), where
        for option, other in zip(mine.options, theirs.options, strict=True):
            assert option.status == other.status, where
            assert option.changes.keys() == other.changes.keys(), where
            for name, value in other.row.items():
                assert rounded(option.row[name], steps.get(name)) == rounded(value, steps.get(name)), (where, name)
            assert option.probability == pytest.approx(other.probability, abs=1e-4), where
            assert option.distance == pytest.approx(other.distance, rel=1e-3, abs=1e-4), where
            assert (option.agreeing, option.repeated) == (other.agreeing, other.repeated), where
            assert option.lower_bound == pytest.approx(other.lower_bound, abs=1e-12), where
    return found


def rounded(value, step):
    """A number on the grid of its column, or to six digits after the point where it has none; else the value itself."""
    if step is None or value is None:
        return value
    return round(value / step) if step else round(value, 6)


def random_requests(explainer, count, rng):
    """For each row the columns that may change, and how many at once."""
    space = explainer.space_
    names = np.array(space.schema.names)[space.feasible.movable(space.encoding)[0]]
    vary = [sorted(rng.choice(names, rng.integers(2, len(names) + 1), replace=False).tolist()) for _ in range(count)]
    return {"vary": vary, "max_changes": rng.integers(1, 6, count).tolist()}


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
            {"effort": "fast"},
            {"effort": "thorough", "n": 2},
            {"typicality": 0.9},
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
        same(saved[0], Scorer(saved[1]), WITH_GAPS.head(60), n=3)

    @pytest.mark.parametrize("n", [1, 3])
    def test_requests_of_every_row_its_own(self, saved, n):
        rows = WITH_GAPS.head(200)
        asked = random_requests(saved[0], len(rows), np.random.default_rng(n))
        found = same(saved[0], Scorer(saved[1]), rows, n=n, **asked)
        for row, vary, most in zip(found, asked["vary"], asked["max_changes"], strict=True):
            assert all(option.changes.keys() <= set(vary) for option in row.options)
            assert all(len(option.changes) <= most for option in row.options)

    def test_a_threshold(self, saved, tmp_path):
        explainer = load(saved[1])
        explainer.deployed_ = DeployedModel(explainer.deployed_.predictors, 0.3)
        explainer.save(tmp_path / "recourse", graphs=True)
        before = [row.decision for row in Scorer(saved[1]).answer(as_dicts(WITH_GAPS.head(80)))]
        found = same(explainer, Scorer(tmp_path / "recourse"), WITH_GAPS.head(80))
        assert [row.decision for row in found] != before, "the threshold decides"

    def test_three_classes_and_a_link(self, three_classes):
        explainer, path, X = three_classes
        found = same(explainer, Scorer(path), X.head(60))
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


@pytest.fixture(scope="module")
def adult(tmp_path_factory):
    if not datasets.available("adult"):
        pytest.skip("the files of adult are not at hand; set AVCG_DATA to their directory")
    train, _, test = datasets.load("adult", download=False).split(seed=0)
    train = train.take(np.random.default_rng(0).permutation(len(train.X))[:6000])
    model = Classifier(epochs=10, schema=train.schema, random_state=0).fit(train.X, train.y)
    members = retrains(model, train.X, train.y, n=10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        explainer = AVCG(members, recipe=Recipe(steps=600), survival=0.9).fit(train.X)
    path = tmp_path_factory.mktemp("adult") / "recourse"
    explainer.save(path, graphs=True)
    return load(path), path, test.X.head(2000).reset_index(drop=True)


@pytest.mark.slow
class TestSameOnAdult:
    @pytest.mark.parametrize("n", [1, 3])
    def test_two_thousand_rows_with_requests_of_their_own(self, adult, n):
        explainer, path, rows = adult
        same(explainer, Scorer(path), rows, n=n, **random_requests(explainer, len(rows), np.random.default_rng(n)))


class TestLastLook:
    def test_an_answer_that_breaks_a_constraint_is_never_handed_out(self, saved, monkeypatch):
        intact = TableCodes.restore

        def fallen(space, codes, factuals):
            values = intact(space, codes, factuals)
            return replace(values, numbers=values.numbers - 1)  # months may only rise

        monkeypatch.setattr(TableCodes, "restore", fallen)
        with pytest.raises(InternalError, match="answers break a constraint"):
            Scorer(saved[1]).answer(as_dicts(WITH_GAPS.head(5)))


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
        noise, typicality = (
            torch.randn(len(x), explainer.generator_.n_latent, generator=rng),
            torch.rand(len(x), generator=rng),
        )
        request = Condition(x, target, requests.constraint_features(x), margin, typicality)
        with torch.no_grad():
            proposal = explainer.generator_(request, explainer.generator_.posterior(request).sample(noise[None]))
            eager = requests.relax(proposal.raw, x, proposal.gates > 0)[0]
        feed = {"x": x, "target": target, "margin": margin, "typicality": typicality, "noise": noise}
        feed = {name: value.numpy() for name, value in feed.items()} | requests.codes.coded
        (found,) = session.run(["candidates"], {name: np.ascontiguousarray(value) for name, value in feed.items()})
        # A gate that both runtimes see at zero to the last digit may open in the one and not in the other.
        apart = np.abs(found - eager.numpy()).max(axis=1)
        assert (apart > 1e-5).mean() <= 1e-4

    def test_to_onnx_writes_a_whole_file(self, saved, tmp_path):
        saved[0].to_onnx(tmp_path / "generator.onnx")
        assert [one.name for one in tmp_path.iterdir()] == ["generator.onnx"]
        import onnx

        graph = onnx.load(tmp_path / "generator.onnx").graph
        assert [one.name for one in graph.input][:5] == ["x", "target", "margin", "typicality", "noise"]
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


def promised(**change):
    return lambda content, arrays, files: content["calibration"]["promise"].update(change)


def counts(**change):
    return lambda content, arrays, files: content["scorer"].update(change)


def searched(**change):
    return lambda content, arrays, files: content["recipe"]["search"].update(change)


def tables(**change):
    """By name, what takes an array's place; None: nothing."""

    def dotted(name):
        return name if "." in name else re.sub("^(reference|judges|deployed)_", r"\1.", name)

    def spoil(content, arrays, files):
        for name, other in change.items():
            array = arrays.pop(dotted(name))
            if other is not None:
                arrays[dotted(name)] = other(array)

    return spoil


def without(part, name):
    return lambda content, arrays, files: content[part].pop(name)


def more_models(content, arrays, files):
    """The counts and the tables agree with each other, and not with the graph."""
    content["scorer"]["n_held_out"] += 1
    content["scorer"]["n_test"] += 1
    arrays["lower_bounds"] = np.append(arrays["lower_bounds"], 1.0)


class TestFoldersOfOtherMeans:
    @pytest.mark.parametrize(
        ("spoil", "says"),
        [
            (promised(survival=1.5), r"'survival' must be in \(0, 1\). Got 1.5"),
            (promised(survival=0), "'survival' must be in"),
            (promised(survival="much"), r"it.calibration.promise.survival is 'much'"),
            (settings(threshold=2.0), "'threshold' must be in"),
            (without("calibration", "promise"), "it.calibration lacks 'promise'"),
            (without("calibration", "margins"), "it.calibration lacks 'margins'"),
            (without("scorer", "single_pass"), "it.scorer lacks 'single_pass'"),
            (without("classes", "values"), "lacks 'values'"),
            (
                lambda content, *_: content["classes"].update(values=[1, 1]),
                "The stored labels must be two or more, all different",
            ),
            (counts(n_deployed=0), "Got 0 deployed models"),
            (counts(n_deployed=99), "Got 99 deployed models"),
            (counts(n_test=-1), "-1 held-out models"),
            (counts(n_judges=7), "'judges.weights' is missing, or its shape or dtype does not fit"),
            (counts(n_test=0), "'lower_bounds' is missing, or its shape or dtype does not fit"),
            (more_models, r"should give probabilities of \d+ models and 2 classes"),
            (tables(judges_weights=lambda a: -a), "shares that add up to 1"),
            (tables(judges_weights=lambda a: a * np.nan), "shares that add up to 1"),
            (tables(deployed_weights=None), "'deployed.weights' is missing"),
            (tables(lower_bounds=lambda a: a + 1), "The stored lower bounds must be shares"),
            (tables(latents=None), "0 latents of size 0 are stored, which are too few"),
            (tables(latents=lambda a: a[:19]), "19 latents of size 8 are stored, which are too few"),
            (tables(latents=lambda a: a[:, :0]), "20 latents of size 0 are stored, which are too few"),
            (tables(latents=lambda a: a[:, 0]), "0 latents of size 0 are stored, which are too few"),
            (tables(latents=lambda a: a[:, 1:]), "The stored graphs do not accept the rows"),
            (tables(latents=lambda a: a.astype(int)), "'latents' is missing, or its shape or dtype does not fit"),
            (searched(margin_steps=[]), "'margin_steps' of SearchConfig must be at least one number"),
            (searched(rejection_penalty=-1.0), "'rejection_penalty' of SearchConfig must be a number > 0"),
            (searched(retries=3), "'retries'"),
            (tables(reference_1=None), "'reference.1' is missing"),
            (tables(reference_0=lambda a: a[:0]), "'reference.0' has no rows"),
            (
                tables(reference_0=lambda a: np.full_like(a, np.inf)),
                "'reference.0' has no rows, or values that are not finite numbers",
            ),
            (tables(reference_0=lambda a: a[:, 1:]), "'reference.0' is missing, or its shape or dtype does not fit"),
            (lambda content, arrays, files: files.update({"judges.onnx": b"no graph"}), "A stored graph cannot be run"),
            (
                lambda content, arrays, files: files.update({"judges.onnx": files["generator.onnx"]}),
                "The stored graphs do not accept the rows",
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
        with pytest.raises(ArtifactError, match=says):
            Scorer(tmp_path / "x")


class TestRefusals:
    def test_no_graphs(self, saved, tmp_path):
        saved[0].save(tmp_path / "plain")
        with pytest.raises(ArtifactError, match="graphs=True"):
            Scorer(tmp_path / "plain")

    def test_no_folder(self, tmp_path):
        with pytest.raises(ArtifactError, match="no folder"):
            Scorer(tmp_path / "nothing")

    def test_a_changed_graph(self, saved, tmp_path):
        import shutil

        shutil.copytree(saved[1], tmp_path / "bad")
        graph = next((tmp_path / "bad").glob("generator-*.onnx"))
        content = bytearray(graph.read_bytes())
        content[len(content) // 2] ^= 1
        graph.write_bytes(bytes(content))
        with pytest.raises(ArtifactError, match="changed"):
            Scorer(tmp_path / "bad")

    @pytest.mark.parametrize(
        ("request_", "error", "words"),
        [
            ({"n": 0}, SettingError, "whole number"),
            ({"n": 11}, SettingError, "at most 10"),
            ({"min_prob": 1.5}, SettingError, "min_prob"),
            ({"target": "maybe"}, DataError, "maybe"),
            ({"target": [["no"]]}, DataError, "is not a class of the model"),
            ({"vary": ["salary"]}, SchemaError, "salary"),
            ({"ranges": {"income": (9, 1)}}, SchemaError, "income"),
            ({"max_changes": -1}, SchemaError, "at_most"),
            ({"effort": "great"}, SettingError, "'effort'"),
            ({"typicality": 2}, SettingError, "'typicality'"),
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
