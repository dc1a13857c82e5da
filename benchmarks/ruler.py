"""How far answers are from the provably nearest ones, for logistic regressions and small XGBoost on three datasets.

    python benchmarks/ruler.py logistic [--rows 100] [--models 40] [--steps 2000] [--seed 0]
    python benchmarks/ruler.py trees --rows 20 --models 8 --seconds 10

A logistic regression, or 30 trees of depth 3, is fitted and retrained. Each method answers test rows that are refused,
under the same constraints and judges: the deployed model and the retrains that the method was trained on. Each answer
is compared with two rulers (`avcg.bench.ruler.over_optimum`). ``each`` is the nearest point that is as good as the
answer under every judge: what the answer wastes, given all of its robustness. ``lowest`` is the nearest point that is
as good in the worst case, under the judge that likes it least. Neither blames a method for the margin it keeps, whose
price is the distance itself. Where the time for a row runs out, a ratio is to what is proven so far. ``decision``
divides by the nearest point for which every judge decides, without any margin. It can be huge for trees, where a number
that lies on a threshold is moved across it at no cost.
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

from avcg import AVCG, Recipe, datasets, retrains
from avcg.baselines.nearest import RobustNeighbour
from avcg.baselines.robust_search import RobustSearch
from avcg.bench.models import as_categories, logistic, xgboost
from avcg.bench.ruler import LinearModels, nearest_linear, over_optimum
from avcg.bench.tree_ruler import Ensemble, TreeModels, nearest_in_trees
from avcg.explainers.base import Explainer
from avcg.files import write_whole
from avcg.hypotheses.finite import FiniteSet
from avcg.hypotheses.linear import linear_logits
from avcg.method.query import Effort

RESULTS = Path(__file__).parent / "results" / "ruler"
TARGETS = {"heart": "healthy", "adult": ">50K", "sba": "paid in full"}
MOST_ROWS = 8000  # training rows


def spread(ratios: NDArray[Any]) -> dict[str, float]:
    """The middle and the far end of ratios, of rows that have one."""
    known = ratios[np.isfinite(ratios)]
    return {
        "rows": len(known),
        "median": round(float(np.median(known)), 4),
        "p95": round(float(np.quantile(known, 0.95)), 4),
    }


def judges_of(method: Explainer) -> tuple[Any, Any]:
    """The judges of a method as its ruler takes them, and that ruler."""
    linear, encoding = linear_logits(method.judges_), method.space_.codes.encoding
    if linear is not None:
        return LinearModels(*linear), nearest_linear
    return TreeModels([Ensemble.of(box.model, encoding) for box in method.judges_.boxes], encoding), nearest_in_trees


def measured(method: Explainer, X: Any, limit: float, effort: Effort) -> dict[str, Any]:
    """The answers of a method over the rulers."""
    started = time.perf_counter()
    found = method.generate(X, 1, effort=effort)
    seconds = time.perf_counter() - started
    x, answers = (method.space_.encode(rows).numpy() for rows in (X, found.answers))
    answered = np.flatnonzero((answers != x).any(axis=1) & (method.decide(found.answers) == 1))
    x, answers, target = x[answered], answers[answered], np.ones(len(answered), np.intp)
    space, (judges, ruler) = method.space_.codes, judges_of(method)
    distance = space.distance(answers, x).astype(np.float64)
    started = time.perf_counter()
    decided = ruler(space, x, target, judges, seconds=limit).distance
    part = (space, x, target, answers, judges)
    result = {
        "asked": len(X),
        "answered": len(answered),
        "seconds": round(seconds, 2),
        "distance": round(float(distance.mean()), 4),
        "each": spread(over_optimum(*part, nearest=ruler, seconds=limit)),
        "lowest": spread(over_optimum(*part, nearest=ruler, lowest=True, seconds=limit)),
        "decision": spread(np.where(np.isfinite(decided), distance / decided, np.nan)),
    }
    return result | {"seconds of a ruler for a row": round((time.perf_counter() - started) / 3 / len(x), 3)}


def methods(hypotheses: FiniteSet, options: argparse.Namespace) -> dict[str, tuple[Explainer, Effort]]:
    """The methods by name, and the effort of their answers."""
    generator = AVCG(hypotheses, recipe=Recipe(steps=options.steps), random_state=options.seed)
    neighbour = RobustNeighbour(hypotheses, random_state=options.seed)
    own: dict[str, tuple[Explainer, Effort]] = {
        "AVCG, fast": (generator, "fast"),
        "AVCG": (generator, "standard"),
        "AVCG, thorough": (generator, "thorough"),
        "RobustNeighbour": (neighbour, "standard"),
        "RobustNeighbour, thorough": (neighbour, "thorough"),
    }
    if options.kind == "logistic":
        own["RobustSearch"] = (RobustSearch(hypotheses, random_state=options.seed), "standard")
    return own


def results(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """All methods on one dataset."""
    data = datasets.load(name)
    schema = data.schema
    assert schema is not None
    train, _, test = data.split(options.seed)
    train = train.take(np.sort(np.random.default_rng(options.seed).permutation(len(train.X))[:MOST_ROWS]))
    X, unseen, y = train.X, test.X, (np.asarray(train.y) == TARGETS[name]).astype(int)
    X, unseen = as_categories(X, schema), as_categories(unseen, schema)
    model = logistic(X, options.seed)
    if options.kind == "trees":
        model = xgboost(X, options.seed).set_params(n_estimators=30, max_depth=3)
    model = model.fit(X, y)
    hypotheses = retrains(model, X, y, options.models, schema=schema, n_jobs=1, random_state=options.seed)
    refused = unseen[model.predict(unseen) != 1].iloc[: options.rows]
    found = {}
    for label, (method, effort) in methods(hypotheses, options).items():
        if not hasattr(method, "space_"):
            method.fit(X, y)
        found[label] = measured(method, refused, options.seconds, effort)
        print(name, label, found[label], flush=True)
    return found


def main() -> None:
    """Measure all datasets, and store what was found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kind", choices=["logistic", "trees"])
    parser.add_argument("--rows", type=int, default=100, help="refused test rows of each dataset (default 100)")
    parser.add_argument("--models", type=int, default=40, help="retrains (default 40)")
    parser.add_argument("--steps", type=int, default=2000, help="training steps of the generator (default 2000)")
    parser.add_argument("--seconds", type=float, default=60.0, help="limit of a ruler for a row (default 60)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--datasets", nargs="+", default=list(TARGETS), choices=list(TARGETS))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found: dict[str, Any] = {"settings": vars(options)}
    for name in options.datasets:
        found[name] = results(name, options)
        write_whole(RESULTS / f"{options.kind}.json", json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
