"""What people receive: for every row an answer, or the reason why there is none."""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from avcg.errors import DataError, SettingError, check_int
from avcg.explainers.records import MEANING, Option, Row, at_least
from avcg.guarantees.bounds import Floats
from avcg.guarantees.certificate import Certificate
from avcg.space.encoding import Flags
from avcg.space.frames import take_rows
from avcg.space.serialize import pack_rows, to_json, unpack_rows

_FORMAT, _VERSION = "avcg.counterfactuals", 1
_SHOWN_ROWS, _SHOWN_CHANGES = 6, 4


@dataclass(frozen=True, eq=False)
class Counterfactuals:
    """Answers for B rows, n each: N = B n, all answers of a row one after the other.

    Attributes:
        factuals: The B rows as they came.
        answers: The N answers, columns and dtypes as in the factuals. Rows without an answer keep their own values;
            those not valid or not robust have the best found.
        n: Answers a row.
        target: (B,) the decisions asked for.
        statuses: (N,) one of `MEANING`.
        probability: (N,) of the target under the model in force, for the answer.
        probability_before: (B,) the same for the factual.
        distance: (N,) what the change costs at the schema's prices.
        changed: (N, columns) which cells differ; None for images.
        repeated: (N,) answers that are the same as an earlier one of their row, for want of another.
        certificate: What the set-aside models say; None where there are none.
        survival: The share of models that was promised.
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

    def __len__(self) -> int:
        return len(self.target)

    @property
    def index(self) -> pd.Index[Any]:
        """Of the N answers: the user's own for one answer a row, (row, answer) for more."""
        own = self.factuals.index if isinstance(self.factuals, pd.DataFrame) else pd.RangeIndex(len(self))
        if self.n == 1:
            return own
        levels = [own.get_level_values(level).repeat(self.n) for level in range(own.nlevels)]
        names = ["row" if own.nlevels == 1 and name is None else name for name in own.names]
        return pd.MultiIndex.from_arrays([*levels, np.tile(np.arange(self.n), len(self))], names=[*names, "answer"])

    @property
    def frame(self) -> Any:
        """The answers as the rows came: same columns and dtypes; see `index` for more than one answer a row."""
        return self.answers.set_axis(self.index) if isinstance(self.answers, pd.DataFrame) else self.answers

    @property
    def status(self) -> pd.Series[Any]:
        """One for each answer."""
        return pd.Series(self.statuses, index=self.index, name="status")

    def take(self, rows: NDArray[np.intp], n: int | None = None) -> Counterfactuals:
        """Some rows in the order given, with their first answers.

        Args:
            rows: Their positions.
            n: Answers a row; None: all.

        Raises:
            SettingError: If there are not so many answers a row.
        """
        count = self.n if n is None else check_int(n, "'n' of take", 1)
        if count > self.n:
            raise SettingError(f"The 'n' of take must be at most {self.n}, as many as there are. Got {n} instead.")
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
        )

    def changes(self) -> pd.DataFrame:
        """Only what differs: one line for each changed cell, with what it was and what it becomes.

        Returns:
            Columns ``column``, ``before`` and ``after`` (as the user's values) under the index of the answers.
        """
        if self.changed is None:
            raise DataError("Images have no columns to list. Look at .frame beside the factuals.")
        at, columns = np.nonzero(self.changed)
        names = self._names
        before, after = self._cells(self.factuals), self._cells(self.answers)
        return pd.DataFrame(
            {
                "column": [names[j] for j in columns],
                "before": pd.Series([before[j][i // self.n] for i, j in zip(at, columns, strict=True)], dtype=object),
                "after": pd.Series([after[j][i] for i, j in zip(at, columns, strict=True)], dtype=object),
            }
        ).set_axis(self.index[at])

    def summary(self) -> pd.Series[Any]:
        """How many answers there are of each status."""
        counts = Counter(self.statuses.tolist())
        return pd.Series({name: counts[name] for name in MEANING if counts[name]}, name="answers", dtype=int)

    def __iter__(self) -> Iterator[Row]:
        """Row by row."""
        own = self.factuals.index if isinstance(self.factuals, pd.DataFrame) else range(len(self))
        cells = None if self.changed is None else (self._cells(self.factuals), self._cells(self.answers))
        for i, label in enumerate(own):
            options = tuple(self._option(i, i * self.n + k, cells) for k in range(self.n))
            yield Row(label, to_json(self.target[i]), options, float(self.probability_before[i]))

    def _option(self, row: int, at: int, cells: tuple[list[Any], list[Any]] | None) -> Option:
        changes, whole = {}, {}
        if cells is not None and self.changed is not None:
            names = self._names
            whole = {name: cells[1][j][at] for j, name in enumerate(names)}
            changes = {names[j]: (cells[0][j][row], cells[1][j][at]) for j in np.flatnonzero(self.changed[at])}
        sure = self.certificate
        return Option(
            status=str(self.statuses[at]),
            changes=changes,
            probability=float(self.probability[at]),
            distance=float(self.distance[at]),
            agreeing=None if sure is None else int(sure.agreeing[at]),
            lower_bound=None if sure is None else float(sure.lower_bound[at]),
            repeated=bool(self.repeated[at]),
            row=whole,
        )

    @property
    def _names(self) -> list[str]:
        return [str(name) for name in nw.from_native(self.factuals, eager_only=True).columns]

    def _cells(self, frame: Any) -> list[list[Any]]:
        """Every column as plain values."""
        opened = nw.from_native(frame, eager_only=True)
        return [[to_json(value) for value in opened[name].to_list()] for name in self._names]

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in self.summary().items())
        lines = [f"{len(self)} rows, {self.n} answer{'s' * (self.n > 1)} each: {counts}"]
        for shown, row in enumerate(self):
            if shown == _SHOWN_ROWS:
                lines.append(f"... and {len(self) - shown} more rows")
                break
            for k, option in enumerate(row.options):
                again = "  (as before: no other was found)" if self.repeated[shown * self.n + k] else ""
                lines.append(f"{row.index} -> {row.target}: {self._sentence(option)}{again}")
        return "\n".join(lines)

    __repr__ = __str__

    def _sentence(self, option: Option) -> str:
        if option.status in ("already_target", "infeasible"):
            return f"{option.status} ({MEANING[option.status]})"
        parts = [f"{name} {before} -> {after}" for name, (before, after) in option.changes.items()]
        more = f" and {len(parts) - _SHOWN_CHANGES} more" if len(parts) > _SHOWN_CHANGES else ""
        what = ", ".join(parts[:_SHOWN_CHANGES]) + more if parts else f"distance {option.distance:.3g}"
        return f"{what}  [{option.status}{self._sure(option)}]"

    def _sure(self, option: Option) -> str:
        if option.agreeing is None or option.lower_bound is None or self.certificate is None:
            return ""
        bound = f"at least {at_least(option.lower_bound)} with {self.certificate.confidence:.0%} confidence"
        return f", {option.agreeing} of {self.certificate.n} models agree: {bound}"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def to_json(self) -> str:
        """Everything as JSON with a format version; NaN becomes null."""
        certificate = None
        if self.certificate is not None:
            certificate = {one.name: _listed(getattr(self.certificate, one.name)) for one in fields(Certificate)}
        return json.dumps(
            {
                "format": _FORMAT,
                "version": _VERSION,
                "n": self.n,
                "survival": self.survival,
                "factuals": pack_rows(self.factuals),
                "answers": pack_rows(self.answers),
                "target": _listed(self.target),
                "statuses": self.statuses.tolist(),
                "probability": _listed(self.probability),
                "probability_before": _listed(self.probability_before),
                "distance": _listed(self.distance),
                "changed": None if self.changed is None else self.changed.astype(int).tolist(),
                "repeated": self.repeated.astype(int).tolist(),
                "certificate": certificate,
            },
            allow_nan=False,
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> Counterfactuals:
        """What `to_json` wrote; frames come back as pandas.

        Raises:
            DataError: If it is something else, or of a newer version.
        """
        try:
            found = json.loads(text)
            known = found["format"] == _FORMAT
        except (ValueError, TypeError, KeyError):
            known = False
        if not known:
            raise DataError("This is no JSON of counterfactuals. Give what Counterfactuals.to_json wrote.")
        if not isinstance(found.get("version"), int):
            raise DataError(f"These answers have no format version, but {found.get('version')!r}.")
        if found["version"] > _VERSION:
            raise DataError(f"These answers have format version {found['version']}; this avcg reads up to {_VERSION}.")
        try:
            sure = found["certificate"]
            return cls(
                factuals=unpack_rows(found["factuals"]),
                answers=unpack_rows(found["answers"]),
                n=int(found["n"]),
                survival=float(found["survival"]),
                changed=None if found["changed"] is None else np.array(found["changed"], bool),
                repeated=np.array(found["repeated"], bool),
                certificate=None if sure is None else _certificate(sure),
                target=np.array(found["target"]),
                statuses=np.array(found["statuses"], np.str_),
                probability=_floats(found["probability"]),
                probability_before=_floats(found["probability_before"]),
                distance=_floats(found["distance"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"These answers are incomplete or damaged: {error}.") from None


def _certificate(found: dict[str, Any]) -> Certificate:
    numbers = {name: _floats(found[name]) for name in ("lower_bound", "mean", "variance", "markov", "cantelli")}
    agreeing = np.array(found["agreeing"], np.int64)
    return Certificate(n=int(found["n"]), confidence=float(found["confidence"]), agreeing=agreeing, **numbers)


def _listed(values: Any) -> Any:
    return [to_json(value) for value in values] if isinstance(values, np.ndarray) else values


def _floats(values: list[float | None]) -> Floats:
    return np.array([np.nan if value is None else value for value in values], np.float64)
