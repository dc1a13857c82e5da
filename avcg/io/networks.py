"""Networks of known layers described as plain values without code, and built again from the description."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from avcg.errors import ArtifactError
from avcg.models.dropout_masks import GaussianDropout, Noise
from avcg.models.piecewise_linear import PiecewiseLinearEncoding
from avcg.models.sklearn import Beside, MeanProbability

_CONV = (
    "in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode"
)  # fmt: skip
# Arguments of the constructor of each layer, which are also its attributes.
_ARGUMENTS: Mapping[type[nn.Module], tuple[str, ...]] = {
    nn.Linear: ("in_features", "out_features"),
    nn.Conv1d: _CONV,
    nn.Conv2d: _CONV,
    nn.LayerNorm: ("normalized_shape", "eps", "elementwise_affine"),
    nn.BatchNorm1d: ("num_features", "eps", "momentum", "affine", "track_running_stats"),
    nn.BatchNorm2d: ("num_features", "eps", "momentum", "affine", "track_running_stats"),
    nn.GroupNorm: ("num_groups", "num_channels", "eps", "affine"),
    nn.Embedding: ("num_embeddings", "embedding_dim", "max_norm", "norm_type"),
    nn.MaxPool2d: ("kernel_size", "stride", "padding", "dilation", "return_indices", "ceil_mode"),
    nn.AvgPool2d: ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"),
    nn.AdaptiveAvgPool2d: ("output_size",),
    nn.Upsample: ("size", "scale_factor", "mode", "align_corners", "recompute_scale_factor"),
    nn.Flatten: ("start_dim", "end_dim"),
    nn.Unflatten: ("dim", "unflattened_size"),
    **dict.fromkeys((nn.Dropout, nn.Dropout1d, nn.Dropout2d), ("p",)),
    nn.PReLU: ("num_parameters",),
    nn.LeakyReLU: ("negative_slope",),
    nn.ELU: ("alpha",),
    nn.GELU: ("approximate",),
    nn.Softplus: ("beta", "threshold"),
    nn.Softmax: ("dim",),
    nn.LogSoftmax: ("dim",),
    GaussianDropout: ("rate",),
    **dict.fromkeys((nn.ReLU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.LogSigmoid, nn.Mish, nn.SELU, nn.Identity), ()),
}
_WITH_BIAS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.LayerNorm)
_BY_NAME = {kind.__name__: kind for kind in _ARGUMENTS}


def describe(network: nn.Module) -> dict[str, Any] | None:
    """A description of a network's layers as plain values; None if it has layers other than the known ones.

    >>> describe(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))["children"]["1"]
    {'layer': 'ReLU'}
    """
    tensors = [*network.named_parameters(remove_duplicate=False), *network.named_buffers(remove_duplicate=False)]
    if len({id(value) for _, value in tensors}) < len(tensors):
        return None  # the description has no way to say that two layers share a weight
    return _describe(network)


def _describe(network: nn.Module) -> dict[str, Any] | None:
    if network._forward_hooks or network._forward_pre_hooks or "forward" in vars(network):
        return None
    kind = type(network)  # the exact class: a subclass may override forward
    if kind in _ARGUMENTS:
        description = {"layer": kind.__name__}
        description |= {name: _tuples_to_lists(getattr(network, name)) for name in _ARGUMENTS[kind]}
        return {**description, "bias": network.bias is not None} if isinstance(network, _WITH_BIAS) else description
    if kind in (nn.Sequential, Beside):
        parts = network._modules if kind is nn.Sequential else network.members._modules  # type: ignore[union-attr]
        children = {name: None if child is None else _describe(child) for name, child in parts.items()}
        return None if None in children.values() else {"layer": kind.__name__, "children": children}
    if isinstance(network, Noise) and kind is Noise:
        return {"layer": "Noise", "shape": list(network.mask.shape)}
    if isinstance(network, PiecewiseLinearEncoding) and kind is PiecewiseLinearEncoding:
        n_steps = len(network.at)
        return {"layer": kind.__name__, "n_inputs": network.n_outputs - n_steps, "n_steps": n_steps}
    if isinstance(network, MeanProbability) and kind is MeanProbability:
        return {"layer": "MeanProbability", "members": len(network.log_shares)}
    return None


def build(description: Mapping[str, Any], state: Mapping[str, Tensor]) -> nn.Module:
    """Build a network from its description, in evaluation mode and without gradients of its parameters.

    Args:
        description: Layers, as `describe` gives them.
        state: Parameters and buffers by name.

    Raises:
        ArtifactError: If a layer is unknown, or the parameters are those of another network.
    """
    try:
        with torch.device("meta"):  # neither draws nor allocates weights, which come from the file
            network = _build(description)
        network.load_state_dict(dict(state), strict=True, assign=True)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RuntimeError) as error:
        raise ArtifactError(f"A stored network cannot be restored: {error}") from None
    return network.eval().requires_grad_(False)


def _build(description: Mapping[str, Any]) -> nn.Module:
    builders: dict[str, Callable[[Mapping[str, Any]], nn.Module]] = {
        "Sequential": lambda entry: _sequential({name: _build(child) for name, child in entry["children"].items()}),
        "Beside": lambda entry: Beside([_build(child) for child in entry["children"].values()]),
        "Noise": lambda entry: Noise(torch.empty(entry["shape"])),
        "PiecewiseLinearEncoding": lambda entry: PiecewiseLinearEncoding.empty(entry["n_inputs"], entry["n_steps"]),
        "MeanProbability": lambda entry: _mean_probability(entry["members"]),
    }
    name = description["layer"]
    if name in builders:
        return builders[name](description)
    if name not in _BY_NAME:
        raise KeyError(f"it has an unknown layer {name!r}")
    return _BY_NAME[name](**{key: _lists_to_tuples(value) for key, value in description.items() if key != "layer"})


def _sequential(children: Mapping[str, nn.Module]) -> nn.Sequential:
    sequence = nn.Sequential()
    for name, child in children.items():
        sequence.add_module(name, child)
    return sequence


def _mean_probability(members: int) -> MeanProbability:
    layer = MeanProbability(np.ones(1))
    layer.register_buffer("log_shares", torch.empty(members))
    return layer


def _tuples_to_lists(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _lists_to_tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
