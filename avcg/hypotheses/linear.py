"""Hypotheses whose logits are linear in the codes, e.g. logistic regressions converted by `avcg.from_sklearn`."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from avcg.hypotheses.on_device import OnDevice
from avcg.hypotheses.predictors import Joined, Predictors, Stacked
from avcg.models.batched import plan_of
from avcg.space.encoding import Floats


def linear_logits(predictors: Predictors) -> tuple[Floats, Floats] | None:
    """Weights and biases of hypotheses whose logits are linear in the codes.

    Args:
        predictors: S hypotheses of C classes over rows of D codes.

    Returns:
        (S, C, D) weights and (S, C) biases, in float64; None unless every hypothesis is known to be linear.
    """
    if isinstance(predictors, OnDevice):
        return linear_logits(predictors.inner)
    if isinstance(predictors, Joined):
        groups = [linear_logits(group) for group in predictors.groups]
        known = [group for group in groups if group is not None]
        if len(known) < len(groups):
            return None
        weights, biases = (np.concatenate(parts) for parts in zip(*known, strict=True))
        order = slice(None) if predictors._order is None else predictors._order.numpy()
        return weights[order], biases[order]
    return _of_stack(predictors) if isinstance(predictors, Stacked) else None


@torch.no_grad()
def _of_stack(predictors: Stacked) -> tuple[Floats, Floats] | None:
    """The same for hypotheses of one architecture: their logits at 0, and how much a unit of each code adds."""
    plan = plan_of(predictors.network)
    if plan is None or not all(isinstance(layer, nn.Linear) for _, layer in plan.steps):
        return None
    layer = plan.steps[0][1]
    assert isinstance(layer, nn.Linear)
    units = (
        torch.cat([torch.zeros(1, layer.in_features), torch.eye(layer.in_features)]).double().to(layer.weight.device)
    )
    overrides = {name: value.double() for name, value in predictors.overrides.items()}
    logits = plan.run(units, overrides, len(predictors)).cpu().numpy()  # (S, D + 1, C)
    return np.swapaxes(logits[:, 1:] - logits[:, :1], 1, 2), logits[:, 0]
