"""A stored explainer over partitions on engines that people already run: Ray Data and Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from avcg.batch.answerer import BatchOptions
from avcg.batch.chunks import arrow
from avcg.batch.columns import OWN, own_names
from avcg.batch.partition import PartitionExplainer
from avcg.errors import MissingExtraError, SettingError, check_int

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from ray.data import Dataset

BATCH = 10_000  # rows that an actor answers at a time


def explain_ray(
    dataset: Dataset,
    artifact: str | Path,
    options: BatchOptions | None = None,
    *,
    workers: int | None = None,
    batch: int = BATCH,
) -> Dataset:
    """Answer a dataset of Ray Data, lazily as all of it.

    Actors read the artifact once each and answer batches as `PartitionExplainer` does. Ray tries a batch again whose
    actor was lost.

    Args:
        dataset: Of rows; columns that the model does not read are carried along.
        artifact: The folder of a stored explainer, under the same path on every machine.
        options: What is asked of every row; None: what the artifact was fitted for.
        workers: Actors, each on one processor; None: as many as Ray sees fit.
        batch: Rows that an actor answers at a time.

    Returns:
        A dataset with the same columns and those of the answers.

    Raises:
        AvcgError: If a column is missing or of another kind, there is no such artifact, or the wish cannot be meant.
    """
    try:
        from ray import cluster_resources
        from ray.data import ActorPoolStrategy, Dataset
    except ImportError:
        raise MissingExtraError("ray", "ray", "Answering on Ray") from None
    if not isinstance(dataset, Dataset):
        raise SettingError(f"The 'dataset' of explain_ray must be one of Ray Data. Got a {type(dataset).__name__}.")
    check_int(batch, "'batch' of explain_ray", 1)
    explainer = PartitionExplainer(str(artifact), options or BatchOptions())
    explainer.answerer()  # what is wrong with the wish is said before anything is started
    known = dataset.schema()
    if known is not None:  # of an empty dataset nobody knows it
        explainer.schema(arrow().schema(list(zip(known.names, known.types, strict=True))), "the dataset")

    class Actor:  # known by value, so that Ray can make it again wherever one was lost
        def __init__(self) -> None:
            explainer.answerer()

        def __call__(self, rows: Any) -> Any:
            return explainer(rows)

    how: dict[str, Any] = {"batch_size": batch, "batch_format": "pyarrow"}
    if workers is None:
        return dataset.map_batches(Actor, num_cpus=1, **how)
    pool = ActorPoolStrategy(size=check_int(workers, "'workers' of explain_ray", 1))
    # Actors come first: if they took every processor, nothing would ever be read for them.
    there = float(cluster_resources().get("CPU", 1.0))
    return dataset.map_batches(Actor, compute=pool, num_cpus=min(1.0, max(there - 1, there / 2) / workers), **how)


def explain_spark(frame: DataFrame, artifact: str | Path, options: BatchOptions | None = None) -> DataFrame:
    """Answer a DataFrame of Spark, lazily as all of it.

    Batches go through `PartitionExplainer` in Arrow (``mapInArrow``): pandas would make fractions of whole numbers with
    gaps. A Python worker of Spark reads the artifact once. Spark tries a partition again whose executor was lost.

    Args:
        frame: Of rows; columns that the model does not read are carried along.
        artifact: The folder of a stored explainer, under the same path on every machine.
        options: What is asked of every row; None: what the artifact was fitted for.

    Returns:
        A frame with the same columns and those of the answers.

    Raises:
        AvcgError: If a column is missing or of another kind, there is no such artifact, or the wish cannot be meant.
    """
    try:
        from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType
    except ImportError:
        raise MissingExtraError("pyspark", "spark", "Answering on Spark") from None
    if not hasattr(frame, "mapInArrow"):
        raise SettingError(f"The 'frame' of explain_spark must be a DataFrame of Spark. Got a {type(frame).__name__}.")
    explainer = PartitionExplainer(str(artifact), options or BatchOptions())
    explainer.schema(frame.limit(0).toArrow().schema, "the frame")
    kinds = {"int64": LongType, "float64": DoubleType, "string": StringType}
    own = own_names(frame.columns, numbered=False)
    more = [StructField(called, kinds[OWN[name]]()) for name, called in own.items()]

    def answered(batches: Iterator[Any]) -> Iterator[Any]:
        return explainer.batches(batches)

    return frame.mapInArrow(answered, StructType([*frame.schema.fields, *more]))
