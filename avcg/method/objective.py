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

# (..., B, *event) answers and (B, *event) factuals to (..., B).
Distance = Callable[[Tensor, Tensor], Tensor]
# (N, *event) answers and (N,) targets to (N,): how far from what is usual for the target.
Plausibility = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Terms:
    """Each part of the objective, (B,) a row, before weights.

    Attributes:
        nll: -R, how little the hypotheses are convinced, by a risk.
        kl: Of q(z | x, y') from the prior.
        proximity: d, what the change costs.
        changes: How many features change.
        plausibility: How far the answers lie from rows of the target.
        sameness: How alike the answers of a row are: 0 once they are as far apart as asked.
    """

    nll: Tensor
    kl: Tensor
    proximity: Tensor
    changes: Tensor
    plausibility: Tensor
    sameness: Tensor

    def total(self, weights: Weights) -> Tensor:
        """(B,) the weighted sum."""
        return torch.stack([getattr(weights, one.name) * getattr(self, one.name) for one in fields(self)]).sum(dim=0)


@dataclass(frozen=True)
class Weights:
    """What each term counts; the paper's G by default, with λ = ``proximity``."""

    nll: float = 1.0
    kl: float = 1.0
    proximity: float = 5.0
    changes: float = 0.0
    plausibility: float = 0.0
    sameness: float = 0.0


@dataclass(frozen=True, eq=False)
class Draws:
    """All the chance in one evaluation of the objective.

    Attributes:
        latent: κ (K, B, L), standard normal.
        gates: (K, B, n) logistic, or None: gates are as likely as they are.
        categories: (K, B, *event) Gumbel, or None.
    """

    latent: Tensor
    gates: Tensor | None = None
    categories: Tensor | None = None

    @classmethod
    def draw(
        cls, generator: Generator, space: Space, n_latents: int, x: Tensor, rng: torch.Generator, *, hard: float = 1.0
    ) -> Draws:
        """Fresh chance for B rows, drawn on the CPU so that a seed means the same on every device.

        Args:
            generator: For the sizes.
            space: For whether there are categories.
            n_latents: K.
            x: (B, *event).
            rng: Of the draws.
            hard: Scale of the chance in gates and categories; 0: they are not drawn.
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
        """The chance of one row, for so many alike."""

        def spread(part: Tensor) -> Tensor:
            return part.expand(len(part), rows, *part.shape[2:])

        gates = None if self.gates is None else spread(self.gates)
        categories = None if self.categories is None else spread(self.categories)
        return Draws(spread(self.latent), gates, categories)


class _StraightThrough(torch.autograd.Function):
    """Forward the second argument, bit for bit; backward as if it were the first."""

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

    Gates and categories are drawn; the forward pass is the exact projection, the backward pass that of the relaxation
    (straight-through).

    Args:
        space: Of the request.
        x: (B, *event).
        proposal: Of K answers a row.
        draws: The chance.
        temperature: Of the relaxation, > 0; the lower, the closer to the forward pass and the noisier.

    Returns:
        (K, B, *event) answers, and the same in expectation over gates and categories.
    """
    raw, gates, likely = proposal.raw, None, None
    if proposal.gates is not None:
        drawn = proposal.gates if draws.gates is None else proposal.gates + draws.gates
        soft, likely = torch.sigmoid(drawn / temperature), torch.sigmoid(proposal.gates)
        gates = soft + ((drawn > 0).to(soft.dtype) - soft).detach()
    if draws.categories is not None:
        raw = torch.where(space.is_logit.to(x.device), (raw + draws.categories) / temperature, raw)
    relaxed = space.relax(raw, x, gates)
    answers: Tensor = _StraightThrough.apply(relaxed, space.project(relaxed.detach(), x))  # type: ignore[no-untyped-call]
    return answers, space.relax(proposal.raw, x, likely)


def target_log_probs(predictors: Predictors, x_cf: Tensor, target: Tensor) -> Tensor:
    """(K, B, *event) answers and (B,) targets to (S, K, B) log-probabilities of the target."""
    log_probs = predictors.log_probs(x_cf.flatten(0, 1)).unflatten(1, x_cf.shape[:2])
    chosen = target.expand(len(predictors), len(x_cf), -1)[..., None]
    return log_probs.gather(-1, chosen)[..., 0]


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
    """Every term of the objective for B rows, differentiable in φ and in the posterior, and so in ψ.

    Args:
        generator: g_φ.
        space: What is allowed, the same for all rows or for each its own.
        request: What is asked.
        posterior: q, the encoder's or any other.
        predictors: θ_1..θ_S.
        draws: The chance.
        risk: How the hypotheses are summed up.
        temperature: Of the straight-through answers; None: the relaxation itself is judged, as in the paper.
        distance: d; None: the space's own.
        expected_share: Share of the space's own distance that is taken of the expected answers, in [0, 1]; the rest is
            taken of the sampled ones.
        plausibility: Its term; None: 0.
        min_separation: The distance from which two answers of a row count as different.
    """
    x = request.x
    proposal = generator(request, posterior.sample(draws.latent))
    likely = None if proposal.gates is None else torch.sigmoid(proposal.gates)
    if temperature is None:
        x_cf = expected = space.relax(proposal.raw, x, likely)
    else:
        x_cf, expected = sampled_answers(space, x, proposal, draws, temperature)
    if distance is None:
        in_expectation = space.distance(expected, x, likely)
        cost = (1.0 - expected_share) * space.distance(x_cf, x) + expected_share * in_expectation
    else:
        cost = distance(x_cf, x)
    usual = torch.zeros_like(cost)
    if plausibility is not None:
        wanted = request.target.expand(len(x_cf), -1).flatten()
        usual = plausibility(x_cf.flatten(0, 1), wanted).unflatten(0, x_cf.shape[:2])
    return Terms(
        nll=-risk(target_log_probs(predictors, x_cf, request.target), predictors.weights).mean(dim=0),
        kl=posterior.kl(),
        proximity=cost.mean(dim=0),
        changes=space.count_changes(expected, x, likely).mean(dim=0),
        plausibility=usual.mean(dim=0),
        sameness=_sameness(space, x_cf, min_separation),
    )


def _sameness(space: Space, x_cf: Tensor, min_separation: float) -> Tensor:
    """(B,) by how much the K answers of a row fall short of being ``apart``, 1 where they are all the same."""
    count = len(x_cf)
    if count == 1:
        return x_cf.new_zeros(x_cf.shape[1])
    first, second = torch.triu_indices(count, count, offset=1, device=x_cf.device)
    pairs = space.distance(x_cf[first].flatten(0, 1)[None], x_cf[second].flatten(0, 1))[0]
    return torch.relu(1.0 - pairs / min_separation).unflatten(0, (len(first), -1)).mean(dim=0)
