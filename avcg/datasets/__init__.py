"""Published datasets with schemas and splits, and toy problems whose answers are known in closed form."""

from avcg.datasets.published import Dataset, about, available, load, names

__all__ = ["Dataset", "about", "available", "load", "names"]
