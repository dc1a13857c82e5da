"""The published files: what is in them, and what happens when they are not what they should be."""

import gzip
import hashlib
import http.server
import lzma
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from avcg import Categorical, TabularSpace, datasets
from avcg.datasets import fetch as files
from avcg.datasets import mnist
from avcg.datasets.published import specification
from avcg.errors import DataFileError, MissingExtraError
from avcg.testing import check_dataset

COUNTS = {
    "breast_cancer": {"malignant": 212, "benign": 357},
    "adult": {"<=50K": 24_720 + 12_435, ">50K": 7_841 + 3_846},
    "heart": {"healthy": 160, "disease": 137},
    "sba": {"charged off": 150_485, "paid in full": 364_365},
    "spambase": {"ham": 2_788, "spam": 1_813},
    "mnist": dict(enumerate([6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958])),
    "cifar10": dict.fromkeys(
        ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"], 6000
    ),
}
SHAPES = {
    "breast_cancer": (569, 30),
    "adult": (48_842, 14),
    "heart": (297, 13),
    "sba": (514_850, 11),
    "spambase": (4_601, 57),
    "mnist": (70_000, 28, 28),
    "cifar10": (60_000, 32, 32, 3),
}


@pytest.fixture(scope="module")
def load():
    """Each dataset once, if its files are at hand."""
    kept = {}

    def get(name):
        if not datasets.available(name):
            pytest.skip(f"the files of {name} are not at hand; set AVCG_DATA to their directory")
        if name not in kept:
            kept[name] = datasets.load(name, download=False)
        return kept[name]

    return get


@pytest.mark.parametrize("name", COUNTS)
def test_rows_and_classes(load, name):
    data = load(name)
    assert data.X.shape == SHAPES[name]
    assert len(data) == SHAPES[name][0] == datasets.about(name)["rows"]
    assert Counter(data.y.tolist()) == COUNTS[name]


@pytest.mark.parametrize("name", datasets.names())
def test_every_file_is_the_published_one(load, name):
    load(name)
    for source in specification(name).sources:
        path = files.find(source, None)
        content = path.read_bytes()
        if path.name != Path(source.path).name:  # stored compressed once more
            content = {".xz": lzma.decompress, ".gz": gzip.decompress}[path.suffix](content)
        assert hashlib.sha256(content).hexdigest() == source.sha256


@pytest.mark.parametrize("name", datasets.names())
def test_it_keeps_the_contract(load, name):
    check_dataset(specification(name), load(name))


def test_adult_is_what_the_documentation_says(load):
    data = load("adult")
    frozen = {name for name in data.schema if data.schema[name].change == "none"}
    assert frozen == {"age", "sex", "race", "native-country", "fnlwgt"}
    assert data.schema.links == (("education-num", "education"),)
    assert {name: int((data.X[name] == "?").sum()) for name in ("workclass", "occupation", "native-country")} == {
        "workclass": 1836 + 963,
        "occupation": 1843 + 966,
        "native-country": 583 + 274,
    }
    assert "?" not in data.schema["occupation"].allowed
    assert not data.X.isna().any().any()


def test_heart_keeps_its_published_codes(load):
    data = load("heart")
    assert {name: data.schema[name].categories for name in ("cp", "thal", "slope")} == {
        "cp": (1, 2, 3, 4),
        "thal": (3, 6, 7),
        "slope": (1, 2, 3),
    }
    assert {name for name in data.schema if data.schema[name].change == "none"} == {"age", "sex"}
    assert data.schema["ca"].kind == "whole number"


def test_spambase_columns(load):
    data = load("spambase")
    assert list(data.X.columns[[0, 47, 48, 53, 54, 56]]) == [
        "word_freq_make", "word_freq_conference", "char_freq_;", "char_freq_#",
        "capital_run_length_average", "capital_run_length_total",
    ]  # fmt: skip
    assert int(data.X.assign(y=data.y).duplicated().sum()) == 391
    assert not any(isinstance(feature, Categorical) for feature in data.schema.features)


# Rows and charged-off loans of each year of approval.
LOANS = {
    1988: (1_408, 937), 1989: (6_979, 863), 1990: (7_684, 663), 1991: (8_069, 443),
    1992: (10_675, 450), 1993: (11_957, 434), 1994: (16_230, 696), 1995: (23_358, 1_296),
    1996: (20_813, 1_646), 1997: (19_924, 2_247), 1998: (19_568, 2_970), 1999: (20_578, 3_694),
    2000: (20_654, 4_266), 2001: (20_889, 4_450), 2002: (24_834, 5_187), 2003: (33_173, 8_425),
    2004: (40_312, 12_306), 2005: (48_329, 19_479), 2006: (51_124, 26_517), 2007: (51_025, 30_603),
    2008: (27_332, 15_924), 2009: (11_009, 3_644), 2010: (9_237, 2_122), 2011: (6_586, 910),
    2012: (3_103, 313),
}  # fmt: skip


class TestSba:
    def test_each_year(self, load):
        data = load("sba")
        years = {}
        for year in specification("sba").cohorts:
            own = data.y[data.cohort == year]
            years[year] = (len(own), int((own == "charged off").sum()))
        assert years == LOANS
        assert sorted(data.cohort) == data.cohort.tolist()

    def test_one_year_is_a_part_of_all(self, load):
        whole, year = load("sba"), datasets.load("sba", cohort=2004, download=False)
        own = whole.take(np.flatnonzero(whole.cohort == 2004))
        pd.testing.assert_frame_equal(year.X, own.X.reset_index(drop=True))
        assert (year.y == own.y).all()
        assert set(year.cohort) == set(own.cohort) == {2004}
        assert year.split(seed=1)[2].cohort.tolist() == [2004] * 8063

    def test_what_may_change(self, load):
        schema = load("sba").schema
        assert {name for name in schema if schema[name].change == "none"} == {
            "State", "Sector_Points", "NewExist", "UrbanRural", "guaranteed_share",
        }  # fmt: skip
        assert all(feature.change == "none" or feature.allowed == ("no",) for feature in schema.categorical)
        assert not {"DisbursementGross", "SBA_Appv", "Approve", "year"} & set(schema)

    def test_amounts_are_the_published_dollars(self, load):
        data, path = load("sba"), files.find(specification("sba").sources[16], None)
        published = pd.read_csv(path)
        own = data.X[data.cohort == 2004].reset_index(drop=True)
        np.testing.assert_allclose(own["GrAppv"], np.exp(published["GrAppv"]), rtol=1e-12)
        guaranteed = own["GrAppv"] * own["guaranteed_share"]
        assert (np.abs(guaranteed - np.exp(published["SBA_Appv"])) <= 0.00005 * own["GrAppv"] + 1e-6).all()
        assert own["GrAppv"].dtype == np.int64

    def test_undefined_codes_are_unknown(self, load):
        X = load("sba").X
        counts = {name: int((X[name] == "unknown").sum()) for name in ("NewExist", "UrbanRural", "LowDoc")}
        assert counts == {"NewExist": 525, "UrbanRural": 163_393, "LowDoc": 727 + 445 + 420 + 334 + 52}
        assert int((X["Sector_Points"] == "unknown").sum()) == 100_255

    def test_a_model_of_one_year_reads_another(self, load):
        load("sba")
        early, late = (datasets.load("sba", cohort=year, download=False) for year in (1988, 2012))
        codes = TabularSpace.fit(early.schema, early.X).encode(late.X)
        assert codes.shape[0] == 3_103
        assert bool(codes.isfinite().all())

    def test_only_the_files_of_the_chosen_years_are_needed(self, load, tmp_path, monkeypatch):
        load("sba")
        path = files.find(specification("sba").sources[0], None)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.delenv("AVCG_DATA", raising=False)
        (tmp_path / "sba").mkdir()
        (tmp_path / "sba" / path.name).write_bytes(path.read_bytes())
        assert not datasets.available("sba", tmp_path)
        assert len(datasets.load("sba", tmp_path, cohort=1988, download=False)) == 1_408
        with pytest.raises(DataFileError, match=r"sba/1989.csv was not found in .*Put it there, set AVCG_DATA"):
            datasets.load("sba", tmp_path, cohort=[1988, 1989], download=False)


def test_mnist_starts_as_everybody_knows(load):
    data = load("mnist")
    assert data.y[:5].tolist() == [5, 0, 4, 1, 9]
    assert data.X.dtype == np.uint8


def test_a_split_has_the_papers_shares():
    train, validation, test = datasets.load("breast_cancer").split(seed=3)
    assert (len(train), len(validation), len(test)) == (386, 69, 114)


CONTENT = b"one,two\n1,2\n"
SOURCE = files.Source("toy.csv", hashlib.sha256(CONTENT).hexdigest(), "http://127.0.0.1:1/toy.csv")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("AVCG_DATA", raising=False)
    return tmp_path / "cache" / "avcg"


@pytest.fixture
def server(tmp_path):
    """A web server on this machine; answers are added by path."""
    answers = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body, length = answers.get(self.path, (None, 0))
            self.send_response(200 if body is not None else 404)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *arguments):
            pass

    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{running.server_port}", answers
    running.shutdown()
    running.server_close()
    thread.join()


def source_at(server, **changes):
    return files.Source(**({"path": "toy.csv", "sha256": SOURCE.sha256, "url": f"{server}/toy.csv"} | changes))


class TestFiles:
    def test_places_in_order(self, tmp_path, cache, monkeypatch):
        for place in (tmp_path / "given", tmp_path / "named", cache):
            place.mkdir(parents=True)
            (place / "toy.csv").write_bytes(CONTENT)
        monkeypatch.setenv("AVCG_DATA", str(tmp_path / "named"))
        assert files.find(SOURCE, tmp_path / "given").parent.name == "given"
        assert files.find(SOURCE, None).parent.name == "named"
        monkeypatch.delenv("AVCG_DATA")
        assert files.find(SOURCE, None).parent == cache

    def test_a_changed_or_truncated_file_is_refused(self, tmp_path, cache):
        for content in (CONTENT + b"x", CONTENT[:5], b""):
            (tmp_path / "toy.csv").write_bytes(content)
            with pytest.raises(DataFileError, match=r"toy.csv is not the published one: its SHA-256.*Delete it"):
                files.read(SOURCE, tmp_path, download=False)

    @pytest.mark.parametrize(("suffix", "compress"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)])
    def test_a_file_may_be_stored_compressed(self, tmp_path, cache, suffix, compress):
        (tmp_path / f"toy.csv{suffix}").write_bytes(compress(CONTENT))
        assert files.read(SOURCE, tmp_path, download=False) == CONTENT

    @pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress)])
    @pytest.mark.parametrize("damage", [lambda whole: whole[: len(whole) // 2], lambda _: b"no archive", lambda _: b""])
    def test_a_damaged_compressed_file_is_refused(self, tmp_path, cache, suffix, compress, damage):
        (tmp_path / f"toy.csv{suffix}").write_bytes(damage(compress(CONTENT * 1000)))
        with pytest.raises(DataFileError, match=rf"toy.csv{suffix} is (damaged or truncated|not the published one)"):
            files.read(SOURCE, tmp_path, download=False)

    def test_a_truncated_archive_is_refused(self, tmp_path, cache):
        whole = lzma.compress(CONTENT * 1000)
        (tmp_path / "toy.bin.xz").write_bytes(whole[: len(whole) // 2])
        with pytest.raises(DataFileError, match=r"toy.bin.xz is damaged or truncated"):
            files.read(files.Source("toy.bin", "0", ""), tmp_path, download=False)

    def test_a_missing_file_says_where_it_was_looked_for(self, tmp_path, cache):
        with pytest.raises(DataFileError, match=r"toy.csv was not found in .*avcg. Put it there, set AVCG_DATA"):
            files.read(SOURCE, tmp_path, download=False)

    def test_a_missing_file_without_network(self, cache):
        with pytest.raises(DataFileError, match=r"could not be downloaded from http.*set AVCG_DATA"):
            files.read(SOURCE, None, download=True)
        assert leftovers(cache) == []

    def test_a_download_is_checked_and_kept(self, cache, server):
        url, answers = server
        answers["/toy.csv"] = (CONTENT, len(CONTENT))
        assert files.read(source_at(url), None, download=True) == CONTENT
        answers.clear()
        assert files.read(source_at(url), None, download=True) == CONTENT, "from the cache"

    @pytest.mark.parametrize("body", [(CONTENT[:6], 6), (CONTENT[:6], len(CONTENT)), (b"another", 7)])
    def test_a_failed_download_leaves_nothing(self, cache, server, body):
        url, answers = server
        answers["/toy.csv"] = body
        with pytest.raises(DataFileError, match="could not be downloaded"):
            files.read(source_at(url), None, download=True)
        assert leftovers(cache) == []

    def test_a_file_inside_an_archive(self, tmp_path, cache, server):
        import io
        import tarfile

        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            entry = tarfile.TarInfo("batches/toy.bin")
            entry.size = len(CONTENT)
            archive.addfile(entry, io.BytesIO(CONTENT))
        url, answers = server
        answers["/all.tar.gz"] = (packed.getvalue(), len(packed.getvalue()))
        md5 = hashlib.md5(packed.getvalue()).hexdigest()
        source = source_at(url, path="parts/toy.bin", url=f"{url}/all.tar.gz", md5=md5)
        assert files.read(source, None, download=True) == CONTENT
        assert leftovers(cache) == ["all.tar.gz", "parts/toy.bin"]

    def test_without_the_extra_the_way_to_it_is_named(self, cache, monkeypatch):
        import sys

        monkeypatch.setitem(sys.modules, "pooch", None)
        with pytest.raises(
            MissingExtraError, match=r"needs the package 'pooch'. Install it with: pip install 'avcg\[data\]'"
        ):
            files.read(SOURCE, None, download=True)

    def test_a_damaged_dataset_file_is_refused_by_name(self, tmp_path, cache):
        (tmp_path / "spambase.data").write_bytes(b"1,2,3\n")
        with pytest.raises(DataFileError, match=r"spambase.data is not the published one"):
            datasets.load("spambase", tmp_path)


def leftovers(cache):
    return (
        sorted(str(path.relative_to(cache)) for path in Path(cache).rglob("*") if path.is_file())
        if cache.exists()
        else []
    )


def test_idx_files_are_read_from_their_headers_on(tmp_path):
    """A hand-made pair of files, one image each, through the very reader of MNIST."""
    header = {
        "images-idx3": b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (1, 28, 28)),
        "labels-idx1": b"\0\0\x08\x01\0\0\0\x01",
    }
    pixels = bytes(range(256)) * 3 + bytes(16)

    def read(path):
        return gzip.compress(header["images-idx3"] + pixels if "images" in path else header["labels-idx1"] + b"\x07")

    images, labels = mnist._read(read)
    assert images.shape == (2, 28, 28)
    assert images[1].tobytes() == pixels
    assert labels.tolist() == [7, 7]
