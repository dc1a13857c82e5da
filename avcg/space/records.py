"""Rows given as dictionaries, as exact values and back; numpy alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from avcg.schema.features import Categorical, Continuous
from avcg.space.encoding import Encoding, Flags, Values, is_gap


def values_of(encoding: Encoding, rows: Sequence[Mapping[str, Any]]) -> Values:
    """Exact values of rows that have been encoded, and so are known to fit."""
    numbers = [[np.nan if is_gap(v := row[f.name]) else float(v) for f in encoding.numeric] for row in rows]
    choices = [[_choice(feature, row[feature.name]) for feature in encoding.categorical] for row in rows]
    return Values(
        np.array(numbers, np.float64).reshape(len(rows), -1), np.array(choices, np.intp).reshape(len(rows), -1)
    )


def _choice(feature: Categorical, value: Any) -> int:
    return len(feature.categories) if is_gap(value) else feature.position(value)


def written(
    encoding: Encoding, row: Mapping[str, Any], values: Values, differs: Flags, at: int
) -> tuple[dict[str, Any], dict[str, tuple[Any, Any]]]:
    """A whole answer as plain values, and what of it is new."""
    answer, changed = dict(row), {}
    for j in np.flatnonzero(differs).tolist():
        feature, place = encoding.schema.features[j], encoding.place[j]
        if isinstance(feature, Continuous):
            number = float(values.numbers[at, place])
            whole_number = number.is_integer() and (isinstance(row[feature.name], int) or feature.decimals == 0)
            value: Any = int(number) if whole_number and feature.step else number
        else:
            value = feature.categories[values.choices[at, place]]
        answer[feature.name], changed[feature.name] = value, (row[feature.name], value)
    return answer, changed
