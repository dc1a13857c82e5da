"""Loans whose columns depend on each other, rules that say so, and a judge of rules that shares no code with avcg.

The judge evaluates each rule as a Python function of a row, given as a dict.
"""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from avcg import Schema

HOUSING = ("free", "own", "rent")


def loans(n=60, seed=0):
    """Rows that obey the rules of `RULES`, but for a few that break some."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "income": np.round(rng.uniform(1000, 9000, n), 2),
            "debt": np.round(rng.uniform(0, 9000, n), 2),
            "rent": rng.integers(1, 1500, n),
            "food": rng.integers(100, 600, n),
            "other costs": np.round(rng.uniform(0, 300, n), 1),
            "housing": rng.choice(HOUSING, n),
            "deposit": rng.choice(["no", "yes"], n),
        }
    )
    frame.loc[frame["housing"] == "own", "rent"] = 0
    frame["total"] = np.round(frame["rent"] + frame["food"] + frame["other costs"], 1)
    frame["dti"] = frame["debt"] / frame["income"]
    frame["left"] = frame["income"] - frame["total"]
    frame["burden"] = np.round(np.maximum(frame["dti"], frame["total"] / frame["income"]), 2)
    wrong = rng.random(n) < 0.1
    frame.loc[wrong, "total"] += 5.5
    frame["left"] = frame["income"] - frame["total"]
    frame["burden"] = np.round(np.maximum(frame["dti"], frame["total"] / frame["income"]), 2)
    return frame


def schema(frame):
    """The schema of the loans without rules."""
    return Schema.infer(frame).step("other costs", 0.1).step("total", 0.1).step("burden", 0.01)


@dataclass(frozen=True)
class Ruled:
    """A rule: how it is said to a schema, its columns, and whether a row obeys it."""

    add: object
    columns: tuple
    obeyed: object
    derived: str | None = None


def near(left, right, size):
    """Equal up to rounding of sums of float64 of this size."""
    return abs(left - right) <= 1e-8 * max(1.0, size)


RULES = {
    "total": Ruled(
        lambda s: s.require("rent + food + `other costs` == total"),
        ("rent", "food", "other costs", "total"),
        lambda r: near(r["rent"] + r["food"] + r["other costs"], r["total"], 1e4),
    ),
    "afford": Ruled(
        lambda s: s.require("total <= 0.5 * income + 100"),
        ("total", "income"),
        lambda r: r["total"] <= 0.5 * r["income"] + 100 + 1e-6,
    ),
    "enough": Ruled(
        lambda s: s.require("income - debt >= -3000"),
        ("income", "debt"),
        lambda r: r["income"] - r["debt"] >= -3000 - 1e-6,
    ),
    "spare": Ruled(lambda s: s.require("left >= 500"), ("left",), lambda r: r["left"] >= 500 - 1e-6),
    "dti": Ruled(
        lambda s: s.derive("dti", "debt / income"),
        ("dti", "debt", "income"),
        lambda r: near(r["dti"], r["debt"] / r["income"], 10),
        "dti",
    ),
    "left": Ruled(
        lambda s: s.derive("left", "income - total"),
        ("left", "income", "total"),
        lambda r: near(r["left"], r["income"] - r["total"], 1e4),
        "left",
    ),
    "burden": Ruled(
        lambda s: s.derive("burden", "max(dti, total / income)"),
        ("burden", "dti", "total", "income"),
        lambda r: abs(r["burden"] - max(r["dti"], r["total"] / r["income"])) <= 0.005 + 1e-7,
        "burden",
    ),
    "own": Ruled(
        lambda s: s.when("housing", "own").then("rent", equals=0),
        ("housing", "rent"),
        lambda r: r["housing"] != "own" or r["rent"] == 0,
    ),
    "renting": Ruled(
        lambda s: s.when("housing", ["rent", "free"]).then("rent", low=50),
        ("housing", "rent"),
        lambda r: r["housing"] == "own" or r["rent"] >= 50,
    ),
    "deposit": Ruled(
        lambda s: s.when("housing", "free").then("deposit", one_of=["no"]),
        ("housing", "deposit"),
        lambda r: r["housing"] != "free" or r["deposit"] == "no",
    ),
    "saver": Ruled(
        lambda s: s.when("deposit", "yes").then("debt", high=5000),
        ("deposit", "debt"),
        lambda r: r["deposit"] != "yes" or r["debt"] <= 5000 + 1e-6,
    ),
}


def faults(names, answers, factuals):
    """What is wrong with answers under these rules, as texts: nothing, if all is well."""
    found = []
    derived = {RULES[name].derived for name in names} - {None}
    for i, (answer, factual) in enumerate(zip(answers.to_dict("records"), factuals.to_dict("records"), strict=True)):
        moved = {name for name in answer if answer[name] != factual[name]}
        assert all(not isinstance(value, float) or math.isfinite(value) for value in answer.values())
        for name in names:
            rule = RULES[name]
            if rule.derived is not None:
                inputs = set(rule.columns) - {rule.derived}
                if rule.derived in moved and not moved & inputs:
                    found.append(f"row {i}: {rule.derived} changed by itself")
                if not moved & inputs:
                    continue
            if moved & set(rule.columns) and not rule.obeyed(answer):
                found.append(f"row {i} breaks {name}: {answer}, before {factual}")
        if moved and moved <= derived:
            found.append(f"row {i}: only derived columns changed")
    return found


def counted(names, answers, factuals):
    """The number of changes of each row that count."""
    derived = {RULES[name].derived for name in names} - {None}
    own = [name for name in answers if name not in derived]
    return (answers[own] != factuals[own]).sum(axis=1).to_numpy()
