"""Whether promises are kept: explainers judged by fresh retrains, on rows that nothing was trained on.

    python benchmarks/promise.py run [--datasets breast_cancer heart ...] [--seeds 3] [--workers 2]
    python benchmarks/promise.py given [--seeds 3]

For each dataset and seed: a network, 40 bootstrap retrains as hypotheses, an explainer by the default recipe, and one
by the recipe before it, whose hinge had a fixed weight. 100 fresh bootstrap retrains judge the answers to unseen rows
at every margin, for each target class by itself. A dataset may have a cohort: ``sba:2004``. `given` stores what is said
where ten networks are given. ``promise_page.py`` makes a page of it.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from joblib import Parallel, delayed
from promise_page import RESULTS, read

from avcg import AVCG, Classifier, Recipe, datasets, from_models, retrains
from avcg.hypotheses.finite import FiniteSet
from avcg.hypotheses.predictors import Joined
from avcg.method.calibration import Calibration
from avcg.method.objective import Weights
from avcg.method.query import Effort

HYPOTHESES, FRESH, PARTS, UNSEEN = 40, 100, 4, 1000
FITS, GIVEN = "fits.jsonl", "given.jsonl"
BEFORE = Recipe(constraint=None, weights=Weights(4.5, 0.01, 1.0, changes=1.2, plausibility=3.2))
RECIPES = {"constraint": Recipe(), "weight": BEFORE}
# The names of efforts in the stored results.
EFFORTS: dict[Effort, str] = {"fast": "single", "standard": "refined"}
PROMISES = ((0.95, 0.9), (0.95, 0.95), (0.99, 0.9))


def load(name: str) -> datasets.Dataset:
    """A dataset by its name, with a year after a colon where it has cohorts."""
    title, _, cohort = name.partition(":")
    return datasets.load(title, cohort=int(cohort)) if cohort else datasets.load(title)


def train(name: str, seed: int, part: int | None) -> tuple[Classifier, FiniteSet, float]:
    """The deployed network with its hypotheses (no part), or a part of the fresh retrains; and the seconds it took."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    data = load(name)
    rows = data.split(seed)[0]
    model = Classifier(schema=data.schema, random_state=seed).fit(rows.X, rows.y)
    started = time.perf_counter()
    n, state = (HYPOTHESES, seed) if part is None else (FRESH // PARTS, 10_000 + 100 * seed + part)
    members = retrains(model, rows.X, rows.y, n=n, random_state=state)
    return model, members, time.perf_counter() - started


def joined(parts: list[FiniteSet]) -> FiniteSet:
    """Several sets of models as one."""
    first = parts[0]
    return FiniteSet(Joined([part.predictors for part in parts]), first.space, first.classes, first.base)


def judge(name: str, seed: int, recipe: str, hypotheses: FiniteSet, fresh: FiniteSet, seconds: float) -> dict[str, Any]:
    """Fit an explainer, and let fresh models judge its answers to unseen rows at every margin."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    train_rows, _, test_rows = load(name).split(seed)
    started = time.perf_counter()
    recourse = AVCG(hypotheses, recipe=RECIPES[recipe], random_state=seed).fit(train_rows.X, train_rows.y)
    fitted = time.perf_counter()
    own = recourse._calibrated()
    calibrated = time.perf_counter()
    unseen = test_rows.X.sample(min(UNSEEN, len(test_rows.X)), random_state=seed)
    # Answers depend on the survival that is asked for, since the search accepts candidates by it.
    judged = {
        survival: recourse.calibrate(survival=survival, models=fresh, X=unseen).calibration_
        for survival in sorted({survival for survival, _ in PROMISES})
    }
    main = judged[PROMISES[0][0]]
    return {
        "dataset": name,
        "seed": seed,
        "recipe": recipe,
        "seconds": {
            "retrains": seconds,
            "fit": fitted - started,
            "of it calibration": calibrated - fitted,
        },
        "multipliers": None if recourse.multipliers_ is None else _short(recourse.multipliers_.values.tolist()),
        "efforts": {
            label: _efforts(own, main, effort) for effort, label in EFFORTS.items() if effort in main.directions
        },
        "promises": {
            f"{survival}/{reliability}": _promised(judged[survival], recourse, survival, reliability)
            for survival, reliability in PROMISES
        },
    }


def _efforts(own: Calibration, judged: Calibration, effort: Effort) -> list[dict[str, Any]]:
    """By target: what calibration models and fresh models accept at each margin."""
    return [
        {
            "target": str(mine.target),
            "margins": _short(mine.table.margins),
            "own": _table(mine.table),
            "fresh": _table(theirs.table),
        }
        for mine, theirs in zip(own.of_effort(effort), judged.of_effort(effort), strict=True)
    ]


def _table(table: Any) -> dict[str, Any]:
    return {
        "n_rows": table.n_rows,
        "answered": table.answered.tolist(),
        "survival": _short(table.survival),
        "lowest": _short(table.shares.min(axis=1)),
        "error": _short(table.shares.std(axis=1, ddof=1) / np.sqrt(table.n_models)),
        "distance": _short(table.distance),
    }


def _promised(judged: Calibration, recourse: AVCG, survival: float, reliability: float) -> Any:
    """By effort and target: whether a promise is made, and the share of answers that each fresh model accepts."""
    decided = recourse.calibrate(survival=survival, reliability=reliability).calibration_
    return {
        label: [
            {
                "target": str(mine.target),
                "made": mine.verdict.made,
                "sentence": str(mine.statement(decided.promise, decided.n_models)),
                "margin": mine.margin,
                "answered": int(theirs.table.answered[mine.verdict.position]),
                "rows": theirs.table.n_rows,
                "accepted": theirs.table.accepted[mine.verdict.position].tolist(),
                "distance": float(theirs.table.distance[mine.verdict.position]),
            }
            for mine, theirs in zip(decided.of_effort(effort), judged.of_effort(effort), strict=True)
        ]
        for effort, label in EFFORTS.items()
        if effort in judged.directions
    }


def _short(values: Any) -> list[float]:
    return [round(float(value), 4) for value in values]


def given(name: str, seed: int) -> dict[str, Any]:
    """What is said where ten networks are given, as models that were deployed in the past."""
    torch.set_num_threads(1)
    data = load(name)
    rows = data.split(seed)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        networks = [
            Classifier(schema=data.schema, random_state=seed + i).fit(
                *(part.sample(frac=1.0, replace=True, random_state=i) for part in (rows.X, _series(rows)))
            )
            for i in range(10)
        ]
        hypotheses = from_models(networks, rows.X, deployed=networks[0])
        recourse = AVCG(hypotheses, random_state=seed).fit(rows.X, rows.y)
    made = [direction.verdict.made for direction in recourse.calibration_.of_effort()]
    return {"dataset": name, "seed": seed, "made": made, "sentence": str(recourse.calibration_)}


def _series(rows: Any) -> Any:
    import pandas as pd

    return pd.Series(rows.y, index=rows.X.index)


def run(out: Path, names: list[str], seeds: int, workers: int) -> None:
    """Run what is not stored yet, and store each fit when it is done."""
    out.mkdir(parents=True, exist_ok=True)
    stored = {(fit["dataset"], fit["seed"], fit["recipe"]) for fit in read(out / FITS)}
    wanted = [
        (name, seed)
        for name in names
        for seed in range(seeds)
        if any((name, seed, recipe) not in stored for recipe in RECIPES)
    ]
    jobs = [(name, seed, part) for name, seed in wanted for part in (None, *range(PARTS))]
    with Parallel(n_jobs=workers, return_as="generator") as parallel:
        trained = dict(zip(jobs, parallel(delayed(train)(*job) for job in jobs), strict=True))
        print(f"{len(jobs)} sets of models", flush=True)
        fits = (
            delayed(judge)(
                name, seed, recipe, trained[name, seed, None][1],
                joined([trained[name, seed, part][1] for part in range(PARTS)]), trained[name, seed, None][2],
            )
            for name, seed in wanted for recipe in RECIPES if (name, seed, recipe) not in stored
        )  # fmt: skip
        with (out / FITS).open("a") as file:
            for fit in Parallel(n_jobs=workers, return_as="generator_unordered")(fits):
                file.write(json.dumps(fit) + "\n")
                file.flush()
                print(
                    fit["dataset"],
                    fit["seed"],
                    fit["recipe"],
                    {k: round(v) for k, v in fit["seconds"].items()},
                    flush=True,
                )


def main() -> None:
    """Run what is named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "given"])
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--datasets", nargs="+", default=["breast_cancer", "heart", "spambase", "adult", "sba:2004"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    if options.what == "run":
        run(options.out, options.datasets, options.seeds, options.workers)
    elif options.what == "given":
        with (options.out / GIVEN).open("w") as file:
            for seed in range(options.seeds):
                file.write(json.dumps(given("breast_cancer", seed)) + "\n")


if __name__ == "__main__":
    main()
