"""The paper's reading of a table as numbers only: words are dummies, numeric codes are numbers, nothing is frozen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd

from avcg.schema.features import Categorical, Continuous
from avcg.schema.schema import Schema
from avcg.space.dummies import flags_of_positions
from avcg.space.frames import category_positions


@dataclass(frozen=True, eq=False)
class NumericReading:
    """The conversion of a frame to one of floats, and of any such frame back to proper rows.

    Attributes:
        original: Schema of the original columns.
        low: Lowest value of each numeric column in the training rows.
        high: Highest value of each numeric column in the training rows.
        schema: Schema of the frame of floats, in which every column is a number that may move within the training
            range.

    >>> X = pd.DataFrame({"job": ["a", "b", "a"], "hours": [10, 20, 40]})
    >>> reading = NumericReading.fit(Schema.infer(X), X)
    >>> list(reading.flatten(X).columns)
    ['job=a', 'job=b', 'hours']
    >>> reading.restore(pd.DataFrame({"job=a": [0.4], "job=b": [0.5], "hours": [33.3]})).to_dict("list")
    {'job': ['b'], 'hours': [33]}
    """

    original: Schema
    low: pd.Series[float]
    high: pd.Series[float]
    schema: Schema

    @classmethod
    def fit(cls, schema: Schema, X: pd.DataFrame) -> Self:
        """Learn the ranges of numeric columns.

        Args:
            schema: Schema of the original columns. Categories that are numbers stay one column of numbers.
            X: Training rows without missing values.
        """
        names = [name for feature in schema.features for name in _columns(feature)]
        numeric = [feature for feature in schema.features if not _is_words(feature)]
        numbers = pd.DataFrame({feature.name: _values(X, feature).astype(float) for feature in numeric})
        return cls(schema, numbers.min(), numbers.max(), Schema(tuple(Continuous(name) for name in names)))

    def flatten(self, X: pd.DataFrame) -> pd.DataFrame:
        """A frame with one column for each number, and a column of 0 and 1 for each word.

        Args:
            X: Rows with the original columns.
        """
        parts: dict[str, pd.Series[float]] = {}
        for feature in self.original.features:
            if isinstance(feature, Categorical) and _is_words(feature):
                for word in feature.categories:
                    parts[f"{feature.name}={word}"] = (_values(X, feature) == word).astype(float)
            else:
                parts[feature.name] = _values(X, feature).astype(float)
        return pd.DataFrame(parts, index=X.index)

    def restore(self, flat: pd.DataFrame) -> pd.DataFrame:
        """The nearest proper rows: the word with the largest dummy, the nearest numeric code, numbers on their grid.

        Args:
            flat: Rows with the columns that `flatten` makes.
        """
        parts: dict[str, object] = {}
        for feature in self.original.features:
            name = feature.name
            if isinstance(feature, Categorical):
                if _is_words(feature):
                    values = np.asarray(feature.categories, object)
                    nearest = flat[list(_columns(feature))].to_numpy().argmax(axis=1)
                else:
                    values, codes = np.asarray(feature.categories), np.asarray(feature.categories, float)
                    nearest = np.abs(flat[name].to_numpy()[:, None] - codes).argmin(axis=1)
                if feature.columns is None:
                    parts[name] = values[nearest]
                else:
                    parts |= dict(zip(feature.columns, flags_of_positions(feature, nearest).T.astype(int), strict=True))
            else:
                parts[name] = self._number(feature, flat[name])
        return pd.DataFrame(parts, index=flat.index)

    def _number(self, feature: Continuous, values: pd.Series[float]) -> pd.Series[Any]:
        """Values moved to the nearest point of the column's grid within the training range."""
        low, high, step = self.low[feature.name], self.high[feature.name], feature.step
        if step is None:
            return values.clip(low, high)
        number = (values / step).round().clip(np.ceil(low / step - 1e-9), np.floor(high / step + 1e-9))
        return number.astype(int) if step == 1 else (number * step).round(feature.decimals)


def _values(X: pd.DataFrame, feature: Categorical | Continuous) -> pd.Series[Any]:
    """The values of a feature, of several columns the categories that they hold."""
    if isinstance(feature, Continuous) or feature.columns is None:
        return X[feature.name]
    return pd.Series(np.asarray(feature.categories, object)[category_positions(X, feature)], index=X.index)


def _is_words(feature: Categorical | Continuous) -> bool:
    """Whether a column has categories that are words, and not only numbers."""
    return isinstance(feature, Categorical) and any(isinstance(value, str) for value in feature.categories)


def _columns(feature: Categorical | Continuous) -> list[str]:
    """The names of the columns of floats that a column becomes."""
    if isinstance(feature, Categorical) and _is_words(feature):
        return [f"{feature.name}={word}" for word in feature.categories]
    return [feature.name]
