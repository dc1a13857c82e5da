"""Black boxes in their own formats: XGBoost, LightGBM and ONNX. Others are the caller's to keep and to hand back."""

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

# What an entry looks like.
BOX = {
    "kind": ("given", "onnx", "xgboost", "lightgbm"),
    "name": str,
    "classes": [(bool, float, str)],
    "arrays": bool,
    "settings": {...: (bool, float, None)},
    "frame": int,
}


class LightGBM:
    """A LightGBM model as its own text.

    Args:
        text: What ``Booster.model_to_string`` gives.
        classes: The labels.
    """

    def __init__(self, text: str, classes: NDArray[Any]) -> None:
        try:
            from lightgbm import Booster
        except ImportError:
            raise MissingExtraError("lightgbm", "trees", "A stored LightGBM model") from None
        self.text, self.classes_ = text, classes
        self._booster = Booster(model_str=text)

    def predict_proba(self, rows: Any) -> NDArray[np.float64]:
        """(N, C)."""
        found = np.asarray(self._booster.predict(rows))
        return np.stack([1.0 - found, found], axis=1) if found.ndim == 1 else found


def pack_box(box: BlackBox, probe: pd.DataFrame) -> tuple[dict[str, Any], bytes | None]:
    """A model as plain values and the bytes of its own format; none where it has none that says the same.

    Args:
        box: The model.
        probe: Rows on which what is read back must say the same, to the last bit.
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
        with suppress(Exception):  # whatever its library raises: what cannot be read back, the caller keeps
            again = open_box(entry, content, probe, box.space_, box.classes_)
            if np.array_equal(again.predict_proba(probe), box.predict_proba(probe)):
                return entry, content
    return {**entry, "kind": "given"}, None


def open_box(
    entry: Mapping[str, Any],
    content: Any,
    probe: pd.DataFrame,
    space: TabularSpace,
    classes: NDArray[Any],
) -> BlackBox:
    """The model that `pack_box` packed, or one in its place.

    Args:
        entry: Plain values.
        content: Bytes of its own format; for one that has none, the model itself.
        probe: Rows with the columns and dtypes that it reads.
        space: What codes mean.
        classes: All labels, in the order of the probabilities.

    Raises:
        AvcgError: If it cannot be asked about such rows.
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
    # By name, since who has no such model may not have the library either.
    home, name = type(model).__module__.partition(".")[0], type(model).__name__
    if (home, name) == ("xgboost", "XGBClassifier"):
        missing = float(model.missing)
        settings = {
            "enable_categorical": bool(model.enable_categorical),
            "missing": None if math.isnan(missing) else missing,
        }
        return "xgboost", bytes(model.get_booster().save_raw("ubj")), settings
    if (home, name) == ("lightgbm", "LGBMClassifier"):
        return "lightgbm", model.booster_.model_to_string().encode(), {}
    return "given", None, {}


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
