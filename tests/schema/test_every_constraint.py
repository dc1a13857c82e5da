"""Every verb of `Schema` keeps the contract: a new one is tested by being there, with an example below."""

import inspect

import numpy as np
import pandas as pd
import pytest

from avcg import Schema
from avcg.schema.rules import Implication
from avcg.testing import check_constraint

X = pd.DataFrame(
    {
        "age": [20, 30, 40, 50, 37],
        "pay": [1.0, 2.5, 3.0, 4.0, 2.0],
        "job": ["clerk", "nurse", "smith", "clerk", "nurse"],
        "level": [1, 2, 3, 1, 2],
        "months": [-9, 0, 12, 24, -9],
        "own": [1, 0, 0, 1, 1],
        "rent": [False, True, True, False, False],
        "tax": [0.5, 1.25, 1.5, 2.0, 1.0],
        "grade": pd.Categorical(["low", "mid", "high", "mid", "low"], ["low", "mid", "high"], ordered=True),
    }
)
# By verb: functions from a schema of the rows above to that schema with the constraint.
LIMITS = {
    "freeze": [lambda s: s.freeze("age"), lambda s: s.freeze("job", "grade")],
    "only_up": [lambda s: s.only_up("age", "grade")],
    "only_down": [lambda s: s.only_down("pay"), lambda s: s.only_down("grade")],
    "between": [lambda s: s.between("age", 25, 45), lambda s: s.between("pay", low=2)],
    "allow": [lambda s: s.allow("job", ["nurse", "smith"])],
    "observed": [lambda s: s.observed("age", "pay")],
    "forbid": [lambda s: s.forbid("job", "clerk", "smith").forbid("grade", "low", "high")],
}
# Of these `free` takes nothing back.
OTHERS = {
    "step": [lambda s: s.step("age", 5), lambda s: s.step("pay", 0.5)],
    "allow_missing": [lambda s: s.allow_missing("pay", "job")],
    "codes": [lambda s: s.codes("months", -9), lambda s: s.codes("age", 30, 37), lambda s: s.codes("pay", 2.5, 99)],
    "leave": [
        lambda s: s.codes("months", -9).leave("months"),
        lambda s: s.codes("months", -9, 12).leave("months", -9),
    ],
    "link": [lambda s: s.link("job", "level"), lambda s: s.link("level", "job")],
    "cost": [lambda s: s.cost("age", per_unit=2, per_change=0.5), lambda s: s.cost("job", per_change=3)],
    "group": [lambda s: s.group("home", ("own", "rent"))],
    "keep": [lambda s: s.keep("level"), lambda s: s.keep("own", "job")],
    "at_most": [lambda s: s.at_most(2)],
    "require": [
        lambda s: s.require("age - 10 * pay >= 4"),
        lambda s: s.require("2 * pay == level + 1").require("level <= 0.1 * age"),
    ],
    "derive": [lambda s: s.derive("tax", "0.5 * pay"), lambda s: s.derive("tax", "min(pay / 2, 2)")],
    "with_rule": [lambda s: s.with_rule(Implication("job", ("clerk",), "level", high=2))],
    "when": [
        lambda s: s.when("job", ["clerk", "nurse"]).then("level", high=2),
        lambda s: s.when("grade", "high").then("job", one_of=["smith", "nurse"]),
    ],
}
EXAMPLES = LIMITS | OTHERS


def verbs():
    """Public methods of `Schema` that return a schema, or a condition that does, but not `free`, which lifts limits."""
    methods = inspect.getmembers(Schema, inspect.isfunction)
    returns = {name: inspect.get_annotations(method).get("return") for name, method in methods}
    return [
        name
        for name, kind in returns.items()
        if kind in ("Self", "Condition[Self]") and name[0] != "_" and name != "free"
    ]


@pytest.mark.parametrize("verb", verbs())
def test_it_keeps_the_contract(verb):
    assert verb in EXAMPLES, (
        f"Schema.{verb} has no example: add functions from a schema to one with the constraint, under {verb!r}, to"
        " LIMITS if Schema.free takes it back, else to OTHERS"
    )
    for constrain in EXAMPLES[verb]:
        check_constraint(constrain, Schema.infer(X), X, lifted=verb in LIMITS)


def test_there_are_verbs():
    assert set(verbs()) == set(EXAMPLES)


def test_constraints_together():
    def constrain(schema):
        return schema.link("job", "level").only_up("age").forbid("job", "clerk", "smith").step("pay", 0.5)

    with_limits = Schema.infer(X).between("pay", 0, 3.7).at_most(3)
    with pytest.raises(AssertionError, match="free does not lift the constraint"):
        check_constraint(constrain, with_limits, X)  # a part of it is a limit, and a part is not
    check_constraint(lambda s: s.link("job", "level").step("pay", 0.5), with_limits, X, lifted=False)


def test_a_constraint_that_says_nothing_is_found_out():
    with pytest.raises(AssertionError, match="leaves the schema as it is"):
        check_constraint(lambda schema: schema, Schema.infer(X), X)


def test_a_projection_that_does_not_heed_it_is_found_out(monkeypatch):
    """What people get is compared with an independent look at it."""
    from avcg.space import nearest, project

    inside = nearest.nearest_numbers

    def careless(encoding, feasible, wanted, here):
        return np.where(np.abs(wanted - 2.7) < 0.5, wanted, inside(encoding, feasible, wanted, here))

    for module in (nearest, project):
        monkeypatch.setattr(module, "nearest_numbers", careless)
    part = X[["pay", "job"]]
    with pytest.raises(AssertionError):
        check_constraint(lambda schema: schema.freeze("pay"), Schema.infer(part), part)
