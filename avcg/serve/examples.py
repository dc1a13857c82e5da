"""Example rows for the page of the service, read from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from avcg.batch.chunks import cell_types_of, read_frame
from avcg.batch.readers import open_rows
from avcg.errors import DataError
from avcg.schema.features import Categorical, Feature, columns_of
from avcg.schema.schema import Schema
from avcg.space.validation import check_names, is_missing


def read_examples(path: str | Path, schema: Schema, limit: int = 50) -> list[dict[str, Any]]:
    """Read the first rows of a file as ``avcg explain`` reads them.

    Args:
        path: Path of a CSV or parquet file; columns that are not in the schema are ignored.
        schema: Schema of the columns.
        limit: Largest number of rows to read, 50 by default.

    Returns:
        Rows as dictionaries of JSON values.

    Raises:
        DataError: If the file is missing or lacks a column, or a cell cannot be read.
    """
    with open_rows(str(path)) as source:
        check_names([name for name in source.columns if name in schema.columns], schema.columns)
        chunk = next(iter(source.chunks(limit)), None)
    if chunk is None:
        raise DataError(f"There are no rows in {path}.")
    rows = read_frame(chunk, schema, cell_types_of(schema, {}))
    columns = [
        [_cell(feature, value) for value in rows[name].tolist()]
        for feature in schema.features
        for name in columns_of(feature)
    ]
    return [dict(zip(schema.columns, cells, strict=True)) for cells in zip(*columns, strict=True)]


def _cell(feature: Feature, value: Any) -> Any:
    """A cell as a value of JSON; None if it is missing."""
    if is_missing(value):
        return None
    if isinstance(feature, Categorical) and feature.columns is not None:
        return value  # a flag of a group
    if isinstance(feature, Categorical):
        return feature.categories[feature.position(value)]
    return int(value) if feature.step is not None and float(value).is_integer() else value
