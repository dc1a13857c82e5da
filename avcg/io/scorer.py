"""Answers from a stored explainer with numpy and onnxruntime alone: no torch, no pandas, up in half a second.

`avcg.method.search.Search` answers, as everywhere; here its two ports are the graphs that ``save(path, graphs=True)``
puts beside the weights.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avcg.errors import ArtifactError, SchemaError, SettingError
from avcg.explainers.records import MOST_ANSWERS, Option, Row
from avcg.io.folder import FORMAT, VERSION, read_folder, read_manifest, stored_notes
from avcg.io.spaces import open_graph, unpack_scored
from avcg.io.tensors import read_tensors
from avcg.method.delivery import assess, check_delivery, needed_votes
from avcg.method.query import Query, QueryOptions, target_positions
from avcg.method.search import Acceptance, Search, any_class
from avcg.models.decision import DecisionRule
from avcg.schema.schema import Schema
from avcg.space.codes import TableCodes
from avcg.space.constraints import Ranges, Vary
from avcg.space.encoding import Codes, Positions, Values
from avcg.space.reading import read_rows
from avcg.space.records import written

_AT_ONCE = 512  # answers
GENERATOR, JUDGES, TABLES = "generator.onnx", "judges.onnx", "scorer.safetensors"


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
        ArtifactError: If the folder is missing, changed or newer, has no graphs, or does not fit together.
    """

    def __init__(self, path: str | Path, *, threads: int = 1) -> None:
        if "scorer" not in read_manifest(path, FORMAT, VERSION):
            raise ArtifactError(
                f"{path} has no graphs to answer from. Save the explainer with save(path, graphs=True), which needs the"
                " extra 'onnx' and models that are networks."
            )
        manifest, files = read_folder(path, FORMAT, VERSION, (GENERATOR, JUDGES, TABLES))
        stored = unpack_scored(manifest, read_tensors(files[TABLES]))
        self.encoding, self.feasible, self.classes = stored.encoding, stored.feasible, stored.classes
        self._space = TableCodes(stored.encoding, stored.feasible)
        self._bounds = stored.bounds
        self.schema: Schema = stored.encoding.schema
        self.survival, self.confidence = stored.survival, stored.config.confidence
        self.n_models = len(stored.bounds) - 1
        self.assumption: str | None = stored_notes(path, manifest).get("assumption")
        self._generator, self._judges = (open_graph(files[name], threads) for name in (GENERATOR, JUDGES))
        self._mean, self._n_judges = np.zeros_like(stored.latents[:1]), len(stored.judge_weights)
        self._lately = threading.local()  # several threads may ask at once
        rule = DecisionRule(stored.threshold)
        acceptance = Acceptance(
            self._judge,
            stored.judge_weights.astype(np.float64),
            stored.weights.astype(np.float64),
            rule,
            stored.survival,
            stored.config,
        )
        self._search = Search(
            acceptance,
            self._propose,
            stored.references,
            lambda count: stored.latents[:count],
            stored.margin,
            single_pass=stored.single_pass,
        )
        self._check_graphs()

    def _check_graphs(self) -> None:
        """Whether the graphs answer about such rows, and for so many models and classes."""
        x = self._search.references[0][:1]
        try:
            said = self._asked(x)
            self._propose(Query(x, np.zeros(1, np.intp), self._space), np.zeros(1, np.float32))
        except Exception as error:  # of many kinds, none of which are Python's own
            raise ArtifactError(f"The stored graphs do not fit the rows: {error}") from None
        shape = (self._n_judges + self.n_models, 1, len(self.classes))
        if said.shape != shape or not np.allclose(said.sum(axis=-1), 1.0, atol=1e-3):
            raise ArtifactError(
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
            n: Answers for each row, at most ten.
            vary: The columns that may change.
            ranges: Where values may go.
            min_prob: Probability of the target that the deployed model must give.
            max_changes: How many columns may change at once.
        """
        options = QueryOptions(n, vary, ranges, min_prob, max_changes)
        if n > MOST_ANSWERS:
            raise SettingError(f"The 'n' of a query must be at most {MOST_ANSWERS}. Got {n} instead.")
        if not rows:
            return []
        space = self._space.restrict(vary, ranges, max_changes) if options.restricts else self._space
        if space.feasible.rows not in (1, len(rows)):
            raise SchemaError(f"The query speaks of {space.feasible.rows} rows. Got {len(rows)}.")
        labels = list(target) if isinstance(target, (list, tuple)) else target
        if isinstance(labels, list):
            target_positions(labels, np.zeros(len(rows), np.intp), self.classes)
        answered: list[Row] = []
        # A few at a time: what a runtime has once taken of memory it keeps.
        for part in np.array_split(np.arange(len(rows)), -(-len(rows) * n // _AT_ONCE)):
            wanted = [labels[i] for i in part] if isinstance(labels, list) else labels
            answered += self._answer([rows[i] for i in part], wanted, space.take(part), options)
        return [row if row.index == i else replace(row, index=i) for i, row in enumerate(answered)]

    def _answer(
        self, rows: Sequence[Mapping[str, Any]], target: Any, space: TableCodes, options: QueryOptions
    ) -> list[Row]:
        """Answers to rows that fit in memory."""
        values = read_rows(self.schema, rows)
        x = space.encoding.encode(values)
        acceptance, rule = self._search.acceptance, self._search.acceptance.rule
        before = acceptance.deployed_probability(self._asked(x))
        current = rule.decide(before)
        wanted, any_will_do = target_positions(target, current, self.classes)
        query, codes = Query(x, wanted, space, options.n, options.min_prob), np.broadcast_to(x, (options.n, *x.shape))
        already = rule.valid(before, wanted, options.min_prob)
        left = np.flatnonzero(~already)
        if len(left):
            part = query.take(left)
            if any_will_do and len(self.classes) > 2:
                answers, aimed = any_class(acceptance, part, len(self.classes), self._search.answers)
                part = replace(part, target=aimed)
                wanted[left] = aimed
            else:
                answers = self._search.answers(part)
            answers = acceptance.ranked(part, answers)
            if len(left) < len(x):
                codes = codes.copy()
                codes[:, left] = answers
            else:
                codes = answers
        return self._package(rows, values, query, codes, before, current)

    def _package(
        self,
        rows: Sequence[Mapping[str, Any]],
        factuals: Values,
        query: Query,
        codes: Codes,
        before: Codes,
        current: Positions,
    ) -> list[Row]:
        """Answers as people receive them: decoded, checked once more, and with a status and a certificate.

        Args:
            rows: B rows.
            factuals: The same rows as values.
            query: The same rows encoded, with the classes that answers aim at.
            codes: (n, B, D) encoded answers.
            before: (B, C) the deployed model's probabilities for the rows.
            current: (B,) positions of the present decisions.
        """
        acceptance, n, encoding = self._search.acceptance, query.n, query.space.encoding
        per_answer, positions = query.per_answer()
        if n > 1:
            factuals = factuals.take(positions)
        flat = np.swapaxes(codes, 0, 1).reshape(len(positions), -1)
        values = per_answer.space.restore(flat, factuals)
        check_delivery(per_answer.space.violations(values, factuals).any(axis=1))
        received = encoding.encode(values)
        judged = self._asked(received)
        after = acceptance.deployed_probability(judged[: self._n_judges])
        agreeing = acceptance.rule.accepts(judged[self._n_judges :], per_answer.target).sum(axis=0)
        robust = agreeing >= needed_votes(self.n_models, self.survival)
        assessment = assess(query, received, before, after, robust, acceptance.rule)
        changed = per_answer.space.changes(values, factuals)
        status, probability = assessment.statuses.tolist(), assessment.probability.tolist()
        distance, repeated, votes = assessment.distance.tolist(), assessment.repeated.tolist(), agreeing.tolist()
        answered = []
        for i, row in enumerate(rows):
            options = []
            for k in range(i * n, i * n + n):
                answer, cells = written(encoding, row, values, changed[k], k)
                count = votes[k] if self.n_models else None
                bound = None if count is None else float(self._bounds[count])
                options.append(Option(status[k], cells, probability[k], distance[k], count, bound, repeated[k], answer))
            target, decision = self.classes[query.target[i]], self.classes[current[i]]
            answered.append(Row(i, target, tuple(options), float(assessment.probability_before[i]), decision))
        return answered

    def _propose(self, query: Query, margin: Codes, latent: Codes | None = None) -> Codes:
        """(K, B, D) feasible candidates; see `avcg.method.search.Propose`."""
        rows = len(query.x)
        shifts = self._mean if latent is None else latent
        count = len(margin) if margin.ndim > 1 else len(shifts)
        feed = {name: _repeated(part, count, rows) for name, part in query.space.coded.items()}
        feed["x"], feed["target"] = _repeated(query.x, count, rows), _repeated(query.target, count, rows)
        feed["margin"] = margin.ravel() if margin.ndim > 1 else _repeated(margin, count, rows)
        feed["noise"] = np.repeat(shifts, count * rows // len(shifts), axis=0)
        (proposed,) = self._generator.run(["answer"], feed)
        proposed = proposed.reshape(count, rows, -1)
        return query.space.finalize(proposed, query.x, None, self._search.config.code_quantum)

    def _judge(self, x: Codes) -> NDArray[Any]:
        """(S, N, C) what the judges of candidates say: the deployed models and those trained against."""
        return self._asked(x)[: self._n_judges]

    def _asked(self, x: Codes) -> NDArray[Any]:
        """(S, N, C) what every model says: the judges, and after them those held out."""
        known: tuple[Codes, Codes] | None = getattr(self._lately, "asked", None)
        if known is not None and np.array_equal(known[0], x):
            return known[1]  # what was accepted is mostly what is handed out
        (said,) = self._judges.run(["said"], {"x": x})
        self._lately.asked = (x.copy(), said)
        return np.asarray(said)


def _repeated(array: NDArray[Any], count: int, rows: int) -> NDArray[Any]:
    """One for every candidate of every row."""
    if len(array) == count * rows:
        return array
    return np.tile(array, (count * rows if len(array) == 1 else count, *[1] * (array.ndim - 1)))
