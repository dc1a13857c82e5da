"""What ``avcg explain`` does: what was typed becomes a wish, rows of a file come in and their answers go out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from avcg.batch.answerer import Answerer, StoredExplainer, Totals
from avcg.batch.columns import Layout
from avcg.batch.parquet import ParquetAnswers, whole_file
from avcg.batch.parsing import check_columns, label_of, listed, number_range, split_column
from avcg.batch.readers import ParquetRows, Rows, open_rows
from avcg.batch.writers import CsvAnswers, JsonAnswers, Writer
from avcg.errors import DataError, SettingError, did_you_mean
from avcg.schema.features import Continuous
from avcg.schema.schema import Schema


def wanted(artifact: StoredExplainer, text: str | None) -> Any:
    """The outcome that somebody means.

    Args:
        artifact: The explainer.
        text: As given with ``--target``; None: the one that it was fitted for.

    Raises:
        SettingError: If it is none, or nobody has said which.
    """
    classes = artifact.explainer.classes_.tolist()
    if text is not None:
        return label_of("--target", text, classes)
    if "positive" not in artifact.noted:
        raise SettingError(
            f"This artifact does not say which outcome is wanted. Name it with --target. {did_you_mean('', classes)}"
        )
    return artifact.noted["positive"]


def varied(artifact: StoredExplainer, text: str | None) -> tuple[str, ...] | None:
    """The columns that may change, as given with ``--vary``; None: all that the schema lets.

    Raises:
        SettingError: If one is none.
    """
    names = listed(text)
    check_columns("--vary", names, artifact.space.schema.names)
    return names or None


def ranges_of(texts: Sequence[str], schema: Schema) -> Mapping[str, Any] | None:
    """Where columns may go, as given with ``--range``; None where nothing is said.

    Raises:
        SettingError: If one cannot be meant.
    """
    ranges: dict[str, Any] = {}
    for text in texts:
        name, rest = split_column("--range", text, schema.names)
        feature = schema[name]
        if isinstance(feature, Continuous):
            ranges[name] = number_range("--range", name, rest)
        else:
            what = f"the values of column {name!r}"
            ranges[name] = [label_of("--range", one, feature.categories, what) for one in rest.split("|")]
    return ranges or None


@contextmanager
def open_rows_and_file(
    path: str, out: Path | None, answerer: Answerer, totals: Totals
) -> Iterator[tuple[Rows, Writer | None]]:
    """The rows to read and the file to write; what is written is there whole at the end, or not at all.

    Args:
        path: As `open_rows` takes it.
        out: Where to write; None: nowhere.
        answerer: Who answers.
        totals: What has been done when the block ends.
    """
    with ExitStack() as stack:
        source = stack.enter_context(open_rows(path))
        answerer.check(source.columns, source.name)
        writer: Writer | None = None
        if out is not None:
            half = stack.enter_context(whole_file(out))
            if out.suffix == ".csv":
                writer = CsvAnswers(half, source)
            elif out.suffix == ".parquet":
                writer = ParquetAnswers(half, _layout(source, answerer))
            else:
                writer = JsonAnswers(half)
            stack.enter_context(writer)
        yield source, writer
        if not totals.rows:
            raise DataError(f"{source.name} has columns and no rows.")


def _layout(source: Rows, answerer: Answerer) -> Layout:
    if isinstance(source, ParquetRows):
        return Layout.of_arrow(source.schema)
    return Layout.of_texts(source.columns, answerer.readings)
