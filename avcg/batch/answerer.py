"""A stored explainer that answers tables chunk by chunk, and the options it does so with."""

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
from scipy.special import digamma
from scipy.stats import binom
from threadpoolctl import threadpool_limits

from avcg.auditing.audit import TOLD
from avcg.batch.chunks import ArrowChunk, Chunk, cell_types_of, check_unique, read_frame
from avcg.batch.columns import AnsweredRows
from avcg.batch.parsing import check_columns, parse_label
from avcg.errors import ArtifactError, DataError, SettingError, check_int, did_you_mean
from avcg.explainers.avcg import AVCG
from avcg.explainers.counterfactuals import Counterfactuals
from avcg.guarantees.statement import Statement
from avcg.io.artifact import about, load
from avcg.io.folder import FORMAT, VERSION, read_manifest
from avcg.method.query import QueryOptions
from avcg.space.encoding import Flags, Positions
from avcg.space.tabular import TabularSpace, table_of

# Rows are answered in groups of at most MAX_GROUP_ROWS, padded to a multiple of GROUP_MULTIPLE. The last digits of a
# probability depend on the number of rows unless it fills the tiles of a matrix product, and answers must not depend on
# how much of a file is read at a time or how a table is partitioned.
MAX_GROUP_ROWS, GROUP_MULTIPLE = 4096, 64


@dataclass(frozen=True)
class BatchOptions(QueryOptions):
    """Options of a query over a whole table.

    Attributes:
        target: The outcome wanted; None: the one that the explainer was fitted for.
        only_denied: Whether rows that have the outcome already are left out of the answers.
        seed: Seed of the latent noise that is tried; None: the one used in training.

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


@dataclass
class Totals:
    """Counts of rows and answers.

    Attributes:
        rows: Number of rows read.
        left_out: Number of these that were not answered, since they have the outcome already.
        statuses: Number of answers by status.
        votes: Number of answers that flip the decision, by how many test models accept them.
        n_test: Number of test models.
    """

    rows: int = 0
    left_out: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    votes: Counter[int] = field(default_factory=Counter)
    n_test: int = 0

    def count(self, chunk: Chunk, blocks: Sequence[AnsweredRows]) -> None:
        """Add a chunk and its answers."""
        self.rows += len(chunk)
        self.left_out += len(chunk) - sum(len(block.positions) for block in blocks)
        for block in blocks:
            answers, certificate = block.answers, block.answers.certificate
            self.statuses.update(answers.statuses.tolist())
            if certificate is not None:
                self.n_test = certificate.n_test
                self.votes.update(certificate.agreeing_test[np.isin(answers.statuses, TOLD)].tolist())

    def add(self, other: Totals) -> None:
        """Add the counts of another part of the work."""
        self.rows += other.rows
        self.left_out += other.left_out
        self.statuses += other.statuses
        self.votes += other.votes
        self.n_test = max(self.n_test, other.n_test)

    def discovery(self, survival: float) -> tuple[int, float]:
        """The number of answers with the lowest false discovery rate, and that rate, over all answers counted.

        The rate is that of `avcg.guarantees.Certificate.false_discovery_rate`, from counts alone.

        Args:
            survival: Share of all models that an answer is to be accepted by, in (0, 1).
        """
        total, best, ranked = self.votes.total(), (0, 1.0), 0
        if not self.n_test:
            return best
        harmonic = float(digamma(total + 1)) + np.euler_gamma
        for agreeing in sorted(self.votes, reverse=True):
            ranked += self.votes[agreeing]
            rate = float(binom.sf(agreeing - 1, self.n_test, survival)) * total * harmonic / ranked
            if rate < best[1]:
                best = ranked, rate
        return best

    def to_json(self) -> dict[str, Any]:
        """The counts as values of JSON."""
        return {
            "rows": self.rows,
            "left_out": self.left_out,
            "statuses": dict(sorted(self.statuses.items())),
            "votes": {str(agreeing): self.votes[agreeing] for agreeing in sorted(self.votes)},
            "n_test": self.n_test,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Totals:
        """The counts that `to_json` gave.

        Args:
            values: Values of JSON.
        """
        votes = Counter({int(agreeing): count for agreeing, count in values["votes"].items()})
        return cls(values["rows"], values["left_out"], Counter(values["statuses"]), votes, values["n_test"])


@dataclass(frozen=True, eq=False)
class StoredExplainer:
    """A stored explainer of tables, loaded into memory.

    Attributes:
        explainer: The fitted explainer.
        space: The space that it answers in.
        notes: The notes that were saved with it, such as the outcome that it was fitted for.
    """

    explainer: AVCG
    space: TabularSpace
    notes: Mapping[str, Any]


def artifact_digest(path: str) -> str:
    """The checksum of a stored explainer, which identifies its content.

    Args:
        path: Folder of the explainer.

    Raises:
        ArtifactError: If there is no stored explainer in the folder.
    """
    return str(read_manifest(path, FORMAT, VERSION)["sha256"])


@lru_cache(maxsize=1)
def load_cached(path: str, digest: str) -> StoredExplainer:
    """Load a stored explainer; repeated calls in one process read it once.

    Args:
        path: Folder of the explainer.
        digest: Its checksum. Answers of two explainers must never be mixed, so another content is refused.

    Raises:
        ArtifactError: If it cannot be loaded, or its content has another checksum.
        SettingError: If it is an explainer of images.
    """
    explainer, notes = load(path), about(path)
    if artifact_digest(path) != digest:
        raise ArtifactError(f"{path} was replaced by another while rows were answered. Answer all of them again.")
    table = table_of(explainer.space_)
    if table is None:
        raise SettingError(f"{path} is an explainer of images, and only tables are answered here. Use it from Python.")
    return StoredExplainer(explainer, table, notes)


class Answerer:
    """A stored explainer that answers chunks of a table.

    Args:
        artifact: The explainer.
        options: Options that apply to every row.

    Attributes:
        target: Label of the outcome wanted.
        cell_types: Type in which each column is read.

    Raises:
        AvcgError: If the options do not fit the explainer.
    """

    def __init__(self, artifact: StoredExplainer, options: BatchOptions) -> None:
        self._explainer, self._space, self._options = artifact.explainer, artifact.space, options
        if options.seed is not None:
            self._explainer = copy.copy(artifact.explainer)  # the original is shared by the process
            self._explainer.random_state = options.seed
        self.target = _target_label(self._explainer.classes_.tolist(), options, artifact.notes)
        self.cell_types = cell_types_of(self._space.schema, artifact.notes.get("dtypes", {}))
        check_columns("The 'vary' of a query", options.vary or (), self._space.schema.all_names)
        self._space.restrict(options.vary, options.ranges, options.max_changes)  # raises if they are invalid

    def statements(self) -> list[Statement]:
        """What is promised to the people who are answered; nothing without calibration."""
        statements = self._explainer.statements(self._options)
        return [statement for statement in statements if statement.target == self.target]

    @property
    def survival(self) -> float:
        """Share of the people who followed the advice that a later model is to accept."""
        return self._explainer.promise_.survival

    def check(self, columns: Sequence[str], name: str) -> None:
        """Check that a table has every column of the schema, and no column twice.

        Args:
            columns: Names of the columns of the table.
            name: Name of the table, for the error message.

        Raises:
            DataError: If a column is missing or repeated.
        """
        check_unique(columns, name)
        for column in self._space.schema.columns:
            if column not in columns:
                raise DataError(f"{name} has no column {column!r}. {did_you_mean(column, columns)}")

    def check_schema(self, schema: Any, name: str) -> None:
        """Check the columns of a table, and that their types can be read.

        Args:
            schema: Columns of the table, a `pyarrow.Schema`.
            name: Name of the table, for the error message.

        Raises:
            DataError: If a column is missing, repeated or of a type that cannot be read.
        """
        self.check(schema.names, name)
        read_frame(ArrowChunk(0, schema.empty_table(), name), self._space.schema, self.cell_types)

    def answer(self, chunk: Chunk) -> list[AnsweredRows]:
        """Answer the rows of a chunk in one thread.

        Raises:
            DataError: If a row does not fit the schema. The message says where it is.
        """
        if not len(chunk):
            return []
        rows = read_frame(chunk, self._space.schema, self.cell_types)
        # One thread sums in one order on every machine, and is not slower: products are small. Use more processes.
        with threadpool_limits(1):
            codes = self._encode(chunk, rows)
            positions = self._denied(rows, codes) if self._options.only_denied else np.arange(len(rows))
            return [
                AnsweredRows(chunk, group[:count], self._answer_group(rows.iloc[group]).take(np.arange(count)))
                for group, count in _groups(positions)
            ]

    def _encode(self, chunk: Chunk, rows: pd.DataFrame) -> torch.Tensor:
        try:
            return self._space.encode(rows)
        except DataError as error:
            _raise_with_location(self._space, chunk, rows)
            raise DataError(f"{chunk.name}: {error}") from None

    def _answer_group(self, rows: pd.DataFrame) -> Counterfactuals:
        return self._explainer.query(rows, self.target, self._options)

    def _denied(self, rows: pd.DataFrame, codes: torch.Tensor) -> Positions:
        """Positions of the rows that do not have the outcome yet."""
        target = self._explainer.classes_.tolist().index(self.target)
        valid: list[Flags] = []
        for group, count in _groups(np.arange(len(rows))):
            deployed = self._explainer.deployed_.bind_rows(rows.iloc[group])
            probabilities, targets = deployed.probabilities(codes[group]), torch.full((len(group),), target)
            valid.append(np.asarray(deployed.valid(probabilities, targets, self._options.min_prob))[:count])
        return np.flatnonzero(~np.concatenate(valid))


def _groups(positions: Positions) -> Iterator[tuple[Positions, int]]:
    """Groups of positions, padded with their last one to `GROUP_MULTIPLE`, and the length of each before padding."""
    for at in range(0, len(positions), MAX_GROUP_ROWS):
        group = positions[at : at + MAX_GROUP_ROWS]
        yield np.pad(group, (0, -len(group) % GROUP_MULTIPLE), mode="edge"), len(group)


def _target_label(classes: list[Any], options: BatchOptions, notes: Mapping[str, Any]) -> Any:
    if options.target is not None:
        same = [label for label in classes if label == options.target]
        return same[0] if same else parse_label("The 'target' of a query", str(options.target), classes)
    if "positive" not in notes:
        raise SettingError(
            "This explainer was stored without the outcome that people want. Name it with the 'target' of a query."
            f" {did_you_mean('', classes)}"
        )
    return notes["positive"]


def _raise_with_location(space: TabularSpace, chunk: Chunk, rows: pd.DataFrame) -> None:
    """Find the row that cannot be encoded, block by block and then row by row, and raise with its location."""
    size = max(1, int(len(rows) ** 0.5))
    for at in range(0, len(rows), size):
        try:
            space.encode(rows.iloc[at : at + size])
        except DataError:
            for i in range(at, min(at + size, len(rows))):
                try:
                    space.encode(rows.iloc[[i]])
                except DataError as error:
                    raise DataError(f"{chunk.location(i)}: {error}") from None
