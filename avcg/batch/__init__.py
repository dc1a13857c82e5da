"""Answers to tables with millions of rows.

`PartitionExplainer` is a function of a partition, Arrow in and Arrow out. `explain_shards` (a folder of parquet files,
with joblib), `explain_ray` and `explain_spark` apply it; those engines partition, schedule and repeat what was lost.
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
_MODULES = {
    "BatchOptions": "answerer",
    "PartitionExplainer": "partition",
    "Totals": "answerer",
    "explain_ray": "engines",
    "explain_shards": "shards",
    "explain_spark": "engines",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'avcg.batch' has no attribute {name!r}")
    return getattr(import_module(f"avcg.batch.{_MODULES[name]}"), name)
