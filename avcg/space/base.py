"""What a generator needs to know about its inputs: the contract that every space keeps."""

from __future__ import annotations

from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor


class Space(Protocol):
    """What a generator needs to know about its inputs: B rows, K answers per row, ``*event`` one encoded row."""

    @property
    def event_shape(self) -> tuple[int, ...]:
        """The shape of one encoded row."""

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

    def constraint_features(self, x: Tensor) -> Tensor:
        """What each row may change, (B, ...): what a decoder is told of the constraints."""

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
