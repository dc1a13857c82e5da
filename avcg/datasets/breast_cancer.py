"""Breast Cancer Wisconsin (Diagnostic): whether a tumour is malignant, from measurements of its cells."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from avcg.datasets.base import ReadFile, Specification
from avcg.schema.schema import Schema

_CLASSES = ("malignant", "benign")


def _read(_: ReadFile) -> tuple[pd.DataFrame, NDArray[Any]]:
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer(as_frame=True)
    return bunch.data, np.array(_CLASSES, object)[bunch.target.to_numpy()]


def _schema(X: pd.DataFrame) -> Schema:
    # All columns are measurements, even if one held whole numbers by chance.
    return Schema.infer(X, kinds=dict.fromkeys(X.columns, "continuous"))


SPECIFICATION = Specification(
    name="breast_cancer",
    title="Breast Cancer Wisconsin (Diagnostic)",
    rows=569,
    classes=_CLASSES,
    citation="Wolberg, W., Mangasarian, O., Street, N. and Street, W. (1993). Breast Cancer Wisconsin (Diagnostic). UCI"
    " Machine Learning Repository. https://doi.org/10.24432/C5DW2B",
    licence="CC BY 4.0",
    note="Embedded in scikit-learn: 30 measurements of 569 tumours.",
    read=_read,
    schema=_schema,
    included_in="scikit-learn",
)
