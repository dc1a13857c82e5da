"""The explainer: seeds, diagnostics, splits of hypotheses, devices, images, and the contract."""

import copy
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from explained_loans import SHORT, TOY, denied, loan_model, loan_retrains

import avcg
from avcg import AVCG, Classifier, Counterfactuals, MCDropout, PointMass, Recipe, retrains
from avcg.baselines.nearest import ClassMean, NearestUnlike, RobustNeighbour
from avcg.baselines.robust_search import RobustSearch
from avcg.errors import DataError, PromiseWarning, SettingError
from avcg.hypotheses.finite import FiniteSet
from avcg.hypotheses.mixture import Mixture
from avcg.hypotheses.split import HypothesisSplit
from avcg.method.config import ReferenceConfig
from avcg.method.deployed import DeployedModel


class TestSameAnswers:
    def test_alone_in_a_batch_and_in_any_order(self, recourse):
        rows = TOY.X.head(60)
        together = recourse.generate(rows, n=2)
        turned = recourse.generate(rows.iloc[::-1], n=2)
        alone = [recourse.generate(rows.iloc[[i]], n=2) for i in (0, 17, 59)]
        discrete = ["months", "owns", "housing", "rating"]
        for found in (turned, *alone):
            expected = together.frame.loc[found.frame.index]
            pd.testing.assert_frame_equal(found.frame[discrete], expected[discrete])
            np.testing.assert_allclose(found.frame["income"], expected["income"], atol=1e-3)

    def test_the_same_seed_gives_the_same_bytes_and_another_does_not(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            one, two, other = (
                AVCG(loan_retrains(), recipe=Recipe(steps=40, layers=(32,)), random_state=seed).fit(TOY.X)
                for seed in (1, 1, 2)
            )
        first, second, third = (each.generate(denied()) for each in (one, two, other))
        assert first.to_json() == second.to_json()
        assert first.to_json() != third.to_json()


class TestDiagnostics:
    def test_each_epoch_is_looked_at(self, recourse):
        table = recourse.diagnostics_
        assert list(table.columns) == ["loss", "kl", "active_units", "personalisation", "changes"]
        assert (table["kl"] >= 0).all()
        assert 0.3 < table["personalisation"].iloc[-1] < 1.5

    def test_sending_everyone_to_one_profile_is_warned_of(self):
        collapsed = Recipe(steps=400, decoder="latent", layers=(32,), temperature=None, weights=avcg.Weights(kl=10.0))
        free = avcg.Schema.infer(TOY.X)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            AVCG(loan_retrains(), free, recipe=collapsed).fit(TOY.X)
        assert any("nearly one profile" in str(one.message) for one in said)

    def test_a_promise_that_cannot_be_kept_is_said(self):
        frozen = TOY.schema.freeze("income", "rating", "owns", "housing")
        recipe = Recipe(steps=20, layers=(16,))
        with pytest.warns(PromiseWarning, match="No promise .* no margin is enough"):
            immovable = AVCG(loan_retrains(), frozen, reliability=0.8, recipe=recipe).fit(TOY.X)
        assert not immovable.calibration_.made
        delivered = immovable.generate(denied())
        assert len(delivered) == len(denied()), "it answers all the same, and says so"
        assert "No promise" in delivered.promise

    def test_too_few_models_are_counted_before_anything_is_promised(self, recourse):
        assert recourse.calibration_.n_models == 5
        assert not recourse.calibration_.made
        assert "needs 9 models held back for calibration, and there are 5" in str(recourse.calibration_)

    def test_the_margin_is_the_least_from_which_enough_models_keep_the_promise(self, recourse):
        found = recourse.calibrate(survival=0.9, reliability=0.8).calibration_  # 5 models: all of them
        frontier, least = found.frontier, {}
        for effort, directions in found.directions.items():
            for direction in directions:
                lowest = frontier.loc[(effort, direction.target), "lowest"]
                count = direction.table.answered
                enough = lowest >= np.ceil(0.9 * (count + 1) - 1e-9) / count
                kept = enough[::-1].cummin()[::-1]
                assert direction.verdict.made == kept.any()
                if kept.any():
                    least.setdefault(direction.target, {})[effort] = kept.index[kept.argmax()]
        assert set(least) == {0, 1}
        for label, by_effort in least.items():  # all efforts that keep it aim at the largest of their margins
            for effort in by_effort:
                ladder = frontier.loc[(effort, label)].index
                margin = next(each.margin for each in found.of_effort(effort) if each.target == label)
                assert margin == pytest.approx(ladder[ladder >= max(by_effort.values()) - 1e-9][0])
        assert (
            sum(direction.table.n_rows for direction in found.directions["fast"]) == 80
        )  # 15 % of the rows, and 30 a class


class TestCalibratingAgain:
    def test_another_promise_needs_no_training(self, recourse):
        before = {name: value.clone() for name, value in recourse.generator_.state_dict().items()}
        with pytest.warns(PromiseWarning):
            other = recourse.calibrate(reliability=0.99)
        assert all(torch.equal(before[name], value) for name, value in other.generator_.state_dict().items())
        assert other.calibration_.promise.reliability == other.reliability == 0.99
        assert recourse.reliability == 0.9, "the first is as it was"
        low = recourse.calibrate(reliability=0.8, survival=0.8)
        assert low.calibration_.made
        assert low.generate(denied()).promise.startswith("At most a 1 in 5 chance")

    def test_a_promise_read_off_the_table_is_that_of_calibrating_anew(self, recourse):
        same = FiniteSet(recourse.split_.calibration, recourse.hypotheses.space, recourse.hypotheses.classes)
        quick = recourse.calibrate(reliability=0.8).calibration_
        anew = recourse.calibrate(reliability=0.8, models=same).calibration_
        assert quick.margins().tolist() == anew.margins().tolist()
        assert str(quick) == str(anew)

    def test_new_models_carry_more(self, recourse):
        newer = retrains(loan_model(), TOY.X, TOY.y, n=19, random_state=11)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PromiseWarning)
            renewed = recourse.calibrate(survival=0.8, models=newer)
        assert renewed.calibration_.n_models == 19
        assert "needs" not in str(renewed.calibration_)

    def test_models_that_taught_are_refused(self, recourse):
        with pytest.raises(SettingError, match=r"must not have trained the generator\. 5 of 5 did"):
            recourse.calibrate(models=recourse.split_.train)
        with pytest.raises(SettingError, match="must be a set of models"):
            recourse.calibrate(models=MCDropout(loan_model()))

    def test_set_params_claims_nothing_that_was_not_calibrated(self, recourse):
        changed = copy.copy(recourse).set_params(survival=0.5, reliability=0.5)
        delivered = changed.generate(denied())
        assert delivered.survival == 0.95
        assert "95 of 100" in delivered.promise
        assert delivered.statuses.tolist() == recourse.generate(denied()).statuses.tolist()


class TestRoles:
    def test_no_member_has_two_roles(self):
        roles = HypothesisSplit.of(loan_retrains())
        parts = [roles.train.predictors, roles.calibration, roles.test]
        assert [len(part) for part in parts] == [5, 5, 2]
        rows = torch.cat([part.overrides["0.weight"].flatten(1) for part in parts])
        assert len(torch.unique(rows, dim=0)) == 12

    def test_small_sets(self):
        sizes = []
        for count in (1, 2, 3, 4):
            some = FiniteSet(
                loan_retrains().predictors.subset(torch.arange(count)), loan_retrains().space, loan_retrains().classes
            )
            roles = HypothesisSplit.of(some)
            held = (0 if part is None else len(part) for part in (roles.calibration, roles.test))
            sizes.append((len(roles.train), *held))
        assert sizes == [(1, 0, 0), (1, 0, 1), (1, 1, 1), (2, 1, 1)]

    def test_a_posterior_is_drawn_from_anew(self):
        roles = HypothesisSplit.of(MCDropout(loan_model()), n_test=7)
        assert len(roles.test) == 7
        assert len(roles.deployed) == 1
        x = loan_retrains().space.encode(denied())
        assert torch.allclose(
            roles.deployed.predictive(x)[:, 1], torch.tensor(loan_model().predict_proba(denied())[:, 1]), atol=1e-6
        )

    def test_a_mixture_is_parted_component_by_component(self):
        roles = HypothesisSplit.of(Mixture([loan_retrains(), MCDropout(loan_model())]), n_test=3)
        assert len(roles.test) == 3, "three of either may all be of one"
        assert roles.test.weights.tolist() == pytest.approx([1 / 3] * 3)
        assert len(roles.train.sample(20)) <= 20

    def test_setting_all_aside_is_refused(self):
        with pytest.raises(SettingError, match="'n_test' of 12 leaves too few of 12"):
            HypothesisSplit.of(loan_retrains(), n_test=12)

    def test_a_single_model_has_no_certificate(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = AVCG(PointMass(loan_model()), recipe=SHORT).fit(TOY.X).generate(denied().head(5))
        assert found.certificate is None
        assert Counterfactuals.from_json(found.to_json()).certificate is None
        assert "held back from training" not in str(found)


class TestRemote:
    def test_hypotheses_elsewhere_answer_the_same(self):
        from avcg.hypotheses.on_device import OnDevice

        x = loan_retrains().space.encode(denied())
        away = OnDevice(loan_retrains().predictors, "cpu")
        assert torch.equal(away.log_probs(x), loan_retrains().predictors.log_probs(x))
        assert torch.equal(away.subset(torch.tensor([2])).log_probs(x)[0], away.log_probs(x)[2])
        avcg.testing.check_hypotheses(FiniteSet(away, loan_retrains().space, loan_retrains().classes), x[:3])

    def test_a_device_that_is_none(self):
        with pytest.raises(SettingError, match="'device' of AVCG"):
            AVCG(loan_retrains(), device="abacus").fit(TOY.X)


class TestDeployedModel:
    def test_exactly_at_the_threshold_is_a_yes(self):
        deployed = DeployedModel(loan_retrains().base, threshold=0.25)
        probabilities = torch.tensor([[0.75, 0.25], [0.76, 0.24]])
        assert deployed.decide(probabilities).tolist() == [1, 0]
        assert deployed.valid(probabilities[[0, 0]], torch.tensor([1, 0])).tolist() == [True, False]
        assert deployed.log_odds(torch.tensor([1, 0])).tolist() == pytest.approx([-np.log(3), np.log(3)])

    def test_a_threshold_is_for_two_classes(self):
        rng = np.random.default_rng(0)
        X, y = rng.normal(size=(90, 2)), np.repeat([0, 1, 2], 30)
        model = Classifier(hidden=(4,), epochs=2).fit(X, y)
        with pytest.raises(SettingError, match="needs a model with two classes"):
            AVCG(PointMass(model), threshold=0.4).fit(X)


class TestImages:
    def test_pictures_are_answered_through_the_same_class(self):
        rng = np.random.default_rng(0)
        y = np.arange(120) % 2
        pixels = rng.integers(0, 60, (120, 8, 8), dtype=np.uint8)
        pixels[y == 1, 2:6, 2:6] += 150
        model = Classifier(hidden=(4,), epochs=30).fit(pixels, y)
        recipe = Recipe(steps=150, encoder=(8,), layers=(8, 8), batch_size=64, reference=ReferenceConfig(max_rows=50))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            recourse = AVCG(MCDropout(model), recipe=recipe, survival=0.9).fit(pixels)
        found = recourse.generate(pixels[:10])
        assert found.frame.dtype == np.uint8
        assert found.frame.shape == (10, 8, 8)
        assert found.status.isin(["ok", "not_robust"]).mean() > 0.7
        assert found.changed is None
        mask = np.zeros((8, 8), bool)
        mask[2:6, 2:6] = True
        part = recourse.generate(pixels[:10], vary=mask)
        assert np.array_equal(part.frame[:, ~mask], pixels[:10][:, ~mask])
        back = Counterfactuals.from_json(found.to_json())
        assert np.array_equal(back.frame, found.frame)
        assert "distance" in str(found)
        with pytest.raises(DataError, match="no columns"):
            found.changes()


class TestNothingToDo:
    def test_rows_that_have_the_target_can_be_refined(self):
        granted = TOY.X[loan_model().predict(TOY.X) == loan_model().classes_[1]].head(3)
        found = (
            NearestUnlike(loan_retrains())
            .fit(TOY.X, TOY.y)
            .generate(granted, loan_model().classes_[1], effort="thorough")
        )
        assert (found.statuses == "already_target").all()
        pd.testing.assert_frame_equal(found.frame, granted)


class TestContract:
    def test_every_method_keeps_it(self, recourse):
        from avcg.baselines.gradient import Descent
        from avcg.testing import check_explainer

        rows = TOY.X.head(24)
        check_explainer(recourse, rows)
        for kind in (NearestUnlike, RobustNeighbour, ClassMean):
            check_explainer(kind(loan_retrains()).fit(TOY.X, TOY.y), rows)
        check_explainer(
            RobustSearch(loan_retrains(), descent=Descent(40, probability=0.7, proximity=1.0)).fit(TOY.X), rows
        )

    def test_it_catches_a_method_that_looks_at_its_neighbours(self):
        from avcg.testing import check_explainer

        class Averaging(ClassMean):
            def _candidates(self, query):
                shift = query.x.mean(dim=0) - query.x
                return query.space.project(query.x + shift, query.x)[None].expand(query.n, -1, -1)

        with pytest.raises(AssertionError, match=r"order of rows|other rows"):
            check_explainer(Averaging(loan_retrains()).fit(TOY.X), TOY.X.head(24))


def test_scikit_learns_manners():
    from sklearn.base import clone

    first = AVCG(loan_retrains(), survival=0.9, recipe=SHORT)
    assert set(first.get_params(deep=False)) >= {"hypotheses", "schema", "survival", "recipe", "device", "random_state"}
    assert clone(first, safe=False).get_params(deep=False)["survival"] == 0.9
    assert not hasattr(first, "generator_")
