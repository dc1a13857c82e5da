"""Risks: functions from (S, ...) log-probabilities of the target and (S,) weights to (...) values to be maximised.

They are ordered: worst case <= CVaR <= expected log-likelihood <= log expected likelihood, and the entropic risk lies
between the worst case and the mean. `Hinge` is not part of this order, because it is 0 beyond a margin.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from avcg.errors import SettingError

Risk = Callable[[Tensor, Tensor], Tensor]


def _along(log_p: Tensor, weights: Tensor) -> Tensor:
    """The weights with trailing axes, so that they broadcast over log-probabilities."""
    return weights.reshape(-1, *[1] * (log_p.dim() - 1)).to(log_p)


def _counted(log_p: Tensor, weights: Tensor) -> Tensor:
    """Log-probabilities with 0 for hypotheses of weight 0, so that an infinite value cannot make a sum NaN."""
    return torch.where(_along(log_p, weights) > 0, log_p, 0.0)


def expected_log_likelihood(log_p: Tensor, weights: Tensor) -> Tensor:
    """The expected log-likelihood, sum over s of w_s log p_s; the paper's R.

    Args:
        log_p: (S, ...) log-probability of the target under each hypothesis.
        weights: (S,) weights that sum to 1.

    Returns:
        (...) one value for each answer.

    >>> expected_log_likelihood(torch.tensor([-1.0, -3.0]), torch.tensor([0.5, 0.5]))
    tensor(-2.)
    """
    return (_along(log_p, weights) * _counted(log_p, weights)).sum(dim=0)


def log_expected_likelihood(log_p: Tensor, weights: Tensor) -> Tensor:
    """The log of the predictive probability, log sum over s of w_s p_s.

    Validity is decided by this probability. It is never below the expected log-likelihood.

    >>> p = torch.tensor([0.2, 0.6])
    >>> log_expected_likelihood(p.log(), torch.tensor([0.5, 0.5])).exp()
    tensor(0.4000)
    """
    return torch.logsumexp(log_p + _along(log_p, weights).log(), dim=0)


def worst_case(log_p: Tensor, weights: Tensor) -> Tensor:
    """The lowest log-probability among hypotheses with a positive weight.

    >>> worst_case(torch.tensor([-1.0, -3.0, -9.0]), torch.tensor([0.5, 0.5, 0.0]))
    tensor(-3.)
    """
    return torch.where(_along(log_p, weights) > 0, log_p, math.inf).amin(dim=0)


@dataclass(frozen=True)
class Entropic:
    """The entropic risk of the negative log-likelihood, -(1/t) log sum over s of w_s exp(-t log p_s).

    Attributes:
        temper: t > 0. The limit at 0 is the mean, the limit at infinity the worst case.

    >>> Entropic(temper=1.0)(torch.tensor([-1.0, -3.0]), torch.tensor([0.5, 0.5]))
    tensor(-2.4338)
    """

    temper: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.temper < math.inf:
            raise SettingError(f"The 'temper' of Entropic must be > 0. Got {self.temper!r} instead.")

    def __call__(self, log_p: Tensor, weights: Tensor) -> Tensor:
        """(...) the risk of (S, ...) log-probabilities with (S,) weights."""
        # In float64, relative to the mean, and with expm1 for small deviations: otherwise rounding errors dominate
        # if t is tiny.
        share = _along(log_p.double(), weights)
        share = share / share.sum()
        values = _counted(log_p, weights).double().clamp(min=-1e6)
        mean = (share * values).sum(dim=0)
        spread = torch.where(share > 0, -self.temper * (values - mean), -math.inf)
        small = torch.log1p((share * torch.expm1(spread.clamp(max=1.0))).sum(dim=0))
        large = torch.logsumexp(spread + share.log(), dim=0)
        return (mean - torch.where(spread.amax(dim=0) < 0.1, small, large) / self.temper).to(log_p.dtype)


@dataclass(frozen=True)
class CVaR:
    """The conditional value at risk: the mean over the share of hypotheses with the lowest log-probabilities.

    Attributes:
        share: Share of the hypotheses, by weight, in (0, 1]; 1 is the mean over all. A hypothesis at the limit of the
            share counts in part.

    >>> CVaR(share=0.5)(torch.tensor([-1.0, -2.0, -3.0, -4.0]), torch.full((4,), 0.25))
    tensor(-3.5000)
    """

    share: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise SettingError(f"The 'share' of CVaR must be in (0, 1]. Got {self.share!r} instead.")

    def __call__(self, log_p: Tensor, weights: Tensor) -> Tensor:
        """(...) the risk of (S, ...) log-probabilities with (S,) weights."""
        ordered, order = _counted(log_p, weights).sort(dim=0)
        mass = _along(log_p, weights).expand_as(log_p).gather(0, order)
        before = mass.cumsum(dim=0) - mass
        taken = (self.share - before).clamp(min=torch.zeros_like(mass), max=mass)
        return (taken * ordered).sum(dim=0) / taken.sum(dim=0)


def log_odds(log_p: Tensor) -> Tensor:
    """The log-odds log p - log(1 - p), exact for small p and finite for p = 1.

    >>> log_odds(torch.tensor([0.5, 0.9]).log())
    tensor([0.0000, 2.1972])
    """
    log_p = log_p.clamp(max=-1e-7)
    return log_p - torch.log(-torch.expm1(log_p))


def lower_log_odds(log_p: Tensor, weights: Tensor, spread: float) -> Tensor:
    """The mean log-odds less some standard deviations: a lower estimate for hypotheses that were not evaluated.

    Args:
        log_p: (S, ...) log-probability of the target under each hypothesis.
        weights: (S,) weights that sum to 1.
        spread: Number of standard deviations.

    Returns:
        (...) one value for each answer.
    """
    share, odds = _along(log_p, weights), log_odds(_counted(log_p, weights))
    mean = (share * odds).sum(dim=0)
    variance = (share * (odds - mean).square()).sum(dim=0)
    return mean - spread * (variance + 1e-12).sqrt()


@dataclass(frozen=True, eq=False)
class Hinge:
    """The negative shortfall of the target's log-odds from a margin, for most hypotheses.

    The log-odds are the mean less ``spread`` standard deviations over hypotheses, so that hypotheses which were not
    evaluated are likely to reach the margin too. The value is 0 beyond the margin: going further gains nothing.

    Attributes:
        margin: Log-odds to reach; one number, or a tensor that broadcasts over (...).
        spread: Number of standard deviations, >= 0.

    >>> Hinge.at(0.9, spread=0.0)(torch.tensor([0.9, 0.5]).log(), torch.tensor([0.5, 0.5]))
    tensor(-1.0986)
    """

    margin: float | Tensor = 0.0
    spread: float = 2.0

    def __post_init__(self) -> None:
        if not 0 <= self.spread < math.inf:
            raise SettingError(f"The 'spread' of Hinge must be >= 0. Got {self.spread!r} instead.")

    @classmethod
    def at(cls, probability: float, spread: float = 2.0) -> Hinge:
        """A hinge at the margin that corresponds to a probability in (0, 1)."""
        if not 0 < probability < 1:
            raise SettingError(f"The 'probability' of Hinge must be in (0, 1). Got {probability!r} instead.")
        return cls(math.log(probability / (1 - probability)), spread)

    def __call__(self, log_p: Tensor, weights: Tensor) -> Tensor:
        """(...) the risk of (S, ...) log-probabilities with (S,) weights."""
        return -torch.relu(self.margin - lower_log_odds(log_p, weights, self.spread))
