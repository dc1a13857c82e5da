"""Real years: advice of past years on SBA loans, judged by the models that came, and promises calibrated by the past.

    python benchmarks/years.py network [--rows 4000] [--jobs 2]
    python benchmarks/years.py xgboost [--rows 4000] [--jobs 2]

At each year of approval from 1990 to 2011 a model is fitted to the loans of the three years before it, and advises
those of the year whom it refuses; the models of all later years judge. An origin that is done is not done again.
``years_page.py`` makes a page of it.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from years_page import RESULTS

from avcg import BacktestConfig, Classifier, backtest, datasets
from avcg.auditing.backtest import METHODS, Method, searches
from avcg.bench.models import xgboost
from avcg.files import write_whole
from avcg.schema.schema import Schema

CONFIG = BacktestConfig(first=1, window=3, label_delay=1)
PAID, TREES = "paid in full", 100


def loans(rows: int) -> tuple[pd.DataFrame, NDArray[np.int64], NDArray[np.int64], Schema]:
    """At most so many loans of each year, whether each was paid in full, their years, and the schema."""
    data = datasets.load("sba")
    assert data.schema is not None
    rng, years = np.random.default_rng(0), np.asarray(data.cohort)
    chosen = [rng.permutation(np.flatnonzero(years == year))[:rows] for year in np.unique(years)]
    part = data.take(np.sort(np.concatenate(chosen)))
    return part.X, (np.asarray(part.y) == PAID).astype(np.int64), np.asarray(part.cohort), data.schema


def contestant(name: str, X: pd.DataFrame, schema: Schema) -> tuple[Any, dict[str, Method]]:
    """A model, and the methods for it: a network has gradients, so that a search for each row is one of them."""
    if name == "network":
        return Classifier(schema=schema), {**METHODS, **searches((0.5, 0.7, 0.9))}
    return xgboost(X, 0).set_params(n_estimators=TREES), dict(METHODS)


def main() -> None:
    """Run a backtest, and store what it found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", choices=["network", "xgboost"])
    parser.add_argument("--rows", type=int, default=4000, help="loans of each year (default 4000)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    X, y, years, schema = loans(options.rows)
    model, methods = contestant(options.model, X, schema)
    folder = RESULTS / options.model
    started = time.perf_counter()
    found = backtest(
        model, X, y, time=years, target=1, methods=methods, config=CONFIG, folder=folder / "origins",
        n_jobs=options.jobs,
    )  # fmt: skip
    write_whole(folder.with_suffix(".json"), found.to_json())
    print(found, f"{time.perf_counter() - started:.0f} s", sep="\n")


if __name__ == "__main__":
    main()
