"""A fitted explainer as a folder, and back: the same answers to the last bit, and never a line of code in it."""

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
from avcg.hypotheses.predictors import OnDevice, Predictors, Stacked
from avcg.hypotheses.split import HypothesisSplit, SplitConfig
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
from avcg.method.calibration import Calibration
from avcg.method.config import CalibrationConfig, DiagnosticsConfig, DistillationConfig, ReferenceConfig, SearchConfig
from avcg.method.deployed import DeployedModel
from avcg.method.distillation import Distillation, Fidelity
from avcg.method.generator import Generator
from avcg.method.objective import Weights
from avcg.method.recipe import Recipe, mean_squared
from avcg.method.reference_set import ReferenceSet
from avcg.schema.schema import Schema
from avcg.space.base import Space
from avcg.space.images import ImageSpace
from avcg.space.serialize import pack_rows, unpack_rows
from avcg.space.tabular import TabularSpace

_WEIGHTS = "weights.safetensors"
# Rows by which models are recognised: of each class, and crossed from two, which lie where trees differ.
_PROBES, _CROSSED = 16, 128
_LIBRARIES = ("numpy", "pandas", "scikit-learn", "torch")
_LONGEST_LABEL = 4096
_CONFIGS: dict[str, Any] = {
    "split": SplitConfig,
    "reference": ReferenceConfig,
    "search": SearchConfig,
    "calibration": CalibrationConfig,
    "diagnostics": DiagnosticsConfig,
    "distillation": DistillationConfig,
}
# What a recipe may name: functions of this package, and those that are made with numbers.
_FUNCTIONS = {
    one.__name__: one
    for one in (risk.expected_log_likelihood, risk.log_expected_likelihood, risk.worst_case, mean_squared)
}
_MADE = {one.__name__: one for one in (risk.Entropic, risk.CVaR, risk.Hinge)}
# What a manifest looks like.
_COLUMN = {"dtype": str, "categories": (list, None), "ordered": (bool, None), "values": list}
_ROWS = {"columns": {...: _COLUMN}, "index": [_COLUMN], "index_names": list}
_CONTENT: dict[Any, Any] = {
    "space": {"kind": ("table", "images"), ...: object},
    "classes": {"dtype": str, "values": [(bool, float, str)]},
    "settings": {
        "schema": (str, None), "recipe": (dict, None), "model": bool, "threshold": (float, None), "survival": float,
        "n_test": (int, None), "random_state": int,
    },
    "recipe": dict,
    "n_latent": int,
    "refined_margin": float,
    "calibration": {
        "margin": float, "promise": float, "met": bool, "survival": float, "n_rows": int, "n_hypotheses": int,
        "standard_errors": float,
        "frontier": _ROWS,
    },
    "diagnostics": _ROWS,
    "fidelity": [{"rows": str, "agreement": float, "difference": float, "n_rows": int}],
    "hypotheses": {
        "judges": dict, "train": (dict, None), "calibration": dict, "test": (dict, None), "deployed": dict,
        "students": (dict, None),
    },
    **PARTS,
    "about?": dict,
    ...: object,
}  # fmt: skip
_PICTURES = {"kind": "images", "layout": ("none", "last", "first"), "dtype": str, "size": [int, int, int]}
_PIXELS = ("mean", "std", "low", "high", "may_change")


def save(
    explainer: AVCG, path: str | Path, *, graphs: bool = False, about: Mapping[str, Any] | None = None
) -> list[Any]:
    """Write a fitted explainer to a folder; see `AVCG.save`."""
    if not hasattr(explainer, "is_fitted_"):
        raise SettingError("Only a fitted explainer can be saved. Call fit first.")
    notes = json_round_trip(about or {})
    wrong = invalid_note(notes, explainer.classes_.tolist())
    if wrong is not None:
        raise SettingError(f"These notes cannot be kept, since commands go by them: {wrong}.")
    space, probe = explainer.space_, _probe(explainer)
    packer = Packer(probe, space.decode(probe) if isinstance(space, TabularSpace) else None)
    content, arrays = _pack_space(space)
    content |= _pack_settings(explainer)
    roles = explainer.split_
    teaching = roles.train.predictors if isinstance(roles.train, FiniteSet) else None
    parts = {
        "judges": explainer.judges_,
        "train": None if teaching is explainer.judges_ else teaching,
        "calibration": roles.calibration,
        "test": roles.test,
        "deployed": roles.deployed,
        "students": None if explainer.distillation_ is None else explainer.distillation_.students,
    }
    content["hypotheses"] = {name: None if one is None else packer.add(name, one) for name, one in parts.items()}
    content |= {"networks": packer.networks, "boxes": packer.boxes, "frames": packer.frames}
    arrays |= packer.arrays | {f"reference.{i}": as_array(rows) for i, rows in enumerate(explainer.reference_set_.rows)}
    arrays |= {f"generator.{name}": as_array(value) for name, value in explainer.generator_.state_dict().items()}
    files = {_WEIGHTS: write_tensors(arrays), **packer.blobs}
    if graphs:
        content["scorer"], more = scorer_parts(explainer)
        files |= more
    content["about"] = notes
    write_folder(path, {"format": FORMAT, "version": VERSION, "made_with": _made_with(), **content}, files)
    return packer.left


def about(path: str | Path) -> dict[str, Any]:
    """What was noted in a folder when it was saved; every other file is left alone.

    Raises:
        ArtifactError: If the folder is missing, changed or newer than this avcg, or commands cannot go by its notes.
    """
    return stored_notes(path, read_manifest(path, FORMAT, VERSION))


def load(path: str | Path, *, model: Any = None, device: str = "cpu") -> AVCG:
    """Open a folder that `AVCG.save` wrote.

    The explainer answers as the one that was saved, to the last bit on the same machine. Of a distribution that never
    runs out, such as `MCDropout`, it has the draws that were in use.

    Args:
        path: The folder.
        model: Models that could not be stored, one or a list in any order: scikit-learn's forests, functions, networks
            of your own making. They are recognised by what they say.
        device: Where to answer.

    Raises:
        ArtifactError: If the folder is missing, changed, newer than this avcg, or made for another model.
    """
    content, files = read_folder(path, FORMAT, VERSION)
    handed = [] if model is None else list(model) if isinstance(model, (list, tuple)) else [model]
    wrong = validate(content, _CONTENT)
    if wrong is not None:
        raise ArtifactError(f"{path} is not what save writes: {wrong}.")
    try:
        explainer = _opened(content, files, handed)
    except (ArtifactError, SchemaError, DataError, MissingExtraError):
        raise
    except Exception as error:  # whoever writes a folder by other means can make anything happen
        raise ArtifactError(f"{path} is not what save writes: {type(error).__name__}: {error}.") from error
    return explainer if device == "cpu" else _moved(explainer, device)


def _probe(explainer: AVCG) -> Tensor:
    """(M, *event) rows by which models are recognised."""
    near = torch.cat([rows[:_PROBES] for rows in explainer.reference_set_.rows])
    if not isinstance(explainer.space_, TabularSpace):
        return near
    everyone, rng = torch.cat(list(explainer.reference_set_.rows)), torch.Generator().manual_seed(0)
    first, second = torch.randint(len(everyone), (2, _CROSSED), generator=rng)
    return torch.cat([near, explainer.space_.cross(everyone[first], everyone[second], rng)])


def _opened(content: Mapping[str, Any], files: Mapping[str, bytes], handed: Sequence[Any]) -> AVCG:
    arrays = read_tensors(files[_WEIGHTS])
    space, classes = _unpack_space(content["space"], arrays), _unpack_classes(content["classes"])
    found = Unpacker(content, arrays, files, space=space, classes=classes, handed=handed)
    parts: dict[str, Any] = {
        name: None if one is None else found.get(name, one) for name, one in content["hypotheses"].items()
    }
    deployed, settings = parts["deployed"], content["settings"]
    everyone = FiniteSet(parts["train"] or parts["judges"], space, classes, deployed)
    explainer = AVCG(
        everyone,
        None if settings["schema"] is None else Schema.from_json(settings["schema"]),
        model=_as_model(deployed) if settings["model"] else None,
        threshold=settings["threshold"],
        survival=settings["survival"],
        recipe=None if settings["recipe"] is None else _unpack_recipe(settings["recipe"]),
        n_test=settings["n_test"],
        random_state=check_int(settings["random_state"], "'random_state'", 0),
    )
    if not 0 < explainer.survival < 1:
        raise ArtifactError(f"The 'survival' of AVCG must be in (0, 1). Got {explainer.survival!r}.")
    explainer.space_, explainer.classes_ = space, classes
    explainer.judges_ = parts["judges"]
    explainer.split_ = HypothesisSplit(everyone, parts["calibration"], parts["test"], deployed)
    explainer.deployed_ = DeployedModel(deployed, explainer.threshold)
    explainer.refined_margin_ = content["refined_margin"]
    _put_in_place(explainer, content, arrays, parts["students"])
    return explainer


def _put_in_place(
    explainer: AVCG, content: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], students: Predictors | None
) -> None:
    """All that training would have set."""
    rows = tuple(torch.from_numpy(arrays[f"reference.{i}"]) for i in range(len(explainer.classes_)))
    if any(one.shape[1:] != explainer.space_.event_shape or not len(one) for one in rows):
        raise ArtifactError("The stored reference rows do not fit the space.")
    explainer.recipe_ = _unpack_recipe(content["recipe"])
    explainer.reference_set_ = ReferenceSet(rows, explainer.recipe_.reference.n_neighbours)
    explainer.calibration_ = _unpack_calibration(content["calibration"])
    explainer.diagnostics_ = unpack_rows(content["diagnostics"])
    if students is not None:
        if not isinstance(students, Stacked):
            raise ArtifactError("The students of models that can only be asked must be networks of one make.")
        explainer.distillation_ = Distillation.of(
            students, [Fidelity(**one) for one in content["fidelity"]], explainer.recipe_.distillation
        )
    explainer.generator_ = _unpack_generator(explainer, arrays, content["n_latent"])
    explainer.is_fitted_ = True


def _moved(explainer: AVCG, name: str) -> AVCG:
    """The explainer, answering on another device."""
    explainer.device = name
    device = explainer._torch_device()
    if device.type != "cpu":
        explainer.judges_, explainer.split_ = OnDevice(explainer.judges_, device), explainer.split_.on(device)
        explainer.deployed_ = DeployedModel(explainer.split_.deployed, explainer.threshold)
        explainer.generator_.to(device)
    return explainer


def _as_model(deployed: Predictors) -> Any:
    """The model in force as the user gave it, where it is one."""
    if isinstance(deployed, BlackBoxPredictors) and len(deployed) == 1:
        return deployed.members[0]
    return deployed.network if isinstance(deployed, Stacked) and not deployed.overrides else None


def _pack_settings(explainer: AVCG) -> dict[str, Any]:
    settings = {name: getattr(explainer, name) for name in ("survival", "n_test", "random_state")}
    settings |= {"threshold": explainer.deployed_.threshold, "model": explainer.model is not None}
    settings["schema"] = None if explainer.schema is None else explainer.schema.to_json()
    settings["recipe"] = None if explainer.recipe is None else _pack_recipe(explainer.recipe)
    calibration = explainer.calibration_
    numbers = {one.name: getattr(calibration, one.name) for one in fields(Calibration) if one.name != "frontier"}
    students = explainer.distillation_
    return {
        "settings": settings,
        "classes": _pack_classes(explainer.classes_),
        "recipe": _pack_recipe(explainer.recipe_),
        "n_latent": explainer.generator_.n_latent,
        "refined_margin": explainer.refined_margin_,
        "calibration": {**numbers, "frontier": pack_rows(calibration.frontier)},
        # Where training went astray, JSON has no word for how far.
        "diagnostics": pack_rows(explainer.diagnostics_.replace([np.inf, -np.inf], np.nan)),
        "fidelity": [] if students is None else [asdict(one) for one in students.fidelity],
    }


def _pack_space(space: Space) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    if isinstance(space, TabularSpace):
        said, arrays = pack_encoding(space.encoding, space.feasible.links)
        return {"space": {"kind": "table", **said}}, arrays | pack_limits(space.encoding, space.feasible)
    assert isinstance(space, ImageSpace)
    said = {"kind": "images", "layout": space.layout, "dtype": str(space.dtype), "size": list(space.size)}
    return {"space": said}, {f"space.{name}": as_array(getattr(space, name)) for name in _PIXELS}


def _unpack_space(said: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Space:
    if said["kind"] == "table":
        return TabularSpace(*unpack_encoding(said, arrays))
    wrong = validate(said, _PICTURES, "space")
    tensors: dict[str, Tensor] = {name: torch.from_numpy(arrays[f"space.{name}"]) for name in _PIXELS}
    depth, height, width = size = said["size"] if wrong is None else (0, 0, 0)
    for name, tensor in tensors.items():
        alike = (depth,) if name in ("mean", "std") else (1, 1 if name == "may_change" else depth, height, width)
        fits = len(tensor.shape) == len(alike) and all(a in (1, b) for a, b in zip(tensor.shape, alike, strict=True))
        if not fits or (tensor.dtype == torch.bool) is not (name == "may_change"):
            wrong = f"{name} is of shape {tuple(tensor.shape)}"
    dtype = np.dtype("uint8" if wrong else said["dtype"])
    if wrong is not None or (dtype != np.uint8 and dtype.kind != "f") or (said["layout"] == "none" and depth != 1):
        raise ArtifactError(f"These are no pictures: {wrong or said}.")
    return ImageSpace(layout=said["layout"], dtype=dtype, size=tuple(size), **tensors)


def _pack_classes(classes: NDArray[Any]) -> dict[str, Any]:
    said = {"dtype": str(classes.dtype), "values": classes.tolist()}
    try:
        _unpack_classes(said)
    except (ArtifactError, TypeError):
        raise SettingError(f"Labels of the kind {classes.dtype} cannot be stored. Use texts or numbers.") from None
    return said


def _unpack_classes(said: Mapping[str, Any]) -> NDArray[Any]:
    dtype, values = np.dtype(said["dtype"]), said["values"]
    if dtype.kind not in "biufUO" or dtype.itemsize > _LONGEST_LABEL or len(set(values)) < max(2, len(values)):
        raise ArtifactError(f"These are no labels: {said!r:.200}.")
    classes = np.array(values, dtype=dtype)
    if classes.tolist() != values:
        raise ArtifactError(f"The labels {values!r:.200} are not of the kind {dtype}.")
    return classes


def _unpack_generator(explainer: AVCG, arrays: Mapping[str, NDArray[Any]], n_latent: int) -> Generator:
    recipe, start = explainer.recipe_, "generator."
    state = {name.removeprefix(start): torch.from_numpy(a) for name, a in arrays.items() if name.startswith(start)}
    stored = sum(value.numel() for value in state.values())
    for widths in ((*recipe.encoder, 2 * n_latent), (n_latent, *recipe.layers)):  # before room is made for them
        if min(widths) < 1 or max(widths) > stored or sum(a * b for a, b in pairwise(widths)) > stored:
            raise ArtifactError(f"The stored generator has fewer numbers than layers of {widths} need.")
    generator = recipe.build_generator(explainer.space_, len(explainer.classes_), n_latent=n_latent)
    try:
        generator.load_state_dict(state, assign=True)
    except RuntimeError as error:
        raise ArtifactError(f"The stored generator is of another shape: {error}") from None
    return generator.requires_grad_(False).eval()


def _unpack_calibration(said: Mapping[str, Any]) -> Calibration:
    found = Calibration(**{**said, "frontier": unpack_rows(said["frontier"])})
    str(found)  # which reads the frontier
    return found


def _pack_recipe(recipe: Recipe) -> dict[str, Any]:
    said = {one.name: getattr(recipe, one.name) for one in fields(Recipe)}
    said["weights"] = asdict(recipe.weights)
    said |= {name: asdict(getattr(recipe, name)) for name in _CONFIGS}
    said["risk"], said["distance"] = _pack_function(recipe.risk), _pack_function(recipe.distance)
    return said


def _pack_function(function: Any) -> dict[str, Any] | None:
    """A risk or a distance of this package by its name, and one of the user's own by what it is called."""
    if function is None:
        return None
    kind = type(function)
    name = getattr(function, "__name__", kind.__name__)
    if _FUNCTIONS.get(name) is function:
        return {"function": name}
    if _MADE.get(kind.__name__) is kind:
        numbers = {one.name: getattr(function, one.name) for one in fields(function)}
        if not any(isinstance(value, Tensor) for value in numbers.values()):
            return {"function": name, **numbers}
    return {"forgotten": name}


def _unpack_recipe(said: Mapping[str, Any]) -> Recipe:
    pattern: dict[Any, Any] = {f"{name}?": kind_of(value) for name, value in vars(Recipe()).items()}
    pattern |= {f"{name}?": dict for name in _CONFIGS} | {"margins?": [float, float], "noise?": [float, float]}
    pattern |= {"weights?": {f"{one.name}?": float for one in fields(Weights)}, "temperature?": ([float, float], None)}
    pattern |= dict.fromkeys(("risk?", "distance?"), ({"function": str, ...: float}, {"forgotten": str}, None))
    wrong = validate(said, pattern, "recipe")
    if wrong is not None:
        raise ArtifactError(f"This is no recipe: {wrong}.")
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in said.items()}
    values |= {"weights": Weights(**said["weights"])} if "weights" in said else {}
    values |= {name: unpack_config(kind, said[name]) for name, kind in _CONFIGS.items() if name in said}
    values |= {name: _unpack_function(said[name]) for name in ("risk", "distance") if name in said}
    return Recipe(**values)


def _unpack_function(said: Mapping[str, Any] | None) -> Any:
    if said is None:
        return None
    if "forgotten" in said:
        return _Forgotten(said["forgotten"])
    name, numbers = said["function"], {key: value for key, value in said.items() if key != "function"}
    return _FUNCTIONS[name] if name in _FUNCTIONS and not numbers else _MADE[name](**numbers)


class _Forgotten:
    """A function of the user's own, of which a file holds no more than the name; answering does not need it."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, first: Tensor, second: Tensor) -> Tensor:  # noqa: ARG002  as risks and distances are called
        raise SettingError(
            f"This explainer was trained with {self.__name__!r}, a function of your own that a file cannot hold. Set"
            " recipe_ anew with it, e.g. dataclasses.replace(explainer.recipe_, risk=...), to refine or to refit."
        )


def _made_with() -> dict[str, str]:
    found = {"avcg": avcg.__version__, "python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # installed by other means than a package
            found[name] = "unknown"
    return found
