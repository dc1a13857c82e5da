"""Dropout masks as hypotheses."""

import copy

import pytest
import torch
from distributions import NETWORKS, rng, rows

import avcg
from avcg.hypotheses.predictors import Stacked
from avcg.models.dropout_masks import draw_masks, with_noise
from avcg.models.networks import mlp


class TestMasks:
    @pytest.mark.parametrize("kind", ["perceptron", "convolutions", "a small cnn"])
    def test_equal_a_loop_and_finite_differences(self, kind):
        build, event = NETWORKS[kind]
        noisy, sites = with_noise(build(), event)
        assert sites
        masks = draw_masks(sites, (4,), rng())
        predictors = Stacked(noisy, masks)
        x = rows(6, *event)
        for s in range(4):
            one = copy.deepcopy(noisy)
            for name, mask in masks.items():
                one.get_buffer(name).copy_(mask[s])
            expected = torch.log_softmax(one(x), dim=-1)
            torch.testing.assert_close(predictors.log_probs(x)[s], expected, atol=1e-5, rtol=1e-5)
        assert torch.autograd.gradcheck(predictors.log_probs, x[:2].double().requires_grad_(), atol=1e-6)

    def test_a_mask_is_the_same_for_every_row(self):
        masks = avcg.MCDropout(mlp(3, 2, (16,), dropout=0.5)).sample(20, rng=rng())
        x = rows(1, 3).expand(9, 3)
        log_probs = masks.log_probs(x)
        assert torch.equal(log_probs, log_probs[:, :1].expand_as(log_probs))
        assert log_probs[:, 0, 0].std() > 0.01, "while hypotheses differ"

    def test_the_mean_mask_is_one(self):
        _, sites = with_noise(mlp(3, 2, (50,), dropout=0.3), (3,))
        assert draw_masks(sites, (4000,), rng())["2.mask"].mean().item() == pytest.approx(1.0, abs=0.01)

    def test_gaussian_noise_has_the_spread_it_says(self):
        attached = avcg.attach_dropout(mlp(3, 2, (50,)), 0.4, "gaussian")
        _, sites = with_noise(attached, (3,))
        mask = next(iter(draw_masks(sites, (4000,), rng()).values()))
        assert mask.mean().item() == pytest.approx(1.0, abs=0.01)
        assert mask.std().item() == pytest.approx(0.4, abs=0.01)

    def test_attached_noise_sits_where_hsu_et_al_put_it(self):
        network = mlp(3, 2, (8, 8))
        assert len(with_noise(avcg.attach_dropout(network, 0.1), (3,))[1]) == 2
        assert len(with_noise(avcg.attach_dropout(network, 0.1, logits=True), (3,))[1]) == 3
        x = rows(4, 3)
        torch.testing.assert_close(avcg.attach_dropout(network, 0.1).eval()(x), network(x))
        point = avcg.MCDropout(avcg.attach_dropout(network, 0.0)).sample(3)
        torch.testing.assert_close(point.log_probs(x)[2], torch.log_softmax(network(x), -1))

    def test_a_lower_rate_keeps_what_a_higher_one_kept(self):
        network = mlp(3, 2, (64,), dropout=0.5)
        low, high = (avcg.MCDropout(network, rate).sample(5, rng=rng()).overrides["2.mask"] for rate in (0.2, 0.6))
        assert (low[high > 0] > 0).all()
