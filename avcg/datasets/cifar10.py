"""CIFAR-10: small colour photographs of ten kinds of things."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avcg.datasets.base import ReadFile, Specification
from avcg.datasets.fetch import Source

_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_SHA256 = {
    "cifar10/data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "cifar10/data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "cifar10/data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "cifar10/data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "cifar10/data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "cifar10/test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
_ROW_BYTES = 1 + 3 * 32 * 32  # a label, followed by the three colour channels


def _read(read_file: ReadFile) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    paths = list(_SHA256)
    # The first file is read alone: its download brings the whole archive, which two threads would download twice.
    read_file(paths[0])
    with ThreadPoolExecutor(2) as pool:  # decompression takes seconds for each batch, and releases the interpreter lock
        batches = [np.frombuffer(batch, np.uint8) for batch in pool.map(read_file, paths)]
    records = np.concatenate(batches).reshape(-1, _ROW_BYTES)
    images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), np.array(_CLASSES, object)[records[:, 0]]


SPECIFICATION = Specification(
    name="cifar10",
    title="CIFAR-10",
    rows=60000,
    classes=_CLASSES,
    citation="Krizhevsky, A. (2009). Learning Multiple Layers of Features from Tiny Images. Technical report,"
    " University of Toronto.",
    licence="none stated; freely distributed for research",
    note="The five training batches, then the test batch, 32 x 32 in colour, channels last.",
    read=_read,
    schema=None,
    sources=tuple(
        Source(
            path=path,
            sha256=sha256,
            url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            md5="c32a1d4ab5d03f1284b67883e8d87530",
        )
        for path, sha256 in _SHA256.items()
    ),
)
