"""Spambase: whether an e-mail is spam, from how often words and characters occur in it."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from avcg.datasets.base import ReadFile, Specification
from avcg.datasets.fetch import Source
from avcg.schema.schema import Schema

_WORDS = (
    "make address all 3d our over remove internet order mail receive will people report addresses free business email"
    " you credit your font 000 money hp hpl george 650 lab labs telnet 857 data 415 85 technology 1999 parts pm direct"
    " cs meeting original project re edu table conference"
).split()
_FRACTIONS = [
    *(f"word_freq_{word}" for word in _WORDS),
    *(f"char_freq_{char}" for char in ";([!$#"),
    "capital_run_length_average",
]
_COUNTS = ["capital_run_length_longest", "capital_run_length_total"]


def _read(read_file: ReadFile) -> tuple[pd.DataFrame, NDArray[Any]]:
    X = pd.read_csv(io.BytesIO(read_file("spambase.data")), names=[*_FRACTIONS, *_COUNTS, "spam"])
    return X, np.where(X.pop("spam") == 1, "spam", "ham").astype(object)


def _schema(X: pd.DataFrame) -> Schema:
    return Schema.infer(X, kinds=dict.fromkeys(_FRACTIONS, "continuous"))


SPECIFICATION = Specification(
    name="spambase",
    title="Spambase",
    rows=4601,
    classes=("ham", "spam"),
    citation="Hopkins, M., Reeber, E., Forman, G. and Suermondt, J. (1999). Spambase. UCI Machine Learning Repository."
    " https://doi.org/10.24432/C53G6X",
    licence="CC BY 4.0",
    note="All 4,601 rows, 391 of them exact duplicates of an earlier one, sorted by class as published.",
    read=_read,
    schema=_schema,
    sources=(
        Source(
            path="spambase.data",
            sha256="b1ef93de71f97714d3d7d4f58fc9f718da7bbc8ac8a150eff2778616a8097b12",
            url="https://archive.ics.uci.edu/ml/machine-learning-databases/spambase/spambase.data",
        ),
    ),
)
