"""Rows held back for calibration: enough of each decided class, and no more than that."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from avcg import AVCG, PointMass, Recipe, Schema, TabularSpace
from avcg.errors import SettingError
from avcg.method.config import CalibrationConfig


def fitted(n_rows, n_granted, *, schema=None, refit=False, **settings):
    """An explainer for one number, of which the largest are granted; it is hardly trained."""
    X = pd.DataFrame({"number": np.arange(n_rows, dtype=float)})
    space = TabularSpace.fit(schema or Schema.infer(X), X)
    border = n_rows - n_granted - 0.5
    threshold = float(space.encode(pd.DataFrame({"number": [np.floor(border), np.ceil(border)]})).mean())
    network = nn.utils.skip_init(nn.Linear, 1, 2)
    with torch.no_grad():
        network.weight.copy_(torch.tensor([[0.0], [5.0]]))
        network.bias.copy_(torch.tensor([0.0, -5.0 * threshold]))
    calibration = CalibrationConfig(n_margins=2, **settings)
    recipe = Recipe(steps=1, single_pass=True, layers=(4,), encoder=(4,), calibration=calibration)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one model promises nothing
        explainer = AVCG(PointMass(network, space), recipe=recipe, n_test=0).fit(X)
        return explainer.refit(explainer.hypotheses, X, steps=1) if refit else explainer


def held(explainer):
    """Number of rows held back that are decided for each class."""
    decided = 1 - explainer.calibration_query_.target
    return np.bincount(decided, minlength=2).tolist()


class TestConfig:
    @pytest.mark.parametrize(
        ("n_rows", "expected"), [(2, 1), (9, 3), (100, 33), (180, 60), (400, 60), (1000, 150), (10**6, 10_000)]
    )
    def test_rows_of_all_classes(self, n_rows, expected):
        assert CalibrationConfig().n_held(n_rows, 10) == expected

    @pytest.mark.parametrize(
        ("n_rows", "expected"), [(0, 0), (2, 0), (3, 1), (60, 20), (90, 30), (91, 30), (10**6, 30)]
    )
    def test_rows_of_one_class(self, n_rows, expected):
        assert CalibrationConfig().n_held_of_class(n_rows, 10) == expected

    def test_rows_with_many_codes(self):
        config = CalibrationConfig(min_rows=20, max_codes=1000)
        assert config.n_held(10_000, 10) == 100
        assert config.n_held(10_000, 500) == 20
        assert config.n_held_of_class(10_000, 500) == 20

    @pytest.mark.parametrize("wrong", [0, 1.5, True])
    def test_a_number_of_rows_is_a_positive_integer(self, wrong):
        with pytest.raises(SettingError, match="'min_class_rows' of CalibrationConfig"):
            CalibrationConfig(min_class_rows=wrong)


class TestEachClass:
    @pytest.mark.parametrize(("n_granted", "expected"), [(120, 30), (90, 30), (60, 20), (10, 3), (2, 0)])
    def test_a_rare_class_has_the_least_and_no_more(self, n_granted, expected):
        n_drawn = held(fitted(1000, n_granted, min_class_rows=1))[1]
        assert held(fitted(1000, n_granted))[1] == max(expected, n_drawn)
        assert n_drawn < 30

    def test_the_other_class_keeps_the_rows_that_it_has(self):
        denied, granted = held(fitted(1000, 90, min_class_rows=1))
        assert denied + granted == 150
        assert held(fitted(1000, 90)) == [denied, 30]

    def test_a_class_that_nobody_is_decided_for(self):
        assert held(fitted(400, 0)) == [60, 0]

    def test_a_large_table_is_held_back_as_without_it(self):
        with_least, without = fitted(2000, 1000), fitted(2000, 1000, min_class_rows=1)
        assert min(held(without)) >= 30
        assert np.array_equal(with_least.calibration_query_.x, without.calibration_query_.x)

    def test_the_same_rows_each_time(self):
        first, second = fitted(300, 60), fitted(300, 60)
        assert held(first)[1] == 20
        assert np.array_equal(first.calibration_query_.x, second.calibration_query_.x)

    def test_refitting_holds_back_as_many(self):
        assert held(fitted(1000, 90, refit=True))[1] == 30


class TestTraining:
    def test_no_row_is_both_held_back_and_trained_on(self):
        explainer = fitted(300, 60)
        x = explainer.space_.encode(pd.DataFrame({"number": np.arange(300.0)}))
        back, chosen = explainer._hold_back(x, CalibrationConfig(), torch.Generator().manual_seed(0))
        assert sorted(torch.cat([back, chosen]).tolist()) == list(range(300))
        assert (back >= 240).sum() == 20

    def test_rows_that_may_not_change_do_not_count(self):
        only_up = Schema.infer(pd.DataFrame({"number": np.arange(1000.0)})).only_up("number").between("number", 0, 944)
        explainer = fitted(1000, 90, schema=only_up)  # 910 to 943 are granted and may change
        assert not explainer.space_.immovable(torch.from_numpy(explainer.calibration_query_.x)).any()
        assert held(explainer)[1] == 34 // 3
