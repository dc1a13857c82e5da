"""Engines of the service: objects with a schema that answer rows given as dictionaries."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from avcg.errors import ArtifactError, AvcgError, DataError, SettingError
from avcg.explainers.records import Row
from avcg.guarantees.statement import Statement
from avcg.method.config import SearchConfig
from avcg.method.query import Effort, QueryOptions
from avcg.schema.features import Categorical, Continuous, Feature, columns_of, to_python
from avcg.schema.schema import Schema
from avcg.space.constraints import FeasibleSet
from avcg.space.encoding import Encoding
from avcg.space.reading import read_rows

if TYPE_CHECKING:
    from avcg.explainers.avcg import AVCG
    from avcg.explainers.base import Explainer

_MAX_EXACT = 2**53  # integers up to here are exact in a float64


class Engine(Protocol):
    """What the service requires of an engine. Several threads may call it at the same time.

    Attributes:
        schema: Schema of the columns.
        encoding: Encoding of rows, with the ranges of the training rows.
        feasible: Feasible set: the schema's, or a smaller one if the explainer was restricted.
        classes: Labels of the classes.
        survival: Share of the held-out models that must accept an answer for it to be ``ok``.
        confidence: Confidence of lower bounds.
        n_models: Number of models held back from training that certify answers; 0: answers have no certificate.
        n_test: Number of test models among them, which prove lower bounds.
        typicality: How typical answers are where a request does not say, in [0, 1].
        assumption: How the next model is made, in words; None: unknown.
    """

    schema: Schema
    encoding: Encoding
    feasible: FeasibleSet
    classes: list[Any]
    survival: float
    confidence: float
    n_models: int
    n_test: int
    typicality: float
    assumption: str | None

    def statements(self, options: QueryOptions | None = None, *, any_class: bool = False) -> list[Statement]:
        """What is promised to the people who are answered, one statement for each target class.

        Args:
            options: What is asked for; None: one answer without restrictions.
            any_class: Whether any class other than the present one will do.
        """

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
        effort: Effort = "standard",
        typicality: float | None = None,
    ) -> list[Row]:
        """Find changes after which the decision of each row is the target.

        Args:
            rows: Rows with every column of the schema and no other; None stands for a missing value.
            target: Label of the decision wanted; None: any other than the present one.
            n: Number of answers for each row.
            vary: Columns that may change; None: all that the schema allows.
            ranges: Values that answers may take, by column: a pair of bounds, either of which may be None, or a list of
                categories; None: all that the schema allows.
            min_prob: Probability of the target that the deployed model must give; None: enough for its decision.
            max_changes: Largest number of features that may change at once; None: as in the schema.
            effort: Work spent on closer answers: ``"fast"``, ``"standard"`` or ``"thorough"``.
            typicality: How typical answers are, from 0, the nearest, to 1, like the people who were accepted; None: as
                in `typicality` of the engine.

        Returns:
            One entry for each row, with its present decision.

        Raises:
            AvcgError: If the rows or the options are invalid. The message names the column or the option.
        """


class ExplainerEngine:
    """A fitted explainer as an engine.

    Args:
        explainer: A fitted explainer of tables.
        assumption: How the next model is made, in words; None: unknown.

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
            raise SettingError("The service answers rows of tables. This is an explainer of images.")
        self._explainer = explainer
        self.encoding, self.feasible = table.encoding, table.feasible
        self.schema = self.encoding.schema
        self.classes = [to_python(label) for label in explainer.classes_]
        self.survival = explainer.promise_.survival
        self.confidence = SearchConfig().confidence
        held_out = explainer.split_.held_out
        self.n_models = 0 if held_out is None else len(held_out)
        self.n_test = explainer.split_.n_test
        self.typicality = explainer.typicality
        self.assumption = assumption

    def statements(self, options: QueryOptions | None = None, *, any_class: bool = False) -> list[Statement]:
        """What is promised to the people who are answered; see `Engine.statements`."""
        return self._explainer.statements(options, any_class=any_class)

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
        effort: Effort = "standard",
        typicality: float | None = None,
    ) -> list[Row]:
        """Find changes after which the decision of each row is the target; see `Engine.answer`."""
        self.encoding.encode(read_rows(self.schema, rows))  # its errors name the column; those of pandas do not
        frame = _frame(self.schema, rows)
        options = QueryOptions(n, vary, ranges, min_prob, max_changes, effort, typicality)
        answers = self._explainer.query(frame, target, options)
        decisions = self._explainer.decide(frame)
        return [replace(row, decision=to_python(label)) for row, label in zip(answers, decisions, strict=True)]


Auditor = Callable[[bytes], str]


def open_engine(path: str) -> tuple[Engine, Auditor]:
    """Open a stored explainer as an engine, and an auditor of its answers.

    If the folder has graphs, answers come from them: the service starts at once, and loads torch at the first audit.

    Args:
        path: Folder that `AVCG.save` wrote.

    Raises:
        ArtifactError: If the folder is missing, changed or of another format version.
    """
    from avcg.io.folder import FORMAT, VERSION, read_manifest, stored_notes
    from avcg.io.scorer import Scorer

    manifest = read_manifest(path, FORMAT, VERSION)
    assumption = stored_notes(path, manifest).get("assumption")
    loaded: list[AVCG] = []

    def explainer() -> AVCG:
        """The stored explainer, loaded once; the folder must still have the content that the engine answers from."""
        from avcg.io.artifact import load

        if not loaded:
            if read_manifest(path, FORMAT, VERSION)["sha256"] != manifest["sha256"]:
                raise ArtifactError("Another explainer was saved to the folder. Start the service again.")
            loaded.append(load(path))
        return loaded[0]

    engine = Scorer(path) if "scorer" in manifest else ExplainerEngine(explainer(), assumption)
    return engine, auditor_of(explainer)


def auditor_of(explainer: Callable[[], Explainer]) -> Auditor:
    """A function that audits stored answers under the explainer's deployed model and replaces lost ones.

    It takes answers as `Counterfactuals.to_json` writes them, and returns an audit as `Audit.to_json` does.

    Args:
        explainer: Function that returns the fitted explainer, called at each audit.
    """

    def audit_answers(answers: bytes) -> str:
        from avcg.auditing.audit import audit
        from avcg.explainers.counterfactuals import Counterfactuals
        from avcg.hypotheses.finite import FiniteSet

        fitted = explainer()
        try:
            delivered = Counterfactuals.from_json(answers)
            for rows in (delivered.factuals, delivered.answers):
                fitted.space_.encode(rows)
        except AvcgError:
            raise
        except Exception as error:  # pandas raises errors of many kinds for tables made by hand
            raise DataError(f"These answers are incomplete or damaged ({type(error).__name__}).") from None
        model = FiniteSet(fitted.split_.deployed, fitted.space_, fitted.classes_)
        return audit(delivered, model, recourse=fitted, threshold=fitted.deployed_.threshold).to_json()

    return audit_answers


def _frame(schema: Schema, rows: Sequence[Mapping[str, Any]]) -> Any:
    """Rows as a pandas frame with the dtypes that the schema implies."""
    import pandas as pd

    columns: dict[str, Any] = {}
    for feature in schema.features:
        own = {name: [row[name] for row in rows] for name in columns_of(feature)}
        if isinstance(feature, Categorical) and feature.columns is not None:
            columns |= {name: pd.Series(cells) for name, cells in own.items()}
        else:
            columns[feature.name] = _column(feature, own[feature.name])
    kept = [name for name in schema.kept if any(name in row for row in rows)]
    columns |= {name: pd.Series([row.get(name) for row in rows], dtype=object) for name in kept}
    return pd.DataFrame(columns)


def _column(feature: Feature, cells: list[Any]) -> Any:
    import numpy as np

    missing = any(cell is None for cell in cells)
    if isinstance(feature, Continuous):
        integral = feature.step is not None and float(feature.step).is_integer() and not missing
        if integral and all(float(cell).is_integer() and abs(cell) <= _MAX_EXACT for cell in cells):
            return np.array(cells, np.int64)
        return np.array([math.nan if cell is None else cell for cell in cells], np.float64)
    types = {type(value) for value in feature.categories}
    uniform = len(types) == 1 and str not in types and not missing
    column = np.empty(len(cells), types.pop() if uniform else object)
    column[:] = cells
    return column
