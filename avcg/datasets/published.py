"""The public datasets of the paper, as their authors distribute them, and how to split them.

Files are looked for in the directory given, in ``$AVCG_DATA``, in the user's cache, and are then downloaded from their
original sources (extra ``data``). Whatever the place, a file is used only if its SHA-256 is the published one.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from avcg.datasets import fetch as files
from avcg.datasets.fetch import Source
from avcg.errors import DataError, SettingError, did_you_mean
from avcg.schema.features import Categorical
from avcg.schema.schema import Schema

_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases"
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"
_CIFAR = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows in the user's own units, with labels, schema and provenance.

    Attributes:
        name: As given to `load`.
        X: A frame, or images (N, H, W) or (N, H, W, 3), uint8.
        y: (N,) labels.
        classes: The labels there are, in a fixed order.
        schema: What may change by default; None for images.
        citation: Whom to cite.
        licence: Under which the data are published.
        note: What was done to the original files.
    """

    name: str
    X: Any
    y: NDArray[Any]
    classes: tuple[str | int, ...]
    schema: Schema | None
    citation: str
    licence: str
    note: str

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: NDArray[np.intp]) -> Self:
        """Some of the rows, in the order given."""
        X = self.X.iloc[rows] if isinstance(self.X, pd.DataFrame) else self.X[rows]
        return replace(self, X=X, y=self.y[rows])

    def split(self, seed: int = 0) -> tuple[Self, Self, Self]:
        """Train, validation and test as in the paper: 80/20, then 15 % of train for validation; stratified by label.

        Args:
            seed: The same seed gives the same rows, whatever else has run before.

        >>> [len(part) for part in load("breast_cancer").split(seed=0)]
        [386, 69, 114]
        """
        from sklearn.model_selection import train_test_split

        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
            raise SettingError(f"The 'seed' of split must be a whole number from 0 to 2**32 - 1. Got {seed!r} instead.")
        fewest = min(int((self.y == label).sum()) for label in set(self.y.tolist()))
        if len(self) < 20 or fewest < 4:
            raise DataError(
                f"{len(self)} rows, {fewest} of the rarest class, are too few to split in three with every class in"
                " each."
            )
        rows = np.arange(len(self))
        rest, test = train_test_split(rows, test_size=0.2, stratify=self.y, random_state=seed)
        train, validation = train_test_split(rest, test_size=0.15, stratify=self.y[rest], random_state=seed)
        return self.take(train), self.take(validation), self.take(test)


Read = Callable[[str], bytes]


@dataclass(frozen=True)
class _Recipe:
    title: str
    rows: int
    citation: str
    licence: str
    sources: tuple[Source, ...]
    build: Callable[[Read], tuple[Any, NDArray[Any], tuple[str | int, ...], Schema | None]]
    note: str


def names() -> tuple[str, ...]:
    """The datasets there are.

    >>> names()
    ('breast_cancer', 'adult', 'heart', 'spambase', 'mnist', 'cifar10')
    """
    return tuple(_RECIPES)


def about(name: str) -> Mapping[str, str | int]:
    """Title, number of rows, kind (table or images), licence and citation, without loading anything."""
    recipe = _recipe(name)
    kind = "images" if recipe.build in (_mnist, _cifar10) else "table"
    return {
        "title": recipe.title,
        "rows": recipe.rows,
        "kind": kind,
        "licence": recipe.licence,
        "citation": recipe.citation,
    }


def load(name: str, directory: str | Path | None = None, *, download: bool = True) -> Dataset:
    """A dataset by name; see `names`.

    Args:
        name: Which one.
        directory: Where its files may lie; None: ``$AVCG_DATA``, if set.
        download: Whether files found nowhere may be fetched from their original source.

    Raises:
        DataError: If there is no such dataset.
        DataFileError: If a file is missing and cannot be fetched, or is not the published one.

    >>> data = load("breast_cancer")
    >>> data.X.shape, data.classes
    ((569, 30), ('malignant', 'benign'))
    """
    recipe = _recipe(name)
    sources = {source.path: source for source in recipe.sources}

    def read(path: str) -> bytes:
        return files.read(sources[path], directory, download)

    X, y, classes, schema = recipe.build(read)
    return Dataset(name, X, y, classes, schema, recipe.citation, recipe.licence, recipe.note)


def available(name: str, directory: str | Path | None = None) -> bool:
    """Whether all files of a dataset are at hand, without fetching or checking them."""
    return all(files.find(source, directory) for source in _recipe(name).sources)


def _recipe(name: str) -> _Recipe:
    if name not in _RECIPES:
        raise DataError(f"There is no dataset {name!r}. {did_you_mean(name, _RECIPES)}")
    return _RECIPES[name]


def _breast_cancer(_: Read) -> tuple[Any, NDArray[Any], tuple[str, ...], Schema]:
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer(as_frame=True)
    classes = tuple(str(name) for name in bunch.target_names)
    X = bunch.data
    # Measurements all, even if some column held whole numbers by chance.
    schema = Schema.infer(X, kinds=dict.fromkeys(X.columns, "continuous"))
    return X, np.array(classes, object)[bunch.target.to_numpy()], classes, schema


_ADULT = (
    "age workclass fnlwgt education education-num marital-status occupation relationship race sex capital-gain"
    " capital-loss hours-per-week native-country income"
).split()


def _adult(read: Read) -> tuple[Any, NDArray[Any], tuple[str, ...], Schema]:
    parts = [
        pd.read_csv(io.BytesIO(read(path)), names=_ADULT, skipinitialspace=True, skiprows=skip, keep_default_na=False)
        for path, skip in (("adult.data", 0), ("adult.test", 1))
    ]
    X = pd.concat(parts, ignore_index=True)
    y = X.pop("income").str.rstrip(".").to_numpy(object)
    schema = (
        Schema.infer(X)
        .link("education-num", "education")
        .cost("education-num", per_change=1.0)  # both columns change, and each is seen
        .freeze("age", "sex", "race", "native-country", "fnlwgt")
    )
    for feature in schema.features:
        if isinstance(feature, Categorical) and "?" in feature.categories and feature.change == "any":
            # An unknown occupation is a fact about a row, not advice to a person.
            schema = schema.allow(feature.name, [value for value in feature.categories if value != "?"])
    return X, y, ("<=50K", ">50K"), schema


_HEART = "age sex cp trestbps chol fbs restecg thalach exang oldpeak slope ca thal num".split()


def _heart(read: Read) -> tuple[Any, NDArray[Any], tuple[str, ...], Schema]:
    X = pd.read_csv(io.BytesIO(read("processed.cleveland.data")), names=_HEART, na_values="?").dropna()
    y = np.where(X.pop("num") > 0, "disease", "healthy").astype(object)
    X = X.astype({name: int for name in X.columns if name != "oldpeak"}).reset_index(drop=True)
    codes = ("sex", "cp", "fbs", "restecg", "exang", "slope", "thal")
    schema = Schema.infer(X, kinds=dict.fromkeys(codes, "categorical")).freeze("age", "sex")
    return X, y, ("healthy", "disease"), schema


_WORDS = (
    "make address all 3d our over remove internet order mail receive will people report addresses free business email"
    " you credit your font 000 money hp hpl george 650 lab labs telnet 857 data 415 85 technology 1999 parts pm direct"
    " cs meeting original project re edu table conference"
).split()
_SPAMBASE = [
    *(f"word_freq_{word}" for word in _WORDS),
    *(f"char_freq_{char}" for char in ";([!$#"),
    *(f"capital_run_length_{what}" for what in ("average", "longest", "total")),
]


def _spambase(read: Read) -> tuple[Any, NDArray[Any], tuple[str, ...], Schema]:
    X = pd.read_csv(io.BytesIO(read("spambase.data")), names=[*_SPAMBASE, "spam"])
    y = np.where(X.pop("spam") == 1, "spam", "ham").astype(object)
    return X, y, ("ham", "spam"), Schema.infer(X, kinds=dict.fromkeys(_SPAMBASE[:-2], "continuous"))


def _mnist(read: Read) -> tuple[Any, NDArray[Any], tuple[int, ...], None]:
    parts = ("train", "t10k")
    images = [
        np.frombuffer(gzip.decompress(read(f"mnist/{part}-images-idx3-ubyte.gz")), np.uint8, offset=16)
        for part in parts
    ]
    labels = [
        np.frombuffer(gzip.decompress(read(f"mnist/{part}-labels-idx1-ubyte.gz")), np.uint8, offset=8) for part in parts
    ]
    return np.concatenate(images).reshape(-1, 28, 28), np.concatenate(labels).astype(np.int64), tuple(range(10)), None


_CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR_FILES = (*(f"cifar10/data_batch_{i}.bin" for i in range(1, 6)), "cifar10/test_batch.bin")


def _cifar10(read: Read) -> tuple[Any, NDArray[Any], tuple[str, ...], None]:
    read(_CIFAR_FILES[0])  # brings the whole archive, if it must be downloaded, before two threads would each want to
    # Decompression takes seconds a batch and lets other threads run.
    with ThreadPoolExecutor(2) as pool:
        records = np.concatenate(
            [np.frombuffer(part, np.uint8).reshape(-1, 3073) for part in pool.map(read, _CIFAR_FILES)]
        )
    images = np.ascontiguousarray(records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    return images, np.array(_CIFAR_CLASSES, object)[records[:, 0]], _CIFAR_CLASSES, None


_CC_BY = "CC BY 4.0"
_CIFAR_MD5 = "c32a1d4ab5d03f1284b67883e8d87530"
_CIFAR_SHA256 = (
    "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
)

_RECIPES: dict[str, _Recipe] = {
    "breast_cancer": _Recipe(
        "Breast Cancer Wisconsin (Diagnostic)",
        569,
        "Wolberg, W., Mangasarian, O., Street, N. and Street, W. (1993). Breast Cancer Wisconsin (Diagnostic). UCI"
        " Machine Learning Repository. https://doi.org/10.24432/C5DW2B",
        _CC_BY,
        (),
        _breast_cancer,
        "Embedded in scikit-learn: 30 measurements of 569 tumours.",
    ),
    "adult": _Recipe(
        "Adult Income",
        48842,
        "Becker, B. and Kohavi, R. (1996). Adult. UCI Machine Learning Repository. https://doi.org/10.24432/C5XW20",
        _CC_BY,
        (
            Source(
                "adult.data",
                "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
                f"{_UCI}/adult/adult.data",
            ),
            Source(
                "adult.test",
                "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
                f"{_UCI}/adult/adult.test",
            ),
        ),
        _adult,
        "Both files, 32,561 and then 16,281 rows, with '?' kept as a category that no answer moves to. Age, sex, race,"
        " native-country and the survey weight fnlwgt are frozen; education and education-num change together.",
    ),
    "heart": _Recipe(
        "Heart Disease (Cleveland)",
        297,
        "Janosi, A., Steinbrunn, W., Pfisterer, M. and Detrano, R. (1989). Heart Disease. UCI Machine Learning"
        " Repository. https://doi.org/10.24432/C52P4X",
        _CC_BY,
        (
            Source(
                "processed.cleveland.data",
                "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
                f"{_UCI}/heart-disease/processed.cleveland.data",
            ),
        ),
        _heart,
        "The 297 complete rows of 303, codes as published; disease is any of the grades 1 to 4. Age and sex are"
        " frozen.",
    ),
    "spambase": _Recipe(
        "Spambase",
        4601,
        "Hopkins, M., Reeber, E., Forman, G. and Suermondt, J. (1999). Spambase. UCI Machine Learning Repository."
        " https://doi.org/10.24432/C53G6X",
        _CC_BY,
        (
            Source(
                "spambase.data",
                "b1ef93de71f97714d3d7d4f58fc9f718da7bbc8ac8a150eff2778616a8097b12",
                f"{_UCI}/spambase/spambase.data",
            ),
        ),
        _spambase,
        "All 4,601 rows, 391 of them exact duplicates of an earlier one, sorted by class as published.",
    ),
    "mnist": _Recipe(
        "MNIST",
        70000,
        "LeCun, Y., Cortes, C. and Burges, C. J. C. (1998). The MNIST database of handwritten digits.",
        "commonly given as CC BY-SA 3.0",
        tuple(
            Source(f"mnist/{file}", sha256, f"{_MNIST}/{file}")
            for file, sha256 in (
                ("train-images-idx3-ubyte.gz", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
                ("train-labels-idx1-ubyte.gz", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
                ("t10k-images-idx3-ubyte.gz", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
                ("t10k-labels-idx1-ubyte.gz", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
            )
        ),
        _mnist,
        "The 60,000 training images, then the 10,000 test images, 28 x 28 grey.",
    ),
    "cifar10": _Recipe(
        "CIFAR-10",
        60000,
        "Krizhevsky, A. (2009). Learning Multiple Layers of Features from Tiny Images. Technical report, University of"
        " Toronto.",
        "none stated; freely distributed for research",
        tuple(
            Source(path, sha256, _CIFAR, _CIFAR_MD5) for path, sha256 in zip(_CIFAR_FILES, _CIFAR_SHA256, strict=True)
        ),
        _cifar10,
        "The five training batches, then the test batch, 32 x 32 in colour, channels last.",
    ),
}
