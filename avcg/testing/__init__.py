"""Contract tests for your own parts: one function for each kind of part, which asserts that it works with avcg."""

from avcg.testing.constraints import check_constraint
from avcg.testing.datasets import check_dataset
from avcg.testing.explainers import check_explainer
from avcg.testing.hypotheses import check_hypotheses
from avcg.testing.metrics import check_metric
from avcg.testing.models import check_model
from avcg.testing.spaces import check_space

__all__ = [
    "check_constraint",
    "check_dataset",
    "check_explainer",
    "check_hypotheses",
    "check_metric",
    "check_model",
    "check_space",
]
