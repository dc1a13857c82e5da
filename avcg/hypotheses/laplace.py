"""Laplace approximations: Gaussians around the trained weights, with the inverse curvature of the loss as covariance.

The curvature is the generalised Gauss-Newton matrix, which for a linear model equals the Hessian. The precision of the
prior is chosen by the marginal likelihood.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from avcg.errors import DataError, SettingError
from avcg.hypotheses.gaussian import Factor, GaussianPosterior
from avcg.models.adapter import Model, model_spec
from avcg.models.dropout_masks import output_layer
from avcg.space.base import Space

_CHUNK_ROWS = 1024  # rows processed at a time


@dataclass(frozen=True, eq=False)
class Laplace(GaussianPosterior):
    """A Gaussian posterior from the curvature at the trained weights.

    Attributes:
        prior_precision: Precision of the Gaussian prior around zero.
        log_marginal_likelihood: Approximate log marginal likelihood at that precision.
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
        """Approximate the posterior over the weights of a trained model.

        Args:
            model: A trained network or a fitted `Classifier`.
            X: Training rows.
            y: Labels of the training rows.
            parameters: Parameters that vary: ``"last_layer"`` (the last linear layer) or ``"all"``.
            structure: Structure of the curvature: ``"diag"``; for the last layer also ``"full"`` or ``"kron"``.
            prior_precision: Precision of the prior, > 0; None: chosen by the marginal likelihood.
            space: Space of the rows that a bare network reads.
        """
        _check_settings(parameters, structure, prior_precision)
        spec = model_spec(model, space)
        network = copy.deepcopy(spec.network).eval().requires_grad_(False).cpu().float()
        x, labels = (part.cpu() for part in spec.pair(X, y))
        mean: dict[str, Tensor] = dict(network.named_parameters())
        curvature: tuple[Tensor, _Basis | None]
        if parameters == "last_layer":
            name, layer = output_layer(network, x[:2])
            mean = {f"{name}.{key}" if name else key: value for key, value in layer.named_parameters()}
            curvature = (
                _diagonal(network, mean, x) if structure == "diag" else _last_layer(network, layer, x, structure)
            )
        else:
            curvature = _diagonal(network, mean, x)
        values, basis = curvature
        flat = torch.cat([value.flatten() for value in mean.values()]).double()
        log_likelihood = _log_likelihood(network, x, labels)

        def evidence(precision: Tensor) -> Tensor:
            prior = 0.5 * (len(flat) * precision.log() - precision * flat.square().sum())
            return log_likelihood + prior - 0.5 * (values.flatten()[:, None] + precision).log().sum(dim=0)

        if prior_precision is None:
            grid = torch.logspace(-6, 6, 2401, dtype=torch.float64)
            prior_precision = float(grid[torch.cat([evidence(part) for part in grid.split(50)]).argmax()])
        spread = (values + prior_precision).rsqrt()
        return cls(
            network,
            mean,
            diagonal=spread.float() if basis is None else None,
            factor=None if basis is None else basis(spread),
            space=spec.space,
            classes=spec.classes,
            prior_precision=prior_precision,
            log_marginal_likelihood=float(evidence(torch.tensor([prior_precision], dtype=torch.float64))),
        )


# From standard deviations along the eigenvectors of the curvature to a root of the covariance.
_Basis = Callable[[Tensor], Factor]


def _check_settings(parameters: str, structure: str, prior_precision: float | None) -> None:
    if structure not in ("full", "kron", "diag") or parameters not in ("last_layer", "all"):
        raise SettingError(
            "Laplace takes parameters='last_layer' or 'all' and structure='full', 'kron' or 'diag'. Got"
            f" parameters={parameters!r} and structure={structure!r}."
        )
    if parameters == "all" and structure != "diag":
        raise SettingError(f"Laplace over parameters='all' needs structure='diag'. Got structure={structure!r}.")
    if prior_precision is not None and not 0 < prior_precision < math.inf:
        raise SettingError(f"The 'prior_precision' of Laplace must be > 0. Got {prior_precision!r} instead.")


def _log_likelihood(network: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    with torch.no_grad():
        logits = torch.cat([network(part) for part in x.split(_CHUNK_ROWS)])
    classes = logits.shape[-1]
    if labels.max() >= classes or labels.min() < 0:
        raise DataError(
            f"Labels must be class positions from 0 to {classes - 1}. Got {int(labels.min())} to {int(labels.max())}."
        )
    return -nn.functional.cross_entropy(logits, labels, reduction="sum").double()


def _root(probabilities: Tensor) -> Tensor:
    """(N, C, C) matrices M with M Mᵀ = diag(p) - p pᵀ, the curvature of the cross-entropy in the logits."""
    roots = probabilities.sqrt()
    return torch.diag_embed(roots) - probabilities[:, :, None] * roots[:, None, :]


def _last_layer(network: nn.Module, layer: nn.Linear, x: Tensor, structure: str) -> tuple[Tensor, _Basis]:
    """Eigenvalues of the curvature of the output layer, and its basis as a function to a covariance root."""
    layer_inputs: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, inputs: layer_inputs.append(inputs[0].detach()))
    has_bias, classes, n_inputs = layer.bias is not None, layer.out_features, layer.in_features
    width = n_inputs + has_bias
    size = classes * width if structure == "full" else 0
    curvature = torch.zeros(size, size, dtype=torch.float64)
    inner = torch.zeros(width, width, dtype=torch.float64)
    outer = torch.zeros(classes, classes, dtype=torch.float64)
    with torch.no_grad():
        for part in x.split(_CHUNK_ROWS):
            layer_inputs.clear()
            roots = _root(torch.softmax(network(part).double(), dim=-1))
            features = layer_inputs[0].double()
            if has_bias:
                features = torch.cat([features, torch.ones(len(features), 1, dtype=torch.float64)], dim=1)
            if structure == "full":
                jacobian = (roots.mT[:, :, :, None] * features[:, None, None, :]).reshape(-1, size)
                curvature += jacobian.T @ jacobian
            else:
                inner += features.T @ features / len(x)
                outer += (roots @ roots.mT).sum(dim=0)
    hook.remove()
    if structure == "kron":
        inner_values, inner_vectors = torch.linalg.eigh(inner)
        outer_values, outer_vectors = torch.linalg.eigh(outer)
        values = outer_values.clamp(min=0)[:, None] * inner_values.clamp(min=0)[None, :]
        return values, lambda spread: Factor(outer_vectors.float(), inner_vectors.float(), spread.float(), n_inputs)
    values, vectors = torch.linalg.eigh(curvature)
    # From (class, input and bias) to all weights, then all biases: the order of the layer's parameters.
    order = torch.arange(size).view(classes, width)
    vectors = vectors[torch.cat([order[:, :n_inputs].flatten(), order[:, n_inputs:].flatten()])]
    return values.clamp(min=0), lambda spread: Factor((vectors * spread).float())


def _diagonal(network: nn.Module, parameters: dict[str, Tensor], x: Tensor) -> tuple[Tensor, None]:
    """(P,) diagonal of the curvature over the given parameters, and no basis."""

    def weighted_logit(values: dict[str, Tensor], row: Tensor, weight: Tensor) -> Tensor:
        return functional_call(network, values, (row[None],))[0] @ weight

    each_class = vmap(grad(weighted_logit), in_dims=(None, None, 1))
    each_row = vmap(each_class, in_dims=(None, 0, 0))
    total = torch.zeros(sum(value.numel() for value in parameters.values()), dtype=torch.float64)
    with torch.no_grad():
        classes = network(x[:1]).shape[-1]
    # There is one gradient per row and class, so chunks are chosen to hold at most 64 million numbers.
    for part in x.split(max(1, min(_CHUNK_ROWS, 2**26 // (len(total) * classes)))):
        with torch.no_grad():
            roots = _root(torch.softmax(network(part), dim=-1))
        gradients = each_row(parameters, part, roots)
        total += torch.cat([gradients[name].square().sum(dim=(0, 1)).flatten().double() for name in parameters])
    return total, None
