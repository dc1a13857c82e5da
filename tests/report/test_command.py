"""`avcg report`."""

import pytest
from typer.testing import CliRunner

from avcg.cli.report import report_app
from avcg.errors import AvcgError
from avcg.report.answers_page import render


@pytest.fixture(scope="module")
def folder(tmp_path_factory, answers, recourse):
    folder = tmp_path_factory.mktemp("report")
    recourse.save(folder / "recourse")
    (folder / "answers.json").write_text(answers.to_json())
    return folder


class TestCommand:
    def run(self, *arguments):
        return CliRunner().invoke(report_app, list(map(str, arguments)))

    def test_it_writes_the_page(self, folder, tmp_path, answers, recourse):
        out = tmp_path / "page.html"
        result = self.run(
            folder / "recourse", folder / "answers.json", "--out", out, "--by", "housing", "--title", "Loans"
        )
        assert result.exit_code == 0, result.output
        assert result.output.splitlines() == [str(answers).split("\n")[0], f"Written to {out}"]
        assert out.read_text(encoding="utf-8") == render(answers, recourse, by="housing", title="Loans")
        assert [path.name for path in tmp_path.iterdir()] == [out.name]

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["recourse", "answers.json", "--out", "page.pdf"], "--out must end in '.html'. Got 'page.pdf'"),
            (["recourse", "answers.json", "--out", "nowhere/page.html"], "There is no folder 'nowhere'"),
            (["recourse", "none.json"], "There is no file 'none.json'"),
            (["nowhere", "answers.json"], "nowhere"),
            (["recourse", "answers.json", "--by", "hosing"], "Did you mean 'housing'"),
        ],
    )
    def test_mistakes_leave_no_file(self, folder, tmp_path, monkeypatch, arguments, says):
        monkeypatch.chdir(folder)
        before = sorted(folder.rglob("*"))
        result = self.run(*arguments)
        assert isinstance(result.exception, AvcgError)
        assert says in str(result.exception)
        assert sorted(folder.rglob("*")) == before
