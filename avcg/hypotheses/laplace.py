"""Laplace approximations: a Gaussian around the trained weights, as wide as the curvature of the loss allows.

The curvature is the generalised Gauss-Newton matrix, which for a linear model is the Hessian itself. The precision of
the prior is chosen by the marginal likelihood.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from avcg.errors import SettingError
from avcg.hypotheses.distributions import GaussianPosterior, last_linear
from avcg.models.opened import Model, open_model
from avcg.space import Space

_ROWS = 1024  # at a time


@dataclass(frozen=True, eq=False)
class Laplace(GaussianPosterior):
    """A Gaussian posterior from the curvature at the trained weights.

    Attributes:
        prior_precision: Of the Gaussian prior around zero.
        log_marginal_likelihood: At that precision.
    """

    prior_precision: float = math.nan
    log_marginal_likelihood: float = math.nan

    @classmethod
    def fit(
        cls,
        model: Model,
        X: Any,
        y: Any,
        *,
        parameters: Literal["last_layer", "all"] = "last_layer",
        structure: Literal["full", "kron", "diag"] = "full",
        prior_precision: float | None = None,
        space: Space | None = None,
    ) -> Self:
        """Approximate the posterior.

        Args:
            model: A trained network or a fitted `Classifier`.
            X: Training rows.
            y: Their labels.
            parameters: Which vary: those of the last linear layer, or all.
            structure: Of the curvature: ``"full"`` and ``"kron"`` for the last layer, ``"diag"`` for either.
            prior_precision: > 0; None: chosen by the marginal likelihood.
            space: What a bare network reads.
        """
        if structure not in ("full", "kron", "diag") or parameters not in ("last_layer", "all"):
            raise SettingError(
                "Laplace takes parameters='last_layer' or 'all' and structure='full', 'kron' or 'diag'. Got"
                f" {parameters!r} and {structure!r}."
            )
        if parameters == "all" and structure != "diag":
            raise SettingError(f"Over all parameters Laplace is 'diag'. Got structure={structure!r}.")
        if prior_precision is not None and not 0 < prior_precision < math.inf:
            raise SettingError(f"The 'prior_precision' of Laplace must be > 0. Got {prior_precision!r} instead.")
        opened = open_model(model, space)
        network = copy.deepcopy(opened.network).eval().requires_grad_(False)
        x, labels = opened.rows(X), opened.labels(y)
        names: dict[str, Tensor] = dict(network.named_parameters())
        if parameters == "last_layer":
            prefix = last_linear(network)[0]
            names = {name: value for name, value in names.items() if name.startswith(prefix)}
        flat = torch.cat([value.flatten() for value in names.values()]).double()
        curvature = _diagonal(network, names, x) if structure == "diag" else _last_layer(network, x, structure)
        values, vectors = curvature
        with torch.no_grad():
            log_likelihood = -nn.functional.cross_entropy(network(x), labels, reduction="sum").double()

        def evidence(precision: Tensor) -> Tensor:
            prior = 0.5 * (len(flat) * precision.log() - precision * flat.square().sum())
            return log_likelihood + prior - 0.5 * (values[:, None] + precision).log().sum(dim=0)

        if prior_precision is None:
            grid = torch.logspace(-6, 6, 2401, dtype=torch.float64)
            prior_precision = float(grid[evidence(grid).argmax()])
        spread = (values + prior_precision).rsqrt()
        return cls(
            network,
            names,
            diagonal=spread.float() if vectors is None else None,
            factor=None if vectors is None else (vectors * spread).float(),
            space=opened.space,
            prior_precision=prior_precision,
            log_marginal_likelihood=float(evidence(torch.tensor([prior_precision], dtype=torch.float64))),
        )


def _root(probabilities: Tensor) -> Tensor:
    """(N, C, C) M with M Mᵀ = diag(p) - p pᵀ, the curvature of cross-entropy in the logits."""
    roots = probabilities.sqrt()
    return torch.diag_embed(roots) - probabilities[:, :, None] * roots[:, None, :]


def _last_layer(network: nn.Module, x: Tensor, structure: str) -> tuple[Tensor, Tensor]:
    """Eigenvalues (P,) and eigenvectors (P, P) of the last layer's curvature, weights first, then biases."""
    _, layer = last_linear(network)
    seen: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    has_bias = layer.bias is not None
    classes, width = layer.out_features, layer.in_features + has_bias
    whole = torch.zeros(classes * width, classes * width, dtype=torch.float64)
    inner = torch.zeros(width, width, dtype=torch.float64)
    outer = torch.zeros(classes, classes, dtype=torch.float64)
    with torch.no_grad():
        for part in x.split(_ROWS):
            seen.clear()
            roots = _root(torch.softmax(network(part).double(), dim=-1))
            features = seen[0].double()
            if has_bias:
                features = torch.cat([features, torch.ones(len(features), 1, dtype=torch.float64)], dim=1)
            if structure == "full":
                jacobian = (roots.mT[:, :, :, None] * features[:, None, None, :]).reshape(-1, classes * width)
                whole += jacobian.T @ jacobian
            else:
                inner += features.T @ features / len(x)
                outer += (roots @ roots.mT).sum(dim=0)
    hook.remove()
    if structure == "full":
        values, vectors = torch.linalg.eigh(whole)
    else:
        a, u = torch.linalg.eigh(inner)
        b, v = torch.linalg.eigh(outer)
        values, vectors = torch.kron(b, a), torch.kron(v, u)
    # From (class, input and bias) to all weights, then all biases: the order of the layer's own parameters.
    order = torch.arange(classes * width).view(classes, width)
    order = torch.cat([order[:, : layer.in_features].flatten(), order[:, layer.in_features :].flatten()])
    return values.clamp(min=0), vectors[order]


def _diagonal(network: nn.Module, names: dict[str, Tensor], x: Tensor) -> tuple[Tensor, None]:
    """(P,) the diagonal of the curvature over the named parameters."""

    def weighted(parameters: dict[str, Tensor], row: Tensor, weight: Tensor) -> Tensor:
        return functional_call(network, parameters, (row[None],))[0] @ weight

    each_class = vmap(grad(weighted), in_dims=(None, None, 1))
    each_row = vmap(each_class, in_dims=(None, 0, 0))
    total = torch.zeros(sum(value.numel() for value in names.values()), dtype=torch.float64)
    for part in x.split(max(1, _ROWS // 8)):
        with torch.no_grad():
            roots = _root(torch.softmax(network(part), dim=-1))
        gradients = each_row(names, part, roots)
        flat = torch.cat([gradients[name].flatten(2) for name in names], dim=2)
        total += flat.double().square().sum(dim=(0, 1))
    return total, None
