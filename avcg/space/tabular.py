"""Where answers live: user units to tensors and back, with what may not change never changing.

`Space` is the contract that generators and methods are written against; `TabularSpace` keeps it for tables and
`avcg.space.images.ImageSpace` for pictures. Training sees `relax`, which is differentiable; people see `project`, which
is exact, and `decode`, which never touches a cell that did not change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from avcg.errors import DataError, SchemaError
from avcg.schema.schema import Schema
from avcg.space import frames
from avcg.space.base import Delivery, Space
from avcg.space.check import violations
from avcg.space.codes import TableCodes
from avcg.space.constraints import REACH, FeasibleSet, Ranges, Vary, random_requests
from avcg.space.derived import Derivations
from avcg.space.dummies import in_entries
from avcg.space.encoding import Codes, Encoding, Flags, Positions, Scaling, Values, body
from avcg.space.frames import Frame
from avcg.space.links import learn_links
from avcg.space.nearest import number_limits
from avcg.space.project import changes, gated, pairwise_distance, project, restore
from avcg.space.reading import read_rows
from avcg.space.relax import Relaxation


@dataclass(frozen=True, eq=False)
class TabularSpace:
    """Rows of a table with mixed columns under the constraints of a schema.

    Attributes:
        encoding: Scaling and layout of the codes.
        feasible: What may change; narrowed by `restrict`.

    >>> import pandas as pd
    >>> X = pd.DataFrame({"hours": [20, 40, 60], "job": ["clerk", "nurse", "clerk"]})
    >>> space = TabularSpace.fit(Schema.infer(X).only_up("hours"), X)
    >>> x = space.encode(X)
    >>> wish = x - 2.0  # fewer hours, which may not be
    >>> space.decode(space.project(wish, x), like=X).equals(X)
    True
    """

    encoding: Encoding
    feasible: FeasibleSet

    @classmethod
    def fit(cls, schema: Schema, X: Frame, scaling: Scaling = "standard") -> Self:
        """Learn scaling, ranges and links from training rows.

        Args:
            schema: What the columns are and what may change.
            X: Training rows.
            scaling: ``"standard"`` (mean 0, deviation 1) or ``"minmax"`` (0 to 1).

        Raises:
            DataError: If the rows do not fit the schema, its links or its derived columns.
        """
        if scaling not in ("standard", "minmax"):
            raise SchemaError(f"The 'scaling' of a space must be 'standard' or 'minmax'. Got {scaling!r} instead.")
        values = frames.read_values(X, schema)
        encoding = Encoding.fit(schema, values, scaling)
        Derivations.of(encoding).check(encoding, values)
        return cls(encoding, FeasibleSet.of(encoding, learn_links(encoding, values)))

    @property
    def schema(self) -> Schema:
        """What the columns are and what may change."""
        return self.encoding.schema

    @property
    def n_features(self) -> int:
        """How many columns there are."""
        return len(self.schema)

    @property
    def averages_distance(self) -> bool:
        """False: what columns cost is added up."""
        return False

    @cached_property
    def codes(self) -> TableCodes:
        """The same space for numpy."""
        return TableCodes(self.encoding, self.feasible)

    def difference(self, other: Space) -> str | None:
        """The first column that the two spaces read differently."""
        if not isinstance(other, TabularSpace):
            return "what a row is"
        column = self.encoding.difference(other.encoding)
        return None if column is None else f"column {column!r}"

    @property
    def event_shape(self) -> tuple[int, ...]:
        """(D,)."""
        return (self.encoding.width,)

    def read(self, X: Frame | Values) -> Values:
        """The exact values of a frame, for who needs them more than once: what reads frames takes these too."""
        return X if isinstance(X, Values) else frames.read_values(X, self.schema)

    def encode(self, X: Frame | Mapping[str, Any] | Values) -> Tensor:
        """Rows to codes.

        Args:
            X: A frame, columns in any order, one row as a dict, or values that were read.

        Returns:
            (B, D), float32.

        Raises:
            DataError: If the rows do not fit the schema.
        """
        if isinstance(X, Mapping):
            return torch.from_numpy(self.encoding.encode(read_rows(self.schema, [X])))
        return torch.from_numpy(self.encoding.encode(self.read(X)))

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
        codes = self.encoding.checked(_array(x))
        if like is None:
            return frames.new_frame(self.encoding, self.encoding.decode(codes))
        return self._write(codes, like, self.read(like))[0]

    def _write(self, codes: Codes, like: Frame, factuals: Values) -> tuple[Frame, Flags]:
        """Answers in a copy of their factuals' frame, and (B, features) which cells were replaced."""
        if len(factuals) != len(codes):
            raise DataError(
                f"decode got {len(codes)} rows of codes and {len(factuals)} rows in 'like'. Give one for each."
            )
        self._check_rows(len(factuals))
        answers = restore(self.encoding, self.feasible, codes, factuals)
        # A number in a narrower dtype is rounded toward the factual's, or toward the middle of what is allowed where
        # the factual's is missing or a special code.
        low, high = number_limits(self.feasible, factuals.numbers)
        allowed = (factuals.numbers >= low) & (factuals.numbers <= high)
        inside = np.where(allowed, factuals.numbers, (low + high) / 2)
        changed = changes(self.encoding, answers, factuals)
        return frames.write_values(like, self.encoding, answers, changed, toward=inside), changed

    @property
    def n_gates(self) -> int:
        """One for each number."""
        return len(self.encoding.number_at)

    @property
    def is_logit(self) -> Tensor:
        """(D,) True for the codes of categories."""
        return torch.zeros(self.encoding.width, dtype=torch.bool).index_fill(
            0, torch.from_numpy(self.encoding.slot_at), True
        )

    def constraint_features(self, x: Tensor, reach: float = REACH) -> Tensor:
        """What each row may change, as numbers a decoder can read.

        Args:
            x: (B, D) encoded rows.
            reach: Codes beyond which more room to move makes no difference.

        Returns:
            (B, 2 n + M + 1): how far each number may fall and rise, from 0 (not at all) to 1 (far); 1 for each category
            that may be entered or is the row's own; how tight the limit on changes is.
        """
        self._check_shapes(x, x)
        return self._relaxation(x).constraint_features(x, reach)

    def relax(self, raw: Tensor, x: Tensor, gates: Tensor | None = None) -> Tensor:
        """Decoder output to a point that heeds every limit, differentiably.

        Numbers are clamped to where they may go, categories become probabilities over those that may be entered, and
        followers are read off their leaders. Grids and `at_most` are left to `project`.

        Args:
            raw: (..., B, D) codes of numbers, gap flags, and logits of categories.
            x: (B, D) the factuals.
            gates: (..., B, n) in [0, 1], the share of its way that each number goes; a gap is filled to that share.
                None: all the way, and gap flags as in ``raw``.

        Returns:
            (..., B, D).
        """
        self._check_shapes(raw, x)
        dtype = torch.promote_types(raw.dtype, x.dtype)
        return self._relaxation(x.to(dtype)).relax(raw.to(dtype), x.to(dtype), gates)

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
        lead = math.prod(codes.shape[:-2])  # said, since of no rows it cannot be told
        result = project(self.encoding, self.feasible, codes.reshape(lead, *codes.shape[-2:]), _array(x))
        return torch.from_numpy(result.reshape(codes.shape)).to(x.device, x.dtype)

    def finalize(self, raw: Tensor, x: Tensor, gates: Tensor | None = None) -> Tensor:
        """Decoder output to answers, without what only gradients need of `relax`; gates are open or shut."""
        if gates is None:
            return self.project(raw, x)
        wanted = gated(self.encoding, _array(raw), _array(x), gates.cpu().numpy())
        return self.project(torch.from_numpy(wanted), x)

    def distance(self, x_cf: Tensor, x: Tensor, gates: Tensor | None = None) -> Tensor:
        """What a change costs at the schema's prices, differentiable but for prices per change of numbers.

        Filling a gap costs 1 and the price of a change, whatever the number; followers of a link cost nothing.

        Args:
            x_cf: (..., B, D).
            x: (B, D).
            gates: (..., B, n) how likely each number is to move; prices per change are then charged in that measure.

        Returns:
            (..., B). By default one standard deviation costs 1 and so does one change of category.
        """
        dtype = torch.promote_types(x_cf.dtype, x.dtype)
        return self._relaxation(x.to(dtype)).distance(x_cf.to(dtype), x.to(dtype), gates)

    def pairwise_distance(self, x: Tensor, rows: Tensor) -> Tensor:
        """(N, m) what encoded rows (N, D) cost to become others (m, D), prices per change of numbers left out."""
        return torch.from_numpy(pairwise_distance(self.encoding, _array(x), _array(rows))).to(x.device)

    def count_changes(self, x_cf: Tensor, x: Tensor, gates: Tensor | None = None) -> Tensor:
        """How many features change, those of a link as one; in expectation for shares of categories and gates.

        Args:
            x_cf: (..., B, D).
            x: (B, D).
            gates: (..., B, n) how likely each number is to move; None: those that differ do.

        Returns:
            (..., B).
        """
        return self._relaxation(x).count_changes(x_cf, x, gates)

    def random_requests(self, rows: int, share: float, rng: np.random.Generator) -> Self:
        """This space as a share of rows may ask for it: features locked, ranges narrowed, changes limited at random.

        Args:
            rows: B.
            share: Of rows with a request of their own.
            rng: Of the requests.
        """
        return replace(self, feasible=random_requests(self.encoding, self.feasible, rows, share, rng))

    def cross(self, x: Tensor, others: Tensor, rng: torch.Generator) -> Tensor:
        """Rows of which each feature is taken from either of two, linked features together.

        Args:
            x: (B, D).
            others: (B, D).
            rng: Which from which.
        """
        first = torch.rand(len(x), len(self.schema), generator=rng) < 0.5
        return torch.where(first[:, torch.from_numpy(self._owner)].to(x.device), x, others)

    @cached_property
    def _owner(self) -> Positions:
        """(D,) the unit of change that each code belongs to."""
        widths = [block.stop - block.start for block in self.encoding.slices]
        return self.feasible.unit[np.repeat(np.arange(len(widths)), widths)]

    def take(self, rows: Tensor) -> Self:
        """This space for some of the rows it was restricted for.

        Args:
            rows: (b,) positions, in any order and as often as wanted.
        """
        return self if self.feasible.rows == 1 else replace(self, feasible=self.feasible.take(rows.cpu().numpy()))

    def immovable(self, x: Tensor) -> Tensor:
        """(B,) rows that may change nothing at all."""
        self._check_shapes(x, x)
        return torch.from_numpy(self.codes.immovable(_array(x))).to(x.device)

    def lock_change(self, x_cf: Tensor, x: Tensor, rank: int) -> Self | None:
        """This space with one change of each answer locked: what else could be done?

        Args:
            x_cf: (B, D) answers.
            x: (B, D) the factuals.
            rank: Which change, the dearest first from 0. Rows with fewer changes lock nothing.
        """
        narrower = self.codes.lock_change(_array(x_cf), _array(x), rank)
        return None if narrower is None else replace(self, feasible=narrower.feasible)

    def smaller(self, x_cf: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Every answer with one of its changes undone, and with a changed number brought half of its way back.

        Args:
            x_cf: (B, D) feasible answers.
            x: (B, D) the factuals.

        Returns:
            (M,) positions of the answers, and (M, D) feasible points.
        """
        none = np.zeros((len(x), self.n_features), bool)
        taken_back = self.codes.alternatives(_array(x_cf), _array(x), 0.0, none)
        return torch.from_numpy(taken_back.rows).to(x.device), torch.from_numpy(taken_back.codes).to(x.device)

    def narrowed(self, schema: Schema, X: Frame) -> Self:
        """The same codes under another schema, which may say otherwise what may change, but not what a column is.

        Args:
            schema: With the same columns, categories and gaps.
            X: Rows to learn its links from.

        Raises:
            SchemaError: If a column is another, since predictors would read it differently.
        """
        different = self.encoding.difference(replace(self.encoding, schema=schema))
        if different is not None:
            raise SchemaError(
                f"The hypotheses read column {different!r} differently from this schema. Give the schema they were"
                " trained with, narrowed by freeze, only_up, between, ..., or train them with this one."
            )
        values = frames.read_values(X, schema)
        # What is a code in one schema and a number in the other has a part in ranges and gaps in one of them only.
        recoded = [old.codes != new.codes for old, new in zip(self.schema.numeric, schema.numeric, strict=True)]
        encoding = self.encoding.with_support(schema, body(schema, values), np.flatnonzero(recoded))
        Derivations.of(encoding).check(encoding, values)
        return replace(self, encoding=encoding, feasible=FeasibleSet.of(encoding, learn_links(encoding, values)))

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
        return replace(self, feasible=self.feasible.narrow(self.encoding, vary, ranges, at_most))

    def restrict_rows(self, vary: Any, ranges: Any, max_changes: Any, rows: int) -> Self:
        """A narrower space for a query about so many rows; see `restrict`."""
        narrower = self.restrict(vary, ranges, max_changes)
        if narrower.feasible.rows not in (1, rows):
            raise SchemaError(f"The query speaks of {narrower.feasible.rows} rows. Got {rows} rows in X.")
        return narrower

    def deliver(self, x: Codes, rows: Frame, read: Values) -> Delivery:
        """Feasible codes (N, D) to answers beside their N factuals."""
        answers, replaced = self._write(x, rows, read)
        delivered = frames.read_changed(answers, self.schema, read, replaced)
        return Delivery(
            answers=answers,
            read=delivered,
            received=self.encoding.encode(delivered),
            changed=in_entries(self.schema, list(rows.columns), changes(self.encoding, delivered, read)),
            broken=np.asarray(violations(self.encoding, self.feasible, delivered, read).any(axis=1)),
        )

    def changed(self, answers: Frame | Values, like: Frame | Values) -> Flags:
        """(B, features) which cells of the answers differ from the factuals, in exact values."""
        return changes(self.encoding, *self._read_pair(answers, like))

    def violations(self, answers: Frame, like: Frame) -> Flags:
        """(B, features) where an answer breaks a constraint, judged on the rows people receive."""
        return violations(self.encoding, self.feasible, *self._read_pair(answers, like))

    def _read_pair(self, answers: Frame | Values, like: Frame | Values) -> tuple[Values, Values]:
        pair = self.read(answers), self.read(like)
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
        if self.feasible.rows not in (1, rows):
            raise SchemaError(f"This space was restricted for {self.feasible.rows} rows. Got {rows} rows.")

    def _relaxation(self, x: Tensor) -> Relaxation:
        """The constraints as tensors where x lives and in its precision, made once for each."""
        key = (x.device, x.dtype)
        if key not in self._made:
            self._made[key] = Relaxation.of(self.encoding, self.feasible, x.device, x.dtype)
        return self._made[key]

    @cached_property
    def _made(self) -> dict[tuple[torch.device, torch.dtype], Relaxation]:
        return {}


def table_of(space: object) -> TabularSpace | None:
    """The space, where it is that of a table; None for images and for nothing."""
    return space if isinstance(space, TabularSpace) else None


def _array(x: Tensor) -> Any:
    return x.detach().cpu().numpy().astype(np.float32, copy=False)
