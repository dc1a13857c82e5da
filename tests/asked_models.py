"""Models that can only be asked, on loans; and a recipe that is short enough for them."""

import warnings
from functools import cache

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder
from sklearn.tree import DecisionTreeClassifier

from avcg import BlackBox, Recipe, Schema, toys
from avcg.method.config import CalibrationConfig, DiagnosticsConfig, DistillationConfig, SearchConfig

TOY = toys.loans(n=300)
Y = TOY.y
NUMBERS = TOY.X[["income", "months"]]
# Every kind of column, with one that follows another.
X = TOY.X.assign(
    housing=TOY.X["housing"].astype("category"), deposit=TOY.X["housing"].map({"own": 2, "rent": 1, "free": 0})
)
SCHEMA = Schema.infer(X).only_up("months").forbid("housing", "own", "rent").freeze("owns").link("housing", "deposit")
# Students of small trees on a toy need a part of what others need.
SHORT = Recipe(
    steps=80,
    layers=(32, 32),
    search=SearchConfig(retry_neighbours=8, retry_margins=(0.0, 1.5)),
    calibration=CalibrationConfig(
        n_margins=3, min_rows=30, refine_rows=9, n_refined=2
    ),
    diagnostics=DiagnosticsConfig(rows=50),
    distillation=DistillationConfig(
        rounds=2, attempts=300, first_epochs=20, later_epochs=8, first_learning_rate=5e-3, later_learning_rate=2e-3,
        batch_size=128, crossed_rows=500,
    ),
)  # fmt: skip


@cache
def tree_of_numbers():
    return DecisionTreeClassifier(max_depth=4, random_state=0).fit(NUMBERS, Y)


def fitted(explainer, rows):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so short a training may not keep its promise
        return explainer.fit(rows)


def columns(kind=OrdinalEncoder):
    encoder = kind(**({"handle_unknown": "ignore"} if kind is OneHotEncoder else {}))
    return make_column_transformer((encoder, ["housing", "rating"]), remainder="passthrough")


def boosted(kind):
    if kind == "tree":
        return make_pipeline(columns(), DecisionTreeClassifier(max_depth=4, random_state=0))
    if kind == "boosting":
        return HistGradientBoostingClassifier(
            max_iter=12, max_depth=3, categorical_features="from_dtype", random_state=0
        )
    library = pytest.importorskip(kind)
    if kind == "lightgbm":
        return library.LGBMClassifier(n_estimators=12, max_depth=3, min_child_samples=5, n_jobs=1, verbose=-1)
    return library.XGBClassifier(n_estimators=12, max_depth=3, enable_categorical=True, n_jobs=1)


def income_rule(rows):
    return 1 / (1 + np.exp(-(rows["income"].to_numpy() - 50) / 5))


def constant(value):
    return lambda rows: np.tile(value, (len(rows), 1))


def box(model=income_rule, rows=NUMBERS, **options):
    return lambda: BlackBox(model, rows, **options)


def recount(model, explainer, delivered):
    """Statuses and certificates once more, by the models' own predict on the rows handed out."""
    target = np.repeat(delivered.target, delivered.n)
    valid = model.predict(delivered.frame) == target
    parts = [part for part in (explainer.split_.calibration, explainer.split_.test) if part is not None]
    votes = [one.model.predict(delivered.frame) == target for part in parts for one in part.members]
    agreeing, n = sum(votes), len(votes)
    np.testing.assert_array_equal(delivered.certificate.agreeing, agreeing)
    np.testing.assert_array_equal(delivered.certificate.agreeing_test, sum(votes[n - len(explainer.split_.test) :]))
    assert delivered.certificate.n == n > 0
    assert n < 20, "a promise of 0.95 needs all of them"
    already = np.repeat(model.predict(delivered.factuals) == delivered.target, delivered.n)
    expected = np.select([already, ~valid, agreeing < n], ["already_target", "not_found", "not_robust"], "ok")
    assert (delivered.statuses == expected).all()
    places = pd.Index(model.classes_).get_indexer(pd.Index(target))
    of_target = model.predict_proba(delivered.frame)[np.arange(len(target)), places]
    np.testing.assert_allclose(delivered.probability, of_target, atol=1e-7)
