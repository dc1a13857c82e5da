"""Training of S copies of a network at once, as one stacked network with one optimizer.

Copies do not affect each other: Adam treats each weight separately, and the loss is a sum over copies.
"""

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

_VALIDATION_CHUNK_ROWS = 512

# From (S, N, C) logits and (S, N) labels to (S,) mean losses.
StackedLoss = Callable[[Tensor, Tensor], Tensor]


def mean_cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """(S,) mean cross-entropy of each copy, from (S, N, C) logits and (S, N) labels."""
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
    """Train S copies of a network from new initial weights with dropout, each on its own rows, as one stacked network.

    Args:
        network: Architecture; its weights are neither used nor changed.
        x: (N, *event) encoded rows.
        y: (N,) labels or targets; with ``own_targets``, (S, N, ...) targets of each copy.
        rows: (S, n) positions of the rows that each copy trains on.
        settings: Training settings.
        rng: Random numbers for weights, order and dropout.
        start: Initial weights by name, (S, *shape); None: drawn from ``rng``.
        held: (S, m) positions of the validation rows of each copy; None: no early stopping.
        loss: Function from stacked logits and labels to the (S,) losses of the copies.
        own_targets: Whether each copy has targets of its own.
        on_epoch: Function called after each epoch with its record and the parameters.
        label: Label of the progress bar.

    Returns:
        All parameters by name, (S, *shape), and one entry per epoch.
    """
    _refuse_batch_norm(network)
    count, device = len(rows), x.device
    noisy, sites = with_noise(network, x.shape[1:])
    forward = stacked_forward(noisy.float().to(device), x.dim() - 1)
    first = draw_state(network, count, rng) if start is None else start
    state = {name: value.detach().clone().to(device).requires_grad_() for name, value in first.items()}
    mask_rng, targets_of = _rng_on(device, rng), _target_lookup(y, own_targets)

    def batch_loss(batch: Tensor) -> Tensor:
        positions = rows[:, batch].to(device)
        overrides = {**state, **draw_masks(sites, positions.shape, mask_rng)}
        return loss(forward(x[positions], overrides, count), targets_of(positions)).sum()

    history = train(
        list(state.values()),
        batch_loss,
        rows.shape[1],
        settings,
        rng=rng,
        members=count,
        validate=None if held is None else lambda: _validation_loss(forward, state, x, targets_of, held, loss),
        on_epoch=None if on_epoch is None else lambda epoch: on_epoch(epoch, state),
        label=label,
    )
    return {name: value.detach() for name, value in state.items()}, history


def _target_lookup(y: Tensor, own: bool) -> Callable[[Tensor], Tensor]:
    """The function from (S, n) positions of rows to their targets, which copies share or have of their own."""
    if not own:
        return lambda rows: y[rows]
    copies = torch.arange(len(y), device=y.device)[:, None]
    return lambda rows: y[copies, rows]


def _rng_on(device: torch.device, rng: torch.Generator) -> torch.Generator:
    """A random number generator on a device, because masks for all rows are too large to copy there in every step."""
    if device.type == "cpu":
        return rng
    return torch.Generator(device).manual_seed(int(torch.randint(2**31, (), generator=rng)))


@torch.no_grad()
def _validation_loss(
    forward: Forward,
    state: Mapping[str, Tensor],
    x: Tensor,
    targets_of: Callable[[Tensor], Tensor],
    held: Tensor,
    loss: StackedLoss,
) -> Tensor:
    """(S,) loss of each copy on its validation rows, in chunks that bound memory."""
    total = torch.zeros(len(held), device=x.device)
    for part in held.to(x.device).split(_VALIDATION_CHUNK_ROWS, dim=1):
        total += loss(forward(x[part], state, len(held)), targets_of(part)) * part.shape[1]
    return total / held.shape[1]


def _refuse_batch_norm(network: nn.Module) -> None:
    for name, layer in network.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            raise SettingError(
                f"The layer {name!r} keeps running statistics, which cannot be trained for several copies at once. Use"
                " GroupNorm or LayerNorm, or train copies yourself and pass them to DeepEnsemble."
            )
