"""Answers from a stored explainer with numpy and onnxruntime alone: no torch, no pandas, up in half a second.

The same steps as `avcg.explainers.amortized.Amortized` takes, on the two graphs that ``save(path, graphs=True)``
puts beside the weights: one pass, then more tries where the teachers refuse the first answer. What may not change is heeded by the
same projection that everyone uses.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avcg.errors import ArtefactError, DataError, SchemaError, SettingError, check_int, did_you_mean, enumerate_some
from avcg.explainers.records import Option, Row, Status
from avcg.io.folder import FORMAT, VERSION, notes_of, read_folder, read_manifest
from avcg.io.spaces import open_graph, unpack_scored
from avcg.io.tensors import read_tensors
from avcg.method.tries import (
    A_LITTLE,
    CONFIDENCE,
    HARDER,
    LADDER,
    LATENTS_EACH,
    LOCKS,
    NEAR,
    REFUSED,
    RETRY_LATENTS,
    ROWS_FIRST,
    ROWS_TRIED,
    SAME,
    SLACK,
)
from avcg.schema.features import to_python
from avcg.schema.schema import Schema
from avcg.space.constraints import FeasibleSet, Ranges, Vary
from avcg.space.encoding import Codes, Flags, Floats, Positions, Values
from avcg.space.project import changes, charges, immovable, lock_change, pairwise_distance, project, restore
from avcg.space.records import values_of, written

_AT_ONCE = 512  # answers
GENERATOR, JUDGES, TABLES = "generator.onnx", "judges.onnx", "scorer.safetensors"


@dataclass(frozen=True, eq=False)
class _Question:
    """B rows as they are asked about."""

    x: Codes
    target: Positions
    feasible: FeasibleSet
    min_prob: float | None

    def take(self, rows: Positions) -> _Question:
        if len(rows) == len(self.x) == 1:
            return self
        feasible = self.feasible if self.feasible.rows == 1 else self.feasible.take(rows)
        return replace(self, x=self.x[rows], target=self.target[rows], feasible=feasible)


class Scorer:
    """Answers as a loaded explainer gives them, for rows given as dictionaries.

    Args:
        path: The folder of an explainer saved with ``graphs=True``.
        threads: That one request may use.

    Attributes:
        schema: What the columns are and what may change.
        encoding: What codes mean.
        feasible: What may change.
        classes: The labels.
        survival: The share of models that is promised.
        confidence: Of lower bounds.
        n_models: How many set-aside models certify; 0 where there are none.
        assumption: What was noted of how these came about; None: nothing.

    Raises:
        ArtefactError: If the folder is missing, changed or newer, has no graphs, or does not fit together.
    """

    def __init__(self, path: str | Path, *, threads: int = 1) -> None:
        if "scorer" not in read_manifest(path, FORMAT, VERSION):
            raise ArtefactError(
                f"{path} has no graphs to answer from. Save the explainer with save(path, graphs=True), which needs the"
                " extra 'onnx' and models that are networks."
            )
        manifest, files = read_folder(path, FORMAT, VERSION, (GENERATOR, JUDGES, TABLES))
        found = unpack_scored(manifest, read_tensors(files[TABLES]))
        self.encoding, self.feasible, self.classes = found.encoding, found.feasible, found.classes
        self.schema: Schema = self.encoding.schema
        self.survival, self.confidence, self.n_models = found.survival, CONFIDENCE, len(found.bounds) - 1
        self.assumption: str | None = notes_of(path, manifest).get("assumption")
        self._threshold, self._margin, self._single_pass = found.threshold, found.margin, found.single_pass
        self._weights, self._judge_weights, self._bounds = found.weights, found.judge_weights, found.bounds
        self._n_deployed, self._n_judges = len(found.weights), len(found.judge_weights)
        self._noise, self._bank, self._mean = found.noise, found.reference, np.zeros_like(found.noise[1])
        self._generator, self._judges = (open_graph(files[name], threads) for name in (GENERATOR, JUDGES))
        self._coded = self.feasible.coded(self.encoding)
        self._lately = threading.local()  # several threads may ask at once
        self._check_graphs()

    def _check_graphs(self) -> None:
        """Whether the graphs answer about such rows, and for so many models and classes."""
        x = self._bank[0][:1]
        try:
            said = self._asked(x)
            self._pass(_Question(x, np.zeros(1, np.intp), self.feasible, None), np.zeros(1, np.float32))
        except Exception as error:  # of many kinds, none of which are Python's own
            raise ArtefactError(f"The stored graphs do not fit the rows: {error}") from None
        shape = (self._n_judges + self.n_models, 1, len(self.classes))
        if said.shape != shape or not np.allclose(said.sum(axis=-1), 1.0, atol=1e-3):
            raise ArtefactError(
                f"The stored models say something of the shape {said.shape}, where probabilities of {shape[0]} models"
                f" and {shape[2]} classes were stored."
            )

    def answer(
        self,
        rows: Sequence[Mapping[str, Any]],
        target: Any = None,
        *,
        n: int = 1,
        vary: Vary | None = None,
        ranges: Ranges | None = None,
        min_prob: float | None = None,
        max_changes: int | None = None,
    ) -> list[Row]:
        """What to change so that decisions become the target; see `Explainer.generate`.

        Args:
            rows: Each with a value for every column.
            target: A label for all, one for each row, or None for any other than the present one.
            n: Options for each row, at most ten.
            vary: The columns that may change.
            ranges: Where values may go.
            min_prob: The probability of the target that the model in force must give.
            max_changes: How many columns may change at once.
        """
        most = max(self._noise) // LATENTS_EACH
        if check_int(n, "'n' of answer", 1) > most:
            raise SettingError(f"The 'n' of answer must be at most {most}. Got {n} instead.")
        if min_prob is not None and not 0 < min_prob < 1:
            raise SettingError(f"The 'min_prob' of answer must be in (0, 1). Got {min_prob!r} instead.")
        if not rows:
            return []
        each = [target] * len(rows) if not isinstance(target, (list, tuple)) else list(target)
        if len(each) != len(rows):
            raise DataError(f"'target' must be one label, or one per row ({len(rows)}). Got {len(each)}.")
        feasible = self.feasible
        if not (vary is None and ranges is None and max_changes is None):
            feasible = feasible.narrow(self.encoding, vary, ranges, max_changes)
        if feasible.rows not in (1, len(rows)):
            raise SchemaError(f"The request speaks of {feasible.rows} rows. Got {len(rows)}.")
        found: list[Row] = []
        # A few at a time: what a runtime has once taken of memory it keeps.
        for places in np.array_split(np.arange(len(rows)), -(-len(rows) * n // _AT_ONCE)):
            mine = feasible if feasible.rows == 1 else feasible.take(places)
            some, wanted = [rows[i] for i in places], None if target is None else [each[i] for i in places]
            found += self._together(some, wanted, mine, n, min_prob)
        return [row if row.index == i else replace(row, index=i) for i, row in enumerate(found)]

    def _together(
        self,
        rows: Sequence[Mapping[str, Any]],
        target: list[Any] | None,
        feasible: FeasibleSet,
        n: int,
        min_prob: float | None,
    ) -> list[Row]:
        x = np.stack([self.encoding.encode_row(row) for row in rows])
        before = self._in_force(self._asked(x))
        current = self._decide(before)
        query = _Question(x, self._targets(target, current), feasible, min_prob)
        found = self._best(query, n)
        if target is None and len(self.classes) > 2:
            found, query = self._any_class(query, found, n)
        if n > 1:
            order = np.argsort(self._costs(query, found), axis=0, kind="stable")
            found = found[order, np.arange(len(x))]
        return self._package(rows, query, found, before, current)

    def _any_class(self, query: _Question, found: Codes, n: int) -> tuple[Codes, _Question]:
        """Any other class will do: aim at each in turn, and keep for each row the cheapest that is accepted."""
        score, aimed = self._costs(query, found).max(axis=0), query.target.copy()
        for step in range(1, len(self.classes) - 1):
            other = replace(query, target=(query.target + step) % len(self.classes))
            candidates = self._best(other, n)
            cost = self._costs(other, candidates).max(axis=0)
            better = cost < score
            found[:, better], aimed[better] = candidates[:, better], other.target[better]
            score = np.minimum(cost, score)
        return found, replace(query, target=aimed)

    def _best(self, query: _Question, n: int) -> Codes:
        """(n, B, D) the best n candidates, different where there are enough."""
        margin = self._margins(query)
        first = self._accepted(query, margin)
        if n == 1:
            return first[None]
        if self._single_pass:
            return np.concatenate([first[None], self._pass(query, margin, self._noise[n - 1])])
        found = [first[None], self._pass(query, margin, self._noise[LATENTS_EACH * n])]
        found += [self._pass(query, margin + more) for more in HARDER[1:]]
        found.append(self._neighbours(query, LATENTS_EACH * n))
        for rank in range(n):
            narrower, answer, place = query, first, rank
            for _ in range(LOCKS):
                feasible = lock_change(self.encoding, narrower.feasible, answer, narrower.x, place)
                if feasible is None:
                    break
                narrower, place = replace(narrower, feasible=feasible), 0
                answer = self._accepted(narrower, margin)
                found.append(answer[None])
        candidates = np.concatenate(found)
        return self._choose(candidates, self._costs(query, candidates), n)

    def _accepted(self, query: _Question, margin: Codes) -> Codes:
        """(B, D) one answer a row; where the teachers refuse the first, the cheapest of more that they do not."""
        answers = self._pass(query, margin)[0]
        if self._single_pass:
            return answers
        refused = np.flatnonzero(self._penalties(answers, query.target, query.min_prob))
        if len(refused):
            answers[refused] = self._tried_again(query.take(refused), answers[refused], margin[refused])
        return answers

    def _tried_again(self, query: _Question, answers: Codes, margin: Codes) -> Codes:
        """(B, D) with more margin until it is accepted, a row of the bank if that is closer, else all there is."""
        rungs, more = len(LADDER), np.array(LADDER, np.float32)[:, None]
        tried = self._pass(query, margin + more, np.repeat(self._mean, rungs, axis=0))
        pool = np.concatenate([answers[None], tried, self._neighbours(query, ROWS_FIRST)])
        costs = self._costs(query, pool)
        accepted = costs[1 : 1 + rungs] < REFUSED  # all steps at once, and none beyond the first that is enough
        costs[1 : 1 + rungs][np.cumsum(accepted, axis=0) > accepted] = np.inf
        answers = pool[costs.argmin(axis=0), np.arange(len(answers))]
        left = np.flatnonzero(costs.min(axis=0) >= REFUSED)
        if len(left):
            some, noise = query.take(left), self._noise[RETRY_LATENTS]
            harder = np.repeat(np.array(HARDER, np.float32), len(noise))
            tried = self._pass(some, margin[left] + harder[:, None], np.tile(noise, (len(HARDER), 1)))
            pool = np.concatenate([answers[left][None], tried, self._neighbours(some, ROWS_TRIED)])
            answers[left] = pool[self._costs(some, pool).argmin(axis=0), np.arange(len(left))]
        return answers

    def _margins(self, query: _Question) -> Codes:
        """(B,) the log-odds to aim at: enough for the promise, and for what the request asks."""
        line = self._line(query.target)
        start = np.zeros(len(query.x), np.float32) if line is None else np.log(line / (1 - line))
        margin = (start + self._margin).astype(np.float32)
        asked = query.min_prob
        return margin if asked is None else np.maximum(margin, np.float32(math.log(asked / (1 - asked)) + A_LITTLE))

    def _pass(self, query: _Question, margin: Codes, noise: Codes | None = None) -> Codes:
        """(K, B, D) feasible answers for noise (K, L) and margins (B,) or (K, B); at the mean where there is none."""
        shifts = self._mean if noise is None else noise
        count, rows = len(shifts), len(query.x)
        coded = self._coded if query.feasible is self.feasible else query.feasible.coded(self.encoding)
        once: dict[str, NDArray[Any]] = {"x": query.x, "target": query.target, **coded}
        feed = {name: _for_each(array, count, rows) for name, array in once.items()}
        feed["margin"] = margin.ravel() if margin.ndim > 1 else _for_each(margin, count, rows)
        feed["noise"] = shifts if rows == 1 else np.repeat(shifts, rows, axis=0)
        (found,) = self._generator.run(["answer"], feed)
        return project(self.encoding, query.feasible, found.reshape(count, rows, -1), query.x)

    def _neighbours(self, query: _Question, count: int) -> Codes:
        """(count, B, D) rows of the target that cost least to become, with what may not change put back."""
        result = np.broadcast_to(query.x, (count, *query.x.shape)).copy()
        for label, rows in enumerate(self._bank):
            mine = np.flatnonzero(query.target == label)
            if len(mine) and len(rows):
                some = query.take(mine)
                near = _least(pairwise_distance(self.encoding, some.x, rows), count)
                result[: near.shape[1], mine] = project(self.encoding, some.feasible, rows[near.T], some.x)
        return result

    def _asked(self, x: Codes) -> Codes:
        """(S, N, C) what every model says: those in force, the other teachers, those set aside."""
        known: tuple[Codes, Codes] | None = getattr(self._lately, "asked", None)
        if known is not None and np.array_equal(known[0], x):
            return known[1]  # what was accepted is mostly what is handed out
        (said,) = self._judges.run(["said"], {"x": x})
        self._lately.asked = (x.copy(), said)
        return np.asarray(said)

    def _in_force(self, said: Codes) -> Codes:
        return np.asarray(np.einsum("s,snc->nc", self._weights, said[: self._n_deployed]))

    def _decide(self, probabilities: Codes) -> Positions:
        if self._threshold is None:
            return probabilities.argmax(axis=1)
        return (probabilities[:, 1] >= np.float32(self._threshold)).astype(np.intp)

    def _line(self, target: Positions) -> Codes | None:
        """(N,) the probability from which the decision is for the target; None: from when it is the likeliest."""
        if self._threshold is None:
            return None
        yes = np.float32(self._threshold)
        return np.where(target == 1, yes, np.nextafter(np.float32(1) - yes, np.float32(1)))

    def _agree(self, said: Codes, target: Positions) -> Flags:
        """(S, N) which models decide for the target."""
        line = self._line(target)
        if line is None:
            return np.asarray(said.argmax(axis=-1) == target)
        return said[:, np.arange(len(target)), target] >= line

    def _valid(self, probabilities: Codes, target: Positions, min_prob: float | None) -> Flags:
        reached = self._decide(probabilities) == target
        if min_prob is None:
            return reached
        return reached & (probabilities[np.arange(len(target)), target] >= np.float32(min_prob))

    def _costs(self, query: _Question, candidates: Codes) -> Floats:
        """(K, B) what candidates cost; one that is refused costs more than any price."""
        flat = candidates.reshape(-1, candidates.shape[-1])
        wanted = _for_each(query.target, len(candidates), len(query.x))
        penalty = self._penalties(flat, wanted, query.min_prob).reshape(candidates.shape[:2])
        return self._distance(candidates, query.x).astype(np.float64) + penalty

    def _penalties(self, candidates: Codes, target: Positions, min_prob: float | None) -> Floats:
        """(N,) 0 for what is accepted; beyond any price for what is refused, and more the worse it is."""
        said = self._asked(candidates)
        valid = self._valid(self._in_force(said), target, min_prob)
        share = self._judge_weights @ self._agree(said[: self._n_judges], target).astype(np.float64)
        accepted = valid & (share >= self.survival - SLACK)
        return np.where(accepted, 0.0, REFUSED * np.where(valid, 2.0 - share, 3.0))

    def _distance(self, x_cf: Codes, x: Codes) -> Codes:
        return np.asarray(charges(self.encoding, x_cf, x).sum(axis=-1))

    def _choose(self, candidates: Codes, costs: Floats, n: int) -> Codes:
        """(n, B, D) the cheapest that differ; see `avcg.method.query.choose`."""
        everyone, chosen = np.arange(costs.shape[1]), []
        for _ in range(n):
            found = candidates[costs.argmin(axis=0), everyone]
            chosen.append(found)
            if len(chosen) < n:
                far = self._distance(candidates, found)
                costs = costs + NEAR * np.maximum(1.0 - far, 0.0) + np.where(far <= SLACK, SAME, 0.0)
        return np.stack(chosen)

    def _targets(self, target: list[Any] | None, current: Positions) -> Positions:
        """(B,) class positions; the next one where any other will do."""
        if target is None:
            return (current + 1) % len(self.classes)
        places = {label: i for i, label in enumerate(self.classes)}
        for one in map(to_python, target):
            if not isinstance(one, (str, int, float)) or one not in places:
                known = enumerate_some([str(label) for label in self.classes], 12)
                hint = did_you_mean(one, self.classes)
                raise DataError(f"The target {one!r} is no class of the model, which knows {known}. {hint}")
        return np.array([places[to_python(one)] for one in target], np.intp)

    def _package(
        self,
        rows: Sequence[Mapping[str, Any]],
        query: _Question,
        found: Codes,
        before: Codes,
        current: Positions,
    ) -> list[Row]:
        """Decode, judge what was decoded, and say how it went."""
        x, target, n = query.x, query.target, len(found)
        already = self._valid(before, target, query.min_prob)
        stays = ~already & (found == x).all(axis=(0, 2))
        if stays.any():  # who can move a little is not, even if it does not help
            unmoved = query.take(np.flatnonzero(stays))
            stays[stays] = immovable(self.encoding, unmoved.feasible, unmoved.x)
        found = np.where(already[:, None], x, found) if already.any() else found
        place, each, here = np.arange(len(x)), query, values_of(self.encoding, rows)
        if n > 1:
            place = np.repeat(place, n)
            each, here = query.take(place), Values(here.numbers[place], here.choices[place])
        values = restore(self.encoding, each.feasible, found.transpose(1, 0, 2).reshape(len(place), -1), here)
        received = self.encoding.encode(values)
        said = self._asked(received)
        after = self._in_force(said)
        agreeing = self._agree(said[self._n_judges :], each.target).sum(axis=0)
        robust = agreeing >= (self.survival - 1e-9) * self.n_models
        valid = self._valid(after, each.target, query.min_prob)
        flags = zip(already[place].tolist(), stays[place].tolist(), valid.tolist(), robust.tolist(), strict=True)
        statuses = [_status(*each_one) for each_one in flags]
        probability = after[np.arange(len(place)), each.target].astype(np.float64).tolist()
        distance = self._distance(received, each.x).astype(np.float64).tolist()
        differs, sets_aside = changes(self.encoding, values, here), self.n_models > 0
        known = agreeing.tolist()
        answers = []
        for i, row in enumerate(rows):
            options: list[Option] = []
            for at in range(i * n, i * n + n):
                whole_row, changed = written(self.encoding, row, values, differs[at], at)
                again = any((received[at] == received[j]).all() for j in range(i * n, at))
                count = known[at] if sets_aside else None
                bound = float(self._bounds[count]) if count is not None else None
                options.append(
                    Option(statuses[at], changed, probability[at], distance[at], count, bound, again, whole_row)
                )
            wanted, now = self.classes[target[i]], self.classes[current[i]]
            answers.append(Row(i, wanted, tuple(options), float(before[i, target[i]]), now))
        return answers


def _status(already: bool, immovable: bool, valid: bool, robust: bool) -> Status:
    if already or immovable:
        return "already_target" if already else "infeasible"
    return "not_valid" if not valid else "ok" if robust else "not_robust"


def _least(values: Codes, count: int) -> Positions:
    """(B, count) positions of the least of each line, the least first; all where there are not so many."""
    if values.shape[1] <= count:
        return np.argsort(values, axis=1, kind="stable")
    some = np.argpartition(values, count - 1, axis=1)[:, :count]
    order = np.argsort(np.take_along_axis(values, some, axis=1), axis=1, kind="stable")
    return np.take_along_axis(some, order, axis=1)


def _for_each(array: NDArray[Any], count: int, rows: int) -> NDArray[Any]:
    """One for every candidate of every row."""
    if len(array) == count * rows:
        return array
    return np.tile(array, (count * rows if len(array) == 1 else count, *[1] * (array.ndim - 1)))
