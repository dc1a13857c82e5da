"""Datasets: the specification of a published dataset, and its rows after they are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from avcg.datasets import fetch
from avcg.datasets.fetch import Source
from avcg.errors import DataError, SettingError
from avcg.schema.schema import Schema

ReadFile = Callable[[str], bytes]
Label = str | int


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows in user units, with labels, schema and provenance.

    Attributes:
        name: Name that `load` takes.
        X: Rows: a frame, or images of shape (N, H, W) or (N, H, W, 3) and dtype uint8.
        y: (N,) labels.
        classes: All labels, in a fixed order.
        schema: Schema of the columns, with default constraints; None for images.
        citation: Publication to cite.
        licence: Licence under which the data are published.
        note: Differences from the original files, and default constraints.
    """

    name: str
    X: Any
    y: NDArray[Any]
    classes: tuple[Label, ...]
    schema: Schema | None
    citation: str
    licence: str
    note: str

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: NDArray[np.intp]) -> Self:
        """The dataset reduced to the rows at some positions, in that order.

        Args:
            rows: (M,) positions of the rows.
        """
        X = self.X.iloc[rows] if isinstance(self.X, pd.DataFrame) else self.X[rows]
        return replace(self, X=X, y=self.y[rows])

    def split(self, seed: int = 0) -> tuple[Self, Self, Self]:
        """Split into training, validation and test rows as in the paper, stratified by label.

        A fifth of the rows is for testing, and 15 % of the rest for validation.

        Args:
            seed: Seed of the split, from 0 to 2**32 - 1; 0 by default. The same seed always gives the same rows.

        Raises:
            DataError: If there are fewer than 20 rows, or fewer than 4 of a class.

        >>> from avcg.datasets import load
        >>> [len(part) for part in load("breast_cancer").split(seed=0)]
        [386, 69, 114]
        """
        from sklearn.model_selection import train_test_split

        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
            raise SettingError(f"The 'seed' of split must be a whole number from 0 to 2**32 - 1. Got {seed!r} instead.")
        fewest = min(int((self.y == label).sum()) for label in set(self.y.tolist()))
        if len(self) < 20 or fewest < 4:
            raise DataError(
                f"{len(self)} rows, {fewest} of them in the rarest class, are too few to split. At least 20 rows and 4"
                " of each class are needed."
            )
        rows = np.arange(len(self))
        rest, test = train_test_split(rows, test_size=0.2, stratify=self.y, random_state=seed)
        train, validation = train_test_split(rest, test_size=0.15, stratify=self.y[rest], random_state=seed)
        return self.take(train), self.take(validation), self.take(test)


@dataclass(frozen=True, eq=False, kw_only=True)
class Specification:
    """Specification of a published dataset: its sources, and how they are read.

    Every file in ``avcg/datasets/`` that defines a ``SPECIFICATION`` is a dataset that `load` and ``avcg data`` offer.
    `avcg.testing.check_dataset` checks a specification and its rows.

    Attributes:
        name: Name that `load` takes, which is that of the file.
        title: Full name of the dataset.
        rows: Number of rows.
        classes: All labels, in a fixed order.
        citation: Publication to cite.
        licence: Licence under which the data are published.
        note: Differences from the original files, and default constraints.
        read: Function that returns the rows X and labels y. Its argument is a function from the path of a source to its
            content.
        schema: Function from the rows to their schema with default constraints; None for images.
        sources: Published files; empty if the rows come from an installed package.
        included_in: Name of the installed package that contains the rows; None: they come from ``sources``.
    """

    name: str
    title: str
    rows: int
    classes: tuple[Label, ...]
    citation: str
    licence: str
    note: str
    read: Callable[[ReadFile], tuple[Any, NDArray[Any]]]
    schema: Callable[[pd.DataFrame], Schema] | None
    sources: tuple[Source, ...] = ()
    included_in: str | None = None

    @property
    def kind(self) -> Literal["table", "images"]:
        """The kind of rows, ``"table"`` or ``"images"``."""
        return "images" if self.schema is None else "table"

    def available(self, directory: str | Path | None = None) -> bool:
        """Whether all files are on this machine. Nothing is downloaded, and checksums are not compared.

        Args:
            directory: Directory to look in first; None: ``$AVCG_DATA``, if set.
        """
        return all(fetch.find(source, directory) for source in self.sources)

    def load(self, directory: str | Path | None = None, *, download: bool = True) -> Dataset:
        """Read the rows.

        Args:
            directory: Directory to look in first; None: ``$AVCG_DATA``, if set.
            download: Whether missing files may be downloaded from their original source; True by default.

        Raises:
            DataFileError: If a file is missing and cannot be downloaded, or is not the published one.
        """
        sources = {source.path: source for source in self.sources}
        X, y = self.read(lambda path: fetch.read(sources[path], directory, download))
        schema = None if self.schema is None else self.schema(X)
        return Dataset(self.name, X, y, self.classes, schema, self.citation, self.licence, self.note)
