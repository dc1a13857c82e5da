"""Methods of a protocol: an explainer class by its path, its constructor's settings by their names."""

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
_FROM = "from"  # in the table of a setting: the path of a function that makes the record to start from


def explainer_class(path: str, what: str, folder: Path | None = None) -> type[Explainer]:
    """The class that a path names.

    Args:
        path: Such as ``"avcg.explainers.avcg:AVCG"``.
        what: Where the path stands, for messages.
        folder: A folder whose modules are found too.

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
    """An explainer that is not fitted yet.

    The settings are those of the class's constructor. A table changes single fields of a record, such as a recipe: of
    what `Explainer.default_settings` has under that name, or of what the table's ``from`` makes.

    Args:
        kind: The class.
        settings: Arguments of its constructor, as TOML has them.
        hypotheses: What the method is given.
        what: Which method this is, for messages.
        device: Where networks are trained and asked.
        random_state: Seed.
        folder: A folder whose modules are found too.

    Raises:
        SettingError: If the class has no such setting, or refuses a value.
    """
    check_arguments(kind, _OFFERED, settings, what)
    values = {name: _value(kind, name, value, what, folder) for name, value in settings.items()}
    return kind(hypotheses, device=device, random_state=random_state, **values)


def _value(kind: type[Explainer], name: str, value: Any, what: str, folder: Path | None) -> Any:
    """The value of a setting."""
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
    changes = {key: each for key, each in value.items() if key != _FROM}
    return value if start is None else changed(start, changes, where)
