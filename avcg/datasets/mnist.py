"""MNIST: handwritten digits."""

from __future__ import annotations

import gzip
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avcg.datasets.base import ReadFile, Specification
from avcg.datasets.fetch import Source

_URL = "https://ossci-datasets.s3.amazonaws.com/mnist"
_IMAGES = ("train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz")
_LABELS = ("train-labels-idx1-ubyte.gz", "t10k-labels-idx1-ubyte.gz")
_SHA256 = {
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
_IMAGES_HEADER, _LABELS_HEADER = 16, 8  # bytes before the data in an IDX file


def _read(read_file: ReadFile) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    def data(file: str, header: int) -> NDArray[np.uint8]:
        return np.frombuffer(gzip.decompress(read_file(f"mnist/{file}")), np.uint8, offset=header)

    images = np.concatenate([data(file, _IMAGES_HEADER) for file in _IMAGES])
    labels = np.concatenate([data(file, _LABELS_HEADER) for file in _LABELS])
    return images.reshape(-1, 28, 28), labels.astype(np.int64)


SPECIFICATION = Specification(
    name="mnist",
    title="MNIST",
    rows=70000,
    classes=tuple(range(10)),
    citation="LeCun, Y., Cortes, C. and Burges, C. J. C. (1998). The MNIST database of handwritten digits.",
    licence="commonly given as CC BY-SA 3.0",
    note="The 60,000 training images, then the 10,000 test images, 28 x 28 grey.",
    read=_read,
    schema=None,
    sources=tuple(
        Source(path=f"mnist/{file}", sha256=sha256, url=f"{_URL}/{file}") for file, sha256 in _SHA256.items()
    ),
)
