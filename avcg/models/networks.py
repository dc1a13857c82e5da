"""Small networks, built without using PyTorch's global random stream.

PyTorch's layers draw their initial weights from the global random stream when they are created. Here they are created
empty and filled by `initialise`, which draws from `rng` with PyTorch's own distributions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from avcg.errors import SettingError

Size = tuple[int, int, int]


def mlp(
    n_inputs: int,
    n_outputs: int,
    hidden: Sequence[int] = (64, 64),
    *,
    dropout: float = 0.0,
    smooth: bool = False,
    rng: torch.Generator | None = None,
) -> nn.Sequential:
    """A multilayer perceptron: linear layers with an activation and optional dropout after each hidden layer.

    Args:
        n_inputs: Number of inputs.
        n_outputs: Number of outputs.
        hidden: Number of units of each hidden layer; empty for a linear model.
        dropout: Dropout rate, in [0, 1).
        smooth: Whether hidden layers use LayerNorm and SiLU instead of ReLU.
        rng: Random numbers for the initial weights; None: a generator seeded with 0.

    >>> mlp(30, 2, hidden=(8,))(torch.zeros(5, 30)).shape
    torch.Size([5, 2])
    """
    _check_dropout(dropout)
    layers: list[nn.Module] = []
    width = n_inputs
    for units in hidden:
        layers.append(skip_init(nn.Linear, width, units))
        layers += [skip_init(nn.LayerNorm, units), nn.SiLU()] if smooth else [nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
        width = units
    layers.append(skip_init(nn.Linear, width, n_outputs))
    return initialise(nn.Sequential(*layers), rng)


def cnn(
    size: Size,
    n_outputs: int,
    channels: Sequence[int] = (32, 64),
    *,
    units: int = 128,
    dropout: float = 0.0,
    rng: torch.Generator | None = None,
) -> nn.Sequential:
    """A convolutional classifier: 3 x 3 convolutions with stride 2, then one hidden linear layer.

    Args:
        size: (channels, height, width) of an image.
        n_outputs: Number of outputs.
        channels: Number of output channels of each convolution.
        units: Number of units of the hidden linear layer.
        dropout: Dropout rate after every hidden layer, in [0, 1).
        rng: Random numbers for the initial weights; None: a generator seeded with 0.

    >>> cnn((1, 28, 28), 10, channels=(4,))(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    _check_dropout(dropout)
    depth, height, width = size
    layers: list[nn.Module] = []
    for filters in channels:
        layers += [skip_init(nn.Conv2d, depth, filters, 3, stride=2, padding=1), nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
        depth, height, width = filters, (height + 1) // 2, (width + 1) // 2
    layers += [nn.Flatten(), skip_init(nn.Linear, depth * height * width, units), nn.ReLU()]
    if dropout:
        layers.append(nn.Dropout(dropout))
    layers.append(skip_init(nn.Linear, units, n_outputs))
    return initialise(nn.Sequential(*layers), rng)


def autoencoder(
    n_inputs: int, hidden: Sequence[int] = (20, 10, 6), *, rng: torch.Generator | None = None
) -> nn.Sequential:
    """An autoencoder for encoded rows of tables.

    Args:
        n_inputs: Number of inputs and of outputs.
        hidden: Number of units of each encoder layer; the decoder mirrors them.
        rng: Random numbers for the initial weights; None: a generator seeded with 0.

    >>> autoencoder(30)(torch.zeros(5, 30)).shape
    torch.Size([5, 30])
    """
    return mlp(n_inputs, n_inputs, [*hidden, *reversed(hidden[:-1])], rng=rng)


def conv_autoencoder(
    size: Size, channels: Sequence[int] = (16, 32), *, rng: torch.Generator | None = None
) -> nn.Sequential:
    """A convolutional autoencoder for images.

    Args:
        size: (channels, height, width) of an image.
        channels: Number of output channels of each encoder convolution; the decoder mirrors them.
        rng: Random numbers for the initial weights; None: a generator seeded with 0.

    >>> conv_autoencoder((1, 28, 28))(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 1, 28, 28])
    """
    return conv_translator(size, size[0], channels, rng=rng)


def conv_translator(
    size: Size, n_outputs: int, channels: Sequence[int] = (32, 64), *, rng: torch.Generator | None = None
) -> nn.Sequential:
    """A convolutional encoder and decoder between images of the same height and width.

    Args:
        size: (channels, height, width) of the input.
        n_outputs: Number of channels of the output.
        channels: Number of output channels of each encoder convolution; the decoder mirrors them.
        rng: Random numbers for the initial weights; None: a generator seeded with 0.

    >>> conv_translator((5, 28, 28), 1)(torch.zeros(2, 5, 28, 28)).shape
    torch.Size([2, 1, 28, 28])
    """
    layers: list[nn.Module] = []
    depth, sizes = size[0], [size[1:]]
    for filters in channels:
        layers += [skip_init(nn.Conv2d, depth, filters, 3, stride=2, padding=1), nn.ReLU()]
        depth = filters
        sizes.append(((sizes[-1][0] + 1) // 2, (sizes[-1][1] + 1) // 2))
    return initialise(nn.Sequential(*layers, *_decoder(depth, n_outputs, channels, sizes)), rng)


def conv_painter(
    n_inputs: int, size: Size, channels: Sequence[int] = (32, 64), *, rng: torch.Generator | None = None
) -> nn.Sequential:
    """A convolutional decoder from a vector to an image.

    Args:
        n_inputs: Length of the vector.
        size: (channels, height, width) of the image.
        channels: Numbers of channels of the feature maps, from the last to the first.
        rng: Random numbers for the initial weights; None: a generator seeded with 0.

    >>> conv_painter(12, (3, 32, 32))(torch.zeros(2, 12)).shape
    torch.Size([2, 3, 32, 32])
    """
    sizes = [size[1:]]
    for _ in channels:
        sizes.append(((sizes[-1][0] + 1) // 2, (sizes[-1][1] + 1) // 2))
    first = (channels[-1], *sizes[-1])
    layers = [skip_init(nn.Linear, n_inputs, math.prod(first)), nn.ReLU(), nn.Unflatten(1, first)]
    return initialise(nn.Sequential(*layers, *_decoder(channels[-1], size[0], channels, sizes)), rng)


def _decoder(depth: int, n_outputs: int, channels: Sequence[int], sizes: Sequence[tuple[int, ...]]) -> list[nn.Module]:
    """Layers from the smallest feature maps back to full size, mirroring ``channels``."""
    layers: list[nn.Module] = []
    widths = [*reversed(channels[:-1]), n_outputs]
    for i, filters in enumerate(widths):
        layers += [nn.Upsample(size=sizes[len(channels) - 1 - i]), skip_init(nn.Conv2d, depth, filters, 3, padding=1)]
        if i < len(widths) - 1:
            layers.append(nn.ReLU())
        depth = filters
    return layers


def _check_dropout(dropout: float) -> None:
    if not 0 <= dropout < 1:
        raise SettingError(f"The 'dropout' of a network must be in [0, 1). Got {dropout!r} instead.")


def initialise(network: nn.Sequential, rng: torch.Generator | None) -> nn.Sequential:
    """Initialise all weights with PyTorch's default distributions, drawn from `rng`."""
    for name, value in draw_state(network, 1, rng).items():
        network.get_parameter(name).data.copy_(value[0])
    return network


def draw_state(network: nn.Module, count: int, rng: torch.Generator | None) -> dict[str, Tensor]:
    """Initial weights for several copies of a network.

    Args:
        network: Network that gives the names and shapes; it is not changed.
        count: Number of copies S.
        rng: Random numbers; None: a generator seeded with 0.

    Returns:
        All parameters by name, (S, *shape).

    Raises:
        SettingError: If the initial distribution of a layer's weights is unknown.
    """
    rng = rng or torch.Generator().manual_seed(0)
    state: dict[str, Tensor] = {}
    for prefix, layer in network.named_modules():
        parameters = dict(layer.named_parameters(recurse=False))
        if not parameters:
            continue
        dot = f"{prefix}." if prefix else ""
        if isinstance(layer, (nn.Linear, nn.Conv1d, nn.Conv2d)):
            fan_in = math.prod(layer.weight.shape[1:])
            for name, value in parameters.items():
                uniform = torch.rand((count, *value.shape), generator=rng, dtype=torch.float32)
                state[dot + name] = (2 * uniform - 1) / math.sqrt(max(fan_in, 1))
        elif isinstance(layer, (nn.LayerNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm)):
            for name, value in parameters.items():
                state[dot + name] = torch.full((count, *value.shape), 1.0 if name == "weight" else 0.0)
        elif isinstance(layer, nn.Embedding):
            state[dot + "weight"] = torch.randn((count, *layer.weight.shape), generator=rng)
        else:
            raise SettingError(
                f"The initial weights of a {type(layer).__name__} ({prefix!r}) are unknown, so this network cannot be"
                " retrained. Train copies of it yourself and pass them to DeepEnsemble."
            )
    return state
