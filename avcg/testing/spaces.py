"""The contract of a space, which encodes rows and decodes answers under constraints."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from avcg.space.base import Space
from avcg.testing.unchanged import same_rows, streams_untouched

_CERTAIN = 1e5  # logit of a category that a decoder chooses with certainty
_CANDIDATES = 3


def check_space(space: Space, X: Any, *, seed: int = 0) -> None:
    """Assert that a space has the properties that generators, searches and people rely on.

    Rows are restored exactly from their codes. The result of `project` is feasible, and projecting it again does not
    change it; an unchanged row is always feasible. `relax` and `finalize` agree with `project`, and the numpy view
    agrees with the torch view. Restrictions of a query only allow less, and the result of a row does not depend on
    other rows. A distance is 0 if nothing changed, and positive otherwise. Gradients are finite and reach every row
    that may change. Arguments and global random streams stay untouched.

    Args:
        space: A fitted space in which every change costs something.
        X: Rows of the space in user units, at least three. Some must be able to change.
        seed: Seed of the candidates that are tried; 0 by default.

    Raises:
        AssertionError: If a condition does not hold. The message names it.
    """
    original = copy.deepcopy(X)
    with streams_untouched("the space"):
        _check_promises(space, X, seed)
    assert same_rows(X, original), "the rows were modified"


def _check_promises(space: Space, X: Any, seed: int) -> None:
    x = space.encode(X)
    rng = np.random.default_rng(seed)
    shape = (_CANDIDATES, *x.shape)
    noise = rng.normal(size=shape) * rng.choice([0.3, 3.0, 1e3], (_CANDIDATES, *[1] * x.dim()))
    raw = torch.from_numpy(noise.astype(np.float32))
    inputs = x.clone(), raw.clone()
    _check_reading(space, X, x)
    narrow = space.random_requests(len(x), 1.0, np.random.default_rng(seed))
    again = space.random_requests(len(x), 1.0, np.random.default_rng(seed))
    assert torch.equal(narrow.constraint_features(x), again.constraint_features(x)), (
        "the same seed draws other restrictions"
    )
    for tested in (space, narrow):
        x_cf = tested.project(raw, x)
        _check_projection(tested, X, x, raw, x_cf)
        _check_relaxation(tested, x, raw, x_cf)
        _check_views(tested, x, raw, x_cf)
        _check_distance(tested, x, x_cf)
        _check_smaller_changes(tested, x, x_cf[0])
    x_cf = narrow.project(raw, x)
    assert torch.equal(space.project(x_cf, x), x_cf), "a restriction allows what the space does not"
    _check_neighbours(narrow, x, raw)
    assert torch.equal(x, inputs[0]), "the codes of the factuals were modified"
    assert torch.equal(raw, inputs[1]), "the candidates were modified"


def _check_reading(space: Space, X: Any, x: Tensor) -> None:
    assert x.dtype == torch.float32, f"codes are {x.dtype}, not float32"
    assert tuple(x.shape[1:]) == tuple(space.event_shape), f"a row is encoded as {tuple(x.shape[1:])}"
    assert len(x) >= 3, "check_space needs at least three rows"
    assert torch.isfinite(x).all(), "codes are not finite"
    assert space.n_features >= 1, "there is no feature"
    assert torch.equal(space.encode(space.read(X)), x), "reading rows first gives other codes"
    assert same_rows(space.decode(x, X), X), "rows are not restored from their codes"
    assert space.difference(space) is None, "the space differs from itself"
    torch.broadcast_to(space.is_logit, x.shape)
    crossed, again = (space.cross(x, x.flip(0), torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(crossed, again), "the same seed crosses rows differently"
    assert ((crossed == x) | (crossed == x.flip(0))).all(), "a crossed row has a code that neither row has"


def _check_projection(space: Space, X: Any, x: Tensor, raw: Tensor, x_cf: Tensor) -> None:
    assert x_cf.shape == raw.shape, f"project returns the shape {tuple(x_cf.shape)}"
    assert torch.equal(space.project(x_cf, x), x_cf), "projecting an answer again changes it"
    assert torch.equal(space.project(x, x), x), "an unchanged row is not feasible"
    immovable = space.immovable(x)
    assert torch.equal(x_cf[:, immovable], x.expand_as(x_cf)[:, immovable]), "a row that is immovable was moved"
    read = space.read(X)
    for codes in x_cf:
        delivery = space.deliver(codes.numpy(), X, read)
        assert not delivery.broken.any(), "a projected answer breaks a constraint"
        received = torch.from_numpy(delivery.received)
        assert torch.allclose(received, codes, rtol=1e-5, atol=1e-4), "delivered rows differ from the projected ones"
        if delivery.changed is not None:
            moved = (received != x).flatten(1).any(dim=1).numpy()
            assert (delivery.changed.any(axis=1) == moved).all(), (
                "the cells that changed are not those that are reported"
            )


def _check_relaxation(space: Space, x: Tensor, raw: Tensor, x_cf: Tensor) -> None:
    certain = torch.where(space.is_logit, x_cf * _CERTAIN, x_cf)
    restored = space.project(space.relax(certain, x), x)
    assert torch.allclose(restored, x_cf, rtol=1e-4, atol=1e-4), "relax moves a feasible point"
    assert torch.allclose(space.finalize(x_cf, x), x_cf, rtol=1e-4, atol=1e-4), "finalize moves a feasible point"
    if space.n_gates:
        closed = torch.zeros((*raw.shape[: x.dim()], space.n_gates), dtype=torch.bool)
        unchanged = torch.where(space.is_logit, x * _CERTAIN, raw)
        assert torch.equal(space.finalize(unchanged, x, closed), x.expand_as(raw)), (
            "a number changes although its gate is closed"
        )
    # Beyond a limit, only gradients that lead back inside pass: of two opposite slopes, one must reach the row.
    slope = torch.linspace(0.5, 1.5, x[0].numel()).view(x.shape[1:])
    reached = torch.zeros(len(x))
    for sign in (1.0, -1.0):
        start = (0.1 * raw.clamp(-3.0, 3.0)).requires_grad_()
        (sign * slope * space.relax(start, x)).sum().backward()
        assert start.grad is not None, "relax passes no gradient"
        assert torch.isfinite(start.grad).all(), "a gradient of relax is not finite"
        reached += start.grad.abs().flatten(2).sum(dim=(0, 2))
    assert (reached[~space.immovable(x)] > 0).all(), "no gradient reaches a row that may change"


def _check_views(space: Space, x: Tensor, raw: Tensor, x_cf: Tensor) -> None:
    codes, factual, projected = space.codes, x.numpy(), x_cf.numpy()
    for view in (codes, codes.tensors.codes):
        assert np.array_equal(view.project(raw.numpy(), factual), projected), "project differs between numpy and torch"
    pairs = {
        "distance": (codes.distance(projected, factual), space.distance(x_cf, x)),
        "pairwise_distance": (codes.pairwise_distance(factual, projected[0]), space.pairwise_distance(x, x_cf[0])),
        "constraint_features": (codes.constraint_features(factual), space.constraint_features(x)),
        "immovable": (codes.immovable(factual), space.immovable(x)),
    }
    for name, (array, tensor) in pairs.items():
        assert np.allclose(array, tensor.numpy(), rtol=1e-4, atol=1e-4), f"{name} differs between numpy and torch"
    final = codes.finalize(raw.numpy(), factual, None, 2.0**-7)
    assert np.array_equal(codes.project(final, factual), final), "finalize of the numpy view is not feasible"


def _check_distance(space: Space, x: Tensor, x_cf: Tensor) -> None:
    changed = (x_cf != x).flatten(2).any(dim=2)
    distance, count = space.distance(x_cf, x), space.count_changes(x_cf, x)
    assert distance.shape == count.shape == changed.shape, "there is not one distance for each candidate of each row"
    assert torch.equal(space.distance(x, x), torch.zeros(len(x))), "an unchanged row has a distance above 0"
    assert torch.equal(distance > 0, changed), "a distance is above 0 for an unchanged row, or 0 for a changed one"
    assert torch.equal(count > 0, changed), (
        "the number of changes is above 0 for an unchanged row, or 0 for a changed one"
    )
    pairs = space.pairwise_distance(x, x_cf[0])
    assert (pairs > -1e-4).all(), "a pairwise distance is below 0"
    assert torch.allclose(pairs, space.pairwise_distance(x_cf[0], x).T, rtol=1e-4, atol=1e-3), (
        "pairwise distances are not symmetric"
    )
    start = (x + 0.1).requires_grad_()
    space.distance(start, x).sum().backward()
    assert start.grad is not None, "no gradient of the distance reaches the answer"
    assert torch.isfinite(start.grad).all(), "a gradient of the distance is not finite"


def _check_smaller_changes(space: Space, x: Tensor, x_cf: Tensor) -> None:
    """Check that a part of an answer's changes can be undone or locked."""
    answer, smaller = space.smaller(x_cf, x)
    own = space.take(answer)
    assert torch.equal(own.project(smaller, x[answer]), smaller), "an answer with fewer changes is not feasible"
    narrower = space.lock_change(x_cf, x, 0)
    if narrower is not None:
        changed = (x_cf != x).flatten(1).any(dim=1)
        other = narrower.project(x_cf, x)
        assert torch.equal(space.project(other, x), other), "locking a change allows what the space does not"
        assert ((other != x_cf).flatten(1).any(dim=1) == changed).all(), "a locked change is still made"


def _check_neighbours(space: Space, x: Tensor, raw: Tensor) -> None:
    projected = space.project(raw, x)
    relaxed, features = space.relax(raw, x), space.constraint_features(x)
    for order in (torch.arange(len(x)).flip(0), torch.tensor([1]), torch.tensor([2, 0, 2])):
        part = space.take(order)
        assert torch.equal(part.project(raw[:, order], x[order]), projected[:, order]), (
            "an answer depends on other rows"
        )
        assert torch.allclose(part.relax(raw[:, order], x[order]), relaxed[:, order], atol=1e-5), (
            "a relaxed answer depends on other rows"
        )
        assert torch.equal(part.constraint_features(x[order]), features[order]), (
            "constraint features depend on other rows"
        )
