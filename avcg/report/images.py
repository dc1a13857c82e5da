"""Small images for pages (before, after and difference), as PNG data inside the page and without an imaging library."""

from __future__ import annotations

import base64
import struct
import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from avcg.explainers.base import Explainer
from avcg.explainers.counterfactuals import Counterfactuals
from avcg.space.images import Pixels, layout_of

_MAX_SIDE = 96  # pixels
# Brighter pixels are blue and darker ones vermilion, which colour-blind people can tell apart; grey: unchanged.
_BRIGHTER, _SAME, _DARKER = np.array([0, 114, 178]), np.array([236, 236, 236]), np.array([213, 94, 0])

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Triple:
    """Three images as ``data:`` addresses."""

    before: str
    after: str
    difference: str


def triples(answers: Counterfactuals, explainer: Explainer | None = None) -> list[list[Triple]]:
    """The images of each answer, by row.

    Args:
        answers: Answers for images.
        explainer: The fitted method, which knows the axis of channels; None: it is inferred from the shape.

    Raises:
        DataError: If the axis of channels cannot be inferred from the shape.
    """
    layout = layout_of(None if explainer is None else explainer.space_, answers.factuals)
    before = _small(answers.factuals, layout)
    after = _small(answers.answers, layout)
    low, high = min(before.min(), after.min()), max(before.max(), after.max())
    if answers.factuals.dtype == np.uint8:
        low, high = 0.0, 255.0
    result = []
    for row, picture in enumerate(before):
        own = after[row * answers.n : (row + 1) * answers.n]
        result.append([Triple(*(_address(p) for p in _triple(picture, each, low, high))) for each in own])
    return result


def png(pixels: Bytes) -> bytes:
    """Encode an image as PNG.

    Args:
        pixels: (H, W, 3) colours.

    >>> png(np.zeros((2, 2, 3), np.uint8))[1:4]
    b'PNG'
    """
    height, width, _ = pixels.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)  # 0: not filtered
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(lines.tobytes(), 9)),
        (b"IEND", b""),
    )
    chunks = [struct.pack(">I", len(d)) + kind + d + struct.pack(">I", zlib.crc32(kind + d)) for kind, d in parts]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _small(images: Pixels, layout: str) -> NDArray[np.float64]:
    """(N, H, W, C) images reduced to the size that is shown, by means of blocks of pixels."""
    pixels = np.asarray(images, np.float64)
    pixels = pixels[..., None] if layout == "none" else pixels if layout == "last" else np.moveaxis(pixels, 1, -1)
    size = -(-max(pixels.shape[1:3]) // _MAX_SIDE)
    high, wide = (max(side // size, 1) for side in pixels.shape[1:3])
    size_high, size_wide = min(size, pixels.shape[1]), min(size, pixels.shape[2])
    blocks = pixels[:, : high * size_high, : wide * size_wide]
    return blocks.reshape(len(pixels), high, size_high, wide, size_wide, -1).mean(axis=(2, 4))


def _triple(
    before: NDArray[np.float64], after: NDArray[np.float64], low: float, high: float
) -> tuple[Bytes, Bytes, Bytes]:
    span = (high - low) or 1.0
    change = (after - before).mean(axis=-1, keepdims=True) / span
    way = np.where(change > 0, _BRIGHTER, _DARKER)
    strength = np.clip(np.abs(change) / (np.abs(change).max() or 1.0), 0.0, 1.0)
    shown = [_coloured(np.clip((image - low) / span, 0.0, 1.0)) for image in (before, after)]
    return shown[0], shown[1], np.round(_SAME + strength * (way - _SAME)).astype(np.uint8)


def _coloured(shares: NDArray[np.float64]) -> Bytes:
    """(H, W, 3) colours of (H, W, C) values between 0 and 1; if C is not 3, grey by the mean of the channels."""
    colours = shares if shares.shape[-1] == 3 else shares.mean(axis=-1, keepdims=True).repeat(3, axis=-1)
    return np.round(255 * colours).astype(np.uint8)


def _address(pixels: Bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png(pixels)).decode("ascii")
