"""Black boxes: estimators, functions and ONNX files that give probabilities for rows in the user's units."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from avcg.errors import AvcgError, DataError, MissingExtraError, SettingError, did_you_mean, enumerate_some
from avcg.models.adapter import as_rows
from avcg.models.affine import schema_with_gaps
from avcg.models.own_decision import own_threshold
from avcg.schema.schema import Schema
from avcg.space.frames import Frame, open_frame
from avcg.space.tabular import TabularSpace

# From a frame with the columns and dtypes of the training rows to probabilities (N, C), or (N,) of the second class.
Predict = Callable[[pd.DataFrame], Any]

_SAMPLE = 256  # rows kept, by which a decision rule and compiled trees are checked
_TOLERANCE = 1e-3  # largest accepted difference of a sum of probabilities from one; changes no answer


class BlackBox:
    """A black box: a model of which only the predicted probabilities are used.

    Args:
        model: An estimator with ``predict_proba``, the path or the content of an ONNX file, or a function from a frame
            to the probabilities of all classes (N, C), or of the second of two classes (N,).
        X: Rows that the model was trained on, or similar rows. The model is called with their columns and dtypes.
        classes: Labels in the order of the probabilities, or in any order if the model names its classes; None: the
            model's own classes, or 0, 1, ...
        schema: Schema of the columns; None: inferred from X, allowing missing values in the columns that have any.
        space: Fitted space that gives codes their meaning, instead of a schema; None: fitted to X when first needed.

    Attributes:
        model: The model as given.
        classes_: Labels in the order of the probabilities.
        n_asked: Number of rows the model was asked about, starting with two rows of X. Copies made by `over` count
            their own.

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
            raise SettingError("A space has a schema already. Pass either 'schema' or 'space' to BlackBox, not both.")
        rows = _pandas(open_frame(as_rows(X)).to_native())
        self._space, self._reading = space, None if space is not None else (schema, rows)
        self.model, self.dtypes = model, rows.dtypes
        self.name, self._predict, own = _adapted(model, rows, as_array=isinstance(X, np.ndarray))
        self.n_asked = 0
        first = self._call(rows.iloc[:2])
        if own is None and isinstance(first, pd.DataFrame):
            own = first.columns.to_numpy()
            own = (
                own if classes is None or set(own.tolist()) == set(classes) else None
            )  # otherwise the columns are in the order of ``classes``
        labels = classes if classes is not None else own
        self.classes_ = _check_classes(np.arange(_n_classes(first)) if labels is None else labels, self.name)
        # A model that was fitted without a class gives it probability 0.
        self._own = np.arange(len(self.classes_)) if own is None else _positions(own, self.classes_, self.name)
        self._probabilities(first, len(rows.iloc[:2]))
        self._sample = rows.iloc[np.unique(np.linspace(0, len(rows) - 1, _SAMPLE).astype(np.intp))]
        self._own_threshold = self._stated_threshold()
        # What `avcg.models.judging` makes for an encoding, shared by all copies.
        self._compiled: list[Any] = []
        self._frames: list[Any] = []
        self._cells: dict[str, pd.Series[Any]] = {}
        if space is not None:
            self._check_kept(space)

    @cached_property
    def space_(self) -> TabularSpace:
        """The space of codes, fitted when first needed, because models that only judge rows do not need it."""
        if self._space is not None:
            return self._space
        assert self._reading is not None
        schema, rows = self._reading
        space = TabularSpace.fit(schema or schema_with_gaps(rows), rows)
        self._check_kept(space)
        return space

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """(N, C) probabilities, classes in the order of ``classes_``.

        Raises:
            DataError: If the rows do not fit the model, if it fails, or if it does not return probabilities.
        """
        return self.ask(self.frame_of(X))

    def predict(self, X: Any) -> NDArray[Any]:
        """(N,) most probable label of each row."""
        return self.classes_[self.predict_proba(X).argmax(axis=1)]

    def frame_of(self, X: Any) -> pd.DataFrame:
        """Rows with the columns, their order and the dtypes that the model was trained with.

        Raises:
            DataError: If a column is missing that the model needs, or a value does not fit its dtype.
        """
        rows = _pandas(as_rows(X))
        missing = [name for name in self.dtypes.index if name not in rows.columns]
        if missing and set(missing) <= self._ignored.keys():
            rows, missing = rows.assign(**self._constant_cells(missing, len(rows))), []
        if missing:
            hint = did_you_mean(missing[0], rows.columns)
            raise DataError(f"{self.name} reads column {missing[0]!r}, which these rows do not have. {hint}")
        rows = rows[list(self.dtypes.index)]
        changed = {str(name): dtype for name, dtype in self.dtypes.items() if not _same(rows[name].dtype, dtype)}
        return rows.assign(**{name: self._converted(rows[name], dtype) for name, dtype in changed.items()})

    def _converted(self, column: pd.Series[Any], dtype: Any) -> Any:
        """A column in the dtype that the model reads; constant cells where it does not fit and the model ignores it."""
        try:
            return _cast(column, dtype, self.name)
        except DataError:
            if column.name not in self._ignored:
                raise
            return self._constant_cells([str(column.name)], len(column))[str(column.name)]

    @property
    def threshold(self) -> float | None:
        """Probability of the second of two classes from which the model itself decides for it; None: the likeliest.

        A ``TunedThresholdClassifierCV`` and a ``FixedThresholdClassifier`` state one.
        """
        own = self._own_threshold
        if own is None or len(self.classes_) != 2:
            return None
        return own if self._own[0] == 0 else float(np.nextafter(1 - own, 1))

    @property
    def _ignored(self) -> dict[str, pd.Series[Any]]:
        """Columns that the schema keeps and the model ignores, by name, with the cell it is given in every row."""
        if "space_" not in self.__dict__:
            try:
                _ = self.space_
            except AvcgError:  # rows that models can judge and no schema can be inferred from
                return {}
        return self._cells

    def _constant_cells(self, names: Sequence[str], count: int) -> dict[str, Any]:
        """The cells of columns in `_ignored` for so many rows."""
        return {name: self._ignored[name].array.take(np.zeros(count, np.intp)) for name in names}

    def _check_kept(self, space: TabularSpace) -> None:
        """Refuse a space that keeps a column on which the model's predictions depend.

        Raises:
            SettingError: With the column and what to do.
        """
        schema = getattr(space, "schema", None)
        new = [] if schema is None else [name for name in schema.kept if name in self.dtypes.index]
        for name in (name for name in new if name not in self._cells):
            first = self._sample[name].iloc[:1]
            same = self._sample.assign(**{name: first.array.take(np.zeros(len(self._sample), np.intp))})
            if not np.allclose(self._uncounted(same), self._uncounted(self._sample), atol=_TOLERANCE**2):
                raise SettingError(
                    f"{self.name} reads column {name!r}, which the schema keeps as no feature. Train the model without"
                    f" it, or make it a feature that is frozen: Schema.infer(X, kinds={{{name!r}:"
                    f" {_kind_of(first)!r}}}).freeze({name!r}). A date must first be made a number, such as of days."
                )
            self._cells[name] = first

    def _stated_threshold(self) -> float | None:
        """The threshold on the second of the model's own classes that its decisions follow."""
        if not (hasattr(self.model, "predict") and hasattr(self.model, "predict_proba")):
            return None
        own = self._uncounted(self._sample)[:, self._own]
        rows = self._sample.to_numpy() if self.reads_arrays else self._sample
        return own_threshold(self.model, rows, own, self.own_classes, self.name)

    @property
    def reads_arrays(self) -> bool:
        """Whether the model is called with arrays instead of frames, because X was an array."""
        return isinstance(self._predict, partial) and self._predict.func is _predict_array

    @property
    def own_classes(self) -> NDArray[Any]:
        """The model's own labels, in the order in which it returns probabilities."""
        return self.classes_[self._own]

    def reads_like(self, other: BlackBox) -> bool:
        """Whether both models read the same columns, in the same order and with the same dtypes."""
        if self.dtypes is other.dtypes:
            return True
        return self.dtypes.index.equals(other.dtypes.index) and all(map(_same, self.dtypes, other.dtypes))

    def over(self, space: TabularSpace, classes: NDArray[Any]) -> BlackBox:
        """A copy over another space, with probabilities in another order of classes."""
        self._check_kept(space)
        other = copy.copy(self)
        other.space_, other.n_asked = space, 0
        other.classes_, other._own = classes, _positions(self.own_classes, classes, self.name)
        return other

    def ask(self, frame: pd.DataFrame) -> NDArray[np.float64]:
        """(N, C) probabilities for a frame that `frame_of` made."""
        if not len(frame):  # most models fail on no rows
            return np.zeros((0, len(self.classes_)))
        return self._probabilities(self._call(frame), len(frame))

    def _uncounted(self, frame: pd.DataFrame) -> NDArray[np.float64]:
        """(N, C) probabilities as `ask` returns them, for checks of the model that `n_asked` does not count."""
        before = self.n_asked
        probabilities = self.ask(frame)
        self.n_asked = before
        return probabilities

    def _call(self, frame: pd.DataFrame) -> Any:
        """The output of the model: an array, or a frame with one column per label if the model names its labels."""
        self.n_asked += len(frame)
        try:
            output = self._predict(frame)
            return output if isinstance(output, pd.DataFrame) else np.asarray(output, np.float64)
        except Exception as error:  # another library's code may raise anything
            raise DataError(f"{self.name} failed on {len(frame)} rows: {type(error).__name__}: {error}") from error

    def _probabilities(self, output: Any, count: int) -> NDArray[np.float64]:
        """(N, C) checked probabilities in the order of ``classes_``, from the output of the model."""
        own = np.asarray(output, np.float64)
        if len(self._own) == 2 and own.shape in ((count,), (count, 1)):
            own = np.stack([1.0 - own.ravel(), own.ravel()], axis=1)
        if own.shape != (count, len(self._own)):
            expected = (count, len(self._own))
            raise DataError(f"{self.name} must return probabilities of shape {expected}. Got {own.shape} instead.")
        _check_probabilities(own, self.name)
        probabilities = np.zeros((count, len(self.classes_)))
        probabilities[:, self._own] = own
        return probabilities

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
            f"Models are called with pandas frames, and {kind} cannot make one: {error}. Install it."
        ) from error


def _kind_of(column: pd.Series[Any]) -> str:
    return "integer" if column.dtype.kind in "iu" else "categorical"


def _same(dtype: Any, other: Any) -> bool:
    """Whether two dtypes are equal. Unlike in pandas, the order of unordered categories counts, as for models."""
    categorical = isinstance(dtype, pd.CategoricalDtype) and isinstance(other, pd.CategoricalDtype)
    return bool(dtype == other) and (not categorical or list(dtype.categories) == list(other.categories))


def _cast(column: pd.Series[Any], dtype: Any, name: str) -> pd.Series[Any]:
    """A column converted to the dtype that a model was trained with.

    Raises:
        DataError: If a value does not fit the dtype.
    """
    present = column.notna()
    if isinstance(dtype, pd.CategoricalDtype):
        unknown = present & ~column.isin(dtype.categories)
        if unknown.any():
            value, expected = column[unknown].tolist()[0], enumerate_some(dtype.categories.tolist(), 12)
            raise DataError(f"{name} does not know the value {value!r} of column {column.name!r}. It knows {expected}.")
        column = column.astype(object)  # otherwise pandas keeps the present order of unordered categories
    exact = isinstance(dtype, np.dtype) and dtype.kind in "iub"
    if exact and not present.all():  # as pandas does: whole numbers become floats, booleans stay as they are
        return column if dtype.kind == "b" else _cast(column, np.dtype(np.float64), name)
    try:
        converted = column.astype(dtype)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{name} reads column {column.name!r} as {dtype}, and these rows do not fit: {error}"
        ) from error
    changed = converted.to_numpy() != column.to_numpy() if exact else np.zeros(len(column), bool)
    if changed.any():
        value = column[changed].tolist()[0]
        raise DataError(
            f"{name} reads column {column.name!r} as {dtype}, which cannot hold {value!r}. Convert the column, or train"
            " the model on such values."
        )
    return converted


def _adapted(model: Any, rows: pd.DataFrame, *, as_array: bool) -> tuple[str, Predict, NDArray[Any] | None]:
    """The model's name for messages, its function from frames to probabilities, and its own labels if it has any."""
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
        predict: Predict = partial(_predict_array, model) if as_array else model.predict_proba
        return f"The {kind}", predict, np.asarray(model.classes_)
    if not callable(model):
        raise SettingError(
            f"The model of a BlackBox must have predict_proba or be a function. Got a {kind}. Pass a function from a"
            " frame to probabilities or the path of an ONNX file, or wrap the model, e.g. in CalibratedClassifierCV."
        )
    return f"The function {getattr(model, '__name__', kind)}", partial(_predict_copy, model), None


def _predict_array(model: Any, frame: pd.DataFrame) -> Any:
    return model.predict_proba(frame.to_numpy())


def _predict_copy(function: Predict, frame: pd.DataFrame) -> NDArray[Any]:
    """Probabilities from a copy of the frame, because the function may write into it."""
    return np.asarray(function(frame.copy()))


def _n_classes(output: NDArray[np.float64]) -> int:
    return 2 if output.ndim < 2 or output.shape[1] == 1 else output.shape[1]


def _check_classes(classes: Any, name: str) -> NDArray[Any]:
    labels = np.asarray(classes)
    if labels.ndim != 1 or not len(labels) or not pd.Index(labels).is_unique:
        raise SettingError(
            f"The 'classes' of a BlackBox must be a list of different labels. Got {classes!r} for {name}."
        )
    if len(labels) == 1:
        raise SettingError(
            f"{name} must have at least two classes. It has only {labels.tolist()[0]!r}. If there are others, name all"
            " of them: BlackBox(model, X, classes=...)."
        )
    return labels


def _positions(own: NDArray[Any], classes: NDArray[Any], name: str) -> NDArray[np.intp]:
    """Positions of a model's own labels among the classes."""
    positions = pd.Index(classes).get_indexer(pd.Index(own))
    if (positions < 0).any():
        raise SettingError(
            f"{name} has the classes {enumerate_some(own.tolist())}, which are not among"
            f" {enumerate_some(classes.tolist())}. To rename its classes, pass its function:"
            " BlackBox(model.predict_proba, X, classes=...)."
        )
    return positions


def _check_probabilities(probabilities: NDArray[np.float64], name: str) -> None:
    broken = ~np.isfinite(probabilities).all(axis=1)
    if broken.any():
        raise DataError(
            f"{name} returned probabilities that are not finite for {int(broken.sum())} rows, e.g."
            f" {probabilities[broken.argmax()].tolist()}. Pass rows that it can read, or impute missing values."
        )
    invalid = (np.abs(probabilities.sum(axis=1) - 1.0) > _TOLERANCE) | (probabilities < -_TOLERANCE).any(axis=1)
    if invalid.any():
        example = [round(float(value), 4) for value in probabilities[invalid.argmax()]]
        raise DataError(
            f"{name} returned numbers that are not probabilities for {int(invalid.sum())} rows, e.g. {example}: they"
            " must be >= 0 and sum to one."
        )


def _onnx(content: bytes, name: str, rows: pd.DataFrame) -> Predict:
    """The function of an ONNX model that has one input for each column, or a single table of numbers as input."""
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtraError("onnxruntime", "onnx", "Running an ONNX model") from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised; nothing is printed
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the errors of onnxruntime have no common base class
        raise DataError(f"{name} is not an ONNX model that can be run: {error}") from error
    inputs, columns = session.get_inputs(), list(rows.columns)
    unknown = [node.name for node in inputs if node.name not in columns]
    if len(inputs) > 1 and unknown:
        raise DataError(
            f"{name} reads {unknown[0]!r}, which is not a column of X. There are {enumerate_some(columns)}."
        )
    output = _probability_output(session, name)

    def predict(frame: pd.DataFrame) -> Any:
        if len(inputs) == 1 and unknown:
            feed = {inputs[0].name: _tensor(frame, inputs[0].type)}
        else:
            feed = {node.name: _tensor(frame[[node.name]], node.type) for node in inputs}
        (probabilities,) = session.run([output], feed)
        # Some converters return a list of dictionaries from labels to probabilities.
        return pd.DataFrame.from_records(probabilities) if isinstance(probabilities, list) else probabilities

    return predict


def _probability_output(session: Any, name: str) -> str:
    """Name of the output that holds the probabilities, not the labels."""
    outputs = session.get_outputs()
    named = [node for node in outputs if "prob" in node.name.lower()]
    floats = [node for node in outputs if "float" in node.type or "double" in node.type]
    if not (named or floats):
        shown = [node.name for node in outputs]
        raise DataError(f"{name} must have an output of probabilities, in float or double. Its outputs are {shown}.")
    return str((named or floats)[-1].name)


def _tensor(frame: pd.DataFrame, kind: str) -> NDArray[Any]:
    if "string" in kind:
        return frame.astype(str).to_numpy(dtype=object)
    dtypes = {"tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_}
    return frame.to_numpy(dtype=dtypes.get(kind, np.float64 if "double" in kind else np.float32))
