"""Files of rows, answered by several workers, and workers that are killed."""

import json

import pytest
from command_line import run
from partitions import OPTIONS, ROWS, WISH, delivered, explained, mortal, parts, strangers, strangers_without

from avcg.batch import BatchOptions, PartitionExplainer, explain_shards, shards
from avcg.batch import answerer as answering
from avcg.errors import ArtifactError, AvcgError, DataError, SettingError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("pyarrow.compute")


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
        refused(DataError, "part-8.parquet cannot be read as a parquet file")

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
