"""Models that decide otherwise than by their most probable class: their own rule is used, or refused in words."""

import numpy as np
import pandas as pd
import pytest
from asked_models import NUMBERS, SHORT, Y, fitted
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import FixedThresholdClassifier, TunedThresholdClassifierCV

import avcg
from avcg import BlackBox, PointMass
from avcg.errors import SettingError
from avcg.hypotheses.black_box import BlackBoxPredictors
from avcg.method.deployed import DeployedModel

LABELS = np.array(["no", "yes"])[Y]


def trees():
    return HistGradientBoostingClassifier(max_iter=30, max_depth=3, random_state=0)


def tuned():
    model = TunedThresholdClassifierCV(trees(), scoring="recall", cv=3, random_state=0, thresholds=9)
    return model.fit(NUMBERS, Y)


def fixed(threshold, label=None, model=None):
    model = FixedThresholdClassifier(model or trees(), threshold=threshold, pos_label=label)
    return model.fit(NUMBERS, LABELS)


class TestStatedThresholds:
    @pytest.mark.parametrize("threshold", [0.3, 0.7])
    @pytest.mark.parametrize("label", ["no", "yes"])
    def test_decisions_are_those_of_the_model(self, threshold, label):
        model = fixed(threshold, label)
        box = BlackBox(model, NUMBERS)
        assert box.threshold == pytest.approx(threshold if label == "yes" else 1 - threshold, abs=1e-12)
        deployed = DeployedModel(BlackBoxPredictors([box]))
        x = box.space_.encode(NUMBERS)
        decided = deployed.decide(deployed.bind_rows(NUMBERS).probabilities(x)).numpy()
        assert (box.classes_[decided] == model.predict(NUMBERS)).all()
        assert 0 < decided.sum() < len(decided)
        turned = BlackBox(model, NUMBERS, classes=["yes", "no"])
        assert turned.threshold == pytest.approx(1 - box.threshold, abs=1e-12)

    def test_of_a_tuned_model_unless_another_is_asked_for(self):
        model = tuned()
        assert abs(model.best_threshold_ - 0.5) > 0.05
        box = BlackBox(model, NUMBERS)
        assert box.threshold == model.best_threshold_
        assert DeployedModel(BlackBoxPredictors([box])).rule.threshold == model.best_threshold_
        assert DeployedModel(BlackBoxPredictors([box]), 0.7).rule.threshold == 0.7
        assert DeployedModel(BlackBoxPredictors([box, box])).rule.threshold is None

    def test_explainers_and_audits_use_it(self):
        model = fixed(0.7)
        recourse = fitted(avcg.AVCG(PointMass(BlackBox(model, NUMBERS)), recipe=SHORT), NUMBERS)
        assert (recourse.decide(NUMBERS) == model.predict(NUMBERS)).all()
        refused = NUMBERS[model.predict(NUMBERS) == "no"].head(12)
        answers = recourse.generate(refused, target="yes")
        assert (answers.status == "ok").any()
        ok = (answers.status == "ok").to_numpy()
        assert (model.predict(answers.frame[ok]) == "yes").all()
        judged = avcg.audit(answers, model, recourse=recourse)
        assert judged.threshold == 0.7
        assert judged.summary()["holds"] == ok.sum()

    def test_retrains_are_judged_by_the_rule_of_the_deployed_model(self):
        deployed = fixed(0.7, model=trees())
        later = [FixedThresholdClassifier(trees(), threshold=0.3).fit(NUMBERS[s:], LABELS[s:]) for s in (10, 20, 30)]
        hypotheses = avcg.from_models(later, NUMBERS, deployed=deployed)
        assert DeployedModel(hypotheses.base).rule.threshold == 0.7


class Contrary:
    """A model whose decisions are the opposite of its probabilities for some rows."""

    classes_ = np.array(["no", "yes"])

    def predict_proba(self, X):
        second = 1 / (1 + np.exp(-(np.asarray(X)[:, 0] - 50) / 5))
        return np.stack([1 - second, second], axis=1)

    def predict(self, X):
        return self.classes_[(self.predict_proba(X)[:, 1] > 0.3) * 1]


class TestOtherRules:
    def test_are_refused_with_an_example(self):
        with pytest.raises(
            SettingError, match=r"by a threshold that it states. For \d+ of 256 rows .* 'yes' with prob"
        ):
            BlackBox(Contrary(), NUMBERS)
        assert BlackBox(Contrary().predict_proba, NUMBERS, classes=["no", "yes"]).threshold is None

    def test_what_cannot_be_compared_is_not_refused(self):
        class Words(Contrary):
            def predict(self, X):
                return np.full(len(X), "other words")

        class Fails(Contrary):
            def predict(self, X):
                raise RuntimeError("only probabilities")

        for model in (Words(), Fails(), LogisticRegression().fit(NUMBERS, Y)):
            box = BlackBox(model, NUMBERS)
            assert box.threshold is None
            assert box.n_asked == 2

    def test_text_labels_of_numbers(self):
        rows = pd.DataFrame({"a": np.arange(60.0), "b": np.arange(60.0)[::-1]})
        model = trees().fit(rows, (rows["a"] > 20).map({True: "1", False: "0"}))
        assert BlackBox(model, rows).threshold is None
