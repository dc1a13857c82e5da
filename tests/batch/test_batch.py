"""More rows than one process should answer: the same answers, to the last bit, however rows are cut and who answers."""

import contextlib
import json
import os
import pickle
import random
import shutil
import signal
import sys
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import FIT, people, run

import avcg
from avcg.batch import BatchOptions, PartitionExplainer, engines, explain_ray, explain_shards, explain_spark, shards
from avcg.batch import answerer as answering
from avcg.batch import columns as answered
from avcg.bench import run as bench
from avcg.bench.store import Store
from avcg.errors import ArtifactError, AvcgError, DataError, MissingExtraError, SettingError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("pyarrow.compute")

ROWS = 260
CUTS = (0, 0, 1, 40, 41, 41, 170, ROWS)  # partitions of none and of one row among them
WISH = BatchOptions(vary=("income", "months", "housing", "owns"))
OPTIONS = ["--vary", "income,months,housing,owns"]
RESULT_COLUMNS = [name for name in answered.RESULT_COLUMNS if name != "row"]
KINDS = {
    "age": pa.int16(), "income": pa.float32(), "months": pa.int64(), "owns": pa.bool_(), "member": pa.bool_(),
    "housing": pa.dictionary(pa.int8(), pa.string()), "zip": pa.large_string(), "remark": pa.string(),
    "when": pa.timestamp("us"), "id": pa.string(),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scale")
    people().to_csv(folder / "data.csv", index=False)
    done = run("fit", folder / "data.csv", *FIT, "--hypotheses", 8, "--steps", 20, "--out", folder / "art", "--seed", 1)
    assert done.code == 0, done.err
    pq.write_table(strangers(), folder / "rows.parquet", row_group_size=90)
    return folder


@pytest.fixture(autouse=True)
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)


@pytest.fixture
def cleaned():
    """Engines draw from Python's and numpy's global streams, which is not our doing."""
    before, drawn = random.getstate(), np.random.get_state()  # noqa: NPY002
    yield
    random.setstate(before)
    np.random.set_state(drawn)  # noqa: NPY002


def strangers(n=ROWS):
    """People who were not in the data, under their ids, with gaps and with columns that nobody knows."""
    rows = people(n, seed=9).drop(columns="approved").set_index("id")
    rows = rows.assign(remark=[f"No. {i}" for i in range(n)], when=pd.Timestamp("2024-02-29 12:00"))
    return (
        pa.Table.from_pandas(rows)
        .cast(pa.schema(KINDS.items()))
        .replace_schema_metadata(pa.Table.from_pandas(rows).schema.metadata)
    )


def delivered(table):
    """Everything in a table, so that two of them are the same only if every bit of them is."""
    return repr(table.to_pylist()), [(field.name, str(field.type)) for field in table.schema]


def parts(table, cuts=CUTS):
    return [table.slice(start, stop - start) for start, stop in pairwise(cuts)]


def explained(name="rows.parquet", *options):
    """What `avcg explain` writes, without the places in the file."""
    found = run("explain", "art", name, *(options or OPTIONS), "--out", "by_command.parquet")
    assert found.code == 0, found.err
    return pq.read_table("by_command.parquet")


@pytest.fixture(scope="module")
def whole(folder):
    """The answers that everybody should give."""
    return PartitionExplainer(folder / "art", WISH)(strangers())


def mortal(place, times=1):
    """A class of explainers that are killed in the middle of their work, so many times in all."""
    alive, spot = os.getpid(), str(place)

    class Mortal(PartitionExplainer):  # local, so that it is sent to other processes as it stands
        def answerer(self):
            if os.getpid() != alive:
                for turn in range(times):
                    with contextlib.suppress(FileExistsError):
                        os.close(os.open(f"{spot}-{turn}", os.O_CREAT | os.O_EXCL))
                        os.kill(os.getpid(), signal.SIGKILL)
            return super().answerer()

    return Mortal


class TestPartitions:
    def test_are_answered_as_the_command_answers_files(self, whole):
        written = explained()
        assert written.column_names[-len(answered.RESULT_COLUMNS) :] == list(answered.RESULT_COLUMNS)
        assert delivered(written.drop_columns("row")) == delivered(whole)
        assert whole.num_rows > ROWS / 4

    def test_however_they_are_cut(self, whole):
        explainer = PartitionExplainer("art", WISH)
        assert delivered(pa.concat_tables([explainer(part) for part in parts(strangers())])) == delivered(whole)
        each = pa.concat_tables([explainer(strangers().slice(i, 1)) for i in range(12)])
        assert delivered(each) == delivered(whole.slice(0, each.num_rows))

    def test_several_answers_a_row(self):
        explainer = PartitionExplainer("art", BatchOptions(n=2, min_prob=0.7, max_changes=2))
        rows = strangers().slice(0, 90)
        both = [explainer(rows), *(explainer(part) for part in parts(rows, (0, 2, 90)))]
        assert delivered(pa.concat_tables(both[1:])) == delivered(both[0])
        assert delivered(both[0]) == delivered(
            explained("rows.parquet", "-n", 2, "--min-prob", 0.7, "--max-changes", 2)
            .filter(pa.compute.field("row") < 90)
            .drop_columns("row")
        )
        assert both[0]["answer"].to_pylist() == [0, 1] * (both[0].num_rows // 2)

    def test_in_whatever_order(self, whole):
        order = np.random.default_rng(0).permutation(ROWS)
        found = PartitionExplainer("art", WISH)(strangers().take(order))
        ordered = [("id", "ascending"), ("answer", "ascending")]
        assert delivered(found.sort_by(ordered)) == delivered(whole.sort_by(ordered))

    def test_schema_in_is_schema_out(self, whole):
        rows, kinds = strangers(), whole.schema
        assert kinds.equals(PartitionExplainer("art", WISH).schema(rows.schema), check_metadata=True)
        assert pa.schema(list(kinds)[: len(KINDS)]).equals(rows.schema, check_metadata=False)
        assert [kinds.field(name).type for name in RESULT_COLUMNS] == [
            getattr(pa, answered.RESULT_COLUMNS[name])() for name in RESULT_COLUMNS
        ]
        assert whole.to_pandas().index.name == "id"

    def test_what_no_answer_changes_is_as_it_was(self, whole):
        before = {row["id"]: row for row in strangers().to_pylist()}
        for row in whole.to_pylist():
            differs = {name for name in KINDS if row[name] != before[row["id"]][name]}
            assert differs == {part.partition(": ")[0] for part in row["changes"].split("; ") if part}
            assert differs <= set(WISH.vary)

    def test_all_rows_of_them(self):
        found = PartitionExplainer("art", BatchOptions(only_denied=False))(strangers())
        assert found["id"].to_pylist() == strangers()["id"].to_pylist()
        assert "already_target" in found["status"].to_pylist()

    def test_none(self, whole):
        found = PartitionExplainer("art", WISH)(strangers().slice(0, 0))
        assert found.num_rows == 0
        assert found.schema == whole.schema

    def test_a_record_batch(self, whole):
        batch = strangers().combine_chunks().to_batches()[0]
        assert delivered(PartitionExplainer("art", WISH)(batch)) == delivered(whole)

    def test_a_seed_is_nobody_elses(self, whole):
        two, other = (PartitionExplainer("art", BatchOptions(n=2, seed=seed)) for seed in (None, 7))
        assert delivered(two(strangers(60))) != delivered(other(strangers(60)))
        assert delivered(PartitionExplainer("art", WISH)(strangers())) == delivered(whole)

    def test_columns_that_are_taken(self):
        rows = strangers(30).append_column("Status", pa.array(["single"] * 30))
        found = PartitionExplainer("art")(rows)
        assert set(found["Status"].to_pylist()) == {"single"}
        assert "avcg_status" in found.column_names

    def test_a_small_thing_to_send(self, whole):
        explainer = PartitionExplainer("art", WISH)
        explainer(strangers(30))
        sent = pickle.dumps(explainer)
        assert len(sent) < 2000
        again = pickle.loads(sent)
        assert again == explainer
        assert delivered(again(strangers())) == delivered(whole)

    def test_an_artifact_is_read_once_in_a_process(self, monkeypatch):
        answering.load_cached.cache_clear()
        read, real = [], answering.load
        monkeypatch.setattr(answering, "load", lambda path: read.append(path) or real(path))
        for part in parts(strangers()):
            pickle.loads(pickle.dumps(PartitionExplainer("art", WISH)))(part)
        assert len(read) == 1

    def test_another_artifact_in_its_place(self, tmp_path):
        shutil.copytree("art", tmp_path / "art")
        explainer = PartitionExplainer(tmp_path / "art", WISH)
        other = avcg.load("art")
        other.random_state = 5
        other.save(tmp_path / "art", about={"positive": "yes"})
        with pytest.raises(ArtifactError, match="was replaced by another while rows were answered"):
            explainer(strangers(5))


def strangers_without(name):
    return strangers(5).drop_columns(name)


def changed(name, values):
    return strangers(5).set_column(strangers().column_names.index(name), name, values)


MISTAKES = [
    ("nowhere", BatchOptions(), strangers, ArtifactError, "There is no folder 'nowhere'"),
    (None, BatchOptions(), strangers, SettingError, "'artifact' must be the path of a folder"),
    (
        "art",
        BatchOptions(target="maybe"),
        strangers,
        SettingError,
        "The 'target' of a query 'maybe' is none of the outcomes",
    ),
    (
        "art",
        BatchOptions(vary=["incom"]),
        strangers,
        SettingError,
        "The 'vary' of a query names 'incom', which is not a column",
    ),
    ("art", BatchOptions(ranges={"income": (5, 1)}), strangers, AvcgError, "income"),
    ("art", BatchOptions(), lambda: strangers_without("income"), DataError, "has no column 'income'"),
    (
        "art",
        BatchOptions(),
        lambda: changed("income", pa.array(["a"] * 5)),
        DataError,
        "column 'income' is of type string",
    ),
]
each_mistake = pytest.mark.parametrize(
    ("artifact", "options", "rows", "error", "says"), MISTAKES, ids=[says for *_, says in MISTAKES]
)


class TestMistakes:
    @each_mistake
    def test_are_told_before_anything_is_done(self, artifact, options, rows, error, says):
        with pytest.raises(error, match=says):
            PartitionExplainer(artifact, options).schema(rows().schema)

    @each_mistake
    def test_are_told_by_a_partition(self, artifact, options, rows, error, says):
        with pytest.raises(error, match=says):
            PartitionExplainer(artifact, options)(rows())

    def test_a_row_that_does_not_fit(self):
        rows = changed("zip", pa.array(["0100", "0101", "100", "0100", "0100"], pa.large_string()))
        with pytest.raises(
            DataError, match=r"the partition, row 2 .*: column 'zip' is '100', which is not among the training values"
        ):
            PartitionExplainer("art")(rows)
        far = changed("income", pa.array([1.0, 2.0, 3.0, 1e60, 4.0]))
        for options in (BatchOptions(), BatchOptions(only_denied=False)):
            with pytest.raises(DataError, match=r"the partition, row 3 .*: Column 'income' has a value too far"):
                PartitionExplainer("art", options)(far)

    @pytest.mark.parametrize(
        ("settings", "says"),
        [
            ({"n": 0}, "The 'n' of a query must be a whole number >= 1"),
            ({"vary": "income"}, "The 'vary' of a query must be a list of columns"),
            ({"min_prob": 1.5}, r"The 'min_prob' of a query must be in \(0, 1\)"),
            ({"max_changes": 0}, "The 'max_changes' of a query"),
            ({"seed": -1}, "The 'seed' of a query"),
            ({"refine": 3}, "The 'refine' of a query"),
        ],
    )
    def test_wishes_that_cannot_be_meant(self, settings, says):
        with pytest.raises(SettingError, match=says):
            BatchOptions(**settings)

    def test_an_artifact_that_does_not_say_what_is_wanted(self):
        avcg.load("art").save("bare")
        with pytest.raises(SettingError, match=r"Name it with the 'target' of a query. There is: 'no', 'yes'"):
            PartitionExplainer("bare")(strangers(3))
        assert PartitionExplainer("bare", BatchOptions(target="yes"))(strangers(30)).num_rows

    def test_other_things_than_rows(self):
        pytest.importorskip("pyspark")
        with pytest.raises(SettingError, match=r"'frame' of explain_spark must be a Spark DataFrame. Got a Table"):
            explain_spark(strangers(3), "art")

    @pytest.mark.parametrize(("package", "explain"), [("ray", explain_ray), ("pyspark", explain_spark)])
    def test_what_is_not_installed(self, monkeypatch, package, explain):
        for name in [name for name in sys.modules if name.split(".")[0] == package]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, package, None)
        extra = {"pyspark": "spark"}.get(package, package)
        with pytest.raises(MissingExtraError, match=rf"needs the package '{package}'. .*pip install 'avcg\[{extra}\]'"):
            explain(strangers(3), "art")


@pytest.fixture
def many(tmp_path):
    """A folder of files: some in folders of their own, one empty, one of a single row, and what is no rows at all."""
    for i, part in enumerate(parts(strangers())):
        place = tmp_path / "rows" / ("more" if i > 4 else ".") / f"part-{i}.parquet"
        place.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(part, place)
    (tmp_path / "rows" / "_SUCCESS").touch()
    (tmp_path / "rows" / ".part.parquet.crc").touch()
    pq.write_table(strangers(5), tmp_path / "rows" / "_hidden.parquet")
    return tmp_path / "rows"


def gathered(out):
    """All answers in a folder, file by file, without the places in the files."""
    files = sorted(out.rglob("part-*.parquet"), key=lambda path: path.name)
    return pa.concat_tables([pq.read_table(path) for path in files]).drop_columns("row")


def seen(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


FILES = sorted(["_SUCCESS", *(f"part-{i}.parquet" for i in range(5)), "more/part-5.parquet", "more/part-6.parquet"])


class TestShards:
    def test_each_file_is_what_the_command_writes(self, many, tmp_path, whole):
        totals = explain_shards(many, tmp_path / "out", "art", WISH, workers=2)
        assert seen(tmp_path / "out") == FILES
        assert delivered(gathered(tmp_path / "out")) == delivered(whole)
        for path in sorted(many.rglob("part-*.parquet"))[2:]:
            if pq.read_metadata(path).num_rows:
                made = tmp_path / "out" / path.relative_to(many)
                assert delivered(pq.read_table(made)) == delivered(explained(path))
        assert totals.rows == ROWS
        assert totals.left_out == ROWS - whole.num_rows
        assert sum(totals.statuses.values()) == whole.num_rows
        noted = json.loads((tmp_path / "out" / "_SUCCESS").read_text())
        assert noted == {"files": 7, **totals.to_json()}

    def test_what_is_there_is_not_done_again(self, many, tmp_path, monkeypatch):
        done, real = [], shards.answer_file
        monkeypatch.setattr(shards, "answer_file", lambda *task: done.append(task[2].name) or real(*task))
        out = tmp_path / "out"
        first = explain_shards(many, out, "art", WISH, workers=1)
        assert len(done) == 7
        assert explain_shards(many, out, "art", WISH, workers=1) == first
        assert len(done) == 7
        pq.write_table(strangers(9), many / "part-2.parquet")  # a file that has changed, and one that is new
        pq.write_table(strangers(9), many / "part-9.parquet")
        again = explain_shards(many, out, "art", WISH, workers=1)
        assert done[7:] == ["part-2.parquet", "part-9.parquet"]
        assert again.rows == ROWS - 39 + 18

    def test_a_row_that_does_not_fit_stops_it_until_it_is_mended(self, many, tmp_path, whole, monkeypatch):
        fine = pq.read_table(many / "part-3.parquet")
        place = fine.column_names.index("zip")
        wrong = pa.array(["999", *fine["zip"].to_pylist()[1:]], pa.large_string())
        pq.write_table(fine.set_column(place, "zip", wrong), many / "part-3.parquet")
        out = tmp_path / "out"
        with pytest.raises(DataError, match=r"part-3.parquet, row 0 .* column 'zip' is '999'"):
            explain_shards(many, out, "art", WISH, workers=1)
        assert not (out / "_SUCCESS").exists()
        assert not (out / "part-3.parquet").exists()
        assert "part-0.parquet" in seen(out)
        pq.write_table(fine, many / "part-3.parquet")
        explain_shards(many, out, "art", WISH, workers=1)
        assert delivered(gathered(out)) == delivered(whole)

    def test_a_worker_that_is_killed_loses_and_doubles_nothing(self, many, tmp_path, whole):
        out = tmp_path / "out"
        job = shards.Shards.of(many, out, mortal(tmp_path / "killed")("art", WISH))
        with pytest.raises(AvcgError, match=r"A worker process was killed.* Run the same again"):
            list(job.answer(2))
        assert (tmp_path / "killed-0").exists()
        assert "_SUCCESS" not in seen(out)
        (out / ".avcg-0123456789abcdef.part").touch()  # as one that was killed while it wrote leaves behind
        explain_shards(many, out, "art", WISH, workers=2)
        assert seen(out) == FILES
        assert delivered(gathered(out)) == delivered(whole)

    def test_given_files(self, many, tmp_path, whole):
        files = sorted(many.rglob("part-*.parquet"), key=lambda path: path.name)
        explain_shards([str(path) for path in files], tmp_path / "out", "art", WISH, workers=1)
        assert delivered(gathered(tmp_path / "out")) == delivered(whole)
        assert "part-6.parquet" in seen(tmp_path / "out")

    def test_mistakes(self, many, tmp_path):
        def refused(error, says, rows=many, out=tmp_path / "out", artifact="art", options=WISH):
            before = seen(tmp_path)
            with pytest.raises(error, match=says):
                explain_shards(rows, out, artifact, options, workers=1)
            assert seen(tmp_path) == before

        (tmp_path / "void").mkdir()
        refused(DataError, "There is no folder 'absent'", rows="absent")
        refused(DataError, "There is no .parquet file in", rows=tmp_path / "void")
        refused(DataError, "There is no file 'absent.parquet'", rows=["absent.parquet"])
        twice = [many / "part-1.parquet", many / "more" / ".." / "part-1.parquet"]
        refused(DataError, "Two files of rows are called 'part-1.parquet'", rows=twice)
        refused(ArtifactError, "There is no folder 'nowhere'", artifact="nowhere")
        refused(SettingError, "The 'target' of a query 'maybe'", options=BatchOptions(target="maybe"))
        refused(SettingError, "Answers cannot go into the folder of the rows", out=many / "out")
        refused(SettingError, "Answers cannot go into the folder of the rows", rows=[many / "part-1.parquet"], out=many)
        refused(SettingError, "_SUCCESS is a file. Give the name of a folder", out=many / "_SUCCESS")
        pq.write_table(strangers_without("income"), many / "part-8.parquet")
        refused(DataError, "part-8.parquet has no column 'income'")
        (many / "part-8.parquet").write_bytes(b"PAR1 and no more")
        refused(DataError, "part-8.parquet is no parquet file that can be read")

    def test_a_folder_that_is_in_use(self, many, tmp_path):
        out = tmp_path / "out"
        explain_shards(many, out, "art", WISH, workers=1)
        with pytest.raises(
            SettingError, match=r"in use: .*parquet was answered by another explainer or with other options"
        ):
            explain_shards(many, out, "art", workers=1)
        (many / "part-0.parquet").unlink()
        with pytest.raises(SettingError, match=r"in use: part-0.parquet has no answers to these rows"):
            explain_shards(many, out, "art", WISH, workers=1)
        with pytest.raises(SettingError, match=r"in use: .*parquet has no answers to these rows"):
            explain_shards(out, many, "art", WISH, workers=1)


class TestCommand:
    def test_reads_the_artifact_once(self, monkeypatch):
        answering.load_cached.cache_clear()
        read, real = [], answering.load
        monkeypatch.setattr(answering, "load", lambda path: read.append(path) or real(path))
        explained()
        assert len(read) == 1

    def test_a_folder(self, many, tmp_path, whole):
        found = run("explain", "art", many, *OPTIONS, "--workers", 2, "--out", tmp_path / "out")
        assert found.code == 0, found.err
        assert delivered(gathered(tmp_path / "out")) == delivered(whole)
        assert f"{ROWS} rows of 7 files in {many}" in found.out
        again = run("explain", "art", many, *OPTIONS, "--out", tmp_path / "out")
        assert again.out == found.out

    def test_one_file_by_several_workers(self, tmp_path):
        one = run("explain", "art", "rows.parquet", *OPTIONS, "--chunk", 1000, "--out", tmp_path / "one.parquet")
        two = run("explain", "art", "rows.parquet", *OPTIONS, "--workers", 2, "--out", tmp_path / "two.parquet")
        assert (one.code, two.code) == (0, 0), two.err
        assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "two.parquet").read_bytes()
        assert two.out == one.out.replace("one.parquet", "two.parquet")

    def test_pieces_come_in_their_order(self, whole):
        with shards.ParquetRows("rows.parquet") as source:
            found = list(shards.answer_chunks(PartitionExplainer("art", WISH), source, 2, 50))
        assert len(found) == 6
        assert sum(totals.rows for _, totals in found) == ROWS
        assert delivered(pa.concat_tables([table for table, _ in found])) == delivered(explained())

    def test_a_file_that_ends_too_soon(self, tmp_path, monkeypatch):
        def cut_off(self, size):
            yield from real(self, size)
            raise DataError("rows.parquet is damaged: it ends here.")

        real = shards.ParquetRows.chunks
        monkeypatch.setattr(shards.ParquetRows, "chunks", cut_off)
        found = run("explain", "art", "rows.parquet", "--workers", 2, "--out", tmp_path / "out.parquet")
        assert (found.code, found.err) == (2, "avcg: rows.parquet is damaged: it ends here.\n")
        assert list(tmp_path.iterdir()) == []

    def test_a_worker_that_is_killed(self, tmp_path):
        with (
            shards.ParquetRows("rows.parquet") as source,
            pytest.raises(AvcgError, match=r"A worker process was killed.* Nothing was written"),
        ):
            list(shards.answer_chunks(mortal(tmp_path / "killed")("art", WISH), source, 2, 50))

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["rows", "--workers", 2], "A folder of rows is answered into another folder"),
            (["rows", "--json", "--out", "o"], "A folder of rows is answered into another folder"),
            (["rows", "--out", "art"], "There is no .parquet file in 'rows'"),
            (["data.csv", "--workers", 2, "--out", "o.parquet"], "--workers above 1 is for parquet"),
            (["rows.parquet", "--workers", 2, "--out", "o.csv"], "--workers above 1 is for parquet"),
            (["rows.parquet", "--workers", 2], "--workers above 1 is for parquet"),
            (["rows.parquet", "--workers", 2, "--json", "--out", "o.parquet"], "--workers above 1 is for parquet"),
        ],
    )
    def test_mistakes(self, folder, arguments, says):
        (folder / "rows").mkdir(exist_ok=True)
        found = run("explain", "art", *arguments)
        assert found.code == 2
        assert says in found.err
        assert found.err.count("\n") == 1


@pytest.fixture(scope="module")
def ray_at_hand():
    """Ray on this machine, as little of it as there can be."""
    ray = pytest.importorskip("ray")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray.data

        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = True
    yield ray
    ray.shutdown()


def taken(dataset):
    return pa.concat_tables(list(dataset.iter_batches(batch_format="pyarrow", batch_size=None)))


@pytest.mark.usefixtures("cleaned")
@pytest.mark.filterwarnings("ignore")  # Ray's own
class TestRay:
    def test_same_answers_even_if_an_actor_is_killed(self, ray_at_hand, whole, tmp_path, monkeypatch):
        monkeypatch.setattr(engines, "PartitionExplainer", mortal(tmp_path / "killed"))
        rows = ray_at_hand.data.from_arrow(parts(strangers()))
        found = taken(explain_ray(rows, "art", WISH, workers=2, batch_size=50))
        assert (tmp_path / "killed-0").exists()
        assert delivered(found) == delivered(whole)

    def test_mistakes(self, ray_at_hand):
        for artifact, options, wrong, error, says in MISTAKES[2:]:
            with pytest.raises(error, match=says):
                explain_ray(ray_at_hand.data.from_arrow(wrong()), artifact, options)
        with pytest.raises(SettingError, match=r"must be a ray.data.Dataset. Got a Table"):
            explain_ray(strangers(3), "art")


@pytest.fixture(scope="module")
def spark():
    """Spark on this machine: one executor, which may fail once."""
    sql = pytest.importorskip("pyspark.sql")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs a Java runtime, which is not installed (Debian: openjdk-17-jre-headless)")
    settings = {
        "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "OFF",
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.sql.shuffle.partitions": "3",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as environment, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        builder = sql.SparkSession.builder.master("local[1,2]")
        for name, value in settings.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
    yield session
    session.stop()


@pytest.mark.usefixtures("cleaned")
@pytest.mark.filterwarnings("ignore")  # Spark's own
class TestSpark:
    def test_same_answers_even_if_a_worker_is_killed(self, spark, whole, tmp_path, monkeypatch):
        monkeypatch.setattr(engines, "PartitionExplainer", mortal(tmp_path / "killed"))
        rows = spark.read.parquet(str(Path("rows.parquet").absolute())).repartition(3)
        out = explain_spark(rows, "art", WISH)
        assert out.columns == whole.column_names
        out.write.parquet(str(tmp_path / "out"))
        assert (tmp_path / "killed-0").exists()
        found = pq.read_table(tmp_path / "out")
        kinds = found.schema  # of its own types, which have no dictionaries
        ordered = [("id", "ascending"), ("answer", "ascending")]
        assert delivered(found.sort_by(ordered)) == delivered(whole.cast(kinds).sort_by(ordered))
        assert [str(kinds.field(name).type) for name in ("age", "income", "months")] == ["int16", "float", "int64"]

    def test_mistakes(self, spark):
        for artifact, options, wrong, error, says in MISTAKES[-2:]:
            with pytest.raises(error, match=says):
                explain_spark(spark.createDataFrame(wrong().cast(to_json(wrong()))), artifact, options)


def to_json(table):
    """Types that Spark takes from pyarrow."""
    return pa.schema([(f.name, pa.string() if pa.types.is_dictionary(f.type) else f.type) for f in table.schema])


TINY = """
title = "Tiny"
datasets = ["breast_cancer"]
seeds = [0, 1]
rows = 8
retrains = 2
[network]
hidden = [8]
epochs = 3
[judges]
surrogates = 2
masks = 5
candidates = 10
execution_errors = 2
autoencoder_epochs = 2
[[methods]]
name = "class mean"
kind = "avcg.baselines.nearest:ClassMean"
"""
TIMES = ["Time", "Time100", "TimeFrame"]


@pytest.fixture(scope="module")
def protocol(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture(scope="module")
def alone(protocol):
    return Store(bench.run(protocol, protocol.parent / "alone")).rows().drop(columns=TIMES)


class TestBenchmark:
    def compared(self, protocol, alone, backend):
        out = protocol.parent / backend
        bench.run(protocol, out, only_seeds=[1])  # what is there is not run again
        store = Store(bench.run(protocol, out, workers=2, backend=backend))
        workers = {name: about["workers"] for name, about in store.about().items()}
        assert set(workers.values()) == {1, 2}
        pd.testing.assert_frame_equal(store.rows().drop(columns=TIMES), alone)

    def test_on_joblibs_own_processes(self, protocol, alone):
        self.compared(protocol, alone, "loky")

    @pytest.mark.usefixtures("cleaned", "ray_at_hand")
    @pytest.mark.filterwarnings("ignore")
    def test_on_ray(self, protocol, alone):
        self.compared(protocol, alone, "ray")

    @pytest.mark.usefixtures("cleaned")
    @pytest.mark.filterwarnings("ignore")
    def test_on_dask(self, protocol, alone):
        pytest.importorskip("distributed")
        self.compared(protocol, alone, "dask")

    def test_mistakes(self, protocol):
        found = run("bench", "run", protocol, "--backend", "rai", "--results", protocol.parent / "none")
        assert found.code == 2
        assert "There is no backend 'rai'. Did you mean 'ray'?" in found.err

    def test_what_is_not_installed(self, protocol, monkeypatch):
        pytest.importorskip("dask")
        for name in [name for name in sys.modules if name.split(".")[0] == "distributed"]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "distributed", None)
        found = run("bench", "run", protocol, "--backend", "dask", "--results", protocol.parent / "none")
        assert found.code == 2
        assert (
            "The backend 'dask' needs the package 'distributed'. Install it with: pip install 'avcg[dask]'" in found.err
        )


def test_paths_are_known_wherever_a_worker_is(folder, monkeypatch):
    explainer = PartitionExplainer(Path("art"), WISH)
    monkeypatch.chdir("/")
    assert explainer(strangers(5)).num_rows
