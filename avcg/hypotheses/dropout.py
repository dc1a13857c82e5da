"""Monte Carlo dropout. A hypothesis is the network under one dropout mask, which is the same for every row."""

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
    """The distribution of a network under random dropout masks (Monte Carlo dropout).

    Attributes:
        model: A network with ``nn.Dropout`` layers or noise attached by `attach_dropout`, or a fitted `Classifier`.
        rate: Dropout rate of all layers; None: the rate of each layer.
        space: Space of the rows that a bare network reads.

    >>> from avcg.models.networks import mlp
    >>> masks = MCDropout(mlp(3, 2, hidden=(8,), dropout=0.5))
    >>> masks.sample(50).log_probs(torch.zeros(4, 3)).shape
    torch.Size([50, 4, 2])
    """

    model: Model
    rate: float | None = None
    space: Space | None = None

    def __post_init__(self) -> None:
        if self._spec.space is not None:
            object.__setattr__(self, "space", self._spec.space)
        if not self._parts[1]:
            raise SettingError(
                "MCDropout needs a network with nn.Dropout layers that its forward pass calls. Got none. Train one with"
                " dropout > 0, or add noise to this one: MCDropout(attach_dropout(network, rate=0.1))."
            )

    @property
    def classes(self) -> NDArray[Any] | None:
        """Labels in the order of the predicted probabilities; None: unknown."""
        return self._spec.classes

    @cached_property
    def _spec(self) -> ModelSpec:
        return model_spec(self.model, self.space)

    @cached_property
    def _parts(self) -> tuple[nn.Module, tuple[Site, ...]]:
        noisy, sites = with_noise(self._spec.network, self._spec.event_shape())
        return noisy, sites if self.rate is None else with_rate(sites, self.rate)

    def sample(self, n: int, *, rng: torch.Generator | None = None) -> Stacked:
        """Draw n dropout masks."""
        n = check_count(n, "sample")
        noisy, sites = self._parts
        return Stacked(noisy, draw_masks(sites, (n,), seeded(rng)))

    def deterministic(self) -> Stacked:
        """The network without dropout, as one hypothesis."""
        return Stacked(self._spec.network, {})


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
    """The largest dropout rate at which enough masks lose at most epsilon against the network without dropout.

    All rates are tried with the same uniform random numbers, so a higher rate drops every unit that a lower one drops.

    Args:
        model: Model with dropout layers, as for `MCDropout`.
        X: Validation rows.
        y: Labels of the validation rows.
        epsilon: Largest excess loss, >= 0.
        share: Share of masks that must stay within ``epsilon``, in (0, 1].
        n: Number of masks drawn for each rate.
        loss: ``"cross_entropy"`` or ``"zero_one"``.
        space: Space of the rows that a bare network reads.
        rng: Random numbers; None: a generator seeded with 0.
    """
    if not epsilon >= 0:
        raise SettingError(f"The 'epsilon' parameter of dropout_rate_for must be >= 0. Got {epsilon!r} instead.")
    if not 0 < share <= 1:
        raise SettingError(f"The 'share' parameter of dropout_rate_for must be in (0, 1]. Got {share!r} instead.")
    spec = model_spec(model, space)
    x, labels = spec.pair(X, y)
    limit = float(Stacked(spec.network, {}).losses(x, labels, loss)[0]) + epsilon
    seed = int(torch.randint(2**31, (), generator=seeded(rng)))

    def share_within(rate: float) -> float:
        masks = MCDropout(model, rate, space).sample(n, rng=torch.Generator().manual_seed(seed))
        return float((masks.losses(x, labels, loss) <= limit).float().mean())

    low, high = 0.0, 0.95
    if share_within(high) >= share:
        return high
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if share_within(middle) >= share else (low, middle)
    return low
