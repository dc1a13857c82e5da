"""Stored explainers, each written once."""

from functools import cache

import pytest
from stored_explainers import made


@pytest.fixture(scope="session")
def stored(tmp_path_factory):
    """A folder for a kind of explainer, and what it left; made once, to be copied by whoever damages it."""

    @cache
    def save(kind):
        path = tmp_path_factory.mktemp("stored") / "artifact"
        return path, made(kind)[0].save(path)

    return save
