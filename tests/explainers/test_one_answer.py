"""One answer, whoever is asked: Python, the commands, tables in parts, the light scorer, the service."""

import csv
import json
import warnings
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
import pytest
from command_line import run
from served import request

from avcg import AVCG, Classifier, Recipe, Schema, load, retrains, toys
from avcg.batch import BatchOptions, PartitionExplainer, explain_shards
from avcg.io.scorer import Scorer
from avcg.method.query import QueryOptions
from avcg.serve.app import create_app
from avcg.serve.engine import ExplainerEngine

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("onnxruntime")

N = 40
LOANS = toys.loans(n=300)
# Gaps in a number and a category, a whole number, a yes or no, an order, and a column that nobody reads.
ROWS = LOANS.X.astype({"income": "float64"}).assign(
    income=lambda X: X["income"].where(np.arange(len(X)) % 9 > 0),
    rating=lambda X: X["rating"].astype(object).where(np.arange(len(X)) % 7 > 0, None),
)
LABELS = np.where(LOANS.y == 1, "yes", "no")
ASKED = [
    {"effort": effort, "typicality": typicality, "n": n}
    for effort, typicality in (("fast", None), ("fast", 0.8), ("standard", None), ("standard", 0.0),
                               ("standard", 1.0), ("thorough", None), ("thorough", 0.0))
    for n in (1, 3)
]  # fmt: skip
each_query = pytest.mark.parametrize("asked", ASKED, ids=lambda asked: "-".join(map(str, asked.values())))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A stored explainer with graphs, and the same rows in files of every kind."""
    folder = tmp_path_factory.mktemp("one")
    schema = Schema.infer(LOANS.X).only_up("months").allow_missing("income", "rating")
    model = Classifier(hidden=(16,), epochs=60, patience=None, schema=schema).fit(ROWS, LABELS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so short a training may not keep its promise
        hypotheses = retrains(model, ROWS, LABELS, n=8, resampling="bootstrap")
        explainer = AVCG(hypotheses, recipe=Recipe(steps=150, layers=(32, 32), batch_size=64)).fit(ROWS)
    dtypes = {name: str(dtype) for name, dtype in ROWS.dtypes.items()}
    explainer.save(folder / "art", graphs=True, about={"positive": "yes", "dtypes": dtypes})
    asked_rows().to_csv(folder / "rows.csv", index=False)
    (folder / "shards").mkdir()
    table = pa.Table.from_pandas(asked_rows(), preserve_index=False)
    for i, (start, stop) in enumerate(((0, 1), (1, 17), (17, N))):
        pq.write_table(table.slice(start, stop - start), folder / "shards" / f"{i}.parquet")
    return folder


@pytest.fixture(scope="module")
def explainer(folder):
    return load(folder / "art")


@pytest.fixture(scope="module")
def scorer(folder):
    return Scorer(folder / "art")


@cache
def asked_rows():
    return ROWS.head(N)


def as_dicts(frame):
    return [
        {name: None if value is None or value != value else value for name, value in row.items()}
        for row in frame.astype(object).to_dict("records")
    ]


@dataclass(frozen=True)
class Told:
    """What is said of one answer, on every surface."""

    row: int
    status: str
    changes: dict
    distance: float


def told(rows):
    """The answers in rows of `avcg.explainers.records`, in order."""
    return [
        Told(i, option.status, {name: after for name, (_, after) in option.changes.items()}, option.distance)
        for i, row in enumerate(rows)
        for option in row.options
    ]


_WANTED = {}


def expected(explainer, asked):
    """What `generate` says, which every other surface is compared with; asked once for each query."""
    key = (id(explainer), *asked.items())
    if key not in _WANTED:
        _WANTED[key] = explainer, told(explainer.generate(asked_rows(), "yes", **asked))  # keeps the id taken
    return _WANTED[key][1]


def assert_same(found, wanted, digits=6, distance=2e-5):
    """The same columns, categories, statuses and numbers; the last digits of a float32 code are nobody's concern."""
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert (one.row, one.status) == (other.row, other.status)
        assert {name: _plain(value, digits) for name, value in one.changes.items()} == {
            name: _plain(value, digits) for name, value in other.changes.items()
        }, one
        assert one.distance == pytest.approx(other.distance, abs=distance, rel=distance)


def _plain(value, digits):
    return round(float(value), digits) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def from_table(rows, before):
    """Answers of a table of result columns beside the rows' own."""
    found = []
    for row in rows:
        place = before[row["place"]]
        names = [part.partition(": ")[0] for part in (row["changes"] or "").split("; ") if part]
        changes = {name: row[name] for name in names}
        for name in place:
            assert name in names or _equal(row[name], place[name]), "what is not among the changes is as it was"
        found.append(Told(row["place"], row["status"], changes, row["distance"]))
    return found


def _equal(one, other):
    return one == other or (one is None and other is None) or str(one) == str(other)


class TestPython:
    @each_query
    def test_options_in_one_object(self, explainer, asked):
        found = explainer.query(asked_rows(), "yes", QueryOptions(**asked))
        assert told(found) == expected(explainer, asked)

    def test_loaded_and_stored_are_one(self, explainer, folder, tmp_path):
        explainer.save(tmp_path / "again")
        assert expected(load(tmp_path / "again"), ASKED[4]) == expected(explainer, ASKED[4])

    @pytest.mark.parametrize("asked", ASKED[4::6], ids=str)
    def test_rows_alone_and_in_another_order(self, explainer, asked):
        wanted, n = expected(explainer, asked), asked["n"]
        turned = told(explainer.generate(asked_rows().iloc[::-1], "yes", **asked))
        for i in range(N):
            mine = wanted[i * n : i * n + n]
            back = turned[(N - 1 - i) * n : (N - i) * n]
            assert_same([Told(i, one.status, one.changes, one.distance) for one in back], mine)
        for i in (0, 9, 33):
            alone = told(explainer.generate(asked_rows().iloc[[i]], "yes", **asked))
            mine = wanted[i * n : i * n + n]
            assert_same([Told(i, one.status, one.changes, one.distance) for one in alone], mine)


class TestCommand:
    def arguments(self, asked):
        typicality = [] if asked["typicality"] is None else ["--typicality", asked["typicality"]]
        return ["-n", asked["n"], "--effort", asked["effort"], *typicality, "--all"]

    @each_query
    def test_csv(self, explainer, folder, asked, tmp_path):
        done = run("explain", folder / "art", folder / "rows.csv", *self.arguments(asked), "--out", tmp_path / "a.csv")
        assert done.code == 0, done.err
        with (tmp_path / "a.csv").open() as file:
            rows = list(csv.DictReader(file))
        with (folder / "rows.csv").open() as file:
            before = list(csv.DictReader(file))
        found = from_table([{**row, "place": int(row["row"])} for row in rows], before)
        kinds = {"income": float, "months": int, "owns": lambda text: text == "True", "housing": str, "rating": str}
        found = [
            Told(
                one.row,
                one.status,
                {name: kinds[name](value) for name, value in one.changes.items()},
                float(one.distance),
            )
            for one in found
        ]
        assert_same(found, expected(explainer, asked))

    @pytest.mark.parametrize("asked", ASKED[2::5], ids=str)
    def test_json(self, explainer, folder, asked, tmp_path):
        from avcg import Counterfactuals

        lines = run("explain", folder / "art", folder / "rows.csv", *self.arguments(asked), "--json")
        assert lines.code == 0, lines.err
        found = [json.loads(line) for line in lines.out.splitlines()]
        each = [
            Told(line["row"], line["status"], {name: line["values"][name] for name in _changed(line)}, line["distance"])
            for line in found
        ]
        wanted = expected(explainer, asked)
        assert_same(each, wanted)
        out = tmp_path / "answers.json"
        done = run("explain", folder / "art", folder / "rows.csv", *self.arguments(asked), "--out", out)
        assert done.code == 0, done.err
        assert_same(told(Counterfactuals.from_json(out.read_bytes())), wanted)


def _changed(line):
    return list(line["changes"]) if isinstance(line["changes"], dict) else [
        part.partition(": ")[0] for part in line["changes"].split("; ") if part
    ]  # fmt: skip


class TestTables:
    def options(self, asked):
        return BatchOptions(only_denied=False, **asked)

    @each_query
    def test_partitions_as_ray_and_spark_answer_them(self, explainer, folder, asked):
        table = pa.Table.from_pandas(asked_rows().assign(place=np.arange(N)), preserve_index=False)
        answer, before = PartitionExplainer(str(folder / "art"), self.options(asked)), as_dicts(asked_rows())
        wanted = expected(explainer, asked)
        assert_same(from_table(answer(table).to_pylist(), before), wanted)
        if asked["n"] == 1:
            batches = list(answer.batches(iter(table.to_batches(max_chunksize=13))))
            assert_same(from_table([row for batch in batches for row in batch.to_pylist()], before), wanted)

    @pytest.mark.parametrize("asked", ASKED[1::4], ids=str)
    def test_shards(self, explainer, folder, asked, tmp_path):
        totals = explain_shards(folder / "shards", tmp_path / "out", folder / "art", self.options(asked), workers=1)
        assert totals.rows == N
        found, start, before = [], 0, as_dicts(asked_rows())
        for i, size in enumerate((1, 16, N - 17)):
            rows = pq.read_table(tmp_path / "out" / f"{i}.parquet").to_pylist()
            found += from_table([{**row, "place": start + row["row"]} for row in rows], before)
            start += size
        assert_same(found, expected(explainer, asked))


class TestWithoutTorch:
    @each_query
    def test_the_scorer(self, explainer, scorer, asked):
        assert_same(told(scorer.answer(as_dicts(asked_rows()), "yes", **asked)), expected(explainer, asked))

    @pytest.mark.parametrize("asked", ASKED[4::6], ids=str)
    def test_the_scorer_row_by_row(self, explainer, scorer, asked):
        rows, wanted, n = as_dicts(asked_rows()), expected(explainer, asked), asked["n"]
        for i in range(0, N, 5):
            alone = told(scorer.answer([rows[i]], "yes", **asked))
            mine = [Told(0, one.status, one.changes, one.distance) for one in wanted[i * n : i * n + n]]
            assert_same(alone, mine)


class TestService:
    @each_query
    def test_the_engine(self, explainer, asked):
        found = ExplainerEngine(explainer).answer(as_dicts(asked_rows()), "yes", **asked)
        assert_same(told(found), expected(explainer, asked))

    @each_query
    def test_over_http(self, explainer, scorer, asked):
        app = create_app(scorer, examples=as_dicts(asked_rows().iloc[[1]]))
        body = {"rows": as_dicts(asked_rows()), "target": "yes", **asked}
        response = request(app, "POST", "/explain", json=json.loads(json.dumps(body, default=_to_python)))
        assert response.status_code == 200, response.text
        found = [
            Told(i, one["status"], {name: both["after"] for name, both in one["changes"].items()}, one["distance"])
            for i, row in enumerate(response.json()["rows"])
            for one in row["options"]
        ]
        assert_same(found, expected(explainer, asked))


def _to_python(value):
    return value.item()


class TestAnyClass:
    """Where more than two classes are there and any other will do."""

    @pytest.fixture(scope="class")
    @classmethod
    def three(cls, tmp_path_factory):
        folder = tmp_path_factory.mktemp("three")
        income = LOANS.X["income"]
        labels = np.where(income > 55, "high", np.where(income > 38, "middle", "low"))
        model = Classifier(hidden=(16,), epochs=60, patience=None, schema=LOANS.schema).fit(LOANS.X, labels)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            hypotheses = retrains(model, LOANS.X, labels, n=8, resampling="bootstrap")
            explainer = AVCG(hypotheses, recipe=Recipe(steps=100, layers=(32, 32), batch_size=64)).fit(LOANS.X)
        explainer.save(folder / "art", graphs=True)
        return explainer, Scorer(folder / "art")

    @pytest.mark.parametrize(
        "asked",
        [
            {},
            {"n": 3},
            {"effort": "fast", "n": 2},
            {"effort": "thorough", "typicality": 0.0},
            {"vary": []},
            {"vary": [], "n": 2},
            {"max_changes": 0},
            {"vary": ["owns"]},
            {"vary": ["housing", "rating"], "n": 2},
            {"min_prob": 0.999, "vary": ["income"]},
        ],
        ids=str,
    )
    def test_the_scorer_and_the_explainer_aim_at_the_same(self, three, asked):
        explainer, scorer = three
        rows = LOANS.X.head(N)
        wanted, found = list(explainer.generate(rows, **asked)), scorer.answer(as_dicts(rows), **asked)
        assert [row.target for row in found] == [row.target for row in wanted]
        assert_same(told(found), told(wanted))
        np.testing.assert_allclose(
            [option.probability for row in found for option in row.options],
            [option.probability for row in wanted for option in row.options],
            atol=1e-5,
        )


def test_all_kinds_of_rows_were_asked_about(explainer):
    wanted = expected(explainer, {"n": 3, "typicality": 0.0})
    assert {"ok", "already_target"} <= {one.status for one in wanted}
    assert {name for one in wanted for name in one.changes} == set(ROWS.columns)
    assert asked_rows()[["income", "rating"]].isna().any().all()
    assert pd.isna(asked_rows().loc[[one.row for one in wanted if "income" in one.changes], "income"]).any()
