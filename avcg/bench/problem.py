"""A dataset and seed with everything that the methods share: rows, targets, model, hypotheses and judges."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from avcg.bench.hypotheses import HypothesesSource, rashomon, retrained
from avcg.bench.models import as_categories
from avcg.bench.paths import imported
from avcg.bench.protocol import Protocol
from avcg.hypotheses.base import HypothesisDistribution
from avcg.hypotheses.dropout import MCDropout
from avcg.hypotheses.finite import FiniteSet, PointMass
from avcg.hypotheses.on_device import OnDevice
from avcg.hypotheses.predictors import Predictors
from avcg.method.deployed import DeployedModel
from avcg.metrics.context import Context, Reread
from avcg.metrics.numeric_view import NumericReading
from avcg.models.adapter import class_positions
from avcg.models.autoencoders import ClassAutoencoders
from avcg.models.black_box import BlackBox
from avcg.models.classifier import Classifier
from avcg.models.training import Training
from avcg.space.tabular import table_of

# Offsets of seeds, so that the hypotheses of methods and the judges never share one.
_HYPOTHESES_SEED, _JUDGES_SEED = 0, 100_000
_MAX_AUTOENCODER_ROWS = 3000  # training rows of each class for the autoencoders


class Problem:
    """Everything that is fitted once for a dataset and a seed. Judges are fitted when they are first needed.

    Args:
        protocol: The benchmark.
        dataset: Name of one of its datasets.
        seed: Seed of the split, the models and the targets.
        device: Device of the networks; ``"cpu"`` by default.

    Attributes:
        reading: Conversion of rows to numbers, for the paper's reading; None for others.
        schema: Schema of the rows; None for images.
        X_train: Training rows.
        y_train: Labels of the training rows.
        X_validation: Validation rows.
        y_validation: Labels of the validation rows.
        X: Rows to explain.
        target: Target label of each row to explain.
        estimator: Model or estimator that is retrained.
        model: The explained model.
        accuracy: Share of the test rows that the model classifies correctly.
    """

    def __init__(self, protocol: Protocol, dataset: str, seed: int, device: str = "cpu") -> None:
        data = protocol.source(dataset).load(protocol.folder)
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
        if protocol.model is not None:  # XGBoost needs the labels 0, 1, ...
            self.y_train, self.y_validation = (
                class_positions(np.asarray(part), classes).numpy() for part in (train.y, validation.y)
            )
        self.X_train, self.X_validation = self._read(train.X), self._read(validation.X)
        self.X = self._read(test.X[: protocol.rows])
        self.estimator, self.model = self._fit_model()
        decided = class_positions(self.model.predict(self._read(test.X)), self.model.classes_)
        self.accuracy = float((decided == class_positions(np.asarray(test.y), classes)).float().mean())
        self.target = self._targets()
        self._hypotheses: dict[str, HypothesisDistribution] = {}

    def _read(self, X: Any) -> Any:
        if self.protocol.model is not None:
            assert self.schema is not None
            return as_categories(X, self.schema)
        return X if self.reading is None else self.reading.flatten(X)

    def _fit_model(self) -> tuple[Any, Classifier | BlackBox]:
        """The estimator that `retrains` trains again, and the explained model."""
        network = self.protocol.network
        if self.protocol.model is not None:
            make = imported(self.protocol.model, f"{self.protocol.name}, model", self.protocol.folder)
            estimator = make(self.X_train, self.seed).fit(self.X_train, self.y_train)
            return estimator, BlackBox(estimator, self.X_train, schema=self.schema)
        classifier = Classifier(
            hidden=network.hidden,
            dropout=network.dropout,
            epochs=network.epochs,
            batch_size=network.batch_size,
            schema=self.schema,
            device=self.device,
            random_state=self.seed,
        ).fit(self.X_train, self.y_train)
        return classifier, classifier

    def asked(self) -> int:
        """Approximate number of queries (rows times models) to the methods' black boxes so far; 0 for networks."""
        if self.protocol.model is None:
            return 0
        members = [PointMass(self.model).predictors]
        for hypotheses in self._hypotheses.values():
            if isinstance(hypotheses, FiniteSet):
                members += [hypotheses.predictors, *([] if hypotheses.base is None else [hypotheses.base])]
        boxes = frozenset[Any]().union(*(predictors.boxes for predictors in members))
        return sum(box.n_asked for box in boxes)

    def _targets(self) -> Any:
        """A random label for each row, other than the one that the model predicts."""
        current = class_positions(self.model.predict(self.X), self.model.classes_).numpy()
        steps = np.random.default_rng(self.seed).integers(1, len(self.model.classes_), len(current))
        return self.model.classes_[(current + steps) % len(self.model.classes_)]

    def hypotheses(self, source: HypothesesSource, epsilon: float | None) -> HypothesisDistribution:
        """The hypotheses of a method, made once for all methods with the same source.

        Args:
            source: Source of the hypotheses.
            epsilon: ε, for hypotheses that depend on it; None for others.
        """
        key = repr((source, epsilon))
        if key not in self._hypotheses:
            what = f"hypotheses of {self.protocol.name}"
            self._hypotheses[key] = source.make(self._offered(epsilon), what, self.protocol.folder)
        return self._hypotheses[key]

    def _offered(self, epsilon: float | None) -> dict[str, Any]:
        """Arguments that hypotheses may take; see `HypothesesSource`."""
        offered = {
            "model": self.model,
            "estimator": self.estimator,
            "X": self.X_train,
            "y": self.y_train,
            "X_validation": self.X_validation,
            "y_validation": self.y_validation,
            "schema": self._schema_for_retrains,
            "n": self.protocol.retrains,
            "device": self.device,
            "rng": torch.Generator().manual_seed(_HYPOTHESES_SEED + self.seed),
            "random_state": _HYPOTHESES_SEED + self.seed,
        }
        if isinstance(self.model, Classifier):
            offered["network"] = self.model
        return offered if epsilon is None else {**offered, "epsilon": epsilon}

    @property
    def _schema_for_retrains(self) -> Any:
        return None if isinstance(self.model, Classifier) else self.schema

    def _held_out(self, epsilon: float) -> Predictors:
        """A Rashomon set of dropout masks that judges answers; no method has seen its masks."""
        rng = torch.Generator().manual_seed(_JUDGES_SEED + self.seed)
        masks = self.protocol.judges.candidates
        return rashomon(
            self.estimator, self.X_validation, self.y_validation, epsilon, self.device, rng, masks=masks
        ).predictors

    @cached_property
    def context(self) -> Context:
        """The judges, with the training rows and noise that metrics need."""
        judges, space = self.protocol.judges, self.model.space_
        x, y = space.encode(self.X_train), class_positions(np.asarray(self.y_train), self.model.classes_)
        rng = torch.Generator().manual_seed(_JUDGES_SEED + self.seed)
        surrogates = retrained(
            self.estimator, self.X_train, self.y_train, judges.surrogates, self._schema_for_retrains,
            _JUDGES_SEED + self.seed, judges.resampling,
        ).predictors  # fmt: skip
        bank = MCDropout(self.estimator).sample(judges.masks, rng=rng) if judges.masks else None
        held_out = {epsilon: self._held_out(epsilon) for epsilon in self.protocol.epsilons}
        shape = x.shape[1:]
        return Context(
            space,
            DeployedModel(self._placed(PointMass(self.model).predictors)),
            x,
            y,
            len(self.model.classes_),
            bank=None if bank is None else self._placed(bank),
            rashomon={epsilon: self._placed(members) for epsilon, members in held_out.items()},
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
        chosen = torch.cat([torch.nonzero(y == label).flatten()[:_MAX_AUTOENCODER_ROWS] for label in classes])
        settings = Training(epochs=self.protocol.judges.autoencoder_epochs, patience=None)
        fitted = ClassAutoencoders.fit(
            x[chosen].to(self.device), y[chosen].to(self.device), len(classes), training=settings, rng=rng
        )
        return fitted.to("cpu")

    def _reread(self) -> Reread:
        """A function from codes to the codes of the nearest valid row."""
        space, reading = table_of(self.model.space_), self.reading
        assert space is not None
        assert reading is not None

        def reread(x: Tensor) -> Tensor:
            frame = space.decode(x)
            assert isinstance(frame, pd.DataFrame)
            return space.encode(reading.flatten(reading.restore(frame)))

        return reread
