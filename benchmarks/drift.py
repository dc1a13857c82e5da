"""Drift with a known truth: how often a backtest and a monitor find a border that moves, and one that does not.

    python benchmarks/drift.py [--histories 20] [--jobs 2]

Each history has eight moments with a border that stays, shifts or turns. A backtest tells how many promises are kept,
by bootstraps and by the past moments. A monitor compares the models of eight more moments with 39 calibration models
that were each fitted to rows of their own from the first moment. ``years_page.py`` writes the table.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from sklearn.linear_model import LogisticRegression

from avcg import AVCG, BacktestConfig, Recipe, backtest, from_models, toys
from avcg.auditing.monitor import monitor
from avcg.files import write_whole

RESULTS = Path(__file__).parent / "results" / "drift.json"
CHANGES: dict[str, dict[str, float]] = {
    "stays": {},
    "shifts by 0.1": {"shift": 0.1},
    "shifts by 0.4": {"shift": 0.4},
    "turns by 0.1": {"turn": 0.1},
    "turns by 0.4": {"turn": 0.4},
}
QUICK = Recipe(steps=300, layers=(32,), single_pass=True)
N, MOMENTS, OWN = 200, 8, 56


def history(change: str, seed: int) -> dict[str, Any]:
    """What a backtest and a monitor find in one history."""
    warnings.simplefilter("ignore")
    toy = toys.drift(n=N, moments=MOMENTS, seed=seed, **CHANGES[change])
    methods = {"avcg": lambda hypotheses, X, y: AVCG(hypotheses, recipe=QUICK).fit(X, y)}
    found = backtest(
        LogisticRegression(), toy.X, toy.y, time=toy.time, target=1, methods=methods,
        config=BacktestConfig(window=1, horizon=1),
    )  # fmt: skip
    own, past = found.frame[found.frame["method"] == "avcg"], found.replayed()
    return {
        "change": change,
        "seed": seed,
        "made": int(own["promised"].count()),
        "kept": int(own["kept"].sum()),
        "past made": int(past["made"].sum()),
        "past kept": int(past["kept"].sum()),
        "claimed": float(past["reliability"][past["made"]].sum()),
        **alarms(change, seed),
    }


def alarms(change: str, seed: int) -> dict[str, Any]:
    """Whether a monitor raises an alarm over the models of eight moments, and at which of them."""
    first = toys.drift(n=N * OWN, moments=1, seed=10_000 + seed)
    fitted = [LogisticRegression().fit(first.X[i::OWN], first.y[i::OWN]) for i in range(OWN)]
    recourse = AVCG(from_models(fitted, first.X, deployed=fitted[0]), recipe=QUICK, n_test=1).fit(first.X[:600])
    later = toys.drift(n=N, moments=MOMENTS + 1, seed=20_000 + seed, **CHANGES[change])
    models = [
        LogisticRegression().fit(later.X[later.time == moment], later.y[later.time == moment])
        for moment in range(1, MOMENTS + 1)
    ]
    seen = monitor(recourse, from_models(models, first.X, space=recourse.space_), range(1, MOMENTS + 1)).frame["alarm"]
    return {"alarm": bool(seen.any()), "first": int(seen.to_numpy().argmax()) + 1 if seen.any() else None}


def main() -> None:
    """Run all histories, and store what was found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--histories", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    tasks = [(change, seed) for change in CHANGES for seed in range(options.histories)]
    found = Parallel(n_jobs=options.jobs)(delayed(history)(*task) for task in tasks)
    write_whole(RESULTS, json.dumps(found))
    for change in CHANGES:
        own = [line for line in found if line["change"] == change]
        print(
            change,
            {name: float(np.mean([line[name] for line in own])) for name in ("made", "kept", "past kept", "alarm")},
        )


if __name__ == "__main__":
    main()
