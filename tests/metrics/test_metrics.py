"""Measures of answers, with numbers one can check by hand."""

import math

import pandas as pd
import pytest
import torch
from torch import nn

from avcg import Schema, TabularSpace
from avcg.hypotheses.predictors import Opaque, Stacked
from avcg.method.diagnostics import personalisation
from avcg.metrics import functional as metrics
from avcg.models.autoencoders import ClassAutoencoders

# Scaled to 0..1: age by its span 40, pay by 4 (its third row is a gap), job one of three.
ROWS = pd.DataFrame(
    {
        "age": [20, 30, 40, 60, 20],
        "pay": [0.0, 1.0, None, 4.0, 1.0],
        "job": ["clerk", "nurse", "smith", "clerk", "clerk"],
    }
)
SPACE = TabularSpace.fit(Schema.infer(ROWS).allow_missing("pay"), ROWS, scaling="minmax")
ENCODING = SPACE.encoding
X = SPACE.encode(ROWS)
# Age moves by 10 and pay by 2; nothing moves; the gap is filled; the job changes; all change.
MOVED = ROWS.assign(
    age=[30, 30, 40, 60, 60], pay=[2.0, 1.0, 2.0, 4.0, 4.0], job=["clerk", "nurse", "smith", "nurse", "smith"]
)
X_CF = SPACE.encode(MOVED)
CHANGES = torch.tensor([[0.25, 0.5, 0], [0, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0.75, 1]])

ORDER = torch.tensor([3, 0, 4, 2, 1])
TARGET = torch.tensor([0, 1, 0, 1, 1])


def numbers(*values):
    return torch.tensor(values)


def fixed(*rows):
    """A hypothesis that answers by the first code of a row, taken as a position: these probabilities."""
    table = torch.tensor(rows)
    return lambda x: table[x.flatten(1)[:, 0].long()]


# Over three rows (codes 0, 1, 2): the means are .6/.4, .5/.5 with weights alike, and .3/.7.
FIRST = fixed([0.9, 0.1], [0.9, 0.1], [0.4, 0.6])
SECOND = fixed([0.3, 0.7], [0.1, 0.9], [0.2, 0.8])
PLACES = torch.arange(3.0)[:, None]
EYE = torch.eye(2)


def cloud(center):
    return center + 0.5 * torch.randn(60, 2, generator=torch.Generator().manual_seed(0))


def a_bank(count=6):
    generator = torch.Generator().manual_seed(1)
    network = nn.utils.skip_init(nn.Linear, ENCODING.width, 2)
    overrides = {
        "weight": 2 * torch.randn(count, 2, ENCODING.width, generator=generator),
        "bias": torch.randn(count, 2, generator=generator),
    }
    return Stacked(network, overrides, torch.rand(count, generator=generator))


def a_noise():
    return 0.3 * torch.randn(8, ENCODING.width, generator=torch.Generator().manual_seed(2))


def autoencoders():
    generator = torch.Generator().manual_seed(3)
    network = nn.utils.skip_init(nn.Linear, ENCODING.width, ENCODING.width, bias=False)
    weight = torch.randn(2, ENCODING.width, ENCODING.width, generator=generator)
    return ClassAutoencoders(network, {"weight": weight}, ())


class TestChanges:
    def test_of_columns_by_hand(self):
        assert torch.allclose(metrics.column_changes(ENCODING, X_CF, X), CHANGES)

    def test_l1_is_their_sum(self):
        assert torch.allclose(metrics.l1_distance(ENCODING, X_CF, X), numbers(0.75, 0, 1, 1, 2.75))
        assert metrics.columns_changed(ENCODING, X_CF, X).tolist() == [2, 0, 1, 1, 3]

    def test_of_pictures_are_those_of_pixels(self):
        pictures = torch.zeros(2, 1, 2, 2)
        after = pictures.clone()
        after[1, 0, 1, 0] = -0.5
        assert metrics.column_changes(None, after, pictures).tolist() == [[0, 0, 0, 0], [0, 0, 0.5, 0]]

    def test_gower_is_the_mean_share_of_the_range_clipped(self):
        found = metrics.gower(ENCODING, X_CF, X, numbers(0.5, 1.0, 1.0))
        assert torch.allclose(found, numbers(1.0 / 3, 0, 1 / 3, 1 / 3, (1 + 0.75 + 1) / 3))


class TestScales:
    def test_mad_leaves_gaps_out(self):
        # Codes of age 0, .25, .5, 1, 0: median .25, deviations .25, 0, .25, .75, .25. Of pay 0, .25, 1, .25: median
        # .25, deviations .25, 0, .75, 0, whose median is .125. The gap's code 0 would make the latter .25.
        assert torch.allclose(metrics.column_scales(ENCODING, X, "mad"), numbers(0.25, 0.125, 1.0))

    def test_range_leaves_gaps_out(self):
        # Age is 30, 40 and 60 there; pay is 1, a gap and 4, and the gap's code 0 would make its range 1.
        assert torch.allclose(metrics.column_scales(ENCODING, X[1:4], "range"), numbers(0.75, 0.75, 1.0))

    def test_a_column_of_gaps_alone_has_one(self):
        assert metrics.column_scales(ENCODING, X[2:3], "mad").tolist() == [1.0, 1.0, 1.0]

    def test_where_most_are_alike_the_standard_deviation_stands_in(self):
        rows = numbers(0.0, 0.0, 0.0, 4.0)[:, None]
        assert metrics.column_scales(None, rows, "mad").item() == pytest.approx(math.sqrt(3))

    @pytest.mark.parametrize("kind", ["mad", "range"])
    def test_a_constant_has_one(self, kind):
        assert metrics.column_scales(None, torch.full((1000, 1), 0.1), kind).item() == 1.0
        assert metrics.column_scales(None, torch.full((999, 1), 0.1, dtype=torch.float64), kind).item() == 1.0

    def test_of_pictures_have_one_for_each_pixel_whatever_the_chunk(self, monkeypatch):
        rows = torch.rand(9, 1, 3, 3, generator=torch.Generator().manual_seed(0))
        whole = metrics.column_scales(None, rows, "mad")
        median = rows.median(dim=0).values
        assert torch.allclose(whole, (rows - median).abs().median(dim=0).values.flatten())
        monkeypatch.setattr(metrics, "_COLUMNS", 2)
        assert torch.equal(metrics.column_scales(None, rows, "mad"), whole)

    @pytest.mark.parametrize("kind", ["mad", "range"])
    def test_do_not_depend_on_the_order_of_rows(self, kind):
        scales = [metrics.column_scales(ENCODING, rows, kind) for rows in (X, X[ORDER])]
        assert torch.allclose(*scales)


class TestHypotheses:
    def test_validity_is_that_of_the_mean(self):
        both = Opaque([FIRST, SECOND], numbers(0.5, 0.5))
        assert metrics.validity(both, PLACES[[0, 2]], torch.tensor([0, 0])).tolist() == [1.0, 0.0]
        assert metrics.validity(both, PLACES[[0, 2]], torch.tensor([1, 1])).tolist() == [0.0, 1.0]
        # By weight 3 to 1 the mean of the second row is .7/.3; by 1 to 3 it is .3/.7.
        for weights, label in ((numbers(3.0, 1.0), 0), (numbers(1.0, 3.0), 1)):
            one = Opaque([FIRST, SECOND], weights)
            assert metrics.validity(one, PLACES[1:2], torch.tensor([label])).item() == 1.0

    def test_agreement_counts_hypotheses_by_weight(self):
        both = Opaque([FIRST, SECOND], numbers(0.75, 0.25))
        assert metrics.model_agreement(both, PLACES, torch.zeros(3, dtype=torch.long)).tolist() == [0.75, 0.75, 0.0]
        assert metrics.model_agreement(both, PLACES, torch.ones(3, dtype=torch.long)).tolist() == [0.25, 0.25, 1.0]

    @pytest.mark.parametrize("count", [3, 7, 49])
    def test_agreement_of_all_is_exactly_one(self, count):
        uneven = torch.rand(50, count, generator=torch.Generator().manual_seed(0))
        for weights in (None, *uneven):
            many = Opaque([FIRST] * count, weights)
            assert metrics.model_agreement(many, PLACES[:1], torch.tensor([0])).item() == 1.0

    def test_noisy_execution_by_hand(self):
        one = Opaque([FIRST])
        # From the second row (.9/.1): once to the third (.4/.6), three times to itself.
        change, lost = metrics.noisy_execution(
            one, PLACES[1:2], numbers(0.0, 1.0, 0.0, 0.0)[:, None], torch.tensor([0])
        )
        assert change.item() == pytest.approx((0.5**2 + 0.5**2) / 4)
        assert lost.item() == 1 / 4

    def test_noisy_execution_counts_an_answer_that_was_never_valid(self):
        change, lost = metrics.noisy_execution(Opaque([FIRST]), PLACES[:1], torch.zeros(4, 1), torch.tensor([1]))
        assert (change.item(), lost.item()) == (0.0, 1.0)

    def test_chunks_change_nothing(self, monkeypatch):
        bank, x_cf, noise = a_bank(), X_CF, a_noise()

        def found():
            noisy = metrics.noisy_execution(bank, x_cf, noise, TARGET)
            return [metrics.validity(bank, x_cf, TARGET), metrics.model_agreement(bank, x_cf, TARGET), *noisy]

        whole = found()
        monkeypatch.setattr(metrics, "_PAIRS", 2 * len(bank))
        for one, other in zip(whole, found(), strict=True):
            assert torch.allclose(one, other, atol=1e-6)


class TestStability:
    def test_by_hand(self):
        answers, x = torch.tensor([[1.0, 1.0], [0.0, 2.0]]), torch.zeros(2, 2)
        moved = torch.tensor([[[1.0, 2.0], [0.0, 2.0]], [[4.0, 1.0], [0.0, 0.0]]])
        ratio, numerator = metrics.input_stability(answers, moved, x)
        assert numerator.tolist() == [(1 + 9) / 2, (0 + 4) / 2]
        assert torch.allclose(ratio, numbers(5 / 2, 2 / 4))

    def test_of_an_answer_that_changes_nothing_is_finite(self):
        ratio, numerator = metrics.input_stability(torch.zeros(1, 2), torch.zeros(3, 1, 2), torch.zeros(1, 2))
        assert (ratio.item(), numerator.item()) == (0.0, 0.0)
        ratio, _ = metrics.input_stability(torch.zeros(1, 1), torch.ones(3, 1, 1), torch.zeros(1, 1), eta=0.5)
        assert ratio.item() == 2.0

    def test_of_pictures(self):
        pictures = torch.ones(2, 1, 2, 2)
        ratio, numerator = metrics.input_stability(
            pictures, pictures.expand(3, 2, 1, 2, 2) + 1, torch.zeros(2, 1, 2, 2)
        )
        assert numerator.tolist() == [4.0, 4.0]
        assert torch.allclose(ratio, torch.ones(2))


class TestRedundancy:
    def test_by_hand(self):
        # Valid is who has moved his age, whatever else: pay and job are needless, age is not.
        start = X[:, ENCODING.slices[0]].squeeze(1)

        def older(x_cf, target):
            return x_cf[:, 0] > target

        found = metrics.redundancy(older, ENCODING, X_CF, X, start)
        assert torch.allclose(found[[0, 2, 3, 4]], numbers(1 / 2, 0.0, 0.0, 2 / 3))
        assert found[1].isnan()

    def test_puts_back_one_column_at_a_time(self):
        # Either change alone would do, so each is needless although both are not.
        found = metrics.redundancy(
            lambda x_cf, _: x_cf.sum(dim=1) >= 1, None, torch.ones(1, 2), torch.zeros(1, 2), torch.zeros(1)
        )
        assert found.item() == 1.0

    def test_leaves_its_inputs_alone_and_asks_in_their_shape(self):
        pictures, target = torch.ones(2, 1, 2, 2), torch.tensor([4, 3])
        before = torch.zeros(2, 1, 2, 2)

        def full(x_cf, wanted):
            assert x_cf.shape[1:] == (1, 2, 2)
            return x_cf.sum(dim=(1, 2, 3)) >= wanted

        assert metrics.redundancy(full, None, pictures, before, target).tolist() == [0.0, 1.0]
        assert (pictures == 1).all()
        assert (before == 0).all()


class TestPlausibility:
    def test_im1_is_the_ratio_of_errors(self):
        network = nn.utils.skip_init(nn.Linear, 2, 2, bias=False)
        halves = ClassAutoencoders(network, {"weight": torch.stack([0 * EYE, 0.5 * EYE, EYE])}, ())
        x_cf = torch.tensor([[2.0, 0.0], [0.0, 4.0], [1.0, 1.0]])
        # Errors are |x|^2, a quarter of it and 0.
        found = metrics.im1(halves, x_cf, torch.tensor([0, 1, 2]), torch.tensor([1, 0, 0]))
        assert torch.allclose(found, numbers(4.0, 0.25, 0.0))
        perfect = metrics.im1(halves, x_cf[:1], torch.tensor([0]), torch.tensor([2]), eta=0.5)
        assert perfect.item() == 8.0

    def test_implausibility_is_the_mean_over_all_rows(self, monkeypatch):
        rows = torch.tensor([[3.0, 4.0], [0.0, 0.0], [0.0, 1.0]])
        x_cf = torch.tensor([[0.0, 0.0], [3.0, 0.0]])
        expected = numbers((5 + 0 + 1) / 3, (4 + 3 + math.sqrt(10)) / 3)
        assert torch.allclose(metrics.implausibility(x_cf, rows), expected)
        monkeypatch.setattr(metrics, "_PAIRS", 1)
        assert torch.allclose(metrics.implausibility(x_cf, rows), expected)
        pictures = metrics.implausibility(x_cf.view(2, 1, 1, 2), rows.view(3, 1, 1, 2))
        assert torch.allclose(pictures, expected)
        assert metrics.implausibility(x_cf, rows[:0]).isnan().all()

    def test_implausibility_of_many_rows_is_exact_enough(self):
        generator = torch.Generator().manual_seed(0)
        x_cf, rows = (torch.randn(n, 30, generator=generator) for n in (40, 300))
        expected = (x_cf.double()[:, None] - rows.double()).norm(dim=-1).mean(dim=1)
        assert torch.allclose(metrics.implausibility(x_cf, rows).double(), expected, atol=1e-5)

    def test_lof_tells_those_inside_from_those_far_away(self):
        rows = [cloud(0.0), cloud(10.0), cloud(0.0)[:20]]
        x_cf = torch.tensor([[0.0, 0.0], [10.0, 10.0], [0.0, 0.0], [10.0, 10.0], [0.0, 0.0]])
        found = metrics.lof_inlier(x_cf, torch.tensor([0, 0, 1, 1, 2]), rows)
        assert found[:4].tolist() == [1.0, 0.0, 0.0, 1.0]
        assert found[4].isnan(), "20 rows have no 20 neighbours each"

    def test_lof_looks_at_the_first_rows(self):
        rows = torch.cat([cloud(0.0), cloud(10.0)])
        x_cf, target = torch.full((1, 2), 10.0), torch.tensor([0])
        assert metrics.lof_inlier(x_cf, target, [rows]).item() == 1.0
        assert metrics.lof_inlier(x_cf, target, [rows], most=60).item() == 0.0
        assert metrics.lof_inlier(x_cf, target, [rows], most=20).isnan().item()
        assert metrics.lof_inlier(x_cf, target, [rows], n_neighbors=5, most=20).item() == 0.0

    def test_the_nearest_rows_and_the_answers_apart(self):
        rows = torch.tensor([[3.0, 4.0], [0.0, 1.0], [9.0, 9.0]])
        assert metrics.distance_to_rows(torch.zeros(1, 2), rows, k=1).item() == 1.0
        three = torch.tensor([[[0.0, 0.0]], [[3.0, 4.0]], [[0.0, 4.0]]])
        assert metrics.pairwise_distance(three).item() == pytest.approx((5 + 4 + 3) / 3)

    def test_one_profile_for_all_is_not_personal(self):
        x, target = torch.tensor([[0.0], [2.0], [5.0]]), torch.tensor([0, 0, 1])
        assert personalisation(torch.ones(3, 1), x, target) == 0.0
        assert personalisation(0.5 * x, x, target) == pytest.approx(0.5)


RANGES = metrics.column_scales(ENCODING, X, "range")
# The first answer lies among the rows of its target, the third does not.
CLASSES = [row + 0.1 * torch.rand(30, ENCODING.width, generator=torch.Generator().manual_seed(4)) for row in X_CF[:2]]
EACH = {
    "column_changes": lambda x_cf, x, _: metrics.column_changes(ENCODING, x_cf, x),
    "gower": lambda x_cf, x, _: metrics.gower(ENCODING, x_cf, x, RANGES),
    "validity": lambda x_cf, _, target: metrics.validity(a_bank(), x_cf, target),
    "model_agreement": lambda x_cf, _, target: metrics.model_agreement(a_bank(), x_cf, target),
    "noise": lambda x_cf, _, target: torch.stack(metrics.noisy_execution(a_bank(), x_cf, a_noise(), target), dim=1),
    "input": lambda x_cf, x, _: torch.stack(metrics.input_stability(x_cf, torch.stack([x_cf + 1, x]), x), dim=1),
    "redundancy": lambda x_cf, x, target: metrics.redundancy(flips, ENCODING, x_cf, x, target),
    "im1": lambda x_cf, _, target: metrics.im1(autoencoders(), x_cf, target, 1 - target),
    "implausibility": lambda x_cf, *_: metrics.implausibility(x_cf, X),
    "lof": lambda x_cf, _, target: metrics.lof_inlier(x_cf, target, CLASSES, n_neighbors=5),
}


def flips(x_cf, target):
    return metrics.validity(a_bank(), x_cf, target) > 0.5


@pytest.mark.parametrize("measure", EACH.values(), ids=EACH)
def test_each_row_has_its_own_value(measure):
    found = measure(X_CF, X, TARGET)
    assert len(found) == len(X)
    turned = measure(X_CF[ORDER], X[ORDER], TARGET[ORDER])
    assert torch.allclose(turned, found[ORDER], atol=1e-5, equal_nan=True)
    alone = measure(X_CF[:1], X[:1], TARGET[:1])
    assert torch.allclose(alone, found[:1], atol=1e-5, equal_nan=True)
    assert len(found.unique(dim=0)) > 1, "a constant would pass"


def test_the_order_of_samples_does_not_matter():
    bank, order = a_bank(), torch.tensor([4, 2, 0, 5, 3, 1])
    turned, noise = bank.subset(order), a_noise()
    assert torch.equal(metrics.validity(bank, X_CF, TARGET), metrics.validity(turned, X_CF, TARGET))
    agreed = metrics.model_agreement(bank, X_CF, TARGET)
    assert torch.allclose(agreed, metrics.model_agreement(turned, X_CF, TARGET))
    pairs = zip(
        metrics.noisy_execution(bank, X_CF, noise, TARGET),
        metrics.noisy_execution(turned, X_CF, noise.flip(0), TARGET),
        strict=True,
    )
    moved = torch.stack([X_CF + 1, X, X_CF])
    again = zip(metrics.input_stability(X_CF, moved, X), metrics.input_stability(X_CF, moved.flip(0), X), strict=True)
    for one, other in (*pairs, *again):
        assert torch.allclose(one, other, atol=1e-6)
    assert torch.allclose(metrics.implausibility(X_CF, X), metrics.implausibility(X_CF, X[ORDER]))


def test_nothing_keeps_a_graph():
    x_cf = X_CF.clone().requires_grad_()
    for name in ("validity", "model_agreement", "noise", "redundancy", "im1", "implausibility", "lof"):
        assert not EACH[name](x_cf, X, TARGET).requires_grad, name
