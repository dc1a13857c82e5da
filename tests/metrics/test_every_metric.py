"""Every entry of the table of metrics keeps the contract: a new one is tested by being there."""

import numpy as np
import pytest
import torch

from avcg.errors import DataError, SettingError
from avcg.metrics.context import Case
from avcg.metrics.table import METRICS, PAPER_METRICS, Heading, Metric, check_names, heading_of
from avcg.testing import check_metric
from avcg.testing.metrics import example_case


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_the_contract(metric):
    check_metric(metric)


def moved(case):
    return (case.answers.x_cf - case.answers.x).flatten(1).abs().sum(dim=1)


class Drifting:
    """Gives other values at every call."""

    calls = 0

    def __call__(self, case):
        self.calls += 1
        return moved(case) + self.calls


def touching(case):
    case.answers.x_cf[0] = 0.0
    return moved(case)


def drawing(case):
    return moved(case) + torch.rand(1)


@pytest.mark.parametrize(
    ("function", "needs", "reason"),
    [
        (lambda case: 1.0 / torch.zeros_like(moved(case)), (), "infinite"),
        (touching, (), "an input was changed"),
        (drawing, (), "global stream"),
        (Drifting(), (), "another call gives other values"),
        (lambda case: moved(case) * torch.arange(len(case.answers.x)), (), "do not follow their rows"),
        (lambda case: torch.full_like(moved(case), torch.nan), (), "no answer of any example has a value"),
    ],
    ids=["infinite", "changes inputs", "draws", "drifts", "by position", "never measured"],
)
def test_what_breaks_it_is_named(function, needs, reason):
    metric = Metric("mine", "lower", function=function, needs=needs)
    with torch.random.fork_rng(devices=[]), pytest.raises(AssertionError, match=reason):
        check_metric(metric)


def test_a_need_that_is_not_declared_is_found():
    with pytest.raises(AttributeError, match="NoneType"):
        check_metric(Metric("mine", "lower", function=lambda case: case.answers.gap.float()))
    check_metric(Metric("mine", "lower", function=lambda case: case.answers.gap.float(), needs=("gap",)))


def test_what_is_no_answer_has_no_distance():
    case = example_case()
    (plain,) = Metric("moved", "lower", function=moved).columns(case).values()
    (given,) = Metric("moved", "lower", function=moved, answered_only=True).columns(case).values()
    assert np.isnan(given).tolist() == [False, False, False, False, True, False]  # the last has its decision already
    np.testing.assert_array_equal(given[:4], plain[:4])


def test_values_of_another_shape_are_refused():
    case = example_case()
    with pytest.raises(DataError, match=r"one value for each of the 6 answers. Got shape \(2,\)"):
        Metric("two", function=lambda _: torch.zeros(2)).columns(case)
    with pytest.raises(DataError, match="must return a mapping from ε to values"):
        Metric("each", function=moved, by_epsilon=True).columns(case)


def test_a_metric_by_epsilon_has_a_column_for_each():
    metric = Metric(
        "twice", by_epsilon=True, needs=("rashomon",), function=lambda case: {0.5: 2 * moved(case), 1.0: 3.0}
    )
    case = example_case()
    assert list(metric.columns(case)) == ["twice@0.5", "twice@1"]
    assert (metric.columns(case)["twice@1"] == 3.0).all()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"name": "row"}, "must not be empty"),
        ({"name": "a@b"}, "contain '@'"),
        ({"name": "a", "direction": "up"}, "must be 'higher', 'lower' or 'none'. Got 'up'"),
        (
            {"name": "a", "needs": ("surogates",)},
            "needs 'surogates', which is not an attribute of Context or EncodedAnswers. Did you mean 'surrogates'",
        ),
    ],
    ids=["reserved", "at", "direction", "need"],
)
def test_a_metric_that_cannot_be_meant(settings, reason):
    with pytest.raises(SettingError, match=reason):
        Metric(**settings, function=moved)


def test_names_are_told_apart():
    check_names(METRICS)
    with pytest.raises(SettingError, match="two metrics called 'L1'"):
        check_names([*METRICS, Metric("L1", function=moved)])


def test_headings_of_columns():
    assert heading_of("Time") == Heading("Time", "lower", "s", 4)
    assert heading_of("RVR@0.8") == Heading("RVR@0.8", "higher")
    assert heading_of("strange") == Heading("strange", "none")
    mine = Metric("mine", "lower", digits=1, function=moved)
    assert heading_of("mine", [mine]) == Heading("mine", "lower", digits=1)


def test_the_papers_metrics_come_first():
    assert tuple(metric.name for metric in METRICS[: len(PAPER_METRICS)]) == PAPER_METRICS
    assert isinstance(example_case(images=True), Case)
