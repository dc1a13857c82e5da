"""Datasets: the specification of a published dataset, and its rows after they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
Read = Callable[[ReadFile], tuple[Any, NDArray[Any]]]
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
        cohort: (N,) the cohort of each row, such as the year of a loan; None: the dataset has no cohorts.
    """

    name: str
    X: Any
    y: NDArray[Any]
    classes: tuple[Label, ...]
    schema: Schema | None
    citation: str
    licence: str
    note: str
    cohort: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: NDArray[np.intp]) -> Self:
        """The dataset reduced to the rows at some positions, in that order.

        Args:
            rows: (M,) positions of the rows.
        """
        X = self.X.iloc[rows] if isinstance(self.X, pd.DataFrame) else self.X[rows]
        return replace(self, X=X, y=self.y[rows], cohort=None if self.cohort is None else self.cohort[rows])

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
        rows: Number of rows, those of all cohorts together.
        classes: All labels, in a fixed order.
        citation: Publication to cite.
        licence: Licence under which the data are published.
        note: Differences from the original files, and default constraints.
        read: Function that returns the rows X and labels y. Its argument is a function from the path of a source to its
            content. A dataset with cohorts has one such function for each cohort, by the number that names the cohort
            (a year, for example), in ascending order; all cohorts have the same columns and dtypes.
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
    read: Read | Mapping[int, Read]
    schema: Callable[[pd.DataFrame], Schema] | None
    sources: tuple[Source, ...] = ()
    included_in: str | None = None

    @property
    def kind(self) -> Literal["table", "images"]:
        """The kind of rows, ``"table"`` or ``"images"``."""
        return "images" if self.schema is None else "table"

    @property
    def cohorts(self) -> tuple[int, ...]:
        """The cohorts, in ascending order; empty if the dataset has none."""
        return tuple(self.read) if isinstance(self.read, Mapping) else ()

    def available(self, directory: str | Path | None = None) -> bool:
        """Whether all files are on this machine. Nothing is downloaded, and checksums are not compared.

        Args:
            directory: Directory to look in first; None: ``$AVCG_DATA``, if set.
        """
        return all(fetch.find(source, directory) for source in self.sources)

    def load(
        self,
        directory: str | Path | None = None,
        *,
        cohort: int | Iterable[int] | None = None,
        download: bool = True,
    ) -> Dataset:
        """Read the rows.

        Args:
            directory: Directory to look in first; None: ``$AVCG_DATA``, if set.
            cohort: One cohort, or several; None: all rows. Only the files of these cohorts are needed.
            download: Whether missing files may be fetched from their original source.

        Raises:
            DataError: If the dataset has no such cohort.
            DataFileError: If a file is missing and cannot be fetched, or is not the published one.
        """
        chosen = self.select(cohort)
        sources = {source.path: source for source in self.sources}

        def read_file(path: str) -> bytes:
            return fetch.read(sources[path], directory, download)

        cohorts: NDArray[np.int64] | None = None
        if isinstance(self.read, Mapping):
            parts = [self.read[number](read_file) for number in chosen]
            X = pd.concat([rows for rows, _ in parts], ignore_index=True)
            y = np.concatenate([labels for _, labels in parts])
            cohorts = np.repeat(np.array(chosen, np.int64), [len(labels) for _, labels in parts])
        else:
            X, y = self.read(read_file)
        schema = None if self.schema is None else self.schema(X)
        return Dataset(self.name, X, y, self.classes, schema, self.citation, self.licence, self.note, cohorts)

    def select(self, cohort: int | Iterable[int] | None) -> tuple[int, ...]:
        """The cohorts that a call of `load` asks for, in the order given.

        Args:
            cohort: One cohort, or several; None: all of them.

        Raises:
            DataError: If the dataset has no such cohort.
            SettingError: If the cohorts are not whole numbers, or are none, or one is given twice.
        """
        if cohort is None:
            return self.cohorts
        if not self.cohorts:
            raise DataError(f"The dataset {self.name!r} has no cohorts. Leave out 'cohort'.")
        wanted = tuple(cohort) if isinstance(cohort, Iterable) else (cohort,)
        if not wanted or any(
            isinstance(number, bool) or not isinstance(number, (int, np.integer)) for number in wanted
        ):
            raise SettingError(
                f"The 'cohort' of {self.name!r} must be a whole number such as {self.cohorts[0]}, or several. Got"
                f" {cohort!r} instead."
            )
        chosen = tuple(int(number) for number in wanted)
        for number in chosen:
            if number not in self.cohorts:
                raise DataError(
                    f"The dataset {self.name!r} has no cohort {number}. It has {len(self.cohorts)}, from"
                    f" {self.cohorts[0]} to {self.cohorts[-1]}."
                )
        if len(set(chosen)) < len(chosen):
            raise SettingError(f"The 'cohort' of {self.name!r} must name each cohort once. Got {cohort!r} instead.")
        return chosen
