"""Random tables with every kind of column, random constraints on them, and a checker that trusts nobody.

The checker reads the constraints off the schema and the values off the frames, one cell at a time in plain Python, so
that it shares no code with what it checks.
"""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
import polars as pl
from hypothesis import strategies as st

from avcg import Categorical, Continuous, Schema

LABELS = ["alpha", "beta", "gamma", "delta", "épsilon", "z z"]
INTEGERS = {"int64": 10**6, "int32": 10**6, "uint8": 255, "Int64": 10**6}
FLOATS = ("float64", "float32", "Float64")
TEXTS = ("str", "object", "category", "python", "pyarrow")


@dataclass
class Table:
    """A frame with a schema that constrains it."""

    frame: object
    schema: Schema

    def __repr__(self):
        return f"{self.frame!r}\n{self.schema!r}"


def _floats(dtype):
    width = 32 if dtype == "float32" else 64
    return st.floats(-1e6, 1e6, allow_nan=False, width=width).map(lambda v: 0.0 if abs(v) < 1e-6 else v)


@st.composite
def columns(draw, n):
    """A pandas column and the kind to read it as (None: as inferred)."""
    kind = draw(st.sampled_from(["float", "integer", "whole float", "boolean", "text", "ordered", "code", "constant"]))

    def values(elements):
        return draw(st.lists(elements, min_size=n, max_size=n))

    if kind == "float":
        dtype = draw(st.sampled_from(FLOATS))
        return pd.Series(values(_floats(dtype)), dtype=dtype), None
    if kind == "integer":
        dtype = draw(st.sampled_from(sorted(INTEGERS)))
        low = 0 if dtype == "uint8" else -INTEGERS[dtype]
        return pd.Series(values(st.integers(low, INTEGERS[dtype])), dtype=dtype), None
    if kind == "whole float":
        return pd.Series(values(st.integers(-50, 50)), dtype="float64"), None
    if kind == "boolean":
        return pd.Series(values(st.booleans()), dtype=draw(st.sampled_from(["bool", "boolean", "object"]))), None
    if kind == "code":
        return pd.Series(values(st.sampled_from([3, 6, 7])), dtype="int64"), "categorical"
    if kind == "constant":
        return pd.Series([draw(_floats("float64"))] * n), None
    labels = LABELS[: draw(st.integers(1, len(LABELS)))]
    drawn = values(st.sampled_from(labels))
    if kind == "ordered":
        if draw(st.booleans()):
            return pd.Series(pd.Categorical(drawn, labels, ordered=True)), None
        return pd.Series(drawn), labels
    dtype = draw(st.sampled_from(TEXTS))
    if dtype in ("python", "pyarrow"):
        dtype = pd.StringDtype(dtype, na_value=np.nan)
    if dtype == "category":
        return pd.Series(pd.Categorical(drawn, labels)), None
    return pd.Series(drawn, dtype=dtype), None


@st.composite
def tables(draw, constrained=True, gaps=True):
    n = draw(st.integers(1, 8))
    parts, kinds = {}, {}
    for j in range(draw(st.integers(1, 5))):
        name = f"c{j}"
        parts[name], kind = draw(columns(n))
        if kind is not None:
            kinds[name] = kind
    frame = pd.DataFrame(parts)
    schema = Schema.infer(frame, kinds=kinds)
    links = []
    if draw(st.booleans()):
        frame, schema, links = draw(_with_follower(frame, schema, kinds))
    if gaps and n > 1:
        frame, schema = draw(_with_gaps(frame, schema, set(sum(links, ()))))
    if constrained:
        schema = draw(_constrained(schema, frame, links))
    if draw(st.booleans()) and len(frame.columns) > 1:
        frame = frame[draw(st.permutations(list(frame.columns)))]
    if draw(st.integers(0, 3)) == 0:
        return Table(_to_polars(frame, schema), schema)
    frame.index = draw(
        st.sampled_from([pd.RangeIndex(n), pd.Index([f"row {i}" for i in range(n)]), pd.Index([7] * n, name="id")])
    )
    return Table(frame, schema)


def _to_polars(frame, schema):
    """Plain polars dtypes with the same values; gaps become nulls."""
    plain = {}
    for name in frame.columns:
        values = [None if pd.isna(value) else value for value in frame[name].tolist()]
        dtype = {"float32": pl.Float32, "int32": pl.Int32, "uint8": pl.UInt8, "float64": pl.Float64}.get(
            str(frame[name].dtype)
        )
        dtype = pl.String if frame[name].dtype in ("str", "string") else dtype
        dtype = pl.String if isinstance(getattr(schema[name], "categories", (0,))[0], str) and dtype is None else dtype
        dtype = pl.Boolean if schema[name].kind == "yes or no" else dtype
        if isinstance(frame[name].dtype, pd.CategoricalDtype):
            dtype = pl.Enum(list(frame[name].dtype.categories))
        plain[name] = pl.Series(name, values, dtype=dtype)
    return pl.DataFrame(plain)


@st.composite
def _with_follower(draw, frame, schema, kinds):
    """A column that another one determines, linked to it."""
    leader = draw(st.sampled_from(list(frame.columns)))
    seen = list(dict.fromkeys(frame[leader].tolist()))
    if draw(st.booleans()):
        table = {value: draw(st.integers(0, 9)) for value in seen}
        follower = pd.Series([table[value] for value in frame[leader].tolist()], dtype="int64")
    else:
        table = {value: draw(st.sampled_from(LABELS[:3])) for value in seen}
        follower = pd.Series([table[value] for value in frame[leader].tolist()])
    frame = frame.assign(follower=follower)
    return frame, Schema.infer(frame, kinds=kinds).link(leader, "follower"), [(leader, "follower")]


@st.composite
def _with_gaps(draw, frame, schema, linked):
    """Some columns with missing values, and a schema that reads them; each column keeps at least one value."""
    frame = frame.copy()
    for name in frame.columns:
        can = str(frame[name].dtype) in ("float64", "float32", "Int64", "str", "category", "object")
        if not can or name in linked or draw(st.integers(0, 3)) != 0:
            continue
        holes = draw(st.lists(st.booleans(), min_size=len(frame), max_size=len(frame)))
        if isinstance(schema[name], Continuous) and all(holes):
            continue
        if any(holes):
            frame.loc[holes, name] = pd.NA if str(frame[name].dtype) == "Int64" else np.nan
        schema = schema.allow_missing(name)
    return frame, schema


@st.composite
def _constrained(draw, schema, frame, links):
    followers = {name for group in links for name in group[1:]}
    numeric_led = {name for group in links if isinstance(schema[group[0]], Continuous) for name in group[1:]}
    for name in schema.names:
        feature = schema[name]
        if name in numeric_led:
            continue
        action = draw(st.sampled_from(["none", "none", "freeze", "up", "down", "range", "step", "cost", "codes"]))
        if action == "freeze":
            schema = schema.freeze(name)
        elif action == "cost" and name not in followers:
            schema = schema.cost(name, per_change=draw(st.floats(0, 5)))
        elif action in ("up", "down") and (isinstance(feature, Continuous) or feature.ordered):
            schema = schema.only_up(name) if action == "up" else schema.only_down(name)
        elif isinstance(feature, Continuous) and action == "codes":
            schema = draw(_with_codes(schema, name, {value for value in cells(frame, name) if value is not None}))
        elif isinstance(feature, Continuous) and action == "range":
            low, high = sorted((draw(st.integers(-100, 100)), draw(st.integers(-100, 100))))
            unsigned = str(frame[name].dtype) == "uint8"
            schema = schema.between(name, max(low, 0) if unsigned else low, max(high, 0) if unsigned else high)
        elif isinstance(feature, Continuous) and action == "step":
            whole = feature.step is not None
            schema = schema.step(name, draw(st.sampled_from([1, 2, 5] if whole else [0.1, 0.25, 1, 3])))
        elif isinstance(feature, Categorical) and action == "range":
            chosen = draw(st.lists(st.sampled_from(feature.categories), min_size=1, unique=True))
            schema = schema.allow(name, chosen)
        elif isinstance(feature, Categorical) and action == "step" and len(feature.categories) > 1:
            schema = schema.forbid(name, feature.categories[0], feature.categories[1])
    if draw(st.integers(0, 3)) == 0:
        schema = schema.at_most(draw(st.integers(1, 3)))
    return schema


@st.composite
def _with_codes(draw, schema, name, values):
    """Some of the values of a number as codes, of which an answer may leave some; at least one stays a number."""
    if len(values) < 2:
        return schema
    chosen = draw(st.lists(st.sampled_from(sorted(values)), min_size=1, max_size=min(3, len(values) - 1), unique=True))
    schema = schema.codes(name, *chosen)
    return schema.leave(name, draw(st.sampled_from(chosen))) if draw(st.booleans()) else schema


def codes(draw, shape):
    """Decoder output of any size, up to a million either way."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = draw(st.sampled_from([0.3, 3.0, 1e6]))
    raw = rng.normal(size=shape) * scale
    raw[rng.random(shape) < 0.1] = 1e6
    raw[rng.random(shape) < 0.1] = -1e6
    return raw.astype(np.float32)


def cells(frame, name):
    """A column as plain Python values, None where missing."""
    values = frame[name].to_list() if isinstance(frame, pl.DataFrame) else frame[name].tolist()
    return [None if value is None or value is pd.NA or value != value else value for value in values]


def complaints(schema, training, factuals, answers):
    """What is wrong with the answers, by the schema's words alone. An empty list is what everybody wants."""
    found = []
    n = len(cells(factuals, schema.names[0]))
    changed = {name: [False] * n for name in schema.names}
    for name in schema.names:
        feature = schema[name]
        seen = [value for value in cells(training, name) if value is not None]
        for i, (before, after) in enumerate(zip(cells(factuals, name), cells(answers, name), strict=True)):
            if before == after and type(before) is type(after):
                continue
            changed[name][i] = True
            problem = _number_problem(feature, seen, before, after) if isinstance(feature, Continuous) else None
            problem = _category_problem(feature, before, after) if isinstance(feature, Categorical) else problem
            if feature.change == "none":
                problem = "is frozen"
            if problem:
                found.append(f"row {i}, {name}: {before!r} -> {after!r} {problem}")
    units = {name: name for name in schema.names}
    for leader, *others in schema.links:
        pairs = {
            before: tuple(rest) for before, *rest in zip(*(cells(training, n) for n in (leader, *others)), strict=True)
        }
        for name in others:
            units[name] = leader
        for i in range(n):
            moved = changed[leader][i]
            now = tuple(cells(answers, name)[i] for name in others)
            if not moved and any(changed[name][i] for name in others):
                found.append(f"row {i}: {others} changed without {leader}")
            known = cells(answers, leader)[i]
            if moved and isinstance(schema[leader], Categorical) and pairs.get(known) != now:
                found.append(
                    f"row {i}: {leader} = {known!r} with {others} = {now!r}, training rows say {pairs.get(known)!r}"
                )
    if schema.max_changes is not None:
        for i in range(n):
            count = len({units[name] for name in schema.names if changed[name][i]})
            if count > schema.max_changes:
                found.append(f"row {i}: {count} changes, at most {schema.max_changes}")
    return found


def _number_problem(feature, seen, before, after):
    if after is None:
        return "invents a gap"
    if after in feature.codes:
        return "enters a code"
    if before in feature.codes and before not in feature.left_codes:
        return "leaves a code"
    numbers = [value for value in seen if value not in feature.codes]
    low = min(numbers) if feature.low is None else feature.low
    high = max(numbers) if feature.high is None else feature.high
    if before is not None and before not in feature.codes:
        low, high = min(low, before), max(high, before)
        if (feature.change == "up" and after < before) or (feature.change == "down" and after > before):
            return "goes the wrong way"
    near = 1e-6 * max(1.0, abs(after)) if feature.step is not None else 0.0  # a float32 column holds 0.3 only nearly
    if not low - near <= after <= high + near:
        return f"is outside {low} to {high}"
    if feature.step is not None:
        steps = after / feature.step
        if not math.isclose(steps, round(steps), rel_tol=1e-6, abs_tol=1e-6):
            return f"is no multiple of {feature.step}"
    return None


def _category_problem(feature, before, after):
    if after is None:
        return "invents a gap"
    if after not in feature.categories:
        return "is no category"
    if feature.allowed is not None and after not in feature.allowed:
        return "is not allowed"
    if (before, after) in feature.forbidden:
        return "is forbidden"
    if before is not None:
        rise = feature.categories.index(after) - feature.categories.index(before)
        if (feature.change == "up" and rise < 0) or (feature.change == "down" and rise > 0):
            return "goes the wrong way"
    return None
