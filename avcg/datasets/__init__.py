"""Published datasets with schemas and splits, and toy problems whose answers are known in closed form."""

from avcg.datasets.base import Dataset, Specification
from avcg.datasets.fetch import Source
from avcg.datasets.published import about, available, load, names

__all__ = ["Dataset", "Source", "Specification", "about", "available", "load", "names"]
