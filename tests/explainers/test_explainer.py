"""From rows to answers: what people receive, in every state it can be in."""

import json
import time
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

import avcg
from avcg import AVCG, Classifier, Counterfactuals, MCDropout, PointMass, Recipe, Refinement, retrains, toys
from avcg.baselines.nearest import ClassMean, NearestUnlike, RobustNeighbour
from avcg.baselines.robust_search import RobustSearch
from avcg.errors import AvcgError, DataError, SchemaError, SettingError
from avcg.explainers.records import MEANING
from avcg.hypotheses.finite import FiniteSet
from avcg.hypotheses.mixture import Mixture
from avcg.hypotheses.split import HypothesisSplit
from avcg.method.config import ReferenceConfig, SearchConfig
from avcg.method.deployed import DeployedModel
from avcg.method.query import choose, quantise, repeated_answers
from avcg.method.refine import Deadline, prune

SHORT = Recipe(steps=400, layers=(64, 64), batch_size=128)
TOY = toys.loans(n=500)
MODEL = Classifier(hidden=(16,), epochs=150, patience=None, schema=TOY.schema).fit(TOY.X, TOY.y)
RETRAINS = retrains(MODEL, TOY.X, TOY.y, n=12, resampling="bootstrap")
DENIED = TOY.X[MODEL.predict(TOY.X) == 0].head(40)


@pytest.fixture(scope="module")
def recourse():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so short a training may not keep its promise
        return AVCG(RETRAINS, recipe=SHORT).fit(TOY.X, TOY.y)


@pytest.fixture(scope="module")
def answers(recourse):
    return recourse.generate(DENIED)


class TestAnswers:
    def test_most_people_are_told_something_that_flips_the_decision(self, answers):
        assert (answers.status == "ok").mean() > 0.8
        ok = answers.frame[answers.status == "ok"]
        assert (MODEL.predict(ok) == 1).all()

    def test_nothing_forbidden_is_changed(self, recourse, answers):
        assert not recourse.space_.violations(answers.frame, DENIED).any()
        assert (answers.frame["months"] >= DENIED["months"]).all()

    def test_rows_columns_dtypes_and_index_are_the_users(self, answers):
        assert answers.frame.index.equals(DENIED.index)
        assert answers.frame.dtypes.equals(DENIED.dtypes)
        assert answers.status.index.equals(DENIED.index)
        assert set(answers.statuses) <= set(MEANING)

    def test_changes_list_exactly_the_cells_that_differ(self, answers):
        changes = answers.changes()
        listed = {(row, column) for row, column in zip(changes.index, changes["column"], strict=True)}
        different = (answers.frame.astype(object) != DENIED.astype(object)).stack()
        assert listed == set(different[different].index)
        for row, column, before, after in changes.itertuples():
            assert before == DENIED.loc[row, column]
            assert after == answers.frame.loc[row, column]

    def test_the_certificate_counts_models_nobody_trained_on(self, recourse, answers):
        fresh = recourse.split_.test
        assert answers.certificate.n == len(fresh) == 3
        x = recourse.space_.encode(answers.frame)
        agree = fresh.log_probs(x).argmax(-1).numpy() == 1
        assert (answers.certificate.agreeing == agree.sum(0)).all()
        robust = answers.certificate.share >= 0.99
        assert ((answers.status == "ok") == (robust & (MODEL.predict(answers.frame) == 1))).all()

    def test_probabilities_are_those_of_the_decoded_row(self, answers):
        np.testing.assert_allclose(answers.probability, MODEL.predict_proba(answers.frame)[:, 1], atol=1e-5)
        np.testing.assert_allclose(answers.probability_before, MODEL.predict_proba(DENIED)[:, 1], atol=1e-5)

    def test_iteration_goes_row_by_row(self, answers):
        rows = list(answers)
        assert [row.index for row in rows] == DENIED.index.tolist()
        assert all(row.target == 1 for row in rows)
        first = rows[0]
        assert first.status == answers.status.iloc[0]
        assert dict(first.changes) == {
            column: (before, after)
            for column, before, after in answers.changes().loc[[first.index]].itertuples(index=False)
        }

    def test_what_is_printed_says_it_in_a_sentence(self, answers):
        text = str(answers)
        assert text.startswith("40 rows, 1 answer each: ")
        assert "of 3 models agree: at least 0.36 with 95% confidence" in text
        assert "... and 34 more rows" in text
        assert "&gt;" in answers._repr_html_()


class TestStatuses:
    def test_a_row_that_has_the_decision_already_is_left_alone(self, recourse):
        granted = TOY.X[MODEL.predict(TOY.X) == 1].head(5)
        found = recourse.generate(granted, target=1)
        assert (found.status == "already_target").all()
        pd.testing.assert_frame_equal(found.frame, granted)
        assert found.changes().empty
        assert "the decision is already" in str(found)

    def test_a_row_that_may_change_nothing_is_infeasible(self, recourse):
        found = recourse.generate(DENIED.head(3), max_changes=0)
        assert (found.status == "infeasible").all()
        pd.testing.assert_frame_equal(found.frame, DENIED.head(3))

    def test_a_range_that_leaves_no_way_is_not_valid(self, recourse):
        now = DENIED.head(4)
        found = recourse.generate(now, vary=["months"], ranges={"months": (None, now["months"] + 1)})
        assert set(found.status) <= {"not_valid", "ok", "not_robust"}
        poor = DENIED[MODEL.predict_proba(DENIED)[:, 1] < 0.3]
        hopeless = recourse.generate(poor, vary=["months"], ranges={"months": (None, poor["months"] + 1)})
        assert (hopeless.status == "not_valid").all()

    def test_mixed_rows_and_directions(self, recourse):
        rows = TOY.X.head(30)
        found = recourse.generate(rows)
        wanted = 1 - MODEL.predict(rows)
        assert (found.target == wanted).all()
        per_row = recourse.generate(rows, target=wanted)
        pd.testing.assert_frame_equal(per_row.frame, found.frame)

    def test_min_prob_is_kept_or_not_valid(self, recourse):
        found = recourse.generate(DENIED, min_prob=0.9)
        valid = ~found.status.isin(["not_valid"])
        assert valid.mean() > 0.7
        assert (found.probability[valid] >= 0.9).all()
        assert (found.probability[~valid] < 0.9).all()


class TestRequests:
    def test_only_what_may_vary_changes(self, recourse):
        found = recourse.generate(DENIED, vary=["income", "rating"])
        assert set(found.changes()["column"]) <= {"income", "rating"}

    def test_each_row_its_own(self, recourse):
        lists = [["income"], ["months", "rating"]] * 20
        found = recourse.generate(DENIED, vary=lists)
        for i, row in enumerate(found):
            assert set(row.changes) <= set(lists[i])

    def test_max_changes(self, recourse):
        found = recourse.generate(DENIED, max_changes=1)
        assert found.changed.sum(axis=1).max() == 1

    def test_n_answers_differ_and_the_index_says_which(self, recourse):
        found = recourse.generate(DENIED, n=3)
        assert found.frame.index.names == ["row", "answer"]
        assert len(found.frame) == len(found.status) == 120
        different = found.frame.astype(str).groupby(level=0).apply(lambda three: len(three.drop_duplicates()))
        assert (different == 3).mean() > 0.9
        assert ((3 - different) == pd.Series(found.repeated, found.frame.index).groupby(level=0).sum()).all()
        pd.testing.assert_frame_equal(found.factuals, DENIED)

    def test_a_threshold_other_than_one_half(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            strict = AVCG(RETRAINS, recipe=SHORT, threshold=0.8).fit(TOY.X)
        probability = MODEL.predict_proba(DENIED)[:, 1]
        assert (probability < 0.5).all()
        found = strict.generate(DENIED)
        delivered = found.frame[found.status == "ok"]
        assert len(delivered) > 20
        assert (MODEL.predict_proba(delivered)[:, 1] >= 0.8).all()
        between = TOY.X[(MODEL.predict_proba(TOY.X)[:, 1] > 0.55) & (MODEL.predict_proba(TOY.X)[:, 1] < 0.75)]
        assert (strict.generate(between).target == 1).all(), "below the threshold, the decision is a no"

    def test_polars_frames_come_back_as_polars(self, recourse):
        frame = pl.from_pandas(DENIED.reset_index(drop=True))
        found = recourse.generate(frame, n=2)
        assert isinstance(found.frame, pl.DataFrame)
        assert found.frame.schema == frame.schema
        assert len(found.frame) == 80
        same = recourse.generate(DENIED, n=2)
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
                AVCG(RETRAINS, recipe=Recipe(steps=40, layers=(32,)), random_state=seed).fit(TOY.X)
                for seed in (1, 1, 2)
            )
        first, second, third = (each.generate(DENIED) for each in (one, two, other))
        assert first.to_json() == second.to_json()
        assert first.to_json() != third.to_json()


class TestWhatReviewersFound:
    def test_changes_name_the_right_columns_whatever_their_order(self, recourse):
        turned = DENIED[DENIED.columns[::-1]]
        expected, found = recourse.generate(DENIED, n=2), recourse.generate(turned, n=2)
        for one, other in zip(expected, found, strict=True):
            assert [dict(option.changes) for option in one.options] == [
                dict(option.changes) for option in other.options
            ]
        assert str(Counterfactuals.from_json(found.to_json())) == str(found)

    def test_a_failed_fit_leaves_the_explainer_as_it_was(self, recourse):
        from sklearn.exceptions import NotFittedError

        before = recourse.generate(DENIED).to_json()
        with pytest.raises(DataError, match="at least two rows"):
            recourse.fit(TOY.X.head(1))
        assert recourse.generate(DENIED).to_json() == before
        never = AVCG(RETRAINS)
        with pytest.raises(DataError):
            never.fit(TOY.X.head(1))
        with pytest.raises(NotFittedError):
            never.generate(DENIED)

    def test_estimators_without_gradients_are_refused_as_teachers(self):
        from sklearn.tree import DecisionTreeClassifier

        numbers = TOY.X[["income", "months"]]
        model = DecisionTreeClassifier(max_depth=4, random_state=0).fit(numbers, TOY.y)
        judges = retrains(model, numbers, TOY.y, n=4, resampling="bootstrap")
        with pytest.raises(SettingError, match="searches by gradients"):
            RobustSearch(judges).fit(numbers)
        assert (RobustNeighbour(judges).fit(numbers, TOY.y).generate(numbers.head(5)).status != "infeasible").all()

    def test_the_model_in_force_never_certifies(self):
        ensemble = FiniteSet(
            RETRAINS.predictors, RETRAINS.space, RETRAINS.classes, RETRAINS.predictors.subset(torch.tensor([3]))
        )
        for seed in range(20):
            fresh = HypothesisSplit.of(ensemble, torch.Generator().manual_seed(seed)).test
            same = (fresh.overrides["0.weight"] == RETRAINS.predictors.overrides["0.weight"][3]).flatten(1).all(1)
            assert not same.any()

    def test_a_mixture_certifies_by_its_shares(self):
        roles = HypothesisSplit.of(Mixture([RETRAINS, MCDropout(MODEL)], [0.9, 0.1]), n_test=3)
        assert len(roles.test) == 4, "three of one, and the other's tenth as one"
        with pytest.raises(SettingError, match="single hypothesis"):
            HypothesisSplit.of(Mixture([RETRAINS, PointMass(MODEL)]))

    def test_refit_with_a_model_of_ones_own(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            first = AVCG(RETRAINS, model=MODEL, recipe=Recipe(steps=20, layers=(16,))).fit(TOY.X)
            assert len(first.refit(RETRAINS, TOY.X, steps=20).generate(DENIED)) == 40

    def test_already_there_but_not_as_surely_as_asked(self, recourse):
        near = TOY.X[(MODEL.predict_proba(TOY.X)[:, 1] > 0.5) & (MODEL.predict_proba(TOY.X)[:, 1] < 0.7)].head(10)
        found = recourse.generate(near, target=1, min_prob=0.9)
        assert not (found.status == "already_target").any()
        assert (found.probability >= 0.9).mean() > 0.7

    @pytest.mark.parametrize(
        "index",
        [
            pd.date_range("2026-01-01", periods=6, name="day"),
            pd.MultiIndex.from_product([["a", "b"], [1, 2, 3]], names=["branch", "client"]),
            pd.Index(["x"] * 6),
        ],
    )
    @pytest.mark.parametrize("n", [1, 2])
    def test_any_index_there_and_back(self, recourse, index, n):
        rows = DENIED.head(6).set_axis(index)
        found = recourse.generate(rows, n=n)
        back = Counterfactuals.from_json(found.to_json())
        pd.testing.assert_frame_equal(back.frame, found.frame, check_freq=False)
        if n == 1:
            assert found.frame.index.equals(index)

    def test_answers_refused_by_one_teacher_are_tried_again(self, recourse):
        answers = recourse.generate(DENIED)
        x = recourse.space_.encode(answers.frame)
        share = recourse.deployed_.agreement(recourse.judges_, x, torch.ones(40, dtype=torch.long))
        assert (share >= 0.99).float().mean() > 0.9


class TestJson:
    @pytest.mark.parametrize("n", [1, 2])
    def test_there_and_back(self, recourse, n):
        found = recourse.generate(DENIED.head(6), n=n)
        back = Counterfactuals.from_json(found.to_json())
        pd.testing.assert_frame_equal(back.frame, found.frame)
        pd.testing.assert_frame_equal(back.factuals, found.factuals)
        pd.testing.assert_series_equal(back.status, found.status)
        pd.testing.assert_frame_equal(back.changes(), found.changes())
        assert str(back) == str(found)
        assert back.to_json() == found.to_json()
        assert json.loads(found.to_json())["version"] == 1

    @pytest.mark.parametrize(
        "text", ["", "{}", "[]", "null", '{"format": "else"}', '{"format": "avcg.counterfactuals", "version": 1}']
    )
    def test_anything_else_is_refused(self, text):
        with pytest.raises(DataError, match=r"no JSON of counterfactuals|incomplete"):
            Counterfactuals.from_json(text)

    def test_a_newer_version_is_refused(self, answers):
        newer = json.dumps({**json.loads(answers.to_json()), "version": 99})
        with pytest.raises(DataError, match="version 99"):
            Counterfactuals.from_json(newer)


class TestRefining:
    def test_answers_get_no_dearer_and_stay_accepted(self, recourse):
        first, refined = recourse.generate(DENIED), recourse.generate(DENIED, refine=True)
        assert (refined.distance <= first.distance + 1e-5).all()
        assert refined.distance.mean() < first.distance.mean()
        assert (refined.status == "not_valid").sum() <= (first.status == "not_valid").sum()
        assert not recourse.space_.violations(refined.frame, DENIED).any()

    def test_latent_steps_and_budget(self, recourse):
        started = time.monotonic()
        found = recourse.generate(DENIED, refine=Refinement(steps=10_000), time_budget=0.3)
        assert time.monotonic() - started < 5
        assert len(found) == 40

    def test_pruning_finds_the_least_on_a_line(self):
        frame = pd.DataFrame({"x0": np.linspace(-2, 2, 50), "x1": np.linspace(2, -2, 50)})
        space = avcg.TabularSpace.fit(avcg.Schema.infer(frame), frame)
        x = torch.zeros(3, 2)
        far = torch.tensor([[1.5, 1.5], [1.0, 0.0], [0.0, 0.7]])
        found = prune(space, x, far, lambda points, _: points[:, 0] >= 0.5, Deadline(), SearchConfig())
        assert torch.allclose(found[:2, 1], torch.zeros(2)), "what is not needed is undone"
        assert (found[:2, 0] >= 0.5).all()
        assert (found[:2, 0] < 0.7).all()

    def test_the_gap_is_what_a_better_posterior_would_gain(self):
        smooth = Recipe(steps=200, decoder="latent", layers=(32,), risk=avcg.risk.expected_log_likelihood,
                        temperature=None, weights=avcg.Weights())  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            paper = AVCG(RETRAINS, recipe=smooth).fit(TOY.X)
        gaps = paper.amortization_gap(DENIED.head(10), steps=60, n_latents=300)
        assert gaps.index.equals(DENIED.head(10).index)
        np.testing.assert_allclose(gaps["gap"], gaps["encoder"] - gaps["refined"], atol=1e-6)
        assert gaps["gap"].mean() > 0, "a posterior of one's own is better than the encoder's"

    @pytest.mark.parametrize("only_encoder", [False, True])
    def test_refit_goes_on_from_where_it_was(self, recourse, only_encoder):
        newer = retrains(MODEL, TOY.X, TOY.y, n=8, resampling="bootstrap", random_state=5)
        before = {name: value.clone() for name, value in recourse.generator_.state_dict().items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            renewed = recourse.refit(newer, TOY.X, steps=40, only_encoder=only_encoder)
        assert all(torch.equal(before[name], value) for name, value in recourse.generator_.state_dict().items())
        moved = {
            name for name, value in renewed.generator_.state_dict().items() if not torch.equal(value, before[name])
        }
        assert any(name.startswith("encoder") for name in moved)
        assert any(name.startswith("decoder") for name in moved) is not only_encoder
        assert (renewed.generate(DENIED).status != "not_valid").mean() > 0.8


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
            AVCG(RETRAINS, free, recipe=collapsed).fit(TOY.X)
        assert any("nearly one profile" in str(one.message) for one in said)

    def test_a_promise_that_cannot_be_kept_is_said(self):
        frozen = TOY.schema.freeze("income", "rating", "owns", "housing")
        with pytest.warns(UserWarning, match="could not be met: at best"):
            immovable = AVCG(RETRAINS, frozen, recipe=Recipe(steps=20, layers=(16,))).fit(TOY.X)
        assert not immovable.calibration_.met
        assert immovable.calibration_.frontier["survival"].max() < 0.99

    def test_the_margin_is_the_least_that_keeps_the_promise(self, recourse):
        found = recourse.calibration_
        frontier = found.frontier
        if found.met:
            enough = frontier[(frontier["survival"] - 2 * frontier["error"] >= 0.99) & (frontier["validity"] >= 0.99)]
            assert found.margin == pytest.approx(enough.index[0])
        assert found.n_hypotheses == 3
        assert found.n_rows == 75


class TestRoles:
    def test_no_member_has_two_roles(self):
        roles = HypothesisSplit.of(RETRAINS)
        parts = [roles.train.predictors, roles.calibration, roles.test]
        assert [len(part) for part in parts] == [6, 3, 3]
        rows = torch.cat([part.overrides["0.weight"].flatten(1) for part in parts])
        assert len(torch.unique(rows, dim=0)) == 12

    def test_small_sets(self):
        sizes = []
        for count in (1, 2, 3, 4):
            some = FiniteSet(RETRAINS.predictors.subset(torch.arange(count)), RETRAINS.space, RETRAINS.classes)
            roles = HypothesisSplit.of(some)
            sizes.append((len(roles.train), len(roles.calibration), 0 if roles.test is None else len(roles.test)))
        assert sizes == [(1, 1, 0), (1, 1, 1), (2, 2, 1), (2, 1, 1)]

    def test_a_posterior_is_drawn_from_anew(self):
        roles = HypothesisSplit.of(MCDropout(MODEL), n_test=7)
        assert len(roles.test) == 7
        assert len(roles.deployed) == 1
        x = RETRAINS.space.encode(DENIED)
        assert torch.allclose(
            roles.deployed.predictive(x)[:, 1], torch.tensor(MODEL.predict_proba(DENIED)[:, 1]), atol=1e-6
        )

    def test_a_mixture_is_parted_component_by_component(self):
        roles = HypothesisSplit.of(Mixture([RETRAINS, MCDropout(MODEL)]), n_test=3)
        assert len(roles.test) == 6
        assert roles.test.weights.tolist() == pytest.approx([1 / 6] * 6)
        assert len(roles.train.sample(20)) <= 20

    def test_setting_all_aside_is_refused(self):
        with pytest.raises(SettingError, match="'n_test' of 12 leaves too few of 12"):
            HypothesisSplit.of(RETRAINS, n_test=12)

    def test_a_single_model_has_no_certificate(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = AVCG(PointMass(MODEL), recipe=SHORT).fit(TOY.X).generate(DENIED.head(5))
        assert found.certificate is None
        assert Counterfactuals.from_json(found.to_json()).certificate is None
        assert "models agree" not in str(found)


class TestRemote:
    def test_hypotheses_elsewhere_answer_the_same(self):
        from avcg.hypotheses.predictors import OnDevice

        x = RETRAINS.space.encode(DENIED)
        away = OnDevice(RETRAINS.predictors, "cpu")
        assert torch.equal(away.log_probs(x), RETRAINS.predictors.log_probs(x))
        assert torch.equal(away.subset(torch.tensor([2])).log_probs(x)[0], away.log_probs(x)[2])
        avcg.testing.check_hypotheses(FiniteSet(away, RETRAINS.space, RETRAINS.classes), x[:3])

    def test_a_device_that_is_none(self):
        with pytest.raises(SettingError, match="'device' of AVCG"):
            AVCG(RETRAINS, device="abacus").fit(TOY.X)


class TestDeployedModel:
    def test_exactly_at_the_threshold_is_a_yes(self):
        deployed = DeployedModel(RETRAINS.base, threshold=0.25)
        probabilities = torch.tensor([[0.75, 0.25], [0.76, 0.24]])
        assert deployed.decide(probabilities).tolist() == [1, 0]
        assert deployed.valid(probabilities[[0, 0]], torch.tensor([1, 0])).tolist() == [True, False]
        assert deployed.log_odds(torch.tensor([1, 0])).tolist() == pytest.approx([-np.log(3), np.log(3)])

    def test_a_threshold_is_for_two_classes(self):
        rng = np.random.default_rng(0)
        X, y = rng.normal(size=(90, 2)), np.repeat([0, 1, 2], 30)
        model = Classifier(hidden=(4,), epochs=2).fit(X, y)
        with pytest.raises(SettingError, match="for two classes"):
            AVCG(PointMass(model), threshold=0.4).fit(X)


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


class TestRefinedAlone:
    def test_refined_answers_do_not_depend_on_their_place(self, recourse):
        effort = Refinement(steps=5)
        whole = recourse.space_.encode(recourse.generate(DENIED.head(6), refine=effort).frame)
        turned = recourse.space_.encode(recourse.generate(DENIED.head(6).iloc[::-1], refine=effort).frame)
        assert torch.allclose(whole, turned.flip(0), atol=1e-5)
        gaps = recourse.amortization_gap(DENIED.head(6), steps=5)["gap"]
        again = recourse.amortization_gap(DENIED.head(6).iloc[::-1], steps=5)["gap"]
        assert np.allclose(gaps, again[::-1], atol=1e-4)


class TestNothingToDo:
    def test_rows_that_have_the_target_can_be_refined(self):
        granted = TOY.X[MODEL.predict(TOY.X) == MODEL.classes_[1]].head(3)
        found = NearestUnlike(RETRAINS).fit(TOY.X, TOY.y).generate(granted, MODEL.classes_[1], refine=True)
        assert (found.statuses == "already_target").all()
        pd.testing.assert_frame_equal(found.frame, granted)


class TestNeighbours:
    def test_nearest_unlike_is_brute_force(self):
        found = NearestUnlike(RETRAINS).fit(TOY.X, TOY.y)
        x, rows = found.space_.encode(DENIED), found.reference_set_.rows[1]
        answers = found.generate(DENIED)
        for i in range(5):
            distances = found.space_.distance(rows[None].transpose(0, 1), x[i : i + 1])[:, 0]
            nearest = found.space_.project(rows[distances.argmin()][None], x[i : i + 1])
            expected = found.space_.decode(nearest, like=DENIED.iloc[[i]])
            pd.testing.assert_frame_equal(answers.frame.iloc[[i]], expected)

    def test_robust_neighbours_convince_every_teacher(self):
        found = RobustNeighbour(RETRAINS).fit(TOY.X, TOY.y)
        answers = found.generate(DENIED)
        delivered = answers.changed.any(axis=1)
        x = found.space_.encode(answers.frame)[delivered]
        assert delivered.mean() > 0.8
        assert (found.judges_.log_probs(x).exp()[..., 1] > 0.6).all()
        assert (answers.status[~delivered] == "not_valid").all()

    def test_the_class_mean_is_one_profile(self):
        found = ClassMean(RETRAINS).fit(TOY.X, TOY.y)
        answers = found.generate(DENIED)
        assert answers.frame["income"].nunique() == 1
        assert answers.frame["income"].iloc[0] == pytest.approx(TOY.X.loc[TOY.y == 1, "income"].mean(), abs=0.01)


class TestContract:
    def test_every_method_keeps_it(self, recourse):
        from avcg.baselines.gradient import Descent
        from avcg.baselines.robust_search import RobustSearch
        from avcg.testing import check_explainer

        rows = TOY.X.head(24)
        check_explainer(recourse, rows)
        for kind in (NearestUnlike, RobustNeighbour, ClassMean):
            check_explainer(kind(RETRAINS).fit(TOY.X, TOY.y), rows)
        check_explainer(RobustSearch(RETRAINS, descent=Descent(40, probability=0.7, proximity=1.0)).fit(TOY.X), rows)

    def test_it_catches_a_method_that_looks_at_its_neighbours(self):
        from avcg.testing import check_explainer

        class Averaging(ClassMean):
            def _candidates(self, query):
                shift = query.x.mean(dim=0) - query.x
                return query.space.project(query.x + shift, query.x)[None].expand(query.n, -1, -1)

        with pytest.raises(AssertionError, match=r"order of rows|other rows"):
            check_explainer(Averaging(RETRAINS).fit(TOY.X), TOY.X.head(24))


class TestSearch:
    def test_every_teacher_is_convinced_or_there_is_no_answer(self):
        from avcg.baselines.gradient import Descent
        from avcg.baselines.robust_search import RobustSearch

        found = RobustSearch(RETRAINS, descent=Descent(150, probability=0.8, proximity=1.0)).fit(TOY.X)
        answers = found.generate(DENIED)
        delivered = answers.changed.any(axis=1)
        assert delivered.mean() > 0.9
        x = found.space_.encode(answers.frame)[delivered]
        assert (found.judges_.log_probs(x).exp()[..., 1] >= 0.8 - 1e-4).all()
        with pytest.raises(SettingError, match="'probability' of Descent"):
            Descent(probability=1.0)


class TestPicture:
    def test_the_file_is_a_picture_of_its_kind(self, answers, tmp_path):
        from avcg.report.plots import plot_changes

        png, svg = (plot_changes(answers, tmp_path / name) for name in ("a.png", "a.svg"))
        assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        assert "income" in svg.read_text() or "rating" in svg.read_text() or len(svg.read_text()) > 5000
        with pytest.raises(SettingError, match="'rows' of plot_changes"):
            plot_changes(answers, tmp_path / "b.png", rows=0)
        with pytest.raises(SettingError, match="no folder"):
            plot_changes(answers, tmp_path / "nowhere" / "b.png")
        with pytest.raises(SettingError, match=r"must end in"):
            plot_changes(answers, tmp_path / "b.doc")


class TestChoice:
    def test_cheapest_that_differ(self):
        space = avcg.TabularSpace.fit(avcg.Schema.infer(TOY.X[["income"]]), TOY.X[["income"]]).codes
        candidates = np.float32([[0.0], [1.0], [1.0], [2.0]])[:, None]
        costs = np.array([[4.0], [1.0], [2.0], [3.0]])
        assert choose(space, candidates, costs, 3, SearchConfig())[:, 0, 0].tolist() == [1.0, 2.0, 0.0]

    def test_of_many_all_are_different_and_the_cheapest_is_first(self):
        X = pd.DataFrame({"a": np.linspace(0.0, 10.0, 50), "b": np.linspace(0.0, 1.0, 50)})
        space, rng = avcg.TabularSpace.fit(avcg.Schema.infer(X), X).codes, np.random.default_rng(0)
        candidates = rng.standard_normal((150, 3, 2)).astype(np.float32)
        candidates = np.concatenate([candidates, candidates[:50]])  # a quarter of them twice
        costs = rng.random((150, 3))
        costs = np.concatenate([costs, costs[:50]])
        config = SearchConfig()
        found = choose(space, candidates, costs, 100, config)
        for row in range(3):
            mine = found[:, row]
            assert len(np.unique(mine, axis=0)) == 100
            first = (candidates[:, row] == mine[0]).all(axis=-1).argmax()
            lowest = quantise(costs[:, row], config.cost_quantum).min()
            assert quantise(costs[first, row], config.cost_quantum) == lowest

    def test_answers_that_are_the_same_are_seen_among_few_and_many(self):
        rng = np.random.default_rng(0)
        for n in (1, 2, 5, 40):
            codes = rng.integers(0, 3, (30 * n, 3)).astype(np.float32)
            codes[codes == 2] = -0.0  # which is 0
            each = codes.reshape(-1, n, 3)
            pairs = (each[:, :, None] == each[:, None, :]).all(axis=-1)
            same = np.tril(pairs, -1).any(axis=-1).ravel()
            assert repeated_answers(codes, n).tolist() == same.tolist()


OTHER = avcg.Schema.infer(TOY.X[["income"]])
WRONG = {
    "a target that is no class": (lambda r: r.generate(DENIED, target=2), DataError, "target 2 is not a class"),
    "a target of another kind": (lambda r: r.generate(DENIED, target="yes"), DataError, "not a class .* has '0', '1'"),
    "too few targets": (lambda r: r.generate(DENIED, target=[1, 0]), DataError, "one per row"),
    "no answers": (lambda r: r.generate(DENIED, n=0), SettingError, "'n' of a query must be"),
    "half an answer": (lambda r: r.generate(DENIED, n=1.5), SettingError, "'n' of a query"),
    "a column that is not there": (lambda r: r.generate(DENIED, vary=["incom"]), SchemaError, "Did you mean 'income'"),
    "a range of a column that is not there": (lambda r: r.generate(DENIED, ranges={"x": (0, 1)}), SchemaError, "'x'"),
    "a range that is empty": (lambda r: r.generate(DENIED, ranges={"income": (5, 1)}), SchemaError, "leaves nothing"),
    "requests for other rows": (lambda r: r.generate(DENIED, vary=[["income"]] * 3), SchemaError, "3 rows"),
    "a probability that is none": (lambda r: r.generate(DENIED, min_prob=1.0), SettingError, "'min_prob'"),
    "no time": (lambda r: r.generate(DENIED, refine=True, time_budget=0), SettingError, "'time_budget'"),
    "no refinement": (lambda r: r.generate(DENIED, refine=1), SettingError, "'refine' of a query"),
    "a budget for nothing": (lambda r: r.generate(DENIED, time_budget=1.0), SettingError, "refine=True"),
    "negative changes": (lambda r: r.generate(DENIED, max_changes=-1), SchemaError, "at_most"),
    "missing columns": (lambda r: r.generate(DENIED[["income"]]), DataError, "lack column"),
    "a gap": (lambda r: r.generate(DENIED.assign(income=np.nan)), DataError, "'income' has 40 missing"),
    "a new category": (lambda r: r.generate(DENIED.assign(housing="boat")), DataError, "no category of it: 'boat'"),
    "an infinite number": (lambda r: r.generate(DENIED.assign(income=np.inf)), DataError, "infinite"),
    "survival of one": (lambda r: AVCG(RETRAINS, survival=1.0).fit(TOY.X), SettingError, "'survival' of AVCG"),
    "survival of zero": (lambda r: AVCG(RETRAINS, survival=0.0).fit(TOY.X), SettingError, "'survival' of AVCG"),
    "a threshold of one": (lambda r: AVCG(RETRAINS, threshold=1.0).fit(TOY.X), SettingError, "'threshold'"),
    "a model for hypotheses": (lambda r: AVCG(MODEL).fit(TOY.X), SettingError, "PointMass"),
    "a seed that is none": (lambda r: AVCG(RETRAINS, random_state=-1).fit(TOY.X), SettingError, "'random_state'"),
    "another schema": (lambda r: AVCG(RETRAINS, OTHER).fit(TOY.X), SchemaError, "differently"),
    "fewer labels than rows": (lambda r: AVCG(RETRAINS).fit(TOY.X, [0, 1]), DataError, "one label per row"),
    "labels that are no classes": (lambda r: AVCG(RETRAINS).fit(TOY.X, ["a"] * 500), DataError, "none of the model's"),
    "a single row": (lambda r: AVCG(RETRAINS).fit(TOY.X.head(1)), DataError, "at least two rows"),
    "an empty frame": (lambda r: r.generate(DENIED.head(0)), DataError, "no rows"),
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
        AVCG(RETRAINS).generate(DENIED)


def test_a_frozen_column_cannot_vary():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recourse = AVCG(RETRAINS, TOY.schema.freeze("owns"), recipe=Recipe(steps=20, layers=(16,))).fit(TOY.X)
    with pytest.raises(SchemaError, match="'owns', which the schema does not let change"):
        recourse.generate(DENIED, vary=["owns"])
    assert "owns" not in set(recourse.generate(DENIED).changes()["column"])


def test_scikit_learns_manners():
    from sklearn.base import clone

    first = AVCG(RETRAINS, survival=0.9, recipe=SHORT)
    assert set(first.get_params(deep=False)) >= {"hypotheses", "schema", "survival", "recipe", "device", "random_state"}
    assert clone(first, safe=False).get_params(deep=False)["survival"] == 0.9
    assert not hasattr(first, "generator_")
