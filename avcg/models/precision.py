"""How exactly a GPU computes: what people receive to the last digit, what is only learnt from less so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Within it, convolutions on a GPU are in float32 as they are anywhere else.

    By default PyTorch lets them drop 13 bits of their factors. That is good enough to train by; an answer must not
    depend on where it was made.

    Args:
        device: Where is computed; nothing changes but on CUDA's.
    """
    if device.type != "cuda":
        yield
        return
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


def lower_precision(device: torch.device, *, enabled: bool) -> torch.autocast:
    """Within it, products on a GPU are in bfloat16 where that is enabled; sums and probabilities stay in float32.

    Args:
        device: Where is computed; nothing changes but on CUDA's.
        enabled: Whether to.
    """
    # Without a cache of weights, which a recorded step would read from memory that is no longer its own.
    return torch.autocast(device.type, torch.bfloat16, enabled=enabled and device.type == "cuda", cache_enabled=False)
