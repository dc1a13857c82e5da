"""What rows of a table mean, as plain values and arrays, and back; numpy alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avcg.encoding import Encoding, Values
from avcg.errors import ArtefactError
from avcg.features import Continuous
from avcg.freedom import Freedom
from avcg.io.folder import misfit
from avcg.links import Link
from avcg.schema import Schema

_SCALES = ("center", "scale", "low", "high")
_LIMITS = ("low", "high", "no_fall", "no_rise", "may_enter", "max_changes")
_PACKED = {"kind?": "table", "schema": str, "scaling": ("standard", "minmax")}


def pack_encoding(encoding: Encoding, links: tuple[Link, ...]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """An encoding and the links of its schema as plain values, and arrays by name."""
    arrays = {f"encoding.{name}": getattr(encoding, name) for name in _SCALES}
    for i, link in enumerate(links):
        parts: dict[str, NDArray[Any] | None] = {"table": link.table, "known": link.known, "knots": link.knots}
        parts |= {"numbers": link.exact.numbers, "choices": link.exact.choices}
        arrays |= {f"link.{i}.{name}": array for name, array in parts.items() if array is not None}
    return {"schema": encoding.schema.to_json(), "scaling": encoding.scaling}, arrays


def pack_limits(encoding: Encoding, freedom: Freedom) -> dict[str, NDArray[Any]]:
    """What may change, as arrays by name, where that is less than the schema says: of a space that was restricted."""
    of_schema = Freedom.of(encoding, freedom.links)
    pairs = {name: (getattr(freedom, name), getattr(of_schema, name)) for name in _LIMITS}
    return {f"limits.{name}": mine for name, (mine, other) in pairs.items() if not np.array_equal(mine, other)}


def unpack_encoding(packed: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> tuple[Encoding, Freedom]:
    """What `pack_encoding` packed, and what may change: as `pack_limits` says, or else as the schema does.

    Raises:
        ArtefactError: If the values and the arrays do not belong together.
        SchemaError: If the schema is none.
    """
    wrong = misfit(packed, _PACKED, "space")
    if wrong is not None:
        raise ArtefactError(f"These are no columns: {wrong}.")
    schema = Schema.from_json(packed["schema"])
    scales = {name: _array(arrays, f"encoding.{name}", "f", len(schema.numeric)) for name in _SCALES}
    encoding = Encoding(schema, packed["scaling"], **scales)
    links = tuple(_link(encoding, group, f"link.{i}.", arrays) for i, group in enumerate(schema.links))
    freedom = Freedom.of(encoding, links)
    limits: dict[str, Any] = {}
    for name in _LIMITS:
        if f"limits.{name}" in arrays:
            alike = np.zeros(1, int) if name == "max_changes" else getattr(freedom, name)
            limits[name] = _array(arrays, f"limits.{name}", alike.dtype.kind, *alike.shape)
    return encoding, replace(freedom, **limits)


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
        raise ArtefactError(f"The stored array {name!r} is missing, or of another shape than the schema's columns.")
    return arrays[name]
