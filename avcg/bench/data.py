"""Datasets of a protocol: published datasets by name, and tables of the user's own with a schema file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from avcg import datasets
from avcg.datasets import Dataset
from avcg.datasets.published import specification
from avcg.errors import DataError, MissingExtraError, SettingError, did_you_mean, enumerate_some
from avcg.schema.features import Categorical, to_python
from avcg.schema.schema import Schema

_KEYS = ("path", "schema", "target", "name")
_COHORT_KEYS = ("name", "cohort")
_SUFFIXES = (".csv", ".parquet")


@dataclass(frozen=True)
class DataSource:
    """The source of a dataset's rows.

    Attributes:
        name: Name in results.
        path: CSV or Parquet file, relative to the protocol; None: a published dataset.
        schema: File that `Schema.read` reads, TOML or JSON, relative to the protocol.
        target: Column of the labels.
        published: Name that `avcg.datasets.load` takes; None: a file of one's own.
        cohorts: Cohorts of a published dataset; empty: all its rows.
    """

    name: str
    path: str | None = None
    schema: str | None = None
    target: str | None = None
    published: str | None = None
    cohorts: tuple[int, ...] = ()

    @classmethod
    def read(cls, value: object, what: str) -> DataSource:
        """Read a source from TOML.

        A table is ``{path = "mine.csv", schema = "mine.toml", target = "y"}`` for a file of one's own, and
        ``{name = "sba", cohort = 2004}`` or ``{name = "sba", cohort = [2003, 2004]}`` for cohorts of a published
        dataset, which results call ``sba 2004`` and ``sba 2003 2004``.

        Args:
            value: A name, or a table such as ``{path = "mine.csv", schema = "mine.toml", target = "y"}``.
            what: Place in the protocol, for error messages.

        Raises:
            SettingError: If the value is neither, or a key is unknown or missing.
        """
        if isinstance(value, str):
            return cls(value, published=value)
        if isinstance(value, Mapping) and "cohort" in value:
            return cls._read_cohorts(value, what)
        if not isinstance(value, Mapping):
            raise SettingError(f"{what} must be names, or tables with 'path', 'schema' and 'target'. Got {value!r}.")
        for key in value:
            if key not in _KEYS:
                raise SettingError(f"{what}: a dataset has an unknown key {key!r}. {did_you_mean(key, _KEYS)}")
        for key in _KEYS[:3]:
            if not isinstance(value.get(key), str):
                raise SettingError(f"{what}: a dataset must have a string under {key!r}. Got {value.get(key)!r}.")
        return cls(value.get("name", Path(value["path"]).stem), value["path"], value["schema"], value["target"])

    @classmethod
    def _read_cohorts(cls, value: Mapping[str, Any], what: str) -> DataSource:
        for key in value:
            if key not in _COHORT_KEYS:
                raise SettingError(
                    f"{what}: a published dataset has an unknown key {key!r}. {did_you_mean(key, _COHORT_KEYS)}"
                )
        if not isinstance(value.get("name"), str):
            raise SettingError(f"{what}: a dataset must have a text under 'name'. Got {value.get('name')!r}.")
        cohorts = specification(value["name"]).select(value["cohort"])
        return cls(" ".join([value["name"], *map(str, cohorts)]), published=value["name"], cohorts=cohorts)

    @property
    def is_file(self) -> bool:
        """Whether this is a file of one's own, and not a published dataset."""
        return self.published is None

    def kind(self) -> str:
        """``"images"`` or ``"table"``."""
        return "table" if self.published is None else specification(self.published).kind

    def load(self, folder: Path) -> Dataset:
        """Read the rows.

        Args:
            folder: Folder of the protocol, which paths are relative to.

        Raises:
            DataError: If a file is missing, or rows, schema and target do not belong together.
        """
        if self.published is not None:
            return datasets.load(self.published, cohort=self.cohorts or None)
        assert self.path is not None
        assert self.target is not None
        schema, file = self._schema(folder), _existing(folder / self.path)
        frame = _read_table(file, schema)
        expected, columns = schema.columns, [str(name) for name in frame.columns]
        for name in (*expected, self.target):
            if name not in columns:
                raise DataError(f"{file.name} has no column {name!r}. {did_you_mean(name, columns)}")
        if self.target in expected:
            raise DataError(f"The target {self.target!r} must not be a column of the schema {self.schema}.")
        if others := [name for name in columns if name not in (*expected, *schema.kept, self.target)]:
            raise DataError(
                f"{file.name} has columns that {self.schema} does not describe: {enumerate_some(others)}. Describe"
                " or remove them."
            )
        if bool(frame[self.target].isna().any()):
            raise DataError(f"The target {self.target!r} of {file.name} has missing values. Remove these rows.")
        labels = [to_python(label) for label in frame[self.target].tolist()]
        classes = sorted(set(labels), key=lambda label: (isinstance(label, str), label))
        if len(classes) < 2:
            raise DataError(f"The target {self.target!r} of {file.name} must have two labels or more. Got {classes!r}.")
        y = np.array(labels, object if isinstance(classes[-1], str) else None)
        return Dataset(self.name, frame[list(expected)], y, tuple(classes), schema, "", "", "")

    def fingerprint(self, folder: Path) -> list[str] | None:
        """What identifies the rows besides the name: checksums of the files, or cohorts; None: all rows of a dataset.

        A published dataset has checksums of its own.

        Args:
            folder: Folder of the protocol, which paths are relative to.
        """
        if self.path is None or self.schema is None:
            return [str(cohort) for cohort in self.cohorts] or None
        files = [_existing(folder / name) for name in (self.path, self.schema)]
        return [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]

    def check(self, folder: Path) -> None:
        """Check that the dataset exists, its files are present and its schema can be read.

        Args:
            folder: Folder of the protocol, which paths are relative to.
        """
        self.kind()
        if self.path is not None:
            if Path(self.path).suffix not in _SUFFIXES:
                raise DataError(f"A dataset must be a file ending in {enumerate_some(_SUFFIXES)}. Got {self.path!r}.")
            _existing(folder / self.path)
            self._schema(folder)

    def _schema(self, folder: Path) -> Schema:
        assert self.schema is not None
        return Schema.read(_existing(folder / self.schema))


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise DataError(f"There is no file {str(path)!r}. Paths of datasets are relative to the protocol.")
    return path


def _read_table(file: Path, schema: Schema) -> pd.DataFrame:
    if file.suffix == ".parquet":
        try:
            return pd.read_parquet(file)
        except ImportError:
            raise MissingExtraError("pyarrow", "batch", "A Parquet file") from None
    # Text categories are read as text even if they look like numbers, and only an empty cell is missing.
    texts: dict[str, Any] = {
        feature.name: str
        for feature in schema.features
        if isinstance(feature, Categorical) and all(isinstance(value, str) for value in feature.categories)
    }
    return pd.read_csv(file, dtype=texts, keep_default_na=False, na_values=[""])
