"""Hypotheses of a protocol: a class or function by its path, called with what it asks for by name."""

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
from avcg.hypotheses.finite import FiniteSet
from avcg.hypotheses.mixture import Mixture
from avcg.hypotheses.rashomon import RashomonSet, rashomon_set
from avcg.hypotheses.retrains import How, retrains
from avcg.models.classifier import Classifier
from avcg.schema.schema import Schema

_OFFERED = (
    "model", "network", "estimator", "X", "y", "X_validation", "y_validation", "schema", "n", "epsilon", "device",
    "rng", "random_state",
)  # fmt: skip
_REPLACEABLE = ("n", "epsilon")  # which a protocol may set for a single method


@dataclass(frozen=True)
class HypothesesSource:
    """Where the hypotheses of a method come from.

    The class or function is called with those of the following that are among its parameters: ``model`` (what is
    explained), ``network`` (the same, where it is a network), ``estimator`` (what is trained again), ``X`` and ``y``
    (training rows), ``X_validation`` and ``y_validation``, ``schema`` (of an estimator's rows), ``n`` (the protocol's
    ``retrains``), ``epsilon``, ``device``, ``rng`` (a seeded generator) and ``random_state``. One that asks for
    ``epsilon`` is made anew for every ε of the protocol.

    Attributes:
        kind: Path of the class or function, such as ``"avcg.hypotheses.dropout:MCDropout"``.
        settings: Its other arguments.
    """

    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, value: object, what: str) -> HypothesesSource:
        """From TOML: a path, or a table with a path under ``kind`` and settings.

        Args:
            value: What the protocol has.
            what: Where it stands, for messages.
        """
        if isinstance(value, Mapping):
            if "kind" not in value:
                raise SettingError(f"{what} lacks the key 'kind'.")
            return cls(value["kind"], {name: each for name, each in value.items() if name != "kind"})
        if not isinstance(value, str):
            raise SettingError(f"{what} must be a path such as 'package.module:Name', or a table. Got {value!r}.")
        return cls(value)

    def by_epsilon(self, folder: Path | None = None) -> bool:
        """Whether they are made anew for every ε."""
        return "epsilon" in parameters(imported(self.kind, "hypotheses", folder)) and "epsilon" not in self.settings

    def check(self, what: str, *, black_box: bool, epsilons: bool, folder: Path | None = None) -> None:
        """Refuse what could not be made.

        Args:
            what: Which hypotheses these are, for messages.
            black_box: Whether the model that is explained can only be asked.
            epsilons: Whether the protocol has any ε.
            folder: A folder whose modules are found too.

        Raises:
            SettingError: With the argument that is missing or not taken.
        """
        function = imported(self.kind, what, folder)
        if not callable(function):
            raise SettingError(f"{what} must name a class or a function. Got {self.kind!r}.")
        offered = dict.fromkeys(_OFFERED, "")
        offered["network"] = "the protocol's model can only be asked." if black_box else ""
        offered["epsilon"] = "" if epsilons else "give the protocol 'epsilons'."
        free = {
            name: reason for name, reason in offered.items() if name not in _REPLACEABLE or name not in self.settings
        }
        check_arguments(function, free, self.settings, what)

    def make(self, offered: Mapping[str, Any], what: str, folder: Path | None = None) -> HypothesisDistribution:
        """Call the class or function.

        Args:
            offered: Arguments by name, of which it takes those it has parameters for.
            what: Which hypotheses these are, for messages.
            folder: A folder whose modules are found too.

        Raises:
            SettingError: If what comes back is not a distribution over models.
        """
        function = imported(self.kind, what, folder)
        taken = {name: value for name, value in offered.items() if name in parameters(function)}
        made = function(**{**taken, **self.settings})
        if not isinstance(made, HypothesisDistribution):
            raise SettingError(f"{what} must make a distribution over models. Got a {type(made).__name__}.")
        return made


def retrained(
    estimator: Any,
    X: Any,
    y: Any,
    n: int,
    schema: Schema | None,
    random_state: int,
    resampling: How = "bootstrap",
) -> FiniteSet:
    """What is trained again from the same rows.

    Args:
        estimator: A fitted `Classifier` or estimator.
        X: Training rows.
        y: Their labels.
        n: How many models.
        schema: What the columns are, for estimators; None: the classifier knows.
        random_state: Seed.
        resampling: What differs between the models, as in `avcg.retrains`.
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
    """The Rashomon set of a network's dropout masks.

    Args:
        network: The classifier.
        X_validation: Rows on which losses are computed.
        y_validation: Their labels.
        epsilon: Excess loss allowed.
        device: Where losses are computed.
        rng: Random numbers for the masks.
        masks: How many are drawn.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "rashomon_set", UserWarning)  # how many are kept is a column, K
        return rashomon_set(MCDropout(network), X_validation, y_validation, epsilon, n=masks, device=device, rng=rng)


def dropout_and_retrained(
    network: Classifier, X: Any, y: Any, n: int, random_state: int, resampling: How = "bootstrap"
) -> Mixture:
    """Dropout masks and retrained networks, half each.

    Args:
        network: The classifier.
        X: Training rows.
        y: Their labels.
        n: How many networks are trained again.
        random_state: Seed.
        resampling: What differs between them, as in `avcg.retrains`.
    """
    return Mixture([MCDropout(network), retrained(network, X, y, n, None, random_state, resampling)])
