"""Who answers behind the service: anything with a schema that turns rows given as dicts into answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from avcg.errors import ArtifactError, AvcgError, DataError, SettingError
from avcg.explainers.records import Row
from avcg.method.config import SearchConfig
from avcg.schema.features import Continuous, Feature, to_python
from avcg.schema.schema import Schema
from avcg.space.constraints import FeasibleSet
from avcg.space.encoding import Encoding
from avcg.space.reading import read_rows

if TYPE_CHECKING:
    from avcg.explainers.avcg import AVCG
    from avcg.explainers.base import Explainer

# Whole numbers up to here are told apart by a float64, so that an answer comes back as it was meant.
_EXACT = 2**53


class Engine(Protocol):
    """What the service needs to know and to ask. It is asked from several threads at once, and must bear it.

    Attributes:
        schema: What the columns are and what may change.
        encoding: The scaling of the training rows: where their numbers lie.
        feasible: What may change: what the schema says, or less where the explainer was told less.
        classes: The labels.
        survival: The share of models that was promised to agree with an answer.
        confidence: Of lower bounds.
        n_models: Models set aside that certificates ask; 0 where there are none.
        assumption: What is known of how these came about; None: nothing.
    """

    schema: Schema
    encoding: Encoding
    feasible: FeasibleSet
    classes: list[Any]
    survival: float
    confidence: float
    n_models: int
    assumption: str | None

    def answer(
        self,
        rows: Sequence[Mapping[str, Any]],
        target: Any = None,
        *,
        n: int = 1,
        vary: Sequence[str] | None = None,
        ranges: Mapping[str, Any] | None = None,
        min_prob: float | None = None,
        max_changes: int | None = None,
    ) -> list[Row]:
        """One entry for each row, with its present decision.

        Args:
            rows: Every column of the schema, and no other; None where a value is missing.
            target: The decision wanted; None: any other than the present one.
            n: Answers for each row.
            vary: The columns that may change; None: all that the schema lets.
            ranges: By column, where an answer may go: (low, high), either side None, or a list of categories.
            min_prob: The probability of the target that the model in force must give.
            max_changes: How many features may change at once.

        Raises:
            AvcgError: If the rows or the request cannot be meant, with the column and the reason.
        """


class ExplainerEngine:
    """A fitted explainer as an engine.

    Args:
        explainer: Over tables.
        assumption: What is known of how its set-aside models came about.

    >>> from avcg import BlackBox, PointMass, toys
    >>> from avcg.baselines.nearest import NearestUnlike
    >>> X = toys.loans(n=200).X
    >>> rule = BlackBox(lambda rows: (rows["income"] > 50) * 1.0, X, classes=["no", "yes"])
    >>> engine = ExplainerEngine(NearestUnlike(PointMass(rule)).fit(X))
    >>> row = {"income": 40, "months": 12, "owns": False, "housing": "rent", "rating": "fair"}
    >>> answer = engine.answer([row], vary=["income"])[0]
    >>> answer.decision, answer.target, list(answer.changes)
    ('no', 'yes', ['income'])
    """

    def __init__(self, explainer: Explainer, assumption: str | None = None) -> None:
        from avcg.space.tabular import table_of

        table = table_of(explainer.space_)
        if table is None:
            raise SettingError("The service answers about rows of a table. This explainer reads images.")
        self._explainer = explainer
        self.encoding, self.feasible = table.encoding, table.feasible
        self.schema = self.encoding.schema
        self.classes = [to_python(label) for label in explainer.classes_]
        self.survival = explainer.survival
        self.confidence = SearchConfig().confidence
        fresh = explainer.split_.test
        self.n_models = 0 if fresh is None else len(fresh)
        self.assumption = assumption

    def answer(
        self,
        rows: Sequence[Mapping[str, Any]],
        target: Any = None,
        *,
        n: int = 1,
        vary: Sequence[str] | None = None,
        ranges: Mapping[str, Any] | None = None,
        min_prob: float | None = None,
        max_changes: int | None = None,
    ) -> list[Row]:
        """One entry for each row; see `Engine.answer`."""
        self.encoding.encode(read_rows(self.schema, rows))  # what does not fit is refused before pandas sees it
        frame = _frame(self.schema, rows)
        found = self._explainer.generate(
            frame, target, n=n, vary=vary, ranges=ranges, min_prob=min_prob, max_changes=max_changes
        )
        decisions = self._explainer.decide(frame)
        return [replace(row, decision=to_python(label)) for row, label in zip(found, decisions, strict=True)]


Auditor = Callable[[bytes], str]


def open_engine(path: str) -> tuple[Engine, Auditor]:
    """Who answers from a folder, and who audits.

    Where the folder has graphs, answers come from them, in a process that starts at once and has no need of torch
    until somebody asks for an audit.

    Args:
        path: A folder that `AVCG.save` wrote.
    """
    from avcg.io.folder import FORMAT, VERSION, read_manifest, stored_notes
    from avcg.io.scorer import Scorer

    manifest = read_manifest(path, FORMAT, VERSION)
    assumption = stored_notes(path, manifest).get("assumption")
    loaded: list[AVCG] = []

    def explainer() -> AVCG:
        """The one that answers, however the folder has changed since."""
        from avcg.io.artifact import load

        if not loaded:
            if read_manifest(path, FORMAT, VERSION)["sha256"] != manifest["sha256"]:
                raise ArtifactError("Another explainer lies in the folder by now. Start the service again.")
            loaded.append(load(path))
        return loaded[0]

    engine = Scorer(path) if "scorer" in manifest else ExplainerEngine(explainer(), assumption)
    return engine, auditor_of(explainer)


def auditor_of(explainer: Callable[[], Explainer]) -> Auditor:
    """From what `Counterfactuals.to_json` wrote to what `Audit.to_json` writes, under the explainer's own model.

    Lost answers are replaced by the explainer where it can.

    Args:
        explainer: How to come by it, once somebody asks.
    """

    def judged(answers: bytes) -> str:
        from avcg.auditing.audit import audit
        from avcg.explainers.counterfactuals import Counterfactuals
        from avcg.hypotheses.finite import FiniteSet

        mine = explainer()
        try:
            delivered = Counterfactuals.from_json(answers)
            for rows in (delivered.factuals, delivered.answers):
                mine.space_.encode(rows)
        except AvcgError:
            raise
        except Exception as error:  # a table made by hand can break a frame in many ways; none of them is our bug
            raise DataError(f"These answers are incomplete or damaged ({type(error).__name__}).") from None
        model = FiniteSet(mine.split_.deployed, mine.space_, mine.classes_)
        return audit(delivered, model, recourse=mine, threshold=mine.threshold).to_json()

    return judged


def _frame(schema: Schema, rows: Sequence[Mapping[str, Any]]) -> Any:
    """Rows as a frame with the dtypes that the schema implies."""
    import pandas as pd

    return pd.DataFrame(
        {feature.name: _column(feature, [row[feature.name] for row in rows]) for feature in schema.features}
    )


def _column(feature: Feature, cells: list[Any]) -> Any:
    import numpy as np

    gaps = any(cell is None for cell in cells)
    if isinstance(feature, Continuous):
        whole = feature.step is not None and float(feature.step).is_integer() and not gaps
        if whole and all(float(cell).is_integer() and abs(cell) <= _EXACT for cell in cells):
            return np.array(cells, np.int64)
        return np.array([math.nan if cell is None else cell for cell in cells], np.float64)
    kinds = {type(value) for value in feature.categories}
    uniform = len(kinds) == 1 and str not in kinds and not gaps
    column = np.empty(len(cells), kinds.pop() if uniform else object)
    column[:] = cells
    return column
