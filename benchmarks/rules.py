"""Rules between columns: how often they are broken, what they cost in time, and what they cost people.

    python benchmarks/rules.py answers [--answers 1000000] [--conjunctions 20]
    python benchmarks/rules.py time
    python benchmarks/rules.py loans

`answers` draws conjunctions of rules, fits an explainer under each, answers many rows, and judges the answers by
functions that share no code with the package. `time` compares the projection without rules and with 1, 3 and 10.
`loans` fits SBA loans with real amounts, with and without the rules that hold between them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from avcg import AVCG, Classifier, PointMass, Recipe, Schema, datasets, retrains
from avcg.guarantees.certificate import accepted_by
from avcg.space.tabular import TabularSpace

Check = Callable[[pd.DataFrame], NDArray[np.bool_]]  # from rows to whether each obeys
TOLERANCE = 1e-9  # relative to the largest term
REPEATS = 7


@dataclass(frozen=True)
class Rule:
    """A rule as it is given to the schema, and as it is judged.

    Attributes:
        apply: Function from a schema to the schema with the rule.
        columns: Columns that the rule binds.
        obeyed: Whether each row obeys the rule.
    """

    apply: Callable[[Schema], Schema]
    columns: tuple[str, ...]
    obeyed: Check


def linear(rng: np.random.Generator, X: pd.DataFrame, numbers: list[str]) -> Rule:
    """A linear inequality of two or three columns that most rows obey."""
    names = rng.choice(numbers, size=min(len(numbers), int(rng.integers(2, 4))), replace=False).tolist()
    factors = rng.choice([-2, -1, 1, 2, 0.5], size=len(names)).tolist()
    values = X[names].to_numpy(np.float64) @ np.array(factors)
    bound = float(np.round(np.quantile(values, rng.choice([0.5, 0.8, 0.95]))))
    text = " + ".join(f"({factor}) * `{name}`" for factor, name in zip(factors, names, strict=True)) + f" <= {bound}"

    def obeyed(rows: pd.DataFrame) -> NDArray[np.bool_]:
        terms = rows[names].to_numpy(np.float64) * np.array(factors)
        return terms.sum(axis=1) <= bound + TOLERANCE * (np.abs(terms).max(axis=1) + abs(bound) + 1)

    return Rule(lambda schema: schema.require(text), tuple(names), obeyed)


def conditional(rng: np.random.Generator, X: pd.DataFrame, numbers: list[str], choices: list[str]) -> Rule:
    """If a column has some category, a number has a highest value, or another column has one of some categories."""
    column = str(rng.choice(choices))
    category = rng.choice(X[column].astype(str).unique())
    if rng.random() < 0.5 or len(choices) < 2:
        name = str(rng.choice(numbers))
        high = float(X[name].quantile(rng.choice([0.5, 0.9])))
        return Rule(
            lambda schema: schema.when(column, category).then(name, high=high), (column, name),
            lambda rows: ~(rows[column].astype(str) == category).to_numpy() | (rows[name] <= high).to_numpy(),
        )  # fmt: skip
    name = str(rng.choice([each for each in choices if each != column]))
    some = rng.permutation(X[name].astype(str).unique())[: max(1, X[name].nunique() // 2)].tolist()
    return Rule(
        lambda schema: schema.when(column, category).then(name, one_of=some), (column, name),
        lambda rows: ~(rows[column].astype(str) == category).to_numpy() | rows[name].astype(str).isin(some).to_numpy(),
    )  # fmt: skip


def conjunction(rng: np.random.Generator, X: pd.DataFrame, schema: Schema, count: int) -> list[Rule]:
    """Rules drawn at random, of two families."""
    numbers = [feature.name for feature in schema.numeric]
    choices = [feature.name for feature in schema.categorical]
    return [
        linear(rng, X, numbers) if rng.random() < 0.6 else conditional(rng, X, numbers, choices) for _ in range(count)
    ]


def broken(rules: list[Rule], answers: pd.DataFrame, rows: pd.DataFrame) -> int:
    """The number of answers that changed a column of a rule and do not obey it."""
    found = np.zeros(len(rows), bool)
    for rule in rules:
        names = list(rule.columns)
        changed = (answers[names].astype(object).to_numpy() != rows[names].astype(object).to_numpy()).any(axis=1)
        found |= changed & ~rule.obeyed(answers)
    return int(found.sum())


def run_answers(options: argparse.Namespace) -> None:
    """Answers under random conjunctions, judged independently."""
    total = wrong = 0
    each = -(-options.answers // (2 * options.conjunctions))
    for name, cohort in (("adult", None), ("sba", 2004)):
        data = datasets.load(name, cohort=cohort)
        assert data.schema is not None
        train, _, test = data.split(0)
        X, y = train.X.iloc[:4000], np.asarray(train.y)[:4000]
        for seed in range(options.conjunctions):
            rng = np.random.default_rng((options.seed, seed))
            rules, schema = conjunction(rng, X, data.schema, int(rng.integers(1, 6))), data.schema
            for rule in rules:
                schema = rule.apply(schema)
            model = Classifier(schema=schema, random_state=0, epochs=3).fit(X, y)
            recourse = AVCG(PointMass(model), recipe=Recipe(steps=60), random_state=seed).fit(X, y)
            rows = test.X.iloc[rng.integers(len(test.X), size=each)].reset_index(drop=True)
            started = time.process_time()
            answers = recourse.generate(rows, effort=("fast", "standard")[seed % 10 == 0])
            spent = 1000 * (time.process_time() - started) / len(rows)
            count, changed = broken(rules, answers.answers, rows), (answers.answers != rows).any(axis=1).mean()
            total, wrong = total + len(rows), wrong + count
            print(
                f"{name} {seed}: {len(rules)} rules, {len(rows)} answers, {changed:.0%} changed, {count} broken,"
                f" {spent:.2f} ms a row",
                flush=True,
            )
    print(f"{total} answers, {wrong} broken")


def run_time(options: argparse.Namespace) -> None:
    """The time of the projection by the number of rules, beside none."""
    for name, cohort in (("adult", None), ("sba", 2004)):
        data = datasets.load(name, cohort=cohort)
        assert data.schema is not None
        X, rng = data.X.iloc[:4000], np.random.default_rng(options.seed)
        rules, times = conjunction(rng, X, data.schema, 10), {}
        for count in (0, 1, 3, 10):
            schema = data.schema
            for rule in rules[:count]:
                schema = rule.apply(schema)
            space = TabularSpace.fit(schema, X).codes
            x = space.encoding.encode(TabularSpace.fit(schema, X).read(X.iloc[:1000]))
            wanted = (x + rng.normal(size=(8, *x.shape))).astype(np.float32)
            spent = []
            for _ in range(REPEATS):
                started = time.process_time()
                space.project(wanted, x)
                spent.append(time.process_time() - started)
            times[count] = statistics.median(spent)
        print(name, {count: f"{1e6 * t / 8000:.2f} us, {t / times[0]:.2f}x" for count, t in times.items()}, flush=True)


def loans(year: int) -> tuple[pd.DataFrame, NDArray[np.int64]]:
    """SBA loans with the amount that is guaranteed in dollars, and whether each was paid in full."""
    data = datasets.load("sba", cohort=year)
    X = data.X.drop(columns="guaranteed_share")
    X["SBA_Appv"] = (np.rint(data.X["GrAppv"] * data.X["guaranteed_share"])).astype(np.int64)
    X["share"] = (X["SBA_Appv"] / X["GrAppv"]).round(4)
    return X, (np.asarray(data.y) == "paid in full").astype(np.int64)


def run_loans(options: argparse.Namespace) -> None:
    """Survival and distance of advice on loans, with and without the rules that hold between their columns."""
    X, y = loans(2004)
    order = np.random.default_rng(options.seed).permutation(len(X))
    train, test = order[:6000], order[6000:9000]
    # Term seems to be revised when a loan ends, and a model moves nothing else where it may move it.
    frozen = ("State", "Sector_Points", "NewExist", "UrbanRural", "Term")
    plain = Schema.infer(X).freeze(*frozen).allow("LowDoc", ["no"])
    ruled = plain.require("SBA_Appv <= GrAppv").derive("share", "SBA_Appv / GrAppv")
    for title, schema in (("without rules", plain), ("with rules", ruled)):
        model = Classifier(schema=schema, random_state=options.seed).fit(X.iloc[train], y[train])
        hypotheses = retrains(model, X.iloc[train], y[train], n=40, random_state=options.seed)
        fresh = retrains(model, X.iloc[train], y[train], n=20, random_state=10_000 + options.seed)
        started = time.process_time()
        recourse = AVCG(hypotheses, random_state=options.seed).fit(X.iloc[train], y[train])
        fit = time.process_time() - started
        rows = X.iloc[test]
        denied = rows[model.predict(rows) == 0].head(300)
        answers = recourse.generate(denied, target=1)
        got = answers.answers
        x, target = recourse.space_.encode(got), torch.ones(len(got), dtype=torch.long)
        valid = model.predict(got) == 1
        survival = accepted_by(fresh.predictors.bind_rows(got), x, target, recourse.deployed_.threshold)[
            :, valid
        ].mean()
        over = (got["SBA_Appv"] > got["GrAppv"]).mean()
        ratio = (np.abs(got["share"] - got["SBA_Appv"] / got["GrAppv"]) > 0.0001).mean()
        print(
            json.dumps(
                {
                    "schema": title, "rows": len(denied), "fit s": round(fit, 1), "valid": float(valid.mean()),
                    "survival": round(float(survival), 4),
                    "distance": round(float(np.nanmean(answers.distance[valid])), 3),
                    "guarantee above the loan": float(over), "share is not the ratio": float(ratio),
                    "promise": [str(each) for each in recourse.statements()],
                }
            ),
            flush=True,
        )  # fmt: skip


def main() -> None:
    """Run what is named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    runs = {"answers": run_answers, "time": run_time, "loans": run_loans}
    parser.add_argument("what", choices=list(runs))
    parser.add_argument("--answers", type=int, default=1_000_000)
    parser.add_argument("--conjunctions", type=int, default=20, help="for each dataset (default 20)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    runs[options.what](options)


if __name__ == "__main__":
    main()
