"""Checks that a part leaves global random streams and the rows of its caller unchanged."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import sklearn.model_selection  # noqa: F401  importing it draws from Python's stream, so it is imported before
import torch


@contextmanager
def streams_untouched(part: str) -> Iterator[None]:
    """Assert that the block does not change the global random streams of Python, numpy and PyTorch.

    Args:
        part: Name of what runs in the block, for the error message.

    Raises:
        AssertionError: If a stream was changed. The message names it.
    """
    before = _states()
    yield
    after = _states()
    touched = [name for name in before if before[name] != after[name]]
    assert not touched, f"{part} touched the global stream of {', '.join(touched)}"


def same_rows(rows: Any, others: Any) -> bool:
    """Whether two frames or arrays have the same type, dtypes and values; missing values are equal to each other."""
    if isinstance(rows, np.ndarray):
        return rows.dtype == others.dtype and np.array_equal(rows, others, equal_nan=rows.dtype.kind == "f")
    return type(rows) is type(others) and bool(rows.equals(others))


def _states() -> dict[str, int]:
    _, keys, position, *_ = np.random.get_state(legacy=True)  # noqa: NPY002  the global stream itself is checked
    return {
        "Python": hash(random.getstate()),
        "numpy": hash((np.asarray(keys).tobytes(), position)),
        "PyTorch": hash(torch.get_rng_state().numpy().tobytes()),
    }
