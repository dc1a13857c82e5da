"""What rows of a table mean, as plain values and arrays, and back; and what a scorer answers from, read and checked.

numpy alone, and onnxruntime where a graph is opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from avcg.errors import ArtifactError, MissingExtraError, SettingError
from avcg.explainers.records import MOST_ANSWERS
from avcg.io.folder import validate
from avcg.method.config import SearchConfig
from avcg.schema.features import Continuous
from avcg.schema.schema import Schema
from avcg.space.constraints import FeasibleSet
from avcg.space.encoding import Codes, Encoding, Floats, Values
from avcg.space.links import Link

_SCALES = ("center", "scale", "low", "high")
_PACKED = {"kind?": "table", "schema": str, "scaling": ("standard", "minmax")}
_CLOSE = 1e-4  # by which shares may differ from 1 in all
# What of a manifest a scorer reads.
Config = TypeVar("Config")

_SCORED: dict[Any, Any] = {
    "space": dict,
    "classes": {"values": [(bool, float, str)], ...: object},
    "settings": {"survival": float, "threshold": (float, None), ...: object},
    "calibration": {"margin": float, ...: object},
    "recipe": {"search": dict, ...: object},
    "scorer": {"n_deployed": int, "n_judges": int, "n_test": int, "single_pass": bool},
    ...: object,
}


def pack_encoding(encoding: Encoding, links: tuple[Link, ...]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """An encoding and the links of its schema as plain values, and arrays by name."""
    arrays = {f"encoding.{name}": getattr(encoding, name) for name in _SCALES}
    for i, link in enumerate(links):
        parts: dict[str, NDArray[Any] | None] = {"table": link.table, "known": link.known, "knots": link.knots}
        parts |= {"numbers": link.exact.numbers, "choices": link.exact.choices}
        arrays |= {f"link.{i}.{name}": array for name, array in parts.items() if array is not None}
    return {"schema": encoding.schema.to_json(), "scaling": encoding.scaling}, arrays


def pack_limits(encoding: Encoding, feasible: FeasibleSet) -> dict[str, NDArray[Any]]:
    """What may change, as arrays by name, where that is less than the schema says: of a space that was restricted."""
    of_schema = FeasibleSet.of(encoding, feasible.links).arrays()
    own = feasible.arrays()
    return {
        f"limits.{name}": array
        for name, array in own.items()
        if name not in of_schema or not np.array_equal(array, of_schema[name])
    }


def unpack_encoding(packed: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> tuple[Encoding, FeasibleSet]:
    """What `pack_encoding` packed, and what may change: as `pack_limits` says, or else as the schema does.

    Raises:
        ArtifactError: If the values and the arrays do not belong together.
        SchemaError: If the schema is none.
    """
    wrong = validate(packed, _PACKED, "space")
    if wrong is not None:
        raise ArtifactError(f"These are no columns: {wrong}.")
    schema = Schema.from_json(packed["schema"])
    scales = {name: _array(arrays, f"encoding.{name}", "f", len(schema.numeric)) for name in _SCALES}
    encoding = Encoding(schema, packed["scaling"], **scales)
    links = tuple(_link(encoding, group, f"link.{i}.", arrays) for i, group in enumerate(schema.links))
    feasible = FeasibleSet.of(encoding, links)
    expected = {"max_changes": np.zeros(1, int), **feasible.arrays()}
    limits = {
        name: _array(arrays, f"limits.{name}", alike.dtype.kind, *alike.shape)
        for name, alike in expected.items()
        if f"limits.{name}" in arrays
    }
    return encoding, feasible.with_arrays(limits)


def _link(encoding: Encoding, group: Sequence[str], start: str, arrays: Mapping[str, NDArray[Any]]) -> Link:
    leader, *followers = (encoding.schema.names.index(name) for name in group)
    columns = np.concatenate([np.arange(encoding.slices[f].start, encoding.slices[f].stop) for f in followers])
    numeric, block = isinstance(encoding.schema.features[leader], Continuous), encoding.slices[leader]
    m = arrays.get(f"{start}known", np.zeros(0)).size if numeric else block.stop - block.start
    return Link(
        leader=leader,
        followers=tuple(followers),
        columns=columns,
        knots=_array(arrays, f"{start}knots", "f", m) if numeric else None,
        table=_array(arrays, f"{start}table", "f", m, len(columns)),
        exact=Values(
            _array(arrays, f"{start}numbers", "f", m, len(encoding.numeric)),
            _array(arrays, f"{start}choices", "i", m, len(encoding.categorical)).astype(np.intp),
        ),
        known=_array(arrays, f"{start}known", "b", m),
    )


def _array(arrays: Mapping[str, NDArray[Any]], name: str, kind: str, *shape: int) -> NDArray[Any]:
    """An array, if it is there and of this kind and shape."""
    if name not in arrays or arrays[name].dtype.kind != kind or arrays[name].shape != shape:
        raise ArtifactError(f"The stored array {name!r} is missing, or of another shape than what it belongs to.")
    return arrays[name]


def unpack_config(kind: type[Config], said: Mapping[str, Any]) -> Config:
    """A dataclass of numbers, texts and tuples of numbers, from plain values.

    Args:
        kind: The dataclass, every field with a default.
        said: By field.

    Raises:
        ArtifactError: If a field is unknown, or cannot be what it should.
    """
    wrong = validate(said, {f"{name}?": kind_of(value) for name, value in vars(kind()).items()})
    if wrong is None:
        try:
            return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in said.items()})
        except SettingError as error:
            wrong = str(error)
    raise ArtifactError(f"This is not a {kind.__name__}: {wrong}.")


def kind_of(value: Any) -> Any:
    """What a stored setting must be, by its default."""
    if isinstance(value, tuple):
        return [float] if isinstance(value[0], float) else [int]
    return type(value)


@dataclass(frozen=True, eq=False)
class Scored:
    """What a scorer answers from, beside its graphs.

    Attributes:
        encoding: What codes mean.
        feasible: What may change.
        classes: The labels.
        survival: The share of models that is promised.
        threshold: Probability of the second class from which it is decided for; None: the likeliest is.
        margin: The log-odds to aim at beyond that.
        single_pass: Whether nothing more is tried.
        weights: (I,) of the models in force, which are the first of the teachers.
        judge_weights: (T,) of the teachers.
        bounds: (F + 1,) what is proven where so many of F set-aside models agree.
        latents: (K, L) noise of the latent variables.
        config: What is tried beyond one pass.
        references: For each class, (m, D) rows.
    """

    encoding: Encoding
    feasible: FeasibleSet
    classes: list[Any]
    survival: float
    threshold: float | None
    margin: float
    single_pass: bool
    weights: Codes
    judge_weights: Codes
    bounds: Floats
    latents: Codes
    config: SearchConfig
    references: Sequence[Codes]


def unpack_scored(manifest: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Scored:
    """What `avcg.io.onnx.scorer_parts` packed.

    Raises:
        ArtifactError: If something is missing, or cannot be what it should, with the reason.
    """
    wrong = validate(manifest, _SCORED)
    if wrong is not None:
        raise ArtifactError(f"This is no manifest of a scorer: {wrong}.")
    said, settings, classes = manifest["scorer"], manifest["settings"], manifest["classes"]["values"]
    if len(set(classes)) < max(2, len(classes)):
        raise ArtifactError(f"These are no labels: {classes!r:.200}.")
    for name in ("survival", "threshold"):
        if settings[name] is not None and not 0 < settings[name] < 1:
            raise ArtifactError(f"The {name!r} must be in (0, 1). Got {settings[name]!r}.")
    if settings["threshold"] is not None and len(classes) != 2:
        raise ArtifactError(f"A threshold is for two classes. Got {len(classes)}.")
    deployed, judges, test = (said[name] for name in ("n_deployed", "n_judges", "n_test"))
    if not (1 <= deployed <= judges and test >= 0):
        raise ArtifactError(f"There cannot be {deployed} deployed models of {judges}, and {test} held out.")
    encoding, feasible = unpack_encoding(manifest["space"], arrays)
    config = unpack_config(SearchConfig, manifest["recipe"]["search"])
    count, size = arrays["latents"].shape if "latents" in arrays and arrays["latents"].ndim == 2 else (0, 0)
    if count < max(config.latents_per_answer * MOST_ANSWERS, config.retry_latents) or not size:
        raise ArtifactError(f"There are {count} latents of size {size} stored, which is too little to answer with.")
    found = Scored(
        encoding=encoding,
        feasible=feasible,
        classes=classes,
        survival=settings["survival"],
        threshold=settings["threshold"],
        margin=manifest["calibration"]["margin"],
        single_pass=said["single_pass"],
        weights=_array(arrays, "deployed.weights", "f", deployed),
        judge_weights=_array(arrays, "judges.weights", "f", judges),
        bounds=_array(arrays, "lower_bounds", "f", test + 1),
        latents=_array(arrays, "latents", "f", count, size),
        config=config,
        references=[_rows(arrays, f"reference.{i}", encoding.width) for i in range(len(classes))],
    )
    for weights in (found.weights, found.judge_weights):
        if not (weights >= 0).all() or not abs(float(weights.sum()) - 1) < _CLOSE:
            raise ArtifactError(f"Models are weighed by shares that add up to 1. Got {weights[:4]}.")
    if not ((found.bounds >= 0) & (found.bounds <= 1)).all():
        raise ArtifactError(f"Lower bounds must be shares. Got {found.bounds[:4]}.")
    return found


def _rows(arrays: Mapping[str, NDArray[Any]], name: str, width: int) -> Codes:
    count = arrays[name].size // width if name in arrays else 0
    found = _array(arrays, name, "f", count, width)
    if not count or not np.isfinite(found).all():
        raise ArtifactError(f"The stored array {name!r} holds no rows, or something that is no number.")
    return found


def open_graph(content: bytes, threads: int) -> Any:
    """A graph that can be run.

    Raises:
        MissingExtraError: If there is nothing to run it with.
        ArtifactError: If it is none.
    """
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtraError("onnxruntime", "onnx", "The scorer") from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of many kinds, none of which are Python's own
        raise ArtifactError(f"A stored graph cannot be run: {error}") from None
