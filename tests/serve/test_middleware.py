"""Tokens, limits and trouble: what stands between a request and its answer."""

import asyncio
import logging
import re
import socket
import time

import httpx
import pytest
from served import JSON, SECRET, Odd, explain, recourse, refused, request, serve
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from avcg.errors import SettingError
from avcg.serve.app import Limits, create_app
from avcg.serve.engine import auditor_of
from avcg.serve.middleware import with_header_timeout


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
