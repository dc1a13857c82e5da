"""What the documentation says is run, and what it points to is there.

Every block of ``python`` runs, in order, page by page. A block of ``text`` after it is what it prints, to the letter. A
block of ``console`` is what it printed once: figures of a trained network, whose last digits differ from one processor
to another. A block of ``py`` is the same at full size: it runs with the slow tests only. Commands in blocks of ``sh``
must be commands that there are, with options that they have.
"""

import ast
import contextlib
import importlib
import importlib.util
import io
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import typer.main

import avcg
from avcg import datasets
from avcg.cli.main import app

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
REFERENCE = sorted((DOCS / "reference").glob("*.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DATASET = re.compile(r'datasets\.load\("(\w+)"')
# Packages that a page may import and that not every installation has.
EXTRAS = ("xgboost", "lightgbm", "onnxruntime", "matplotlib", "fastapi", "pyarrow", "ray", "pyspark")
# Of these, those that warn and draw from global streams of their own accord.
ENGINES = ("ray", "pyspark")
LINK = re.compile(r"\]\(([^)#:\s]*)(?:#([^)\s]*))?\)")


def named(page):
    return str(page.relative_to(ROOT))


def blocks_of(page):
    return BLOCK.findall(page.read_text())


each_page = pytest.mark.parametrize("page", PAGES, ids=named)


class TestBlocks:
    @each_page
    def test_code_blocks_run(self, page):
        run(page, blocks_of(page), {"python"})

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "page", [page for page in PAGES if any(language == "py" for language, _ in blocks_of(page))], ids=named
    )
    def test_whole_blocks_run(self, page):
        run(page, blocks_of(page), {"python", "py"})

    @each_page
    def test_commands_are_commands(self, page):
        for language, code in blocks_of(page):
            for line in code.splitlines() if language == "sh" else ():
                words = shlex.split(line, comments=True)
                if words and words[0] == "avcg":
                    check_command(words[1:])

    def test_a_command_that_is_none_is_found(self):
        with pytest.raises(AssertionError, match="no option --flat"):
            check_command(["bench", "run", "benchmarks/smoke.toml", "--flat"])
        with pytest.raises(AssertionError, match="no command dance"):
            check_command(["dance"])


def run(page, blocks, languages):
    code = "".join(text for language, text in blocks if language in languages)
    for name in DATASET.findall(code):
        if not datasets.available(name):
            pytest.skip(f"the files of {name} are not at hand; set AVCG_DATA to their directory")
    for extra in EXTRAS:
        if re.search(rf"^\s*(?:from|import) {extra}\b", code, re.MULTILINE):
            pytest.importorskip(extra)
    # A page about one's own networks seeds PyTorch's stream as its readers would, and may draw from it.
    own = torch.random.fork_rng(devices=[]) if "torch.manual_seed" in code else contextlib.nullcontext()
    own = on_engines() if any(f"import {name}" in code or f"from {name}" in code for name in ENGINES) else own
    names, printed = {}, ""
    with own:
        for language, text in blocks:
            if language in languages:
                output = io.StringIO()
                with contextlib.redirect_stdout(output):
                    exec(compile(text, str(page), "exec"), names)
                printed = output.getvalue()
            elif language == "text":
                assert [line.rstrip() for line in printed.splitlines()] == [line.rstrip() for line in text.splitlines()]


@contextlib.contextmanager
def on_engines():
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs a Java runtime, which is not installed (Debian: openjdk-17-jre-headless)")
    before, environment = random.getstate(), dict(os.environ)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        random.setstate(before)
        os.environ.clear()
        os.environ.update(environment)


def check_command(words):
    """Walk down to the command, and look for every option it is given."""
    command = typer.main.get_command(app)
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        assert words[0] in command.commands, f"there is no command {words[0]}"
        command, words = command.commands[words[0]], words[1:]
    known = {"--help"} | {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
    for word in words:
        if word.startswith("-") and not word.lstrip("-").replace(".", "").isdigit():
            assert word.partition("=")[0] in known, f"there is no option {word} of {command.name}"


def anchors_of(page):
    """The anchors of a page's headings, as Markdown makes them, and of what its directives show."""
    text = BLOCK.sub("", page.read_text())
    found = set(re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE))
    for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = re.sub(r"[^\w\s-]", "", title.replace("`", "").replace("*", "")).strip().lower()
        found.add(re.sub(r"[-\s]+", "-", plain))
    return found


class TestLinks:
    @each_page
    def test_links_between_pages_lead_somewhere(self, page):
        for target, anchor in LINK.findall(BLOCK.sub("", page.read_text())):
            there = page.parent / target if target else page
            assert there.exists(), target
            if anchor:
                assert anchor in anchors_of(there), f"{target}#{anchor}"

    def test_the_navigation_has_every_page_once(self):
        listed = pages_in(settings()["nav"])
        assert len(listed) == len(set(listed))
        assert set(listed) == {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}

    def test_nothing_comes_from_elsewhere(self):
        assert settings()["theme"]["font"] is False
        assert "extra_javascript" not in settings()
        assert not [one for one in settings()["extra_css"] if "://" in one or not (DOCS / one).exists()]


def settings():
    return pytest.importorskip("yaml").safe_load((ROOT / "mkdocs.yml").read_text())


def pages_in(nav):
    """All pages of a navigation, in order."""
    values = [next(iter(entry.values())) if isinstance(entry, dict) else entry for entry in nav]
    return [page for value in values for page in (pages_in(value) if isinstance(value, list) else [value])]


class TestNames:
    """Names of functions and tests that pages rely on."""

    @pytest.mark.parametrize("page", REFERENCE, ids=named)
    def test_directives_name_what_there_is(self, page):
        for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE):
            assert exists(name), name

    def test_every_public_name_has_its_place_in_the_reference(self):
        shown = {name for page in REFERENCE for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)}
        missing = [name for name in avcg.__all__ if f"avcg.{name}" not in shown]
        assert not missing, f"add '::: avcg.{missing[0]}' to a page of docs/reference"
        listed = (DOCS / "reference" / "index.md").read_text()
        assert not [name for name in avcg.__all__ if f"#avcg.{name})" not in listed], "add it to reference/index.md"

    def test_paper_to_code(self):
        page = DOCS / "explanation" / "paper-to-code.md"
        names = re.findall(r"`(avcg\.[\w.]+)`", page.read_text())
        assert len(names) > 40
        for name in names:
            assert exists(name), name
        for line in re.findall(r"^\| (?!the paper|---)(.+) \|$", page.read_text(), re.MULTILINE):
            assert re.search(r"`tests/[\w/]+\.py::", line), f"no test proves: {line}"

    def test_new_names_of_the_changelog_exist(self):
        renamed = (ROOT / "CHANGELOG.md").read_text().split("### Renamed\n")[1].split("\n### ")[0]
        rows = [line.split("|")[-2] for line in renamed.splitlines() if line.startswith("| `")]
        names = [name for row in rows for name in re.findall(r"`(avcg\.[\w.]+)`", row)]
        assert len(names) > 30
        assert not [name for name in names if name != "avcg.artifact" and not exists(name)]

    @each_page
    def test_tests_that_are_named_exist(self, page):
        for file, path in re.findall(r"`tests/([\w/]+\.py)::([\w:]+)`", page.read_text()):
            assert path in listed_in(ROOT / "tests" / file), f"{file}::{path}"

    def test_what_is_not_there_is_found(self):
        assert exists("avcg.Recipe.paper")
        assert exists("avcg.method.objective.Terms.nll"), "a field without a default"
        assert not exists("avcg.Recipe.newspaper")
        assert not exists("avcg.nothing.such")


def exists(name):
    """Whether a dotted name can be had: a module, something in it, a method or a field of a class."""
    parts = name.split(".")
    thing = importlib.import_module(parts[0])
    for at, part in enumerate(parts[1:], start=2):
        if hasattr(thing, part):
            thing = getattr(thing, part)
        elif part in getattr(thing, "__dataclass_fields__", {}):
            return at == len(parts)
        else:
            try:
                thing = importlib.import_module(".".join(parts[:at]))
            except ImportError:
                return False
    return True


def listed_in(file):
    """Every test of a file, as pytest names it without parameters."""
    found = set()
    for node in ast.parse(file.read_text()).body if file.exists() else ():
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{one.name}" for one in node.body if isinstance(one, ast.FunctionDef)}
    return found


class TestSite:
    """The site as `make docs` builds it."""

    def test_it_builds_strictly_and_needs_nothing_from_elsewhere(self, tmp_path):
        pytest.importorskip("mkdocstrings_handlers.python")
        (tmp_path / "avcg").symlink_to(ROOT / "avcg")
        shutil.copytree(DOCS, tmp_path / "docs")
        shutil.copy(ROOT / "mkdocs.yml", tmp_path)
        done = build(tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        site = tmp_path / "site"
        pages = list(site.rglob("*.html"))
        assert {page.relative_to(site).parts[0] for page in pages} >= {
            "tutorials",
            "how-to",
            "explanation",
            "reference",
        }
        loads = re.compile(
            r"<(?:script|img|iframe)[^>]+src=[\"']?(https?:)|<link[^>]+rel=[\"']?stylesheet[^>]+(https?:)"
        )
        assert not [page for page in pages if loads.search(page.read_text())]
        shown = (site / "reference" / "explainers" / "index.html").read_text()
        assert 'id="avcg.AVCG"' in shown
        assert "blockquote" not in shown, "doctests are code, not quotations"

    def test_a_dead_link_or_anchor_is_an_error(self, tmp_path):
        (tmp_path / "docs").mkdir()
        (tmp_path / "mkdocs.yml").write_text("site_name: small\n")
        (tmp_path / "docs" / "index.md").write_text("# Here\n\n[a](nowhere.md), [b](#nothing), [c](#here)\n")
        done = build(tmp_path)
        assert done.returncode != 0
        assert "2 issues found" in done.stdout + done.stderr

    def test_doctests_become_blocks_of_code(self):
        pytest.importorskip("griffe")
        spec = importlib.util.spec_from_file_location("doctests", DOCS / "hooks" / "doctests.py")
        hook = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(hook)
        text = "Adds.\n\n>>> 1 + 1\n2\n\nMore.\n\n>>> 2"
        assert hook.fenced(text) == "Adds.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nMore.\n\n```pycon\n>>> 2\n```"
        assert hook.fenced("Adds.") == "Adds."


def build(folder):
    """What `make docs` runs, in another folder."""
    pytest.importorskip("zensical")
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
