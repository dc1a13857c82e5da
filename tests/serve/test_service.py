"""The service: answers as the explainer gives them, and a reason for everything else."""

import asyncio
import json
import logging
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from functools import cache

import httpx
import numpy as np
import pandas as pd
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from served import TOY, denied, recourse, request, serve, to_json
from typer.testing import CliRunner
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from avcg import (
    AVCG,
    BlackBox,
    Classifier,
    Counterfactuals,
    FiniteSet,
    PointMass,
    Recipe,
    Schema,
    TabularSpace,
    errors,
    load,
    retrains,
)
from avcg.baselines.nearest import NearestUnlike
from avcg.cli.serve import serve_app
from avcg.errors import DataError, MissingExtraError, SettingError
from avcg.explainers.records import MEANING, Option, Row
from avcg.io.artifact import save
from avcg.serve.app import Limits, create_app
from avcg.serve.engine import ExplainerEngine, auditor_of, open_engine
from avcg.serve.examples import read_examples
from avcg.serve.microbatch import MicroBatcher
from avcg.serve.middleware import with_header_timeout

JSON = {"content-type": "application/json"}
NOTED = "The next model is trained on the rows of this spring."
SECRET = "Zyxwvut"  # a value that must turn up nowhere but in the answer to who sent it


@pytest.fixture(scope="module")
def engine():
    return ExplainerEngine(recourse())


@pytest.fixture(scope="module")
def app(engine):
    return create_app(engine, auditor=auditor_of(recourse), examples=to_json(denied().head(3)))


@pytest.fixture(scope="module")
def row():
    return to_json(denied().head(1))[0]


class Odd:
    """An engine that answers in its own way."""

    def __init__(self, engine, answer):
        self.schema, self.encoding, self.classes = engine.schema, engine.encoding, engine.classes
        self.feasible, self.assumption = engine.feasible, engine.assumption
        self.survival, self.confidence, self.n_models = engine.survival, engine.confidence, engine.n_models
        self.answer = answer


def explain(app, **body):
    return request(app, "POST", "/explain", json=body)


class TestAnswers:
    @pytest.mark.parametrize(
        "asked",
        [
            {},
            {"target": 1, "n": 3},
            {"vary": ["income"]},
            {"vary": []},
            {"ranges": {"income": [None, 60], "housing": ["own"], "owns": [True]}},
            {"min_prob": 0.9},
            {"max_changes": 1, "n": 2},
            {"target": 0},
        ],
        ids=str,
    )
    def test_they_are_those_of_the_explainer(self, app, asked):
        rows = denied().head(6)
        found = explain(app, rows=to_json(rows), **asked)
        assert found.status_code == 200, found.text
        expected = recourse().generate(rows, **asked)
        for i, (delivered, meant) in enumerate(zip(found.json()["rows"], expected, strict=True)):
            assert delivered["decision"] == recourse().decide(rows)[i]
            assert delivered["target"] == meant.target
            assert delivered["probability_before"] == pytest.approx(meant.probability_before)
            for option, wanted in zip(delivered["options"], meant.options, strict=True):
                changes = {name: (one["before"], one["after"]) for name, one in option["changes"].items()}
                assert changes == wanted.changes
                assert option["row"] == wanted.row
                for name in ("status", "probability", "distance", "agreeing", "lower_bound", "repeated"):
                    assert option[name] == pytest.approx(getattr(wanted, name)), name
                assert option["meaning"] == MEANING[wanted.status]
                assert option["n_models"] == expected.certificate.n

    def test_what_is_asked_is_heeded(self, app, row):
        free = explain(app, rows=[row], target=1).json()["rows"][0]["options"][0]
        locked = next(iter(free["changes"]))
        others = [name for name in row if name != locked]
        held = explain(app, rows=[row], target=1, vary=others, n=3).json()["rows"][0]["options"]
        assert all(locked not in option["changes"] for option in held)
        capped = explain(app, rows=[row], target=1, ranges={"income": [None, row["income"] + 1]}, n=3)
        assert all(one["row"]["income"] <= row["income"] + 1 for one in capped.json()["rows"][0]["options"])

    def test_they_say_what_they_rest_on(self, app, row):
        found = explain(app, rows=[row]).json()
        assert found["survival"] == 0.99
        assert found["confidence"] == 0.95
        assert "independent draws" in found["assumption"]
        assert "The next model is made like the held-out models" in found["assumption"]

    def test_what_was_noted_of_the_models_is_said(self, folders, row):
        for kind in ("plain", "graphs"):
            app = create_app(open_engine(folders / kind)[0])
            for found in (explain(app, rows=[row]).json(), request(app, "GET", "/schema").json()):
                assert found["assumption"].startswith(f"{NOTED} Those that were asked")

    def test_many_rows_are_answered_beside_the_event_loop_and_the_same(self, engine):
        seen = []

        def answer(rows, *rest, **more):
            seen.append(threading.current_thread() is threading.main_thread())
            return engine.answer(rows, *rest, **more)

        app = create_app(Odd(engine, answer), limits=Limits(inline=2))
        rows = to_json(denied().head(3))
        apart = explain(app, rows=rows).json()["rows"]
        alone = [explain(app, rows=[one]).json()["rows"][0] for one in rows]
        assert [one["options"][0]["changes"] for one in apart] == [one["options"][0]["changes"] for one in alone]
        assert seen == [False, True, True, True]

    def test_so_are_more_answers_to_a_row_than_the_page_shows(self, engine, row):
        inline = []

        def answer(rows, *rest, **more):
            inline.append(threading.current_thread() is threading.main_thread())
            return engine.answer(rows, *rest, **more)

        app = create_app(Odd(engine, answer))
        for n in (1, 3, 4, 10):
            assert explain(app, rows=[row], n=n).status_code == 200
            assert explain(app, rows=[row], n=n, vary=["income"]).status_code == 200
        assert inline == [True] * 4 + [False] * 4

    def test_gaps_are_null_where_they_may_be(self):
        X = pd.DataFrame({"hours": [10.0, 60.0, None, 45.0] * 5, "job": ["clerk", None, "nurse", "nurse"] * 5})
        schema = Schema.infer(X).allow_missing("hours", "job")
        rule = BlackBox(lambda rows: (rows["hours"].fillna(0) > 40) * 1.0, X, classes=["no", "yes"], schema=schema)
        app = create_app(ExplainerEngine(NearestUnlike(PointMass(rule)).fit(X)))
        found = explain(app, rows=[{"hours": None, "job": None}, {"hours": 20, "job": "nurse"}], vary=["hours"])
        assert found.status_code == 200, found.text
        first, second = (one["options"][0] for one in found.json()["rows"])
        assert first["changes"]["hours"]["before"] is None
        assert first["row"]["hours"] > 40
        assert first["row"]["job"] is None
        assert second["row"] == {"hours": second["changes"]["hours"]["after"], "job": "nurse"}
        assert first["agreeing"] is first["lower_bound"] is None
        assert "they are about today's model alone" in found.json()["assumption"]

    def test_a_number_that_is_none_is_null(self, engine, row):
        option = Option("not_valid", {}, float("nan"), float("inf"), None, None, False, row)
        answer = [Row(0, 1, (option,), float("nan"), 0)]
        found = explain(create_app(Odd(engine, lambda *_, **__: answer)), rows=[row])
        assert found.json()["rows"][0]["probability_before"] is None
        assert found.json()["rows"][0]["options"][0]["distance"] is None

    def test_whole_numbers_and_categories_come_back_as_they_are(self, app, row):
        found = explain(app, rows=[{**row, "months": 7.0, "income": 30}], n=3).json()["rows"][0]["options"]
        for option in found:
            assert isinstance(option["row"]["months"], int)
            assert isinstance(option["row"]["owns"], bool)
        odd = explain(app, rows=[{**row, "months": 7.5}], vary=["income"]).json()["rows"][0]["options"][0]
        assert odd["row"]["months"] == 7.5


def at_once(app, bodies):
    """Several requests at the same time."""

    async def go():
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await asyncio.gather(*(client.post("/explain", json=body) for body in bodies))

    return asyncio.run(go())


class TestTogether:
    @pytest.fixture
    def counted(self, engine):
        sizes = []

        def answer(rows, target=None, **more):
            sizes.append(len(rows))
            return engine.answer(rows, target, **more)

        return create_app(Odd(engine, answer), limits=Limits(inline=6)), sizes

    def test_those_who_ask_the_same_at_once_are_answered_as_one_and_each_with_their_own(self, counted, app):
        service, sizes = counted
        bodies = [{"rows": [one]} for one in to_json(denied().head(4))]
        found = at_once(service, bodies)
        assert sizes == [4]
        for one, body in zip(found, bodies, strict=True):
            assert (
                one.json()["rows"][0]["options"][0]["row"]
                == explain(app, **body).json()["rows"][0]["options"][0]["row"]
            )

    def test_no_more_than_fit_and_only_who_asks_for_the_same(self, counted):
        service, sizes = counted
        rows = to_json(denied().head(9))
        found = at_once(service, [*({"rows": [one]} for one in rows[:7]), {"rows": rows[7:], "target": 1}])
        assert [one.status_code for one in found] == [200] * 8
        assert sizes == [6, 1, 2]
        assert len(found[-1].json()["rows"]) == 2

    def test_what_is_wrong_with_one_is_no_matter_of_the_others(self, counted, row):
        service, _ = counted
        found = at_once(service, [{"rows": [row]}, {"rows": [{**row, "income": "much"}]}, {"rows": [row]}])
        assert [one.status_code for one in found] == [200, 422, 200]
        assert "'income'" in found[1].json()["reason"]

    def test_who_hangs_up_is_not_waited_for(self, engine, row):
        async def go():
            asking = MicroBatcher(engine, 32)
            gone, stays = (asyncio.create_task(asking.answer([row], None, 1)) for _ in range(2))
            await asyncio.sleep(0)
            gone.cancel()
            return await asyncio.gather(gone, stays, return_exceptions=True)

        gone, stays = asyncio.run(go())
        assert isinstance(gone, asyncio.CancelledError)
        assert len(stays) == 1


class TestDescription:
    def test_the_schema_says_what_may_change(self, app):
        found = request(app, "GET", "/schema").json()
        columns = {column["name"]: column for column in found["columns"]}
        assert list(columns) == list(TOY.X.columns)
        assert columns["months"] | {"kind": "whole number", "change": "up", "low": 0.0, "step": 1} == columns["months"]
        assert columns["income"]["low"] == TOY.X["income"].min()
        assert columns["housing"]["categories"] == ["free", "own", "rent"]
        assert columns["housing"]["moves"] == [["own", "rent"], ["free"], ["free", "own"]]  # never from own to rent
        assert columns["rating"]["ordered"]
        assert found["classes"] == [0, 1]
        assert found["limits"] == {"rows": 1000, "body_bytes": 1_000_000, "answers": 10, "total": 2000, "seconds": 30}
        assert found["examples"] == to_json(denied().head(3))

    def test_what_is_typical_can_be_asked_about(self, app, engine):
        for one in (app, create_app(engine)):
            columns = request(one, "GET", "/schema").json()["columns"]
            typical = {column["name"]: column["typical"] for column in columns}
            assert explain(app, rows=[typical]).status_code == 200

    def test_linked_columns_are_frozen_and_follow_together(self):
        X = TOY.X.assign(grade=TOY.X["rating"].cat.codes)
        schema = Schema.infer(X).link("rating", "grade").freeze("grade").allow("housing", ["own"])
        rule = BlackBox(lambda rows: (rows["income"] > 50) * 1.0, X, schema=schema)
        engine = ExplainerEngine(NearestUnlike(PointMass(rule)).fit(X))
        columns = {one["name"]: one for one in request(create_app(engine), "GET", "/schema").json()["columns"]}
        assert columns["rating"]["change"] == columns["grade"]["change"] == "none"
        assert columns["rating"]["moves"] == [[], [], []]
        assert (columns["rating"]["follows"], columns["grade"]["follows"]) == (None, "rating")
        assert columns["housing"]["moves"] == [["own"], [], ["own"]]

    def test_a_space_that_was_narrowed_is_described_as_it_is(self, tmp_path, row):
        whole = TabularSpace.fit(TOY.schema, TOY.X)
        space = whole.restrict(["income", "months", "housing"], {"income": (20, 60), "housing": ["own", "rent"]}, 2)
        model = Classifier(hidden=(8,), epochs=5, schema=TOY.schema).fit(TOY.X, TOY.y)
        models = FiniteSet(retrains(model, TOY.X, TOY.y, n=6).predictors, space, model.classes_)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            AVCG(models, recipe=Recipe(steps=4, layers=(8,))).fit(TOY.X, TOY.y).save(tmp_path / "x", graphs=True)
        for engine in (open_engine(tmp_path / "x")[0], ExplainerEngine(load(tmp_path / "x"))):
            app = create_app(engine)
            found = request(app, "GET", "/schema").json()
            columns = {one["name"]: one for one in found["columns"]}
            assert found["max_changes"] == 2
            changes = {name: column["change"] for name, column in columns.items()}
            assert changes == {"income": "any", "months": "up", "owns": "none", "housing": "any", "rating": "none"}
            assert (columns["income"]["low"], columns["income"]["high"]) == (20, 60)
            assert columns["housing"]["moves"] == [["own", "rent"], [], ["own"]]
            assert columns["owns"]["moves"] == [[], []]
            names = app.openapi()["components"]["schemas"]["Names"]["items"]["enum"]
            assert names == ["income", "months", "housing"]
            assert explain(app, rows=[row], vary=names).status_code == 200

    def test_openapi_names_the_columns_and_nothing_is_loaded_from_elsewhere(self, app):
        document = request(app, "GET", "/openapi.json").json()
        assert set(document["paths"]) == {"/explain", "/audit", "/schema", "/health", "/metrics"}
        properties = document["components"]["schemas"]["FeatureRow"]["properties"]
        assert properties["housing"] == {"enum": ["free", "own", "rent"]}
        assert request(app, "GET", "/docs").status_code == request(app, "GET", "/redoc").status_code == 404

    def test_examples_that_do_not_fit_are_refused_at_once(self, engine, row):
        with pytest.raises(DataError, match=r"Example 2 does not fit.*'income'"):
            create_app(engine, examples=[row, {**row, "income": "much"}])

    def test_pictures_have_no_rows(self):
        class Fitted:
            space_ = None

        with pytest.raises(SettingError, match="rows of a table"):
            ExplainerEngine(Fitted())


def refused(found, status, *words):
    assert found.status_code == status, found.text
    assert set(found.json()) == {"reason", "where", "id"}
    for word in words:
        assert word in found.json()["reason"]


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
            ({"target": 2}, ["target:", "no class"]),
            ({"target": "1"}, ["target:", "no class"]),
            ({"target": True}, ["target:", "no class"]),
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
        refused(found, 400, "no JSON")
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


@pytest.fixture(scope="module")
def guarded(engine):
    return create_app(engine, token="right", auditor=auditor_of(recourse))


class TestToken:
    PATHS = ("POST /explain", "POST /audit", "GET /schema", "GET /metrics", "GET /openapi.json", "GET /nowhere")

    @pytest.mark.parametrize(
        "header", [None, "right", "Bearer wrong", "Bearer righ", "Basic right", "Bearer", "Bearer \xe9"]
    )
    def test_without_the_right_one_nothing_is_answered(self, guarded, row, header):
        headers = {} if header is None else {"authorization": header.encode("latin-1")}
        for path in self.PATHS:
            found = request(guarded, *path.split(), headers=headers)
            refused(found, 401, "token")
            assert found.headers["www-authenticate"] == "Bearer"

    def test_with_it_everything_is(self, guarded, row):
        for scheme in ("Bearer", "bearer"):
            headers = {"authorization": f"{scheme} right"}
            assert request(guarded, "POST", "/explain", json={"rows": [row]}, headers=headers).status_code == 200
            assert request(guarded, "GET", "/schema", headers=headers).status_code == 200

    def test_the_page_and_health_are_open(self, guarded):
        for path in ("/", "/health", "/static/page.js", "/static/page.css"):
            assert request(guarded, "GET", path).status_code == 200

    def test_a_foreign_name_is_refused_as_long_as_there_is_none(self, engine):
        local = create_app(engine, hosts=("localhost", "127.0.0.1", "[::1]"))
        for host, status in (
            ("localhost", 200),
            ("localhost:8000", 200),
            ("[::1]:8000", 200),
            ("evil.example", 421),
            ("evil.example:80", 421),
        ):
            assert request(local, "GET", "/schema", headers={"host": host}).status_code == status
        behind = create_app(engine, hosts=("localhost",), token="right")
        headers = {"host": "reference.example", "authorization": "Bearer right"}
        assert request(behind, "GET", "/schema", headers=headers).status_code == 200


class TestTrouble:
    def test_what_takes_too_long_is_given_up_and_health_answers_meanwhile(self, engine, row):
        def slow(rows, *_, **__):
            time.sleep(0.6)
            return []

        app = create_app(Odd(engine, slow), limits=Limits(seconds=0.2, inline=0))

        async def both():
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                asking = asyncio.create_task(client.post("/explain", json={"rows": [row]}))
                await asyncio.sleep(0.05)
                health = await client.get("/health")
                early = not asking.done()
                return health, early, await asking

        health, early, found = asyncio.run(both())
        assert health.status_code == 200
        assert early
        refused(found, 503, "within 0.2 seconds")

    def test_a_body_that_does_not_come_is_given_up(self, engine):
        async def never():
            yield b"{"
            await asyncio.sleep(5)
            yield b"}"

        app = create_app(engine, limits=Limits(seconds=0.1))
        refused(request(app, "POST", "/explain", content=never(), headers=JSON), 408, "did not arrive")

    @pytest.mark.parametrize("inline", [0, 32])
    def test_a_bug_has_an_id_and_no_internals(self, engine, row, caplog, inline):
        def broken(rows, *_, **__):
            raise RuntimeError(f"cannot bear {SECRET}")

        app = create_app(Odd(engine, broken), limits=Limits(inline=inline))
        with caplog.at_level(logging.DEBUG):
            found = explain(app, rows=[row])
        refused(found, 500)
        assert re.fullmatch(r"[0-9a-f]{16}", found.json()["id"])
        assert found.json()["id"] in caplog.text
        assert "RuntimeError" in caplog.text
        assert SECRET not in caplog.text + found.text
        assert "Traceback" not in caplog.text
        assert request(app, "GET", "/health").status_code == 200

    def test_logs_hold_no_values(self, app, row, caplog):
        with caplog.at_level(logging.DEBUG):
            refused(explain(app, rows=[{**row, "housing": SECRET}]), 422, SECRET)
            refused(explain(app, rows=[{**row, SECRET: 1}]), 422, SECRET)
            refused(explain(app, rows=[row], target=SECRET), 422, SECRET)
            request(app, "POST", "/explain", content=f'{{"{SECRET}', headers=JSON)
            assert explain(app, rows=[{**row, "income": 12.3456789}]).status_code == 200
        own = [record.getMessage() for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))]
        assert not any(SECRET in line or "12.3456789" in line for line in own)
        assert SECRET not in request(app, "GET", "/metrics").text

    def test_headers_keep_others_out(self, app, row):
        for found in (
            explain(app, rows=[row]),
            explain(app, rows=[]),
            request(app, "GET", "/nowhere"),
            request(app, "GET", "/"),
        ):
            assert found.headers["x-content-type-options"] == "nosniff"
            assert found.headers["referrer-policy"] == "no-referrer"
            policy = found.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'")
            assert not re.search(r"unsafe|https?:|\*", policy)
        assert explain(app, rows=[row]).headers["cache-control"] == "no-store"

    def test_the_page_is_served_with_its_types(self, app):
        kinds = {"/": "text/html", "/static/page.css": "text/css", "/static/page.js": "text/javascript",
                 "/static/theme.js": "text/javascript", "/static/icon.svg": "image/svg+xml"}  # fmt: skip
        for path, kind in kinds.items():
            found = request(app, "GET", path)
            assert found.status_code == 200
            assert found.headers["content-type"].startswith(kind)
            without = found.text.replace("http://www.w3.org/2000/svg", "")
            assert not re.search(r"""(https?:)?//[\w.-]+\.\w+""", without), path  # nothing from elsewhere


@pytest.mark.parametrize("protocol", [HttpToolsProtocol, H11Protocol])
class TestSlowHeads:
    HEAD, PATIENCE = b"GET /health HTTP/1.1\r\nHost: localhost\r\n", 0.3

    @pytest.fixture
    def address(self, engine, protocol):
        def slow(rows, *_, **__):
            time.sleep(3 * self.PATIENCE)
            raise SettingError("in vain")

        app = create_app(Odd(engine, slow), limits=Limits(inline=0))
        found, stop = serve(app, http=with_header_timeout(protocol, self.PATIENCE), limit_concurrency=5)
        yield found
        stop()

    def calls(self, address, count):
        return [socket.create_connection(("127.0.0.1", httpx.URL(address).port), timeout=10) for _ in range(count)]

    def test_they_do_not_keep_others_out(self, address):
        silent, *begun = self.calls(address, 6)
        for one in begun:
            one.sendall(self.HEAD)
        busy = httpx.get(f"{address}health").status_code
        for one in (silent, *begun):
            assert one.recv(100) == b""  # hung up
            one.close()
        assert (busy, httpx.get(f"{address}health").status_code) == (503, 200)

    def test_nor_does_a_second_one_after_an_answer(self, address):
        (one,) = self.calls(address, 1)
        one.sendall(self.HEAD + b"\r\n")
        assert b"200 OK" in one.recv(10_000)
        one.sendall(self.HEAD)
        assert one.recv(100) == b""
        one.close()

    def test_an_answer_may_take_longer_than_its_head(self, address, row):
        with httpx.Client(base_url=address) as client:
            for _ in range(2):  # on one connection
                assert client.post("explain", json={"rows": [row]}).status_code == 422
                assert client.get("health").status_code == 200


class TestMetrics:
    LINE = re.compile(r'^(avcg_\w+?)(\{(\w+="[^"\\\n]*")(,\w+="[^"\\\n]*")*\})? (\d+(\.\d+)?(e[+-]\d+)?)$')

    def test_they_are_what_prometheus_reads(self, engine, row):
        app = create_app(engine)
        explain(app, rows=[row, row], n=2)
        explain(app, rows=[])
        request(app, "GET", f"/{SECRET}")
        found = request(app, "GET", "/metrics")
        assert found.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert SECRET not in found.text
        values, kinds = {}, {}
        for line in found.text.splitlines():
            if line.startswith("# TYPE"):
                _, _, name, kind = line.split(" ")
                kinds[name] = kind
            elif not line.startswith("# HELP"):
                assert self.LINE.match(line), line
                name, _, value = line.rpartition(" ")
                assert name not in values
                values[name] = float(value)
                family = re.sub(r"(_bucket|_sum|_count)?(\{.*)?$", "", name)
                assert family in kinds or name.partition("{")[0] in kinds
        assert values['avcg_requests_total{endpoint="/explain",status="200"}'] == 1
        assert values['avcg_requests_total{endpoint="/explain",status="422"}'] == 1
        assert values['avcg_requests_total{endpoint="other",status="404"}'] == 1
        assert values["avcg_rows_total"] == 2
        assert sum(value for name, value in values.items() if name.startswith("avcg_answers_total")) == 4
        buckets = [value for name, value in values.items() if 'bucket{endpoint="/explain"' in name]
        assert buckets == sorted(buckets)
        assert buckets[-1] == values['avcg_request_seconds_count{endpoint="/explain"}'] == 2
        assert values["avcg_uptime_seconds"] >= 0


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5), st.just([]), st.just({})
)


class TestAudit:
    def test_it_is_that_of_the_answers_under_the_model_in_force(self, app):
        delivered = recourse().generate(denied().head(8), target=1, n=2)
        spoilt = json.loads(delivered.to_json())
        spoilt["answers"] = json.loads(recourse().generate(denied().head(8), vary=[], n=2).to_json())["answers"]
        for text in (delivered.to_json(), json.dumps(spoilt)):
            found = request(app, "POST", "/audit", content=text, headers=JSON)
            assert found.status_code == 200, found.text
            given_out = Counterfactuals.from_json(text)
            good = recourse().decide(given_out.frame) == given_out.target.repeat(2)
            summary = found.json()["summary"]
            assert summary["holds"] == good[np.isin(given_out.statuses, ["ok", "not_robust"])].sum()
        assert summary["holds"] == 0  # nobody was told to change anything
        assert summary["replaced"] > 0

    def test_without_an_auditor_there_is_no_such_path(self, engine):
        refused(request(create_app(engine), "POST", "/audit", json={}), 404)

    def test_too_many(self, engine):
        app = create_app(engine, auditor=auditor_of(recourse), limits=Limits(rows=3))
        text = recourse().generate(denied().head(4)).to_json()
        refused(request(app, "POST", "/audit", content=text, headers=JSON), 422, "At most 3 rows")

    def test_a_later_format_or_another_file_is_refused(self, app):
        for text, word in (("{}", "format"), ('{"format": "avcg.audit"}', "format"), ("[]", "object")):
            refused(request(app, "POST", "/audit", content=text, headers=JSON), 422, word)

    @given(data=st.data())
    @settings(max_examples=60, suppress_health_check=list(HealthCheck))
    def test_damage_never_breaks_it(self, app, data):
        delivered = json.loads(self.delivered())
        place, key = data.draw(st.sampled_from(list(places(delivered))))
        place[key] = data.draw(JUNK)
        found = request(app, "POST", "/audit", content=json.dumps(delivered), headers=JSON)
        assert found.status_code in (200, 422), (key, place[key], found.text)

    @staticmethod
    @cache
    def delivered():
        return recourse().generate(denied().head(2), n=2).to_json()


def places(node):
    """Everything inside a document, as where it is and by which key."""
    for key in list(node) if isinstance(node, dict) else range(len(node)):
        yield node, key
        if isinstance(node[key], (dict, list)):
            yield from places(node[key])


CHECKS = [not_a_server_error, response_schema_conformance, status_code_conformance, content_type_conformance]


@pytest.mark.parametrize("path", ["/explain", "/audit", "/schema", "/health", "/metrics"])
@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=str)
def test_what_openapi_promises_is_kept(app, path, mode):
    operation = next(iter(schemathesis.openapi.from_asgi("/openapi.json", app)[path].values()))
    if operation.body or mode is schemathesis.GenerationMode.POSITIVE:  # without a body there is nothing to get wrong
        seen = set()

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(max_examples=20, suppress_health_check=list(HealthCheck))
        def check(case):
            response = case.call()
            seen.add(response.status_code)
            case.validate_response(response, checks=CHECKS)

        check()
        assert seen
        if path != "/audit" and mode is schemathesis.GenerationMode.POSITIVE:
            assert 200 in seen
        if mode is schemathesis.GenerationMode.NEGATIVE:
            assert 200 not in seen


class TestExamples:
    def test_a_file_is_read_as_the_schema_has_it(self, tmp_path):
        path = tmp_path / "rows.csv"
        denied().head(3).assign(name="x")[["name", "rating", "owns", "income", "months", "housing"]].to_csv(path)
        assert read_examples(path, TOY.schema) == to_json(denied().head(3))
        assert len(read_examples(path, TOY.schema, limit=2)) == 2

    def test_gaps_and_lower_case_are_understood(self, tmp_path):
        path = tmp_path / "rows.csv"
        path.write_text("income,months,owns,housing,rating\n,NA,true,,fair\n")
        found = read_examples(path, TOY.schema.allow_missing("income", "months", "housing"))
        assert found == [{"income": None, "months": None, "owns": True, "housing": None, "rating": "fair"}]

    def test_a_category_that_looks_like_a_gap_is_none(self, tmp_path):
        X = pd.DataFrame({"degree": ["None", "BA", None], "grade": pd.Series([1, 2, None], dtype=object), "x": 1.5})
        schema = Schema.infer(X).allow_missing("degree", "grade")
        X.to_csv(tmp_path / "rows.csv", index=False)
        X.astype({"grade": "Int64"}).to_parquet(tmp_path / "rows.parquet")
        for kind in ("csv", "parquet"):
            found = read_examples(tmp_path / f"rows.{kind}", schema)
            assert found == [
                {"degree": "None", "grade": 1, "x": 1.5},
                {"degree": "BA", "grade": 2, "x": 1.5},
                {"degree": None, "grade": None, "x": 1.5},
            ]

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("income,months\n1,2\n", "lack column 'owns'"),
            ("income,months,owns,housing,rating\n", "no rows"),
            ("income,months,owns,housing,rating\nmuch,2,True,own,fair\n", "line 2: column 'income' should be a number"),
            ("income,months,owns,housing,rating\n,2,True,own,fair\n", "line 2: column 'income' is empty"),
            ("income,months,owns,housing,rating\n1,2,True,castle,fair\n", "line 2: column 'housing' is 'castle'"),
            ("income;months;owns;housing;rating\n1;2;True;own;fair\n", "separated by semicolons"),
        ],
    )
    def test_what_cannot_be_read_is_said(self, tmp_path, text, words):
        path = tmp_path / "rows.csv"
        path.write_text(text)
        with pytest.raises(DataError, match=words):
            read_examples(path, TOY.schema)
        with pytest.raises(DataError, match="There is no file"):
            read_examples(tmp_path / "none.csv", TOY.schema)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """An explainer as it is, and with the graphs that a light process answers from."""
    path = tmp_path_factory.mktemp("served")
    save(recourse(), path / "plain", about={"assumption": NOTED})
    save(recourse(), path / "graphs", graphs=True, about={"assumption": NOTED})
    return path


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
_app(sys.argv[1], "127.0.0.1", None, sys.argv[2], 10, 1000)
"""
        command = [sys.executable, "-c", code, str(folders / "graphs"), str(tmp_path / "rows.csv")]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")

    def test_a_warning_where_anybody_could_ask(self, monkeypatch, folder):
        monkeypatch.setenv("AVCG_TOKEN", "")
        monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: [one.close() for one in sockets])
        found = CliRunner().invoke(serve_app, [str(folder), "--host", "0.0.0.0", "--port", "0"])
        assert found.exit_code == 0, found.output
        assert "everybody who can reach 0.0.0.0" in found.stderr
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
