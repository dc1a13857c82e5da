"""The ruler against every point of small feasible sets: its distance is the least of those that the models accept."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_problems import least, problems
from torch import nn

from avcg import Schema, TabularSpace
from avcg.bench.ruler import OVER_OPTIMUM, OVER_OPTIMUM_LOWEST, LinearModels, nearest_linear, over_optimum
from avcg.errors import SettingError
from avcg.hypotheses.predictors import Stacked
from avcg.metrics.context import Case
from avcg.testing.metrics import example_case

EXAMPLES = settings(max_examples=60)


@EXAMPLES
@given(problems(), st.sampled_from([-1.0, 0.0, 0.5]), st.sampled_from([1.0, 0.6]))
def test_nothing_that_the_models_accept_is_nearer(problem, margin, share):
    space, codes, frame, x, target, models = problem
    found = nearest_linear(codes, x, target, models, margin=margin, share=share)

    def accepted(points, aimed):
        reached = models.log_odds(points, aimed) >= margin - 1e-6
        return reached[0] & (reached[1:].sum(axis=0) >= np.ceil(share * (len(reached) - 1) - 1e-9))

    best = least(codes, x, target, accepted)
    np.testing.assert_allclose(found.distance, best, atol=1e-4)
    np.testing.assert_allclose(found.bound, best, atol=1e-4)
    there = np.isfinite(best)
    assert accepted(found.answers, target)[there].all()
    np.testing.assert_array_equal(found.answers[~there], x[~there])
    answers = space.decode(space.encode(frame.iloc[:3]).new_tensor(found.answers), like=frame.iloc[:3])
    narrowed = codes.tensors
    assert not narrowed.violations(answers, frame.iloc[:3]).any()


@EXAMPLES
@given(problems(), st.booleans())
def test_an_answer_is_measured_by_the_nearest_point_as_robust(problem, lowest):
    _, codes, _, x, target, models = problem
    wanted = x + np.random.default_rng(0).normal(size=x.shape).astype(np.float32) * 2
    answers = codes.project(wanted[None], x)[0]
    ratios = over_optimum(codes, x, target, answers, models, lowest=lowest)
    for row in range(len(x)):
        one = np.array([row])
        needed = models.log_odds(answers[one], target[one])
        if lowest:
            needed = needed.min(axis=0, keepdims=True)

        def as_robust(points, aimed, needed=needed):
            return (models.log_odds(points, aimed) >= needed - 1e-5).all(axis=0)

        best = least(codes.take(one), x[one], target[one], as_robust)[0]
        if best <= 1e-6:
            assert np.isnan(ratios[row])
        else:
            distance = codes.take(one).distance(answers[one], x[one])[0]
            assert ratios[row] == pytest.approx(distance / best, rel=1e-3)


def loans():
    """Two columns without a grid, and one model that adds them up."""
    frame = pd.DataFrame({"income": [1.05, 2.15, 3.25, 4.35], "wealth": [0.35, 1.25, 2.75, 3.05]})
    space = TabularSpace.fit(Schema.infer(frame, kinds=dict.fromkeys(frame, "continuous")), frame)
    weights = np.array([[[0.0, 0.0], [2.0, 1.0]]])
    return space, space.encode(frame).numpy(), LinearModels(weights, np.array([[0.0, -1.0]]))


def test_without_constraints_the_cheapest_direction_is_taken_as_far_as_it_goes():
    space, x, models = loans()
    found = nearest_linear(space.codes, x[:1], np.array([1]), models, margin=1.0)
    needed = 1.0 - models.log_odds(x[:1], np.array([1]))[0, 0]
    most = x[3, 0] - x[0, 0]  # of the first code, which counts twice
    np.testing.assert_allclose(found.distance, min(needed / 2, most) + max(needed - 2 * most, 0), rtol=1e-5)
    np.testing.assert_allclose(models.log_odds(found.answers, np.array([1])), 1.0, atol=1e-5)


def test_unchanged_rows_have_no_ratio_and_optimal_answers_have_one():
    space, x, models = loans()
    target = np.ones(2, np.intp)
    answers = nearest_linear(space.codes, x[:2], target, models, margin=1.0).answers
    answers[1] = x[1]
    ratios = over_optimum(space.codes, x[:2], target, answers, models)
    assert ratios[0] == pytest.approx(1.0, abs=1e-4)
    assert np.isnan(ratios[1])


def test_what_no_point_reaches_is_infinitely_far():
    space, x, models = loans()
    found = nearest_linear(space.codes, x[:1], np.array([1]), models, margin=1e3)
    assert found.distance == found.bound == np.inf


def test_a_number_that_others_follow_is_refused_unless_it_has_a_step_or_stays():
    frame = pd.DataFrame({"income": [1.05, 2.15, 3.25], "band": ["low", "mid", "high"], "job": ["a", "b", "a"]})
    schema = Schema.infer(frame, kinds={"income": "continuous"}).link("income", "band")
    space = TabularSpace.fit(schema, frame)
    x = space.encode(frame).numpy()
    weights = np.ones((1, 2, x.shape[1]))
    weights[0, 1] = np.arange(x.shape[1])
    models, target = LinearModels(weights, np.zeros((1, 2))), np.ones(3, np.intp)
    with pytest.raises(SettingError, match="'income' has more than 1000: give it a step"):
        nearest_linear(space.codes, x, target, models)
    still = space.codes.restrict(["job"], None, None)
    assert nearest_linear(still, x, target, models, margin=-10.0).distance.tolist() == [0, 0, 0]
    stepped = TabularSpace.fit(schema.step("income", 0.05), frame)
    assert np.isfinite(nearest_linear(stepped.codes, x, target, models).distance).all()


def linear_case():
    """The example of the contract of metrics, with models that are single linear layers."""
    case = example_case()
    models = case.context.deployed.predictors

    def single(predictors):
        layer = nn.utils.skip_init(nn.Linear, case.answers.x.shape[1], 2)
        return Stacked(layer, {name.removeprefix("1."): value for name, value in predictors.overrides.items()})

    deployed = replace(case.context.deployed, predictors=single(models))
    trained_on = single(case.answers.trained_on)
    return Case(replace(case.context, deployed=deployed), replace(case.answers, trained_on=trained_on))


@pytest.mark.parametrize("metric", [OVER_OPTIMUM, OVER_OPTIMUM_LOWEST], ids=lambda metric: metric.name)
def test_a_protocol_measures_it_where_models_are_linear(metric):
    case = linear_case()
    (values,) = metric.columns(case).values()
    there = np.isfinite(values)
    assert there.any()
    assert (values[there] >= 1.0).all()
    assert np.isnan(values[-2:]).all(), "these are unchanged"
    worst, each = (next(iter(one.columns(case).values())) for one in (OVER_OPTIMUM_LOWEST, OVER_OPTIMUM))
    assert not (worst < each - 1e-4).any(), "a ruler that asks for less is shorter"
    assert np.isnan(metric.columns(example_case())[metric.name]).all(), "a flattened network is not known to be linear"
