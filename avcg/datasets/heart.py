"""Heart Disease (Cleveland): whether a patient has a narrowed coronary artery."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from avcg.datasets.base import ReadFile, Specification
from avcg.datasets.fetch import Source
from avcg.schema.schema import Schema

_COLUMNS = "age sex cp trestbps chol fbs restecg thalach exang oldpeak slope ca thal num".split()
_CODES = ("sex", "cp", "fbs", "restecg", "exang", "slope", "thal")  # numbers that stand for categories


def _read(read_file: ReadFile) -> tuple[pd.DataFrame, NDArray[Any]]:
    content = io.BytesIO(read_file("processed.cleveland.data"))
    X = pd.read_csv(content, names=_COLUMNS, na_values="?").dropna()
    y = np.where(X.pop("num") > 0, "disease", "healthy").astype(object)
    return X.astype({name: int for name in X.columns if name != "oldpeak"}).reset_index(drop=True), y


def _schema(X: pd.DataFrame) -> Schema:
    kinds = dict.fromkeys(_CODES, "categorical") | {"oldpeak": "continuous"}
    return Schema.infer(X, kinds=kinds).freeze("age", "sex")


SPECIFICATION = Specification(
    name="heart",
    title="Heart Disease (Cleveland)",
    rows=297,
    classes=("healthy", "disease"),
    citation="Janosi, A., Steinbrunn, W., Pfisterer, M. and Detrano, R. (1989). Heart Disease. UCI Machine Learning"
    " Repository. https://doi.org/10.24432/C52P4X",
    licence="CC BY 4.0",
    note="The 297 complete rows of 303, codes as published; disease is any of the grades 1 to 4. Age and sex are"
    " frozen.",
    read=_read,
    schema=_schema,
    sources=(
        Source(
            path="processed.cleveland.data",
            sha256="a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
            url="https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/processed.cleveland.data",
        ),
    ),
)
