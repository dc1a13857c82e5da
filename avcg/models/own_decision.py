"""The decision rule that a model brings along, such as a threshold that was tuned for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from avcg.errors import SettingError

_CLOSE = 1e-6  # probabilities closer than this may be decided either way


def own_threshold(
    model: Any, rows: Any, probabilities: NDArray[np.float64], labels: NDArray[Any], name: str
) -> float | None:
    """The probability of the second class from which a model's ``predict`` decides for it; None: the most probable.

    Args:
        model: The model. One without ``predict`` has no rule of its own.
        rows: Rows as it reads them.
        probabilities: (N, C) its probabilities for them.
        labels: Its classes, in the order of the probabilities.
        name: Its name in messages.

    Raises:
        SettingError: If its decisions follow neither the most probable class nor a threshold that it states.
    """
    try:
        predicted = np.asarray(model.predict(rows))
    except Exception:  # nobody asks for its decisions, and another library's code may raise anything
        return None
    decided = pd.Index(labels).get_indexer(pd.Index(predicted.ravel()))
    if decided.shape != probabilities.shape[:1] or (decided < 0).any():
        return None
    for threshold in _stated_thresholds(model, len(labels)):
        second = probabilities[:, 1]
        if ((decided == (second >= threshold)) | (np.abs(second - threshold) < _CLOSE)).all():
            return threshold
    ordered = np.sort(probabilities, axis=1)
    clear = ordered[:, -1] - ordered[:, -2] > _CLOSE
    differ = clear & (decided != probabilities.argmax(axis=1))
    if differ.any():
        example = int(differ.argmax())
        label, share = labels.tolist()[decided[example]], round(float(probabilities[example, decided[example]]), 3)
        raise SettingError(
            f"{name} must decide for its most probable class, or by a threshold that it states. For {int(differ.sum())}"
            f" of {len(decided)} rows its predict says otherwise, e.g. {label!r} with probability"
            f" {share}. Wrap it in FixedThresholdClassifier or CalibratedClassifierCV, or pass the function by whose"
            " probabilities you decide: BlackBox(model.predict_proba, X, classes=model.classes_)."
        )
    return None


def _stated_thresholds(model: Any, n_classes: int) -> list[float]:
    """The thresholds on the second class that a model may mean: its own, or that of the first class turned around."""
    kind = type(model).__name__
    if n_classes != 2 or kind not in ("TunedThresholdClassifierCV", "FixedThresholdClassifier"):
        return []
    stated = model.best_threshold_ if kind == "TunedThresholdClassifierCV" else model.threshold
    if isinstance(stated, str):  # "auto"
        stated = 0.5
    return [each for each in (float(stated), float(np.nextafter(1 - stated, 1))) if 0 < each < 1]
