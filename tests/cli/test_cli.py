import os
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

import avcg
from avcg import datasets
from avcg.cli.main import app


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_help_lists_the_commands():
    result = run("--help")
    assert result.exit_code == 0
    for word in ("demo", "data", "--version"):
        assert word in result.output


def test_version():
    assert run("--version").output.strip() == f"avcg {avcg.__version__}"


def test_demo_tells_three_people_what_to_change(tmp_path):
    picture = tmp_path / "three.png"
    result = run("demo", "--steps", "40", "--picture", str(picture))
    assert result.exit_code == 0, result.output
    for words in ("Breast Cancer", "569 rows", "smallest changes for three people", "accepted by", "held back from",
                  "nearest unlike neighbour", "class mean", f"Drawn in {picture}"):  # fmt: skip
        assert words in result.output
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_data_list_names_every_dataset():
    result = run("data", "list")
    assert all(name in result.output for name in datasets.names())


def test_data_show():
    result = run("data", "show", "breast_cancer", "--seed", "1")
    assert result.exit_code == 0
    assert "Split with seed 1" in result.output
    assert "doi.org/10.24432/C5DW2B" in result.output


def test_data_show_of_images(tmp_path):
    if not datasets.available("mnist"):
        pytest.skip("the files of mnist are not at hand; set AVCG_DATA to their directory")
    assert "images of 28 x 28" in run("data", "show", "mnist").output


def test_data_show_of_one_year():
    if not datasets.available("sba"):
        pytest.skip("the files of sba are not at hand; set AVCG_DATA to their directory")
    result = run("data", "show", "sba", "--cohort", "2004", "--cohort", "2012")
    assert result.exit_code == 0
    assert "43,415 rows" in result.output
    assert [line.split()[:3] for line in result.output.splitlines() if line.split()[:1] in (["2004"], ["2012"])] == [
        ["2004", "40,312", "12,306"],
        ["2012", "3,103", "313"],
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["data", "show", "sba", "--cohort", "2013"], "no cohort 2013. It has 25, from 1988 to 2012"),
        (["data", "show", "heart", "--cohort", "2013"], "'heart' has no cohorts. Leave out 'cohort'"),
        (["data", "show", "adlut"], "Did you mean 'adult'"),
        (["data", "show", "spambase", "--no-download", "--dir", "nowhere"], "spambase.data was not found in nowhere"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(arguments, says, tmp_path):
    environment = {"XDG_CACHE_HOME": str(tmp_path), "PATH": ""}
    code = "from avcg.cli.main import main; main()"
    found = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment)
    assert found.returncode == 2
    assert says in found.stderr
    assert "Traceback" not in found.stderr
    assert found.stdout == ""


@pytest.mark.parametrize("pretty", ["", "1"])
def test_a_bug_shows_nobodys_facts(pretty):
    code = """
import sys
from avcg.cli.main import app, main

@app.command()
def broken():
    facts = {"name": "Zyx" + "wvut"}
    raise RuntimeError(len(facts))

sys.argv = ["avcg", "broken"]
main()
"""
    environment = {**os.environ, "TYPER_STANDARD_TRACEBACK": pretty}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert found.returncode == 1
    assert "RuntimeError: 1" in found.stderr
    assert "Zyxwvut" not in found.stderr


def test_help_does_not_wait_for_torch():
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom avcg.cli.main import app\nCliRunner().invoke(app,"
        " ['--help'])\nprint({m.split('.')[0] for m in sys.modules} & {'torch', 'pandas', 'numpy', 'sklearn'})"
    )
    started = time.perf_counter()
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
    assert time.perf_counter() - started < 5, "loading torch alone takes longer than this on a busy machine"
