"""The run of ``avcg backtest``: rows of a file, a model and methods, through `avcg.backtest`."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from avcg.auditing.backtest import METHODS, BacktestConfig, Method, backtest, searches
from avcg.auditing.past import Backtest
from avcg.cli.fit_run import N_HYPOTHESES, FitConfig, Table, read_table, schema_of
from avcg.errors import DataError, SettingError, enumerate_some
from avcg.explainers.avcg import AVCG
from avcg.explainers.base import Explainer
from avcg.hypotheses.finite import FiniteSet
from avcg.hypotheses.retrains import retrains
from avcg.method.recipe import Recipe
from avcg.models.classifier import Classifier
from avcg.schema.schema import Schema
from avcg.space.tabular import table_of

MODELS = ("network", "xgboost")
MOST_MOMENTS = 100


@dataclass(frozen=True)
class BacktestOptions:
    """The options of ``avcg backtest`` that ``avcg fit`` has not; see `avcg.BacktestConfig`.

    Attributes:
        time: Column of moments.
        model: What is fitted at each moment, one of `MODELS`.
        first: Number of moments known before the first origin.
        window: Number of moments that a model is trained on; None: all that are known.
        label_delay: Number of moments after which an outcome is known.
        horizon: Number of later models that judge; None: all.
        people: Largest number of people who are advised at an origin.
        rows: Largest number of rows of a moment; None: all.
        search: Whether a search for each row is one of the methods.
        folder: Folder in which each origin is stored; None: nothing is stored.
        jobs: Number of processes.
    """

    time: str
    model: str = "network"
    first: int = 1
    window: int | None = None
    label_delay: int = 0
    horizon: int | None = None
    people: int = 1000
    rows: int | None = None
    search: bool = False
    folder: str | None = None
    jobs: int = 1

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise SettingError(f"--model must be one of {enumerate_some(MODELS)}. Got {self.model!r} instead.")
        if self.search and self.model != "network":
            raise SettingError("--search needs gradients, which xgboost has not. Leave one of them out.")


def run(config: FitConfig, options: BacktestOptions) -> tuple[Backtest, list[str]]:
    """Read the rows, and run the backtest.

    Returns:
        The backtest, and warnings, each a sentence.

    Raises:
        AvcgError: If the file or the options are invalid. The message names the column or the option.
    """
    table = read_table(config, apart=options.time)
    X = pd.concat([table.X, table.held_out]).sort_index()
    labels = pd.Series([*table.y, *table.held_out_y], index=[*table.X.index, *table.held_out.index])[X.index]
    assert table.apart is not None
    if table.apart.isna().any():
        raise DataError(
            f"Column {options.time!r} is empty in {int(table.apart.isna().sum())} rows. Every row needs a moment: fill"
            " them, or leave these rows out."
        )
    chosen = _sample(table.apart, options.rows, config.seed)
    time, found = table.apart[chosen].to_numpy(), np.unique(table.apart[chosen])
    if len(found) > MOST_MOMENTS:
        raise SettingError(
            f"--time {options.time!r} has {len(found):,} different moments, and at each of them models are trained: at"
            f" most {MOST_MOMENTS} are allowed. Give a coarser column, such as years in place of days."
        )
    settings = BacktestConfig(
        options.first, options.horizon, options.window, options.label_delay, options.people, config.seed
    )
    model, positive = _model(config, options, table), table.positive
    y = labels[chosen].to_numpy()
    if options.model == "xgboost":  # it takes numbers as labels, and texts as categories
        y, positive = (y == positive).astype(np.int64), 1
        X = X.drop(columns=list(table.schema.kept))
        X = X.astype(dict.fromkeys(X.select_dtypes("object").columns, "category"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = backtest(
            model, X.loc[chosen], y, time=time, target=positive, plausible=partial(_plausible, config),
            methods=_methods(config, options), config=settings, folder=options.folder,
            settings=_settings(config, options), n_jobs=options.jobs,
        )  # fmt: skip
    notes = [*table.notes, *(str(warning.message) for warning in caught)]
    return Backtest(result.frame, result.frontier, table.positive), notes


def _settings(config: FitConfig, options: BacktestOptions) -> dict[str, Any]:
    """What stored origins must have in common beside the rows: everything that the advice depends on."""
    alike = {**config.settings, "model": options.model, "data": ""}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in alike.items()}


def _sample(time: pd.Series[Any], rows: int | None, seed: int) -> pd.Index[Any]:
    """The rows that are looked at: all, or so many of each moment."""
    if rows is None:
        return time.index
    drawn = time.sample(frac=1.0, random_state=seed).groupby(time, sort=False).head(rows)
    return drawn.index.sort_values()


def _model(config: FitConfig, options: BacktestOptions, table: Table) -> Any:
    if options.model == "network":
        return Classifier(schema=table.schema, random_state=config.seed)
    from avcg.bench.models import xgboost

    return xgboost(table.X, config.seed)


def _plausible(config: FitConfig, model: Any, X: Any, y: NDArray[Any]) -> FiniteSet:
    count, schema = config.hypotheses or N_HYPOTHESES, None
    if not isinstance(model, Classifier):
        schema = schema_of(config, X)
    return retrains(model, X, y, n=count, schema=schema, random_state=config.seed)


def _methods(config: FitConfig, options: BacktestOptions) -> dict[str, Method]:
    return {**METHODS, "avcg": partial(_avcg, config), **(searches() if options.search else {})}


def _known(hypotheses: FiniteSet, X: pd.DataFrame) -> Schema | None:
    """The schema of the hypotheses, where answers move only to categories that were known at the moment."""
    space = table_of(hypotheses.space)
    if space is None:
        return None
    schema = space.schema
    for feature, column in zip(schema.categorical, space.read(X).choices.T, strict=True):
        seen = {feature.categories[i] for i in np.unique(column) if i < len(feature.categories)}
        allowed = feature.categories if feature.allowed is None else feature.allowed
        known = [value for value in allowed if value in seen]
        schema = schema.allow(feature.name, known) if known else schema.freeze(feature.name)
    return schema


def _avcg(config: FitConfig, hypotheses: FiniteSet, X: Any, y: NDArray[Any]) -> Explainer:
    promise, recipe = config.promise, Recipe(steps=config.steps)
    return AVCG(
        hypotheses,
        _known(hypotheses, X),
        survival=promise.survival,
        reliability=promise.reliability,
        recipe=recipe,
        random_state=config.seed,
    ).fit(X, y)
