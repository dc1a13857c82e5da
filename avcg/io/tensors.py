"""Arrays by name in one file of the safetensors format, read and written with numpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from avcg.errors import ArtifactError


def write_tensors(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Serialize arrays to the bytes of a safetensors file.

    Args:
        arrays: Arrays by name, in any memory order.
    """
    return save({name: np.asarray(array, order="C") for name, array in arrays.items()})


def read_tensors(data: bytes) -> dict[str, NDArray[Any]]:
    """Read the arrays of a safetensors file into memory of their own.

    Args:
        data: All bytes of the file.

    Raises:
        ArtifactError: If the bytes are damaged or not a safetensors file. Every byte must belong to the header or to
            exactly one array, and booleans must be stored as 0 or 1.

    >>> read_tensors(write_tensors({"a": np.arange(3.0)}))
    {'a': array([0., 1., 2.])}
    """
    try:
        arrays = load(data)
        for name, array in arrays.items():
            if array.dtype == bool and array.view(np.uint8).max(initial=0) > 1:
                raise ValueError(f"{name!r} has a boolean that is stored as neither 0 nor 1")
    except (SafetensorError, ValueError, KeyError) as error:
        raise ArtifactError(f"The data is not in the safetensors format, or is damaged: {error}.") from None
    return arrays
