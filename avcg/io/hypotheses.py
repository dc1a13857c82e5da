"""Hypotheses as plain values and arrays, and back."""

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
from avcg.hypotheses.predictors import Joined, OnDevice, Predictors, Stacked, normalised
from avcg.io.black_boxes import BOX, open_box, pack_box
from avcg.io.folder import validate
from avcg.io.networks import build, describe
from avcg.models.adapter import model_spec
from avcg.models.black_box import BlackBox
from avcg.space.serialize import pack_rows, unpack_rows

# What hypotheses, networks and black boxes look like.
_KINDS = (
    {"kind": "joined", "groups": [dict], "order": ([int], None)},
    {"kind": "stacked", "network": int},
    {"kind": "asked", "members": [int]},
)
PARTS = {"networks": [{"layers": (dict, None), "name": str}], "boxes": [BOX], "frames": [dict]}
_CLOSE = 1e-4  # by which probabilities may differ on another machine and be those of the same model


class Packer:
    """Collects what hypotheses are made of; what two of them share is kept once.

    Args:
        probe: (M, *event) codes, to recognise models by.
        rows: The same rows in user units; None for images.

    Attributes:
        arrays: By name.
        blobs: Files in other formats, by name.
        networks: Descriptions, None for those of the user's own making.
        boxes: Plain values of each black box.
        frames: The rows in the columns and dtypes that black boxes read, as plain values.
        left: Models that cannot be stored, for the caller to keep.
    """

    def __init__(self, probe: Tensor, rows: pd.DataFrame | None) -> None:
        self._probe, self._rows = probe, rows
        self.arrays: dict[str, NDArray[Any]] = {"probe": probe.numpy()}
        self.blobs: dict[str, bytes] = {}
        self.networks: list[dict[str, Any]] = []
        self.boxes: list[dict[str, Any]] = []
        self.frames: list[dict[str, Any]] = []
        self.left: list[Any] = []
        self._readers: list[BlackBox] = []  # one for each frame
        self._known: dict[object, int] = {}

    def add(self, name: str, predictors: Predictors) -> dict[str, Any]:
        """Keep hypotheses, and say as plain values how to put them together again.

        Raises:
            SettingError: If they are functions of codes, which no file can hold.
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
            return {"kind": "asked", "members": [self._box(box) for box in predictors.members]}
        raise SettingError(f"Hypotheses of the kind {type(predictors).__name__} are functions, which cannot be saved.")

    def _network(self, network: nn.Module) -> int:
        layers, said = describe(network), _said(network, self._probe)
        state = {key: as_array(value) for key, value in network.state_dict().items()}
        if layers is not None and not np.array_equal(_said(build(layers, _tensors(state)), self._probe), said):
            layers = None  # there is more to it than it seems
        # By content: every set of hypotheses has a copy of its own.
        content = (repr(layers or network), said.tobytes(), *((key, one.tobytes()) for key, one in state.items()))
        if content not in self._known:
            place = self._known[content] = len(self.networks)
            self.arrays |= {f"network.{place}.{key}": value for key, value in state.items()}
            self.arrays[f"network.{place}:said"] = said
            self.networks.append({"layers": layers, "name": type(network).__name__})
            if layers is None:
                self.left.append(network)
        return self._known[content]

    def _box(self, box: BlackBox) -> int:
        assert self._rows is not None
        frame = next((i for i, one in enumerate(self._readers) if one.reads_like(box)), len(self.frames))
        if frame == len(self.frames):
            self.frames.append(pack_rows(box.frame_of(self._rows)))
            self._readers.append(box)
        content = (id(box.model), frame, *box.own_classes.tolist())
        if content not in self._known:
            place = self._known[content] = len(self.boxes)
            rows = _unpacked(self.frames[frame])
            entry, data = pack_box(box, rows)
            if data is not None:
                self.blobs[f"model-{place}.{entry['kind']}"] = data
            elif not any(one is box.model for one in self.left):
                self.left.append(box.model)
            self.arrays[f"box.{place}:said"] = box.predict_proba(rows)
            self.boxes.append({**entry, "frame": frame})
        return self._known[content]


class Unpacker:
    """Puts hypotheses together again.

    Args:
        packed: The ``networks``, ``boxes`` and ``frames`` that `Packer` collected.
        arrays: By name.
        blobs: Files in other formats.
        space: What codes mean.
        classes: The labels.
        handed: Models that the caller hands back.

    Raises:
        ArtifactError: If models are missing among those handed, or what was stored does not say what it said.
    """

    def __init__(
        self,
        packed: Mapping[str, Any],
        arrays: Mapping[str, NDArray[Any]],
        blobs: Mapping[str, bytes],
        *,
        space: Any,
        classes: NDArray[Any],
        handed: Sequence[Any],
    ) -> None:
        self._arrays, self._blobs, self._space, self._classes = arrays, blobs, space, classes
        self._probe = torch.from_numpy(arrays["probe"])
        self._frames = [_unpacked(frame) for frame in packed["frames"]]
        if any(name not in space.schema for frame in self._frames for name in frame):
            raise ArtifactError("The rows to recognise models by have columns that the schema does not know.")
        self._handed, self._times_taken = handed, [0] * len(handed)
        self._heard: dict[object, tuple[BlackBox, NDArray[np.float64]] | None] = {}
        self._closest = np.inf
        self._missing: list[str] = []
        absent = [each["name"] for each in packed["boxes"] if each["kind"] == "given"]
        absent += [each["name"] for each in packed["networks"] if each["layers"] is None]
        if not absent and handed:
            raise ArtifactError(
                "All models of this explainer are stored, so there is none to hand back. To have its answers judged by"
                " another model, use judged_by, or avcg.audit."
            )
        self._networks = [self._network(i, each) for i, each in enumerate(packed["networks"])]
        self._boxes = [self._box(i, each) for i, each in enumerate(packed["boxes"])]
        if self._missing:
            self._refuse(len(absent))

    def get(self, name: str, packed: Mapping[str, Any]) -> Predictors:
        """The hypotheses that were added under a name."""
        wrong = validate(packed, _KINDS, name)
        if wrong is not None:
            raise ArtifactError(f"These are no hypotheses: {wrong}.")
        found: Predictors
        if packed["kind"] == "joined":
            found = Joined([self.get(f"{name}.{i}", group) for i, group in enumerate(packed["groups"])])
            order = packed["order"]
            if order is not None and sorted(order) != list(range(len(found))):
                raise ArtifactError(f"The order of the hypotheses {name!r} is none: it leaves some out.")
            found._order = None if order is None else torch.tensor(order)
        elif packed["kind"] == "stacked":
            found = Stacked(_nth(self._networks, packed["network"]), self._state(f"{name}.of."))
        else:
            found = BlackBoxPredictors([_nth(self._boxes, place) for place in packed["members"]])
        weights = torch.from_numpy(self._arrays[f"{name}.weights"])
        normalised(weights, len(found))  # refuses what are no weights
        found.weights = weights  # as they are: scaling them again may change the last digit
        return found

    def _state(self, start: str) -> dict[str, Tensor]:
        return _tensors({key.removeprefix(start): a for key, a in self._arrays.items() if key.startswith(start)})

    def _network(self, place: int, entry: Mapping[str, Any]) -> Any:
        state, said = self._state(f"network.{place}."), self._arrays[f"network.{place}:said"]
        if entry["layers"] is not None:
            network = build(entry["layers"], state)
            if not _apart(_said(network, self._probe), said) <= _CLOSE:
                raise ArtifactError("A stored network says something else here than where it was saved. Fit again.")
            return network
        for one in self._handed:
            with suppress(Exception):  # somebody else's code, or something else: it is not this one
                own = copy.deepcopy(model_spec(one).network).cpu().eval().requires_grad_(False)
                own.load_state_dict(state)
                if _apart(_said(own, self._probe), said) <= _CLOSE:
                    return own
        self._missing.append(entry["name"])
        return None

    def _box(self, place: int, entry: Mapping[str, Any]) -> Any:
        said, rows = self._arrays[f"box.{place}:said"], _nth(self._frames, entry["frame"])
        if entry["kind"] == "given":
            return self._recognised(entry, said, rows)
        content = self._blobs[f"model-{place}.{entry['kind']}"]
        box = open_box(entry, content, rows, self._space, self._classes)
        if not _apart(box.predict_proba(rows), said) <= _CLOSE:
            raise ArtifactError(
                f"The stored {entry['name']} says something else here than where it was saved: another version of its"
                " library reads it otherwise. Fit again."
            )
        return box

    def _recognised(self, entry: Mapping[str, Any], said: NDArray[Any], rows: pd.DataFrame) -> BlackBox | None:
        """The one of the models handed back that says what was said; of those that say the same, one not taken yet."""
        heard = [self._ask(i, entry, rows) for i in range(len(self._handed))]
        off = [np.inf if one is None else _apart(one[1], said) for one in heard]
        best = min(range(len(heard)), key=lambda i: (off[i], self._times_taken[i]), default=None)
        found = None if best is None or not off[best] <= _CLOSE else heard[best]
        if best is None or found is None:
            self._closest = min([self._closest, *off])
            self._missing.append(entry["name"])
            return None
        self._times_taken[best] += 1
        return found[0]

    def _ask(self, i: int, entry: Mapping[str, Any], rows: pd.DataFrame) -> tuple[BlackBox, NDArray[np.float64]] | None:
        """What a model handed back says of the rows, asked once; None where it cannot be asked about them."""
        key = (i, entry["frame"], entry["arrays"], *entry["classes"])
        if key not in self._heard:
            try:
                box = open_box(entry, self._handed[i], rows, self._space, self._classes)
                self._heard[key] = box, box.predict_proba(rows)
            except AvcgError:  # it is something else
                self._heard[key] = None
        return self._heard[key]

    def _refuse(self, wanted: int) -> None:
        kinds = ", ".join(sorted({name if (n := self._missing.count(name)) == 1 else f"{n} {name}"
                                  for name in self._missing}))  # fmt: skip
        if not self._handed:
            raise ArtifactError(
                f"This explainer was fitted with models that cannot be stored: {kinds}. Hand them back:"
                " avcg.load(path, model=...), one or a list in any order; save returned them."
            )
        near = "" if self._closest == np.inf else f" The closest says otherwise by up to {self._closest:.2g}."
        raise ArtifactError(
            f"Of the {wanted} models that this explainer was fitted with and that are to be handed back, some are not"
            f" among the {len(self._handed)} handed to load: {kinds}.{near} Hand back the very models that save"
            " returned, or fit again."
        )


def as_array(value: Tensor) -> NDArray[Any]:
    """A tensor as an array of the same numbers."""
    plain = value.detach().cpu()
    return (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()  # numpy has no such short numbers


def _tensors(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _unpacked(frame: dict[str, Any]) -> pd.DataFrame:
    """Rows as JSON holds them: the same when they are packed and when they are read again."""
    rows = unpack_rows(frame)
    if not isinstance(rows, pd.DataFrame):
        raise ArtifactError("The rows to recognise models by are no table.")
    mixed = [str(name) for name, dtype in rows.dtypes.items() if str(dtype) == "object"]
    return rows.assign(**{name: rows[name].where(rows[name].notna(), np.nan) for name in mixed})  # JSON has no NaN


@torch.no_grad()
def _said(network: nn.Module, probe: Tensor) -> NDArray[np.float32]:
    """(M, C) probabilities."""
    return np.asarray(Stacked(network, {}).log_probs(probe).exp()[0])


def _apart(found: NDArray[Any], said: NDArray[Any]) -> float:
    """By how much probabilities differ at most."""
    return float(np.abs(found - said).max(initial=0.0)) if found.shape == said.shape else np.inf


def _nth(items: Sequence[Any], place: int) -> Any:
    if not 0 <= place < len(items):
        raise ArtifactError(f"There is no part {place} among {len(items)}.")
    return items[place]
