"""The training loop of all networks except generators, for one network or many stacked ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from avcg.console import progress
from avcg.errors import SettingError, check_int


@dataclass(frozen=True)
class Training:
    """Training settings of a network.

    Attributes:
        epochs: Largest number of passes over the rows.
        batch_size: Number of rows per step.
        learning_rate: Learning rate of Adam.
        weight_decay: Weight decay of Adam.
        patience: Number of epochs without a better validation loss after which training stops; None: no early stopping.
        clip: Largest norm of the gradient, above which it is scaled down; None: no clipping.
        schedule: Schedule of the learning rate: ``"constant"``, or ``"one_cycle"`` (up to ``learning_rate`` and down to
            almost 0).
    """

    epochs: int = 100
    batch_size: int = 128
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    patience: int | None = 10
    clip: float | None = None
    schedule: Literal["constant", "one_cycle"] = "constant"

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "patience"):
            if name != "patience" or self.patience is not None:
                object.__setattr__(self, name, check_int(getattr(self, name), f"'{name}' of Training", 1))
        for name, least in (("learning_rate", 0.0), ("clip", 0.0), ("weight_decay", -1e-300)):
            value = getattr(self, name)
            if value is not None and not least < value < math.inf:
                rule = ">= 0" if name == "weight_decay" else "> 0"
                raise SettingError(f"The '{name}' of Training must be {rule}. Got {value!r} instead.")
        if self.schedule not in ("constant", "one_cycle"):
            raise SettingError(
                f"The 'schedule' of Training must be 'constant' or 'one_cycle'. Got {self.schedule!r} instead."
            )


@dataclass(frozen=True)
class Epoch:
    """The losses of one epoch.

    Attributes:
        epoch: Number of the epoch, from 1.
        loss: Mean training loss over rows and members.
        validation: (S,) loss of each member on the validation rows; None: there are none.
    """

    epoch: int
    loss: float
    validation: tuple[float, ...] | None = None


def train(
    parameters: Sequence[Tensor],
    loss: Callable[[Tensor], Tensor],
    n_rows: int,
    settings: Training,
    *,
    rng: torch.Generator,
    members: int = 1,
    validate: Callable[[], Tensor] | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    label: str = "Training",
) -> list[Epoch]:
    """Minimise a loss by Adam and keep the parameters with the best validation loss.

    Args:
        parameters: Parameters to train, in place; with several members, each has a leading axis S.
        loss: Function from the (batch,) positions of rows to a scalar, the sum of the members' mean losses.
        n_rows: Number of rows.
        settings: Training settings.
        rng: Random numbers for the order of rows.
        members: Number of members S. Gradients are clipped, and the best parameters kept, for each member separately.
        validate: Function that returns the (S,) validation losses; None: no early stopping.
        on_epoch: Function called after each epoch with its record.
        label: Label of the progress bar.

    Returns:
        One entry per epoch.

    Raises:
        SettingError: If training diverged: the loss is not finite, and no finite validation loss was kept.
    """
    optimizer = adam(parameters, settings.learning_rate, settings.weight_decay)
    schedule = _schedule(optimizer, settings, n_rows)
    best, epochs_since_best = torch.full((members,), torch.inf), 0
    kept = [parameter.detach().clone() for parameter in parameters]
    history: list[Epoch] = []
    with progress(label, settings.epochs) as advance:
        for epoch in range(1, settings.epochs + 1):
            total = _one_pass(parameters, loss, n_rows, settings, optimizer, schedule, rng, members)
            scores = None if validate is None else validate().detach().cpu()
            if scores is not None:
                better = scores < best
                best = torch.where(better, scores, best)
                epochs_since_best = 0 if bool(better.any()) else epochs_since_best + 1
                _keep_better(kept, parameters, better)
            record = None if scores is None else tuple(scores.tolist())
            history.append(Epoch(epoch, total / n_rows / members, record))
            advance(epoch, f"loss {history[-1].loss:.4g}")
            if on_epoch is not None:
                on_epoch(history[-1])
            if settings.patience is not None and epochs_since_best >= settings.patience:
                break
    _refuse_diverged(history[-1], best, settings, label, validated=validate is not None)
    if validate is not None:
        with torch.no_grad():
            for parameter, value in zip(parameters, kept, strict=True):
                parameter.copy_(value)
    return history


def adam(parameters: Sequence[Tensor], learning_rate: float, weight_decay: float = 0.0) -> torch.optim.Adam:
    """The Adam optimizer used for all training, fused so that one kernel steps all parameters."""
    return torch.optim.Adam(parameters, lr=learning_rate, weight_decay=weight_decay, fused=True)


def _refuse_diverged(last: Epoch, best: Tensor, settings: Training, label: str, *, validated: bool) -> None:
    if not math.isfinite(last.loss) and (not validated or not torch.isfinite(best).all()):
        raise SettingError(
            f"{label} diverged: the loss is {last.loss} after {last.epoch} epochs. Lower the learning rate"
            f" (now {settings.learning_rate!r}), or set clip."
        )


def _one_pass(
    parameters: Sequence[Tensor],
    loss: Callable[[Tensor], Tensor],
    n_rows: int,
    settings: Training,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    rng: torch.Generator,
    members: int,
) -> float:
    """One pass over the rows in random order; the sum of losses over rows and members."""
    total = torch.zeros((), device=parameters[0].device)  # on the device, so that no step waits for its loss
    # Rows are always drawn on the CPU, so that a seed gives the same order on every device.
    for batch in torch.randperm(n_rows, generator=rng).split(settings.batch_size):
        optimizer.zero_grad(set_to_none=True)
        value = loss(batch)
        value.backward()
        if settings.clip is not None:
            _clip(parameters, settings.clip, members)
        optimizer.step()
        schedule.step()
        total = total + value.detach() * len(batch)
    return float(total)


def _schedule(
    optimizer: torch.optim.Optimizer, settings: Training, n_rows: int
) -> torch.optim.lr_scheduler.LRScheduler:
    if settings.schedule == "constant":
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    steps = settings.epochs * math.ceil(n_rows / settings.batch_size)
    # One step more than there are, because the cycle must not end before training does.
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, settings.learning_rate, total_steps=steps + 1)


def _keep_better(kept: list[Tensor], parameters: Sequence[Tensor], better: Tensor) -> None:
    """Store the parameters of members that improved. A single member's parameters may lack the leading axis S."""
    for i, parameter in enumerate(parameters):
        if len(better) == 1:
            kept[i] = parameter.detach().clone() if bool(better[0]) else kept[i]
        else:
            chosen = better.reshape(-1, *[1] * (parameter.dim() - 1)).to(parameter.device)
            kept[i] = torch.where(chosen, parameter.detach(), kept[i])


def _clip(parameters: Sequence[Tensor], largest: float, members: int) -> None:
    """Scale down the gradients of each member whose norm exceeds the largest one."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    squares = [gradient.square().reshape(members, -1).sum(dim=1) for gradient in gradients]
    scale = (largest / (torch.stack(squares).sum(dim=0).sqrt() + 1e-12)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(scale.reshape(-1, *[1] * (gradient.dim() - 1)) if members > 1 else scale[0])
