"""Answers as dictionaries; numpy alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from avcg.schema.features import Continuous
from avcg.space.encoding import Encoding, Flags, Values


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
