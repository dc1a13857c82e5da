"""A small explainer over made-up loans, fitted once for the tests of the service and of its page."""

import asyncio
import socket
import threading
import time
import warnings
from dataclasses import replace
from functools import cache

import httpx
import uvicorn

from avcg import AVCG, Classifier, Recipe, retrains, toys

TOY = toys.loans(n=300)


@cache
def recourse():
    model = Classifier(hidden=(16,), epochs=60, patience=None, schema=TOY.schema).fit(TOY.X, TOY.y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so short a training may not keep its promise
        recipe = Recipe(steps=100, layers=(32, 32), batch_size=64)
        return AVCG(retrains(model, TOY.X, TOY.y, n=8, resampling="bootstrap"), recipe=recipe).fit(TOY.X, TOY.y)


@cache
def denied():
    return TOY.X[recourse().decide(TOY.X) == 0].head(20)


def to_json(frame):
    """Rows as a client would send them."""
    return [
        {name: value.item() if hasattr(value, "item") else value for name, value in row.items()}
        for row in frame.astype(object).to_dict("records")
    ]


def serve(app, **settings):
    """Run an application in a thread; the address, and how to stop it."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, log_level="critical", access_log=False, **settings))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.started

    def stop():
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()

    return f"http://127.0.0.1:{listening.getsockname()[1]}/", stop


def request(app, method, path, **options):
    """One request to an application in this process; an exception that leaves it is an error of the test."""

    async def go():
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, **options)

    return asyncio.run(go())


JSON = {"content-type": "application/json"}
NOTED = "The next model is trained on the rows of this spring."
SECRET = "Zyxwvut"  # a value that must turn up nowhere but in the answer to who sent it


class Odd:
    """An engine that answers in its own way."""

    def __init__(self, engine, answer):
        self.schema, self.encoding, self.classes = engine.schema, engine.encoding, engine.classes
        self.feasible, self.assumption = engine.feasible, engine.assumption
        self.survival, self.confidence, self.statements = engine.survival, engine.confidence, engine.statements
        self.n_models, self.n_test, self.typicality = engine.n_models, engine.n_test, engine.typicality
        self.answer = answer


def promised_by(engine):
    """Statements as those of an engine, had the promise been made."""

    def statements(options=None, *, any_class=False):
        made = [replace(each, made=True, reason="", n_models=19) for each in engine.statements()]
        calibrated = (options is None or options.is_calibrated(engine.typicality)) and not (
            any_class and len(engine.classes) > 2
        )
        return made if calibrated else [each.not_for_this_query() for each in made]

    return statements


def explain(app, **body):
    return request(app, "POST", "/explain", json=body)


def refused(found, status, *words):
    assert found.status_code == status, found.text
    assert set(found.json()) == {"reason", "where", "id"}
    for word in words:
        assert word in found.json()["reason"]
