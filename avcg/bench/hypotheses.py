"""Hypotheses of a protocol: a class or function named by its path, called with the arguments it has parameters for."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from avcg.bench.paths import check_arguments, imported, parameters
from avcg.errors import SettingError
from avcg.hypotheses.base import HypothesisDistribution
from avcg.hypotheses.dropout import MCDropout
from avcg.hypotheses.families import How
from avcg.hypotheses.finite import FiniteSet
from avcg.hypotheses.mixture import Mixture
from avcg.hypotheses.rashomon import RashomonSet, rashomon_set
from avcg.hypotheses.retrains import retrains
from avcg.models.classifier import Classifier
from avcg.schema.schema import Schema

_OFFERED = (
    "model", "network", "estimator", "X", "y", "X_validation", "y_validation", "schema", "n", "epsilon", "device",
    "rng", "random_state",
)  # fmt: skip
_REPLACEABLE = ("n", "epsilon")  # arguments that a protocol may set for a single method


@dataclass(frozen=True)
class HypothesesSource:
    """The source of a method's hypotheses.

    The class or function is called with those of the following arguments that it has parameters for: ``model`` (the
    explained model), ``network`` (the same, if it is a network), ``estimator`` (the model to retrain), ``X`` and ``y``
    (training rows), ``X_validation`` and ``y_validation``, ``schema`` (of an estimator's rows), ``n`` (the protocol's
    ``retrains``), ``epsilon``, ``device``, ``rng`` (a seeded torch generator) and ``random_state``. If it takes
    ``epsilon``, it is called once for every ε of the protocol.

    Attributes:
        kind: Path of the class or function, such as ``"avcg.hypotheses.dropout:MCDropout"``.
        settings: Its other arguments by name.
    """

    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, value: object, what: str) -> HypothesesSource:
        """Read a source from TOML.

        Args:
            value: A path, or a table with a path under ``kind`` and settings.
            what: Place in the protocol, for error messages.

        Raises:
            SettingError: If the value is neither.
        """
        if isinstance(value, Mapping):
            if "kind" not in value:
                raise SettingError(f"{what} lacks the key 'kind'.")
            return cls(value["kind"], {name: setting for name, setting in value.items() if name != "kind"})
        if not isinstance(value, str):
            raise SettingError(f"{what} must be a path such as 'package.module:Name', or a table. Got {value!r}.")
        return cls(value)

    def by_epsilon(self, folder: Path | None = None) -> bool:
        """Whether there are other hypotheses for every ε."""
        return "epsilon" in parameters(imported(self.kind, "hypotheses", folder)) and "epsilon" not in self.settings

    def check(self, what: str, *, black_box: bool, epsilons: bool, folder: Path | None = None) -> None:
        """Check that the class or function exists and can be called with the protocol's arguments.

        Args:
            what: Name of the hypotheses, for error messages.
            black_box: Whether the explained model is a black box.
            epsilons: Whether the protocol has any ε.
            folder: Folder whose modules can be imported too; None: there is none.

        Raises:
            SettingError: If an argument is missing or unknown. The message names it.
        """
        function = imported(self.kind, what, folder)
        if not callable(function):
            raise SettingError(f"{what} must name a class or a function. Got {self.kind!r}.")
        offered = dict.fromkeys(_OFFERED, "")
        offered["network"] = "the protocol's model is a black box." if black_box else ""
        offered["epsilon"] = "" if epsilons else "give the protocol 'epsilons'."
        free = {
            name: reason for name, reason in offered.items() if name not in _REPLACEABLE or name not in self.settings
        }
        check_arguments(function, free, self.settings, what)

    def make(self, offered: Mapping[str, Any], what: str, folder: Path | None = None) -> HypothesisDistribution:
        """Make the hypotheses by calling the class or function.

        Args:
            offered: Arguments by name, of which those it has parameters for are passed.
            what: Name of the hypotheses, for error messages.
            folder: Folder whose modules can be imported too; None: there is none.

        Raises:
            SettingError: If the result is not a distribution over models.
        """
        function = imported(self.kind, what, folder)
        arguments = {name: value for name, value in offered.items() if name in parameters(function)}
        distribution = function(**{**arguments, **self.settings})
        if not isinstance(distribution, HypothesisDistribution):
            raise SettingError(f"{what} must make a distribution over models. Got a {type(distribution).__name__}.")
        return distribution


def retrained(
    estimator: Any,
    X: Any,
    y: Any,
    n: int,
    schema: Schema | None,
    random_state: int,
    resampling: How = "bootstrap",
) -> FiniteSet:
    """Models retrained on the same rows.

    Args:
        estimator: A fitted `Classifier` or estimator.
        X: Training rows.
        y: Labels of the training rows.
        n: Number of models to train.
        schema: Schema of the rows, for estimators; None: that of the classifier.
        random_state: Seed of resampling and training.
        resampling: How the models differ, as in `avcg.retrains`.
    """
    return retrains(estimator, X, y, n=n, resampling=resampling, schema=schema, random_state=random_state)


def rashomon(
    network: Classifier,
    X_validation: Any,
    y_validation: Any,
    epsilon: float,
    device: str,
    rng: torch.Generator,
    masks: int = 50,
) -> RashomonSet:
    """The Rashomon set among a network's dropout masks.

    Args:
        network: The fitted classifier.
        X_validation: Rows on which losses are computed.
        y_validation: Labels of these rows.
        epsilon: Largest excess loss over that of the network.
        device: Device on which losses are computed.
        rng: Random number generator of the masks.
        masks: Number of masks drawn; 50 by default.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "rashomon_set", UserWarning
        )  # the number of masks kept is reported in the column K
        return rashomon_set(MCDropout(network), X_validation, y_validation, epsilon, n=masks, device=device, rng=rng)


def dropout_and_retrained(
    network: Classifier, X: Any, y: Any, n: int, random_state: int, resampling: How = "bootstrap"
) -> Mixture:
    """A mixture of dropout masks and retrained networks in equal shares.

    Args:
        network: The fitted classifier.
        X: Training rows.
        y: Labels of the training rows.
        n: Number of networks to retrain.
        random_state: Seed of resampling and training.
        resampling: How the retrained networks differ, as in `avcg.retrains`.
    """
    return Mixture([MCDropout(network), retrained(network, X, y, n, None, random_state, resampling)])
