"""Hypotheses drawn from a distribution, evaluated together.

`Stacked` holds S hypotheses of one architecture as overrides of some of its parameters, with a leading axis. A stack of
linear layers and activations is evaluated by batched matrix products, anything else by ``vmap`` over
``functional_call``: parameters are never swapped in place, which gives silently wrong gradients through convolutions
and layer norms. `Joined` puts different architectures side by side, `Opaque` functions that have no gradient.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from avcg.errors import DataError, SettingError
from avcg.models.batched import Plan, plan_of, stacked_forward
from avcg.models.precision import full_precision

Loss = Literal["cross_entropy", "zero_one"]

# Activations of one chunk of rows stay within a core's cache on a CPU; a GPU wants large products instead.
_CPU_NUMBERS = 2**19
_GPU_NUMBERS = 2**26
# From so many rows on, hypotheses with weights of their own are run one after the other on a CPU.
_MANY_ROWS = 256
# Above this many activations kept for a backward pass, they are computed again instead.
_KEPT_NUMBERS = 2**28


class Predictors(ABC):
    """S hypotheses that can be asked all at once.

    Attributes:
        weights: (S,) how much each counts, summing to 1.
        differentiable: Whether gradients flow to the inputs.
    """

    weights: Tensor
    differentiable: bool = True

    @abstractmethod
    def log_probs(self, x: Tensor) -> Tensor:
        """Log-probabilities of all classes under each hypothesis.

        Args:
            x: (N, *event).

        Returns:
            (S, N, C).
        """

    def probabilities(self, x: Tensor) -> Tensor:
        """Probabilities of all classes under each hypothesis, as exact as these know them.

        Args:
            x: (N, *event).

        Returns:
            (S, N, C), float64 where models that can only be asked are among them.
        """
        return self.log_probs(x).exp()

    @abstractmethod
    def subset(self, chosen: Tensor) -> Predictors:
        """Some of the hypotheses in the order given, their weights scaled to sum to 1.

        Args:
            chosen: (k,) positions from 0.
        """

    def to(self, device: torch.device | str) -> Predictors:  # noqa: ARG002  for those that live somewhere
        """The same on another device; functions that take their rows anywhere stay as they are."""
        return self

    def bind_rows(self, rows: Any) -> Predictors:  # noqa: ARG002  for those that read more than codes
        """The same, asked about these very rows: models of frames then see them, and not what their codes say.

        Args:
            rows: In user units; `log_probs` then takes their codes, and no others.
        """
        return self

    @property
    def boxes(self) -> frozenset[Any]:
        """The black boxes among the hypotheses."""
        return frozenset()

    def __len__(self) -> int:
        return len(self.weights)

    def predictive(self, x: Tensor) -> Tensor:
        """The generalised predictive distribution p(y | x): the weighted mean of probabilities, (N, C)."""
        found = self.probabilities(x)
        return torch.einsum("s,snc->nc", self.weights.to(found), found)

    def losses(self, x: Tensor, y: Tensor, loss: Loss = "cross_entropy") -> Tensor:
        """The mean loss of each hypothesis, (S,).

        Args:
            x: (N, *event).
            y: (N,) class positions.
            loss: ``"cross_entropy"`` or ``"zero_one"`` (the share of wrong labels).
        """
        if not len(x):
            raise DataError("There are no rows to measure a loss on.")
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
    """(S,) weights that sum to 1; None: all alike.

    Raises:
        SettingError: If there is not one weight per hypothesis, or some cannot be a weight.
    """
    if weights is None:
        return torch.full((count,), 1.0 / count)
    if weights.shape != (count,) or not torch.isfinite(weights).all() or (weights < 0).any() or weights.sum() <= 0:
        raise SettingError(f"There must be one weight >= 0 for each of {count} hypotheses. Got {weights.tolist()}.")
    return weights / weights.sum()


def of_chosen(weights: Tensor, chosen: Tensor) -> Tensor:
    """Weights of a part; all alike where none of it had any."""
    some = weights[chosen]
    return some / some.sum() if some.sum() > 0 else torch.full_like(some, 1.0 / len(some))


class Stacked(Predictors):
    """S hypotheses of one architecture.

    Args:
        network: Rows (N, *event) to logits (N, C). It is copied, put in evaluation mode and frozen.
        overrides: By name as in ``state_dict``, parameters or buffers with a leading axis S; all others are shared.
        weights: (S,); None: all alike.

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
            raise SettingError(f"Overrides must speak of the same number of hypotheses. Got {sorted(sizes)}.")
        for name, value in overrides.items():
            if name not in state or value.shape[1:] != state[name].shape:
                expected = tuple(state[name].shape) if name in state else "no such name"
                raise SettingError(
                    f"The override {name!r} has shape {tuple(value.shape[1:])} per hypothesis; the network has"
                    f" {expected}. Members of different architectures go side by side in Joined."
                )
        self.overrides = {name: value.detach() for name, value in overrides.items()}
        count = sizes.pop() if sizes else 1
        self.weights = normalised(weights, count)
        self._plan: Plan | None = plan_of(self.network)
        self._in_dtype: dict[torch.dtype, nn.Module] = {}
        self._activations: int | None = None

    def log_probs(self, x: Tensor) -> Tensor:
        """(N, *event) to (S, N, C), exactly differentiable in x, in chunks of rows that bound memory."""
        home = next(self.network.parameters(), self.weights).device
        if x.device != home:
            raise SettingError(
                f"These hypotheses are on {home}, the rows on {x.device}. Move them with .to({x.device})."
            )
        rows = self._chunk(x)
        if not (torch.is_grad_enabled() and x.requires_grad):
            with full_precision(x.device):
                return self._evaluate(x) if rows >= len(x) else self._fill(x, rows)
        if rows >= len(x):
            return self._evaluate(x)
        # Holding all activations for a backward pass over everything can exceed memory: then compute them twice.
        twice = len(self) * len(x) * self._width(x) > _KEPT_NUMBERS
        parts = [
            checkpoint(self._evaluate, part, use_reentrant=False) if twice else self._evaluate(part)
            for part in x.split(rows)
        ]
        return torch.cat(parts, dim=1)

    def _fill(self, x: Tensor, rows: int) -> Tensor:
        """Without a graph to keep, every chunk is written where it belongs and forgotten."""
        first = self._evaluate(x[:rows])
        result = first.new_empty(len(self), len(x), first.shape[-1])
        result[:, :rows] = first
        for start in range(rows, len(x), rows):
            result[:, start : start + rows] = self._evaluate(x[start : start + rows])
        return result

    def subset(self, chosen: Tensor) -> Stacked:
        """Some of the hypotheses."""
        overrides = {name: value[chosen] for name, value in self.overrides.items()}
        smaller = copy.copy(self)  # the frozen network is shared, not copied again
        smaller.overrides, smaller.weights = overrides, of_chosen(self.weights, chosen)
        return smaller

    def to(self, device: torch.device | str) -> Stacked:
        """The same on another device."""
        moved = copy.copy(self)
        moved.network = copy.deepcopy(self.network).to(device)
        moved.overrides = {name: value.to(device) for name, value in self.overrides.items()}
        moved.weights = self.weights.to(device)
        moved._plan, moved._in_dtype = plan_of(moved.network), {}
        return moved

    def _evaluate(self, x: Tensor) -> Tensor:
        overrides = {n: v.to(x.dtype) if v.is_floating_point() else v for n, v in self.overrides.items()}
        if self._plan is not None and self._one_by_one(len(x), x.device):
            logits = self._each_in_turn(self._plan, x, overrides)
        elif self._plan is not None:
            logits = self._plan.run(x, overrides, len(self))
        else:
            logits = stacked_forward(self._typed(x), x.dim() - 1)(x, overrides, len(self))
        if logits.shape[-1] < 2:
            raise SettingError(
                "The network has one output. Give it one logit per class; for a single logit z of a yes, [0, z]."
            )
        return torch.log_softmax(logits, dim=-1)

    def _each_in_turn(self, plan: Plan, x: Tensor, overrides: Mapping[str, Tensor]) -> Tensor:
        each = ({name: value[s] for name, value in overrides.items()} for s in range(len(self)))
        x, plan = plan.begun(x, overrides)
        if torch.is_grad_enabled() and x.requires_grad:
            return torch.stack([plan.run_one(x, some) for some in each])
        first = plan.run_one(x, next(each))
        logits = first.new_empty(len(self), *first.shape)  # S small results between large ones would tear memory apart
        logits[0] = first
        for s, some in enumerate(each, start=1):
            logits[s] = plan.run_one(x, some)
        return logits

    def _typed(self, x: Tensor) -> nn.Module:
        parameter = next(self.network.parameters(), None)
        if parameter is None or parameter.dtype == x.dtype:
            return self.network
        if x.dtype not in self._in_dtype:
            self._in_dtype[x.dtype] = copy.deepcopy(self.network).to(x.dtype)
        return self._in_dtype[x.dtype]

    def _one_by_one(self, rows: int, device: torch.device) -> bool:
        """On a CPU, many rows fill a core by themselves, and one product at a time stays in its cache."""
        own_weights = self._plan is not None and self._plan.parts_early(self.overrides)
        return device.type == "cpu" and rows >= _MANY_ROWS and own_weights

    def _chunk(self, x: Tensor) -> int:
        """How many rows at a time."""
        numbers = _CPU_NUMBERS if x.device.type == "cpu" else _GPU_NUMBERS
        together = 1 if self._one_by_one(len(x), x.device) else len(self)
        return max(1, numbers // (together * self._width(x)))

    def _width(self, x: Tensor) -> int:
        """How many numbers the largest layer makes of a row."""
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
    """Groups of hypotheses of different kinds side by side.

    Args:
        groups: Each evaluated on its own, on the same inputs and classes.
        shares: How much each group counts; None: every hypothesis alike.
    """

    def __init__(self, groups: Sequence[Predictors], shares: Sequence[float] | None = None) -> None:
        if not groups:
            raise SettingError("Joined needs at least one group of hypotheses. Got none.")
        self.groups = tuple(groups)
        self.differentiable = all(group.differentiable for group in groups)
        masses = [float(len(group)) for group in groups] if shares is None else [float(share) for share in shares]
        weights = torch.cat([mass * group.weights.cpu() for mass, group in zip(masses, groups, strict=True)])
        self.weights = normalised(weights, len(weights))
        self._order: Tensor | None = None  # of the groups' hypotheses, where another was asked for

    def log_probs(self, x: Tensor) -> Tensor:
        """(N, *event) to (S, N, C)."""
        return self._together([group.log_probs(x) for group in self.groups])

    def probabilities(self, x: Tensor) -> Tensor:
        """(N, *event) to (S, N, C), in float64 where any group knows them so exactly."""
        return self._together([group.probabilities(x) for group in self.groups])

    def _together(self, parts: list[Tensor]) -> Tensor:
        classes = {part.shape[-1] for part in parts}
        if len(classes) > 1:
            raise DataError(f"Hypotheses must agree on the classes. Got groups with {sorted(classes)} classes.")
        together = torch.cat(parts)
        return together if self._order is None else together[self._order.to(together.device)]

    def subset(self, chosen: Tensor) -> Joined:
        """Some of the hypotheses in the order given."""
        inner = chosen if self._order is None else self._order[chosen]
        starts = torch.tensor([0, *(len(group) for group in self.groups)]).cumsum(0).tolist()
        kept, places = [], []
        for group, start in zip(self.groups, starts, strict=False):
            mine = torch.nonzero((inner >= start) & (inner < start + len(group))).flatten()
            if len(mine):
                kept.append(group.subset(inner[mine] - start))
                places.append(mine)
        result = Joined(kept)
        result._order = torch.cat(places).argsort()
        result.weights = of_chosen(self.weights, chosen)
        return result

    def to(self, device: torch.device | str) -> Joined:
        """The same on another device."""
        moved = copy.copy(self)
        moved.groups, moved.weights = tuple(group.to(device) for group in self.groups), self.weights.to(device)
        return moved

    def bind_rows(self, rows: Any) -> Joined:
        """The same, asked about these very rows."""
        bound = copy.copy(self)
        bound.groups = tuple(group.bind_rows(rows) for group in self.groups)
        return bound

    @property
    def boxes(self) -> frozenset[Any]:
        """The black boxes among the hypotheses."""
        return frozenset().union(*(group.boxes for group in self.groups))


class Opaque(Predictors):
    """Hypotheses that can only be asked, not differentiated: judges, never teachers.

    Args:
        functions: Each takes (N, *event) and returns probabilities (N, C).
        weights: (S,); None: all alike.
    """

    differentiable = False

    def __init__(self, functions: Sequence[Callable[[Tensor], Tensor]], weights: Tensor | None = None) -> None:
        if not functions:
            raise SettingError("Opaque needs at least one function. Got none.")
        self.functions = tuple(functions)
        self.weights = normalised(weights, len(functions))

    def log_probs(self, x: Tensor) -> Tensor:
        """(N, *event) to (S, N, C), without gradients."""
        with torch.no_grad():
            probabilities = torch.stack([function(x) for function in self.functions])
        if (
            probabilities.dim() != 3
            or torch.isnan(probabilities).any()
            or (probabilities.sum(dim=-1) - 1).abs().max() > 1e-3
        ):
            raise DataError("A hypothesis returned probabilities that are NaN or do not sum to one.")
        return probabilities.clamp(min=1e-30).log().to(x.device, x.dtype)

    def subset(self, chosen: Tensor) -> Opaque:
        """Some of the hypotheses."""
        return Opaque([self.functions[i] for i in chosen.tolist()], of_chosen(self.weights, chosen))


class OnDevice(Predictors):
    """Hypotheses that live on another device: rows are sent there, and what comes back is where the rows were.

    Args:
        inner: The hypotheses.
        device: Where they are to live.
    """

    def __init__(self, inner: Predictors, device: torch.device | str) -> None:
        self.inner, self.device = inner.to(device), torch.device(device)
        self.weights, self.differentiable = inner.weights.cpu(), inner.differentiable

    def log_probs(self, x: Tensor) -> Tensor:
        """(N, *event) to (S, N, C)."""
        return self.inner.log_probs(x.to(self.device)).to(x.device)

    def probabilities(self, x: Tensor) -> Tensor:
        """(N, *event) to (S, N, C)."""
        return self.inner.probabilities(x.to(self.device)).to(x.device)

    def bind_rows(self, rows: Any) -> OnDevice:
        """The same, asked about these very rows."""
        bound = copy.copy(self)
        bound.inner = self.inner.bind_rows(rows)
        return bound

    @property
    def boxes(self) -> frozenset[Any]:
        """The black boxes among the hypotheses."""
        return self.inner.boxes

    def subset(self, chosen: Tensor) -> OnDevice:
        """Some of the hypotheses."""
        return OnDevice(self.inner.subset(chosen), self.device)

    def to(self, device: torch.device | str) -> Predictors:
        """The hypotheses themselves, on a device."""
        return self.inner.to(device)
