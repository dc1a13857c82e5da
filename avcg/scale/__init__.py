"""A stored explainer over more rows than one process should answer.

One function of a partition, Arrow in and Arrow out, and thin adapters over it: a folder of parquet files under joblib,
Ray Data, Spark. Rows are cut up, handed out and tried again by those engines.
"""

from avcg.scale.answering import Totals, Wish
from avcg.scale.engines import explain_ray, explain_spark
from avcg.scale.partitions import PartitionExplainer
from avcg.scale.shards import explain_shards

__all__ = ["PartitionExplainer", "Totals", "Wish", "explain_ray", "explain_shards", "explain_spark"]
