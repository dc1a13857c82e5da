"""Does last quarter's advice hold under this quarter's model? Counted again by hand, and every way to ask wrongly."""

import json
import re
import subprocess
import sys
import warnings
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from scipy.stats import binomtest
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from strategies import complaints
from typer.testing import CliRunner

from avcg import (
    AVCG,
    BlackBox,
    Classifier,
    Counterfactuals,
    FiniteSet,
    GaussianPosterior,
    PointMass,
    Recipe,
    Schema,
    audit,
    feasibility,
    from_models,
    from_sklearn,
    survival_curve,
    toys,
)
from avcg.baselines.nearest import NearestUnlike, RobustNeighbour
from avcg.baselines.robust_search import RobustSearch
from avcg.cli.main import app
from avcg.errors import AvcgError, DataError, SettingError
from avcg.hypotheses.predictors import Stacked

STORED = Path(__file__).parents[1] / "data" / "answers-v1.json"
SPRING, AUTUMN = toys.loans(n=400), toys.loans(n=400, seed=5)
SCHEMA = SPRING.schema.at_most(3)


def learnt(loans, least, rows=slice(None)):
    """A pipeline on raw frames that grants from so many points on."""
    prepare = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), ["housing", "rating", "owns"]),
        (StandardScaler(), ["income", "months"]),
    )
    labels = (loans.points(loans.X) >= least).astype(int)
    return make_pipeline(prepare, LogisticRegression()).fit(loans.X.iloc[rows], labels[rows])


OLD, NEW = learnt(SPRING, 0.0), learnt(AUTUMN, 0.5)
LATER = {f"week {i}": learnt(AUTUMN, 0.2 * i, slice(i, None, 4)) for i in range(4)}
DENIED = SPRING.X[OLD.predict(SPRING.X) == 0].head(50)


@pytest.fixture(scope="module")
def recourse():
    members = [learnt(SPRING, 0.0, slice(i, None, 4)) for i in range(4)]
    everyone = from_models(members, SPRING.X, deployed=OLD, schema=SCHEMA)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so short a training may not keep its promise
        return AVCG(everyone, survival=0.7, recipe=Recipe(steps=200, layers=(32, 32))).fit(SPRING.X)


@pytest.fixture(scope="module")
def delivered(recourse):
    return recourse.generate(DENIED, target=1, refine=True)


@pytest.fixture(scope="module")
def found(recourse, delivered):
    return audit(delivered, NEW, recourse=recourse)


def recount(delivered, decides):
    """Verdicts one by one; `decides` says whether a row as a frame of one is granted what it was told."""
    verdicts = []
    for i, status in enumerate(delivered.statuses):
        row = delivered.answers.iloc[[i]]
        good = decides(row, delivered.target[i // delivered.n])
        verdicts.append("no_answer" if status not in ("ok", "not_robust") else "holds" if good else "lost")
    return verdicts


class TestVerdicts:
    def test_one_model(self, delivered, found):
        verdicts = recount(delivered, lambda row, target: NEW.predict(row)[0] == target)
        assert found.frame["verdict"].tolist() == verdicts
        assert {"holds", "lost"} <= set(verdicts)
        total = found.summary()
        assert (total["holds"], total["lost"]) == (verdicts.count("holds"), verdicts.count("lost"))
        assert total["told"] == total["holds"] + total["lost"]
        now = NEW.predict_proba(delivered.frame)[:, 1]
        np.testing.assert_allclose(found.frame["probability_now"], now)
        np.testing.assert_allclose(found.frame["margin"], now - 0.5, atol=1e-12)
        np.testing.assert_allclose(found.frame["probability_change"], now - delivered.probability)
        assert found.frame["lower_bound"].isna().all()
        assert found.frame.index.equals(DENIED.index)

    @pytest.mark.parametrize("threshold", [0.2, 0.5, 0.8])
    def test_a_threshold_on_the_second_class(self, delivered, threshold):
        back = replace(delivered, target=np.array([0, 1] * (len(delivered) // 2)))
        frame = audit(back, NEW, threshold=threshold).frame
        yes = [NEW.predict_proba(delivered.answers.iloc[[i]])[0, 1] >= threshold for i in range(len(delivered))]
        expected = ["holds" if y == t else "lost" for y, t in zip(yes, back.target, strict=True)]
        asked = np.isin(delivered.statuses, ("ok", "not_robust"))
        assert frame["verdict"][asked].tolist() == list(np.array(expected)[asked])
        assert ((frame["margin"] >= 0) == (np.array(expected) == "holds")).all()

    def test_several_models_by_the_share_that_was_promised(self, delivered):
        frame = audit(delivered, LATER).frame
        decisions = [model.predict(delivered.frame).tolist() for model in LATER.values()]
        votes = [[int(decided[i] == 1) for decided in decisions] for i in range(50)]
        share = np.mean(votes, axis=1)
        asked = np.isin(delivered.statuses, ("ok", "not_robust"))
        assert (frame["agreeing"] == np.sum(votes, axis=1)).all()
        assert ((frame["verdict"] == "holds") == (asked & (share >= delivered.survival))).all()
        assert set(frame["n_models"]) == {4}
        for agreeing, bound in zip(frame["agreeing"], frame["lower_bound"], strict=True):
            exact = binomtest(agreeing, 4, alternative="greater").proportion_ci(0.95, "exact").low
            assert bound == pytest.approx(exact, abs=1e-9)

    def test_a_list_a_mapping_and_hypotheses_say_the_same(self, delivered, recourse):
        frames = [
            audit(delivered, models).frame
            for models in (
                LATER,
                list(LATER.values()),
                from_models(list(LATER.values()), SPRING.X, space=recourse.space_),
            )
        ]
        for other in frames[1:]:
            pd.testing.assert_frame_equal(frames[0], other, atol=1e-4)

    def test_a_distribution_that_never_runs_out_is_drawn_from(self, delivered, recourse):
        network = from_sklearn(OLD, SPRING.X, space=recourse.space_).network_
        mean = dict(network.named_parameters())
        spread = torch.full((sum(p.numel() for p in mean.values()),), 0.3)
        cloud = GaussianPosterior(network, mean, spread, space=recourse.space_, classes=np.array([0, 1]))
        first, second = audit(delivered, cloud).frame, audit(delivered, cloud).frame
        assert set(first["n_models"]) == {50}
        pd.testing.assert_frame_equal(first, second)
        heads = cloud.sample(50).log_probs(recourse.space_.encode(delivered.frame)).argmax(-1).eq(1).sum(0)
        assert (first["agreeing"] == heads.numpy()).all()

    def test_every_member_counts_once_whatever_its_weight(self, delivered, recourse):
        network = from_sklearn(OLD, SPRING.X, space=recourse.space_).network_
        both = {name: torch.stack([value, -value]) for name, value in network.named_parameters()}
        two = FiniteSet(Stacked(network, both, torch.tensor([0.99, 0.01])), recourse.space_, np.array([0, 1]))
        assert set(audit(delivered, two).frame["agreeing"]) == {1}

    def test_more_than_two_classes(self):
        labels = np.array(["low", "mid", "top"])[(SPRING.X["income"] > 35).astype(int) + (SPRING.X["income"] > 55)]
        X = SPRING.X[["income", "months"]]
        first, second = (LogisticRegression(max_iter=2000).fit(X[i::2], labels[i::2]) for i in range(2))
        delivered = NearestUnlike(PointMass(from_sklearn(first, X))).fit(X).generate(X.head(60), target="mid")
        result = audit(delivered, second).frame
        assert result["verdict"].tolist() == recount(delivered, lambda row, target: second.predict(row)[0] == target)
        p = second.predict_proba(delivered.frame)
        rival = np.maximum(p[:, 0], p[:, 2])
        np.testing.assert_allclose(result["margin"], (p[:, 1] - rival) / 2)
        with pytest.raises(SettingError, match=r"is for two classes\. This model has 3"):
            audit(delivered, second, threshold=0.4)

    def test_a_model_that_reads_fewer_columns_or_another_order(self, delivered):
        X, y = SPRING.X[["months", "income"]], SPRING.y
        fewer = LogisticRegression().fit(X, y)
        now = fewer.predict_proba(delivered.frame[["months", "income"]])[:, 1]
        np.testing.assert_allclose(audit(delivered, fewer).frame["probability_now"], now)

    def test_a_model_of_nameless_tables(self):
        table = toys.linear_logistic(n=120)
        values = table.X.to_numpy()
        first, second = (LogisticRegression().fit(values[i::2], table.y[i::2]) for i in range(2))
        recourse = NearestUnlike(PointMass(from_sklearn(first, values))).fit(values)
        delivered = recourse.generate(values[first.predict(values) == 0], target=1)
        result = audit(delivered, second, recourse=recourse)
        expected = (second.predict(delivered.frame.to_numpy()) == 1)[np.isin(delivered.statuses, ("ok", "not_robust"))]
        assert result.summary()["holds"] == expected.sum()

    def test_answers_from_a_file_and_from_memory(self, delivered, found, tmp_path):
        path = tmp_path / "answers.json"
        path.write_text(delivered.to_json())
        for place in (path, str(path)):
            pd.testing.assert_frame_equal(audit(place, NEW).frame.iloc[:, :9], found.frame.iloc[:, :9])

    @pytest.mark.parametrize(("least", "holds"), [(0.0, 7), (0.1, 6), (0.3, 2), (0.6, 1), (1.0, 0)])
    def test_a_file_of_the_first_version_is_read_for_good(self, least, holds):
        assert json.loads(STORED.read_text())["version"] == 1
        rule = BlackBox(lambda rows: (SPRING.points(rows) >= least).astype(float), SPRING.X)
        result = audit(STORED, rule)
        total = result.summary()
        assert (total["told"], total["holds"], total["lost"]) == (7, holds, 7 - holds)
        assert (result.frame["verdict"] == "no_answer").sum() == 9
        assert result.frame.index[0] == "person-00"


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
        frame = self.check(found, [NEW], 1.0)
        assert frame["replacement"].mean() > 0.9
        assert 0 < frame["keeps_advice"].sum() < len(frame)
        assert (frame["extra_distance"][frame["keeps_advice"]] > 0).all()
        total = found.summary()
        assert (total["replaced"], total["keeping"]) == (frame["replacement"].sum(), frame["keeps_advice"].sum())

    def test_several_models_must_agree_as_promised(self, delivered, recourse):
        result = audit(delivered, LATER, recourse=recourse)
        frame = self.check(result, list(LATER.values()), delivered.survival)
        mean = np.mean([model.predict_proba(delivered.frame)[:, 1] for model in LATER.values()], axis=0)
        # The mean of the models is convinced of some that the promise is not kept for: they are replaced all the same.
        some = frame["replacement"][mean[result.frame["verdict"] == "lost"] >= 0.5]
        assert len(some)
        assert some.mean() > 0.8

    def test_several_answers_to_a_row_are_replaced_one_by_one(self, recourse):
        two = recourse.generate(DENIED.head(12), target=1, n=2)
        model = Classifier(hidden=(8,), epochs=60, schema=SCHEMA).fit(AUTUMN.X, AUTUMN.points(AUTUMN.X) >= 0.5)
        model.classes_ = np.array([0, 1])
        result = audit(two, model, recourse=recourse)
        assert len(result.frame) == 24
        assert result.frame.index.names == ["row", "answer"]
        assert json.loads(result.to_json())["answers"][1]["index"] == [int(DENIED.index[0]), 1]
        assert result.frame["verdict"].tolist() == recount(two, lambda row, target: model.predict(row)[0] == target)
        self.check(result, [model], 1.0)

    def test_polars(self, recourse, delivered, found):
        names = {"rating": pl.Enum(["poor", "fair", "good"])}
        rows = pl.from_pandas(DENIED.astype({"rating": str}), schema_overrides=names)
        answers = recourse.generate(rows, target=1, refine=True)
        result = audit(answers, NEW, recourse=recourse)
        assert result.frame["verdict"].tolist() == found.frame["verdict"].tolist()
        assert isinstance(result.replacements.answers, pl.DataFrame)
        assert result.replacements.answers.schema == rows.schema
        expected = found.replacements.frame.astype({"rating": str}).reset_index(drop=True)
        pd.testing.assert_frame_equal(result.replacements.answers.to_pandas().astype(expected.dtypes), expected)
        pd.testing.assert_frame_equal(result.by("rating"), found.by("rating"))

    def test_the_threshold_is_that_of_the_method(self, delivered):
        strict = NearestUnlike(PointMass(from_sklearn(OLD, SPRING.X, schema=SCHEMA)), threshold=0.8).fit(SPRING.X)
        result = audit(delivered, NEW, recourse=strict)
        assert result.threshold == 0.8
        granted = NEW.predict_proba(result.replacements.frame)[:, 1] >= 0.8
        assert (granted == result.frame["replacement"][result.frame["verdict"] == "lost"]).all()

    def test_classes_in_another_order(self, delivered, recourse):
        """Whoever is asked by a function says in which order; the method has its own."""
        reverse = BlackBox(lambda rows: NEW.predict_proba(rows)[:, ::-1], SPRING.X, classes=[1, 0])
        result = audit(delivered, reverse, recourse=recourse)
        self.check(result, [NEW], 1.0)
        assert result.frame["replacement"].sum() > 0.9 * result.summary()["lost"]

    def test_linked_columns_are_kept_together(self):
        rng = np.random.default_rng(0)
        X = pd.DataFrame({"years": rng.integers(1, 6, 200), "pay": rng.normal(50, 10, 200).round(1)})
        X["degree"] = X["years"].map(dict(enumerate("abcdef")))
        schema = Schema.infer(X).link("years", "degree").at_most(2)

        def rule(least):
            return BlackBox(lambda r: (r["years"] + r["pay"] / 10 >= least) * 1.0, X, schema=schema)

        recourse = RobustNeighbour(PointMass(rule(8.5))).fit(X)
        delivered = recourse.generate(X[X["years"] + X["pay"] / 10 < 8], target=1, refine=True)
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
        assert set(result.replacements.statuses) == {"not_valid"}
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
        with pytest.raises(SettingError, match="a str needs predict_proba and classes_"):
            audit(delivered, "new.onnx")


class TestTotals:
    @pytest.mark.parametrize("column", ["housing", "rating", "owns", "income", "months"])
    def test_groups_add_up(self, found, column):
        table, total = found.by(column), found.summary()
        for name in ("told", "holds", "lost", "replaced", "keeping"):
            assert table[name].sum() == total[name]
        assert len(table) <= 4

    def test_a_group_is_counted_by_hand(self, found):
        for label, line in found.by("housing").iterrows():
            mine = found.frame[(DENIED["housing"] == label) & (found.frame["verdict"] != "no_answer")]
            assert line["told"] == len(mine)
            exact = binomtest(int((mine["verdict"] == "holds").sum()), len(mine)).proportion_ci(0.95, "exact")
            assert (line["low"], line["high"]) == (pytest.approx(exact.low), pytest.approx(exact.high))
        assert found.by("rating").index.tolist() == ["poor", "fair", "good"]

    def test_bands_hold_the_numbers_they_name(self, found):
        for label, line in found.by("income").iterrows():
            low, high = -np.inf, np.inf
            if "to" in (words := label.split()):
                high = float(words[-1])
            if words[0] == "over":
                low = float(words[1])
            inside = (DENIED["income"] > low) & (DENIED["income"] <= high)
            assert line["told"] == (inside & (found.frame["verdict"] != "no_answer")).sum()

    def test_by_change_counts_each_changed_column_and_by_count_each_answer_once(self, delivered, found):
        asked = np.isin(delivered.statuses, ("ok", "not_robust"))
        differs = (delivered.frame.astype(object) != DENIED.astype(object))[asked]
        table = found.by_change()
        assert {name: int(line["told"]) for name, line in table.iterrows()} == {
            name: int(count) for name, count in differs.sum().items() if count
        }
        counts = found.by_count()
        assert counts["told"].sum() == asked.sum()
        assert counts["told"].to_dict() == differs.sum(axis=1).value_counts().to_dict()
        assert counts["holds"].sum() == found.summary()["holds"]

    def test_gaps_are_a_group_and_numbers_of_few_values_stay_themselves(self, delivered):
        size = pd.Categorical([3, 1] * 25, [3, 2, 1], ordered=True)
        rows = delivered.factuals.assign(note=[None, "z", "a"] + ["a"] * 47, step=[1, 2] * 25, size=size)
        table = audit(replace(delivered, factuals=rows), NEW)
        assert table.by("note").index.tolist() == ["a", "z", "missing"]
        assert table.by("step").index.tolist() == [1, 2]
        assert table.by("size")["told"].sum() == table.summary()["told"]

    def test_nobody_was_told_anything(self, delivered):
        none = replace(delivered, statuses=np.full(50, "not_valid"))
        result = audit(none, NEW)
        total = result.summary()
        assert (total["told"], total["low"], total["high"]) == (0, 0.0, 1.0)
        assert np.isnan(total["share"])
        assert "nothing to audit" in str(result)
        assert "nothing to audit" in result.to_html("housing")
        assert len(result.by_change()) == len(result.by_count()) == 0
        assert survival_curve(none, NEW)["so_far"].isna().all()

    def test_words_for_people(self, found):
        first, *rest = str(found).split("\n")
        total = found.summary()
        assert first.startswith(f"{total['holds']} of {total['told']} answers still hold (")
        assert rest[-1] == f"... and {total['lost'] - 6} more lost"
        assert found._repr_html_().startswith("<pre>")

    def test_json_has_a_version_and_everything(self, found):
        stored = json.loads(found.to_json(by="housing"))
        assert (stored["format"], stored["version"]) == ("avcg.audit", 1)
        assert stored["summary"]["holds"] == found.summary()["holds"]
        assert [line["verdict"] for line in stored["answers"]] == found.frame["verdict"].tolist()
        assert [line["index"] for line in stored["answers"]] == DENIED.index.tolist()
        assert stored["answers"][0]["lower_bound"] is None
        assert {line["value"] for line in stored["by"]} == set(found.by("housing").index)
        back = Counterfactuals.from_json(json.dumps(stored["replacements"]))
        assert back.statuses.tolist() == found.replacements.statuses.tolist()


class TestSurvivalCurve:
    def test_it_falls_and_counts_right(self, delivered):
        curve = survival_curve(delivered, LATER)
        asked = delivered.frame[np.isin(delivered.statuses, ("ok", "not_robust"))]
        valid = np.array([model.predict(asked) == 1 for model in LATER.values()])
        assert curve.index.tolist() == list(LATER)
        assert curve["valid"].tolist() == [float(np.mean(one)) for one in valid]
        assert curve["so_far"].tolist() == [float(np.mean(valid[: i + 1].all(axis=0))) for i in range(4)]
        assert curve["so_far"].is_monotonic_decreasing
        assert (curve["low"] <= curve["valid"]).all()
        assert (curve["valid"] <= curve["high"]).all()
        assert set(curve["n"]) == {len(asked)}
        exact = binomtest(int(valid[1].sum()), len(asked)).proportion_ci(0.95, "exact")
        assert tuple(curve.loc["week 1", ["low", "high"]]) == (pytest.approx(exact.low), pytest.approx(exact.high))
        pd.testing.assert_frame_equal(
            survival_curve(delivered, list(LATER.values())).reset_index(drop=True), curve.reset_index(drop=True)
        )


class TestFeasibility:
    def test_counts_and_shares(self, recourse):
        frozen = SCHEMA.freeze("income", "months", "owns")
        narrow = NearestUnlike(recourse.hypotheses, frozen).fit(SPRING.X)
        table = feasibility(narrow, SPRING.X, target=1, by="rating")
        answers = narrow.generate(SPRING.X, target=1, refine=True)
        for label, line in table.iterrows():
            mine = [
                status
                for status, value in zip(answers.statuses, SPRING.X["rating"], strict=True)
                if status != "already_target" and label in ("all", value)
            ]
            without = sum(status in ("infeasible", "not_valid") for status in mine)
            assert (line["denied"], line["without"]) == (len(mine), without)
            assert line["not_robust"] == mine.count("not_robust")
            assert line["infeasible"] == mine.count("infeasible")
            exact = binomtest(without, len(mine)).proportion_ci(0.95, "exact")
            assert line["without_share"] == pytest.approx(without / len(mine))
            assert (line["without_low"], line["without_high"]) == (pytest.approx(exact.low), pytest.approx(exact.high))
        assert table.index[0] == "all"
        assert table.loc["all", "denied"] == table.drop("all")["denied"].sum()
        assert 0 < table.loc["all", "without"] < table.loc["all", "denied"]

    def test_where_nothing_may_change_it_is_certain(self, recourse):
        only_buying = SCHEMA.freeze(*(name for name in SCHEMA if name != "owns")).only_up("owns")
        narrow = NearestUnlike(recourse.hypotheses, only_buying).fit(SPRING.X)
        owners = DENIED[DENIED["owns"]]
        line = feasibility(narrow, owners, target=1).loc["all"]
        assert line["infeasible"] == line["without"] == line["denied"] == len(owners) > 0


class Page(HTMLParser):
    """Open tags are closed in their order."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.text = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


class TestPage:
    def test_it_is_whole_and_needs_nothing(self, found):
        text = found.to_html("housing")
        page = Page()
        page.feed(text)
        page.close()
        assert page.open == []
        assert not {"script", "link", "img", "iframe"} & set(page.tags)
        assert not re.search(r"https?:|//|@import|url\(", text)
        total, words = found.summary(), " ".join("".join(page.text).split())
        assert (
            f"{total['holds']} of {total['told']} answers still hold ({100 * total['share']:.0f} %, 95 % int" in words
        )
        assert page.tags.count("h3") == total["lost"]
        assert f"{total['replaced']} of the lost ones have a replacement" in words
        for heading in ("By housing", "By column to change", "By number of columns to change", "What this means"):
            assert heading in words

    def test_what_users_wrote_is_escaped(self, delivered):
        nasty = "<b>x</b>"
        swap = {"rent": nasty}
        rows, stood = (
            frame.replace({"housing": swap}).rename(columns={"income": "in<i>come"})
            for frame in (delivered.factuals, delivered.frame)
        )
        model = BlackBox(lambda r: (r["in<i>come"] > 60) * 1.0, stood)
        result = audit(replace(delivered, factuals=rows, answers=stood), {"<script>": model})
        text = result.to_html("housing")
        assert nasty not in text
        assert "&lt;b&gt;x&lt;/b&gt;" in text
        assert "in<i>come" not in text
        page = Page()
        page.feed(text)
        assert not {"b", "i", "script"} & set(page.tags)
        assert "&lt;script&gt;" in text
        assert nasty not in result._repr_html_()

    def test_a_long_list_is_cut_and_says_so(self, delivered):
        place = np.arange(50).repeat(5)
        rows, stood = (frame.iloc[place].reset_index(drop=True) for frame in (delivered.factuals, delivered.frame))
        names = ("target", "statuses", "probability", "probability_before", "distance", "changed", "repeated")
        many = replace(
            delivered,
            factuals=rows,
            answers=stood,
            certificate=None,
            **{n: getattr(delivered, n)[place] for n in names},
        )
        result = audit(many, BlackBox(lambda r: np.zeros(len(r)), SPRING.X))
        text, lost = result.to_html(), result.summary()["lost"]
        assert text.count("<h3>") == 200
        assert f"And {lost - 200} more lost answers" in text


class Liar:
    """A model that says what it is told to."""

    def __init__(self, says, classes=(0, 1)):
        self.says, self.classes_, self.asked = says, np.array(classes), 0

    def predict_proba(self, X):
        self.asked += 1
        return self.says(X, self.asked)


def falls_over(X, asked):
    if asked > 1:
        raise RuntimeError("out of luck")
    return np.full((len(X), 2), 0.5)


MODELS = {
    "none": (list, SettingError, "There must be at least one model to ask. Got none."),
    "none by name": (dict, SettingError, "at least one model"),
    "other classes": (
        lambda: Liar(lambda X, _: np.full((len(X), 2), 0.5), ("no", "yes")),
        DataError,
        "The answers aim at 1, which is no class of this model: it knows 'no', 'yes'.",
    ),
    "NaN": (lambda: Liar(lambda X, _: np.full((len(X), 2), np.nan)), DataError, "no numbers"),
    "no sum": (lambda: Liar(lambda X, _: np.full((len(X), 2), 0.4)), DataError, "sum to one"),
    "fails midway": (lambda: Liar(falls_over), DataError, "The Liar failed on 50 rows: RuntimeError: out of luck"),
    "one of several": (
        lambda: {"may": NEW, "june": Liar(falls_over)},
        DataError,
        "Model 'june': The Liar failed on 50 rows",
    ),
    "a column renamed": (
        lambda: LogisticRegression().fit(SPRING.X[["income"]].rename(columns={"income": "incomes"}), SPRING.y),
        DataError,
        "reads column 'incomes', which the answers do not have. Did you mean 'income'",
    ),
    "a box of other columns": (
        lambda: BlackBox(lambda r: np.ones(len(r)), SPRING.X.rename(columns={"owns": "owner"})),
        DataError,
        "reads column 'owner', which these rows do not have",
    ),
    "not fitted": (LogisticRegression, SettingError, "not fitted yet"),
    "no model at all": (lambda: 7, SettingError, "A int cannot be asked"),
    "no such file": (lambda: "nowhere.onnx", DataError, "There is no file nowhere.onnx"),
}


class TestWrongInput:
    @pytest.mark.parametrize("case", MODELS)
    @pytest.mark.parametrize("ask", [audit, survival_curve])
    def test_models(self, delivered, case, ask):
        model, kind, says = MODELS[case]
        with pytest.raises(kind, match=re.escape(says)):
            ask(delivered, model())

    @pytest.mark.parametrize(
        ("settings", "says"),
        [
            ({"threshold": 1.5}, "'threshold' of a decision must be in (0, 1)"),
            ({"confidence": 1.0}, "'confidence' must be in (0, 1)"),
            ({"recourse": NEW}, "'recourse' of audit must be a method such as AVCG. Got a Pipeline"),
        ],
    )
    def test_settings(self, delivered, settings, says):
        with pytest.raises(SettingError, match=re.escape(says)):
            audit(delivered, NEW, **settings)

    def test_a_method_that_searches_by_gradients_needs_them(self, delivered, recourse):
        search = RobustSearch(recourse.hypotheses).fit(SPRING.X)
        with pytest.raises(SettingError, match="RobustSearch searches by gradients"):
            audit(delivered, BlackBox(lambda rows: np.zeros(len(rows)), SPRING.X), recourse=search)

    @pytest.mark.parametrize(
        "ask", [lambda a: a.by("houses"), lambda a: a.to_html("houses"), lambda a: a.to_json("houses")]
    )
    def test_no_such_column(self, found, ask):
        with pytest.raises(DataError, match=r"no column 'houses' to group by\. Did you mean 'housing'"):
            ask(found)

    @pytest.mark.parametrize(
        ("damage", "says"),
        [
            (lambda stored: "{", "answers.json: This is no JSON of counterfactuals"),
            (lambda stored: stored | {"version": 99}, "answers.json: These answers have format version 99"),
            (
                lambda stored: {"format": stored["format"]},
                "answers.json: These answers have no format version, but None",
            ),
            (
                lambda stored: stored | {"version": "one"},
                "answers.json: These answers have no format version, but 'one'",
            ),
            (lambda stored: {**stored, "statuses": stored["statuses"][:9]}, "it has 9 of 16 'statuses'"),
            (lambda stored: {**stored, "statuses": ["fine"] * 16}, "'fine' is no status"),
            (
                lambda stored: {**stored, "answers": {"columns": {}}},
                "answers.json: These answers are incomplete or damaged",
            ),
            (lambda stored: {**stored, "answers": 3}, "answers.json"),
        ],
    )
    def test_damaged_answers(self, damage, says, tmp_path):
        path = tmp_path / "answers.json"
        broken = damage(json.loads(STORED.read_text()))
        path.write_text(broken if isinstance(broken, str) else json.dumps(broken))
        with pytest.raises(DataError, match=re.escape(says)):
            audit(path, NEW)

    def test_no_such_answers(self):
        with pytest.raises(DataError, match=r"There is no file 'nowhere\.json'"):
            audit("nowhere.json", NEW)


@pytest.fixture(scope="module")
def onnx_file(tmp_path_factory):
    """Two models of income and months as ONNX files, the answers they are asked about, and the models."""
    pytest.importorskip("onnxruntime")
    skl2onnx = pytest.importorskip("skl2onnx")
    folder = tmp_path_factory.mktemp("onnx")
    X = SPRING.X[["income", "months"]].astype("float32")
    labels = np.where(SPRING.y == 1, "yes", "no")
    models = [LogisticRegression().fit(X[i::3], labels[i::3]) for i in range(3)]
    for i, model in enumerate(models[1:]):
        kind = [("X", skl2onnx.common.data_types.FloatTensorType([None, 2]))]
        options = {id(model): {"zipmap": bool(i)}}
        (folder / f"{i}.onnx").write_bytes(
            skl2onnx.to_onnx(model, initial_types=kind, options=options).SerializeToString()
        )
    recourse = NearestUnlike(PointMass(from_sklearn(models[0], X))).fit(X)
    delivered = recourse.generate(X[models[0].predict(X) == "no"].head(30), target="yes")
    (folder / "answers.json").write_text(delivered.to_json())
    return folder, delivered, models[1:]


def run(*arguments):
    return CliRunner().invoke(app, ["audit", *map(str, arguments)])


class TestCommand:
    def test_it_counts_as_python_does(self, onnx_file):
        folder, delivered, models = onnx_file
        result = run(
            folder / "answers.json", "--model", folder / "0.onnx", "--classes", "no,yes", "--by", "months", "--json"
        )
        assert result.exit_code == 0, result.output
        shown = json.loads(result.output)
        holds = int((models[0].predict(delivered.frame) == "yes").sum())
        assert shown["summary"]["holds"] == holds
        assert sum(line["told"] for line in shown["by"]) == shown["summary"]["told"]

    def test_tables_and_several_models(self, onnx_file):
        folder, delivered, models = onnx_file
        result = run(
            folder / "answers.json",
            "--model",
            folder / "0.onnx",
            "--model",
            folder / "1.onnx",
            "--classes",
            "no,yes",
            "--by",
            "months",
        )
        assert result.exit_code == 0, result.output
        both = audit(delivered, models)
        assert f"{both.summary()['holds']} of {both.summary()['told']} answers still hold" in result.output
        for words in ("By column to change", "income", "By number of columns to change", "By months", "up to"):
            assert words in result.output

    def test_classes_are_the_targets_where_these_name_both(self, onnx_file, tmp_path):
        folder, delivered, models = onnx_file
        mixed = replace(delivered, target=np.array(["yes", "no"] * 15))
        (tmp_path / "mixed.json").write_text(mixed.to_json())
        result = run(tmp_path / "mixed.json", "--model", folder / "1.onnx", "--json")
        expected = (models[1].predict(delivered.frame) == mixed.target).sum()
        assert json.loads(result.output)["summary"]["holds"] == expected

    @pytest.mark.parametrize("kind", ["html", "json", "csv"])
    def test_files_are_written_whole(self, onnx_file, tmp_path, kind):
        folder, delivered, models = onnx_file
        out = tmp_path / f"audit.{kind}"
        result = run(folder / "answers.json", "--model", folder / "0.onnx", "--classes", "no, yes", "--out", out)
        assert result.exit_code == 0, result.output
        assert [path.name for path in tmp_path.iterdir()] == [out.name]
        expected = audit(delivered, models[0])
        if kind == "csv":
            assert pd.read_csv(out, index_col=0)["verdict"].tolist() == expected.frame["verdict"].tolist()
        else:
            assert f"{expected.summary()['holds']}" in out.read_text(encoding="utf-8")
        out.write_text("before")
        failed = run(
            folder / "answers.json", "--model", folder / "0.onnx", "--classes", "no,yes", "--by", "x", "--out", out
        )
        assert isinstance(failed.exception, AvcgError)
        assert out.read_text() == "before"
        assert [path.name for path in tmp_path.iterdir()] == [out.name]

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (
                ["--model", "0.onnx"],
                "0.onnx has 2 probabilities and does not say of which classes; the answers aim at 'yes'",
            ),
            (["--model", "0.onnx", "--classes", "no,yes,maybe"], "must return probabilities of shape"),
            (["--model", "0.onnx", "--classes", "no,yep"], "The answers aim at 'yes', which is no class"),
            (["--model", "none.onnx", "--classes", "no,yes"], "There is no file"),
            (["--model", "answers.json", "--classes", "no,yes"], "no ONNX model that can be run"),
            (["--model", "0.onnx", "--out", "audit.pdf"], "--out must end in '.html', '.json', '.csv'"),
            (["--model", "0.onnx", "--out", "nowhere/audit.csv"], "There is no folder 'nowhere'"),
            (["--model", "0.onnx", "--classes", "no,yes", "--by", "mnths"], "Did you mean 'months'"),
        ],
    )
    def test_mistakes(self, onnx_file, arguments, says, monkeypatch):
        monkeypatch.chdir(onnx_file[0])
        result = run("answers.json", *arguments)
        assert isinstance(result.exception, AvcgError)
        assert says in str(result.exception)

    def test_a_mistake_is_one_sentence_and_exit_code_2(self):
        command = [
            "-c",
            "from avcg.cli.main import main; main()",
            "audit",
            STORED,
            "--model",
            "0.onnx",
            "--out",
            "audit.pdf",
        ]
        found = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True)
        assert found.returncode == 2
        assert found.stderr == "avcg: --out must end in '.html', '.json', '.csv'. Got 'audit.pdf' instead.\n"
        assert found.stdout == ""

    @pytest.mark.parametrize(
        ("target", "classes", "expected"),
        [
            (np.array([1, 0]), "0,1", [0, 1]),
            (np.array([1.5]), "0.5,1.5", [0.5, 1.5]),
            (np.array([True]), "false,True", [False, True]),
            (np.array(["a"]), "a, b", ["a", "b"]),
        ],
    )
    def test_labels_are_of_the_kind_of_the_targets(self, target, classes, expected):
        from avcg.cli.audit import _labels

        assert _labels(classes, target) == expected
        assert [type(label) for label in _labels(classes, target)] == [type(label) for label in expected]

    @pytest.mark.parametrize("target", [np.array([1]), np.array([True])])
    def test_labels_of_another_kind(self, target):
        from avcg.cli.audit import _labels

        with pytest.raises(SettingError, match="Got --classes 'no,yes'"):
            _labels("no,yes", target)
