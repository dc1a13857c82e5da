import numpy as np
import pytest
import torch

from avcg import multiplicity
from avcg.errors import DataError


def test_by_hand():
    p = torch.tensor(
        [
            [[0.9, 0.1], [0.4, 0.6], [0.2, 0.8]],
            [[0.8, 0.2], [0.6, 0.4], [0.1, 0.9]],
            [[0.7, 0.3], [0.7, 0.3], [0.6, 0.4]],
        ]
    )
    base = torch.tensor([0, 0, 1])
    assert multiplicity.ambiguity(p, base).tolist() == [0, 1, 1]
    assert multiplicity.discrepancy(p, base).item() == pytest.approx(1 / 3)
    np.testing.assert_allclose(
        multiplicity.disagreement(p), [0, 4 * (1 / 3) * (2 / 3), 4 * (1 / 3) * (2 / 3)], atol=1e-6
    )
    np.testing.assert_allclose(multiplicity.viable_prediction_range(p, base), [0.2, 0.3, 0.5], atol=1e-6)
    variances = [np.var([0.9, 0.8, 0.7]), np.var([0.4, 0.6, 0.7]), np.var([0.8, 0.9, 0.4])]
    np.testing.assert_allclose(multiplicity.score_variance(p, base), variances, atol=1e-6)


class TestCapacity:
    def test_models_that_agree_give_one_answer(self):
        p = torch.tensor([[0.3, 0.7]]).expand(5, 1, 2)
        assert multiplicity.rashomon_capacity(p).item() == pytest.approx(1.0, abs=1e-6)

    def test_models_that_contradict_give_as_many_as_there_are_classes(self):
        p = torch.eye(4)[:, None, :]
        assert multiplicity.rashomon_capacity(p).item() == pytest.approx(4.0, abs=1e-5)

    @pytest.mark.parametrize("flip", [0.01, 0.1, 0.25, 0.4])
    def test_two_models_make_a_binary_symmetric_channel(self, flip):
        """Its capacity is 1 - H(flip) bits, in closed form."""
        p = torch.tensor([[[1 - flip, flip]], [[flip, 1 - flip]]], dtype=torch.float64)
        entropy = -flip * np.log2(flip) - (1 - flip) * np.log2(1 - flip)
        assert multiplicity.rashomon_capacity(p).item() == pytest.approx(2 ** (1 - entropy), abs=1e-6)

    @pytest.mark.parametrize("noise", [0.1, 0.5, 0.9])
    def test_two_models_make_a_z_channel(self, noise):
        """One model is certain, the other errs: log2(1 + (1 - q) q^(q / (1 - q))) bits, in closed form."""
        p = torch.tensor([[[1.0, 0.0]], [[noise, 1 - noise]]], dtype=torch.float64)
        capacity = np.log2(1 + (1 - noise) * noise ** (noise / (1 - noise)))
        assert multiplicity.rashomon_capacity(p).item() == pytest.approx(2**capacity, abs=1e-5)

    def test_many_models_do_not_underflow(self):
        rng = np.random.default_rng(0)
        p = torch.from_numpy(rng.dirichlet(np.ones(3) * 0.05, size=(500, 4)))
        capacity = multiplicity.rashomon_capacity(p)
        assert torch.isfinite(capacity).all()
        assert ((capacity >= 1) & (capacity <= 3)).all()

    def test_more_models_never_give_less(self):
        rng = np.random.default_rng(1)
        p = torch.from_numpy(rng.dirichlet(np.ones(3), size=(30, 10)))
        assert (multiplicity.rashomon_capacity(p) >= multiplicity.rashomon_capacity(p[:10]) - 1e-6).all()


def test_a_summary_has_them_all():
    p = torch.from_numpy(np.random.default_rng(0).dirichlet(np.ones(2), size=(5, 20)))
    found = multiplicity.summary(p)
    assert set(found) == {
        "ambiguity", "discrepancy", "disagreement", "viable_prediction_range", "score_variance", "rashomon_capacity",
    }  # fmt: skip
    assert all(np.isfinite(value) for value in found.values())


def test_bad_probabilities():
    with pytest.raises(DataError, match=r"shape \(S, N, C\)"):
        multiplicity.disagreement(torch.ones(3, 2))
