"""Networks of known layers as plain values, and back: what a network is made of, without any code."""

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
# What each layer is built with: attributes that have the names of its arguments.
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
    """What a network is made of; None where a part of it is code of the user's own.

    >>> describe(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))["children"]["1"]
    {'layer': 'ReLU'}
    """
    every = [*network.named_parameters(remove_duplicate=False), *network.named_buffers(remove_duplicate=False)]
    if len({id(value) for _, value in every}) < len(every):
        return None  # two layers have one weight, which a description cannot say
    return _described(network)


def _described(network: nn.Module) -> dict[str, Any] | None:
    if network._forward_hooks or network._forward_pre_hooks or "forward" in vars(network):
        return None
    kind = type(network)  # exactly: a subclass may do anything in its forward
    if kind in _ARGUMENTS:
        said = {"layer": kind.__name__, **{name: _plain(getattr(network, name)) for name in _ARGUMENTS[kind]}}
        return {**said, "bias": network.bias is not None} if isinstance(network, _WITH_BIAS) else said
    if kind in (nn.Sequential, Beside):
        parts = network._modules if kind is nn.Sequential else network.members._modules  # type: ignore[union-attr]
        children = {name: None if child is None else _described(child) for name, child in parts.items()}
        return None if None in children.values() else {"layer": kind.__name__, "children": children}
    if isinstance(network, Noise) and kind is Noise:
        return {"layer": "Noise", "shape": list(network.mask.shape)}
    if isinstance(network, PiecewiseLinearEncoding) and kind is PiecewiseLinearEncoding:
        return {"layer": "Ramps", "n_inputs": network.n_outputs - len(network.at), "n_steps": len(network.at)}
    if isinstance(network, MeanProbability) and kind is MeanProbability:
        return {"layer": "MeanProbability", "members": len(network.log_shares)}
    return None


def build(description: Mapping[str, Any], state: Mapping[str, Tensor]) -> nn.Module:
    """The network that `describe` described, with the weights given, ready to answer.

    Raises:
        ArtifactError: If it speaks of layers that are not known here, or the weights are of another network.
    """
    try:
        with torch.device("meta"):  # no weights are drawn, nor is there room made for any: they come from the file
            network = _built(description)
        network.load_state_dict(dict(state), strict=True, assign=True)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RuntimeError) as error:
        raise ArtifactError(f"A stored network cannot be built again: {error}") from None
    return network.eval().requires_grad_(False)


def _built(description: Mapping[str, Any]) -> nn.Module:
    own: dict[str, Callable[[Mapping[str, Any]], nn.Module]] = {
        "Sequential": lambda said: _in_order({name: _built(child) for name, child in said["children"].items()}),
        "Beside": lambda said: Beside([_built(child) for child in said["children"].values()]),
        "Noise": lambda said: Noise(torch.empty(said["shape"])),
        "Ramps": lambda said: PiecewiseLinearEncoding.empty(said["n_inputs"], said["n_steps"]),
        "MeanProbability": lambda said: _mean_probability(said["members"]),
    }
    name = description["layer"]
    if name in own:
        return own[name](description)
    if name not in _BY_NAME:
        raise KeyError(f"it has a layer {name!r}, which is not known here")
    return _BY_NAME[name](**{key: _tupled(value) for key, value in description.items() if key != "layer"})


def _in_order(children: Mapping[str, nn.Module]) -> nn.Sequential:
    sequence = nn.Sequential()
    for name, child in children.items():
        sequence.add_module(name, child)
    return sequence


def _mean_probability(members: int) -> MeanProbability:
    layer = MeanProbability(np.ones(1))
    layer.register_buffer("log_shares", torch.empty(members))
    return layer


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
