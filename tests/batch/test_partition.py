"""The same answers, to the last bit, however rows are cut."""

import pickle
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from partitions import KINDS, MISTAKES, ROWS, WISH, changed, delivered, explained, parts, strangers

import avcg
from avcg.batch import BatchOptions, PartitionExplainer, explain_ray, explain_spark
from avcg.batch import answerer as answering
from avcg.batch import columns as answered
from avcg.errors import ArtifactError, DataError, MissingExtraError, SettingError

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.compute")

RESULT_COLUMNS = [name for name in answered.RESULT_COLUMNS if name != "row"]


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
        two, other = (PartitionExplainer("art", BatchOptions(n=6, seed=seed)) for seed in (None, 7))
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
            ({"effort": 3}, "The 'effort' of a query"),
            ({"typicality": 2}, "The 'typicality' of a query"),
        ],
    )
    def test_wishes_that_cannot_be_meant(self, settings, says):
        with pytest.raises(SettingError, match=says):
            BatchOptions(**settings)

    def test_an_artifact_that_does_not_say_what_is_wanted(self):
        avcg.load("art").save("bare")
        with pytest.raises(SettingError, match=r"Name it with the 'target' of a query. Available: 'no', 'yes'"):
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


def test_paths_are_known_wherever_a_worker_is(folder, monkeypatch):
    explainer = PartitionExplainer(Path("art"), WISH)
    monkeypatch.chdir("/")
    assert explainer(strangers(5)).num_rows
