"""Guarantees: promises about the next model, certificates from held-out models, and the bounds of the paper."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from avcg.guarantees.bounds import (
        cantelli,
        chebyshev,
        clopper_pearson,
        markov,
        stability_bound,
        stability_bound_of_subset,
    )
    from avcg.guarantees.certificate import Certificate, certify
    from avcg.guarantees.conformal import Promise, SurvivalTable, Verdict, decide
    from avcg.guarantees.statement import Statement

__all__ = [
    "Certificate",
    "Promise",
    "Statement",
    "SurvivalTable",
    "Verdict",
    "cantelli",
    "certify",
    "chebyshev",
    "clopper_pearson",
    "decide",
    "markov",
    "stability_bound",
    "stability_bound_of_subset",
]

# Imported on first use: the light scorer reads statements, and runs without torch.
_MODULES = {
    **dict.fromkeys(("Certificate", "certify"), "certificate"),
    **dict.fromkeys(("Promise", "SurvivalTable", "Verdict", "decide"), "conformal"),
    "Statement": "statement",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'avcg.guarantees' has no attribute {name!r}")
    return getattr(import_module(f"avcg.guarantees.{_MODULES.get(name, 'bounds')}"), name)
