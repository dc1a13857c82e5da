"""Requests that are answered together."""

import asyncio

import httpx
import pytest
from served import Odd, denied, explain, to_json

from avcg.serve.app import Limits, create_app
from avcg.serve.microbatch import MicroBatcher


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
