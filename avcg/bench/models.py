"""Models that people bring, by the names that protocols may use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from avcg.errors import MissingExtraError
from avcg.schema.schema import Schema

_TREES = 200


def _xgboost(X: pd.DataFrame, seed: int) -> Any:  # noqa: ARG001
    try:
        from xgboost import XGBClassifier
    except ImportError:
        raise MissingExtraError("xgboost-cpu", "trees", "This protocol") from None
    return XGBClassifier(
        n_estimators=_TREES, max_depth=5, learning_rate=0.1, enable_categorical=True, n_jobs=1, random_state=seed
    )


def _lightgbm(X: pd.DataFrame, seed: int) -> Any:  # noqa: ARG001
    try:
        from lightgbm import LGBMClassifier
    except ImportError:
        raise MissingExtraError("lightgbm", "trees", "This protocol") from None
    return LGBMClassifier(n_estimators=_TREES, verbose=-1, n_jobs=1, random_state=seed)


def _random_forest(X: pd.DataFrame, seed: int) -> Any:
    from sklearn.compose import make_column_transformer
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    texts = X.select_dtypes("category").columns.tolist()
    encoder = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), texts), remainder="passthrough")
    return make_pipeline(encoder, RandomForestClassifier(_TREES, min_samples_leaf=2, random_state=seed))


# From training rows and a seed to an estimator that is not fitted yet.
MODELS: Mapping[str, Callable[[pd.DataFrame, int], Any]] = {
    "xgboost": _xgboost,
    "lightgbm": _lightgbm,
    "random_forest": _random_forest,
}


def as_categories(X: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """Columns of categories in the dtype that boosted trees read as such, in the schema's order."""
    kinds = {one.name: pd.CategoricalDtype(list(one.categories)) for one in schema.categorical}
    return X.astype(kinds)
