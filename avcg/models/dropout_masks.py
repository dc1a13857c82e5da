"""Dropout as numbers one can hold: masks drawn from `rng`, not from the global stream."""

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
    """Multiplies activations by a mask.

    Attributes:
        mask: Broadcastable to the activations (N, ...); ones until overridden.
    """

    mask: Tensor

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        """(N, ...) to the same."""
        return x * self.mask


class GaussianDropout(nn.Module):
    """Multiplies activations by 1 + rate * N(0, 1) when drawn as a hypothesis; changes nothing by itself.

    Attributes:
        rate: A standard deviation.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """(N, ...) to the same."""
        return x


@dataclass(frozen=True)
class Site:
    """One place where noise enters.

    Attributes:
        name: Of the mask in the network's ``state_dict``.
        shape: Of the mask of one row.
        rate: Share dropped, or standard deviation of Gaussian noise.
        kind: ``"bernoulli"`` (kept units are scaled up by 1 / (1 - rate)) or ``"gaussian"``.
    """

    name: str
    shape: tuple[int, ...]
    rate: float
    kind: Kind


_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, GaussianDropout)


def with_noise(network: nn.Module, event_shape: Sequence[int]) -> tuple[nn.Module, tuple[Site, ...]]:
    """A copy of a network whose dropout layers are masks, and where they are.

    Args:
        network: Left as it is.
        event_shape: Of one row of input, to learn the shapes of activations from.
    """
    noisy = copy.deepcopy(network).eval().cpu()
    for name, layer in list(noisy.named_modules(remove_duplicate=False)):
        if isinstance(layer, _DROPOUTS):
            noisy = _put(noisy, name, copy.deepcopy(layer))  # one layer in two places is two places of noise
    found = {name: layer for name, layer in noisy.named_modules() if isinstance(layer, _DROPOUTS)}
    calls: dict[str, list[torch.Size]] = {name: [] for name in found}
    hooks = [
        layer.register_forward_hook(lambda _, inputs, __, name=name: calls[name].append(inputs[0].shape[1:]))
        for name, layer in found.items()
    ]
    dtype = next((parameter.dtype for parameter in noisy.parameters()), torch.float32)
    with torch.no_grad():
        noisy(torch.zeros(1, *event_shape, dtype=dtype))
    for hook in hooks:
        hook.remove()
    sites = []
    for name, layer in found.items():
        if not calls[name]:
            continue  # a layer the network never calls
        if len(calls[name]) > 1:
            raise SettingError(
                f"The dropout layer {name!r} is called {len(calls[name])} times in one pass, so its masks would be the"
                " same each time. Give every place a layer of its own."
            )
        whole = tuple(calls[name][0])
        channelwise = isinstance(layer, (nn.Dropout1d, nn.Dropout2d))
        shape = (whole[0], *[1] * (len(whole) - 1)) if channelwise else whole
        noisy = _put(noisy, name, Noise(torch.ones(shape)))
        gaussian = isinstance(layer, GaussianDropout)
        rate = layer.rate if isinstance(layer, GaussianDropout) else float(layer.p)
        check_rate(rate, "gaussian" if gaussian else "bernoulli")
        sites.append(Site(f"{name}.mask" if name else "mask", shape, rate, "gaussian" if gaussian else "bernoulli"))
    return noisy, tuple(sites)


def draw_masks(sites: Sequence[Site], lead: Sequence[int], rng: torch.Generator) -> dict[str, Tensor]:
    """Masks for every site, with leading axes.

    Args:
        sites: Where.
        lead: (S,) for one mask per hypothesis, shared by its rows; (S, N) for one per row.
        rng: Random numbers for the masks, which are made on its device.

    Returns:
        By name, (*lead, *shape).
    """
    masks, device = {}, rng.device
    for site in sites:
        size = (*lead, *site.shape)
        if site.kind == "gaussian":
            masks[site.name] = 1.0 + site.rate * torch.randn(size, generator=rng, device=device)
        else:
            # From uniform numbers rather than coin flips, so that a lower rate keeps every unit a higher one kept.
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
    """A copy of a network trained without dropout, with noise on the output of each linear and convolutional layer.

    This explores models near the trained one as Hsu et al. (ICLR 2024) do, with one mask for all rows of a hypothesis.

    Args:
        network: Left as it is.
        rate: Share dropped in [0, 1), or the standard deviation of Gaussian noise, >= 0.
        kind: ``"bernoulli"`` or ``"gaussian"``.
        logits: Whether the layer that makes the logits gets noise too, as in their code.
        event_shape: Of one row of input, to find that layer by; not needed for an ``nn.Sequential``.
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
        raise SettingError("The network has no hidden layer to put noise on. Use logits=True for noise on its output.")
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
        "Which layer of this network makes the logits cannot be read off it. Pass event_shape, the shape of one row of"
        " input, or logits=True for noise on all layers."
    )


def output_layer(network: nn.Module, x: Tensor) -> tuple[str, nn.Linear]:
    """The linear layer whose output is the network's: its name and itself.

    Args:
        network: Any.
        x: (N, *event) a few rows.

    Raises:
        SettingError: If there is none.
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
        "No linear layer makes the network's logits by itself, so there is no last layer to vary. Use parameters='all'."
    )


def check_rate(rate: float, kind: Kind) -> None:
    """Refuse a rate that cannot be."""
    if kind == "bernoulli" and not 0 <= rate < 1:
        raise SettingError(f"The 'rate' of dropout must be in [0, 1). Got {rate!r} instead.")
    if kind == "gaussian" and not 0 <= rate < float("inf"):
        raise SettingError(f"The 'rate' of Gaussian dropout must be >= 0. Got {rate!r} instead.")


def with_rate(sites: Sequence[Site], rate: float) -> tuple[Site, ...]:
    """The same places at another rate."""
    for site in sites:
        check_rate(rate, site.kind)
    return tuple(replace(site, rate=rate) for site in sites)


def _put(network: nn.Module, name: str, layer: nn.Module) -> nn.Module:
    """The network with one layer replaced; the layer itself where the network is nothing else."""
    if not name:
        return layer
    parent, _, last = name.rpartition(".")
    setattr(network.get_submodule(parent), last, layer)
    return network
