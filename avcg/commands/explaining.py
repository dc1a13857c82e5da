"""What ``avcg explain`` does: rows of a file in, piece by piece, and their answers out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from avcg.amortized import AVCG
from avcg.commands.answer_files import Answered, CsvAnswers, JsonAnswers, ParquetAnswers, Writer, whole_file
from avcg.commands.row_files import Rows, open_rows
from avcg.commands.row_pieces import ArrowPiece, TextPiece, readings_of, typed
from avcg.commands.wishes import check_columns, label_of, number_range, split_column
from avcg.encoding import Flags
from avcg.errors import DataError, SettingError, did_you_mean
from avcg.features import Continuous
from avcg.io.artefact import about, load
from avcg.schema import Schema
from avcg.space import TabularSpace

# Rows answered together, always the same ones: the last digits of a probability depend on how many there are, and
# answers must not depend on how much of a file is read at a time.
TOGETHER = 1000


@dataclass(frozen=True)
class Wish:
    """What is asked of every row.

    Attributes:
        target: The outcome wanted, as written; None: the one that the artefact was fitted for.
        n: Answers for each row.
        vary: The columns that may change; none named: all that the schema lets.
        ranges: Where columns may go, as ``column:low:high`` or ``column:one|other``.
        min_prob: The probability that the model in force must give the target.
        max_changes: How many columns may change at once.
        refine: Whether to spend more time to come closer.
        only_denied: Whether rows that have the outcome already are left out.
        seed: Of the latents that are tried; None: as trained.
    """

    target: str | None = None
    n: int = 1
    vary: tuple[str, ...] = ()
    ranges: tuple[str, ...] = ()
    min_prob: float | None = None
    max_changes: int | None = None
    refine: bool = False
    only_denied: bool = True
    seed: int | None = None


@dataclass
class Totals:
    """What has been done so far.

    Attributes:
        rows: Read.
        left_out: Of these, rows that have the outcome already.
        statuses: Answers by their status.
    """

    rows: int = 0
    left_out: int = 0
    statuses: Counter[str] = field(default_factory=Counter)


class Answerer:
    """A stored explainer that answers pieces of files.

    Args:
        directory: An artefact.
        wish: What is asked of every row.

    Attributes:
        target: The outcome wanted.
        readings: How each column is read.
        totals: What has been done so far.

    Raises:
        AvcgError: If the artefact cannot be opened, or the wish cannot be meant.
    """

    def __init__(self, directory: str, wish: Wish) -> None:
        self._explainer, noted = load(directory), about(directory)
        space = self._explainer.space_
        if not isinstance(space, TabularSpace):
            raise SettingError(f"{directory} is about images, and avcg explain reads tables. Use it from Python.")
        if wish.seed is not None:
            self._explainer.random_state = wish.seed
        self._space, self._wish = space, wish
        self.target = _target(self._explainer, wish, noted)
        self.readings = readings_of(space.schema, noted.get("dtypes", {}))
        self._ranges = _ranges(wish.ranges, space.schema)
        self._vary = list(wish.vary) or None
        check_columns("--vary", wish.vary, space.schema.names)
        space.restrict(self._vary, self._ranges, wish.max_changes)  # whatever is wrong with it is said now
        self.totals = Totals()

    def check(self, source: Rows) -> None:
        """Whether a file has every column.

        Raises:
            DataError: With the first that is missing.
        """
        for name in self._space.schema.names:
            if name not in source.columns:
                raise DataError(f"{source.name} has no column {name!r}. {did_you_mean(name, source.columns)}")

    def answer(self, piece: TextPiece | ArrowPiece) -> list[Answered]:
        """Answers to the rows of a piece that begins where one in `TOGETHER` does.

        Raises:
            DataError: If a row does not fit, with its place in the file.
        """
        parts = (piece.part(at, min(at + TOGETHER, len(piece))) for at in range(0, len(piece), TOGETHER))
        found = [self._together(part) for part in parts]
        return [block for block in found if block is not None]

    def _together(self, piece: TextPiece | ArrowPiece) -> Answered | None:
        rows = typed(piece, self._space.schema, self.readings)
        try:
            codes = self._space.encode(rows)
        except DataError as error:
            _locate(self._space, piece, rows)
            raise DataError(f"{piece.name}: {error}") from None
        places = np.arange(len(rows))
        self.totals.rows += len(rows)
        if self._wish.only_denied:
            places = np.flatnonzero(~self._has_it(rows, codes))
            self.totals.left_out += len(rows) - len(places)
        if not len(places):
            return None
        wish = self._wish
        found = self._explainer.generate(
            rows.iloc[places],
            self.target,
            n=wish.n,
            vary=self._vary,
            ranges=self._ranges,
            min_prob=wish.min_prob,
            max_changes=wish.max_changes,
            refine=wish.refine,
        )
        self.totals.statuses.update(found.statuses.tolist())
        return Answered(piece, places, found)

    def _has_it(self, rows: pd.DataFrame, codes: torch.Tensor) -> Flags:
        decider, classes = self._explainer.decider_, self._explainer.classes_.tolist()
        wanted = torch.full((len(rows),), classes.index(self.target))
        found = decider.seeing(rows).probabilities(codes)
        return np.asarray(decider.valid(found, wanted, self._wish.min_prob))


def _target(explainer: AVCG, wish: Wish, noted: Mapping[str, Any]) -> Any:
    classes = explainer.classes_.tolist()
    if wish.target is not None:
        return label_of("--target", wish.target, classes)
    if "positive" not in noted:
        raise SettingError(
            f"This artefact does not say which outcome is wanted. Name it with --target. {did_you_mean('', classes)}"
        )
    return noted["positive"]


def _ranges(texts: Sequence[str], schema: Schema) -> dict[str, Any] | None:
    ranges: dict[str, Any] = {}
    for text in texts:
        name, rest = split_column("--range", text, schema.names)
        feature = schema[name]
        if isinstance(feature, Continuous):
            ranges[name] = number_range("--range", name, rest)
        else:
            what = f"the values of column {name!r}"
            ranges[name] = [label_of("--range", one, feature.categories, what) for one in rest.split("|")]
    return ranges or None


def _locate(space: TabularSpace, piece: TextPiece | ArrowPiece, rows: pd.DataFrame) -> None:
    """Say which row it was that could not be encoded."""
    for i in range(len(rows)):
        try:
            space.encode(rows.iloc[[i]])
        except DataError as error:
            raise DataError(f"{piece.where(i)}: {error}") from None


@contextmanager
def open_rows_and_file(path: str, out: Path | None, answerer: Answerer) -> Iterator[tuple[Rows, Writer | None]]:
    """The rows to read and the file to write; what is written is there whole at the end, or not at all.

    Args:
        path: As `open_rows` takes it.
        out: Where to write; None: nowhere.
        answerer: Who answers.
    """
    with ExitStack() as stack:
        source = stack.enter_context(open_rows(path))
        answerer.check(source)
        writer: Writer | None = None
        if out is not None:
            half = stack.enter_context(whole_file(out))
            if out.suffix == ".csv":
                writer = CsvAnswers(half, source)
            elif out.suffix == ".parquet":
                writer = ParquetAnswers(half, source, answerer.readings)
            else:
                writer = JsonAnswers(half)
            stack.enter_context(writer)
        yield source, writer
        if not answerer.totals.rows:
            raise DataError(f"{source.name} has columns and no rows.")
