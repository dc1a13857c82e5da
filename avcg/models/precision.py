"""Numerical precision on a GPU: float32 for answers, optionally bfloat16 for training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """A context in which convolutions on a GPU use full float32 precision.

    By default PyTorch computes them in TF32, which drops 13 bits of their factors. That is precise enough for training,
    but answers must not depend on the device.

    Args:
        device: Device of the computation. The context has an effect on CUDA devices only.
    """
    if device.type != "cuda":
        yield
        return
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


def lower_precision(device: torch.device, *, enabled: bool) -> torch.autocast:
    """A context in which products on a GPU use bfloat16 if enabled. Sums and probabilities stay in float32.

    Args:
        device: Device of the computation. The context has an effect on CUDA devices only.
        enabled: Whether to use bfloat16.
    """
    # No cache of cast weights: a captured CUDA graph would read it after its memory was freed.
    return torch.autocast(device.type, torch.bfloat16, enabled=enabled and device.type == "cuda", cache_enabled=False)
