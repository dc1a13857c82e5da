"""What can be asked of an explainer, and what is told to those who ask wrongly."""

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from explained_loans import SHORT, TOY, denied, loan_model, loan_retrains

import avcg
from avcg import AVCG, Classifier, Recipe, retrains
from avcg.errors import AvcgError, DataError, SchemaError, SettingError


class TestRequests:
    def test_only_what_may_vary_changes(self, recourse):
        found = recourse.generate(denied(), vary=["income", "rating"])
        assert set(found.changes()["column"]) <= {"income", "rating"}

    def test_each_row_its_own(self, recourse):
        lists = [["income"], ["months", "rating"]] * 20
        found = recourse.generate(denied(), vary=lists)
        for i, row in enumerate(found):
            assert set(row.changes) <= set(lists[i])

    def test_max_changes(self, recourse):
        found = recourse.generate(denied(), max_changes=1)
        assert found.changed.sum(axis=1).max() == 1

    def test_n_answers_differ_and_the_index_says_which(self, recourse):
        found = recourse.generate(denied(), n=3)
        assert found.frame.index.names == ["row", "answer"]
        assert len(found.frame) == len(found.status) == 120
        different = found.frame.astype(str).groupby(level=0).apply(lambda three: len(three.drop_duplicates()))
        assert (different == 3).mean() > 0.9
        assert ((3 - different) == pd.Series(found.repeated, found.frame.index).groupby(level=0).sum()).all()
        pd.testing.assert_frame_equal(found.factuals, denied())

    def test_a_threshold_other_than_one_half(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            strict = AVCG(loan_retrains(), recipe=SHORT, threshold=0.8).fit(TOY.X)
        probability = loan_model().predict_proba(denied())[:, 1]
        assert (probability < 0.5).all()
        found = strict.generate(denied())
        delivered = found.frame[found.status == "ok"]
        assert len(delivered) > 20
        assert (loan_model().predict_proba(delivered)[:, 1] >= 0.8).all()
        between = TOY.X[
            (loan_model().predict_proba(TOY.X)[:, 1] > 0.55) & (loan_model().predict_proba(TOY.X)[:, 1] < 0.75)
        ]
        assert (strict.generate(between).target == 1).all(), "below the threshold, the decision is a no"

    def test_polars_frames_come_back_as_polars(self, recourse):
        frame = pl.from_pandas(denied().reset_index(drop=True))
        found = recourse.generate(frame, n=2)
        assert isinstance(found.frame, pl.DataFrame)
        assert found.frame.schema == frame.schema
        assert len(found.frame) == 80
        same = recourse.generate(denied(), n=2)
        assert found.frame["income"].to_list() == same.frame["income"].tolist()

    def test_numpy_arrays_in(self):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(300, 3))
        y = (X.sum(axis=1) > 0).astype(int)
        model = Classifier(hidden=(8,), epochs=100).fit(X, y)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = AVCG(retrains(model, X, y, n=4), recipe=SHORT).fit(X).generate(X[:5])
        assert found.frame.shape == (5, 3)
        assert (model.predict(found.frame.to_numpy()) != model.predict(X[:5])).mean() > 0.7


class TestManyClasses:
    def test_any_other_class_and_a_named_one(self):
        rng = np.random.default_rng(0)
        centres = np.array([[0, 0], [4, 0], [0, 4]])
        y = np.repeat([0, 1, 2], 120)
        X = pd.DataFrame(centres[y] + rng.normal(size=(360, 2)), columns=["a", "b"])
        labels = np.array(["low", "east", "north"])[y]
        model = Classifier(hidden=(16,), epochs=40).fit(X, labels)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            recourse = AVCG(retrains(model, X, labels, n=8, resampling="bootstrap"), recipe=SHORT).fit(X)
        rows = X.iloc[::12]
        now = model.predict(rows)
        named = recourse.generate(rows, target="north")
        assert ((named.status == "already_target") == (now == "north")).all()
        delivered = named.status.isin(["ok", "not_robust"])
        assert delivered.sum() > 15
        assert (model.predict(named.frame[delivered]) == "north").all()
        free = recourse.generate(rows)
        delivered = free.status.isin(["ok", "not_robust"]).to_numpy()
        assert delivered.mean() > 0.9
        assert (model.predict(free.frame)[delivered] != now[delivered]).all()
        assert (model.predict(free.frame)[delivered] == free.target[delivered]).all()
        each = [recourse.generate(rows, target=label) for label in ("low", "east", "north")]
        ok = np.array([(found.status == "ok").to_numpy() for found in each])
        best = np.where(ok, np.array([found.distance for found in each]), np.inf).min(axis=0)
        both = (free.status == "ok").to_numpy() & np.isfinite(best)
        assert (free.distance[both] <= best[both] + 1e-4).mean() > 0.8, "the cheapest that its teachers accept is taken"


OTHER = avcg.Schema.infer(TOY.X[["income"]])
WRONG = {
    "a target that is no class": (lambda r: r.generate(denied(), target=2), DataError, "target 2 is not a class"),
    "a target of another kind": (
        lambda r: r.generate(denied(), target="yes"), DataError, "not a class .* has '0', '1'"
    ),
    "too few targets": (lambda r: r.generate(denied(), target=[1, 0]), DataError, "one per row"),
    "no answers": (lambda r: r.generate(denied(), n=0), SettingError, "'n' of a query must be"),
    "half an answer": (lambda r: r.generate(denied(), n=1.5), SettingError, "'n' of a query"),
    "a column that is not there": (
        lambda r: r.generate(denied(), vary=["incom"]), SchemaError, "Did you mean 'income'"
    ),
    "a range of a column that is not there": (lambda r: r.generate(denied(), ranges={"x": (0, 1)}), SchemaError, "'x'"),
    "a range that is empty": (lambda r: r.generate(denied(), ranges={"income": (5, 1)}), SchemaError, "leaves nothing"),
    "requests for other rows": (lambda r: r.generate(denied(), vary=[["income"]] * 3), SchemaError, "3 rows"),
    "a probability that is none": (lambda r: r.generate(denied(), min_prob=1.0), SettingError, "'min_prob'"),
    "no time": (lambda r: r.generate(denied(), time_budget=0), SettingError, "'time_budget'"),
    "a time without end": (lambda r: r.generate(denied(), time_budget=float("nan")), SettingError, "'time_budget'"),
    "no effort": (lambda r: r.generate(denied(), effort="great"), SettingError, "'effort' of a query"),
    "an effort that is a number": (lambda r: r.generate(denied(), effort=1), SettingError, "'effort' of a query"),
    "too typical": (lambda r: r.generate(denied(), typicality=1.5), SettingError, r"'typicality' of a query.*1\.5"),
    "less than nearest": (lambda r: r.generate(denied(), typicality=-0.1), SettingError, "'typicality'"),
    "typical or not": (lambda r: r.generate(denied(), typicality=True), SettingError, "'typicality'"),
    "nothing typical": (lambda r: r.generate(denied(), typicality=float("nan")), SettingError, "'typicality'"),
    "solve without an effort": (
        lambda r: r.solve(torch.zeros(1, 1), torch.zeros(1), effort=2), SettingError, "'effort' of a query"
    ),
    "negative changes": (lambda r: r.generate(denied(), max_changes=-1), SchemaError, "at_most"),
    "missing columns": (lambda r: r.generate(denied()[["income"]]), DataError, "lack column"),
    "a gap": (lambda r: r.generate(denied().assign(income=np.nan)), DataError, "'income' has 40 missing"),
    "a new category": (lambda r: r.generate(denied().assign(housing="boat")), DataError, "no category of it: 'boat'"),
    "an infinite number": (lambda r: r.generate(denied().assign(income=np.inf)), DataError, "infinite"),
    "survival of one": (lambda r: AVCG(loan_retrains(), survival=1.0).fit(TOY.X), SettingError, "'survival' of a"),
    "survival of zero": (lambda r: AVCG(loan_retrains(), survival=0.0).fit(TOY.X), SettingError, "'survival' of a"),
    "a threshold of one": (lambda r: AVCG(loan_retrains(), threshold=1.0).fit(TOY.X), SettingError, "'threshold'"),
    "a model for hypotheses": (lambda r: AVCG(loan_model()).fit(TOY.X), SettingError, "PointMass"),
    "a seed that is none": (
        lambda r: AVCG(loan_retrains(), random_state=-1).fit(TOY.X), SettingError, "'random_state'"
    ),
    "another schema": (lambda r: AVCG(loan_retrains(), OTHER).fit(TOY.X), SchemaError, "differently"),
    "fewer labels than rows": (lambda r: AVCG(loan_retrains()).fit(TOY.X, [0, 1]), DataError, "one label per row"),
    "labels that are no classes": (
        lambda r: AVCG(loan_retrains()).fit(TOY.X, ["a"] * 500), DataError, "must be among the model's classes"
    ),
    "a single row": (lambda r: AVCG(loan_retrains()).fit(TOY.X.head(1)), DataError, "at least two rows"),
    "an empty frame": (lambda r: r.generate(denied().head(0)), DataError, "no rows"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_inputs_are_told_what_is_wrong(recourse, case):
    call, kind, words = WRONG[case]
    with pytest.raises(kind, match=words) as caught:
        call(recourse)
    assert isinstance(caught.value, AvcgError)


def test_an_unfitted_call_says_so():
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError, match="not fitted yet"):
        AVCG(loan_retrains()).generate(denied())


def test_a_frozen_column_cannot_vary():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recourse = AVCG(loan_retrains(), TOY.schema.freeze("owns"), recipe=Recipe(steps=20, layers=(16,))).fit(TOY.X)
    with pytest.raises(SchemaError, match="'owns', which the schema does not let change"):
        recourse.generate(denied(), vary=["owns"])
    assert "owns" not in set(recourse.generate(denied()).changes()["column"])
