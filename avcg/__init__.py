"""Recourse that stays valid after the model is retrained.

Importing this package changes nothing global and loads neither torch nor pandas; names are loaded when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from avcg import datasets as datasets
    from avcg import errors as errors
    from avcg import toys as toys
    from avcg.features import Categorical as Categorical
    from avcg.features import Continuous as Continuous
    from avcg.images import ImageSpace as ImageSpace
    from avcg.schema import Schema as Schema
    from avcg.space import Space as Space
    from avcg.space import TabularSpace as TabularSpace

_HOME = {
    "Categorical": "avcg.features",
    "Continuous": "avcg.features",
    "ImageSpace": "avcg.images",
    "Schema": "avcg.schema",
    "Space": "avcg.space",
    "TabularSpace": "avcg.space",
    "datasets": "avcg.datasets",
    "errors": "avcg.errors",
    "toys": "avcg.toys",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'avcg' has no attribute {name!r}")
    module = import_module(_HOME[name])
    return module if _HOME[name] == f"avcg.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
