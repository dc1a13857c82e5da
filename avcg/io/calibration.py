"""A calibration as plain values in the manifest of a stored explainer, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from avcg.errors import ArtifactError, DataError
from avcg.guarantees.conformal import Promise, SurvivalTable
from avcg.guarantees.moments import PastMoments
from avcg.method.calibration import OPEN, Calibration, Direction
from avcg.method.query import Effort
from avcg.space.serialize import to_json

_TABLE = {
    "margins": [float],
    "answered": [int],
    "accepted": [[int]],
    "ever_refused": [[int]],
    "refusals": [int],
    "distance": [float],
    "changes": [float],
}
_PAST = {
    "target": object,
    "moments": [(float, str)],
    "horizon": int,
    "margins": [float],
    "answered": [[int]],
    "accepted": [[int]],
    "survival": float,
}
PROMISE = {"survival": float, "reliability": float, "guarantee": str, "confidence": float}
CALIBRATION: dict[Any, Any] = {
    "promise": PROMISE,
    "n_models": int,
    "countable": bool,
    "directions": {"fast": [_TABLE], "standard?": [_TABLE], "thorough?": [_TABLE]},
    "margins": {"fast": [float], "standard?": [float], "thorough?": [float]},
    "statements": {"fast": [dict], "standard?": [dict], "thorough?": [dict]},
    "past?": _PAST,
    "around_one_network?": bool,
}


def pack_calibration(calibration: Calibration) -> dict[str, Any]:
    """A calibration as plain values, with what the light scorer reads of it: margins and statements.

    Args:
        calibration: The calibration of a fitted explainer.
    """
    past = {} if calibration.past is None else {"past": pack_past(calibration.past)}
    return {
        **past,
        "promise": asdict(calibration.promise),
        "n_models": calibration.n_models,
        "around_one_network": calibration.around_one_network,
        "countable": calibration.countable,
        "directions": {
            effort: [_pack_table(direction.table) for direction in directions]
            for effort, directions in calibration.directions.items()
        },
        "margins": {effort: calibration.margins(effort).tolist() for effort in calibration.directions},
        "statements": {
            effort: [statement.to_dict() for statement in calibration.statements(effort).values()]
            for effort in calibration.directions
        },
    }


def unpack_calibration(entry: Mapping[str, Any], labels: Sequence[Any]) -> Calibration:
    """Restore a calibration. What may be promised is decided anew from what the calibration models said.

    Args:
        entry: Plain values as `pack_calibration` gave them.
        labels: Labels of the classes.

    Raises:
        ArtifactError: If the values do not fit together.
    """
    if any(len(tables) != len(labels) for tables in entry["directions"].values()):
        raise ArtifactError(f"The stored calibration must have one table for each of {len(labels)} classes.")
    directions: dict[Effort, tuple[Direction, ...]] = {
        effort: tuple(Direction(label, _unpack_table(table), OPEN) for label, table in zip(labels, tables, strict=True))
        for effort, tables in entry["directions"].items()
    }
    promise = Promise(**entry["promise"])
    past = unpack_past(entry["past"]) if "past" in entry else None
    calibration = Calibration(
        promise, directions, entry["n_models"], entry["countable"], past, entry.get("around_one_network", False)
    )
    ladder = calibration.of_effort()[0].table.margins
    if past is not None and (past.target not in labels or len(past.margins) != len(ladder)):
        raise ArtifactError("The stored past moments do not fit the classes and margins.")
    calibration = calibration.with_promise(promise)
    margins = {effort: calibration.margins(effort).tolist() for effort in calibration.directions}
    same = margins.keys() == entry["margins"].keys()
    if not same or not all(np.allclose(values, entry["margins"][effort]) for effort, values in margins.items()):
        raise ArtifactError(
            f"The stored margins {entry['margins']} do not follow from the stored calibration, which gives {margins}."
        )
    return calibration


def pack_past(past: PastMoments) -> dict[str, Any]:
    """Past moments as plain values.

    Args:
        past: The past moments.
    """
    counts = {name: getattr(past, name).tolist() for name in ("margins", "answered", "accepted")}
    return {
        "target": to_json(past.target),
        "moments": list(past.moments),
        "horizon": past.horizon,
        "survival": past.survival,
        **counts,
    }


def unpack_past(entry: Mapping[str, Any]) -> PastMoments:
    """Past moments from plain values.

    Args:
        entry: Plain values as `pack_past` gave them.

    Raises:
        ArtifactError: If the values do not fit together.
    """
    try:
        return PastMoments(
            entry["target"], tuple(entry["moments"]), entry["horizon"], np.array(entry["margins"], np.float64),
            np.array(entry["answered"], np.int64), np.array(entry["accepted"], np.int64), entry["survival"],
        )  # fmt: skip
    except (DataError, ValueError) as error:
        raise ArtifactError(f"The stored past moments are damaged: {error}") from None


def _pack_table(table: SurvivalTable) -> dict[str, Any]:
    return {field.name: getattr(table, field.name).tolist() for field in fields(table)}


def _unpack_table(entry: Mapping[str, Any]) -> SurvivalTable:
    values: dict[str, Any] = {name: np.array(entry[name], np.float64) for name in ("margins", "distance", "changes")}
    counts: dict[str, Any] = {
        name: np.array(entry[name], np.int64) for name in ("answered", "accepted", "ever_refused", "refusals")
    }
    n_margins, n_rows = len(values["margins"]), len(counts["refusals"])
    n_models = counts["accepted"].size // n_margins if n_margins else 0
    shapes_fit = (
        n_margins > 0
        and n_models > 0
        and all(array.shape == (n_margins,) for array in (values["distance"], values["changes"], counts["answered"]))
    )
    shapes_fit &= all(counts[name].shape == (n_margins, n_models) for name in ("accepted", "ever_refused"))
    if not shapes_fit or any((count < 0).any() or (count > max(n_rows, n_models)).any() for count in counts.values()):
        raise ArtifactError("The stored calibration has counts that do not fit its margins, models and rows.")
    if (counts["accepted"] > counts["answered"][:, None]).any() or (np.diff(values["margins"]) < 0).any():
        raise ArtifactError("The stored calibration has more acceptances than answers, or margins out of order.")
    return SurvivalTable(**values, **counts)
