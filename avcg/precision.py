"""How exactly a GPU computes what people receive."""

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
