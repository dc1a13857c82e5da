"""The default AVCG beside its yardsticks, under constraints, judged by models that nobody trained on.

    python benchmarks/recourse.py run [--datasets adult heart] [--seeds 0 1 2]
    python benchmarks/recourse.py table
    python benchmarks/recourse.py frontier --datasets breast_cancer
    python benchmarks/recourse.py paper

For each dataset and seed: a base network, 20 bootstrap retrains as hypotheses (of which the explainers set a quarter
aside), and 10 more bootstrap retrains that only judge. The first 100 test rows ask for the other class, both
directions. Every answer is a row in ``results/recourse/DATASET-SEED.csv.gz``; the table is made from these alone. Cells
that are already there are not run again.
"""

from __future__ import annotations

import argparse
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from rich.console import Console
from rich.table import Table

from avcg import AVCG, Classifier, Counterfactuals, Explainer, MCDropout, Recipe, datasets, retrains
from avcg.baselines.nearest import ClassMean, NearestUnlike, RobustNeighbour
from avcg.baselines.search import RobustSearch
from avcg.metrics import columns_changed, distance_to_rows, l1_distance, pairwise_distance
from avcg.models.opened import class_positions
from avcg.questions import Question
from avcg.space import TabularSpace

RESULTS = Path(__file__).parent / "results" / "recourse"
ROWS = 100
# The search at several levels: its distance is read off where it survives no less than ours.
LEVELS = (0.7, 0.8, 0.9, 0.95, 0.98, 0.995)


class Problem:
    """One dataset and seed with everything fitted that the methods share."""

    def __init__(self, name: str, seed: int) -> None:
        data = datasets.load(name)
        self.name, self.seed = name, seed
        self.train, _, test = data.split(seed)
        self.X = test.X.iloc[:ROWS]
        self.model = Classifier(hidden=(64, 64), schema=data.schema, random_state=seed).fit(self.train.X, self.train.y)
        pair = self.train.X, self.train.y
        self.hypotheses = retrains(self.model, *pair, n=20, how="bootstrap", random_state=seed)
        self.judges = retrains(self.model, *pair, n=10, how="bootstrap", random_state=1000 + seed).predictors
        assert isinstance(self.model.space_, TabularSpace)
        self.space = self.model.space_
        self.x_train = self.space.encode(self.train.X)
        self.y_train = class_positions(np.asarray(self.train.y), self.model.classes_)

    def measure(self, answers: Counterfactuals, method: str, seconds: float) -> pd.DataFrame:
        """One line for each answer, from the rows as people receive them."""
        n, encoding = answers.n, self.space.encoding
        frame = answers.frame.set_axis(range(len(answers.statuses)))
        factuals = answers.factuals.iloc[np.repeat(np.arange(len(answers)), n)].set_axis(frame.index)
        x_cf, x = self.space.encode(frame), self.space.encode(factuals)
        target = class_positions(np.repeat(answers.target, n), self.model.classes_)
        near = torch.empty(len(x))
        for label in target.unique().tolist():
            near[target == label] = distance_to_rows(x_cf[target == label], self.x_train[self.y_train == label])
        with torch.no_grad():
            survival = (self.judges.log_probs(x_cf).argmax(dim=-1) == target).float().mean(dim=0)
        return pd.DataFrame(
            {
                "dataset": self.name, "seed": self.seed, "method": method,
                "row": np.repeat(np.arange(len(answers)), n), "answer": np.tile(np.arange(n), len(answers)),
                "status": answers.statuses,
                "moved": (x_cf != x).any(dim=1).numpy(),
                "valid": self.model.predict(frame) == np.repeat(answers.target, n),
                "survival": survival.numpy(),
                "l1": l1_distance(encoding, x_cf, x).numpy(),
                "columns": columns_changed(encoding, x_cf, x).numpy(),
                "ynn": near.numpy(),
                "apart": _apart(x_cf, n).numpy(),
                "violations": self.space.violations(frame, factuals).sum(axis=1),
                "milliseconds": 1e3 * seconds / len(answers),
            }
        )  # fmt: skip


def _apart(x_cf: torch.Tensor, n: int) -> torch.Tensor:
    """(N,) the Euclidean distance of each answer to the nearest other answer of its row; NaN where there is one."""
    if n == 1:
        return torch.full((len(x_cf),), torch.nan)
    answers = x_cf.unflatten(0, (-1, n))
    return (torch.cdist(answers, answers) + torch.diag(torch.full((n,), torch.inf))).amin(dim=-1).flatten()


def timed(explainer: Explainer, X: pd.DataFrame, **request: object) -> tuple[Counterfactuals, float]:
    """Answers, and the processor's seconds for them; once before to warm up."""
    explainer.generate(X.iloc[:2])
    started = time.process_time()
    found = explainer.generate(X, **request)
    return found, time.process_time() - started


def run_cell(name: str, seed: int) -> pd.DataFrame:
    """Every method on one dataset and seed."""
    problem = Problem(name, seed)
    pair, X = (problem.train.X, problem.train.y), problem.X
    parts = []
    started = time.perf_counter()
    avcg = AVCG(problem.hypotheses, random_state=seed).fit(*pair)
    seconds = time.perf_counter() - started
    for method, refine in (("avcg", False), ("avcg, refined", True)):
        parts.append(problem.measure(*_named(timed(avcg, X, refine=refine), method)))
    parts.append(problem.measure(*_named(timed(avcg, X, n=5), "avcg, n=5")))
    parts.append(problem.measure(*_named(timed(avcg, X, vary=one_locked(problem, seed)), "avcg, one locked")))
    for method, kind in (
        ("robust neighbour", RobustNeighbour),
        ("nearest unlike", NearestUnlike),
        ("class mean", ClassMean),
    ):
        parts.append(problem.measure(*_named(timed(kind(problem.hypotheses, random_state=seed).fit(*pair), X), method)))
    for level in LEVELS:
        search = RobustSearch(problem.hypotheses, probability=level, random_state=seed).fit(*pair)
        parts.append(problem.measure(*_named(timed(search, X), f"search {level}")))
    return pd.concat(parts).assign(fit_seconds=seconds, promised=avcg.calibration_.met)


def _named(found: tuple[Counterfactuals, float], method: str) -> tuple[Counterfactuals, str, float]:
    return found[0], method, found[1]


def one_locked(problem: Problem, seed: int) -> np.ndarray:
    """(rows, features) all free but one of each row that could change, at random."""
    free = problem.space.freedom.movable(problem.space.encoding)[0]
    rng = np.random.default_rng(seed)
    vary = np.ones((len(problem.X), len(free)), bool)
    locked = rng.choice(np.flatnonzero(free), len(problem.X))
    unit = problem.space.freedom.unit
    vary[np.arange(len(vary)), locked] = False
    return vary & (unit[None, :] != unit[locked][:, None])


def run(names: list[str], seeds: list[int]) -> None:
    """All cells that are not there yet, each written when it is done."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name in names:
        for seed in seeds:
            path = RESULTS / f"{name}-{seed}.csv.gz"
            if not path.exists():
                started = time.perf_counter()
                rows = run_cell(name, seed).round(5)
                partial = path.with_suffix(".partial")
                rows.to_csv(partial, index=False, compression="gzip")
                partial.replace(path)
                print(f"{name}, seed {seed}: {time.perf_counter() - started:.0f} s", flush=True)


def table() -> None:
    """Means over seeds of means over rows, with both spreads, beside the targets."""
    rows = pd.concat([pd.read_csv(path) for path in sorted(RESULTS.glob("*-[0-9]*.csv.gz"))])
    rows["answered"] = rows["moved"] & (rows["status"] != "not_valid")
    console = Console(width=170)
    for name, part in rows.groupby("dataset", sort=False):
        per_seed = part.groupby(["method", "seed"], sort=False).apply(_summary, include_groups=False)
        mean, spread = per_seed.groupby("method", sort=False).mean(), per_seed.groupby("method", sort=False).std()
        within = part[part["answered"]].groupby("method", sort=False)[["l1", "ynn"]].std()
        heads = "method|coverage|valid|survival|L1|(seeds, rows)|columns|yNN|(seeds, rows)|violations|ms a row"
        shown = Table(*heads.split("|"), title=f"{name}: mean of {part['seed'].nunique()} seeds")
        for method, line in mean.iterrows():
            cells = [f"{line[key]:.3f}" for key in ("coverage", "valid", "survival")]
            more, inside = spread.loc[method], within.loc[method]
            shown.add_row(
                str(method), *cells, f"{line['l1']:.2f}", f"±{more['l1']:.2f} ±{inside['l1']:.2f}",
                f"{line['columns']:.2f}", f"{line['ynn']:.2f}", f"±{more['ynn']:.2f} ±{inside['ynn']:.2f}",
                f"{line['violations']:.0f}", f"{line['milliseconds']:.2f}",
            )  # fmt: skip
        console.print(shown)
        console.print(_ratios(per_seed))
        console.print(f"fit: {part.groupby('seed')['fit_seconds'].first().round(0).tolist()} s; n=5: {_five(part)}\n")


def _summary(rows: pd.DataFrame) -> pd.Series:
    """Distances of those who got an answer; survival and validity of all."""
    told = rows[rows["answered"]]
    numbers = told[["l1", "columns", "ynn"]].mean()
    shares = {"coverage": rows["answered"].mean(), "valid": told["valid"].mean(), "survival": told["survival"].mean()}
    return pd.concat(
        [
            pd.Series(shares),
            numbers,
            pd.Series({"violations": rows["violations"].sum(), "milliseconds": rows["milliseconds"].mean()}),
        ]
    )


def _ratios(per_seed: pd.DataFrame) -> str:
    """L1 and yNN against the yardsticks; the search at the lowest level that covers and survives no less than ours."""
    lines = []
    for method in ("avcg", "avcg, refined"):
        ours, neighbour = per_seed.loc[method], per_seed.loc["robust neighbour"]
        there = [name for name in per_seed.index.unique(0) if name.startswith("search")]
        searches = {name: per_seed.loc[name] for name in there}
        equal = []
        for seed in ours.index:
            fit = [
                s.loc[seed] for s in searches.values() if s.loc[seed, "survival"] >= ours.loc[seed, "survival"] - 1e-9
            ]
            best = min((s for s in fit), key=lambda s: s["l1"], default=None)
            equal.append(np.nan if best is None else ours.loc[seed, "l1"] / best["l1"])
        lines.append(
            f"{method}: L1 / robust neighbour's {(ours['l1'] / neighbour['l1']).mean():.2f}, yNN / its"
            f" {(ours['ynn'] / neighbour['ynn']).mean():.2f}, L1 / search's at no lower survival"
            f" {np.nanmean(equal):.2f} (by seed: {', '.join(f'{value:.2f}' for value in equal)})"
        )
    return "\n".join(lines)


def _five(part: pd.DataFrame) -> str:
    five = part[part["method"] == "avcg, n=5"]
    every = five.groupby(["seed", "row"])["valid"].all().groupby("seed").mean().mean()
    differ = five.groupby(["seed", "row"])["apart"].min().gt(1e-6).groupby("seed").mean().mean()
    return f"all five valid on {every:.3f} of rows, all different on {differ:.3f}, apart {five['apart'].mean():.2f}"


def frontier(names: list[str], seeds: list[int]) -> None:
    """What plausibility costs: the same training with another weight for it."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    parts = []
    for name in names:
        for seed in seeds:
            problem = Problem(name, seed)
            base = Recipe()
            for weight in (0.0, 0.3, 1.0, 3.0, 6.0):
                recipe = replace(base, weights=replace(base.weights, plausibility=weight))
                fitted = AVCG(problem.hypotheses, recipe=recipe, random_state=seed).fit(
                    problem.train.X, problem.train.y
                )
                found = problem.measure(*_named(timed(fitted, problem.X), "avcg")).assign(plausibility=weight)
                parts.append(found)
            pd.concat(parts).round(5).to_csv(RESULTS / "frontier.csv.gz", index=False)
    rows = pd.concat(parts)
    keys = ["dataset", "plausibility"]
    print(rows.groupby(keys)[["valid", "survival", "l1", "columns", "ynn"]].mean().round(3))


def paper(seeds: list[int]) -> None:
    """The paper's configuration on breast cancer: its profile, and the distance that the paper does not print."""
    lines = []
    for seed in seeds:
        data = datasets.load("breast_cancer")
        train, _, test = data.split(seed)
        X = test.X.iloc[:ROWS]
        model = Classifier(hidden=(64, 32), dropout=0.15, schema=data.schema, random_state=seed).fit(train.X, train.y)
        fitted = AVCG.paper(MCDropout(model), random_state=seed).fit(train.X)
        others = retrains(model, train.X, train.y, n=5, random_state=100 + seed).predictors
        found = fitted.generate(X)
        x_cf, x = fitted.space_.encode(found.frame), fitted.space_.encode(X)
        target, labels = (class_positions(np.asarray(v), fitted.classes_) for v in (found.target, train.y))
        x_train, fresh = fitted.space_.encode(train.X), fitted.roles_.fresh
        assert fresh is not None
        asked = Question(x, target, fitted.space_, 1)
        five = fitted._pass(asked, torch.zeros(len(x)), fitted._noise(5))
        with torch.no_grad():
            lines.append(
                {
                    "Val": (fresh.predictive(x_cf).argmax(-1) == target).float().mean().item(),
                    "CMV": (others.log_probs(x_cf).argmax(-1) == target).float().mean().item(),
                    "Imp": torch.cdist(x_cf, x_train).mul(labels == target[:, None]).sum(1)
                    .div((labels == target[:, None]).sum(1)).mean().item(),
                    "L2 from the factual": (x_cf - x).norm(dim=1).mean().item(),
                    "diversity of 5": pairwise_distance(five).mean().item(),
                    "personalisation": fitted.diagnostics_["personalisation"].iloc[-1],
                }
            )  # fmt: skip
    print(pd.DataFrame(lines, index=pd.Index(seeds, name="seed")).round(3))
    print(pd.DataFrame(lines).mean().round(3).to_dict(), "(the paper: Val 1.0, CMV about 1.0, Imp 5.3)")


def main() -> None:
    """Run what is named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "table", "frontier", "paper"])
    parser.add_argument("--datasets", nargs="+", default=["adult", "breast_cancer", "heart", "spambase"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    options = parser.parse_args()
    warnings.filterwarnings("default", module="avcg")
    if options.what == "run":
        run(options.datasets, options.seeds)
        table()
    elif options.what == "table":
        table()
    elif options.what == "frontier":
        frontier(options.datasets, options.seeds)
    else:
        paper(options.seeds)


if __name__ == "__main__":
    main()
