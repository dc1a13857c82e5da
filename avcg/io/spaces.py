"""Encodings, feasible sets and the data of a scorer, packed into plain values and arrays and unpacked again.

Needs numpy alone, and onnxruntime to open a graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from avcg.errors import ArtifactError, MissingExtraError, SettingError
from avcg.explainers.records import MOST_ANSWERS
from avcg.guarantees.statement import Statement
from avcg.io.folder import validate
from avcg.method.config import SearchConfig
from avcg.method.query import Effort
from avcg.schema.features import Continuous
from avcg.schema.schema import Schema
from avcg.space.constraints import FeasibleSet
from avcg.space.encoding import Codes, Encoding, Floats, Values
from avcg.space.links import Link

_SCALES = ("center", "scale", "low", "high")
_PACKED = {"kind?": "table", "schema": str, "scaling": ("standard", "minmax")}
_SUM_TOLERANCE = 1e-4  # largest difference from 1 of the sum of the shares of models

Config = TypeVar("Config")


def _by_effort(kind: type) -> dict[Any, Any]:
    """The pattern of a list of values for each effort that was calibrated."""
    return {"fast": [kind], "standard?": [kind], "thorough?": [kind]}


# Pattern of the parts of a manifest that a scorer reads.
_SCORED: dict[Any, Any] = {
    "space": dict,
    "classes": {"values": [(bool, float, str)], ...: object},
    "settings": {"survival": float, "threshold": (float, None), ...: object},
    "calibration": {
        "margins": _by_effort(float),
        "statements": _by_effort(dict),
        "promise": {"survival": float, ...: object},
        ...: object,
    },
    "recipe": {
        "search": dict,
        "reference": {"n_neighbours": int, ...: object},
        "spread": float,
        "typicality": float,
        ...: object,
    },
    "scorer": {"n_deployed": int, "n_judges": int, "n_held_out": int, "n_test": int, "single_pass": bool},
    ...: object,
}


def pack_encoding(encoding: Encoding, links: tuple[Link, ...]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """An encoding and the links of its schema as plain values, and arrays by name."""
    arrays = {f"encoding.{name}": getattr(encoding, name) for name in _SCALES}
    if len(encoding.gaps):
        arrays["encoding.gaps"] = encoding.gaps
    for i, link in enumerate(links):
        parts: dict[str, NDArray[Any] | None] = {"table": link.table, "known": link.known, "knots": link.knots}
        parts |= {"numbers": link.exact.numbers, "choices": link.exact.choices}
        arrays |= {f"link.{i}.{name}": array for name, array in parts.items() if array is not None}
    return {"schema": encoding.schema.to_json(), "scaling": encoding.scaling}, arrays


def pack_limits(encoding: Encoding, feasible: FeasibleSet) -> dict[str, NDArray[Any]]:
    """The limits of a restricted space that differ from those of its schema, as arrays by name."""
    schema_limits = FeasibleSet.of(encoding, feasible.links).arrays()
    return {
        f"limits.{name}": array
        for name, array in feasible.arrays().items()
        if name not in schema_limits or not np.array_equal(array, schema_limits[name])
    }


def unpack_encoding(packed: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> tuple[Encoding, FeasibleSet]:
    """Restore an encoding and its feasible set. Limits that `pack_limits` did not pack are those of the schema.

    Args:
        packed: Values that `pack_encoding` returned.
        arrays: Arrays that `pack_encoding` and `pack_limits` returned, by name.

    Raises:
        ArtifactError: If the values and the arrays do not belong together.
        SchemaError: If the schema is invalid.
    """
    wrong = validate(packed, _PACKED, "space")
    if wrong is not None:
        raise ArtifactError(f"The stored columns are invalid: {wrong}.")
    schema = Schema.from_json(packed["schema"])
    scales = {name: _array(arrays, f"encoding.{name}", "f", len(schema.numeric)) for name in _SCALES}
    if (scales["low"] > scales["high"]).any():
        raise ArtifactError("The stored range of a column ends before it begins.")
    encoding = Encoding(schema, packed["scaling"], **scales, gaps=_gaps(arrays, len(schema.numeric)))
    links = tuple(_link(encoding, group, f"link.{i}.", arrays) for i, group in enumerate(schema.links))
    feasible = FeasibleSet.of(encoding, links)
    expected = {"max_changes": np.zeros(1, int), **feasible.arrays()}
    limits = {
        name: _array(arrays, f"limits.{name}", limit.dtype.kind, *limit.shape)
        for name, limit in expected.items()
        if f"limits.{name}" in arrays
    }
    return encoding, feasible.with_arrays(limits)


def _gaps(arrays: Mapping[str, NDArray[Any]], n: int) -> Floats:
    """The stored gaps between training rows; explainers without any, and earlier ones, store none."""
    if "encoding.gaps" not in arrays:
        return np.zeros((0, 3))
    gaps = _array(arrays, "encoding.gaps", "f", len(arrays["encoding.gaps"]), 3)
    if not (np.isin(gaps[:, 0], np.arange(n)) & (gaps[:, 1] < gaps[:, 2])).all():
        raise ArtifactError("A stored gap of a column ends before it begins, or belongs to no column.")
    return gaps


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
    """The array of a name, after a check of its kind of dtype and its shape."""
    if name not in arrays or arrays[name].dtype.kind != kind or arrays[name].shape != shape:
        raise ArtifactError(f"The stored array {name!r} is missing, or its shape or dtype does not fit the schema.")
    return arrays[name]


def unpack_config(kind: type[Config], settings: Mapping[str, Any]) -> Config:
    """Restore a dataclass of numbers, texts and tuples of numbers from plain values.

    Args:
        kind: Dataclass whose fields all have defaults.
        settings: Values by name of the field.

    Raises:
        ArtifactError: If a field is unknown or its value is invalid.
    """
    wrong = validate(settings, {f"{name}?": kind_of(value) for name, value in vars(kind()).items()})
    if wrong is None:
        try:
            values = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
            return kind(**values)
        except SettingError as error:
            wrong = str(error)
    raise ArtifactError(f"The stored {kind.__name__} is invalid: {wrong}.")


def kind_of(value: Any) -> Any:
    """The pattern of a stored setting with a given default, as `validate` takes it."""
    if isinstance(value, tuple):
        return [float] if isinstance(value[0], float) else [int]
    return type(value)


@dataclass(frozen=True, eq=False)
class Scored:
    """The data that a scorer answers from, beside its graphs.

    Attributes:
        encoding: Encoding of rows.
        feasible: Feasible set of the explainer.
        classes: Labels of the classes.
        survival: Share of models that answers are promised to hold under.
        threshold: Probability of the second class from which it is decided for; None: the likeliest class is.
        margins: By effort, (C,) log-odds beyond the decision boundary that the generator aims at, by target class.
        statements: By effort, what is promised, by target label.
        n_typical: Number of nearest reference rows from which typicality is measured.
        spread: Standard deviations over judges by which log-odds must stay clear of a margin.
        typicality: How typical answers are where a query does not say.
        n_held_out: Number of models held back from training, the test models last.
        single_pass: Whether the search stops after one pass of the generator.
        weights: (I,) weights of the deployed models, which are the first of the judges.
        judge_weights: (S,) weights of all judges.
        linear: (C, D) weights and (C,) biases of the deployed model's logits; None: it is not known to be linear.
        bounds: (F + 1,) lower bounds of the share of models that agree, by the number of F test models that agree.
        latents: (K, L) latent noise that is tried.
        config: Settings of the search.
        references: (m, D) reference rows of each class.
    """

    encoding: Encoding
    feasible: FeasibleSet
    classes: list[Any]
    survival: float
    threshold: float | None
    margins: dict[Effort, Codes]
    statements: dict[Effort, dict[Any, Statement]]
    n_typical: int
    spread: float
    typicality: float
    n_held_out: int
    single_pass: bool
    weights: Codes
    judge_weights: Codes
    linear: tuple[Floats, Floats] | None
    bounds: Floats
    latents: Codes
    config: SearchConfig
    references: Sequence[Codes]


def unpack_scored(manifest: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Scored:
    """Restore and check the data of a scorer that `avcg.io.onnx.scorer_parts` packed.

    Args:
        manifest: Manifest of the stored explainer.
        arrays: Arrays of the scorer by name.

    Raises:
        ArtifactError: If a part is missing or invalid. The message gives the reason.
    """
    _check_scored(manifest)
    scorer, settings, classes = manifest["scorer"], manifest["settings"], manifest["classes"]["values"]
    calibration = manifest["calibration"]
    deployed, judges, test = (scorer[name] for name in ("n_deployed", "n_judges", "n_test"))
    encoding, feasible = unpack_encoding(manifest["space"], arrays)
    config = unpack_config(SearchConfig, manifest["recipe"]["search"])
    count, size = arrays["latents"].shape if "latents" in arrays and arrays["latents"].ndim == 2 else (0, 0)
    if count < max(config.latents_per_answer * MOST_ANSWERS, config.retry_latents) or not size:
        raise ArtifactError(
            f"{count} latents of size {size} are stored, which are too few for the settings of the search."
        )
    scored = Scored(
        encoding=encoding,
        feasible=feasible,
        classes=classes,
        survival=calibration["promise"]["survival"],
        threshold=settings["threshold"],
        margins={effort: np.array(values, np.float32) for effort, values in calibration["margins"].items()},
        statements={effort: _statements(entries) for effort, entries in calibration["statements"].items()},
        n_typical=manifest["recipe"]["reference"]["n_neighbours"],
        spread=manifest["recipe"]["spread"],
        typicality=manifest["recipe"]["typicality"],
        n_held_out=scorer["n_held_out"],
        single_pass=scorer["single_pass"],
        weights=_array(arrays, "deployed.weights", "f", deployed),
        judge_weights=_array(arrays, "judges.weights", "f", judges),
        linear=_linear(arrays, len(classes), encoding.width),
        bounds=_array(arrays, "lower_bounds", "f", test + 1),
        latents=_array(arrays, "latents", "f", count, size),
        config=config,
        references=[_rows(arrays, f"reference.{i}", encoding.width) for i in range(len(classes))],
    )
    for weights in (scored.weights, scored.judge_weights):
        if not (weights >= 0).all() or not abs(float(weights.sum()) - 1) < _SUM_TOLERANCE:
            raise ArtifactError(f"The stored weights of models must be shares that add up to 1. Got {weights[:4]}.")
    if not ((scored.bounds >= 0) & (scored.bounds <= 1)).all():
        raise ArtifactError(f"The stored lower bounds must be shares. Got {scored.bounds[:4]}.")
    return scored


def _linear(arrays: Mapping[str, NDArray[Any]], n_classes: int, width: int) -> tuple[Floats, Floats] | None:
    """The linear logits of the deployed model, where they are stored."""
    if "deployed.linear" not in arrays:
        return None
    return _array(arrays, "deployed.linear", "f", n_classes, width), _array(arrays, "deployed.offset", "f", n_classes)


def _check_scored(manifest: Mapping[str, Any]) -> None:
    """Check the plain values of a scorer in the manifest of a stored explainer.

    Raises:
        ArtifactError: If one is missing or invalid. The message gives the reason.
    """
    wrong = validate(manifest, _SCORED)
    if wrong is not None:
        raise ArtifactError(f"The manifest of the scorer is invalid: {wrong}.")
    scorer, settings, classes = manifest["scorer"], manifest["settings"], manifest["classes"]["values"]
    if len(set(classes)) < max(2, len(classes)):
        raise ArtifactError(f"The stored labels must be two or more, all different. Got {classes!r:.200}.")
    survival, margins = manifest["calibration"]["promise"]["survival"], manifest["calibration"]["margins"]
    for name, value in (("survival", survival), ("threshold", settings["threshold"])):
        if value is not None and not 0 < value < 1:
            raise ArtifactError(f"The {name!r} must be in (0, 1). Got {value!r}.")
    if margins.keys() != manifest["calibration"]["statements"].keys():
        raise ArtifactError("There must be margins and statements for the same efforts.")
    for values in margins.values():
        if len(values) != len(classes) or not np.isfinite(values).all():
            raise ArtifactError(f"There must be one finite margin for each of {len(classes)} classes. Got {values}.")
    if settings["threshold"] is not None and len(classes) != 2:
        raise ArtifactError(
            f"The stored explainer has a threshold, which needs two classes. Got {len(classes)} classes."
        )
    deployed, judges, test = (scorer[name] for name in ("n_deployed", "n_judges", "n_test"))
    if not (1 <= deployed <= judges and 0 <= test <= scorer["n_held_out"]):
        raise ArtifactError(
            "There must be at least one deployed model, and no more than judges. Got"
            f" {deployed} deployed models, {judges} judges and {test} held-out models."
        )


def _statements(entries: Sequence[Mapping[str, Any]]) -> dict[Any, Statement]:
    try:
        return {entry["target"]: Statement.from_dict(entry) for entry in entries}
    except (KeyError, TypeError) as error:
        raise ArtifactError(f"The stored statements of the promise are damaged: {error}.") from None


def _rows(arrays: Mapping[str, NDArray[Any]], name: str, width: int) -> Codes:
    count = arrays[name].size // width if name in arrays else 0
    rows = _array(arrays, name, "f", count, width)
    if not count or not np.isfinite(rows).all():
        raise ArtifactError(f"The stored array {name!r} has no rows, or values that are not finite numbers.")
    return rows


def open_graph(content: bytes, threads: int) -> Any:
    """Open an ONNX graph with onnxruntime.

    Args:
        content: Bytes of an ONNX file.
        threads: Number of threads that one call may use.

    Raises:
        MissingExtraError: If onnxruntime is not installed.
        ArtifactError: If the bytes are not a valid graph.
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
    except Exception as error:  # onnxruntime has exceptions of its own
        raise ArtifactError(f"A stored graph cannot be run: {error}") from None
