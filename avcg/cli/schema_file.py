"""The schema file of ``--schema``: what it says in place of options, and rows that are read as it describes them."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from avcg.batch.chunks import Chunk, cell_types_of, infer_cell_type
from avcg.errors import DataError, SettingError, did_you_mean, enumerate_some
from avcg.schema.features import Categorical, Continuous, columns_of
from avcg.schema.schema import Schema
from avcg.schema.toml import read
from avcg.space.frames import read_values


def resolve(
    path: str | None, target: str | None, positive: str | None, drop: tuple[str, ...]
) -> tuple[Schema | None, str, str, tuple[str, ...]]:
    """The schema, target, positive outcome and dropped columns, by options first and the schema file second.

    Args:
        path: Path of the schema file; None: there is none.
        target: Value of ``--target``; None: it was left out.
        positive: Value of ``--positive``; None: it was left out.
        drop: Columns of ``--drop``, which are dropped besides those of the file.

    Raises:
        AvcgError: If the file is not a schema, or neither says what the target is.
    """
    schema, notes = (None, None) if path is None else read(path)
    if notes is not None:
        target = notes.target if target is None else target
        if positive is None and notes.positive is not None:
            positive = str(notes.positive)
        drop = tuple(dict.fromkeys((*notes.drop, *drop)))
    for option, value, what in (
        ("target", target, "the column of outcomes"),
        ("positive", positive, "the outcome that people want"),
    ):
        if value is None:
            place = "" if path is None else f", or write {option} = ... at the top of {path}"
            raise SettingError(f"--{option} is missing. Give {what}{place}.")
    assert target is not None
    assert positive is not None
    return schema, target, positive, drop


def check_described(schema: Schema, columns: Sequence[str], rest: Sequence[str], where: str) -> None:
    """Refuse a schema that describes other columns than those that are learnt from.

    Args:
        schema: Schema of a file.
        columns: Columns that are learnt from.
        rest: All columns but that of outcomes.
        where: Name of the file of rows, for error messages.

    Raises:
        DataError: If a column is on one side only.
    """
    for name in schema.columns:
        if name in columns:
            continue
        if name in rest:
            raise DataError(
                f"The schema describes column {name!r}, which is left out by --drop, --time or the schema itself."
                f" Remove the lines of [columns.{name}], or read the column."
            )
        raise DataError(
            f"The schema describes column {name!r}, which is not among the columns of {where} to learn from."
            f" {did_you_mean(name, columns)}"
        )
    if unknown := [name for name in columns if name not in (*schema.columns, *schema.kept)]:
        raise DataError(
            f"{where} has columns that the schema does not describe: {enumerate_some(unknown)}. Describe them, or leave"
            f" them out: --drop {','.join(unknown)!r}, or drop = [...] at the top of the schema."
        )


def read_described(chunk: Chunk, schema: Schema, columns: Sequence[str]) -> pd.DataFrame:
    """The columns of a file, each read as its schema describes it.

    Args:
        chunk: All rows of the file.
        schema: Schema of a file.
        columns: Names of the columns: those of the schema, and columns that it keeps, which are not read.

    Raises:
        DataError: If a cell does not fit. The message names the column and the fix.
    """
    types, read_columns = cell_types_of(schema, {}), {}
    for name in (each for each in columns if each not in schema.kept):
        feature = next(each for each in schema.features if name in columns_of(each))
        grouped, cell_type, own = feature in schema.grouped, types[name], infer_cell_type(chunk, name)
        if (isinstance(feature, Continuous) and own == "integer") or (grouped and own == "boolean"):
            cell_type = own
        known = feature.categories if isinstance(feature, Categorical) and not grouped else ()
        column = read_columns[name] = chunk.column(name, cell_type, known)
        missing = column.isna()
        if feature.missing == "error" and missing.any():
            first = chunk.location(int(missing.to_numpy().argmax()))
            raise DataError(
                f"Column {name!r} is empty in {int(missing.sum())} rows (the first: {first}). Fill it, or write"
                f" missing = true under [columns.{name}] in the schema."
            )
    X = pd.DataFrame(read_columns)
    read_values(X, schema)  # refuses cells that are no category of their column
    return X
