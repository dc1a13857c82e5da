"""The published datasets by name. Each is a file of this folder that defines a `Specification`.

Original files are looked for in the given directory or else ``$AVCG_DATA``, and in the user's cache. Files in neither
are downloaded from their original source (extra ``data``). A file is used only if its SHA-256 is that of the published
one.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path

from avcg.datasets.base import Dataset, Specification
from avcg.errors import DataError, did_you_mean


def names() -> tuple[str, ...]:
    """Names of all datasets: first those that need no file, then tables, then images.

    >>> "adult" in names()
    True
    """
    return tuple(_specifications())


def about(name: str) -> Mapping[str, str | int | tuple[int, ...]]:
    """Title, number of rows, kind (table or images), cohorts, licence and citation, without loading anything.

    >>> about("heart")["rows"], about("heart")["kind"]
    (297, 'table')
    >>> about("sba")["cohorts"][0], about("heart")["cohorts"]
    (1988, ())
    """
    dataset = specification(name)
    return {
        "title": dataset.title,
        "rows": dataset.rows,
        "kind": dataset.kind,
        "cohorts": dataset.cohorts,
        "licence": dataset.licence,
        "citation": dataset.citation,
    }


def load(
    name: str,
    directory: str | Path | None = None,
    *,
    cohort: int | Iterable[int] | None = None,
    download: bool = True,
) -> Dataset:
    """A dataset by name.

    Args:
        name: One of `names`.
        directory: Directory to look for its files in first; None: ``$AVCG_DATA``, if set.
        cohort: For a dataset with cohorts, such as the years of ``sba``: one of them, or several, such as
            ``range(1997, 2005)``; the `Dataset` has the cohort of each row. None: all rows.
        download: Whether missing files may be fetched from their original source.

    Raises:
        DataError: If there is no such dataset, or it has no such cohort.
        DataFileError: If a file is missing and cannot be fetched, or is not the published one.

    >>> data = load("breast_cancer")
    >>> data.X.shape, data.classes
    ((569, 30), ('malignant', 'benign'))
    """
    return specification(name).load(directory, cohort=cohort, download=download)


def available(name: str, directory: str | Path | None = None) -> bool:
    """Whether all files of a dataset are on this machine. Nothing is downloaded, and checksums are not compared.

    Args:
        name: One of `names`.
        directory: Directory to look in first; None: ``$AVCG_DATA``, if set.
    """
    return specification(name).available(directory)


def specification(name: str) -> Specification:
    """The specification of a dataset by name.

    Args:
        name: One of `names`.

    Raises:
        DataError: If there is no such dataset.
    """
    specifications = _specifications()
    if name not in specifications:
        raise DataError(f"There is no dataset {name!r}. {did_you_mean(name, specifications)}")
    return specifications[name]


def _specifications() -> dict[str, Specification]:
    """All specifications in this folder, by name."""
    package = import_module("avcg.datasets")
    modules = [import_module(f"avcg.datasets.{module.name}") for module in pkgutil.iter_modules(package.__path__)]
    unsorted = [module.SPECIFICATION for module in modules if hasattr(module, "SPECIFICATION")]
    ordered = sorted(unsorted, key=lambda dataset: (bool(dataset.sources), dataset.kind == "images", dataset.name))
    return {dataset.name: dataset for dataset in ordered}
