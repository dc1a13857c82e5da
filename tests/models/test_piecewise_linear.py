"""Numbers as a tree sees them."""

import pytest
import torch
from torch import nn

from avcg.hypotheses.predictors import Stacked
from avcg.models.networks import draw_state, mlp
from avcg.models.piecewise_linear import PiecewiseLinearEncoding


class TestPiecewiseLinearEncoding:
    VALUES = torch.cat([torch.randn(200, 2, generator=torch.Generator().manual_seed(0)), torch.ones(200, 1)], dim=1)

    def test_closed_form(self):
        ramps = PiecewiseLinearEncoding(torch.tensor([[0.0, 5.0], [1.0, 5.0], [3.0, 5.0]]), [0], n_steps=2)
        assert ramps.n_outputs == 4
        x = torch.tensor([[-1.0, 7.0], [0.5, 7.0], [2.5, 7.0], [9.0, 7.0]])
        expected = [[-1, 7, 0, 0], [0.5, 7, 0.5, 0], [2.5, 7, 1, 0.75], [9, 7, 1, 1]]
        torch.testing.assert_close(ramps(x), torch.tensor(expected))

    def test_steps_add_up_to_the_number_within_its_range(self):
        ramps = PiecewiseLinearEncoding(self.VALUES, [0, 1], n_steps=8)
        x = 3 * torch.randn(50, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        found = ramps(x)
        assert found.dtype == torch.float64
        torch.testing.assert_close(found[:, :3], x)
        for column in (0, 1):
            mine = ramps.at == column
            low, high = self.VALUES[:, column].min(), self.VALUES[:, column].max()
            climbed = (found[:, 3:][:, mine] * ramps.width[mine]).sum(dim=1)
            torch.testing.assert_close(climbed, x[:, column].clamp(low, high) - low, atol=1e-5, rtol=0)

    def test_monotone_and_between_zero_and_one(self):
        ramps = PiecewiseLinearEncoding(self.VALUES, [0, 1, 2])
        line = torch.linspace(-5, 5, 400)[:, None].expand(-1, 3)
        steps = ramps(line)[:, 3:]
        assert (steps.diff(dim=0) >= 0).all()
        assert steps.min() == 0
        assert steps.max() == 1
        assert torch.isfinite(steps).all()

    def test_a_constant_has_no_step(self):
        assert (PiecewiseLinearEncoding(self.VALUES, [0, 1, 2]).at != 2).all()
        assert PiecewiseLinearEncoding(self.VALUES, [2]).n_outputs == 3
        assert torch.equal(PiecewiseLinearEncoding(self.VALUES, [])(self.VALUES), self.VALUES)

    def test_gradients_are_slopes(self):
        ramps = PiecewiseLinearEncoding(self.VALUES, [0, 1])
        x = torch.randn(20, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64, requires_grad=True)
        ramps(x).sum().backward()
        assert torch.isfinite(x.grad).all()
        ahead, behind = (ramps(x.detach() + e).sum(dim=1) for e in (1e-7, -1e-7))
        torch.testing.assert_close(x.grad.sum(dim=1), (ahead - behind) / 2e-7, rtol=1e-4, atol=1e-4)

    def test_any_leading_axes(self):
        ramps = PiecewiseLinearEncoding(self.VALUES, [0, 1])
        block = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(3))
        torch.testing.assert_close(ramps(block), ramps(block.flatten(0, 1)).unflatten(0, (4, 5)))

    @pytest.mark.parametrize("rows", [7, 300])
    def test_a_stack_runs_by_batched_products(self, rows):
        ramps = PiecewiseLinearEncoding(self.VALUES, [0, 1])
        network = nn.Sequential(ramps, mlp(ramps.n_outputs, 2, (16, 8)))
        state = draw_state(network, 5, torch.Generator().manual_seed(4))
        stacked = Stacked(network, state)
        assert stacked._plan is not None
        x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(5))
        found = stacked.log_probs(x)
        for s in range(5):
            alone = torch.func.functional_call(network, {name: value[s] for name, value in state.items()}, (x,))
            torch.testing.assert_close(found[s], torch.log_softmax(alone, dim=-1), atol=1e-5, rtol=1e-4)
