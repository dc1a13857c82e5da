"""Fitted tree ensembles of five libraries as one set of flat arrays.

`read_trees` understands XGBoost, LightGBM, CatBoost with numeric splits, and the trees, forests and gradient boosting
of scikit-learn. `as_numbers` gives the numbers on which their splits decide. Libraries are recognised by name, so that
none of them needs to be installed. All other models return None.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Link = Literal["logistic", "softmax", "mean"]

_SKLEARN_FORESTS = ("RandomForestClassifier", "ExtraTreesClassifier")
_SKLEARN_TREES = ("DecisionTreeClassifier", "ExtraTreeClassifier")
_LIGHTGBM_ZERO = float(np.float32(1e-35))  # numbers up to this are 0 for LightGBM
# Wrappers that return the probabilities of a model inside, by the attribute that holds it.
_WRAPPERS = {
    "TunedThresholdClassifierCV": "estimator_",
    "FixedThresholdClassifier": "estimator_",
    "GridSearchCV": "best_estimator_",
    "RandomizedSearchCV": "best_estimator_",
}


@dataclass(frozen=True, eq=False)
class Tree:
    """The nodes of one tree, or of several one after the other; children are positions of nodes, -1 for a leaf.

    A row goes left if its value of the feature is missing and ``missing_left`` holds, or if it is less than ``cut``. At
    a node with a set of categories it goes left or right with the members of the set; see `Trees`.

    Attributes:
        feature: (M,) the feature that a node splits.
        cut: (M,) float64 cuts; every comparison of a library is written as "less than" on float64.
        left: (M,) left children.
        right: (M,) right children.
        missing_left: (M,) whether missing values go left.
        value: (M, V) values of the leaves.
        sets: The categories of nodes that split by a set, by node.
    """

    feature: NDArray[np.intp]
    cut: NDArray[np.float64]
    left: NDArray[np.intp]
    right: NDArray[np.intp]
    missing_left: NDArray[np.bool_]
    value: NDArray[np.floating[Any]]
    sets: dict[int, NDArray[np.float64]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Trees:
    """A tree ensemble.

    Attributes:
        nodes: The nodes of all trees.
        roots: (T,) the root of each tree.
        group: (T,) the class whose score a tree adds to; 0 for all trees if each leaf has values of all classes.
        base: (G,) the score of each group before any tree.
        link: How scores become probabilities; ``"mean"`` divides them by the number of trees.
        set_left: Whether members of a set of categories go left.
    """

    nodes: Tree
    roots: NDArray[np.intp]
    group: NDArray[np.intp]
    base: NDArray[np.floating[Any]]
    link: Link
    set_left: bool = True

    @classmethod
    def of(cls, parts: Sequence[Tree], group: Any, base: Any, link: Link, *, set_left: bool = True) -> Trees:
        """An ensemble from single trees, whose children are positions within each tree."""
        sizes = [len(part.feature) for part in parts]
        roots = np.cumsum([0, *sizes[:-1]]).astype(np.intp)
        shift = np.repeat(roots, sizes)

        def joined(name: str) -> NDArray[Any]:
            return np.concatenate([getattr(part, name) for part in parts])

        left, right = joined("left"), joined("right")
        nodes = Tree(
            joined("feature").astype(np.intp),
            joined("cut").astype(np.float64),
            np.where(left < 0, -1, left + shift),
            np.where(right < 0, -1, right + shift),
            joined("missing_left").astype(bool),
            joined("value"),
            {
                int(root) + node: each
                for root, part in zip(roots, parts, strict=True)
                for node, each in part.sets.items()
            },
        )
        return cls(nodes, roots, np.asarray(group, np.intp), np.asarray(base, nodes.value.dtype), link, set_left)


def inner_model(model: Any) -> tuple[Any, Any]:
    """The preprocessing and the last estimator of a fitted model.

    Returns:
        The part of a pipeline before its last step, None if there is none; and the estimator inside any wrappers.
    """
    while type(model).__name__ in _WRAPPERS:
        model = getattr(model, _WRAPPERS[type(model).__name__])
    return (model[:-1], model[-1]) if type(model).__name__ == "Pipeline" and len(model) > 1 else (None, model)


def read_trees(model: Any) -> Trees | None:
    """The trees of a fitted model; None if it is not an ensemble of trees that can be read exactly."""
    kind, library = type(model).__name__, type(model).__module__.partition(".")[0]
    if library == "sklearn":
        if kind in _SKLEARN_FORESTS + _SKLEARN_TREES:
            return _forest(model)
        if kind == "GradientBoostingClassifier":
            return _gradient_boosting(model)
        return _histogram_boosting(model) if kind == "HistGradientBoostingClassifier" else None
    if kind == "XGBClassifier":
        return _xgboost(model)
    if hasattr(model, "booster_"):
        return _lightgbm(model.booster_.model_to_string())
    return _catboost(model) if kind == "CatBoostClassifier" else None


def as_numbers(model: Any, X: Any) -> NDArray[np.float64]:
    """(N, F) the numbers that the splits of a model compare, from the rows that it reads."""
    if type(model).__name__ == "HistGradientBoostingClassifier":
        return np.asarray(model._preprocess_X(X, reset=False), np.float64)
    booster = getattr(model, "booster_", None)
    zero = 0.0 if booster is None else _LIGHTGBM_ZERO
    if not isinstance(X, pd.DataFrame):
        numbers = np.asarray(X.toarray() if hasattr(X, "toarray") else X, np.float64)
        return np.where(np.abs(numbers) <= zero, 0.0, numbers)
    known, columns, i = getattr(booster, "pandas_categorical", None), [], 0
    for _, column in X.items():
        if isinstance(column.dtype, pd.CategoricalDtype):
            categories = column.dtype.categories if known is None else known[i]
            positions = np.asarray(column.cat.set_categories(categories).cat.codes, np.float64)
            columns.append(np.where(positions < 0, np.nan, positions))
            i += 1
        else:
            columns.append(column.to_numpy(np.float64, na_value=np.nan))
    numbers = np.stack(columns, axis=1)
    return np.where(np.abs(numbers) <= zero, 0.0, numbers)


def _single(cuts: NDArray[Any]) -> NDArray[np.float64]:
    """The least float64 that is at least each cut once it is rounded to float32."""
    at = cuts.astype(np.float32)
    at = np.where(at.astype(np.float64) < cuts, np.nextafter(at, np.float32(np.inf)), at)
    middle = (np.nextafter(at, np.float32(-np.inf)).astype(np.float64) + at) / 2
    return np.where(middle.astype(np.float32) >= at, middle, np.nextafter(middle, np.inf))


def _next(thresholds: Any) -> NDArray[np.float64]:
    """Cuts of splits that send numbers up to the threshold left, the threshold included."""
    return np.nextafter(np.asarray(thresholds, np.float64), np.inf)


def _sklearn_tree(tree: Any, value: NDArray[Any]) -> Tree:
    cut = _single(_next(tree.threshold))
    missing = np.asarray(tree.missing_go_to_left).astype(bool)
    return Tree(np.maximum(tree.feature, 0), cut, tree.children_left, tree.children_right, missing, value)


def _forest(model: Any) -> Trees | None:
    if model.n_outputs_ != 1:
        return None
    members = getattr(model, "estimators_", [model])
    parts = [_sklearn_tree(member.tree_, member.tree_.value[:, 0, :]) for member in members]
    return Trees.of(parts, np.zeros(len(parts)), [0.0], "mean")


def _gradient_boosting(model: Any) -> Trees | None:
    n_classes, members = len(model.classes_), model.estimators_
    if model.loss != "log_loss" or getattr(model.init_, "strategy", "zero") != "prior":
        return None
    smallest = np.finfo(np.float32).eps
    prior = np.clip(model.init_.class_prior_, smallest, 1 - smallest)
    base = [np.log(prior[1] / (1 - prior[1]))] if n_classes == 2 else np.log(prior)
    trees = [tree.tree_ for tree in members.ravel()]
    parts = [_sklearn_tree(tree, model.learning_rate * tree.value[:, 0, :]) for tree in trees]
    return Trees.of(parts, np.tile(np.arange(members.shape[1]), len(members)), base, _score_link(n_classes))


def _histogram_boosting(model: Any) -> Trees:
    parts = []
    for predictor in (each for stage in model._predictors for each in stage):
        nodes, bitsets = predictor.nodes, predictor.raw_left_cat_bitsets
        leaf = nodes["is_leaf"].astype(bool)
        left, right = (np.where(leaf, -1, nodes[side].astype(np.intp)) for side in ("left", "right"))
        by_set = np.flatnonzero(nodes["is_categorical"].astype(bool) & ~leaf).tolist()
        sets = {i: _members(bitsets[int(nodes["bitset_idx"][i])]) for i in by_set}
        cut, missing = _next(nodes["num_threshold"]), nodes["missing_go_to_left"].astype(bool)
        parts.append(Tree(nodes["feature_idx"], cut, left, right, missing, nodes["value"][:, None], sets))
    n_groups = len(model._predictors[0])
    group = np.tile(np.arange(n_groups), len(model._predictors))
    return Trees.of(parts, group, model._baseline_prediction.ravel(), _score_link(len(model.classes_)))


def _members(bits: Any) -> NDArray[np.float64]:
    """The numbers whose bits are set in words of 32 bits."""
    words = np.asarray(bits, np.uint32)
    return np.flatnonzero((words[:, None] >> np.arange(32, dtype=np.uint32)) & np.uint32(1)).astype(np.float64)


def _score_link(n_classes: int) -> Link:
    return "logistic" if n_classes == 2 else "softmax"


def _xgboost(model: Any) -> Trees | None:
    learner = json.loads(bytes(model.get_booster().save_raw("json")))["learner"]
    booster, objective = learner["gradient_booster"], learner["objective"]["name"]
    if booster["name"] != "gbtree" or objective not in ("binary:logistic", "multi:softprob", "multi:softmax"):
        return None
    if not np.isnan(model.missing) or int(learner["learner_model_param"].get("num_target", 1)) > 1:
        return None
    content = booster["model"]
    best = learner["attributes"].get("best_iteration")
    stop = len(content["trees"]) if best is None else content["iteration_indptr"][int(best) + 1]
    score = learner["learner_model_param"]["base_score"].strip("[]")
    base, n_classes = np.array(score.split(","), np.float32), len(model.classes_)
    base = -np.log(1 / base - 1) if n_classes == 2 else np.broadcast_to(base, n_classes)
    parts = [_xgboost_tree(tree) for tree in content["trees"][:stop]]
    return Trees.of(parts, content["tree_info"][:stop], base, _score_link(n_classes), set_left=False)


def _xgboost_tree(tree: dict[str, Any]) -> Tree:
    left = np.array(tree["left_children"], np.intp)
    right = np.where(left < 0, -1, np.array(tree["right_children"], np.intp))
    conditions = np.array(tree["split_conditions"], np.float32)  # which the text gives in few digits
    spans = zip(tree["categories_nodes"], tree["categories_segments"], tree["categories_sizes"], strict=True)
    sets = {node: np.array(tree["categories"][start : start + size], np.float64) for node, start, size in spans}
    cut, missing = _single(conditions.astype(np.float64)), np.array(tree["default_left"], bool)
    return Tree(np.array(tree["split_indices"]), cut, left, right, missing, conditions[:, None], sets)


def _lightgbm(text: str) -> Trees | None:
    head, *blocks = text.partition("end of trees")[0].split("\nTree=")
    facts = dict(line.partition("=")[::2] for line in head.splitlines())
    objective, _, settings = facts.get("objective", "").partition(" ")
    sigmoid = float(settings.partition("sigmoid:")[2] or 1)
    if objective not in ("binary", "multiclass") or "average_output" in head or sigmoid != 1:
        return None
    parts = [_lightgbm_tree(dict(line.partition("=")[::2] for line in block.splitlines())) for block in blocks]
    n_groups = int(facts["num_tree_per_iteration"])
    link: Link = "logistic" if objective == "binary" else "softmax"
    return Trees.of(parts, np.arange(len(parts)) % n_groups, np.zeros(n_groups), link)


def _lightgbm_tree(facts: dict[str, str]) -> Tree:
    def numbers(name: str, dtype: Any = np.intp) -> NDArray[Any]:
        return np.array(facts.get(name, "").split(), np.float64).astype(dtype)

    leaves = numbers("leaf_value", np.float64)
    if facts.get("is_linear") == "1":
        raise NotImplementedError("Leaves with linear models cannot be read.")
    n = len(leaves) - 1  # splits, which come before the leaves
    decision, thresholds = numbers("decision_type"), numbers("threshold", np.float64)
    by_set, missing_type = (decision & 1).astype(bool), (decision >> 2) & 3
    if (missing_type[~by_set] == 1).any():
        raise NotImplementedError("Zeros that are read as missing values cannot be read.")
    # Where training saw no missing value, one is read as 0. Missing categories go right.
    missing = np.where(missing_type == 2, (decision & 2) > 0, thresholds >= 0) & ~by_set
    bounds, words = numbers("cat_boundaries"), numbers("cat_threshold", np.uint32)
    which = thresholds.astype(np.intp, copy=True)
    sets = {i: _members(words[bounds[which[i]] : bounds[which[i] + 1]]) for i in np.flatnonzero(by_set).tolist()}
    children = [np.where((side := numbers(name)) < 0, n + ~side, side)[:n] for name in ("left_child", "right_child")]
    padding = np.full(n + 1, -1)
    left, right = (np.concatenate([each, padding]) for each in children)
    splits = [
        np.concatenate([each[:n], np.zeros(n + 1)]) for each in (numbers("split_feature"), _next(thresholds), missing)
    ]
    return Tree(splits[0], splits[1], left, right, splits[2], np.concatenate([np.zeros(n), leaves])[:, None], sets)


def _catboost(model: Any) -> Trees | None:
    if model.get_all_params().get("loss_function") not in ("Logloss", "MultiClass"):
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        model.save_model(str(path), format="json")
        content = json.loads(path.read_text())
    scale, bias = content["scale_and_bias"]
    trees, features = content.get("oblivious_trees"), content["features_info"].get("float_features", [])
    if trees is None or scale != 1 or any(s["split_type"] != "FloatFeature" for t in trees for s in t["splits"] or ()):
        return None
    at = np.array([each["flat_feature_index"] for each in features], np.intp)
    missing_right = np.array([each["nan_value_treatment"] == "AsTrue" for each in features])
    n_values = max(len(np.ravel(bias)), 1)
    parts = [_oblivious_tree(tree, at, missing_right, n_values) for tree in trees]
    # The bias is a tree of one leaf, because every leaf has the values of all classes.
    alone = np.array([-1], np.intp)
    start = Tree(alone + 1, np.zeros(1), alone, alone, np.zeros(1, bool), np.reshape(bias, (1, -1)).astype(np.float64))
    return Trees.of([*parts, start], np.zeros(len(parts) + 1), [0.0], _score_link(len(model.classes_)))


def _oblivious_tree(tree: Any, at: NDArray[np.intp], missing_right: NDArray[np.bool_], n_values: int) -> Tree:
    """A tree that asks the same question at all nodes of a level, as nodes level by level."""
    splits = tree["splits"] or []
    depth = len(splits)
    level = np.repeat(np.arange(depth), 2 ** np.arange(depth))
    index = np.array([each["float_feature_index"] for each in splits], np.intp)
    border = np.array([each["border"] for each in splits], np.float64)
    n, leaves = len(level), 2**depth
    children = 2 * np.arange(n) + 1
    padding = np.full(leaves, -1)
    order = np.zeros(leaves, np.intp)  # the first question is the lowest bit of a leaf's number
    for bit in range(depth):
        order |= ((np.arange(leaves) >> (depth - 1 - bit)) & 1) << bit
    value = np.zeros((n + leaves, n_values))
    value[n:] = np.reshape(tree["leaf_values"], (leaves, n_values))[order]
    zeros = np.zeros(leaves)
    return Tree(
        np.concatenate([at[index][level], zeros]).astype(np.intp),
        np.concatenate([_single(_next(border))[level], zeros]),
        np.concatenate([children, padding]),
        np.concatenate([children + 1, padding]),
        np.concatenate([~missing_right[index][level], zeros]).astype(bool),
        value,
    )
