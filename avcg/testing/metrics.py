"""The contract of a metric."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor, nn

from avcg.datasets.toys import loans
from avcg.hypotheses.predictors import Stacked
from avcg.method.deployed import DeployedModel
from avcg.metrics.context import Case, Context, EncodedAnswers
from avcg.metrics.table import Direction, Metric
from avcg.models.autoencoders import ClassAutoencoders
from avcg.models.training import Training
from avcg.space.base import Space
from avcg.space.images import ImageSpace
from avcg.space.tabular import TabularSpace
from avcg.testing.unchanged import streams_untouched

_ANSWERS, _TRAINING_ROWS = 6, 80
# Fields of answers with one entry for each answer, by the axis that answers are on.
_AXIS = {
    "x": 0, "target": 0, "x_cf": 0, "delivered": 0, "broken": 0, "gap": 0, "seconds_alone": 0,
    "alternatives": 1, "perturbed": 1,
}  # fmt: skip


def check_metric(metric: Metric) -> None:
    """Assert that a metric keeps the promises that evaluation, tables and figures rely on.

    It declares which direction is better. For answers to rows of a table, one or two for each row, and to images, it
    gives a finite value or NaN for each answer, and the same values when it is called again. Values do not depend on
    the order of rows. If a part that the metric needs is missing, every value is NaN, and it needs no part that it does
    not declare. Arguments and global random streams stay untouched.

    Args:
        metric: The metric. It must have a value for at least one answer of the examples.

    Raises:
        AssertionError: If a condition does not hold. The message names it.
    """
    assert metric.direction in get_args(Direction), f"{metric.name}: the direction {metric.direction!r} is unknown"
    measured = False
    for case in (example_case(), example_case(n=2), example_case(images=True)):
        before = _tensors(case)
        with streams_untouched(metric.name):
            columns = metric.columns(case)
        after = _tensors(case)
        assert all(torch.equal(before[name], after[name]) for name in before), f"{metric.name}: an input was changed"
        for name, values in columns.items():
            assert values.shape == (len(case.answers.x),), f"{name}: there is not one value for each answer"
            assert not np.isinf(values).any(), f"{name}: a value is infinite"
            measured |= bool(np.isfinite(values).any())
        _check_same(columns, metric.columns(Case(case.context, case.answers)), "another call gives other values")
        order = torch.arange(len(case.answers.x)).unflatten(0, (-1, case.answers.n)).flip(0).flatten()
        reordered = {name: values[order.numpy()] for name, values in metric.columns(_in_order(case, order)).items()}
        _check_same(columns, reordered, "values do not follow their rows into another order")
        _check_needs(metric, case)
    assert measured, f"{metric.name}: no answer of any example has a value"


def _check_same(columns: dict[str, Any], others: dict[str, Any], what: str) -> None:
    assert set(columns) == set(others), f"{what}: {sorted(columns)} and {sorted(others)}"
    for name, values in columns.items():
        assert np.allclose(values, others[name], rtol=1e-4, atol=1e-5, equal_nan=True), f"{name}: {what}"


def _check_needs(metric: Metric, case: Case) -> None:
    """Check that every value is NaN without a part that is needed, and that no other part is needed."""
    optional = {field.name for field in fields(EncodedAnswers) if field.default is None}
    judges = {field.name for field in fields(Context) if field.default is None}
    for need in set(metric.needs) & (judges | optional):
        values = metric.columns(_without(case, {need}))
        assert all(np.isnan(column).all() for column in values.values()), (
            f"{metric.name}: there is a value without {need!r}, which it needs"
        )
    if not metric.lacks(case):
        alone = metric.columns(_without(case, (judges | optional) - set(metric.needs)))
        assert alone, f"{metric.name}: there is no value if only the parts that it needs are present"


def _without(case: Case, names: set[str]) -> Case:
    """The same case without some of its optional parts."""
    judges: dict[str, Any] = {name: None for name in names if hasattr(case.context, name)}
    observed: dict[str, Any] = {name: None for name in names if name not in judges}
    return Case(replace(case.context, **judges), replace(case.answers, **observed))


def _in_order(case: Case, order: Tensor) -> Case:
    """The same case with its rows in another order."""
    answers = case.answers
    moved = {
        name: getattr(answers, name).index_select(axis, order)
        for name, axis in _AXIS.items()
        if getattr(answers, name) is not None
    }
    return Case(case.context, replace(answers, **moved))


def _tensors(case: Case) -> dict[str, Tensor]:
    """Copies of every tensor of a case, by name."""
    parts = {**vars(case.context), **vars(case.answers)}
    return {name: torch.nan_to_num(part.clone()) for name, part in parts.items() if isinstance(part, Tensor)}


def _example_rows(images: bool) -> tuple[Space, Tensor]:
    """A space and encoded training rows."""
    if images:
        pixels = np.random.default_rng(0).integers(0, 256, (_TRAINING_ROWS, 4, 4), np.uint8)
        pictures = ImageSpace.fit(pixels)
        return pictures, pictures.encode(pixels)
    toy = loans(n=_TRAINING_ROWS)
    table = TabularSpace.fit(toy.schema, toy.X)
    return table, table.encode(toy.X)


def example_case(*, images: bool = False, n: int = 1) -> Case:
    """Example answers with every kind of judge, made in a second, to call metrics with.

    Most answers change something. The last two are unchanged rows: the last one has the target decision already, and
    the one before it does not.

    Args:
        images: Whether rows are images of 4 x 4 pixels instead of rows of a table.
        n: Number of answers for each row: 1 (the default), 2 or 3.
    """
    rng = torch.Generator().manual_seed(0)
    space, x_train = _example_rows(images)
    width = x_train[0].numel()
    network = nn.Sequential(nn.Flatten(), nn.utils.skip_init(nn.Linear, width, 2)).requires_grad_(False)
    weights = torch.randn(9, 2, width, generator=rng)
    weights = weights[:1] + 0.4 * (weights - weights[:1])  # models that are similar to the deployed one
    models = Stacked(network, {"1.weight": weights, "1.bias": torch.zeros(len(weights), 2)})
    deployed = DeployedModel(models.subset(torch.tensor([0])))
    y_train = deployed.decide(deployed.probabilities(x_train))
    rows = torch.arange(_ANSWERS) // n
    x, target = x_train[rows], 1 - y_train[rows]
    target[-1] = y_train[rows[-1]]
    x_cf = space.project(x + torch.randn(x.shape, generator=rng), x)
    x_cf[-2:] = x[-2:]
    context = Context(
        space,
        deployed,
        x_train,
        y_train,
        2,
        bank=models.subset(torch.tensor([1, 2, 3])),
        rashomon={0.1: models.subset(torch.tensor([4, 5])), 0.5: models.subset(torch.tensor([4, 5, 6]))},
        surrogates=models.subset(torch.tensor([6, 7, 8])),
        autoencoders=ClassAutoencoders.fit(x_train, y_train, 2, training=Training(epochs=1, patience=None), rng=rng),
        execution_noise=0.3 * torch.randn(2, *x.shape[1:], generator=rng),
    )
    return Case(
        context,
        EncodedAnswers(
            x,
            target,
            x_cf,
            n,
            alternatives=x_cf + torch.randn(3, *x.shape, generator=rng),
            perturbed=x_cf + 0.1 * torch.randn(2, *x.shape, generator=rng),
            trained_on=models.subset(torch.tensor([1, 8])),
            delivered=torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 0.0]),
            broken=torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0, 0.0]),
            gap=torch.rand(_ANSWERS, generator=rng),
            seconds_alone=torch.tensor([0.1, 0.2, torch.nan, torch.nan, torch.nan, torch.nan]),
            seconds_batch=0.01,
            seconds_frame=0.02,
        ),
    )
