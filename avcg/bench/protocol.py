"""What a benchmark runs: a TOML file, read into frozen records. An unknown key is an error."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from avcg.bench.models import MODELS
from avcg.datasets import published as datasets
from avcg.errors import SettingError, did_you_mean

Reading = Literal["paper", "schema", "images"]
Hypotheses = Literal["dropout", "rashomon", "retrains", "point", "all"]


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

    Attributes:
        name: As printed.
        kind: Which method; see `avcg.bench.methods.KINDS`.
        hypotheses: What it is given: ``"dropout"`` masks, a ``"rashomon"`` set of them for each ε, bootstrap
            ``"retrains"``, the one network (``"point"``), or dropout and retrains together (``"all"``).
        recipe: Changes to the generator's recipe; ``weights`` a table of its own.
        descent: Changes to a search's usual descent.
        survival: The share of models promised.
        answers: For each row.
        refine: Whether answers are refined.
        locked: Whether each request locks one random feature more.
    """

    name: str
    kind: str
    hypotheses: Hypotheses = "dropout"
    recipe: Mapping[str, Any] = field(default_factory=dict)
    descent: Mapping[str, Any] = field(default_factory=dict)
    survival: float = 0.99
    answers: int = 1
    refine: bool = False
    locked: bool = False


@dataclass(frozen=True)
class Protocol:
    """A whole benchmark.

    Attributes:
        name: Of the file.
        title: In words.
        datasets: By name.
        methods: In the order of the tables.
        reading: ``"paper"``: all columns as numbers, nothing frozen; ``"schema"``: raw rows under the dataset's own
            constraints; ``"images"``.
        seeds: Of splits and everything else.
        rows: The first of the test rows.
        epsilons: Of Rashomon sets.
        retrains: Hypotheses of that kind.
        reference: A file of published figures beside this one, to compare with.
        network: What is explained.
        judges: Who judges.
        model: What is explained instead, a model that can only be asked; see `avcg.bench.models.MODELS`.
    """

    name: str
    title: str
    datasets: tuple[str, ...]
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


def read_protocol(path: str | Path) -> Protocol:
    """Parse a file.

    Raises:
        SettingError: With the file, the key and what was probably meant.
    """
    path = Path(path)
    try:
        table = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise SettingError(f"There is no protocol {str(path)!r}. Those of the project lie in benchmarks/.") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"{path} is no TOML file: {error}.") from None
    where = path.name
    methods = table.pop("methods", [])
    if not methods:
        raise SettingError(f"{where} has no [[methods]].")
    parts: dict[str, Any] = {
        "name": path.stem,
        "methods": tuple(_record(Method, method, f"{where}, methods") for method in methods),
        "network": _record(Network, table.pop("network", {}), f"{where}, network"),
        "judges": _record(Judges, table.pop("judges", {}), f"{where}, judges"),
    }
    protocol: Protocol = _record(Protocol, {**table, **parts}, where)
    _check(protocol, where)
    return protocol


def _record(kind: type[Any], table: Mapping[str, Any], where: str) -> Any:
    known = {one.name: one for one in fields(kind)}
    for key in table:
        if key not in known:
            raise SettingError(f"{where} has an unknown key {key!r}. {did_you_mean(key, known)}")
    for name, one in known.items():
        if name not in table and one.default is MISSING and one.default_factory is MISSING:
            raise SettingError(f"{where} lacks the key {name!r}.")
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in table.items()})


def _check(protocol: Protocol, where: str) -> None:
    from avcg.bench.methods import KINDS
    from avcg.hypotheses.finite import PointMass
    from avcg.models.networks import mlp

    for name in protocol.datasets:
        if (datasets.about(name)["kind"] == "images") != (protocol.reading == "images"):
            raise SettingError(f"{where}: the reading {protocol.reading!r} does not go with the dataset {name!r}.")
    for epsilon in protocol.epsilons:
        if float(f"{epsilon:.5g}") != epsilon:
            raise SettingError(f"{where}: an epsilon has at most five digits. Got {epsilon!r}.")
    _choice(protocol.reading, Reading, f"{where}, reading")
    if protocol.model is not None:
        if protocol.model not in MODELS:
            raise SettingError(f"{where}: there is no model {protocol.model!r}. {did_you_mean(protocol.model, MODELS)}")
        if protocol.reading != "schema" or protocol.judges.masks or protocol.epsilons:
            raise SettingError(f"{where}: a model that is asked goes with reading 'schema', masks = 0 and no epsilons.")
    names = [method.name for method in protocol.methods]
    for method in protocol.methods:
        if method.kind not in KINDS:
            raise SettingError(
                f"{where}: there is no kind {method.kind!r} of method. {did_you_mean(method.kind, KINDS)}"
            )
        _choice(method.hypotheses, Hypotheses, f"{where}, hypotheses of {method.name!r}")
        alike = [name for name in names if plain_name(name) == plain_name(method.name)]
        if len(alike) > 1:
            raise SettingError(f"{where} has two methods called {' and '.join(map(repr, dict.fromkeys(alike)))}.")
        KINDS[method.kind](method, PointMass(mlp(1, 2)), None, "cpu", 0)  # it says what is wrong with its settings
        if protocol.model is not None and method.hypotheses not in ("retrains", "point"):
            raise SettingError(f"{where}: {method.name!r} must have 'retrains' or 'point' for hypotheses of a model.")
        if method.hypotheses == "rashomon" and not protocol.epsilons:
            raise SettingError(f"{where}: {method.name!r} needs 'epsilons' for its Rashomon sets.")


def plain_name(name: str) -> str:
    """A name in letters that every file system takes."""
    return "".join(letter if letter.isalnum() else "_" for letter in name)


def _choice(value: str, kind: Any, what: str) -> None:
    if value not in get_args(kind):
        raise SettingError(f"{what}: {value!r} is none of its values. {did_you_mean(value, get_args(kind))}")
