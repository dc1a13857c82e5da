"""A credit table as messy as a real export, and a checker of answers to it that knows nothing of the package.

The table is made by `applicants`. What holds in it is written down below as plain data, and `check` reads answers cell
by cell against it in plain Python. It imports nothing of what it checks, so that both cannot be wrong in the same way.
"""

import math
from decimal import Decimal
from typing import NamedTuple

import numpy as np
import pandas as pd

INCOME, RENT = "Einkommen im Monat (€)", "loyer mensuel"
ARREARS, INQUIRY = "months since last arrears", "months since last inquiry"
SCORE, LIMIT = "score", "credit limit"
TOTAL, PARTS = "debt total", ("debt cards", "debt car", "debt study")
RATIO = "debt to income"
HOUSING, GRADE = "housing", "grade"
EMPLOYED, DEPENDANTS, CHANNEL = "años en el empleo", "dependants", "申请 渠道"
APPLICANT, ACCOUNT, OPENED, APPLIED, NOTE = "applicant", "account number", "opened", "applied at", "note"

# Codes that say why there is no number: no record, not applicable, refused.
CODES = {ARREARS: (-9, -8, -7), INQUIRY: (-9, -8, -7)}
# Groups of which exactly one is 1: whole numbers, and booleans.
REGIONS = ("region_north", "region_south", "region_east", "region_west")
PURPOSES = ("purpose_car", "purpose_home", "purpose_study")
DUMMIES = {"region": REGIONS, "purpose": PURPOSES}
# Each of these implies those before it.
THERMOMETER = ("late_1", "late_2", "late_3")
# Smallest unit of each column of numbers, as text since 0.01 is no float.
UNITS = {
    INCOME: "0.01", RENT: "0.01", TOTAL: "0.01", **dict.fromkeys(PARTS, "0.01"), RATIO: "0.01", EMPLOYED: "0.1",
    LIMIT: "100", ARREARS: "1", INQUIRY: "1", SCORE: "1", DEPENDANTS: "1",
}  # fmt: skip
# Stretches of numbers that occur; nothing lies between them.
STRETCHES = {SCORE: ((300, 420), (600, 850))}
CATEGORIES = {
    HOUSING: ("own", "rent", "family"), GRADE: ("A", "B", "C", "D", "E"), CHANNEL: ("网上", "分行"),
    "product": ("loan",), "country": ("DE", "AT"),
}  # fmt: skip
# What identifies a row or describes it, and is no subject of advice.
KEPT = (APPLICANT, ACCOUNT, OPENED, APPLIED, NOTE)


class Fault(NamedTuple):
    """What is wrong with one cell, one group of cells of a row, or with a whole column (row None)."""

    row: int | None
    column: str
    what: str


def applicants(n=2000, seed=0):
    """A frame of rows and an array of labels, 1 for those who paid back."""
    rng = np.random.default_rng(seed)
    income = np.round(rng.lognormal(8.0, 0.4, n), 2)
    housing = rng.choice(CATEGORIES[HOUSING], n, p=[0.35, 0.5, 0.15])
    rent = np.where(housing == "own", 0.0, np.round(income * rng.uniform(0.15, 0.4, n), 2))
    cents = np.stack([rng.integers(0, high, n) * (rng.random(n) < share)
                      for high, share in ((900_000, 0.7), (2_000_000, 0.4), (1_500_000, 0.3))])  # fmt: skip
    parts, total = cents / 100, cents.sum(axis=0) / 100
    score = np.where(rng.random(n) < 0.3, rng.integers(300, 421, n), rng.integers(600, 851, n))
    late = rng.choice(4, n, p=[0.7, 0.15, 0.1, 0.05])
    region, purpose = rng.integers(0, len(REGIONS), n), rng.integers(0, len(PURPOSES), n)
    grade = np.clip((5 * (total / income) / 8 + rng.normal(0, 0.8, n)).astype(int), 0, 4)
    serial = rng.permutation(10 * n)[:n]
    days = rng.integers(0, 4000, n)
    frame = pd.DataFrame(
        {
            APPLICANT: [f"A-{number:07d}" for number in serial],
            ACCOUNT: 70_000_000_000_000_001 + serial * 1_000_003,  # more digits than a float holds
            INCOME: income,
            HOUSING: housing,
            RENT: rent,
            **dict(zip(PARTS, parts, strict=True)),
            TOTAL: total,
            RATIO: np.round(total / income, 2),
            ARREARS: _coded(rng, rng.integers(0, 84, n), ARREARS),
            INQUIRY: _coded(rng, rng.integers(0, 25, n), INQUIRY),
            SCORE: score,
            LIMIT: rng.integers(5, 200, n) * 100,
            **{name: (region == i).astype(np.int64) for i, name in enumerate(REGIONS)},
            **{name: purpose == i for i, name in enumerate(PURPOSES)},
            **{name: (late >= i).astype(np.int64) for i, name in enumerate(THERMOMETER, start=1)},
            GRADE: pd.Categorical.from_codes(grade, CATEGORIES[GRADE], ordered=True),
            EMPLOYED: np.where(rng.random(n) < 0.12, np.nan, np.round(rng.gamma(2.0, 4.0, n), 1)),
            DEPENDANTS: pd.array(rng.integers(0, 5, n), dtype="Int64"),
            CHANNEL: rng.choice(CATEGORIES[CHANNEL], n),
            "product": "loan",
            "country": np.where(np.arange(n) % 700 == 3, "AT", "DE"),
            OPENED: [str(np.datetime64("2012-01-01") + int(day)) for day in days],
            APPLIED: pd.to_datetime("2023-01-01") + pd.to_timedelta(rng.integers(0, 10**7, n), unit="s"),
            NOTE: [f"called {i % 97} times, wants {i * 7919 % 1009} €" for i in range(n)],
        }
    )
    frame.loc[rng.random(n) < 0.1, DEPENDANTS] = pd.NA
    merit = (score - 620) / 120 - total / income / 4 + (income - 3000) / 2500 - 0.7 * late + 0.4 * (housing == "own")
    return frame, (merit + rng.normal(0, 0.5, n) > np.median(merit)).astype(np.int64)


def _coded(rng, months, column):
    codes = np.array(CODES[column])
    return np.where(rng.random(len(months)) < 0.35, codes[rng.integers(0, len(codes), len(months))], months)


def check(answers, factuals, changed_columns_may):
    """All faults of answers, one answer for each row in the same order; an empty list if there are none.

    Args:
        answers: Frame of what people are told.
        factuals: Frame of their rows.
        changed_columns_may: Names of the columns that answers may change.
    """
    if len(answers) != len(factuals):
        raise ValueError(f"One answer for each row is expected. Got {len(answers)} for {len(factuals)}.")
    faults = []
    if list(answers.columns) != list(factuals.columns) or not answers.index.equals(factuals.index):
        return [Fault(None, "", "the columns or the index are not those of the rows")]
    before = {name: _cells(factuals, name) for name in factuals.columns}
    after = {name: _cells(answers, name) for name in factuals.columns}
    for name in factuals.columns:
        if answers[name].dtype != factuals[name].dtype:
            faults.append(Fault(None, name, f"dtype {factuals[name].dtype} became {answers[name].dtype}"))
        for row, (old, new) in enumerate(zip(before[name], after[name], strict=True)):
            if not _same(old, new):
                what = _cell_fault(name, old, new, name in changed_columns_may)
                faults += [] if what is None else [Fault(row, name, what)]
    for row in range(len(factuals)):
        faults += _row_faults(row, {name: cells[row] for name, cells in after.items()})
    return faults


def _cells(frame, name):
    """A column as plain Python values, None where missing."""
    return [None if value is None or value is pd.NA or value is pd.NaT or value != value else value
            for value in frame[name].tolist()]  # fmt: skip


def _same(old, new):
    """Whether two cells are the same bit for bit: 1, 1.0 and True are not, nor are 0.0 and -0.0."""
    if type(old) is not type(new) or old != new:
        return False
    return not isinstance(old, float) or math.copysign(1.0, old) == math.copysign(1.0, new)


def _cell_fault(name, old, new, may_change):
    """What is wrong with a cell that is not the same as before; None if nothing is."""
    if name in KEPT:
        return f"a kept column was altered: {old!r} became {new!r}"
    if not may_change:
        return f"may not change, and {old!r} became {new!r}"
    if new is None:
        return f"a missing value was created from {old!r}"
    if name in UNITS and (isinstance(new, bool) or not isinstance(new, (int, float)) or not math.isfinite(new)):
        return f"{new!r} is no finite number"
    is_rounded = name not in UNITS or Decimal(repr(new)) % Decimal(UNITS[name]) == 0
    if old == new or (not is_rounded and old is not None and math.isclose(old, new, rel_tol=1e-6)):
        return f"an unchanged cell is not bit for bit: {old!r} became {new!r}"
    if name in CODES and new < 0:
        return f"the code {new!r} was invented" if new in CODES[name] else f"{new!r} occurs nowhere"
    if name in CATEGORIES and new not in CATEGORIES[name]:
        return f"{new!r} is no category"
    if name in STRETCHES and not any(low <= new <= high for low, high in STRETCHES[name]):
        return f"{new!r} lies where no value does"
    if not is_rounded:
        return f"{new!r} has more digits than the data, which come in steps of {UNITS[name]}"
    return None


def _row_faults(row, cells):
    """What is wrong between the cells of one answer."""
    for group, names in DUMMIES.items():
        values = [cells[name] for name in names]
        if any(value not in (0, 1) for value in values) or sum(values) != 1:
            yield Fault(row, group, f"exactly one of {len(names)} must be 1: {values}")
    steps = [cells[name] for name in THERMOMETER]
    if any(value not in (0, 1) for value in steps) or steps != sorted(steps, reverse=True):
        yield Fault(row, "late", f"each step implies those before it: {steps}")
    parts = [cells[name] for name in PARTS]
    if round(cells[TOTAL] * 100) != sum(round(part * 100) for part in parts):
        yield Fault(row, TOTAL, f"{cells[TOTAL]!r} is not the sum of {parts}")
    if not abs(cells[RATIO] - cells[TOTAL] / cells[INCOME]) <= 0.005 + 1e-9:
        yield Fault(row, RATIO, f"{cells[RATIO]!r} is not {cells[TOTAL]!r} / {cells[INCOME]!r}")
    if cells[HOUSING] == "own" and cells[RENT] != 0:
        yield Fault(row, RENT, f"owners pay no rent: {cells[RENT]!r}")
