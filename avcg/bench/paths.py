"""Importing what a protocol names by a path, ``"package.module:Name"``: methods, models, hypotheses and metrics."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from avcg.errors import SettingError, did_you_mean, enumerate_some


def imported(path: object, what: str, folder: Path | None = None) -> Any:
    """Import the object that a path names, which runs the code of its module.

    Args:
        path: ``"package.module:Name"``; the name may have parts, as in ``"package.module:Class.method"``.
        what: Place of the path in the protocol, for error messages.
        folder: Folder whose modules can be imported too, after all others; None: there is none.

    Raises:
        SettingError: If there is no such module or name, or the module cannot be imported.

    >>> imported("avcg.method.recipe:Recipe.paper", "the recipe")().single_pass
    True
    """
    module, _, name = path.partition(":") if isinstance(path, str) else ("", "", "")
    if not module or not name:
        raise SettingError(f"{what} must be a path such as 'package.module:Name'. Got {path!r}.")
    if folder is not None:
        _check_other_folders(module.partition(".")[0], what, folder)
    value: Any = sys.modules.get(module)
    if value is None:
        with _importable(folder):
            value = _module(module, what)
    owner = module
    for part in name.split("."):
        if not hasattr(value, part):
            raise SettingError(f"{what}: {owner!r} has no {part!r}. {did_you_mean(part, _public(value))}")
        value, owner = getattr(value, part), f"{owner}:{part}" if owner == module else f"{owner}.{part}"
    return value


@contextmanager
def _importable(folder: Path | None) -> Iterator[None]:
    """Make the modules of a folder importable in the block, after those that are installed."""
    if folder is None:
        yield
        return
    sys.path.append(str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _check_other_folders(name: str, what: str, folder: Path) -> None:
    """Refuse a module beside a protocol if one of the same name was imported from beside another protocol."""
    loaded = getattr(sys.modules.get(name), "__file__", None)
    beside = (folder / f"{name}.py").exists() or (folder / name).is_dir()
    if loaded is None or not beside or Path(loaded).is_relative_to(folder) or PathFinder.find_spec(name) is not None:
        return
    raise SettingError(
        f"{what}: the module {name!r} is beside the protocol, but one of that name was already imported from"
        f" {loaded!r}. Rename one, or run each protocol in its own process."
    )


def _module(name: str, what: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise SettingError(f"{what}: importing {name!r} failed: {error}.") from error
        parent, _, last = error.name.rpartition(".")
        siblings = [module.name for module in pkgutil.iter_modules(getattr(sys.modules.get(parent), "__path__", []))]
        hint = f" {did_you_mean(last, siblings)}" if siblings else " Install it, or put it beside the protocol."
        raise SettingError(f"{what}: there is no module {error.name!r}.{hint}") from None
    except Exception as error:  # a user's module may fail in any way
        raise SettingError(f"{what}: importing {name!r} failed: {type(error).__name__}: {error}.") from error


def _public(owner: Any) -> list[str]:
    """Public names of a class, or those that a module defines itself."""
    names = [name for name in vars(owner) if not name.startswith("_")] if hasattr(owner, "__dict__") else []
    if isinstance(owner, ModuleType):
        names = [name for name in names if getattr(getattr(owner, name), "__module__", None) == owner.__name__]
    return names


def check_arguments(
    function: Callable[..., Any], offered: Mapping[str, str], settings: Mapping[str, Any], what: str
) -> None:
    """Check that a function can be called: every setting is a parameter, and no required argument is missing.

    Args:
        function: A class or function.
        offered: Arguments that the benchmark fills in, by name: an empty text, or the reason why this protocol cannot
            offer the argument.
        settings: Arguments from the protocol by name.
        what: Place of the function in the protocol, for error messages.

    Raises:
        SettingError: If an argument is missing or unknown. The message names it and the valid ones.
    """
    accepted = parameters(function)
    free = [name for name in accepted if name not in offered]
    for name in settings:
        if name in accepted and name in offered:
            raise SettingError(f"{what}: {name!r} is set by the benchmark. Remove it.")
        if name not in accepted:
            raise SettingError(
                f"{what} takes no {name!r}. {did_you_mean(name, free) if free else 'It has no settings.'}"
            )
    for name, parameter in accepted.items():
        if name in settings or parameter.default is not inspect.Parameter.empty:
            continue
        if name not in offered:
            available = enumerate_some([argument for argument, reason in offered.items() if not reason], 20)
            raise SettingError(f"{what} needs {name!r}. Set it in the protocol. The benchmark itself sets {available}.")
        if offered[name]:
            raise SettingError(f"{what} needs {name!r}: {offered[name]}")


def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a function that can be passed by name."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {
        name: parameter for name, parameter in inspect.signature(function).parameters.items() if parameter.kind in kinds
    }


def changed(record: Any, changes: Mapping[str, Any], what: str) -> Any:
    """A copy of a frozen dataclass with some fields changed; a table changes fields of a nested dataclass.

    Args:
        record: Instance of a dataclass.
        changes: New values by name of the field, as values of TOML; lists become tuples.
        what: Name of the record, for error messages.

    Raises:
        SettingError: If a field is unknown.

    >>> from avcg.method.recipe import Recipe
    >>> changed(Recipe(), {"steps": 5, "weights": {"kl": 0.0}}, "the recipe").weights.kl
    0.0
    """
    names = [field.name for field in fields(record)]
    values: dict[str, Any] = {}
    for name, value in changes.items():
        if name not in names:
            raise SettingError(f"{what} has an unknown key {name!r}. {did_you_mean(name, names)}")
        inner = getattr(record, name)
        if isinstance(value, Mapping) and is_dataclass(inner):
            values[name] = changed(inner, value, f"{name} in {what}")
        else:
            values[name] = tuple(value) if isinstance(value, list) else value
    return replace(record, **values)
