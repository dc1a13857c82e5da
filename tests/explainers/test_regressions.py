"""Mistakes that were made once in explainers."""

import warnings

import pandas as pd
import pytest
import torch
from explained_loans import TOY, denied, loan_model, loan_retrains

from avcg import AVCG, Counterfactuals, MCDropout, PointMass, Recipe, retrains
from avcg.baselines.nearest import RobustNeighbour
from avcg.baselines.robust_search import RobustSearch
from avcg.errors import DataError, SettingError
from avcg.hypotheses.finite import FiniteSet
from avcg.hypotheses.mixture import Mixture
from avcg.hypotheses.split import HypothesisSplit


class TestWhatReviewersFound:
    def test_changes_name_the_right_columns_whatever_their_order(self, recourse):
        turned = denied()[denied().columns[::-1]]
        expected, found = recourse.generate(denied(), n=2), recourse.generate(turned, n=2)
        for one, other in zip(expected, found, strict=True):
            assert [dict(option.changes) for option in one.options] == [
                dict(option.changes) for option in other.options
            ]
        assert str(Counterfactuals.from_json(found.to_json())) == str(found)

    def test_a_failed_fit_leaves_the_explainer_as_it_was(self, recourse):
        from sklearn.exceptions import NotFittedError

        before = recourse.generate(denied()).to_json()
        with pytest.raises(DataError, match="at least two rows"):
            recourse.fit(TOY.X.head(1))
        assert recourse.generate(denied()).to_json() == before
        never = AVCG(loan_retrains())
        with pytest.raises(DataError):
            never.fit(TOY.X.head(1))
        with pytest.raises(NotFittedError):
            never.generate(denied())

    def test_estimators_without_gradients_are_refused_as_teachers(self):
        from sklearn.tree import DecisionTreeClassifier

        numbers = TOY.X[["income", "months"]]
        model = DecisionTreeClassifier(max_depth=4, random_state=0).fit(numbers, TOY.y)
        judges = retrains(model, numbers, TOY.y, n=4, resampling="bootstrap")
        with pytest.raises(SettingError, match="needs 'hypotheses' with gradients"):
            RobustSearch(judges).fit(numbers)
        assert (RobustNeighbour(judges).fit(numbers, TOY.y).generate(numbers.head(5)).status != "immovable").all()

    def test_the_model_in_force_never_certifies(self):
        ensemble = FiniteSet(
            loan_retrains().predictors,
            loan_retrains().space,
            loan_retrains().classes,
            loan_retrains().predictors.subset(torch.tensor([3])),
        )
        for seed in range(20):
            fresh = HypothesisSplit.of(ensemble, torch.Generator().manual_seed(seed)).test
            same = (
                (fresh.overrides["0.weight"] == loan_retrains().predictors.overrides["0.weight"][3]).flatten(1).all(1)
            )
            assert not same.any()

    def test_a_mixture_certifies_by_its_shares(self):
        mixture = Mixture([loan_retrains(), MCDropout(loan_model())], [0.9, 0.1])
        rows, families = loan_retrains().space.encode(denied()), []
        known = loan_retrains().predictors.log_probs(rows)
        for seed in range(60):
            roles = HypothesisSplit.of(mixture, torch.Generator().manual_seed(seed), n_test=3)
            assert len(roles.test) == 3, "three of the first may all be drawn"
            drawn = roles.test.log_probs(rows)
            families.append((drawn[:, None] - known).abs().amax(dim=(2, 3)).amin(dim=1) < 1e-5)
        share = float(torch.stack(families).float().mean())
        assert share == pytest.approx(0.9, abs=0.1), "by its share, not by a quota"
        with pytest.raises(SettingError, match="single hypothesis"):
            HypothesisSplit.of(Mixture([loan_retrains(), PointMass(loan_model())]))

    def test_refit_with_a_model_of_ones_own(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            first = AVCG(loan_retrains(), model=loan_model(), recipe=Recipe(steps=20, layers=(16,))).fit(TOY.X)
            assert len(first.refit(loan_retrains(), TOY.X, steps=20).generate(denied())) == 40

    def test_already_there_but_not_as_surely_as_asked(self, recourse):
        near = TOY.X[
            (loan_model().predict_proba(TOY.X)[:, 1] > 0.5) & (loan_model().predict_proba(TOY.X)[:, 1] < 0.7)
        ].head(10)
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
        rows = denied().head(6).set_axis(index)
        found = recourse.generate(rows, n=n)
        back = Counterfactuals.from_json(found.to_json())
        pd.testing.assert_frame_equal(back.frame, found.frame, check_freq=False)
        if n == 1:
            assert found.frame.index.equals(index)

    def test_answers_refused_by_one_teacher_are_tried_again(self, recourse):
        answers = recourse.generate(denied())
        x = recourse.space_.encode(answers.frame)
        share = recourse.deployed_.agreement(recourse.judges_, x, torch.ones(40, dtype=torch.long))
        assert (share >= 0.99).float().mean() > 0.9
