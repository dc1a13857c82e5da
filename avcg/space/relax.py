"""The differentiable relaxation of the constraints, for training. Answers are made by `avcg.space.project`.

torch on any device. Numbers are clamped to their limits, categories become shares of those that may be entered, and
followers are looked up from their leaders. Grids and `at_most` are left to the projection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  its usual name

from avcg.schema.expressions import evaluate
from avcg.space.constraints import REACH, FeasibleSet
from avcg.space.derived import Derivations
from avcg.space.encoding import Encoding, Positions
from avcg.space.limits import Limits
from avcg.space.links import Link, between_knots, enterable_by_leader

_FAR = 30.0  # codes beyond which a derived column has no gradient
_TINY = 1e-6  # smallest denominator


@dataclass(frozen=True, eq=False)
class _LinkTensors:
    link: Link
    columns: Tensor
    gather: Tensor  # (D,) index of each code among all codes followed by those of the followers
    table: Tensor
    known: Tensor
    knots: Tensor | None
    span: slice  # the slots of a categorical leader


def _divided(value: Tensor, by: Tensor) -> Tensor:
    """A ratio with finite gradients, also where it divides by almost 0; projection takes such answers back."""
    return value / torch.where(by.abs() < _TINY, torch.where(by < 0, -_TINY, _TINY), by)


def _gather(width: int, columns: Positions) -> Positions:
    gather = np.arange(width)
    gather[columns] = width + np.arange(len(columns))
    return gather


def _picked(codes: Tensor, table: Tensor) -> Tensor:
    """(..., M) by a table (G, W) to (..., G, W)."""
    return codes.index_select(-1, table.flatten()).unflatten(-1, tuple(table.shape))


class _InwardClamp(torch.autograd.Function):
    """Clamp to [low, high] that passes gradients from outside if they lead back inside.

    A plain clamp passes no gradient outside, so a decoder whose first proposal lies beyond a bound would never learn to
    move it back. Most capital gains, for example, are at the lower end of their range.
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
    """An encoding and a feasible set as tensors on one device, and the functions that training needs."""

    encoding: Encoding
    number_at: Tensor
    missing_at: Tensor
    can_miss: Tensor  # indices of the numbers that may be missing
    slot_at: Tensor
    limits: Limits  # of tensors, in units of codes
    cap: Tensor
    prices: Tensor
    change_prices: Tensor
    special_prices: Tensor
    counted: Tensor  # (n,) 1 for numbers that count as changes of their own, 0 for followers of a link
    counted_slots: Tensor  # (M,) the same for the slots of categories
    first_slots: Tensor
    within: Tensor
    padding: Tensor
    unpadding: Tensor
    order: Tensor  # (D,) from numbers, missing flags, slots to the order of the codes
    links: tuple[_LinkTensors, ...]
    derived: Derivations | None

    @classmethod
    def of(cls, encoding: Encoding, feasible: FeasibleSet, device: torch.device, dtype: torch.dtype) -> Self:
        """Everything on one device and in one precision."""

        def tensor(array: Any) -> Tensor:
            value = torch.from_numpy(np.array(array))
            return value.to(device, dtype if value.is_floating_point() else None)

        produced = np.concatenate([encoding.number_at, encoding.missing_at[encoding.missing_at >= 0], encoding.slot_at])
        links = [
            _LinkTensors(
                link,
                columns=tensor(link.columns),
                gather=tensor(_gather(encoding.width, link.columns)),
                table=tensor(link.table),
                known=tensor(link.known),
                knots=None if link.knots is None else tensor(link.knots),
                span=slice(0) if link.knots is not None else encoding.slots[encoding.kind_index[link.leader]],
            )
            for link in feasible.links
        ]
        own = np.ones(encoding.width, np.float32)
        for link in feasible.links:
            own[link.columns] = 0.0
        derived = None if feasible.rules is None or not len(feasible.rules.computed) else feasible.rules.derived
        if derived is not None:
            own[encoding.number_at[derived.targets]] = 0.0
        padding, unpadding = encoding.padded
        arrays = {
            "number_at": encoding.number_at,
            "missing_at": encoding.missing_at,
            "can_miss": np.flatnonzero(encoding.missing_at >= 0),
            "slot_at": encoding.slot_at,
            "cap": feasible.cap(encoding),
            "prices": encoding.prices,
            "change_prices": encoding.change_prices,
            "special_prices": encoding.special_prices,
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
        return cls(encoding=encoding, links=tuple(links), limits=limits, derived=derived, **tensors)

    def relax(self, raw: Tensor, x: Tensor, gates: Tensor | None) -> Tensor:
        """See `TabularSpace.relax`."""
        current, missing, low, high = self._interval(x)
        frozen = self.limits.directions.frozen
        numbers, parts = self._moved_numbers(raw, current, missing, low, high, gates), []
        if torch.is_grad_enabled():  # clamping alone lets half a gradient pass at a tie
            numbers = torch.where(frozen, current, numbers)
        if missing is not None:
            # A missing number may be filled to the share that the decoder says, unless frozen. None becomes missing.
            filled = raw.index_select(-1, self.missing_at.clamp(min=0)) if gates is None else 1.0 - gates.to(raw.dtype)
            gaps = torch.where(frozen, 1.0, filled.clamp(0.0, 1.0)) * missing
            numbers = numbers * (1.0 - gaps)
            parts = [gaps.index_select(-1, self.can_miss)]
        logits = torch.where(self._entries(x, low, high), raw.index_select(-1, self.slot_at), -torch.inf)
        padded = F.pad(logits, (0, 1), value=-torch.inf)
        shares = logits
        if len(self.first_slots):
            shares = torch.softmax(_picked(padded, self.padding), dim=-1).flatten(-2).index_select(-1, self.unpadding)
        result = torch.cat([numbers, *parts, shares], dim=-1).index_select(-1, self.order)
        for link in self.links:
            result = self._follow(link, result, x)
        return result if self.derived is None else self._compute(self.derived, result, x)

    def _moved_numbers(
        self, raw: Tensor, current: Tensor, missing: Tensor | None, low: Tensor, high: Tensor, gates: Tensor | None
    ) -> Tensor:
        """The proposed numbers, moved by the share of their gates and clamped to their limits."""
        numbers, left = raw.index_select(-1, self.number_at), self.limits.special.left(torch, current)
        proposed = numbers
        if left is not None:
            # A special code lies outside its limits: it is left for a number inside them, where one is nearer.
            inside = inward_clamp(numbers, low, high)
            stays = (numbers - current).abs() <= (numbers - inside).abs()
            proposed = torch.where(left, torch.where(stays, current, inside), numbers)
        if gates is None:
            clamped = inward_clamp(numbers, low, high)
            return clamped if left is None else torch.where(left, proposed, clamped)
        moved = (
            torch.where(gates, proposed, current)
            if gates.dtype == torch.bool
            else current + gates * (proposed - current)
        )
        # A missing number has no present value: its gate is the share that is filled, the number is as proposed.
        numbers = moved if missing is None else torch.where(missing, proposed, moved)
        clamped = inward_clamp(numbers, low, high)
        return clamped if left is None else torch.where(left, numbers, clamped)

    def constraint_features(self, x: Tensor, reach: float = REACH) -> Tensor:
        """See `TabularSpace.constraint_features`."""
        current, _, low, high = self._interval(x)
        sides = torch.cat([current - low, high - current], dim=1).clamp(0.0, reach) / reach
        entries = self._entries(x, low, high).to(x.dtype)
        return torch.cat([sides, entries, self.cap.to(x.dtype).expand(x.shape[0])[:, None]], dim=1)

    def distance(self, x_cf: Tensor, x: Tensor, gates: Tensor | None) -> Tensor:
        """See `TabularSpace.distance`."""
        difference = (x_cf - x).abs()
        moved = difference[..., self.number_at] > 0
        if (self.encoding.missing_at >= 0).any():
            can_miss, gap = self.missing_at >= 0, self.missing_at.clamp(min=0)
            # A gap is no number: where there is one on either side, only the gap and the change itself are charged.
            both = torch.where(can_miss, (1 - x_cf[..., gap]) * (1 - x[:, gap]), 1.0)
            moved = moved | (can_miss & (difference[..., gap] > 0))
            difference = difference.index_copy(-1, self.number_at, difference[..., self.number_at] * both)
        likely = moved.to(x.dtype) if gates is None else moved * gates
        before, after = self._at_special(x), self._at_special(x_cf)
        if before is None or after is None:
            return difference @ self.prices + likely @ self.change_prices
        # Between a code and a number there is no distance, only a change.
        special = before | after
        difference = difference.index_copy(-1, self.number_at, difference[..., self.number_at] * ~special)
        return difference @ self.prices + likely @ self.change_prices + (likely * special) @ self.special_prices

    def _at_special(self, x: Tensor) -> Tensor | None:
        """(..., B, n) where a number is a special code; None: no column has one."""
        special: Tensor | None = self.limits.special.held(torch, x[..., self.number_at])
        if special is not None and len(self.can_miss):
            special = special & ~((self.missing_at >= 0) & (x[..., self.missing_at.clamp(min=0)] > 0.5))
        return special

    def count_changes(self, x_cf: Tensor, x: Tensor, gates: Tensor | None) -> Tensor:
        """See `TabularSpace.count_changes`."""
        moved = (x_cf[..., self.number_at] != x[:, self.number_at]).to(x.dtype)
        if (self.encoding.missing_at >= 0).any():
            can_miss, gap = self.missing_at >= 0, self.missing_at.clamp(min=0)
            moved = torch.where(can_miss & (x_cf[..., gap] != x[:, gap]), 1.0, moved)
        numbers = (moved if gates is None else moved * gates) @ self.counted
        current = x[:, self.slot_at] * self.counted_slots
        return numbers + (current * (1.0 - x_cf[..., self.slot_at])).sum(dim=-1)

    def _interval(self, x: Tensor) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """(B, n) the numbers, where they are missing (None: nowhere), and how low and how high each may go."""
        current = x.index_select(1, self.number_at)
        missing = None
        if len(self.can_miss):
            missing = (x.index_select(1, self.missing_at.clamp(min=0)) > 0.5) & (self.missing_at >= 0)
        return current, missing, *self.limits.interval(torch, current, missing)

    def _entries(self, x: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """(B, M) the categories each row may be in, with the limits of followers."""
        current = x.index_select(1, self.slot_at)
        blocks = (self.first_slots, self.within, self.unpadding)
        entries: Tensor = self.limits.categories.enterable(torch, current, *blocks)
        for link in self.links:
            if link.knots is None:
                block, span = self.encoding.slices[link.link.leader], link.span
                barred = torch.zeros_like(x).index_copy(1, self.slot_at, (~entries).to(x.dtype))
                mine = enterable_by_leader(
                    link.link, link.table, link.known, x[:, block], low, high, barred, self.encoding
                )
                entries = torch.cat([entries[:, : span.start], mine & entries[:, span], entries[:, span.stop :]], dim=1)
        return entries

    def _compute(self, derived: Derivations, result: Tensor, x: Tensor) -> Tensor:
        """Write the codes of derived columns where an input changed; their grids are left to the projection."""
        encoding, written = self.encoding, dict[int, Tensor]()
        at, gap = encoding.number_at.tolist(), encoding.missing_at.tolist()
        current, missing = x.index_select(1, self.number_at), None
        if len(self.can_miss):
            missing = (x.index_select(1, self.missing_at.clamp(min=0)) > 0.5) & (self.missing_at >= 0)
        low, high = self.limits.ranges.around(torch, current, missing)

        def code_of(j: int) -> Tensor:
            return written.get(j, result[..., j])

        def value_of(name: str) -> Tensor:
            j = derived.index[name]
            return code_of(at[j]) * float(encoding.scale[j]) + float(encoding.center[j])

        for node, target, inputs in zip(derived.nodes, derived.targets.tolist(), derived.inputs, strict=True):
            used = np.flatnonzero(inputs).tolist()
            gaps = [gap[j] for j in used if gap[j] >= 0]
            moved = torch.stack([code_of(j) != x[:, j] for j in (*(at[j] for j in used), *gaps)]).any(dim=0)
            for j in gaps:
                moved = moved & (code_of(j) < 0.5)
            value = evaluate(node, value_of, torch, _divided)
            code = ((value - float(encoding.center[target])) / float(encoding.scale[target])).clamp(-_FAR, _FAR)
            code = inward_clamp(code, low[:, target], high[:, target])
            written[at[target]] = torch.where(moved, code, x[:, at[target]])
            if gap[target] >= 0:
                written[gap[target]] = torch.where(moved, torch.zeros_like(code), x[:, gap[target]])
        columns = np.array(list(written), np.intp)
        gather = torch.from_numpy(_gather(encoding.width, columns)).to(x.device)
        return torch.cat([result, torch.stack(list(written.values()), dim=-1)], dim=-1).index_select(-1, gather)

    def _follow(self, link: _LinkTensors, result: Tensor, x: Tensor) -> Tensor:
        """Write the followers' codes: their mean under the leader's shares, or on the lines of a numeric leader."""
        leader = self.encoding.slices[link.link.leader]
        own = x.index_select(1, link.columns)
        if link.knots is None:
            share, current = result[..., leader], x[:, leader]
            # Staying keeps the factual's own followers, even if the training rows have others.
            codes = share @ link.table + (share * current).sum(-1, keepdim=True) * (own - current @ link.table)
        else:
            value = result[..., leader.start].contiguous()
            codes = between_knots(torch, link.knots, link.table, value)
            codes = torch.where((value == x[:, leader.start])[..., None], own, codes)
        return torch.cat([result, codes], dim=-1).index_select(-1, link.gather)
