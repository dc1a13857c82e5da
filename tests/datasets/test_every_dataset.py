"""A new dataset is found by its file, and a broken one is told what is wrong.

That the datasets of the room keep the contract is tested beside their other facts, where each is loaded once.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from avcg import Schema, datasets
from avcg.datasets import Source, Specification
from avcg.errors import DataError, SettingError
from avcg.testing import check_dataset

ROWS = pd.DataFrame({"size": np.linspace(0, 1, 60), "color": ["red", "blue", "green"] * 20})
COLORS = {"color": pd.CategoricalDtype(["blue", "green", "red"])}
SOURCE = Source("coins.csv", "0" * 64, "https://example.org/coins.csv")


def coins(**changes):
    """A specification of sixty made-up rows, changed."""
    return replace(
        Specification(
            name="coins", title="Coins", rows=60, classes=("head", "tail"), citation="Nobody (2020).", licence="CC0",
            note="Made up.", read=lambda _: (ROWS.copy(), np.array(["head", "tail"] * 30, object)),
            schema=Schema.infer, included_in="numpy",
        ),
        **changes,
    )  # fmt: skip


def other_labels(labels):
    return {"read": lambda _: (ROWS.copy(), np.array(labels, object))}


def other_rows(X):
    return {"read": lambda _: (X, coins().read(None)[1])}


def yearly(*ends):
    """The sixty rows in cohorts from 1999 on, which end before these positions."""

    def cohort(start, end):
        return lambda _: (ROWS[start:end].astype(COLORS), coins().read(None)[1][start:end])

    return {1999 + i: cohort(start, end) for i, (start, end) in enumerate(zip((0, *ends), (*ends, 60), strict=True))}


class Forgetful(Specification):
    """A specification whose rows have other cohorts than it lists."""

    def load(self, directory=None, **settings):
        rows = super().load(directory, **settings)
        kept = {"forgotten": None, "cut": rows.cohort[1:], "moved": rows.cohort + 1}
        return replace(rows, cohort=kept[self.note])


def draws_from_the_global_stream(_):
    np.random.random()  # noqa: NPY002
    return coins().read(None)


BROKEN = {
    "no licence": ({"licence": " "}, "has no licence"),
    "no citation": ({"citation": ""}, "has no citation"),
    "a name that is no file's": ({"name": "two coins"}, "'two coins' cannot be that of a file"),
    "no source": ({"included_in": None}, "give either sources or included_in"),
    "two sources": ({"included_in": None, "sources": (SOURCE, SOURCE)}, "two sources have the same path"),
    "a short checksum": (
        {"included_in": None, "sources": (replace(SOURCE, sha256="0" * 63),)}, "SHA-256 of coins.csv is not 64"
    ),
    "a checksum in capitals": (
        {"included_in": None, "sources": (replace(SOURCE, md5="A" * 32),)}, "MD5 of coins.csv is not 32"
    ),
    "no address": ({"included_in": None, "sources": (replace(SOURCE, url="coins.csv"),)}, "has no web address"),
    "a path elsewhere": (
        {"included_in": None, "sources": (replace(SOURCE, path="../coins.csv"),)}, "is not below the data directory"
    ),
    "one class": ({"classes": ("head",)}, "fewer than two classes"),
    "a class twice": ({"classes": ("head", "tail", "head")}, "listed twice"),
    "a class too many": ({"classes": ("head", "tail", "edge")}, "classes that no row has: {'edge'}"),
    "a class too few": (other_labels(["head", "tail", "edge"] * 20), "not listed as classes: {'edge'}"),
    "too few labels": (other_labels(["head", "tail"]), "60 rows and 2 labels"),
    "another number of rows": ({"rows": 61}, "there are 60 rows, and the specification says 61"),
    "a column left out": ({"schema": lambda X: Schema.infer(X[["size"]])}, "the schema describes"),
    "values out of reach": (
        {"schema": lambda X: Schema.infer(X.assign(size=X["size"].round()), kinds={"size": "categorical"})}, "size"
    ),
    "rows numbered otherwise": (other_rows(ROWS.set_axis(range(1, 61))), "not numbered from 0"),
    "images with a schema": (
        {**other_rows(np.zeros((60, 4, 4), np.uint8)), "schema": lambda _: Schema.infer(ROWS)}, "images have no columns"
    ),
    "a table without a schema": ({"schema": None}, "a table needs a schema"),
    "images of floats": ({**other_rows(np.zeros((60, 4, 4))), "schema": None}, "have dtype float64"),
    "channels first": ({**other_rows(np.zeros((60, 3, 4, 4), np.uint8)), "schema": None}, "have shape"),
    "cohorts in disorder": (
        {"read": dict(reversed(yearly(20, 40).items()))}, r"not in ascending order: \(2001, 2000, 1999\)"
    ),
    "a cohort without rows": ({"read": yearly(20, 20)}, r"not listed, or have no rows: \{2000\}"),
    "categories of one cohort": (
        {"read": yearly(1), "schema": lambda X: Schema.infer(X.assign(color=X["color"].astype(str)))},
        "the schema of cohort 1999 has other categories",
    ),
    "the global stream": ({"read": draws_from_the_global_stream}, "reading touched the global stream of numpy"),
}  # fmt: skip


def test_what_keeps_the_contract_passes():
    check_dataset(coins())
    images = np.random.default_rng(0).integers(0, 255, (60, 4, 4, 3), np.uint8)
    check_dataset(coins(**other_rows(images), schema=None))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("forgotten", "and the rows have none"),
        ("cut", "60 rows and 59 cohorts"),
        ("moved", "cohorts that are not listed"),
    ],
)
def test_cohorts_of_rows_that_are_not_those_listed_are_named(fault, message):
    with pytest.raises(AssertionError, match=message):
        check_dataset(Forgetful(**vars(coins(read=yearly(20), note=fault))))


def test_cohorts_of_rows_that_are_not_listed_at_all():
    with pytest.raises(AssertionError, match="the specification lists none"):
        check_dataset(coins(), replace(coins().load(), cohort=np.zeros(60, np.int64)))


class TestCohorts:
    coins = staticmethod(lambda: coins(read=yearly(20, 40)))

    def test_they_keep_the_contract(self):
        check_dataset(self.coins())
        assert self.coins().cohorts == (1999, 2000, 2001)
        assert coins().cohorts == ()

    @pytest.mark.parametrize(
        ("cohort", "years"),
        [(2000, [2000]), (np.int64(2000), [2000]), ([2001, 1999], [2001, 1999]), (range(1999, 2001), [1999, 2000]),
         (None, [1999, 2000, 2001])],
    )  # fmt: skip
    def test_one_several_or_all(self, cohort, years):
        data = self.coins().load(cohort=cohort)
        assert data.cohort.tolist() == [year for year in years for _ in range(20)]
        expected = [ROWS["size"][20 * (year - 1999) : 20 * (year - 1998)].tolist() for year in years]
        assert data.X["size"].tolist() == [size for part in expected for size in part]
        assert data.X.index.tolist() == list(range(20 * len(years)))
        assert data.X["color"].dtype == COLORS["color"]

    def test_rows_keep_theirs(self):
        assert self.coins().load().take(np.array([59, 0, 20])).cohort.tolist() == [2001, 1999, 2000]
        assert coins().load().take(np.array([0])).cohort is None

    @pytest.mark.parametrize(
        ("cohort", "error", "message"),
        [
            (2002, DataError, "'coins' has no cohort 2002. It has 3, from 1999 to 2001"),
            ([1999, 1], DataError, "no cohort 1. It has 3"),
            ("1999", SettingError, "must be a whole number such as 1999, or several. Got '1999'"),
            (1999.0, SettingError, "Got 1999.0 instead"),
            (True, SettingError, "Got True instead"),
            ([], SettingError, r"Got \[\] instead"),
            ([1999, 1999], SettingError, "must name each cohort once"),
        ],
    )
    def test_what_there_is_not(self, cohort, error, message):
        with pytest.raises(error, match=message):
            self.coins().load(cohort=cohort)

    def test_of_a_dataset_without(self):
        with pytest.raises(DataError, match=r"The dataset 'breast_cancer' has no cohorts. Leave out 'cohort'"):
            datasets.load("breast_cancer", cohort=1999)


@pytest.mark.parametrize("case", BROKEN)
def test_what_breaks_it_is_named(case):
    changes, message = BROKEN[case]
    state = np.random.get_state()  # noqa: NPY002
    with pytest.raises((AssertionError, ValueError), match=message):
        check_dataset(coins(**changes))
    np.random.set_state(state)  # noqa: NPY002


class BrokenSplit(datasets.Dataset):
    def split(self, seed=0):
        half = len(self) // 2
        order = np.argsort(self.y, kind="stable") if self.note == "sorted" else np.arange(len(self))
        end = half - 1 if self.note == "shared" else half
        last = len(self) - 1 if self.note == "lost" else len(self)
        return tuple(self.take(order[part]) for part in (slice(0, half), slice(end, half + 10), slice(half + 10, last)))


@pytest.mark.parametrize(
    ("fault", "message"),
    [("shared", "share a row"), ("lost", "loses rows"), ("unseeded", "another seed gives the same split")],
)
def test_a_broken_split_is_named(fault, message):
    fields = vars(coins().load()) | {"note": fault}
    with pytest.raises(AssertionError, match=message):
        check_dataset(coins(), BrokenSplit(**fields))


def test_a_split_that_is_not_stratified_is_named():
    class Unstratified(datasets.Dataset):
        def split(self, seed=0):
            order = np.roll(np.argsort(self.y, kind="stable"), seed)
            return tuple(self.take(part) for part in (order[:40], order[40:50], order[50:]))

    with pytest.raises(AssertionError, match="a part of 40 rows has 30 of 'head', not 20"):
        check_dataset(coins(), Unstratified(**vars(coins().load())))


def test_a_new_file_is_a_dataset(tmp_path, monkeypatch):
    (tmp_path / "dice.py").write_text("""
import numpy as np
import pandas as pd
from avcg import Schema
from avcg.datasets import Specification

SPECIFICATION = Specification(
    name="dice", title="Dice", rows=2, classes=(0, 1), citation="Nobody (2020).", licence="CC0", note="Made up.",
    read=lambda _: (pd.DataFrame({"pips": [1.0, 6.0]}), np.array([0, 1])), schema=Schema.infer, included_in="numpy",
)
""")
    monkeypatch.setattr(datasets, "__path__", [*datasets.__path__, str(tmp_path)])
    assert "dice" in datasets.names()
    assert datasets.about("dice")["kind"] == "table"
    assert len(datasets.load("dice")) == 2


@pytest.mark.parametrize("name", datasets.names())
def test_a_dataset_has_the_name_of_its_file(name):
    from importlib import import_module

    assert import_module(f"avcg.datasets.{name}").SPECIFICATION.name == name
