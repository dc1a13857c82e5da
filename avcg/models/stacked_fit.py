"""Fitting many copies of a network at once: one stacked network, one optimiser, S answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  its usual name

from avcg.errors import SettingError
from avcg.models.batched import Forward, stacked_forward
from avcg.models.dropout_masks import draw_masks, with_noise
from avcg.models.networks import draw_state
from avcg.models.training import Epoch, Training, train

_HELD_ROWS = 512

# From (S, N, C) logits and (S, N) labels to (S,) mean losses.
StackedLoss = Callable[[Tensor, Tensor], Tensor]


def mean_cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """(S, N, C) and (S, N) to (S,)."""
    return F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(y.shape).mean(dim=1)


def fit_stacked(
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    rows: Tensor,
    settings: Training,
    *,
    rng: torch.Generator,
    start: Mapping[str, Tensor] | None = None,
    held: Tensor | None = None,
    loss: StackedLoss = mean_cross_entropy,
    own_targets: bool = False,
    on_epoch: Callable[[Epoch, Mapping[str, Tensor]], None] | None = None,
    label: str = "Training",
) -> tuple[dict[str, Tensor], list[Epoch]]:
    """Train S copies of a network from fresh weights, each on its own rows, all in one pass, dropout on.

    Copies do not see each other: Adam works on each weight by itself, and the loss is a sum over copies.

    Args:
        network: The architecture; its own weights are not used and not changed.
        x: (N, *event).
        y: (N,) labels or targets; with ``own_targets`` (S, N, ...), those of each copy.
        rows: (S, n) the rows each copy trains on, in an order of its own.
        settings: How long and how fast.
        rng: Random numbers for weights, order and dropout.
        start: Weights to begin from, (S, *shape) by name; None: fresh ones.
        held: (S, m) the rows each copy keeps for early stopping; None: there is none.
        loss: From stacked logits and labels to a loss per copy.
        own_targets: Whether each copy has targets of its own.
        on_epoch: Called after each pass with its record and the parameters.
        label: Shown beside the bar on a terminal.

    Returns:
        All parameters by name, (S, *shape), and the history.
    """
    _refuse_batch_norm(network)
    count, device = len(rows), x.device
    noisy, sites = with_noise(network, x.shape[1:])
    forward = stacked_forward(noisy.float().to(device), x.dim() - 1)
    first = draw_state(network, count, rng) if start is None else start
    state = {name: value.detach().clone().to(device).requires_grad_() for name, value in first.items()}

    dice, wanted = _stream_on(device, rng), _lookup(y, own_targets)

    def batch_loss(batch: Tensor) -> Tensor:
        mine = rows[:, batch].to(device)
        return loss(forward(x[mine], {**state, **draw_masks(sites, mine.shape, dice)}, count), wanted(mine)).sum()

    history = train(
        list(state.values()),
        batch_loss,
        rows.shape[1],
        settings,
        rng=rng,
        members=count,
        validate=None if held is None else lambda: _held_loss(forward, state, x, wanted, held, loss),
        on_epoch=None if on_epoch is None else lambda epoch: on_epoch(epoch, state),
        label=label,
    )
    return {name: value.detach() for name, value in state.items()}, history


def _lookup(y: Tensor, own: bool) -> Callable[[Tensor], Tensor]:
    """From (S, n) rows to their targets, where all copies have the same and where each has its own."""
    if not own:
        return lambda rows: y[rows]
    everyone = torch.arange(len(y), device=y.device)[:, None]
    return lambda rows: y[everyone, rows]


def _stream_on(device: torch.device, rng: torch.Generator) -> torch.Generator:
    """Chance made where it is used: a mask for every row is too much to send to another device at every step."""
    if device.type == "cpu":
        return rng
    return torch.Generator(device).manual_seed(int(torch.randint(2**31, (), generator=rng)))


@torch.no_grad()
def _held_loss(
    forward: Forward,
    state: Mapping[str, Tensor],
    x: Tensor,
    wanted: Callable[[Tensor], Tensor],
    held: Tensor,
    loss: StackedLoss,
) -> Tensor:
    """(S,) the loss of each copy on the rows it holds back, in chunks that bound memory."""
    total = torch.zeros(len(held), device=x.device)
    for part in held.to(x.device).split(_HELD_ROWS, dim=1):
        total += loss(forward(x[part], state, len(held)), wanted(part)) * part.shape[1]
    return total / held.shape[1]


def _refuse_batch_norm(network: nn.Module) -> None:
    for name, layer in network.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            raise SettingError(
                f"The layer {name!r} keeps running statistics, which cannot be trained for several copies at once. Use"
                " GroupNorm or LayerNorm, or train copies yourself and hand them to DeepEnsemble."
            )
