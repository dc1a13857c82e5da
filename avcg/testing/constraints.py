"""The contract of a constraint: what a schema allows is what people can get, and nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from avcg.io.spaces import pack_encoding, pack_limits, unpack_encoding
from avcg.schema.schema import Schema
from avcg.space.encoding import Encoding, Floats, Values
from avcg.space.tabular import TabularSpace
from avcg.testing.spaces import check_space

_MOST_POINTS = 3000


def check_constraint(
    constrain: Callable[[Schema], Schema], schema: Schema, X: Any, *, lifted: bool = True, seed: int = 0
) -> None:
    """Assert that a constraint means the same wherever it is applied.

    Every point of a grid that `violations` allows is kept by `project`, and every other is moved to one that is
    allowed. The space under the constraint keeps `check_space`. The constraint comes back from JSON and from a stored
    space, shows in `describe`, and adds nothing where it is there already.

    Args:
        constrain: From a schema to that schema with one more constraint: ``lambda schema: schema.freeze("age")``.
        schema: Without the constraint.
        X: Rows that fit the schema, at least three, of which some may change with the constraint too.
        lifted: Whether `Schema.free` takes the constraint back, as it does with every limit on where a column may move;
            steps, missing values, prices, links and the cap on changes stay.
        seed: Of the points, where the grid has more than 3,000 for a row.

    Raises:
        AssertionError: With what does not hold.
    """
    limited = constrain(schema)
    assert limited != schema, "the constraint leaves the schema as it is"
    _check_words(constrain, schema, limited, lifted)
    space = TabularSpace.fit(limited, X)
    check_space(space, X, seed=seed)
    _check_storage(space, X)
    _check_grid(space, space.read(X), np.random.default_rng(seed))


def _check_words(constrain: Callable[[Schema], Schema], schema: Schema, limited: Schema, lifted: bool) -> None:
    assert Schema.from_json(limited.to_json()) == limited, "the constraint does not come back from JSON"
    assert str(limited) != str(schema), "the constraint does not show in the description of the schema"
    try:
        twice = constrain(limited)
    except ValueError:
        twice = limited  # saying it again may be refused
    assert twice == limited, "the constraint says more the second time"
    free = schema.free(*schema.names)
    expected = free if lifted else constrain(free)
    what = "free does not lift the constraint" if lifted else "free lifts the constraint, which is not its own"
    assert limited.free(*schema.names) == expected, what


def _check_storage(space: TabularSpace, X: Any) -> None:
    packed, arrays = pack_encoding(space.encoding, space.feasible.links)
    back = TabularSpace(*unpack_encoding(packed, arrays | pack_limits(space.encoding, space.feasible)))
    x = space.encode(X)
    assert torch.equal(back.encode(X), x), "a stored space encodes differently"
    raw = torch.from_numpy(np.random.default_rng(0).normal(scale=3.0, size=(4, *x.shape)).astype(np.float32))
    assert torch.equal(back.project(raw, x), space.project(raw, x)), "a stored space projects differently"


def _check_grid(space: TabularSpace, read: Values, rng: np.random.Generator) -> None:
    """Look at every point of a grid for each of a few rows."""
    points = _grid(space.encoding, read, rng)
    x = space.encode(points)
    kept = 0
    for i in range(min(len(read), 6)):
        row = read.take(np.full(len(points), i))
        here = space.encode(row)
        allowed = ~space.violations(points, row).any(axis=1)
        projected = space.project(x, here)
        same = (projected == x).all(dim=1).numpy()
        assert same[allowed].all(), f"project moves a point that is allowed: {_shown(space, points, allowed & ~same)}"
        assert not same[~allowed].any(), f"project keeps what is not allowed: {_shown(space, points, same & ~allowed)}"
        answers = space.codes.restore(projected.numpy(), row)
        assert not space.violations(answers, row).any(), "a point was projected to one that is not allowed"
        kept += int(allowed.sum())
    assert kept, "no point of the grid is allowed: check_constraint needs rows that may change"


def _grid(encoding: Encoding, read: Values, rng: np.random.Generator) -> Values:
    """Points with every value of a few of each column, or a random part of them where there are too many."""
    numbers = [_numbers(encoding, j, read.numbers[:, j]) for j in range(len(encoding.numeric))]
    choices = [np.arange(len(choice.categories)) for choice in encoding.categorical]
    sizes = [len(values) for values in (*numbers, *choices)]
    if int(np.prod(sizes)) <= _MOST_POINTS:
        index = np.array(list(itertools.product(*map(range, sizes))), np.intp)
    else:
        index = np.stack([rng.integers(0, size, _MOST_POINTS) for size in sizes], axis=1)
    n = len(numbers)
    columns = [values[index[:, j]] for j, values in enumerate(numbers)]
    places = [values[index[:, n + j]] for j, values in enumerate(choices)]
    return Values(
        np.array(columns, np.float64).reshape(n, len(index)).T, np.array(places, np.intp).reshape(-1, len(index)).T
    )


def _numbers(encoding: Encoding, j: int, present: Floats) -> Floats:
    """Values of a column: those of the rows, between and beyond them, and on its grid."""
    ends = np.unique(present[~np.isnan(present)])
    reach = max(float(ends[-1] - ends[0]), 1.0)
    between = np.quantile(ends, [0.25, 0.5, 0.75])
    values = np.concatenate([ends[:3], ends[-2:], between, [ends[0] - reach, ends[-1] + reach]])
    every = np.repeat(values[:, None], len(encoding.numeric), axis=1)
    return np.unique(np.concatenate([encoding.on_grid(every)[:, j], values]))


def _shown(space: TabularSpace, points: Values, which: Any) -> dict[str, Any]:
    """The first of some points, by column."""
    at = np.flatnonzero(which)[:1]
    first = space.decode(space.encode(points.take(at)))
    return {name: first[name].iloc[0] for name in first}
