"""Evaluation of stacks of linear layers and activations for all hypotheses by batched matrix products.

A layer whose inputs and weights are the same for all hypotheses is computed once. From the first difference on,
activations have a leading axis S. Dropout masks differ after the first layer, so all hypotheses share its product.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F  # noqa: N812  its usual name

from avcg.models.dropout_masks import GaussianDropout, Noise
from avcg.models.piecewise_linear import PiecewiseLinearEncoding

_ELEMENTWISE = (
    nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.LogSigmoid, nn.Softplus, nn.Mish, nn.SELU
)  # fmt: skip
_IDENTITY = (nn.Identity, nn.Dropout, GaussianDropout)  # in evaluation mode
_MATRIX_DIMS = 2  # axes of a linear layer's weights; those of convolutions have more
Step = tuple[str, nn.Module]


@dataclass(frozen=True)
class Plan:
    """The layers of a network in order, with their names in its ``state_dict``.

    Attributes:
        steps: Pairs of a layer's prefix in the ``state_dict`` and the layer.
        width: Largest number of inputs or outputs of a linear layer.
    """

    steps: tuple[Step, ...]
    width: int

    def run(self, x: Tensor, overrides: Mapping[str, Tensor], count: int) -> Tensor:
        """Logits of all hypotheses.

        Args:
            x: (N, D) rows shared by all hypotheses, or (S, N, D) rows of each hypothesis.
            overrides: Parameters by name, with a leading axis S.
            count: Number of hypotheses S.

        Returns:
            (S, N, C) logits.
        """
        h, stacked = x, x.dim() == 3
        for prefix, layer in self.steps:
            if isinstance(layer, nn.Linear):
                h, stacked = _linear(
                    h, stacked, layer, overrides.get(f"{prefix}weight"), overrides.get(f"{prefix}bias")
                )
            elif isinstance(layer, Noise):
                mask = overrides.get(f"{prefix}mask")
                if mask is None:
                    h = h * layer.mask.to(h.dtype)
                else:  # one mask per hypothesis, or one per hypothesis and row
                    h, stacked = h * (mask if mask.dim() == 3 else mask[:, None]), True
            else:
                h = layer(h)
        return h if stacked else h.expand(count, *h.shape)

    def run_one(self, x: Tensor, overrides: Mapping[str, Tensor]) -> Tensor:
        """Logits (N, C) of one hypothesis, whose overrides have no leading axis."""
        h = x
        for prefix, layer in self.steps:
            if isinstance(layer, nn.Linear):
                bias = overrides.get(f"{prefix}bias", layer.bias)
                weight = overrides.get(f"{prefix}weight", layer.weight)
                h = F.linear(h, weight.to(h.dtype), None if bias is None else bias.to(h.dtype))
            elif isinstance(layer, Noise):
                h = h * overrides.get(f"{prefix}mask", layer.mask).to(h.dtype)
            else:
                h = layer(h)
        return h

    def begun(self, x: Tensor, overrides: Mapping[str, Tensor]) -> tuple[Tensor, Plan]:
        """The output of the layers that all hypotheses share, and the plan of the remaining layers."""
        overridden = [
            any(f"{prefix}{name}" in overrides for name in ("weight", "bias", "mask")) for prefix, _ in self.steps
        ]
        first = overridden.index(True) if any(overridden) else len(overridden)
        shared, rest = (Plan(steps, self.width) for steps in (self.steps[:first], self.steps[first:]))
        return shared.run_one(x, {}), rest

    def parts_early(self, overrides: Mapping[str, Tensor]) -> bool:
        """Whether the weights of a linear layer differ between hypotheses, so that no later layer is shared."""
        return any(f"{prefix}weight" in overrides for prefix, layer in self.steps if isinstance(layer, nn.Linear))


def _linear(
    h: Tensor, stacked: bool, layer: nn.Linear, weight: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, bool]:
    """The output of a linear layer, and whether it has a leading axis S."""
    shared_bias = None if layer.bias is None else layer.bias.to(h.dtype)
    if weight is None:
        if bias is None:
            return F.linear(h, layer.weight.to(h.dtype), shared_bias), stacked
        return F.linear(h, layer.weight.to(h.dtype)) + bias[:, None], True
    if not stacked:
        h = h.expand(len(weight), *h.shape)
    if bias is None and shared_bias is None:
        return torch.bmm(h, weight.mT), True
    added = bias[:, None] if bias is not None else shared_bias
    assert added is not None
    return torch.baddbmm(added.expand(len(weight), 1, -1), h, weight.mT), True


Forward = Callable[[Tensor, Mapping[str, Tensor], int], Tensor]


def stacked_forward(network: nn.Module, event_dim: int) -> Forward:
    """The fastest available function from inputs, overrides and S to (S, N, C) logits.

    Args:
        network: Network in evaluation mode; it is not changed.
        event_dim: Number of axes of one row, to distinguish shared rows from rows of each hypothesis.
    """
    plan = plan_of(network)
    if plan is not None:
        return plan.run

    filters = {name for name, value in network.named_parameters() if value.dim() > _MATRIX_DIMS}

    def forward(x: Tensor, overrides: Mapping[str, Tensor], count: int) -> Tensor:
        if not overrides:
            return network(x).expand(count, -1, -1)
        own = 0 if x.dim() > event_dim + 1 else None
        if filters & overrides.keys():
            # Where the weights of convolutions differ, a loop is faster than the grouped convolution that vmap makes.
            calls = [
                ({name: value[i] for name, value in overrides.items()}, x if own is None else x[i])
                for i in range(count)
            ]
            return torch.stack([functional_call(network, state, (rows,)) for state, rows in calls])
        call = vmap(lambda state, rows: functional_call(network, state, (rows,)), in_dims=(0, own))
        return call(dict(overrides), x)

    return forward


def plan_of(network: nn.Module) -> Plan | None:
    """The plan of a network, or None if it is not certain to be a stack of linear layers and activations."""
    steps = _steps(network, "")
    if steps is None:
        return None
    linear = [layer for _, layer in steps if isinstance(layer, nn.Linear)]
    shared = len({id(layer) for layer in linear}) < len(linear)
    tied = len({id(layer.weight) for layer in linear}) < len(linear)
    if not linear or shared or tied or any(_hooked(module) for module in network.modules()):
        return None
    return Plan(tuple(steps), max(max(layer.in_features, layer.out_features) for layer in linear))


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _steps(module: nn.Module, prefix: str) -> list[Step] | None:
    # Exact types, because a subclass may change its forward.
    if type(module) is nn.Sequential:
        parts = [_steps(child, f"{prefix}{name}.") for name, child in module._modules.items() if child is not None]
        return None if any(part is None for part in parts) else [step for part in parts if part for step in part]
    if type(module) in _IDENTITY:
        return []
    return [(prefix, module)] if type(module) in (nn.Linear, Noise, PiecewiseLinearEncoding, *_ELEMENTWISE) else None
