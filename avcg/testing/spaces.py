"""The contract of a space: rows to codes and back, under constraints."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from avcg.space.base import Space
from avcg.testing.unchanged import same_rows, streams_untouched

# Decoder output that says which category it wants, and nothing of the others.
_CERTAIN = 1e5
_CANDIDATES = 3


def check_space(space: Space, X: Any, *, seed: int = 0) -> None:
    """Assert that a space keeps the promises that generators, searches and people rely on.

    Rows come back from their codes as they were. `project` is exact, feasible and final, and staying is always allowed;
    `relax` and `finalize` agree with it; the numpy and the torch view say the same. A request only narrows; a row does
    not depend on its neighbours. A distance is 0 if nothing changed, and else above it. Gradients are finite and reach
    every row that may change. Arguments and global random streams stay untouched.

    Args:
        space: Fitted. A change must cost something, whatever changes.
        X: Rows of the space in user units, at least three, of which some may change.
        seed: Of the candidates that are tried.

    Raises:
        AssertionError: With what does not hold.
    """
    original = copy.deepcopy(X)
    with streams_untouched("the space"):
        _check_promises(space, X, seed)
    assert same_rows(X, original), "the rows were written to"


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
    assert torch.equal(narrow.constraint_features(x), again.constraint_features(x)), "a seed draws other requests"
    for under in (space, narrow):
        x_cf = under.project(raw, x)
        _check_projection(under, X, x, raw, x_cf)
        _check_relaxation(under, x, raw, x_cf)
        _check_views(under, x, raw, x_cf)
        _check_distance(under, x, x_cf)
        _check_steps_back(under, x, x_cf[0])
    x_cf = narrow.project(raw, x)
    assert torch.equal(space.project(x_cf, x), x_cf), "a request allows what the space does not"
    _check_neighbours(narrow, x, raw)
    assert torch.equal(x, inputs[0]), "the codes of the factuals were written to"
    assert torch.equal(raw, inputs[1]), "the candidates were written to"


def _check_reading(space: Space, X: Any, x: Tensor) -> None:
    assert x.dtype == torch.float32, f"codes are {x.dtype}, not float32"
    assert tuple(x.shape[1:]) == tuple(space.event_shape), f"a row is encoded as {tuple(x.shape[1:])}"
    assert len(x) >= 3, "check_space needs at least three rows"
    assert torch.isfinite(x).all(), "codes are not finite"
    assert space.n_features >= 1, "there is no feature"
    assert torch.equal(space.encode(space.read(X)), x), "rows that were read before have other codes"
    assert same_rows(space.decode(x, X), X), "rows do not come back from their codes as they were"
    assert space.difference(space) is None, "the space differs from itself"
    torch.broadcast_to(space.is_logit, x.shape)
    crossed, again = (space.cross(x, x.flip(0), torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(crossed, again), "the same seed crosses rows differently"
    assert ((crossed == x) | (crossed == x.flip(0))).all(), "a crossed row has a code that neither row has"


def _check_projection(space: Space, X: Any, x: Tensor, raw: Tensor, x_cf: Tensor) -> None:
    assert x_cf.shape == raw.shape, f"project returns the shape {tuple(x_cf.shape)}"
    assert torch.equal(space.project(x_cf, x), x_cf), "projecting twice is not projecting once"
    assert torch.equal(space.project(x, x), x), "a row may not stay as it is"
    immovable = space.immovable(x)
    assert torch.equal(x_cf[:, immovable], x.expand_as(x_cf)[:, immovable]), "a row that is immovable was moved"
    read = space.read(X)
    for codes in x_cf:
        delivery = space.deliver(codes.numpy(), X, read)
        assert not delivery.broken.any(), "a projected answer breaks a constraint"
        received = torch.from_numpy(delivery.received)
        assert torch.allclose(received, codes, rtol=1e-5, atol=1e-4), "people receive something else than was projected"
        if delivery.changed is not None:
            moved = (received != x).flatten(1).any(dim=1).numpy()
            assert (delivery.changed.any(axis=1) == moved).all(), "cells that changed are not those that are reported"


def _check_relaxation(space: Space, x: Tensor, raw: Tensor, x_cf: Tensor) -> None:
    certain = torch.where(space.is_logit, x_cf * _CERTAIN, x_cf)
    back = space.project(space.relax(certain, x), x)
    assert torch.allclose(back, x_cf, rtol=1e-4, atol=1e-4), "relax moves a point that is feasible"
    assert torch.allclose(space.finalize(x_cf, x), x_cf, rtol=1e-4, atol=1e-4), (
        "finalize moves a point that is feasible"
    )
    if space.n_gates:
        shut = torch.zeros((*raw.shape[: x.dim()], space.n_gates), dtype=torch.bool)
        stays = torch.where(space.is_logit, x * _CERTAIN, raw)
        assert torch.equal(space.finalize(stays, x, shut), x.expand_as(raw)), "a number moves through a shut gate"
    # Descent leads back inside from beyond a limit and never further out: one of two opposite slopes passes.
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
    codes, here, found = space.codes, x.numpy(), x_cf.numpy()
    for view in (codes, codes.tensors.codes):
        assert np.array_equal(view.project(raw.numpy(), here), found), "the numpy view projects elsewhere"
    pairs = {
        "distance": (codes.distance(found, here), space.distance(x_cf, x)),
        "pairwise_distance": (codes.pairwise_distance(here, found[0]), space.pairwise_distance(x, x_cf[0])),
        "constraint_features": (codes.constraint_features(here), space.constraint_features(x)),
        "immovable": (codes.immovable(here), space.immovable(x)),
    }
    for name, (one, other) in pairs.items():
        assert np.allclose(one, other.numpy(), rtol=1e-4, atol=1e-4), f"{name} differs between numpy and torch"
    settled = codes.finalize(raw.numpy(), here, None, 2.0**-7)
    assert np.array_equal(codes.project(settled, here), settled), "the numpy view finalizes to what is not feasible"


def _check_distance(space: Space, x: Tensor, x_cf: Tensor) -> None:
    changed = (x_cf != x).flatten(2).any(dim=2)
    distance, count = space.distance(x_cf, x), space.count_changes(x_cf, x)
    assert distance.shape == count.shape == changed.shape, "there is not one distance for each candidate of each row"
    assert torch.equal(space.distance(x, x), torch.zeros(len(x))), "staying costs something"
    assert torch.equal(distance > 0, changed), "a distance is above 0 where nothing changed, or 0 where something did"
    assert torch.equal(count > 0, changed), "changes are counted where there are none, or not where there are some"
    pairs = space.pairwise_distance(x, x_cf[0])
    assert (pairs > -1e-4).all(), "a distance of one row from another is below 0"
    assert torch.allclose(pairs, space.pairwise_distance(x_cf[0], x).T, rtol=1e-4, atol=1e-3), (
        "distances of pairs differ"
    )
    start = (x + 0.1).requires_grad_()
    space.distance(start, x).sum().backward()
    assert start.grad is not None, "no gradient of the distance reaches the answer"
    assert torch.isfinite(start.grad).all(), "a gradient of the distance is not finite"


def _check_steps_back(space: Space, x: Tensor, x_cf: Tensor) -> None:
    """What is done to feasible answers: a part of their change taken back, or locked."""
    answer, smaller = space.smaller(x_cf, x)
    own = space.take(answer)
    assert torch.equal(own.project(smaller, x[answer]), smaller), "an answer with less change is not feasible"
    narrower = space.lock_change(x_cf, x, 0)
    if narrower is not None:
        changed = (x_cf != x).flatten(1).any(dim=1)
        other = narrower.project(x_cf, x)
        assert torch.equal(space.project(other, x), other), "locking a change allows what the space does not"
        assert ((other != x_cf).flatten(1).any(dim=1) == changed).all(), "the change that was locked is still made"


def _check_neighbours(space: Space, x: Tensor, raw: Tensor) -> None:
    whole = space.project(raw, x)
    relaxed, features = space.relax(raw, x), space.constraint_features(x)
    for order in (torch.arange(len(x)).flip(0), torch.tensor([1]), torch.tensor([2, 0, 2])):
        some = space.take(order)
        assert torch.equal(some.project(raw[:, order], x[order]), whole[:, order]), "an answer depends on other rows"
        assert torch.allclose(some.relax(raw[:, order], x[order]), relaxed[:, order], atol=1e-5), (
            "a relaxed answer depends on other rows"
        )
        assert torch.equal(some.constraint_features(x[order]), features[order]), (
            "what a row may change depends on other rows"
        )
