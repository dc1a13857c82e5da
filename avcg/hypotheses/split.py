"""The split of a hypothesis distribution into hypotheses for training, calibration and testing.

Hypotheses are split before anything is trained, so that certificates only use models that were not trained against.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from avcg.errors import SettingError, check_int, check_setting
from avcg.hypotheses.base import HypothesisDistribution, deployed_model, seeded
from avcg.hypotheses.black_box import BlackBoxPredictors
from avcg.hypotheses.finite import FiniteSet
from avcg.hypotheses.mixture import Mixture
from avcg.hypotheses.predictors import Joined, OnDevice, Predictors
from avcg.space.base import Space


@dataclass(frozen=True)
class SplitConfig:
    """Sizes of the parts of a hypothesis split.

    Attributes:
        test_share: Share of a finite set that is held out for certificates, in (0, 1), rounded up.
        calibration_share: Share of a finite set that a margin is calibrated by, in (0, 1), rounded down. If that is
            no hypothesis, the set calibrates with its training hypotheses.
        n_draws: Draws for certificates, and as many for calibration, from a distribution that is not a finite set.
        n_judges: Hypotheses trained on that judge candidates, at most.
        n_mean: Draws whose mean stands for the deployed model where there is none.
    """

    test_share: float = 0.25
    calibration_share: float = 0.25
    n_draws: int = 50
    n_judges: int = 50
    n_mean: int = 50

    def __post_init__(self) -> None:
        for name in ("test_share", "calibration_share"):
            check_setting(self, name, 0 < getattr(self, name) < 1, "in (0, 1)")
        for name in ("n_draws", "n_judges", "n_mean"):
            check_int(getattr(self, name), f"'{name}' of SplitConfig", 1)


@dataclass(frozen=True, eq=False)
class HypothesisSplit:
    """Hypotheses for training, calibration and testing. No two parts share a member of a finite set.

    Attributes:
        train: The hypotheses trained against.
        calibration: The hypotheses that a margin is chosen by, on rows that were not trained on. If the set is too
            small to be split again, or nothing is calibrated, the training hypotheses.
        test: The held-out hypotheses, used for certificates only; None: none are held out.
        deployed: The model whose decision counts; where there is none, the mean of the hypotheses trained against.
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
        calibrate: bool = True,
        config: SplitConfig | None = None,
    ) -> HypothesisSplit:
        """Split a hypothesis distribution.

        Args:
            hypotheses: Any distribution. A finite set is split; from any other, each part is drawn anew.
            rng: Random numbers; None: a generator seeded with 0.
            deployed: The model whose decision counts; None: the one the hypotheses were made around, if any.
            n_test: Number of hypotheses for certificates; None: as ``config`` says.
            calibrate: Whether some members of a finite set are kept from training to calibrate by.
            config: Shares and numbers of draws; None: the defaults.

        Raises:
            SettingError: If too few hypotheses are left to train on, or a part of a mixture cannot be split.
        """
        rng, config = seeded(rng), config or SplitConfig()
        if n_test is not None:
            n_test = check_int(n_test, "'n_test'", 0)
        deployed = deployed_model(hypotheses) if deployed is None else deployed
        if isinstance(hypotheses, Mixture):
            return _split_mixture(hypotheses, rng, deployed, n_test, calibrate, config)
        train: HypothesisDistribution
        if isinstance(hypotheses, FiniteSet):
            train, calibration, test = _split_set(hypotheses, deployed, rng, n_test, calibrate, config)
        else:
            train, calibration = hypotheses, hypotheses.sample(config.n_draws, rng=rng)
            count = config.n_draws if n_test is None else n_test
            test = hypotheses.sample(count, rng=rng) if count else None
        mean = train.sample(config.n_mean, rng=rng) if deployed is None else deployed
        return cls(train, calibration, test, mean)

    def on(self, device: torch.device) -> HypothesisSplit:
        """This split with the calibration, test and deployed models on a device."""
        return replace(
            self,
            calibration=OnDevice(self.calibration, device),
            test=None if self.test is None else OnDevice(self.test, device),
            deployed=OnDevice(self.deployed, device),
        )


def _split_set(
    members: FiniteSet,
    deployed: Predictors | None,
    rng: torch.Generator,
    n_test: int | None,
    calibrate: bool,
    config: SplitConfig,
) -> tuple[FiniteSet, Predictors, Predictors | None]:
    """The members of a finite set that train, calibrate and test."""
    count = len(members)
    if n_test is not None and n_test > max(0, count - 2):
        raise SettingError(
            f"An 'n_test' of {n_test} leaves too few of {count} hypotheses to train on. Lower it, or make more"
            " hypotheses."
        )
    # Shares are floats: 0.3 of 10 is a little more than 3.
    held_out = math.ceil(count * config.test_share - 1e-9) if n_test is None else n_test
    if count == 1 or held_out == 0:
        return members, members.predictors, None
    rest, test = _hold_out(members, deployed, held_out, rng)
    n_calibration = math.floor(count * config.calibration_share + 1e-9)
    if not n_calibration or not calibrate:
        return rest, rest.predictors, test
    train, calibration = rest.split(max(1, min(n_calibration, len(rest) - 1)), rng=rng)
    return train, calibration.predictors, test


def _hold_out(
    members: FiniteSet, deployed: Predictors | None, count: int, rng: torch.Generator
) -> tuple[FiniteSet, Predictors | None]:
    """The other members, and ``count`` members drawn by weight, which then count once each.

    The deployed model is never drawn.
    """
    weights = members.predictors.weights.cpu().clone()
    if deployed is not None and len(deployed) == 1 and members.space is not None:
        weights[_is_deployed(members.predictors, deployed, members.space)] = 0.0
    count = min(count, int((weights > 0).sum()))
    if not count:
        return members, None
    chosen = torch.multinomial(weights, count, generator=rng).sort().values
    kept = torch.ones(len(weights), dtype=torch.bool).index_fill(0, chosen, False)
    test = members.predictors.subset(chosen)
    test.weights = torch.full((count,), 1.0 / count)
    rest = FiniteSet(
        members.predictors.subset(torch.nonzero(kept).flatten()), members.space, members.classes, members.base
    )
    return rest, test


def _is_deployed(members: Predictors, deployed: Predictors, space: Space) -> Tensor:
    """(S,) whether each hypothesis is the deployed model: the same object, or equal predictions on probe points."""
    if isinstance(members, BlackBoxPredictors):  # different trees may agree on a few points
        deployed_ids = {id(box.model) for box in deployed.boxes}
        return torch.tensor([id(box.model) in deployed_ids for box in members.members])
    shape = (-1, *[1] * len(space.event_shape))
    probe = torch.zeros(3, *space.event_shape) + torch.tensor([-1.0, 0.0, 1.0]).view(shape)
    with torch.no_grad():
        return (members.log_probs(probe) - deployed.log_probs(probe)).abs().amax(dim=(1, 2)) < 1e-6


def _split_mixture(
    mixture: Mixture,
    rng: torch.Generator,
    deployed: Predictors | None,
    n_test: int | None,
    calibrate: bool,
    config: SplitConfig,
) -> HypothesisSplit:
    """Each component is split by itself, and the parts are mixed again."""
    parts = [
        HypothesisSplit.of(part, rng, deployed=deployed, n_test=n_test, calibrate=calibrate, config=config)
        for part in mixture.components
    ]
    train = Mixture([part.train for part in parts], mixture.shares)
    missing = [i for i, part in enumerate(parts) if part.test is None]
    if missing and n_test != 0:
        raise SettingError(
            f"Component {missing[0]} of the mixture has a single hypothesis, so none of it can be held out for a"
            " certificate. Give it more, or set n_test=0 and do without certificates."
        )
    test = None if missing else _by_share([part.test for part in parts if part.test is not None], mixture, rng)
    return HypothesisSplit(
        train,
        Joined([part.calibration for part in parts], mixture.shares),
        test,
        train.sample(config.n_mean, rng=rng) if deployed is None else deployed,
    )


def _by_share(parts: list[Predictors], mixture: Mixture, rng: torch.Generator) -> Predictors:
    """Hypotheses of each component in proportion to its share, as many as the smallest component allows."""
    shares = torch.tensor([float(share) for share in mixture.shares or ()])
    shares = shares / shares.sum()
    total = min(len(part) / float(share) for part, share in zip(parts, shares, strict=True))
    kept = []
    for part, share in zip(parts, shares, strict=True):
        count = max(1, min(len(part), round(total * float(share))))
        kept.append(part.subset(torch.randperm(len(part), generator=rng)[:count].sort().values))
    return Joined(kept)
