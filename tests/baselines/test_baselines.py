"""The methods to compare with: what each promises, against lines whose answers are known by hand."""

import inspect
import math
import pkgutil
import warnings
from dataclasses import replace
from functools import cache, partial
from importlib import import_module

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.tree import DecisionTreeClassifier
from torch import nn

import avcg.baselines
from avcg import AVCG, Classifier, Explainer, MCDropout, PointMass, Recipe, Schema, TabularSpace, retrains, toys
from avcg.baselines.cfvae import CFVAE, AutoencoderConfig
from avcg.baselines.gradient import (
    QUCE,
    Batten,
    Descent,
    EntropicDescent,
    EntropicSearch,
    GradientSearch,
    QUCEDescent,
    Schut,
    SchutDescent,
    Wachter,
    WachterDescent,
)
from avcg.baselines.nearest import ClassMean, NearestUnlike
from avcg.baselines.robust_search import RobustDescent, RobustSearch
from avcg.errors import SettingError
from avcg.hypotheses.finite import FiniteSet
from avcg.hypotheses.predictors import Stacked
from avcg.method.query import Query
from avcg.testing import check_explainer

TOY = toys.loans(n=300)

# Mean 0 and standard deviation 1, so that codes are the numbers themselves; all may go from -3 to 3.
FRAME = pd.DataFrame({name: np.roll([-3.0, 3.0, *[0.0] * 16], i) for i, name in enumerate("abc")})
SPACE = TabularSpace.fit(Schema.infer(FRAME, kinds=dict.fromkeys("abc", "continuous")), FRAME)

BRIEF = AutoencoderConfig(steps=60)

SEARCHES = (Wachter, Batten, QUCE, Schut, EntropicSearch)


@cache
def loan_model():
    return Classifier(hidden=(16,), epochs=80, patience=None, schema=TOY.schema).fit(TOY.X, TOY.y)


def loan_masks():
    return MCDropout(loan_model())


@cache
def loan_retrains():
    return retrains(loan_model(), TOY.X, TOY.y, n=8, resampling="bootstrap")


def denied():
    return TOY.X[loan_model().predict(TOY.X) == 0].head(12)


def lines(*slopes, intercept=0.0, weights=None):
    """Hypotheses P(1 | x) = sigmoid(slope x + intercept)."""
    weight = torch.tensor([[[0.0, 0.0, 0.0], slope] for slope in slopes])
    bias = torch.tensor([[0.0, intercept]] * len(slopes))
    network = nn.utils.skip_init(nn.Linear, 3, 2)
    share = None if weights is None else torch.tensor(weights)
    return FiniteSet(Stacked(network, {"weight": weight, "bias": bias}, share), SPACE)


def brief_descent(kind, descent=None):
    """The descent of a search, its autoencoder trained briefly where it has one."""
    whole = replace(kind.usual, **vars(descent or kind.usual))
    return replace(whole, autoencoder=BRIEF) if kind is QUCE else whole


def fitted(kind, hypotheses, X=FRAME, *, descent=None, **settings):
    return kind(hypotheses, n_test=0, descent=brief_descent(kind, descent), **settings).fit(X)


def to_one(explainer, *rows):
    """(B, 3) answers to rows of numbers that ask for class 1."""
    return explainer.solve(torch.tensor(rows), torch.ones(len(rows), dtype=torch.long))[0]


def quick(kind):
    descent = replace(brief_descent(kind), steps=25, step=max(0.05, kind.usual.step))
    return kind(loan_masks(), descent=descent, random_state=1)


def every_baseline():
    """The explainer classes in the files of the room, but for the base that gradient searches share."""
    modules = [import_module(f"avcg.baselines.{each.name}") for each in pkgutil.iter_modules(avcg.baselines.__path__)]
    kinds = [
        kind
        for module in modules
        for kind in vars(module).values()
        if inspect.isclass(kind) and issubclass(kind, Explainer) and kind.__module__ == module.__name__
    ]
    return [kind for kind in kinds if kind is not GradientSearch]


def make(kind):
    """A baseline on hypotheses, its search or training cut short where it has one."""
    if issubclass(kind, CFVAE):
        return kind(loan_retrains(), autoencoder=BRIEF)
    return quick(kind) if issubclass(kind, GradientSearch) else kind(loan_retrains())


METHODS = {kind.__name__: partial(make, kind) for kind in every_baseline()} | {
    "Mahajan": lambda: AVCG(PointMass(loan_model()), recipe=replace(Recipe.mahajan(), steps=60)),
}


def test_baselines_are_found():
    assert {"ClassMean", "NearestUnlike", "RobustNeighbour", "CFVAE", "RobustSearch", "Wachter"} <= METHODS.keys()


class TestContract:
    @pytest.mark.parametrize("name", METHODS)
    def test_every_method_keeps_it(self, name):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # so short a training may not keep its promise
            explainer = METHODS[name]().fit(TOY.X, TOY.y)
        check_explainer(explainer, TOY.X.head(16))

    @pytest.mark.parametrize("kind", [*SEARCHES, RobustSearch])
    def test_a_search_refuses_hypotheses_without_gradients_and_says_what_to_do(self, kind):
        numbers = TOY.X[["income", "months"]]
        model = DecisionTreeClassifier(max_depth=3, random_state=0).fit(numbers, TOY.y)
        judges = retrains(model, numbers, TOY.y, n=4, resampling="bootstrap")
        with pytest.raises(
            SettingError, match=rf"{kind.__name__} needs 'hypotheses' with gradients.*AVCG.*RobustNeighbour"
        ):
            kind(judges).fit(numbers)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"steps": 0},
            {"steps": 2.5},
            {"probability": 0.0},
            {"probability": 1.0},
            {"probability": math.nan},
            {"step": -0.1},
            {"step": 0.0},
            {"step": math.inf},
            {"step": math.nan},
            {"proximity": -0.1},
            {"proximity": math.nan},
        ],
        ids=str,
    )
    def test_descent_refuses_settings_that_mean_nothing(self, wrong):
        with pytest.raises(SettingError, match=f"'{next(iter(wrong))}' of Descent"):
            Descent(**wrong)

    @pytest.mark.parametrize(
        ("kind", "wrong"),
        [
            (WachterDescent, {"halving_steps": 0}),
            (WachterDescent, {"betas": (0.9, 1.0)}),
            (QUCEDescent, {"aim": 1.0}),
            (QUCEDescent, {"autoencoder_weight": -1.0}),
            (SchutDescent, {"moves_per_column": 0}),
            (EntropicDescent, {"temper": 0.0}),
            (RobustDescent, {"check_every": 0}),
            (RobustDescent, {"start_weights": ()}),
            (RobustDescent, {"increase": 0.9}),
            (AutoencoderConfig, {"noise_variance": 0.0}),
        ],
        ids=str,
    )
    def test_settings_of_a_method_are_checked_by_name(self, kind, wrong):
        with pytest.raises(SettingError, match=f"'{next(iter(wrong))}' of {kind.__name__}"):
            kind(**wrong)

    def test_a_descent_of_ones_own_replaces_the_usual_one(self):
        assert Wachter(loan_masks()).effort == Wachter.usual
        assert Wachter(loan_masks(), descent=Descent(steps=7)).effort == WachterDescent(steps=7)


class TestRowByRow:
    @pytest.mark.parametrize("kind", SEARCHES)
    def test_answers_are_the_same_in_a_batch_and_alone(self, kind):
        explainer = quick(kind).fit(TOY.X)
        x = explainer.space_.encode(TOY.X.head(10))
        target = 1 - explainer.deployed_.decide(explainer.deployed_.probabilities(x))
        together = explainer.solve(x, target)[0]
        alone = torch.cat([explainer.solve(x[i : i + 1], target[i : i + 1])[0] for i in range(10)])
        assert (together != x).any(dim=1).sum() > 5
        torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)

    @pytest.mark.parametrize("kind", SEARCHES)
    def test_a_row_that_is_done_is_left_alone(self, kind):
        steps = {EntropicSearch: 8, QUCE: 25}.get(kind, 20)
        rows = torch.tensor([[-0.3 * i, 0.35 * i - 1.5, 0.0] for i in range(1, 9)])
        explainer = fitted(kind, lines([1.0, 0.5, -0.5], [1.2, -0.4, -0.1]), descent=Descent(steps, 0.1, 0.7, 0.05))
        some = to_one(explainer, *rows.tolist())
        explainer.descent = replace(explainer.descent, steps=2 * steps)
        more = to_one(explainer, *rows.tolist())
        done = explainer._done(Query(rows, torch.ones(8, dtype=torch.long), SPACE, 1), some)
        assert 2 <= int(done.sum()) <= 6
        assert torch.equal(some[done], more[done])
        assert (some[~done] != more[~done]).any(dim=1).all()


def odds(probability):
    return np.log(probability / (1 - probability))


class TestStoppingRule:
    """One line P(1 | x) = sigmoid(3a - b): a step moves its log-odds by at most four times its length."""

    DENIED = FRAME.iloc[[0, 4, 5]].assign(a=[-1.0, -0.5, -2.0], b=0.0)

    @staticmethod
    def brief(kind):
        """A column of Schut's moves a few times only, so that its steps are long."""
        return Descent(300, 0.2 if kind is Schut else 0.05, probability=0.5, proximity=0.01)

    def beyond(self, kind):
        """How far beyond what is asked an answer may lie; the entropic search adds a step to Wachter's answer."""
        return 4 * (self.brief(kind).step + (Wachter.usual.step if kind is EntropicSearch else 0.0)) + 1e-4

    @pytest.mark.parametrize("kind", SEARCHES)
    def test_min_prob_of_a_request_is_reached_and_no_more(self, kind):
        found = fitted(kind, lines([3.0, -1.0, 0.0]), descent=self.brief(kind)).generate(self.DENIED, min_prob=0.8)
        assert (found.status == "ok").all()
        assert (found.probability >= 0.8).all()
        assert (odds(found.probability) <= odds(0.8) + self.beyond(kind)).all()

    @pytest.mark.parametrize("kind", SEARCHES)
    def test_a_threshold_other_than_one_half_is_crossed_and_no_more(self, kind):
        strict = fitted(kind, lines([3.0, -1.0, 0.0]), descent=self.brief(kind), threshold=0.7)
        found = strict.generate(self.DENIED)
        assert (found.target == 1).all()
        assert (found.probability >= 0.7).all()
        assert (odds(found.probability) <= odds(0.7) + self.beyond(kind)).all()

    def test_the_first_class_needs_the_rest_of_a_threshold(self):
        strict = fitted(Wachter, lines([3.0, -1.0, 0.0]), descent=self.brief(Wachter), threshold=0.3)
        found = strict.generate(self.DENIED.assign(a=[1.0, 0.5, 2.0]), target=0)
        assert (found.probability > 0.7).all()
        assert (odds(found.probability) <= odds(0.7) + self.beyond(Wachter)).all()

    def test_probability_counts_from_the_threshold_on(self):
        descent = Descent(300, 0.01, probability=0.6, proximity=0.0)
        found = fitted(Wachter, lines([3.0, -1.0, 0.0]), descent=descent, threshold=0.7).generate(self.DENIED)
        needed = odds(0.7) + odds(0.6)
        assert (odds(found.probability) >= needed - 1e-4).all()
        assert (odds(found.probability) <= needed + 4 * 0.01 + 1e-4).all()


class TestWachter:
    def test_it_stops_at_the_first_point_across_the_line(self):
        explainer = fitted(Wachter, lines([2.0, -1.0, 0.5], intercept=0.25))
        rows = torch.tensor([[-1.0, 0.0, 0.0], [-0.2, 0.5, 0.1], [0.0, 2.0, -1.0]])
        answers = to_one(explainer, *rows.tolist())
        logit = answers @ torch.tensor([2.0, -1.0, 0.5]) + 0.25
        assert (rows @ torch.tensor([2.0, -1.0, 0.5]) + 0.25 < 0).all()
        assert (logit >= 0).all()
        assert (logit <= 0.01 * 3.5 + 1e-5).all(), "no further beyond than one step of every column"

    def test_a_column_without_influence_stays_where_it_was(self):
        answer = to_one(fitted(Wachter, lines([2.0, 0.0, 0.0])), [-0.5, 0.7, -0.3])
        assert answer[0, 1:].tolist() == torch.tensor([0.7, -0.3]).tolist()
        assert 0 <= float(answer[0, 0]) <= 0.01

    def test_distance_gives_way_after_fifty_steps_without_success(self):
        hypotheses = lines([1.0, 0.0, 0.0])
        descent = Descent(49, 0.02, probability=0.5, proximity=1.6)
        held, freed = (fitted(Wachter, hypotheses, descent=replace(descent, steps=n)) for n in (49, 600))
        assert float(to_one(held, [-1.0, 0.0, 0.0])[0, 0]) < -0.9, "a slope below 1 does not pay for 1.6 a unit"
        assert 0 <= float(to_one(freed, [-1.0, 0.0, 0.0])[0, 0]) <= 0.02

    def test_it_trusts_the_model_in_force_whatever_the_others_say(self):
        most = lines([2.0, 0.0, 0.0], *[[-2.0, 0.0, 0.0]] * 3)
        one = FiniteSet(most.predictors, SPACE, None, most.predictors.subset(torch.tensor([0])))
        assert 0 <= float(to_one(fitted(Wachter, one), [-0.5, 0.0, 0.0])[0, 0]) <= 0.01

    def test_bounds_are_not_passed(self):
        answer = to_one(fitted(Wachter, lines([0.1, 0.0, 0.0], intercept=-1.0)), [2.5, 0.0, 0.0])
        assert answer.tolist() == [[3.0, 0.0, 0.0]]


class TestSchut:
    SLOPE = lines([1.0, -2.0, 0.5], intercept=-9.0)

    def step(self, *rows, hypotheses=SLOPE, steps=1, step=0.2):
        return to_one(fitted(Schut, hypotheses, descent=Descent(steps, step, 0.95, 0.0)), *rows)

    def test_one_step_moves_the_column_of_the_steepest_slope(self):
        answers = self.step([0.0, 0.0, 0.0], [1.0, -1.0, 2.0])
        torch.testing.assert_close(answers, torch.tensor([[0.0, -0.2, 0.0], [1.0, -1.2, 2.0]]))

    def test_it_goes_on_with_that_column_while_it_is_the_steepest(self):
        torch.testing.assert_close(self.step([0.0, 0.0, 0.0], steps=3), torch.tensor([[0.0, -0.6, 0.0]]))

    def test_a_column_at_its_bound_is_not_chosen(self):
        answers = self.step([0.0, -3.0, 0.0], [3.0, -3.0, 0.0], [3.0, -3.0, 3.0])
        torch.testing.assert_close(answers, torch.tensor([[0.2, -3.0, 0.0], [3.0, -3.0, 0.2], [3.0, -3.0, 3.0]]))

    def test_a_column_near_its_bound_goes_no_further(self):
        torch.testing.assert_close(self.step([0.0, -2.9, 0.0]), torch.tensor([[0.0, -3.0, 0.0]]))

    def test_a_column_moves_twenty_five_times_at_most(self):
        answer = self.step([0.0, 0.0, 0.0], steps=60, step=0.1)
        torch.testing.assert_close(answer, torch.tensor([[2.5, -2.5, 1.0]]), atol=1e-5, rtol=0)

    def test_the_slope_is_that_of_the_mean_probability(self):
        two = lines([1.0, 0.6, 0.0], [-1.0, 0.6, 0.0], intercept=-1.0)
        torch.testing.assert_close(self.step([0.0, 0.0, 0.0], hypotheses=two), torch.tensor([[0.0, 0.2, 0.0]]))

    def test_it_stops_once_the_target_is_as_likely_as_asked(self):
        steep = lines([1.0, -2.0, 0.5])
        answer = self.step([0.0, 0.0, 0.0], hypotheses=steep, steps=50)
        needed = math.ceil(math.log(0.95 / 0.05) / (2 * 0.2))
        torch.testing.assert_close(answer, torch.tensor([[0.0, -0.2 * needed, 0.0]]))

    @pytest.mark.parametrize("steps", [1, 2, 5])
    def test_so_many_steps_change_no_more_columns_of_any_kind(self, steps):
        found = Schut(loan_masks(), descent=Descent(steps, 1.0, 0.95, 0.0)).fit(TOY.X).generate(denied())
        assert found.changed.sum(axis=1).max() <= steps
        assert found.changed.any()


class TestBatten:
    def test_opposite_hypotheses_leave_nothing_to_gain(self):
        explainer = fitted(Batten, lines([2.0, 0.0, 0.0], [-2.0, 0.0, 0.0]))
        assert to_one(explainer, [0.0, 1.0, -1.0]).tolist() == [[0.0, 1.0, -1.0]]

    def test_only_what_the_hypotheses_agree_on_moves(self):
        explainer = fitted(Batten, lines([2.0, 1.5, 0.0], [-2.0, 1.5, 0.0]))
        answer = to_one(explainer, [0.0, -1.0, 0.0])[0]
        line = math.log(0.52 / 0.48) / 1.5
        assert answer[[0, 2]].tolist() == [0.0, 0.0]
        assert line - 1e-5 <= float(answer[1]) <= line + 0.05 + 1e-5

    def test_it_stops_where_the_weighted_mean_is_likely_enough_though_one_disagrees(self):
        explainer = fitted(Batten, lines([3.0, 0.0, 0.0], [-0.5, 0.0, 0.0], weights=[0.75, 0.25]))
        answer = float(to_one(explainer, [-1.0, 0.0, 0.0])[0, 0])
        grid = np.linspace(-1, 3, 400_001)
        mean = 0.75 / (1 + np.exp(-3 * grid)) + 0.25 / (1 + np.exp(0.5 * grid))
        line = grid[np.argmax(mean >= 0.52)]
        assert line - 1e-4 <= answer <= line + 0.05 + 1e-4
        assert 1 / (1 + math.exp(0.5 * answer)) < 0.5


class TestQUCE:
    def test_only_the_distance_looks_at_the_factual(self):
        explainer = fitted(QUCE, lines([1.0, -2.0, 0.5]))
        x_cf, target = torch.tensor([[0.5, -1.0, 0.2], [2.0, 1.0, -1.0]]), torch.ones(2, dtype=torch.long)
        one, other = torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]), torch.tensor([[0.5, 2.0, 0.2], [-1.0, 1.0, 3.0]])
        first, second = (explainer._loss(Query(x, target, SPACE, 1), x_cf, 1) for x in (one, other))
        near = (x_cf - one).norm(dim=1) - (x_cf - other).norm(dim=1)
        torch.testing.assert_close(first - second, 0.05 * near)

    def test_where_rows_are_strange_it_is_dear(self):
        explainer = fitted(QUCE, lines([0.0, 0.0, 0.0]))
        usual, strange = torch.tensor([[0.0, 0.0, 0.0]]), torch.tensor([[3.0, -3.0, 3.0]])
        alike = torch.ones(1, dtype=torch.long)
        losses = [explainer._loss(Query(x, alike, SPACE, 1), x, 1) for x in (usual, strange)]
        assert losses[0] >= (0.5 - 0.95) ** 2
        assert losses[1] > losses[0] + 0.3


class TestEntropic:
    def test_its_risk_is_the_formula(self):
        weights, slopes = [0.5, 0.3, 0.2], np.array([[2.0, 0.0, 0.0], [1.0, 1.0, 0.0], [-1.0, 0.5, 1.0]])
        explainer = fitted(EntropicSearch, lines(*slopes.tolist(), weights=weights))
        x = torch.tensor([[0.3, -0.2, 0.5], [-1.0, 2.0, 0.0], [3.0, 3.0, -3.0]])
        for label in (0, 1):
            p = 1 / (1 + np.exp(-(1 if label else -1) * slopes @ x.numpy().T))
            by_hand = np.log(weights @ np.exp(10.0 * (1 - p))) / 10.0
            found = explainer._risk(Query(x, torch.full((3,), label), SPACE, 1), x)
            np.testing.assert_allclose(found, by_hand, atol=1e-6)

    def test_it_lies_between_the_mean_and_the_worst(self):
        explainer = fitted(EntropicSearch, lines([2.0, 0.0, 0.0], [-1.0, 0.0, 0.0]))
        x = torch.tensor([[1.0, 0.0, 0.0]])
        loss = 1 - torch.sigmoid(torch.tensor([2.0, -1.0]))
        risk = explainer._risk(Query(x, torch.ones(1, dtype=torch.long), SPACE, 1), x)
        assert float(loss.mean()) < float(risk) < float(loss.max())

    def test_it_goes_on_from_the_line_until_the_risk_is_low(self):
        hypotheses = lines([2.0, 0.0, 0.0], [0.5, 0.0, 0.0], intercept=-1.0)
        one = FiniteSet(hypotheses.predictors, SPACE, None, hypotheses.predictors.subset(torch.tensor([0])))
        first = float(to_one(fitted(Wachter, one), [-0.5, 0.0, 0.0])[0, 0])
        found = float(to_one(fitted(EntropicSearch, one), [-0.5, 0.0, 0.0])[0, 0])
        assert 0.5 <= first <= 0.51

        def risk(a):
            p = 1 / (1 + np.exp(-np.multiply.outer([2.0, 2.0, 0.5], a) + 1.0))
            return np.log(np.exp(10 * (1 - p)).mean(axis=0)) / 10

        grid = np.linspace(0, 3, 300_001)
        enough = grid[np.argmax(risk(grid) <= 0.5)]
        assert first < enough - 0.1
        assert enough - 1e-4 <= found <= enough + 0.02 + 1e-4

    @pytest.mark.parametrize("asked", [{"min_prob": 0.8}, {"threshold": 0.8}], ids=str)
    def test_low_risk_is_not_enough_where_the_model_in_force_is_lost_on_the_way(self, asked):
        hypotheses = lines([2.0, 0.0, 0.0], *[[-1.0, 1.0, 0.0]] * 3)
        one = FiniteSet(hypotheses.predictors, SPACE, None, hypotheses.predictors.subset(torch.tensor([0])))
        explainer = fitted(EntropicSearch, one, threshold=asked.get("threshold"))
        found = explainer.generate(TestStoppingRule.DENIED.iloc[[1]], target=1, min_prob=asked.get("min_prob"))
        x_cf = SPACE.encode(found.frame)
        assert found.probability[0] >= 0.8
        assert float(explainer._risk(Query(x_cf, torch.ones(1, dtype=torch.long), SPACE, 1), x_cf)) <= 0.5


class TestSeveralAnswers:
    def test_an_autoencoder_has_others(self):
        found = CFVAE(loan_retrains()).fit(TOY.X, TOY.y).generate(denied(), n=3)
        assert not found.repeated.any()
        assert not found.frame.reset_index().duplicated([found.frame.index.names[0], *TOY.X.columns]).any()

    @pytest.mark.parametrize("kind", [*SEARCHES, RobustSearch])
    def test_a_search_repeats_its_one_answer_and_says_so(self, kind):
        found = quick(kind).fit(TOY.X).generate(denied(), n=3)
        assert found.repeated.tolist() == [False, True, True] * 12
        rows = found.frame.reset_index(drop=True)
        pd.testing.assert_frame_equal(rows.iloc[::3].reset_index(drop=True), rows.iloc[2::3].reset_index(drop=True))

    def test_the_class_mean_repeats_itself_and_neighbours_do_not(self):
        mean, near = (
            kind(loan_retrains()).fit(TOY.X, TOY.y).generate(denied(), n=3) for kind in (ClassMean, NearestUnlike)
        )
        assert mean.repeated.tolist() == [False, True, True] * 12
        assert near.repeated.sum() <= 2
