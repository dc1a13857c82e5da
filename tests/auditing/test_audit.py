"""Does last quarter's advice hold under this quarter's model? Counted again by hand."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from advice import SCHEMA, SPRING, STORED, autumn_model, denied, recount, spring_model, weekly_models
from scipy.stats import binomtest
from sklearn.linear_model import LogisticRegression

from avcg import (
    BlackBox,
    Counterfactuals,
    FiniteSet,
    GaussianPosterior,
    PointMass,
    audit,
    feasibility,
    from_models,
    from_sklearn,
    survival_curve,
    toys,
)
from avcg.baselines.nearest import NearestUnlike
from avcg.errors import DataError, SettingError
from avcg.hypotheses.predictors import Stacked


class TestVerdicts:
    def test_one_model(self, delivered, found):
        verdicts = recount(delivered, lambda row, target: autumn_model().predict(row)[0] == target)
        assert found.frame["verdict"].tolist() == verdicts
        assert {"holds", "lost"} <= set(verdicts)
        total = found.summary()
        assert (total["holds"], total["lost"]) == (verdicts.count("holds"), verdicts.count("lost"))
        assert total["told"] == total["holds"] + total["lost"]
        now = autumn_model().predict_proba(delivered.frame)[:, 1]
        np.testing.assert_allclose(found.frame["probability_now"], now)
        np.testing.assert_allclose(found.frame["margin"], now - 0.5, atol=1e-12)
        np.testing.assert_allclose(found.frame["probability_change"], now - delivered.probability)
        assert found.frame["lower_bound"].isna().all()
        assert found.frame.index.equals(denied().index)

    @pytest.mark.parametrize("threshold", [0.2, 0.5, 0.8])
    def test_a_threshold_on_the_second_class(self, delivered, threshold):
        back = replace(delivered, target=np.array([0, 1] * (len(delivered) // 2)))
        frame = audit(back, autumn_model(), threshold=threshold).frame
        yes = [
            autumn_model().predict_proba(delivered.answers.iloc[[i]])[0, 1] >= threshold for i in range(len(delivered))
        ]
        expected = ["holds" if y == t else "lost" for y, t in zip(yes, back.target, strict=True)]
        asked = np.isin(delivered.statuses, ("ok", "not_robust"))
        assert frame["verdict"][asked].tolist() == list(np.array(expected)[asked])
        assert ((frame["margin"] >= 0) == (np.array(expected) == "holds")).all()

    def test_several_models_by_the_share_that_was_promised(self, delivered):
        frame = audit(delivered, weekly_models()).frame
        decisions = [model.predict(delivered.frame).tolist() for model in weekly_models().values()]
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
                weekly_models(),
                list(weekly_models().values()),
                from_models(list(weekly_models().values()), SPRING.X, space=recourse.space_),
            )
        ]
        for other in frames[1:]:
            pd.testing.assert_frame_equal(frames[0], other, atol=1e-4)

    def test_a_distribution_that_never_runs_out_is_drawn_from(self, delivered, recourse):
        network = from_sklearn(spring_model(), SPRING.X, space=recourse.space_).network_
        mean = dict(network.named_parameters())
        spread = torch.full((sum(p.numel() for p in mean.values()),), 0.3)
        cloud = GaussianPosterior(network, mean, spread, space=recourse.space_, classes=np.array([0, 1]))
        first, second = audit(delivered, cloud).frame, audit(delivered, cloud).frame
        assert set(first["n_models"]) == {50}
        pd.testing.assert_frame_equal(first, second)
        heads = cloud.sample(50).log_probs(recourse.space_.encode(delivered.frame)).argmax(-1).eq(1).sum(0)
        assert (first["agreeing"] == heads.numpy()).all()

    def test_every_member_counts_once_whatever_its_weight(self, delivered, recourse):
        network = from_sklearn(spring_model(), SPRING.X, space=recourse.space_).network_
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
        with pytest.raises(SettingError, match=r"needs a model with two classes\. This model has 3"):
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
            pd.testing.assert_frame_equal(audit(place, autumn_model()).frame.iloc[:, :9], found.frame.iloc[:, :9])

    @pytest.mark.parametrize(("least", "holds"), [(0.0, 7), (0.1, 6), (0.3, 2), (0.6, 1), (1.0, 0)])
    def test_a_file_of_this_version_is_read_for_good(self, least, holds):
        assert json.loads(STORED.read_text())["version"] == 2
        rule = BlackBox(lambda rows: (SPRING.points(rows) >= least).astype(float), SPRING.X)
        result = audit(STORED, rule)
        total = result.summary()
        assert (total["told"], total["holds"], total["lost"]) == (7, holds, 7 - holds)
        assert (result.frame["verdict"] == "no_answer").sum() == 9
        assert result.frame.index[0] == "person-00"

    def test_a_file_of_an_older_version_is_refused(self, tmp_path):
        path = tmp_path / "answers.json"
        path.write_text(json.dumps(json.loads(STORED.read_text()) | {"version": 1}))
        with pytest.raises(DataError, match=r"have format version 1, and this avcg reads version 2\. Make them again"):
            audit(path, autumn_model())


class TestTotals:
    @pytest.mark.parametrize("column", ["housing", "rating", "owns", "income", "months"])
    def test_groups_add_up(self, found, column):
        table, total = found.by(column), found.summary()
        for name in ("told", "holds", "lost", "replaced", "keeping"):
            assert table[name].sum() == total[name]
        assert len(table) <= 4

    def test_a_group_is_counted_by_hand(self, found):
        for label, line in found.by("housing").iterrows():
            mine = found.frame[(denied()["housing"] == label) & (found.frame["verdict"] != "no_answer")]
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
            inside = (denied()["income"] > low) & (denied()["income"] <= high)
            assert line["told"] == (inside & (found.frame["verdict"] != "no_answer")).sum()

    def test_by_change_counts_each_changed_column_and_by_count_each_answer_once(self, delivered, found):
        asked = np.isin(delivered.statuses, ("ok", "not_robust"))
        differs = (delivered.frame.astype(object) != denied().astype(object))[asked]
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
        table = audit(replace(delivered, factuals=rows), autumn_model())
        assert table.by("note").index.tolist() == ["a", "z", "missing"]
        assert table.by("step").index.tolist() == [1, 2]
        assert table.by("size")["told"].sum() == table.summary()["told"]

    def test_nobody_was_told_anything(self, delivered):
        none = replace(delivered, statuses=np.full(50, "not_found"))
        result = audit(none, autumn_model())
        total = result.summary()
        assert (total["told"], total["low"], total["high"]) == (0, 0.0, 1.0)
        assert np.isnan(total["share"])
        assert "nothing to audit" in str(result)
        assert "nothing to audit" in result.to_html("housing")
        assert len(result.by_change()) == len(result.by_count()) == 0
        assert survival_curve(none, autumn_model())["so_far"].isna().all()

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
        assert [line["index"] for line in stored["answers"]] == denied().index.tolist()
        assert stored["answers"][0]["lower_bound"] is None
        assert {line["value"] for line in stored["by"]} == set(found.by("housing").index)
        back = Counterfactuals.from_json(json.dumps(stored["replacements"]))
        assert back.statuses.tolist() == found.replacements.statuses.tolist()


class TestSurvivalCurve:
    def test_it_falls_and_counts_right(self, delivered):
        curve = survival_curve(delivered, weekly_models())
        asked = delivered.frame[np.isin(delivered.statuses, ("ok", "not_robust"))]
        valid = np.array([model.predict(asked) == 1 for model in weekly_models().values()])
        assert curve.index.tolist() == list(weekly_models())
        assert curve["valid"].tolist() == [float(np.mean(one)) for one in valid]
        assert curve["so_far"].tolist() == [float(np.mean(valid[: i + 1].all(axis=0))) for i in range(4)]
        assert curve["so_far"].is_monotonic_decreasing
        assert (curve["low"] <= curve["valid"]).all()
        assert (curve["valid"] <= curve["high"]).all()
        assert set(curve["n"]) == {len(asked)}
        exact = binomtest(int(valid[1].sum()), len(asked)).proportion_ci(0.95, "exact")
        assert tuple(curve.loc["week 1", ["low", "high"]]) == (pytest.approx(exact.low), pytest.approx(exact.high))
        pd.testing.assert_frame_equal(
            survival_curve(delivered, list(weekly_models().values())).reset_index(drop=True),
            curve.reset_index(drop=True),
        )


class TestFeasibility:
    def test_counts_and_shares(self, recourse):
        frozen = SCHEMA.freeze("income", "months", "owns")
        narrow = NearestUnlike(recourse.hypotheses, frozen).fit(SPRING.X)
        table = feasibility(narrow, SPRING.X, target=1, by="rating")
        answers = narrow.generate(SPRING.X, target=1, effort="thorough")
        for label, line in table.iterrows():
            mine = [
                status
                for status, value in zip(answers.statuses, SPRING.X["rating"], strict=True)
                if status != "already_target" and label in ("all", value)
            ]
            without = sum(status in ("immovable", "infeasible", "not_found") for status in mine)
            assert (line["denied"], line["without"]) == (len(mine), without)
            assert line["not_robust"] == mine.count("not_robust")
            assert (line["immovable"], line["infeasible"]) == (mine.count("immovable"), mine.count("infeasible"))
            exact = binomtest(without, len(mine)).proportion_ci(0.95, "exact")
            assert line["without_share"] == pytest.approx(without / len(mine))
            assert (line["without_low"], line["without_high"]) == (pytest.approx(exact.low), pytest.approx(exact.high))
        assert table.index[0] == "all"
        assert table.loc["all", "denied"] == table.drop("all")["denied"].sum()
        assert 0 < table.loc["all", "without"] < table.loc["all", "denied"]
        assert table.loc["all", "infeasible"] > 0, "two texts leave few points, which are tried one by one"

    def test_where_nothing_may_change_it_is_certain(self, recourse):
        only_buying = SCHEMA.freeze(*(name for name in SCHEMA if name != "owns")).only_up("owns")
        narrow = NearestUnlike(recourse.hypotheses, only_buying).fit(SPRING.X)
        owners = denied()[denied()["owns"]]
        line = feasibility(narrow, owners, target=1).loc["all"]
        assert line["immovable"] == line["without"] == line["denied"] == len(owners) > 0
