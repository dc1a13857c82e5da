"""Every space in the room keeps the contract: a new one is tested by being there, with an example below."""

import importlib
import inspect
import pkgutil

import numpy as np
import pandas as pd
import pytest

import avcg.space
from avcg import ImageSpace, Schema, Space, TabularSpace
from avcg.testing import check_space


def mixed_rows():
    rng = np.random.default_rng(0)
    jobs = rng.choice(["clerk", "nurse", "smith"], 12)
    return pd.DataFrame(
        {
            "age": rng.integers(20, 60, 12),
            "pay": np.where(np.arange(12) % 4 == 1, np.nan, rng.normal(3.0, 1.0, 12).round(2)),
            "job": jobs,
            "level": [{"clerk": 1, "nurse": 2, "smith": 3}[job] for job in jobs],
            "grade": pd.Categorical(rng.choice(["low", "mid", "high"], 12), ["low", "mid", "high"], ordered=True),
            "owner": rng.random(12) < 0.5,
        },
        index=[f"row {i}" for i in range(12)],
    )


def mixed_table():
    X = mixed_rows()
    schema = Schema.infer(X).allow_missing("pay").link("job", "level").only_up("age").forbid("grade", "low", "high")
    return TabularSpace.fit(schema.between("pay", 0, 5).at_most(3), X), X


def free_table():
    X = mixed_rows().drop(columns="pay")
    return TabularSpace.fit(Schema.infer(X), X, "minmax"), X


def grey_pictures():
    X = np.random.default_rng(0).integers(0, 256, (5, 6, 4), np.uint8)
    mask = np.ones((6, 4), bool)
    mask[0] = False
    return ImageSpace.fit(X, may_change=mask), X


def coloured_pictures():
    X = np.random.default_rng(0).normal(size=(4, 3, 5, 5)).astype(np.float32)
    return ImageSpace.fit(X, channels="first"), X


EXAMPLES = {TabularSpace: [mixed_table, free_table], ImageSpace: [grey_pictures, coloured_pictures]}


def spaces_in_the_room():
    """Every class under `avcg.space` that has all members of the protocol."""
    wanted = {name for name in vars(Space) if not name.startswith("_")}
    found = {}
    for part in pkgutil.iter_modules(avcg.space.__path__):
        module = importlib.import_module(f"avcg.space.{part.name}")
        for name, thing in inspect.getmembers(module, inspect.isclass):
            own = thing.__module__ == module.__name__ and not getattr(thing, "_is_protocol", False)
            if own and wanted <= set(dir(thing)):
                found[name] = thing
    return found


@pytest.mark.parametrize("kind", spaces_in_the_room().values(), ids=spaces_in_the_room())
def test_it_keeps_the_contract(kind):
    assert kind in EXAMPLES, f"{kind.__name__} has no example: add functions to EXAMPLES that return one and its rows"
    for example in EXAMPLES[kind]:
        for seed in range(3):
            check_space(*example(), seed=seed)


def test_there_are_spaces():
    assert set(EXAMPLES) == set(spaces_in_the_room().values())


class Drifting(TabularSpace):
    """A space whose answers are always a little off."""

    def project(self, x_cf, x):
        return super().project(x_cf, x) + 0.01


class Careless(TabularSpace):
    """A space that forgets requests."""

    def random_requests(self, rows, share, rng):
        rng.random(rows)
        return self

    def project(self, x_cf, x):
        return x_cf


@pytest.mark.parametrize(
    ("kind", "says"),
    [(Drifting, "an unchanged row is not feasible"), (Careless, "breaks a constraint|differ from the projected")],
)
def test_a_space_that_breaks_the_contract_is_found_out(kind, says):
    space, X = free_table()
    with pytest.raises(AssertionError, match=says):
        check_space(kind(space.encoding, space.feasible), X)
