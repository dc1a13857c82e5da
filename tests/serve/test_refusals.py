"""Requests that cannot be meant: a reason for every one, and nothing of anybody else."""

import json
import time

import pytest
from served import JSON, denied, explain, recourse, refused, request

from avcg import errors
from avcg.serve.app import Limits, create_app
from avcg.serve.engine import auditor_of


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"x": 1}, ["'x'"]),
            ({"income": "much"}, ["'income'", "not a number"]),
            ({"income": None}, ["'income'", "missing"]),
            ({"income": True}, ["'income'"]),
            ({"income": 1e300}, ["'income'", "too far"]),
            ({"income": 10**30}, ["rows.0.income"]),
            ({"housing": "castle"}, ["'housing'", "castle"]),
            ({"owns": 1}, ["'owns'"]),
            ({"income": [1]}, ["rows.0.income", "finite number"]),
            ({"income": {"a": 1}}, ["rows.0.income"]),
        ],
    )
    def test_rows_that_do_not_fit(self, app, row, change, words):
        refused(explain(app, rows=[{**row, **change}]), 422, *words)
        assert request(app, "GET", "/health").json()["status"] == "ok"

    def test_a_missing_column(self, app, row):
        refused(explain(app, rows=[{name: row[name] for name in row if name != "months"}]), 422, "lack", "'months'")

    @pytest.mark.parametrize(
        ("asked", "words"),
        [
            ({"n": 11}, ["n:", "at most 10"]),
            ({"n": 0}, ["n:", "greater"]),
            ({"n": "3"}, ["n:", "integer"]),
            ({"n": True}, ["n:"]),
            ({"min_prob": 1}, ["min_prob:", "less than 1"]),
            ({"max_changes": -1}, ["max_changes:"]),
            ({"effort": "great"}, ["effort:", "'fast', 'standard' or 'thorough'"]),
            ({"effort": None}, ["effort:"]),
            ({"typicality": 1.5}, ["typicality:", "less than or equal to 1"]),
            ({"typicality": True}, ["typicality:"]),
            ({"typicality": "typical"}, ["typicality:"]),
            ({"target": 2}, ["target:", "not a class"]),
            ({"target": "1"}, ["target:", "not a class"]),
            ({"target": True}, ["target:", "not a class"]),
            ({"target": [1]}, ["target:"]),
            ({"vary": ["incme"]}, ["'incme'", "'income'"]),
            ({"vary": "income"}, ["vary:"]),
            ({"ranges": {"incme": [1, 2]}}, ["'incme'", "'income'"]),
            ({"ranges": {"income": [1]}}, ["ranges.income", "[low, high]"]),
            ({"ranges": {"income": ["1", 2]}}, ["ranges.income"]),
            ({"ranges": {"income": [True, 2]}}, ["ranges.income"]),
            ({"ranges": {"income": [1000, 2000]}}, ["'income'", "leaves nothing"]),
            ({"ranges": {"housing": []}}, ["'housing'", "empty"]),
            ({"ranges": {"housing": [None]}}, ["ranges.housing"]),
            ({"ranges": {"owns": [1]}}, ["ranges.owns"]),
            ({"colour": "red"}, ["colour:", "no such field", "max_changes"]),
            ({"rows": []}, ["rows:"]),
            ({"rows": 5}, ["rows:"]),
            ({"rows": [5]}, ["rows.0:"]),
        ],
        ids=str,
    )
    def test_requests_that_cannot_be_meant(self, app, row, asked, words):
        refused(explain(app, **({"rows": [row]} | asked)), 422, *words)
        assert request(app, "GET", "/health").json()["status"] == "ok"

    def test_too_many_rows(self, engine, row):
        refused(explain(create_app(engine, limits=Limits(rows=3)), rows=[row] * 4), 422, "rows:", "at most 3")

    def test_too_many_answers_in_all(self, engine, row):
        app = create_app(engine, limits=Limits(rows=5, total=8))
        assert explain(app, rows=[row] * 4, n=2).status_code == 200
        refused(
            explain(app, rows=[row] * 3, n=3), 422, "n:", "rows times n must be at most 8. Got 3 rows with n = 3: 9"
        )
        document = app.openapi()["components"]["schemas"]["ExplainRequest"]["properties"]["n"]
        assert "at most 8" in document["description"]
        delivered = create_app(engine, auditor=auditor_of(recourse), limits=Limits(total=8))
        text = recourse().generate(denied().head(3), n=3).to_json()
        refused(request(delivered, "POST", "/audit", content=text, headers=JSON), 422, "8 answers in all")

    @pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999"])
    def test_numbers_that_are_none(self, app, row, word):
        body = json.dumps({"rows": [{**row, "income": 0.125}]}).replace("0.125", word)
        refused(request(app, "POST", "/explain", content=body, headers=JSON), 422, "rows.0.income", "finite")

    @pytest.mark.parametrize(
        "body", ["", "{", "rows", '{"rows": [', "\xff", "[" * 100_000, '{"a": 1}x', '{"a": "\\ud8"}']
    )
    def test_bodies_that_are_no_json(self, app, body):
        found = request(app, "POST", "/explain", content=body.encode("latin-1"), headers=JSON)
        refused(found, 400, "not JSON")
        assert request(app, "GET", "/health").status_code == 200

    def test_a_body_must_be_said_to_be_json(self, app, row):
        body = json.dumps({"rows": [row]})
        refused(request(app, "POST", "/explain", content=body), 415, "Content-Type: application/json")
        refused(request(app, "POST", "/explain", content=body, headers={"content-type": "text/plain"}), 415)
        odd = {"content-type": "Application/JSON; charset=utf-8"}
        assert request(app, "POST", "/explain", content=body, headers=odd).status_code == 200

    def test_paths_and_methods_that_there_are_not(self, app):
        refused(request(app, "GET", "/nowhere"), 404)
        refused(request(app, "GET", "/static/../service.py"), 404)
        refused(request(app, "GET", "/static/service.py"), 404)
        found = request(app, "GET", "/explain")
        refused(found, 405)
        assert found.headers["allow"] == "POST"

    def test_ten_megabytes_are_not_read(self, app):
        refused(request(app, "POST", "/explain", content=b"x" * 10_000_000, headers=JSON), 413, "1,000,000 bytes")
        sent = 0

        async def chunks():
            nonlocal sent
            for _ in range(160):
                sent += 2**16
                yield b"x" * 2**16

        refused(request(app, "POST", "/explain", content=chunks(), headers=JSON), 413)
        assert sent < 1_200_000
        assert request(app, "GET", "/health").status_code == 200

    def test_a_million_mistakes_do_not_stop_the_service(self, app):
        started = time.perf_counter()
        for body in (
            '{"rows":[' + "5," * 400_000 + "5]}",
            '{"rows":[{' + ",".join(f'"{i}":[]' for i in range(90_000)) + "}]}",
        ):
            refused(request(app, "POST", "/explain", content=body, headers=JSON), 422, "rows.0")
        assert time.perf_counter() - started < 5

    def test_tens_of_thousands_of_names_are_not_all_compared(self, app, monkeypatch):
        compared = []
        monkeypatch.setattr(errors, "get_close_matches", lambda _, names, **__: compared.append(len(names)) or [])
        body = {"rows": [{f"incom{i}": 1 for i in range(50_000)}]}
        refused(explain(app, **body), 422, "lack column 'income'")
        assert 100 < compared[0] < 1000

    def test_a_long_value_is_not_said_back_at_length(self, app, row):
        found = explain(app, rows=[{**row, "housing": "a" * 100_000}])
        assert len(found.content) < 1500
