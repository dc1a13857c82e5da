"""The ruler for small ensembles of trees: the provably nearest answer that XGBoost classifiers accept.

What a tree decides changes at its thresholds alone, so a number is moved just across one of them or not at all, and the
values of each column are few. Trees are conditions on these values (Mišić, 2020, "Optimization of tree ensembles").
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from avcg.bench.program import INFEASIBLE, Program, add_values, listed_values
from avcg.bench.ruler import Nearest
from avcg.errors import SettingError
from avcg.space.codes import TableCodes
from avcg.space.encoding import Codes, Encoding, Flags, Floats, Positions
from avcg.space.grids import multiple
from avcg.space.nearest import missing_numbers
from avcg.space.project import charges, project
from avcg.space.reach import number_ends, unit_columns

_INSET = 1e-5  # of a number without a step from a threshold, in codes: more than a float32 code is rounded


@dataclass(frozen=True, eq=False)
class Tree:
    """A tree of an ensemble, as arrays over its nodes.

    Attributes:
        left: Position of the left child, -1 for leaves.
        right: Position of the right child, -1 for leaves.
        feature: Position of the column that is read.
        value: Threshold below which the left child is next; for leaves what they add to the log-odds.
        missing_left: Whether the left child is next where the value is missing.
        sets: For nodes that read a category, the categories for which the right child is next.
    """

    left: Positions
    right: Positions
    feature: Positions
    value: Floats
    missing_left: Flags
    sets: dict[int, Positions]

    def goes_left(self, node: int, features: Floats) -> Flags:
        """(N,) whether the left child of a node is next, for (N, F) rows."""
        column = features[:, self.feature[node]]
        if node in self.sets:
            left = ~np.isin(column, self.sets[node])
        else:
            left = column.astype(np.float32) < np.float32(self.value[node])
        return np.where(np.isnan(column), self.missing_left[node], left)

    def added(self, features: Floats, node: int = 0) -> Floats:
        """(N,) what the leaves that (N, F) rows end in add to the log-odds, from a node on."""
        if self.left[node] < 0:
            return np.full(len(features), self.value[node])
        left, right = (self.added(features, int(child[node])) for child in (self.left, self.right))
        return np.where(self.goes_left(node, features), left, right)

    def leaves(self, node: int) -> list[int]:
        """The leaves below a node."""
        if self.left[node] < 0:
            return [node]
        return self.leaves(int(self.left[node])) + self.leaves(int(self.right[node]))


@dataclass(frozen=True, eq=False)
class Ensemble:
    """The log-odds of the second of two classes: the sum of what the leaves of all trees add, and of a constant."""

    trees: tuple[Tree, ...]
    constant: float

    @classmethod
    def of(cls, classifier: Any, encoding: Encoding) -> Ensemble:
        """The trees of an XGBoost classifier of two classes, fitted to rows as `avcg.bench.models.as_categories` makes.

        Raises:
            SettingError: If it has more than two classes, or reads other columns.
        """
        booster = classifier.get_booster()
        model = json.loads(booster.save_raw("json"))["learner"]
        if len(classifier.classes_) != 2 or booster.feature_names != list(encoding.schema.names):
            raise SettingError(
                f"The ruler needs a classifier of two classes that reads the columns {list(encoding.schema.names)}. Got"
                f" {len(classifier.classes_)} classes and the columns {booster.feature_names}."
            )
        base = float(model["learner_model_param"]["base_score"].strip("[]"))
        read = tuple(_tree(tree) for tree in model["gradient_booster"]["model"]["trees"])
        return cls(read, float(np.log(base / (1.0 - base))))

    def log_odds(self, features: Floats) -> Floats:
        """(N,) log-odds of the second class, for (N, F) rows."""
        total = np.full(len(features), self.constant)
        for tree in self.trees:
            total += tree.added(features)
        return total


def _tree(tree: dict[str, Any]) -> Tree:
    parts = zip(tree["categories_nodes"], tree["categories_segments"], tree["categories_sizes"], strict=True)
    categories = np.array(tree["categories"], np.intp)
    return Tree(
        np.array(tree["left_children"], np.intp), np.array(tree["right_children"], np.intp),
        np.array(tree["split_indices"], np.intp), np.array(tree["split_conditions"], np.float64),
        np.array(tree["default_left"], bool), {node: categories[start : start + n] for node, start, n in parts},
    )  # fmt: skip


def tree_features(encoding: Encoding, x: Codes) -> Floats:
    """(N, features) rows as XGBoost reads them: numbers, positions of categories, NaN where missing."""
    values = encoding.decode(x)
    features = np.empty((len(x), len(encoding.schema)))
    features[:, encoding.numeric_columns] = values.numbers
    features[:, encoding.categorical_columns] = values.choices
    features[encoding.missing(values)] = np.nan
    return features


@dataclass(frozen=True, eq=False)
class TreeModels:
    """S ensembles of trees over the same columns.

    Attributes:
        ensembles: The ensembles.
        encoding: How rows are encoded.
    """

    ensembles: Sequence[Ensemble]
    encoding: Encoding

    def log_odds(self, x: Codes, target: Positions) -> Floats:
        """(S, N) log-odds of the target, of (N, D) codes."""
        features = tree_features(self.encoding, x)
        return np.stack([(2.0 * target - 1.0) * ensemble.log_odds(features) for ensemble in self.ensembles])


def nearest_in_trees(
    space: TableCodes,
    x: Codes,
    target: Positions,
    models: TreeModels,
    *,
    margin: float | Floats = 0.0,
    seconds: float = 60.0,
) -> Nearest:
    """The nearest feasible points that every one of a few small ensembles accepts by a margin.

    A number without a step ends 1e-5 standard deviations beyond a threshold, so a distance is at most that much too
    long for each such number.

    Args:
        space: What each row may change, and what it costs.
        x: (B, D) the factuals.
        target: (B,) positions of the target classes.
        models: S ensembles. Three of 30 trees with 8 leaves each take a tenth of a second for a row.
        margin: Log-odds of the target that each ensemble must reach; one number, or an array that broadcasts to (S, B).
        seconds: Time limit for a row; where it runs out, ``bound`` is below ``distance``.

    Raises:
        SettingError: If a number that other columns follow may take too many values to try each.
    """
    margins = np.broadcast_to(np.asarray(margin, np.float64), (len(models.ensembles), len(x)))
    answers, distance, bound = x.copy(), np.full(len(x), np.nan), np.zeros(len(x))
    for row in range(len(x)):
        one = np.array([row])
        program = _program(space.take(one), x[one], int(target[row]), models.ensembles, margins[:, row])
        result = program.solve(seconds)
        if result.x is not None:
            answers[row] = x[row] + program.codes(result.x)
            distance[row] = space.take(one).distance(answers[one], x[one])[0]
            bound[row] = min(result.mip_dual_bound, distance[row])
        elif result.status == INFEASIBLE:
            distance[row] = bound[row] = np.inf
    return Nearest(answers, distance, bound)


def _program(space: TableCodes, x: Codes, target: int, models: Sequence[Ensemble], margins: Floats) -> Program:
    """The program of one row (1, D)."""
    encoding, feasible = space.encoding, space.feasible
    program, options = Program(encoding.width), {}
    listed, leaders = listed_values(space, x)
    for leader, columns in unit_columns(encoding, feasible).items():
        values = np.repeat(x, len(listed), axis=0)
        values[:, columns] = listed[:, columns]
        if leader not in leaders:
            values = _beside_thresholds(space, x, leader, models)
        values = values[(values != x).any(axis=1)]
        costs = charges(encoding, values, x[0]).sum(axis=1, dtype=np.float64)
        added = add_values(program, x[0, columns], values[:, columns], costs, columns)
        options[leader] = added, tree_features(encoding, values)
    if feasible.max_changes is not None:
        program.rows.append((dict.fromkeys(program.counts, 1.0), 0.0, float(feasible.max_changes[0])))
    own, sign = tree_features(encoding, x), 2.0 * target - 1.0
    for model, margin in zip(models, margins, strict=True):
        total: dict[int, float] = {}
        for tree in model.trees:
            leaves = {leaf: program.variable(0.0, (0.0, 1.0), ((), ()), len(program.cost)) for leaf in tree.leaves(0)}
            program.rows.append((dict.fromkeys(leaves.values(), 1.0), 1.0, 1.0))
            total |= {leaves[leaf]: sign * float(tree.value[leaf]) for leaf in leaves}
            for node in np.flatnonzero(tree.left >= 0).tolist():
                _decide(program, tree, node, leaves, own, *options[int(feasible.unit[tree.feature[node]])])
        program.rows.append((total, float(margin) - sign * model.constant, np.inf))
    return program


def _decide(
    program: Program, tree: Tree, node: int, leaves: dict[int, int], own: Floats, added: list[int], features: Floats
) -> None:
    """Add that a leaf below a node is reached only if the value that is taken leads to its side."""
    stays = float(tree.goes_left(node, own)[0])
    turns = dict(zip(added, (tree.goes_left(node, features) - stays).tolist(), strict=True))
    for child, side in ((tree.left[node], 1.0), (tree.right[node], -1.0)):
        below = {leaves[leaf]: 1.0 for leaf in tree.leaves(int(child))}
        away = {position: -side * turn for position, turn in turns.items() if turn}
        program.rows.append((below | away, -np.inf, stays if side > 0 else 1.0 - stays))


def _beside_thresholds(space: TableCodes, x: Codes, leader: int, models: Sequence[Ensemble]) -> Codes:
    """(K, D) the row (1, D) with one number moved: between any two thresholds, to the allowed value nearest to it."""
    encoding, j = space.encoding, space.encoding.kind_index[leader]
    low, high = (ends[0, j] for ends in number_ends(encoding, space.feasible, x))
    missing = bool(missing_numbers(encoding, x)[0, j])
    current = np.nan if missing else float(encoding.unscaled(x[:, encoding.number_at])[0, j])
    thresholds = np.unique(_thresholds(models, leader))
    if np.isnan(low) or not len(thresholds):
        return x[:0]
    step, inset = float(encoding.steps[j]), _INSET * float(encoding.scale[j])
    beside = np.concatenate([thresholds - inset, thresholds + inset])
    if step > 0:
        counts = np.floor(thresholds / step) + np.array([[-1.0], [0.0], [1.0]])
        beside = multiple(counts.ravel(), step, encoding.decimals[j])
    numbers = np.array([low, high, *beside[(beside > low) & (beside < high)]])
    numbers = numbers[np.argsort(np.abs(numbers - current), kind="stable")]
    between = np.searchsorted(thresholds.astype(np.float32), np.append(numbers, current).astype(np.float32), "right")
    places, nearest = np.unique(between[:-1], return_index=True)
    chosen = numbers[nearest[missing | (places != between[-1])]]
    wanted = np.repeat(x, len(chosen), axis=0)
    wanted[:, encoding.number_at[j]] = (chosen - encoding.center[j]) / encoding.scale[j]
    if missing:
        wanted[:, encoding.missing_at[j]] = 0.0
    return project(encoding, replace(space.feasible, max_changes=None), wanted[:, None], x)[:, 0]


def _thresholds(models: Sequence[Ensemble], feature: int) -> Floats:
    """The thresholds that trees compare a column with."""
    parts = [tree.value[(tree.feature == feature) & (tree.left >= 0)] for model in models for tree in model.trees]
    return np.concatenate(parts)
