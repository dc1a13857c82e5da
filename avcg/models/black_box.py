"""A model that can only be asked: an estimator, a function or an ONNX file, on rows in the user's units."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from avcg.errors import DataError, MissingExtraError, SettingError, did_you_mean, enumerate_some
from avcg.models.adapter import as_rows
from avcg.models.affine import schema_with_gaps
from avcg.schema.schema import Schema
from avcg.space.frames import Frame, open_frame
from avcg.space.tabular import TabularSpace

# From a frame with the columns and dtypes of the training rows to (N, C) probabilities, or (N,) of a yes.
Ask = Callable[[pd.DataFrame], Any]

_TOLERANCE = 1e-3  # by which probabilities may miss a sum of one before they are refused; changes no answer


class BlackBox:
    """A model known by its answers alone.

    Args:
        model: An estimator with ``predict_proba``; the path of an ONNX file, or its content; or a function from a
            frame to the probabilities of all classes (N, C), or of the second of two (N,).
        X: Rows it was trained on, or rows like them: their columns and dtypes are what it will be asked with.
        classes: The labels in the order of the probabilities, or in any where the model names them itself; None: its
            own, else 0, 1, ...
        schema: What the columns are; None: inferred, gaps read where X has any.
        space: What codes mean, where that is settled already; then no schema.

    Attributes:
        model: As given.
        classes_: The labels.
        n_asked: How many rows it was asked so far, two at first; those of copies made by `over` not counted.

    >>> from avcg import toys
    >>> loans = toys.loans(n=200)
    >>> rule = BlackBox(lambda rows: (rows["income"] > 50).astype(float), loans.X, classes=["no", "yes"])
    >>> rule.predict_proba(loans.X).shape
    (200, 2)
    """

    def __init__(
        self,
        model: Any,
        X: Any,
        *,
        classes: Sequence[Any] | NDArray[Any] | None = None,
        schema: Schema | None = None,
        space: TabularSpace | None = None,
    ) -> None:
        if schema is not None and space is not None:
            raise SettingError("A space has a schema already. Give BlackBox the one or the other.")
        rows = _pandas(open_frame(as_rows(X)).to_native())
        self._space, self._reading = space, None if space is not None else (schema, rows)
        self.model, self.dtypes = model, rows.dtypes
        self.name, self._ask, own = _opened(model, rows, as_array=isinstance(X, np.ndarray))
        self.n_asked = 0
        first = self._said(rows.iloc[:2])
        if own is None and isinstance(first, pd.DataFrame):
            own = first.columns.to_numpy()
            own = own if classes is None or set(own.tolist()) == set(classes) else None  # else they count in order
        known = classes if classes is not None else own
        self.classes_ = _labels(np.arange(_n_classes(first)) if known is None else known, self.name)
        # A resample may lack a class altogether; its probability is then none.
        self._own = np.arange(len(self.classes_)) if own is None else _places(own, self.classes_, self.name)
        self._probabilities(first, len(rows.iloc[:2]))

    @cached_property
    def space_(self) -> TabularSpace:
        """From codes to frames; learnt when first needed, since who only judges rows has no use for it."""
        if self._space is not None:
            return self._space
        assert self._reading is not None
        schema, rows = self._reading
        return TabularSpace.fit(schema or schema_with_gaps(rows), rows)

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """(N, C) probabilities, classes in the order of ``classes_``.

        Raises:
            DataError: If the rows do not fit the model, if it fails, or if what it returns are no probabilities.
        """
        return self.ask(self.frame_of(X))

    def predict(self, X: Any) -> NDArray[Any]:
        """(N,) the likeliest label."""
        return self.classes_[self.predict_proba(X).argmax(axis=1)]

    def frame_of(self, X: Any) -> pd.DataFrame:
        """Rows as the model was trained on: the same columns in the same order, the same dtypes."""
        rows = _pandas(as_rows(X))
        missing = [name for name in self.dtypes.index if name not in rows.columns]
        if missing:
            hint = did_you_mean(missing[0], rows.columns)
            raise DataError(f"{self.name} reads column {missing[0]!r}, which these rows do not have. {hint}")
        rows = rows[list(self.dtypes.index)]
        other = {str(name): dtype for name, dtype in self.dtypes.items() if not _same(rows[name].dtype, dtype)}
        return rows.assign(**{name: _cast(rows[name], dtype, self.name) for name, dtype in other.items()})

    @property
    def reads_arrays(self) -> bool:
        """Whether the model is asked with arrays instead of frames, as it was trained."""
        return isinstance(self._ask, partial) and self._ask.func is _of_array

    @property
    def own_classes(self) -> NDArray[Any]:
        """The labels of which the model itself speaks, in its own order."""
        return self.classes_[self._own]

    def reads_like(self, other: BlackBox) -> bool:
        """Whether both read the same columns in the same order and of the same dtypes."""
        mine, theirs = self.dtypes, other.dtypes
        return mine is theirs or (mine.index.equals(theirs.index) and all(map(_same, mine, theirs)))

    def over(self, space: TabularSpace, classes: NDArray[Any]) -> BlackBox:
        """The same model over another space, its probabilities in another order of classes."""
        other = copy.copy(self)
        other.space_, other.n_asked = space, 0
        other.classes_, other._own = classes, _places(self.own_classes, classes, self.name)
        return other

    def ask(self, frame: pd.DataFrame) -> NDArray[np.float64]:
        """(N, C) probabilities for a frame that `frame_of` made."""
        if not len(frame):  # of which most models will not hear
            return np.zeros((0, len(self.classes_)))
        return self._probabilities(self._said(frame), len(frame))

    def _said(self, frame: pd.DataFrame) -> Any:
        """What the model returns: an array, or a frame with a column for each label that it names."""
        self.n_asked += len(frame)
        try:
            found = self._ask(frame)
            return found if isinstance(found, pd.DataFrame) else np.asarray(found, np.float64)
        except Exception as error:  # it is not our code: whatever it raises, the user is told where
            raise DataError(f"{self.name} failed on {len(frame)} rows: {type(error).__name__}: {error}") from error

    def _probabilities(self, said: Any, count: int) -> NDArray[np.float64]:
        found = np.asarray(said, np.float64)
        if len(self._own) == 2 and found.shape in ((count,), (count, 1)):
            found = np.stack([1.0 - found.ravel(), found.ravel()], axis=1)
        if found.shape != (count, len(self._own)):
            expected = (count, len(self._own))
            raise DataError(f"{self.name} must return probabilities of shape {expected}. Got {found.shape} instead.")
        _refuse_no_probabilities(found, self.name)
        full = np.zeros((count, len(self.classes_)))
        full[:, self._own] = found
        return full

    def __repr__(self) -> str:
        return f"BlackBox({self.name}, classes {enumerate_some(self.classes_.tolist())})"


def _pandas(rows: Frame) -> pd.DataFrame:
    if isinstance(rows, pd.DataFrame):
        return rows
    try:
        return open_frame(rows).to_pandas()
    except ImportError as error:
        kind = type(rows).__module__.partition(".")[0]
        raise DataError(
            f"Models are asked with pandas frames, and {kind} cannot make one: {error}. Install it."
        ) from error


def _same(one: Any, other: Any) -> bool:
    """Whether two dtypes are one. To pandas, the order of plain categories does not matter; to models it does."""
    alike = isinstance(one, pd.CategoricalDtype) and isinstance(other, pd.CategoricalDtype)
    return bool(one == other) and (not alike or list(one.categories) == list(other.categories))


def _cast(column: pd.Series[Any], dtype: Any, name: str) -> pd.Series[Any]:
    """A column in the dtype that a model was trained with.

    Raises:
        DataError: If that cannot say the same.
    """
    there = column.notna()
    if isinstance(dtype, pd.CategoricalDtype):
        strange = there & ~column.isin(dtype.categories)
        if strange.any():
            value, known = column[strange].tolist()[0], enumerate_some(dtype.categories.tolist(), 12)
            raise DataError(f"{name} does not know the value {value!r} of column {column.name!r}. It knows {known}.")
        column = column.astype(object)  # pandas would leave plain categories in the order they are in
    exact = isinstance(dtype, np.dtype) and dtype.kind in "iub"
    if exact and not there.all():  # as pandas reads whole numbers with gaps, and leaves booleans
        return column if dtype.kind == "b" else _cast(column, np.dtype(np.float64), name)
    try:
        found = column.astype(dtype)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{name} reads column {column.name!r} as {dtype}, and these rows do not fit: {error}"
        ) from error
    changed = found.to_numpy() != column.to_numpy() if exact else np.zeros(len(column), bool)
    if changed.any():
        value = column[changed].tolist()[0]
        raise DataError(
            f"{name} reads column {column.name!r} as {dtype}, which cannot hold {value!r}. Convert the column, or train"
            " the model on such values."
        )
    return found


def _opened(model: Any, rows: pd.DataFrame, *, as_array: bool) -> tuple[str, Ask, NDArray[Any] | None]:
    """A name for people, how to ask, and the labels it brings."""
    if isinstance(model, (str, Path)):
        path = Path(model)
        if not path.is_file():
            raise DataError(f"There is no file {path}.")
        return f"The model {path.name}", _onnx(path.read_bytes(), path.name, rows), None
    if isinstance(model, bytes):
        return "The ONNX model", _onnx(model, "The content", rows), None
    kind = type(model).__name__
    if hasattr(model, "predict_proba"):
        if not hasattr(model, "classes_"):
            raise SettingError(f"The {kind} is not fitted yet: it has no classes_. Call its fit first.")
        ask: Ask = partial(_of_array, model) if as_array else model.predict_proba
        return f"The {kind}", ask, np.asarray(model.classes_)
    if not callable(model):
        raise SettingError(
            f"A {kind} cannot be asked: it has no predict_proba and is no function. Give a function from a frame to"
            " probabilities, the path of an ONNX file, or wrap it, e.g. in CalibratedClassifierCV."
        )
    return f"The function {getattr(model, '__name__', kind)}", partial(_of_copy, model), None


def _of_array(model: Any, frame: pd.DataFrame) -> Any:
    return model.predict_proba(frame.to_numpy())


def _of_copy(function: Ask, frame: pd.DataFrame) -> NDArray[Any]:
    """A function may write into its frame, which others read too."""
    return np.asarray(function(frame.copy()))


def _n_classes(said: NDArray[np.float64]) -> int:
    return 2 if said.ndim < 2 or said.shape[1] == 1 else said.shape[1]


def _labels(classes: Any, name: str) -> NDArray[Any]:
    labels = np.asarray(classes)
    if labels.ndim != 1 or not len(labels) or not pd.Index(labels).is_unique:
        raise SettingError(
            f"The 'classes' of a BlackBox must be different labels, in a list. Got {classes!r} for {name}."
        )
    if len(labels) == 1:
        raise SettingError(
            f"{name} knows no class but {labels.tolist()[0]!r}, so that no decision can change. If there are others,"
            " name all: BlackBox(model, X, classes=...)."
        )
    return labels


def _places(own: NDArray[Any], classes: NDArray[Any], name: str) -> NDArray[np.intp]:
    places = pd.Index(classes).get_indexer(pd.Index(own))
    if (places < 0).any():
        raise SettingError(
            f"{name} speaks of the classes {enumerate_some(own.tolist())}, which are not among"
            f" {enumerate_some(classes.tolist())}. To call them otherwise, give its function:"
            " BlackBox(model.predict_proba, X, classes=...)."
        )
    return places


def _refuse_no_probabilities(found: NDArray[np.float64], name: str) -> None:
    broken = ~np.isfinite(found).all(axis=1)
    if broken.any():
        raise DataError(
            f"{name} returned probabilities that are no numbers for {int(broken.sum())} rows, e.g."
            f" {found[broken.argmax()].tolist()}. Give it rows that it can read, or let it fill their gaps."
        )
    off = (np.abs(found.sum(axis=1) - 1.0) > _TOLERANCE) | (found < -_TOLERANCE).any(axis=1)
    if off.any():
        worst = [round(float(value), 4) for value in found[off.argmax()]]
        raise DataError(
            f"{name} returned numbers that are no probabilities for {int(off.sum())} rows, e.g. {worst}: they must be"
            " >= 0 and sum to one."
        )


def _onnx(content: bytes, name: str, rows: pd.DataFrame) -> Ask:
    """How to ask an ONNX model: one input for each column, or one table of numbers."""
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtraError("onnxruntime", "onnx", "Asking an ONNX model") from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what goes wrong is raised; nothing is printed
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime has no common base class for what it raises
        raise DataError(f"{name} is no ONNX model that can be run: {error}") from error
    inputs, columns = session.get_inputs(), list(rows.columns)
    unknown = [one.name for one in inputs if one.name not in columns]
    if len(inputs) > 1 and unknown:
        raise DataError(f"{name} reads {unknown[0]!r}, which is no column. There are {enumerate_some(columns)}.")
    output = _probability_output(session, name)

    def ask(frame: pd.DataFrame) -> Any:
        if len(inputs) == 1 and unknown:
            feed = {inputs[0].name: _tensor(frame, inputs[0].type)}
        else:
            feed = {one.name: _tensor(frame[[one.name]], one.type) for one in inputs}
        (found,) = session.run([output], feed)
        # Converters that keep labels return a list of dictionaries, label to probability.
        return pd.DataFrame.from_records(found) if isinstance(found, list) else found

    return ask


def _probability_output(session: Any, name: str) -> str:
    """Of several outputs the one that is not the label."""
    outputs = session.get_outputs()
    likely = [one for one in outputs if "prob" in one.name.lower()]
    floats = [one for one in outputs if "float" in one.type or "double" in one.type]
    found = (likely or floats or [None])[-1]
    if found is None:
        raise DataError(f"{name} has no output that could be probabilities: {[one.name for one in outputs]}.")
    return str(found.name)


def _tensor(frame: pd.DataFrame, kind: str) -> NDArray[Any]:
    if "string" in kind:
        return frame.astype(str).to_numpy(dtype=object)
    whole = {"tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_}
    return frame.to_numpy(dtype=whole.get(kind, np.float64 if "double" in kind else np.float32))
