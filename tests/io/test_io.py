"""Explainers as folders: the same bytes after loading, whole at every moment, and nothing damaged is ever believed."""

import copy
import fcntl
import io
import json
import math
import os
import pickle
import pickletools
import shutil
import stat
import subprocess
import sys
import threading
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path

import joblib
import numpy as np
import pytest
import torch
from hypothesis import given as over
from hypothesis import settings
from hypothesis import strategies as st
from safetensors.numpy import load as their_reader
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier
from strategies import tables
from torch import nn

import avcg
from avcg import (
    AVCG,
    BlackBox,
    Classifier,
    DeepEnsemble,
    FiniteSet,
    ImageSpace,
    Laplace,
    MCDropout,
    Mixture,
    PointMass,
    Recipe,
    Refinement,
    Schema,
    TabularSpace,
    audit,
    from_models,
    from_sklearn,
    rashomon_set,
    retrains,
    risk,
    toys,
)
from avcg.errors import ArtifactError, DataError, SchemaError, SettingError
from avcg.files import beside
from avcg.hypotheses.black_box import BlackBoxPredictors
from avcg.hypotheses.predictors import Joined, OnDevice, Opaque, Stacked
from avcg.io import artifact
from avcg.io.folder import (
    FORMAT,
    MANIFEST,
    VERSION,
    check_folder,
    read_file,
    read_folder,
    read_manifest,
    validate,
    write_folder,
)
from avcg.io.hypotheses import Packer, Unpacker
from avcg.io.networks import build, describe
from avcg.io.spaces import pack_encoding, pack_limits, unpack_encoding
from avcg.io.tensors import read_tensors, write_tensors
from avcg.method.config import CalibrationConfig, DiagnosticsConfig, DistillationConfig, SearchConfig
from avcg.models.dropout_masks import GaussianDropout, Noise
from avcg.models.networks import cnn, mlp
from avcg.models.piecewise_linear import PiecewiseLinearEncoding
from avcg.models.sklearn import Beside, MeanProbability

TOY = toys.loans(n=160)
X, Y = TOY.X, TOY.y
NAMES = np.where(Y == 1, "approve", "reject")
NUMBERS = X[["income", "months"]]
ROWS = X.head(12)
# Every kind of column, one that follows another, and gaps in numbers and texts.
LINKED = X.assign(deposit=X["housing"].map({"own": 2, "rent": 1, "free": 0}))
GAPS = X.assign(
    income=X["income"].mask(np.arange(len(X)) % 7 == 0), housing=X["housing"].mask(np.arange(len(X)) % 9 == 0)
)
CATEGORIES = GAPS.assign(housing=GAPS["housing"].astype("category"))
# What is stored does not depend on how well it was trained.
SHORT = Recipe(
    steps=4,
    layers=(16, 16),
    encoder=(16,),
    rows_per_epoch=512,
    search=SearchConfig(retry_neighbours=4, retry_margins=(0.0, 1.5), refine_rounds=4),
    calibration=CalibrationConfig(
        n_margins=2, min_rows=20, refine_rows=4, refine_levels=(0.0, 1.0)
    ),
    diagnostics=DiagnosticsConfig(rows=20),
    distillation=DistillationConfig(
        hidden=(8,), rounds=2, attempts=100, first_epochs=2, later_epochs=2, first_learning_rate=5e-3,
        later_learning_rate=5e-3, batch_size=128, crossed_rows=200,
    ),
)  # fmt: skip


def fitted(explainer, rows=X):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so short a training may not keep its promise
        return explainer.fit(rows)


def classifier(rows=X, labels=NAMES, **settings):
    return Classifier(**{"hidden": (8,), "epochs": 4, **settings}).fit(rows, labels)


@cache
def network():
    return classifier()


def columns():
    return make_column_transformer((OneHotEncoder(), ["housing", "rating"]), (StandardScaler(), ["income", "months"]))


class Own(nn.Module):
    """A network of somebody's own making."""

    def __init__(self, n_inputs, temperature=1.0):
        super().__init__()
        self.inner, self.temperature = mlp(n_inputs, 2, (6,)), temperature

    def forward(self, x):
        return self.inner(x) / self.temperature


def own_networks(**settings):
    """Two networks of the same make; the second has weights of its own."""
    space = TabularSpace.fit(Schema.infer(X), X)
    members = [Own(space.event_shape[0], **settings) for _ in range(2)]
    with torch.no_grad():
        members[1].inner[0].weight.mul_(-0.5)
    return members, space


def income_rule(rows):
    return 1 / (1 + np.exp(-(rows["income"].to_numpy() - 50) / 5))


def pictures():
    images = np.random.default_rng(0).integers(0, 256, (60, 6, 6), dtype=np.uint8)
    space = ImageSpace.fit(images, may_change=np.tri(6, dtype=bool))
    nets = [cnn((1, 6, 6), 2, (2,), units=4, rng=torch.Generator().manual_seed(i)) for i in range(4)]
    return AVCG(DeepEnsemble(nets, space), recipe=SHORT), images


def several_architectures():
    space = network().space_
    width, rng = space.event_shape[0], torch.Generator().manual_seed(3)
    normed = nn.Sequential(mlp(width, 4, (), rng=rng), nn.BatchNorm1d(4), nn.GELU(), mlp(4, 2, (), rng=rng))
    members = [mlp(width, 2, (5,), rng=rng), mlp(width, 2, (4, 3), smooth=True, rng=rng), normed.double()]
    return DeepEnsemble([members[0], members[1], mlp(width, 2, (5,), rng=rng), members[2]] * 2, space)


def calibrated():
    model = make_pipeline(columns(), CalibratedClassifierCV(MLPClassifier((3,), max_iter=5, random_state=0), cv=2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so short a training does not converge
        return from_sklearn(model.fit(X, NAMES), X)


def trees(kind):
    library = pytest.importorskip(kind)
    if kind == "xgboost":
        return library.XGBClassifier(n_estimators=3, max_depth=3, enable_categorical=True, n_jobs=1)
    return library.LGBMClassifier(n_estimators=4, max_depth=3, min_child_samples=5, n_jobs=1, verbose=-1)


def onnx_model():
    pytest.importorskip("onnxruntime")
    convert = pytest.importorskip("skl2onnx").to_onnx
    years = [LogisticRegression().fit(NUMBERS[i::2].to_numpy(np.float32), NAMES[i::2]) for i in range(2)]
    contents = [convert(one, NUMBERS.head(1).to_numpy(np.float32)).SerializeToString() for one in years]
    boxes = [BlackBox(content, NUMBERS, classes=["approve", "reject"]) for content in contents]
    return AVCG(from_models(boxes, NUMBERS, deployed=boxes[0]), recipe=SHORT), NUMBERS


def forests(kind=RandomForestClassifier, labels=Y, **settings):
    models = [kind(random_state=i, **settings).fit(NUMBERS[i::3], labels[i::3]) for i in range(3)]
    return AVCG(from_models(models, NUMBERS, deployed=models[0]), recipe=SHORT), NUMBERS


def mean_of_absolutes(x_cf, x):
    return (x_cf - x).abs().mean(dim=-1)


ZOO = {
    "retrains": lambda: (AVCG(retrains(network(), X, NAMES, n=8), recipe=SHORT), X),
    "dropout at a threshold": lambda: (
        AVCG(MCDropout(classifier(dropout=0.3)), threshold=0.4, recipe=SHORT, n_test=np.int64(3)), X
    ),
    "Gaussian dropout": lambda: (
        AVCG(MCDropout(avcg.attach_dropout(network().network_, 0.2, "gaussian"), space=network().space_), recipe=SHORT),
        X,
    ),
    "laplace": lambda: (AVCG(Laplace.fit(network(), X, NAMES), recipe=SHORT, random_state=7), X),
    "rashomon": lambda: (
        AVCG(rashomon_set(MCDropout(classifier(dropout=0.2)), X, NAMES, 0.5, n=6), recipe=SHORT, survival=0.8), X
    ),
    "several architectures": lambda: (AVCG(several_architectures(), recipe=SHORT), X),
    "mixture": lambda: (
        AVCG(Mixture([retrains(network(), X, NAMES, n=4), Laplace.fit(network(), X, NAMES)], [1, 3]), recipe=SHORT), X
    ),
    "one network": lambda: (AVCG(PointMass(network()), recipe=SHORT), X),
    "another model in force": lambda: (
        AVCG(retrains(network(), X, NAMES, n=4), model=classifier(hidden=(3,), schema=None), recipe=SHORT), X
    ),
    "pipelines": lambda: (
        AVCG(retrains(make_pipeline(columns(), LogisticRegression()).fit(X, Y), X, Y, n=4, resampling="bootstrap"),
             recipe=SHORT), X
    ),
    "a calibrated pipeline": lambda: (AVCG(PointMass(calibrated()), recipe=SHORT), X),
    "xgboost": lambda: (
        AVCG(retrains(trees("xgboost").fit(CATEGORIES, Y), CATEGORIES, Y, n=2, resampling="bootstrap"), recipe=SHORT),
        CATEGORIES,
    ),
    "lightgbm": lambda: (
        AVCG(retrains(trees("lightgbm").fit(CATEGORIES, NAMES), CATEGORIES, NAMES, n=2, resampling="bootstrap"), recipe=SHORT),  # noqa: E501
        CATEGORIES,
    ),
    "onnx": onnx_model,
    "forests": lambda: forests(n_estimators=5, max_depth=4),
    "trees that are sure": lambda: forests(DecisionTreeClassifier, NAMES),
    "tables without names": lambda: (
        AVCG(PointMass(BlackBox(DecisionTreeClassifier(max_depth=3, random_state=0).fit(NUMBERS.to_numpy(), Y),
                                NUMBERS.to_numpy())), recipe=SHORT),
        NUMBERS.set_axis(["x0", "x1"], axis=1),
    ),
    "a function": lambda: (AVCG(PointMass(BlackBox(income_rule, X, classes=["no", "yes"])), recipe=SHORT), X),
    "somebody's own networks": lambda: (AVCG(DeepEnsemble(*own_networks()), recipe=SHORT), X),
    "pictures": pictures,
    "the paper's": lambda: (AVCG.paper(MCDropout(classifier(dropout=0.3)), n_test=3).set_params(
        recipe=replace(Recipe.paper(), steps=4, n_hypotheses=5, rows_per_epoch=512, search=SHORT.search,
                       calibration=SHORT.calibration)), X),
    "links": lambda: (
        AVCG(PointMass(classifier(LINKED, schema=Schema.infer(LINKED).link("housing", "deposit"))), recipe=SHORT),
        LINKED,
    ),
    "a number that leads": lambda: (
        AVCG(
            PointMass(classifier(X.assign(years=X["months"] // 12),
                                 schema=Schema.infer(X.assign(years=X["months"] // 12)).link("months", "years"))),
            recipe=SHORT,
        ),
        X.assign(years=X["months"] // 12),
    ),
    "gaps": lambda: (
        AVCG(PointMass(classifier(GAPS, schema=Schema.infer(GAPS).allow_missing("income", "housing"))), recipe=SHORT),
        GAPS,
    ),
    "gaps in a black box": lambda: (
        AVCG(
            PointMass(
                BlackBox(lambda rows: income_rule(rows.fillna({"income": 30})), GAPS.astype({"housing": object}))
            ),
            recipe=SHORT,
        ),
        GAPS.astype({"housing": object}),
    ),
    "a narrower schema": lambda: (
        AVCG(
            retrains(network(), X, NAMES, n=4),
            network().space_.schema.freeze("owns").only_up("income").between("income", 5, 80).at_most(2),
            recipe=SHORT,
        ),
        X,
    ),
    "a narrower space": lambda: (
        AVCG(
            PointMass(network().network_, network().space_.restrict(["income", "housing"], {"income": (0, 70)}, 2)),
            recipe=SHORT,
        ),
        X,
    ),
    "three classes": lambda: (AVCG(PointMass(classifier(labels=np.digitize(X["income"], [35, 50]))), recipe=SHORT), X),
    "truths as labels": lambda: (AVCG(PointMass(classifier(labels=Y == 1)), recipe=SHORT), X),
    "functions of the package": lambda: (
        AVCG(PointMass(network()), recipe=replace(SHORT, risk=risk.CVaR(0.5))), X
    ),
    "functions of one's own": lambda: (
        AVCG(
            PointMass(network()),
            recipe=replace(SHORT, risk=lambda p, w: risk.worst_case(p, w), distance=mean_of_absolutes),
        ),
        X,
    ),
}  # fmt: skip
HANDED_BACK = {
    "forests": 3, "trees that are sure": 3, "tables without names": 1, "a function": 1, "somebody's own networks": 2,
    "gaps in a black box": 1,
}  # fmt: skip


@cache
def made(kind):
    explainer, rows = ZOO[kind]()
    return fitted(explainer, rows), rows[:4]


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A folder for a kind of explainer, and what it left; made once, to be copied by whoever damages it."""

    @cache
    def save(kind):
        path = tmp_path_factory.mktemp("stored") / "artifact"
        return path, made(kind)[0].save(path)

    return save


def contents(path):
    return {one.name: one.read_bytes() for one in sorted(path.iterdir())}


def requests(kind):
    """What is asked of an explainer."""
    if kind == "pictures":
        return [{}, {"n": 2, "vary": np.eye(6, dtype=bool)}]
    if kind not in ("retrains", "xgboost", "dropout at a threshold"):
        return [{}, {"n": 2, "refine": True}] if kind not in HANDED_BACK else [{"n": 2}]
    limits = {"vary": ["income", "housing"], "ranges": {"income": (20, 60)}, "max_changes": 1}
    return [{}, {"n": 3}, {"refine": True}, limits, {**limits, "min_prob": 0.6}]


NO_PICKLE = (
    (pickle, "load"), (pickle, "loads"), (pickle, "dump"), (pickle, "dumps"), (pickle, "Unpickler"),
    (pickle, "Pickler"), (torch, "load"), (torch, "save"), (joblib, "load"), (joblib, "dump"),
)  # fmt: skip


@pytest.mark.parametrize("kind", ZOO)
class TestTheSameBytes:
    def test_a_loaded_explainer_answers_as_the_saved_one(self, kind, stored):
        explainer, rows = made(kind)
        path, left = stored(kind)
        assert len(left) == HANDED_BACK.get(kind, 0)
        loaded = avcg.load(path, model=left)
        for request in requests(kind):
            assert loaded.generate(rows, **request).to_json() == explainer.generate(rows, **request).to_json()
        assert np.array_equal(loaded.decide(rows), explainer.decide(rows))
        assert loaded.classes_.dtype == explainer.classes_.dtype
        assert loaded.calibration_.frontier.equals(explainer.calibration_.frontier)
        assert str(loaded.calibration_) == str(explainer.calibration_)
        assert np.allclose(loaded.diagnostics_, explainer.diagnostics_, equal_nan=True)
        mine, theirs = loaded.generator_.state_dict(), explainer.generator_.state_dict()
        assert all(torch.equal(mine[name], theirs[name]) and not mine[name].is_meta for name in theirs)

    def test_saved_again_it_is_the_same_folder_and_nothing_is_pickled(self, kind, stored, tmp_path, monkeypatch):
        def never(*_, **__):
            raise AssertionError("pickle")

        path, left = stored(kind)
        for home, name in NO_PICKLE:
            monkeypatch.setattr(home, name, never)
        again = avcg.load(path, model=left).save(tmp_path / "again")
        assert len(again) == len(left)
        assert contents(tmp_path / "again") == contents(path)
        for file in path.iterdir():
            assert file.suffix in (".json", ".safetensors", ".onnx", ".xgboost", ".lightgbm")
            assert not reads_as_pickle(file.read_bytes())


def reads_as_pickle(data):
    """Whether all bytes are one pickle: the first few of any file may read as one by chance."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [at for *_, at in pickletools.genops(data)][-1] == len(data) - 1
    except (ValueError, UnicodeDecodeError, OverflowError):
        return False


def test_what_is_pickled_is_recognised():
    assert reads_as_pickle(pickle.dumps(income_rule))
    assert reads_as_pickle(pickle.dumps([1, 2], protocol=0))


class TestALoadedExplainer:
    """All that an explainer can do but answer."""

    def test_is_audited_and_gives_replacements(self, stored):
        explainer, rows = made("retrains")
        loaded = avcg.load(stored("retrains")[0])
        later = classifier(hidden=(4,), random_state=5)
        delivered = explainer.generate(rows)
        found = [audit(delivered, later, recourse=one).to_json() for one in (explainer, loaded)]
        assert found[0] == found[1]
        assert audit(delivered, loaded).summary().equals(audit(delivered, explainer).summary())

    @pytest.mark.parametrize("kind", ["retrains", "xgboost"])
    def test_is_judged_by_others(self, kind, stored):
        explainer, rows = made(kind)
        loaded = avcg.load(stored(kind)[0])
        model = network() if kind == "retrains" else trees(kind).fit(CATEGORIES[::2], Y[::2])
        for one in (explainer, loaded):
            judges = retrains(network(), X, NAMES, n=3) if kind == "retrains" else from_models(
                [model], CATEGORIES, deployed=model, space=one.space_
            )  # fmt: skip
            judged = one.judged_by(judges)
            assert judged.generate(rows).certificate is None
        assert loaded.judged_by(judges).generate(rows).to_json() == explainer.judged_by(judges).generate(rows).to_json()

    def test_one_that_was_judged_by_others_can_be_saved(self, tmp_path):
        explainer, rows = made("retrains")
        rule = BlackBox(income_rule, X, classes=["reject", "approve"])
        asked = BlackBoxPredictors(
            [rule.over(explainer.space_, explainer.classes_)]
        )  # which names the classes in another order
        for judges in (retrains(network(), X, NAMES, n=3), FiniteSet(asked, explainer.space_, explainer.classes_)):
            judged = explainer.judged_by(judges)
            left = judged.save(tmp_path / "judged")
            loaded = avcg.load(tmp_path / "judged", model=left)
            assert loaded.generate(rows).to_json() == judged.generate(rows).to_json()
        assert left == [income_rule]

    @pytest.mark.parametrize("kind", ["retrains", "another model in force"])
    def test_is_refitted_to_new_models(self, kind, stored):
        explainer, rows = made(kind)
        new, found = retrains(network(), X, NAMES, n=5, random_state=5), []
        for one in (explainer, avcg.load(stored(kind)[0])):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found.append(one.refit(new, X, steps=4).generate(rows).to_json())
        assert found[0] == found[1]

    @pytest.mark.parametrize("kind", ["retrains", "the paper's", "xgboost", "functions of the package"])
    def test_says_what_a_single_pass_gives_away(self, kind, stored):
        explainer, rows = made(kind)
        loaded = avcg.load(stored(kind)[0])
        few = {"steps": 1, "n_latents": 2}
        assert loaded.amortization_gap(rows, **few).equals(explainer.amortization_gap(rows, **few))
        deep = Refinement(steps=1)
        assert loaded.generate(rows, refine=deep).to_json() == explainer.generate(rows, refine=deep).to_json()

    def test_says_which_function_of_ones_own_it_lacks(self, stored, tmp_path):
        _, rows = made("functions of one's own")
        loaded = avcg.load(stored("functions of one's own")[0])
        with pytest.raises(SettingError, match=r"trained with '(<lambda>|mean_of_absolutes)', a function of your own"):
            loaded.amortization_gap(rows, steps=1)

    @pytest.mark.parametrize("kind", ["another model in force", "xgboost", "a narrower schema"])
    def test_has_its_settings_and_can_be_cloned(self, kind, stored):
        explainer, rows = made(kind)
        loaded = avcg.load(stored(kind)[0])
        mine, theirs = loaded.get_params(deep=False), explainer.get_params(deep=False)
        for name in ("schema", "threshold", "survival", "recipe", "n_test", "device", "random_state"):
            assert mine[name] == theirs[name], name
        assert (mine["model"] is None) is (theirs["model"] is None)
        copied = clone(loaded)
        assert not hasattr(copied, "is_fitted_")
        with pytest.raises(SettingError, match="Only a fitted explainer"):
            copied.save("nowhere")
        assert len(fitted(copied, CATEGORIES if kind == "xgboost" else X).generate(rows)) == len(rows)

    def test_has_students_and_their_report(self, stored):
        explainer, _ = made("xgboost")
        loaded = avcg.load(stored("xgboost")[0])
        assert loaded.distillation_.report().equals(explainer.distillation_.report())

    def test_an_unfitted_one_cannot_be_saved(self, tmp_path):
        with pytest.raises(SettingError, match="Only a fitted explainer can be saved"):
            AVCG(PointMass(network())).save(tmp_path / "x")
        assert not (tmp_path / "x").exists()

    def test_functions_of_codes_cannot_be_saved(self, tmp_path):
        explainer = copy.copy(made("one network")[0])
        explainer.judges_ = Opaque([lambda x: torch.full((len(x), 2), 0.5)])
        with pytest.raises(SettingError, match="class Opaque hold functions"):
            explainer.save(tmp_path / "x")

    def test_labels_that_are_no_texts_or_numbers_cannot_be_saved(self, tmp_path):
        explainer = copy.copy(made("one network")[0])
        explainer.classes_ = np.array(["2020-01-01", "2021-01-01"], "datetime64[D]")
        with pytest.raises(SettingError, match=r"Labels of dtype datetime64\[D\] cannot be stored"):
            explainer.save(tmp_path / "x")

    def test_training_that_went_astray_can_be_saved(self, tmp_path):
        explainer, _ = made("one network")
        astray = copy.copy(explainer)
        astray.diagnostics_ = explainer.diagnostics_.assign(loss=math.inf, kl=math.nan)
        astray.save(tmp_path / "x")
        assert avcg.load(tmp_path / "x").diagnostics_[["loss", "kl"]].isna().all().all()

    def test_the_threshold_is_the_one_in_force(self, tmp_path):
        explainer, rows = made("dropout at a threshold")
        changed = copy.copy(explainer).set_params(threshold=0.9)  # which takes a new fit to be in force
        changed.save(tmp_path / "x")
        loaded = avcg.load(tmp_path / "x")
        assert loaded.threshold == 0.4
        assert np.array_equal(loaded.decide(rows), explainer.decide(rows))

    def test_a_device_that_is_none_is_a_setting(self, stored):
        with pytest.raises(SettingError, match=r"'device' of AVCG must be one of PyTorch's. Got 'toaster'"):
            avcg.load(stored("one network")[0], device="toaster")
        assert avcg.load(stored("one network")[0], device="cpu:0").device == "cpu:0"

    def test_hypotheses_elsewhere_are_brought_home(self, stored, tmp_path):
        explainer, rows = made("retrains")
        away = copy.copy(explainer)
        away.judges_, away.split_ = OnDevice(explainer.judges_, "cpu"), explainer.split_.on(torch.device("cpu"))
        away.save(tmp_path / "x")
        assert avcg.load(tmp_path / "x").generate(rows).to_json() == explainer.generate(rows).to_json()

    def test_notes_are_kept(self, tmp_path):
        notes = {"by": "someone", 2: [1, None, True], 10: {"share": np.float32(0.5)}}
        made("one network")[0].save(tmp_path / "x", about=notes)
        assert artifact.about(tmp_path / "x") == {"by": "someone", "2": [1, None, True], "10": {"share": 0.5}}
        avcg.load(tmp_path / "x")
        for strange in ({"a": {1, 2}}, {"a": math.nan}, {"a": np.arange(2)}):
            with pytest.raises(SettingError, match="Only texts, finite numbers"):
                made("one network")[0].save(tmp_path / "x", about=strange)
        assert artifact.about(tmp_path / "x")["by"] == "someone"

    @pytest.mark.parametrize(
        ("notes", "says"),
        [
            ({"positive": "maybe"}, "about.positive is 'maybe', which is not a label: there is 'approve', 'reject'"),
            ({"positive": ["approve"]}, r"about.positive is \['approve'\]"),
            ({"dtypes": ["int64"]}, "about.dtypes is"),
            ({"dtypes": {"income": 8}}, "about.dtypes.income is 8"),
            ({"assumption": 3}, "about.assumption is 3"),
        ],
    )
    def test_notes_that_commands_go_by_must_be_what_they_expect(self, stored, tmp_path, notes, says):
        explainer = made("one network")[0]
        with pytest.raises(SettingError, match=says):
            explainer.save(tmp_path / "x", about=notes)
        assert not (tmp_path / "x").exists()
        shutil.copytree(stored("one network")[0], tmp_path / "x")  # as an older avcg would have kept them
        manifest = json.loads((tmp_path / "x" / MANIFEST).read_text())
        sign(tmp_path / "x", {**manifest, "about": notes})
        with pytest.raises(ArtifactError, match=says):
            artifact.about(tmp_path / "x")
        avcg.load(tmp_path / "x")

    def test_a_positive_label_of_numpy_is_as_good(self, tmp_path):
        explainer = made("one network")[0]
        explainer.save(tmp_path / "x", about={"positive": explainer.classes_[0]})
        assert artifact.about(tmp_path / "x") == {"positive": "approve"}

    def test_says_what_it_was_made_with(self, stored):
        manifest = json.loads((stored("one network")[0] / MANIFEST).read_text())
        assert manifest["made_with"]["torch"] == torch.__version__
        assert manifest["made_with"]["avcg"] == avcg.__version__
        assert manifest["version"] == VERSION


class TestModelsHandedBack:
    def test_in_any_order_and_among_others(self, stored):
        for kind in ("forests", "trees that are sure", "somebody's own networks"):
            explainer, rows = made(kind)
            path, left = stored(kind)
            before = explainer.generate(rows).to_json()
            for handed in (left[::-1], (LogisticRegression(), *left[1:], network(), left[0], "no file")):
                assert avcg.load(path, model=handed).generate(rows).to_json() == before

    def test_models_that_say_the_same_of_most_rows_are_told_apart(self, stored):
        """On rows that all models are sure of, trees grown to the end all say 1."""
        path, left = stored("trees that are sure")
        loaded = avcg.load(path, model=left[::-1])
        mine, theirs = (one.judges_.boxes for one in (loaded, made("trees that are sure")[0]))
        assert {id(box.model) for box in mine} == {id(box.model) for box in theirs}
        mine, theirs = (one.judges_.groups[1].members for one in (loaded, made("trees that are sure")[0]))
        assert all(one.model is other.model for one, other in zip(mine, theirs, strict=True))

    def test_without_them_it_says_which(self, stored):
        with pytest.raises(ArtifactError, match=r"cannot be stored: 3 RandomForestClassifier. Pass them again"):
            avcg.load(stored("forests")[0])
        with pytest.raises(ArtifactError, match=r"cannot be stored: function. Pass"):
            avcg.load(stored("a function")[0], model=[])
        with pytest.raises(ArtifactError, match=r"cannot be stored: 2 Own. Hand"):
            avcg.load(stored("somebody's own networks")[0])

    def test_one_missing_is_named(self, stored):
        path, left = stored("forests")
        with pytest.raises(
            ArtifactError,
            match=r"among the 2 passed to load: RandomForestClassifier missing. The probabilities of the closest",
        ):
            avcg.load(path, model=left[:2])

    def test_another_model_is_refused(self, stored):
        path, _ = stored("a function")

        def other(rows):
            return 1 - income_rule(rows)

        with pytest.raises(
            ArtifactError,
            match=r"among the 1 passed to load: function missing. The probabilities of the closest differ",
        ):
            avcg.load(path, model=other)

        def fails(rows):
            raise RuntimeError("out of order")

        tree = DecisionTreeClassifier(random_state=0).fit(NUMBERS, Y)
        for strange in (fails, 3, mlp(2, 2), LogisticRegression(), tree):
            with pytest.raises(ArtifactError, match="among the 1 passed to load: function missing"):
                avcg.load(path, model=strange)

    def test_a_network_that_does_something_else_with_the_same_weights_is_refused(self, stored):
        path, _ = stored("somebody's own networks")
        (other, _), _ = own_networks(temperature=2.0)
        wrong = [other, mlp(2, 2), Own(3), network(), income_rule, nn.Flatten()]
        with pytest.raises(ArtifactError, match="Not all of them are among the 6 passed to load: 2 Own"):
            avcg.load(path, model=wrong)
        (fresh, _), _ = own_networks()
        with torch.no_grad():
            fresh.inner[0].weight.zero_()  # weights come from the file
        explainer, rows = made("somebody's own networks")
        assert avcg.load(path, model=fresh).generate(rows).to_json() == explainer.generate(rows).to_json()

    def test_where_none_is_wanted_none_is_ignored(self, stored):
        with pytest.raises(ArtifactError, match=r"All models of this explainer are stored.*judged_by, or avcg.aud"):
            avcg.load(stored("retrains")[0], model=network())

    def test_a_file_that_is_gone_is_the_callers(self, tmp_path):
        explainer, rows = made("onnx")
        for i, box in enumerate(sorted(explainer.judges_.boxes, key=lambda box: box.model)):
            (tmp_path / f"{i}.onnx").write_bytes(box.model)
        gone, kept = (BlackBox(tmp_path / f"{i}.onnx", NUMBERS, classes=["approve", "reject"]) for i in range(2))
        explainer = fitted(AVCG(from_models([gone, kept], NUMBERS, deployed=kept), recipe=SHORT), NUMBERS)
        content = (tmp_path / "0.onnx").read_bytes()
        (tmp_path / "0.onnx").unlink()
        assert explainer.save(tmp_path / "x") == [tmp_path / "0.onnx"]
        loaded = avcg.load(tmp_path / "x", model=content)
        assert loaded.generate(rows).to_json() == explainer.generate(rows).to_json()

    def test_what_a_library_does_not_store_is_stored_beside(self, tmp_path):
        """A number that XGBoost was told to read as a gap is one of its settings, not of its model."""
        library = pytest.importorskip("xgboost")
        rows = NUMBERS.astype(float)
        rows[::3] = -999.0
        model = library.XGBClassifier(n_estimators=3, max_depth=2, missing=-999.0, n_jobs=1).fit(rows, Y)
        explainer = fitted(AVCG(PointMass(BlackBox(model, rows)), recipe=SHORT), rows)
        assert explainer.save(tmp_path / "x") == []
        (box,) = avcg.load(tmp_path / "x").judges_.boxes
        assert np.array_equal(box.predict_proba(rows), model.predict_proba(rows))
        assert box.model.missing == -999.0


# ---------------------------------------------------------------------------------------------------------------------
# The folder


OLD = ({"format": "avcg.test", "version": 1, "of": "old"}, {"weights.safetensors": b"old" * 99, "model-0.onnx": b"one"})
NEW = ({"format": "avcg.test", "version": 1, "of": "new"}, {"weights.safetensors": b"new" * 77, "model-0.onnx": b"one"})


def read(path):
    manifest, files = read_folder(path, "avcg.test", 1)
    return {name: manifest[name] for name in ("format", "version", "of")}, files


class Interrupted(BaseException):
    """As when the process is told to stop."""


class Interruptions:
    """Everything that touches the disk fails from a certain call on, or at it."""

    def __init__(self, monkeypatch, at, error, *, after, dead):
        self.left, self.error, self.after, self.dead, self.fired = at, error, after, dead, False
        for home, name in (
            (os, "fsync"), (os, "replace"), (os, "unlink"), (os, "open"), (os, "mkdir"), (io, "open"),
        ):  # fmt: skip
            monkeypatch.setattr(home, name, self.around(getattr(home, name)))

    def around(self, function):
        def call(*arguments, **settings):
            if self.fired:
                if self.dead:
                    raise self.error
                return function(*arguments, **settings)
            self.left -= 1
            if self.left >= 0:
                found = function(*arguments, **settings)
                return self.writer(found) if function is IO_OPEN and "x" in str(arguments[1:]) else found
            self.fired = True
            if self.after:
                done = function(*arguments, **settings)
                if hasattr(done, "close"):
                    done.close()
                elif isinstance(done, int):
                    os.close(done)
            raise self.error

        return call

    def writer(self, file):
        whole = file.write

        def write(data):
            self.left -= 1
            if self.left < 0 and not self.fired:
                self.fired = True
                whole(data[: len(data) // 2])
                raise self.error
            return whole(data)

        return _Proxy(file, write)


IO_OPEN = io.open


class _Proxy:
    def __init__(self, file, write):
        self._file, self.write = file, write

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._file.close()


class TestWholeAtEveryMoment:
    @pytest.mark.parametrize("error", [OSError(28, "No space left on device"), Interrupted()], ids=["full", "stopped"])
    @pytest.mark.parametrize("after", [False, True])
    @pytest.mark.parametrize("dead", [False, True])
    @pytest.mark.parametrize("before", ["old", "nothing"])
    def test_an_interrupted_save_leaves_what_was_there_or_what_should_be(self, tmp_path, error, after, dead, before):
        """At the k-th thing done to the disk, for every k, before or after it is done, with or without cleaning up."""
        outcomes = set()
        for k in range(100):
            path = tmp_path / str(k)
            if before == "old":
                write_folder(path, *OLD)
            with pytest.MonkeyPatch.context() as patch:
                interruptions = Interruptions(patch, k, error, after=after, dead=dead)
                try:
                    write_folder(path, *NEW)
                    outcome = "saved"
                except ArtifactError as refusal:
                    outcome = str(refusal).removeprefix(f"{path} ")
                except Interrupted:
                    outcome = "stopped"
            found = None
            if before == "old" or (path / MANIFEST).exists():
                found = read(path)
                assert found in (OLD, NEW)
            if outcome == "saved":
                assert found == NEW
            outcomes.add((outcome, "nothing" if found is None else found[0]["of"]))
            write_folder(path, *NEW)  # the next save cleans up
            assert read(path) == NEW
            assert len(list(path.iterdir())) == 3
            if not interruptions.fired:
                break
        assert k > 10
        assert ("saved", "new") in outcomes
        refusal = "stopped" if isinstance(error, Interrupted) else "cannot be written: No space left on device."
        assert {outcome for outcome, _ in outcomes} == {"saved", refusal}
        assert any(state == ("old" if before == "old" else "nothing") for _, state in outcomes)

    def test_a_killed_process_leaves_a_whole_folder(self, tmp_path):
        """Fifty times, at any moment."""
        code = """
import os, random, signal, sys, time
sys.path.insert(0, sys.argv[2])
from avcg.io.folder import read_folder, write_folder
def content(i):
    return {"format": "avcg.test", "version": 1, "of": i}, {"weights.safetensors": bytes([i]) * 50_000 * (i + 1)}
path, seen = sys.argv[1], set()
write_folder(path, *content(0))
for i in range(50):
    hear, tell = os.pipe()
    child = os.fork()
    if not child:
        while True:
            for j in range(4):
                write_folder(path, *content(j))
                os.write(tell, b".")
    for _ in range(i % 5):
        os.read(hear, 1)
    time.sleep(random.Random(i).uniform(0.0, 0.003))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(hear), os.close(tell)
    manifest, files = read_folder(path, "avcg.test", 1)
    assert files == content(manifest["of"])[1]
    seen.add(manifest["of"])
write_folder(path, *content(0))
print(len(os.listdir(path)), len(seen))
"""
        root = str(Path(avcg.__file__).parent.parent)
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "x"), root], capture_output=True, text=True, check=True
        )
        files, seen = map(int, done.stdout.split())
        assert files == 2
        assert seen > 1

    def test_a_reader_never_sees_a_mix(self, tmp_path):
        path, over_, wrong, count = tmp_path / "x", threading.Event(), [], []
        write_folder(path, *OLD)

        def look():
            while not over_.is_set():
                try:
                    found = read(path)
                    count.append(found[0]["of"])
                    if found not in (OLD, NEW):
                        wrong.append(found)
                except Exception as error:  # it is reported below
                    wrong.append(error)

        readers = [threading.Thread(target=look) for _ in range(2)]
        for reader in readers:
            reader.start()
        for i in range(150):
            write_folder(path, *(NEW, OLD)[i % 2])
        over_.set()
        for reader in readers:
            reader.join()
        assert not wrong
        assert set(count) == {"old", "new"}

    def test_two_saves_at_once_wait_for_each_other(self, tmp_path):
        path, wrong = tmp_path / "x", []

        def save(content):
            try:
                for _ in range(40):
                    write_folder(path, *content)
            except Exception as error:  # it is reported below
                wrong.append(error)

        writers = [threading.Thread(target=save, args=(one,)) for one in (OLD, NEW)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        assert not wrong
        assert read(path) in (OLD, NEW)
        assert len(list(path.iterdir())) == 3

    def test_disks_without_locks_are_written_too(self, tmp_path, monkeypatch):
        def refused(*_):
            raise OSError(95, "Operation not supported")

        monkeypatch.setattr(fcntl, "flock", refused)
        write_folder(tmp_path / "x", *NEW)
        monkeypatch.setattr("avcg.io.folder.fcntl", None)
        write_folder(tmp_path / "x", *OLD)
        assert read(tmp_path / "x") == OLD

    def test_what_cannot_be_removed_does_not_fail_a_save(self, tmp_path, monkeypatch):
        write_folder(tmp_path / "x", *OLD)
        real = os.unlink

        def held(path, **settings):
            if ".part" not in str(path):
                raise PermissionError(13, "in use")
            return real(path, **settings)

        monkeypatch.setattr(os, "unlink", held)
        write_folder(tmp_path / "x", *NEW)
        assert read(tmp_path / "x") == NEW

    def test_what_a_manifest_names_is_on_the_disk_before_it_is(self, tmp_path, monkeypatch):
        """A machine that stops may forget the names of files, and not in order, unless their folder is written too."""
        sync, move, events = os.fsync, os.replace, []

        def synced(handle):
            events.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
            return sync(handle)

        def moved(source, target):
            events.append(Path(target).name.split("-")[0])
            return move(source, target)

        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(os, "replace", moved)
        write_folder(tmp_path / "x", *NEW)
        assert events == ["file", "weights", "file", "model", "folder", "file", MANIFEST, "folder"]

    def test_unchanged_files_are_not_written_again(self, tmp_path):
        write_folder(tmp_path / "x", *OLD)
        (before,) = (tmp_path / "x").glob("model*")
        stamp = before.stat().st_mtime_ns, before.stat().st_ino
        write_folder(tmp_path / "x", *NEW)
        assert (before.stat().st_mtime_ns, before.stat().st_ino) == stamp

    def test_others_may_read_what_the_user_lets_them(self, tmp_path):
        before = os.umask(0o077)
        try:
            write_folder(tmp_path / "x", *OLD)
        finally:
            os.umask(before)
        assert all(file.stat().st_mode & 0o077 == 0 for file in (tmp_path / "x").iterdir())

    @pytest.mark.parametrize("mode", [0o600, 0o400, 0o640])
    def test_what_takes_the_place_of_a_private_file_is_as_private(self, tmp_path, mode):
        place = tmp_path / "answers.csv"
        place.write_text("old")
        place.chmod(mode)
        seen = []
        with beside(place) as half:
            seen.append(stat.S_IMODE(half.stat().st_mode))
            half.write_text("new")
        assert (place.read_text(), stat.S_IMODE(place.stat().st_mode)) == ("new", mode)
        assert seen == [mode | 0o200]  # from the first byte on


class TestOtherPeoplesThings:
    def refused(self, path, match):
        before = contents(path) if path.is_dir() else path.read_bytes()
        with pytest.raises(ArtifactError, match=match):
            write_folder(path, *NEW)
        assert (contents(path) if path.is_dir() else path.read_bytes()) == before

    def test_a_folder_with_other_things_is_refused(self, tmp_path):
        for name in ("notes.txt", "film.part", "photo-0123456789abcdef.JPG", "manifest.json"):
            (tmp_path / name).mkdir()
            (tmp_path / name / name).write_text('{"format": "web"}')
            self.refused(tmp_path / name, "other files in it. Give a new folder")

    def test_a_manifest_that_only_mentions_the_format_is_somebody_elses(self, tmp_path):
        (tmp_path / MANIFEST).write_text('{"about": "avcg.test"}')
        self.refused(tmp_path, "other files")

    def test_a_file_is_refused(self, tmp_path):
        (tmp_path / "x").write_text("mine")
        self.refused(tmp_path / "x", "is a file. Give the name of a folder")
        for inside in (tmp_path / "x" / "y", tmp_path / "x" / "y" / "z"):
            with pytest.raises(ArtifactError, match=r"cannot be written: \S+/x is a file"):
                write_folder(inside, *NEW)

    def test_where_nothing_may_be_written_is_said_before_the_work(self, tmp_path, monkeypatch):
        """By the nearest folder that there is: the others are yet to be made in it."""
        (tmp_path / "kept").mkdir()
        asked = []
        monkeypatch.setattr(os, "access", lambda path, mode: asked.append((path, mode)))
        for folder, nearest in (("kept", "kept"), ("new", "."), ("new/one/in/another", ".")):
            with pytest.raises(ArtifactError, match=f"{folder} cannot be written: there is no permission to write in"):
                check_folder(tmp_path / folder, "avcg.test")
            assert asked.pop() == (tmp_path / nearest, os.W_OK | os.X_OK)
        monkeypatch.chdir(tmp_path / "kept")
        with pytest.raises(ArtifactError, match="x cannot be written"):
            check_folder("x", "avcg.test")
        assert asked.pop()[0] == tmp_path / "kept"

    @pytest.mark.parametrize("what", ["open", "mkdir"])
    def test_a_folder_that_may_not_be_written_is_a_sentence(self, tmp_path, monkeypatch, what):
        def denied(*_, **__):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(*{"open": (io, "open"), "mkdir": (os, "mkdir")}[what], denied)
        with pytest.raises(ArtifactError, match=r"x cannot be written: Permission denied\.$"):
            write_folder(tmp_path / "x", *NEW)

    def test_what_lies_beside_is_left_alone(self, tmp_path):
        write_folder(tmp_path, *OLD)
        (tmp_path / "README.md").write_text("mine")
        (tmp_path / "film.part").write_text("mine too")
        write_folder(tmp_path, *NEW)
        assert read(tmp_path) == NEW
        assert {"README.md", "film.part"} < set(contents(tmp_path))

    def test_a_damaged_one_can_be_saved_over(self, tmp_path):
        write_folder(tmp_path, *OLD)
        for damage in (b"", b"{}", b"\0" * 99):
            (tmp_path / MANIFEST).write_bytes(damage)
            write_folder(tmp_path, *NEW)
            assert read(tmp_path) == NEW

    def test_a_link_or_a_folder_in_a_files_place_is_not_written_into(self, tmp_path):
        write_folder(tmp_path / "x", *NEW)
        (place,) = (tmp_path / "x").glob("weights*")
        data = place.read_bytes()
        place.unlink()
        (tmp_path / "elsewhere").write_bytes(data)
        place.symlink_to(tmp_path / "elsewhere")
        assert read(tmp_path / "x") == NEW  # as caches of files do
        write_folder(tmp_path / "x", *NEW)
        assert not place.is_symlink()
        place.unlink()
        place.mkdir()
        with pytest.raises(ArtifactError, match="cannot be written: Is a directory"):
            write_folder(tmp_path / "x", *NEW)


# ---------------------------------------------------------------------------------------------------------------------
# Damage


@pytest.fixture(params=["one network", "xgboost"])
def broken(request, stored, tmp_path):
    """A copy of an artifact, to be damaged."""
    shutil.copytree(stored(request.param)[0], tmp_path / "x")
    return tmp_path / "x"


def sign(path, manifest):
    """As one who knows how manifests are made."""
    manifest = {name: value for name, value in manifest.items() if name != "sha256"}
    text = json.dumps(manifest, sort_keys=True)
    import hashlib

    manifest["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    (path / MANIFEST).write_text(json.dumps(manifest, indent=1))


def refuses(path, match=None):
    with pytest.raises(ArtifactError, match=match) as refusal:
        avcg.load(path)
    assert len(str(refusal.value)) > 20


class TestDamage:
    def test_nothing_there(self, tmp_path):
        refuses(tmp_path / "nowhere", "There is no folder '.*nowhere'. Give one that AVCG.save or avcg fit wrote")
        refuses(tmp_path, "has no manifest.json. Give a folder")
        (tmp_path / "file").write_text("x")
        refuses(tmp_path / "file", "There is no folder")

    def test_every_file_cut_off_or_gone(self, broken):
        for file in sorted(broken.iterdir()):
            data = file.read_bytes()
            for cut in {0, 1, len(data) // 2, len(data) - 1}:
                file.write_bytes(data[:cut])
                refuses(broken)
            file.write_bytes(data + b"\n")
            refuses(broken)
            file.unlink()
            refuses(broken, "has no manifest.json" if file.name == MANIFEST else "lacks")
            file.mkdir()
            refuses(broken)
            file.rmdir()
            file.symlink_to("nowhere")
            refuses(broken)
            file.unlink()
            file.symlink_to("/dev/zero")
            refuses(broken)
            file.unlink()
            os.mkfifo(file)
            refuses(broken)
            file.unlink()
            file.write_bytes(data)
        avcg.load(broken)

    def test_every_byte_of_the_manifest_counts(self, broken):
        file = broken / MANIFEST
        data = file.read_bytes()
        step = len(data) // 150
        for place in {*range(60), *range(0, len(data), step), *range(len(data) - 20, len(data))}:
            for mask in (1, 0x20, 0x80):
                changed = bytearray(data)
                changed[place] ^= mask
                file.write_bytes(changed)
                refuses(broken)

    def test_every_byte_of_a_file_counts(self, broken):
        for file in broken.iterdir():
            data = file.read_bytes()
            places = {0, 7, 8, 9, 40, len(data) // 3, len(data) // 2, len(data) - 1} if file.name != MANIFEST else {}
            for place in places:
                changed = bytearray(data)
                changed[place] ^= 1
                file.write_bytes(changed)
                refuses(broken, "was changed or truncated")
            file.write_bytes(data)

    @pytest.mark.parametrize(
        ("text", "match"),
        {
            "nothing": ("", "cannot be read"),
            "no JSON": ("{'format': 1}", "cannot be read"),
            "no text": ("\udcff", "cannot be read"),
            "a list": ("[]", "is not a manifest of avcg"),
            "a number": ("1", "is not a manifest of avcg"),
            "deep": ("[" * 100_000, "cannot be read"),
            "deep and whole": ('{"a":' * 50_000 + "1" + "}" * 50_000, "cannot be read|is not a manifest of avcg"),
            "a long number": ("9" * 10_000, "cannot be read"),
            "no format": ('{"version": 1}', "lacks 'format'"),
            "another format": (
                '{"format": "web", "version": 1}',
                "holds 'web', not 'avcg.artifact'. Give a folder that",
            ),
            "a format of another kind": ('{"format": 1, "version": 1}', "is not a manifest of avcg"),
            "a newer one": (
                '{"format": "avcg.artifact", "version": 3}',
                "version 3; this avcg reads version 2. Update",
            ),
            "an older one": (
                '{"format": "avcg.artifact", "version": 1}',
                "version 1; this avcg reads version 2. Fit the explainer again and save it",
            ),
            "version 0": ('{"format": "avcg.artifact", "version": 0}', "format version 0"),
            "a version that is true": (
                '{"format": "avcg.artifact", "version": true}',
                "is not a manifest of avcg: .*True",
            ),
            "no version": ('{"format": "avcg.artifact"}', "lacks 'version'"),
            "NaN": ('{"format": "avcg.artifact", "version": NaN}', "cannot be read"),
            "too large": ('{"format": "avcg.artifact", "version": 1e999}', "cannot be read"),
            "unsigned": ('{"format": "avcg.artifact", "version": 2}', "was changed after it was written"),
        }.values(),
    )
    def test_manifests_that_are_none(self, tmp_path, text, match):
        (tmp_path / MANIFEST).write_text(text, errors="surrogateescape")
        refuses(tmp_path, match)

    def test_the_same_said_otherwise_is_a_change(self, broken):
        file = broken / MANIFEST
        file.write_text(json.dumps(json.loads(file.read_text())))
        refuses(broken, "was changed after it was written. Save the explainer again")

    @pytest.mark.parametrize(
        "entry",
        [
            {"file": "../x/secret"}, {"file": ".."}, {"file": ""}, {"file": "/etc/hostname"}, {"file": "a\0b"},
            {"file": 3}, {"sha256": "0" * 64}, {"sha256": None}, {"sha256": ""}, {"bytes": -1}, {"bytes": "9"},
            {"bytes": True}, {"more": 1},
        ],
    )  # fmt: skip
    def test_files_of_other_folders_are_not_followed(self, broken, entry):
        manifest = json.loads((broken / MANIFEST).read_text())
        manifest["files"]["weights.safetensors"] |= entry
        sign(broken, manifest)
        refuses(broken, "was not written by AVCG.save|was changed or truncated|lacks")

    @pytest.mark.parametrize("name", ["../weights.safetensors", "a/b.onnx", "..", "", ".x", "weights", "Weights.x"])
    def test_names_with_other_folders_in_them_are_refused(self, broken, name):
        manifest = json.loads((broken / MANIFEST).read_text())
        entry = manifest["files"].pop("weights.safetensors")
        stem, _, kind = name.rpartition(".")
        manifest["files"][name] = {**entry, "file": f"{stem}-{entry['sha256'][:16]}.{kind}"}
        sign(broken, manifest)
        refuses(broken, "is not the file name of|was not written by AVCG.save")

    def test_one_file_alone_can_be_read(self, broken):
        manifest = read_manifest(broken, FORMAT, VERSION)
        assert read_file(broken, manifest, "weights.safetensors")[:1]
        assert set(read_folder(broken, FORMAT, VERSION, ["weights.safetensors"])[1]) == {"weights.safetensors"}
        with pytest.raises(ArtifactError, match=r"has no judges.onnx"):
            read_file(broken, manifest, "judges.onnx")


JUNK = [None, True, False, -1, 0, 1, 3, 10**9, 10**30, 1.5, -0.5, "", "x", "<U900000000", [], [1], {}, {"a": 1}]


def places(value, at=()):
    """All places in a value of JSON."""
    yield at
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(inner, (*at, key))


@st.composite
def mutated(draw, manifest):
    """A manifest with one thing in it changed, taken out, doubled or renamed; the deeper parts as often as the rest."""
    manifest = copy.deepcopy(manifest)
    content = {name: value for name, value in manifest.items() if name not in ("sha256", "made_with", "version")}
    by_part = {}
    for at in places(content):
        if at:
            by_part.setdefault((at[0], len(at)), []).append(at)
    at = draw(st.sampled_from(by_part[draw(st.sampled_from(sorted(by_part)))]))
    inside = manifest
    for key in at[:-1]:
        inside = inside[key]
    what = draw(st.sampled_from(["change", "change", "change", "remove", "double", "rename"]))
    if what == "remove":
        del inside[at[-1]]
    elif what == "double" and isinstance(inside, list):
        inside.append(copy.deepcopy(inside[at[-1]]))
    elif what == "rename" and isinstance(inside, dict):
        inside["renamed"] = inside.pop(at[-1])
    else:
        inside[at[-1]] = draw(st.sampled_from(JUNK))
    return manifest


MUTATIONS = {"several architectures": 80, "links": 50, "pictures": 40, "xgboost": 25, "a function": 25}


class TestWritersOfOtherMeans:
    @pytest.mark.parametrize("kind", MUTATIONS)
    def test_a_manifest_made_by_hand_is_refused_or_works(self, kind, stored, tmp_path):
        """Whoever signs anew can change what is answered, but never break what reads it."""
        path, left = stored(kind)
        shutil.copytree(path, tmp_path / "x")
        rows = made(kind)[1][:2]
        honest, refused = json.loads((path / MANIFEST).read_text()), []

        @settings(max_examples=MUTATIONS[kind])
        @over(mutated(honest))
        def check(manifest):
            sign(tmp_path / "x", manifest)
            try:
                loaded = avcg.load(tmp_path / "x", model=left)
            except (ArtifactError, DataError, SchemaError) as error:
                refused.append(str(error))
                return
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                loaded.generate(rows, refine=kind != "pictures").to_json()

        check()
        assert len(refused) > MUTATIONS[kind] // 3
        assert all(len(reason) > 20 for reason in refused)

    def test_a_generator_larger_than_its_numbers_takes_no_room(self, stored, tmp_path):
        shutil.copytree(stored("one network")[0], tmp_path / "x")
        manifest = json.loads((tmp_path / "x" / MANIFEST).read_text())
        for change in ({"layers": [10**6, 10**6]}, {"encoder": [10**9]}, {"layers": [0]}):
            sign(tmp_path / "x", {**manifest, "recipe": {**manifest["recipe"], **change}})
            refuses(tmp_path / "x", "fewer numbers than layers")
        sign(tmp_path / "x", {**manifest, "n_latent": 10**9})
        refuses(tmp_path / "x", "fewer numbers than layers")

    def test_weights_of_another_network_are_refused(self, stored, tmp_path):
        shutil.copytree(stored("one network")[0], tmp_path / "x")
        manifest, files = read_folder(tmp_path / "x", FORMAT, VERSION)
        arrays = read_tensors(files["weights.safetensors"])
        content, refused = {name: value for name, value in manifest.items() if name not in ("files", "sha256")}, []
        for i, (name, array) in enumerate(arrays.items()):
            others = (array[..., None], np.zeros(0, np.float32), None, np.full_like(array, 7), array.astype(np.int32))
            changed = {key: value for key, value in arrays.items() if key != name}
            changed |= {} if (other := others[i % 5]) is None else {name: other}
            write_folder(tmp_path / "x", content, {"weights.safetensors": write_tensors(changed)})
            try:
                avcg.load(tmp_path / "x")
                assert i % 5 >= 3, name  # a number may be another
            except (ArtifactError, DataError):
                refused.append(name)
        assert len(refused) > len(arrays) // 2


# ---------------------------------------------------------------------------------------------------------------------
# Tensors


def file_of(header, body=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + body


def entry(dtype="F32", shape=(1,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


ARRAYS = {
    "float64": np.linspace(0, 1, 6).reshape(2, 3),
    "float32": np.arange(4, dtype=np.float32),
    "float16": np.arange(3, dtype=np.float16),
    "int64": np.array([[-(2**62)]]),
    "int32": np.array([-5, 2**31 - 1], np.int32),
    "uint8": np.arange(3, dtype=np.uint8),
    "bool": np.array([True, False]),
    "of no axes": np.array(3, np.int64),
    "of no axes, true": np.array(True),
    "of no elements": np.zeros((2, 0, 3)),
    "of no elements, true": np.zeros(0, bool),
    "of another order": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "of every second": np.arange(9.0)[::2],
    "not numbers": np.array([np.nan, np.inf, -np.inf, -0.0]),
}


class TestTensors:
    def test_there_and_back_and_as_safetensors_reads_them(self):
        data = write_tensors(ARRAYS)
        mine, theirs = read_tensors(data), their_reader(data)
        assert set(mine) == set(theirs) == set(ARRAYS)
        for name, array in ARRAYS.items():
            for found in (mine[name], theirs[name]):
                assert (found.dtype, found.shape) == (array.dtype, array.shape), name
                assert found.tobytes() == array.tobytes(), name
            assert mine[name].flags.writeable

    @settings(max_examples=60)
    @over(
        st.dictionaries(
            st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__"),
            st.tuples(
                st.sampled_from(["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u1", "?"]),
                st.lists(st.integers(0, 4), max_size=3),
                st.integers(0, 2**32 - 1),
            ),
            max_size=6,
        )
    )
    def test_any_arrays(self, wanted):
        arrays = {
            name: (np.random.default_rng(seed).random(shape) * 100).astype(kind)
            for name, (kind, shape, seed) in wanted.items()
        }
        found = read_tensors(write_tensors(arrays))
        assert set(found) == set(arrays)
        assert all(
            found[name].tobytes() == array.tobytes() and found[name].shape == array.shape
            for name, array in arrays.items()
        )

    @pytest.mark.parametrize(
        "data",
        {
            "nothing": b"",
            "too short": b"1234567",
            "a header as long as the disk": file_of({}, length=2**63),
            "a header that ends after the file": file_of({}, length=3),
            "no JSON": file_of(b"hello"),
            "no text": file_of(b"\xff\xfe\xfd"),
            "deep": file_of(b"[" * 100_000),
            "a list": file_of([]),
            "an entry that is none": file_of({"a": 3}, b"1234"),
            "an entry that lacks something": file_of({"a": {"dtype": "F32", "shape": [1]}}, b"1234"),
            "a dtype that numpy does not have": file_of({"a": entry("BF16", (2,))}, b"1234"),
            "a dtype that is none": file_of({"a": entry("BF17")}, b"1234"),
            "a dtype that is no text": file_of({"a": entry([])}, b"1234"),
            "a shape with nothing": file_of({"a": entry(shape=[-1])}, b"1234"),
            "a shape with two of nothing": file_of({"a": entry(shape=[-1, -1])}, b"1234"),
            "a shape of parts": file_of({"a": entry(shape=[1.0])}, b"1234"),
            "a shape that is true": file_of({"a": entry(shape=[True])}, b"1234"),
            "a shape that is too large": file_of({"a": entry(shape=[2**62, 4])}, b"1234"),
            "an empty shape that is too large": file_of({"a": entry(shape=[0, 10**30], offsets=(0, 0))}),
            "too few bytes": file_of({"a": entry(shape=[2])}, b"1234"),
            "too many bytes": file_of({"a": entry()}, b"12345"),
            "past the end": file_of({"a": entry(offsets=(0, 8), shape=[2])}, b"1234"),
            "before the beginning": file_of({"a": entry(offsets=(-4, 0))}, b"1234"),
            "backwards": file_of({"a": entry(offsets=(4, 0))}, b"1234"),
            "one over another": file_of({"a": entry(), "b": entry()}, b"1234"),
            "one half over another": file_of({"a": entry(), "b": entry(offsets=(2, 6))}, b"123456"),
            "a hole": file_of({"a": entry(), "b": entry(offsets=(8, 12))}, b"1" * 12),
            "twice": file_of(b'{"a": %s, "a": %s}' % ((json.dumps(entry()).encode(),) * 2), b"12345678"),
            "three offsets": file_of({"a": entry(offsets=(0, 4, 4))}, b"1234"),
            "a truth that is two": file_of({"a": entry("BOOL", (1,), (0, 1))}, b"\2"),
            "metadata that is none": file_of({"__metadata__": 3}),
        }.values(),
    )
    def test_bytes_that_are_none(self, data):
        with pytest.raises(ArtifactError, match="not in the safetensors format"):
            read_tensors(data)

    def test_metadata_is_left_alone(self):
        assert read_tensors(file_of({"__metadata__": {"by": "someone"}, "a": entry()}, b"\0\0\x80\x3f")) == {"a": 1.0}


# ---------------------------------------------------------------------------------------------------------------------
# Networks


ACTIVATIONS = (
    nn.ReLU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.LogSigmoid, nn.Mish, nn.SELU, nn.Identity, nn.LeakyReLU, nn.ELU, nn.GELU,
    nn.Softplus, nn.PReLU,
)  # fmt: skip


@st.composite
def stacks(draw, width=3, depth=2):
    """A network from (N, width) to (N, some), of layers that are known."""
    layers = []
    for _ in range(draw(st.integers(1, 4))):
        kinds = ["linear", "norm", "batch", "group", "activation", "dropout", "gaussian", "noise", "softmax", "flat"]
        kind = draw(st.sampled_from(kinds + ["inner", "beside", "mean", "ramps"] * (depth > 0)))
        if kind == "linear":
            out = draw(st.integers(1, 4))
            layers.append(nn.Linear(width, out, bias=draw(st.booleans())))
            width = out
        elif kind == "norm":
            affine = draw(st.booleans())
            layers.append(nn.LayerNorm(width, eps=1e-3, elementwise_affine=affine, bias=draw(st.booleans())))
        elif kind == "batch":
            momentum = draw(st.sampled_from([None, 0.3]))
            layers.append(nn.BatchNorm1d(width, momentum=momentum, affine=draw(st.booleans())))
        elif kind == "group":
            layers.append(nn.GroupNorm(1, width, affine=draw(st.booleans())))
        elif kind == "activation":
            layers.append(draw(st.sampled_from(ACTIVATIONS))())
        elif kind == "softmax":
            layers.append(draw(st.sampled_from([nn.Softmax, nn.LogSoftmax]))(dim=-1))
        elif kind == "flat":
            layers.append(nn.Sequential(nn.Unflatten(-1, (width, 1)), nn.Conv1d(width, 2, 1), nn.Flatten()))
            width = 2
        elif kind in ("dropout", "gaussian"):
            layers.append(nn.Dropout(0.3) if kind == "dropout" else GaussianDropout(0.2))
        elif kind == "noise":
            layers.append(Noise(torch.rand(width)))
        elif kind == "ramps":
            ramps = PiecewiseLinearEncoding(torch.rand(5, width), range(draw(st.integers(0, width))), n_steps=2)
            layers.append(ramps)
            width = ramps.n_outputs
        else:
            members = [draw(stacks(width, depth - 1)) for _ in range(1 if kind == "inner" else 2)]
            with torch.no_grad():
                sizes = [member.eval()(torch.zeros(2, width)).shape[1] for member in members]
            if kind == "mean":
                members, sizes = [members[0], copy.deepcopy(members[0])], [sizes[0]] * 2
                shares = np.array([1.0, draw(st.floats(0.1, 5))])
                layers += [Beside(members), MeanProbability(shares)]
                width = sizes[0]
            else:
                layers.append(members[0] if kind == "inner" else Beside(members))
                width = sum(sizes)
    return nn.Sequential(*layers)


PICTURES = {
    "convolutions": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1, padding_mode="circular", groups=2), nn.BatchNorm2d(4),
        nn.ReLU(inplace=True), nn.MaxPool2d(2, stride=1, ceil_mode=True, dilation=1), nn.Dropout2d(0.1),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.AvgPool2d(3, padding=1, count_include_pad=False), nn.Flatten(), nn.Linear(16, 3),
    ),
    "pooling": lambda: nn.Sequential(
        nn.Conv2d(2, 4, (3, 1), padding="same", dilation=(1, 1), padding_mode="reflect"), nn.GroupNorm(2, 4),
        nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(1), nn.LayerNorm(4), nn.Linear(4, 2),
    ),
    "a painter": lambda: nn.Sequential(nn.Upsample(size=(8, 8), mode="bilinear", align_corners=True), nn.Flatten()),
    "a network of the package": lambda: cnn((2, 6, 6), 3, (3, 4), dropout=0.2),
}  # fmt: skip


def anew(make):
    """Built with first weights from a stream of its own."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        return make()


def there_and_back(network):
    description = json.loads(json.dumps(describe(network)))
    state = read_tensors(write_tensors({name: value.numpy() for name, value in network.state_dict().items()}))
    return build(description, {name: torch.from_numpy(value) for name, value in state.items()})


def shake(network):
    """Weights and buffers that are not those of a fresh layer."""
    rng = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for value in [*network.parameters(), *network.buffers()]:
            if value.is_floating_point():
                value.copy_(0.1 + torch.rand(value.shape, generator=rng))
    return network.eval()


class TestNetworks:
    @settings(max_examples=80)
    @over(st.data())
    def test_stacks_of_known_layers_come_back(self, data):
        network = shake(anew(lambda: data.draw(stacks())))
        network = network.double() if data.draw(st.booleans()) else network
        x = torch.linspace(-1, 1, 12, dtype=next(network.parameters(), torch.zeros(1)).dtype).view(4, 3)
        again = there_and_back(network)
        assert repr(again).replace(", inplace=True", "") == repr(network).replace(", inplace=True", "")
        with torch.no_grad():
            try:
                said = network(x)
            except RuntimeError:  # a half of it may have been made a double, which a mask is not
                return
            assert torch.equal(again(x), said)
        assert not any(value.is_meta for value in [*again.parameters(), *again.buffers()])
        assert not any(value.requires_grad for value in again.parameters())
        assert not again.training

    @pytest.mark.parametrize("kind", PICTURES)
    def test_networks_of_pictures_come_back(self, kind):
        network = shake(anew(PICTURES[kind]))
        x = torch.linspace(-2, 2, 2 * 2 * 36).view(2, 2, 6, 6)
        with torch.no_grad():
            assert torch.equal(there_and_back(network)(x), network(x))

    def test_an_embedding_comes_back(self):
        network = shake(anew(lambda: nn.Embedding(5, 3, max_norm=0.5)))
        with torch.no_grad():
            assert torch.equal(there_and_back(network)(torch.arange(5)), network(torch.arange(5)))

    def test_what_is_more_than_its_layers_is_not_described(self):
        class Louder(nn.Linear):
            def forward(self, x):
                return 2 * super().forward(x)

        shared, hooked, patched, own = anew(lambda: [nn.Linear(3, 3) for _ in range(4)])
        hooked.register_forward_hook(lambda *_: None)
        patched.forward = lambda x: x
        tied = anew(lambda: nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
        tied[1].weight = tied[0].weight
        for network in (
            nn.Sequential(shared, nn.ReLU(), shared), tied, nn.Sequential(hooked), nn.Sequential(patched),
            anew(lambda: Louder(3, 3)), anew(lambda: nn.Sequential(nn.Linear(3, 3), Own(3))),
            anew(lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3))), nn.Sequential(own, nn.Hardtanh()),
        ):  # fmt: skip
            assert describe(network) is None
        relu = nn.ReLU()
        assert describe(nn.Sequential(own, relu, nn.Dropout(), relu)) is not None

    @pytest.mark.parametrize(
        "description",
        [
            {}, {"layer": "Nonsense"}, {"layer": "Module"}, {"layer": ["Linear"]}, {"layer": "Linear"},
            {"layer": "Linear", "in_features": 3, "out_features": 3},
            {"layer": "Linear", "in_features": 3, "out_features": 2, "bias": True, "code": 1},
            {"layer": "Linear", "in_features": 10**9, "out_features": 10**9, "bias": True},
            {"layer": "Linear", "in_features": 10**30, "out_features": 2, "bias": True},
            {"layer": "Linear", "in_features": "3", "out_features": 2, "bias": True},
            {"layer": "Dropout", "p": 7}, {"layer": "Sequential"}, {"layer": "Sequential", "children": []},
            {"layer": "Sequential", "children": {"a.b": {"layer": "ReLU"}}}, {"layer": "Noise", "shape": [10**12]},
            {"layer": "Sequential", "children": {"": {"layer": "ReLU"}}}, {"layer": "Noise", "shape": [-1]},
            {"layer": "PiecewiseLinearEncoding", "n_inputs": 10**12, "n_steps": 10**12},
            {"layer": "MeanProbability", "members": 10**12},
            {"layer": "MeanProbability", "members": -1}, {"layer": "ReLU"},
        ],
    )  # fmt: skip
    def test_descriptions_that_are_none(self, description):
        state = {"weight": torch.ones(2, 3), "bias": torch.ones(2)}
        with pytest.raises(ArtifactError, match="cannot be restored"):
            build(description, state)

    def test_a_network_that_is_more_than_it_seems_is_handed_back(self):
        """A layer with a buffer too many is described as it looks, and found out."""
        network = mlp(3, 2, (4,))
        network[0].register_buffer("more", torch.ones(1))
        network[1].forward = lambda x: x
        probe = torch.linspace(-1, 1, 12).view(4, 3)
        packer = Packer(probe, None)
        assert packer.add("x", Stacked(network, {}))["kind"] == "stacked"
        assert packer.not_stored == [packer_network(packer)]

    def test_short_numbers_are_kept(self):
        network, probe = mlp(3, 2, (4,)).bfloat16(), torch.linspace(-1, 1, 12).view(4, 3)
        one = Stacked(network, {"0.weight": torch.stack([network[0].weight, -network[0].weight])})
        packer = Packer(probe, None)
        packed = packer.add("x", one)
        unpacker = Unpacker(
            {"networks": packer.networks, "boxes": [], "frames": []}, packer.arrays, {}, space=None,
            classes=np.arange(2), returned=[],
        )  # fmt: skip
        assert torch.equal(unpacker.get("x", packed).log_probs(probe), one.log_probs(probe))

    def test_what_sets_share_is_kept_once(self):
        network, probe = mlp(3, 2, (4,)), torch.linspace(-1, 1, 12).view(4, 3)
        packer = Packer(probe, None)
        both = Joined([Stacked(network, {}), Stacked(copy.deepcopy(network), {})])
        packer.add("x", both)
        packer.add("y", both.subset(torch.tensor([1, 0])))
        assert len(packer.networks) == 1
        other = copy.deepcopy(network)
        with torch.no_grad():
            other[0].bias.add_(1.0)
        packer.add("z", Stacked(other, {}))
        assert len(packer.networks) == 2


def packer_network(packer):
    (network,) = packer.not_stored
    return network


# ---------------------------------------------------------------------------------------------------------------------
# Spaces


class TestSpaces:
    @settings(max_examples=60)
    @over(tables(), st.sampled_from(["standard", "minmax"]))
    def test_any_table_comes_back(self, table, scaling):
        space = TabularSpace.fit(table.schema, table.frame, scaling)
        said, arrays = pack_encoding(space.encoding, space.feasible.links)
        assert pack_limits(space.encoding, space.feasible) == {}
        encoding, feasible = unpack_encoding(json.loads(json.dumps(said)), read_tensors(write_tensors(arrays)))
        again = TabularSpace(encoding, feasible)
        assert again.schema == space.schema
        assert same(again.encoding, space.encoding)
        assert same(again.feasible, space.feasible)
        x = space.encode(table.frame)
        assert torch.equal(again.encode(table.frame), x)
        wish = torch.from_numpy(np.random.default_rng(0).normal(size=x.shape).astype(np.float32))
        assert torch.equal(again.project(wish, x), space.project(wish, x))

    @settings(max_examples=30)
    @over(tables(), st.data())
    def test_a_narrower_space_stays_narrow(self, table, data):
        space = TabularSpace.fit(table.schema, table.frame)
        movable = space.feasible.movable(space.encoding)[0]
        free = [name for name, moves in zip(table.schema.names, movable, strict=True) if moves]
        vary = data.draw(st.lists(st.sampled_from(free), unique=True)) if free else None
        narrow = space.restrict(vary, at_most=data.draw(st.none() | st.integers(0, 2)))
        said, arrays = pack_encoding(narrow.encoding, narrow.feasible.links)
        arrays |= pack_limits(narrow.encoding, narrow.feasible)
        again = TabularSpace(*unpack_encoding(said, read_tensors(write_tensors(arrays))))
        assert same(again.feasible, narrow.feasible)

    def test_arrays_of_other_columns_are_refused(self):
        rows = LINKED.assign(years=X["months"] // 12)
        schema = Schema.infer(rows).link("housing", "deposit").link("months", "years")
        space = TabularSpace.fit(schema, rows).restrict(["income"], at_most=1)
        said, arrays = pack_encoding(space.encoding, space.feasible.links)
        arrays |= pack_limits(space.encoding, space.feasible)
        unpack_encoding(said, arrays)
        for name, array in arrays.items():
            for other in (array[..., None], array.astype(np.uint8), np.concatenate([array, array]), None):
                changed = {key: value for key, value in arrays.items() if key != name}
                changed |= {} if other is None else {name: other}
                if other is None and name.startswith("limits."):
                    continue
                with pytest.raises(ArtifactError, match="is missing, or of another shape"):
                    unpack_encoding(said, changed)
        for wrong in ({}, {**said, "scaling": "log"}, {**said, "schema": 3}, {**said, "kind": "images"}):
            with pytest.raises(ArtifactError, match="These are no columns"):
                unpack_encoding(wrong, arrays)


def same(one, other):
    """Whether two records hold the same, arrays and records within them too."""
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, "__dataclass_fields__") and not isinstance(one, Schema):
        return all(same(getattr(one, name), getattr(other, name)) for name in one.__dataclass_fields__)
    return one == other


@pytest.mark.parametrize(
    ("value", "pattern", "wrong"),
    [
        (1, int, None), (True, int, "it is True"), (1, float, None), (True, float, "it is True"),
        (1.5, int, "it is 1.5"), (True, bool, None), (None, object, None), (None, (int, None), None),
        (10**30, int, f"it is {10**30}"), (10**30, float, f"it is {10**30}"), (1e30, float, None),
        ("a", ("a", "b"), None), (0, (False,), "it is 0"), ([1, 2], [int], None), ([], [int], None),
        ([1, "2"], [int], "it[1] is '2'"), ([1], [int, int], "it is [1]"), ([1, 2], [int, int], None),
        ({}, [int], "it is {}"), ({"a": 1}, {"a": int}, None), ({}, {"a": int}, "it lacks 'a'"),
        ({"a": 1, "b": 2}, {"a": int}, "it has 'b'"), ({"a": 1, "b": 2}, {"a": int, ...: int}, None),
        ({}, {"a?": int}, None), ({"a": "x"}, {"a?": int}, "it.a is 'x'"), ([], {}, "it is []"),
        ({"a": {"b": [{}]}}, {"a": {"b": [{"c": int}]}}, "it.a.b[0] lacks 'c'"),
    ],
)  # fmt: skip
def test_patterns(value, pattern, wrong):
    assert validate(value, pattern) == wrong
