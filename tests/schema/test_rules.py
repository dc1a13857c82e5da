"""The verbs for rules between columns: what they accept, refuse, store and say."""

import json

import pytest

from avcg import Categorical, Continuous, Schema
from avcg.errors import SchemaError

SCHEMA = Schema(
    (
        Continuous("income"),
        Continuous("debt"),
        Continuous("dti"),
        Continuous("rent", step=1),
        Continuous("hours-per-week"),
        Categorical("housing", ("own", "rent", "free")),
        Categorical("deposit", (False, True)),
    )
)


def test_rules_are_stored_and_read():
    schema = (
        SCHEMA.require("rent - 0.8 * income <= 1000")
        .require("`hours-per-week` >= 10")
        .derive("dti", "debt / income")
        .when("housing", ["own", "free"]).then("rent", equals=0)
        .when("deposit", True).then("housing", one_of=["own", "rent"])
        .when("housing", "rent").then("rent", low=50, high=5000)
    )  # fmt: skip
    assert len(schema.rules) == 6
    assert Schema.from_json(schema.to_json()) == schema
    assert str(schema).splitlines()[-6:] == [
        "rent - 0.8 * income is at most 1000.",
        "`hours-per-week` is at least 10.",
        "dti is computed: debt / income.",
        "Where housing is own or free, rent is 0.",
        "Where deposit is True, housing is own or rent.",
        "Where housing is rent, rent is between 50 and 5000.",
    ]
    row = {row["column"]: row for row in schema.describe()}["dti"]
    assert (row["may change"], row["cost"]) == ("computed from debt, income", "nothing")


def test_a_schema_without_rules_is_read_as_before():
    content = json.loads(SCHEMA.to_json())
    del content["rules"]
    assert Schema.from_json(json.dumps(content)) == SCHEMA


def test_a_rule_given_twice_is_one():
    once = SCHEMA.require("rent <= income")
    assert once.require("rent <= income") == once


def test_between_narrows_a_derived_column():
    assert SCHEMA.derive("dti", "debt / income").between("dti", high=0.4)["dti"].high == 0.4


@pytest.mark.parametrize(
    ("add", "message"),
    [
        (lambda s: s.require("rent < income"), "Write '<='"),
        (lambda s: s.require("rent <= incom"), "Did you mean 'income'"),
        (lambda s: s.require("rent * debt <= 3"), "Multiply both sides"),
        (lambda s: s.require("housing <= 3"), "holds categories"),
        (lambda s: s.require("rent - rent <= 3"), "does not depend on any column"),
        (lambda s: s.derive("housing", "rent"), "derive is for numbers"),
        (lambda s: s.derive("nothing", "rent"), "no column 'nothing'"),
        (lambda s: s.derive("dti", "3"), "derived from no column"),
        (lambda s: s.derive("dti", "dti + 1"), "in a circle"),
        (lambda s: s.derive("dti", "rent").derive("rent", "dti"), "in a circle"),
        (lambda s: s.derive("dti", "rent").derive("dti", "debt"), "derived twice"),
        (lambda s: s.derive("dti", "rent").only_up("dti"), "computed from 'rent', .* one direction or frozen"),
        (lambda s: s.freeze("dti").derive("dti", "rent"), "computed from 'rent', .* one direction or frozen"),
        (lambda s: s.derive("dti", "rent").cost("dti", per_unit=2), "costs nothing of its own"),
        (lambda s: s.derive("dti", "rent").link("debt", "dti"), "cannot be linked as well"),
        (lambda s: s.derive("dti", "rent").when("housing", "own").then("dti", low=1), "a condition cannot set it"),
        (lambda s: s.when("rent", 3), "when is for categories"),
        (lambda s: s.when("housing", "ow"), "no category 'ow'. Did you mean 'own'"),
        (lambda s: s.when("housing", []), "at least one category"),
        (lambda s: s.when("housing", "own").then("housing", equals="rent"), "Use allow"),
        (lambda s: s.when("housing", "own").then("rent"), "Got 0 of these"),
        (lambda s: s.when("housing", "own").then("rent", equals=1, low=0), "Got 2 of these"),
        (lambda s: s.when("housing", "own").then("rent", equals=0.5), "No multiple of the step"),
        (lambda s: s.when("housing", "own").then("rent", low=5, high=4), "is crossed"),
        (lambda s: s.when("housing", "own").then("rent", one_of=["a"]), "Use equals=, low= or high="),
        (lambda s: s.when("housing", "own").then("rent", equals="much"), "must be a finite number"),
        (lambda s: s.when("housing", "own").then("deposit", low=1), "Use equals= or one_of="),
        (lambda s: s.when("deposit", True).then("housing", one_of="own"), "takes a list"),
        (lambda s: s.when("deposit", True).then("housing", equals="x"), "no category 'x'"),
    ],
)
def test_refusals(add, message):
    with pytest.raises(SchemaError, match=message):
        add(SCHEMA)


@pytest.mark.parametrize("damage", [{"kind": "other"}, {"text": 3}, {"unknown": 1}, {"text": "a <"}])
def test_damaged_rules_are_refused(damage):
    content = json.loads(SCHEMA.require("rent <= income").to_json())
    content["rules"][0].update(damage)
    with pytest.raises(SchemaError):
        Schema.from_json(json.dumps(content))
