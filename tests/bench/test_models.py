"""The black-box models of protocols: each is retrained, asked as compiled trees or as a network, and answers."""

import importlib.util
import warnings

import numpy as np
import pytest

from avcg import retrains, toys
from avcg.bench import models
from avcg.bench.models import as_categories

TREES = {
    "xgboost": "xgboost",
    "lightgbm": "lightgbm",
    "random_forest": "sklearn",
    "hist_gradient_boosting": "sklearn",
    "catboost": "catboost",
}


@pytest.fixture(scope="module")
def loans():
    found = toys.loans(n=300)
    X = as_categories(found.X, found.schema).drop(columns="owns")  # XGBoost takes no booleans as categories
    return X, np.asarray(found.y)


@pytest.mark.parametrize("name", [*TREES, "logistic"])
def test_every_model_is_retrained_and_asked_quickly(name, loans, monkeypatch):
    if not importlib.util.find_spec(TREES.get(name, "sklearn")):
        pytest.skip(f"{TREES[name]} is not installed")
    monkeypatch.setattr(models, "_TREES", 5)
    X, y = loans
    model = getattr(models, name)(X, 0).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hypotheses = retrains(model, X, y, n=2, n_jobs=1)
    assert (model.predict(X) == y).mean() > 0.6
    predictors = hypotheses.predictors
    assert predictors.differentiable if name == "logistic" else predictors.thresholds()


def test_without_categories_there_is_nothing_to_encode(loans):
    X, y = loans
    numbers = X.select_dtypes("number")
    for name in ("hist_gradient_boosting", "random_forest", "logistic"):
        assert getattr(models, name)(numbers, 0).fit(numbers, y).predict(numbers).shape == y.shape
