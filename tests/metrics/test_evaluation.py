"""What is measured of answers: one line for each, by judges that can be checked by hand."""

import warnings
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import beta

from avcg import AVCG, Classifier, MCDropout, PointMass, Recipe, retrains, toys
from avcg.baselines.nearest import ClassMean, NearestUnlike
from avcg.method.deployed import DeployedModel
from avcg.method.query import QueryOptions
from avcg.metrics.context import Context
from avcg.metrics.evaluate import evaluate, measure
from avcg.metrics.numeric_view import NumericReading
from avcg.models.autoencoders import ClassAutoencoders
from avcg.models.training import Training

LOANS = toys.loans(n=240)
READING = NumericReading.fit(LOANS.schema, LOANS.X)
TRAIN = READING.flatten(LOANS.X)
TARGET = np.ones(10, int)
NOT_MEASURED_TWICE = ["Time", "Time100", "TimeFrame"]


@cache
def trained():
    return Classifier(hidden=(16,), epochs=100, patience=None, schema=READING.schema).fit(TRAIN, LOANS.y)


def space():
    return trained().space_


@cache
def members():
    return retrains(trained(), TRAIN, LOANS.y, n=8, resampling="bootstrap")


@cache
def rows():
    """Ten rows to answer; the last two have the decision wanted already."""
    decided = trained().predict(TRAIN)
    return pd.concat([TRAIN[decided == 0].head(8), TRAIN[decided == 1].head(2)])


def rng(seed):
    return torch.Generator().manual_seed(seed)


def reread(x):
    return space().encode(READING.flatten(READING.restore(space().decode(x))))


@cache
def full():
    """Everything that judges can need."""
    x, y = space().encode(TRAIN), torch.from_numpy(LOANS.y)
    return Context(
        space(),
        DeployedModel(PointMass(trained()).predictors),
        x,
        y,
        2,
        bank=MCDropout(trained()).sample(15, rng=rng(1)),
        rashomon={
            0.05: MCDropout(trained()).sample(7, rng=rng(2)),
            0.5: MCDropout(trained()).sample(20, rng=rng(3)),
        },
        surrogates=retrains(trained(), TRAIN, LOANS.y, n=5, resampling="bootstrap", random_state=9).predictors,
        autoencoders=ClassAutoencoders.fit(x, y, 2, training=Training(epochs=3, patience=None), rng=rng(4)),
        execution_noise=0.5 * torch.randn(6, x.shape[1], generator=rng(5)),
        input_noise=0.1 * torch.randn(3, len(rows()), x.shape[1], generator=rng(6)),
    )


def bare():
    """No more than every judge needs."""
    return Context(full().space, full().deployed, full().x_train, full().y_train, 2)


@pytest.fixture(scope="module")
def mean():
    return ClassMean(members()).fit(TRAIN, LOANS.y)


@pytest.fixture(scope="module")
def amortized():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # so short a training may not keep its promise
        return AVCG(members(), recipe=Recipe(steps=20, layers=(32,), single_pass=True)).fit(TRAIN, LOANS.y)


@pytest.fixture(scope="module", params=["mean", "amortized"])
def explainer(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def wide(explainer):
    return measure(full(), explainer, rows(), TARGET)


@pytest.fixture(scope="module")
def codes(explainer):
    return space().encode(explainer.generate(rows(), TARGET).frame)


def measured(frame):
    """The columns with a value in any line: what cannot be measured is NaN."""
    return set(frame.columns[frame.notna().any()])


class TestForm:
    def test_one_line_for_each_row(self, wide):
        assert wide["row"].tolist() == list(range(10))
        assert (wide["answer"] == 0).all()
        assert (wide["reading"] == "raw").all()

    def test_the_long_form_has_a_line_for_each_answer_and_metric(self, explainer, wide):
        long = evaluate(full(), explainer, rows(), TARGET)
        assert list(long.columns) == ["row", "answer", "reading", "metric", "value"]
        metrics = [name for name in wide.columns if name not in ("row", "answer", "reading")]
        assert len(long) == 10 * len(metrics)
        assert not long.duplicated(["row", "answer", "reading", "metric"]).any()
        back = long.pivot(index="row", columns="metric", values="value")[metrics]
        same = [name for name in metrics if name not in NOT_MEASURED_TWICE]
        np.testing.assert_array_equal(back[same].to_numpy(), wide[same].to_numpy())

    def test_row_order_does_not_matter(self, explainer, wide):
        order = np.random.default_rng(0).permutation(10)
        noise = full().input_noise[:, torch.from_numpy(order)]
        turned = measure(replace(full(), input_noise=noise), explainer, rows().iloc[order], TARGET[order])
        expected = wide.drop(columns=NOT_MEASURED_TWICE).iloc[order].assign(row=range(10)).reset_index(drop=True)
        pd.testing.assert_frame_equal(turned.drop(columns=NOT_MEASURED_TWICE), expected, rtol=1e-4, atol=1e-5)

    def test_timings_are_seconds_a_row_of_the_first_few_alone_and_of_all_together(self, wide):
        assert wide["Time"].notna().tolist() == [True] * 8 + [False] * 2
        assert (wide["Time"].head(8) > 0).all()
        for together in ("Time100", "TimeFrame"):
            assert wide[together].nunique() == 1
            assert 0 < wide[together].iloc[0] < 1


class TestDecisions:
    def test_val_is_the_decision_of_the_banks_mean(self, wide, codes):
        by_hand = full().bank.log_probs(codes).exp().mean(dim=0).argmax(dim=1) == 1
        assert wide["Val"].tolist() == by_hand.double().tolist()

    def test_cmv_is_the_share_of_surrogates_that_agree(self, wide, codes):
        votes = full().surrogates.log_probs(codes).argmax(dim=-1).numpy() == 1
        assert votes.shape == (5, 10)
        np.testing.assert_allclose(wide["CMV"], votes.mean(axis=0), atol=1e-6)

    def test_end_to_end_is_valid_and_then_the_share(self, wide, codes):
        valid = trained().predict(space().decode(codes, like=rows())) == 1
        assert wide["valid"].tolist() == valid.astype(float).tolist()
        np.testing.assert_array_equal(wide["end_to_end"], wide["valid"] * wide["CMV"])

    @pytest.mark.parametrize(("epsilon", "count"), [(0.05, 7), (0.5, 20)])
    def test_rvr_is_a_share_with_its_lower_bound_and_its_count(self, wide, codes, epsilon, count):
        agree = (full().rashomon[epsilon].log_probs(codes).argmax(dim=-1).numpy() == 1).sum(axis=0)
        np.testing.assert_allclose(wide[f"RVR@{epsilon}"], agree / count, atol=1e-6)
        bound = np.where(agree > 0, beta.ppf(0.05, np.maximum(agree, 1), count - agree + 1), 0.0)
        np.testing.assert_allclose(wide[f"RVR_lower@{epsilon}"], bound, atol=1e-6)
        assert (wide[f"K@{epsilon}"] == count).all()

    def test_rvr_of_what_was_trained_on_asks_the_teachers(self, explainer, wide, codes):
        train = explainer.split_.train.predictors
        votes = train.log_probs(codes).argmax(dim=-1).numpy() == 1
        np.testing.assert_allclose(wide["RVR_trained"], votes.mean(axis=0), atol=1e-6)

    def test_coverage_is_whether_something_valid_was_told(self, explainer, wide):
        status = explainer.generate(rows(), TARGET).status
        assert wide["coverage"].tolist() == status.isin(["ok", "not_robust"]).astype(float).tolist()
        assert wide["coverage"].tail(2).tolist() == [0.0, 0.0]
        assert (wide["violations"] == 0).all()

    def test_noise_in_execution_is_that_of_the_banks_mean(self, wide, codes):
        bank, errors = full().bank, full().execution_noise
        calm = bank.log_probs(codes).exp().mean(dim=0)
        shaken = torch.stack([bank.log_probs(codes + error).exp().mean(dim=0) for error in errors])
        np.testing.assert_allclose(wide["NE"], (shaken - calm).square().sum(-1).mean(0), atol=1e-6)
        np.testing.assert_allclose(wide["invalidation"], (shaken.argmax(-1) != 1).double().mean(0), atol=1e-6)


def delivered(x_cf, valid):
    """Rows with an answer: another row, or their own where that has the decision."""
    return (x_cf != space().encode(rows())).any(dim=1).numpy() | (np.asarray(valid) == 1)


class TestWhereAnswersAre:
    def test_distances_are_those_of_the_rows_handed_out(self, wide, codes):
        change, some = (codes - space().encode(rows())).abs().double().numpy(), delivered(codes, wide["valid"])
        for name, by_hand in {
            "L1": change.sum(axis=1),
            "L2": np.linalg.norm(change, axis=1),
            "Linf": change.max(axis=1),
            "columns": (change > 0).sum(axis=1),
        }.items():
            np.testing.assert_allclose(wide[name], np.where(some, by_hand, np.nan), rtol=1e-5)

    def test_a_row_that_has_the_decision_is_told_to_change_nothing(self, wide):
        assert (wide[["L1", "L2", "Linf", "gower", "columns"]].tail(2) == 0).all(axis=None)
        assert wide["redundancy"].tail(2).isna().all()

    def test_a_row_handed_back_without_the_decision_is_no_near_answer(self, amortized):
        free = np.arange(10)[:, None] % 4 > 0  # rows 0, 4 and 8 may change nothing, and the last two need not
        vary = np.broadcast_to(free, (10, len(READING.schema)))
        found = measure(full(), amortized, rows(), TARGET, QueryOptions(vary=vary))
        codes = space().encode(amortized.generate(rows(), TARGET, vary=vary).frame)
        none = ~delivered(codes, found["valid"])
        assert none[[0, 4]].all()
        assert none.sum() <= 7
        assert not none[8:].any()
        for name in ("L1", "L2", "Linf", "L1_mad", "gower", "columns", "Imp", "yNN", "inlier", "IM1"):
            assert found[name].isna().tolist() == none.tolist(), name
        assert found.loc[none, ["Val", "valid", "CMV"]].notna().all(axis=None)

    def test_implausibility_is_the_mean_distance_to_the_targets_rows(self, wide, codes):
        apart = (codes[:, None] - full().x_train[full().y_train == 1]).norm(dim=-1).sort(dim=1).values
        some = delivered(codes, wide["valid"])
        np.testing.assert_allclose(wide["Imp"][some], apart.mean(dim=1)[some], rtol=1e-4)
        np.testing.assert_allclose(wide["yNN"][some], apart[:, :5].mean(dim=1)[some], rtol=1e-3, atol=1e-5)

    def test_diversity_is_the_mean_distance_between_five_answers(self, explainer, wide):
        five = explainer.solve(space().encode(rows()), torch.ones(10, dtype=torch.long), n=5)
        pairs = [(five[i] - five[j]).norm(dim=1) for i in range(5) for j in range(i)]
        np.testing.assert_allclose(wide["Div"], torch.stack(pairs).mean(dim=0), atol=1e-5)


class TestInputNoise:
    def test_it_is_how_far_answers_move_over_how_far_they_lie(self, explainer, wide, codes):
        x, target = space().encode(rows()), torch.ones(10, dtype=torch.long)
        moved = torch.stack([explainer.solve(x + noise, target)[0] for noise in full().input_noise])
        numerator = (moved - codes).square().sum(dim=-1).mean(dim=0)
        np.testing.assert_allclose(wide["R_IC_moved"], numerator, rtol=1e-5)
        far = (codes - x).square().sum(dim=1)
        changed = (far > 0).numpy()
        np.testing.assert_allclose(wide["R_IC"][changed], (numerator / far)[changed], rtol=1e-4)

    def test_there_is_no_ratio_where_the_answer_is_the_row_itself(self, wide, codes):
        assert wide["R_IC"].isna().tolist() == (codes == space().encode(rows())).all(dim=1).tolist()
        assert wide["R_IC"].tail(2).isna().all()
        assert wide["R_IC"].head(8).notna().any()

    def test_categories_have_no_noise(self):
        model = Classifier(hidden=(8,), epochs=10, schema=LOANS.schema).fit(LOANS.X, LOANS.y)
        x = model.space_.encode(LOANS.X)
        noise = torch.randn(2, 4, x.shape[1], generator=rng(0))
        deployed = DeployedModel(PointMass(model).predictors)
        judge = Context(model.space_, deployed, x, full().y_train, 2, input_noise=noise)
        found = measure(judge, NearestUnlike(PointMass(model)).fit(LOANS.X), LOANS.X.head(4), 1 - LOANS.y[:4])
        assert not {"R_IC", "R_IC_moved"} & measured(found)
        assert (found["violations"] == 0).all()


class TestWhatIsLacking:
    JUDGED = ("NE", "invalidation", "IM1", "R_IC", "R_IC_moved", "RVR@0.05", "RVR_lower@0.05", "K@0.05")

    def test_nobody_to_ask_is_no_zero(self, explainer, wide):
        found = measure(bare(), explainer, rows(), TARGET)
        assert found[["Val", "CMV", "end_to_end"]].isna().all(axis=None)
        assert set(self.JUDGED) <= measured(wide)
        assert not set(self.JUDGED) & measured(found)
        assert "apart" not in measured(found)
        unasked = found.drop(columns=["Val", "CMV", "end_to_end", *NOT_MEASURED_TWICE, *{*self.JUDGED} & {*found}])
        assert len(measured(unasked)) >= 18
        pd.testing.assert_frame_equal(unasked, wide[unasked.columns])

    @pytest.mark.parametrize("name", ["bank", "execution_noise"])
    def test_noisy_execution_needs_both_a_bank_and_noise(self, mean, name):
        found = measure(replace(full(), **{name: None}), mean, rows(), TARGET)
        assert not {"NE", "invalidation"} & measured(found)
        assert found["Val"].isna().all() == (name == "bank")

    @pytest.mark.parametrize(
        ("name", "metrics"),
        [("autoencoders", {"IM1"}), ("input_noise", {"R_IC", "R_IC_moved"})],
    )
    def test_one_judge_less_is_its_metrics_less(self, mean, name, metrics):
        everything, less = (measure(judge, mean, rows(), TARGET) for judge in (full(), replace(full(), **{name: None})))
        assert measured(everything) - measured(less) == metrics

    def test_without_surrogates_what_is_valid_now_says_nothing_of_later(self, mean):
        found = measure(replace(full(), surrogates=None), mean, rows(), TARGET)
        assert found[["CMV", "end_to_end"]].isna().all(axis=None)
        assert found["valid"].notna().all()

    def test_a_posterior_has_no_members_that_were_trained_on(self):
        posterior = ClassMean(MCDropout(trained())).fit(TRAIN, LOANS.y)
        assert measure(bare(), posterior, rows(), TARGET)["RVR_trained"].isna().all()

    def test_a_class_of_few_rows_has_no_inliers_and_no_outliers(self, mean):
        few = torch.cat([torch.nonzero(full().y_train == label).flatten()[:20] for label in (0, 1)])
        found = measure(replace(bare(), x_train=full().x_train[few], y_train=full().y_train[few]), mean, rows(), TARGET)
        assert found["inlier"].isna().all()
        assert found["Imp"].notna().all()


class TestAsking:
    def test_three_answers_are_three_lines_with_how_far_they_are_apart(self, amortized):
        found = measure(full(), amortized, rows(), TARGET, QueryOptions(n=3))
        assert found["row"].tolist() == np.repeat(np.arange(10), 3).tolist()
        assert found["answer"].tolist() == [0, 1, 2] * 10
        x_cf = space().encode(amortized.generate(rows(), TARGET, n=3).frame).double()
        for i in range(30):
            others = [j for j in range(i - i % 3, i - i % 3 + 3) if j != i]
            nearest = min(float((x_cf[i] - x_cf[j]).norm()) for j in others)
            assert found["apart"][i] == pytest.approx(nearest, abs=2e-3)
        votes = full().surrogates.log_probs(x_cf.float()).argmax(dim=-1).numpy() == 1
        np.testing.assert_allclose(found["CMV"], votes.mean(axis=0), atol=1e-6)

    def test_answers_that_repeat_themselves_are_not_apart(self, mean):
        assert (measure(bare(), mean, rows(), TARGET, QueryOptions(n=3))["apart"] == 0).all()

    def test_what_takes_more_answers_is_asked_of_the_usual_question_only(self, amortized):
        found = measure(full(), amortized, rows(), TARGET, QueryOptions(n=3))
        assert found["Div"].isna().all()
        assert found["RVR_trained"].isna().all()
        assert not {"Time", "Time100", "R_IC"} & measured(found)
        assert (found["TimeFrame"] > 0).all()

    def test_the_long_form_says_which_answer(self, mean):
        long = evaluate(bare(), mean, rows(), TARGET, QueryOptions(n=3))
        assert (long.groupby("metric").size() == 30).all()
        assert set(long["answer"]) == {0, 1, 2}

    def test_each_row_may_be_asked_to_change_something_else(self, mean):
        vary = np.eye(9, dtype=bool)[np.arange(10) % 9]
        found = measure(full(), mean, rows(), TARGET, QueryOptions(vary=vary))
        assert (found["columns"] <= 1).all()
        assert found["columns"].sum() > 5
        assert found["Div"].isna().all()

    def test_thorough_answers_are_nearer_and_change_less(self, mean):
        first, thorough = (
            measure(bare(), mean, rows().head(8), TARGET[:8], QueryOptions(effort=effort))
            for effort in ("fast", "thorough")
        )
        assert (thorough["L1"] < first["L1"]).all()
        assert (thorough["columns"] <= first["columns"]).all()
        assert (thorough["valid"] == 1).all()


class TestReadings:
    @staticmethod
    def judge():
        return replace(full(), reread=reread)

    def test_proper_rows_are_a_second_reading_with_lines_of_their_own(self, explainer, wide):
        found = measure(self.judge(), explainer, rows(), TARGET)
        assert found["reading"].tolist() == ["raw"] * 10 + ["decoded"] * 10
        assert found["row"].tolist() == 2 * list(range(10))
        raw = found.head(10).drop(columns=NOT_MEASURED_TWICE)
        pd.testing.assert_frame_equal(raw, wide.drop(columns=NOT_MEASURED_TWICE))

    def test_it_is_judged_by_the_codes_of_the_proper_rows(self, explainer, codes):
        found = measure(self.judge(), explainer, rows(), TARGET)
        found = found[found["reading"] == "decoded"].reset_index(drop=True)
        proper = READING.restore(explainer.generate(rows(), TARGET).frame)
        again = space().encode(READING.flatten(proper))
        assert not torch.allclose(again, codes, atol=1e-3), "an answer of floats is no proper row"
        votes = full().surrogates.log_probs(again).argmax(dim=-1).numpy() == 1
        np.testing.assert_allclose(found["CMV"], votes.mean(axis=0), atol=1e-6)
        valid = trained().predict(READING.flatten(proper)) == 1
        some = delivered(again, valid)
        moved = (again - space().encode(rows())).norm(dim=1)
        np.testing.assert_allclose(found["L2"][some], moved[some], rtol=1e-4, atol=1e-5)
        assert found["L2"].isna().tolist() == (~some).tolist()
        assert found["valid"].tolist() == found["coverage"].tolist() == valid.astype(float).tolist()
        np.testing.assert_array_equal(found["end_to_end"], found["valid"] * found["CMV"])

    def test_diversity_is_that_of_proper_rows_and_noise_is_left_out(self, explainer):
        found = measure(self.judge(), explainer, rows(), TARGET)
        five = explainer.solve(space().encode(rows()), torch.ones(10, dtype=torch.long), n=5)
        proper = torch.stack([reread(each) for each in five])
        pairs = [(proper[i] - proper[j]).norm(dim=1) for i in range(5) for j in range(i)]
        decoded = found["reading"] == "decoded"
        np.testing.assert_allclose(found.loc[decoded, "Div"], torch.stack(pairs).mean(dim=0), atol=1e-5)
        assert found.loc[decoded, ["R_IC", "R_IC_moved", *NOT_MEASURED_TWICE]].isna().all(axis=None)
