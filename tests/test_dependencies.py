"""Imports of the package are declared in `pyproject.toml`, and the oldest versions it promises are those tested."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import avcg

PACKAGE = Path(avcg.__file__).parent
ROOT = PACKAGE.parent
# Distributions whose name differs from what is imported; XGBoost has two.
DISTRIBUTIONS = {
    "pydantic_core": ["pydantic-core"],
    "prometheus_client": ["prometheus-client"],
    "sklearn": ["scikit-learn"],
    "typing_extensions": ["typing-extensions"],
    "xgboost": ["xgboost", "xgboost-cpu"],
}
# Rooms that only an extra opens: they may import it when they are imported.
ROOM_EXTRAS = {"serve": "serve"}
# Extras whose packages are loaded by other libraries and imported nowhere in the package.
INDIRECT = {
    "httptools": "uvicorn parses requests with it",
    "onnx": "torch exports graphs with it",
    "requests": "pooch downloads with it",
    "uvloop": "uvicorn runs on it",
}
TOOLS = {"dev", "docs"}  # extras for people who work on the package


def normalized(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def parsed(requirements):
    """Lower bounds by distribution; extras of the package itself are left out."""
    pairs = [re.match(r"([\w.-]+)(?:\[[\w,]+\])?(?:>=([\w.]+))?", text).groups() for text in requirements]
    return {normalized(name): bound for name, bound in pairs if name != "avcg"}


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CORE = parsed(PROJECT["dependencies"])
EXTRAS = {name: parsed(listed) for name, listed in PROJECT["optional-dependencies"].items()}
PROMISED = CORE | {name: bound for extra in set(EXTRAS) - TOOLS for name, bound in EXTRAS[extra].items()}


def imported(node, lazily=False):
    """Top-level names that a tree imports from elsewhere, and whether that happens after the module is imported."""
    for child in ast.iter_child_nodes(node):
        names = []
        if isinstance(child, ast.Import):
            names = [alias.name for alias in child.names]
        elif isinstance(child, ast.ImportFrom) and not child.level:
            names = [child.module]
        elif isinstance(child, ast.Call) and ast.unparse(child.func) == "import_module":
            names = [one.value for one in child.args if isinstance(one, ast.Constant)]
        for name in {name.split(".")[0] for name in names}.difference(sys.stdlib_module_names, ["avcg"]):
            yield name, lazily
        later = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) or (
            isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        )
        yield from imported(child, lazily or later)


IMPORTS = [
    (module.relative_to(PACKAGE).as_posix(), name, lazily)
    for module in sorted(PACKAGE.rglob("*.py"))
    for name, lazily in sorted(set(imported(ast.parse(module.read_text()))))
]


def declared(name, requirements):
    return any(one in requirements for one in DISTRIBUTIONS.get(name, [name]))


def test_what_a_module_imports_first_thing_is_a_dependency():
    undeclared = {
        f"{module} imports {name}"
        for module, name, lazily in IMPORTS
        if not lazily and not declared(name, CORE | EXTRAS.get(ROOM_EXTRAS.get(module.split("/")[0], ""), {}))
    }
    assert not undeclared, "declare it in pyproject.toml, or import it inside the function that needs it"


def test_what_is_imported_later_is_a_dependency_or_in_an_extra():
    undeclared = {f"{module} imports {name}" for module, name, _ in IMPORTS if not declared(name, PROMISED)}
    assert not undeclared, "declare it in an extra of pyproject.toml"


def test_nothing_is_declared_for_nothing():
    used = {one for _, name, _ in IMPORTS for one in DISTRIBUTIONS.get(name, [name])}
    assert set(PROMISED) - used == set(INDIRECT)


def pins(file):
    lines = [line.split("==") for line in (ROOT / file).read_text().splitlines() if "==" in line]
    return {normalized(name): version for name, version in lines}


def test_every_requirement_has_a_pin():
    assert not set(CORE).union(*EXTRAS.values()) - set(pins("constraints.txt"))


def test_the_oldest_versions_tested_are_those_promised():
    """Polars is no requirement, but its frames are taken: the tests start at the oldest polars of their own."""
    oldest, promised = pins("constraints-oldest.txt"), PROMISED | {"polars": EXTRAS["dev"]["polars"]}
    assert oldest.keys() == promised.keys()
    trailing = re.compile(r"(\.0)+$")  # 1.26 is 1.26.0
    assert [
        (name, oldest[name]) for name in oldest if trailing.sub("", oldest[name]) != trailing.sub("", promised[name])
    ] == []


def test_the_workflow_runs_make_targets_that_exist_on_the_pythons_declared():
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    runs = re.findall(r'target: ([\w-]+), python: "([\d.]+)"', workflow)
    targets = re.findall(r"^([\w-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {target for target, _ in runs} <= set(targets)
    classifiers = [f"Programming Language :: Python :: {python}" for target, python in runs if target == "test"]
    assert classifiers == [
        one for one in PROJECT["classifiers"] if one.startswith("Programming Language :: Python :: 3.")
    ]
