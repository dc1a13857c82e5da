"""Black boxes asked for the probabilities of many candidates, as fast as each of them allows.

Tree ensembles are compiled and evaluated together. What they say is compared with the models themselves before it is
used, and any difference leaves a model as it is. All other models read frames that are put together without casts.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from avcg.models.black_box import BlackBox
from avcg.models.compiled_trees import CompiledTrees, compile_trees, walked
from avcg.models.tree_tables import ForestWalk, TreeTables, kind_of
from avcg.models.trees import as_numbers, inner_model, read_trees
from avcg.schema.features import Categorical, Continuous, columns_of
from avcg.space.dummies import flags_of_positions
from avcg.space.encoding import Encoding, Floats, Values
from avcg.space.frames import new_frame, read_values

_CHECKED_CUTS = 1024  # rows with a number at a cut, or next to it, by which a compiled model is checked
_CLOSE = 1e-6  # largest difference of a probability from the model's own


class Judges:
    """Black boxes over one space, asked together.

    Args:
        boxes: The models.
        encoding: The columns of the space.
    """

    def __init__(self, boxes: Sequence[BlackBox], encoding: Encoding) -> None:
        self._boxes, self._encoding = tuple(boxes), encoding
        kinds = _kinds(encoding)
        self._compiled = [_compiled(box, encoding) for box in boxes]
        groups: dict[Any, list[int]] = {}
        self._evaluators: list[tuple[list[int], TreeTables | ForestWalk]] = []
        for i, compiled in enumerate(self._compiled):
            if compiled is not None and compiled.walks:
                self._evaluators.append(([i], ForestWalk(compiled, kinds)))
            elif compiled is not None:
                groups.setdefault(kind_of(compiled), []).append(i)
        for members in groups.values():
            parts = [each for i in members if (each := self._compiled[i]) is not None]
            self._evaluators.append((members, TreeTables(parts, kinds)))
        self._asked = [i for i, compiled in enumerate(self._compiled) if compiled is None]

    @property
    def n_compiled(self) -> int:
        """Number of models that are evaluated without being called."""
        return len(self._boxes) - len(self._asked)

    def probabilities(self, values: Values) -> NDArray[np.float64]:
        """(S, N, C) probabilities of rows."""
        result = np.zeros((len(self._boxes), len(values), len(self._boxes[0].classes_)))
        if not len(values):
            return result
        for members, evaluator in self._evaluators:
            for i, own in zip(members, evaluator.probabilities(values), strict=True):
                result[i][:, self._boxes[i]._own] = own
                self._boxes[i].n_asked += len(values)
        frames: list[tuple[BlackBox, pd.DataFrame]] = []
        for i in self._asked:
            box = self._boxes[i]
            frame = next((frame for other, frame in frames if box.reads_like(other)), None)
            if frame is None:
                frame = _Frames.of(box, self._encoding).make(values)
                frames.append((box, frame))
            result[i] = box.ask(frame)
        return result

    def thresholds(self) -> dict[str, Floats]:
        """By name of a numeric column, the sorted cuts of all compiled models."""
        found = {}
        for j, feature in enumerate(self._encoding.schema.features):
            cuts = [own for each in self._compiled if each is not None and (own := each.cuts[j]) is not None]
            if isinstance(feature, Continuous) and cuts:
                every = np.unique(np.concatenate(cuts))
                if np.isfinite(every).any():
                    found[feature.name] = every[np.isfinite(every)]
        return found


@dataclass(frozen=True, eq=False)
class _Frames:
    """Frames for one model from values, with the same cells and dtypes as decoded and cast rows.

    Attributes:
        box: The model.
        encoding: The columns.
    """

    box: BlackBox
    encoding: Encoding

    @classmethod
    def of(cls, box: BlackBox, encoding: Encoding) -> _Frames:
        """The frames of a model, made once for each of its encodings."""
        for known in box._frames:
            if known.encoding is encoding:
                return known
        box._frames.append(cls(box, encoding))
        return box._frames[-1]

    @cached_property
    def _categories(self) -> pd.DataFrame:
        """A frame in whose row i each column of categories has its category i, and a missing value in the last row."""
        n = int(self._sizes.max(initial=1))
        choices = np.minimum(np.arange(n + 1)[:, None], self._sizes - 1)
        choices[n] += self._can_miss
        return self.box.frame_of(new_frame(self.encoding, Values(np.tile(self.encoding.low, (n + 1, 1)), choices)))

    @cached_property
    def _sizes(self) -> NDArray[np.intp]:
        return np.array([len(feature.categories) for feature in self.encoding.categorical], np.intp)

    @cached_property
    def _can_miss(self) -> NDArray[np.bool_]:
        """(G,) whether a missing category has a place in the column's dtype, which whole numbers and booleans lack."""
        kinds = [getattr(self.box.dtypes.get(feature.name), "kind", "O") for feature in self.encoding.categorical]
        # In a group no column is set; a thermometer has no place for it.
        missing = [f.missing != "error" and not f.is_thermometer for f in self.encoding.categorical]
        return np.array([kind not in "iub" and may for kind, may in zip(kinds, missing, strict=True)], bool)

    def make(self, values: Values) -> pd.DataFrame:
        """The rows as the model reads them."""
        gaps = values.choices == self._sizes
        if not self._is_simple or (gaps & ~self._can_miss).any():
            return self.box.frame_of(new_frame(self.encoding, values))
        at = np.where(gaps, len(self._categories) - 1, values.choices)
        columns: dict[str, Any] = {}
        for j, feature in enumerate(self.encoding.schema.features):
            i = self.encoding.kind_index[j]
            if isinstance(feature, Categorical) and feature.columns is not None:
                columns |= dict(zip(feature.columns, flags_of_positions(feature, values.choices[:, i]).T, strict=True))
                continue
            if feature.name not in self.box.dtypes:
                continue
            if isinstance(feature, Categorical):
                labels = self._categories[feature.name]
                cells = labels.array.take(at[:, i])
                # pandas would infer another dtype for objects alone, and takes longer for series.
                columns[feature.name] = pd.Series(cells, dtype=object) if labels.dtype == object else cells
                continue
            dtype, numbers = self.box.dtypes[feature.name], values.numbers[:, i]
            with np.errstate(all="ignore"):
                cells = numbers.astype(dtype)
            if dtype.kind != "f" and (cells != numbers).any():  # missing, or nothing that the model reads
                return self.box.frame_of(new_frame(self.encoding, values))
            columns[feature.name] = cells
        flags = {name: columns[name].astype(self.box.dtypes[name]) for name in self._flag_columns}
        columns |= flags | self.box._constant_cells(self._constants, len(values))
        return pd.DataFrame(columns, columns=list(self.box.dtypes.index), copy=False)

    @cached_property
    def _is_simple(self) -> bool:
        """Whether all columns that the model reads are there, and numbers and flags have dtypes of numpy."""
        dtypes = self.box.dtypes
        numbers = [dtypes[feature.name] for feature in self.encoding.numeric if feature.name in dtypes]
        flags = [dtypes[name] for name in self._flag_columns]
        there = set(dtypes.index) <= {*self.encoding.schema.columns, *self._constants}
        simple = all(isinstance(dtype, np.dtype) and dtype.kind in "iuf" for dtype in numbers)
        return there and simple and all(isinstance(dtype, np.dtype) and dtype.kind in "biuf" for dtype in flags)

    @cached_property
    def _flag_columns(self) -> list[str]:
        """The columns that the model reads of features that are several columns."""
        names = (name for feature in self.encoding.schema.grouped for name in columns_of(feature))
        return [name for name in names if name in self.box.dtypes]

    @cached_property
    def _constants(self) -> list[str]:
        """The columns that the schema keeps and the model is given."""
        return [name for name in self.encoding.schema.kept if name in self.box.dtypes]


def _kinds(encoding: Encoding) -> list[tuple[bool, int]]:
    """By column, whether it is a number, and its index among the numbers or among the categories."""
    features = zip(encoding.schema.features, encoding.kind_index, strict=True)
    return [(isinstance(feature, Continuous), i) for feature, i in features]


def _compiled(box: BlackBox, encoding: Encoding) -> CompiledTrees | None:
    """A compiled model, made once for each encoding; None if it cannot be compiled, or differs from the model."""
    for known, compiled in box._compiled:
        if known is encoding:
            return compiled
    compiled = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about artificial rows
            compiled = _compile(box, encoding)
    except Exception:  # another library's code may raise anything; the model itself is then asked
        compiled = None
    box._compiled.append((encoding, compiled))
    return compiled


def _compile(box: BlackBox, encoding: Encoding) -> CompiledTrees | None:
    preprocessing, model = inner_model(box.model)
    trees = read_trees(model)
    if trees is None:
        return None
    frames, sample = _Frames.of(box, encoding), read_values(box._sample, encoding.schema)

    def features(values: Values) -> Floats:
        frame = frames.make(values)
        rows: Any = frame.to_numpy() if box.reads_arrays else frame
        return as_numbers(model, rows if preprocessing is None else preprocessing.transform(rows))

    compiled = compile_trees(trees, features, encoding, sample)
    if not compiled.fits_tables:
        if trees.link != "mean":
            return None
        walks = [member.tree_.apply for member in getattr(model, "estimators_", [model])]
        compiled = walked(compiled, walks, features, encoding, sample)
    kinds = _kinds(encoding)
    evaluator = ForestWalk(compiled, kinds) if compiled.walks else TreeTables([compiled], kinds)
    for rows in (sample, *_checking_rows(compiled, encoding, sample)):
        own = box._uncounted(frames.make(rows))[:, box._own]
        if not _agree(evaluator.probabilities(rows)[0], own):
            return None
    return compiled


def _checking_rows(compiled: CompiledTrees, encoding: Encoding, sample: Values) -> list[Values]:
    """Rows crossed from others, with missing values where they may be, and with numbers at cuts or next to them."""
    rng, n = np.random.default_rng(0), _CHECKED_CUTS
    numbers = np.take_along_axis(sample.numbers, rng.integers(len(sample), size=(n, sample.numbers.shape[1])), axis=0)
    choices = np.take_along_axis(sample.choices, rng.integers(len(sample), size=(n, sample.choices.shape[1])), axis=0)
    for j, feature in enumerate(encoding.schema.features):
        i, cells = encoding.kind_index[j], rng.random(n)
        cuts = compiled.cuts[j]
        if isinstance(feature, Categorical):
            anywhere = rng.integers(len(feature.categories) + (feature.missing != "error"), size=n)
            choices[:, i] = np.where(cells < 0.3, anywhere, choices[:, i])
            continue
        finite = np.empty(0) if cuts is None else cuts[np.isfinite(cuts)]
        if len(finite):
            at, side = rng.choice(finite, n), rng.integers(-1, 2, size=n)
            whole = feature.step is not None and float(feature.step).is_integer()
            beside = (
                at + side if whole else np.where(side == 0, at, np.nextafter(at, np.where(side < 0, -np.inf, np.inf)))
            )
            numbers[:, i] = np.where(cells < 0.5, beside, numbers[:, i])
        if feature.missing == "indicator":
            numbers[cells > 0.9, i] = np.nan
    complete = Values(
        np.where(np.isnan(numbers), encoding.low, numbers),
        np.minimum(choices, np.array([len(f.categories) - 1 for f in encoding.categorical], np.intp)),
    )
    return [complete, Values(numbers, choices)]


def _agree(compiled: NDArray[Any], own: NDArray[Any]) -> bool:
    """Whether probabilities are the model's own, and so are the decisions, except for exact ties."""
    if compiled.shape != own.shape or not (np.abs(compiled - own) <= _CLOSE).all():
        return False
    ordered = np.sort(own, axis=1)
    clear = ordered[:, -1] - ordered[:, -2] > _CLOSE
    return bool((compiled.argmax(axis=1) == own.argmax(axis=1))[clear].all())
