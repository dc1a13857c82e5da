"""Tree ensembles on the values of columns: what each split says about a number or category in the user's own units.

A model is compiled by asking its own preprocessing, so that encoders, scalers and imputers need not be understood.
Every feature must depend on one column, and be monotone if that is a number. A number then matters only by the interval
between two cuts in which it lies, and a row only by one interval or category for each column: its bins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avcg.models.trees import Trees
from avcg.schema.features import Continuous
from avcg.space.encoding import Encoding, Flags, Floats, Positions, Values

# From values to the (N, F) features that the splits of a model compare.
Features = Callable[[Values], Floats]

_LEAVES = 64  # leaves that one word of bits holds
_MOST_WORDS = 8  # words of a tree on average; deeper trees are faster walked than looked up
_MOST_BYTES = 2**25  # of the tables of one model
_MOST_ENTRIES = 2**23  # splits times bins of one column, while a table is made
_TRIED = 9  # values of a number by which the features are found that depend on it
_FAR = 1e30  # thresholds beyond separate missing values from all numbers
_LARGEST_STEP = 2**56  # in units of the last place, as far as a cut is searched from its first guess


class NotCompilableError(Exception):
    """A model cannot be compiled exactly. The model itself is asked instead."""


@dataclass(frozen=True, eq=False)
class CompiledTrees:
    """An ensemble whose splits are told by the bins of columns.

    Attributes:
        trees: The ensemble.
        cuts: By column of the schema, the sorted cuts of a number; None for a category.
        bins: (J,) number of bins of each column. The last one is for missing values.
        nodes: By column, the nodes that split it.
        position: (M,) for splits of numbers, the last bin that goes left.
        missing_left: (M,) for splits of numbers, whether a missing value goes left.
        category_left: By column of categories, (nodes of the column, bins) whether a category goes left.
        walks: The function of each tree from (N, F) float32 features to leaves, for trees too deep for tables.
        features: For such trees by column, the features that depend on it and (bins, features) their values.
    """

    trees: Trees
    cuts: tuple[Floats | None, ...]
    bins: Positions
    nodes: tuple[Positions, ...]
    position: Positions
    missing_left: Flags
    category_left: dict[int, Flags]
    walks: tuple[Callable[[NDArray[np.float32]], Positions], ...] = ()
    features: tuple[tuple[Positions, NDArray[np.float32]], ...] = ()

    def goes_left(self, column: int) -> Flags:
        """(nodes of the column, bins) whether a value goes left."""
        if column in self.category_left:
            return self.category_left[column]
        nodes = self.nodes[column]
        left = np.arange(self.bins[column]) <= self.position[nodes, None]
        left[:, -1] = self.missing_left[nodes]
        return left

    @cached_property
    def leaves(self) -> tuple[Positions, Positions]:
        """(M,) the first leaf below each node, counted from the left of its tree, and (M,) the number of them."""
        left, right = self.trees.nodes.left, self.trees.nodes.right
        levels = [self.trees.roots]
        while len(inner := levels[-1][left[levels[-1]] >= 0]):
            levels.append(np.concatenate([left[inner], right[inner]]))
        count, first = np.ones(len(left), np.intp), np.zeros(len(left), np.intp)
        for level in reversed(levels):
            inner = level[left[level] >= 0]
            count[inner] = count[left[inner]] + count[right[inner]]
        for level in levels:
            inner = level[left[level] >= 0]
            first[left[inner]] = first[inner]
            first[right[inner]] = first[inner] + count[left[inner]]
        return first, count

    @cached_property
    def tree(self) -> Positions:
        """(M,) the tree of each node."""
        sizes = np.diff(np.append(self.trees.roots, len(self.trees.nodes.left)))
        return np.repeat(np.arange(len(sizes)), sizes)

    @property
    def n_leaves(self) -> Positions:
        """(T,) the number of leaves of each tree."""
        return self.leaves[1][self.trees.roots]

    @property
    def fits_tables(self) -> bool:
        """Whether the trees are small enough to be looked up in tables."""
        words = -(-self.n_leaves // _LEAVES)
        n_words = int(words.sum())
        entries = max(len(nodes) * int(size) for nodes, size in zip(self.nodes, self.bins, strict=True))
        is_small = n_words <= _MOST_WORDS * len(words) and entries * n_words // len(words) <= _MOST_ENTRIES
        used = np.array([len(nodes) > 0 for nodes in self.nodes])
        return is_small and int(self.bins[used].sum()) * n_words * 8 <= _MOST_BYTES


def compile_trees(trees: Trees, features: Features, encoding: Encoding, sample: Values) -> CompiledTrees:
    """The splits of an ensemble by the bins of columns.

    Args:
        trees: The ensemble.
        features: The features that its splits compare.
        encoding: The columns.
        sample: Typical rows.

    Raises:
        NotCompilableError: If a feature depends on several columns, or a column of numbers is split by categories.
    """
    probe = _Probe(features, encoding, sample)
    nodes = trees.nodes
    splits = np.flatnonzero(nodes.left >= 0)
    column = np.full(len(nodes.left), -1)
    column[splits] = probe.owner[nodes.feature[splits]]
    by_column = tuple(np.flatnonzero(column == j) for j in range(len(encoding.schema)))
    position, missing_left = np.zeros(len(column), np.intp), np.zeros(len(column), bool)
    cuts: list[Floats | None] = [None] * len(by_column)
    category_left, bins = {}, np.zeros(len(by_column), np.intp)
    for j, own in enumerate(by_column):
        if isinstance(encoding.schema.features[j], Continuous):
            if len(nodes.sets) and np.isin(own, list(nodes.sets)).any():
                raise NotCompilableError("A column of numbers is split by categories.")
            at = probe.cuts(j, nodes.feature[own], nodes.cut[own])
            distinct, position[own] = np.unique(at, return_inverse=True)
            missing_left[own] = _left_of(trees, own, probe.at_bins(j, None)[-1:, nodes.feature[own]].T)[:, 0]
            cuts[j], bins[j] = distinct, len(distinct) + 2
        else:
            table = probe.at_bins(j, None)
            category_left[j], bins[j] = _left_of(trees, own, table[:, nodes.feature[own]].T), len(table)
    return CompiledTrees(trees, tuple(cuts), bins, by_column, position, missing_left, category_left)


def walked(
    compiled: CompiledTrees, walks: list[Any], features: Features, encoding: Encoding, sample: Values
) -> CompiledTrees:
    """The same ensemble, to be walked by the functions of its own trees instead of looked up in tables."""
    probe = _Probe(features, encoding, sample)
    tables = []
    for j in range(len(encoding.schema)):
        own = np.flatnonzero((probe.owner == j) & probe.varies)
        tables.append((own, probe.at_bins(j, compiled.cuts[j])[:, own].astype(np.float32)))
    constants = np.flatnonzero(~probe.varies)
    tables.append((constants, probe.base[None, constants].astype(np.float32)))
    return replace(compiled, walks=tuple(walks), features=tuple(tables))


def _left_of(trees: Trees, nodes: Positions, features: Floats) -> Flags:
    """(m, n) whether each node sends each of its n values of the feature left."""
    missing = np.isnan(features)
    left = features < trees.nodes.cut[nodes, None]
    for row, node in enumerate(nodes.tolist()):
        members = trees.nodes.sets.get(node)
        if members is not None:
            left[row] = np.isin(features[row], members) == trees.set_left
    return np.where(missing, trees.nodes.missing_left[nodes, None], left)


class _Probe:
    """What the features of a model are for values of single columns, other columns being those of a base row.

    Attributes:
        base: (F,) features of the base row.
        owner: (F,) the column that each feature depends on; 0 for a constant.
        varies: (F,) whether the feature is not constant.
    """

    def __init__(self, features: Features, encoding: Encoding, sample: Values) -> None:
        self._features, self._encoding = features, encoding
        numbers = sample.numbers[0]
        self._row = Values(np.where(np.isnan(numbers), encoding.low, numbers)[None], sample.choices[:1])
        self._ends = np.stack([encoding.low, encoding.high])
        rows = [self._row, *(self._rows(j, self._spread(j, sample)) for j in range(len(encoding.schema)))]
        every = Values(np.concatenate([row.numbers for row in rows]), np.concatenate([row.choices for row in rows]))
        (self.base,), *self._tried = np.split(features(every), np.cumsum([len(row) for row in rows[:-1]]))
        self.owner, self.varies = np.zeros(len(self.base), np.intp), np.zeros(len(self.base), bool)
        for j, tried in enumerate(self._tried):
            depends = ~((tried == self.base) | (np.isnan(tried) & np.isnan(self.base))).all(axis=0)
            if (depends & self.varies).any():
                raise NotCompilableError("A feature depends on several columns.")
            self.owner[depends], self.varies = j, self.varies | depends

    def _spread(self, column: int, sample: Values) -> Floats:
        """Typical numbers of a column from lowest to highest, or all categories; and a missing value if allowed."""
        feature, i = self._encoding.schema.features[column], self._encoding.kind_index[column]
        if isinstance(feature, Continuous):
            seen = sample.numbers[~np.isnan(sample.numbers[:, i]), i]
            inside = np.quantile(seen, np.linspace(0, 1, _TRIED), method="nearest") if len(seen) else seen
            values = np.unique(np.concatenate([self._ends[:, i], inside]))
            return np.append(values, np.nan) if feature.missing == "indicator" else values
        return np.arange(len(feature.categories) + (feature.missing != "error"), dtype=np.float64)

    def _rows(self, column: int, values: Floats) -> Values:
        """The base row with other values of one column."""
        rows = Values(np.repeat(self._row.numbers, len(values), 0), np.repeat(self._row.choices, len(values), 0))
        i = self._encoding.kind_index[column]
        if isinstance(self._encoding.schema.features[column], Continuous):
            rows.numbers[:, i] = values
        else:
            rows.choices[:, i] = values
        return rows

    def _values(self, column: int, values: Floats) -> Floats:
        """(n, F) features of the base row with other values of one column."""
        return self._features(self._rows(column, values))

    def _numbers(self, column: int) -> Floats:
        """(n, F) features of numbers of a column, from the lowest to the highest."""
        tried = self._tried[column]
        return tried[:-1] if self._encoding.schema.features[column].missing == "indicator" else tried

    def at_bins(self, column: int, cuts: Floats | None) -> Floats:
        """(bins, F) features of each bin of a column. The last is for missing values, NaN where there are none.

        Args:
            column: Position in the schema.
            cuts: Cuts of a column of numbers; None: no bins but the last matter, or the column has categories.
        """
        feature = self._encoding.schema.features[column]
        tried = self._tried[column]
        if not isinstance(feature, Continuous):
            gap = feature.missing != "error"
            return tried if gap else np.concatenate([tried, np.full((1, len(self.base)), np.nan)])
        last = tried[-1:] if feature.missing == "indicator" else np.full((1, len(self.base)), np.nan)
        if cuts is None:
            return last
        low, high = self._ends[:, self._encoding.kind_index[column]]
        finite = cuts[np.isfinite(cuts)]
        first = self._before(column, finite[0]) if len(finite) else low
        below, above = np.full(1 + int((cuts == -np.inf).sum()), first), np.full(int((cuts == np.inf).sum()), high)
        return np.concatenate([self._values(column, np.concatenate([below, finite, above])), last])

    def _is_whole(self, column: int) -> bool:
        step = getattr(self._encoding.schema.features[column], "step", None)
        return step is not None and float(step).is_integer()

    def _before(self, column: int, value: float) -> float:
        return value - 1 if self._is_whole(column) else float(np.nextafter(value, -np.inf))

    def cuts(self, column: int, features: Positions, thresholds: Floats) -> Floats:
        """(m,) the least value of a number from which each feature is no longer less than its threshold."""
        pairs, which = np.unique(np.stack([features, thresholds]), axis=1, return_inverse=True)
        at, wanted = pairs[0].astype(np.intp), pairs[1]
        numbers = self._numbers(column)
        constant = (numbers == numbers[0]).all(axis=0)[at]  # e.g. features that say whether a value is missing
        result = np.where(np.where(constant, numbers[0][at], 0.0) >= wanted, -np.inf, np.inf)
        searched = np.flatnonzero(~constant & (np.abs(wanted) < _FAR))
        if len(searched):
            result[searched] = self._searched(column, at[searched], wanted[searched])
        return result[which.reshape(-1)]

    def _searched(self, column: int, at: Positions, wanted: Floats) -> Floats:
        """Cuts found by bisection, from a guess that is exact where features are the numbers themselves."""
        low, high = self._ends[:, self._encoding.kind_index[column]]
        ends = self._numbers(column)[[0, -1]][:, at]
        with np.errstate(all="ignore"):
            guess = low + (wanted - ends[0]) * ((high - low) / (ends[1] - ends[0]))
        same = (ends[0] == low) & (ends[1] == high)
        guess = np.where(same, wanted, np.where(np.isfinite(guess), guess, (low + high) / 2))
        whole = self._is_whole(column)
        above = np.ceil(guess).astype(np.int64) if whole else _ordinal(guess)
        below = above - 1

        def reached(keys: NDArray[np.int64]) -> Flags:
            values = keys.astype(np.float64) if whole else _number(keys)
            return self._values(column, values)[np.arange(len(at)), at] >= wanted

        step = 1
        while True:
            too_high, too_low = reached(below), ~reached(above)
            if not (too_high | too_low).any():
                break
            step *= 16
            if step > (2**40 if whole else _LARGEST_STEP):
                raise NotCompilableError("A split has no place among the numbers of its column.")
            below, above = np.where(too_high, below - step, below), np.where(too_low, above + step, above)
        while (above - below > 1).any():
            middle = below + (above - below) // 2
            right = reached(middle)
            above, below = np.where(right, middle, above), np.where(right, below, middle)
        return above.astype(np.float64) if whole else _number(above)


def _ordinal(numbers: Floats) -> NDArray[np.int64]:
    """Whole numbers in the order of float64 numbers, one for each of them."""
    bits = (numbers + 0.0).view(np.int64)
    return np.where(bits < 0, np.int64(-(2**63)) - bits, bits)


def _number(ordinals: NDArray[np.int64]) -> Floats:
    """The float64 numbers of `_ordinal`."""
    bits = np.where(ordinals < 0, np.int64(-(2**63)) - ordinals, ordinals)
    return np.ascontiguousarray(bits).view(np.float64)
