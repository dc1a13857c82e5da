"""How far answers are from the provably nearest ones, for logistic regressions on heart, adult and SBA.

    python benchmarks/ruler.py [--rows 100] [--models 40] [--steps 2000] [--seed 0]

A pipeline with a logistic regression is fitted and retrained. Each method answers test rows that are refused, under the
same constraints and judges: the deployed model and the retrains that the method was trained on. Each answer is compared
with two rulers (`avcg.bench.ruler.over_optimum`). ``each`` is the nearest point that is as good as the answer under
every judge: what the answer wastes, given all of its robustness. ``lowest`` is the nearest point that is as good in the
worst case, under the judge that likes it least. Neither blames a method for the margin it keeps, whose price is the
distance itself. A third column, ``decision``, divides by the nearest point for which every judge decides.
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
from numpy.typing import NDArray
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from avcg import AVCG, Recipe, datasets, retrains
from avcg.baselines.nearest import RobustNeighbour
from avcg.baselines.robust_search import RobustSearch
from avcg.bench.ruler import LinearModels, nearest_linear, over_optimum
from avcg.explainers.base import Explainer
from avcg.files import write_whole
from avcg.hypotheses.linear import linear_logits
from avcg.schema.schema import Schema

RESULTS = Path(__file__).parent / "results" / "ruler.json"
TARGETS = {"heart": "healthy", "adult": ">50K", "sba": "paid in full"}
MOST_ROWS = 8000  # training rows


def pipeline(schema: Schema) -> Any:
    """A logistic regression on scaled numbers and one-hot categories."""
    numbers, choices = ([f.name for f in part] for part in (schema.numeric, schema.categorical))
    readers = make_column_transformer((StandardScaler(), numbers), (OneHotEncoder(handle_unknown="ignore"), choices))
    return make_pipeline(readers, LogisticRegression(max_iter=2000))


def spread(ratios: NDArray[Any]) -> dict[str, float]:
    """The middle and the far end of ratios, of rows that have one."""
    known = ratios[np.isfinite(ratios)]
    return {
        "rows": len(known),
        "median": round(float(np.median(known)), 4),
        "p95": round(float(np.quantile(known, 0.95)), 4),
    }


def measured(method: Explainer, X: Any, target: Any, *, refine: bool = False) -> dict[str, Any]:
    """The answers of a method over the ruler."""
    started = time.perf_counter()
    found = method.generate(X, target, refine=refine)
    seconds = time.perf_counter() - started
    x, answers = (method.space_.encode(rows).numpy() for rows in (X, found.answers))
    position = int(np.flatnonzero(method.classes_ == target)[0])
    linear = linear_logits(method.judges_)
    assert linear is not None, "the pipelines are linear in the codes"
    judges, space = LinearModels(*linear), method.space_.codes
    answered = np.flatnonzero(
        (answers != x).any(axis=1) & (judges.log_odds(answers, np.full(len(x), position))[0] >= 0)
    )
    x, answers, aimed = x[answered], answers[answered], np.full(len(answered), position)
    started = time.perf_counter()
    distance = space.distance(answers, x).astype(np.float64)
    nearest = nearest_linear(space, x, aimed, judges)
    result = {
        "asked": len(X),
        "answered": len(answered),
        "seconds": round(seconds, 2),
        "distance": round(float(distance.mean()), 4),
        "each": spread(over_optimum(space, x, aimed, answers, judges)),
        "lowest": spread(over_optimum(space, x, aimed, answers, judges, lowest=True)),
        "decision": spread(distance / nearest.distance),
    }
    return result | {"seconds of rulers": round(time.perf_counter() - started, 1)}


def dataset(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """All methods on one dataset."""
    data = datasets.load(name)
    schema = data.schema
    assert schema is not None
    train, _, test = data.split(options.seed)
    rng = np.random.default_rng(options.seed)
    train = train.take(np.sort(rng.permutation(len(train.X))[:MOST_ROWS]))
    model = pipeline(schema).fit(train.X, train.y)
    hypotheses = retrains(model, train.X, train.y, options.models, schema=schema, n_jobs=1, random_state=options.seed)
    recipe = Recipe(steps=options.steps)
    target = TARGETS[name]
    refused = test.X[model.predict(test.X) != target].iloc[: options.rows]
    methods = {
        "AVCG": AVCG(hypotheses, recipe=recipe, random_state=options.seed),
        "RobustNeighbour": RobustNeighbour(hypotheses, random_state=options.seed),
        "RobustSearch": RobustSearch(hypotheses, random_state=options.seed),
    }
    results = {}
    for label, method in methods.items():
        started = time.perf_counter()
        method.fit(train.X, train.y)
        fitted = round(time.perf_counter() - started, 1)
        results[label] = {"seconds to fit": fitted} | measured(method, refused, target)
        if label == "AVCG":
            results["AVCG, refined"] = {"seconds to fit": fitted} | measured(method, refused, target, refine=True)
        print(name, label, results[label], flush=True)
    return results


def main() -> None:
    """Measure all datasets, and store what was found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=100, help="refused test rows of each dataset (default 100)")
    parser.add_argument("--models", type=int, default=40, help="retrains (default 40)")
    parser.add_argument("--steps", type=int, default=2000, help="training steps of the generator (default 2000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--datasets", nargs="+", default=list(TARGETS), choices=list(TARGETS))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found = {"settings": vars(options)} | {name: dataset(name, options) for name in options.datasets}
    write_whole(RESULTS, json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
