"""Where answers live: user units to tensors and back, with what may not change never changing.

`Space` is the contract that generators and methods are written against; `TabularSpace` keeps it for tables and
`avcg.images.ImageSpace` for pictures. Training sees `relax`, which is differentiable; people see `project`, which is
exact, and `decode`, which never touches a cell that did not change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from avcg import frames
from avcg.encoding import Encoding, Flags, Scaling, Values
from avcg.errors import DataError, SchemaError
from avcg.frames import Frame
from avcg.freedom import Freedom, Ranges, Vary, enterable, interval
from avcg.links import Link, between_knots, leadable, learn_links
from avcg.projection import changes, project, restore, room, violations
from avcg.schema import Schema


class Space(Protocol):
    """What a generator needs to know about its inputs: B rows, K answers per row, ``*event`` one encoded row."""

    @property
    def event_shape(self) -> tuple[int, ...]:
        """The shape of one encoded row."""

    def encode(self, X: Any) -> Tensor:
        """User units to (B, *event), float32."""

    def decode(self, x: Tensor, like: Any = None) -> Any:
        """(B, *event) back to user units; cells equal to those of ``like`` stay its own."""

    def relax(self, raw: Tensor, x: Tensor) -> Tensor:
        """Decoder output (..., B, *event) to a feasible point near it, differentiable; what training sees."""

    def project(self, x_cf: Tensor, x: Tensor) -> Tensor:
        """The nearest feasible point, exact; what people and metrics see."""

    def distance(self, x_cf: Tensor, x: Tensor) -> Tensor:
        """What a change costs, (..., B)."""


@dataclass(frozen=True, eq=False)
class TabularSpace:
    """Rows of a table with mixed columns under the constraints of a schema.

    Attributes:
        encoding: Scaling and layout of the codes.
        freedom: What may change; narrowed by `restrict`.

    >>> import pandas as pd
    >>> X = pd.DataFrame({"hours": [20, 40, 60], "job": ["clerk", "nurse", "clerk"]})
    >>> space = TabularSpace.fit(Schema.infer(X).only_up("hours"), X)
    >>> x = space.encode(X)
    >>> wish = x - 2.0  # fewer hours, which may not be
    >>> space.decode(space.project(wish, x), like=X).equals(X)
    True
    """

    encoding: Encoding
    freedom: Freedom

    @classmethod
    def fit(cls, schema: Schema, X: Frame, scaling: Scaling = "standard") -> Self:
        """Learn scaling, ranges and links from training rows.

        Args:
            schema: What the columns are and what may change.
            X: Training rows.
            scaling: ``"standard"`` (mean 0, deviation 1) or ``"minmax"`` (0 to 1).
        """
        if scaling not in ("standard", "minmax"):
            raise SchemaError(f"The 'scaling' of a space must be 'standard' or 'minmax'. Got {scaling!r} instead.")
        values = frames.read_values(X, schema)
        encoding = Encoding.fit(schema, values, scaling)
        return cls(encoding, Freedom.of(encoding, learn_links(encoding, values)))

    @property
    def schema(self) -> Schema:
        """What the columns are and what may change."""
        return self.encoding.schema

    @property
    def event_shape(self) -> tuple[int, ...]:
        """(D,)."""
        return (self.encoding.width,)

    def encode(self, X: Frame | Mapping[str, Any]) -> Tensor:
        """Rows to codes.

        Args:
            X: A frame, columns in any order, or one row as a dict.

        Returns:
            (B, D), float32.

        Raises:
            DataError: If the rows do not fit the schema.
        """
        if isinstance(X, Mapping):
            return torch.from_numpy(self.encoding.encode_row(X)[None])
        return torch.from_numpy(self.encoding.encode(frames.read_values(X, self.schema)))

    def decode(self, x: Tensor, like: Frame | None = None) -> Frame:
        """Codes to rows.

        Args:
            x: (B, D), as `project` returns them.
            like: The B factuals. The result is a frame of the same kind, with their columns, dtypes and index, and
                every cell that did not change is theirs, bit for bit; numbers are rounded within what the factual
                may do. Without it, a pandas frame of its own.

        Returns:
            A frame of B rows.
        """
        codes = _array(x)
        if codes.ndim != 2 or codes.shape[1] != self.encoding.width:
            raise DataError(f"decode takes codes of shape (rows, {self.encoding.width}). Got {tuple(x.shape)} instead.")
        if like is None:
            return frames.new_frame(self.encoding, self.encoding.decode(codes))
        here = frames.read_values(like, self.schema)
        if len(here) != len(codes):
            raise DataError(f"decode got {len(codes)} rows of codes and {len(here)} rows in 'like'. Give one for each.")
        self._check_rows(len(here))
        answers = restore(self.encoding, self.freedom, codes, here)
        # Any allowed point does for a gap: a number in a narrower dtype is rounded toward it.
        inside = np.where(np.isnan(here.numbers), np.add(*room(self.freedom, here.numbers)) / 2, here.numbers)
        changed = changes(self.encoding, answers, here)
        return frames.write_values(like, self.encoding, answers, changed, toward=inside)

    def relax(self, raw: Tensor, x: Tensor) -> Tensor:
        """Decoder output to a point that heeds every limit, differentiably.

        Numbers are clamped to where they may go, categories become probabilities over those that may be entered, and
        followers are read off their leaders. Grids and `at_most` are left to `project`.

        Args:
            raw: (..., B, D) codes of numbers, gap flags, and logits of categories.
            x: (B, D) the factuals.

        Returns:
            (..., B, D).
        """
        self._check_shapes(raw, x)
        dtype = torch.promote_types(raw.dtype, x.dtype)
        raw, x = raw.to(dtype), x.to(dtype)
        parts = self._parts(x)
        here = x[:, parts.number_at]
        missing = (x[:, parts.gap_at.clamp(min=0)] > 0.5) & (parts.gap_at >= 0)
        low, high = interval(torch, here, missing, parts.low, parts.high, parts.no_fall, parts.no_rise)
        frozen = parts.no_fall & parts.no_rise
        numbers = torch.minimum(torch.maximum(raw[..., parts.number_at], low), high)
        numbers = torch.where(frozen, here, numbers)  # not by clamping alone, which lets half a gradient pass at a tie
        # A gap may close as far as the decoder says, unless it is frozen; where there is none, none opens.
        gaps = torch.where(frozen, 1.0, raw[..., parts.gap_at.clamp(min=0)].clamp(0.0, 1.0)) * missing
        numbers = numbers * (1.0 - gaps)

        entries = self._entries(parts, x, low, high)
        logits = torch.where(entries, raw[..., parts.slot_at], -torch.inf)
        padded = torch.cat([logits, torch.full_like(logits[..., :1], -torch.inf)], dim=-1)[..., parts.padding]
        shares = torch.softmax(padded, dim=-1).flatten(-2)[..., parts.unpadding] if len(parts.blocks) else logits

        result = torch.cat([numbers, gaps[..., parts.gap_at >= 0], shares], dim=-1)[..., parts.order]
        for link in parts.links:
            result = self._follow(link, result, x)
        return result

    def _entries(self, parts: _Tensors, x: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """(B, M) the categories each row may be in, links heeded."""
        here = x[:, parts.slot_at]
        entries: Tensor = enterable(
            torch, here, parts.moves, parts.may_enter, parts.blocks, parts.padding, parts.unpadding
        )
        for link in parts.links:
            if link.knots is None:
                block, span = self.encoding.slices[link.link.leader], link.span
                barred = torch.zeros_like(x).index_copy(1, parts.slot_at, (~entries).to(x.dtype))
                mine = leadable(link.link, link.table, link.known, x[:, block], low, high, barred, self.encoding)
                entries = torch.cat([entries[:, : span.start], mine & entries[:, span], entries[:, span.stop :]], dim=1)
        return entries

    def _follow(self, link: _LinkTensors, result: Tensor, x: Tensor) -> Tensor:
        """Put the followers where the leader's present share of each of its values puts them."""
        leader = self.encoding.slices[link.link.leader]
        own = x[:, link.columns]
        if link.knots is None:
            share, here = result[..., leader], x[:, leader]
            # Staying keeps the factual's own followers, even where the training rows knew others.
            codes = share @ link.table + (share * here).sum(-1, keepdim=True) * (own - here @ link.table)
        else:
            value = result[..., leader.start].contiguous()
            codes = between_knots(torch, link.knots, link.table, value)
            codes = torch.where((value == x[:, leader.start])[..., None], own, codes)
        return result.index_copy(-1, link.columns, codes)

    def project(self, x_cf: Tensor, x: Tensor) -> Tensor:
        """The nearest point that breaks no constraint.

        Args:
            x_cf: (..., B, D) any finite codes.
            x: (B, D) the factuals.

        Returns:
            (..., B, D), features that end where they began with the factual's own codes, bit for bit.
        """
        self._check_shapes(x_cf, x)
        codes = _array(x_cf)
        result = project(self.encoding, self.freedom, codes.reshape(-1, *codes.shape[-2:]), _array(x))
        return torch.from_numpy(result.reshape(codes.shape)).to(x.device, x.dtype)

    def distance(self, x_cf: Tensor, x: Tensor) -> Tensor:
        """What a change costs at the schema's prices, differentiable but for prices per change of numbers.

        Filling a gap costs 1 and the price of a change, whatever the number; followers of a link cost nothing.

        Args:
            x_cf: (..., B, D).
            x: (B, D).

        Returns:
            (..., B). By default one standard deviation costs 1 and so does one change of category.
        """
        dtype = torch.promote_types(x_cf.dtype, x.dtype)
        x_cf, x = x_cf.to(dtype), x.to(dtype)
        parts = self._parts(x)
        difference = (x_cf - x).abs()
        moved = difference[..., parts.number_at] > 0
        if (self.encoding.gap_at >= 0).any():
            with_gaps = parts.gap_at >= 0
            gap = parts.gap_at.clamp(min=0)
            # A gap is no number: where there is one on either side, only the gap and the change itself are charged.
            both = torch.where(with_gaps, (1 - x_cf[..., gap]) * (1 - x[:, gap]), 1.0)
            moved = moved | (with_gaps & (difference[..., gap] > 0))
            difference = difference.index_copy(-1, parts.number_at, difference[..., parts.number_at] * both)
        return difference @ parts.prices + moved.to(dtype) @ parts.change_prices

    def restrict(
        self,
        vary: Vary | None = None,
        ranges: Ranges | None = None,
        at_most: int | Sequence[int] | None = None,
    ) -> Self:
        """A narrower space for one request; nothing the schema forbids becomes possible.

        Args:
            vary: The columns that may change: a list for all rows, a list of lists for each row its own, or a boolean
                array (B, features). Naming one of a link names the link.
            ranges: By column, where an answer may go: (low, high) for numbers, either side None or one number per row;
                a list of categories, or a list of lists for each row its own.
            at_most: How many features may change at once, for all rows or for each.

        Raises:
            SchemaError: If a column does not exist or is frozen, or a range leaves nothing.
        """
        return replace(self, freedom=self.freedom.narrow(self.encoding, vary, ranges, at_most))

    def changed(self, answers: Frame, like: Frame) -> Flags:
        """(B, features) which cells of the answers differ from the factuals, in exact values."""
        return changes(self.encoding, *self._read_pair(answers, like))

    def violations(self, answers: Frame, like: Frame) -> Flags:
        """(B, features) where an answer breaks a constraint, judged on the rows people receive."""
        return violations(self.encoding, self.freedom, *self._read_pair(answers, like))

    def _read_pair(self, answers: Frame, like: Frame) -> tuple[Values, Values]:
        pair = frames.read_values(answers, self.schema), frames.read_values(like, self.schema)
        if len(pair[0]) != len(pair[1]):
            raise DataError(f"There are {len(pair[0])} answers for {len(pair[1])} rows. Give one for each.")
        self._check_rows(len(pair[1]))
        return pair

    def _check_shapes(self, x_cf: Tensor, x: Tensor) -> None:
        width = self.encoding.width
        if x.dim() != 2 or x.shape[1] != width or x_cf.dim() < 2 or x_cf.shape[-2:] != x.shape:
            raise DataError(
                f"Codes must have shapes (..., rows, {width}) for candidates and (rows, {width}) for factuals. Got"
                f" {tuple(x_cf.shape)} and {tuple(x.shape)}."
            )
        self._check_rows(x.shape[0])

    def _check_rows(self, rows: int) -> None:
        if self.freedom.rows not in (1, rows):
            raise SchemaError(f"This space was restricted for {self.freedom.rows} rows. Got {rows} rows.")

    def _parts(self, x: Tensor) -> _Tensors:
        """The arrays as tensors where x lives and in its precision, made once for each."""
        key = (x.device, x.dtype)
        if key not in self._made:
            self._made[key] = _Tensors.of(self.encoding, self.freedom, x.device, x.dtype)
        return self._made[key]

    @cached_property
    def _made(self) -> dict[tuple[torch.device, torch.dtype], _Tensors]:
        return {}


@dataclass(frozen=True, eq=False)
class _LinkTensors:
    link: Link
    columns: Tensor
    table: Tensor
    known: Tensor
    knots: Tensor | None
    span: slice  # the leader's slots, where it is categorical


@dataclass(frozen=True, eq=False)
class _Tensors:
    """The arrays of an encoding and a freedom that training needs, as tensors."""

    number_at: Tensor
    gap_at: Tensor
    slot_at: Tensor
    low: Tensor
    high: Tensor
    no_fall: Tensor
    no_rise: Tensor
    may_enter: Tensor
    moves: Tensor
    prices: Tensor
    change_prices: Tensor
    blocks: Tensor
    padding: Tensor
    unpadding: Tensor
    order: Tensor  # (D,) from numbers, gaps, slots to the order of the codes
    links: tuple[_LinkTensors, ...]

    @classmethod
    def of(cls, encoding: Encoding, freedom: Freedom, device: torch.device, dtype: torch.dtype) -> _Tensors:
        def tensor(array: Any) -> Tensor:
            value = torch.from_numpy(np.array(array))
            return value.to(device, dtype if value.is_floating_point() else None)

        produced = np.concatenate([encoding.number_at, encoding.gap_at[encoding.gap_at >= 0], encoding.slot_at])
        links = [
            _LinkTensors(
                link,
                columns=tensor(link.columns),
                table=tensor(link.table),
                known=tensor(link.known),
                knots=None if link.knots is None else tensor(link.knots),
                span=slice(0) if link.knots is not None else encoding.slots[encoding.place[link.leader]],
            )
            for link in freedom.links
        ]
        blocks, padding, unpadding = encoding.padded
        arrays = {
            "number_at": encoding.number_at,
            "gap_at": encoding.gap_at,
            "slot_at": encoding.slot_at,
            "low": encoding.scaled(freedom.low),
            "high": encoding.scaled(freedom.high),
            "no_fall": freedom.no_fall,
            "no_rise": freedom.no_rise,
            "may_enter": freedom.may_enter,
            "moves": freedom.moves,
            "prices": encoding.prices,
            "change_prices": encoding.change_prices,
            "blocks": blocks,
            "padding": padding,
            "unpadding": unpadding,
            "order": np.argsort(produced),
        }
        return cls(links=tuple(links), **{name: tensor(array) for name, array in arrays.items()})


def _array(x: Tensor) -> Any:
    return x.detach().cpu().numpy().astype(np.float32, copy=False)
