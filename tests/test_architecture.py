"""The rules of the house that a machine can check."""

import ast
import inspect
import json
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import avcg

ROOT = Path(avcg.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
DESIGN = ROOT.parent / "docs" / "explanation" / "design.md"
# Methods that only forward to a later room or module, because that is where people look for them: (from, to, method).
FORWARDS = {
    ("schema.schema", "space.inspect", "infer"),
    ("schema.schema", "space.frames", "describe"),
    ("schema.schema", "schema.describe", "describe"),
    ("schema.schema", "schema.describe", "__repr__"),
    ("schema.schema", "space.frames", "to_toml"),
    ("schema.schema", "schema.toml", "to_toml"),
    ("schema.schema", "schema.toml", "from_toml"),
    ("schema.schema", "schema.toml", "write"),
    ("schema.schema", "schema.toml", "read"),
    ("space.codes", "space.tabular", "tensors"),
    ("explainers.avcg", "io.artifact", "save"),
    ("explainers.avcg", "io.onnx", "to_onnx"),
    ("auditing.audit", "report.audit_page", "to_html"),
    ("auditing.past", "report.backtest_page", "to_html"),
}


def rooms():
    """The rooms in the order of the design page: a room may import those before it."""
    layout = re.search(r"^avcg/\n(.*?)^```", DESIGN.read_text(), re.MULTILINE | re.DOTALL)
    return [line.split()[0].rstrip("/").removesuffix(".py") for line in layout[1].splitlines()]


def dotted(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def room_of(module):
    return module.split(".")[0]


def imports(path):
    """(module, function) of every import of ours, those inside functions included; the function is None at the top."""
    names = {dotted(other) for other in MODULES}

    def visit(node, function):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            function = node.name
        if isinstance(node, ast.Import):
            yield from [(alias.name[5:], function) for alias in node.names if alias.name.startswith("avcg.")]
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "avcg":
            base = node.module.removeprefix("avcg").removeprefix(".")
            for alias in node.names:
                full = f"{base}.{alias.name}".lstrip(".")
                yield (full if full in names else base, function)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, function)

    yield from visit(ast.parse(path.read_text()), None)


INSIDE = [path for path in MODULES if path.relative_to(ROOT).parts[0] not in ("__init__.py", "__main__.py")]


def test_the_design_page_lists_the_rooms_there_are():
    there = {path.stem if path.suffix == ".py" else path.name for path in ROOT.iterdir() if path.name[0] not in "_."}
    assert set(rooms()) == there - {"py.typed"}


@pytest.mark.parametrize("path", INSIDE, ids=dotted)
def test_rooms_import_only_rooms_above(path):
    order, here = rooms(), dotted(path)
    for module, function in imports(path):
        if (here, module, function) not in FORWARDS and module:
            assert order.index(room_of(module)) <= order.index(room_of(here)), f"{here} imports {module}"


def test_there_are_no_cycles_between_modules():
    graph = {}
    for path in INSIDE:
        found = {module for module, function in imports(path) if (dotted(path), module, function) not in FORWARDS}
        graph[dotted(path)] = found - {dotted(path)}
    list(TopologicalSorter(graph).static_order())


def test_forwards_are_all_in_use():
    there = {(dotted(path), module, function) for path in INSIDE for module, function in imports(path)}
    assert there >= FORWARDS


def test_nothing_but_main_imports_the_command_line():
    for path in MODULES:
        if room_of(dotted(path)) not in ("cli", "__main__"):
            assert not [module for module, _ in imports(path) if room_of(module) == "cli"], path


def test_only_the_space_and_stored_files_ask_what_kind_of_space_there_is():
    pattern = re.compile(r"isinstance\([^)]*(TabularSpace|ImageSpace)")
    asking = {dotted(path) for path in MODULES if pattern.search(path.read_text())}
    assert {room_of(name) for name in asking} <= {"space", "io"}


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_modules_and_functions_stay_readable(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 450
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno + 1 <= 60, node.name
            assert node.args.kwarg is None or node.name.startswith("_"), f"{node.name} takes **kwargs"
            for default in (*node.args.defaults, *node.args.kw_defaults):
                assert not isinstance(default, (ast.List, ast.Dict, ast.Set)), f"{node.name} has a mutable default"


# Numbers that bound memory, time or what is shown; all that changes an answer is a setting, most of them of the recipe.
NO_RESULT = {
    "auditing.monitor._MOST_SHOWN",
    "auditing.past._CONFIDENCE",
    "auditing.past._VERSION",
    "auditing.audit._VERSION",
    "auditing.audit._SHOWN",
    "explainers.base._ANSWERS_AT_ONCE",
    "explainers.counterfactuals._VERSION",
    "explainers.counterfactuals._SHOWN_ROWS",
    "explainers.counterfactuals._SHOWN_CHANGES",
    "explainers.records.MOST_ANSWERS",
    "method.reference_set._PAIRS",
    "method.refine._CANDIDATES",
    "method.search._BATCHED_STEPS",
    "method.search._CODES_AT_ONCE",
    "method.search._PAIRS",
}


def numbers_of(module, tree):
    """Names of the numbers, and tuples of numbers, that a module or a class holds; fields of settings are not meant."""
    for node in tree.body:
        settings = [name for name in map(ast.unparse, getattr(node, "decorator_list", [])) if "dataclass" in name]
        if isinstance(node, ast.ClassDef) and not settings:
            yield from numbers_of(f"{module}.{node.name}", node)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [name for target in targets for name in getattr(target, "elts", [target])]
            values = (
                node.value.elts if len(names) > 1 and isinstance(node.value, ast.Tuple) else [node.value] * len(names)
            )
            for name, value in zip(names, values, strict=True):
                parts = [part.value for part in ast.walk(value) if isinstance(part, ast.Constant)]
                calls = any(
                    isinstance(part, ast.Call) and ast.unparse(part.func) not in ("tuple", "range")
                    for part in ast.walk(value)
                )
                if not calls and any(isinstance(part, (int, float)) and not isinstance(part, bool) for part in parts):
                    yield f"{module}.{ast.unparse(name)}"


def test_numbers_that_change_results_are_settings():
    chosen = [path for path in MODULES if room_of(dotted(path)) in ("method", "explainers", "baselines", "auditing")]
    chosen.append(ROOT / "hypotheses" / "split.py")
    found = {name for path in chosen for name in numbers_of(dotted(path), ast.parse(path.read_text()))}
    assert found == NO_RESULT


def test_a_number_outside_the_settings_is_seen():
    code = """
_A, NAME = (0.5, 2), "x"
_B: float = -2.0**3
_C = tuple(0.5 * i for i in range(3))
D = Config(0.5)
class Method:
    _steps = 50
    own = False
@dataclass(frozen=True)
class Config:
    share: float = 0.1
"""
    assert set(numbers_of("m", ast.parse(code))) == {"m._A", "m._B", "m._C", "m.Method._steps"}


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_no_global_randomness(path):
    text = path.read_text()
    for forbidden in ("torch.manual_seed", "np.random.seed", "random.seed", "set_num_threads", "set_default_dtype"):
        assert forbidden not in text


TESTS = Path(__file__).parent
TEST_FILES = sorted(TESTS.rglob("*.py"))
TRAINING = re.compile(r"\.fit$|\b(fitted|retrains|rashomon_set|generate)$")
# Spaces and readings have a `fit` too, which only looks at the columns.
READERS = re.compile(r"(Space|Reading)\.fit$")


def calls_at_import(node):
    """Calls that run when a module is imported: those in functions and lambdas do not, those in default values do."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        arguments = node.args
        inner = [*arguments.defaults, *arguments.kw_defaults, *getattr(node, "decorator_list", [])]
    else:
        inner = ast.iter_child_nodes(node)
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)
    for child in inner:
        if child is not None:
            yield from calls_at_import(child)


def test_folders_of_tests_are_named_after_rooms():
    folders = {path.name for path in TESTS.iterdir() if path.is_dir() and path.name[0] not in "_."}
    assert folders - {"data"} <= {name for name in rooms() if (ROOT / name).is_dir()}


@pytest.mark.parametrize("path", TEST_FILES, ids=lambda path: str(path.relative_to(TESTS)))
def test_files_of_tests_are_short_and_train_nothing_when_imported(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 600
    calls = [call for call in calls_at_import(ast.parse(text)) if TRAINING.search(call)]
    assert not [call for call in calls if not READERS.search(call)]


def test_training_at_import_is_seen():
    code = """
A = Classifier().fit(x)
def f(model=retrains(1)):
    g.fit(2)
B = {"a": lambda: h.fit(3)}
C = TabularSpace.fit(4)
"""
    assert list(calls_at_import(ast.parse(code))) == ["Classifier().fit", "Classifier", "retrains", "TabularSpace.fit"]


def test_importing_changes_nothing_and_loads_nothing_heavy():
    code = """
import json, random, sys, os, warnings, logging
before = (random.getstate(), dict(os.environ), list(warnings.filters), logging.root.level, sys.getrecursionlimit())
import avcg
after = (random.getstate(), dict(os.environ), list(warnings.filters), logging.root.level, sys.getrecursionlimit())
light = sorted({name.split('.')[0] for name in sys.modules} & set(json.loads(sys.argv[1])))
import numpy, torch
state = lambda: (numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist(), torch.get_default_dtype(),
                 torch.get_num_threads(), torch.is_grad_enabled(), numpy.geterr())
import sklearn.model_selection
before_use, drawn = state(), random.getstate()
for name in avcg.__all__:
    getattr(avcg, name)
extras = {'pooch', 'polars', 'pyarrow', 'matplotlib', 'requests'}
optional = sorted({name.split('.')[0] for name in sys.modules} & extras)
print(json.dumps([before == after, light, state() == before_use, drawn == random.getstate(), optional]))
"""
    heavy = json.dumps(["torch", "pandas", "numpy", "sklearn", "narwhals", "typer", "rich", "pooch", "polars"])
    found = subprocess.run([sys.executable, "-c", code, heavy], capture_output=True, text=True, check=True)
    unchanged, light, state_kept, random_kept, optional = json.loads(found.stdout)
    assert unchanged
    assert light == []
    assert state_kept
    assert random_kept
    # pandas loads pyarrow by itself where it is installed; that is no wish of ours.
    assert set(optional) <= {"pyarrow"}


def test_public_names_exist_and_are_documented():
    assert set(avcg.__all__) <= set(dir(avcg))
    for name in avcg.__all__:
        thing = getattr(avcg, name)
        assert inspect.getdoc(thing), name
    with pytest.raises(AttributeError, match="nothing_such"):
        avcg.nothing_such  # noqa: B018
