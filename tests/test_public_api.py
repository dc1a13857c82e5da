"""The public interface, written down: what is added, renamed or removed shows as a difference to a file.

Renew the file after a change that is meant: ``python tests/test_public_api.py --renew``.
"""

import difflib
import importlib
import inspect
import re
import sys
from pathlib import Path
from types import FunctionType, ModuleType

import avcg

FILE = Path(__file__).parent / "data" / "api.txt"
REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
RENEW = "python tests/test_public_api.py --renew"


def snapshot():
    """Every name of ``avcg`` and of the reference pages, with its signature, one a line."""
    lines = [f"avcg {avcg.__version__}"]
    for path in dict.fromkeys([*(f"avcg.{name}" for name in avcg.__all__), *documented()]):
        lines += described(path, resolved(path))
    return "\n".join(dict.fromkeys(lines)) + "\n"


def documented():
    """What the reference pages document: modules, classes and functions, by the path written there."""
    pages = "\n".join(page.read_text() for page in sorted(REFERENCE.glob("*.md")))
    return sorted(re.findall(r"^::: ([\w.]+)$", pages, re.MULTILINE))


def resolved(path):
    """The object under a path; a module before a function of the same name, as the reference pages have it."""
    parent, _, name = path.rpartition(".")
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        return getattr(importlib.import_module(parent), name)


def described(path, thing):
    """Lines about a function, a class with all that is public in it, or a module likewise."""
    if isinstance(thing, ModuleType):
        names = getattr(
            thing, "__all__", [name for name, one in vars(thing).items() if is_own(name, one, thing.__name__)]
        )
        own = {name: getattr(thing, name) for name in names}
        return [path, *(line for name in sorted(own) for line in described(f"{path}.{name}", own[name]))]
    if inspect.isclass(thing):
        return [f"{path}{called(thing)}", *members(path, thing)]
    return [f"{path}{called(thing)}"]


def is_own(name, thing, module):
    return not name.startswith("_") and getattr(thing, "__module__", None) == module and callable(thing)


def members(path, kind):
    """Public fields, attributes, properties and methods of a class, those of its bases in this package included."""
    found = {}
    for base in reversed([one for one in kind.__mro__ if one.__module__.startswith("avcg")]):
        found |= dict.fromkeys(inspect.get_annotations(base), "")
        found |= {name: one for name, one in vars(base).items() if is_ours(one)}
    return [f"{path}.{name}{called(one)}" for name, one in sorted(found.items()) if not name.startswith("_")]


def is_ours(thing):
    """Whether something in a class was written in this package, and not put there by a library."""
    inner = thing.__func__ if isinstance(thing, (classmethod, staticmethod)) else thing
    return inner.__module__.startswith("avcg") if isinstance(inner, FunctionType) else not callable(inner)


def called(thing):
    """How something is called: its signature, or nothing where it is no function."""
    if isinstance(thing, (classmethod, staticmethod)):
        thing = thing.__func__
    makes_itself = inspect.isclass(thing) and not getattr(thing, "_is_protocol", False) and written_init(thing)
    if not (isinstance(thing, FunctionType) or makes_itself):
        return ""
    delivered = inspect.signature(thing)
    parameters = [one.replace(annotation=Bare.of(one.annotation)) for one in delivered.parameters.values()]
    if parameters and parameters[0].name in ("self", "cls"):
        parameters = parameters[1:]
    text = str(delivered.replace(parameters=parameters, return_annotation=Bare.of(delivered.return_annotation)))
    return re.sub(r" at 0x[0-9a-f]+", "", text)  # where a function that is a default lies in memory


def written_init(kind):
    """Whether a class of this package says how it is made, itself or by a base."""
    return any("__init__" in vars(base) for base in kind.__mro__ if base.__module__.startswith("avcg"))


class Bare(str):
    """A text that shows without quotes: annotations are texts in most modules."""

    __slots__ = ()

    def __repr__(self):
        return str(self)

    @classmethod
    def of(cls, annotation):
        return cls(annotation) if isinstance(annotation, str) else annotation


def test_the_public_interface_is_as_written_down():
    before, after = FILE.read_text(), snapshot()
    difference = difflib.unified_diff(
        before.splitlines(), after.splitlines(), "tests/data/api.txt", "avcg", lineterm=""
    )
    assert before == after, "\n".join([*difference, f"If this is meant, write it down: {RENEW}"])


def test_it_sees_what_changes():
    lines = snapshot().splitlines()
    assert "avcg.Schema.freeze(*columns: str) -> Self" in lines
    assert "avcg.Counterfactuals.frame" in lines, "properties"
    assert "avcg.AVCG.space_" in lines, "attributes of a base, declared but set later"
    assert "avcg.Recipe.steps" in lines, "fields"
    assert "avcg.guarantees.Certificate.ASSUMPTION" in lines, "constants"
    assert any(line.startswith("avcg.AVCG.generate(") for line in lines), "methods of a base"
    assert any(line.startswith("avcg.guarantees.Certificate(") for line in lines), "classes in modules"
    assert any(line.startswith("avcg.bench.run.run(") for line in lines), "modules that only the reference documents"
    assert not [line for line in lines if "._" in line.partition("(")[0] or "0x" in line]


if __name__ == "__main__" and "--renew" in sys.argv:
    FILE.write_text(snapshot())
    print(f"{FILE} is renewed.")
