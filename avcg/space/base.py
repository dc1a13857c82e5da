"""What a generator needs to know about its inputs: the contract that every space keeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from avcg.schema.schema import Schema
from avcg.space.alternatives import Alternatives
from avcg.space.codes import CodeSpace
from avcg.space.constraints import REACH
from avcg.space.encoding import Codes, Flags, Floats, Positions


@dataclass(frozen=True, eq=False)
class Delivery:
    """Answers as people receive them.

    Attributes:
        answers: The rows in user units, of the kind the factuals are.
        read: The same as exactly as they can be had; see `Space.read`.
        received: (N, *event) their codes, read off the answers themselves.
        changed: (N, entries) which entries of the rows differ: columns in the order of the rows, a group of columns
            once; None for images.
        broken: (N,) whether an answer breaks a constraint, by a look that does not know how it was made.
    """

    answers: Any
    read: Any
    received: Codes
    changed: Flags | None
    broken: Flags


class Space(Protocol):
    """What a generator needs to know about its inputs: B rows, K answers per row, ``*event`` one encoded row."""

    @property
    def event_shape(self) -> tuple[int, ...]:
        """The shape of one encoded row."""

    @property
    def schema(self) -> Schema | None:
        """What the columns are and what may change; None where there are no columns."""

    @property
    def n_features(self) -> int:
        """How many features a row has: columns, or numbers of an image."""

    @property
    def averages_distance(self) -> bool:
        """Whether `distance` is a mean over features and not a sum."""

    @property
    def codes(self) -> CodeSpace:
        """The same space for numpy, as a search uses it."""

    def difference(self, other: Space) -> str | None:
        """What the two read differently, e.g. a column; None: nothing."""

    def narrowed(self, schema: Schema, X: Any) -> Self:
        """This space under another schema, with links learnt from rows; an error where there are no columns."""

    def restrict_rows(self, vary: Any, ranges: Any, max_changes: Any, rows: int) -> Self:
        """A narrower space for a query about so many rows."""

    def read(self, X: Any) -> Any:
        """Rows as exactly as they can be had, for whoever needs them more than once: `encode` takes these too."""

    def deliver(self, x: Codes, rows: Any, read: Any) -> Delivery:
        """(N, *event) feasible codes to answers beside their factuals, given as rows and as `read` returned them."""

    def encode(self, X: Any) -> Tensor:
        """User units to (B, *event), float32."""

    def decode(self, x: Tensor, like: Any = None) -> Any:
        """(B, *event) back to user units; cells equal to those of ``like`` stay its own."""

    @property
    def n_gates(self) -> int:
        """How many gates a decoder may have: one for each number that moves by itself; 0 where there is no use."""

    @property
    def is_logit(self) -> Tensor:
        """Which codes of a decoder's output are logits of categories; broadcasts over ``*event``."""

    def constraint_features(self, x: Tensor, reach: float = REACH) -> Tensor:
        """(B, ...) what each row may change, as a decoder reads it; room beyond ``reach`` codes makes no difference."""

    def relax(self, raw: Tensor, x: Tensor, gates: Tensor | None = None) -> Tensor:
        """Decoder output (..., B, *event) to a feasible point near it, differentiable; what training sees."""

    def smaller(self, x_cf: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Answers with a part of their change taken back: (M,) which answer, (M, *event) what is left of it."""

    def project(self, x_cf: Tensor, x: Tensor) -> Tensor:
        """The nearest feasible point, exact; what people and metrics see."""

    def finalize(self, raw: Tensor, x: Tensor, gates: Tensor | None = None) -> Tensor:
        """Decoder output to answers: as `project` of `relax`, without what only gradients need."""

    def distance(self, x_cf: Tensor, x: Tensor, gates: Tensor | None = None) -> Tensor:
        """What a change costs, (..., B)."""

    def pairwise_distance(self, x: Tensor, rows: Tensor) -> Tensor:
        """(N, *event) and (m, *event) to (N, m) distances of each from each, but for prices per change of numbers."""

    def count_changes(self, x_cf: Tensor, x: Tensor, gates: Tensor | None = None) -> Tensor:
        """How many features change, (..., B)."""

    def random_requests(self, rows: int, share: float, rng: np.random.Generator) -> Self:
        """This space as a share of rows may ask for it, each with random restrictions of its own."""

    def cross(self, x: Tensor, others: Tensor, rng: torch.Generator) -> Tensor:
        """Rows of which each feature is taken from either of two, (B, *event)."""

    def take(self, rows: Tensor) -> Self:
        """This space for some of the rows it was restricted for, in the order given."""

    def immovable(self, x: Tensor) -> Tensor:
        """(B,) rows that may change nothing at all."""

    def lock_change(self, x_cf: Tensor, x: Tensor, rank: int) -> Self | None:
        """This space with one change of each answer locked, the dearest for rank 0; None where that has no meaning."""


@dataclass(frozen=True, eq=False)
class TorchCodes:
    """The numpy view of a space that is written in torch.

    Attributes:
        tensors: The space.
    """

    tensors: Space

    def take(self, rows: Positions) -> TorchCodes:
        """This space for some of the rows it was restricted for."""
        return TorchCodes(self.tensors.take(torch.from_numpy(rows)))

    def finalize(self, raw: Codes, x: Codes, gates: Flags | None, quantum: float) -> Codes:  # noqa: ARG002
        """Decoder output to feasible candidates."""
        opened = None if gates is None else torch.from_numpy(gates)
        return self.tensors.finalize(torch.from_numpy(raw), torch.from_numpy(x), opened).numpy()

    def project(self, x_cf: Codes, x: Codes) -> Codes:
        """The nearest feasible points."""
        return self.tensors.project(torch.from_numpy(x_cf), torch.from_numpy(x)).numpy()

    def distance(self, x_cf: Codes, x: Codes) -> Codes:
        """What a change costs."""
        return self.tensors.distance(torch.from_numpy(x_cf), torch.from_numpy(x)).numpy()

    def pairwise_distance(self, x: Codes, rows: Codes) -> Codes:
        """Distances of each row from each other row."""
        return self.tensors.pairwise_distance(torch.from_numpy(x), torch.from_numpy(rows)).numpy()

    def constraint_features(self, x: Codes, reach: float = REACH) -> Codes:
        """What each row may change, as a decoder reads it."""
        return self.tensors.constraint_features(torch.from_numpy(x), reach).numpy()

    def immovable(self, x: Codes) -> Flags:
        """Rows that may change nothing at all."""
        return self.tensors.immovable(torch.from_numpy(x)).numpy()

    def lock_change(self, x_cf: Codes, x: Codes, rank: int) -> TorchCodes | None:
        """This space with one change of each answer locked."""
        narrower = self.tensors.lock_change(torch.from_numpy(x_cf), torch.from_numpy(x), rank)
        return None if narrower is None else TorchCodes(narrower)

    def alternatives(
        self,
        x_cf: Codes,
        x: Codes,
        step: float,  # noqa: ARG002
        units: Flags | None = None,  # noqa: ARG002
        around: Codes | None = None,  # noqa: ARG002
    ) -> Alternatives:
        """Each answer with a part of its change taken back; all features are one unit."""
        rows, codes = self.tensors.smaller(torch.from_numpy(x_cf), torch.from_numpy(x))
        return Alternatives(rows.numpy(), np.zeros(len(rows), np.intp), codes.numpy(), n_units=1)

    def combine(self, x_cf: Codes, x: Codes, moves: Alternatives, chosen: Positions) -> Codes:  # noqa: ARG002
        """(K, B, *event) answers, each replaced by an alternative or kept."""
        taken = chosen[..., 0]
        replaced = (taken >= 0).reshape(*taken.shape, *[1] * (x_cf.ndim - 1))
        return np.where(replaced, moves.codes[np.maximum(taken, 0)], x_cf)

    def nearer(self, x_cf: Codes, x: Codes, shares: Sequence[float]) -> Codes:
        """(K, B, *event) answers with a share of their change taken back."""
        back = np.array(shares, np.float32).reshape(-1, *[1] * x.ndim)
        return self.project(x_cf + back * (x - x_cf), x)

    def at_cuts(self, x_cf: Codes, x: Codes, cuts: Mapping[str, Floats]) -> Codes:  # noqa: ARG002
        """The answers as they are, because there are no columns to cut."""
        return x_cf

    def small_sets(self, x: Codes, most: int, at_once: int) -> Iterator[tuple[Positions, Codes]]:  # noqa: ARG002
        """No feasible set is known to be small."""
        return iter(())

    def largest_scores(self, x: Codes, weights: Floats) -> Floats:  # noqa: ARG002
        """(B,) infinity, because no bound is known."""
        return np.full(len(x), np.inf)
