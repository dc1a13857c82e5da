"""The differentiable side of the constraints: what training sees, as `projection` is what people receive.

torch on any device. Numbers are clamped to where they may go, categories become shares over those that may be entered,
and followers are read off their leaders. Grids and `at_most` are left to the projection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  its usual name

from avcg.space.constraints import REACH, FeasibleSet
from avcg.space.encoding import Encoding, Positions
from avcg.space.limits import Limits
from avcg.space.links import Link, between_knots, leadable


@dataclass(frozen=True, eq=False)
class _LinkTensors:
    link: Link
    columns: Tensor
    place: Tensor  # (D,) where each code is found in all codes and, after them, the followers'
    table: Tensor
    known: Tensor
    knots: Tensor | None
    span: slice  # the leader's slots, where it is categorical


def _place(width: int, columns: Positions) -> Positions:
    place = np.arange(width)
    place[columns] = width + np.arange(len(columns))
    return place


def _picked(codes: Tensor, table: Tensor) -> Tensor:
    """(..., M) by a table (G, W) to (..., G, W)."""
    return codes.index_select(-1, table.flatten()).unflatten(-1, tuple(table.shape))


class _InwardClamp(torch.autograd.Function):
    """Clamp to [low, high]; from outside, a gradient passes if it leads back in.

    A plain clamp passes none, and a decoder whose first guess lies beyond a bound would never learn to leave it: a
    number at the end of its range, as most capital gains are, could only ever move the way that happens to be tried.
    """

    @staticmethod
    def forward(ctx: Any, value: Tensor, low: Tensor, high: Tensor) -> Tensor:
        ctx.save_for_backward(value, low, high)
        return torch.minimum(torch.maximum(value, low), high)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        value, low, high = ctx.saved_tensors
        (gradient,) = gradients
        # Descent goes against the gradient: below the range it must be negative, above it positive.
        outward = ((value < low) & (gradient > 0)) | ((value > high) & (gradient < 0))
        return gradient.masked_fill(outward, 0.0), None, None


def inward_clamp(value: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The value, clamped to [low, high], with gradients that lead back in from outside."""
    if not torch.is_grad_enabled():
        return torch.minimum(torch.maximum(value, low), high)
    clamped: Tensor = _InwardClamp.apply(value, low, high)  # type: ignore[no-untyped-call]
    return clamped


@dataclass(frozen=True, eq=False)
class Relaxation:
    """The arrays of an encoding and a freedom as tensors on one device, and what training does with them."""

    encoding: Encoding
    number_at: Tensor
    gap_at: Tensor
    with_gaps: Tensor  # positions of the numbers that may be missing
    slot_at: Tensor
    limits: Limits  # of tensors, in units of codes
    cap: Tensor
    prices: Tensor
    change_prices: Tensor
    counted: Tensor  # (n,) 1 for numbers that are their own, 0 for followers of a link
    counted_slots: Tensor  # (M,) likewise for the slots of categories
    first_slots: Tensor
    within: Tensor
    padding: Tensor
    unpadding: Tensor
    order: Tensor  # (D,) from numbers, gaps, slots to the order of the codes
    links: tuple[_LinkTensors, ...]

    @classmethod
    def of(cls, encoding: Encoding, feasible: FeasibleSet, device: torch.device, dtype: torch.dtype) -> Self:
        """Everything on one device and in one precision."""

        def tensor(array: Any) -> Tensor:
            value = torch.from_numpy(np.array(array))
            return value.to(device, dtype if value.is_floating_point() else None)

        produced = np.concatenate([encoding.number_at, encoding.gap_at[encoding.gap_at >= 0], encoding.slot_at])
        links = [
            _LinkTensors(
                link,
                columns=tensor(link.columns),
                place=tensor(_place(encoding.width, link.columns)),
                table=tensor(link.table),
                known=tensor(link.known),
                knots=None if link.knots is None else tensor(link.knots),
                span=slice(0) if link.knots is not None else encoding.slots[encoding.place[link.leader]],
            )
            for link in feasible.links
        ]
        own = np.ones(encoding.width, np.float32)
        for link in feasible.links:
            own[link.columns] = 0.0
        padding, unpadding = encoding.padded
        arrays = {
            "number_at": encoding.number_at,
            "gap_at": encoding.gap_at,
            "with_gaps": np.flatnonzero(encoding.gap_at >= 0),
            "slot_at": encoding.slot_at,
            "cap": feasible.cap(encoding),
            "prices": encoding.prices,
            "change_prices": encoding.change_prices,
            "counted": own[encoding.number_at],
            "counted_slots": own[encoding.slot_at],
            "first_slots": encoding.first_slots,
            "within": encoding.within,
            "padding": padding,
            "unpadding": unpadding,
            "order": np.argsort(produced),
        }
        limits = feasible.limits.coded(encoding).mapped(tensor)
        tensors = {name: tensor(array) for name, array in arrays.items()}
        return cls(encoding=encoding, links=tuple(links), limits=limits, **tensors)

    def relax(self, raw: Tensor, x: Tensor, gates: Tensor | None) -> Tensor:
        """See `TabularSpace.relax`."""
        here, missing, low, high = self._interval(x)
        frozen = self.limits.directions.frozen
        numbers, parts = raw.index_select(-1, self.number_at), []
        if gates is not None:
            moved = torch.where(gates, numbers, here) if gates.dtype == torch.bool else here + gates * (numbers - here)
            # A gap has no place to set out from: its gate says how far it is filled, and the number is as given.
            numbers = moved if missing is None else torch.where(missing, numbers, moved)
        numbers = inward_clamp(numbers, low, high)
        if torch.is_grad_enabled():  # clamping alone lets half a gradient pass at a tie
            numbers = torch.where(frozen, here, numbers)
        if missing is not None:
            # A gap may close as far as the decoder says, unless it is frozen; where there is none, none opens.
            filled = raw.index_select(-1, self.gap_at.clamp(min=0)) if gates is None else 1.0 - gates.to(raw.dtype)
            gaps = torch.where(frozen, 1.0, filled.clamp(0.0, 1.0)) * missing
            numbers = numbers * (1.0 - gaps)
            parts = [gaps.index_select(-1, self.with_gaps)]
        logits = torch.where(self._entries(x, low, high), raw.index_select(-1, self.slot_at), -torch.inf)
        padded = F.pad(logits, (0, 1), value=-torch.inf)
        shares = logits
        if len(self.first_slots):
            shares = torch.softmax(_picked(padded, self.padding), dim=-1).flatten(-2).index_select(-1, self.unpadding)
        result = torch.cat([numbers, *parts, shares], dim=-1).index_select(-1, self.order)
        for link in self.links:
            result = self._follow(link, result, x)
        return result

    def constraint_features(self, x: Tensor, reach: float = REACH) -> Tensor:
        """See `TabularSpace.constraint_features`."""
        here, _, low, high = self._interval(x)
        sides = torch.cat([here - low, high - here], dim=1).clamp(0.0, reach) / reach
        entries = self._entries(x, low, high).to(x.dtype)
        return torch.cat([sides, entries, self.cap.to(x.dtype).expand(x.shape[0])[:, None]], dim=1)

    def distance(self, x_cf: Tensor, x: Tensor, gates: Tensor | None) -> Tensor:
        """See `TabularSpace.distance`."""
        difference = (x_cf - x).abs()
        moved = difference[..., self.number_at] > 0
        if (self.encoding.gap_at >= 0).any():
            with_gaps, gap = self.gap_at >= 0, self.gap_at.clamp(min=0)
            # A gap is no number: where there is one on either side, only the gap and the change itself are charged.
            both = torch.where(with_gaps, (1 - x_cf[..., gap]) * (1 - x[:, gap]), 1.0)
            moved = moved | (with_gaps & (difference[..., gap] > 0))
            difference = difference.index_copy(-1, self.number_at, difference[..., self.number_at] * both)
        likely = moved.to(x.dtype) if gates is None else moved * gates
        return difference @ self.prices + likely @ self.change_prices

    def count_changes(self, x_cf: Tensor, x: Tensor, gates: Tensor | None) -> Tensor:
        """See `TabularSpace.count_changes`."""
        moved = (x_cf[..., self.number_at] != x[:, self.number_at]).to(x.dtype)
        if (self.encoding.gap_at >= 0).any():
            with_gaps, gap = self.gap_at >= 0, self.gap_at.clamp(min=0)
            moved = torch.where(with_gaps & (x_cf[..., gap] != x[:, gap]), 1.0, moved)
        numbers = (moved if gates is None else moved * gates) @ self.counted
        here = x[:, self.slot_at] * self.counted_slots
        return numbers + (here * (1.0 - x_cf[..., self.slot_at])).sum(dim=-1)

    def _interval(self, x: Tensor) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """(B, n) the numbers, where there is none if that can be, and how low and how high each may go."""
        here = x.index_select(1, self.number_at)
        missing = None
        if len(self.with_gaps):
            missing = (x.index_select(1, self.gap_at.clamp(min=0)) > 0.5) & (self.gap_at >= 0)
        return here, missing, *self.limits.interval(torch, here, missing)

    def _entries(self, x: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """(B, M) the categories each row may be in, links heeded."""
        here = x.index_select(1, self.slot_at)
        blocks = (self.first_slots, self.within, self.unpadding)
        entries: Tensor = self.limits.categories.enterable(torch, here, *blocks)
        for link in self.links:
            if link.knots is None:
                block, span = self.encoding.slices[link.link.leader], link.span
                barred = torch.zeros_like(x).index_copy(1, self.slot_at, (~entries).to(x.dtype))
                mine = leadable(link.link, link.table, link.known, x[:, block], low, high, barred, self.encoding)
                entries = torch.cat([entries[:, : span.start], mine & entries[:, span], entries[:, span.stop :]], dim=1)
        return entries

    def _follow(self, link: _LinkTensors, result: Tensor, x: Tensor) -> Tensor:
        """Put the followers where the leader's present share of each of its values puts them."""
        leader = self.encoding.slices[link.link.leader]
        own = x.index_select(1, link.columns)
        if link.knots is None:
            share, here = result[..., leader], x[:, leader]
            # Staying keeps the factual's own followers, even where the training rows knew others.
            codes = share @ link.table + (share * here).sum(-1, keepdim=True) * (own - here @ link.table)
        else:
            value = result[..., leader.start].contiguous()
            codes = between_knots(torch, link.knots, link.table, value)
            codes = torch.where((value == x[:, leader.start])[..., None], own, codes)
        return torch.cat([result, codes], dim=-1).index_select(-1, link.place)
