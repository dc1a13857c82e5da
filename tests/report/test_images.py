"""Pages of images, and drawings."""

import base64
import re
import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
from answer_pages import Page

from avcg import Classifier, retrains
from avcg.baselines.nearest import NearestUnlike
from avcg.errors import DataError
from avcg.report import svg
from avcg.report.answers_page import render
from avcg.report.images import png


@pytest.fixture(scope="module")
def of_images():
    images = np.random.default_rng(0).integers(0, 100, (60, 5, 4), dtype=np.uint8)
    images[::2, :2] += 120
    labels = np.array(["top", "none"] * 30)
    model = Classifier(hidden=(4,), epochs=20).fit(images, labels)
    return NearestUnlike(retrains(model, images, labels, n=4)).fit(images), images


class TestImages:
    def pictures(self, page):
        found = []
        for tag, name, at in page.attributes:
            if (tag, name) == ("img", "src"):
                assert at.startswith("data:image/png;base64,")
                found.append(read_png(base64.b64decode(at.removeprefix("data:image/png;base64,"))))
        return found

    @pytest.mark.parametrize("n", [1, 2])
    def test_before_after_and_difference(self, of_images, n):
        method, images = of_images
        answers = method.generate(images[:9], target="top", n=n)
        page = Page.of(render(answers, method))
        assert "Which columns change: Images have no columns." in page.text("rests")
        changed = [i for i in range(9) if answers.statuses[i * n] != "already_target"]
        found = self.pictures(page)
        assert len(found) == 3 * n * len(changed)
        named = [line[0] for line in page.tables["people"][1:] if len(line) == 7]  # the others are further answers
        assert named[: len(changed)] == [str(i) for i in changed]
        for place, row in enumerate(changed):
            for k in range(n):
                before, after, difference = found[3 * (place * n + k) :][:3]
                assert (before == images[row][..., None]).all()
                own = answers.answers[row * n + k]
                assert (after == own[..., None]).all()
                same = own == images[row]
                assert (difference[same] == 236).all()
                assert not (difference[~same] == 236).all(axis=-1).any()

    @pytest.mark.parametrize("shape", [(6, 8, 8, 3), (6, 3, 8, 8), (6, 1, 8, 8), (6, 300, 200)])
    def test_layouts_and_sizes(self, of_images, shape):
        method, images = of_images
        told_ones = method.generate(images[[1, 3, 5, 7, 9, 11]], target="top")
        rng = np.random.default_rng(1)
        first, second = rng.random((2, *shape))
        page = Page.of(render(replace(told_ones, factuals=first, answers=second)))
        found = self.pictures(page)
        assert len(found) == 18
        assert max(found[0].shape) <= 96
        if shape == (6, 3, 8, 8):
            span = max(first.max(), second.max()) - (low := min(first.min(), second.min()))
            expected = np.round(255 * (np.moveaxis(first[0], 0, -1) - low) / span)
            assert (found[0] == expected).all()

    def test_channels_that_cannot_be_told(self, of_images):
        method, images = of_images
        told_ones = method.generate(images[[1, 3]], target="top")
        odd = np.zeros((2, 4, 4, 4))
        page = Page.of(render(replace(told_ones, factuals=odd, answers=odd)))
        assert "The images are not shown" in page.text("people")
        assert self.pictures(page) == []

    def test_no_columns_to_group_by(self, of_images):
        method, images = of_images
        with pytest.raises(DataError, match="Images have no columns to group by"):
            render(method.generate(images[:3], target="top"), method, by="x0")


def read_png(data):
    """Pixels of an unfiltered PNG, every checksum checked."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, body, size = 8, b"", None
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        kind, content = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0] == zlib.crc32(kind + content)
        if kind == b"IHDR":
            size = struct.unpack(">II", content[:8])
            assert content[8:] == bytes([8, 2, 0, 0, 0])
        body += content if kind == b"IDAT" else b""
        at += 12 + length
    lines = np.frombuffer(zlib.decompress(body), np.uint8).reshape(size[1], 1 + 3 * size[0])
    assert (lines[:, 0] == 0).all()
    return lines[:, 1:].reshape(size[1], size[0], 3).astype(int)


class TestDrawing:
    def test_a_png_is_read_back(self):
        pixels = np.random.default_rng(0).integers(0, 256, (7, 5, 3), dtype=np.uint8)
        assert (read_png(png(pixels)) == pixels).all()

    @pytest.mark.parametrize(("low", "high"), [(0, 1), (0.031, 0.97), (-3, 12), (5, 5), (0, 0), (1e-9, 2e-9), (0, 9e7)])
    @pytest.mark.parametrize("most", [3, 5, 8])
    def test_ticks_are_round_and_hold_everything(self, low, high, most):
        found = svg.ticks(low, high, most)
        assert found[0] <= low + 1e-12
        assert found[-1] >= high - 1e-12
        assert 2 <= len(found) <= most + 3
        steps = np.diff(found)
        np.testing.assert_allclose(steps, steps[0], rtol=1e-6)
        assert f"{steps[0]:.2e}"[:4] in ("1.00", "2.00", "2.50", "5.00")

    def test_a_bar_is_as_long_as_its_share(self):
        drawn = str(svg.share_bar(0.25, 0.1, 0.5, "a <quarter>"))
        assert "<title>a &lt;quarter&gt;</title>" in drawn
        assert re.search(r'class="holds" x="0" y="2" width="60"', drawn)
        assert re.search(r'class="whisker" x1="24" y1="8" x2="120"', drawn)
        assert 'class="holds" x="0" y="2" width="0"' in str(svg.share_bar(float("nan"), 0.0, 1.0, "none"))

    def test_parts_fill_the_whole(self):
        drawn = str(svg.stacked_bar([svg.Part("ok", 3, "three"), svg.Part("lost", 1, "one")], "x"))
        found = [
            (float(x), float(w)) for x, w in re.findall(r'<rect class="\w+" x="([\d.]+)" y="0" width="([\d.]+)"', drawn)
        ]
        assert found == [(0, 748), (750, 248)]

    def test_a_curve_with_holes_and_of_many_epochs(self):
        words = svg.Words("loss", "it falls")
        drawn = str(svg.curve([float("nan"), 2.0, 1.0], words))
        assert drawn.count(",") == 2
        assert str(svg.curve([1.0] * 5000, words)).count(",") <= 202
        assert "polyline" not in str(svg.curve([float("nan")], words))
