"""What every contract asks of a part: that it leaves global random streams and the rows of its caller alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import sklearn.model_selection  # noqa: F401  importing it draws from Python's stream, which is no part's doing
import torch


@contextmanager
def streams_untouched(part: str) -> Iterator[None]:
    """Assert that the global streams of Python, numpy and PyTorch stand where they stood.

    Args:
        part: What runs meanwhile, as the message names it.

    Raises:
        AssertionError: With the stream that was drawn from.
    """
    before = _states()
    yield
    after = _states()
    touched = [name for name in before if before[name] != after[name]]
    assert not touched, f"{part} touched the global stream of {', '.join(touched)}"


def same_rows(rows: Any, others: Any) -> bool:
    """Whether two frames, or two arrays, have the same type, dtypes and values; gaps are equal to gaps."""
    if isinstance(rows, np.ndarray):
        return rows.dtype == others.dtype and np.array_equal(rows, others, equal_nan=rows.dtype.kind == "f")
    return type(rows) is type(others) and bool(rows.equals(others))


def _states() -> dict[str, int]:
    _, keys, position, *_ = np.random.get_state(legacy=True)  # noqa: NPY002  it is the global one that is looked at
    return {
        "Python": hash(random.getstate()),
        "numpy": hash((np.asarray(keys).tobytes(), position)),
        "PyTorch": hash(torch.get_rng_state().numpy().tobytes()),
    }
