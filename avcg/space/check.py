"""The last check of answers: whether a constraint is broken, on exact values, independently of how they were made."""

from __future__ import annotations

import numpy as np

from avcg.space.constraints import FeasibleSet
from avcg.space.encoding import Encoding, Flags, Values
from avcg.space.grids import multiples
from avcg.space.links import follow
from avcg.space.nearest import number_limits
from avcg.space.project import changes, enterable, members, rule_bounds


def violations(encoding: Encoding, feasible: FeasibleSet, answers: Values, factuals: Values) -> Flags:
    """(N, features) where an answer breaks a constraint, checked on exact values, independently of how it was made."""
    changed = changes(encoding, answers, factuals)
    broken, columns = np.zeros_like(changed), np.asarray(changed.any(axis=0))
    followed = [link for link in feasible.links if columns[[link.leader, *link.followers]].any()]
    if followed or columns[encoding.categorical_columns].any():
        x = encoding.encode(factuals)
    if columns[encoding.numeric_columns].any():
        broken[:, encoding.numeric_columns] = _broken_numbers(encoding, feasible, answers, factuals)
    if columns[encoding.categorical_columns].any():
        entries = enterable(encoding, feasible, x)
        broken[:, encoding.categorical_columns] = ~entries[
            np.arange(len(answers))[:, None], encoding.first_slots + answers.choices
        ]
    broken &= changed
    for link in followed:
        x_cf, expected = encoding.encode(answers), x.copy()
        expected[:, encoding.slices[link.leader]] = x_cf[:, encoding.slices[link.leader]]
        follow(encoding, link, expected, x)
        for position in link.followers:
            span = encoding.slices[position]
            off = np.abs(x_cf[:, span] - expected[:, span])
            broken[:, position] |= (off > 1e-6 * (1 + np.abs(expected[:, span]))).any(axis=1)
    if feasible.rules is not None and columns[feasible.rules.bound].any():
        rules = feasible.rules
        broken[:, rules.computed] = False  # judged by their rules, not by the limits of what moves by itself
        bounds = rule_bounds(encoding, feasible, rules, encoding.encode(factuals), factuals)
        broken |= rules.violations(answers, factuals, bounds)
    if feasible.max_changes is not None:
        units = changed.astype(np.float32) @ members(feasible)
        broken |= changed & ((units > 0).sum(axis=1) > feasible.max_changes)[:, None]
    return broken


def _broken_numbers(encoding: Encoding, feasible: FeasibleSet, answers: Values, factuals: Values) -> Flags:
    """(N, n) numbers that are not allowed, if they changed."""
    low, high = number_limits(feasible, factuals.numbers)
    value = answers.numbers
    never = feasible.limits.directions.frozen | _broken_support(encoding, answers, factuals)
    broken = np.isnan(value) | (value < low) | (value > high) | never
    for step, decimals, at in encoding.grids:  # in steps: a float32 column holds 0.3 only approximately
        count = value[:, at] / step
        first, last = multiples(low[:, at], high[:, at], step, decimals)
        nearest = np.rint(count)
        off = np.abs(count - nearest) > 1e-6 * np.maximum(1.0, np.abs(count))
        broken[:, at] = np.isnan(count) | off | (nearest < first) | (nearest > last) | never[:, at]
    return broken


def _broken_support(encoding: Encoding, answers: Values, factuals: Values) -> Flags:
    """(N, n) numbers that are a special code, come from one that may not be left, or lie in a gap, if they changed."""
    broken = np.zeros(answers.numbers.shape, bool)
    for j in encoding.pieces:
        feature, value = encoding.numeric[j], answers.numbers[:, j]
        kept = [code for code in feature.codes if code not in feature.left_codes]
        broken[:, j] = np.isin(value, feature.codes) | np.isin(factuals.numbers[:, j], kept)
        for i, low, high in encoding.gaps.tolist():
            if i == j and feature.observed:
                slack = 1e-6 * (high - low + max(abs(low), abs(high)))  # a float32 column rounds the ends
                broken[:, j] |= (value > low + slack) & (value < high - slack)
    return broken
