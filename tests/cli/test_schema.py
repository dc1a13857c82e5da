"""`avcg schema`: a file that people edit, and commands that obey it."""

import io
import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import QUICK, people, run

import avcg
from avcg import Categorical, Continuous, Schema, toys
from avcg.cli.fit_run import FitConfig, read_table
from avcg.io.artifact import about
from avcg.schema.toml import read

COLUMNS = ["--target", "approved", "--positive", "yes", "--drop", "id", "--categorical", "zip"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("schema")
    people().to_csv(folder / "data.csv", index=False)
    return folder


@pytest.fixture(autouse=True)
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)


@pytest.fixture
def written(folder):
    """The text that the command writes for the people."""
    return run("schema", "data.csv", *COLUMNS).out


def edited(folder, text, *changes):
    """A schema file in which lines below the explanations are replaced, each of which must be there once."""
    header, _, lines = text.partition("\nversion = 1\n")
    for before, after in changes:
        assert lines.count(before) == 1, before
        lines = lines.replace(before, after)
    (folder / "edited.toml").write_text(f"{header}\nversion = 1\n{lines}")
    return "edited.toml"


class TestWriting:
    def test_it_says_what_fit_would_infer(self, folder, written):
        (folder / "as_is.toml").write_text(written)
        schema, notes = read("as_is.toml")
        table = read_table(FitConfig("data.csv", "approved", "yes", drop=("id",), categorical=("zip",)))
        assert schema == table.schema
        assert (notes.target, notes.positive, notes.drop) == ("approved", "yes", ("id",))

    def test_people_find_their_way(self, written):
        assert max(map(len, written.splitlines())) <= 80
        assert (
            '\n[columns.age]\n# Whole number, 18 to 79 in the data.\n# People cannot change this: change = "frozen"?\n'
            in written
        )
        assert written.count("People cannot change this") == 1
        assert "\n[columns.months]\n# Whole number, may be missing, 0 to 119 in the data.\n" in written
        assert tomllib.loads(written)["columns"]["zip"]["categories"] == ["0100", "0101", "0102", "0103"]

    def test_parquet_and_standard_input_say_the_same(self, folder, written):
        people().to_parquet(folder / "data.parquet")
        assert run("schema", "data.parquet", *COLUMNS).out == written
        assert run("schema", "-", *COLUMNS, stdin=(folder / "data.csv").read_bytes()).out == written

    def test_a_file_is_not_replaced_by_accident(self, folder, written):
        first = run("schema", "data.csv", *COLUMNS, "--out", "mine.toml")
        assert (first.code, first.err) == (0, "")
        assert first.out == "Written to mine.toml. Edit it, then: avcg fit data.csv --schema mine.toml --out recourse\n"
        assert (folder / "mine.toml").read_text() == written
        (folder / "mine.toml").write_text("days of work")
        again = run("schema", "none.csv", "--out", "mine.toml")
        assert again.code == 2
        assert "There is a file 'mine.toml' already. Give another name, or --force to replace it." in again.err
        assert (folder / "mine.toml").read_text() == "days of work"
        assert run("schema", "data.csv", *COLUMNS, "--out", "mine.toml", "--force").code == 0
        assert (folder / "mine.toml").read_text() == written

    def test_without_a_target_every_column_is_described(self):
        ran = run("schema", "data.csv", "--drop", "id", "--out", "all.toml")
        assert "--schema all.toml --target ... --positive ... --out recourse" in ran.out
        assert "approved" in Schema.read("all.toml").names

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            (["none.csv"], "There is no file 'none.csv'."),
            (["data.csv", "--target", "aproved"], "--target names 'aproved', which is not a column. Did you mean"),
            (["data.csv", "--drop", "idd"], "--drop names 'idd', which is not a column."),
            (["data.csv", "--out", "schema.json"], "--out must end in '.toml'. Got 'schema.json' instead."),
            (["data.csv", "--out", "none/schema.toml"], "There is no folder 'none' to write to."),
        ],
    )
    def test_one_sentence_and_nothing_written(self, folder, options, says):
        before = sorted(folder.iterdir())
        ran = run("schema", *options)
        assert ran.code == 2
        assert ran.err.startswith("avcg: ")
        assert says in ran.err
        assert sorted(folder.iterdir()) == before

    def test_names_and_texts_of_every_kind(self, tmp_path):
        frame = pd.DataFrame({"Einkommen (€)": [1.25, 2.5] * 15, "a.b": range(30), 'say "x"': ["#1", "[2]"] * 15})
        frame["税"] = ["two\nlines", "'"] * 15
        frame.to_csv(tmp_path / "data.csv", index=False)
        assert run("schema", tmp_path / "data.csv", "--out", tmp_path / "s.toml").code == 0
        schema = Schema.read(tmp_path / "s.toml")
        assert schema.names == tuple(frame)
        assert schema["税"].categories == ("'", "two\nlines")


class TestPage:
    """What the page about the command line shows is what the command writes and says."""

    PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "command-line.md"
    LOANS = Path(__file__).parents[2] / "examples" / "loans.csv"

    def test_the_file_and_the_mistake(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        shown = re.search(r"```toml\n(.*?)```", self.PAGE.read_text(), re.DOTALL)[1]
        options = ["--target", "approved", "--positive", "yes", "--drop", "applicant"]
        assert run("schema", self.LOANS, *options, "--out", "schema.toml").code == 0
        text = Path("schema.toml").read_text()
        for part in shown.strip().split("\n\n"):
            assert f"{part}\n\n" in text
        months = '[columns.months]\n# Whole number, 0 to 119 in the data.\nkind = "number"\nchange = '
        assert text.count(f'{months}"any"') == 1
        Path("schema.toml").write_text(text.replace(f'{months}"any"', f'{months}"onlyup"'))
        ran = run("fit", self.LOANS, "--schema", "schema.toml", "--out", "none")
        assert ran.err in self.PAGE.read_text()


class TestFitting:
    def test_from_the_rows_to_answers(self, folder, written):
        """Everything that was edited is obeyed by the answers, with nothing else on the command line."""
        path = edited(
            folder, written,
            ('change = "frozen"?\nkind = "number"\nchange = "any"', '?\nkind = "number"\nchange = "frozen"'),
            ('in the data.\nkind = "number"\nchange = "any"\nstep = 1\nmissing = true',
             '\nkind = "number"\nchange = "only up"\nstep = 6\nmissing = true'),
            ("step = 0.1", "step = 0.5\nlow = 20\nhigh = 80"),
            ('categories = ["free", "own", "rent"]\nchange = "any"',
             'categories = ["free", "rent", "own"]\nordered = true\nchange = "only up"'),
            ('categories = ["0100", "0101", "0102", "0103"]\nchange = "any"',
             'categories = ["0100", "0101", "0102", "0103"]\nchange = "frozen"'),
            ('positive = "yes"\n', 'positive = "yes"\nmax_changes = 2\n'),
        )  # fmt: skip
        ran = run("fit", "data.csv", "--schema", path, "--out", "art", *QUICK)
        assert ran.code == 0, ran.err
        stored = avcg.load(folder / "art").space_.schema
        assert stored == Schema.read(path)
        noted = about(folder / "art")
        assert (noted["target"], noted["positive"], noted["settings"]["drop"]) == ("approved", "yes", ["id"])
        assert Schema.from_json(noted["settings"]["schema"]) == stored
        assert noted["dtypes"]["age"] == "int64", "as without a schema file"
        rows = people(60, seed=5).drop(columns="approved")
        rows.to_csv(folder / "rows.csv", index=False)
        ran = run("explain", "art", "rows.csv", "--effort", "fast", "--out", "answers.csv")
        assert ran.code == 0, ran.err
        read_so = {"zip": str, "member": object, "owns": object}
        before = pd.read_csv("rows.csv", dtype=read_so).set_index("id")
        after = pd.read_csv("answers.csv", dtype=read_so).set_index("id")
        after, before = after[before.columns], before.loc[after.index]
        changed = (after != before) & ~(after.isna() & before.isna())
        assert changed.any(axis=1).mean() > 0.3
        assert changed.sum(axis=1).max() <= 2
        assert not changed[["age", "zip"]].any().any()
        income, months, housing = (after[name][changed[name]] for name in ("income", "months", "housing"))
        assert (income * 2 % 1 == 0).all()
        assert ((income >= np.minimum(20, before["income"][income.index]))
                & (income <= np.maximum(80, before["income"][income.index]))).all()  # fmt: skip
        assert (months % 6 == 0).all()
        assert not (months < before["months"][months.index]).any()
        rank = {"free": 0, "rent": 1, "own": 2}
        assert not (housing.map(rank) < before["housing"][housing.index].map(rank)).any()

    def test_options_come_on_top_of_the_file(self, folder, written):
        path = edited(folder, written, ('# People cannot change this: change = "frozen"?\n', ""))
        ran = run(
            "fit", "data.csv", "--schema", path, "--positive", "no", "--freeze", "zip,age", "--between", "income:15:",
            "--at-most", 3, "--out", "more", "--hypotheses", 4, "--steps", 1, "--json",
        )  # fmt: skip
        assert ran.code == 0, ran.err
        assert json.loads(ran.out)["positive"] == "no", "the command line wins over the file"
        schema = avcg.load(folder / "more").space_.schema
        assert schema == Schema.read(path).freeze("zip", "age").between("income", 15.0).at_most(3)

    def test_json_is_read_as_well(self, folder, written):
        Schema.from_toml(written).freeze("zip").write("schema.json")
        config = FitConfig("data.csv", "approved", "yes", drop=("id",), schema=Schema.read("schema.json"))
        assert read_table(config).schema["zip"].change == "none"

    def test_rows_are_read_as_the_file_says(self, tmp_path):
        """Digits that are names, NA that is a category, whole numbers in a column of decimals."""
        (tmp_path / "d.csv").write_text("\n".join(["code,x,flag,y", *["007,1,NA,0", "1,2,b,1"] * 20]))
        schema = Schema(
            (Categorical("code", ("007", "1")), Continuous("x", step=0.5), Categorical("flag", ("NA", "b")))
        )
        table = read_table(FitConfig(str(tmp_path / "d.csv"), "y", "1", schema=schema))
        assert table.X.iloc[:2].to_dict("list") == {"code": ["007", "1"], "x": [1, 2], "flag": ["NA", "b"]}
        assert table.schema == schema

    @pytest.mark.parametrize(
        ("change", "options", "says"),
        [
            (("step = 0.1", "stp = 0.1"), [], "column 'income' has an unknown entry 'stp'. Did you mean 'step'?"),
            (("step = 0.1", "step = 0.1."), [], "edited.toml is not TOML: "),
            (('drop = ["id"]\n', ""), [], "data.csv has columns that the schema does not describe: 'id'."),
            (("[columns.income]", "[columns.incme]"), [], "'incme', which is not among the columns of data.csv"),
            (("[columns.income]", "[columns.id]"), [], "The schema describes column 'id', which is left out"),
            (('target = "approved"\n', ""), [], "--target is missing. Give the column of outcomes, or write target ="),
            (('positive = "yes"\n', ""), [], "--positive is missing. Give the outcome that people want, or write"),
            (('positive = "yes"', 'positive = "yess"'), [], "--positive 'yess' is not one of the outcomes."),
            (("step = 1\nmissing = true", "step = 1"), [], "'months' is empty in 23 rows (the first: data.csv, line"),
            (('"free", "own", "rent"', '"free", "own"'), [], "that are no category of it: 'rent'."),
            (None, ["--categorical", "zip"], "--categorical and --schema both say what columns are."),
            (None, ["--only-up", "housing"], "Column 'housing' has no order"),
            (None, ["--schema", "none.toml"], "The schema 'none.toml' cannot be read: No such file"),
        ],
    )  # fmt: skip
    def test_one_sentence_and_nothing_fitted(self, folder, written, change, options, says):
        path = edited(folder, written, *([] if change is None else [change]))
        ran = run("fit", "data.csv", "--schema", path, "--out", "none", *options)
        assert ran.code == 2
        assert ran.err.startswith("avcg: ")
        assert says in ran.err
        assert not (folder / "none").exists()

    def test_without_a_file_the_options_are_required(self):
        ran = run("fit", "data.csv", "--out", "none")
        assert (ran.code, ran.err) == (2, "avcg: --target is missing. Give the column of outcomes.\n")


class TestOthers:
    def test_a_backtest_obeys(self, tmp_path, monkeypatch):
        """A category that nobody had at a moment is no answer there, and the schema is part of what is stored."""
        monkeypatch.chdir(tmp_path)
        toy = toys.drift(n=90, moments=3, shift=0.3)
        kind = np.where(np.arange(len(toy.X)) % 2, "p", "q")
        table = toy.X.assign(kind=kind, month=toy.time, outcome=np.where(toy.y == 1, "yes", "no"))
        table.to_csv("table.csv", index=False)
        ran = run(
            "schema", "table.csv", "--target", "outcome", "--positive", "yes", "--drop", "month", "--out", "s.toml"
        )
        assert ran.code == 0, ran.err
        text = (tmp_path / "s.toml").read_text()
        name = toy.X.columns[0]
        schema = Schema.from_toml(text)
        kinds = Categorical("kind", ("p", "q", "r"), allowed=("r",))
        schema = Schema(tuple(kinds if f.name == "kind" else f for f in schema.features)).freeze(name)
        stored = 'target = "outcome"\npositive = "yes"\ndrop = ["month"]\n' + schema.to_toml()
        (tmp_path / "s.toml").write_text(stored)
        common = ["backtest", "table.csv", "--time", "month", "--schema", "s.toml", "--hypotheses", "2", "--steps", "1"]
        ran = run(*common, "--people", "5", "--folder", "origins", "--json")
        assert ran.code == 0, ran.err
        (tmp_path / "s.toml").write_text(stored.replace('change = "frozen"', 'change = "only up"'))
        ran = run(*common, "--people", "5", "--folder", "origins", "--json")
        assert "holds a backtest with other settings or rows" in ran.err

    def test_a_protocol_reads_it(self, tmp_path):
        from avcg.bench.data import DataSource

        loans = toys.loans(n=60)
        loans.X.assign(paid=loans.y).to_csv(tmp_path / "loans.csv", index=False)
        loans.schema.write(tmp_path / "loans.toml", loans.X)
        source = DataSource.read({"path": "loans.csv", "schema": "loans.toml", "target": "paid"}, "datasets")
        source.check(tmp_path)
        assert source.load(tmp_path).schema == loans.schema
        (tmp_path / "loans.toml").write_text("max_changes = ")
        with pytest.raises(avcg.errors.SchemaError, match=r"^loans\.toml is not TOML"):
            source.check(tmp_path)


def test_the_rows_of_the_explainer_are_those_of_the_file(folder, written):
    """A schema that nobody edited changes nothing."""
    (folder / "same.toml").write_text(written)
    plain = read_table(FitConfig("data.csv", "approved", "yes", drop=("id",), categorical=("zip",)))
    told = read_table(FitConfig("data.csv", "approved", "yes", drop=("id",), schema=Schema.read("same.toml")))
    pd.testing.assert_frame_equal(plain.X, told.X)
    pd.testing.assert_frame_equal(plain.held_out, told.held_out)
    assert plain.schema == told.schema
    assert io.StringIO(written).readline().startswith("# What each column is")
