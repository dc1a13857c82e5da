"""Answers as dictionaries; numpy alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from avcg.schema.features import Continuous
from avcg.space.dummies import flags_of_positions, like_flag
from avcg.space.encoding import Encoding, Flags, Values
from avcg.space.reading import entry_of_rows


def answer_as_dict(
    encoding: Encoding, row: Mapping[str, Any], values: Values, changed: Flags, at: int
) -> tuple[dict[str, Any], dict[str, tuple[Any, Any]]]:
    """An answer as a dictionary, and its changes.

    Args:
        encoding: The columns.
        row: The factual.
        values: Exact values of the answers.
        changed: (features,) which cells of this answer differ from the factual.
        at: Which of the answers.

    Returns:
        The answer, every column a Python value; and by feature (before, after).
    """
    answer, changes = dict(row), {}
    for j in np.flatnonzero(changed).tolist():
        feature, i = encoding.schema.features[j], encoding.kind_index[j]
        if isinstance(feature, Continuous):
            number = float(values.numbers[at, i])
            whole_number = number.is_integer() and (isinstance(row[feature.name], int) or feature.decimals == 0)
            value: Any = int(number) if whole_number and feature.step else number
        else:
            value = feature.categories[values.choices[at, i]]
            if feature.columns is not None:
                flags = flags_of_positions(feature, values.choices[at : at + 1, i])[0].tolist()
                answer |= {name: _flag(new, row[name]) for name, new in zip(feature.columns, flags, strict=True)}
                changes[feature.name] = (entry_of_rows(feature, [row])[0], value)
                continue
        answer[feature.name], changes[feature.name] = value, (row[feature.name], value)
    return answer, changes


def _flag(new: float, before: object) -> Any:
    """The flag of an answer: the row's own cell where it says the same, else of that cell's type."""
    return before if before == new else like_flag(bool(new), before)
