"""Rows of a CSV file as the service takes them, for people to choose from."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from avcg.errors import DataError, enumerate_some
from avcg.features import Categorical, Feature
from avcg.refusals import check_names
from avcg.schema import Schema

_GAPS = ("", "NA", "NaN", "nan", "null", "None")


def read_examples(path: str | Path, schema: Schema, limit: int = 50) -> list[dict[str, Any]]:
    """The first rows of a file, the columns of the schema alone.

    Args:
        path: A CSV file whose first line names the columns, in any order; others are left out.
        schema: What the columns are.
        limit: How many rows are read.

    Raises:
        DataError: If there is no such file, or it lacks a column, or a cell cannot be read.
    """
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            lines = csv.DictReader(file)
            there = list(lines.fieldnames or ())
            check_names([name for name in there if name in schema.names], schema.names)
            rows = [line for line, _ in zip(lines, range(limit), strict=False)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"The examples in {path} cannot be read: {error}.") from None
    if not rows:
        raise DataError(f"There are no rows in {path}.")
    return [{feature.name: _cell(feature, row[feature.name]) for feature in schema.features} for row in rows]


def _cell(feature: Feature, text: str | None) -> Any:
    """A cell as the schema has it; None where there is nothing and the column may have gaps."""
    word = (text or "").strip()
    if isinstance(feature, Categorical):
        known = {str(value): value for value in feature.categories}
        if text in known:
            return known[text]
        same = {name.lower(): value for name, value in known.items()}
        if word.lower() in same:  # true as well as True
            return same[word.lower()]
    if word in _GAPS and feature.missing != "error":
        return None
    if isinstance(feature, Categorical):
        known_words = enumerate_some(map(str, feature.categories), 12)
        raise DataError(f"Column {feature.name!r} has no category {word!r}. It knows: {known_words}.")
    try:
        number = float(word)
    except ValueError:
        raise DataError(f"Column {feature.name!r} holds numbers. Got {word!r} instead.") from None
    return int(number) if feature.step is not None and number.is_integer() else number
