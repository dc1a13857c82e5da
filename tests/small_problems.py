"""Tables with few feasible points, random constraints and linear models, and the nearest of the points one by one."""

import numpy as np
import pandas as pd
from hypothesis import strategies as st

from avcg import Schema, TabularSpace
from avcg.bench.ruler import LinearModels


@st.composite
def problems(draw):
    """A small space of every kind of column under random constraints, with rows, targets and linear models."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = 12
    frame = pd.DataFrame(
        {
            "age": rng.integers(0, 5, n),
            "debt": np.where(rng.random(n) < 0.3, np.nan, rng.integers(0, 4, n)),
            "rate": rng.choice([0.1, 0.5, 0.75], n),
            "job": [*"abcd", *rng.choice(list("abcd"), n - 4)],
            "grade": pd.Categorical(rng.choice(["low", "mid", "high"], n), ["low", "mid", "high"], ordered=True),
        }
    )
    frame["level"] = [{"a": 1, "b": 1, "c": 2, "d": 5}[job] for job in frame["job"]]
    frame["stage"] = ["old" if age > 2 else "young" for age in frame["age"]]
    frame["debt"] = frame["debt"].where(np.arange(n) > 0, 2.0)
    schema = Schema.infer(frame, kinds={"rate": "continuous"}).allow_missing("debt").step("debt", 1).step("rate", 0.25)
    for change in draw(st.lists(st.sampled_from(CHANGES), max_size=4, unique=True)):
        schema = change(schema)
    space = TabularSpace.fit(schema, frame)
    x = space.encode(frame.iloc[:3]).numpy()
    classes, count = draw(st.sampled_from([2, 3])), draw(st.sampled_from([1, 4]))
    codes = space.codes
    if draw(st.booleans()):
        codes = codes.restrict(rng.random((3, len(schema))) < 0.7, None, rng.integers(0, 4, 3))
    weights = rng.normal(size=(1, classes, x.shape[1])) + 0.4 * rng.normal(size=(count, classes, x.shape[1]))
    models = LinearModels(weights, rng.normal(size=(count, classes)))
    return space, codes, frame, x, rng.integers(0, classes, 3), models


CHANGES = (
    lambda schema: schema.only_up("age"),
    lambda schema: schema.between("age", 1, 3),
    lambda schema: schema.only_down("grade"),
    lambda schema: schema.freeze("rate"),
    lambda schema: schema.link("job", "level"),
    lambda schema: schema.link("age", "stage"),
    lambda schema: schema.allow("grade", ["low", "high"]),
    lambda schema: schema.forbid("job", "a", "d"),
    lambda schema: schema.cost("age", per_change=0.7),
    lambda schema: schema.cost("debt", per_unit=0.3, per_change=0.2),
    lambda schema: schema.cost("job", per_change=2.5),
    lambda schema: schema.at_most(2),
)


def least(codes, x, target, accepted):
    """(B,) the least distance of the points that are accepted, infinite where none is."""
    best = np.full(len(x), np.nan)
    for owner, points in codes.small_sets(x, 10**5, 10**6):
        distance = np.where(accepted(points, target[owner]), codes.take(owner).distance(points, x[owner]), np.inf)
        for row in np.unique(owner):
            best[row] = distance[owner == row].min()
    assert not np.isnan(best).any()
    return best
