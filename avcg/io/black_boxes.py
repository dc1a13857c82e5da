"""Storing black boxes in the formats of their libraries: XGBoost, LightGBM and ONNX.

Other models cannot be stored; the caller keeps them and passes them to `avcg.load`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from avcg.errors import ArtifactError, MissingExtraError
from avcg.models.black_box import BlackBox
from avcg.space.tabular import TabularSpace

# Pattern of a stored black box in the manifest.
BOX = {
    "kind": ("not_stored", "onnx", "xgboost", "lightgbm"),
    "name": str,
    "classes": [(bool, float, str)],
    "arrays": bool,
    "settings": {...: (bool, float, None)},
    "frame": int,
}


class LightGBM:
    """A LightGBM model restored from its text format.

    Args:
        text: The model, as ``Booster.model_to_string`` gives it.
        classes: Labels of its classes.

    Attributes:
        booster_: The booster, by which the trees are also read.
    """

    def __init__(self, text: str, classes: NDArray[Any]) -> None:
        try:
            from lightgbm import Booster
        except ImportError:
            raise MissingExtraError("lightgbm", "trees", "A stored LightGBM model") from None
        self.text, self.classes_ = text, classes
        self.booster_ = Booster(model_str=text)

    def predict_proba(self, rows: Any) -> NDArray[np.float64]:
        """(N, C) probabilities."""
        probabilities = np.asarray(self.booster_.predict(rows))
        return np.stack([1.0 - probabilities, probabilities], axis=1) if probabilities.ndim == 1 else probabilities


def pack_box(box: BlackBox, probe: pd.DataFrame) -> tuple[dict[str, Any], bytes | None]:
    """A model as plain values, and its bytes in the format of its library.

    Args:
        box: The model.
        probe: Rows for which the model that is read back must give the same probabilities, to the last bit.

    Returns:
        The entry of the manifest, and the bytes; None if there is no format that preserves the model.
    """
    kind, content, settings = _own_format(box.model)
    entry = {
        "kind": kind,
        "name": "LGBMClassifier" if isinstance(box.model, LightGBM) else type(box.model).__name__,
        "classes": box.own_classes.tolist(),
        "arrays": box.reads_arrays,
        "settings": settings,
    }
    if content is not None:
        with suppress(Exception):  # libraries raise errors of many kinds; the model is then left to the caller
            restored = open_box(entry, content, probe, box.space_, box.classes_)
            if np.array_equal(restored.predict_proba(probe), box.predict_proba(probe)):
                return entry, content
    return {**entry, "kind": "not_stored"}, None


def open_box(
    entry: Mapping[str, Any],
    content: Any,
    probe: pd.DataFrame,
    space: TabularSpace,
    classes: NDArray[Any],
) -> BlackBox:
    """Restore a model that `pack_box` packed, or wrap one that could not be stored.

    Args:
        entry: Entry of the manifest.
        content: Bytes in the format of the library; for a model that has none, the model itself.
        probe: Rows with the columns and dtypes that the model reads.
        space: Space of the rows.
        classes: Labels in the order of the probabilities.

    Raises:
        AvcgError: If the model does not accept such rows.
    """
    own = np.asarray(entry["classes"], dtype=classes.dtype)
    model: Any = content
    if entry["kind"] == "lightgbm":
        model = LightGBM(content.decode(), own)
    if entry["kind"] == "xgboost":
        model = _xgboost(content, entry["settings"], own)
    rows = probe.to_numpy() if entry["arrays"] else probe
    box = model if isinstance(model, BlackBox) else BlackBox(model, rows, classes=own, space=space)
    return box.over(space, classes)


def _own_format(model: Any) -> tuple[str, bytes | None, dict[str, Any]]:
    if isinstance(model, bytes):
        return "onnx", model, {}
    if isinstance(model, (str, Path)):
        path = Path(model)
        return "onnx", path.read_bytes() if path.is_file() else None, {}
    if isinstance(model, LightGBM):
        return "lightgbm", model.text.encode(), {}
    # Compared by name, so that the libraries need not be installed.
    library, name = type(model).__module__.partition(".")[0], type(model).__name__
    if (library, name) == ("xgboost", "XGBClassifier"):
        missing = float(model.missing)
        settings = {
            "enable_categorical": bool(model.enable_categorical),
            "missing": None if math.isnan(missing) else missing,
        }
        return "xgboost", bytes(model.get_booster().save_raw("ubj")), settings
    if (library, name) == ("lightgbm", "LGBMClassifier"):
        return "lightgbm", model.booster_.model_to_string().encode(), {}
    return "not_stored", None, {}


def _xgboost(content: bytes, settings: Mapping[str, Any], classes: NDArray[Any]) -> Any:
    try:
        from xgboost import XGBClassifier
    except ImportError:
        raise MissingExtraError("xgboost", "trees", "A stored XGBoost model") from None
    missing = math.nan if settings["missing"] is None else settings["missing"]
    model = XGBClassifier(enable_categorical=settings["enable_categorical"], missing=missing)
    model.load_model(bytearray(content))
    if len(model.classes_) != len(classes):
        raise ArtifactError(f"A stored XGBoost model has {len(model.classes_)} classes, not {len(classes)}.")
    return model
