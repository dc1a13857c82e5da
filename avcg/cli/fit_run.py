"""Fitting an explainer to a file of rows for ``avcg fit``, and measuring it on rows that were held out."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from avcg.auditing.past import Backtest
from avcg.batch.chunks import ArrowChunk, Chunk, infer_cell_type
from avcg.batch.parsing import check_columns, parse_label, parse_range, split_column
from avcg.batch.readers import open_rows
from avcg.cli.fit_columns import dates_of, id_notes
from avcg.cli.fit_figures import measure
from avcg.cli.schema_file import check_described, read_described
from avcg.errors import DataError, PromiseWarning, SettingError, enumerate_some
from avcg.explainers.avcg import AVCG
from avcg.guarantees.conformal import Guarantee, Promise
from avcg.hypotheses.families import How
from avcg.hypotheses.finite import FiniteSet
from avcg.hypotheses.from_models import from_models
from avcg.hypotheses.retrains import retrains
from avcg.method.recipe import Recipe
from avcg.models.affine import schema_with_gaps
from avcg.models.black_box import BlackBox
from avcg.models.classifier import Classifier
from avcg.schema.schema import Kind, Schema
from avcg.space.inspect import inspect
from avcg.space.tabular import TabularSpace

# How retrains differ, of the families that need no moments of the rows.
DIFFER: dict[How, str] = {
    "seed": "from another seed",
    "bootstrap": "on a bootstrap of the rows",
    "subsample": "on 80% of the rows",
    "added": "on the rows and a quarter as many more",
    "label_noise": "with another label for 5% of the rows",
}
_HELD_OUT_SHARE, _MIN_ROWS, _MAX_OUTCOMES = 0.2, 20, 20
N_HYPOTHESES = 40


@dataclass(frozen=True)
class FitConfig:
    """The options of ``avcg fit``.

    Attributes:
        data: Path of a CSV or parquet file; ``-`` reads CSV from standard input.
        target: Name of the column of outcomes; None: there is none, and all columns are described.
        positive: The outcome that people want.
        freeze: Columns that may not change.
        only_up: Columns that may only rise.
        only_down: Columns that may only fall.
        between: Ranges that answers stay in, each as ``column:low:high``.
        drop: Columns that are left out.
        categorical: Columns whose numbers are names of categories.
        at_most: Largest number of columns that may change at once; None: any number.
        models: Paths of ONNX models, the first of which is the deployed one; empty: a network is trained.
        classes: Outcomes in the order of the models' probabilities; empty: sorted.
        survival: Share of the people who followed the advice that a later model is to accept, in (0, 1).
        reliability: Chance that the next model does, in (0, 1); None: 0.9.
        guarantee: What the chance is about, as in `avcg.guarantees.Promise`.
        confidence: Confidence of the guarantee ``most_models``, in (0, 1); None: 0.9.
        hypotheses: Number of plausible models to train; None: 40.
        resampling: How the plausible models differ, as in `retrains`; None: ``bootstrap``.
        steps: Number of training steps of the generator.
        threshold: Probability from which the model decides for the positive outcome; None: the likeliest outcome.
        seed: Seed of the split into training and held-out rows, of the models and of the generator.
        calibrate_on: Path of the JSON of a backtest that calibrates the promise; None: held-out models do.
        schema: What the columns are, from a schema file; None: as inferred from the rows.
    """

    data: str
    target: str | None
    positive: str
    freeze: tuple[str, ...] = ()
    only_up: tuple[str, ...] = ()
    only_down: tuple[str, ...] = ()
    between: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    at_most: int | None = None
    models: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    survival: float = 0.95
    reliability: float | None = None
    guarantee: str = "next_model"
    confidence: float | None = None
    hypotheses: int | None = None
    resampling: str | None = None
    steps: int = 3000
    threshold: float | None = None
    seed: int = 0
    calibrate_on: str | None = None
    schema: Schema | None = None

    def __post_init__(self) -> None:
        for name in ("survival", "reliability", "confidence", "threshold"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1:
                raise SettingError(f"--{name} must be in (0, 1). Got {value!r} instead.")
        if self.guarantee not in get_args(Guarantee):
            raise SettingError(
                f"--guarantee must be one of {enumerate_some(get_args(Guarantee))}. Got {self.guarantee!r} instead."
            )
        if self.confidence is not None and self.guarantee != "most_models":
            raise SettingError(
                f"--confidence is for --guarantee most_models. Got {self.guarantee}: leave --confidence out."
            )
        if self.reliability is not None and self.guarantee == "expected":
            raise SettingError("--guarantee expected has no --reliability, only --survival. Leave --reliability out.")
        if self.resampling is not None and self.resampling not in DIFFER:
            raise SettingError(
                f"--resampling must be one of {enumerate_some(DIFFER, len(DIFFER))}. Got {self.resampling!r} instead."
            )
        if len(self.models) > 1 and (self.hypotheses is not None or self.resampling is not None):
            raise SettingError("Several --model are the plausible models: leave --hypotheses and --resampling out.")
        if self.schema is not None and self.categorical:
            raise SettingError("--categorical and --schema both say what columns are. Write it into the schema alone.")
        if self.classes and not self.models:
            raise SettingError("--classes names the outcomes of a --model. Give one, or leave --classes out.")
        given = [("--model", path) for path in self.models]
        given += [] if self.calibrate_on is None else [("--calibrate-on", self.calibrate_on)]
        for option, path in given:
            if not Path(path).is_file():
                raise DataError(f"There is no file {path!r} for {option}.")

    @property
    def settings(self) -> dict[str, Any]:
        """The options as values that JSON can hold, with the schema as its text."""
        schema = None if self.schema is None else self.schema.to_json()
        return asdict(replace(self, schema=None)) | {"schema": schema}

    @property
    def promise(self) -> Promise:
        """What is to be promised, with the defaults of options that were left out."""
        default = Promise()
        return Promise(
            self.survival,
            default.reliability if self.reliability is None else self.reliability,
            cast("Guarantee", self.guarantee),
            default.confidence if self.confidence is None else self.confidence,
        )


@dataclass(frozen=True, eq=False)
class Table:
    """Rows for training, and rows held out to measure the explainer on.

    Attributes:
        X: Training rows.
        y: Outcomes of the training rows.
        held_out: Held-out rows.
        held_out_y: Outcomes of the held-out rows.
        schema: Schema of the columns, with the constraints of the options.
        classes: All outcomes, sorted.
        positive: The outcome that people want.
        notes: Warnings about the data, each a sentence.
        findings: What was found in the columns, to be printed; empty where nothing was.
        apart: A column that is not learnt from, for all rows; None: none was asked for.
    """

    X: pd.DataFrame
    y: NDArray[Any]
    held_out: pd.DataFrame
    held_out_y: NDArray[Any]
    schema: Schema
    classes: list[Any]
    positive: Any
    notes: tuple[str, ...]
    findings: str = ""
    apart: pd.Series[Any] | None = None

    def columns(self, data: str) -> str:
        """What the columns are, and what was found in them, to be printed.

        Args:
            data: Path of the rows.
        """
        findings = self.findings and f"\n{self.findings}\n"
        return f"{len(self.X) + len(self.held_out):,} rows of {data}\n{self.schema}\n{findings}"


def read_columns(config: FitConfig, apart: str | None = None) -> tuple[pd.DataFrame, Chunk, dict[str, str]]:
    """Read the columns that are learnt from, each as what the schema file says, or else as what its cells are.

    Args:
        config: The options.
        apart: Column that is not learnt from, such as that of the moments; None: none.

    Returns:
        The columns as a frame, all cells of the file, and what is said of its columns of dates.

    Raises:
        AvcgError: If the file or the options are invalid. The message names the column or the option.
    """
    with open_rows(config.data) as source:
        where = source.name
        check_columns("--target", [] if config.target is None else [config.target], source.columns)
        # pandas stores the index of a frame in columns of this name, which are not features.
        rest = [name for name in source.columns if name != config.target and not name.startswith("__index_level_")]
        check_columns("--drop", config.drop, rest)
        check_columns("--time", [] if apart is None else [apart], rest)
        columns = [name for name in rest if name not in config.drop and name != apart]
        if config.schema is not None:
            check_described(config.schema, columns, rest, where)
        check_columns("--categorical", config.categorical, columns)
        if not columns:
            raise DataError(f"{where} has no column left to learn from.")
        chunk = next(iter(source.chunks()), None)
        if chunk is None:
            raise DataError(f"{where} has columns and no rows.")
    if config.schema is not None:
        return read_described(chunk, config.schema, columns), chunk, {}
    dates = dates_of(chunk, columns)
    read = [name for name in columns if name not in dates]
    X = pd.DataFrame({name: _column(chunk, name, as_text=name in config.categorical) for name in read})
    return X, chunk, dates


def read_table(config: FitConfig, apart: str | None = None) -> Table:
    """Read the rows, infer their schema, and split them into training and held-out rows.

    Args:
        config: The options.
        apart: Column that is read beside the rows, such as that of their moments; None: none.

    Raises:
        AvcgError: If the file or the options are invalid. The message names the column or the option.
    """
    X, chunk, dates = read_columns(config, apart)
    where = chunk.name
    assert config.target is not None
    y = _outcomes(chunk, config.target)
    classes, counts = (part.tolist() for part in np.unique(y, return_counts=True))
    if not 2 <= len(classes) <= _MAX_OUTCOMES:
        raise DataError(
            f"Column {config.target!r} has {len(classes)} different values, e.g. {enumerate_some(classes, 3)}. --target"
            f" must be a column of 2 to {_MAX_OUTCOMES} outcomes."
        )
    if min(counts) < 2 or len(X) < _MIN_ROWS:
        rare = classes[int(np.argmin(counts))]
        raise DataError(
            f"{where} has {len(X)} rows, {min(counts)} of them with outcome {rare!r}, which is too few to train and to"
            f" measure on. At least {_MIN_ROWS} rows are needed, and 2 of each outcome."
        )
    if config.threshold is not None and len(classes) != 2:
        raise SettingError(f"--threshold is for two outcomes. Column {config.target!r} has {len(classes)}.")
    schema = schema_of(config, X)
    notes = (*(id_notes(X, schema) if config.schema is None else ()), *dates.values())
    held_out = _held_out(y, config.seed)
    train, positive = ~held_out, parse_label("--positive", config.positive, classes)
    beside = None if apart is None else _column(chunk, apart, as_text=False)
    findings = _findings(config, X)
    return Table(X[train], y[train], X[held_out], y[held_out], schema, classes, positive, notes, findings, beside)


def _column(chunk: Chunk, name: str, *, as_text: bool) -> pd.Series[Any]:
    cell_type = "text" if as_text else infer_cell_type(chunk, name)
    if cell_type is None:
        assert isinstance(chunk, ArrowChunk)
        kind = chunk.table.column(name).type
        raise DataError(
            f"Column {name!r} is of type {kind}. It must hold numbers, texts or booleans: convert it (a date to a"
            f" number of days, for example), or leave it out: --drop {name!r}."
        )
    column = chunk.column(name, cell_type)
    if column.isna().all():
        raise DataError(f"Column {name!r} is empty in every row. Leave it out: --drop {name!r}.")
    return column


def _outcomes(chunk: Chunk, name: str) -> NDArray[Any]:
    column = _column(chunk, name, as_text=False)
    missing = int(column.isna().sum())
    if missing:
        first = chunk.location(int(column.isna().to_numpy().argmax()))
        raise DataError(
            f"{missing} of {len(column)} rows have no outcome in column {name!r} (the first: {first}). Leave them out."
        )
    return np.array(column.tolist())


def schema_of(config: FitConfig, X: pd.DataFrame) -> Schema:
    """The schema of rows, with the constraints of the options."""
    schema = config.schema
    if schema is None:
        kinds: dict[str, Kind] = dict.fromkeys(config.categorical, "categorical")
        schema = schema_with_gaps(X, kinds, reads_ids=bool(config.models))
    for option in ("freeze", "only_up", "only_down"):
        known = (*schema.all_names, *(schema.kept if option == "freeze" else ()))
        check_columns(f"--{option.replace('_', '-')}", getattr(config, option), known)
    schema = schema.freeze(*config.freeze).only_up(*config.only_up).only_down(*config.only_down)
    for text in config.between:
        name, rest = split_column("--between", text, schema.names)
        schema = schema.between(name, *parse_range("--between", name, rest))
    return schema if config.at_most is None else schema.at_most(config.at_most)


def _findings(config: FitConfig, X: pd.DataFrame) -> str:
    """What was found in the columns, as a table, without hints that the options follow already."""
    if config.schema is not None:  # somebody has looked at them
        return ""
    limited = {*config.freeze, *config.only_up, *config.only_down}
    inspection = inspect(X, dict.fromkeys(config.categorical, "categorical"))
    findings = tuple(
        finding for finding in inspection.findings if not (finding.found.endswith("?") and finding.column in limited)
    )
    return str(replace(inspection, findings=findings)) if findings else ""


def _held_out(y: NDArray[Any], seed: int) -> NDArray[np.bool_]:
    """(N,) which rows are held out: a share of each outcome, at least one row, never all."""
    rng, held_out = np.random.default_rng(seed), np.zeros(len(y), bool)
    for label in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == label))
        held_out[rows[: max(1, round(_HELD_OUT_SHARE * len(rows)))]] = True
    return held_out


@dataclass(frozen=True, eq=False)
class FitResult:
    """A fitted explainer, and how it does on held-out rows.

    Attributes:
        explainer: The fitted explainer.
        figures: Measurements on the held-out rows, as values of JSON.
        about: Notes to save with the explainer.
        notes: Warnings, each a sentence.
    """

    explainer: AVCG
    figures: dict[str, Any]
    about: dict[str, Any]
    notes: tuple[str, ...]


def fit_explainer(config: FitConfig, table: Table) -> FitResult:
    """Train the models and the generator, and measure the explainer on the held-out rows."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hypotheses, model, assumption = _hypotheses(config, table)
        threshold = config.threshold
        if threshold is not None and table.positive == table.classes[0]:  # AVCG takes that of the second class
            threshold = 1.0 - threshold
        explainer = AVCG(
            hypotheses,
            model=model,
            threshold=threshold,
            **asdict(config.promise),
            recipe=Recipe(steps=config.steps),
            calibrate_on=None if config.calibrate_on is None else Backtest.from_json(Path(config.calibrate_on)),
            random_state=config.seed,
        ).fit(table.X, table.y)
    # What is promised is shown with the figures.
    messages = dict.fromkeys(
        str(warning.message) for warning in caught if not issubclass(warning.category, PromiseWarning)
    )
    figures = {"rows": len(table.X)} | measure(explainer, table.held_out, table.held_out_y, table.positive)
    notes = (*table.notes, *messages)
    if config.models and figures["accuracy"] < 1.0 - figures["accuracy"] and len(table.classes) == 2:
        notes = (*notes, _swapped_classes_note(config, table, figures["accuracy"]))
    figures |= {"notes": list(notes)}
    about = {
        "made_by": "avcg fit",
        "target": config.target,
        "positive": table.positive,
        "dtypes": {str(name): str(dtype) for name, dtype in table.X.dtypes.items()},
        "assumption": assumption,
        "settings": {
            **config.settings,
            "data": Path(config.data).name,
            "models": _names(config),
            "calibrate_on": config.calibrate_on and Path(config.calibrate_on).name,
        },
        "held_out": figures,
    }
    return FitResult(explainer, {**figures, "assumption": assumption}, about, notes)


def _names(config: FitConfig) -> list[str]:
    return [Path(path).name for path in config.models]


def _swapped_classes_note(config: FitConfig, table: Table, accuracy: float) -> str:
    order = ",".join(reversed(config.classes or [str(label) for label in table.classes]))
    return (
        f"{Path(config.models[0]).name} is right about {accuracy:.0%} of the held-out rows, less often than a coin"
        f" toss. If its probabilities come in the other order, add --classes {order}."
    )


def _hypotheses(config: FitConfig, table: Table) -> tuple[FiniteSet, BlackBox | None, str]:
    """The plausible models, the deployed model if it is not one of them, and the assumption of certificates."""
    space = TabularSpace.fit(table.schema, table.X)
    boxes = [_box(path, config, table, space) for path in config.models]  # raises before models are trained
    if len(boxes) > 1:
        assumption = (
            f"The next model is like the {len(boxes)} models that were given, and equally likely to be like each of"
            " them. How they were made is unknown, so certificates rely on this assumption alone."
        )
        return from_models(boxes, table.X, deployed=boxes[0], space=space), None, assumption
    network = Classifier(schema=table.schema, random_state=config.seed).fit(table.X, table.y)
    count, resampling = config.hypotheses or N_HYPOTHESES, cast("How", config.resampling or "bootstrap")
    others = retrains(network, table.X, table.y, n=count, resampling=resampling, random_state=config.seed)
    if not boxes:
        return others, None, f"The next model is trained as this one was, {DIFFER[resampling]}."
    agreement = float((network.predict(table.held_out) == boxes[0].predict(table.held_out)).mean())
    assumption = (
        f"{Path(config.models[0]).name} is the deployed model, and cannot be retrained here. The {count} plausible"
        f" models are networks trained in its place, {DIFFER[resampling]}; such a network agrees with it about"
        f" {agreement:.0%} of the held-out rows. Certificates assume that the next model is like these networks, which"
        " need not be true of its successor."
    )
    return others, boxes[0], assumption


def _box(path: str, config: FitConfig, table: Table, space: TabularSpace) -> BlackBox:
    labels = table.classes
    if config.classes:
        labels = [parse_label("--classes", text, table.classes) for text in config.classes]
        if len(set(labels)) != len(table.classes) or len(labels) != len(table.classes):
            raise SettingError(
                f"--classes must name each outcome once: {enumerate_some(table.classes, 12)}. Got"
                f" {','.join(config.classes)!r} instead."
            )
    return BlackBox(path, table.X, classes=labels, space=space).over(space, np.array(table.classes))
