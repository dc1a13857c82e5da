"""The published datasets by name. Each is a file of this folder that defines a `Specification`.

Original files are looked for in the given directory or else ``$AVCG_DATA``, and in the user's cache. Files in neither
are downloaded from their original source (extra ``data``). A file is used only if its SHA-256 is that of the published
one.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from avcg.datasets.base import Dataset, Specification
from avcg.errors import DataError, did_you_mean


def names() -> tuple[str, ...]:
    """Names of all datasets: first those that need no file, then tables, then images.

    >>> names()
    ('breast_cancer', 'adult', 'heart', 'spambase', 'cifar10', 'mnist')
    """
    return tuple(_specifications())


def about(name: str) -> Mapping[str, str | int]:
    """Title, number of rows, kind (table or images), licence and citation of a dataset, without reading its rows.

    Args:
        name: One of `names`.

    Raises:
        DataError: If there is no such dataset.

    >>> about("heart")["rows"], about("heart")["kind"]
    (297, 'table')
    """
    dataset = specification(name)
    return {
        "title": dataset.title,
        "rows": dataset.rows,
        "kind": dataset.kind,
        "licence": dataset.licence,
        "citation": dataset.citation,
    }


def load(name: str, directory: str | Path | None = None, *, download: bool = True) -> Dataset:
    """Load a dataset by name.

    Args:
        name: One of `names`.
        directory: Directory to look for its files in first; None: ``$AVCG_DATA``, if set.
        download: Whether missing files may be downloaded from their original source; True by default.

    Raises:
        DataError: If there is no such dataset.
        DataFileError: If a file is missing and cannot be downloaded, or is not the published one.

    >>> data = load("breast_cancer")
    >>> data.X.shape, data.classes
    ((569, 30), ('malignant', 'benign'))
    """
    return specification(name).load(directory, download=download)


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
