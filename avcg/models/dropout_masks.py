"""Dropout by explicit masks, which are drawn from `rng` instead of PyTorch's global random stream."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from avcg.errors import SettingError

Kind = Literal["bernoulli", "gaussian"]


class Noise(nn.Module):
    """A layer that multiplies activations by a mask.

    Attributes:
        mask: Mask that can be broadcast to the (N, ...) activations; ones unless overridden.
    """

    mask: Tensor

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        """(N, ...) masked activations."""
        return x * self.mask


class GaussianDropout(nn.Module):
    """A marker for Gaussian dropout: hypotheses multiply its input by 1 + rate * N(0, 1). By itself it is the identity.

    Attributes:
        rate: Standard deviation of the noise.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """(N, ...) unchanged activations."""
        return x


@dataclass(frozen=True)
class Site:
    """A place in a network at which activations are masked.

    Attributes:
        name: Name of the mask in the network's ``state_dict``.
        shape: Shape of the mask for one row.
        rate: Share of units dropped, or standard deviation of Gaussian noise.
        kind: ``"bernoulli"`` (kept units are scaled up by 1 / (1 - rate)) or ``"gaussian"``.
    """

    name: str
    shape: tuple[int, ...]
    rate: float
    kind: Kind


_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, GaussianDropout)


def with_noise(network: nn.Module, event_shape: Sequence[int]) -> tuple[nn.Module, tuple[Site, ...]]:
    """A copy of a network with masks in place of its dropout layers, and the sites of the masks.

    Args:
        network: Network with dropout layers; it is not changed.
        event_shape: Shape of one encoded row, from which the shapes of the masks follow.
    """
    noisy = copy.deepcopy(network).eval().cpu()
    for name, layer in list(noisy.named_modules(remove_duplicate=False)):
        if isinstance(layer, _DROPOUTS):
            noisy = _put(noisy, name, copy.deepcopy(layer))  # a layer used in two places needs two masks
    dropouts = {name: layer for name, layer in noisy.named_modules() if isinstance(layer, _DROPOUTS)}
    calls: dict[str, list[torch.Size]] = {name: [] for name in dropouts}
    hooks = [
        layer.register_forward_hook(lambda _, inputs, __, name=name: calls[name].append(inputs[0].shape[1:]))
        for name, layer in dropouts.items()
    ]
    dtype = next((parameter.dtype for parameter in noisy.parameters()), torch.float32)
    with torch.no_grad():
        noisy(torch.zeros(1, *event_shape, dtype=dtype))
    for hook in hooks:
        hook.remove()
    sites = []
    for name, layer in dropouts.items():
        if not calls[name]:
            continue  # a layer the network never calls
        if len(calls[name]) > 1:
            raise SettingError(
                f"The dropout layer {name!r} is called {len(calls[name])} times in one pass, and its mask would be the"
                " same each time. Use a separate layer for each call."
            )
        full = tuple(calls[name][0])
        channelwise = isinstance(layer, (nn.Dropout1d, nn.Dropout2d))
        shape = (full[0], *[1] * (len(full) - 1)) if channelwise else full
        noisy = _put(noisy, name, Noise(torch.ones(shape)))
        gaussian = isinstance(layer, GaussianDropout)
        rate = layer.rate if isinstance(layer, GaussianDropout) else float(layer.p)
        check_rate(rate, "gaussian" if gaussian else "bernoulli")
        sites.append(Site(f"{name}.mask" if name else "mask", shape, rate, "gaussian" if gaussian else "bernoulli"))
    return noisy, tuple(sites)


def draw_masks(sites: Sequence[Site], lead: Sequence[int], rng: torch.Generator) -> dict[str, Tensor]:
    """Random masks for all sites, with leading axes.

    Args:
        sites: Sites of the masks.
        lead: Leading axes: (S,) for one mask per hypothesis, (S, N) for one mask per hypothesis and row.
        rng: Random numbers. The masks are made on its device.

    Returns:
        Masks by name, (*lead, *shape).
    """
    masks, device = {}, rng.device
    for site in sites:
        size = (*lead, *site.shape)
        if site.kind == "gaussian":
            masks[site.name] = 1.0 + site.rate * torch.randn(size, generator=rng, device=device)
        else:
            # Uniform numbers, not Bernoulli draws, so that a lower rate keeps every unit that a higher rate keeps.
            uniform = torch.rand(size, generator=rng, device=device)
            masks[site.name] = (uniform >= site.rate).float() / (1.0 - site.rate)
    return masks


def attach_dropout(
    network: nn.Module,
    rate: float,
    kind: Kind = "bernoulli",
    *,
    logits: bool = False,
    event_shape: Sequence[int] | None = None,
) -> nn.Module:
    """A copy of a network with dropout after each linear and convolutional layer, for networks trained without dropout.

    This explores models near the trained one as in Hsu et al. (ICLR 2024), with one mask for all rows of a hypothesis.

    Args:
        network: Trained network; it is not changed.
        rate: Share of units dropped, in [0, 1), or standard deviation of Gaussian noise, >= 0.
        kind: Kind of noise, ``"bernoulli"`` or ``"gaussian"``.
        logits: Whether to mask the output layer too, as in the code of that paper.
        event_shape: Shape of one encoded row, to find the output layer; not needed for an ``nn.Sequential``.
    """
    if kind not in ("bernoulli", "gaussian"):
        raise SettingError(f"The 'kind' of attach_dropout must be 'bernoulli' or 'gaussian'. Got {kind!r} instead.")
    check_rate(rate, kind)
    noisy = copy.deepcopy(network)
    layers = (nn.Linear, nn.Conv1d, nn.Conv2d)
    names = [name for name, layer in noisy.named_modules(remove_duplicate=False) if isinstance(layer, layers)]
    if not logits:
        names.remove(_output_name(noisy, names, event_shape))
    if not names:
        raise SettingError(
            "The network has no hidden layer to add dropout to. Use logits=True for dropout on its output."
        )
    for name in names:
        layer = noisy.get_submodule(name)
        noise: nn.Module = nn.Dropout(rate) if kind == "bernoulli" else GaussianDropout(rate)
        noisy = _put(noisy, name, nn.Sequential(layer, noise))
    return noisy


def _output_name(network: nn.Module, names: Sequence[str], event_shape: Sequence[int] | None) -> str:
    if event_shape is not None:
        dtype = next(parameter.dtype for parameter in network.parameters())
        return output_layer(network, torch.zeros(2, *event_shape, dtype=dtype))[0]
    if type(network) in (nn.Sequential, nn.Linear) and names:
        return names[-1]
    raise SettingError(
        "The output layer of this network is unknown. Pass event_shape, the shape of one encoded row, or logits=True"
        " for dropout on all layers."
    )


def output_layer(network: nn.Module, x: Tensor) -> tuple[str, nn.Linear]:
    """The name and the module of the linear layer whose outputs are the logits of a network.

    Args:
        network: Network from encoded rows to logits or log-probabilities.
        x: (N, *event) a few encoded rows.

    Raises:
        SettingError: If no linear layer has the outputs of the network.
    """
    outputs: dict[str, Tensor] = {}
    linear = {name: layer for name, layer in network.named_modules() if isinstance(layer, nn.Linear)}
    hooks = [
        layer.register_forward_hook(lambda _, __, output, name=name: outputs.update({name: output.detach()}))
        for name, layer in linear.items()
    ]
    training = network.training
    with torch.no_grad():
        final = network.eval()(x)
    network.train(training)
    for hook in hooks:
        hook.remove()
    for name, output in outputs.items():
        same = output.shape == final.shape and (
            torch.equal(output, final) or torch.allclose(torch.log_softmax(output, -1), final, atol=1e-6)
        )
        if same:
            return name, linear[name]
    raise SettingError(
        "The network's logits must be the output of one linear layer. They are not, so there is no last layer to vary."
        " Use parameters='all'."
    )


def check_rate(rate: float, kind: Kind) -> None:
    """Check the rate of dropout or Gaussian noise."""
    if kind == "bernoulli" and not 0 <= rate < 1:
        raise SettingError(f"The 'rate' of dropout must be in [0, 1). Got {rate!r} instead.")
    if kind == "gaussian" and not 0 <= rate < float("inf"):
        raise SettingError(f"The 'rate' of Gaussian dropout must be >= 0. Got {rate!r} instead.")


def with_rate(sites: Sequence[Site], rate: float) -> tuple[Site, ...]:
    """The sites with another rate."""
    for site in sites:
        check_rate(rate, site.kind)
    return tuple(replace(site, rate=rate) for site in sites)


def _put(network: nn.Module, name: str, layer: nn.Module) -> nn.Module:
    """The network with one layer replaced, or the layer itself if it is the whole network."""
    if not name:
        return layer
    parent, _, last = name.rpartition(".")
    setattr(network.get_submodule(parent), last, layer)
    return network
