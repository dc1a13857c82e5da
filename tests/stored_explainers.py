"""Explainers of every kind that can be stored, each fitted once and briefly; and how their folders are damaged."""

import json
import warnings
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier
from torch import nn

import avcg
from avcg import (
    AVCG,
    BlackBox,
    Classifier,
    DeepEnsemble,
    ImageSpace,
    Laplace,
    MCDropout,
    Mixture,
    PointMass,
    Recipe,
    Schema,
    TabularSpace,
    from_models,
    from_sklearn,
    rashomon_set,
    retrains,
    risk,
    toys,
)
from avcg.io.folder import MANIFEST
from avcg.method.config import CalibrationConfig, DiagnosticsConfig, DistillationConfig, SearchConfig
from avcg.models.networks import cnn, mlp

TOY = toys.loans(n=160)
X, Y = TOY.X, TOY.y
NAMES = np.where(Y == 1, "approve", "reject")
NUMBERS = X[["income", "months"]]
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
    search=SearchConfig(retry_neighbours=4, retry_margins=(0.0, 1.5), rescue_rounds=(1, 2, 4)),
    calibration=CalibrationConfig(
        n_margins=2, min_rows=20, refine_rows=4, n_refined=2
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
    return Classifier(**{"hidden": (8,), "epochs": 120, **settings}).fit(rows, labels)


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


@cache
def made(kind):
    explainer, rows = ZOO[kind]()
    return fitted(explainer, rows), rows[:4]


def contents(path):
    return {one.name: one.read_bytes() for one in sorted(path.iterdir())}


def sign(path, manifest):
    """As one who knows how manifests are made."""
    manifest = {name: value for name, value in manifest.items() if name != "sha256"}
    text = json.dumps(manifest, sort_keys=True)
    import hashlib

    manifest["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    (path / MANIFEST).write_text(json.dumps(manifest, indent=1))


def entry(dtype="F32", shape=(1,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}
