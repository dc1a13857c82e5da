"""What ``avcg fit`` says of the columns of a file."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from avcg.batch.chunks import ArrowChunk, Chunk, load_pyarrow
from avcg.schema.schema import Schema


def dates_of(chunk: Chunk, columns: Sequence[str]) -> dict[str, str]:
    """By name, what is said of the columns of dates of a parquet file. They are not read, and answers return them."""
    if not isinstance(chunk, ArrowChunk):
        return {}
    types = load_pyarrow().types
    dates = [name for name in columns if types.is_temporal(chunk.table.column(name).type)]
    return {name: f"Column {name!r} is kept as it is, and not learnt from: it holds dates." for name in dates}


def id_notes(X: pd.DataFrame, schema: Schema) -> tuple[str, ...]:
    """What is said of features that may be ids."""
    notes = []
    for name, column in X.items():
        if name not in schema.names:
            continue
        distinct = int(column.nunique())
        is_text = column.dtype == object and isinstance(column.dropna().iloc[0], str)
        counts_rows = column.dtype.kind == "i" and len(column) > 2 and bool((column.diff().iloc[1:] == 1).all())
        if (is_text and distinct == len(column)) or counts_rows:
            notes.append(
                f"Column {name!r} has a different value in every row. If it is an id, leave it out:"
                f" --drop {str(name)!r}."
            )
    return tuple(notes)
