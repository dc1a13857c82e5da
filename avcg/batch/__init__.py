"""A stored explainer over more rows than one process should answer.

One function of a partition, Arrow in and Arrow out, and thin adapters over it: a folder of parquet files under joblib,
Ray Data, Spark. Rows are cut up, handed out and tried again by those engines.
"""

from avcg.batch.answerer import BatchOptions, Totals
from avcg.batch.engines import explain_ray, explain_spark
from avcg.batch.partition import PartitionExplainer
from avcg.batch.shards import explain_shards

__all__ = ["BatchOptions", "PartitionExplainer", "Totals", "explain_ray", "explain_shards", "explain_spark"]
