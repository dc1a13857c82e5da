"""The contract of a constraint: every part of avcg allows exactly the same answers under it."""

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

_MAX_POINTS = 3000


def check_constraint(
    constrain: Callable[[Schema], Schema], schema: Schema, X: Any, *, lifted: bool = True, seed: int = 0
) -> None:
    """Assert that a constraint means the same wherever it is applied.

    Every point of a grid that `violations` allows is kept by `project`, and every other point is moved to an allowed
    one. The space under the constraint satisfies `check_space`. The constraint survives a round trip through JSON and
    through a stored space, is visible in the schema's description, and changes nothing if it is applied twice.

    Args:
        constrain: Function that adds the constraint to a schema, e.g. ``lambda schema: schema.freeze("age")``.
        schema: Schema without the constraint.
        X: Rows that fit the schema, at least three. Some must be able to change under the constraint.
        lifted: Whether `Schema.free` lifts the constraint, as it does with every limit on where a column may move. It
            does not lift steps, missing values, prices, links and the largest number of changes.
        seed: Seed of the points that are drawn if the grid has more than 3,000; 0 by default.

    Raises:
        AssertionError: If a condition does not hold. The message names it.
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
        twice = limited  # a constraint may refuse to be added twice
    assert twice == limited, "adding the constraint again changes the schema"
    free = schema.free(*schema.names)
    expected = free if lifted else constrain(free)
    what = "free does not lift the constraint" if lifted else "free lifts the constraint, although lifted is False"
    assert limited.free(*limited.names) == expected, what


def _check_storage(space: TabularSpace, X: Any) -> None:
    packed, arrays = pack_encoding(space.encoding, space.feasible.links)
    restored = TabularSpace(*unpack_encoding(packed, arrays | pack_limits(space.encoding, space.feasible)))
    x = space.encode(X)
    assert torch.equal(restored.encode(X), x), "a stored space encodes differently"
    raw = torch.from_numpy(np.random.default_rng(0).normal(scale=3.0, size=(4, *x.shape)).astype(np.float32))
    assert torch.equal(restored.project(raw, x), space.project(raw, x)), "a stored space projects differently"


def _check_grid(space: TabularSpace, read: Values, rng: np.random.Generator) -> None:
    """Check every point of a grid as an answer to each of a few rows."""
    points = _grid(space.encoding, read, rng)
    x = space.encode(points)
    n_allowed = 0
    for i in range(min(len(read), 6)):
        row = read.take(np.full(len(points), i))
        factual = space.encode(row)
        allowed = ~space.violations(points, row).any(axis=1)
        projected = space.project(x, factual)
        same = (projected == x).all(dim=1).numpy()
        assert same[allowed].all(), f"project moves a point that is allowed: {_shown(space, points, allowed & ~same)}"
        assert not same[~allowed].any(), (
            f"project keeps a point that is not allowed: {_shown(space, points, same & ~allowed)}"
        )
        answers = space.codes.restore(projected.numpy(), row)
        assert not space.violations(answers, row).any(), "a point was projected to one that is not allowed"
        n_allowed += int(allowed.sum())
    assert n_allowed, "no point of the grid is allowed: check_constraint needs rows that may change"


def _grid(encoding: Encoding, read: Values, rng: np.random.Generator) -> Values:
    """All combinations of a few values of each column, or a random part of them if there are too many."""
    numbers = [_numbers(encoding, j, read.numbers[:, j]) for j in range(len(encoding.numeric))]
    choices = [np.arange(len(choice.categories)) for choice in encoding.categorical]
    sizes = [len(values) for values in (*numbers, *choices)]
    if int(np.prod(sizes)) <= _MAX_POINTS:
        index = np.array(list(itertools.product(*map(range, sizes))), np.intp)
    else:
        index = np.stack([rng.integers(0, size, _MAX_POINTS) for size in sizes], axis=1)
    n = len(numbers)
    columns = [values[index[:, j]] for j, values in enumerate(numbers)]
    positions = [values[index[:, n + j]] for j, values in enumerate(choices)]
    return Values(
        np.array(columns, np.float64).reshape(n, len(index)).T, np.array(positions, np.intp).reshape(-1, len(index)).T
    )


def _numbers(encoding: Encoding, j: int, present: Floats) -> Floats:
    """Values of a column to try: those of the rows, values between and beyond them, and points of its grid."""
    ends = np.unique(present[~np.isnan(present)])
    reach = max(float(ends[-1] - ends[0]), 1.0)
    between = np.quantile(ends, [0.25, 0.5, 0.75])
    values = np.concatenate([ends[:3], ends[-2:], between, [ends[0] - reach, ends[-1] + reach]])
    repeated = np.repeat(values[:, None], len(encoding.numeric), axis=1)
    return np.unique(np.concatenate([encoding.on_grid(repeated)[:, j], values]))


def _shown(space: TabularSpace, points: Values, which: Any) -> dict[str, Any]:
    """The first of the selected points, by column."""
    first = space.decode(space.encode(points.take(np.flatnonzero(which)[:1])))
    return {name: first[name].iloc[0] for name in first}
