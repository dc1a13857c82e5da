"""Rules of the house that a machine can check."""

import ast
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import avcg

ROOT = Path(avcg.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))

# Imports go downward only: a module may import from those listed before it.
ORDER = [
    "errors", "progress", "outputs", "commands.wishes", "options", "tries", "features", "schema", "wording", "refusals",
    "encoding", "links", "freedom", "projection", "relaxation", "io.folder", "io.tensors", "io.spaces", "rows",
    "scorer",
    "frames", "tables", "space", "images", "numeric", "risk", "noise", "ramps", "precision", "training",
    "hypotheses.batched", "hypotheses.predictors", "models.networks", "models.opened", "models.affine",
    "models.from_sklearn",
    "models.blackbox", "models.fitting", "hypotheses.asked", "hypotheses.distributions", "hypotheses.dropout",
    "hypotheses.rashomon", "hypotheses.laplace", "hypotheses.variational", "models.classifier", "models.autoencoders",
    "hypotheses.given", "hypotheses.retraining", "hypotheses.multiplicity", "hypotheses.roles", "certificates",
    "decisions", "generator", "objective", "plausibility", "metrics", "refine", "recorded", "recipe", "answers",
    "questions", "explainer", "calibration", "diagnostics", "distillation", "answering", "amortized",
    "baselines.nearest", "baselines.vae", "baselines.descent", "baselines.search", "io.networks", "io.boxes",
    "io.packing", "io.graphs", "io.artefact", "judging", "grouping", "auditing", "report.plots", "testing", "files",
    "datasets", "toys",
    "demonstration", "evaluation", "bench.tables", "bench.figures", "bench.models", "bench.protocol", "bench.methods",
    "bench.problem", "bench.store", "bench.run", "bench.page", "bench.commands", "report.page", "report.svg",
    "report.audit_page", "report.pictures", "report.population", "report.listing", "report.trained",
    "report.answers_page", "commands.audit", "commands.report", "commands.row_pieces", "commands.row_files",
    "scale.answered", "scale.answering", "scale.files", "scale.partitions", "scale.shards", "scale.engines",
    "commands.answer_files", "commands.explaining", "commands.learning", "commands.fit", "commands.explain",
    "serve.engine", "serve.description", "serve.examples", "serve.metrics", "serve.messages", "serve.guard",
    "serve.openapi", "serve.together", "serve.service", "commands.serve", "cli", "__main__",
]  # fmt: skip
# A function may reach up at the moment it is called, where a method belongs to the lower module in the user's eyes.
LATE = {
    ("schema", "frames"),
    ("schema", "wording"),
    ("bench.protocol", "bench.methods"),
    ("auditing", "report.audit_page"),
    ("amortized", "io.artefact"),
    ("amortized", "io.graphs"),
}


def imports(tree, *, top_level):
    nodes = tree.body if top_level else list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "avcg":
            whole = node.module.removeprefix("avcg").removeprefix(".")
            yield from [alias.name for alias in node.names] if not whole else [whole]


def dotted(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@pytest.mark.parametrize("path", [path for path in MODULES if path.stem != "__init__"], ids=dotted)
def test_imports_go_downward(path):
    tree = ast.parse(path.read_text())
    for name in imports(tree, top_level=False):
        if (dotted(path), name) not in LATE:
            assert ORDER.index(name) < ORDER.index(dotted(path)), (
                f"{dotted(path)} imports {name}, which stands above it"
            )
    assert dotted(path) in ORDER


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_modules_and_functions_stay_readable(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 450
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno <= 60, node.name
            assert node.args.kwarg is None or node.name.startswith("_"), f"{node.name} takes **kwargs"
            for default in (*node.args.defaults, *node.args.kw_defaults):
                assert not isinstance(default, (ast.List, ast.Dict, ast.Set)), f"{node.name} has a mutable default"


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_no_global_randomness(path):
    text = path.read_text()
    for forbidden in ("torch.manual_seed", "np.random.seed", "random.seed", "set_num_threads", "set_default_dtype"):
        assert forbidden not in text


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
