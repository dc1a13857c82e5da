"""What is asked of every row, and a stored explainer that answers tables piece by piece."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import torch
from threadpoolctl import threadpool_limits

from avcg.batch.chunks import ArrowPiece, TextPiece, readings_of, typed
from avcg.batch.columns import Answered
from avcg.batch.parsing import check_columns, label_of
from avcg.errors import ArtifactError, DataError, SettingError, check_int, did_you_mean, enumerate_some
from avcg.explainers.avcg import AVCG
from avcg.explainers.counterfactuals import Counterfactuals
from avcg.io.artifact import about, load
from avcg.io.folder import FORMAT, VERSION, read_manifest
from avcg.method.query import QueryOptions
from avcg.space.encoding import Flags, Positions
from avcg.space.tabular import TabularSpace, table_of

# Rows answered together at most, and what their number is a multiple of: the last digits of a probability depend on
# how many there are where these do not fill a product's tiles, and answers must depend neither on how much of a file is
# read at a time nor on how a table is cut into partitions.
TOGETHER, TILE = 4096, 64


@dataclass(frozen=True)
class BatchOptions(QueryOptions):
    """What is asked of every row of a table.

    Attributes:
        target: The outcome wanted; None: the one that the artifact was fitted for.
        only_denied: Whether rows that have the outcome already are left out.
        seed: Seed of the latents that are tried; None: as trained.

    >>> BatchOptions(target="yes", n=2, vary=["income", "months"]).vary
    ('income', 'months')
    """

    target: Any = None
    only_denied: bool = True
    seed: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vary is not None:
            if isinstance(self.vary, str):
                raise SettingError(f"The 'vary' of a query must be a list of columns. Got {self.vary!r} instead.")
            object.__setattr__(self, "vary", tuple(self.vary))
        if self.max_changes is not None:
            check_int(self.max_changes, "'max_changes' of a query", 1)
        if self.seed is not None:
            check_int(self.seed, "'seed' of a query", 0)
        if not isinstance(self.refine, bool):
            raise SettingError(f"The 'refine' of a query must be True or False. Got {self.refine!r} instead.")


@dataclass
class Totals:
    """What has been done.

    Attributes:
        rows: Read.
        left_out: Of these, rows that have the outcome already.
        statuses: Answers by their status.
    """

    rows: int = 0
    left_out: int = 0
    statuses: Counter[str] = field(default_factory=Counter)

    def count(self, piece: TextPiece | ArrowPiece, blocks: Sequence[Answered]) -> None:
        """One more piece, and the answers to it."""
        self.rows += len(piece)
        self.left_out += len(piece) - sum(len(block.places) for block in blocks)
        for block in blocks:
            self.statuses.update(block.found.statuses.tolist())

    def add(self, other: Totals) -> None:
        """What was done elsewhere."""
        self.rows += other.rows
        self.left_out += other.left_out
        self.statuses += other.statuses

    def noted(self) -> dict[str, Any]:
        """As plain values."""
        return {"rows": self.rows, "left_out": self.left_out, "statuses": dict(sorted(self.statuses.items()))}


@dataclass(frozen=True, eq=False)
class StoredExplainer:
    """A stored explainer of tables.

    Attributes:
        explainer: Fitted.
        space: What it answers in.
        noted: When it was stored.
    """

    explainer: AVCG
    space: TabularSpace
    noted: Mapping[str, Any]


def digest_of(path: str) -> str:
    """What tells an artifact from any other.

    Raises:
        ArtifactError: If there is none.
    """
    return str(read_manifest(path, FORMAT, VERSION)["sha256"])


@lru_cache(maxsize=1)
def opened(path: str, digest: str) -> StoredExplainer:
    """An artifact, read once in a process.

    Args:
        path: Where it lies.
        digest: Which one it is: answers of two must never be mixed.

    Raises:
        ArtifactError: If it cannot be opened, or is another.
        SettingError: If it is about images.
    """
    explainer, noted = load(path), about(path)
    if digest_of(path) != digest:
        raise ArtifactError(f"{path} was replaced by another while rows were answered. Answer all of them again.")
    table = table_of(explainer.space_)
    if table is None:
        raise SettingError(f"{path} is about images, and only tables are answered here. Use it from Python.")
    return StoredExplainer(explainer, table, noted)


class Answerer:
    """A stored explainer that answers pieces of tables.

    Args:
        artifact: The explainer.
        options: What is asked of every row.

    Attributes:
        target: The outcome wanted.
        readings: How each column is read.

    Raises:
        AvcgError: If what is asked cannot be meant.
    """

    def __init__(self, artifact: StoredExplainer, options: BatchOptions) -> None:
        self._explainer, self._space, self._options = artifact.explainer, artifact.space, options
        if options.seed is not None:
            self._explainer = copy.copy(artifact.explainer)  # which others use as well
            self._explainer.random_state = options.seed
        self.target = _target(self._explainer.classes_.tolist(), options, artifact.noted)
        self.readings = readings_of(self._space.schema, artifact.noted.get("dtypes", {}))
        check_columns("The 'vary' of a query", options.vary or (), self._space.schema.names)
        self._space.restrict(options.vary, options.ranges, options.max_changes)  # whatever is wrong with it is said now

    def check(self, columns: Sequence[str], name: str) -> None:
        """Whether a table has every column, and none twice.

        Args:
            columns: Of the table.
            name: What to call it.

        Raises:
            DataError: With the first that is missing.
        """
        twice = sorted(one for one, count in Counter(columns).items() if count > 1)
        if twice:
            raise DataError(f"{name} has column {enumerate_some(twice)} twice. Rename or drop one of them.")
        for one in self._space.schema.names:
            if one not in columns:
                raise DataError(f"{name} has no column {one!r}. {did_you_mean(one, columns)}")

    def check_schema(self, schema: Any, name: str) -> None:
        """The same of a schema of pyarrow, and whether all columns are of kinds that can be read.

        Raises:
            DataError: With the first that is not.
        """
        self.check(schema.names, name)
        typed(ArrowPiece(0, schema.empty_table(), name), self._space.schema, self.readings)

    def answer(self, piece: TextPiece | ArrowPiece) -> list[Answered]:
        """Answers to the rows of a piece, by one thread.

        Raises:
            DataError: If a row does not fit, with its place.
        """
        if not len(piece):
            return []
        rows = typed(piece, self._space.schema, self.readings)
        # Sums in one order on every machine; and threads for so little work only wait for each other. Processes do not.
        with threadpool_limits(1):
            codes = self._encoded(piece, rows)
            places = self._denied(rows, codes) if self._options.only_denied else np.arange(len(rows))
            return [
                Answered(piece, group[:count], self._together(rows.iloc[group]).take(np.arange(count)))
                for group, count in _groups(places)
            ]

    def _encoded(self, piece: TextPiece | ArrowPiece, rows: pd.DataFrame) -> torch.Tensor:
        try:
            return self._space.encode(rows)
        except DataError as error:
            _locate(self._space, piece, rows)
            raise DataError(f"{piece.name}: {error}") from None

    def _together(self, rows: pd.DataFrame) -> Counterfactuals:
        return self._explainer.query(rows, self.target, self._options)

    def _denied(self, rows: pd.DataFrame, codes: torch.Tensor) -> Positions:
        """Which rows do not have the outcome yet."""
        target = self._explainer.classes_.tolist().index(self.target)
        has_it: list[Flags] = []
        for group, count in _groups(np.arange(len(rows))):
            deployed = self._explainer.deployed_.bind_rows(rows.iloc[group])
            found, wanted = deployed.probabilities(codes[group]), torch.full((len(group),), target)
            has_it.append(np.asarray(deployed.valid(found, wanted, self._options.min_prob))[:count])
        return np.flatnonzero(~np.concatenate(has_it))


def _groups(places: Positions) -> Iterator[tuple[Positions, int]]:
    """At most `TOGETHER` places a time, and how many are meant: the last is repeated until tiles are full."""
    for at in range(0, len(places), TOGETHER):
        some = places[at : at + TOGETHER]
        yield np.pad(some, (0, -len(some) % TILE), mode="edge"), len(some)


def _target(classes: list[Any], options: BatchOptions, noted: Mapping[str, Any]) -> Any:
    if options.target is not None:
        same = [label for label in classes if label == options.target]
        return same[0] if same else label_of("The 'target' of a query", str(options.target), classes)
    if "positive" not in noted:
        raise SettingError(
            "This artifact does not say which outcome is wanted. Name it with the 'target' of a query."
            f" {did_you_mean('', classes)}"
        )
    return noted["positive"]


def _locate(space: TabularSpace, piece: TextPiece | ArrowPiece, rows: pd.DataFrame) -> None:
    """Say which row it was that could not be encoded: first about where, then exactly."""
    size = max(1, int(len(rows) ** 0.5))
    for at in range(0, len(rows), size):
        try:
            space.encode(rows.iloc[at : at + size])
        except DataError:
            for i in range(at, min(at + size, len(rows))):
                try:
                    space.encode(rows.iloc[[i]])
                except DataError as error:
                    raise DataError(f"{piece.where(i)}: {error}") from None
