"""Methods of a protocol: explainer classes named by their paths, with arguments of their constructors."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from avcg.bench.paths import changed, check_arguments, imported
from avcg.errors import SettingError
from avcg.explainers.base import Explainer
from avcg.hypotheses.base import HypothesisDistribution

# Arguments of every explainer that the benchmark fills in or leaves out.
_OFFERED = dict.fromkeys(("hypotheses", "schema", "model", "device", "random_state"), "")
_FROM = "from"  # key in the table of a setting: path of a function that makes the record to change


def explainer_class(path: str, what: str, folder: Path | None = None) -> type[Explainer]:
    """Import the explainer class that a path names.

    Args:
        path: Path of the class, such as ``"avcg.explainers.avcg:AVCG"``.
        what: Place of the path in the protocol, for error messages.
        folder: Folder whose modules can be imported too; None: there is none.

    Raises:
        SettingError: If the path does not name a subclass of `Explainer`.
    """
    kind = imported(path, what, folder)
    if not (inspect.isclass(kind) and issubclass(kind, Explainer)):
        raise SettingError(f"{what} must name a subclass of avcg.Explainer. Got {path!r}, which is {kind!r}.")
    return kind


def make_explainer(
    kind: type[Explainer],
    settings: Mapping[str, Any],
    hypotheses: HypothesisDistribution,
    what: str,
    *,
    device: str = "cpu",
    random_state: int = 0,
    folder: Path | None = None,
) -> Explainer:
    """Make an explainer that is not fitted yet.

    Settings are arguments of the constructor. A setting that is a table changes single fields of a record, such as a
    recipe: the record under that name in `Explainer.default_settings`, or the one that the table's ``from`` makes.

    Args:
        kind: Class of the explainer.
        settings: Arguments of its constructor, as values of TOML.
        hypotheses: Distribution over plausible models.
        what: Name of the method, for error messages.
        device: Device of the networks; ``"cpu"`` by default.
        random_state: Seed of the explainer; 0 by default.
        folder: Folder whose modules can be imported too; None: there is none.

    Raises:
        SettingError: If the class has no such setting, or a value is invalid.
    """
    check_arguments(kind, _OFFERED, settings, what)
    values = {name: _value(kind, name, value, what, folder) for name, value in settings.items()}
    return kind(hypotheses, device=device, random_state=random_state, **values)


def _value(kind: type[Explainer], name: str, value: Any, what: str, folder: Path | None) -> Any:
    """The value of a setting as the constructor takes it."""
    if isinstance(value, list):
        return tuple(value)
    if not isinstance(value, Mapping):
        return value
    where, start = f"{name} of {what}", kind.default_settings().get(name)
    if _FROM in value:
        path = value[_FROM]
        made = imported(path, f"'from' in {where}", folder)()
        if start is not None and not isinstance(made, type(start)):
            raise SettingError(f"{where} must be a {type(start).__name__}. Got a {type(made).__name__} from {path!r}.")
        start = made
    changes = {key: change for key, change in value.items() if key != _FROM}
    return value if start is None else changed(start, changes, where)
