"""Hypotheses from existing models: last year's models, a colleague's, or copies that were refitted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from avcg.errors import SettingError, enumerate_some
from avcg.hypotheses.black_box import BlackBoxPredictors
from avcg.hypotheses.finite import DeepEnsemble, FiniteSet
from avcg.hypotheses.predictors import Predictors
from avcg.models.adapter import as_rows
from avcg.models.affine import Converted, schema_with_gaps
from avcg.models.black_box import BlackBox
from avcg.models.sklearn import convertible, from_sklearn, from_torch
from avcg.schema.schema import Schema
from avcg.space.tabular import TabularSpace


def from_models(
    models: Sequence[Any],
    X: Any,
    *,
    deployed: Any = None,
    schema: Schema | None = None,
    space: TabularSpace | None = None,
) -> FiniteSet:
    """A finite set of hypotheses made from models that are already trained.

    If all models are networks (`Classifier`, or converted by `from_sklearn` or `from_torch`) or scikit-learn models
    that can be converted to networks exactly, they become networks over one space. Otherwise they are used as black
    boxes.

    Args:
        models: Fitted classifiers and estimators on raw frames, `BlackBox` objects, or functions and ONNX files inside
            one.
        X: Rows that the models were trained on, or similar rows.
        deployed: The deployed model, whose decision counts, from ``models`` or not; None: the mean of ``models``.
        schema: Schema of the columns; None: inferred from X, allowing missing values in the columns that have any.
        space: Fitted space that gives codes their meaning, instead of a schema; None: fitted to X.

    >>> from sklearn.linear_model import LogisticRegression
    >>> from avcg import toys
    >>> X, y = toys.loans(n=300).X[["income", "months"]], toys.loans(n=300).y
    >>> years = [LogisticRegression().fit(X[i::3], y[i::3]) for i in range(3)]
    >>> len(from_models(years, X, deployed=years[-1]))
    3
    """
    if not models:
        raise SettingError("The 'models' of from_models must contain at least one model. Got none.")
    rows = as_rows(X)
    if schema is not None and space is not None:
        raise SettingError("A space has a schema already. Pass either 'schema' or 'space' to from_models, not both.")
    space = space or TabularSpace.fit(schema or schema_with_gaps(rows), rows)
    classes = _classes_of([*models, *([] if deployed is None else [deployed])])
    members = gather(models, X, space, classes)
    base = None if deployed is None else gather([deployed], X, space, classes)
    return FiniteSet(members, space, classes, base)


def gather(models: Sequence[Any], X: Any, space: TabularSpace, classes: NDArray[Any]) -> Predictors:
    """Predictors from models over one space: networks if all can be converted exactly, else black boxes.

    Args:
        models: Fitted estimators or black boxes.
        X: Rows of the kind that the models were fitted on.
        space: Space that gives codes their meaning.
        classes: All labels, in the order of the probabilities.
    """
    if all((_is_network(model) or convertible(model)) and np.array_equal(model.classes_, classes) for model in models):
        try:
            return DeepEnsemble([_over(model, X, space) for model in models]).predictors
        except SettingError:  # a step of the preprocessing is not affine: use black boxes
            pass
    boxes = [
        model if isinstance(model, BlackBox) else BlackBox(model, X, classes=classes, space=space) for model in models
    ]
    return BlackBoxPredictors([box.over(space, classes) for box in boxes])


def _is_network(model: Any) -> bool:
    return isinstance(getattr(model, "network_", None), nn.Module)


def _over(model: Any, X: Any, space: TabularSpace) -> Any:
    """A model as a network on the codes of a space."""
    if not _is_network(model):
        return from_sklearn(model, X, space=space)
    if model.space_ is space or space.difference(model.space_) is None:
        return Converted(model.network_, space, model.classes_)
    return from_torch(model.network_, model.space_.encode, X, classes=model.classes_, space=space)


def _classes_of(models: Sequence[Any]) -> NDArray[Any]:
    """All labels that occur among the classes of the models."""
    for model in models:
        if not hasattr(model, "classes_"):
            kind = type(model).__name__
            raise SettingError(f"A {kind} has no classes_. Fit it, or wrap it: BlackBox({kind}, X, classes=[...]).")
    classes = [np.asarray(model.classes_) for model in models]
    if len({type(label) for labels in classes for label in labels.tolist()}) > 1:
        shown = [labels.tolist() for labels in classes]
        raise SettingError(f"The models must have the same classes. Got {enumerate_some(shown, 3)}.")
    every_label = np.unique(np.concatenate(classes))
    # The order of the first model that has every label; a model fitted on a resample may lack some.
    return next((labels for labels in classes if len(labels) == len(every_label)), every_label)
