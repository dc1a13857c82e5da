"""A service over a small explainer, made once."""

import pytest
from served import NOTED, denied, recourse, to_json

from avcg.io.artifact import save
from avcg.serve.app import create_app
from avcg.serve.engine import ExplainerEngine, auditor_of


@pytest.fixture(scope="session")
def engine():
    return ExplainerEngine(recourse())


@pytest.fixture(scope="session")
def app(engine):
    return create_app(engine, auditor=auditor_of(recourse), examples=to_json(denied().head(3)))


@pytest.fixture(scope="session")
def row():
    return to_json(denied().head(1))[0]


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """An explainer as it is, and with the graphs that a light process answers from."""
    path = tmp_path_factory.mktemp("served")
    save(recourse(), path / "plain", about={"assumption": NOTED})
    save(recourse(), path / "graphs", graphs=True, about={"assumption": NOTED})
    return path
