"""The one training loop, for every network in the package, one at a time or many at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from avcg.errors import SettingError
from avcg.progress import progress


@dataclass(frozen=True)
class Training:
    """How long and how fast.

    Attributes:
        epochs: Passes over the rows, at most.
        batch_size: Rows per step.
        learning_rate: Of Adam.
        weight_decay: Of Adam.
        patience: Stop after so many epochs without a better validation loss; None: never.
        clip: Largest norm of a gradient; None: any.
    """

    epochs: int = 100
    batch_size: int = 128
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    patience: int | None = 10
    clip: float | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise SettingError(f"The '{name}' of Training must be a whole number >= 1. Got {value!r} instead.")
        if not self.learning_rate > 0:
            raise SettingError(f"The 'learning_rate' of Training must be > 0. Got {self.learning_rate!r} instead.")


@dataclass(frozen=True)
class Epoch:
    """What one pass over the rows came to.

    Attributes:
        epoch: From 1.
        loss: Mean training loss, of all members together.
        validation: (S,) loss of each member on the validation rows, or None.
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
    generator: torch.Generator,
    validate: Callable[[], Tensor] | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    label: str = "Training",
) -> list[Epoch]:
    """Minimise a loss by Adam, keeping the best parameters seen on validation.

    Args:
        parameters: What is trained, in place. With a ``validate`` that returns S > 1 losses, each has a leading axis S
            and every member keeps its own best.
        loss: From the positions of a batch of rows (batch,) to a scalar: the sum over members of their mean losses.
        n_rows: Rows there are.
        settings: How long and how fast.
        generator: Of the order of rows.
        validate: To (S,) validation losses. Without it there is no early stopping.
        on_epoch: Called after each pass.
        label: Shown beside the bar on a terminal.

    Returns:
        One entry per pass.
    """
    optimizer = torch.optim.Adam(parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay)
    best, since, kept = None, 0, [parameter.detach().clone() for parameter in parameters]
    history: list[Epoch] = []
    with progress(label, settings.epochs) as advance:
        for epoch in range(1, settings.epochs + 1):
            total = torch.zeros(())
            # Rows are drawn on the CPU whatever the device, so that a seed means the same everywhere.
            for batch in torch.randperm(n_rows, generator=generator).split(settings.batch_size):
                optimizer.zero_grad(set_to_none=True)
                value = loss(batch)
                value.backward()
                if settings.clip is not None:
                    torch.nn.utils.clip_grad_norm_(parameters, settings.clip)
                optimizer.step()
                total = total + value.detach().cpu() * len(batch)
            scores = None if validate is None else validate().detach()
            if scores is not None:
                better = scores < (torch.full_like(scores, torch.inf) if best is None else best)
                best = scores if best is None else torch.minimum(best, scores)
                since = 0 if bool(better.any()) else since + 1
                _keep(kept, parameters, better)
            record = None if scores is None else tuple(scores.tolist())
            history.append(Epoch(epoch, float(total) / n_rows, record))
            advance(epoch, f"loss {history[-1].loss:.4g}")
            if on_epoch is not None:
                on_epoch(history[-1])
            if settings.patience is not None and since >= settings.patience:
                break
    if best is not None:
        with torch.no_grad():
            for parameter, value in zip(parameters, kept, strict=True):
                parameter.copy_(value)
    return history


def _keep(kept: list[Tensor], parameters: Sequence[Tensor], better: Tensor) -> None:
    """Remember the parameters of the members that got better; a single one has no axis of its own."""
    for i, parameter in enumerate(parameters):
        if len(better) == 1:
            kept[i] = parameter.detach().clone() if bool(better[0]) else kept[i]
        else:
            chosen = better.reshape(-1, *[1] * (parameter.dim() - 1))
            kept[i] = torch.where(chosen, parameter.detach(), kept[i])
