"""The backtest: advice of past moments, made with what was known then, judged by the models that really came."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from numpy.typing import NDArray

from avcg.auditing.audit import TOLD
from avcg.auditing.past import NOTHING, Backtest, Found, Line
from avcg.baselines.nearest import NearestUnlike, RobustNeighbour
from avcg.baselines.robust_search import RobustSearch
from avcg.console import progress
from avcg.errors import DataError, PromiseWarning, SettingError, check_int, check_setting, enumerate_some
from avcg.explainers.avcg import AVCG
from avcg.explainers.base import Explainer
from avcg.explainers.counterfactuals import Counterfactuals
from avcg.files import write_whole
from avcg.guarantees.conformal import SurvivalTable
from avcg.hypotheses.base import check_same_reading
from avcg.hypotheses.families import moments_of
from avcg.hypotheses.finite import FiniteSet
from avcg.hypotheses.from_models import from_models
from avcg.hypotheses.retrains import Refit, fit_clone, retrains
from avcg.method.query import Query
from avcg.models.classifier import check_labels
from avcg.space.serialize import to_json
from avcg.space.tabular import table_of

# From a model, its rows and their labels to the models that may come next; and from these to a fitted method.
Plausible = Callable[[Any, Any, NDArray[Any]], FiniteSet]
Method = Callable[[FiniteSet, Any, NDArray[Any]], Explainer]


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
        random_state: Seed of the models and of the hypotheses; methods have seeds of their own.
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
    settings: Mapping[str, Any] | None = None,
    n_jobs: int = 1,
) -> Backtest:
    """Stand at each past moment, advise with what was known then, and judge by the models that really came.

    At each origin a model is fitted to the rows whose outcomes are known, and the people of that moment whom it refuses
    are advised. The models of all later moments, fitted in the same way, judge the rows that people would have become.

    Args:
        model: A `Classifier` or an estimator on raw frames, fitted or not; its settings are used.
        X: Rows of all moments.
        y: (N,) labels.
        time: The moment of each row: (N,) values that can be sorted, or a column of X, which is not learnt from.
        target: The decision that people want.
        plausible: Function from a model, its rows and labels to hypotheses about later models; None: `retrains`.
        methods: Functions from hypotheses, rows and labels to a fitted method, by name; None: `AVCG`, `NearestUnlike`
            and `RobustNeighbour`. People who do nothing are always judged beside them.
        refit: Function ``(rows, labels, seed) -> fitted model`` that trains in place of ``fit``.
        config: Which moments are looked at; None: all that have a moment before them and one after them.
        folder: Folder in which each origin is stored when it is done, and is not done again; None: nothing is stored.
            Functions are told apart by the names of the methods and by ``settings`` alone.
        settings: Further values of JSON that stored origins must have in common, such as settings of the methods.
        n_jobs: Number of processes, as in joblib, each with an origin of its own.

    >>> from sklearn.linear_model import LogisticRegression
    >>> from avcg import toys
    >>> toy = toys.drift(n=80, moments=4, shift=0.5)
    >>> nearest = {"nearest": lambda hypotheses, X, y: NearestUnlike(hypotheses).fit(X, y)}
    >>> found = backtest(LogisticRegression(), toy.X, toy.y, time=toy.time, target=1, methods=nearest)
    >>> found.frame["origin"].unique().tolist(), sorted(found.frame["method"].unique())
    ([1, 2], ['nearest', 'nothing'])
    """
    config, target = config or BacktestConfig(), to_json(target)
    labels = check_labels(y, len(X))
    moments, positions = moments_of(time, X, len(X))
    X = X.drop(columns=time) if isinstance(time, str) else X
    history = _History(X, labels, moments, positions, target, refit or partial(fit_clone, model), config)
    chosen = dict(methods or METHODS)
    if NOTHING in chosen:
        raise SettingError(f"{NOTHING!r} is the method of people who stay as they are. Name yours otherwise.")
    asked = {name: to_json(value) for name, value in asdict(config).items()}
    asked |= {"target": target, "methods": list(chosen), "model": repr(model), "settings": dict(settings or {})}
    store = None if folder is None else _Store(Path(folder), {**asked, "rows": _fingerprint(X, labels, positions)})
    judged = partial(
        _with_notes, partial(history.judged, plausible or partial(_retrained, config.random_state), chosen)
    )
    return Backtest.of(_found(history, judged, store, n_jobs), target)


def _warn(notes: Sequence[str], n_origins: int) -> None:
    """Give the warnings of all origins, each once."""
    for note, count in Counter(notes).items():
        warnings.warn(f"backtest: at {count} of {n_origins} origins: {note}", stacklevel=4)


def _found(history: _History, judged: Callable[[int], Found], store: _Store | None, n_jobs: int) -> Found:
    """What was found at all origins; those that are stored are not done again."""
    names = {origin: str(history.moments[origin]) for origin in history.origins()}
    found = {origin: None if store is None else store.read(name) for origin, name in names.items()}
    todo = [origin for origin, known in found.items() if known is None]
    if todo:
        moments = list(range(todo[0], len(history.moments)))
        history.models = dict(zip(moments, _in_order("Models", history.fitted, moments, n_jobs), strict=True))
    for origin, new in zip(todo, _in_order("Backtest", judged, todo, n_jobs), strict=True):
        found[origin] = new
        if store is not None:
            store.write(names[origin], new)
    everything = sum((each for each in found.values() if each is not None), Found())
    if not everything.lines:
        raise DataError("No model refused anybody: all people have the target at every origin.")
    _warn(everything.notes, len(found))
    return everything


def _with_notes(judged: Callable[[int], Found], origin: int) -> Found:
    """What was found at an origin, with the warnings that were given. Whether a promise is made is found anyway."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", PromiseWarning)
        found = judged(origin)
    return replace(found, notes=sorted({str(each.message) for each in caught}))


def _in_order(label: str, do: Callable[[int], Any], tasks: Sequence[int], n_jobs: int) -> Iterator[Any]:
    """Results of a function in the order of its tasks, as they are done."""
    results = Parallel(n_jobs=n_jobs, return_as="generator")(delayed(do)(task) for task in tasks)
    with progress(label, len(tasks)) as advance:
        for done, result in enumerate(results, start=1):
            yield result
            advance(done, f"{done} of {len(tasks)}")


def _retrained(seed: int, model: Any, X: Any, y: NDArray[Any]) -> FiniteSet:
    return retrains(model, X, y, random_state=seed)


METHODS: dict[str, Method] = {
    "avcg": lambda hypotheses, X, y: AVCG(hypotheses).fit(X, y),
    "nearest unlike": lambda hypotheses, X, y: NearestUnlike(hypotheses).fit(X, y),
    "robust neighbour": lambda hypotheses, X, y: RobustNeighbour(hypotheses).fit(X, y),
}


def searches(probabilities: Sequence[float] = (0.5, 0.7, 0.9, 0.97)) -> dict[str, Method]:
    """Methods that search for each row by gradients until every judge gives the target some probability.

    Beside them, `Backtest.at_equal_survival` tells how far a method's answers are. Models need gradients.

    Args:
        probabilities: The probabilities, one method for each.
    """
    return {f"search to {probability:g}": partial(_searched, probability) for probability in probabilities}


def _searched(probability: float, hypotheses: FiniteSet, X: Any, y: NDArray[Any]) -> Explainer:
    descent = replace(RobustSearch.usual, probability=probability)
    return RobustSearch(hypotheses, descent=descent).fit(X, y)


class _History:
    """The rows of all moments, and ``models`` by moment, each fitted once to what was known then."""

    def __init__(
        self, X: pd.DataFrame, y: NDArray[Any], moments: NDArray[Any], positions: NDArray[np.int64], target: Any,
        fit: Refit, config: BacktestConfig,
    ) -> None:  # fmt: skip
        self._X, self._y, self.moments, self._positions = X, y, moments, positions
        self._target, self._fit, self._config = target, fit, config
        self.models: dict[int, Any] = {}
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
        labels = np.unique(self._y[chosen])
        if len(labels) < 2 or self._target not in labels:
            wrong = "are all the same" if len(labels) < 2 else f"are never {self._target!r}"
            raise DataError(
                f"The outcomes known at {self.moments[moment]!s} {wrong}. Start later: raise 'first' of BacktestConfig."
            )
        return self._X[chosen], self._y[chosen]

    def fitted(self, moment: int) -> Any:
        """A model of a moment, fitted."""
        return self._fit(*self.known(moment), self._config.random_state)

    def accepted(self, moment: int, rows: pd.DataFrame) -> NDArray[np.bool_]:
        """(N,) whether the model of a moment decides for the target."""
        return np.asarray(self.models[moment].predict(rows) == self._target)

    def judged(self, plausible: Plausible, methods: Mapping[str, Method], origin: int) -> Found:
        """What became of the advice of one origin, for each method and later model."""
        own = self._X[self._positions == origin]
        people = own[~self.accepted(origin, own)].iloc[: self._config.max_people]
        horizon = self._config.horizon or len(self.moments)
        later = range(origin + 1, min(origin + horizon, len(self.moments) - 1) + 1)
        lines: list[Line] = []
        frontier: list[Line] = []
        if not len(people):
            return Found()
        rows, labels = self.known(origin)
        hypotheses = plausible(self.models[origin], rows, labels)
        untouched = {moment: self.accepted(moment, people) for moment in later}
        for name, method in [(NOTHING, None), *methods.items()]:
            explainer = None if method is None else method(hypotheses, rows, labels)
            answers = None if explainer is None else explainer.generate(people, self._target)
            about = [self._about(origin, moment) | {"method": name} for moment in later]
            for moment, line in zip(later, about, strict=True):
                lines.append(line | self._line(answers, people, untouched[moment], moment))
            if isinstance(explainer, AVCG) and explainer.recipe_.has_margins:
                table = self._judged_margins(explainer, people, later)
                frontier += [
                    line | {
                        "margin": float(margin), "people": len(people), "answered": int(table.answered[at]),
                        "accepted": int(table.accepted[at, j]), "distance": float(table.distance[at]),
                        "survival": explainer.promise_.survival,
                    }
                    for j, line in enumerate(about)
                    for at, margin in enumerate(table.margins)
                ]  # fmt: skip
        return Found(lines, frontier)

    def _about(self, origin: int, moment: int) -> Line:
        earlier, later = _plain(self.moments[origin]), _plain(self.moments[moment])
        return {"origin": earlier, "later": later, "horizon": moment - origin}

    def _judged_margins(self, explainer: AVCG, people: pd.DataFrame, later: range) -> SurvivalTable:
        """What later models say of the answers at each margin."""
        space = table_of(explainer.space_)
        models = from_models([self.models[moment] for moment in later], people, space=space)
        check_same_reading(explainer.space_, models.space, explainer.classes_, models.classes)
        x, aim = explainer.space_.encode(people), explainer.classes_.tolist().index(self._target)
        movable = ~explainer.space_.immovable(x)
        x = x[movable if bool(movable.any()) else slice(1)]  # one who cannot move has no answer either
        query = Query(x.numpy(), np.full(len(x), aim), explainer.space_.codes)
        return explainer.judged_answers(models.predictors, query)[aim].table

    def _line(
        self, answers: Counterfactuals | None, people: pd.DataFrame, untouched: NDArray[np.bool_], moment: int
    ) -> Line:
        told, after, distance = np.ones(len(people), bool), untouched, np.zeros(len(people))
        promised: float | None = None
        if answers is not None:
            told, distance = np.isin(answers.statuses, TOLD), answers.distance
            after = np.zeros(len(people), bool)
            if told.any():
                after[told] = self.accepted(moment, answers.frame[told])
            made = [each for each in answers.statements if each.made and each.target == self._target]
            promised = made[0].survival if made and told.any() else None

        def mean(values: NDArray[Any]) -> float | None:
            return float(values[told].mean()) if told.any() else None

        survival = mean(after)
        return {
            "people": len(people),
            "answered": float(told.mean()),
            "survival": survival,
            "distance": mean(distance),
            "harmed": mean(untouched & ~after),
            "promised": promised,
            "kept": promised is not None and survival is not None and survival >= promised - 1e-9,
        }


class _Store:
    """A folder with one file for each origin that is done."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self._folder, self._settings = folder, dict(settings)
        folder.mkdir(parents=True, exist_ok=True)

    def _path(self, origin: str) -> Path:
        return self._folder / f"origin-{''.join(c if c.isalnum() or c in '-.' else '_' for c in origin)}.json"

    def read(self, origin: str) -> Found | None:
        """What was found at an origin; None if it is not done."""
        path = self._path(origin)
        if not path.exists():
            return None
        try:
            content = json.loads(path.read_text())
            settings, found = {**content["settings"]}, Found(content["lines"], content["frontier"], content["notes"])
        except (ValueError, KeyError, TypeError):
            raise DataError(f"{path} is damaged. Remove it, and its origin is done again.") from None
        wanted = {**self._settings, "origin": origin}
        if settings != wanted:
            differ = [name for name, value in wanted.items() if settings.get(name) != value]
            raise SettingError(
                f"{self._folder} holds a backtest with other settings or rows: {enumerate_some(differ)} differ. Give"
                " another folder."
            )
        return found

    def write(self, origin: str, found: Found) -> None:
        """Store what was found at an origin, completely or not at all."""
        write_whole(self._path(origin), json.dumps({"settings": {**self._settings, "origin": origin}, **asdict(found)}))


def _fingerprint(X: pd.DataFrame, labels: NDArray[Any], positions: NDArray[np.int64]) -> str:
    """A hash of the rows, their labels and the order of their moments."""
    parts = (pd.util.hash_pandas_object(each, index=False) for each in (X, pd.Series(labels), pd.Series(positions)))
    return hashlib.sha256(b"".join(part.to_numpy().tobytes() for part in parts)).hexdigest()


def _plain(moment: Any) -> Any:
    """A moment as a number or a text."""
    value = to_json(moment)
    return value if isinstance(value, (int, float)) else str(value)
