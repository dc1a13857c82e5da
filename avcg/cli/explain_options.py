"""Options of ``avcg explain`` parsed into those of a query, and the files that it reads and writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from avcg.batch.answerer import Answerer, StoredExplainer, Totals
from avcg.batch.columns import Layout
from avcg.batch.parquet import ParquetAnswers, replacing
from avcg.batch.parsing import check_columns, parse_label, parse_range, split_column, split_list
from avcg.batch.readers import ParquetRows, Rows, open_rows
from avcg.batch.writers import CsvAnswers, JsonAnswers, Writer
from avcg.errors import DataError, SettingError, did_you_mean
from avcg.schema.features import Continuous
from avcg.schema.schema import Schema


def parse_target(artifact: StoredExplainer, text: str | None) -> Any:
    """The label of the outcome wanted.

    Args:
        artifact: The stored explainer.
        text: Value of ``--target``; None: the outcome that the explainer was fitted for.

    Raises:
        SettingError: If the text is not a label, or the explainer was stored without such an outcome.
    """
    classes = artifact.explainer.classes_.tolist()
    if text is not None:
        return parse_label("--target", text, classes)
    if "positive" not in artifact.notes:
        raise SettingError(
            "This explainer was stored without the outcome that people want. Name it with --target."
            f" {did_you_mean('', classes)}"
        )
    return artifact.notes["positive"]


def parse_vary(artifact: StoredExplainer, text: str | None) -> tuple[str, ...] | None:
    """The columns named by ``--vary``; None: every column that the schema allows to change.

    Raises:
        SettingError: If a name is not a column.
    """
    names = split_list(text)
    check_columns("--vary", names, artifact.space.schema.all_names)
    return names or None


def parse_ranges(texts: Sequence[str], schema: Schema) -> Mapping[str, Any] | None:
    """The values allowed by ``--range``, by column: a pair of bounds or a list of categories; None if there are none.

    Args:
        texts: Values of ``--range``.
        schema: Schema of the rows.

    Raises:
        SettingError: If a text does not name a column with bounds or categories of it.
    """
    ranges: dict[str, Any] = {}
    for text in texts:
        name, rest = split_column("--range", text, schema.all_names)
        feature = schema[name]
        if isinstance(feature, Continuous):
            ranges[name] = parse_range("--range", name, rest)
        else:
            what = f"the values of column {name!r}"
            ranges[name] = [parse_label("--range", label, feature.categories, what) for label in rest.split("|")]
    return ranges or None


@contextmanager
def open_source_and_writer(
    path: str, out: Path | None, answerer: Answerer, totals: Totals
) -> Iterator[tuple[Rows, Writer | None]]:
    """Open the rows to read and the file to write, which is complete in the end or not written at all.

    Args:
        path: Path of the rows, as `open_rows` takes it.
        out: Path of the file to write; None: nothing is written.
        answerer: The explainer, which checks the columns of the rows.
        totals: Counts that the block updates; no rows in the end are an error.

    Raises:
        DataError: If the rows lack a column or there are none, or the file cannot be written.
    """
    with ExitStack() as stack:
        source = stack.enter_context(open_rows(path))
        answerer.check(source.columns, source.name)
        writer: Writer | None = None
        if out is not None:
            temporary = stack.enter_context(replacing(out))
            if out.suffix == ".csv":
                writer = CsvAnswers(temporary, source)
            elif out.suffix == ".parquet":
                writer = ParquetAnswers(temporary, _layout(source, answerer))
            else:
                writer = JsonAnswers(temporary)
            stack.enter_context(writer)
        yield source, writer
        if not totals.rows:
            raise DataError(f"{source.name} has columns and no rows.")


def _layout(source: Rows, answerer: Answerer) -> Layout:
    if isinstance(source, ParquetRows):
        return Layout.of_arrow(source.schema)
    return Layout.of_texts(source.columns, answerer.cell_types)
