"""Models there are already, as hypotheses: last year's, a colleague's, or copies just refitted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avcg.errors import SettingError, enumerate_some
from avcg.hypotheses.black_box import BlackBoxPredictors
from avcg.hypotheses.finite import DeepEnsemble, FiniteSet
from avcg.hypotheses.predictors import Predictors
from avcg.models.adapter import as_rows
from avcg.models.affine import schema_with_gaps
from avcg.models.black_box import BlackBox
from avcg.models.sklearn import convertible, from_sklearn
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
    """A set of models that someone has trained already.

    Scikit-learn models that can be had as networks exactly become networks; others are asked as they are.

    Args:
        models: Fitted estimators on raw frames, `BlackBox` objects, or functions and ONNX files inside one.
        X: Rows they were trained on, or rows like them.
        deployed: The model whose decision counts, one more or one of them; None: their mean.
        schema: What the columns are; None: inferred, gaps read where X has any.
        space: What codes mean, where that is settled already; then no schema.

    >>> from sklearn.linear_model import LogisticRegression
    >>> from avcg import toys
    >>> X, y = toys.loans(n=300).X[["income", "months"]], toys.loans(n=300).y
    >>> years = [LogisticRegression().fit(X[i::3], y[i::3]) for i in range(3)]
    >>> len(from_models(years, X, deployed=years[-1]))
    3
    """
    if not models:
        raise SettingError("The 'models' of from_models must be at least one. Got none.")
    rows = as_rows(X)
    if schema is not None and space is not None:
        raise SettingError("A space has a schema already. Give the one or the other.")
    space = space or TabularSpace.fit(schema or schema_with_gaps(rows), rows)
    everyone = [*models, *([] if deployed is None else [deployed])]
    classes = _classes_of(everyone)
    members = gather(models, X, space, classes)
    base = None if deployed is None else gather([deployed], X, space, classes)
    return FiniteSet(members, space, classes, base)


def gather(models: Sequence[Any], X: Any, space: TabularSpace, classes: NDArray[Any]) -> Predictors:
    """Models over one space: networks where all can be had as such exactly, else black boxes.

    Args:
        models: Fitted estimators, or black boxes.
        X: Rows as they were fitted on.
        space: What codes mean.
        classes: All labels, in the order of the probabilities.
    """
    if all(convertible(one) and np.array_equal(one.classes_, classes) for one in models):
        try:
            return DeepEnsemble([from_sklearn(one, X, space=space) for one in models]).predictors
        except SettingError:  # something before the last step is not affine: it can be asked all the same
            pass
    boxes = [one if isinstance(one, BlackBox) else BlackBox(one, X, classes=classes, space=space) for one in models]
    return BlackBoxPredictors([box.over(space, classes) for box in boxes])


def _classes_of(models: Sequence[Any]) -> NDArray[Any]:
    """All labels of which any of the models speaks."""
    for one in models:
        if not hasattr(one, "classes_"):
            kind = type(one).__name__
            raise SettingError(f"A {kind} does not say its classes. Fit it, or wrap it: BlackBox({kind}, X, classes=).")
    kinds = {type(label) for one in models for label in np.asarray(one.classes_).tolist()}
    if len(kinds) > 1:
        shown = [np.asarray(one.classes_).tolist() for one in models]
        raise SettingError(f"The models must speak of the same classes. Got {enumerate_some(shown, 3)}.")
    everything = np.unique(np.concatenate([np.asarray(one.classes_) for one in models]))
    # In the order of a model that knows them all; a resample may lack some.
    return next((np.asarray(one.classes_) for one in models if len(one.classes_) == len(everything)), everything)
