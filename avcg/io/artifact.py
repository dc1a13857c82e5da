"""Saving a fitted explainer to a folder that holds no code, and loading it with the same answers to the last bit."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import avcg
from avcg.errors import ArtifactError, DataError, MissingExtraError, SchemaError, SettingError, check_int
from avcg.explainers.avcg import AVCG
from avcg.hypotheses.black_box import BlackBoxPredictors
from avcg.hypotheses.finite import FiniteSet
from avcg.hypotheses.on_device import OnDevice
from avcg.hypotheses.predictors import Predictors, Stacked
from avcg.hypotheses.split import HypothesisSplit, SplitConfig
from avcg.io.calibration import CALIBRATION, pack_calibration, unpack_calibration
from avcg.io.folder import (
    FORMAT,
    VERSION,
    invalid_note,
    json_round_trip,
    read_folder,
    read_manifest,
    stored_notes,
    validate,
    write_folder,
)
from avcg.io.hypotheses import PARTS, Packer, Unpacker, as_array
from avcg.io.onnx import scorer_parts
from avcg.io.spaces import kind_of, pack_encoding, pack_limits, unpack_config, unpack_encoding
from avcg.io.tensors import read_tensors, write_tensors
from avcg.method import risk
from avcg.method.config import CalibrationConfig, DiagnosticsConfig, DistillationConfig, ReferenceConfig, SearchConfig
from avcg.method.deployed import DeployedModel
from avcg.method.distillation import Distillation, Fidelity
from avcg.method.generator import Generator
from avcg.method.multipliers import ConstraintConfig, Multipliers
from avcg.method.objective import Weights
from avcg.method.query import Query
from avcg.method.recipe import Recipe, mean_squared
from avcg.method.reference_set import ReferenceSet
from avcg.schema.schema import Schema
from avcg.space.base import Space
from avcg.space.images import ImageSpace
from avcg.space.serialize import pack_rows, unpack_rows
from avcg.space.tabular import TabularSpace

_WEIGHTS = "weights.safetensors"
# Rows by which models are told apart: reference rows of each class, and crossings of two, between the splits of trees.
_PROBES_PER_CLASS, _CROSSED_PROBES = 16, 128
_LIBRARIES = ("numpy", "pandas", "scikit-learn", "torch")
_MAX_LABEL_BYTES = 4096
_CONFIGS: dict[str, Any] = {
    "split": SplitConfig,
    "reference": ReferenceConfig,
    "search": SearchConfig,
    "calibration": CalibrationConfig,
    "diagnostics": DiagnosticsConfig,
    "distillation": DistillationConfig,
}
_OPTIONAL_CONFIGS = {"constraint": ConstraintConfig}
# Risks and distances that a recipe stores by name: functions of this package, and classes with numbers as parameters.
_FUNCTIONS = {
    function.__name__: function
    for function in (risk.expected_log_likelihood, risk.log_expected_likelihood, risk.worst_case, mean_squared)
}
_FUNCTION_CLASSES = {kind.__name__: kind for kind in (risk.Entropic, risk.CVaR, risk.Hinge)}
# Patterns of the manifest, as `validate` takes them.
_COLUMN = {"dtype": str, "categories": (list, None), "ordered": (bool, None), "values": list}
_ROWS = {"columns": {...: _COLUMN}, "index": [_COLUMN], "index_names": list}
_CONTENT: dict[Any, Any] = {
    "space": {"kind": ("table", "images"), ...: object},
    "classes": {"dtype": str, "values": [(bool, float, str)]},
    "settings": {
        "schema": (str, None), "recipe": (dict, None), "model": bool, "threshold": (float, None), "survival": float,
        "n_test": (int, None), "random_state": int, "reliability": float, "guarantee": str, "confidence": float,
    },
    "recipe": dict,
    "n_latent": int,
    "calibration": CALIBRATION,
    "countable": bool,
    "multipliers": ([float], None),
    "diagnostics": _ROWS,
    "fidelity": [{"rows": str, "agreement": float, "difference": float, "n_rows": int}],
    "hypotheses": {
        "judges": dict, "train": (dict, None), "calibration": (dict, None), "test": (dict, None), "deployed": dict,
        "students": (dict, None),
    },
    **PARTS,
    "about?": dict,
    ...: object,
}  # fmt: skip
_IMAGES = {"kind": "images", "layout": ("none", "last", "first"), "dtype": str, "size": [int, int, int]}
_IMAGE_ARRAYS = ("mean", "std", "low", "high", "may_change")


def save(
    explainer: AVCG, path: str | Path, *, graphs: bool = False, about: Mapping[str, Any] | None = None
) -> list[Any]:
    """Write a fitted explainer to a folder; see `AVCG.save`."""
    if not hasattr(explainer, "is_fitted_"):
        raise SettingError("Only a fitted explainer can be saved. Call fit first.")
    notes = json_round_trip(about or {})
    wrong = invalid_note(notes, explainer.classes_.tolist())
    if wrong is not None:
        raise SettingError(f"The 'about' of save has a note that commands could not use: {wrong}.")
    space, probe = explainer.space_, _probe(explainer)
    packer = Packer(probe, space.decode(probe) if isinstance(space, TabularSpace) else None)
    content, arrays = _pack_space(space)
    content |= _pack_settings(explainer)
    split = explainer.split_
    train = split.train.predictors if isinstance(split.train, FiniteSet) else None
    parts = {
        "judges": explainer.judges_,
        "train": None if train is explainer.judges_ else train,
        "calibration": split.calibration,
        "test": split.test,
        "deployed": split.deployed,
        "students": None if explainer.distillation_ is None else explainer.distillation_.students,
    }
    content["hypotheses"] = {name: None if part is None else packer.add(name, part) for name, part in parts.items()}
    content |= {"networks": packer.networks, "boxes": packer.boxes, "frames": packer.frames}
    arrays |= packer.arrays | {f"reference.{i}": as_array(rows) for i, rows in enumerate(explainer.reference_set_.rows)}
    held = explainer.calibration_query_
    arrays |= {"calibration.x": held.x, "calibration.target": held.target.astype(np.int64)}
    arrays |= {f"generator.{name}": as_array(value) for name, value in explainer.generator_.state_dict().items()}
    files = {_WEIGHTS: write_tensors(arrays), **packer.blobs}
    if graphs:
        content["scorer"], graph_files = scorer_parts(explainer)
        files |= graph_files
    content["about"] = notes
    write_folder(path, {"format": FORMAT, "version": VERSION, "made_with": _versions(), **content}, files)
    return packer.not_stored


def about(path: str | Path) -> dict[str, Any]:
    """The notes that were saved with an explainer; nothing but the manifest is read.

    Args:
        path: Folder of the explainer.

    Raises:
        ArtifactError: If the folder is missing, changed or of another format version, or a note is invalid.
    """
    return stored_notes(path, read_manifest(path, FORMAT, VERSION))


def load(path: str | Path, *, model: Any = None, device: str = "cpu") -> AVCG:
    """Load an explainer that `AVCG.save` wrote.

    It answers as the one that was saved, to the last bit on the same machine. A distribution with any number of draws,
    such as `MCDropout`, is restored as the draws that were in use.

    Args:
        path: Folder of the explainer.
        model: Models that could not be stored, one or a list in any order: scikit-learn's forests, functions, networks
            with layers of your own. They are recognised by their probabilities. None: all models are stored.
        device: Device to answer on, as torch names it.

    Raises:
        ArtifactError: If the folder is missing, changed or of another format version, or a model is missing or
            another one.
    """
    content, files = read_folder(path, FORMAT, VERSION)
    returned = [] if model is None else list(model) if isinstance(model, (list, tuple)) else [model]
    wrong = validate(content, _CONTENT)
    if wrong is not None:
        raise ArtifactError(f"{path} was not written by AVCG.save: {wrong}.")
    try:
        explainer = _restore(content, files, returned)
    except (ArtifactError, SchemaError, DataError, MissingExtraError):
        raise
    except Exception as error:  # a folder that was written by other means can raise anything
        raise ArtifactError(f"{path} was not written by AVCG.save: {type(error).__name__}: {error}.") from error
    return explainer if device == "cpu" else _to_device(explainer, device)


def _probe(explainer: AVCG) -> Tensor:
    """(M, *event) rows on which models are recognised by their probabilities."""
    probes = torch.cat([rows[:_PROBES_PER_CLASS] for rows in explainer.reference_set_.rows])
    if not isinstance(explainer.space_, TabularSpace):
        return probes
    references, rng = torch.cat(list(explainer.reference_set_.rows)), torch.Generator().manual_seed(0)
    first, second = torch.randint(len(references), (2, _CROSSED_PROBES), generator=rng)
    return torch.cat([probes, explainer.space_.cross(references[first], references[second], rng)])


def _restore(content: Mapping[str, Any], files: Mapping[str, bytes], returned: Sequence[Any]) -> AVCG:
    arrays = read_tensors(files[_WEIGHTS])
    space, classes = _unpack_space(content["space"], arrays), _unpack_classes(content["classes"])
    unpacker = Unpacker(content, arrays, files, space=space, classes=classes, returned=returned)
    parts: dict[str, Any] = {
        name: None if part is None else unpacker.get(name, part) for name, part in content["hypotheses"].items()
    }
    deployed, settings = parts["deployed"], content["settings"]
    train = FiniteSet(parts["train"] or parts["judges"], space, classes, deployed)
    explainer = AVCG(
        train,
        None if settings["schema"] is None else Schema.from_json(settings["schema"]),
        model=_as_model(deployed) if settings["model"] else None,
        threshold=settings["threshold"],
        survival=settings["survival"],
        reliability=settings["reliability"],
        guarantee=settings["guarantee"],
        confidence=settings["confidence"],
        recipe=None if settings["recipe"] is None else _unpack_recipe(settings["recipe"]),
        n_test=settings["n_test"],
        random_state=check_int(settings["random_state"], "'random_state'", 0),
    )
    explainer.space_, explainer.classes_, explainer.judges_ = space, classes, parts["judges"]
    basis = (deployed, content["countable"], content["calibration"].get("around_one_network", False))
    explainer.split_ = HypothesisSplit(train, parts["calibration"], parts["test"], *basis)
    explainer.deployed_ = DeployedModel(deployed, explainer.threshold)
    _restore_trained(explainer, content, arrays, parts["students"])
    return explainer


def _restore_trained(
    explainer: AVCG, content: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], students: Predictors | None
) -> None:
    """Set the attributes that training sets."""
    rows = tuple(torch.from_numpy(arrays[f"reference.{i}"]) for i in range(len(explainer.classes_)))
    if any(part.shape[1:] != explainer.space_.event_shape or not len(part) for part in rows):
        raise ArtifactError("The stored reference rows do not fit the space.")
    explainer.recipe_ = _unpack_recipe(content["recipe"])
    explainer.reference_set_ = ReferenceSet(rows, explainer.recipe_.reference.n_neighbours)
    explainer.calibration_ = unpack_calibration(content["calibration"], explainer.classes_.tolist())
    explainer.promise_, explainer.calibrate_on = explainer.calibration_.promise, explainer.calibration_.past
    explainer.calibration_query_ = _unpack_query(explainer, arrays)
    explainer.multipliers_ = _unpack_multipliers(explainer.recipe_, content["multipliers"])
    explainer.diagnostics_ = unpack_rows(content["diagnostics"])
    if students is not None:
        if not isinstance(students, Stacked):
            raise ArtifactError("The stored students of black boxes must be networks of one architecture.")
        explainer.distillation_ = Distillation.of(
            students, [Fidelity(**entry) for entry in content["fidelity"]], explainer.recipe_.distillation
        )
    explainer.generator_ = _unpack_generator(explainer, arrays, content["n_latent"])
    explainer.is_fitted_ = True


def _to_device(explainer: AVCG, name: str) -> AVCG:
    """Move an explainer to a device."""
    explainer.device = name
    device = explainer._torch_device()
    if device.type != "cpu":
        explainer.judges_, explainer.split_ = OnDevice(explainer.judges_, device), explainer.split_.on(device)
        explainer.deployed_ = DeployedModel(explainer.split_.deployed, explainer.threshold)
        explainer.generator_.to(device)
    return explainer


def _as_model(deployed: Predictors) -> Any:
    """The deployed model as the user passes it to `AVCG`, if it is a single model."""
    if isinstance(deployed, BlackBoxPredictors) and len(deployed) == 1:
        return deployed.members[0]
    return deployed.network if isinstance(deployed, Stacked) and not deployed.overrides else None


def _pack_settings(explainer: AVCG) -> dict[str, Any]:
    names = ("survival", "reliability", "guarantee", "confidence", "n_test", "random_state")
    settings = {name: getattr(explainer, name) for name in names}
    settings |= {"threshold": explainer.deployed_.threshold, "model": explainer.model is not None}
    settings["schema"] = None if explainer.schema is None else explainer.schema.to_json()
    settings["recipe"] = None if explainer.recipe is None else _pack_recipe(explainer.recipe)
    distillation, multipliers = explainer.distillation_, explainer.multipliers_
    return {
        "settings": settings,
        "classes": _pack_classes(explainer.classes_),
        "recipe": _pack_recipe(explainer.recipe_),
        "n_latent": explainer.generator_.n_latent,
        "calibration": pack_calibration(explainer.calibration_),
        "countable": explainer.split_.countable,
        "multipliers": None if multipliers is None else multipliers.values.tolist(),
        # Losses of a training that diverged may be infinite, which JSON cannot hold.
        "diagnostics": pack_rows(explainer.diagnostics_.replace([np.inf, -np.inf], np.nan)),
        "fidelity": [] if distillation is None else [asdict(fidelity) for fidelity in distillation.fidelity],
    }


def _pack_space(space: Space) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    if isinstance(space, TabularSpace):
        entry, arrays = pack_encoding(space.encoding, space.feasible.links)
        return {"space": {"kind": "table", **entry}}, arrays | pack_limits(space.encoding, space.feasible)
    assert isinstance(space, ImageSpace)
    entry = {"kind": "images", "layout": space.layout, "dtype": str(space.dtype), "size": list(space.size)}
    return {"space": entry}, {f"space.{name}": as_array(getattr(space, name)) for name in _IMAGE_ARRAYS}


def _unpack_space(entry: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Space:
    if entry["kind"] == "table":
        return TabularSpace(*unpack_encoding(entry, arrays))
    wrong = validate(entry, _IMAGES, "space")
    tensors: dict[str, Tensor] = {name: torch.from_numpy(arrays[f"space.{name}"]) for name in _IMAGE_ARRAYS}
    depth, height, width = size = entry["size"] if wrong is None else (0, 0, 0)
    for name, tensor in tensors.items():
        shape = (depth,) if name in ("mean", "std") else (1, 1 if name == "may_change" else depth, height, width)
        fits = len(tensor.shape) == len(shape) and all(a in (1, b) for a, b in zip(tensor.shape, shape, strict=True))
        if not fits or (tensor.dtype == torch.bool) is not (name == "may_change"):
            wrong = f"{name} is of shape {tuple(tensor.shape)}"
    dtype = np.dtype("uint8" if wrong else entry["dtype"])
    if wrong is not None or (dtype != np.uint8 and dtype.kind != "f") or (entry["layout"] == "none" and depth != 1):
        raise ArtifactError(f"The stored space of images is invalid: {wrong or entry}.")
    return ImageSpace(layout=entry["layout"], dtype=dtype, size=tuple(size), **tensors)


def _pack_classes(classes: NDArray[Any]) -> dict[str, Any]:
    entry = {"dtype": str(classes.dtype), "values": classes.tolist()}
    try:
        _unpack_classes(entry)
    except (ArtifactError, TypeError):
        raise SettingError(f"Labels of dtype {classes.dtype} cannot be stored. Use texts or numbers.") from None
    return entry


def _unpack_classes(entry: Mapping[str, Any]) -> NDArray[Any]:
    dtype, values = np.dtype(entry["dtype"]), entry["values"]
    if dtype.kind not in "biufUO" or dtype.itemsize > _MAX_LABEL_BYTES or len(set(values)) < max(2, len(values)):
        raise ArtifactError(f"The stored classes are not distinct labels: {entry!r:.200}.")
    classes = np.array(values, dtype=dtype)
    if classes.tolist() != values:
        raise ArtifactError(f"The stored labels {values!r:.200} are not of dtype {dtype}.")
    return classes


def _unpack_generator(explainer: AVCG, arrays: Mapping[str, NDArray[Any]], n_latent: int) -> Generator:
    recipe, prefix = explainer.recipe_, "generator."
    state = {name.removeprefix(prefix): torch.from_numpy(a) for name, a in arrays.items() if name.startswith(prefix)}
    stored = sum(value.numel() for value in state.values())
    for widths in ((*recipe.encoder, 2 * n_latent), (n_latent, *recipe.layers)):  # before memory is allocated for them
        if min(widths) < 1 or max(widths) > stored or sum(a * b for a, b in pairwise(widths)) > stored:
            raise ArtifactError(f"The stored generator has fewer numbers than layers of {widths} need.")
    generator = recipe.build_generator(explainer.space_, len(explainer.classes_), n_latent=n_latent)
    try:
        generator.load_state_dict(state, assign=True)
    except RuntimeError as error:
        raise ArtifactError(f"The stored generator is of another shape: {error}") from None
    return generator.requires_grad_(False).eval()


def _unpack_query(explainer: AVCG, arrays: Mapping[str, NDArray[Any]]) -> Query:
    """The rows that the explainer was calibrated by."""
    x, target = arrays["calibration.x"], arrays["calibration.target"]
    shape, n_classes = explainer.space_.event_shape, len(explainer.classes_)
    fits = (
        (*target.shape, *shape) == x.shape and target.ndim == 1 and x.dtype == np.float32 and target.dtype == np.int64
    )
    if not fits or not np.isfinite(x).all() or ((target < 0) | (target >= n_classes)).any():
        raise ArtifactError("The stored calibration rows do not fit the space and the classes.")
    return Query(x, target.astype(np.intp), explainer.space_.codes)


def _unpack_multipliers(recipe: Recipe, values: Sequence[float] | None) -> Multipliers | None:
    if values is None or recipe.constraint is None:
        return None
    multipliers = Multipliers(recipe.constraint, recipe.margins, recipe.weights.nll)
    if len(values) != len(multipliers.values):
        raise ArtifactError(f"There must be {len(multipliers.values)} stored multipliers. Got {len(values)}.")
    multipliers.values = torch.tensor(values)
    return multipliers


def _pack_recipe(recipe: Recipe) -> dict[str, Any]:
    entry = {field.name: getattr(recipe, field.name) for field in fields(Recipe)}
    entry["weights"] = asdict(recipe.weights)
    entry |= {name: asdict(getattr(recipe, name)) for name in _CONFIGS}
    entry |= {
        name: None if getattr(recipe, name) is None else asdict(getattr(recipe, name)) for name in _OPTIONAL_CONFIGS
    }
    entry["risk"], entry["distance"] = _pack_function(recipe.risk), _pack_function(recipe.distance)
    return entry


def _pack_function(function: Any) -> dict[str, Any] | None:
    """A risk or distance of this package by name and parameters; of any other, only the name is kept."""
    if function is None:
        return None
    kind = type(function)
    name = getattr(function, "__name__", kind.__name__)
    if _FUNCTIONS.get(name) is function:
        return {"function": name}
    if _FUNCTION_CLASSES.get(kind.__name__) is kind:
        numbers = {field.name: getattr(function, field.name) for field in fields(function)}
        if not any(isinstance(value, Tensor) for value in numbers.values()):
            return {"function": name, **numbers}
    return {"not_stored": name}


def _unpack_recipe(entry: Mapping[str, Any]) -> Recipe:
    pattern: dict[Any, Any] = {f"{name}?": kind_of(value) for name, value in vars(Recipe()).items()}
    pattern |= {f"{name}?": dict for name in _CONFIGS} | {"margins?": [float, float], "noise?": [float, float]}
    pattern |= {f"{name}?": (dict, None) for name in _OPTIONAL_CONFIGS}
    weights = {f"{field.name}?": float for field in fields(Weights)}
    pattern |= {"weights?": weights, "temperature?": ([float, float], None)}
    pattern |= dict.fromkeys(("risk?", "distance?"), ({"function": str, ...: float}, {"not_stored": str}, None))
    wrong = validate(entry, pattern, "recipe")
    if wrong is not None:
        raise ArtifactError(f"The stored recipe is invalid: {wrong}.")
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}
    values |= {"weights": Weights(**entry["weights"])} if "weights" in entry else {}
    values |= {name: unpack_config(kind, entry[name]) for name, kind in _CONFIGS.items() if name in entry}
    values |= {
        name: unpack_config(kind, entry[name])
        for name, kind in _OPTIONAL_CONFIGS.items()
        if entry.get(name) is not None
    }
    values |= {name: _unpack_function(entry[name]) for name in ("risk", "distance") if name in entry}
    return Recipe(**values)


def _unpack_function(entry: Mapping[str, Any] | None) -> Any:
    if entry is None:
        return None
    if "not_stored" in entry:
        return _NotStored(entry["not_stored"])
    name, numbers = entry["function"], {key: value for key, value in entry.items() if key != "function"}
    return _FUNCTIONS[name] if name in _FUNCTIONS and not numbers else _FUNCTION_CLASSES[name](**numbers)


class _NotStored:
    """Stands for a risk or distance of the user's own, which cannot be stored. Answering does not call it."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, first: Tensor, second: Tensor) -> Tensor:  # noqa: ARG002  as risks and distances are called
        raise SettingError(
            f"This explainer was trained with {self.__name__!r}, a function of your own that cannot be stored. To"
            " measure or refit, set it again: explainer.recipe_ = dataclasses.replace(explainer.recipe_, risk=...)."
        )


def _versions() -> dict[str, str]:
    versions = {"avcg": avcg.__version__, "python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:  # on the path without being installed as a package
            versions[name] = "unknown"
    return versions
