"""The decision rule, on probabilities one can check by hand."""

import numpy as np
import pytest
import torch

from avcg.models.decision import DecisionRule, of_target


def test_the_probability_of_the_target_is_each_models_own_in_numpy_and_torch():
    probabilities = np.array([[[0.9, 0.1], [0.2, 0.8], [0.4, 0.6]], [[0.7, 0.3], [0.5, 0.5], [0.1, 0.9]]])
    target, expected = np.array([0, 1, 0]), [[0.9, 0.8, 0.4], [0.7, 0.5, 0.1]]
    assert of_target(probabilities, target).tolist() == expected
    assert of_target(torch.from_numpy(probabilities), torch.from_numpy(target)).tolist() == expected


@pytest.mark.parametrize("threshold", [0.1, 0.5, 0.8])
def test_the_log_odds_asked_for_are_those_of_the_threshold(threshold):
    first, second = DecisionRule(threshold).log_odds(np.array([0, 1]))
    assert 1 / (1 + np.exp(-second)) == pytest.approx(threshold)
    assert 1 / (1 + np.exp(-first)) == pytest.approx(1 - threshold)
    assert DecisionRule().log_odds(np.array([0, 1])).tolist() == [0.0, 0.0]


def test_the_lead_is_half_of_that_over_the_next_class_or_what_lies_beyond_the_threshold():
    probabilities, target = np.array([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]]), np.array([0, 1])
    np.testing.assert_allclose(DecisionRule().lead(probabilities, target), [0.1, -0.25])
    probabilities = np.array([[0.4, 0.6], [0.4, 0.6]])
    np.testing.assert_allclose(DecisionRule(0.75).lead(probabilities, target), [0.15, -0.15])
    np.testing.assert_allclose(DecisionRule().lead(probabilities, target), [-0.1, 0.1])
