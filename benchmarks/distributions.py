"""Which distribution over models? What each promises, what real retrains and real next years keep, and what it costs.

    python benchmarks/distributions.py [--datasets breast_cancer sba ...] [--seeds 3] [--jobs 2] [--few]

For each dataset and seed there is one network with dropout, and each distribution is made around it. An explainer is
fitted by each, and its answers to unseen people are judged by models that none of them has seen: 60 fresh retrains,
half by bootstrap and half by seed alone, and on SBA loans the networks of the five years that followed. What is done
is not done again. ``distributions_page.py`` makes a page of it.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from distributions_page import RESULTS, read
from joblib import Parallel, delayed
from numpy.typing import NDArray

from avcg import (
    AVCG,
    SWAG,
    Classifier,
    DeepEnsemble,
    Laplace,
    MCDropout,
    MeanFieldVI,
    Mixture,
    datasets,
    rashomon_set,
    retrains,
)
from avcg.auditing.audit import TOLD
from avcg.hypotheses.base import HypothesisDistribution

FRESH, UNSEEN, YEARS, PER_YEAR, EPSILON = 30, 500, 5, 2000, 0.05
ORIGIN, WINDOW = 2004, 6


@dataclass(frozen=True, eq=False)
class Task:
    """A dataset, split, with the network that is deployed and the seconds that its training took."""

    name: str
    seed: int
    X: pd.DataFrame
    y: NDArray[Any]
    time: NDArray[Any] | None
    validation: tuple[pd.DataFrame, NDArray[Any]]
    unseen: pd.DataFrame
    target: Any
    schema: Any

    def network(self, X: Any = None, y: Any = None, **settings: Any) -> Classifier:
        """A network as the deployed one, fitted to these rows or to others."""
        settings = {"dropout": 0.2, "schema": self.schema, "random_state": self.seed, **settings}
        return Classifier(**settings).fit(self.X if X is None else X, self.y if y is None else y)


def task(name: str, seed: int) -> Task:
    """The rows of a dataset; on SBA loans those of six years, and other people of the last one."""
    if name != "sba":
        data = datasets.load(name)
        rows, validation, test = data.split(seed)
        return Task(
            name, seed, rows.X, rows.y, None, (validation.X, validation.y), test.X, WANTED[name], data.schema
        )  # fmt: skip
    data, (X, y, years) = datasets.load("sba"), loans(seed, ORIGIN - WINDOW + 1, ORIGIN)
    own = data.take(np.flatnonzero(np.asarray(data.cohort) == ORIGIN))
    rest = own.X.loc[own.X.index.difference(X.index)].sample(2 * PER_YEAR, random_state=seed)
    labels = pd.Series(own.y, index=own.X.index)[rest.index]
    half = len(rest) // 2
    validation = (rest.iloc[:half], labels.iloc[:half].to_numpy())
    return Task(name, seed, X, y, years, validation, rest.iloc[half:], WANTED[name], data.schema)


WANTED = {"breast_cancer": "benign", "heart": "healthy", "adult": ">50K", "sba": "paid in full"}


def loans(seed: int, first: int, last: int) -> tuple[pd.DataFrame, NDArray[Any], NDArray[Any]]:
    """Loans of some years, so many of each, with labels and years. The index names the loan."""
    data = datasets.load("sba")
    years = np.asarray(data.cohort)
    rng = np.random.default_rng(seed)
    drawn = {year: rng.permutation(np.flatnonzero(years == year))[:PER_YEAR] for year in np.unique(years)}
    part = data.take(np.concatenate([drawn[year] for year in range(first, last + 1)]))
    return part.X, np.asarray(part.y), np.asarray(part.cohort)


def generator(seed: int) -> torch.Generator:
    """Random numbers from a seed."""
    return torch.Generator().manual_seed(seed)


def masks(task: Task, model: Classifier) -> HypothesisDistribution:
    """The Rashomon set among dropout masks."""
    return rashomon_set(MCDropout(model), *task.validation, EPSILON, n=100, rng=generator(task.seed))


def good_retrains(task: Task, model: Classifier) -> HypothesisDistribution:
    """The Rashomon set among retrains by seed."""
    candidates = retrains(model, task.X, task.y, resampling="seed", random_state=task.seed)
    return rashomon_set(candidates, *task.validation, EPSILON, reference="best")


def again(task: Task, model: Classifier, **settings: Any) -> HypothesisDistribution:
    """Retrains."""
    timed = {"time": task.time} if "rolling" in str(settings) or "expanding" in str(settings) else {}
    return retrains(model, task.X, task.y, random_state=task.seed, **timed, **settings)


def variants(task: Task, model: Classifier) -> HypothesisDistribution:
    """Retrains of networks of other sizes, each by bootstrap."""
    others = [task.network(hidden=hidden) for hidden in ((16,), (128, 128))]
    return again(task, model, variants=others)


def ensemble(task: Task, model: Classifier) -> HypothesisDistribution:  # noqa: ARG001
    """Ten networks from other seeds, as ensembles usually have."""
    return DeepEnsemble([task.network(random_state=1000 + 10 * task.seed + i) for i in range(10)])


Make = Callable[[Task, Classifier], HypothesisDistribution]
DISTRIBUTIONS: dict[str, Make] = {
    "MC dropout": lambda task, model: MCDropout(model),  # noqa: ARG005
    "Rashomon, masks": masks,
    "Rashomon, retrains": good_retrains,
    "Laplace": lambda task, model: Laplace.fit(model, task.X, task.y),
    "mean-field VI": lambda task, model: MeanFieldVI.fit(model, task.X, task.y, rng=generator(task.seed)),
    "SWAG": lambda task, model: SWAG.fit(model, task.X, task.y, rng=generator(task.seed)),
    "deep ensemble": ensemble,
    "retrains, seed": partial(again, resampling="seed"),
    "retrains, bootstrap": again,
    "retrains, subsample": partial(again, resampling="subsample"),
    "retrains, label noise": partial(again, resampling="label_noise"),
    "retrains, variants": variants,
    "retrains, rolling": partial(again, resampling="rolling"),
    "retrains, expanding": partial(again, resampling="expanding"),
    "bootstrap and rolling": partial(again, resampling={"bootstrap": 0.5, "rolling": 0.5}),
    "bootstrap and dropout": lambda task, model: Mixture([again(task, model), MCDropout(model)]),
}
TIMED = ("retrains, rolling", "retrains, expanding", "bootstrap and rolling")
FEW = ("MC dropout", "Laplace", "SWAG", "retrains, seed", "retrains, bootstrap")


def answer(name: str, seed: int, kind: str) -> tuple[dict[str, Any], pd.DataFrame | None]:
    """What one distribution promises, says of its answers and costs; and the answers to unseen people."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    data = task(name, seed)
    model = data.network()
    started = time.perf_counter()
    hypotheses = DISTRIBUTIONS[kind](data, model)
    made = time.perf_counter()
    recourse = AVCG(hypotheses, model=model, random_state=seed).fit(data.X, data.y)
    fitted = time.perf_counter()
    people = data.unseen[model.predict(data.unseen) != data.target].iloc[:UNSEEN]
    answers = recourse.generate(people, data.target)
    told = np.isin(answers.statuses, TOLD)
    statement = next((each for each in recourse.statements() if each.target == data.target), None)
    certificate = answers.certificate
    record = {
        "dataset": name,
        "seed": seed,
        "distribution": kind,
        "seconds": {"hypotheses": round(made - started, 1), "fit": round(fitted - made, 1)},
        "made": statement is not None and statement.made,
        "sentence": "" if statement is None else str(statement),
        "people": len(people),
        "answered": float(told.mean()),
        "distance": float(answers.distance[told].mean()),
        "said": None if certificate is None else float(certificate.share[told].mean()),
    }
    return record, answers.frame[told]


def judges(name: str, seed: int) -> tuple[Classifier, dict[str, Any]]:
    """The deployed network, and fresh models by family: retrains, and on SBA loans the networks of later years."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    data = task(name, seed)
    model = data.network()
    fresh: dict[str, Any] = {
        family: retrains(model, data.X, data.y, n=FRESH, resampling=family, random_state=50_000 + seed)
        for family in ("bootstrap", "seed")
    }
    if name == "sba":
        for after in range(1, YEARS + 1):
            X, y, _ = loans(seed, ORIGIN + after - WINDOW + 1, ORIGIN + after)
            fresh[f"year {after}"] = data.network(X, y)
    return model, fresh


def kept(answers: pd.DataFrame, judge: Any, target: Any) -> list[float]:
    """The share of the answers that each of some models accepts."""
    if isinstance(judge, Classifier):
        return [float((judge.predict(answers) == target).mean())]
    with torch.no_grad():
        probabilities = judge.predictors.probabilities(judge.space.encode(answers))
    decided = np.asarray(judge.classes)[probabilities.argmax(dim=-1).cpu().numpy()]
    return [round(float(share), 4) for share in (decided == target).mean(axis=1)]


def main() -> None:
    """Run what is not stored yet, and store each record when it is done."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--datasets", nargs="+", default=["breast_cancer", "sba"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--few", action="store_true", help="the five most telling distributions alone")
    options = parser.parse_args()
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    stored = {(line["dataset"], line["seed"], line["distribution"]) for line in read(RESULTS)}
    wanted = [
        (name, seed, kind)
        for name in options.datasets
        for seed in range(options.seeds)
        for kind in (FEW if options.few else DISTRIBUTIONS)
        if (name, seed, kind) not in stored and (name == "sba" or kind not in TIMED)
    ]
    pairs = sorted({(name, seed) for name, seed, _ in wanted})
    with Parallel(n_jobs=options.jobs, return_as="generator_unordered") as parallel:
        found = Parallel(n_jobs=options.jobs)(delayed(judges)(*pair) for pair in pairs)
        fresh = {pair: models for pair, (_, models) in zip(pairs, found, strict=True)}
        print(f"{len(fresh)} sets of judges", flush=True)
        for record, answers in parallel(delayed(answer)(*each) for each in wanted):
            models = fresh[record["dataset"], record["seed"]]
            target = WANTED[record["dataset"]]
            record["kept"] = {family: kept(answers, judge, target) for family, judge in models.items()}
            with RESULTS.open("a") as file:
                file.write(json.dumps(record) + "\n")
            shares = {family: round(float(np.mean(each)), 3) for family, each in record["kept"].items()}
            print(record["dataset"], record["seed"], record["distribution"], record["said"], shares, flush=True)


if __name__ == "__main__":
    main()
