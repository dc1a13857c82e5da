"""Answers from a stored explainer with numpy and onnxruntime alone, without torch and pandas, in half a second.

They come from `avcg.method.search.Search`, as everywhere. Its two ports are the ONNX graphs that
``save(path, graphs=True)`` adds to the folder.
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
from avcg.guarantees.statement import Statement
from avcg.io.folder import FORMAT, VERSION, read_folder, read_manifest, stored_notes
from avcg.io.spaces import open_graph, unpack_scored
from avcg.io.tensors import read_tensors
from avcg.method.acceptance import Acceptance, any_class
from avcg.method.delivery import assess, check_delivery, needed_votes
from avcg.method.query import Effort, Query, QueryOptions, target_positions
from avcg.method.reachability import proven_unreachable
from avcg.method.search import Search
from avcg.models.decision import DecisionRule
from avcg.schema.schema import Schema
from avcg.space.codes import TableCodes
from avcg.space.constraints import Ranges, Vary
from avcg.space.encoding import Codes, Flags, Positions, Values
from avcg.space.reading import read_rows
from avcg.space.records import answer_as_dict

_MAX_GROUP_ANSWERS = 512  # answered together, since a runtime never returns memory that it once took
GENERATOR, JUDGES, TABLES = "generator.onnx", "judges.onnx", "scorer.safetensors"


class Scorer:
    """A stored explainer that gives the answers of the loaded one, to rows given as dictionaries.

    Args:
        path: Folder of an explainer that was saved with ``graphs=True``.
        threads: Number of threads that one call may use.

    Attributes:
        schema: Schema of the columns.
        encoding: Encoding of rows.
        feasible: Feasible set of the explainer.
        classes: Labels of the classes.
        survival: Share of the held-out models that must accept an answer for it to be ``ok``.
        confidence: Confidence of lower bounds.
        n_models: Number of models held back from training that certify answers; 0: answers have no certificate.
        n_test: Number of test models among them.
        typicality: How typical answers are where a query does not say, in [0, 1].
        assumption: Note on how the next model is made, saved with the explainer; None: there is none.

    Raises:
        ArtifactError: If the folder is missing, changed or of another format version, or has no graphs.
    """

    def __init__(self, path: str | Path, *, threads: int = 1) -> None:
        if "scorer" not in read_manifest(path, FORMAT, VERSION):
            raise ArtifactError(
                f"{path} has no graphs to answer from. Save the explainer with save(path, graphs=True). That needs the"
                " extra 'onnx', and models that are networks."
            )
        manifest, files = read_folder(path, FORMAT, VERSION, (GENERATOR, JUDGES, TABLES))
        stored = unpack_scored(manifest, read_tensors(files[TABLES]))
        self.encoding, self.feasible, self.classes = stored.encoding, stored.feasible, stored.classes
        self._space = TableCodes(stored.encoding, stored.feasible)
        self._bounds = stored.bounds
        self.schema: Schema = stored.encoding.schema
        self.survival, self.confidence = stored.survival, stored.config.confidence
        self.n_models, self.n_test = stored.n_held_out, len(stored.bounds) - 1
        self._statements, self.typicality, self._linear = stored.statements, stored.typicality, stored.linear
        self.assumption: str | None = stored_notes(path, manifest).get("assumption")
        self._generator, self._judges = (open_graph(files[name], threads) for name in (GENERATOR, JUDGES))
        self._mean_latent, self._n_judges = np.zeros_like(stored.latents[:1]), len(stored.judge_weights)
        self._last_call = threading.local()  # several threads may call at the same time
        rule = DecisionRule(stored.threshold)
        acceptance = Acceptance(
            self._judge,
            stored.judge_weights.astype(np.float64),
            stored.weights.astype(np.float64),
            rule,
            stored.survival,
            stored.spread,
            stored.config,
        )
        self._search = Search(
            acceptance,
            self._propose,
            stored.references,
            lambda count: stored.latents[:count],
            stored.margins["fast"],
            single_pass=stored.single_pass,
            n_typical=stored.n_typical,
        )
        self._margins = stored.margins
        self._check_graphs()

    def statements(self, options: QueryOptions | None = None, *, any_class: bool = False) -> list[Statement]:
        """What is promised to the people who are answered, one statement for each target class.

        Args:
            options: What is asked for; None: one answer without restrictions.
            any_class: Whether any class other than the present one will do.
        """
        options = options or QueryOptions()
        statements = list(self._statements.get(options.effort, self._statements["fast"]).values())
        by_effort = options.effort in self._statements or options.effort != "thorough"
        calibrated = by_effort and options.is_calibrated(self.typicality)
        if not calibrated or (any_class and len(self.classes) > 2):
            return [each.not_for_this_query() for each in statements]
        return statements

    def _check_graphs(self) -> None:
        """Check that the graphs accept encoded rows, and give probabilities of all models and classes."""
        x = self._search.references[0][:1]
        try:
            probabilities = self._probabilities(x)
            self._propose(Query(x, np.zeros(1, np.intp), self._space), np.zeros(1, np.float32))
        except Exception as error:  # onnxruntime has exceptions of its own
            raise ArtifactError(f"The stored graphs do not accept the rows of the explainer: {error}") from None
        shape = (self._n_judges + self.n_models, 1, len(self.classes))
        if probabilities.shape != shape or not np.allclose(probabilities.sum(axis=-1), 1.0, atol=1e-3):
            raise ArtifactError(
                f"The stored judges should give probabilities of {shape[0]} models and {shape[2]} classes for each row."
                f" Got an array of shape {probabilities.shape} for one row."
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
        effort: Effort = "standard",
        typicality: float | None = None,
    ) -> list[Row]:
        """Find changes after which the decision is the target; see `Explainer.generate`.

        Args:
            rows: Rows, each with a value for every column.
            target: Label wanted for all rows, or a list with one for each row; None: any other than the present one.
            n: Number of answers for each row, at most ten; 1 by default.
            vary: Columns that may change; None: all that the schema allows.
            ranges: Values that answers may take, by column; None: all that the schema allows.
            min_prob: Probability of the target that the deployed model must give; None: enough for its decision.
            max_changes: Largest number of columns that may change at once; None: as in the schema.
            effort: Work spent on closer answers: ``"fast"``, ``"standard"`` or ``"thorough"``.
            typicality: How typical answers are, from 0, the nearest, to 1, like the people who were accepted; None: the
                recipe's default.

        Returns:
            One entry for each row.

        Raises:
            AvcgError: If the rows or the options are invalid. The message names the column or the option.
        """
        options = QueryOptions(n, vary, ranges, min_prob, max_changes, effort, typicality)
        if n > MOST_ANSWERS:
            raise SettingError(f"The 'n' of a query must be at most {MOST_ANSWERS}. Got {n} instead.")
        if not rows:
            return []
        space = self._space.restrict(vary, ranges, max_changes) if options.restricts else self._space
        if space.feasible.rows not in (1, len(rows)):
            raise SchemaError(f"The restrictions are for {space.feasible.rows} rows. Got {len(rows)} rows.")
        labels = list(target) if isinstance(target, (list, tuple)) else target
        if isinstance(labels, list):
            target_positions(labels, np.zeros(len(rows), np.intp), self.classes)
        answered: list[Row] = []
        for group in np.array_split(np.arange(len(rows)), -(-len(rows) * n // _MAX_GROUP_ANSWERS)):
            targets = [labels[i] for i in group] if isinstance(labels, list) else labels
            answered += self._answer_group([rows[i] for i in group], targets, space.take(group), options)
        return [row if row.index == i else replace(row, index=i) for i, row in enumerate(answered)]

    def _answer_group(
        self, rows: Sequence[Mapping[str, Any]], target: Any, space: TableCodes, options: QueryOptions
    ) -> list[Row]:
        values = read_rows(self.schema, rows)
        x = space.encoding.encode(values)
        acceptance, rule = self._search.acceptance, self._search.acceptance.rule
        everything = self._probabilities(x)
        before = acceptance.deployed_probability(everything)
        current = rule.decide(before)
        targets, any_other = target_positions(target, current, self.classes)
        query = options.query(x, targets, space, self.typicality)
        codes = np.broadcast_to(x, (options.n, *x.shape))
        unanswered = np.flatnonzero(~(rule.valid(before, targets, options.min_prob) | space.immovable(x)))
        if len(unanswered):
            part, search = query.take(unanswered), self._search_of(options.effort)
            if any_other and len(self.classes) > 2:
                answers, best_targets = any_class(acceptance, part, len(self.classes), search.answers)
                part = replace(part, target=best_targets)
                targets[unanswered] = best_targets
            else:
                answers = search.answers(part)
            if len(unanswered) < len(x):
                codes = codes.copy()
                codes[:, unanswered] = answers
            else:
                codes = answers
        unchanged = rule.accepts(everything[self._n_judges :], query.target)
        return self._package(rows, values, query, codes, before, unchanged, current)

    def _search_of(self, effort: Effort) -> Search:
        """The search at the margins calibrated for an effort."""
        return replace(self._search, margin=self._margins.get(effort, self._margins["fast"]))

    def _package(
        self,
        rows: Sequence[Mapping[str, Any]],
        factuals: Values,
        query: Query,
        codes: Codes,
        before: Codes,
        unchanged: Flags,
        current: Positions,
    ) -> list[Row]:
        """Answers as people receive them: decoded, checked once more, and with a status and a certificate.

        Args:
            rows: B rows.
            factuals: The same rows as values.
            query: The same rows encoded, with the classes that answers aim at.
            codes: (n, B, D) encoded answers.
            before: (B, C) the deployed model's probabilities for the rows.
            unchanged: (S, B) whether each held-out model decides for the target without any change.
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
        judged = self._probabilities(received)
        after = acceptance.deployed_probability(judged[: self._n_judges])
        accepts = acceptance.rule.accepts(judged[self._n_judges :], per_answer.target)
        harmed = (unchanged[:, positions] & ~accepts).sum(axis=0).tolist()
        waiting = unchanged.sum(axis=0).tolist()
        agreeing, tested = accepts.sum(axis=0), accepts[self.n_models - self.n_test :].sum(axis=0).tolist()
        robust = agreeing >= needed_votes(self.n_models, self.survival)
        assessment = assess(query, received, before, after, robust, acceptance.rule, self._unreachable)
        changed = per_answer.space.changes(values, factuals)
        status, probability = assessment.statuses.tolist(), assessment.probability.tolist()
        distance, repeated, votes = assessment.distance.tolist(), assessment.repeated.tolist(), agreeing.tolist()
        answered = []
        for i, row in enumerate(rows):
            options = []
            for k in range(i * n, i * n + n):
                answer, cells = answer_as_dict(encoding, row, values, changed[k], k)
                count = votes[k] if self.n_models else None
                bound = None if count is None else float(self._bounds[tested[k]])
                among_test = None if count is None else tested[k]
                idle, harm = (None, None) if count is None else (waiting[i], harmed[k])
                options.append(
                    Option(
                        status[k], cells, probability[k], distance[k], count, bound, repeated[k], answer, among_test,
                        idle, harm,
                    )
                )  # fmt: skip
            target, decision = self.classes[query.target[i]], self.classes[current[i]]
            answered.append(Row(i, target, tuple(options), float(assessment.probability_before[i]), decision))
        return answered

    def _unreachable(self, query: Query) -> Flags:
        """(B,) whether it is proven that no feasible point of a row makes the decision the target."""
        acceptance = self._search.acceptance
        return proven_unreachable(
            query,
            lambda x: acceptance.deployed_probability(self._judge(x)),
            acceptance.rule,
            linear=self._linear,
        )

    def _propose(self, query: Query, margin: Codes, latent: Codes | None = None) -> Codes:
        """(K, B, D) feasible candidates; see `avcg.method.search.Propose`."""
        rows = len(query.x)
        noise = self._mean_latent if latent is None else latent
        count = len(margin) if margin.ndim > 1 else len(noise)
        feed = {name: _repeated(array, count, rows) for name, array in query.space.coded.items()}
        feed["x"], feed["target"] = _repeated(query.x, count, rows), _repeated(query.target, count, rows)
        feed["typicality"] = np.full(count * rows, query.typicality, np.float32)
        feed["margin"] = margin.ravel() if margin.ndim > 1 else _repeated(margin, count, rows)
        feed["noise"] = np.repeat(noise, count * rows // len(noise), axis=0)
        (proposed,) = self._generator.run(["candidates"], feed)
        proposed = proposed.reshape(count, rows, -1)
        return query.space.finalize(proposed, query.x, None, self._search.config.code_quantum)

    def _judge(self, x: Codes) -> NDArray[Any]:
        """(S, N, C) probabilities of the judges of candidates: the deployed models and the training hypotheses."""
        return self._probabilities(x)[: self._n_judges]

    def _probabilities(self, x: Codes) -> NDArray[Any]:
        """(S, N, C) probabilities of every model: the judges, followed by the held-out models."""
        last: tuple[Codes, Codes] | None = getattr(self._last_call, "result", None)
        if last is not None and np.array_equal(last[0], x):
            return last[1]  # the candidates that were accepted last are usually delivered unchanged
        (probabilities,) = self._judges.run(["probabilities"], {"x": x})
        self._last_call.result = (x.copy(), probabilities)
        return np.asarray(probabilities)


def _repeated(array: NDArray[Any], count: int, rows: int) -> NDArray[Any]:
    """Repeat an array so that it has one entry for every candidate of every row."""
    if len(array) == count * rows:
        return array
    return np.tile(array, (count * rows if len(array) == 1 else count, *[1] * (array.ndim - 1)))
