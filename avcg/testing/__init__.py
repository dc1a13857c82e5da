"""Contracts that anyone's own parts can be run against, one for each kind of part."""

from avcg.testing.explainers import check_explainer
from avcg.testing.hypotheses import check_hypotheses

__all__ = ["check_explainer", "check_hypotheses"]
