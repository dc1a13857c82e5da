"""Black-box models: functions that take training rows and a seed and return an estimator that is not fitted yet.

A protocol names one by its path, such as ``model = "avcg.bench.models:xgboost"``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
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

    one_hot = OneHotEncoder(handle_unknown="ignore")
    encoder = make_column_transformer((one_hot, _categorical(X)), remainder="passthrough")
    return make_pipeline(encoder, RandomForestClassifier(_TREES, min_samples_leaf=2, random_state=seed))


def hist_gradient_boosting(X: pd.DataFrame, seed: int) -> Any:
    """A gradient boosting classifier of scikit-learn on histograms, which splits by sets of categories.

    Args:
        X: Training rows.
        seed: Seed of training.
    """
    from sklearn.compose import make_column_transformer
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OrdinalEncoder

    categorical = _categorical(X)
    encoder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan)
    columns = make_column_transformer((encoder, categorical), remainder="passthrough")
    first = list(range(len(categorical)))  # the encoder's columns come first
    return make_pipeline(
        columns, HistGradientBoostingClassifier(max_iter=_TREES, categorical_features=first or None, random_state=seed)
    )


def catboost(X: pd.DataFrame, seed: int) -> Any:
    """A gradient boosting classifier of CatBoost on one-hot codes, which can be compiled.

    Args:
        X: Training rows.
        seed: Seed of training.
    """
    from sklearn.compose import make_column_transformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    try:
        from catboost import CatBoostClassifier
    except ImportError:
        raise MissingExtraError("catboost", "trees", "This protocol") from None
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    columns = make_column_transformer((encoder, _categorical(X)), remainder="passthrough")
    model = CatBoostClassifier(
        iterations=_TREES, allow_writing_files=False, verbose=0, thread_count=1, random_seed=seed
    )
    return make_pipeline(columns, model)


def logistic(X: pd.DataFrame, seed: int) -> Any:
    """A logistic regression of scikit-learn on scaled numbers and one-hot codes.

    Args:
        X: Training rows.
        seed: Seed of training.
    """
    from sklearn.compose import make_column_transformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    categorical = _categorical(X)
    numeric = [name for name in X.columns if name not in categorical]
    columns = make_column_transformer(
        (StandardScaler(), numeric), (OneHotEncoder(handle_unknown="ignore"), categorical)
    )
    return make_pipeline(columns, LogisticRegression(max_iter=2000, random_state=seed))


def _categorical(X: pd.DataFrame) -> list[str]:
    """The names of the columns with the categorical dtype of pandas."""
    return X.select_dtypes("category").columns.tolist()


def as_categories(X: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """Rows whose categorical columns have the categorical dtype of pandas, with categories in the schema's order.

    Args:
        X: Rows in user units.
        schema: Schema of the rows.
    """
    own = [feature for feature in schema.categorical if feature.columns is None]
    dtypes = {feature.name: pd.CategoricalDtype(list(feature.categories)) for feature in own}
    return X.astype(dtypes)
