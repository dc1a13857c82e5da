"""One dataset and seed with everything that its methods share: the network, hypotheses, judges, rows and targets."""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from avcg.bench.models import MODELS, as_categories
from avcg.bench.protocol import Hypotheses, Protocol
from avcg.datasets import published as datasets
from avcg.hypotheses.base import HypothesisDistribution
from avcg.hypotheses.dropout import MCDropout
from avcg.hypotheses.finite import FiniteSet, PointMass
from avcg.hypotheses.mixture import Mixture
from avcg.hypotheses.predictors import OnDevice, Predictors
from avcg.hypotheses.rashomon import RashomonSet, rashomon_set
from avcg.hypotheses.retrains import How, retrains
from avcg.method.deployed import DeployedModel
from avcg.metrics.context import Context, Reread
from avcg.metrics.numeric_view import NumericReading
from avcg.models.adapter import class_positions
from avcg.models.autoencoders import ClassAutoencoders
from avcg.models.black_box import BlackBox
from avcg.models.classifier import Classifier
from avcg.models.training import Training
from avcg.space.tabular import table_of

# Streams of chance that must not meet: what methods draw, what judges draw.
_METHODS, _JUDGES = 0, 100_000
_TRAINING_MASKS = 50
_AUTOENCODED = 3000  # rows of each class, at most


class Problem:
    """Everything fitted once for a dataset and a seed; the judges only when they are first asked for.

    Args:
        protocol: What is run.
        dataset: Which.
        seed: Of the split and of all chance.
        device: Where networks are trained and asked.
    """

    def __init__(self, protocol: Protocol, dataset: str, seed: int, device: str = "cpu") -> None:
        data = datasets.load(dataset)
        classes = np.array(data.classes)
        self.protocol, self.dataset, self.seed, self.device = protocol, dataset, seed, device
        train, validation, test = data.split(seed)
        self.y_train, self.y_validation = train.y, validation.y
        self.reading = (
            NumericReading.fit(data.schema, train.X)
            if protocol.reading == "paper" and data.schema is not None
            else None
        )
        self.schema = data.schema if self.reading is None else self.reading.schema
        if protocol.model is not None:  # XGBoost reads no labels but 0, 1, ...
            self.y_train, self.y_validation = (
                class_positions(np.asarray(part), classes).numpy() for part in (train.y, validation.y)
            )
        self.X_train, self.X_validation = self._read(train.X), self._read(validation.X)
        self.X = self._read(test.X[: protocol.rows])
        self.estimator, self.model = self._fit_model()
        found = class_positions(self.model.predict(self._read(test.X)), self.model.classes_)
        self.accuracy = float((found == class_positions(np.asarray(test.y), classes)).float().mean())
        self.target = self._targets()

    def _read(self, X: Any) -> Any:
        if self.protocol.model is not None:
            assert self.schema is not None
            return as_categories(X, self.schema)
        return X if self.reading is None else self.reading.flatten(X)

    def _fit_model(self) -> tuple[Any, Classifier | BlackBox]:
        """What is trained again by `retrains`, and what is explained."""
        network = self.protocol.network
        if self.protocol.model is not None:
            estimator = MODELS[self.protocol.model](self.X_train, self.seed).fit(self.X_train, self.y_train)
            return estimator, BlackBox(estimator, self.X_train, schema=self.schema)
        made = Classifier(
            hidden=network.hidden,
            dropout=network.dropout,
            epochs=network.epochs,
            batch_size=network.batch_size,
            schema=self.schema,
            device=self.device,
            random_state=self.seed,
        ).fit(self.X_train, self.y_train)
        return made, made

    def asked(self) -> int:
        """About how many rows the models that a method is given were asked so far, times models."""
        if self.protocol.model is None:
            return 0
        known = [self._retrains.predictors, self._retrains.base, PointMass(self.model).predictors]
        boxes = frozenset[Any]().union(*(one.boxes for one in known if one is not None))
        return sum(box.n_asked for box in boxes)

    def _targets(self) -> Any:
        """One label for each row, another than the network with dropout off gives it."""
        current = class_positions(self.model.predict(self.X), self.model.classes_).numpy()
        steps = np.random.default_rng(self.seed).integers(1, len(self.model.classes_), len(current))
        return self.model.classes_[(current + steps) % len(self.model.classes_)]

    def hypotheses(self, kind: Hypotheses, epsilon: float | None) -> HypothesisDistribution:
        """What a method is given."""
        if kind == "dropout":
            return MCDropout(self.estimator)
        if kind == "point":
            return PointMass(self.model)
        if kind == "retrains":
            return self._retrains
        if kind == "all":
            return Mixture([MCDropout(self.estimator), self._retrains])
        assert epsilon is not None
        return self._rashomon(epsilon, _TRAINING_MASKS, _METHODS)

    @cached_property
    def _retrains(self) -> FiniteSet:
        return self._refitted(self.protocol.retrains, "bootstrap", _METHODS)

    def _refitted(self, count: int, resampling: How, stream: int) -> FiniteSet:
        schema = None if isinstance(self.model, Classifier) else self.schema
        return retrains(
            self.estimator, self.X_train, self.y_train, n=count, resampling=resampling, schema=schema,
            random_state=stream + self.seed,
        )  # fmt: skip

    def _rashomon(self, epsilon: float, candidates: int, stream: int) -> RashomonSet:
        rng = torch.Generator().manual_seed(stream + self.seed)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "rashomon_set", UserWarning)  # how many are kept is a column, K
            return rashomon_set(
                MCDropout(self.estimator), self.X_validation, self.y_validation, epsilon, n=candidates,
                device=self.device, rng=rng,
            )  # fmt: skip

    @cached_property
    def context(self) -> Context:
        """The judges."""
        judges, space = self.protocol.judges, self.model.space_
        x, y = space.encode(self.X_train), class_positions(np.asarray(self.y_train), self.model.classes_)
        rng = torch.Generator().manual_seed(_JUDGES + self.seed)
        surrogates = self._refitted(judges.surrogates, judges.resampling, _JUDGES).predictors
        bank = MCDropout(self.estimator).sample(judges.masks, rng=rng) if judges.masks else None
        held = {e: self._rashomon(e, judges.candidates, _JUDGES).predictors for e in self.protocol.epsilons}
        shape = x.shape[1:]
        return Context(
            space,
            DeployedModel(self._placed(PointMass(self.model).predictors)),
            x,
            y,
            len(self.model.classes_),
            bank=None if bank is None else self._placed(bank),
            rashomon={epsilon: self._placed(members) for epsilon, members in held.items()},
            surrogates=self._placed(surrogates),
            autoencoders=self._autoencoders(x, y, rng) if judges.autoencoder_epochs else None,
            execution_noise=judges.noise * torch.randn(judges.execution_errors, *shape, generator=rng),
            input_noise=judges.noise * torch.randn(judges.input_errors, len(self.X), *shape, generator=rng),
            reread=self._reread() if self.reading is not None else None,
        )

    def _placed(self, predictors: Predictors) -> Predictors:
        return predictors if self.device == "cpu" else OnDevice(predictors, self.device)

    def _autoencoders(self, x: Tensor, y: Tensor, rng: torch.Generator) -> ClassAutoencoders:
        classes = range(len(self.model.classes_))
        chosen = torch.cat([torch.nonzero(y == label).flatten()[:_AUTOENCODED] for label in classes])
        settings = Training(epochs=self.protocol.judges.autoencoder_epochs, patience=None)
        fitted = ClassAutoencoders.fit(
            x[chosen].to(self.device), y[chosen].to(self.device), len(classes), training=settings, rng=rng
        )
        return fitted.to("cpu")

    def _reread(self) -> Reread:
        """Codes to codes of the nearest proper row."""
        space, reading = table_of(self.model.space_), self.reading
        assert space is not None
        assert reading is not None

        def reread(x: Tensor) -> Tensor:
            frame = space.decode(x)
            assert isinstance(frame, pd.DataFrame)
            return space.encode(reading.flatten(reading.restore(frame)))

        return reread
