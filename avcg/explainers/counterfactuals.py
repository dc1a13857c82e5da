"""The result of a query: for every row its answers, each with a status that says whether it can be used."""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from avcg.errors import DataError, SettingError, check_int
from avcg.explainers.records import MEANING, UNCHANGED, Option, Row
from avcg.guarantees.bounds import Floats
from avcg.guarantees.certificate import Certificate
from avcg.guarantees.statement import Statement, summary
from avcg.schema.features import Categorical
from avcg.space.dummies import entries_of
from avcg.space.encoding import Flags
from avcg.space.frames import category_positions, take_rows
from avcg.space.serialize import pack_rows, to_json, unpack_rows

_FORMAT, _VERSION = "avcg.counterfactuals", 2
_SHOWN_ROWS, _SHOWN_CHANGES = 6, 4


@dataclass(frozen=True, eq=False)
class Counterfactuals:
    """Answers to B rows, n for each row: N = B n, all answers to a row one after the other.

    Attributes:
        factuals: The B rows as the user gave them.
        answers: The N answers, with the columns and dtypes of the factuals. Rows for which there is no change keep
            their values; answers that are not valid or not robust are the best that were found.
        n: Number of answers for each row.
        target: (B,) decisions to reach.
        statuses: (N,) status of each answer, a key of `avcg.explainers.records.MEANING`.
        probability: (N,) probability of the target for the answer, by the deployed model.
        probability_before: (B,) probability of the target for the factual, by the deployed model.
        distance: (N,) cost of the change, at the schema's prices.
        changed: (N, entries) whether each entry of `entries` differs from the factual; None for images.
        repeated: (N,) whether the answer is the same as an earlier one to its row, because no other was found.
        certificate: Votes of the held-out models, and what they prove; None if no models are held out.
        survival: Share of the held-out models that must accept an answer for it to be ``ok``.
        statements: What is promised to the people whose advice aims at each target; empty without calibration.
        groups: Features that are several columns of the frames.
    """

    factuals: Any
    answers: Any
    n: int
    target: NDArray[Any]
    statuses: NDArray[np.str_]
    probability: Floats
    probability_before: Floats
    distance: Floats
    changed: Flags | None
    repeated: Flags
    certificate: Certificate | None
    survival: float
    statements: tuple[Statement, ...] = ()
    groups: tuple[Categorical, ...] = ()

    def __len__(self) -> int:
        return len(self.target)

    @property
    def index(self) -> pd.Index[Any]:
        """The index of the N answers: that of the factuals for one answer each, pairs (row, answer) for several."""
        rows = self.factuals.index if isinstance(self.factuals, pd.DataFrame) else pd.RangeIndex(len(self))
        if self.n == 1:
            return rows
        levels = [rows.get_level_values(level).repeat(self.n) for level in range(rows.nlevels)]
        names = ["row" if rows.nlevels == 1 and name is None else name for name in rows.names]
        return pd.MultiIndex.from_arrays([*levels, np.tile(np.arange(self.n), len(self))], names=[*names, "answer"])

    @property
    def frame(self) -> Any:
        """The answers in the type of the factuals, with the same columns and dtypes; a pandas frame has `index`."""
        return self.answers.set_axis(self.index) if isinstance(self.answers, pd.DataFrame) else self.answers

    @property
    def status(self) -> pd.Series[Any]:
        """The status of each answer, as a series with `index`."""
        return pd.Series(self.statuses, index=self.index, name="status")

    def take(self, rows: NDArray[np.intp], n: int | None = None) -> Counterfactuals:
        """The answers to some of the rows, in the order given.

        Args:
            rows: Positions of the rows.
            n: Number of answers to keep for each row, from the first on; None: all.

        Raises:
            SettingError: If ``n`` is larger than the number of answers for each row.
        """
        count = self.n if n is None else check_int(n, "'n' of take", 1)
        if count > self.n:
            raise SettingError(
                f"The 'n' of take must be at most {self.n}, the number of answers for each row. Got {n} instead."
            )
        each = (rows[:, None] * self.n + np.arange(count)).ravel()
        return Counterfactuals(
            factuals=take_rows(self.factuals, rows),
            answers=take_rows(self.answers, each),
            n=count,
            target=self.target[rows],
            statuses=self.statuses[each],
            probability=self.probability[each],
            probability_before=self.probability_before[rows],
            distance=self.distance[each],
            changed=None if self.changed is None else self.changed[each],
            repeated=self.repeated[each],
            certificate=None if self.certificate is None else self.certificate.take(each),
            survival=self.survival,
            statements=self.statements,
            groups=self.groups,
        )

    @property
    def promise(self) -> str:
        """What is promised to these people, in words; empty without calibration."""
        return " ".join(summary(self.statements))

    def changes(self) -> pd.DataFrame:
        """A table of the changes, one line for each cell, or for each feature that is several columns.

        Returns:
            A frame with columns ``column``, ``before`` and ``after``, in user units, under the index of the answers.

        Raises:
            DataError: If the answers are images.
        """
        if self.changed is None:
            raise DataError("Images have no columns to list. Compare .frame with the factuals instead.")
        at, columns = np.nonzero(self.changed)
        names = self.entries
        before, after = (list(self.cells(frame).values()) for frame in (self.factuals, self.answers))
        return pd.DataFrame(
            {
                "column": [names[j] for j in columns],
                "before": pd.Series([before[j][i // self.n] for i, j in zip(at, columns, strict=True)], dtype=object),
                "after": pd.Series([after[j][i] for i, j in zip(at, columns, strict=True)], dtype=object),
            }
        ).set_axis(self.index[at])

    def summary(self) -> pd.Series[Any]:
        """The number of answers with each status that occurs."""
        counts = Counter(self.statuses.tolist())
        return pd.Series({name: counts[name] for name in MEANING if counts[name]}, name="answers", dtype=int)

    def __iter__(self) -> Iterator[Row]:
        """Iterate over the rows with their answers, as plain values."""
        labels = self.factuals.index if isinstance(self.factuals, pd.DataFrame) else range(len(self))
        frames = () if self.changed is None else (self.factuals, self.answers)
        cells = [(_columns(frame), self.cells(frame)) for frame in frames]
        for i, label in enumerate(labels):
            options = tuple(self._option(i, i * self.n + k, cells) for k in range(self.n))
            yield Row(label, to_json(self.target[i]), options, float(self.probability_before[i]))

    def _option(self, row: int, at: int, cells: Sequence[tuple[dict[str, list[Any]], dict[str, list[Any]]]]) -> Option:
        """The answer at a position, as plain values.

        Args:
            row: Position of the row it answers.
            at: Position among the N answers.
            cells: Values by column and by entry of the factuals, and of the answers; empty for images.
        """
        changes, values = {}, {}
        if cells and self.changed is not None:
            (_, before), (columns, after) = cells
            values = {name: column[at] for name, column in columns.items()}
            names = [self.entries[j] for j in np.flatnonzero(self.changed[at])]
            changes = {name: (before[name][row], after[name][at]) for name in names}
        certificate = self.certificate
        return Option(
            status=str(self.statuses[at]),
            changes=changes,
            probability=float(self.probability[at]),
            distance=float(self.distance[at]),
            agreeing=None if certificate is None else int(certificate.agreeing[at]),
            lower_bound=None if certificate is None else float(certificate.lower_bound[at]),
            repeated=bool(self.repeated[at]),
            row=values,
            agreeing_test=None if certificate is None else int(certificate.agreeing_test[at]),
            accepting_unchanged=_at(None if certificate is None else certificate.accepting_unchanged, at),
            harmed=_at(None if certificate is None else certificate.harmed, at),
        )

    @cached_property
    def entries(self) -> list[str]:
        """What the columns say, in their order: names of columns, and of a feature that is several columns once."""
        columns = nw.from_native(self.factuals, eager_only=True).columns
        return entries_of(self.groups, [str(name) for name in columns])

    def cells(self, frame: Any) -> dict[str, list[Any]]:
        """The plain Python values of a frame of such rows by entry; of several columns, the category they hold."""
        return {name: self.entry(frame, name) for name in self.entries}

    def entry(self, frame: Any, name: str) -> list[Any]:
        """The plain Python values of one entry of such a frame."""
        rows = nw.from_native(frame, eager_only=True)
        for feature in self.groups:
            if feature.name == name:
                labels = [*feature.categories, None]
                return [labels[position] for position in category_positions(rows, feature.with_missing()).tolist()]
        return [to_json(value) for value in rows[name].to_list()]

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in self.summary().items())
        lines = [f"{len(self)} rows, {self.n} answer{'s' * (self.n > 1)} each: {counts}"]
        for shown, row in enumerate(self):
            if shown == _SHOWN_ROWS:
                lines.append(f"... and {len(self) - shown} more rows")
                break
            for k, option in enumerate(row.options):
                repeated = "  (repeated: no other answer was found)" if self.repeated[shown * self.n + k] else ""
                lines.append(f"{row.index} -> {row.target}: {self._describe(option)}{repeated}")
        return "\n".join([*lines, *summary(self.statements)])

    __repr__ = __str__

    def _describe(self, option: Option) -> str:
        """What an answer changes, and its status and votes, in one line."""
        if option.status in UNCHANGED:
            return f"{option.status} ({MEANING[option.status]})"
        parts = [f"{name} {before} -> {after}" for name, (before, after) in option.changes.items()]
        more = f" and {len(parts) - _SHOWN_CHANGES} more" if len(parts) > _SHOWN_CHANGES else ""
        changes = ", ".join(parts[:_SHOWN_CHANGES]) + more if parts else f"distance {option.distance:.3g}"
        votes = None if self.certificate is None else option.agreement(self.certificate.n)
        return f"{changes}  [{option.status}{'' if votes is None else f', {votes}'}]"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def to_json(self) -> str:
        """The answers with all that belongs to them as JSON, with a format version; NaN becomes null."""
        certificate = None
        if self.certificate is not None:
            certificate = {part.name: _to_json(getattr(self.certificate, part.name)) for part in fields(Certificate)}
            certificate["false_discovery_rate"] = _to_json(self.certificate.false_discovery_rate(self.survival))
        return json.dumps(
            {
                "format": _FORMAT,
                "version": _VERSION,
                "n": self.n,
                "survival": self.survival,
                "factuals": pack_rows(self.factuals),
                "answers": pack_rows(self.answers),
                "target": _to_json(self.target),
                "statuses": self.statuses.tolist(),
                "probability": _to_json(self.probability),
                "probability_before": _to_json(self.probability_before),
                "distance": _to_json(self.distance),
                "changed": None if self.changed is None else self.changed.astype(int).tolist(),
                "repeated": self.repeated.astype(int).tolist(),
                "certificate": certificate,
                "statements": [statement.to_dict() for statement in self.statements],
                "groups": [
                    {"name": f.name, "categories": f.categories, "ordered": f.ordered, "columns": f.columns}
                    for f in self.groups
                ],
            },
            allow_nan=False,
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> Counterfactuals:
        """Read the JSON that `to_json` wrote; frames come back as pandas.

        Args:
            text: The JSON.

        Raises:
            DataError: If it is something else, damaged, or of a newer format version.
        """
        try:
            stored = json.loads(text)
            is_ours = stored["format"] == _FORMAT
        except (ValueError, TypeError, KeyError):
            is_ours = False
        if not is_ours:
            raise DataError("This is not a JSON of counterfactuals. Give the text that Counterfactuals.to_json wrote.")
        version = stored.get("version")
        if not isinstance(version, int):
            raise DataError(
                f"The format version of these answers must be a whole number. Got {version!r} instead. Store the"
                " answers again."
            )
        if version < _VERSION:
            raise DataError(
                f"These answers have format version {version}, and this avcg reads version {_VERSION}. Make them again."
            )
        if version > _VERSION:
            raise DataError(
                f"These answers have format version {version}, and this avcg reads versions up to {_VERSION}. Install"
                " a newer avcg."
            )
        try:
            certificate = stored["certificate"]
            return cls(
                factuals=unpack_rows(stored["factuals"]),
                answers=unpack_rows(stored["answers"]),
                n=int(stored["n"]),
                survival=float(stored["survival"]),
                changed=None if stored["changed"] is None else np.array(stored["changed"], bool),
                repeated=np.array(stored["repeated"], bool),
                certificate=None if certificate is None else _certificate(certificate),
                target=np.array(stored["target"]),
                statuses=np.array(stored["statuses"], np.str_),
                probability=_floats(stored["probability"]),
                probability_before=_floats(stored["probability_before"]),
                distance=_floats(stored["distance"]),
                statements=tuple(Statement.from_dict(entry) for entry in stored["statements"]),
                groups=tuple(Categorical(**entry) for entry in stored.get("groups", ())),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"These answers are incomplete or damaged: {error}. Store the answers again.") from None


def _columns(frame: Any) -> dict[str, list[Any]]:
    """The plain Python values of a frame by column."""
    columns = nw.from_native(frame, eager_only=True)
    return {str(name): [to_json(value) for value in columns[name].to_list()] for name in columns.columns}


def _at(counts: NDArray[np.int64] | None, at: int) -> int | None:
    return None if counts is None else int(counts[at])


def _certificate(stored: dict[str, Any]) -> Certificate:
    """A certificate from its fields as `Counterfactuals.to_json` wrote them."""
    return Certificate(
        n=int(stored["n"]),
        agreeing=np.array(stored["agreeing"], np.int64),
        n_test=int(stored["n_test"]),
        agreeing_test=np.array(stored["agreeing_test"], np.int64),
        lower_bound=_floats(stored["lower_bound"]),
        confidence=float(stored["confidence"]),
        **{
            name: np.array(stored[name], np.int64)
            for name in ("accepting_unchanged", "harmed")
            if stored.get(name) is not None
        },
    )


def _to_json(values: Any) -> Any:
    """An array as a list of plain values; anything else as it is."""
    return [to_json(value) for value in values] if isinstance(values, np.ndarray) else values


def _floats(values: list[float | None]) -> Floats:
    """Numbers from JSON, where null stands for NaN."""
    return np.array([np.nan if value is None else value for value in values], np.float64)
