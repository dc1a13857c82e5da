"""The command line as a user meets it, in this process; and people to ask it about."""

import io
import sys
from dataclasses import dataclass
from unittest import mock

import numpy as np
import pandas as pd

from avcg.cli.main import main

FIT = ["--target", "approved", "--positive", "yes", "--drop", "id", "--categorical", "zip", "--freeze", "zip,age"]
QUICK = ["--hypotheses", "4", "--steps", "20"]


@dataclass
class Ran:
    code: int
    out: str
    err: str


def run(*arguments, stdin=None):
    """What `avcg` prints and how it ends."""
    given = io.TextIOWrapper(io.BytesIO(b"" if stdin is None else stdin), encoding="utf-8")
    streams = {"stdout": io.StringIO(), "stderr": io.StringIO(), "stdin": given}
    code = 0
    with mock.patch.multiple(sys, argv=["avcg", *map(str, arguments)], **streams):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    return Ran(code, streams["stdout"].getvalue(), streams["stderr"].getvalue())


def people(n=300, seed=0):
    """Rows as they lie in files: ids, whole numbers, decimals, flags, texts, names made of digits, and gaps."""
    rng = np.random.default_rng(seed)
    income, months = np.round(rng.uniform(10, 90, n), 1), rng.integers(0, 120, n)
    owns, housing = rng.random(n) < 0.4, rng.choice(["free", "own", "rent"], n)
    score = 0.06 * (income - 50) + 0.02 * (months - 60) + 1.2 * owns + (housing == "own") - 0.5
    rows = pd.DataFrame(
        {
            "id": [f"p{i:05d}" for i in range(n)],
            "age": rng.integers(18, 80, n),
            "income": income,
            "months": pd.array(months, dtype="Int64"),
            "owns": owns,
            "member": (rng.random(n) < 0.5).astype(object),
            "housing": housing.astype(object),
            "zip": [f"0{code}" for code in rng.integers(100, 104, n)],
        }
    )
    for name in ("months", "member", "housing"):
        rows.loc[rng.random(n) < 0.08, name] = None
    return rows.assign(approved=np.where(score + rng.normal(0, 0.4, n) > 0, "yes", "no"))
