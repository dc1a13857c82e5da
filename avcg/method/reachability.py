"""Proofs that a decision cannot be reached: not a failed search, but no point for any search to find.

numpy alone. Both proofs err on one side: a row without a proof may still be out of reach.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from avcg.method.query import Query
from avcg.models.decision import DecisionRule, of_target
from avcg.space.encoding import Codes, Flags, Floats

# From (N, *event) codes to the (N, C) probabilities of the deployed model.
Probabilities = Callable[[Codes], NDArray[np.floating]]
_EPS = float(np.finfo(np.float32).eps)


def proven_unreachable(
    query: Query,
    probabilities: Probabilities,
    rule: DecisionRule,
    *,
    linear: tuple[Floats, Floats] | None = None,
    most_points: int = 4096,
    at_once: int = 2**16,
    tolerance: float = 1e-5,
) -> Flags:
    """Rows for which it is proven that no feasible point makes the deployed model decide for the target.

    A row is proven to be out of reach in either of two ways. If its feasible set has few points, the model is asked
    about each of them. If the model's logits are linear in the codes, the greatest log-odds of the target over each
    other class are known in closed form. With two classes the second proof finds every such row, up to rounding and to
    columns that follow a number; with more it finds those for which one other class always stays ahead.

    Args:
        query: B encoded rows with their targets, constraints and ``min_prob``.
        probabilities: Function from (N, *event) codes to the (N, C) probabilities of the deployed model.
        rule: How probabilities become a decision.
        linear: (C, D) weights and (C,) biases of the deployed model's logits, if it is a single linear model; None: it
            is not known to be one. `avcg.hypotheses.linear.linear_logits` finds them.
        most_points: Largest number of points of a feasible set that are tried.
        at_once: Number of points about which the model is asked at once, which bounds memory.
        tolerance: Difference of probabilities that is taken for rounding. A row with a point within it of being
            accepted is not proven to be out of reach.

    Returns:
        (B,) whether it is proven.
    """
    proven = np.zeros(len(query.x), bool)
    if linear is not None:
        step = max(1, at_once // 64)
        parts = np.split(np.arange(len(query.x)), range(step, len(query.x), step))
        proven = np.concatenate([_out_of_linear_reach(query.take(rows), rule, *linear) for rows in parts])
    rows = np.flatnonzero(~proven)
    if len(rows):
        proven[rows] = _no_point_is_valid(query.take(rows), probabilities, rule, most_points, at_once, tolerance)
    return proven


def _no_point_is_valid(
    query: Query, probabilities: Probabilities, rule: DecisionRule, most: int, at_once: int, tolerance: float
) -> Flags:
    """(B,) whether the feasible set of a row is small, and the model decides for the target at none of its points."""
    proven = np.zeros(len(query.x), bool)
    for owner, points in query.space.small_sets(query.x, most, at_once):
        judged, target = probabilities(points), query.target[owner]
        valid = rule.lead(judged, target) >= -tolerance
        if query.min_prob is not None:
            valid &= of_target(judged, target) >= query.min_prob - tolerance
        rows, first = np.unique(owner, return_index=True)
        proven[rows] = ~np.logical_or.reduceat(valid, first)
    return proven


def _out_of_linear_reach(query: Query, rule: DecisionRule, weights: Floats, biases: Floats) -> Flags:
    """(B,) whether the greatest log-odds of the target over some other class are below what the decision needs."""
    proven = np.zeros(len(query.x), bool)
    for target in np.unique(query.target):
        rows = np.flatnonzero(query.target == target)
        part, needed = query.take(rows), float(rule.log_odds(np.array([target]))[0])
        if query.min_prob is not None:
            needed = max(needed, math.log(query.min_prob / (1.0 - query.min_prob)))
        share = 1.0 / (1.0 + math.exp(-abs(needed)))
        # What float32 probabilities and the float32 sums of the logits cannot tell apart, in log-odds.
        size = (np.abs(biases) + (1.0 + np.abs(part.x)) @ np.abs(weights).T).max(axis=1)
        blur = 4.0 * _EPS * (1.0 / (share * (1.0 - share)) + size)
        for other in range(len(biases)):
            if other != target:
                best = part.space.largest_scores(part.x, weights[target] - weights[other])
                proven[rows] |= best + biases[target] - biases[other] + blur < needed
    return proven
