"""Before answers are handed out they are looked at once more: a defect is an error and never an answer."""

from dataclasses import replace

import numpy as np
import pytest

from avcg import BlackBox, PointMass, Schema, toys
from avcg.baselines.nearest import NearestUnlike
from avcg.errors import InternalError
from avcg.space import tabular

LOANS = toys.loans(n=200)
SCHEMA = Schema.infer(LOANS.X).between("income", 0, 100).only_up("months").freeze("rating").at_most(2)
NUMBERS = [feature.name for feature in SCHEMA.numeric]
CATEGORIES = [feature.name for feature in SCHEMA.categorical]


@pytest.fixture(scope="module")
def recourse():
    rule = BlackBox(lambda rows: (rows["income"] > 50) * 1.0, LOANS.X)
    return NearestUnlike(PointMass(rule), schema=SCHEMA).fit(LOANS.X)


def number(name, value):
    def damage(values, factuals):
        numbers = values.numbers.copy()
        numbers[:, NUMBERS.index(name)] = value(factuals.numbers[:, NUMBERS.index(name)])
        return replace(values, numbers=numbers)

    return damage


def category(name):
    def damage(values, factuals):
        choices, j = values.choices.copy(), CATEGORIES.index(name)
        choices[:, j] = (factuals.choices[:, j] + 1) % len(SCHEMA[name].categories)
        return replace(values, choices=choices)

    return damage


def everything(values, factuals):
    return number("income", lambda now: np.clip(now + 1, 0, 100))(
        number("months", lambda now: now + 1)(category("housing")(values, factuals), factuals), factuals
    )


DAMAGE = {
    "beyond a range": number("income", lambda now: now * 0 + 101),
    "off the grid": number("months", lambda now: now + 0.25),
    "the wrong way": number("months", lambda now: now - 1),
    "a frozen category": category("rating"),
    "too many changes": everything,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_an_answer_that_breaks_a_constraint_is_never_handed_out(recourse, monkeypatch, damage):
    rows = LOANS.X[LOANS.X["income"] < 50].head(5).astype({"months": float})
    assert not recourse.space_.violations(recourse.generate(rows, target=1).frame, rows).any()
    intact = tabular.restore

    def damaged(encoding, feasible, codes, factuals):
        return damage(intact(encoding, feasible, codes, factuals), factuals)

    monkeypatch.setattr(tabular, "restore", damaged)
    with pytest.raises(InternalError, match=r"5 of 5 answers break a constraint, the first at position 0"):
        recourse.generate(rows, target=1)
