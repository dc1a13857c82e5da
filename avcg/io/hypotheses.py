"""Hypotheses packed into plain values and arrays, and unpacked again."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from avcg.errors import ArtifactError, AvcgError, SettingError
from avcg.hypotheses.black_box import BlackBoxPredictors
from avcg.hypotheses.on_device import OnDevice
from avcg.hypotheses.predictors import Joined, Predictors, Stacked, normalised
from avcg.io.black_boxes import BOX, open_box, pack_box
from avcg.io.folder import validate
from avcg.io.networks import build, describe
from avcg.models.adapter import model_spec
from avcg.models.black_box import BlackBox
from avcg.space.serialize import pack_rows, unpack_rows

# Patterns of hypotheses, networks and black boxes in the manifest.
_KINDS = (
    {"kind": "joined", "groups": [dict], "order": ([int], None)},
    {"kind": "stacked", "network": int},
    {"kind": "black_boxes", "members": [int]},
)
PARTS = {"networks": [{"layers": (dict, None), "name": str}], "boxes": [BOX], "frames": [dict]}
_TOLERANCE = 1e-4  # largest difference of probabilities between two machines for the same model


class Packer:
    """Collects the parts of hypotheses; parts that several of them share are stored once.

    Args:
        probe: (M, *event) encoded rows on which models are recognised by their probabilities.
        rows: The same rows in user units; None for images.

    Attributes:
        arrays: Arrays by name.
        blobs: Models in the formats of their libraries, by file name.
        networks: Descriptions of networks; ``layers`` is None for networks that cannot be stored.
        boxes: Entries of black boxes.
        frames: The rows in each set of columns and dtypes that black boxes read, as plain values.
        not_stored: Models that cannot be stored, for the caller to keep.
    """

    def __init__(self, probe: Tensor, rows: pd.DataFrame | None) -> None:
        self._probe, self._rows = probe, rows
        self.arrays: dict[str, NDArray[Any]] = {"probe": probe.numpy()}
        self.blobs: dict[str, bytes] = {}
        self.networks: list[dict[str, Any]] = []
        self.boxes: list[dict[str, Any]] = []
        self.frames: list[dict[str, Any]] = []
        self.not_stored: list[Any] = []
        self._readers: list[BlackBox] = []  # one for each frame
        self._positions: dict[object, int] = {}  # of networks and black boxes, by content

    def add(self, name: str, predictors: Predictors) -> dict[str, Any]:
        """Pack hypotheses.

        Args:
            name: Name under which `Unpacker.get` finds them.
            predictors: The hypotheses.

        Returns:
            Their entry of the manifest.

        Raises:
            SettingError: If they are functions of encoded rows, which cannot be stored.
        """
        if isinstance(predictors, OnDevice):
            return self.add(name, predictors.inner.to("cpu"))
        self.arrays[f"{name}.weights"] = as_array(predictors.weights)
        if isinstance(predictors, Joined):
            groups = [self.add(f"{name}.{i}", group) for i, group in enumerate(predictors.groups)]
            order = None if predictors._order is None else predictors._order.tolist()
            return {"kind": "joined", "groups": groups, "order": order}
        if isinstance(predictors, Stacked):
            self.arrays |= {f"{name}.of.{key}": as_array(value) for key, value in predictors.overrides.items()}
            return {"kind": "stacked", "network": self._network(predictors.network)}
        if isinstance(predictors, BlackBoxPredictors):
            return {"kind": "black_boxes", "members": [self._box(box) for box in predictors.members]}
        name = type(predictors).__name__
        raise SettingError(f"Hypotheses of class {name} hold functions, which cannot be saved. Use networks or models.")

    def _network(self, network: nn.Module) -> int:
        layers, probabilities = describe(network), _probabilities(network, self._probe)
        state = {key: as_array(value) for key, value in network.state_dict().items()}
        if layers is not None:
            restored = build(layers, _tensors(state))
            if not np.array_equal(_probabilities(restored, self._probe), probabilities):
                layers = None  # it does something that its layers do not show
        # Compared by content, since every set of hypotheses has a copy of its own.
        weights = ((key, value.tobytes()) for key, value in state.items())
        content = (repr(layers or network), probabilities.tobytes(), *weights)
        if content not in self._positions:
            i = self._positions[content] = len(self.networks)
            self.arrays |= {f"network.{i}.{key}": value for key, value in state.items()}
            self.arrays[f"network.{i}:probabilities"] = probabilities
            self.networks.append({"layers": layers, "name": type(network).__name__})
            if layers is None:
                self.not_stored.append(network)
        return self._positions[content]

    def _box(self, box: BlackBox) -> int:
        assert self._rows is not None
        frame = next((i for i, reader in enumerate(self._readers) if reader.reads_like(box)), len(self.frames))
        if frame == len(self.frames):
            self.frames.append(pack_rows(box.frame_of(self._rows)))
            self._readers.append(box)
        content = (id(box.model), frame, *box.own_classes.tolist())
        if content not in self._positions:
            i = self._positions[content] = len(self.boxes)
            rows = _unpack_frame(self.frames[frame])
            entry, data = pack_box(box, rows)
            if data is not None:
                self.blobs[f"model-{i}.{entry['kind']}"] = data
            elif not any(model is box.model for model in self.not_stored):
                self.not_stored.append(box.model)
            self.arrays[f"box.{i}:probabilities"] = box.predict_proba(rows)
            self.boxes.append({**entry, "frame": frame})
        return self._positions[content]


class Unpacker:
    """Restores hypotheses from what `Packer` collected.

    Args:
        packed: The ``networks``, ``boxes`` and ``frames`` that `Packer` collected.
        arrays: Arrays by name.
        blobs: Models in the formats of their libraries, by file name.
        space: Space of the rows.
        classes: Labels of the classes.
        returned: Models that could not be stored, passed again by the caller in any order.

    Raises:
        ArtifactError: If a model that could not be stored is missing, or one gives other probabilities than it did.
    """

    def __init__(
        self,
        packed: Mapping[str, Any],
        arrays: Mapping[str, NDArray[Any]],
        blobs: Mapping[str, bytes],
        *,
        space: Any,
        classes: NDArray[Any],
        returned: Sequence[Any],
    ) -> None:
        self._arrays, self._blobs, self._space, self._classes = arrays, blobs, space, classes
        self._probe = torch.from_numpy(arrays["probe"])
        self._frames = [_unpack_frame(frame) for frame in packed["frames"]]
        known = () if space is None or space.schema is None else (*space.schema.columns, *space.schema.kept)
        if any(name not in known for frame in self._frames for name in frame):
            raise ArtifactError(
                "The stored rows on which models are recognised have columns that are not in the schema."
            )
        self._returned, self._times_used = returned, [0] * len(returned)
        self._candidates: dict[object, tuple[BlackBox, NDArray[np.float64]] | None] = {}
        self._closest = np.inf
        self._missing: list[str] = []
        not_stored = [entry["name"] for entry in packed["boxes"] if entry["kind"] == "not_stored"]
        not_stored += [entry["name"] for entry in packed["networks"] if entry["layers"] is None]
        if not not_stored and returned:
            raise ArtifactError(
                "All models of this explainer are stored: leave 'model' out. To have its answers judged by another"
                " model, use judged_by, or avcg.audit."
            )
        self._networks = [self._network(i, entry) for i, entry in enumerate(packed["networks"])]
        self._boxes = [self._box(i, entry) for i, entry in enumerate(packed["boxes"])]
        if self._missing:
            self._raise_missing(len(not_stored))

    def get(self, name: str, packed: Mapping[str, Any]) -> Predictors:
        """Restore the hypotheses that were added under a name.

        Args:
            name: Name that was given to `Packer.add`.
            packed: Entry that it returned.

        Raises:
            ArtifactError: If the entry or its weights are invalid.
        """
        wrong = validate(packed, _KINDS, name)
        if wrong is not None:
            raise ArtifactError(f"The stored hypotheses are invalid: {wrong}.")
        predictors: Predictors
        if packed["kind"] == "joined":
            predictors = Joined([self.get(f"{name}.{i}", group) for i, group in enumerate(packed["groups"])])
            order = packed["order"]
            if order is not None and sorted(order) != list(range(len(predictors))):
                raise ArtifactError(f"The stored order of the hypotheses {name!r} does not list each of them once.")
            predictors._order = None if order is None else torch.tensor(order)
        elif packed["kind"] == "stacked":
            predictors = Stacked(_item(self._networks, packed["network"]), self._state(f"{name}.of."))
        else:
            predictors = BlackBoxPredictors([_item(self._boxes, i) for i in packed["members"]])
        weights = torch.from_numpy(self._arrays[f"{name}.weights"])
        normalised(weights, len(predictors))  # raises if they are invalid
        predictors.weights = weights  # unchanged: normalising again may change the last digit
        return predictors

    def _state(self, start: str) -> dict[str, Tensor]:
        return _tensors({key.removeprefix(start): a for key, a in self._arrays.items() if key.startswith(start)})

    def _network(self, i: int, entry: Mapping[str, Any]) -> Any:
        state, expected = self._state(f"network.{i}."), self._arrays[f"network.{i}:probabilities"]
        if entry["layers"] is not None:
            network = build(entry["layers"], state)
            if not _difference(_probabilities(network, self._probe), expected) <= _TOLERANCE:
                raise ArtifactError(
                    "A stored network gives other probabilities here than where it was saved. Fit the explainer again."
                )
            return network
        for model in self._returned:
            with suppress(Exception):  # a model that raises errors of any kind is another one
                network = copy.deepcopy(model_spec(model).network).cpu().eval().requires_grad_(False)
                network.load_state_dict(state)
                if _difference(_probabilities(network, self._probe), expected) <= _TOLERANCE:
                    return network
        self._missing.append(entry["name"])
        return None

    def _box(self, i: int, entry: Mapping[str, Any]) -> Any:
        expected, rows = self._arrays[f"box.{i}:probabilities"], _item(self._frames, entry["frame"])
        if entry["kind"] == "not_stored":
            return self._recognise(entry, expected, rows)
        content = self._blobs[f"model-{i}.{entry['kind']}"]
        box = open_box(entry, content, rows, self._space, self._classes)
        if not _difference(box.predict_proba(rows), expected) <= _TOLERANCE:
            raise ArtifactError(
                f"The stored {entry['name']} gives other probabilities here than where it was saved, perhaps since"
                " another version of its library reads it differently. Fit the explainer again."
            )
        return box

    def _recognise(self, entry: Mapping[str, Any], expected: NDArray[Any], rows: pd.DataFrame) -> BlackBox | None:
        """The returned model with the expected probabilities; among equal ones, the one used least so far."""
        candidates = [self._candidate(i, entry, rows) for i in range(len(self._returned))]
        differences = [np.inf if each is None else _difference(each[1], expected) for each in candidates]
        best = min(range(len(candidates)), key=lambda i: (differences[i], self._times_used[i]), default=None)
        match = None if best is None or not differences[best] <= _TOLERANCE else candidates[best]
        if best is None or match is None:
            self._closest = min([self._closest, *differences])
            self._missing.append(entry["name"])
            return None
        self._times_used[best] += 1
        return match[0]

    def _candidate(
        self, i: int, entry: Mapping[str, Any], rows: pd.DataFrame
    ) -> tuple[BlackBox, NDArray[np.float64]] | None:
        """A returned model with its probabilities for the rows, computed once; None if it does not accept them."""
        key = (i, entry["frame"], entry["arrays"], *entry["classes"])
        if key not in self._candidates:
            try:
                box = open_box(entry, self._returned[i], rows, self._space, self._classes)
                self._candidates[key] = box, box.predict_proba(rows)
            except AvcgError:  # it is another model
                self._candidates[key] = None
        return self._candidates[key]

    def _raise_missing(self, n_not_stored: int) -> None:
        kinds = ", ".join(sorted({name if (n := self._missing.count(name)) == 1 else f"{n} {name}"
                                  for name in self._missing}))  # fmt: skip
        if not self._returned:
            raise ArtifactError(
                f"This explainer was fitted with models that cannot be stored: {kinds}. Pass them again:"
                " avcg.load(path, model=...), one or a list in any order; save returned them."
            )
        closest = "" if self._closest == np.inf else f" The probabilities of the closest differ by {self._closest:.2g}."
        raise ArtifactError(
            f"This explainer was fitted with {n_not_stored} models that cannot be stored. Not all of them are among the"
            f" {len(self._returned)} passed to load: {kinds} missing.{closest} Pass the models that save returned, or"
            " fit the explainer again."
        )


def as_array(value: Tensor) -> NDArray[Any]:
    """A tensor as an array of the same values; bfloat16, which numpy does not have, becomes float32."""
    detached = value.detach().cpu()
    return (detached.float() if detached.dtype == torch.bfloat16 else detached).numpy()


def _tensors(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _unpack_frame(frame: dict[str, Any]) -> pd.DataFrame:
    """Rows after a round trip through JSON, so that packing and unpacking compare models on identical rows."""
    rows = unpack_rows(frame)
    if not isinstance(rows, pd.DataFrame):
        raise ArtifactError("The stored rows on which models are recognised are not a table.")
    mixed = [str(name) for name, dtype in rows.dtypes.items() if str(dtype) == "object"]
    return rows.assign(**{name: rows[name].where(rows[name].notna(), np.nan) for name in mixed})  # JSON has no NaN


@torch.no_grad()
def _probabilities(network: nn.Module, probe: Tensor) -> NDArray[np.float32]:
    """(M, C) probabilities."""
    return np.asarray(Stacked(network, {}).log_probs(probe).exp()[0])


def _difference(probabilities: NDArray[Any], expected: NDArray[Any]) -> float:
    """The largest absolute difference; infinite for arrays of other shapes."""
    same_shape = probabilities.shape == expected.shape
    return float(np.abs(probabilities - expected).max(initial=0.0)) if same_shape else np.inf


def _item(items: Sequence[Any], i: int) -> Any:
    if not 0 <= i < len(items):
        raise ArtifactError(f"The manifest refers to part {i}, and {len(items)} parts are stored.")
    return items[i]
