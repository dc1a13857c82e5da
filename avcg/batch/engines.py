"""A stored explainer over the partitions of Ray Data and Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from avcg.batch.answerer import BatchOptions
from avcg.batch.chunks import load_pyarrow
from avcg.batch.columns import RESULT_COLUMNS, result_names
from avcg.batch.partition import PartitionExplainer
from avcg.errors import MissingExtraError, SettingError, check_int

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from ray.data import Dataset

BATCH_SIZE = 10_000  # rows that a Ray actor answers at a time


def explain_ray(
    dataset: Dataset,
    artifact: str | Path,
    options: BatchOptions | None = None,
    *,
    workers: int | None = None,
    batch_size: int = BATCH_SIZE,
) -> Dataset:
    """Answer a dataset of Ray Data, lazily like every operation on it.

    Each actor loads the explainer once and answers batches as `PartitionExplainer` does. Ray repeats a batch whose
    actor was lost.

    Args:
        dataset: Rows to answer; columns that the model does not read are kept.
        artifact: Folder of a stored explainer, at the same path on every machine.
        options: Options that apply to every row; None: those that the explainer was fitted for.
        workers: Number of actors, with one processor each; None: Ray decides.
        batch_size: Number of rows that an actor answers at a time.

    Returns:
        A dataset with the columns of the rows, followed by the result columns.

    Raises:
        AvcgError: If a column is missing or of another type, there is no such explainer, or the options do not fit it.
    """
    try:
        from ray import cluster_resources
        from ray.data import ActorPoolStrategy, Dataset
    except ImportError:
        raise MissingExtraError("ray", "ray", "Answering on Ray") from None
    if not isinstance(dataset, Dataset):
        raise SettingError(f"The 'dataset' of explain_ray must be a ray.data.Dataset. Got a {type(dataset).__name__}.")
    check_int(batch_size, "'batch_size' of explain_ray", 1)
    explainer = PartitionExplainer(str(artifact), options or BatchOptions())
    explainer.answerer()  # raises here, before anything is started, if the options do not fit
    schema = dataset.schema()
    if schema is not None:  # an empty dataset has none
        explainer.schema(load_pyarrow().schema(list(zip(schema.names, schema.types, strict=True))), "the dataset")

    class Actor:  # a local class is pickled by value, so that Ray can recreate it on any machine
        def __init__(self) -> None:
            explainer.answerer()

        def __call__(self, rows: Any) -> Any:
            return explainer(rows)

    settings: dict[str, Any] = {"batch_size": batch_size, "batch_format": "pyarrow"}
    if workers is None:
        return dataset.map_batches(Actor, num_cpus=1, **settings)
    pool = ActorPoolStrategy(size=check_int(workers, "'workers' of explain_ray", 1))
    # Actors are placed first: if they took every processor, no task could read rows for them.
    cpus = float(cluster_resources().get("CPU", 1.0))
    return dataset.map_batches(Actor, compute=pool, num_cpus=min(1.0, max(cpus - 1, cpus / 2) / workers), **settings)


def explain_spark(frame: DataFrame, artifact: str | Path, options: BatchOptions | None = None) -> DataFrame:
    """Answer a DataFrame of Spark, lazily like every operation on it.

    Batches go through `PartitionExplainer` in Arrow (``mapInArrow``), since pandas turns integers with missing values
    into floats. Each Python worker loads the explainer once. Spark repeats a partition whose executor was lost.

    Args:
        frame: Rows to answer; columns that the model does not read are kept.
        artifact: Folder of a stored explainer, at the same path on every machine.
        options: Options that apply to every row; None: those that the explainer was fitted for.

    Returns:
        A frame with the columns of the rows, followed by the result columns.

    Raises:
        AvcgError: If a column is missing or of another type, there is no such explainer, or the options do not fit it.
    """
    try:
        from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType
    except ImportError:
        raise MissingExtraError("pyspark", "spark", "Answering on Spark") from None
    if not hasattr(frame, "mapInArrow"):
        raise SettingError(f"The 'frame' of explain_spark must be a Spark DataFrame. Got a {type(frame).__name__}.")
    explainer = PartitionExplainer(str(artifact), options or BatchOptions())
    explainer.schema(frame.limit(0).toArrow().schema, "the frame")
    types = {"int64": LongType, "float64": DoubleType, "string": StringType}
    names = result_names(frame.columns, with_row=False)
    fields = [StructField(column, types[RESULT_COLUMNS[name]]()) for name, column in names.items()]

    def answer(batches: Iterator[Any]) -> Iterator[Any]:
        return explainer.batches(batches)

    return frame.mapInArrow(answer, StructType([*frame.schema.fields, *fields]))
