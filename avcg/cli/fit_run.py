"""What ``avcg fit`` does: from a file of rows to an explainer, with what it is worth on rows that it has not seen."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from avcg.auditing.audit import TOLD
from avcg.batch.chunks import ArrowChunk, TextChunk, inferred
from avcg.batch.parsing import check_columns, label_of, number_range, split_column
from avcg.batch.readers import open_rows
from avcg.errors import DataError, SettingError, enumerate_some
from avcg.explainers.avcg import AVCG
from avcg.guarantees.bounds import clopper_pearson
from avcg.hypotheses.finite import FiniteSet
from avcg.hypotheses.from_models import from_models
from avcg.hypotheses.retrains import How, retrains
from avcg.method.recipe import Recipe
from avcg.models.affine import schema_with_gaps
from avcg.models.black_box import BlackBox
from avcg.models.classifier import Classifier
from avcg.schema.schema import Schema
from avcg.space.frames import MOST_CATEGORIES
from avcg.space.tabular import TabularSpace, table_of

_HELD_SHARE, _FEWEST_ROWS, _MOST_OUTCOMES = 0.2, 20, 20
_MOST_DECIMALS = 4
_MEASURED = 2000  # rows that the figures are measured on, at most


@dataclass(frozen=True)
class FitConfig:
    """All that ``avcg fit`` is told.

    Attributes:
        data: A CSV or parquet file.
        target: The column of outcomes.
        positive: The outcome that people want.
        freeze: Columns that may not change.
        only_up: Columns that may only rise.
        only_down: Columns that may only fall.
        between: Ranges, as ``column:low:high``.
        drop: Columns that are left out.
        categorical: Columns whose numbers are names.
        at_most: How many columns may change at once; None: any number.
        models: ONNX files, the first of which decides; none: a network is trained.
        classes: Outcomes in the order of the models' probabilities; none: sorted.
        survival: The share of models that is promised to agree.
        hypotheses: How many plausible models are trained; None: 20, where any are.
        resampling: What differs between them; None: a bootstrap of the rows.
        steps: Of training the generator.
        threshold: Probability of the positive outcome from which it is decided for; None: the likeliest outcome.
        seed: Of everything.
    """

    data: str
    target: str
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
    survival: float = 0.99
    hypotheses: int | None = None
    resampling: str | None = None
    steps: int = 3000
    threshold: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in (("survival", self.survival), ("threshold", self.threshold)):
            if value is not None and not 0 < value < 1:
                raise SettingError(f"--{name} must be in (0, 1). Got {value!r} instead.")
        if self.resampling is not None and self.resampling not in get_args(How):
            raise SettingError(
                f"--resampling must be one of {enumerate_some(get_args(How))}. Got {self.resampling!r} instead."
            )
        if len(self.models) > 1 and (self.hypotheses is not None or self.resampling is not None):
            raise SettingError("Several --model are the plausible models: leave --hypotheses and --resampling out.")
        if self.classes and not self.models:
            raise SettingError("--classes names the outcomes of a --model. Without one there is nothing to name.")
        for path in self.models:
            if not Path(path).is_file():
                raise DataError(f"There is no file {path!r} for --model.")


@dataclass(frozen=True, eq=False)
class Table:
    """Rows to learn from, and others to measure by.

    Attributes:
        X: To learn from.
        y: Their outcomes.
        held: To measure by.
        held_y: Their outcomes.
        schema: What the columns are and what may change.
        classes: All outcomes, sorted.
        positive: The outcome that people want.
        notes: What the reader should know.
    """

    X: pd.DataFrame
    y: NDArray[Any]
    held: pd.DataFrame
    held_y: NDArray[Any]
    schema: Schema
    classes: list[Any]
    positive: Any
    notes: tuple[str, ...]


def read_config(config: FitConfig) -> Table:
    """The rows of a lesson, read and parted.

    Raises:
        AvcgError: If the file or the options cannot be meant; the message names the column or the option.
    """
    with open_rows(config.data) as source:
        where = source.name
        check_columns("--target", [config.target], source.columns)
        # What pandas calls an index that it had to keep, and does not count among the columns itself.
        rest = [name for name in source.columns if name != config.target and not name.startswith("__index_level_")]
        check_columns("--drop", config.drop, rest)
        columns = [name for name in rest if name not in config.drop]
        check_columns("--categorical", config.categorical, columns)
        for option in ("freeze", "only_up", "only_down"):
            check_columns(f"--{option.replace('_', '-')}", getattr(config, option), columns)
        if not columns:
            raise DataError(f"{where} has no column left to learn from.")
        piece = next(iter(source.pieces()), None)
        if piece is None:
            raise DataError(f"{where} has columns and no rows.")
    X = pd.DataFrame({name: _column(piece, name, as_text=name in config.categorical) for name in columns})
    y = _outcomes(piece, config.target)
    classes, counts = (part.tolist() for part in np.unique(y, return_counts=True))
    if not 2 <= len(classes) <= _MOST_OUTCOMES:
        raise DataError(
            f"Column {config.target!r} has {len(classes)} different values, e.g. {enumerate_some(classes, 3)}. --target"
            f" must be a column of 2 to {_MOST_OUTCOMES} outcomes."
        )
    if min(counts) < 2 or len(X) < _FEWEST_ROWS:
        rare = classes[int(np.argmin(counts))]
        raise DataError(
            f"{where} has {len(X)} rows, {min(counts)} of them {rare!r}: too few to learn from and to measure by. There"
            f" must be {_FEWEST_ROWS}, and 2 of each outcome."
        )
    if config.threshold is not None and len(classes) != 2:
        raise SettingError(f"--threshold is for two outcomes. Column {config.target!r} has {len(classes)}.")
    notes = _check_names(X)
    schema = _schema(config, X)
    held = _held(y, config.seed)
    kept = ~held
    return Table(
        X[kept], y[kept], X[held], y[held], schema, classes, label_of("--positive", config.positive, classes), notes
    )


def _column(piece: TextChunk | ArrowChunk, name: str, *, as_text: bool) -> pd.Series[Any]:
    reading = "text" if as_text else inferred(piece, name)
    if reading is None:
        assert isinstance(piece, ArrowChunk)
        kind = piece.table.column(name).type
        raise DataError(
            f"Column {name!r} is of type {kind}, which is neither a number, a text nor true or false. Convert it (dates"
            f" to days since a day that matters), or leave it out: --drop {name!r}."
        )
    column = piece.column(name, reading)
    if column.isna().all():
        raise DataError(f"Column {name!r} is empty in every row. Leave it out: --drop {name!r}.")
    return column


def _outcomes(piece: TextChunk | ArrowChunk, name: str) -> NDArray[Any]:
    column = _column(piece, name, as_text=False)
    missing = int(column.isna().sum())
    if missing:
        first = piece.where(int(column.isna().to_numpy().argmax()))
        raise DataError(
            f"{missing} of {len(column)} rows have no outcome in column {name!r} (the first: {first}). Leave them out."
        )
    return np.array(column.tolist())


def _check_names(X: pd.DataFrame) -> tuple[str, ...]:
    """Refuse or point out columns that name rows instead of saying something about them."""
    notes = []
    for name, column in X.items():
        distinct = int(column.nunique())
        is_text = column.dtype == object and isinstance(column.dropna().iloc[0], str)
        if is_text and distinct > MOST_CATEGORIES:
            raise DataError(
                f"Column {name!r} has {distinct:,} different texts, e.g. {enumerate_some(column.dropna().unique(), 3)}:"
                f" it names rows instead of sorting them. Leave it out: --drop {str(name)!r}."
            )
        counts_rows = column.dtype.kind == "i" and len(column) > 2 and bool((column.diff().iloc[1:] == 1).all())
        if (is_text and distinct == len(column)) or counts_rows:
            notes.append(
                f"Column {name!r} has another value in every row, as a name or a number of the row has. If it is one,"
                f" leave it out: --drop {str(name)!r}."
            )
    return tuple(notes)


def _schema(config: FitConfig, X: pd.DataFrame) -> Schema:
    schema = schema_with_gaps(X).freeze(*config.freeze).only_up(*config.only_up).only_down(*config.only_down)
    for name, step in _steps(X).items():
        schema = schema.step(name, step)
    for text in config.between:
        name, rest = split_column("--between", text, schema.names)
        schema = schema.between(name, *number_range("--between", name, rest))
    return schema if config.at_most is None else schema.at_most(config.at_most)


def _steps(X: pd.DataFrame) -> dict[str, float]:
    """The grid of numbers that are written with a few decimals, so that answers have no more of them."""
    steps = {}
    for name, column in X.items():
        if column.dtype.kind != "f":
            continue
        values = column.dropna().to_numpy(np.float64)
        for digits in range(_MOST_DECIMALS + 1):
            if (np.round(values, digits) == values).all():
                steps[str(name)] = float(f"1e-{digits}")
                break
    return steps


def _held(y: NDArray[Any], seed: int) -> NDArray[np.bool_]:
    """(N,) rows to measure by: a share of each outcome, at least one, never all."""
    rng, held = np.random.default_rng(seed), np.zeros(len(y), bool)
    for label in np.unique(y):
        at = rng.permutation(np.flatnonzero(y == label))
        held[at[: max(1, round(_HELD_SHARE * len(at)))]] = True
    return held


@dataclass(frozen=True, eq=False)
class Learnt:
    """An explainer and what it is worth.

    Attributes:
        explainer: Fitted.
        figures: Measured on rows that were held out, as plain values.
        about: What is noted in the artifact.
        notes: What the reader should know.
    """

    explainer: AVCG
    figures: dict[str, Any]
    about: dict[str, Any]
    notes: tuple[str, ...]


def learn(config: FitConfig, table: Table) -> Learnt:
    """Train what there is to train, and measure it."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        hypotheses, model, assumption = _plausible(config, table)
        threshold = config.threshold
        if threshold is not None and table.positive == table.classes[0]:  # the explainer's is that of the second
            threshold = 1.0 - threshold
        explainer = AVCG(
            hypotheses,
            model=model,
            threshold=threshold,
            survival=config.survival,
            recipe=Recipe(steps=config.steps),
            random_state=config.seed,
        ).fit(table.X, table.y)
    # That the promise could not be met is said with the calibration.
    heard = dict.fromkeys(str(one.message) for one in said if "could not be met" not in str(one.message))
    figures = _figures(explainer, table)
    notes = (*table.notes, *heard)
    if config.models and figures["accuracy"] < 1.0 - figures["accuracy"] and len(table.classes) == 2:
        notes = (*notes, _upside_down(config, table, figures["accuracy"]))
    figures |= {"notes": list(notes)}
    about = {
        "made_by": "avcg fit",
        "target": config.target,
        "positive": table.positive,
        "dtypes": {str(name): str(dtype) for name, dtype in table.X.dtypes.items()},
        "assumption": assumption,
        "settings": {**asdict(config), "data": Path(config.data).name, "models": _names(config)},
        "held_out": figures,
    }
    return Learnt(explainer, {**figures, "assumption": assumption}, about, notes)


def _names(config: FitConfig) -> list[str]:
    return [Path(path).name for path in config.models]


def _upside_down(config: FitConfig, table: Table, accuracy: float) -> str:
    order = ",".join(reversed(config.classes or [str(label) for label in table.classes]))
    return (
        f"{Path(config.models[0]).name} is right about {accuracy:.0%} of the held-out rows, less than a coin. If its"
        f" probabilities come in another order, say so: --classes {order}."
    )


def _plausible(config: FitConfig, table: Table) -> tuple[FiniteSet, BlackBox | None, str]:
    """The models to hold under, the one that decides where it is none of theirs, and what a certificate assumes."""
    space = TabularSpace.fit(table.schema, table.X)
    boxes = [_box(path, config, table, space) for path in config.models]  # whatever is wrong with them is said first
    if len(boxes) > 1:
        said = (
            f"The next model is like the {len(boxes)} that were given, and no more like one than like another. How they"
            " came about is not known here: the certificate counts those that were set aside, and trusts this."
        )
        return from_models(boxes, table.X, deployed=boxes[0], space=space), None, said
    network = Classifier(schema=table.schema, random_state=config.seed).fit(table.X, table.y)
    count, resampling = config.hypotheses or 20, cast("How", config.resampling or "bootstrap")
    others = retrains(network, table.X, table.y, n=count, resampling=resampling, random_state=config.seed)
    differ = {"seed": "from another seed", "bootstrap": "on a bootstrap of the rows", "subsample": "on 80% of the rows"}
    if not boxes:
        return others, None, f"The next model is trained as this one was, {differ[resampling]}."
    same = float((network.predict(table.held) == boxes[0].predict(table.held)).mean())
    said = (
        f"{Path(config.models[0]).name} decides, and cannot be trained again here. The {count} models beside it are"
        f" networks that were trained in its place, {differ[resampling]}: one of them agrees with it about {same:.0%}"
        " of the held-out rows. The certificate speaks of a next model like these, which its own successor need not be."
    )
    return others, boxes[0], said


def _box(path: str, config: FitConfig, table: Table, space: TabularSpace) -> BlackBox:
    labels = table.classes
    if config.classes:
        labels = [label_of("--classes", text, table.classes) for text in config.classes]
        if len(set(labels)) != len(table.classes) or len(labels) != len(table.classes):
            raise SettingError(
                f"--classes must name each outcome once: {enumerate_some(table.classes, 12)}. Got"
                f" {','.join(config.classes)!r} instead."
            )
    return BlackBox(path, table.X, classes=labels, space=space).over(space, np.array(table.classes))


def _figures(explainer: AVCG, table: Table) -> dict[str, Any]:
    """What the explainer is worth on rows that nothing was trained on."""
    space, held = table_of(explainer.space_), table.held
    assert space is not None
    decisions = explainer.decide(held)
    denied = held[decisions != table.positive]
    counts = np.unique(table.held_y, return_counts=True)[1]
    figures: dict[str, Any] = {
        "rows": len(table.X),
        "held_out": len(held),
        "accuracy": float((decisions == table.held_y).mean()),
        "most_frequent": float(counts.max() / counts.sum()),
        "denied": len(denied),
        "promise": explainer.survival,
        "calibration": str(explainer.calibration_),
    }
    names = (
        "measured", "statuses", "coverage", "survival", "n_models", "provable", "distance", "changes", "violations",
    )  # fmt: skip
    figures |= dict.fromkeys(names)
    if not len(denied):
        return figures
    answers = explainer.generate(denied.head(_MEASURED), table.positive)
    delivered = np.isin(answers.statuses, TOLD)
    sure = answers.certificate
    assert answers.changed is not None
    figures |= {
        "measured": len(answers),
        "statuses": {str(name): int(count) for name, count in answers.summary().items()},
        "coverage": float((answers.statuses == "ok").mean()),
        "violations": int(space.violations(answers.answers, answers.factuals).sum()),
        "n_models": None if sure is None else sure.n,
        "provable": None if sure is None else float(clopper_pearson(sure.n, sure.n, sure.confidence)),
    }
    if delivered.any():
        figures |= {
            "survival": None if sure is None else float(sure.share[delivered].mean()),
            "distance": float(answers.distance[delivered].mean()),
            "changes": float(answers.changed[delivered].sum(axis=1).mean()),
        }
    return figures
