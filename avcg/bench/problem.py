"""One dataset and seed with everything that its methods share: the network, hypotheses, judges, rows and targets."""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from avcg import datasets
from avcg.bench.protocol import Hypotheses, Protocol
from avcg.decisions import Decider
from avcg.evaluation import Context, Reread
from avcg.hypotheses.distributions import FiniteSet, HypothesisDistribution, Mixture, PointMass
from avcg.hypotheses.dropout import MCDropout
from avcg.hypotheses.predictors import Predictors, Remote
from avcg.hypotheses.rashomon import RashomonSet, rashomon_set
from avcg.hypotheses.retraining import retrains
from avcg.models.autoencoders import ClassAutoencoders
from avcg.models.classifier import Classifier
from avcg.models.opened import class_positions
from avcg.numeric import NumericReading
from avcg.space import TabularSpace
from avcg.training import Training

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
        self.protocol, self.dataset, self.seed, self.device = protocol, dataset, seed, device
        train, validation, test = data.split(seed)
        self.y_train, self.y_validation = train.y, validation.y
        self.reading = (
            NumericReading.fit(data.schema, train.X)
            if protocol.reading == "paper" and data.schema is not None
            else None
        )
        self.X_train, self.X_validation = self._read(train.X), self._read(validation.X)
        self.X = self._read(test.X[: protocol.rows])
        schema = data.schema if self.reading is None else self.reading.schema
        network = protocol.network
        self.model = Classifier(
            hidden=network.hidden,
            dropout=network.dropout,
            epochs=network.epochs,
            batch_size=network.batch_size,
            schema=schema,
            device=device,
            random_state=seed,
        ).fit(self.X_train, self.y_train)
        self.accuracy = float((self.model.predict(self._read(test.X)) == test.y).mean())
        self.target = self._targets()

    def _read(self, X: Any) -> Any:
        return X if self.reading is None else self.reading.flatten(X)

    def _targets(self) -> Any:
        """One label for each row, another than the network with dropout off gives it."""
        current = class_positions(self.model.predict(self.X), self.model.classes_).numpy()
        steps = np.random.default_rng(self.seed).integers(1, len(self.model.classes_), len(current))
        return self.model.classes_[(current + steps) % len(self.model.classes_)]

    def hypotheses(self, kind: Hypotheses, epsilon: float | None) -> HypothesisDistribution:
        """What a method is given."""
        if kind == "dropout":
            return MCDropout(self.model)
        if kind == "point":
            return PointMass(self.model)
        if kind == "retrains":
            return self._retrains
        if kind == "all":
            return Mixture([MCDropout(self.model), self._retrains])
        assert epsilon is not None
        return self._rashomon(epsilon, _TRAINING_MASKS, _METHODS)

    @cached_property
    def _retrains(self) -> FiniteSet:
        count = self.protocol.retrains
        return retrains(
            self.model, self.X_train, self.y_train, n=count, how="bootstrap", random_state=_METHODS + self.seed
        )

    def _rashomon(self, epsilon: float, candidates: int, stream: int) -> RashomonSet:
        rng = torch.Generator().manual_seed(stream + self.seed)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "rashomon_set", UserWarning)  # how many are kept is a column, K
            return rashomon_set(
                MCDropout(self.model), self.X_validation, self.y_validation, epsilon, n=candidates, device=self.device,
                generator=rng,
            )  # fmt: skip

    @cached_property
    def context(self) -> Context:
        """The judges."""
        judges, space = self.protocol.judges, self.model.space_
        x, y = space.encode(self.X_train), class_positions(np.asarray(self.y_train), self.model.classes_)
        rng = torch.Generator().manual_seed(_JUDGES + self.seed)
        surrogates = retrains(
            self.model, self.X_train, self.y_train, n=judges.surrogates, how=judges.how,
            random_state=_JUDGES + self.seed,
        ).predictors  # fmt: skip
        bank = MCDropout(self.model).sample(judges.masks, generator=rng) if judges.masks else None
        held = {e: self._rashomon(e, judges.candidates, _JUDGES).predictors for e in self.protocol.epsilons}
        shape = x.shape[1:]
        return Context(
            space,
            Decider(self._placed(PointMass(self.model).predictors)),
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
        return predictors if self.device == "cpu" else Remote(predictors, self.device)

    def _autoencoders(self, x: Tensor, y: Tensor, rng: torch.Generator) -> ClassAutoencoders:
        classes = range(len(self.model.classes_))
        chosen = torch.cat([torch.nonzero(y == label).flatten()[:_AUTOENCODED] for label in classes])
        settings = Training(epochs=self.protocol.judges.autoencoder_epochs, patience=None)
        fitted = ClassAutoencoders.fit(
            x[chosen].to(self.device), y[chosen].to(self.device), len(classes), training=settings, generator=rng
        )
        return fitted.to("cpu")

    def _reread(self) -> Reread:
        """Codes to codes of the nearest proper row."""
        space, reading = self.model.space_, self.reading
        assert isinstance(space, TabularSpace)
        assert reading is not None

        def reread(x: Tensor) -> Tensor:
            frame = space.decode(x)
            assert isinstance(frame, pd.DataFrame)
            return space.encode(reading.flatten(reading.restore(frame)))

        return reread
