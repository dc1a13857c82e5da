"""The contract of a model adapter, which makes a user's model a predictor."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from avcg.hypotheses.finite import PointMass
from avcg.models.adapter import as_rows
from avcg.space.base import Space
from avcg.space.frames import take_rows
from avcg.testing.hypotheses import check_hypotheses
from avcg.testing.unchanged import same_rows, streams_untouched

# Function from raw rows to the (N, C) probabilities of the user's own model, in the order of the adapter's classes.
Reference = Callable[[Any], Any]


class ModelAdapter(Protocol):
    """An adapted model, such as `avcg.from_sklearn`, `avcg.BlackBox` and `avcg.Classifier` give."""

    @property
    def space_(self) -> Space:
        """Space of the rows."""

    @property
    def classes_(self) -> NDArray[Any]:
        """Labels in the order of the probabilities."""

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """(N, C) probabilities for raw rows."""

    def predict(self, X: Any) -> NDArray[Any]:
        """(N,) most probable labels for raw rows."""


def check_model(model: ModelAdapter, X: Any, reference: Reference | None = None, *, tolerance: float = 1e-5) -> None:
    """Assert that a model adapter predicts what the user's own model predicts, and has the interface of an adapter.

    It has a space, classes, and probabilities that sum to one and equal those of the user's own model on raw rows. The
    probabilities of a row do not depend on the other rows or their order. As a hypothesis, it gives the codes of rows
    the same probabilities as the rows, and its gradients, if it has any, agree with finite differences. The caller's
    rows and global random streams stay untouched.

    Args:
        model: A fitted adapter.
        X: Raw rows, at least four, for which the model predicts at least two different classes.
        reference: The user's own model: a function from raw rows to (N, C) probabilities in the order of
            ``model.classes_``; None: the adapter is the model itself.
        tolerance: Largest difference between a probability and that of the user's own model; 1e-5 by default.

    Raises:
        AssertionError: If a condition does not hold. The message names it.
    """
    original = copy.deepcopy(X)
    with streams_untouched("predicting"):
        probabilities = np.asarray(model.predict_proba(X))
        labels = np.asarray(model.predict(X))
        again = np.asarray(model.predict_proba(X))
    assert same_rows(X, original), "predicting changed the caller's rows"
    assert np.array_equal(again, probabilities), "the same rows got other probabilities the second time"
    _check_classes(model, len(X), probabilities, labels)
    if reference is not None:
        expected = np.asarray(reference(copy.deepcopy(X)), np.float64)
        difference = np.abs(probabilities - expected).max()
        assert difference <= tolerance, f"a probability differs by {difference:.2g} from that of the user's own model"
    _check_neighbours(model, X, probabilities)
    _check_hypothesis(model, X, probabilities, tolerance)
    assert same_rows(X, original), "encoding changed the caller's rows"


def _check_classes(model: ModelAdapter, rows: int, probabilities: NDArray[Any], labels: NDArray[Any]) -> None:
    classes = np.asarray(model.classes_)
    assert classes.ndim == 1, f"classes_ has shape {classes.shape}, not (C,)"
    assert len(classes) >= 2, "there are fewer than two classes"
    assert pd.Index(classes).is_unique, "a class is listed twice"
    assert rows >= 4, "check_model needs at least four rows"
    assert probabilities.shape == (rows, len(classes)), f"probabilities have shape {probabilities.shape}"
    assert (probabilities >= 0).all(), "a probability is negative or not a number"
    assert np.allclose(probabilities.sum(axis=1), 1.0, atol=1e-4), "probabilities do not sum to one"
    assert np.array_equal(labels, classes[probabilities.argmax(axis=1)]), (
        "predict does not give the most probable class"
    )
    assert len(set(labels.tolist())) > 1, "check_model needs rows for which the model predicts different classes"


def _check_neighbours(model: ModelAdapter, X: Any, probabilities: NDArray[Any]) -> None:
    order = np.arange(len(X) - 1, -1, -1)
    reordered = np.asarray(model.predict_proba(take_rows(X, order)))[order]
    assert np.allclose(reordered, probabilities, atol=1e-6), "probabilities depend on the order of rows"
    alone = np.asarray(model.predict_proba(take_rows(X, np.array([1]))))
    assert np.allclose(alone, probabilities[[1]], atol=1e-6), "probabilities depend on the other rows"


def _check_hypothesis(model: Any, X: Any, probabilities: NDArray[Any], tolerance: float) -> None:
    """Check the adapter as a hypothesis, as which the generator is trained against it and it judges answers."""
    space: Space = model.space_
    hypothesis = PointMass(model)
    assert hypothesis.space is space, "as a hypothesis, the model has another space"
    assert np.array_equal(np.asarray(hypothesis.classes), model.classes_), (
        "as a hypothesis, the model has other classes"
    )
    with streams_untouched("encoding"):
        x = space.encode(as_rows(X))
    coded = hypothesis.predictors.log_probs(x).exp()[0].numpy(force=True)
    assert np.allclose(coded, probabilities, atol=tolerance), "codes of rows get other probabilities than the rows"
    check_hypotheses(hypothesis, x[:5])
