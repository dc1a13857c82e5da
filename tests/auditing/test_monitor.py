"""New models beside the calibration models: on toys whose border stays, shifts or turns."""

import copy
import json
from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from avcg import AVCG, PointMass, Recipe, audit, from_models, from_sklearn
from avcg.auditing.monitor import monitor
from avcg.baselines.nearest import NearestUnlike
from avcg.errors import SettingError

N = 200


def rows(seed, shift=0.0, turn=0.0):
    """Two numbers, and a border between the classes that may be shifted or turned."""
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(rng.normal(size=(N, 2)), columns=["a", "b"])
    score = np.cos(turn) * X["a"] + np.sin(turn) * X["b"] - shift
    return X, (score + rng.logistic(0, 1.0, N) > 0).astype(int).to_numpy()


def model(seed, **change):
    return LogisticRegression().fit(*rows(seed, **change))


@cache
def recourse():
    """An explainer whose next models are fitted to new rows of the same kind, as the hypotheses were."""
    X, _ = rows(0)
    like = from_models([model(seed) for seed in range(1, 41)], X, deployed=model(0))
    return AVCG(like, survival=0.9, recipe=Recipe(steps=400, layers=(32,), encoder=(16,))).fit(X)


@cache
def told():
    X, _ = rows(50)
    return recourse().generate(X[model(0).predict(X) == 0].head(30), 1)


def judged(models, **settings):
    names = [f"week {i}" for i in range(len(models))]
    members = from_models(models, rows(0)[0], space=recourse().space_)
    return monitor(recourse(), members, names, **settings)


class TestModels:
    def test_models_of_the_same_kind_raise_no_alarm(self):
        found = judged([model(seed) for seed in range(200, 220)])
        assert not found.frame["alarm"].any()
        assert found.frame["evidence"].max() < found.threshold == 20
        assert 0.1 < found.frame["p_value"].mean() < 0.9
        assert found.n_calibration == 19
        assert str(found).startswith("No alarm: the evidence that these models are unlike the calibration models is")

    @pytest.mark.parametrize("change", [{"shift": 0.8}, {"turn": 1.0}])
    def test_a_border_that_moves_is_found(self, change):
        found = judged([model(seed) for seed in range(3)] + [model(seed, **change) for seed in range(300, 312)])
        assert not found.frame["alarm"].iloc[:3].any()
        assert found.frame["alarm"].iloc[-1]
        assert found.frame["survival"].iloc[-1] < found.frame["survival"].iloc[0]
        first = found.frame.index[found.frame["alarm"]][0]
        assert str(found).startswith(f"Alarm since {first!r}")
        assert "an alarm from 20 on is false with a chance of at most 0.05" in str(found)

    def test_an_alarm_is_not_taken_back(self):
        later = [model(seed, shift=0.8) for seed in range(300, 312)] + [model(seed) for seed in range(200, 230)]
        alarm = judged(later).frame["alarm"].to_numpy()
        assert alarm[-1]
        assert (np.diff(alarm.astype(int)) >= 0).all()

    def test_scores_are_shares_of_the_answers_that_each_accepts(self):
        """Counted again: all margins and targets together, and at the promised margin of each target."""
        own, later = recourse(), [model(7), model(300, shift=0.8)]
        members = from_models(later, rows(0)[0], space=own.space_).predictors
        directions = own.judged_answers(members)
        shares = [
            sum(each.table.accepted[:, k].sum() for each in directions)
            / sum(each.table.answered.sum() for each in directions)
            for k in range(2)
        ]
        reference = [
            sum(each.table.accepted[:, k].sum() for each in own.calibration_.of_effort())
            / sum(each.table.answered.sum() for each in own.calibration_.of_effort())
            for k in range(19)
        ]
        found = judged(later).frame
        expected = [(1 + sum(value <= share for value in reference)) / 20 for share in shares]
        assert found["p_value"].tolist() == pytest.approx(expected)
        accepted = answered = 0
        for each, chosen in zip(directions, own.calibration_.of_effort(), strict=True):
            accepted += each.table.accepted[chosen.verdict.position]
            answered += each.table.answered[chosen.verdict.position]
        assert found["survival"].tolist() == pytest.approx((accepted / answered).tolist())

    def test_the_rate_of_false_alarms_is_chosen(self):
        drifted = [model(seed, shift=0.8) for seed in range(300, 312)]
        rare, often = judged(drifted, false_alarms=1e-9), judged(drifted, false_alarms=0.2)
        assert not rare.frame["alarm"].any()
        assert often.frame["alarm"].any()
        with pytest.raises(SettingError, match=r"'false_alarms' of a monitor must be in \(0, 1\)"):
            judged(drifted, false_alarms=1.0)


class TestAudit:
    def test_one_model_has_a_p_value_in_words(self):
        like, unlike = (audit(told(), one, recourse=recourse()) for one in (model(200), model(300, shift=2.0)))
        assert "of 19 calibration models accept" in str(like.monitor)
        assert str(unlike.monitor) == (
            "None of 19 calibration models accepts as few of the answers as this model, or fewer (p = 0.05, the least"
            " that 19 models can show)."
        )
        assert str(unlike.monitor) in str(unlike)

    def test_a_sequence_on_every_surface(self):
        weeks = {f"week {i}": model(300 + i, shift=0.8) for i in range(12)}
        found = audit(told(), weeks, recourse=recourse())
        assert found.monitor.frame.index.tolist() == list(weeks)
        assert found.monitor.frame["alarm"].iloc[-1]
        document = json.loads(found.to_json())
        assert [line["model"] for line in document["monitor"]] == list(weeks)
        page = found.to_html()
        assert "Is it a model that the promise was made for?" in page
        assert "Alarm since &#39;week" in page
        assert page.count("alarm</span>") == int(found.monitor.frame["alarm"].sum())

    def test_the_explainer_itself_is_no_new_model(self):
        both = audit(told(), {"mine": recourse(), "new": model(200)}, recourse=recourse())
        assert both.monitor.frame.index.tolist() == ["new"]
        assert audit(told(), recourse(), recourse=recourse()).monitor is None

    def test_without_calibration_models_there_is_none(self):
        X, _ = rows(0)
        single = NearestUnlike(PointMass(from_sklearn(model(0), X))).fit(X)
        for explainer in (None, single, recourse().judged_by(from_models([model(1)], X, space=recourse().space_))):
            found = audit(told(), model(200), recourse=explainer)
            assert found.monitor is None
            assert json.loads(found.to_json())["monitor"] is None
            assert "promise was made for" not in found.to_html()

    def test_models_with_weights_count_for_nothing(self):
        unequal = copy.copy(recourse())
        unequal.split_ = copy.copy(unequal.split_)
        object.__setattr__(unequal.split_, "countable", False)
        assert audit(told(), model(200), recourse=unequal).monitor is None
        with pytest.raises(SettingError, match="needs calibration models of equal weight"):
            monitor(unequal, from_models([model(200)], rows(0)[0], space=recourse().space_), ["a"])


def test_hypotheses_are_new_models_too():
    later = from_models([model(seed) for seed in range(60, 65)], rows(0)[0], space=recourse().space_)
    found = audit(told(), later, recourse=recourse())
    assert len(found.monitor.frame) == 5
    assert torch.isfinite(torch.tensor(found.monitor.frame["evidence"].to_numpy())).all()
