"""Probabilities of several tree ensembles for the same rows, looked up without walking down trees.

Every leaf of a tree is one bit of a word. For each bin of a column, a table has the leaves that the column's splits
leave open; the words of all columns combined with AND leave the leaf of the row. Rows are sorted, so that words of
columns in which neighbours agree are combined once. `ForestWalk` asks the trees themselves where they are too deep.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avcg.models.compiled_trees import _LEAVES, CompiledTrees
from avcg.space.encoding import Flags, Floats, Positions, Values

Words = NDArray[np.unsignedinteger[Any]]

_CHUNK_BYTES = 2**20


@dataclass(frozen=True)
class _Word:
    """A word whose bits are leaves, and how the place of its lowest bit is found.

    The lowest bit alone, times ``factor`` modulo the size of a word, begins with bits that differ for each bit of the
    word, and are 0 for no bit: one product instead of a logarithm.

    Attributes:
        kind: Type of the word.
        leaves: Number of its bits.
        factor: What a bit is multiplied with.
        n_places: Number of places, a power of two.
    """

    kind: type[np.unsignedinteger[Any]]
    leaves: int
    factor: int
    n_places: int

    @cached_property
    def lowest(self) -> Words:
        """(leaves + 1,) words in which the lowest 0, 1, ... bits are set."""
        return np.array([2**count - 1 for count in range(self.leaves + 1)], self.kind)

    @property
    def every(self) -> Any:
        """The word with all bits."""
        return self.lowest[-1]

    def places(self, words: Words) -> Words:
        """The place of the lowest bit of each word, in [0, n_places); 0 if there is none. The words are overwritten."""
        words &= np.negative(words)
        words *= self.kind(self.factor)
        words >>= self.kind(self.leaves - self.n_places.bit_length() + 1)
        return words

    @cached_property
    def place_of(self) -> Positions:
        """(leaves,) the place of each bit."""
        return self.places(self.lowest[1:] ^ self.lowest[:-1]).astype(np.intp)


_SMALL = _Word(np.uint32, 32, 0xFDE75C6D, 64)
_LARGE = _Word(np.uint64, _LEAVES, 0xFEF9EBC76E9CB859, 128)


class TreeTables:
    """Tree ensembles of one kind, evaluated together.

    Args:
        members: The ensembles, all with the same `kind_of`.
        kinds: By column of the schema, whether it is a number, and its index among those.
    """

    def __init__(self, members: Sequence[CompiledTrees], kinds: Sequence[tuple[bool, int]]) -> None:
        first = members[0].trees
        self._link, self._n_groups, self._kinds = first.link, len(first.base), kinds
        self._n_trees = np.array([len(member.trees.roots) for member in members])
        most = max(int(member.n_leaves.max(initial=1)) for member in members)
        self._word = _SMALL if most <= _SMALL.leaves else _LARGE
        slots = [_slots(member, self._word.leaves) for member in members]
        self._per_group = max(rank for _, _, rank in slots)
        self._values = self._leaf_values(members, slots)
        # Trees come before models, so that scores are added for all models at once.
        ensembles = len(members) * self._n_groups
        starts = np.arange(ensembles * self._per_group).reshape(ensembles, self._per_group) * self._word.n_places
        self._start = np.ascontiguousarray(starts.T)
        self._used = [j for j in range(len(kinds)) if any(len(member.nodes[j]) for member in members)]
        self._cuts = {j: _union(members, j) for j in self._used if kinds[j][0]}
        self._tables, self._rows = {}, {}
        for j in self._used:
            parts = [self._table(member, j, *slot[:2]) for member, slot in zip(members, slots, strict=True)]
            offsets = np.cumsum([0, *(len(part) for part in parts[:-1])])
            self._tables[j] = np.concatenate(parts)
            own = [self._own_bins(member, j) for member in members]
            self._rows[j] = np.stack([bins + offset for bins, offset in zip(own, offsets, strict=True)], axis=1)

    def _leaf_values(self, members: Sequence[CompiledTrees], slots: list[Any]) -> list[NDArray[Any]]:
        """For each value of a leaf, the flat (S, slots, places) values; the first of each slot is that of no leaf."""
        nodes, width, word = members[0].trees.nodes, self._n_groups * self._per_group, self._word
        shape = (len(members), width, word.n_places, nodes.value.shape[1])
        values = np.zeros(shape, nodes.value.dtype)
        for s, (member, (first_slot, _, _)) in enumerate(zip(members, slots, strict=True)):
            leaf = np.flatnonzero(member.trees.nodes.left < 0)
            number = member.leaves[0][leaf]
            slot = first_slot[member.tree[leaf]] + number // word.leaves + self._shift(member, leaf)
            values[s, slot, word.place_of[number % word.leaves]] = member.trees.nodes.value[leaf]
            # The first slot of each group has one leaf, with the score before any tree.
            values[s, np.arange(self._n_groups) * self._per_group, word.place_of[0]] = member.trees.base[:, None]
        return [np.ascontiguousarray(values[..., v]).ravel() for v in range(shape[-1])]

    def _shift(self, member: CompiledTrees, nodes: Positions) -> Positions:
        """Where the slots of a node's group begin."""
        return member.trees.group[member.tree[nodes]] * self._per_group

    def _table(self, member: CompiledTrees, column: int, first_slot: Positions, words: Positions) -> Words:
        """(bins, slots) the leaves that each bin of a column leaves open."""
        table = np.full((member.bins[column], self._n_groups * self._per_group), self._word.every)
        nodes, left_of = member.nodes[column], member.goes_left(column)
        if not len(nodes):
            return table
        repeats = words[member.tree[nodes]]
        which = np.repeat(np.arange(len(nodes)), repeats)
        rank = np.arange(len(which)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
        node = nodes[which]
        slot = first_slot[member.tree[node]] + rank + self._shift(member, node)
        order = np.argsort(slot, kind="stable")
        node, which, rank, slot = node[order], which[order], rank[order], slot[order]
        sides = member.trees.nodes.left[node], member.trees.nodes.right[node]
        if_right, if_left = (~_bits(member, side, rank, self._word) for side in sides)
        starts = np.flatnonzero(np.append(True, slot[1:] != slot[:-1]))
        open_leaves = np.where(left_of[which], if_left[:, None], if_right[:, None])
        table[:, slot[starts]] = np.bitwise_and.reduceat(open_leaves, starts, axis=0).T
        return table

    def _own_bins(self, member: CompiledTrees, column: int) -> Positions:
        """For each bin of all members together, the bin of one member."""
        if not self._kinds[column][0]:
            return np.arange(member.bins[column])
        cuts = member.cuts[column]
        assert cuts is not None
        inner = np.searchsorted(cuts, self._cuts[column], side="right")
        return np.concatenate([[0], inner, [member.bins[column] - 1]])

    def probabilities(self, values: Values) -> NDArray[Any]:
        """(S, N, C) probabilities of rows."""
        bins = _bins(values, self._used, self._kinds, self._cuts)
        if not bins.shape[1]:
            bins = np.zeros((len(values), 1), np.intp)
        # Columns with few different values first, so that rows share more of them.
        spread = (np.diff(np.sort(bins, axis=0), axis=0) != 0).sum(axis=0)
        columns = np.argsort(spread, kind="stable")
        order = np.lexsort(bins[:, columns[::-1]].T)
        ordered = bins[order][:, columns]
        new = np.ones(ordered.shape, bool)
        new[1:] = np.logical_or.accumulate(ordered[1:] != ordered[:-1], axis=1)
        kept = new[:, -1]
        which = np.empty(len(order), np.intp)
        which[order] = np.cumsum(kept) - 1
        ordered, new = ordered[kept], new[kept]
        at_once = max(1, _CHUNK_BYTES // (self._word.leaves // 8 * self._start.size))
        used = [self._used[c] for c in columns.tolist()] if self._used else []
        scores = [
            self._scores(used, ordered[start : start + at_once], new[start : start + at_once])
            for start in range(0, len(ordered), at_once)
        ]
        return np.swapaxes(self._linked(np.concatenate(scores))[which], 0, 1)

    def _scores(self, used: list[int], bins: Positions, new: Flags) -> NDArray[Any]:
        """(U, S, G, V) scores of sorted, different rows; ``new`` says up to which column they agree with the last."""
        new = new.copy()
        new[0] = True
        words, group = np.full((1, self._start.size), self._word.every), np.zeros(len(bins), np.intp)
        for i, j in enumerate(used):
            at = np.flatnonzero(new[:, i])
            own = np.take(self._tables[j], self._rows[j][bins[at, i]], axis=0).reshape(len(at), -1)
            if len(at) == len(words):
                own &= words
            else:
                own &= words[group[at]]
            words, group = own, np.cumsum(new[:, i]) - 1
        found = self._word.places(words).reshape(len(words), -1, self._per_group)
        places = np.add(np.swapaxes(found, 1, 2), self._start, dtype=np.intp, casting="unsafe")
        sums = [_added(each[places]) for each in self._values]
        return np.stack(sums, axis=-1).reshape(len(words), len(self._n_trees), self._n_groups, -1)[group]

    def _linked(self, scores: NDArray[Any]) -> NDArray[Any]:
        """(N, S, C) probabilities from (N, S, G, V) scores."""
        if self._link == "mean":
            return np.asarray(scores[:, :, 0] / self._n_trees[:, None])
        scores = scores.reshape(*scores.shape[:2], -1)
        if self._link == "logistic":
            with np.errstate(over="ignore"):
                second = 1 / (1 + np.exp(-scores[..., 0]))
            return np.stack([1 - second, second], axis=-1)
        shifted = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return np.asarray(shifted / shifted.sum(axis=-1, keepdims=True))


class ForestWalk:
    """One forest of scikit-learn with deep trees, whose own functions find the leaves.

    Args:
        member: The forest, with its walks.
        kinds: By column of the schema, whether it is a number, and its index among those.
    """

    def __init__(self, member: CompiledTrees, kinds: Sequence[tuple[bool, int]]) -> None:
        self._member, self._kinds = member, kinds
        self._cuts = {j: cuts for j, cuts in enumerate(member.cuts) if cuts is not None}
        self._n_features = sum(len(own) for own, _ in member.features)

    def probabilities(self, values: Values) -> NDArray[Any]:
        """(1, N, C) probabilities of rows."""
        features = np.empty((len(values), self._n_features), np.float32)
        bins = _bins(values, range(len(self._kinds)), self._kinds, self._cuts)
        for j, (own, table) in enumerate(self._member.features):
            if len(own):
                features[:, own] = table[bins[:, j]] if j < bins.shape[1] else table
        leaves = np.stack([walk(features) for walk in self._member.walks])
        found = self._member.trees.nodes.value[leaves + self._member.trees.roots[:, None]]
        return np.asarray(found.sum(axis=0)[None] / len(leaves))


def _added(values: NDArray[Any]) -> NDArray[Any]:
    """(U, ensembles) sums of (U, trees, ensembles), one tree after the other: another order would round otherwise.

    numpy adds so along an axis that is not contiguous, and pairwise along one that is.
    """
    return np.add.accumulate(values, axis=1)[:, -1] if values.shape[2] == 1 else np.add.reduce(values, axis=1)


def kind_of(compiled: CompiledTrees) -> tuple[Any, ...]:
    """What ensembles must have in common to be evaluated together."""
    value = compiled.trees.nodes.value
    return (compiled.trees.link, len(compiled.trees.base), value.shape[1], value.dtype)


def _slots(member: CompiledTrees, leaves: int) -> tuple[Positions, Positions, int]:
    """Where the words of each tree begin in its group, how many words it has, and the words of the largest group."""
    words, group = -(-member.n_leaves // leaves), member.trees.group
    first, largest = np.zeros(len(words), np.intp), 0
    for g in range(len(member.trees.base)):
        own = np.flatnonzero(group == g)
        ends = 1 + np.cumsum(words[own])
        first[own] = ends - words[own]
        largest = max(largest, int(ends[-1]) if len(own) else 1)
    return first, words, largest


def _bits(member: CompiledTrees, nodes: Positions, rank: Positions, word: _Word) -> Words:
    """(m,) the leaves below each node, as bits of the word of this rank of its tree."""
    first, count = (each[nodes] for each in member.leaves)
    low = np.clip(first - rank * word.leaves, 0, word.leaves)
    high = np.clip(first + count - rank * word.leaves, 0, word.leaves)
    return word.lowest[high] & ~word.lowest[low]


def _union(members: Sequence[CompiledTrees], column: int) -> Floats:
    """The cuts of a column in any of the ensembles."""
    return np.unique(np.concatenate([cuts for member in members if (cuts := member.cuts[column]) is not None]))


def _bins(
    values: Values, columns: Sequence[int], kinds: Sequence[tuple[bool, int]], cuts: dict[int, Floats]
) -> Positions:
    """(N, columns) the bins of rows."""
    bins = np.empty((len(values), len(columns)), np.intp)
    for place, j in enumerate(columns):
        is_number, i = kinds[j]
        if is_number:
            numbers = values.numbers[:, i]
            bins[:, place] = np.searchsorted(cuts[j], numbers, side="right") + np.isnan(numbers)
        else:
            bins[:, place] = values.choices[:, i]
    return bins
