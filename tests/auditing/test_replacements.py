"""Replacements for advice that no longer holds, which keep what people were told."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pytest
from advice import AUTUMN, SCHEMA, SPRING, autumn_model, denied, recount, spring_model, weekly_models
from strategies import complaints

from avcg import BlackBox, Classifier, PointMass, Schema, audit, from_models, from_sklearn
from avcg.baselines.nearest import NearestUnlike, RobustNeighbour
from avcg.errors import DataError, SettingError


class TestReplacements:
    def check(self, result, models, promised):
        """Valid under the new models, within the schema from the original row, and what was told is still there."""
        delivered, instead = result.answers, result.replacements
        lost = np.flatnonzero(result.frame["verdict"] == "lost")
        assert len(instead) == len(lost)
        assert instead.factuals.index.equals(result.frame.index[lost])
        frame = result.frame.iloc[lost]
        shares = np.mean([model.predict(instead.frame) == instead.target for model in models], axis=0)
        assert (frame["replacement"].to_numpy() == (shares >= promised)).all()
        factuals = delivered.factuals.iloc[lost // delivered.n]
        assert (instead.factuals.to_numpy() == factuals.to_numpy()).all()
        assert not complaints(SCHEMA, SPRING.X, instead.factuals, instead.frame)
        stood = delivered.answers.iloc[lost].to_numpy(object)
        changed = stood != factuals.to_numpy(object)
        kept = frame["keeps_advice"].to_numpy()
        assert (instead.frame.to_numpy(object) == stood)[kept[:, None] & changed].all()
        assert (kept <= frame["replacement"].to_numpy()).all()
        assert (instead.changed == (instead.frame.to_numpy(object) != factuals.to_numpy(object))).all()
        means = np.mean([model.predict_proba(instead.frame)[:, 1] for model in models], axis=0)
        np.testing.assert_allclose(instead.probability, means)
        assert (frame["extra_distance"].isna() == ~frame["replacement"]).all()
        return frame

    def test_one_model(self, found):
        frame = self.check(found, [autumn_model()], 1.0)
        assert frame["replacement"].mean() > 0.9
        assert 0 < frame["keeps_advice"].sum() < len(frame)
        assert (frame["extra_distance"][frame["keeps_advice"]] > 0).all()
        total = found.summary()
        assert (total["replaced"], total["keeping"]) == (frame["replacement"].sum(), frame["keeps_advice"].sum())

    def test_several_models_must_agree_as_promised(self, delivered, recourse):
        result = audit(delivered, weekly_models(), recourse=recourse)
        frame = self.check(result, list(weekly_models().values()), delivered.survival)
        mean = np.mean([model.predict_proba(delivered.frame)[:, 1] for model in weekly_models().values()], axis=0)
        # The mean of the models is convinced of some that the promise is not kept for: they are replaced all the same.
        some = frame["replacement"][mean[result.frame["verdict"] == "lost"] >= 0.5]
        assert len(some)
        assert some.mean() > 0.8

    def test_the_share_that_must_agree_is_that_of_the_answers(self, delivered, recourse):
        """Not that of the method that replaces them."""
        assert recourse.promise_.survival == 0.7
        result = audit(replace(delivered, survival=0.95), weekly_models(), recourse=recourse)
        frame = self.check(result, list(weekly_models().values()), 0.95)
        assert frame["replacement"].mean() > 0.8

    def test_a_method_under_other_models_promises_and_certifies_nothing(self, recourse):
        judged = recourse.judged_by(from_models([autumn_model()], SPRING.X, space=recourse.space_))
        told = judged.generate(denied().head(3), target=1)
        assert (told.certificate, told.statements, told.promise) == (None, (), "")
        assert recourse.generate(denied().head(3), target=1).promise.startswith("No promise for the target 1 that")

    def test_several_answers_to_a_row_are_replaced_one_by_one(self, recourse):
        two = recourse.generate(denied().head(12), target=1, n=2)
        model = Classifier(hidden=(8,), epochs=60, schema=SCHEMA).fit(AUTUMN.X, AUTUMN.points(AUTUMN.X) >= 0.5)
        model.classes_ = np.array([0, 1])
        result = audit(two, model, recourse=recourse)
        assert len(result.frame) == 24
        assert result.frame.index.names == ["row", "answer"]
        assert json.loads(result.to_json())["answers"][1]["index"] == [int(denied().index[0]), 1]
        assert result.frame["verdict"].tolist() == recount(two, lambda row, target: model.predict(row)[0] == target)
        self.check(result, [model], 1.0)

    def test_polars(self, recourse, delivered, found):
        names = {"rating": pl.Enum(["poor", "fair", "good"])}
        rows = pl.from_pandas(denied().astype({"rating": str}), schema_overrides=names)
        answers = recourse.generate(rows, target=1, effort="thorough")
        result = audit(answers, autumn_model(), recourse=recourse)
        assert result.frame["verdict"].tolist() == found.frame["verdict"].tolist()
        assert isinstance(result.replacements.answers, pl.DataFrame)
        assert result.replacements.answers.schema == rows.schema
        expected = found.replacements.frame.astype({"rating": str}).reset_index(drop=True)
        pd.testing.assert_frame_equal(result.replacements.answers.to_pandas().astype(expected.dtypes), expected)
        pd.testing.assert_frame_equal(result.by("rating"), found.by("rating"))

    def test_the_threshold_is_that_of_the_method(self, delivered):
        strict = NearestUnlike(PointMass(from_sklearn(spring_model(), SPRING.X, schema=SCHEMA)), threshold=0.8).fit(
            SPRING.X
        )
        result = audit(delivered, autumn_model(), recourse=strict)
        assert result.threshold == 0.8
        granted = autumn_model().predict_proba(result.replacements.frame)[:, 1] >= 0.8
        assert (granted == result.frame["replacement"][result.frame["verdict"] == "lost"]).all()

    def test_classes_in_another_order(self, delivered, recourse):
        """Whoever is asked by a function says in which order; the method has its own."""
        reverse = BlackBox(lambda rows: autumn_model().predict_proba(rows)[:, ::-1], SPRING.X, classes=[1, 0])
        result = audit(delivered, reverse, recourse=recourse)
        self.check(result, [autumn_model()], 1.0)
        assert result.frame["replacement"].sum() > 0.9 * result.summary()["lost"]

    def test_linked_columns_are_kept_together(self):
        rng = np.random.default_rng(0)
        X = pd.DataFrame({"years": rng.integers(1, 6, 200), "pay": rng.normal(50, 10, 200).round(1)})
        X["degree"] = X["years"].map(dict(enumerate("abcdef")))
        schema = Schema.infer(X).link("years", "degree").at_most(2)

        def rule(least):
            return BlackBox(lambda r: (r["years"] + r["pay"] / 10 >= least) * 1.0, X, schema=schema)

        recourse = RobustNeighbour(PointMass(rule(8.5))).fit(X)
        delivered = recourse.generate(X[X["years"] + X["pay"] / 10 < 8], target=1, effort="thorough")
        result = audit(delivered, rule(9.0), recourse=recourse)
        frame = result.frame[result.frame["verdict"] == "lost"]
        assert frame["keeps_advice"].any()
        assert not complaints(schema, X, result.replacements.factuals, result.replacements.frame)
        for at in frame.index[frame["keeps_advice"]]:
            stood, now = delivered.frame.loc[at], result.replacements.frame.loc[at]
            moved = stood["years"] != X.loc[at, "years"]
            assert not moved or (now["years"], now["degree"]) == (stood["years"], stood["degree"])

    def test_nothing_to_replace(self, delivered, recourse):
        everyone = BlackBox(lambda rows: np.ones(len(rows)), SPRING.X)
        result = audit(delivered, everyone, recourse=recourse)
        assert result.replacements is None
        assert result.summary()["lost"] == 0

    def test_nobody_can_be_helped(self, delivered, recourse):
        nobody = BlackBox(lambda rows: np.zeros(len(rows)), SPRING.X)
        result = audit(delivered, nobody, recourse=recourse)
        assert set(result.replacements.statuses) == {"not_found"}
        assert not result.frame[["replacement", "keeps_advice"]].any(axis=None)
        assert "no replacement found" in str(result)

    def test_images(self):
        images = np.random.default_rng(0).integers(0, 100, (80, 4, 4)).astype(np.uint8)
        images[::2, :2] += 150
        labels = np.array(["yes", "no"] * 40)
        first, second = (Classifier(hidden=(4,), epochs=40, random_state=i).fit(images, labels) for i in (0, 1))
        recourse = NearestUnlike(PointMass(first)).fit(images)
        delivered = recourse.generate(images[first.predict(images) == "no"][:10], target="yes")
        delivered = replace(
            delivered, answers=np.where(np.arange(10)[:, None, None] < 5, delivered.factuals, delivered.answers)
        )
        result = audit(delivered, [first, second], recourse=recourse)
        valid = np.array([model.predict(delivered.answers) == "yes" for model in (first, second)])
        assert (result.frame["agreeing"] == valid.sum(axis=0)).all()
        assert result.frame["verdict"][:5].eq("lost").all()
        lost = result.frame[result.frame["verdict"] == "lost"]
        assert lost["replacement"].any()
        assert not lost["keeps_advice"].any()
        good = result.replacements.answers[lost["replacement"]]
        assert all((model.predict(good) == "yes").all() for model in (first, second))
        assert "Images have no columns" not in result.to_html()
        assert json.loads(result.to_json())["by_change"] is None
        for ask in (result.by_change, result.by_count, lambda: result.by("x0")):
            with pytest.raises(DataError, match="Images have no columns to group by"):
                ask()
        with pytest.raises(SettingError, match=r"must have predict_proba and classes_\. Got a str"):
            audit(delivered, "new.onnx")
