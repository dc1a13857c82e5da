"""What a benchmark runs: a TOML file, read into frozen records.

Methods, models, hypotheses and metrics are named by their paths, ``"package.module:Name"``. Reading a protocol imports
these modules, and so runs their code: read only protocols that you would run. An unknown key is an error.
"""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from avcg.bench.data import DataSource
from avcg.bench.hypotheses import HypothesesSource
from avcg.bench.methods import explainer_class, make_explainer
from avcg.bench.paths import imported
from avcg.errors import SettingError, did_you_mean
from avcg.hypotheses.finite import PointMass
from avcg.metrics.table import METRICS, Metric, check_names
from avcg.models.networks import mlp

Reading = Literal["paper", "schema", "images"]


@dataclass(frozen=True)
class Network:
    """The classifier that is explained.

    Attributes:
        hidden: Units, or channels for pictures.
        dropout: After every hidden layer.
        epochs: At most.
        batch_size: Rows a step.
    """

    hidden: tuple[int, ...] = (64, 32)
    dropout: float = 0.15
    epochs: int = 100
    batch_size: int = 128


@dataclass(frozen=True)
class Judges:
    """Who judges answers; none of them is seen by a method.

    Attributes:
        surrogates: Networks trained anew.
        resampling: What differs between them: ``"seed"`` or ``"bootstrap"``.
        masks: Of dropout, in the bank whose mean decides on Val; 0: no bank.
        candidates: Masks drawn for each held-out Rashomon set.
        noise: Standard deviation of the errors of NE and R_IC, in codes.
        execution_errors: Of NE.
        input_errors: Of R_IC.
        autoencoder_epochs: Of IM1's; 0: none.
    """

    surrogates: int = 5
    resampling: Literal["seed", "bootstrap"] = "seed"
    masks: int = 100
    candidates: int = 200
    noise: float = 0.05
    execution_errors: int = 20
    input_errors: int = 1
    autoencoder_epochs: int = 100


@dataclass(frozen=True)
class Method:
    """One line of a table.

    In the file, every key that is not one of these attributes is a setting.

    Attributes:
        name: Name in tables.
        kind: Path of the explainer class, such as ``"avcg.explainers.avcg:AVCG"``.
        hypotheses: The plausible models that the method is given; see `HypothesesSource`.
        settings: Arguments of the class's constructor; see `avcg.bench.methods.make_explainer`.
        answers: Answers for each row.
        refine: Whether answers are refined.
        locked: Whether each query locks one more feature, at random.
    """

    name: str
    kind: str
    hypotheses: HypothesesSource = HypothesesSource("avcg.hypotheses.dropout:MCDropout")  # noqa: RUF009  frozen
    settings: Mapping[str, Any] = field(default_factory=dict)
    answers: int = 1
    refine: bool = False
    locked: bool = False


@dataclass(frozen=True)
class Protocol:
    """A whole benchmark.

    Attributes:
        name: Name of the file.
        title: What is run, in words.
        datasets: Where the rows come from, in the order of the tables.
        methods: What is compared, in the order of the tables.
        reading: ``"paper"``: all columns as numbers, nothing frozen; ``"schema"``: raw rows under the dataset's own
            constraints; ``"images"``.
        seeds: Seeds of splits and of everything else.
        rows: How many of the test rows are explained, the first.
        epsilons: Each ε of Rashomon sets.
        retrains: How many models hypotheses hold that are trained again.
        reference: A file of published figures beside this one, to compare with.
        network: The network that is explained.
        judges: Who judges answers.
        model: Path of a function that makes what is explained instead of a network; see `avcg.bench.models`.
        metrics: Paths of metrics beside those of `avcg.metrics.table.METRICS`.
        folder: The folder of the file, which paths of datasets are relative to.
    """

    name: str
    title: str
    datasets: tuple[DataSource, ...]
    methods: tuple[Method, ...]
    reading: Reading = "paper"
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    rows: int = 100
    epsilons: tuple[float, ...] = ()
    retrains: int = 20
    reference: str | None = None
    network: Network = field(default_factory=Network)
    judges: Judges = field(default_factory=Judges)
    model: str | None = None
    metrics: tuple[str, ...] = ()
    folder: Path = Path()

    @property
    def dataset_names(self) -> tuple[str, ...]:
        """The datasets by name."""
        return tuple(source.name for source in self.datasets)

    def source(self, dataset: str) -> DataSource:
        """Where the rows of a dataset come from.

        Args:
            dataset: Its name.
        """
        for source in self.datasets:
            if source.name == dataset:
                return source
        raise SettingError(f"{self.name} has no dataset {dataset!r}. {did_you_mean(dataset, self.dataset_names)}")

    def extra_metrics(self) -> tuple[Metric, ...]:
        """The metrics beside those of the table of metrics."""
        made = [(path, imported(path, f"{self.name}, metrics", self.folder)) for path in self.metrics]
        for path, metric in made:
            if not isinstance(metric, Metric):
                raise SettingError(
                    f"{self.name}, metrics must name an avcg.metrics.table.Metric. Got {path!r}, which is {metric!r}."
                )
        return tuple(metric for _, metric in made)

    def all_metrics(self) -> tuple[Metric, ...]:
        """Everything that is measured."""
        return (*METRICS, *self.extra_metrics())

    def record(self) -> dict[str, Any]:
        """Plain values, without the folder: the same wherever the protocol lies."""
        return {name: value for name, value in asdict(self).items() if name != "folder"}


_METHOD_KEYS = tuple(each.name for each in fields(Method) if each.name != "settings")


def read_protocol(path: str | Path) -> Protocol:
    """Parse a file and check everything in it. Modules that it names are imported, those beside the file included.

    Args:
        path: The TOML file.

    Raises:
        SettingError: With the file, the key and what was probably meant.
        DataError: If a dataset does not exist or its files are missing.
    """
    path = Path(path)
    try:
        table = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise SettingError(f"There is no protocol {str(path)!r}. Those of the project are in benchmarks/.") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"{path} is not a TOML file: {error}.") from None
    where = path.name
    methods = table.pop("methods", [])
    if not methods:
        raise SettingError(f"{where} has no [[methods]].")
    for key in ("name", "folder"):
        if key in table:
            raise SettingError(f"{where} has an unknown key {key!r}. The file itself says it.")
    datasets = table.pop("datasets", None)
    if not isinstance(datasets, list) or not datasets:
        raise SettingError(f"{where} must have a list of 'datasets'. Got {datasets!r}.")
    parts: dict[str, Any] = {
        "name": path.stem,
        "folder": path.parent.absolute(),
        "datasets": tuple(DataSource.read(value, f"{where}, datasets") for value in datasets),
        "methods": tuple(_method(method, f"{where}, methods") for method in methods),
        "network": _record(Network, table.pop("network", {}), f"{where}, network"),
        "judges": _record(Judges, table.pop("judges", {}), f"{where}, judges"),
    }
    protocol: Protocol = _record(Protocol, {**table, **parts}, where)
    _check_data(protocol, where)
    if not isinstance(protocol.metrics, tuple):
        raise SettingError(f"{where}, metrics must be a list of paths. Got {protocol.metrics!r}.")
    if protocol.model is not None:
        _check_model(protocol, where)
    for method in protocol.methods:
        _check_method(protocol, method, where)
    check_names(protocol.all_metrics())
    return protocol


def _method(table: Mapping[str, Any], where: str) -> Method:
    own = {name: value for name, value in table.items() if name in _METHOD_KEYS}
    settings = {name: value for name, value in table.items() if name not in _METHOD_KEYS}
    if "hypotheses" in own:
        own["hypotheses"] = HypothesesSource.read(own["hypotheses"], f"{where}, hypotheses of {own.get('name')!r}")
    made: Method = _record(Method, {**own, "settings": settings}, where)
    return made


def _record(kind: type[Any], table: Mapping[str, Any], where: str) -> Any:
    known = {each.name: each for each in fields(kind)}
    for key in table:
        if key not in known:
            raise SettingError(f"{where} has an unknown key {key!r}. {did_you_mean(key, known)}")
    for name, each in known.items():
        if name not in table and each.default is MISSING and each.default_factory is MISSING:
            raise SettingError(f"{where} lacks the key {name!r}.")
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in table.items()})


def _check_data(protocol: Protocol, where: str) -> None:
    if protocol.reading not in get_args(Reading):
        hint = did_you_mean(protocol.reading, get_args(Reading))
        raise SettingError(f"{where}, reading: {protocol.reading!r} is none of its values. {hint}")
    _check_apart(protocol.dataset_names, f"{where} has two datasets")
    for source in protocol.datasets:
        source.check(protocol.folder)
        if (source.kind() == "images") != (protocol.reading == "images"):
            raise SettingError(
                f"{where}: the reading {protocol.reading!r} does not go with the dataset {source.name!r}."
            )
    for epsilon in protocol.epsilons:
        if float(f"{epsilon:.5g}") != epsilon:
            raise SettingError(f"{where}: an epsilon has at most five digits. Got {epsilon!r}.")


def _check_model(protocol: Protocol, where: str) -> None:
    function = imported(protocol.model, f"{where}, model", protocol.folder)
    try:
        inspect.signature(function).bind(None, 0)
    except (TypeError, ValueError):
        raise SettingError(
            f"{where}, model must name a function of training rows and a seed that returns an estimator. Got"
            f" {protocol.model!r}."
        ) from None
    if protocol.reading != "schema" or protocol.judges.masks or protocol.epsilons:
        raise SettingError(f"{where}: a 'model' goes with reading = 'schema', masks = 0 and no epsilons.")


def _check_method(protocol: Protocol, method: Method, where: str) -> None:
    _check_apart([each.name for each in protocol.methods], f"{where} has two methods")
    what = f"the method {method.name!r} of {where}"
    kind = explainer_class(method.kind, f"kind of {what}", protocol.folder)
    # The constructor says what is wrong with a setting.
    make_explainer(kind, method.settings, PointMass(mlp(1, 2)), what, folder=protocol.folder)
    method.hypotheses.check(
        f"hypotheses of {what}",
        black_box=protocol.model is not None,
        epsilons=bool(protocol.epsilons),
        folder=protocol.folder,
    )


def _check_apart(names: Any, what: str) -> None:
    """Refuse names whose files could not be told apart."""
    plain = [plain_name(name) for name in names]
    for name in names:
        alike = [other for other, each in zip(names, plain, strict=True) if each == plain_name(name)]
        if len(alike) > 1:
            raise SettingError(f"{what} called {' and '.join(map(repr, dict.fromkeys(alike)))}.")


def plain_name(name: str) -> str:
    """A name in letters that every file system takes."""
    return "".join(letter if letter.isalnum() else "_" for letter in name)
