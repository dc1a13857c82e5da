"""The service: answers as the explainer gives them, and what it says of itself."""

import threading
import warnings

import pandas as pd
import pytest
from served import NOTED, TOY, Odd, denied, explain, promised_by, recourse, request, to_json

from avcg import AVCG, BlackBox, Classifier, FiniteSet, PointMass, Recipe, Schema, TabularSpace, load, retrains
from avcg.baselines.nearest import NearestUnlike
from avcg.errors import DataError, SettingError
from avcg.explainers.records import MEANING, Option, Row
from avcg.serve.app import Limits, create_app
from avcg.serve.engine import ExplainerEngine, open_engine


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
            {"effort": "fast"},
            {"effort": "thorough", "n": 2},
            {"typicality": 0.9},
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
                for name in ("status", "probability", "distance", "agreeing", "agreeing_test", "lower_bound"):
                    assert option[name] == pytest.approx(getattr(wanted, name)), name
                assert option["repeated"] == wanted.repeated
                assert option["meaning"] == MEANING[wanted.status]
                assert option["n_models"] == expected.certificate.n
                assert option["n_test"] == expected.certificate.n_test
                assert option["agreement"] == wanted.agreement(expected.certificate.n)
                assert option["proof"] == wanted.proof(expected.certificate.n_test, 0.95)
        assert found.json()["promise"] == expected.promise
        assert found.json()["statements"] == [statement.to_dict() for statement in expected.statements]

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
        assert found["survival"] == 0.95
        assert found["confidence"] == 0.95
        assert "independent draws" in found["assumption"]
        assert "The next model is made like the held-out models" in found["assumption"]

    def test_they_say_in_the_same_words_what_is_promised(self, app, row, folders):
        """Of so few models there is no promise, and of a restricted query there is another reason for none."""
        sentence = "No promise for the target 1 that a retrained model accepts 95 of 100 people: a reliability of 0.9"
        for one in (app, *(create_app(open_engine(folders / kind)[0]) for kind in ("plain", "graphs"))):
            found, described = explain(one, rows=[row]).json(), request(one, "GET", "/schema").json()
            assert found["promise"].startswith(sentence)
            assert [entry["sentence"] for entry in found["statements"]] == [found["promise"]]
            assert found["promise"] in described["promise"]
            assert [entry["target"] for entry in described["statements"]] == [0, 1]
            assert (described["n_models"], described["n_test"]) == (4, 1)
            assert found["rows"][0]["options"][0]["agreement"].endswith("4 models held back from training")
            assert found["rows"][0]["options"][0]["proof"].startswith(("1 of 1 test model,", "0 of 1 test model,"))

    def test_a_promise_is_made_only_for_what_it_was_calibrated_by(self, engine, row):
        class Promising(Odd):
            def __init__(self):
                super().__init__(engine, engine.answer)
                self.statements = promised_by(engine)

        app = create_app(Promising())
        made = " most a 1 in 10 chance that the next retrained model accepts fewer than 95 of 100 people"
        assert explain(app, rows=[row]).json()["promise"].startswith(f"At{made}")
        assert request(app, "GET", "/schema").json()["promise"].startswith(f"For each target: at{made}")
        for restriction in ({"n": 2}, {"vary": ["income"]}, {"min_prob": 0.9}, {"max_changes": 1}, {"typicality": 0.9}):
            found = explain(app, rows=[row], **restriction).json()
            assert "it was calibrated for single answers to queries without restrictions" in found["promise"]
            assert [entry["reason"] for entry in found["statements"]] == ["query"]

    def test_what_was_noted_of_the_models_is_said(self, folders, row):
        for kind in ("plain", "graphs"):
            app = create_app(open_engine(folders / kind)[0])
            for found in (explain(app, rows=[row]).json(), request(app, "GET", "/schema").json()):
                assert found["assumption"].startswith(f"{NOTED} The held-out models")

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
        assert first["agreeing"] is first["lower_bound"] is first["agreement"] is first["proof"] is None
        assert (found.json()["promise"], found.json()["statements"]) == ("", [])
        assert "they are about today's model alone" in found.json()["assumption"]

    def test_a_number_that_is_none_is_null(self, engine, row):
        option = Option("not_found", {}, float("nan"), float("inf"), None, None, False, row)
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

        with pytest.raises(SettingError, match="rows of tables"):
            ExplainerEngine(Fitted())
