"""Audits over HTTP, and what OpenAPI promises."""

import json
from functools import cache

import numpy as np
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
from served import JSON, denied, recourse, refused, request

from avcg import Counterfactuals
from avcg.serve.app import Limits, create_app
from avcg.serve.engine import auditor_of

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
        refused(request(app, "POST", "/audit", content=text, headers=JSON), 422, "at most 3 rows")

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
