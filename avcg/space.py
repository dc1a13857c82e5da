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
from avcg.encoding import Encoding, Flags, Link, Scaling, Values
from avcg.errors import DataError, SchemaError
from avcg.frames import Frame
from avcg.freedom import Freedom, Ranges, Vary, enterable, interval, leadable
from avcg.projection import (
    between_knots,
    changes,
    leader_knots,
    leader_slots,
    link_parts,
    nearest_numbers,
    project,
    violations,
)
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
        encoding = Encoding.fit(schema, frames.read_values(X, schema), scaling)
        return cls(encoding, Freedom.of(encoding))

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
        answers = self.encoding.decode(codes)
        if like is None:
            return frames.new_frame(self.encoding, answers)
        here = frames.read_values(like, self.schema)
        if len(here) != len(codes):
            raise DataError(f"decode got {len(codes)} rows of codes and {len(here)} rows in 'like'. Give one for each.")
        self._check_rows(len(here))
        at = self.encoding.number_at
        # Only a number whose code moved is read off its code; any other is the factual's own, whatever float32 holds.
        same = codes[:, at] == self.encoding.scaled(
            np.where(np.isnan(here.numbers), self.encoding.center, here.numbers)
        )
        same &= np.isnan(here.numbers) == np.isnan(answers.numbers)
        near = nearest_numbers(self.encoding, self.freedom, self.encoding.unscaled(codes[:, at]), here.numbers)
        near = np.where(np.isnan(answers.numbers), np.nan, near)
        answers = Values(np.where(same, here.numbers, near), answers.choices)
        return frames.write_values(like, self.encoding, answers, changes(self.encoding, answers, here))

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
        self._check_rows(x.shape[0])
        parts = self._tensors.on(x)
        here, slots = x[:, parts.number_at], x[:, parts.slot_at]
        missing = (x[:, parts.gap_at.clamp(min=0)] > 0.5) & (parts.gap_at >= 0)
        low, high = interval(torch, here, missing, parts.low, parts.high, parts.no_fall, parts.no_rise)
        numbers = torch.minimum(torch.maximum(raw[..., parts.number_at], low), high)
        # A gap may close as far as the decoder says, unless it is frozen; where there is none, none opens.
        frozen = parts.no_fall & parts.no_rise
        gaps = torch.where(frozen, 1.0, raw[..., parts.gap_at.clamp(min=0)].clamp(0.0, 1.0)) * missing
        numbers = numbers * (1.0 - gaps)

        entries = enterable(torch, slots, parts.moves, parts.may_enter)
        for link in parts.links:
            if link.knots is None:
                mine = leadable(torch, slots[:, link.span], low, high, entries, link.at)
                entries = torch.cat([entries[:, : link.span.start], mine & entries[:, link.span],
                                     entries[:, link.span.stop :]], dim=1)  # fmt: skip
        logits = torch.where(entries, raw[..., parts.slot_at], -torch.inf)
        padded = torch.cat([logits, torch.full_like(logits[..., :1], -torch.inf)], dim=-1)[..., parts.padding]
        shares = torch.softmax(padded, dim=-1).flatten(-2)[..., parts.unpadding] if len(parts.unpadding) else logits

        result = torch.cat([numbers, gaps[..., parts.gap_at >= 0], shares], dim=-1)[..., parts.order]
        for link in parts.links:
            result = self._follow(link, result, x)
        return result

    def _follow(self, link: _LinkTensors, result: Tensor, x: Tensor) -> Tensor:
        """Put the followers where the leader's present share of each of its values puts them."""
        leader = self.encoding.slices[link.link.leader]
        own = x[:, link.columns]
        if link.knots is None:
            share, here = result[..., leader], x[:, leader]
            # Staying keeps the factual's own followers, even where the training rows knew others.
            codes = share @ link.at["table"] + (share * here).sum(-1, keepdim=True) * (own - here @ link.at["table"])
        else:
            value = result[..., leader.start].contiguous()
            codes = between_knots(torch, link.knots, link.at["table"], value)
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
        self._check_rows(x.shape[0])
        codes = _array(x_cf)
        result = project(self.encoding, self.freedom, codes.reshape(-1, *codes.shape[-2:]), _array(x))
        return torch.from_numpy(result.reshape(codes.shape)).to(x.device)

    def distance(self, x_cf: Tensor, x: Tensor) -> Tensor:
        """What a change costs at the schema's prices, differentiable but for prices per change of numbers.

        Args:
            x_cf: (..., B, D).
            x: (B, D).

        Returns:
            (..., B). By default one standard deviation costs 1 and so does one change of category.
        """
        parts = self._tensors.on(x)
        difference = (x_cf - x).abs()
        return difference @ parts.prices + (difference[..., parts.number_at] > 0).to(x.dtype) @ parts.change_prices

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
        return changes(self.encoding, frames.read_values(answers, self.schema), frames.read_values(like, self.schema))

    def violations(self, answers: Frame, like: Frame) -> Flags:
        """(B, features) where an answer breaks a constraint, judged on the rows people receive."""
        read = [frames.read_values(frame, self.schema) for frame in (answers, like)]
        return violations(self.encoding, self.freedom, *read)

    def _check_rows(self, rows: int) -> None:
        if self.freedom.rows not in (1, rows):
            raise SchemaError(f"This space was restricted for {self.freedom.rows} rows. Got {rows} rows.")

    @cached_property
    def _tensors(self) -> _Tensors:
        return _Tensors.of(self.encoding, self.freedom)


@dataclass(frozen=True, eq=False)
class _LinkTensors:
    link: Link
    columns: Tensor
    knots: Tensor | None
    span: slice
    at: Mapping[str, Any]


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
    padding: Tensor  # (blocks, widest block) slots of each block, M where there is none
    unpadding: Tensor  # (M,) the way back
    order: Tensor  # (D,) from numbers, gaps, slots to the order of the codes
    links: tuple[_LinkTensors, ...]

    @classmethod
    def of(cls, encoding: Encoding, freedom: Freedom) -> _Tensors:
        size = len(encoding.slot_at)
        widest = max((s.stop - s.start for s in encoding.slots), default=1)
        padding = np.full((len(encoding.slots), widest), size)
        for row, span in zip(padding, encoding.slots, strict=True):
            row[: span.stop - span.start] = np.arange(span.start, span.stop)
        produced = np.concatenate([encoding.number_at, encoding.gap_at[encoding.gap_at >= 0], encoding.slot_at])
        links = []
        for link in encoding.links:
            parts = dict(link_parts(encoding, link))
            parts |= {key: torch.from_numpy(parts[key]) for key in ("table", "known")}
            knots = None if link.knots is None else torch.from_numpy(leader_knots(encoding, link)).float()
            span = leader_slots(encoding, link) if knots is None else slice(0)
            links.append(_LinkTensors(link, torch.from_numpy(link.columns), knots, span, parts))
        arrays = {
            "number_at": encoding.number_at,
            "gap_at": encoding.gap_at,
            "slot_at": encoding.slot_at,
            "low": encoding.scaled(freedom.low),
            "high": encoding.scaled(freedom.high),
            "no_fall": freedom.no_fall,
            "no_rise": freedom.no_rise,
            "may_enter": freedom.may_enter,
            "moves": freedom.moves.astype(np.float32),
            "prices": encoding.prices,
            "change_prices": encoding.change_prices,
            "padding": padding,
            "unpadding": np.flatnonzero(padding.ravel() < size),
            "order": np.argsort(produced),
        }
        return cls(links=tuple(links), **{name: torch.from_numpy(np.array(array)) for name, array in arrays.items()})

    def on(self, x: Tensor) -> _Tensors:
        """The same where x lives and in its precision."""
        if x.device.type == "cpu" and x.dtype == torch.float32:
            return self

        def move(value: Any) -> Any:
            if isinstance(value, Tensor):
                return value.to(x.device, x.dtype if value.is_floating_point() else None)
            if isinstance(value, dict):
                return {key: move(item) for key, item in value.items()}
            if isinstance(value, tuple):
                return tuple(move(item) for item in value)
            if isinstance(value, (_LinkTensors, _Tensors)):
                return type(value)(**{key: move(item) for key, item in vars(value).items()})
            return value

        return move(self)


def _array(x: Tensor) -> Any:
    return x.detach().cpu().numpy().astype(np.float32, copy=False)
