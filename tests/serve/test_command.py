"""`avcg serve`."""

import re
import signal
import subprocess
import sys

import httpx
import pytest
from served import JSON, denied, recourse, request, to_json
from typer.testing import CliRunner

from avcg.cli.serve import serve_app
from avcg.errors import DataError, MissingExtraError, SettingError


@pytest.fixture(scope="module")
def folder(folders):
    return folders / "plain"


class TestCommand:
    CODE = "from avcg.cli.serve import serve_app; serve_app()"

    @pytest.mark.parametrize(("kind", "number"), [("plain", signal.SIGTERM), ("graphs", signal.SIGINT)])
    def test_it_serves_until_it_is_told_to_stop(self, folders, tmp_path, kind, number):
        denied().head(2).to_csv(tmp_path / "rows.csv", index=False)
        (tmp_path / "token").write_text("right\n")
        command = [sys.executable, "-W", "error::UserWarning", "-c", self.CODE, str(folders / kind), "--port", "0"]
        command += ["--rows", str(tmp_path / "rows.csv"), "--token-file", str(tmp_path / "token"), "--max-rows", "5"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            said = process.stdout.readline()
            address = re.search(r"http://127\.0\.0\.1:\d+/", said).group()
            headers = {"authorization": "Bearer right"}
            with httpx.Client(base_url=address, headers=headers) as client:
                about = client.get("schema").json()
                assert (len(about["examples"]), about["limits"]["rows"]) == (2, 5)
                found = client.post("explain", json={"rows": about["examples"]}).json()["rows"]
                delivered = recourse().generate(denied().head(2))
                assert [one["options"][0]["row"] for one in found] == to_json(delivered.frame)
                stored = client.post("audit", content=delivered.to_json(), headers={**headers, **JSON}, timeout=60)
                assert stored.json()["summary"]["told"] == 2
                assert client.get("schema", headers={"authorization": "Bearer wrong"}).status_code == 401
                large = client.post("explain", content=b"x" * 10_000_000, headers={**headers, **JSON})
                assert large.status_code == 413
                assert client.get("health").status_code == 200
            process.send_signal(number)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
        assert (process.returncode, out, err) == (0, "", "")

    def test_with_graphs_it_starts_without_torch(self, folders, tmp_path):
        denied().head(2).to_csv(tmp_path / "rows.csv", index=False)
        code = """
import sys
sys.modules["torch"] = None
from avcg.cli.serve import _app
_app(sys.argv[1], "127.0.0.1", None, sys.argv[2], 10, 1000, None)
"""
        command = [sys.executable, "-c", code, str(folders / "graphs"), str(tmp_path / "rows.csv")]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")

    def test_a_warning_where_anybody_could_ask(self, monkeypatch, folder):
        monkeypatch.setenv("AVCG_TOKEN", "")
        monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: [one.close() for one in sockets])
        found = CliRunner().invoke(serve_app, [str(folder), "--host", "0.0.0.0", "--port", "0"])
        assert found.exit_code == 0, found.output
        assert "anyone who can reach 0.0.0.0" in found.stderr
        assert "The page is at http://0.0.0.0:" in found.stdout
        for environment, host in (("secret", "0.0.0.0"), ("", "127.0.0.1")):
            monkeypatch.setenv("AVCG_TOKEN", environment)
            found = CliRunner().invoke(serve_app, [str(folder), "--host", host, "--port", "0"])
            assert found.exit_code == 0, found.output
            assert found.stderr == ""

    @pytest.fixture
    def started(self, monkeypatch, folder):
        """The application that a command would have served."""

        def start(*options):
            seen = []
            run = lambda self, sockets: seen.append(self.config.app) or [one.close() for one in sockets]  # noqa: E731
            monkeypatch.setattr("uvicorn.Server.run", run)
            found = CliRunner().invoke(serve_app, [str(folder), "--port", "0", *options])
            assert found.exit_code == 0, found.output
            return seen[0]

        return start

    def test_it_answers_to_the_name_that_it_listens_at(self, started, monkeypatch):
        monkeypatch.delenv("AVCG_TOKEN", raising=False)
        app = started("--host", "127.0.0.2")
        for host, status in (("127.0.0.2:8000", 200), ("localhost", 200), ("127.0.0.3", 421), ("evil.example", 421)):
            assert request(app, "GET", "/schema", headers={"host": host}).status_code == status

    def test_a_token_has_no_white_around_it(self, started, monkeypatch):
        monkeypatch.setenv("AVCG_TOKEN", " right\n")
        app = started()
        for word, status in (("right", 200), ("wrong", 401)):
            headers = {"authorization": f"Bearer {word}"}
            assert request(app, "GET", "/schema", headers=headers).status_code == status
        monkeypatch.setenv("AVCG_TOKEN", " \n")
        assert request(started(), "GET", "/schema").status_code == 200

    def test_more_rows_than_answers_in_all_are_meant(self, started):
        assert request(started("--max-rows", "5000"), "GET", "/schema").json()["limits"]["total"] == 5000
        assert request(started("--max-rows", "5"), "GET", "/schema").json()["limits"]["total"] == 2000

    def test_mistakes_are_said_before_anything_is_served(self, folder, tmp_path):
        (tmp_path / "empty").write_text("\n")
        for more, error, words in (
            (["--token-file", str(tmp_path / "none")], DataError, "cannot be read"),
            (["--token-file", str(tmp_path / "empty")], SettingError, "is empty. Write a token"),
            (["--host", "no.such.host.invalid"], SettingError, "Cannot listen on"),
            (["--rows", str(tmp_path / "none.csv")], DataError, "There is no file"),
        ):
            found = CliRunner().invoke(serve_app, [str(folder), *more])
            assert isinstance(found.exception, error), found.output
            assert words in str(found.exception)

    def test_without_the_extra_it_says_what_to_install(self, monkeypatch, folder):
        monkeypatch.setitem(sys.modules, "uvicorn", None)
        found = CliRunner().invoke(serve_app, [str(folder)])
        assert isinstance(found.exception, MissingExtraError)
        assert "pip install 'avcg[serve]'" in str(found.exception)


class TestNewModels:
    """`--new-model`: newer models beside the calibration models, under /metrics."""

    def metrics(self, directory, models):
        from avcg.cli.serve import _monitored
        from avcg.serve.app import create_app
        from avcg.serve.engine import ExplainerEngine

        monitor = _monitored(str(directory), [str(model) for model in models])
        app = create_app(ExplainerEngine(recourse()), monitor=monitor)
        lines = request(app, "GET", "/metrics").text.splitlines()
        found = dict(line.rsplit(" ", 1) for line in lines if line.startswith("avcg_new_model"))
        return monitor, {name: float(value) for name, value in found.items()}

    def test_gauges(self, folders):
        monitor, found = self.metrics(folders / "plain", [folders / "plain"])
        line = monitor.frame.iloc[0]
        assert found['avcg_new_model_survival{model="plain"}'] == pytest.approx(line["survival"])
        assert found['avcg_new_model_p_value{model="plain"}'] == pytest.approx(line["p_value"])
        assert found['avcg_new_model_evidence{model="plain"}'] == pytest.approx(line["evidence"])
        assert found['avcg_new_model_alarm{model="plain"}'] == float(line["alarm"])
        assert found["avcg_new_model_false_alarms"] == 0.05

    def test_a_model_that_is_not_there(self, folders):
        with pytest.raises((DataError, SettingError), match=r"none\.onnx"):
            self.metrics(folders / "plain", ["none.onnx"])
