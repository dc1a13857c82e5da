"""Monte Carlo dropout: a hypothesis is one mask of hidden units, the same for every row."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from avcg.errors import SettingError
from avcg.hypotheses.base import check_count, seeded
from avcg.hypotheses.predictors import Loss, Stacked
from avcg.models.adapter import Model, ModelSpec, model_spec
from avcg.models.dropout_masks import Site, draw_masks, with_noise, with_rate
from avcg.space.base import Space


@dataclass(frozen=True, eq=False)
class MCDropout:
    """The networks that dropout trains along with the one it leaves behind.

    Attributes:
        model: A network with ``nn.Dropout`` layers or noise attached by `attach_dropout`, or a fitted `Classifier`.
        rate: Of dropout; None: each layer's own.
        space: What a bare network reads.

    >>> from avcg.models.networks import mlp
    >>> masks = MCDropout(mlp(3, 2, hidden=(8,), dropout=0.5))
    >>> masks.sample(50).log_probs(torch.zeros(4, 3)).shape
    torch.Size([50, 4, 2])
    """

    model: Model
    rate: float | None = None
    space: Space | None = None

    def __post_init__(self) -> None:
        opened = self._opened
        if opened.space is not None:
            object.__setattr__(self, "space", opened.space)
        if not self._parts[1]:
            raise SettingError(
                "MCDropout needs a network with nn.Dropout layers that it calls. Train one with dropout > 0, or put"
                " noise on this one: MCDropout(attach_dropout(network, rate=0.1))."
            )

    @property
    def classes(self) -> NDArray[Any] | None:
        """The labels in the order of their probabilities, where the model knows them."""
        return self._opened.classes

    @cached_property
    def _opened(self) -> ModelSpec:
        return model_spec(self.model, self.space)

    @cached_property
    def _parts(self) -> tuple[nn.Module, tuple[Site, ...]]:
        noisy, sites = with_noise(self._opened.network, self._opened.event_shape())
        return noisy, sites if self.rate is None else with_rate(sites, self.rate)

    def sample(self, n: int, *, rng: torch.Generator | None = None) -> Stacked:
        """N masks."""
        n = check_count(n, "sample")
        noisy, sites = self._parts
        return Stacked(noisy, draw_masks(sites, (n,), seeded(rng)))

    def deterministic(self) -> Stacked:
        """The network with dropout off."""
        return Stacked(self._opened.network, {})


def dropout_rate_for(
    model: Model,
    X: Any,
    y: Any,
    epsilon: float,
    *,
    share: float = 0.5,
    n: int = 50,
    loss: Loss = "cross_entropy",
    space: Space | None = None,
    rng: torch.Generator | None = None,
) -> float:
    """The largest rate at which a share of masks stays within epsilon of the network without dropout.

    The same uniform numbers decide every rate tried, so a higher rate drops what a lower one dropped and more.

    Args:
        model: With dropout layers, as for `MCDropout`.
        X: Validation rows.
        y: Their labels.
        epsilon: Excess loss allowed, >= 0.
        share: Of masks wanted, in (0, 1].
        n: Masks to try.
        loss: ``"cross_entropy"`` or ``"zero_one"``.
        space: What a bare network reads.
        rng: Random numbers; None: a generator seeded with 0.
    """
    if not epsilon >= 0:
        raise SettingError(f"The 'epsilon' parameter of dropout_rate_for must be >= 0. Got {epsilon!r} instead.")
    if not 0 < share <= 1:
        raise SettingError(f"The 'share' parameter of dropout_rate_for must be in (0, 1]. Got {share!r} instead.")
    opened = model_spec(model, space)
    x, labels = opened.pair(X, y)
    limit = float(Stacked(opened.network, {}).losses(x, labels, loss)[0]) + epsilon
    seed = int(torch.randint(2**31, (), generator=seeded(rng)))

    def kept(rate: float) -> float:
        masks = MCDropout(model, rate, space).sample(n, rng=torch.Generator().manual_seed(seed))
        return float((masks.losses(x, labels, loss) <= limit).float().mean())

    low, high = 0.0, 0.95
    if kept(high) >= share:
        return high
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if kept(middle) >= share else (low, middle)
    return low
