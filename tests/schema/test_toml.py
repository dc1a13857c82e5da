"""Schemas as TOML that people edit: nothing is lost on the way, and what is wrong is said exactly."""

import contextlib
import dataclasses
import re
import subprocess
import sys
import tomllib

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from avcg import Categorical, Continuous, Schema
from avcg.errors import DataError, SchemaError
from avcg.schema import toml
from avcg.schema.entries import (
    CATEGORY_ENTRIES,
    COMMAND_ENTRIES,
    KINDS,
    NUMBER_ENTRIES,
    SCHEMA_ENTRIES,
    CommandNotes,
    Entry,
)
from avcg.schema.rules import Derivation, Requirement

# Everything that UTF-8 can hold, hostile to files and to TOML above all.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ["", '"', "'", "\\", "a.b", "a\nb", "a\r\nb", "\t", "\x00", "\x7f", "\x85", "\u2028", '"""', "# x", "]", "=", "1",
     "ß 税 🙂"]
)  # fmt: skip
finite = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**30), 10**30)
prices = st.floats(0, 1e300) | st.integers(0, 10)
scalars = texts | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
changes = st.sampled_from(["any", "up", "down", "none"])


@st.composite
def numbers(draw, name):
    low, high = draw(st.none() | finite), draw(st.none() | finite)
    if low is not None and high is not None:
        low, high = min(low, high), max(low, high)
    whole_range = low is not None and high is not None
    return Continuous(
        name,
        step=None if whole_range else draw(st.none() | st.sampled_from([1, 1.0, 0.01, 1e-7, 1e16, 100, 2**70])),
        low=low,
        high=high,
        change=draw(changes),
        missing=draw(st.sampled_from(["error", "indicator"])),
        cost_per_unit=draw(st.none() | prices),
        cost_per_change=draw(prices),
        codes=(codes := tuple(draw(st.lists(st.integers(-9, -1) | st.just(99.5), max_size=3, unique=True)))),
        left_codes=codes[:1],
        observed=draw(st.booleans()),
    )


@st.composite
def choices(draw, name):
    categories = tuple(draw(st.lists(scalars, min_size=1, max_size=6, unique=True)))
    ordered = draw(st.booleans())
    inside = st.sampled_from(categories)
    pairs = st.lists(st.tuples(inside, inside).filter(lambda pair: pair[0] != pair[1]), max_size=4)
    return Categorical(
        name,
        categories,
        ordered=ordered,
        allowed=draw(st.none() | st.lists(inside, min_size=1, unique=True)),
        forbidden=tuple(draw(pairs)) if len(categories) > 1 else (),
        change=draw(changes if ordered else st.sampled_from(["any", "none"])),
        missing=draw(st.sampled_from(["error", "category"])),
        cost_per_change=draw(prices),
    )


@st.composite
def schemas(draw):
    names = draw(st.lists(texts, min_size=1, max_size=6, unique=True))
    features = tuple(draw(numbers(name) | choices(name)) for name in names)
    shuffled = draw(st.permutations(names))
    links = (tuple(shuffled[:2]), tuple(shuffled[2:5]))[: draw(st.integers(0, 2))]
    links = tuple(group for group in links if len(group) > 1)
    kept = tuple(name for name in draw(st.lists(texts, max_size=2, unique=True)) if name not in names)
    return Schema(features, links, draw(st.none() | st.integers(1, 9)), kept)


class TestRoundTrip:
    @settings(deadline=None, max_examples=200)
    @given(schemas())
    def test_nothing_is_lost(self, schema):
        """Types too: 1, 1.0 and true are three different things, though Python says they are equal."""
        text = schema.to_toml()
        back = Schema.from_toml(text)
        assert back == schema
        assert back.names == schema.names, "the order of the columns"
        assert repr(dataclasses.astuple(back)) == repr(dataclasses.astuple(schema))
        assert back.to_toml() == text
        assert Schema.from_json(back.to_json()) == Schema.from_json(schema.to_json())

    @settings(deadline=None, max_examples=100)
    @given(schemas(), st.none() | texts, st.none() | scalars, st.lists(texts, max_size=3).map(tuple))
    def test_what_the_commands_are_told(self, schema, target, positive, drop):
        notes = CommandNotes(target, positive, drop)
        back = toml.from_toml(toml.to_toml(schema, notes=notes))
        assert back == (schema, notes)
        assert type(back[1].positive) is type(positive)

    @settings(deadline=None, max_examples=50)
    @given(schemas())
    def test_files_of_both_kinds(self, tmp_path_factory, schema):
        folder = tmp_path_factory.getbasetemp()
        for name in ("schema.toml", "schema.json", "schema.JSON"):
            schema.write(folder / name)
            assert Schema.read(str(folder / name)) == schema
        assert (folder / "schema.json").read_text(encoding="utf-8") == schema.to_json()

    def test_every_verb_can_be_said(self):
        frame = pd.DataFrame({"n": [1.5, 2.0], "k": [1, 2], "c": ["a", "b"], "d": ["x", "y"], "b": [True, False]})
        schema = (
            Schema.infer(frame, kinds={"d": ["x", "y"]})
            .freeze("b").only_up("n").only_down("d").between("n", 0, 9).step("n", 0.5).allow("c", ["b"])
            .forbid("c", "a", "b").allow_missing("n", "c").link("c", "d").cost("n", per_unit=0.5, per_change=2)
            .cost("c", per_change=4).at_most(2)
        )  # fmt: skip
        content = tomllib.loads(schema.to_toml(frame))
        assert content == {
            "version": 1,
            "max_changes": 2,
            "links": [["c", "d"]],
            "columns": {
                "n": {
                    "kind": "number", "change": "only up", "step": 0.5, "low": 0, "high": 9, "missing": True,
                    "cost_per_unit": 0.5, "cost_per_change": 2,
                },
                "k": {"kind": "number", "change": "any", "step": 1},
                "c": {
                    "kind": "category", "categories": ["a", "b"], "change": "any", "allowed": ["b"],
                    "forbidden": [["a", "b"]], "missing": True, "cost_per_change": 4,
                },
                "d": {"kind": "category", "categories": ["x", "y"], "ordered": True, "change": "only down"},
                "b": {"kind": "category", "categories": [False, True], "ordered": True, "change": "frozen"},
            },
        }  # fmt: skip
        assert Schema.from_toml(schema.to_toml(frame)) == schema

    def test_every_kind_of_rule_and_of_column_can_be_said(self):
        flags = pd.DataFrame({"home_own": [1, 0, 0], "home_rent": [0, 1, 0], "home_free": [0, 0, 1]})
        frame = flags.assign(rent=[0.0, 5.5, 0.0], income=[9.5, 8.0, 7.0], share=[0.0, 0.69, 0.0], who=["a", "b", "c"])
        frame = frame.assign(**{"a <= b": [1.5, 2.5, 2.0]})
        schema = (
            Schema.infer(frame).keep("who").require("rent <= 2 * income").derive("share", "rent / income")
            .derive("a <= b", "income / 4").when("home", "own").then("rent", equals=0)
            .when("home", ["own", "rent"]).then("income", low=2).when("home", "free").then("rent", high=3.5)
        )  # fmt: skip
        content = tomllib.loads(schema.to_toml())
        assert content["kept"] == ["who"]
        assert content["columns"]["home"]["columns"] == list(flags)
        assert content["rules"] == [
            "rent <= 2 * income",
            "share = rent / income",
            {"derive": "a <= b", "from": "income / 4"},
            {"when": "home", "is": ["own"], "then": "rent", "low": 0, "high": 0},
            {"when": "home", "is": ["own", "rent"], "then": "income", "low": 2},
            {"when": "home", "is": ["free"], "then": "rent", "high": 3.5},
        ]
        assert Schema.from_toml(schema.to_toml()) == schema

    def test_a_rule_about_categories(self):
        schema = Schema((Categorical("a", ("x", 1)), Categorical("b", (True, "y", 2.5))))
        ruled = schema.when("a", "x").then("b", one_of=[True, 2.5])
        assert repr(Schema.from_toml(ruled.to_toml()).rules) == repr(ruled.rules)

    @pytest.mark.parametrize("wrong", ['["rent"]', "[1]", '[{ when = "home" }]', '[{ derive = "share" }]', '"a <= b"'])
    def test_what_is_no_rule(self, wrong):
        with pytest.raises(SchemaError, match="entry 'rules': expected a list of rules"):
            Schema.from_toml(f'rules = {wrong}\n[columns.rent]\nkind = "number"')

    def test_a_file_written_by_hand(self):
        text = """
            max_changes = 1
            columns.age = { kind = "number", step = 1, change = "frozen" }
            [columns."marital status"]
            kind = "category"
            categories = ["single", "married"]
        """
        assert Schema.from_toml(text) == Schema(
            (Continuous("age", step=1, change="none"), Categorical("marital status", ("single", "married"))), (), 1
        )

    def test_half_a_character_cannot_be_written(self):
        with pytest.raises(SchemaError, match="half of a character"):
            Schema((Continuous("\ud800"),)).to_toml()


class TestTables:
    @pytest.mark.parametrize(
        ("owner", "entries", "elsewhere"),
        [
            (Continuous, NUMBER_ENTRIES, {"name"}),
            (Categorical, CATEGORY_ENTRIES, {"name"}),
            (Schema, SCHEMA_ENTRIES, {"features"}),
            (CommandNotes, COMMAND_ENTRIES, set()),
        ],
    )
    def test_every_field_has_its_entry(self, owner, entries, elsewhere):
        """A new field that no file can say would be lost in it without a word."""
        assert {entry.field for entry in entries} == {field.name for field in dataclasses.fields(owner)} - elsewhere
        assert len({entry.word for entry in entries}) == len(entries)

    @pytest.mark.parametrize(
        "entry", [*NUMBER_ENTRIES, *CATEGORY_ENTRIES, *SCHEMA_ENTRIES, *COMMAND_ENTRIES], ids=lambda entry: entry.word
    )
    def test_examples_fit_and_come_back(self, entry: Entry):
        assert entry.form.fits(entry.example)
        assert entry.form.write(entry.form.read(entry.example)) == entry.example
        assert entry.meaning.endswith(".")

    def test_the_header_shows_every_entry_as_it_is_written(self):
        """What stands behind `#   ` is taken out of its comment, as a reader would do it, and read."""
        header = Schema((Continuous("x"),)).to_toml().split("\nversion")[0]
        sections = re.split(r"# Entries of (.*):\n", header)[1:]
        whole, number, category = (
            "".join(line.removeprefix("#   ") for line in part.splitlines(True)[:]) for part in sections[1::2]
        )
        text = f'{whole}\n[columns.degree]\nkind = "category"\n{category}\n[columns.years]\nkind = "number"\n{number}'
        text += "".join(f'\n[columns.{name}]\nkind = "number"\n' for name in ("rent", "income", "debt", "ratio"))
        schema, notes = toml.from_toml(text.replace("cost_per_change = 1 ", "cost_per_change = 7 "))
        assert notes == CommandNotes("approved", "yes", ("applicant",))
        assert schema.links == (("degree", "years"),)
        assert schema.rules == (Requirement("rent <= income"), Derivation("ratio", "debt / income"))
        assert schema.kept == ("applicant",)
        for feature, entries in ((schema["degree"], CATEGORY_ENTRIES), (schema["years"], NUMBER_ENTRIES)):
            for entry in entries:
                assert entry.word in sections[3 if feature.name == "years" else 5]
                assert entry.form.write(getattr(feature, entry.field)) in (entry.example, 7)

    def test_kinds_are_the_features(self):
        assert [cls for cls, _ in KINDS.values()] == [Continuous, Categorical]


class TestComments:
    def test_what_stands_by_a_column(self):
        frame = pd.DataFrame(
            {"Applicant.Age": [20, 63], "mortgage": [1.5, None], "owns": [True, False], "x": ["a", "b"]}
        )
        text = Schema.infer(frame).allow_missing("mortgage").to_toml(frame)
        blocks = {name: re.search(rf"^\[columns\.{re.escape(name)}\]\n((?:#.*\n)+)kind", text, re.MULTILINE)[1]
                  for name in ('"Applicant.Age"', "mortgage", "owns", "x")}  # fmt: skip
        assert blocks == {
            '"Applicant.Age"': "# Whole number, 20 to 63 in the data.\n"
            '# People cannot change this: change = "frozen"?\n',
            "mortgage": "# Number in steps of 0.1, may be missing, 1.5 to 1.5 in the data.\n",
            "owns": "# Yes or no.\n",
            "x": "# Category, 2 different.\n",
        }
        assert Schema.from_toml(text)["Applicant.Age"].change == "any", "a hint is not a constraint"

    @pytest.mark.parametrize(
        ("name", "hint"),
        [
            ("age", True), ("AGE", True), ("customerAge", True), ("sex", True), ("date_of_birth", True), ("ID", True),
            ("client-id", True), ("native.country", True), ("Marital Status", True), ("issue_Year", True),
            ("mortgage", False), ("paid", False), ("percentage", False), ("monthly_income", False), ("idea", False),
            ("essex", False), ("wage", False),
        ],
    )  # fmt: skip
    def test_hints_go_by_whole_words(self, name, hint):
        assert ("People cannot" in Schema((Continuous(name),)).to_toml()) is hint
        assert "People cannot" not in Schema((Continuous(name, change="none"),)).to_toml(), "it is frozen already"

    def test_lines_fit_a_terminal(self):
        schema = Schema(
            (Categorical("place", tuple(f"place number {i}" for i in range(60))), Continuous("x", step=0.1))
        )
        text = schema.to_toml()
        assert max(map(len, text.splitlines())) <= 80
        assert Schema.from_toml(text) == schema


COLUMN = "[columns.income]\nkind = 'number'\n"
CHOICE = "[columns.job]\nkind = 'category'\ncategories = ['a', 'b']\n"


WORDS = [
    entry.word for entries in (NUMBER_ENTRIES, CATEGORY_ENTRIES, SCHEMA_ENTRIES, COMMAND_ENTRIES) for entry in entries
]
VALUES = [
    "1", "-0.5", "inf", "nan", "true", '"any"', '"frozen"', '"up"', "''", "[]", "[[]]", "[1, 'a', true]",
    "[['a', 'b']]",
    "[['a', 'a']]", "{}", "{ a = 1 }", "2024-01-31", "07:00:00", "[1, 1.0]", "[2024-01-31]", "[[['a']]]", '"number"',
    '"category"', "['a', 'b']", "[nan]", "0x10", "1_000", '"""\n"""', "[{ a = 1 }]",
]  # fmt: skip


class TestMistakes:
    @settings(deadline=None, max_examples=200)
    @given(
        st.lists(st.tuples(st.sampled_from([*WORDS, "columns", "version"]), st.sampled_from(VALUES)), max_size=4),
        st.lists(st.tuples(st.sampled_from([*WORDS, "kind", "x.y"]), st.sampled_from(VALUES)), max_size=5),
        st.sampled_from(["", 'kind = "number"\n', 'kind = "category"\ncategories = ["a", "b"]\n']),
    )  # fmt: skip
    def test_whatever_stands_there_it_is_read_or_refused(self, top, column, kind):
        """A file is a schema or a `SchemaError`, and what is a schema can be written and read again."""
        lines = [*(f"{word} = {value}" for word, value in top), "[columns.a]", kind]
        lines += [f"{word} = {value}" for word, value in column]
        try:
            schema = Schema.from_toml("\n".join(lines))
        except SchemaError:
            return
        assert Schema.from_toml(schema.to_toml()) == schema

    @settings(deadline=None, max_examples=200)
    @given(st.data())
    def test_damaged_files(self, data):
        text = Schema(
            (Continuous("a", step=0.5, low=1), Categorical("b", ("x", "y"), missing="category")), (("a", "b"),)
        )
        damaged = text.to_toml().split("version")[1]
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, len(damaged)))
            damaged = damaged[:at] + data.draw(texts) + damaged[at + data.draw(st.integers(0, 5)) :]
        with contextlib.suppress(SchemaError):
            Schema.from_toml(damaged)

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("[columns.a]\nkind = number", "s.toml is not TOML: Invalid value (at line 2, column 8)."),
            (COLUMN + COLUMN, "s.toml is not TOML: Cannot declare ('columns', 'income') twice (at line 3, column 16)."),
            ("", "s.toml has no columns. Write a table for each, such as [columns.income]."),
            ("columns = 3", "s.toml has no columns."),
            ("version = 2\n" + COLUMN, "s.toml has version 2; this avcg reads version 1. Upgrade avcg."),
            ("version = true\n" + COLUMN, "s.toml has version True"),
            ("max_chnges = 3\n" + COLUMN, "s.toml has an unknown entry 'max_chnges'. Did you mean 'max_changes'?"),
            ("change = 'frozen'\n" + COLUMN, "s.toml has an unknown entry 'change'. It belongs under [columns.name]."),
            ("max_changes = 1.5\n" + COLUMN, "s.toml, entry 'max_changes': expected a whole number. Got 1.5 instead."),
            ("max_changes = 0\n" + COLUMN, "s.toml: The cap of at_most must be a whole number >= 1. Got 0 instead."),
            ("links = ['income']\n" + COLUMN, "s.toml, entry 'links': expected a list of lists of columns such as"),
            ("links = [['income', 'job']]\n" + COLUMN, "s.toml: There is no column 'job' in the schema."),
            ("drop = 'id'\n" + COLUMN, "s.toml, entry 'drop': expected a list of names"),
            ("columns.income = 3", "column 'income': expected a table that starts with [columns.income]. Got 3"),
            ("[columns.income]", 'expected kind = "number" or kind = "category". There is none.'),
            ("[columns.a.b]\nkind = 'number'", 'A name with a dot stands in quotes, such as [columns."a.b"].'),
            ("[columns.a]\nkind = 'nmber'", "Got \"nmber\" instead. Did you mean 'number'?"),
            ("[columns.a]\nkind = ['number']", "Got ['number'] instead."),
            (COLUMN + "stp = 1", "s.toml, column 'income' has an unknown entry 'stp'. Did you mean 'step'?"),
            (COLUMN + "links = []", "unknown entry 'links'. It is about the whole table: move it above the first line"),
            (COLUMN + "target = 'y'", "unknown entry 'target'. It is about the whole table"),
            (COLUMN + "ordered = true", "It is for columns of kind 'category', and this one is of kind 'number'."),
            (CHOICE + "step = 1", "It is for columns of kind 'number', and this one is of kind 'category'."),
            (COLUMN + "step = '1'", "s.toml, column 'income', entry 'step': expected a number. Got \"1\" instead."),
            (COLUMN + "step = true", "entry 'step': expected a number. Got true instead."),
            (COLUMN + "step = 0", "s.toml, column 'income': The step of column 'income' must be > 0. Got 0 instead."),
            (COLUMN + "low = nan", "The low bound of column 'income' must be a finite number. Got nan instead."),
            (COLUMN + "low = 2024-01-31", "Got 2024-01-31 (a date; put it in quotes) instead."),
            (COLUMN + "low = {}", "expected a number. Got a table instead."),
            (COLUMN + "low = 2\nhigh = 1", "s.toml, column 'income': The range of column 'income' is crossed"),
            (COLUMN + "change = 'only upp'", "Got \"only upp\" instead. Did you mean 'only up'?"),
            (COLUMN + "change = 'none'", '"any", "only up", "only down", "frozen". Got "none"'),
            (COLUMN + "missing = 'yes'", "entry 'missing': expected true or false. Got \"yes\" instead."),
            (CHOICE + "change = 'only up'", "s.toml, column 'job': Column 'job' has no order"),
            (CHOICE + "allowed = ['c']", "Column 'job' has no category 'c'."),
            (CHOICE + "forbidden = ['a', 'b']", "entry 'forbidden': expected a list of pairs such as [["),
            ("[columns.job]\nkind = 'category'", "kind 'category' needs the entry 'categories'. There is none."),
            ("[columns.d]\nkind = 'category'\ncategories = [2024-01-31]", "entry 'categories': expected a list"),
            ("x = " + "[" * 5000, "s.toml is not a schema: its lists or tables are nested too deeply."),
            ("x = " + "1" * 5000, "s.toml is not a schema: a whole number in it has thousands of digits."),
        ],
    )  # fmt: skip
    def test_what_is_said(self, tmp_path, text, says):
        (tmp_path / "s.toml").write_text(text)
        with pytest.raises(SchemaError) as caught:
            Schema.read(tmp_path / "s.toml")
        assert says in str(caught.value)

    def test_texts_without_a_file(self):
        with pytest.raises(SchemaError, match=r"^The schema, column 'income', entry 'step'"):
            Schema.from_toml(COLUMN + "step = '1'")

    def test_a_long_value_is_cut(self):
        with pytest.raises(SchemaError) as caught:
            Schema.from_toml(COLUMN + f"step = '{'x' * 10_000}'")
        assert len(str(caught.value)) < 300

    def test_files_that_cannot_be_read(self, tmp_path):
        for data, says in (
            (b"\xff\xfe", "b.toml is not a text in UTF-8 (byte 0). Save it as UTF-8."),
            (b"#" * 10_000_001, "is larger than 10 MB, which no schema is."),
        ):
            (tmp_path / "b.toml").write_bytes(data)
            with pytest.raises(DataError, match=re.escape(says)):
                Schema.read(tmp_path / "b.toml")
        with pytest.raises(DataError, match="cannot be read: No such file"):
            Schema.read(tmp_path / "none.toml")
        with pytest.raises(DataError, match="cannot be read: Is a directory"):
            Schema.read(tmp_path)
        (tmp_path / "b.json").write_text("{}")
        with pytest.raises(SchemaError, match=r"^b\.json: This JSON is not an avcg schema"):
            Schema.read(tmp_path / "b.json")

    def test_as_windows_saves_it(self, tmp_path):
        (tmp_path / "s.toml").write_bytes(b"\xef\xbb\xbf" + COLUMN.replace("\n", "\r\n").encode())
        assert Schema.read(tmp_path / "s.toml") == Schema((Continuous("income"),))

    def test_a_file_is_replaced_whole(self, tmp_path):
        schema = Schema((Continuous("a"),))
        (tmp_path / "s.toml").write_text("old")
        schema.write(tmp_path / "s.toml")
        assert [path.name for path in tmp_path.iterdir()] == ["s.toml"]
        with pytest.raises(DataError, match="cannot be written"):
            schema.write(tmp_path / "none" / "s.toml")


def test_reading_needs_the_standard_library_alone():
    code = """
import sys
from avcg.schema.rules import Derivation, Requirement
from avcg.schema.schema import Schema
schema = Schema.from_toml('[columns.a]\\nkind = "number"')
assert Schema.from_toml(schema.to_toml()) == schema
print(sorted({"numpy", "pandas", "torch"} & set(sys.modules)))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_the_schema_of_a_subclass_stays_one():
    class Mine(Schema):
        pass

    assert type(Mine.from_toml(COLUMN)) is Mine
