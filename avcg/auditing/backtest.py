"""The backtest: advice of past moments, made with what was known then, judged by the models that really came."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from avcg.auditing.audit import TOLD
from avcg.baselines.nearest import NearestUnlike, RobustNeighbour
from avcg.console import progress
from avcg.errors import DataError, SettingError, check_int, check_setting, enumerate_some
from avcg.explainers.avcg import AVCG
from avcg.explainers.base import Explainer
from avcg.explainers.counterfactuals import Counterfactuals
from avcg.files import write_whole
from avcg.guarantees.bounds import clopper_pearson
from avcg.hypotheses.families import moments_of
from avcg.hypotheses.finite import FiniteSet
from avcg.hypotheses.retrains import Refit, fit_clone, retrains
from avcg.models.classifier import check_labels
from avcg.space.serialize import to_json

# From a model, its rows and their labels to the models that may come next; and from these to a fitted method.
Plausible = Callable[[Any, Any, NDArray[Any]], FiniteSet]
Method = Callable[[FiniteSet, Any, NDArray[Any]], Explainer]

NOTHING = "nothing"  # the method of people who stay as they are
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class BacktestConfig:
    """Which moments are looked at, and what is known at each.

    Attributes:
        first: Number of moments whose outcomes are known before the first origin, >= 1.
        horizon: Largest number of later models that judge; None: all there are.
        window: Number of moments that a model is trained on, the last ones that are known; None: all.
        label_delay: Number of moments after which an outcome is known. With 0, at the end of its own moment, people are
            advised whose outcomes their model has learnt; with 1 or more they are new to it.
        max_people: Largest number of people who are advised at each origin.
        random_state: Seed of all random numbers.
    """

    first: int = 1
    horizon: int | None = None
    window: int | None = None
    label_delay: int = 0
    max_people: int = 1000
    random_state: int = 0

    def __post_init__(self) -> None:
        for name, least in (("first", 1), ("label_delay", 0), ("max_people", 1), ("random_state", 0)):
            check_int(getattr(self, name), f"{name!r} of BacktestConfig", least)
        for name in ("horizon", "window"):
            value = getattr(self, name)
            check_setting(self, name, value is None or (type(value) is int and value >= 1), "None or at least 1")

    def known(self, positions: NDArray[np.int64], moment: int) -> NDArray[np.bool_]:
        """(N,) rows whose outcome is known at a moment, of those a model is trained on.

        Args:
            positions: (N,) position of each row's moment.
            moment: Position of the moment.
        """
        last = moment - self.label_delay
        return (positions <= last) & (positions > (-1 if self.window is None else last - self.window))


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
    """

    frame: pd.DataFrame

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

    def to_json(self) -> str:
        """The lines of ``frame`` as JSON; NaN becomes null."""
        return json.dumps({"format": "avcg.backtest", "version": 1, "lines": _records(self.frame)}, allow_nan=False)

    def __str__(self) -> str:
        nearest, lines = self.frame[self.frame["horizon"] == 1], []
        for method, group in nearest.groupby("method", sort=False):
            worst, made, kept = (
                int(group["survival"].argmin()),
                int(group["promised"].count()),
                int(group["kept"].sum()),
            )
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


def backtest(
    model: Any,
    X: pd.DataFrame,
    y: Any,
    *,
    time: Any,
    target: Any,
    plausible: Plausible | None = None,
    methods: Mapping[str, Method] | None = None,
    refit: Refit | None = None,
    config: BacktestConfig | None = None,
    folder: str | Path | None = None,
) -> Backtest:
    """Stand at each past moment, advise with what was known then, and judge by the models that really came.

    At each origin a model is fitted to the rows whose outcomes are known, and the people of that moment whom it refuses
    are advised. The models of all later moments, fitted in the same way, judge the rows that people would have become.

    Args:
        model: A `Classifier` or an estimator on raw frames, fitted or not; its settings are used.
        X: Rows of all moments.
        y: (N,) labels.
        time: The moment of each row, as the name of a column of X or (N,) values that can be sorted.
        target: The decision that people want.
        plausible: Function from a model, its rows and labels to hypotheses about later models; None: `retrains`.
        methods: Functions from hypotheses, rows and labels to a fitted method, by name; None: `AVCG`, `NearestUnlike`
            and `RobustNeighbour`. People who do nothing are always judged beside them.
        refit: Function ``(rows, labels, seed) -> fitted model`` that trains in place of ``fit``.
        config: Which moments are looked at; None: all that have a moment before them and one after them.
        folder: Folder in which each origin is stored when it is done, and is not done again; None: nothing is stored.
            Functions are told apart by the names of the methods alone.

    >>> from sklearn.linear_model import LogisticRegression
    >>> from avcg import toys
    >>> toy = toys.drift(n=80, moments=4, shift=0.5)
    >>> nearest = {"nearest": lambda hypotheses, X, y: NearestUnlike(hypotheses).fit(X, y)}
    >>> found = backtest(LogisticRegression(), toy.X, toy.y, time=toy.time, target=1, methods=nearest)
    >>> found.frame["origin"].unique().tolist(), sorted(found.frame["method"].unique())
    ([1, 2], ['nearest', 'nothing'])
    """
    config = config or BacktestConfig()
    labels = check_labels(y, len(X))
    moments, positions = moments_of(time, X, len(X))
    history = _History(X, labels, moments, positions, target, refit or partial(fit_clone, model), config)
    chosen = dict(methods or METHODS)
    if NOTHING in chosen:
        raise SettingError(f"{NOTHING!r} is the method of people who stay as they are. Name yours otherwise.")
    asked = {**asdict(config), "target": to_json(target), "methods": list(chosen), "model": repr(model)}
    store = None if folder is None else _Store(Path(folder), {**asked, "rows": _fingerprint(X, labels, positions)})
    lines = _lines(history, plausible or _retrained, chosen, store)
    if not lines:
        raise DataError(f"No model refused anybody: all people are decided for {target!r} at every origin.")
    return Backtest(pd.DataFrame(lines).astype({"distance": float, "promised": float}))


def _lines(
    history: _History, plausible: Plausible, methods: Mapping[str, Method], store: _Store | None
) -> list[dict[str, Any]]:
    """The lines of all origins; those that are stored are not made again."""
    lines: list[dict[str, Any]] = []
    origins = history.origins()
    with progress("Backtest", len(origins)) as advance:
        for done, origin in enumerate(origins, start=1):
            name = str(history.moments[origin])
            found = None if store is None else store.read(name)
            if found is None:
                found = list(history.judged(origin, plausible, methods))
                if store is not None:
                    store.write(name, found)
            lines += found
            advance(done, name)
    return lines


def _retrained(model: Any, X: Any, y: NDArray[Any]) -> FiniteSet:
    return retrains(model, X, y)


METHODS: dict[str, Method] = {
    "avcg": lambda hypotheses, X, y: AVCG(hypotheses).fit(X, y),
    "nearest unlike": lambda hypotheses, X, y: NearestUnlike(hypotheses).fit(X, y),
    "robust neighbour": lambda hypotheses, X, y: RobustNeighbour(hypotheses).fit(X, y),
}


class _History:
    """The models of all moments, each fitted once to what was known then."""

    def __init__(
        self, X: pd.DataFrame, y: NDArray[Any], moments: NDArray[Any], positions: NDArray[np.int64], target: Any,
        fit: Refit, config: BacktestConfig,
    ) -> None:  # fmt: skip
        self._X, self._y, self.moments, self._positions = X, y, moments, positions
        self._target, self._fit, self._config, self._models = target, fit, config, {}  # type: ignore[var-annotated]
        if target not in y.tolist():
            raise DataError(f"The 'target' must be one of the labels. Got {target!r}, which no row has.")

    def origins(self) -> list[int]:
        """Positions of the moments at which people are advised."""
        earliest, last = self._config.first + self._config.label_delay, len(self.moments) - 1
        if earliest >= last:
            raise DataError(
                f"A backtest needs at least {earliest + 2} moments: {earliest} before the first origin, the origin, and"
                f" one after it. Got {len(self.moments)}."
            )
        return list(range(earliest, last))

    def known(self, moment: int) -> tuple[pd.DataFrame, NDArray[Any]]:
        """The rows that the model of a moment is trained on, and their labels."""
        chosen = self._config.known(self._positions, moment)
        if len(np.unique(self._y[chosen])) < 2:
            raise DataError(
                f"The outcomes known at {self.moments[moment]!s} are all the same. Start later: raise 'first' of"
                " BacktestConfig."
            )
        return self._X[chosen], self._y[chosen]

    def model(self, moment: int) -> Any:
        """The model of a moment."""
        if moment not in self._models:
            self._models[moment] = self._fit(*self.known(moment), self._config.random_state)
        return self._models[moment]

    def accepted(self, moment: int, rows: pd.DataFrame) -> NDArray[np.bool_]:
        """(N,) whether the model of a moment decides for the target."""
        return np.asarray(self.model(moment).predict(rows) == self._target)

    def judged(self, origin: int, plausible: Plausible, methods: Mapping[str, Method]) -> Iterator[dict[str, Any]]:
        """The lines of one origin: for each method and later model, what became of the advice."""
        own = self._X[self._positions == origin]
        people = own[~self.accepted(origin, own)].iloc[: self._config.max_people]
        horizon = self._config.horizon or len(self.moments)
        later = range(origin + 1, min(origin + horizon, len(self.moments) - 1) + 1)
        if not len(people):
            return
        rows, labels = self.known(origin)
        hypotheses = plausible(self.model(origin), rows, labels)
        untouched = {moment: self.accepted(moment, people) for moment in later}
        for name, method in [(NOTHING, None), *methods.items()]:
            answers = None if method is None else method(hypotheses, rows, labels).generate(people, self._target)
            for moment in later:
                about = {"origin": _plain(self.moments[origin]), "later": _plain(self.moments[moment])}
                line = self._line(answers, people, untouched[moment], moment)
                yield {**about, "horizon": moment - origin, "method": name, **line}

    def _line(
        self, answers: Counterfactuals | None, people: pd.DataFrame, untouched: NDArray[np.bool_], moment: int
    ) -> dict[str, Any]:
        if answers is None:
            told, after = np.ones(len(people), bool), untouched
            distance: float | None = 0.0
            promised: float | None = None
        else:
            told = np.isin(answers.statuses, TOLD)
            after = np.zeros(len(people), bool)
            if told.any():
                after[told] = self.accepted(moment, answers.frame[told])
            distance = float(answers.distance[told].mean()) if told.any() else None
            made = [each for each in answers.statements if each.made and each.target == self._target]
            promised = made[0].survival if made else None
        count = max(int(told.sum()), 1)
        survival = float(after[told].sum() / count)
        line: dict[str, Any] = {
            "people": len(people),
            "answered": float(told.mean()),
            "survival": survival,
            "distance": distance,
            "harmed": float((untouched & ~after)[told].sum() / count),
            "promised": promised,
            "kept": promised is not None and survival >= promised - 1e-9,
        }
        return line


class _Store:
    """A folder with one file for each origin that is done."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self._folder, self._settings = folder, dict(settings)
        folder.mkdir(parents=True, exist_ok=True)

    def _path(self, origin: str) -> Path:
        return self._folder / f"origin-{''.join(c if c.isalnum() or c in '-.' else '_' for c in origin)}.json"

    def read(self, origin: str) -> list[dict[str, Any]] | None:
        """The lines of an origin; None if it is not done."""
        path = self._path(origin)
        if not path.exists():
            return None
        try:
            content = json.loads(path.read_text())
            settings, lines = content["settings"], content["lines"]
        except (ValueError, KeyError, TypeError):
            raise DataError(f"{path} is damaged. Remove it, and its origin is done again.") from None
        if settings != self._settings:
            differ = [name for name, value in self._settings.items() if settings.get(name) != value]
            raise SettingError(
                f"{self._folder} holds a backtest with other settings or rows: {enumerate_some(differ)} differ. Give"
                " another folder."
            )
        return [dict(line) for line in lines]

    def write(self, origin: str, lines: Sequence[Mapping[str, Any]]) -> None:
        """Store the lines of an origin, completely or not at all."""
        write_whole(self._path(origin), json.dumps({"settings": self._settings, "lines": list(lines)}))


def _fingerprint(X: pd.DataFrame, labels: NDArray[Any], positions: NDArray[np.int64]) -> str:
    """A hash of the rows, their labels and the order of their moments."""
    parts = (pd.util.hash_pandas_object(each, index=False) for each in (X, pd.Series(labels), pd.Series(positions)))
    return hashlib.sha256(b"".join(part.to_numpy().tobytes() for part in parts)).hexdigest()


def _plain(moment: Any) -> Any:
    """A moment as a number or a text."""
    value = to_json(moment)
    return value if isinstance(value, (int, float)) else str(value)


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): to_json(value) for name, value in line.items()} for line in frame.to_dict("records")]
