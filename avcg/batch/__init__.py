"""A stored explainer over more rows than one process should answer.

One function of a partition, Arrow in and Arrow out, and thin adapters over it: a folder of parquet files under joblib,
Ray Data, Spark. Rows are cut up, handed out and tried again by those engines.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from avcg.batch.answerer import BatchOptions, Totals
    from avcg.batch.engines import explain_ray, explain_spark
    from avcg.batch.partition import PartitionExplainer
    from avcg.batch.shards import explain_shards

__all__ = ["BatchOptions", "PartitionExplainer", "Totals", "explain_ray", "explain_shards", "explain_spark"]

# Imported on first use: the service reads rows with `readers` and `chunks`, and starts without torch.
_HOME = {
    "BatchOptions": "answerer",
    "PartitionExplainer": "partition",
    "Totals": "answerer",
    "explain_ray": "engines",
    "explain_shards": "shards",
    "explain_spark": "engines",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'avcg.batch' has no attribute {name!r}")
    return getattr(import_module(f"avcg.batch.{_HOME[name]}"), name)
