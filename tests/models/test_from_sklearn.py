"""Fitted scikit-learn models as networks: the same predictions."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, make_column_selector, make_column_transformer
from sklearn.decomposition import PCA
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, RidgeClassifier, SGDClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    RobustScaler,
    StandardScaler,
)
from sklearn.svm import LinearSVC
from sklearn_models import MODELS, TEST, TRAIN, columns, people, usual

from avcg import AVCG, DeepEnsemble, PointMass, Recipe, Schema, TabularSpace, datasets
from avcg.errors import PromiseWarning, SettingError
from avcg.hypotheses.predictors import Stacked
from avcg.models.affine import schema_with_gaps
from avcg.models.batched import plan_of
from avcg.models.sklearn import from_sklearn


def thousands(rows):
    return rows / 1000.0 - 1.0


PREPROCESSING = {
    "usual": usual(),
    "min-max, gaps flagged, first dropped": columns(
        make_pipeline(SimpleImputer(strategy="median", add_indicator=True), MinMaxScaler()),
        OneHotEncoder(drop="first", sparse_output=False),
    ),
    "robust, rare ones together": columns(
        make_pipeline(SimpleImputer(strategy="constant", fill_value=-1), RobustScaler()),
        OneHotEncoder(drop="if_binary", min_frequency=0.05, handle_unknown="infrequent_if_exist"),
    ),
    "max-abs, ordinal": columns(
        make_pipeline(MaxAbsScaler(), SimpleImputer(strategy="most_frequent")),
        OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-2),
    ),
    "texts imputed": columns(
        make_pipeline(SimpleImputer(), StandardScaler()),
        make_pipeline(
            FunctionTransformer(lambda rows: rows.astype(object).where(rows.notna(), np.nan)),
            SimpleImputer(strategy="constant", fill_value="nobody knows", add_indicator=False),
            FunctionTransformer(lambda rows: rows.astype(str)),
            OneHotEncoder(handle_unknown="ignore"),
        ),
    ),
    "components": Pipeline(
        [
            ("columns", columns(make_pipeline(SimpleImputer(), StandardScaler()), OneHotEncoder(sparse_output=False))),
            ("nothing", "passthrough"),
            ("components", PCA(5, whiten=True)),
        ]
    ),
    "frames": columns(
        make_pipeline(SimpleImputer(), StandardScaler()), OneHotEncoder(sparse_output=False)
    ).set_output(transform="pandas"),
    "thousands, some left as they are": ColumnTransformer(
        [
            ("thousands", make_pipeline(SimpleImputer(), FunctionTransformer(thousands)), ["income", "hours"]),
            ("c", OneHotEncoder(), ["job", "grade"]),
            ("gone", "drop", ["city"]),
            ("scaled", StandardScaler(), ["age"]),
        ],
        remainder="passthrough",
    ),
    "by dtype": make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), make_column_selector(dtype_include="number")),
        (OneHotEncoder(max_categories=3), make_column_selector(dtype_exclude="number")),
    ),
}  # fmt: skip
# These have encoders that refuse what they have not seen, such as a city that no row has.
STRICT = ("min-max, gaps flagged, first dropped", "components", "frames", "by dtype")
CASES = [
    *[(name, "logistic", classes) for name in PREPROCESSING for classes in (2, 3)],
    *[("usual", name, classes) for name in MODELS for classes in (2, 3) if name not in ("logistic", "liblinear")],
    ("usual", "liblinear", 2),
    ("components", "relu", 3),
    ("frames", "svc", 3),
    ("max-abs, ordinal", "tanh", 2),
    ("min-max, gaps flagged, first dropped", "calibrated perceptron", 3),
    ("by dtype", "vote", 2),
]


def check(converted, model, X):
    """Probabilities are the model's to 1e-5, and gradients are numbers."""
    assert np.abs(converted.predict_proba(X) - model.predict_proba(X)).max() <= 1e-5
    assert converted.classes_.tolist() == model.classes_.tolist()
    clear = np.diff(np.sort(model.predict_proba(X), axis=1)[:, -2:], axis=1)[:, 0] > 1e-4
    assert (converted.predict(X) == converted.classes_[model.predict_proba(X).argmax(axis=1)])[clear].all()
    x = converted.space_.encode(X).requires_grad_()
    converted.network_(x).log_softmax(dim=-1)[:, 0].sum().backward()
    assert torch.isfinite(x.grad).all()
    assert x.grad.abs().sum() > 0


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(("before", "last", "classes"), CASES)
def test_predictions_are_the_models(before, last, classes):
    X, y = people(classes)
    if before in STRICT:
        X["city"] = X["city"].cat.remove_unused_categories()
    model = make_pipeline(clone(PREPROCESSING[before]), clone(MODELS[last])).fit(X[TRAIN], y[TRAIN])
    converted = from_sklearn(model, X[TRAIN])
    check(converted, model, X[TEST])


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("ensemble", [True, False])
def test_a_calibration_around_pipelines_has_preprocessing_of_its_own_in_each(classes, ensemble):
    X, y = people(classes)
    inside = make_pipeline(usual(), LinearSVC(C=0.1, random_state=0))
    model = CalibratedClassifierCV(inside, cv=3, ensemble=ensemble).fit(X[TRAIN], y[TRAIN])
    check(from_sklearn(model, X[TRAIN]), model, X[TEST])


def test_a_frozen_estimator_is_the_one_inside():
    X, y = people()
    inside = make_pipeline(usual(), SGDClassifier(random_state=0)).fit(X[:200], y[:200])
    model = CalibratedClassifierCV(FrozenEstimator(inside)).fit(X[200:300], y[200:300])
    check(from_sklearn(model, X[TRAIN]), model, X[TEST])


@pytest.mark.skipif("temperature" not in CalibratedClassifierCV.__doc__, reason="new in scikit-learn 1.8")
@pytest.mark.parametrize("classes", [2, 3])
def test_a_temperature(classes):
    X, y = people(classes)
    model = make_pipeline(usual(), CalibratedClassifierCV(LogisticRegression(), method="temperature", cv=2))
    model.fit(X[TRAIN], y[TRAIN])
    check(from_sklearn(model, X[TRAIN]), model, X[TEST])


@pytest.mark.skipif("multi_class" not in LogisticRegression().get_params(), reason="gone in scikit-learn 1.8")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("kind", "solver"), [("multinomial", "lbfgs"), ("ovr", "lbfgs"), ("auto", "liblinear")])
@pytest.mark.parametrize("classes", [2, 3])
def test_every_way_in_which_logistic_regression_had_several_classes(kind, solver, classes):
    X, y = people(classes)
    last = LogisticRegression(solver=solver, random_state=0).set_params(multi_class=kind)
    model = make_pipeline(usual(), last).fit(X[TRAIN], y[TRAIN])
    check(from_sklearn(model, X[TRAIN]), model, X[TEST])


def test_the_network_is_a_plain_stack_of_layers():
    """Preprocessing is folded into the first layer, so that hypotheses are run by batched products."""
    X, y = people(3)
    for last, kinds in (
        (LogisticRegression(), ["Linear"]),
        (SGDClassifier(loss="log_loss", random_state=0), ["Linear", "LogSigmoid"]),
        (CalibratedClassifierCV(RidgeClassifier(), cv=2, ensemble=False), ["Linear", "LogSigmoid"]),
    ):
        network = from_sklearn(make_pipeline(usual(), last).fit(X, y), X).network_
        assert [type(layer).__name__ for layer in network] == kinds
        assert plan_of(network) is not None
        assert not network.training


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64])
def test_tables_of_numbers(dtype):
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(400, 4)) * [1, 10, 100, 1000] + [0, 5, 2000, 0]).astype(dtype)
    y = (X[:, 0] + X[:, 1] / 10 > 0.5).astype(int)
    for model in (LogisticRegression(max_iter=3000, C=0.1), make_pipeline(StandardScaler(), LogisticRegression())):
        model.fit(X[:200], y[:200])
        converted = from_sklearn(model, X[:200])
        assert converted.space_.schema.names == ("x0", "x1", "x2", "x3")
        assert np.abs(converted.predict_proba(X[200:]) - model.predict_proba(X[200:].astype(float))).max() <= 1e-5
        assert converted.predict(X).dtype == y.dtype


def test_a_table_of_numbers_with_gaps():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    X[rng.random(X.shape) < 0.2] = np.nan
    y = np.nan_to_num(X[:, 0]) > 0
    model = make_pipeline(SimpleImputer(add_indicator=True), StandardScaler(), LogisticRegression()).fit(X, y)
    check_array = from_sklearn(model, X)
    assert np.abs(check_array.predict_proba(X) - model.predict_proba(X)).max() <= 1e-5
    assert check_array.classes_.tolist() == [False, True]


def test_a_bare_estimator_on_a_frame_of_numbers_and_booleans():
    X, y = people(gaps=False)
    X = X[["age", "member", "rate", "visits"]]
    model = LogisticRegression(max_iter=1000).fit(X[TRAIN], y[TRAIN])
    check(from_sklearn(model, X[TRAIN]), model, X[TEST])


def test_polars():
    X, y = people()
    frame = pl.DataFrame(
        {name: [None if pd.isna(value) else value for value in X[name].tolist()] for name in X.columns}
    )
    frame = frame.with_columns(pl.col("city").cast(pl.Enum(["Bonn", "Köln", "Ulm"])), pl.col("rate").cast(pl.Float32))
    model = make_pipeline(usual(), LogisticRegression()).fit(frame[:300], y[:300])
    converted = from_sklearn(model, frame[:300])
    check(converted, model, frame[300:])
    assert converted.space_.schema["grade"].missing == "category"


def test_codes_that_the_schema_calls_categories():
    """One-hot numbers are not affine; said to be categories, they are read exactly."""
    X, y = people()
    X["visits"] = X["age"] % 4
    model = make_pipeline(
        make_column_transformer((OneHotEncoder(), ["visits", "job"]), (StandardScaler(), ["age"])), LogisticRegression()
    ).fit(X[TRAIN], y[TRAIN])
    with pytest.raises(SettingError, match=r"column 'visits' .* Schema.infer\(X, kinds=\{'visits': 'categorical'\}\)"):
        from_sklearn(model, X[TRAIN])
    schema = schema_with_gaps(X).allow_missing("age")
    kinds = Schema.infer(X, kinds={"visits": "categorical"}).allow_missing("income", "hours", "city", "grade")
    assert schema["visits"].kind == "whole number"
    check(from_sklearn(model, X[TRAIN], kinds), model, X[TEST])


def test_what_the_rows_do_not_have_is_written():
    """On a space that knows more than the rows: a category, a gap in every kind of column, and a number that moves."""
    X, y = people()
    model = make_pipeline(usual(), LogisticRegression()).fit(X[TRAIN], y[TRAIN])
    schema = Schema.infer(X).allow_missing(*X.columns)
    space = TabularSpace.fit(schema, X)
    few = X[TRAIN][(X[TRAIN]["job"] == "clerk") & X[TRAIN][["income", "hours", "city"]].notna().all(axis=1)]
    few = few.assign(visits=1, rate=np.float32(2.5))
    converted = from_sklearn(model, few, space=space)
    assert converted.space_ is space
    assert np.abs(converted.predict_proba(X[TEST]) - model.predict_proba(X[TEST])).max() <= 1e-5
    wider = X.astype({"age": float, "visits": float, "member": object, "job": object})
    gap = wider.iloc[:1].mask(np.ones((1, len(X.columns)), bool))
    gap["grade"] = pd.Series([None], gap.index, dtype=object)
    assert np.abs(converted.predict_proba(gap) - model.predict_proba(gap)).max() <= 1e-5


def test_the_model_and_the_rows_stay_as_they_were():
    X, y = people()
    model = make_pipeline(usual(), LogisticRegression()).fit(X, y)
    before, rows = model.predict_proba(X), X.copy()
    from_sklearn(model, X)
    assert (model.predict_proba(X) == before).all()
    pd.testing.assert_frame_equal(X, rows)


@pytest.fixture(scope="module")
def retrained():
    X, y = people()
    rng = np.random.default_rng(0)
    models = []
    for _ in range(4):
        chosen = rng.integers(0, 300, 300)
        models.append(make_pipeline(usual(), LogisticRegression()).fit(X.iloc[chosen], y[chosen]))
    space = TabularSpace.fit(schema_with_gaps(X), X[TRAIN])
    return X, models, [from_sklearn(model, X[TRAIN], space=space) for model in models]


class TestHypotheses:
    def test_retrains_on_one_space_are_one_stack(self, retrained):
        X, models, converted = retrained
        ensemble = DeepEnsemble(converted)
        assert type(ensemble.predictors) is Stacked
        found = ensemble.predictors.log_probs(converted[0].space_.encode(X[TEST])).exp()
        for model, each in zip(models, found, strict=True):
            assert np.abs(each.detach().numpy() - model.predict_proba(X[TEST])).max() <= 1e-5

    def test_a_point_mass(self, retrained):
        _, _, converted = retrained
        alone = PointMass(converted[0])
        assert alone.space is converted[0].space_
        assert alone.classes.tolist() == ["deny", "grant"]

    def test_averages_go_into_an_ensemble_too(self):
        X, y = people(3)
        models = [
            make_pipeline(usual(), CalibratedClassifierCV(RidgeClassifier(alpha), cv=2)).fit(X[TRAIN], y[TRAIN])
            for alpha in (0.1, 10.0)
        ]
        first = from_sklearn(models[0], X[TRAIN])
        ensemble = DeepEnsemble([first, from_sklearn(models[1], X[TRAIN], space=first.space_)])
        found = ensemble.predictors.log_probs(first.space_.encode(X[TEST])).exp()
        for model, each in zip(models, found, strict=True):
            assert np.abs(each.detach().numpy() - model.predict_proba(X[TEST])).max() <= 1e-5

    def test_answers_are_what_the_pipeline_says(self, retrained):
        X, models, converted = retrained
        with pytest.warns(PromiseWarning, match="needs 9 models held back for calibration"):
            recourse = AVCG(DeepEnsemble(converted[1:]), model=converted[0], n_test=0, recipe=Recipe(steps=60)).fit(
                X[TRAIN]
            )
        denied = X[TEST][models[0].predict(X[TEST]) == "deny"].head(5)
        answers = recourse.generate(denied)
        said = models[0].predict(answers.frame[list(X.columns)])
        assert (said == "grant").all()


@st.composite
def pipelines(draw):
    """A table of random columns, and a pipeline on it whose coefficients are random."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, parts = 30, {}
    for j in range(draw(st.integers(1, 3))):
        scale, offset = 10.0 ** draw(st.integers(-4, 5)), draw(st.floats(-1e3, 1e3))
        values = rng.normal(size=n) * scale + offset
        parts[f"n{j}"] = values.round().astype(np.int64) if draw(st.booleans()) else values
        if draw(st.booleans()):
            parts[f"n{j}"] = np.where(rng.random(n) < 0.2, np.nan, parts[f"n{j}"])
    for j in range(draw(st.integers(0, 3))):
        kinds = draw(st.sampled_from([["a", "b", "c", "d"], ["only"], [True, False], [3, 1, 2]]))
        values = pd.Series(rng.choice(kinds, n))
        dtype = draw(st.sampled_from(["category", "object"])) if kinds[0] == 3 or draw(st.booleans()) else None
        parts[f"c{j}"] = (values if dtype is None else values.astype(dtype)).to_numpy() if dtype != "category" else (
            pd.Categorical(values)
        )  # fmt: skip
    X = pd.DataFrame(parts)
    numbers, choices = ([name for name in X if name[0] == kind] for kind in "nc")
    before = make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), numbers), (OneHotEncoder(), choices)
    )
    classes = draw(st.integers(2, 4))
    model = make_pipeline(before, LogisticRegression(max_iter=1)).fit(X, np.arange(n) % classes)
    last = model[-1]
    last.coef_, last.intercept_ = (3 * rng.normal(size=part.shape) for part in (last.coef_, last.intercept_))
    kinds = {name: "categorical" for name in choices if X[name].dtype == object and 3 in X[name].tolist()}
    gaps = [name for name in numbers if X[name].isna().any()]
    return X, model, Schema.infer(X, kinds=kinds).allow_missing(*gaps)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@settings(max_examples=40)
@given(pipelines())
def test_random_pipelines(case):
    X, model, schema = case
    check(from_sklearn(model, X, schema), model, X)


@pytest.mark.parametrize("name", ["heart", "adult"])
def test_published_data(name):
    if not datasets.available(name):
        pytest.skip(f"the files of {name} are not at hand; set AVCG_DATA to their directory")
    data = datasets.load(name, download=False)
    X, y = data.X[:3000], data.y[:3000]
    numbers = [column for column in X if pd.api.types.is_numeric_dtype(X[column])]
    before = make_column_transformer(
        (StandardScaler(), numbers), remainder=OneHotEncoder(handle_unknown="ignore", drop="if_binary")
    )
    model = make_pipeline(before, LogisticRegression(max_iter=500)).fit(X, y)
    check(from_sklearn(model, X, data.schema), model, X)
