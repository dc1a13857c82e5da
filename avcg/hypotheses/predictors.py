"""Hypotheses drawn from a distribution, evaluated together.

`Stacked` holds S hypotheses of one architecture as overrides of some of its parameters, with a leading axis. A stack of
linear layers and activations is evaluated by batched matrix products, any other network by ``vmap`` over
``functional_call``. Parameters are never swapped in place, because that gives silently wrong gradients through
convolutions and layer norms. `Joined` combines different architectures, and `Opaque` holds functions without gradients.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from avcg.errors import DataError, SettingError
from avcg.models.batched import Plan, plan_of, stacked_forward
from avcg.models.precision import full_precision

Loss = Literal["cross_entropy", "zero_one"]

# Largest number of activations in a chunk of rows: small enough for a core's cache on a CPU, large products on a GPU.
_CPU_NUMBERS = 2**19
_GPU_NUMBERS = 2**26
# Number of rows from which hypotheses with different weights are evaluated one after the other on a CPU.
_MANY_ROWS = 256
# Largest number of activations kept for a backward pass. Above it they are computed a second time instead.
_KEPT_NUMBERS = 2**28


class Predictors(ABC):
    """S hypotheses with weights, evaluated together.

    Attributes:
        weights: (S,) weights of the hypotheses, summing to 1.
        differentiable: Whether log-probabilities have gradients with respect to the inputs.
    """

    weights: Tensor
    differentiable: bool = True

    @abstractmethod
    def log_probs(self, x: Tensor) -> Tensor:
        """Log-probabilities of all classes under each hypothesis.

        Args:
            x: (N, *event) encoded rows.

        Returns:
            (S, N, C) log-probabilities.
        """

    def probabilities(self, x: Tensor) -> Tensor:
        """Probabilities of all classes under each hypothesis, at the precision that the hypotheses return.

        Args:
            x: (N, *event) encoded rows.

        Returns:
            (S, N, C) probabilities, in float64 if there are black boxes among the hypotheses.
        """
        return self.log_probs(x).exp()

    @abstractmethod
    def subset(self, chosen: Tensor) -> Predictors:
        """The chosen hypotheses in the order given, with weights scaled to sum to 1.

        Args:
            chosen: (k,) positions of hypotheses.
        """

    def to(self, device: torch.device | str) -> Predictors:  # noqa: ARG002  for hypotheses with tensors
        """The hypotheses on another device. Hypotheses without tensors of their own are returned unchanged."""
        return self

    def bind_rows(self, rows: Any) -> Predictors:  # noqa: ARG002  for black boxes
        """Hypotheses bound to given rows. Black boxes then read these rows instead of rows decoded from codes.

        Args:
            rows: Rows in user units, about which models are asked themselves, or their exact values as `Space.read`
                gives them, for which compiled forms may stand in. `log_probs` must then be called with the codes of
                exactly these rows.
        """
        return self

    @property
    def boxes(self) -> frozenset[Any]:
        """The black boxes among the hypotheses."""
        return frozenset()

    def thresholds(self) -> dict[str, NDArray[np.float64]]:
        """Sorted thresholds at which trees split numbers, by column and in its units; other models have none.

        Numbers below a threshold go one way, the threshold itself and numbers above it go the other way.
        """
        return {}

    def __len__(self) -> int:
        return len(self.weights)

    def predictive(self, x: Tensor) -> Tensor:
        """(N, C) generalised predictive distribution p(y | x), the weighted mean of the hypotheses' probabilities."""
        probabilities = self.probabilities(x)
        return torch.einsum("s,snc->nc", self.weights.to(probabilities), probabilities)

    def losses(self, x: Tensor, y: Tensor, loss: Loss = "cross_entropy") -> Tensor:
        """(S,) mean loss of each hypothesis.

        Args:
            x: (N, *event) encoded rows.
            y: (N,) class positions of the labels.
            loss: ``"cross_entropy"`` or ``"zero_one"`` (the error rate).
        """
        if not len(x):
            raise DataError("A loss needs at least one row. Got none.")
        with torch.no_grad():
            log_probs = self.log_probs(x)
        y = y.to(x.device)
        if y.shape != x.shape[:1] or y.is_floating_point() or y.min() < 0 or y.max() >= log_probs.shape[-1]:
            raise DataError(
                f"Labels must be one class position per row, 0 to {log_probs.shape[-1] - 1}. Got shape {tuple(y.shape)}"
                f" with values {y.min()} to {y.max()} for {len(x)} rows."
            )
        if loss == "zero_one":
            return (log_probs.argmax(dim=-1) != y).float().mean(dim=1)
        if loss == "cross_entropy":
            return -log_probs.gather(-1, y.expand(len(self), -1)[..., None])[..., 0].mean(dim=1)
        raise SettingError(f"The 'loss' must be 'cross_entropy' or 'zero_one'. Got {loss!r} instead.")


def normalised(weights: Tensor | None, count: int) -> Tensor:
    """(S,) weights scaled to sum to 1; None: equal weights.

    Raises:
        SettingError: If there is not one finite weight >= 0 per hypothesis, or all are 0.
    """
    if weights is None:
        return torch.full((count,), 1.0 / count)
    if weights.shape != (count,) or not torch.isfinite(weights).all() or (weights < 0).any() or weights.sum() <= 0:
        raise SettingError(f"There must be one weight >= 0 for each of {count} hypotheses. Got {weights.tolist()}.")
    return weights / weights.sum()


def of_chosen(weights: Tensor, chosen: Tensor) -> Tensor:
    """Weights of the chosen hypotheses, scaled to sum to 1; equal weights if all of them are 0."""
    part = weights[chosen]
    return part / part.sum() if part.sum() > 0 else torch.full_like(part, 1.0 / len(part))


class Stacked(Predictors):
    """S hypotheses of one architecture.

    Args:
        network: Network from (N, *event) rows to (N, C) logits. It is copied, put in evaluation mode and frozen.
        overrides: Parameters or buffers with a leading axis S, by their names in ``state_dict``. All others are shared.
        weights: (S,) weights of the hypotheses; None: equal weights.

    >>> network = nn.Linear(2, 2, bias=False)
    >>> _ = network.weight.data.copy_(torch.eye(2))
    >>> two = Stacked(network, {"weight": torch.stack([torch.eye(2), -torch.eye(2)])})
    >>> two.log_probs(torch.tensor([[1.0, 0.0]])).argmax(dim=-1).tolist()
    [[0], [1]]
    """

    def __init__(self, network: nn.Module, overrides: Mapping[str, Tensor], weights: Tensor | None = None) -> None:
        self.network = copy.deepcopy(network).eval().requires_grad_(False)
        state = {**dict(self.network.named_parameters()), **dict(self.network.named_buffers())}
        sizes = {len(value) for value in overrides.values()}
        if len(sizes) > 1:
            raise SettingError(f"Overrides must all have the same number of hypotheses. Got {sorted(sizes)}.")
        for name, value in overrides.items():
            if name not in state or value.shape[1:] != state[name].shape:
                expected = tuple(state[name].shape) if name in state else "no such name"
                raise SettingError(
                    f"The override {name!r} has shape {tuple(value.shape[1:])} per hypothesis; the network has"
                    f" {expected}. Combine different architectures with Joined."
                )
        self.overrides = {name: value.detach() for name, value in overrides.items()}
        count = sizes.pop() if sizes else 1
        self.weights = normalised(weights, count)
        self._plan: Plan | None = plan_of(self.network)
        self._in_dtype: dict[torch.dtype, nn.Module] = {}
        self._converted: dict[torch.dtype, dict[str, Tensor]] = {}
        self._activations: int | None = None

    def log_probs(self, x: Tensor) -> Tensor:
        """(S, N, C) log-probabilities for (N, *event) rows, differentiable in x, in chunks that bound memory."""
        device = next(self.network.parameters(), self.weights).device
        if x.device != device:
            raise SettingError(
                f"The rows must be on the device of the hypotheses, {device}. Got rows on {x.device}. Move the"
                f" hypotheses with .to({str(x.device)!r})."
            )
        rows = self._chunk(x)
        if not (torch.is_grad_enabled() and x.requires_grad):
            with full_precision(x.device):
                return self._evaluate(x) if rows >= len(x) else self._fill(x, rows)
        if rows >= len(x):
            return self._evaluate(x)
        # Activations for a backward pass over all rows can exceed memory. Then they are computed a second time.
        recompute = len(self) * len(x) * self._width(x) > _KEPT_NUMBERS
        parts = [
            checkpoint(self._evaluate, part, use_reentrant=False) if recompute else self._evaluate(part)
            for part in x.split(rows)
        ]
        return torch.cat(parts, dim=1)

    def _fill(self, x: Tensor, rows: int) -> Tensor:
        """Evaluate without gradients, chunk by chunk, into one preallocated result."""
        first = self._evaluate(x[:rows])
        result = first.new_empty(len(self), len(x), first.shape[-1])
        result[:, :rows] = first
        for start in range(rows, len(x), rows):
            result[:, start : start + rows] = self._evaluate(x[start : start + rows])
        return result

    def subset(self, chosen: Tensor) -> Stacked:
        """The chosen hypotheses, in the order given."""
        part = copy.copy(self)  # shares the frozen network
        part.overrides, part._converted = {name: value[chosen] for name, value in self.overrides.items()}, {}
        part.weights = of_chosen(self.weights, chosen)
        return part

    def to(self, device: torch.device | str) -> Stacked:
        """The hypotheses on another device."""
        moved = copy.copy(self)
        moved.network = copy.deepcopy(self.network).to(device)
        moved.overrides = {name: value.to(device) for name, value in self.overrides.items()}
        moved.weights = self.weights.to(device)
        moved._plan, moved._in_dtype, moved._converted = plan_of(moved.network), {}, {}
        return moved

    def _evaluate(self, x: Tensor) -> Tensor:
        overrides = self.overrides_in(x.dtype)
        if self._plan is not None and self._runs_in_turn(len(x), x.device):
            logits = self._run_in_turn(self._plan, x, overrides)
        elif self._plan is not None:
            logits = self._plan.run(x, overrides, len(self))
        else:
            logits = stacked_forward(self._typed(x), x.dim() - 1)(x, overrides, len(self))
        if logits.shape[-1] < 2:
            raise SettingError(
                "The network has one output, and it must have one logit per class. For a single logit z, return [0, z]."
            )
        return torch.log_softmax(logits, dim=-1)

    def overrides_in(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """The overrides with floating-point numbers in a dtype, converted once."""
        if all(value.dtype == dtype or not value.is_floating_point() for value in self.overrides.values()):
            return self.overrides
        if dtype not in self._converted:
            self._converted[dtype] = {
                name: value.to(dtype) if value.is_floating_point() else value for name, value in self.overrides.items()
            }
        return self._converted[dtype]

    def _run_in_turn(self, plan: Plan, x: Tensor, overrides: Mapping[str, Tensor]) -> Tensor:
        """(S, N, C) logits, one hypothesis after the other."""
        states = ({name: value[s] for name, value in overrides.items()} for s in range(len(self)))
        x, plan = plan.begun(x, overrides)
        if torch.is_grad_enabled() and x.requires_grad:
            return torch.stack([plan.run_one(x, state) for state in states])
        first = plan.run_one(x, next(states))
        logits = first.new_empty(len(self), *first.shape)  # one block, because S small ones would fragment memory
        logits[0] = first
        for s, state in enumerate(states, start=1):
            logits[s] = plan.run_one(x, state)
        return logits

    def _typed(self, x: Tensor) -> nn.Module:
        """The network in the dtype of the rows."""
        parameter = next(self.network.parameters(), None)
        if parameter is None or parameter.dtype == x.dtype:
            return self.network
        if x.dtype not in self._in_dtype:
            self._in_dtype[x.dtype] = copy.deepcopy(self.network).to(x.dtype)
        return self._in_dtype[x.dtype]

    def _runs_in_turn(self, rows: int, device: torch.device) -> bool:
        """Whether one hypothesis at a time is faster: on a CPU, for many rows and different weights."""
        own_weights = self._plan is not None and self._plan.parts_early(self.overrides)
        return device.type == "cpu" and rows >= _MANY_ROWS and own_weights

    def _chunk(self, x: Tensor) -> int:
        """Number of rows evaluated at a time."""
        numbers = _CPU_NUMBERS if x.device.type == "cpu" else _GPU_NUMBERS
        hypotheses = 1 if self._runs_in_turn(len(x), x.device) else len(self)
        return max(1, numbers // (hypotheses * self._width(x)))

    def _width(self, x: Tensor) -> int:
        """Number of activations of the largest layer for one row."""
        if self._plan is not None:
            return self._plan.width
        if self._activations is None:
            sizes = [1]
            leaves = [layer for layer in self._typed(x).modules() if not list(layer.children())]
            hooks = [
                layer.register_forward_hook(
                    lambda _, __, output: sizes.append(output.numel() if isinstance(output, Tensor) else 1)
                )
                for layer in leaves
            ]
            with torch.no_grad():
                self._typed(x)(x[:1])
            for hook in hooks:
                hook.remove()
            self._activations = max(sizes)
        return self._activations


class Joined(Predictors):
    """Several groups of hypotheses, of different kinds, combined into one.

    Args:
        groups: Groups over the same inputs and classes. Each is evaluated separately.
        shares: Weight of each group; None: equal weight of every hypothesis.
    """

    def __init__(self, groups: Sequence[Predictors], shares: Sequence[float] | None = None) -> None:
        if not groups:
            raise SettingError("Joined needs at least one group of hypotheses. Got none.")
        self.groups = tuple(groups)
        self.differentiable = all(group.differentiable for group in groups)
        masses = [float(len(group)) for group in groups] if shares is None else [float(share) for share in shares]
        weights = torch.cat([mass * group.weights.cpu() for mass, group in zip(masses, groups, strict=True)])
        self.weights = normalised(weights, len(weights))
        self._order: Tensor | None = None  # of the groups' hypotheses; None: as concatenated

    def log_probs(self, x: Tensor) -> Tensor:
        """(S, N, C) log-probabilities for (N, *event) rows."""
        return self._concatenate([group.log_probs(x) for group in self.groups])

    def probabilities(self, x: Tensor) -> Tensor:
        """(S, N, C) probabilities for (N, *event) rows, in float64 if a group returns float64."""
        return self._concatenate([group.probabilities(x) for group in self.groups])

    def _concatenate(self, parts: list[Tensor]) -> Tensor:
        """(S, N, C) tensor from those of the groups, in the order of this object's hypotheses."""
        classes = {part.shape[-1] for part in parts}
        if len(classes) > 1:
            raise DataError(f"Hypotheses must have the same number of classes. Got {sorted(classes)} classes.")
        joined = torch.cat(parts)
        return joined if self._order is None else joined[self._order.to(joined.device)]

    def subset(self, chosen: Tensor) -> Joined:
        """The chosen hypotheses, in the order given."""
        inner = chosen if self._order is None else self._order[chosen]
        starts = torch.tensor([0, *(len(group) for group in self.groups)]).cumsum(0).tolist()
        kept, positions = [], []
        for group, start in zip(self.groups, starts, strict=False):
            in_group = torch.nonzero((inner >= start) & (inner < start + len(group))).flatten()
            if len(in_group):
                kept.append(group.subset(inner[in_group] - start))
                positions.append(in_group)
        result = Joined(kept)
        result._order = torch.cat(positions).argsort()
        result.weights = of_chosen(self.weights, chosen)
        return result

    def to(self, device: torch.device | str) -> Joined:
        """The hypotheses on another device."""
        moved = copy.copy(self)
        moved.groups, moved.weights = tuple(group.to(device) for group in self.groups), self.weights.to(device)
        return moved

    def bind_rows(self, rows: Any) -> Joined:
        """A copy whose black boxes read these rows instead of rows decoded from codes."""
        bound = copy.copy(self)
        bound.groups = tuple(group.bind_rows(rows) for group in self.groups)
        return bound

    @property
    def boxes(self) -> frozenset[Any]:
        """The black boxes among the hypotheses."""
        return frozenset().union(*(group.boxes for group in self.groups))

    def thresholds(self) -> dict[str, NDArray[np.float64]]:
        """Thresholds at which the trees of any group split numbers."""
        pairs = [pair for group in self.groups for pair in group.thresholds().items()]
        return {name: np.unique(np.concatenate([own for key, own in pairs if key == name])) for name, _ in pairs}


class Opaque(Predictors):
    """Hypotheses given by functions without gradients. They can judge answers, but a generator cannot train on them.

    Args:
        functions: Functions from (N, *event) rows to (N, C) probabilities.
        weights: (S,) weights of the hypotheses; None: equal weights.
    """

    differentiable = False

    def __init__(self, functions: Sequence[Callable[[Tensor], Tensor]], weights: Tensor | None = None) -> None:
        if not functions:
            raise SettingError("Opaque needs at least one function. Got none.")
        self.functions = tuple(functions)
        self.weights = normalised(weights, len(functions))

    def log_probs(self, x: Tensor) -> Tensor:
        """(S, N, C) log-probabilities for (N, *event) rows, without gradients."""
        with torch.no_grad():
            probabilities = torch.stack([function(x) for function in self.functions])
        if (
            probabilities.dim() != 3
            or torch.isnan(probabilities).any()
            or (probabilities.sum(dim=-1) - 1).abs().max() > 1e-3
        ):
            raise DataError("Hypotheses must return (N, C) probabilities. Got some that are NaN or do not sum to one.")
        return probabilities.clamp(min=1e-30).log().to(x.device, x.dtype)

    def subset(self, chosen: Tensor) -> Opaque:
        """The chosen hypotheses, in the order given."""
        return Opaque([self.functions[i] for i in chosen.tolist()], of_chosen(self.weights, chosen))
