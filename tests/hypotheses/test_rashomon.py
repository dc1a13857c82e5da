"""Rashomon sets: the rule, and the paper on real data."""

import warnings

import numpy as np
import pytest
import torch
from distributions import rng

import avcg
from avcg import datasets
from avcg.errors import SettingError


@pytest.fixture(scope="module", params=["breast_cancer", "heart"])
def masked(request):
    if not datasets.available(request.param):
        pytest.skip("the files of heart are not at hand; set AVCG_DATA to their directory")
    data = datasets.load(request.param)
    train, validation, _ = data.split(seed=0)
    model = avcg.Classifier(hidden=(64, 32), dropout=0.2, epochs=60, schema=data.schema).fit(train.X, train.y)
    return request.param, model, validation


class TestRashomon:
    def test_epsilon_of_the_paper_on_real_data(self, masked, record_property):
        """At 0.8 every mask stays; at 0 only those no worse than the network without dropout."""
        name, model, validation = masked
        wide = avcg.rashomon_set(avcg.MCDropout(model), validation.X, validation.y, epsilon=0.8)
        narrow = avcg.rashomon_set(avcg.MCDropout(model), validation.X, validation.y, epsilon=0.0)
        record_property("say", f"{name}, epsilon 0.8: {wide}")
        record_property("say", f"{name}, epsilon 0.0: {narrow}")
        assert len(wide) == 50
        assert 1 <= len(narrow) < 40
        assert (narrow.losses[narrow.kept] <= narrow.reference_loss).all()

    def test_the_rule_is_the_rule(self, masked):
        _, model, validation = masked
        for loss in ("cross_entropy", "zero_one"):
            kept = avcg.rashomon_set(
                avcg.MCDropout(model),
                validation.X,
                validation.y,
                0.02,
                loss=loss,
                reference="best",
                n=30,
                rng=rng(1),
            )
            losses = (
                avcg.MCDropout(model)
                .sample(30, rng=rng(1))
                .losses(
                    model.space_.encode(validation.X), torch.tensor(np.searchsorted(model.classes_, validation.y)), loss
                )
            )
            assert kept.kept.tolist() == torch.nonzero(losses <= losses.min() + 0.02).flatten().tolist()
            assert len(kept) == len(kept.kept)
            torch.testing.assert_close(kept.predictors.weights, torch.full((len(kept),), 1 / len(kept)))

    def test_an_empty_set_keeps_the_best_and_says_so(self, toy_model):
        toy, model = toy_model
        with pytest.warns(UserWarning, match="none qualified, so the best"):
            kept = avcg.rashomon_set(avcg.MCDropout(model), toy.X, toy.y, 0.0, reference=-1.0)
        assert len(kept) == 1
        assert kept.kept.item() == kept.losses.argmin().item()
        assert "none qualified" in str(kept)
        with pytest.raises(SettingError, match="No candidate qualifies"):
            avcg.rashomon_set(avcg.MCDropout(model), toy.X, toy.y, 0.0, reference=-1.0, on_empty="raise")

    def test_a_rate_for_a_wanted_share(self, toy_model):
        toy, model = toy_model
        rate = avcg.dropout_rate_for(model, toy.X, toy.y, epsilon=0.02, share=0.6, n=40)
        assert 0 < rate < 0.95
        share = len(_quiet(avcg.MCDropout(model, rate), toy, 0.02)) / 40
        assert share == pytest.approx(0.6, abs=0.2)


def _quiet(masks, toy, epsilon):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return avcg.rashomon_set(masks, toy.X, toy.y, epsilon, n=40)
