"""Sets of models and mixtures of distributions."""

import pytest
import torch
from distributions import ForkedNetwork, rng

import avcg
from avcg.errors import SettingError
from avcg.models.batched import plan_of
from avcg.models.networks import cnn, mlp


class TestSets:
    def test_a_set_gives_no_more_than_it_has(self, toy_model):
        toy, model = toy_model
        members = avcg.retrains(model, toy.X, toy.y, n=5, training=avcg.Training(epochs=60))
        assert len(members.sample(99)) == 5
        assert len(members.sample(3, rng=rng())) == 3

    def test_what_is_set_aside_is_not_trained_on(self, toy_model):
        toy, model = toy_model
        members = avcg.retrains(model, toy.X, toy.y, n=6, training=avcg.Training(epochs=60))
        rest, apart = members.split(2, rng=rng())
        assert (len(rest), len(apart)) == (4, 2)
        weights = torch.cat([part.predictors.overrides["0.weight"] for part in (rest, apart)])
        assert len(torch.unique(weights.flatten(1), dim=0)) == 6
        with pytest.raises(SettingError, match="leaves none"):
            members.split(6)

    def test_a_mixture_gives_each_its_share(self, toy_model):
        _, model = toy_model
        mixture = avcg.Mixture([avcg.MCDropout(model), avcg.PointMass(model)], [3, 1])
        drawn = mixture.sample(8, rng=rng())
        assert len(drawn) == 7, "six masks, and the one point there is"
        torch.testing.assert_close(drawn.weights, torch.tensor([0.125] * 6 + [0.25]))
        assert len(mixture.sample(1, rng=rng())) == 1

    def test_fast_and_general_paths_are_what_they_say(self):
        assert plan_of(mlp(3, 2, (4,), dropout=0.5)) is not None
        assert plan_of(ForkedNetwork()) is None
        assert plan_of(cnn((1, 8, 8), 2, (2,))) is None
