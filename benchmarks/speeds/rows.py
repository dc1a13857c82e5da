"""Rows to codes and back."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from avcg import TabularSpace, datasets
from avcg.space.reading import read_rows
from speeds.timing import median_seconds


def space(rows: int, repeats: int) -> None:
    """A million rows of Adult there and back, against scikit-learn; one row as a dict."""
    from sklearn.compose import ColumnTransformer
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    data = datasets.load("adult")
    X = data.X.iloc[np.random.default_rng(0).integers(0, len(data), rows)].reset_index(drop=True)
    assert data.schema is not None
    fitted = TabularSpace.fit(data.schema, data.X)
    numeric = [feature.name for feature in data.schema.numeric]
    categorical = [feature.name for feature in data.schema.categorical]

    def ours(like: pd.DataFrame | None) -> Callable[[], tuple[float, float]]:
        def both() -> tuple[float, float]:
            started = time.perf_counter()
            x = fitted.encode(X)
            halfway = time.perf_counter()
            fitted.decode(x, like=like)
            return halfway - started, time.perf_counter() - halfway

        return both

    def theirs(sparse: bool) -> Callable[[], tuple[float, float]]:
        columns = ColumnTransformer(
            [("numbers", StandardScaler(), numeric), ("choices", OneHotEncoder(sparse_output=sparse), categorical)]
        ).fit(data.X)

        def both() -> tuple[float, float]:
            started = time.perf_counter()
            x = columns.transform(X)
            halfway = time.perf_counter()
            width = len(numeric)
            first = x[:, :width]
            pd.DataFrame(
                columns.named_transformers_["numbers"].inverse_transform(first.toarray() if sparse else first),
                columns=numeric,
            )
            pd.DataFrame(columns.named_transformers_["choices"].inverse_transform(x[:, width:]), columns=categorical)
            return halfway - started, time.perf_counter() - halfway

        return both

    table = Table("what", "there (s)", "back (s)", "both (s)", "ours / theirs", title=f"{rows:,} rows of Adult")
    times: dict[str, list[tuple[float, float]]] = {}
    runs = {
        "avcg": ours(X),
        "avcg, back from codes alone": ours(None),
        "scikit-learn, sparse": theirs(True),
        "scikit-learn, dense": theirs(False),
    }
    for _ in range(repeats):  # turn by turn, so that a busy minute does not fall on one of them alone
        for name, run in runs.items():
            times.setdefault(name, []).append(run())
    for name, pairs in times.items():
        there, back, both = (
            statistics.median(values) for values in (*zip(*pairs, strict=True), [sum(p) for p in pairs])
        )
        ratio = statistics.median(sum(a) / sum(b) for a, b in zip(times["avcg"], pairs, strict=True))
        table.add_row(name, f"{there:.2f}", f"{back:.2f}", f"{both:.2f}", f"{ratio:.2f}")
    Console().print(table)

    row = data.X.iloc[0].to_dict()
    calls = 2000
    one = (
        median_seconds(lambda: [fitted.encoding.encode(read_rows(fitted.schema, [row])) for _ in range(calls)], 7)
        / calls
    )
    frame = data.X.iloc[[0]]
    columns = ColumnTransformer([("n", StandardScaler(), numeric), ("c", OneHotEncoder(), categorical)]).fit(data.X)
    other = median_seconds(lambda: columns.transform(frame), 50)
    table = Table("one row", "microseconds", "against", title="One row of Adult, 14 columns")
    table.add_row("avcg, as a dict", f"{1e6 * one:.1f}", "at most 50")
    table.add_row("scikit-learn, as a frame", f"{1e6 * other:.0f}", f"{other / one:.0f} times ours")
    Console().print(table)
    code = "import sys, avcg.space.reading; print({'torch', 'pandas'} & set(sys.modules) or 'neither torch nor pandas')"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    print(f"importing the reader and the encoder loads {loaded}")
