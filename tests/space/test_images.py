import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from avcg import ImageSpace

SHAPES = {"none": (5, 6, 4), "last": (5, 6, 4, 3), "first": (5, 3, 6, 4)}


def pictures(layout="last", dtype=np.uint8, seed=0):
    rng = np.random.default_rng(seed)
    if dtype == np.uint8:
        return rng.integers(0, 256, SHAPES[layout], dtype=np.uint8)
    return rng.random(SHAPES[layout]).astype(dtype)


@pytest.mark.parametrize("layout", SHAPES)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_there_and_back(layout, dtype):
    images = pictures(layout, dtype)
    space = ImageSpace.fit(images)
    x = space.encode(images)
    assert x.shape == (5, *space.event_shape)
    assert x.dtype == torch.float32
    back = space.decode(x)
    assert (back.dtype, back.shape) == (images.dtype, images.shape)
    assert np.array_equal(back, images) if dtype == np.uint8 else np.abs(back - images).max() <= 1e-6
    assert np.array_equal(space.decode(x, like=images), images), "with the factuals at hand, bit for bit"


def test_channels_are_normalised():
    images = pictures()
    x = ImageSpace.fit(images).encode(images)
    torch.testing.assert_close(x.mean(dim=(0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std(dim=(0, 2, 3), correction=0), torch.ones(3), atol=1e-5, rtol=0)


@settings(max_examples=500)
@given(st.sampled_from(["none", "last", "first"]), st.sampled_from([np.uint8, np.float32]), st.integers(0, 10**6))
def test_any_decoder_output_becomes_a_picture(layout, dtype, seed):
    images = pictures(layout, dtype, seed)
    rng = np.random.default_rng(seed)
    mask = rng.random(images.shape[1:3] if layout != "first" else images.shape[2:]) < 0.5
    low, high = sorted(rng.integers(0, 256, 2) if dtype == np.uint8 else rng.random(2))
    space = ImageSpace.fit(images, may_change=mask).restrict(ranges=(low, high))
    x = space.encode(images)
    raw = torch.from_numpy(
        (rng.normal(size=(2, *x.shape)) * rng.choice([0.5, 1e6])).astype(np.float32)
    ).requires_grad_()
    relaxed = space.relax(raw, x)
    relaxed.sum().backward()
    assert torch.isfinite(raw.grad).all()
    x_cf = space.project(raw.detach(), x)
    assert torch.equal(space.project(x_cf, x), x_cf)
    for answer in x_cf:
        decoded = space.decode(answer, like=images)
        still = {"none": ~mask, "last": ~mask[..., None], "first": ~mask}[layout]
        assert decoded.dtype == images.dtype
        assert np.array_equal(np.where(still, decoded, 0), np.where(still, images, 0)), "masked pixels are untouched"
        assert (decoded >= np.minimum(images, np.asarray(low, dtype))).all()
        assert (decoded <= np.maximum(images, np.asarray(high, dtype))).all()


def test_each_row_its_own_mask():
    images = np.full((2, 4, 4), 100, np.uint8)
    images[0, 0, 0] = 200  # so that there is something to scale by
    masks = np.zeros((2, 4, 4), bool)
    masks[0, 0], masks[1, 1] = True, True
    space = ImageSpace.fit(images).restrict(vary=masks)
    x = space.encode(images)
    changed = space.decode(space.project(x + 1e6, x), like=images) != images
    assert np.array_equal(changed, masks)


def test_distance_is_zero_at_home_and_symmetric():
    images = pictures()
    space = ImageSpace.fit(images)
    x = space.encode(images)
    other = space.project(torch.randn(x.shape, generator=torch.Generator().manual_seed(0)), x)
    assert torch.equal(space.distance(x, x), torch.zeros(5))
    assert torch.equal(space.distance(x, other), space.distance(other, x))


def test_ranges_of_bytes_are_whole():
    space = ImageSpace.fit(pictures()).restrict(ranges=(10.5, 20.5))
    x = space.encode(np.full((1, 6, 4, 3), 15, np.uint8))
    down, up = (space.decode(space.project(x + step, x)) for step in (-1e6, 1e6))
    assert (down.min(), up.max()) == (11, 20)
