"""Adult Income: whether a person in the US census of 1994 earned more than 50,000 dollars a year."""

from __future__ import annotations

import io
from typing import Any

import pandas as pd
from numpy.typing import NDArray

from avcg.datasets.base import ReadFile, Specification
from avcg.datasets.fetch import Source
from avcg.schema.features import Categorical
from avcg.schema.schema import Schema

_URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult"
_COLUMNS = (
    "age workclass fnlwgt education education-num marital-status occupation relationship race sex capital-gain"
    " capital-loss hours-per-week native-country income"
).split()


def _read(read_file: ReadFile) -> tuple[pd.DataFrame, NDArray[Any]]:
    parts = [
        pd.read_csv(
            io.BytesIO(read_file(path)), names=_COLUMNS, skipinitialspace=True, skiprows=skip, keep_default_na=False
        )
        for path, skip in (("adult.data", 0), ("adult.test", 1))
    ]
    X = pd.concat(parts, ignore_index=True)
    return X, X.pop("income").str.rstrip(".").to_numpy(object)


def _schema(X: pd.DataFrame) -> Schema:
    schema = (
        # 99999 stands for any larger gain too. It is a number here, as in published results on these data.
        Schema.infer(X, kinds={"capital-gain": "integer"})
        .link("education-num", "education")
        .cost("education-num", per_change=1.0)  # people see both columns change
        .freeze("age", "sex", "race", "native-country", "fnlwgt")
    )
    for feature in schema.features:
        if isinstance(feature, Categorical) and "?" in feature.categories and feature.change == "any":
            # An unknown occupation is a fact about a row, not advice to a person.
            schema = schema.allow(feature.name, [value for value in feature.categories if value != "?"])
    return schema


SPECIFICATION = Specification(
    name="adult",
    title="Adult Income",
    rows=48842,
    classes=("<=50K", ">50K"),
    citation="Becker, B. and Kohavi, R. (1996). Adult. UCI Machine Learning Repository."
    " https://doi.org/10.24432/C5XW20",
    licence="CC BY 4.0",
    note="Both files, 32,561 and then 16,281 rows, with '?' kept as a category that no answer moves to. Age, sex, race,"
    " native-country and the survey weight fnlwgt are frozen; education and education-num change together.",
    read=_read,
    schema=_schema,
    sources=(
        Source(
            path="adult.data",
            sha256="5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
            url=f"{_URL}/adult.data",
        ),
        Source(
            path="adult.test",
            sha256="a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
            url=f"{_URL}/adult.test",
        ),
    ),
)
