"""What a backtest found: the advice of past moments under the models that came, and promises calibrated by it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from avcg.errors import DataError, SettingError, enumerate_some
from avcg.guarantees.bounds import clopper_pearson
from avcg.guarantees.conformal import Promise
from avcg.guarantees.moments import PastMoments
from avcg.space.serialize import to_json

Line = dict[str, Any]

NOTHING = "nothing"  # the method of people who stay as they are
_FORMAT, _VERSION = "avcg.backtest", 2
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Found:
    """Lines of `Backtest.frame` and of `Backtest.frontier`, and warnings that were given meanwhile."""

    lines: list[Line] = field(default_factory=list)
    frontier: list[Line] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __add__(self, other: Found) -> Found:
        return Found(self.lines + other.lines, self.frontier + other.frontier, self.notes + other.notes)


@dataclass(frozen=True, eq=False)
class Backtest:
    """What became of the advice of past moments.

    Attributes:
        frame: One line for each origin, later moment and method: ``origin``, ``later``, ``horizon`` (how many moments
            lie between them), ``method``; ``people`` whom the model of the origin refused; ``answered``, the share of
            them with an answer; ``survival``, the share of these whom the later model accepts; ``distance``, the mean
            cost of their changes; ``harmed``, the share of them whom the later model would have accepted as they were,
            and refuses after the change; ``promised``, the survival that was promised, NaN where nothing was; and
            ``kept``, whether the later model accepts so many (False where nothing was promised).
        frontier: The same advice at other margins, for methods that have margins: a line for each origin, later
            moment, method and ``margin``, with the number of ``people``, of these ``answered`` and ``accepted``, and
            the mean ``distance``; ``survival`` is what the method was asked for, which its answers depend on.
        target: The decision that people wanted.
    """

    frame: pd.DataFrame
    frontier: pd.DataFrame
    target: Any

    @classmethod
    def of(cls, found: Found, target: Any) -> Backtest:
        """A backtest from its lines.

        Args:
            found: The lines.
            target: The decision that people wanted.
        """
        numbers = dict.fromkeys(("survival", "distance", "harmed", "promised"), float)
        return cls(pd.DataFrame(found.lines).astype(numbers), pd.DataFrame(found.frontier), to_json(target))

    def summary(self) -> pd.DataFrame:
        """By method and horizon: origins, means, least survival, and promises made and kept."""
        return self.frame.groupby(["method", "horizon"], sort=False).agg(
            origins=("origin", "count"),
            answered=("answered", "mean"),
            survival=("survival", "mean"),
            least=("survival", "min"),
            distance=("distance", "mean"),
            harmed=("harmed", "mean"),
            made=("promised", "count"),
            kept=("kept", "sum"),
        )

    def past_moments(self, method: str | None = None, *, horizon: int = 1) -> PastMoments:
        """The past moments by which a promise of a method can be calibrated, as `AVCG` takes them.

        Args:
            method: Name of the method; None: the only one with margins.
            horizon: Number of moments after which the model comes that the promise is about.

        Raises:
            SettingError: If no such method has margins, or no origin has such a later model.
        """
        named = self._with_margins(method)
        chosen = self.frontier[(self.frontier["method"] == named) & (self.frontier["horizon"] == horizon)]
        if not len(chosen):
            raise SettingError(f"The 'horizon' of past_moments must be one that the backtest has. Got {horizon!r}.")
        counts = chosen.pivot_table(index="margin", columns="origin", values=["answered", "accepted"], sort=False)
        return PastMoments(
            target=self.target,
            moments=tuple(to_json(origin) for origin in counts["answered"].columns),
            horizon=horizon,
            margins=counts.index.to_numpy(np.float64),
            answered=counts["answered"].to_numpy().astype(np.int64),
            accepted=counts["accepted"].to_numpy().astype(np.int64),
            survival=float(chosen["survival"].iloc[0]),
        )

    def _with_margins(self, method: str | None) -> str:
        names = self.frontier["method"].unique().tolist() if len(self.frontier) else []
        if method in names or (method is None and len(names) == 1):
            return str(names[0] if method is None else method)
        if not names:
            raise SettingError("No method of this backtest has margins, which a promise is calibrated by. Add AVCG.")
        raise SettingError(f"The 'method' must be one that has margins: {enumerate_some(names)}. Got {method!r}.")

    def replayed(self, method: str | None = None, *, reliability: float = 0.9, horizon: int = 1) -> pd.DataFrame:
        """What each origin would have promised if calibrated by the moments before it, and whether it was kept.

        At an origin, those moments count whose later model had come by then. The survival is what the method was asked
        for.

        Args:
            method: Name of the method; None: the only one with margins.
            reliability: Chance that it does; less where the moments carry no more.
            horizon: Number of moments after which the model comes that the promise is about.

        Returns:
            A line for each origin that has such moments: ``moments`` (T), ``reliability`` that was promised, ``made``,
            ``margin``, ``answered``, ``distance``, the realised ``survival``, and whether it was ``kept``.
        """
        past, named = self.past_moments(method, horizon=horizon), self._with_margins(method)
        promise, lines = Promise(past.survival, reliability), []
        order = {origin: at for at, origin in enumerate(self.frame["origin"].unique().tolist())}
        for at, origin in enumerate(past.moments):
            known = [i for i, other in enumerate(past.moments) if order[other] + horizon <= order[origin]]
            if not known:
                continue
            earlier = past.take(known)
            carried = promise.carried_by(len(earlier))
            decided = earlier.decide(carried)
            realised = float(past.shares[decided.position, at])
            line = self.frontier[
                (self.frontier["method"] == named)
                & (self.frontier["origin"] == origin)
                & (self.frontier["horizon"] == horizon)
            ].iloc[decided.position]
            lines.append(
                {
                    "origin": origin,
                    "moments": len(earlier),
                    "reliability": carried.reliability,
                    "made": decided.made,
                    "margin": float(past.margins[decided.position]),
                    "answered": line["answered"] / line["people"],
                    "distance": line["distance"],
                    "survival": realised,
                    "kept": decided.made and realised >= past.survival - 1e-9,
                }
            )
        return pd.DataFrame(lines)

    def at_equal_survival(self, points: pd.DataFrame, others: Sequence[str], *, horizon: int = 1) -> pd.Series[float]:
        """The distance at which other methods reach the survival of some points, by origin.

        Each of the methods has one point of survival and distance at each origin; between them the distance is
        interpolated, along the least distance for each survival. NaN where none of them survives so often.

        Args:
            points: A frame with columns ``origin`` and ``survival``, such as `replayed` gives.
            others: Names of the methods, for example those of `searches`.
            horizon: Number of moments between advice and judgement.
        """
        chosen = self.frame[self.frame["method"].isin(list(others)) & (self.frame["horizon"] == horizon)]
        chosen = chosen[chosen["survival"].notna()]
        found = []
        for origin, survival in zip(points["origin"], points["survival"], strict=True):
            own = chosen[(chosen["origin"] == origin) & chosen["distance"].notna()].sort_values("distance")
            best = np.maximum.accumulate(own["survival"].to_numpy())
            reached = len(own) and survival <= best[-1] + 1e-9
            first = np.unique(best, return_index=True)[1]
            found.append(np.interp(survival, best[first], own["distance"].to_numpy()[first]) if reached else np.nan)
        return pd.Series(found, index=points.index, name="distance", dtype=float)

    def to_html(self, method: str | None = None, *, reliability: float = 0.9) -> str:
        """A self-contained page with pictures: survival by origin and by horizon, and promises kept.

        Args:
            method: Name of the method whose promises past moments are to calibrate, as in `replayed`; None: the only
                one with margins, if there is one.
            reliability: Reliability of these promises.
        """
        from avcg.report.backtest_page import page

        return page(self, method, reliability)

    def to_json(self) -> str:
        """The backtest as JSON that `from_json` reads; NaN becomes null."""
        lines = {"lines": _records(self.frame), "frontier": _records(self.frontier)}
        return json.dumps(
            {"format": _FORMAT, "version": _VERSION, "target": to_json(self.target), **lines}, allow_nan=False
        )

    @classmethod
    def from_json(cls, source: str | Path) -> Backtest:
        """Read the JSON that `to_json` wrote.

        Args:
            source: The JSON, or the path of a file with it.

        Raises:
            DataError: If it is something else, damaged, or of another format version.
        """
        text = source.read_text() if isinstance(source, Path) else source
        try:
            stored = json.loads(text)
            version = stored["version"] if stored["format"] == _FORMAT else None
            if version == _VERSION:
                return cls.of(Found(stored["lines"], stored["frontier"]), stored["target"])
        except (ValueError, KeyError, TypeError):
            version = None
        if version is None:
            raise DataError("This is not the JSON of a backtest. Give the text that Backtest.to_json wrote.")
        raise DataError(f"This avcg reads backtests of format version {_VERSION}. Got {version!r}. Run it again.")

    def __str__(self) -> str:
        nearest, lines = self.frame[self.frame["horizon"] == 1], []
        for method, group in nearest.groupby("method", sort=False):
            made, kept = int(group["promised"].count()), int(group["kept"].sum())
            if group["survival"].isna().all():
                lines.append(f"{method}: nobody has an answer.")
                continue
            worst = int(group["survival"].fillna(np.inf).argmin())
            line = f"{method}: the next model accepts {group['survival'].mean():.1%} of those who have an answer"
            line += f" ({group['answered'].mean():.1%}, at distance {group['distance'].mean():.3g}), at worst"
            line += f" {group['survival'].iloc[worst]:.1%} of those of {group['origin'].iloc[worst]}"
            if made:
                least = float(clopper_pearson(np.array([kept]), made, _CONFIDENCE)[0])
                line += f"; {kept} of {made} promises kept (at least {least:.0%}, with {_CONFIDENCE:.0%} confidence)"
            lines.append(f"{line}.")
        count = nearest["origin"].nunique()
        carried = f"{count} past moments can carry a reliability of {count / (count + 1):.2f} at most."
        return "\n".join([*lines, carried])

    __repr__ = __str__


def _records(frame: pd.DataFrame) -> list[Line]:
    return [{str(name): to_json(value) for name, value in line.items()} for line in frame.to_dict("records")]
