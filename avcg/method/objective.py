"""The paper's objective G(φ, ψ) = -R + KL + λ d, and the terms that make answers sparse, plausible and different."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from avcg.hypotheses.predictors import Predictors
from avcg.method.generator import Condition, DiagonalNormal, Generator, Proposal
from avcg.method.risk import Risk
from avcg.space.base import Space

# From (..., B, *event) answers and (B, *event) factuals to (..., B) costs.
Distance = Callable[[Tensor, Tensor], Tensor]
# From (N, *event) answers and (N,) target positions to (N,) distances from usual rows of the target.
Plausibility = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Terms:
    """The terms of the objective, one value for each of B rows, before they are weighted.

    Attributes:
        nll: (B,) -R, the negative risk over hypotheses of the target's log-probability.
        kl: (B,) KL divergence of q(z | x, y') from the prior.
        proximity: (B,) d, the cost of the answers.
        changes: (B,) expected number of features that change.
        plausibility: (B,) distance of the answers from usual rows of the target.
        sameness: (B,) similarity of the answers to one row, in [0, 1]; 0 if they are all ``min_separation`` apart.
    """

    nll: Tensor
    kl: Tensor
    proximity: Tensor
    changes: Tensor
    plausibility: Tensor
    sameness: Tensor

    def total(self, weights: Weights, typicality: Tensor | None = None) -> Tensor:
        """(B,) the weighted sum of all terms.

        Args:
            weights: The weight of each term.
            typicality: (B,) t in [0, 1] by which the terms of cost are weighed against plausibility, as 2 (1 - t) and
                2 t; None: they have the weights alone.
        """
        parts = [getattr(weights, term.name) * getattr(self, term.name) for term in fields(self)]
        if typicality is not None and weights.plausibility:
            shares = {"proximity": 1.0 - typicality, "changes": 1.0 - typicality, "plausibility": typicality}
            names = [term.name for term in fields(self)]
            parts = [
                2.0 * shares[name] * part if name in shares else part for name, part in zip(names, parts, strict=True)
            ]
        return torch.stack(parts).sum(dim=0)


@dataclass(frozen=True)
class Weights:
    """The weight of each term of the objective; by default those of the paper's G, with λ = ``proximity``."""

    nll: float = 1.0
    kl: float = 1.0
    proximity: float = 5.0
    changes: float = 0.0
    plausibility: float = 0.0
    sameness: float = 0.0


@dataclass(frozen=True, eq=False)
class Draws:
    """All the random noise in one evaluation of the objective.

    Attributes:
        latent: (K, B, L) standard normal noise, the paper's κ.
        gates: (K, B, n) logistic noise added to the log-odds of gates; None: no noise.
        categories: (K, B, *event) Gumbel noise added to the logits of categories; None: no noise.
    """

    latent: Tensor
    gates: Tensor | None = None
    categories: Tensor | None = None

    @classmethod
    def draw(
        cls, generator: Generator, space: Space, n_latents: int, x: Tensor, rng: torch.Generator, *, hard: float = 1.0
    ) -> Draws:
        """Draw new noise for B rows, on the CPU, so that a seed gives the same noise on every device.

        Args:
            generator: The generator whose latent size and number of gates determine the shapes.
            space: The space of the rows; Gumbel noise is drawn only if it has categories.
            n_latents: K, the number of latents for each row.
            x: (B, *event) encoded rows; the noise is moved to their device.
            rng: Random numbers.
            hard: Scale of the noise in gates and categories; 0: no noise is drawn for them.
        """
        latent = torch.randn(n_latents, len(x), generator.n_latent, generator=rng).to(x.device)
        if not hard:
            return cls(latent)
        uniform = torch.rand(n_latents, len(x), generator.n_gates, generator=rng).clamp(1e-6, 1 - 1e-6)
        gates = hard * torch.logit(uniform).to(x.device) if generator.n_gates else None
        if not bool(space.is_logit.any()):
            return cls(latent, gates)
        uniform = torch.rand(n_latents, *x.shape, generator=rng).clamp(1e-6, 1 - 1e-6)
        return cls(latent, gates, -hard * torch.log(-torch.log(uniform)).to(x.device))

    def repeated(self, rows: int) -> Draws:
        """The noise of one row, repeated for every one of ``rows`` rows."""

        def expand(noise: Tensor) -> Tensor:
            return noise.expand(len(noise), rows, *noise.shape[2:])

        gates = None if self.gates is None else expand(self.gates)
        categories = None if self.categories is None else expand(self.categories)
        return Draws(expand(self.latent), gates, categories)


class _StraightThrough(torch.autograd.Function):
    """The identity on the second argument in the forward pass, and on the first one in the backward pass."""

    @staticmethod
    def forward(ctx: Any, soft: Tensor, hard: Tensor) -> Tensor:  # noqa: ARG004
        return hard

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        return gradients[0], None


def sampled_answers(
    space: Space, x: Tensor, proposal: Proposal, draws: Draws, temperature: float
) -> tuple[Tensor, Tensor]:
    """Answers as people would receive them, with gradients as if nothing had been rounded.

    Gates and categories are sampled. The forward pass is the exact projection, the backward pass that of the
    relaxation (straight-through estimator).

    Args:
        space: What each row may change.
        x: (B, *event) the factuals.
        proposal: The decoder's output, K answers for each row.
        draws: The noise in gates and categories.
        temperature: Temperature of the relaxation, > 0. A lower one is closer to the forward pass, but its gradients
            are noisier.

    Returns:
        (K, B, *event) sampled answers, and (K, B, *event) expected answers over gates and categories.
    """
    raw, gates, gate_probs = proposal.raw, None, None
    if proposal.gates is not None:
        sampled = proposal.gates if draws.gates is None else proposal.gates + draws.gates
        soft, gate_probs = torch.sigmoid(sampled / temperature), torch.sigmoid(proposal.gates)
        gates = soft + ((sampled > 0).to(soft.dtype) - soft).detach()
    if draws.categories is not None:
        raw = torch.where(space.is_logit.to(x.device), (raw + draws.categories) / temperature, raw)
    relaxed = space.relax(raw, x, gates)
    answers: Tensor = _StraightThrough.apply(relaxed, space.project(relaxed.detach(), x))  # type: ignore[no-untyped-call]
    return answers, space.relax(proposal.raw, x, gate_probs)


def target_log_probs(predictors: Predictors, x_cf: Tensor, target: Tensor) -> Tensor:
    """(S, K, B) log-probabilities of the target under each hypothesis.

    Args:
        predictors: θ_1..θ_S.
        x_cf: (K, B, *event) answers.
        target: (B,) class positions.
    """
    log_probs = predictors.log_probs(x_cf.flatten(0, 1)).unflatten(1, x_cf.shape[:2])
    positions = target.expand(len(predictors), len(x_cf), -1)[..., None]
    return log_probs.gather(-1, positions)[..., 0]


def objective(
    generator: Generator,
    space: Space,
    request: Condition,
    posterior: DiagonalNormal,
    predictors: Predictors,
    draws: Draws,
    risk: Risk,
    *,
    temperature: float | None = None,
    distance: Distance | None = None,
    expected_share: float = 0.5,
    plausibility: Plausibility | None = None,
    min_separation: float = 1.0,
) -> Terms:
    """The terms of the objective for B rows, differentiable in φ and the posterior, and through that in ψ.

    Args:
        generator: The generator, whose decoder is g_φ.
        space: What each row may change; one feasible set for all rows, or one for each.
        request: The generator's input, B rows.
        posterior: The latent posterior q, from the encoder or from elsewhere.
        predictors: θ_1..θ_S.
        draws: All random noise.
        risk: How log-probabilities are summarised over hypotheses.
        temperature: Temperature of straight-through answers; None: the relaxation itself is judged, as in the paper.
        distance: d, the cost of an answer; None: the space's own.
        expected_share: Share of the space's own distance that is taken of the expected answers, in [0, 1]; the rest is
            taken of the sampled ones.
        plausibility: Function that measures how far answers lie from usual rows; None: the term is 0.
        min_separation: Distance from which two answers to a row count as different.
    """
    x = request.x
    proposal = generator(request, posterior.sample(draws.latent))
    gate_probs = None if proposal.gates is None else torch.sigmoid(proposal.gates)
    if temperature is None:
        x_cf = expected = space.relax(proposal.raw, x, gate_probs)
    else:
        x_cf, expected = sampled_answers(space, x, proposal, draws, temperature)
    if distance is None:
        in_expectation = space.distance(expected, x, gate_probs)
        cost = (1.0 - expected_share) * space.distance(x_cf, x) + expected_share * in_expectation
    else:
        cost = distance(x_cf, x)
    implausibility = torch.zeros_like(cost)
    if plausibility is not None:
        targets = request.target.expand(len(x_cf), -1).flatten()
        implausibility = plausibility(x_cf.flatten(0, 1), targets).unflatten(0, x_cf.shape[:2])
    return Terms(
        nll=-risk(target_log_probs(predictors, x_cf, request.target), predictors.weights).mean(dim=0),
        kl=posterior.kl(),
        proximity=cost.mean(dim=0),
        changes=space.count_changes(expected, x, gate_probs).mean(dim=0),
        plausibility=implausibility.mean(dim=0),
        sameness=_sameness(space, x_cf, min_separation),
    )


def _sameness(space: Space, x_cf: Tensor, min_separation: float) -> Tensor:
    """(B,) the mean relative shortfall of pairwise distances from ``min_separation``; 1 if all K answers are equal."""
    count = len(x_cf)
    if count == 1:
        return x_cf.new_zeros(x_cf.shape[1])
    first, second = torch.triu_indices(count, count, offset=1, device=x_cf.device)
    pairs = space.distance(x_cf[first].flatten(0, 1)[None], x_cf[second].flatten(0, 1))[0]
    return torch.relu(1.0 - pairs / min_separation).unflatten(0, (len(first), -1)).mean(dim=0)
