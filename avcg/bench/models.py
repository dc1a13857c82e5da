"""Black-box models: functions that take training rows and a seed and return an estimator that is not fitted yet.

A protocol names one by its path, such as ``model = "avcg.bench.models:xgboost"``.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from avcg.errors import MissingExtraError
from avcg.schema.schema import Schema

_TREES = 200


def xgboost(X: pd.DataFrame, seed: int) -> Any:  # noqa: ARG001  other models use the rows
    """A gradient boosting classifier of XGBoost.

    Args:
        X: Training rows.
        seed: Seed of training.
    """
    try:
        from xgboost import XGBClassifier
    except ImportError:
        raise MissingExtraError("xgboost-cpu", "trees", "This protocol") from None
    return XGBClassifier(
        n_estimators=_TREES, max_depth=5, learning_rate=0.1, enable_categorical=True, n_jobs=1, random_state=seed
    )


def lightgbm(X: pd.DataFrame, seed: int) -> Any:  # noqa: ARG001  other models use the rows
    """A gradient boosting classifier of LightGBM.

    Args:
        X: Training rows.
        seed: Seed of training.
    """
    try:
        from lightgbm import LGBMClassifier
    except ImportError:
        raise MissingExtraError("lightgbm", "trees", "This protocol") from None
    return LGBMClassifier(n_estimators=_TREES, verbose=-1, n_jobs=1, random_state=seed)


def random_forest(X: pd.DataFrame, seed: int) -> Any:
    """A random forest of scikit-learn on one-hot codes.

    Args:
        X: Training rows.
        seed: Seed of training.
    """
    from sklearn.compose import make_column_transformer
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    categorical = X.select_dtypes("category").columns.tolist()
    encoder = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), categorical), remainder="passthrough")
    return make_pipeline(encoder, RandomForestClassifier(_TREES, min_samples_leaf=2, random_state=seed))


def as_categories(X: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """Rows whose categorical columns have the categorical dtype of pandas, with categories in the schema's order.

    Args:
        X: Rows in user units.
        schema: Schema of the rows.
    """
    dtypes = {feature.name: pd.CategoricalDtype(list(feature.categories)) for feature in schema.categorical}
    return X.astype(dtypes)
