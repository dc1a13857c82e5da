"""The contract of a published dataset."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath
from urllib.parse import urlsplit

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from avcg.datasets.base import Dataset, Specification
from avcg.datasets.fetch import Source
from avcg.space.images import ImageSpace
from avcg.space.tabular import TabularSpace
from avcg.testing.unchanged import streams_untouched

_MAX_ENCODED_ROWS = 2000  # evenly spaced rows, which have every category of the published datasets


def check_dataset(specification: Specification, dataset: Dataset | None = None) -> None:
    """Assert that a dataset is fully specified, and that its rows agree with the specification.

    The specification has a title, licence, citation and note, and for each file an address and a checksum of the right
    length. There are as many rows and labels as it says, and exactly its classes. A schema covers the columns, and a
    space fitted with it gives every row back as it was. Every cohort has rows, and its own schema has the categories of
    the whole, so that a model of one cohort reads the rows of another. Splits share no row, lose none, keep the
    shares of the classes, and depend on the seed alone.

    Args:
        specification: Specification of the dataset.
        dataset: Rows that it loads; None: they are loaded from files on this machine, without a download.

    Raises:
        AssertionError: If a condition does not hold. The message names it.
        DataFileError: If a file is missing, or is not the published one.
    """
    _check_specification(specification)
    if dataset is None:
        with streams_untouched("reading"):
            dataset = specification.load(download=False)
    _check_rows(dataset, specification.rows)
    _check_cohorts(specification, dataset)
    if isinstance(dataset.X, pd.DataFrame):
        _check_table(dataset)
    else:
        _check_images(dataset)
    _check_split(dataset)


def _check_specification(specification: Specification) -> None:
    for field in ("name", "title", "citation", "licence", "note"):
        assert str(getattr(specification, field)).strip(), f"the specification has no {field}"
    assert specification.name.isidentifier(), f"the name {specification.name!r} cannot be that of a file"
    assert len(specification.classes) >= 2, "there are fewer than two classes"
    assert len(set(specification.classes)) == len(specification.classes), "a class is listed twice"
    assert bool(specification.sources) != bool(specification.included_in), (
        "rows come from files or from an installed package: give either sources or included_in"
    )
    paths = [source.path for source in specification.sources]
    assert len(set(paths)) == len(paths), "two sources have the same path"
    for source in specification.sources:
        _check_source(source)


def _check_source(source: Source) -> None:
    path, address = PurePosixPath(source.path), urlsplit(source.url)
    assert not path.is_absolute(), f"the path {source.path!r} is not below the data directory"
    assert ".." not in path.parts, f"the path {source.path!r} is not below the data directory"
    assert address.scheme in ("http", "https"), f"{source.path} has no web address: {source.url!r}"
    assert address.netloc, f"{source.path} has no web address: {source.url!r}"
    assert _is_hex(source.sha256, 64), f"the SHA-256 of {source.path} is not 64 hexadecimal digits"
    assert source.md5 is None or _is_hex(source.md5, 32), f"the MD5 of {source.path} is not 32 hexadecimal digits"


def _is_hex(digest: str, length: int) -> bool:
    return len(digest) == length and set(digest) <= set("0123456789abcdef")


def _check_rows(dataset: Dataset, rows: int) -> None:
    assert len(dataset.X) == len(dataset.y), f"there are {len(dataset.X)} rows and {len(dataset.y)} labels"
    assert len(dataset) == rows, f"there are {len(dataset)} rows, and the specification says {rows}"
    labels = set(dataset.y.tolist())
    assert labels <= set(dataset.classes), f"labels that are not listed as classes: {labels - set(dataset.classes)}"
    assert labels == set(dataset.classes), f"classes that no row has: {set(dataset.classes) - labels}"


def _check_cohorts(specification: Specification, dataset: Dataset) -> None:
    cohorts = specification.cohorts
    if not cohorts:
        assert dataset.cohort is None, "rows have cohorts, and the specification lists none"
        return
    assert list(cohorts) == sorted(cohorts), f"the cohorts are not in ascending order: {cohorts}"
    assert dataset.cohort is not None, "the specification lists cohorts, and the rows have none"
    assert len(dataset.cohort) == len(dataset), f"there are {len(dataset)} rows and {len(dataset.cohort)} cohorts"
    present = set(dataset.cohort.tolist())
    assert present == set(cohorts), f"cohorts that are not listed, or have no rows: {present ^ set(cohorts)}"
    if specification.schema is None or dataset.schema is None:
        return
    whole = {feature.name: feature.categories for feature in dataset.schema.categorical}
    for cohort in cohorts:
        rows = dataset.X.iloc[np.flatnonzero(dataset.cohort == cohort)]
        own = {feature.name: feature.categories for feature in specification.schema(rows).categorical}
        assert own == whole, f"the schema of cohort {cohort} has other categories than that of all rows"


def _check_table(dataset: Dataset) -> None:
    assert dataset.schema is not None, "a table needs a schema"
    columns = [name for name in dataset.X.columns if name not in dataset.schema.kept]
    described = list(dataset.schema.columns)
    assert columns == described, f"the columns are {columns}, and the schema describes {described}"
    assert dataset.X.index.equals(pd.RangeIndex(len(dataset))), "the rows are not numbered from 0"
    space = TabularSpace.fit(dataset.schema, dataset.X)
    rows = dataset.X.iloc[_evenly_spaced(len(dataset))]
    pd.testing.assert_frame_equal(space.decode(space.encode(rows), like=rows), rows)


def _check_images(dataset: Dataset) -> None:
    images = dataset.X
    assert dataset.schema is None, "images have no columns for a schema to describe"
    assert isinstance(images, np.ndarray), f"rows are a frame or an array of images, not a {type(images).__name__}"
    assert images.dtype == np.uint8, f"the images have dtype {images.dtype}, not uint8"
    assert images.ndim == 3 or (images.ndim == 4 and images.shape[3] == 3), (
        f"the images have shape {images.shape}, neither (N, H, W) nor (N, H, W, 3)"
    )
    chosen = images[_evenly_spaced(len(dataset))]
    space = ImageSpace.fit(chosen)
    assert np.array_equal(space.decode(space.encode(chosen)), chosen), "an image is not restored from its codes"


def _check_split(dataset: Dataset) -> None:
    positions = replace(dataset, X=np.arange(len(dataset)))  # the rows themselves need not be copied
    with streams_untouched("splitting"):
        parts, again, other = (positions.split(seed) for seed in (0, 0, 1))
    rows = np.concatenate([part.X for part in parts])
    assert len(set(rows.tolist())) == len(rows), "two parts of a split share a row"
    assert len(rows) == len(dataset), "a split loses rows"
    assert all(np.array_equal(first.X, second.X) for first, second in zip(parts, again, strict=True)), (
        "the same seed gives another split"
    )
    assert not np.array_equal(parts[2].X, other[2].X), "another seed gives the same split"
    for part in parts:
        assert np.array_equal(part.y, dataset.y[part.X]), "a split gives rows other labels"
        for label in dataset.classes:
            expected = float((dataset.y == label).mean()) * len(part)
            count = int((part.y == label).sum())
            assert abs(count - expected) <= 2, (
                f"a part of {len(part)} rows has {count} of {label!r}, not {expected:.0f}"
            )


def _evenly_spaced(count: int) -> NDArray[np.intp]:
    return np.unique(np.linspace(0, count - 1, min(count, _MAX_ENCODED_ROWS)).astype(np.intp))
