"""What a protocol names by its path, ``"package.module:Name"``: methods, models, hypotheses and metrics."""

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
    """What a path names. Its module is imported, and so its code runs.

    Args:
        path: ``"package.module:Name"``; the name may have parts, as in ``"package.module:Class.method"``.
        what: Where the path stands, for messages.
        folder: A folder whose modules are found too, after all others; None: none.

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
    thing: Any = sys.modules.get(module)
    if thing is None:
        with _importable(folder):
            thing = _module(module, what)
    owner = module
    for part in name.split("."):
        if not hasattr(thing, part):
            raise SettingError(f"{what}: {owner!r} has no {part!r}. {did_you_mean(part, _public(thing))}")
        thing, owner = getattr(thing, part), f"{owner}:{part}" if owner == module else f"{owner}.{part}"
    return thing


@contextmanager
def _importable(folder: Path | None) -> Iterator[None]:
    """Modules of a folder can be imported in the block; those that are installed come first."""
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
    """Refuse a module beside a protocol where one of the same name, from beside another, is already imported."""
    loaded = getattr(sys.modules.get(name), "__file__", None)
    beside = (folder / f"{name}.py").exists() or (folder / name).is_dir()
    if loaded is None or not beside or Path(loaded).is_relative_to(folder) or PathFinder.find_spec(name) is not None:
        return
    raise SettingError(
        f"{what}: {name!r} lies beside the protocol, and another one is already imported from {loaded!r}. Rename one,"
        " or run the protocols in processes of their own."
    )


def _module(name: str, what: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise SettingError(f"{what}: importing {name!r} failed: {error}.") from error
        parent, _, last = error.name.rpartition(".")
        siblings = [each.name for each in pkgutil.iter_modules(getattr(sys.modules.get(parent), "__path__", []))]
        hint = f" {did_you_mean(last, siblings)}" if siblings else " Install it, or put it beside the protocol."
        raise SettingError(f"{what}: there is no module {error.name!r}.{hint}") from None
    except Exception as error:  # the module is not ours, and may fail in any way
        raise SettingError(f"{what}: importing {name!r} failed: {type(error).__name__}: {error}.") from error


def _public(thing: Any) -> list[str]:
    """Public names of a class, or those that a module defines itself."""
    names = [name for name in vars(thing) if not name.startswith("_")] if hasattr(thing, "__dict__") else []
    if isinstance(thing, ModuleType):
        names = [name for name in names if getattr(getattr(thing, name), "__module__", None) == thing.__name__]
    return names


def check_arguments(
    function: Callable[..., Any], offered: Mapping[str, str], settings: Mapping[str, Any], what: str
) -> None:
    """Refuse to call a function without what it needs, or with what it does not take.

    Args:
        function: A class or function.
        offered: Names of arguments that can be filled in, and for messages why others cannot: an empty text says that
            the argument is there, any other text what it takes to have it.
        settings: Arguments from the protocol.
        what: Where the path of the function stands, for messages.

    Raises:
        SettingError: With the argument and what there is.
    """
    takes = parameters(function)
    free = [name for name in takes if name not in offered]
    for name in settings:
        if name in takes and name in offered:
            raise SettingError(f"{what}: {name!r} is set by the benchmark. Remove it.")
        if name not in takes:
            raise SettingError(
                f"{what} takes no {name!r}. {did_you_mean(name, free) if free else 'It has no settings.'}"
            )
    for name, parameter in takes.items():
        if name in settings or parameter.default is not inspect.Parameter.empty:
            continue
        if name not in offered:
            there = enumerate_some([each for each, reason in offered.items() if not reason], 20)
            raise SettingError(f"{what} needs {name!r}. Set it in the protocol. The benchmark itself offers {there}.")
        if offered[name]:
            raise SettingError(f"{what} needs {name!r}: {offered[name]}")


def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters that can be given by name."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: each for name, each in inspect.signature(function).parameters.items() if each.kind in kinds}


def changed(record: Any, changes: Mapping[str, Any], what: str) -> Any:
    """A frozen record with some fields changed; a table changes fields of a record within.

    Args:
        record: A dataclass.
        changes: New values by field, as TOML has them; lists become tuples.
        what: Which record this is, for messages.

    Raises:
        SettingError: If there is no such field.

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
