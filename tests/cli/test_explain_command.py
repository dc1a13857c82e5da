"""`avcg explain`: every row of a file answered, whatever its size and format; and what other commands make of it."""

import csv
import io
import json
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import FIT, QUICK, people, run

import avcg
from avcg.batch import answerer as answering
from avcg.batch import columns as answered
from avcg.batch import writers as answer_files
from avcg.batch.chunks import cell_types_of, read_frame
from avcg.batch.readers import open_rows
from avcg.explainers.counterfactuals import Counterfactuals
from avcg.io.scorer import Scorer

ROWS = 700
RESULT_COLUMNS = list(answered.RESULT_COLUMNS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explain")
    people().to_csv(folder / "data.csv", index=False)
    order = [*FIT, *QUICK, "--steps", 100]  # answers that are not all accepted with certainty
    done = run("fit", folder / "data.csv", *order, "--out", folder / "art", "--seed", 1)
    assert done.code == 0, done.err
    strangers(ROWS).to_csv(folder / "rows.csv", index=False)
    return folder


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks and chunks in a file of a few hundred rows."""
    monkeypatch.setattr(answering, "MAX_GROUP_ROWS", 100)


@pytest.fixture(autouse=True)
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)


def content(name):
    return Path(name).read_text()


def strangers(n):
    """People who were not in the data, without outcomes, with a column that nobody knows."""
    return people(n, seed=9).drop(columns="approved").assign(remark=[f"No. {i}, 1.50" for i in range(n)])


def expected(explainer, n=1, **request):
    """What the explainer says of the same rows from Python, in the same blocks."""
    source = open_rows("rows.csv")
    with source:
        chunk = next(source.chunks())
    dtypes = {"age": "int64", "income": "float64", "months": "float64"}
    schema = explainer.space_.schema
    frame = read_frame(chunk, schema, cell_types_of(schema, dtypes))
    blocks = []
    for at in range(0, len(frame), 100):
        block = frame.iloc[at : at + 100]
        blocks.append(explainer.generate(block[explainer.decide(block) != "yes"], "yes", n=n, **request))
    return answer_files.concatenate(blocks)


class TestAnswers:
    def test_are_those_of_the_explainer(self, folder):
        found = run("explain", "art", "rows.csv", "-n", 2, "--out", "two.csv")
        assert found.code == 0, found.err
        delivered = expected(avcg.load("art"), n=2)
        frame = pd.read_csv("two.csv", dtype={"zip": str}, na_values=[""])
        assert list(frame) == [*strangers(1), *RESULT_COLUMNS]
        assert frame["row"].tolist() == delivered.factuals.index.repeat(2).tolist()
        assert frame["answer"].tolist() == [0, 1] * len(delivered)
        assert frame["status"].tolist() == delivered.statuses.tolist()
        for name in ("probability", "distance"):
            assert frame[name].tolist() == getattr(delivered, name).tolist()
        assert frame["probability_before"].tolist() == delivered.probability_before.repeat(2).tolist()
        assert frame["agreeing"].tolist() == delivered.certificate.agreeing.tolist()
        assert (frame["n_models"] == delivered.certificate.n).all()
        assert frame["agreeing_test"].tolist() == delivered.certificate.agreeing_test.tolist()
        assert (frame["n_test"] == delivered.certificate.n_test).all()
        assert frame["lower_bound"].tolist() == delivered.certificate.lower_bound.tolist()
        assert frame["n_changes"].tolist() == delivered.changed.sum(axis=1).tolist()
        for name in delivered.answers:
            ours, theirs = frame[name].astype(object), delivered.answers[name].astype(object).reset_index(drop=True)
            assert (ours.isna() == theirs.isna()).all()
            assert (ours.dropna() == theirs.dropna()).all()

    def test_only_changed_cells_are_written_anew(self):
        """To the letter: also what nobody would write so, and what no column of ours is."""
        lines = list(csv.reader(content("rows.csv").splitlines()))
        head, cells = lines[0], [[*row] for row in lines[1:]]
        for row in cells:
            row[head.index("income")] = f" {float(row[head.index('income')]):.3f}"
            row[head.index("owns")] = row[head.index("owns")].lower()
        text = io.StringIO()
        csv.writer(text).writerows([head, *cells])
        found = run("explain", "art", "-", "--out", "letter.csv", stdin=text.getvalue().encode())
        assert found.code == 0, found.err
        answers = list(csv.DictReader(content("letter.csv").splitlines()))
        anew = 0
        for answer in answers:
            before = dict(zip(head, cells[int(answer["row"])], strict=True))
            changed = {part.partition(": ")[0] for part in answer["changes"].split("; ") if part}
            assert len(changed) == int(answer["n_changes"])
            assert {name for name in head if answer[name] != before[name]} == changed
            anew += len(changed)
            assert answer["owns"] in ("true", "false")
        assert anew > len(answers) / 2

    def test_changes_in_words(self):
        run("explain", "art", "rows.csv", "--out", "words.csv")
        frame, before = pd.read_csv("words.csv", dtype=str), pd.read_csv("rows.csv", dtype=str)
        for _, line in frame.head(40).iterrows():
            delivered = dict(part.split(": ", 1) for part in str(line["changes"]).split("; "))
            for name, words in delivered.items():
                was, becomes = words.split(" -> ")
                there = before[name][int(line["row"])]
                assert was == ("missing" if pd.isna(there) else there.removesuffix(".0"))
                assert becomes == line[name].removesuffix(".0")

    @pytest.mark.parametrize("kind", ["csv", "parquet", "json"])
    def test_do_not_depend_on_the_size_of_chunks(self, kind):
        contents = set()
        for chunk in (1, 200, 300, 10_000):
            found = run("explain", "art", "rows.csv", "-n", 2, "--chunk", chunk, "--out", f"chunk.{kind}")
            assert found.code == 0, found.err
            if kind == "parquet":
                contents.add(pd.read_parquet("chunk.parquet").to_csv())
            else:
                contents.add(content(f"chunk.{kind}"))
        assert len(contents) == 1

    def test_rows_answered_together_fill_tiles_at_any_chunk(self, monkeypatch):
        real, seen = answering.Answerer._answer_group, []
        monkeypatch.setattr(
            answering.Answerer, "_answer_group", lambda self, rows: seen.append(len(rows)) or real(self, rows)
        )
        for chunk in (100, 250, 700):
            run("explain", "art", "rows.csv", "--chunk", chunk)
        assert len(set(seen)) > 1
        assert all(count % answering.GROUP_MULTIPLE == 0 for count in seen)

    def test_totals_are_a_recount(self):
        found = run("explain", "art", "rows.csv", "-n", 2, "--out", "count.csv")
        counts = pd.read_csv("count.csv")["status"].value_counts()
        for status, count in counts.items():
            assert f"{status} {count:,} " in " ".join(found.out.split())
        rows = pd.read_csv("count.csv")["row"].nunique()
        assert f"{ROWS} rows of rows.csv, {ROWS - rows} of which have 'yes' already" in found.out

    def test_all_rows(self):
        run("explain", "art", "rows.csv", "--all", "--out", "all.csv")
        frame = pd.read_csv("all.csv")
        assert frame["row"].tolist() == list(range(ROWS))
        same = frame[frame["status"] == "already_target"]
        assert len(same)
        assert (same["n_changes"] == 0).all()
        assert (same["probability"] == same["probability_before"]).all()

    def test_a_readable_table_without_a_file(self):
        found = run("explain", "art", "rows.csv")
        frame = expected(avcg.load("art"))
        assert "The first 10 answers" in found.out
        for row in frame.factuals.index[:10]:
            assert f" {row} " in found.out
        assert " -> " in found.out

    def test_a_line_of_json_for_each(self):
        found = run("explain", "art", "rows.csv", "-n", 2, "--json", "--out", "beside.csv")
        records = [json.loads(line) for line in found.out.splitlines()]
        frame = pd.read_csv("beside.csv", dtype={"zip": str})
        assert len(records) == len(frame)
        for name in set(RESULT_COLUMNS) - {"changes"}:
            assert [record[name] for record in records] == frame[name].tolist()
        assert {record["target"] for record in records} == {"yes"}
        for record, (_, line) in zip(records[:30], frame.iterrows(), strict=False):
            assert record["carried"] == {"id": line["id"], "remark": line["remark"]}
            assert len(record["changes"]) == record["n_changes"]
            for name, (was, becomes) in record["changes"].items():
                assert record["values"][name] == becomes != was
            assert record["values"]["zip"] == line["zip"]

    def test_from_standard_input(self):
        run("explain", "art", "rows.csv", "--out", "file.csv")
        found = run("explain", "art", "-", "--out", "pipe.csv", stdin=Path("rows.csv").read_bytes())
        assert found.code == 0, found.err
        assert content("pipe.csv") == content("file.csv")


class TestRequests:
    def asked(self, *options):
        found = run("explain", "art", "rows.csv", "--out", "asked.csv", *options)
        assert found.code == 0, found.err
        return pd.read_csv("asked.csv", dtype={"zip": str})

    def changed(self, frame):
        return {part.split(":")[0] for changes in frame["changes"].dropna() for part in changes.split("; ")}

    def test_what_may_change(self):
        assert self.changed(self.asked("--vary", "income,housing")) == {"income", "housing"}

    def test_ranges(self):
        frame = self.asked("--range", "income:40:60.5", "--range", "housing:own|rent", "--range", "months::100")
        before = pd.read_csv("rows.csv").iloc[frame["row"]].reset_index(drop=True)
        moved = frame["income"] != before["income"]
        ends = frame["income"][moved]
        limits = np.minimum(before["income"], 40)[moved], np.maximum(before["income"], 60.5)[moved]
        assert ((ends >= limits[0]) & (ends <= limits[1])).all()
        entered = frame["housing"][frame["housing"] != before["housing"]].dropna()
        assert set(entered) <= {"own", "rent"}
        assert (frame["months"] <= np.fmax(before["months"], 100))[frame["months"].notna()].all()

    def test_how_many(self):
        assert self.asked("--max-changes", 1)["n_changes"].max() == 1

    def test_how_likely(self):
        frame = self.asked("--min-prob", 0.9)
        assert (frame["probability"][frame["status"] == "ok"] >= 0.9).all()
        assert len(frame) > len(self.asked())  # some are decided for, but not as surely

    def test_how_thorough(self):
        fast, usual, standard, thorough = (
            self.asked(*options)
            for options in (("--effort", "fast"), (), ("--effort", "standard"), ("--effort", "thorough"))
        )
        pd.testing.assert_frame_equal(usual, standard)
        both = (fast["status"] == "ok") & (standard["status"] == "ok") & (thorough["status"] == "ok")
        assert standard["distance"][both].mean() < fast["distance"][both].mean()
        assert thorough["distance"][both].mean() <= standard["distance"][both].mean()

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            (("--effort", "great"), "--effort must be fast, standard or thorough. Got 'great' instead."),
            (("--typicality", "1.5"), "--typicality must be in [0, 1]. Got 1.5 instead."),
        ],
    )
    def test_no_such_effort_or_typicality(self, options, says):
        done = run("explain", "art", "rows.csv", *options)
        assert done.code == 2
        assert says in done.err

    def test_the_other_outcome(self):
        frame = self.asked("--target", "no")
        assert (frame["probability_before"] < 0.5).all()
        assert set(frame["row"]) == set(range(ROWS)) - set(self.asked()["row"])

    def test_a_seed(self):
        first, again, other = (self.asked("-n", 3, "--seed", seed) for seed in (5, 5, 6))
        pd.testing.assert_frame_equal(first, again)
        assert not first.equals(other)


class TestFormats:
    def test_parquet_of_a_csv(self):
        run("explain", "art", "rows.csv", "--out", "typed.csv")
        run("explain", "art", "rows.csv", "--out", "typed.parquet")
        pa = pytest.importorskip("pyarrow.parquet")
        kinds = {field.name: str(field.type) for field in pa.read_schema("typed.parquet")}
        assert kinds == {
            "id": "string", "age": "int64", "income": "double", "months": "double", "owns": "bool", "member": "bool",
            "housing": "string", "zip": "string", "remark": "string", "row": "int64", "answer": "int64",
            "status": "string", "probability_before": "double", "probability": "double", "distance": "double",
            "n_changes": "int64", "changes": "string", "agreeing": "int64", "n_models": "int64",
            "agreeing_test": "int64", "n_test": "int64", "lower_bound": "double",
            "accepting_unchanged": "int64", "harmed": "int64",
        }  # fmt: skip
        one, other = pd.read_parquet("typed.parquet"), pd.read_csv("typed.csv", dtype={"zip": str})
        for name in one:
            a, b = one[name].astype(object), other[name].astype(object)
            assert (a.isna() == b.isna()).all(), name
            assert (a.dropna() == b.dropna()).all(), name

    def test_parquet_keeps_its_own_types(self):
        pa = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        rows = strangers(ROWS)
        kinds = {
            "id": pa.string(), "age": pa.int16(), "income": pa.float32(), "months": pa.int64(), "owns": pa.bool_(),
            "member": pa.bool_(), "housing": pa.dictionary(pa.int8(), pa.string()), "zip": pa.large_string(),
            "remark": pa.string(), "when": pa.timestamp("us"),
        }  # fmt: skip
        rows["when"] = pd.Timestamp("2024-02-29 12:00")
        table = pa.Table.from_pandas(rows, preserve_index=False).cast(pa.schema(kinds.items()))
        parquet.write_table(table, "own.parquet", row_group_size=130)
        found = run("explain", "art", "own.parquet", "--chunk", 300, "--out", "answers.parquet")
        assert found.code == 0, found.err
        answers = parquet.read_table("answers.parquet")
        assert answers.schema.remove_metadata().types[: len(kinds)] == list(kinds.values())
        asked = table.take(answers["row"])
        changes = [str(one) for one in answers["changes"].to_pylist()]
        for name in kinds:
            delivered = np.array([f"{name}: " in text for text in changes])
            before, after = asked[name].to_pylist(), answers[name].to_pylist()
            assert [a != b for a, b in zip(before, after, strict=True)] == delivered.tolist(), name
        run("explain", "art", "own.parquet", "--out", "answers.csv")
        text = pd.read_csv("answers.csv", dtype={"zip": str})
        assert text["months"].dropna().tolist() == [m for m in answers["months"].to_pylist() if m is not None]
        assert text["housing"].dropna().tolist() == [h for h in answers["housing"].to_pylist() if h is not None]
        assert (text["when"] == "2024-02-29 12:00:00").all()

    def test_json_is_what_other_commands_read(self):
        found = run("explain", "art", "rows.csv", "-n", 2, "--out", "told.json")
        assert found.code == 0, found.err
        delivered, wanted = Counterfactuals.from_json(content("told.json")), expected(avcg.load("art"), n=2)
        pd.testing.assert_frame_equal(delivered.answers, wanted.answers, check_column_type=False)
        assert delivered.answers.dtypes.astype(str).to_dict() == wanted.answers.dtypes.astype(str).to_dict()
        assert delivered.certificate.agreeing.tolist() == wanted.certificate.agreeing.tolist()
        assert delivered.to_json() == wanted.to_json()

    def test_too_many_for_json(self, monkeypatch):
        monkeypatch.setattr(answer_files, "MAX_JSON_ROWS", 150)
        found = run("explain", "art", "rows.csv", "--out", "much.json")
        assert found.code == 2
        assert "A JSON document holds the answers to at most 150 rows" in found.err
        assert ".csv or .parquet" in found.err

    def test_columns_of_the_same_name_are_both_kept(self):
        frame = strangers(50).assign(status="single", row=range(100, 150))
        frame.to_csv("names.csv", index=False)
        run("explain", "art", "names.csv", "--out", "both.csv")
        both = pd.read_csv("both.csv")
        assert (both["status"] == "single").all()
        assert (both["row"] == both["avcg_row"] + 100).all()
        assert set(both["avcg_status"]) <= {"ok", "not_robust", "not_found", "immovable"}

    def test_nobody_to_answer(self):
        run("explain", "art", "rows.csv", "--all", "--out", "who.csv")
        fine = pd.read_csv("who.csv", dtype=str).query("status == 'already_target'").drop(columns=RESULT_COLUMNS)
        fine.head(5).to_csv("fine.csv", index=False)
        found = run("explain", "art", "fine.csv", "--out", "none.csv")
        assert found.code == 0, found.err
        assert content("none.csv") == ",".join([*fine, *RESULT_COLUMNS]) + "\n"
        assert "5 rows of fine.csv, 5 of which have 'yes' already" in found.out
        assert run("explain", "art", "fine.csv", "--out", "none.parquet").code == 0
        assert len(pd.read_parquet("none.parquet")) == 0

    def test_an_artifact_from_python(self, folder):
        """It says neither which outcome is wanted nor what the training rows looked like."""
        avcg.load("art").save("bare")
        found = run("explain", "bare", "rows.csv")
        assert found.code == 2
        assert "Name it with --target. Available: 'no', 'yes'" in found.err
        assert run("explain", "bare", "rows.csv", "--target", "yes", "--out", "bare.csv").code == 0
        run("explain", "art", "rows.csv", "--out", "noted.csv")
        assert content("bare.csv") == content("noted.csv")


def spoiled(column, value, at=250):
    rows = strangers(ROWS).astype(object)
    rows.loc[at, column] = value
    return rows.to_csv(index=False)


FILES = {
    "empty.csv": lambda: "",
    "headed.csv": lambda: ",".join(strangers(1)) + "\n",
    "lacking.csv": lambda: strangers(20).rename(columns={"income": "incom"}).to_csv(index=False),
    "word.csv": lambda: spoiled("income", "much"),
    "half.csv": lambda: spoiled("age", "30.5"),
    "gap.csv": lambda: spoiled("age", None),
    "castle.csv": lambda: spoiled("housing", "ownn"),
    "maybe.csv": lambda: spoiled("owns", "maybe"),
    "endless.csv": lambda: spoiled("income", "inf"),
    "far.csv": lambda: spoiled("income", "1e60"),
    "long.csv": lambda: strangers(20).to_csv(index=False) + "1,2\n",
    "nothing.json": lambda: "{}",
}
LATE = "line 252: "  # in the third block, after two that are fine


class TestMistakes:
    @pytest.mark.parametrize("old", [None, "as it was\n"], ids=["new", "old"])
    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["art", "absent.csv"], "There is no file 'absent.csv'"),
            (["art", "rows.txt"], "must end in '.csv', '.parquet', or be - for standard input"),
            (["art", "empty.csv"], "empty.csv is empty"),
            (["art", "headed.csv"], "headed.csv has columns and no rows"),
            (["art", "lacking.csv"], "lacking.csv has no column 'income'. Did you mean 'incom'?"),
            (["art", "word.csv"], f"word.csv, {LATE}column 'income' should be a number. Got 'much'"),
            (["art", "half.csv"], f"half.csv, {LATE}column 'age' should be a whole number, as in the training rows"),
            (["art", "gap.csv"], f"gap.csv, {LATE}column 'age' is empty, and no training row was empty there"),
            (
                ["art", "castle.csv"],
                f"{LATE}column 'housing' is 'ownn', which is not among the training values. Did you mean 'own'",
            ),
            (["art", "maybe.csv"], f"{LATE}column 'owns' should be true or false. Got 'maybe'"),
            (["art", "endless.csv"], f"{LATE}column 'income' should be a number. Got 'inf'"),
            (["art", "far.csv"], f"{LATE}Column 'income' has a value too far from the training rows"),
            (["art", "long.csv"], "long.csv, line 22: 2 cells, but the first line names 9 columns"),
            (["art", "-"], "standard input is empty"),
            (["nowhere", "rows.csv"], "There is no folder 'nowhere'"),
            (
                ["art", "rows.csv", "--target", "yes!"],
                "--target 'yes!' is not one of the outcomes. Available: 'no', 'yes'",
            ),
            (
                ["art", "rows.csv", "--vary", "incom"],
                "--vary names 'incom', which is not a column. Did you mean 'income'?",
            ),
            (["art", "rows.csv", "--vary", "age"], "'age'"),
            (["art", "rows.csv", "--range", "incom:1:2"], "--range names 'incom'"),
            (["art", "rows.csv", "--range", "income"], "--range gives column 'income' no range"),
            (["art", "rows.csv", "--range", "income:a:b"], "--range must give column 'income' a lowest"),
            (["art", "rows.csv", "--range", "housing:castle"], "'castle' is not one of the values of column 'housing'"),
            (["art", "rows.csv", "--min-prob", "1.0"], "--min-prob must be in (0, 1). Got 1.0"),
        ],
        ids=lambda value: value if isinstance(value, str) else " ".join(value),
    )
    def test_one_sentence_and_nothing_written(self, tmp_path, folder, arguments, says, old):
        for name, content in FILES.items():
            if name in arguments:
                (folder / name).write_text(content())
        out = tmp_path / "answers.csv"
        if old is not None:
            out.write_text(old)
        found = run("explain", *arguments, "--out", out, stdin=b"")
        assert found.code == 2, found.out
        assert found.err.startswith("avcg: ")
        assert found.err.count("\n") == 1
        assert says in found.err
        assert found.out == ""
        assert [path.name for path in tmp_path.iterdir()] == ([] if old is None else ["answers.csv"])
        assert old is None or out.read_text() == old

    @pytest.mark.parametrize(
        ("out", "says"), [("a.xlsx", "--out must end in '.csv', '.parquet', '.json'"), ("no/a.csv", "no folder 'no'")]
    )
    def test_where_to_write(self, out, says):
        found = run("explain", "art", "rows.csv", "--out", out)
        assert found.code == 2
        assert says in found.err

    def test_a_full_disk(self, monkeypatch, tmp_path):
        def full(self, blocks):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(answer_files.CsvAnswers, "add", full)
        found = run("explain", "art", "rows.csv", "--out", tmp_path / "a.csv")
        assert found.code == 2
        assert found.err == f"avcg: {tmp_path / 'a.csv'} cannot be written: No space left on device.\n"
        assert list(tmp_path.iterdir()) == []

    def test_parquet_of_another_type(self):
        rows = strangers(30)
        rows.assign(income=rows["income"].astype(str)).to_parquet("texts.parquet")
        found = run("explain", "art", "texts.parquet")
        assert found.code == 2
        assert "texts.parquet: column 'income' is of type" in found.err
        gaps = rows.assign(age=pd.array([*rows["age"][:29], None], dtype="Int64"))
        gaps.to_parquet("gaps.parquet")
        assert (
            "gaps.parquet, row 29 (the first is row 0): column 'age' is empty"
            in run("explain", "art", "gaps.parquet").err
        )


class TestAudit:
    @pytest.fixture
    def delivered(self):
        assert run("explain", "art", "rows.csv", "--out", "answers.json").code == 0
        return Counterfactuals.from_json(content("answers.json"))

    def test_under_the_same_folder_all_hold(self, delivered):
        found = run("audit", "answers.json", "--model", "art", "--json")
        assert found.code == 0, found.err
        record = json.loads(found.out)
        valid = np.isin(delivered.statuses, ("ok", "not_robust"))
        assert record["summary"]["told"] == record["summary"]["holds"] == int(valid.sum()) > 0
        assert record["models"] == ["art"]
        now = [line["probability_now"] for line in record["answers"]]
        np.testing.assert_allclose(now, delivered.probability, atol=1e-5)

    def test_its_rule_judges_and_its_explainer_replaces(self, delivered):
        strict, least = avcg.load("art"), round(float(np.quantile(delivered.probability, 0.2)), 9)
        strict.threshold = least
        strict.deployed_ = type(strict.deployed_)(strict.split_.deployed, least)
        strict.save("strict")
        record = json.loads(run("audit", "answers.json", "--model", "strict", "--json").out)
        assert record["threshold"] == least
        valid = np.isin(delivered.statuses, ("ok", "not_robust"))
        assert record["summary"]["holds"] == int((valid & (delivered.probability >= least)).sum()) < int(valid.sum())
        assert record["summary"]["replaced"] > 0
        replaced = Counterfactuals.from_json(json.dumps(record["replacements"]))
        better = replaced.answers[np.isin(replaced.statuses, ("ok",))]
        assert (strict.decide(better) == "yes").all()
        explicit = json.loads(run("audit", "answers.json", "--model", "strict", "--threshold", 0.5, "--json").out)
        assert explicit["summary"]["lost"] == 0
        both = run("audit", "answers.json", "--model", "strict", "--model", "art")
        assert both.code == 2
        assert "The folders decide by different thresholds" in both.err

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            (
                ["--model", "art", "--classes", "no,yes"],
                "--classes is for ONNX files, and every --model is a folder: leave it out",
            ),
            (["--model", "nowhere"], "There is no file nowhere"),
            (["--model", "."], "has no manifest.json. Give a folder"),
        ],
    )
    def test_mistakes(self, delivered, options, says):
        found = run("audit", "answers.json", *options)
        assert found.code == 2
        assert says in found.err


def test_a_category_that_is_written_like_a_gap_is_none(tmp_path):
    """People without a degree are no people of whom nothing is known."""
    rows = people(200).assign(degree=["None", "NA", "BA", "MA"] * 50)
    X, y = rows[["income", "degree"]], np.where(rows["income"] > 50, "yes", "no")
    model = avcg.Classifier(hidden=(8,), epochs=10).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so short a training may not keep its promise
        recipe = avcg.Recipe(steps=20, layers=(16,))
        avcg.AVCG(avcg.retrains(model, X, y, n=4), recipe=recipe).fit(X).save(tmp_path / "art")
    X.to_csv(tmp_path / "rows.csv", index=False)
    out = tmp_path / "told.json"
    found = run("explain", tmp_path / "art", tmp_path / "rows.csv", "--all", "--target", "yes", "--out", out)
    assert found.code == 0, found.err
    assert Counterfactuals.from_json(out.read_text()).factuals["degree"].tolist() == X["degree"].tolist()
    out.with_name("gap.csv").write_text("income,degree\n20.5,\n")
    found = run("explain", tmp_path / "art", tmp_path / "gap.csv", "--target", "yes")
    assert "gap.csv, line 2: column 'degree' is empty" in found.err


def test_the_demonstration_can_be_kept(tmp_path):
    place = tmp_path / "demo"
    shown = run("demo", "--steps", 5, "--picture", tmp_path / "three.png", "--save", place)
    assert shown.code == 0, shown.err
    lines = [line.split() for line in shown.out.partition("Next:")[2].splitlines()[1:]]
    assert [line[1] for line in lines] == ["explain", "report", "serve"]
    explained, reported = run(*lines[0][1:]), run(*lines[1][1:-1], tmp_path / "report.html")
    assert (explained.code, reported.code) == (0, 0), explained.err + reported.err
    assert explained.out.startswith("20 rows of rows.csv")
    rows = pd.read_csv(place / "rows.csv").to_dict("records")
    assert [row.target for row in Scorer(place).answer(rows, "benign")] == ["benign"] * 20  # without torch
    full = tmp_path / "full"
    full.mkdir()
    (full / "letter").write_text("dear")
    assert run("demo", "--save", full).code == 2
