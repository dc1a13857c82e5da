"""Protocols of benchmarks: TOML files, read into frozen dataclasses.

Methods, models, hypotheses and metrics are named by their paths, ``"package.module:Name"``. Reading a protocol imports
these modules, which runs their code: read only protocols that you trust. An unknown key is an error.
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
from avcg.method.query import Effort, QueryOptions
from avcg.metrics.table import METRICS, Metric, check_names
from avcg.models.networks import mlp

Reading = Literal["paper", "schema", "images"]


@dataclass(frozen=True)
class Network:
    """Settings of the classifier that is explained.

    Attributes:
        hidden: Number of units of each hidden layer, or of channels for images.
        dropout: Dropout rate after every hidden layer.
        epochs: Largest number of epochs.
        batch_size: Number of rows in a training step.
    """

    hidden: tuple[int, ...] = (64, 32)
    dropout: float = 0.15
    epochs: int = 100
    batch_size: int = 128


@dataclass(frozen=True)
class Judges:
    """Settings of the models that judge answers, which no method has seen.

    Attributes:
        surrogates: Number of retrained models.
        resampling: How they differ: ``"seed"`` or ``"bootstrap"``.
        masks: Number of dropout masks whose mean probability decides the metric Val; 0: Val is not measured.
        candidates: Number of dropout masks drawn for each held-out Rashomon set.
        noise: Standard deviation of the perturbations of NE and R_IC, in codes.
        execution_errors: Number of perturbations of NE.
        input_errors: Number of perturbations of R_IC.
        autoencoder_epochs: Number of training epochs of the autoencoders of IM1; 0: IM1 is not measured.
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
    """A method of a protocol, which is one line of its tables.

    In the file, every key that is not one of these attributes is a setting.

    Attributes:
        name: Name in tables.
        kind: Path of the explainer class, such as ``"avcg.explainers.avcg:AVCG"``.
        hypotheses: Source of the plausible models that the method is fitted with.
        settings: Arguments of the class's constructor; see `avcg.bench.methods.make_explainer`.
        answers: Number of answers for each row.
        effort: Work spent on closer answers, as in `Explainer.generate`.
        typicality: How typical answers are, as in `Explainer.generate`; None: the recipe's default.
        locked: Whether each query locks one more feature, drawn at random.
    """

    name: str
    kind: str
    hypotheses: HypothesesSource = HypothesesSource("avcg.hypotheses.dropout:MCDropout")  # noqa: RUF009  frozen
    settings: Mapping[str, Any] = field(default_factory=dict)
    answers: int = 1
    effort: Effort = "standard"
    typicality: float | None = None
    locked: bool = False

    def options(self, vary: Any = None) -> QueryOptions:
        """What is asked for in each query.

        Args:
            vary: What may change, as `QueryOptions` takes it; None: all that the schema lets.
        """
        return QueryOptions(n=self.answers, vary=vary, effort=self.effort, typicality=self.typicality)


@dataclass(frozen=True)
class Protocol:
    """A benchmark: datasets, methods, seeds and judges.

    Attributes:
        name: Name of the file without its suffix.
        title: Title of the benchmark.
        datasets: Sources of the datasets, in the order of the tables.
        methods: Methods to compare, in the order of the tables.
        reading: How rows are read. ``"paper"``: all columns as numbers, none frozen; ``"schema"``: raw rows under the
            dataset's own constraints; ``"images"``: images.
        seeds: Seeds of splits, models and methods.
        rows: Number of test rows that are explained, from the first on.
        epsilons: Values of ε for Rashomon sets.
        retrains: Number of retrained models in the methods' hypotheses.
        reference: Path of a file of published figures, relative to the protocol; None: there is none.
        network: Settings of the network that is explained.
        judges: Settings of the models that judge answers.
        model: Path of a function that makes the explained model, see `avcg.bench.models`; None: a network is trained.
        metrics: Paths of metrics in addition to those of `avcg.metrics.table.METRICS`.
        folder: Folder of the file, which paths of datasets are relative to.
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
        """Names of the datasets."""
        return tuple(source.name for source in self.datasets)

    def source(self, dataset: str) -> DataSource:
        """The source of a dataset's rows.

        Args:
            dataset: Name of the dataset.

        Raises:
            SettingError: If the protocol has no such dataset.
        """
        for source in self.datasets:
            if source.name == dataset:
                return source
        raise SettingError(f"{self.name} has no dataset {dataset!r}. {did_you_mean(dataset, self.dataset_names)}")

    def extra_metrics(self) -> tuple[Metric, ...]:
        """The metrics that the protocol adds to those of the table of metrics."""
        imports = [(path, imported(path, f"{self.name}, metrics", self.folder)) for path in self.metrics]
        for path, metric in imports:
            if not isinstance(metric, Metric):
                raise SettingError(
                    f"{self.name}, metrics must name an avcg.metrics.table.Metric. Got {path!r}, which is {metric!r}."
                )
        return tuple(metric for _, metric in imports)

    def all_metrics(self) -> tuple[Metric, ...]:
        """All metrics that are measured."""
        return (*METRICS, *self.extra_metrics())

    def record(self) -> dict[str, Any]:
        """The protocol as plain values without its folder, so that they do not depend on where the file is."""
        return {name: value for name, value in asdict(self).items() if name != "folder"}


_METHOD_KEYS = tuple(field.name for field in fields(Method) if field.name != "settings")


def read_protocol(path: str | Path) -> Protocol:
    """Read and check a protocol. Modules that it names are imported, also those beside the file.

    Args:
        path: Path of the TOML file.

    Raises:
        SettingError: If a key or value is invalid. The message names the file and the key, and suggests a valid one.
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
            raise SettingError(f"{where} has an unknown key {key!r}. It is taken from the path of the file.")
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
    method: Method = _record(Method, {**own, "settings": settings}, where)
    try:
        method.options()
    except SettingError as error:
        raise SettingError(f"{where}, {method.name!r}: {error}") from None
    return method


def _record(kind: type[Any], table: Mapping[str, Any], where: str) -> Any:
    valid = {entry.name: entry for entry in fields(kind)}
    for key in table:
        if key not in valid:
            raise SettingError(f"{where} has an unknown key {key!r}. {did_you_mean(key, valid)}")
    for name, entry in valid.items():
        if name not in table and entry.default is MISSING and entry.default_factory is MISSING:
            raise SettingError(f"{where} lacks the key {name!r}.")
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in table.items()})


def _check_data(protocol: Protocol, where: str) -> None:
    if protocol.reading not in get_args(Reading):
        hint = did_you_mean(protocol.reading, get_args(Reading))
        raise SettingError(f"{where}: the reading {protocol.reading!r} does not exist. {hint}")
    _check_distinct(protocol.dataset_names, f"{where} has two datasets")
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
        raise SettingError(f"{where}: a 'model' needs reading = 'schema', masks = 0 and no epsilons.")


def _check_method(protocol: Protocol, method: Method, where: str) -> None:
    _check_distinct([other.name for other in protocol.methods], f"{where} has two methods")
    what = f"the method {method.name!r} of {where}"
    kind = explainer_class(method.kind, f"kind of {what}", protocol.folder)
    # The constructor checks the settings.
    make_explainer(kind, method.settings, PointMass(mlp(1, 2)), what, folder=protocol.folder)
    method.hypotheses.check(
        f"hypotheses of {what}",
        black_box=protocol.model is not None,
        epsilons=bool(protocol.epsilons),
        folder=protocol.folder,
    )


def _check_distinct(names: Any, what: str) -> None:
    """Refuse names whose files would have the same name."""
    for name in names:
        same = [other for other in names if plain_name(other) == plain_name(name)]
        if len(same) > 1:
            raise SettingError(f"{what} called {' and '.join(map(repr, dict.fromkeys(same)))}. Rename one.")


def plain_name(name: str) -> str:
    """A name with underscores for all characters but letters and digits, which is valid in every file system."""
    return "".join(letter if letter.isalnum() else "_" for letter in name)
