"""The space of images: pixels in their own dtype and layout outside, normalised channels inside."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from avcg.errors import DataError, SchemaError, SettingError
from avcg.schema.schema import Schema
from avcg.space.base import Delivery, Space, TorchCodes
from avcg.space.constraints import REACH
from avcg.space.encoding import Codes
from avcg.space.relax import inward_clamp

Pixels = NDArray[Any]
Layout = Literal["none", "last", "first"]


class _Tensors(NamedTuple):
    mean: Tensor
    std: Tensor
    low: Tensor
    high: Tensor
    may_change: Tensor


@dataclass(frozen=True, eq=False)
class ImageSpace:
    """Images of one size, uint8 or float, with optional limits on which pixels may change and how far.

    Attributes:
        layout: Where the channels are: ``"none"`` (grey, (N, H, W)), ``"last"`` or ``"first"``.
        dtype: Of the pixels in and out.
        mean: (channels,) in pixel units.
        std: (channels,) in pixel units; 1 for a constant channel.
        low: (R, C, H, W) or broadcastable, lowest pixel an answer may have.
        high: The highest.
        may_change: (R, 1, H, W) or broadcastable, which pixels may change.
        size: (channels, height, width).

    >>> images = np.arange(32, dtype=np.uint8).reshape(2, 4, 4)
    >>> space = ImageSpace.fit(images)
    >>> np.array_equal(space.decode(space.encode(images)), images)
    True
    """

    layout: Layout
    dtype: np.dtype[Any]
    mean: Tensor
    std: Tensor
    low: Tensor
    high: Tensor
    may_change: Tensor
    size: tuple[int, int, int]

    @classmethod
    def fit(
        cls,
        images: Pixels,
        *,
        channels: Layout | None = None,
        bounds: tuple[float, float] | None = None,
        may_change: ArrayLike | None = None,
    ) -> Self:
        """Learn the normalisation of each channel.

        Args:
            images: (N, H, W), (N, H, W, C) or (N, C, H, W), uint8 or float.
            channels: Where the channels are; None: read it off the shape, which works for 1 or 3 channels.
            bounds: Lowest and highest pixel; None: 0 to 255 for uint8, the range of the images for floats.
            may_change: (H, W), True where an answer may differ; None: everywhere.
        """
        images = np.asarray(images)
        if images.dtype != np.uint8 and images.dtype.kind != "f":
            raise DataError(f"Images must be uint8 or float arrays. Got {images.dtype} instead; convert them first.")
        if images.size == 0:
            raise DataError(f"There are no pixels in images of shape {images.shape}.")
        layout = _layout(images.shape, channels)
        pixels = _channels_first(images, layout)
        _check_finite(pixels)
        if bounds is None:
            bounds = (0.0, 255.0) if images.dtype == np.uint8 else (float(pixels.min()), float(pixels.max()))
        # Channel by channel, in float64 sums without a float64 copy of all images.
        mean = pixels.mean(axis=(0, 2, 3), dtype=np.float64)
        std = pixels.std(axis=(0, 2, 3), dtype=np.float64)
        size = (pixels.shape[1], pixels.shape[2], pixels.shape[3])
        space = cls(
            layout=layout,
            dtype=images.dtype,
            mean=torch.from_numpy(mean).float(),
            std=torch.from_numpy(np.where(std == 0, 1.0, std)).float(),
            low=torch.full((1, 1, 1, 1), -torch.inf, dtype=torch.float64),
            high=torch.full((1, 1, 1, 1), torch.inf, dtype=torch.float64),
            may_change=torch.ones((1, 1, *size[1:]), dtype=torch.bool),
            size=size,
        )
        return space.restrict(vary=may_change, ranges=bounds)

    @property
    def schema(self) -> None:
        """None: pixels have no columns."""
        return None

    @property
    def n_features(self) -> int:
        """How many numbers an image has."""
        return math.prod(self.size)

    @property
    def averages_distance(self) -> bool:
        """True: an image's distance is a mean over its numbers."""
        return True

    @property
    def codes(self) -> TorchCodes:
        """The same space for numpy."""
        return TorchCodes(self)

    def difference(self, other: Space) -> str | None:
        """Whether the two spaces read images of different sizes."""
        return None if isinstance(other, ImageSpace) and other.size == self.size else "the size of images"

    def narrowed(self, schema: Schema, X: Pixels) -> Self:  # noqa: ARG002  for tables
        """Refuse: images have no columns.

        Raises:
            SchemaError: Always.
        """
        raise SchemaError("A schema is for tables. These hypotheses read images; use vary and ranges.")

    def restrict_rows(self, vary: Any, ranges: Any, max_changes: Any, rows: int) -> Self:
        """A narrower space for a query about so many images; see `restrict`."""
        if max_changes is not None:
            raise SettingError("'max_changes' is for tables. For images say which pixels may 'vary'.")
        narrower = self.restrict(vary, ranges)
        counts = {len(part) for part in (narrower.low, narrower.high, narrower.may_change)} - {1, rows}
        if counts:
            raise SchemaError(f"The query speaks of {counts.pop()} images. Got {rows} in X.")
        return narrower

    def read(self, X: Pixels) -> Pixels:
        """Images as they are."""
        return X

    def deliver(self, x: Codes, rows: Pixels, read: Pixels) -> Delivery:
        """Feasible codes (N, C, H, W) to images beside their N factuals."""
        answers = self.decode(torch.from_numpy(x), rows)
        pixels, current = (
            _channels_first(part, self.layout).astype(np.float64) for part in (answers, np.asarray(read))
        )
        low, high = (bound.numpy() for bound in (self.low, self.high))
        outside = (pixels < np.minimum(low, current)) | (pixels > np.maximum(high, current)) | ~self.may_change.numpy()
        broken = ((pixels != current) & outside).any(axis=(1, 2, 3))
        return Delivery(answers, answers, self.encode(answers).numpy(), None, broken)

    @property
    def event_shape(self) -> tuple[int, int, int]:
        """(channels, height, width)."""
        return self.size

    def encode(self, X: Pixels) -> Tensor:
        """Pixels to (B, C, H, W), each channel normalised, float32."""
        images = np.asarray(X)
        if images.dtype != self.dtype:
            raise DataError(f"This space holds {self.dtype} images. Got {images.dtype}; convert them with .astype.")
        expected = _shape(self.size, self.layout)
        if images.shape[1:] != expected or len(images) == 0:
            raise DataError(
                f"This space holds images of shape (rows, {', '.join(map(str, expected))}). Got {images.shape}."
            )
        pixels = _channels_first(images, self.layout)
        _check_finite(pixels)
        x = torch.from_numpy(np.array(pixels, np.float32, order="C"))
        return (x - self._per_channel(self.mean)) / self._per_channel(self.std)

    def decode(self, x: Tensor, like: Pixels | None = None) -> Pixels:
        """(B, C, H, W) to pixels as they came; those whose code equals that of ``like`` stay its own."""
        if x.dim() != 4 or tuple(x.shape[1:]) != self.size:
            raise DataError(
                f"decode takes codes of shape (rows, {', '.join(map(str, self.size))}). Got {tuple(x.shape)}."
            )
        pixels = self._pixels(x.detach().cpu().float())
        if self.dtype == np.uint8:
            pixels = pixels.round().clamp(0, 255)
        images = np.ascontiguousarray(_from_channels_first(pixels.numpy().astype(self.dtype), self.layout))
        if like is None:
            return images
        if np.shape(like) != images.shape:
            raise DataError(f"decode got codes for images of shape {images.shape} and {np.shape(like)} in 'like'.")
        same = _from_channels_first((x.detach().cpu() == self.encode(like)).numpy(), self.layout)
        # A float32 code can overshoot a bound by its last digit; the picture people receive does not.
        low, high = (
            np.broadcast_to(_from_channels_first(bound.numpy(), self.layout), (len(bound), *images.shape[1:]))
            for bound in (self.low.expand(-1, self.size[0], -1, -1), self.high.expand(-1, self.size[0], -1, -1))
        )
        within = np.clip(images, np.minimum(low, like), np.maximum(high, like))
        rounded = within.astype(self.dtype)
        # In a narrower dtype the bound itself may be rounded out of the range: then one step toward the factual.
        over = np.abs(rounded.astype(np.float64) - like) > np.abs(within - like)
        inward = rounded if self.dtype == np.uint8 else np.nextafter(rounded, like)
        return np.where(same, like, np.where(over, inward, rounded)).astype(self.dtype)

    @property
    def n_gates(self) -> int:
        """0: pixels change by shades."""
        return 0

    @property
    def is_logit(self) -> Tensor:
        """(1, 1, 1) False: no code is a logit."""
        return torch.zeros((1, 1, 1), dtype=torch.bool)

    def constraint_features(self, x: Tensor, reach: float = REACH) -> Tensor:  # noqa: ARG002  pixels may or may not
        """(B, 1, H, W) 1 where a pixel may change."""
        return self._on_device(x).may_change.to(x.dtype).expand(len(x), -1, -1, -1)

    def relax(self, raw: Tensor, x: Tensor, gates: Tensor | None = None) -> Tensor:  # noqa: ARG002  it has none
        """Decoder output (..., B, C, H, W) clamped to its bounds; pixels that may not change are the factual's."""
        if tuple(raw.shape[-4:]) != tuple(x.shape) or tuple(x.shape[1:]) != self.size:
            raise DataError(
                f"Images must have shapes (..., rows, {', '.join(map(str, self.size))}), the same for candidates and"
                f" factuals. Got {tuple(raw.shape)} and {tuple(x.shape)}."
            )
        rows = {len(self.low), len(self.high), len(self.may_change)} - {1, len(x)}
        if rows:
            raise SchemaError(f"This space was restricted for {rows.pop()} rows. Got {len(x)} rows.")
        low, high = self._room(x)
        return torch.where(self._on_device(x).may_change, inward_clamp(raw, low, high), x)

    def project(self, x_cf: Tensor, x: Tensor) -> Tensor:
        """The nearest allowed image, on whole pixel values for uint8."""
        if torch.isnan(x_cf).any():
            raise DataError(f"{int(torch.isnan(x_cf).sum())} pixels to project are NaN: the generator has diverged.")
        result = self.relax(x_cf, x)
        if self.dtype == np.uint8:
            rounded = self._pixels(result).round()
            codes = (rounded - self._on_device(x).mean) / self._on_device(x).std
            result = torch.where(rounded == self._pixels(x).round(), x, codes)
        return result

    def finalize(self, raw: Tensor, x: Tensor, gates: Tensor | None = None) -> Tensor:  # noqa: ARG002  it has none
        """Decoder output to answers; see `project`."""
        return self.project(raw, x)

    def distance(self, x_cf: Tensor, x: Tensor, gates: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Mean absolute change of a pixel, in standard deviations of its channel, (..., B)."""
        return (x_cf - x).abs().mean(dim=(-3, -2, -1))

    def pairwise_distance(self, x: Tensor, rows: Tensor) -> Tensor:
        """(N, m) distances of images from others."""
        return torch.cdist(x.flatten(1), rows.flatten(1), p=1.0) / x[0].numel()

    def count_changes(self, x_cf: Tensor, x: Tensor, gates: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """How many pixels differ, (..., B)."""
        return (x_cf != x).any(dim=-3).sum(dim=(-2, -1)).to(x.dtype)

    def random_requests(self, rows: int, share: float, rng: np.random.Generator) -> Self:
        """This space where a share of rows may change only a random rectangle of their image.

        Args:
            rows: Number of rows B.
            share: Share of rows that have such a request.
            rng: Random numbers for the requests.
        """
        inside = np.ones((rows, *self.size[1:]), bool)
        for axis, size in enumerate(self.size[1:]):
            ends = np.sort(rng.integers(0, size + 1, (rows, 2)), axis=1)
            position = np.arange(size)
            within = (position >= ends[:, :1]) & (position < np.maximum(ends[:, 1:], ends[:, :1] + 1))
            inside &= np.expand_dims(within, 2 - axis)
        return self.restrict(vary=inside | (rng.random((rows, 1, 1)) >= share))

    def restrict(self, vary: ArrayLike | None = None, ranges: tuple[ArrayLike, ArrayLike] | None = None) -> Self:
        """A narrower space for one request.

        Args:
            vary: (H, W) for all rows or (B, H, W) for each, True where a pixel may change.
            ranges: Lowest and highest pixel, numbers or one per row.
        """
        space = self
        if vary is not None:
            mask = np.asarray(vary)
            if mask.dtype != bool or mask.shape[-2:] != self.size[1:] or mask.ndim not in (2, 3):
                raise SchemaError(
                    f"The mask of pixels that may change must be boolean, {self.size[1:]} or one such per row. Got"
                    f" {mask.dtype} {mask.shape} instead."
                )
            mask = mask.reshape(-1, 1, *self.size[1:])
            space = replace(space, may_change=self.may_change & torch.from_numpy(mask))
        if ranges is not None:
            low, high = (torch.as_tensor(np.asarray(side, np.float64)).reshape(-1, 1, 1, 1) for side in ranges)
            if self.dtype == np.uint8:
                low, high = low.ceil().clamp(min=0), high.floor().clamp(max=255)
            low, high = torch.maximum(self.low, low), torch.minimum(self.high, high)
            if not bool((low <= high).all()):
                raise SchemaError(
                    f"The range of pixels leaves nothing: asked for {ranges[0]!r} to {ranges[1]!r}, but they may"
                    f" only be {self.low.min():g} to {self.high.max():g}."
                )
            space = replace(space, low=low, high=high)
        return space

    def cross(self, x: Tensor, others: Tensor, rng: torch.Generator) -> Tensor:  # noqa: ARG002
        """The images themselves: half of one and half of another would be no image."""
        return x

    def take(self, rows: Tensor) -> Self:
        """This space for some of the rows it was restricted for."""
        names = ("low", "high", "may_change")
        parts = {name: getattr(self, name) for name in names}
        return replace(self, **{name: part if len(part) == 1 else part[rows.cpu()] for name, part in parts.items()})

    def immovable(self, x: Tensor) -> Tensor:
        """(B,) images that may not change at all."""
        low, high = self._room(x)
        return ~(self._on_device(x).may_change & (low < high)).flatten(1).any(dim=1).expand(len(x))

    def smaller(self, x_cf: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Every answer with a half, a quarter and a tenth of its change taken back."""
        back = torch.tensor([0.5, 0.25, 0.1], device=x.device).view(-1, 1, 1, 1, 1)
        rows = torch.arange(len(x)).repeat(3)
        current = x.repeat(3, 1, 1, 1)
        return rows.to(x.device), self.take(rows).project((x_cf + back * (x - x_cf)).flatten(0, 1), current)

    def lock_change(self, x_cf: Tensor, x: Tensor, rank: int) -> None:
        """None: pixels change together, so there is no single change to lock."""

    def _room(self, x: Tensor) -> tuple[Tensor, Tensor]:
        limits = self._on_device(x)
        return torch.minimum(limits.low, x), torch.maximum(limits.high, x)

    def _pixels(self, x: Tensor) -> Tensor:
        return x * self._on_device(x).std + self._on_device(x).mean

    def _on_device(self, x: Tensor) -> _Tensors:
        """Normalisation and limits on the device of x and in its precision, made once for each."""
        key = (x.device, x.dtype)
        if key not in self._made:
            mean, std = (self._per_channel(values).to(x.device) for values in (self.mean, self.std))
            low, high = ((bound.to(x.device, x.dtype) - mean) / std for bound in (self.low, self.high))
            self._made[key] = _Tensors(mean, std, low, high, self.may_change.to(x.device))
        return self._made[key]

    @cached_property
    def _made(self) -> dict[tuple[torch.device, torch.dtype], _Tensors]:
        return {}

    @staticmethod
    def _per_channel(values: Tensor) -> Tensor:
        return values[:, None, None]


def layout_of(space: object, images: Pixels) -> Layout:
    """Where the channels of images are: as their space says, or else as their shape does."""
    return space.layout if isinstance(space, ImageSpace) else _layout(images.shape, None)


def _layout(shape: tuple[int, ...], channels: Layout | None) -> Layout:
    if channels is not None:
        if channels not in ("none", "last", "first"):
            raise SchemaError(f"'channels' must be 'none', 'last' or 'first'. Got {channels!r} instead.")
        if len(shape) != (3 if channels == "none" else 4):
            raise DataError(f"Images of shape {shape} cannot have channels={channels!r}.")
        return channels
    if len(shape) == 3:
        return "none"
    if len(shape) == 4 and (shape[-1] in (1, 3)) != (shape[1] in (1, 3)):
        return "last" if shape[-1] in (1, 3) else "first"
    raise DataError(
        f"Where the channels are cannot be read off images of shape {shape}. Give (N, H, W), or say channels='last' or"
        " 'first'."
    )


def _shape(size: tuple[int, int, int], layout: Layout) -> tuple[int, ...]:
    return {"none": size[1:], "last": (*size[1:], size[0]), "first": size}[layout]


def _channels_first(images: Pixels, layout: Layout) -> Pixels:
    if layout == "none":
        return images[:, None]
    return np.moveaxis(images, -1, 1) if layout == "last" else images


def _from_channels_first(images: Pixels, layout: Layout) -> Pixels:
    if layout == "none":
        return images[:, 0]
    return np.moveaxis(images, 1, -1) if layout == "last" else images


def _check_finite(pixels: Pixels) -> None:
    if pixels.dtype.kind == "f" and not np.isfinite(pixels).all():
        count = int((~np.isfinite(pixels)).sum())
        raise DataError(f"The images hold {count} pixels that are NaN or infinite. Replace them with finite values.")
