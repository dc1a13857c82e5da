"""Rows that may change nothing: fit leaves them out of what it measures, and everything else says so."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from command_line import run
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import tables

from avcg import AVCG, BlackBox, Classifier, PointMass, Recipe, Schema, TabularSpace, audit, retrains, toys
from avcg.baselines.nearest import NearestUnlike
from avcg.errors import DataError, SchemaError
from avcg.explainers.counterfactuals import Counterfactuals
from avcg.report.answers_page import render

LOANS = toys.loans(n=240)
QUICK = Recipe(steps=5, layers=(16,), encoder=(8,))
# Only time may pass, in steps of ten months and up to two years: most rows are beyond the last step.
FROZEN = Schema.infer(LOANS.X).freeze("income", "owns", "housing", "rating")
STILL = FROZEN.only_up("months").step("months", 10).between("months", 0, 24)


@pytest.fixture(scope="module")
def hypotheses():
    model = Classifier(hidden=(8,), epochs=60).fit(LOANS.X, LOANS.y)
    return retrains(model, LOANS.X, LOANS.y, n=5)


def fitted(hypotheses, schema=STILL, X=LOANS.X, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so short a training keeps no promise
        return AVCG(hypotheses, schema, recipe=QUICK, **settings).fit(X)


@pytest.fixture(scope="module")
def explainer(hypotheses):
    return fitted(hypotheses)


@pytest.fixture(scope="module")
def stored(explainer, tmp_path_factory):
    pytest.importorskip("onnx")
    path = tmp_path_factory.mktemp("still") / "recourse"
    explainer.save(path, graphs=True)
    return path


def still(X):
    """By the words of the schema: at or beyond the last step."""
    return (X["months"] >= 20).to_numpy()


class TestWhoCannotMove:
    def test_by_the_words_of_the_schema(self):
        space = TabularSpace.fit(STILL, LOANS.X)
        assert np.array_equal(space.immovable(space.encode(LOANS.X)).numpy(), still(LOANS.X))

    @settings(max_examples=100)
    @given(tables(), st.sampled_from([None, 0, 1]), st.integers(0, 2**32 - 1))
    def test_it_is_who_is_never_projected_elsewhere(self, table, most, seed):
        """Rows that may move are moved by some of many random wishes, and the others by none."""
        space = TabularSpace.fit(table.schema, table.frame).restrict(at_most=most)
        x = space.encode(table.frame)
        rng = np.random.default_rng(seed)
        wishes = torch.from_numpy((rng.normal(0, 1, (150, *x.shape)) * 10.0 ** rng.uniform(-1, 3)).astype(np.float32))
        moved = (space.project(wishes, x) != x).any(dim=2).any(dim=0)
        assert torch.equal(space.immovable(x), ~moved)

    def test_no_multiple_of_the_step_is_left(self):
        frame = pd.DataFrame({"a": [0, 7, 14, 15]})
        space = TabularSpace.fit(Schema.infer(frame).step("a", 7).between("a", 0, 20).only_up("a"), frame)
        assert space.immovable(space.encode(frame)).tolist() == [False, False, True, True]

    def test_a_follower_does_not_move_by_itself(self):
        frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [10.0, 20.0, 5.0]})
        space = TabularSpace.fit(Schema.infer(frame).only_up("a").link("a", "b"), frame)
        assert space.immovable(space.encode(frame)).tolist() == [False, False, True]

    def test_a_gap_that_only_one_number_fills_moves(self):
        frame = pd.DataFrame({"a": [3.0, None, 3.0]})
        space = TabularSpace.fit(Schema.infer(frame).allow_missing("a"), frame)
        assert space.immovable(space.encode(frame)).tolist() == [True, False, True]


class TestFit:
    def test_only_rows_that_may_change_are_held_back(self, explainer):
        able = int((~still(LOANS.X)).sum())
        assert 0 < sum(direction.table.n_rows for direction in explainer.calibration_.directions["fast"]) <= able // 3
        assert len(explainer.diagnostics_) > 0

    @pytest.mark.parametrize("able", [2, 3, 10])
    def test_few_rows_that_may_change_are_enough(self, hypotheses, able):
        X = pd.concat([LOANS.X[~still(LOANS.X)].head(able), LOANS.X[still(LOANS.X)]])
        found = fitted(hypotheses, X=X).generate(X)
        assert ((found.statuses == "immovable") <= still(X)).all()

    def test_one_row_that_may_change_is_too_few(self, hypotheses):
        X = pd.concat([LOANS.X[~still(LOANS.X)].head(1), LOANS.X[still(LOANS.X)]])
        with pytest.raises(
            DataError, match=f"at least two rows to train on that may change something. Got 1 of {len(X)}"
        ):
            fitted(hypotheses, X=X)

    @pytest.mark.parametrize(
        "schema",
        [
            Schema.infer(LOANS.X).freeze(*LOANS.X.columns),
            STILL.freeze("months"),
            STILL.between("months", 0, 0),
        ],
        ids=["frozen", "both", "at the bound"],
    )
    @pytest.mark.parametrize("method", [AVCG, NearestUnlike])
    def test_a_schema_that_lets_nothing_change_is_refused(self, hypotheses, method, schema):
        with pytest.raises(SchemaError, match="No training row may change anything"):
            method(hypotheses, schema).fit(LOANS.X)

    def test_refit(self, explainer, hypotheses):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for only_encoder in (False, True):
                renewed = explainer.refit(hypotheses, LOANS.X, steps=2, only_encoder=only_encoder)
                assert (renewed.generate(LOANS.X).statuses[still(LOANS.X)] != "ok").all()
        with pytest.raises(SchemaError, match="may change anything"):
            explainer.refit(hypotheses, LOANS.X[still(LOANS.X)], steps=2)

    @pytest.mark.slow
    def test_models_that_can_only_be_asked(self):
        def rule(rows):
            return 1 / (1 + np.exp(-(rows["income"] + rows["months"] / 3 - 60) / 10))

        X = pd.concat([LOANS.X[~still(LOANS.X)].head(2), LOANS.X[still(LOANS.X)]])
        recourse = fitted(PointMass(BlackBox(rule, LOANS.X)), X=X)
        assert recourse.distillation_ is not None
        assert set(recourse.generate(X[still(X)]).statuses) <= {"already_target", "immovable"}


def denied(explainer):
    """Rows that ask for what they do not have."""
    return LOANS.X[explainer.decide(LOANS.X) == explainer.classes_[0]]


REQUESTS = [
    {"max_changes": 0},
    {"vary": []},
    {"vary": [], "n": 3},
    {"vary": [], "effort": "thorough"},
    {"max_changes": 0, "n": 3, "effort": "thorough"},
]


class TestAnswers:
    def test_rows_at_their_bound(self, explainer):
        X = denied(explainer)
        found = explainer.generate(X, explainer.classes_[1], n=2)
        assert np.array_equal((found.statuses == "immovable").reshape(-1, 2).all(axis=1), still(X))

    @pytest.mark.parametrize("request_", REQUESTS)
    def test_a_request_that_lets_nothing_change(self, explainer, request_):
        X = denied(explainer)
        found = explainer.generate(X, explainer.classes_[1], **request_)
        assert set(found.statuses) == {"immovable"}
        assert not found.changed.any()
        assert found.answers.equals(X.loc[X.index.repeat(found.n)])

    @pytest.mark.parametrize("by", [None, "owns"])
    def test_everything_that_is_made_of_answers(self, explainer, by):
        X = denied(explainer)
        found = explainer.generate(X, explainer.classes_[1], max_changes=0)
        assert "immovable" in str(found)
        assert Counterfactuals.from_json(found.to_json()).summary().equals(found.summary())
        assert "immovable" in render(found, explainer=explainer, by=by)

    def test_audit(self, explainer, hypotheses):
        X = denied(explainer)
        told = explainer.generate(X, explainer.classes_[1], max_changes=0)
        assert audit(told, hypotheses, recourse=explainer).summary()["told"] == 0
        # Those who were told something and may now change nothing more.
        told = explainer.generate(X, explainer.classes_[1])
        told.statuses[:] = "ok"
        found = audit(told, hypotheses, recourse=explainer)
        assert found.replacements is not None
        assert set(found.replacements.statuses[still(found.replacements.factuals)]) <= {"immovable", "already_target"}
        assert "lost" in found.to_html()

    @pytest.mark.parametrize("request_", [{}, {"max_changes": 0}, {"vary": []}, {"vary": [], "n": 3}])
    def test_the_scorer_says_the_same(self, explainer, stored, request_):
        from avcg.io.scorer import Scorer

        X = denied(explainer)
        rows = X.astype(object).to_dict("records")
        target = explainer.classes_[1].item()
        answers = Scorer(stored).answer(rows, target, **request_)
        found = explainer.generate(X, target, **request_)
        assert [option.status for row in answers for option in row.options] == found.statuses.tolist()


def test_the_command_line(tmp_path):
    """The command of the report, then answers for rows of which most may change nothing."""
    rows = LOANS.X.assign(approved=np.where(LOANS.y == 1, "yes", "no"))
    rows.to_csv(tmp_path / "rows.csv", index=False)
    options = ["--target", "approved", "--positive", "yes", "--steps", "5", "--hypotheses", "4"]
    fixed = ["--freeze", "income,owns,housing,rating", "--only-up", "months", "--between", "months:0:24"]
    done = run("fit", tmp_path / "rows.csv", *options, *fixed, "--out", tmp_path / "kept")
    assert done.code == 0, done.err
    rows[rows["months"] >= 24].to_csv(tmp_path / "still.csv", index=False)
    for out in ("a.csv", "a.parquet"):
        done = run("explain", tmp_path / "kept", tmp_path / "still.csv", "--all", "--out", tmp_path / out)
        assert done.code == 0, done.err
    found = pd.read_csv(tmp_path / "a.csv")
    assert set(found["status"]) == {"already_target", "immovable"}
    assert found["status"].equals(pd.read_parquet(tmp_path / "a.parquet")["status"].astype(found["status"].dtype))
    nothing = ["--freeze", "income,owns,housing,rating,months"]
    done = run("fit", tmp_path / "rows.csv", *options, *nothing, "--out", tmp_path / "none")
    assert done.code == 2
    assert "may change" in done.err
