"""Who teaches, who tunes and who certifies: hypotheses are parted before anything is trained."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from avcg.errors import SettingError, check_int
from avcg.hypotheses.base import HypothesisDistribution, deployed_model, seeded
from avcg.hypotheses.black_box import BlackBoxPredictors
from avcg.hypotheses.finite import FiniteSet
from avcg.hypotheses.mixture import Mixture
from avcg.hypotheses.predictors import Joined, OnDevice, Predictors
from avcg.space.base import Space

# Of a finite set, one member in so many is set aside for certificates, and as many for tuning.
_ONE_IN = 4
# Draws from a distribution that never runs out.
_FRESH_DRAWS = 50


@dataclass(frozen=True, eq=False)
class HypothesisSplit:
    """Hypotheses by what they are for; no two parts share a member of a finite set.

    Attributes:
        train: What is trained against.
        calibration: What a margin is chosen by, on rows that were not trained on. Of a set of fewer than four, or where
            nothing is tuned, the teachers.
        test: What certificates ask, and nothing else does; None where the set has a single member.
        deployed: The model whose decision counts; the teachers' mean where there is no such model.
    """

    train: HypothesisDistribution
    calibration: Predictors
    test: Predictors | None
    deployed: Predictors

    @classmethod
    def of(
        cls,
        hypotheses: HypothesisDistribution,
        rng: torch.Generator | None = None,
        *,
        deployed: Predictors | None = None,
        n_test: int | None = None,
        n_train: int = 50,
        tune: bool = True,
    ) -> HypothesisSplit:
        """Part a distribution.

        Args:
            hypotheses: Of any kind. A finite set is split; anything else is drawn from anew for each part.
            rng: Random numbers; None: a generator seeded with 0.
            deployed: The model whose decision counts; None: the one the hypotheses were made around, if any.
            n_test: Hypotheses for certificates; None: a quarter of a finite set, or 50 draws.
            n_train: Draws that stand for the teachers' mean where there is no model in force.
            tune: Whether some of a finite set are kept from the teachers to tune by; else all but the fresh teach.
        """
        rng = seeded(rng)
        if n_test is not None:
            n_test = check_int(n_test, "'n_test'", 0)
        deployed = deployed_model(hypotheses) if deployed is None else deployed
        if isinstance(hypotheses, Mixture):
            return _mixed(hypotheses, rng, deployed, n_test, n_train, tune)
        train: HypothesisDistribution
        if isinstance(hypotheses, FiniteSet):
            train, calibration, test = _split(hypotheses, deployed, rng, n_test, tune)
        else:
            train, calibration = hypotheses, hypotheses.sample(_FRESH_DRAWS, rng=rng)
            count = _FRESH_DRAWS if n_test is None else n_test
            test = hypotheses.sample(count, rng=rng) if count else None
        mean = train.sample(n_train, rng=rng) if deployed is None else deployed
        return cls(train, calibration, test, mean)

    def on(self, device: torch.device) -> HypothesisSplit:
        """The same, with all that is asked again and again living on a device."""
        return replace(
            self,
            calibration=OnDevice(self.calibration, device),
            test=None if self.test is None else OnDevice(self.test, device),
            deployed=OnDevice(self.deployed, device),
        )


def _split(
    everyone: FiniteSet, deployed: Predictors | None, rng: torch.Generator, n_test: int | None, tune: bool
) -> tuple[FiniteSet, Predictors, Predictors | None]:
    count = len(everyone)
    if n_test is not None and n_test > max(0, count - 2):
        raise SettingError(
            f"Setting 'n_test' {n_test} of {count} hypotheses aside leaves too few to train on. Lower it, or make more."
        )
    aside = -(-count // _ONE_IN) if n_test is None else n_test
    if count == 1 or aside == 0:
        return everyone, everyone.predictors, None
    rest, test = _set_aside(everyone, deployed, aside, rng)
    if count < _ONE_IN or not tune:
        return rest, rest.predictors, test
    train, calibration = rest.split(max(1, min(count // _ONE_IN, len(rest) - 1)), rng=rng)
    return train, calibration.predictors, test


def _set_aside(
    members: FiniteSet, deployed: Predictors | None, count: int, rng: torch.Generator
) -> tuple[FiniteSet, Predictors | None]:
    """The rest, and members drawn by their weights to be counted by head; never one that is the model in force."""
    weights = members.predictors.weights.cpu().clone()
    if deployed is not None and len(deployed) == 1 and members.space is not None:
        weights[_same(members.predictors, deployed, members.space)] = 0.0
    count = min(count, int((weights > 0).sum()))
    if not count:
        return members, None
    chosen = torch.multinomial(weights, count, generator=rng).sort().values
    left = torch.ones(len(weights), dtype=torch.bool).index_fill(0, chosen, False)
    test = members.predictors.subset(chosen)
    test.weights = torch.full((count,), 1.0 / count)
    rest = FiniteSet(
        members.predictors.subset(torch.nonzero(left).flatten()), members.space, members.classes, members.base
    )
    return rest, test


def _same(members: Predictors, deployed: Predictors, space: Space) -> Tensor:
    """(S,) which hypotheses are the model in force."""
    if isinstance(members, BlackBoxPredictors):  # trees that differ may well agree on a few points
        known = {id(box.model) for box in deployed.boxes}
        return torch.tensor([id(box.model) in known for box in members.members])
    shape = (-1, *[1] * len(space.event_shape))
    probe = torch.zeros(3, *space.event_shape) + torch.tensor([-1.0, 0.0, 1.0]).view(shape)
    with torch.no_grad():
        return (members.log_probs(probe) - deployed.log_probs(probe)).abs().amax(dim=(1, 2)) < 1e-6


def _mixed(
    mixture: Mixture,
    rng: torch.Generator,
    deployed: Predictors | None,
    n_test: int | None,
    n_train: int,
    tune: bool,
) -> HypothesisSplit:
    """Each component is parted by itself, and the parts are mixed again."""
    parts = [
        HypothesisSplit.of(part, rng, deployed=deployed, n_test=n_test, n_train=n_train, tune=tune)
        for part in mixture.components
    ]
    train = Mixture([part.train for part in parts], mixture.shares)
    missing = [i for i, part in enumerate(parts) if part.test is None]
    if missing and n_test != 0:
        raise SettingError(
            f"Component {missing[0]} of the mixture has a single hypothesis, so none of it can be set aside for a"
            " certificate. Give it more, or set n_test=0 and do without certificates."
        )
    test = None if missing else _by_share([part.test for part in parts if part.test is not None], mixture, rng)
    return HypothesisSplit(
        train,
        Joined([part.calibration for part in parts], mixture.shares),
        test,
        train.sample(n_train, rng=rng) if deployed is None else deployed,
    )


def _by_share(parts: list[Predictors], mixture: Mixture, rng: torch.Generator) -> Predictors:
    """Heads to count, of each component in proportion to its share: as many as the scarcest component allows."""
    shares = torch.tensor([float(share) for share in mixture.shares or ()])
    shares = shares / shares.sum()
    total = min(len(part) / float(share) for part, share in zip(parts, shares, strict=True))
    kept = []
    for part, share in zip(parts, shares, strict=True):
        count = max(1, min(len(part), round(total * float(share))))
        kept.append(part.subset(torch.randperm(len(part), generator=rng)[:count].sort().values))
    return Joined(kept)
