"""Baselines on loans: nearest rows, class means and a search for each row."""

import pandas as pd
import pytest
from explained_loans import TOY, denied, loan_retrains

from avcg.baselines.nearest import ClassMean, NearestUnlike, RobustNeighbour
from avcg.baselines.robust_search import RobustSearch
from avcg.errors import SettingError


class TestNeighbours:
    def test_nearest_unlike_is_brute_force(self):
        found = NearestUnlike(loan_retrains()).fit(TOY.X, TOY.y)
        x, rows = found.space_.encode(denied()), found.reference_set_.rows[1]
        answers = found.generate(denied())
        for i in range(5):
            distances = found.space_.distance(rows[None].transpose(0, 1), x[i : i + 1])[:, 0]
            nearest = found.space_.project(rows[distances.argmin()][None], x[i : i + 1])
            expected = found.space_.decode(nearest, like=denied().iloc[[i]])
            pd.testing.assert_frame_equal(answers.frame.iloc[[i]], expected)

    def test_robust_neighbours_convince_every_teacher(self):
        found = RobustNeighbour(loan_retrains()).fit(TOY.X, TOY.y)
        answers = found.generate(denied())
        delivered = answers.changed.any(axis=1)
        x = found.space_.encode(answers.frame)[delivered]
        assert delivered.mean() > 0.8
        assert (found.judges_.log_probs(x).exp()[..., 1] > 0.6).all()
        assert (answers.status[~delivered] == "not_found").all()

    def test_the_class_mean_is_one_profile(self):
        found = ClassMean(loan_retrains()).fit(TOY.X, TOY.y)
        answers = found.generate(denied())
        assert answers.frame["income"].nunique() == 1
        assert answers.frame["income"].iloc[0] == pytest.approx(TOY.X.loc[TOY.y == 1, "income"].mean(), abs=0.01)


class TestSearch:
    def test_every_teacher_is_convinced_or_there_is_no_answer(self):
        from avcg.baselines.gradient import Descent

        found = RobustSearch(loan_retrains(), descent=Descent(150, probability=0.8, proximity=1.0)).fit(TOY.X)
        answers = found.generate(denied())
        delivered = answers.changed.any(axis=1)
        assert delivered.mean() > 0.9
        x = found.space_.encode(answers.frame)[delivered]
        assert (found.judges_.log_probs(x).exp()[..., 1] >= 0.8 - 1e-4).all()
        with pytest.raises(SettingError, match="'probability' of Descent"):
            Descent(probability=1.0)
