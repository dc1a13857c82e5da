"""Every block of Python in the documentation runs, in order, page by page.

A block of ``text`` after it is what it prints, to the letter. A block of ``console`` is what it printed once: figures
of a trained network, whose last digits differ from one processor to another.
"""

import contextlib
import io
import re
from pathlib import Path

import pytest

from avcg import datasets

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_blocks_run(page):
    blocks = BLOCK.findall(page.read_text())
    if any('load("adult")' in code for _, code in blocks) and not datasets.available("adult"):
        pytest.skip("the files of adult are not at hand; set AVCG_DATA to their directory")
    names, printed = {}, ""
    for language, code in blocks:
        if language == "python":
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(compile(code, str(page), "exec"), names)
            printed = output.getvalue()
        elif language == "text":
            assert [line.rstrip() for line in printed.splitlines()] == [line.rstrip() for line in code.splitlines()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target
