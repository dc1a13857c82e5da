"""The split of a hypothesis distribution into hypotheses for training, calibration and testing.

Hypotheses are split before anything is trained, so that certificates only use models that were not trained against.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from scipy.stats import binom
from torch import Tensor

from avcg.errors import SettingError, check_int, check_setting
from avcg.hypotheses.base import HypothesisDistribution, deployed_model, is_around_one_network, seeded
from avcg.hypotheses.black_box import BlackBoxPredictors
from avcg.hypotheses.finite import FiniteSet
from avcg.hypotheses.mixture import Mixture
from avcg.hypotheses.on_device import OnDevice
from avcg.hypotheses.predictors import Joined, Predictors


@dataclass(frozen=True)
class SplitConfig:
    """Sizes of the parts of a hypothesis split.

    The defaults split 40 hypotheses into 16, 19 and 5, and 20 into 8, 9 and 3.

    Attributes:
        test_share: Share of a finite set that is held out to test answers, in (0, 1), rounded up.
        calibration_share: Share of a finite set that is held out to calibrate margins, in (0, 1), rounded down. 9
            models carry a reliability of 0.9, 19 of 0.95.
        n_draws: Draws for testing, and as many for calibration, from a distribution that is not a finite set.
        n_judges: Hypotheses trained on that judge candidates, at most.
        n_mean: Draws whose mean stands for the deployed model where there is none.
        overflow: Chance, in (0, 1), that a component of a mixture is drawn more often than it has held-out members.
            Then all are drawn again.
    """

    test_share: float = 0.125
    calibration_share: float = 0.475
    n_draws: int = 50
    n_judges: int = 50
    n_mean: int = 50
    overflow: float = 1e-3

    def __post_init__(self) -> None:
        for name in ("test_share", "calibration_share", "overflow"):
            check_setting(self, name, 0 < getattr(self, name) < 1, "in (0, 1)")
        for name in ("n_draws", "n_judges", "n_mean"):
            check_int(getattr(self, name), f"'{name}' of SplitConfig", 1)


@dataclass(frozen=True, eq=False)
class HypothesisSplit:
    """Hypotheses for training, calibration and testing. No two parts share a member of a finite set.

    Attributes:
        train: The hypotheses trained against.
        calibration: The held-out hypotheses that margins are calibrated by; None: the set is too small, or nothing is
            calibrated.
        test: The held-out hypotheses that certify answers and are used for nothing else; None: there are none.
        deployed: The model whose decision counts; where there is none, the mean of the hypotheses trained against.
        countable: Whether the hypotheses have equal weights. If not, a count of them proves nothing about the next
            model: there is no promise, and no hypothesis is held out to certify answers.
        around_one_network: Whether the hypotheses to calibrate by are draws around one network.
    """

    train: HypothesisDistribution
    calibration: Predictors | None
    test: Predictors | None
    deployed: Predictors
    countable: bool = True
    around_one_network: bool = False

    @classmethod
    def of(
        cls,
        hypotheses: HypothesisDistribution,
        rng: torch.Generator | None = None,
        *,
        deployed: Predictors | None = None,
        n_test: int | None = None,
        calibrate: bool = True,
        taught: Taught | None = None,
        config: SplitConfig | None = None,
    ) -> HypothesisSplit:
        """Split a hypothesis distribution.

        Args:
            hypotheses: Any distribution. A finite set is split; from any other, each part is drawn anew.
            rng: Random numbers; None: a generator seeded with 0.
            deployed: The model whose decision counts; None: the one the hypotheses were made around, if any.
            n_test: Number of hypotheses that certify answers; None: as ``config`` says.
            calibrate: Whether hypotheses are held out to calibrate margins.
            taught: Hypotheses that were trained against before, which are never held out; None: there are none.
            config: Shares and numbers of draws; None: the defaults.

        Raises:
            SettingError: If too few hypotheses are left to train on, or a part of a mixture cannot be split.
        """
        rng, config = seeded(rng), config or SplitConfig()
        if n_test is not None:
            n_test = check_int(n_test, "'n_test'", 0)
        deployed = deployed_model(hypotheses) if deployed is None else deployed
        if isinstance(hypotheses, Mixture):
            mixed = _split_mixture(hypotheses, rng, deployed, n_test, calibrate, taught, config)
            return replace(mixed, around_one_network=hypotheses.around_one_network)
        if isinstance(hypotheses, FiniteSet):
            split = _split_set(hypotheses, deployed, rng, n_test, calibrate, taught, config)
        else:
            calibration = hypotheses.sample(config.n_draws, rng=rng) if calibrate else None
            count = config.n_draws if n_test is None else n_test
            test = hypotheses.sample(count, rng=rng) if count else None
            split = cls(hypotheses, calibration, test, hypotheses.sample(1, rng=rng))
        mean = split.train.sample(config.n_mean, rng=rng) if deployed is None else deployed
        return replace(split, deployed=mean, around_one_network=is_around_one_network(hypotheses))

    @property
    def held_out(self) -> Predictors | None:
        """All hypotheses held out from training, those for calibration first; None if there are none to count."""
        parts = [part for part in (self.calibration, self.test) if part is not None]
        return Joined(parts) if parts and self.countable else None

    @property
    def n_test(self) -> int:
        """Number of test hypotheses."""
        return 0 if self.test is None else len(self.test)

    def on(self, device: torch.device) -> HypothesisSplit:
        """This split with the calibration, test and deployed models on a device."""
        return replace(
            self,
            calibration=None if self.calibration is None else OnDevice(self.calibration, device),
            test=None if self.test is None else OnDevice(self.test, device),
            deployed=OnDevice(self.deployed, device),
        )


@dataclass(frozen=True, eq=False)
class Taught:
    """Hypotheses that a generator was trained against, recognised by what they predict.

    Attributes:
        predictors: The hypotheses.
        probe: (N, *event) encoded rows, on which two hypotheses with equal predictions are the same.
    """

    predictors: Predictors
    probe: Tensor

    def among(self, members: Predictors) -> Tensor:
        """(S,) whether each member is one of these hypotheses.

        Args:
            members: The hypotheses to look at.
        """
        with torch.no_grad():
            own, theirs = self.predictors.log_probs(self.probe), members.log_probs(self.probe)
        same = torch.zeros(len(theirs), dtype=torch.bool)
        if own.shape[1:] == theirs.shape[1:]:
            for each in own:
                same |= ((theirs - each).abs().amax(dim=(1, 2)) < 1e-6).cpu()
        return same


def equal_weights(members: Predictors) -> bool:
    """Whether all hypotheses that have any weight have the same.

    Args:
        members: The hypotheses.
    """
    weights = members.weights[members.weights > 0]
    return bool(torch.allclose(weights, weights[:1].expand_as(weights), rtol=1e-4, atol=0.0))


def _split_set(
    members: FiniteSet,
    deployed: Predictors | None,
    rng: torch.Generator,
    n_test: int | None,
    calibrate: bool,
    taught: Taught | None,
    config: SplitConfig,
) -> HypothesisSplit:
    """Split the members of a finite set, whatever their weights; the deployed model and taught members train."""
    if n_test is not None and n_test > max(0, len(members) - 2):
        raise SettingError(
            f"An 'n_test' of {n_test} leaves too few of {len(members)} hypotheses to train on. Lower it, or make more"
            " hypotheses."
        )
    weighted = members.predictors.weights.cpu() > 0
    eligible = weighted & ~_is_deployed(members, deployed)
    if taught is not None:
        eligible &= ~taught.among(members.predictors)
    count, countable = int(weighted.sum()), equal_weights(members.predictors)
    positions = torch.nonzero(eligible).flatten()
    positions = positions[torch.randperm(len(positions), generator=rng)]
    most = min(len(positions), count - 1)  # one at least is trained against
    # Shares are floats: 0.3 of 10 is a little more than 3.
    share = config.calibration_share * calibrate
    n_test = math.ceil(count * config.test_share - 1e-9) if n_test is None else n_test
    n_test = min(n_test, most) if countable else 0
    n_calibration = min(math.floor(count * share + 1e-9), most - n_test)
    held = [positions[:n_test], positions[n_test : n_test + n_calibration]]
    test, calibration = (members.predictors.subset(part.sort().values) if len(part) else None for part in held)
    kept = weighted.clone()
    kept[torch.cat(held)] = False
    train = members
    if not bool(kept.all()):
        chosen = members.predictors.subset(torch.nonzero(kept).flatten())
        train = FiniteSet(chosen, members.space, members.classes, members.base)
    return HypothesisSplit(train, calibration, test, members.predictors, countable)


def _is_deployed(members: FiniteSet, deployed: Predictors | None) -> Tensor:
    """(S,) whether each member is the deployed model: the same object, or equal predictions on probe points."""
    space = members.space
    if deployed is None or len(deployed) != 1 or space is None:
        return torch.zeros(len(members), dtype=torch.bool)
    if isinstance(members.predictors, BlackBoxPredictors):  # different trees may agree on a few points
        deployed_ids = {id(box.model) for box in deployed.boxes}
        return torch.tensor([id(box.model) in deployed_ids for box in members.predictors.members])
    shape = (-1, *[1] * len(space.event_shape))
    probe = torch.zeros(3, *space.event_shape) + torch.tensor([-1.0, 0.0, 1.0]).view(shape)
    return Taught(deployed, probe).among(members.predictors)


def _split_mixture(
    mixture: Mixture,
    rng: torch.Generator,
    deployed: Predictors | None,
    n_test: int | None,
    calibrate: bool,
    taught: Taught | None,
    config: SplitConfig,
) -> HypothesisSplit:
    """Each component is split by itself, and the parts are mixed again."""
    parts = [
        HypothesisSplit.of(
            part, rng, deployed=deployed, n_test=n_test, calibrate=calibrate, taught=taught, config=config
        )
        for part in mixture.components
    ]
    train, countable = Mixture([part.train for part in parts], mixture.shares), all(part.countable for part in parts)
    missing = [i for i, part in enumerate(parts) if part.test is None]
    if missing and n_test != 0 and countable:
        raise SettingError(
            f"Component {missing[0]} of the mixture has a single hypothesis, so none of it can be held out for a"
            " certificate. Give it more, or set n_test=0 and do without certificates."
        )
    calibration, test = (
        _by_share([part for part in held if part is not None], mixture, rng, config.overflow)
        if all(held) and countable
        else None
        for held in ([part.calibration for part in parts], [part.test for part in parts])
    )
    return HypothesisSplit(train, calibration, test, parts[0].deployed, countable)


def _by_share(parts: list[Predictors], mixture: Mixture, rng: torch.Generator, chance: float) -> Predictors:
    """Held-out hypotheses of a mixture, each of a component that is drawn by its share, as the next model is.

    A quota for each component would not be exchangeable with the next model. There are as many as all components can
    give except with a small chance; then components are drawn again.
    """
    shares = torch.tensor([float(share) for share in mixture.shares or ()], dtype=torch.float64)
    shares = shares / shares.sum()
    sizes = torch.tensor([len(part) for part in parts])

    def overflow(total: int) -> float:
        return float(sum(binom.sf(size, total, share) for size, share in zip(sizes, shares, strict=True)))

    total = next(n for n in range(int(sizes.sum()), 0, -1) if overflow(n) <= chance)
    while True:
        drawn = torch.multinomial(shares, total, replacement=True, generator=rng)
        counts = torch.bincount(drawn, minlength=len(parts))
        if bool((counts <= sizes).all()):
            break
    kept = [
        part.subset(torch.randperm(len(part), generator=rng)[: int(count)].sort().values)
        for part, count in zip(parts, counts, strict=True)
        if count
    ]
    return Joined(kept)
